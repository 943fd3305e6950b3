//! Datasets named by a path at which they are mounted.
//!
//! `zfs list`, `get` and the commands for space by owner accept a path that begins with `/` or `./`
//! for the dataset mounted there. The path of a caller who may not do everything is looked for by
//! the caller's process, with its rights.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use crate::io::{Exit, words};
use crate::source::Source;

/// Returns the dataset that an argument denotes: by name, or mounted at that path.
pub(super) fn dataset<'a>(source: &Source, text: &'a str) -> Result<Cow<'a, str>, Exit> {
    if !text.starts_with('/') && !text.starts_with("./") {
        return Ok(Cow::Borrowed(text));
    }
    let cannot = |why: &str| Exit::failed(format!("cannot open '{text}': {why}"));
    let path = source.path(text);
    let path = match source.streams() {
        _ if source.is_trusted() => path.canonicalize().map_err(|error| cannot(&words(&error)))?,
        Some(caller) => caller.find_path(&path).map_err(|error| cannot(&words(&error)))?,
        None => normalized(&path),
    };
    let above = source.mounts().into_iter().filter(|(_, at)| path.starts_with(at));
    // The innermost mount is the visible one.
    let innermost = above.max_by_key(|(_, at)| at.as_os_str().len());
    innermost.map(|(name, _)| Cow::Owned(name)).ok_or_else(|| cannot("not a ZFS filesystem"))
}

/// Returns the path without `.` and `..`, without looking at the file system: this process may see
/// files that the caller may not.
fn normalized(path: &Path) -> PathBuf {
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
    fn paths_are_normalized_without_looking_at_files() {
        for (path, plain) in [("/a/./b/../c", "/a/c"), ("/../..", "/"), ("/a/b/", "/a/b")] {
            assert_eq!(normalized(Path::new(path)), Path::new(plain));
        }
    }
}
