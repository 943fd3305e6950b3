//! Datasets named by a path in what is mounted of them.
//!
//! `zfs list`, `get` and the lists of users' space take a path that begins with `/` or `./` for the
//! dataset that is mounted there.

use std::borrow::Cow;

use crate::io::Exit;
use crate::source::Source;

/// The dataset that an argument means: itself, or the one at that path.
pub(super) fn dataset<'a>(source: &Source, text: &'a str) -> Result<Cow<'a, str>, Exit> {
    if !text.starts_with('/') && !text.starts_with("./") {
        return Ok(Cow::Borrowed(text));
    }
    let cannot = |why: &str| Exit::failed(format!("cannot open '{text}': {why}"));
    let path = source.path(text).canonicalize().map_err(|error| {
        let said = error.to_string();
        cannot(said.split(" (os error").next().unwrap_or(&said))
    })?;
    let mounts = source.session.as_ref().map(|session| session.host.mounts()).unwrap_or_default();
    let above = mounts.into_iter().filter(|(_, at)| path.starts_with(at));
    // The innermost one is what is seen there.
    let innermost = above.max_by_key(|(_, at)| at.as_os_str().len());
    innermost.map(|(name, _)| Cow::Owned(name)).ok_or_else(|| cannot("not a ZFS filesystem"))
}
