//! Datasets named by a path in what is mounted of them.
//!
//! `zfs list`, `get` and the lists of users' space take a path that begins with `/` or `./` for the
//! dataset that is mounted there.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use crate::io::{Exit, words};
use crate::source::Source;

/// The dataset that an argument means: itself, or the one at that path.
pub(super) fn dataset<'a>(source: &Source, text: &'a str) -> Result<Cow<'a, str>, Exit> {
    if !text.starts_with('/') && !text.starts_with("./") {
        return Ok(Cow::Borrowed(text));
    }
    let cannot = |why: &str| Exit::failed(format!("cannot open '{text}': {why}"));
    let path = source.path(text);
    let path = if source.is_trusted() {
        path.canonicalize().map_err(|error| cannot(&words(&error)))?
    } else {
        unseen(&path)
    };
    let above = source.mounts().into_iter().filter(|(_, at)| path.starts_with(at));
    // The innermost one is what is seen there.
    let innermost = above.max_by_key(|(_, at)| at.as_os_str().len());
    innermost.map(|(name, _)| Cow::Owned(name)).ok_or_else(|| cannot("not a ZFS filesystem"))
}

/// The same path without its detours, and without a look at what is there: the daemon may see what
/// somebody else may not.
fn unseen(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            _ => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detours_are_left_out() {
        for (path, plain) in [("/a/./b/../c", "/a/c"), ("/../..", "/"), ("/a/b/", "/a/b")] {
            assert_eq!(unseen(Path::new(path)), Path::new(plain));
        }
    }
}
