//! `zfs diff`: lists what changed in a file system since a snapshot.
//!
//! Paths start with the place where the file system is, or would be, mounted: unlike OpenZFS's
//! command, this one does not need a mount. Bytes of paths that are not plain ASCII are escaped as
//! OpenZFS escapes them, spaces included, so that columns can be separated.
//!
//! Sources: spec 06 §19, the manual page zfs-diff(8).

use std::fmt::Write as _;

use cenote_fs::diff::{Change, Diff, NodeState};
use cenote_fs::{FileKind, FileSystem};
use cenote_pool::props::PropValue;
use cenote_pool::{Dataset, DatasetKind};
use cenote_rt::Kind;

use super::permits;
use super::refuse::existing;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::{Source, dataset_of};
use crate::zpool::block_on;

/// Runs `zfs diff`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "FHth", &[])?;
    let (from, to) = match &parsed.operands[..] {
        [] => return Err(Exit::usage("must provide at least one snapshot name")),
        [from] => (from, None),
        [from, to] => (from, Some(to.as_str())),
        _ => return Err(Exit::usage("too many arguments")),
    };
    let style = Style::of(&parsed);
    block_on(async {
        let (before, after) = both(source, from, to).await?;
        let place = place(source, &after).await?;
        let open = async |dataset: &Dataset| {
            let opened = FileSystem::open(dataset).await;
            opened.map_err(|error| crate::source::contents_failure(dataset.name(), &error))
        };
        let mut diff = Diff::new(&open(&before).await?, &open(&after).await?);
        while let Some(change) = diff.next().await? {
            io.out.write_all(&style.line(&place, &change))?;
        }
        Ok(())
    })
}

/// Opens the snapshot, and the later state to compare with it, both on one view of the pool.
async fn both(source: &Source, from: &str, to: Option<&str>) -> Result<(Dataset, Dataset), Exit> {
    let from = match to {
        // The later state names the dataset.
        Some(name) if from.starts_with('@') => {
            &format!("{}{from}", name.split('@').next().unwrap_or_default())
        }
        _ => from,
    };
    let Some((head, _)) = from.split_once('@') else {
        return Err(Exit::failed(format!("Badly formed snapshot name {from}")));
    };
    let later = match to {
        Some(name) if name.starts_with('@') => format!("{head}{name}"),
        Some(name) => name.to_owned(),
        None => head.to_owned(),
    };
    let (mut before, mut after) = named(source, from, &later).await?;
    permits::need(source, &before, &["diff"], "diff").await?;
    permits::need(source, &after, &["diff"], "diff").await?;
    if let Some(session) = &source.session
        && let Ok(engine) = session.pool(before.pool().name())
        && !engine.is_read_only()
        && !after.is_snapshot()
    {
        // The comparison is with the newest state, and views show only what is on disk.
        engine.sync().await?;
        (before, after) = named(source, from, &later).await?;
    }
    if is_earlier(&before, &after).await? {
        return Ok((before, after));
    }
    Err(unobtainable("\n   Not an earlier snapshot from the same fs"))
}

fn unobtainable(why: &str) -> Exit {
    Exit::failed(format!("Unable to obtain diffs: {why}"))
}

/// Opens datasets of these names, and checks that they exist and have the right kind.
async fn named(source: &Source, from: &str, later: &str) -> Result<(Dataset, Dataset), Exit> {
    let (head, short) = from.split_once('@').unwrap_or((from, ""));
    let before = snapshot(&existing(source, head).await?, short).await?;
    let (head, short) = match later.split_once('@') {
        Some((head, short)) => (head, Some(short)),
        None => (later, None),
    };
    let head = dataset_of(before.pool(), head).await?;
    if head.kind().await? != DatasetKind::Filesystem {
        return Err(Exit::failed(format!("cannot open '{}': not a filesystem", head.name())));
    }
    let after = match short {
        Some(short) => snapshot(&head, short).await?,
        None => head,
    };
    Ok((before, after))
}

async fn snapshot(head: &Dataset, short: &str) -> Result<Dataset, Exit> {
    head.snapshot(short).await.map_err(|error| match error.kind() {
        Kind::NotFound => unobtainable("No such file or directory"),
        _ => error.into(),
    })
}

/// Whether a snapshot is an earlier one of a dataset, or of the origin that the dataset was cloned
/// from.
async fn is_earlier(before: &Dataset, after: &Dataset) -> Result<bool, Exit> {
    let mut at = after.clone();
    loop {
        if at.dir().object == before.dir().object {
            let is_newest = !at.is_snapshot();
            return Ok(is_newest || before.phys().creation_txg < at.phys().creation_txg);
        }
        match at.origin().await? {
            // The origin is the state of a clone before its first change.
            Some(origin) if origin.object() == before.object() => return Ok(true),
            Some(origin) => at = origin,
            None => return Ok(false),
        }
    }
}

/// Returns the place that paths start with.
async fn place(source: &Source, after: &Dataset) -> Result<Vec<u8>, Exit> {
    let name = after.name().split('@').next().unwrap_or_default();
    if let Some((_, at)) = source.mounts().into_iter().find(|(dataset, _)| dataset == name) {
        return Ok(at.into_os_string().into_encoded_bytes());
    }
    let head = dataset_of(after.pool(), name).await?;
    match head.props().await?.get("mountpoint").await?.map(|row| row.value) {
        Some(PropValue::Text(at)) if at.starts_with('/') => Ok(at.into_bytes()),
        _ => Ok(Vec::new()),
    }
}

/// Format of the lines.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
struct Style {
    has_kind: bool,
    has_time: bool,
    is_scripted: bool,
    is_plain: bool,
}

impl Style {
    fn of(parsed: &Parsed) -> Self {
        let [has_kind, is_scripted, has_time, is_plain] =
            ['F', 'H', 't', 'h'].map(|letter| parsed.has(letter));
        Self { has_kind, has_time, is_scripted, is_plain }
    }

    fn line(&self, place: &[u8], change: &Change) -> Vec<u8> {
        let (letter, shown, rest) = match change {
            Change::Removed(seen) => ('-', seen, None),
            Change::Added(seen) => ('+', seen, None),
            Change::Modified(seen) => ('M', seen, None),
            Change::Linked(seen, by) => ('M', seen, Some(format!("\t({by:+})").into_bytes())),
            Change::Renamed(old, new) => {
                let arrow: &[u8] = if self.is_scripted { b"\t" } else { b" -> " };
                ('R', old, Some([arrow, &self.path(place, new)].concat()))
            }
        };
        let mut text = String::new();
        if self.has_time {
            let ctime = match change {
                Change::Renamed(_, new) => new.ctime,
                _ => shown.ctime,
            };
            let _ = write!(text, "{:>10}.{:09}\t", ctime.seconds, ctime.nanoseconds);
        }
        text.push(letter);
        text.push('\t');
        if self.has_kind {
            text.push(letter_of(shown.kind));
            text.push('\t');
        }
        let mut line = text.into_bytes();
        line.extend(self.path(place, shown));
        line.extend(rest.into_iter().flatten());
        line.push(b'\n');
        line
    }

    fn path(&self, place: &[u8], seen: &NodeState) -> Vec<u8> {
        let Some(path) = &seen.path else {
            return format!("(object {}, which has no path)", seen.object).into_bytes();
        };
        let whole = [place.strip_suffix(b"/").unwrap_or(place), path].concat();
        if self.is_plain { whole } else { escaped(&whole) }
    }
}

/// Escapes bytes that are not visible ASCII, and the backslash, as octal numbers.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b'\\' | 0..=b' ' | 0x7f.. => text.extend(format!("\\{byte:04o}").into_bytes()),
            _ => text.push(*byte),
        }
    }
    text
}

/// Returns the letter of `-F`.
fn letter_of(kind: FileKind) -> char {
    match kind {
        FileKind::BlockDevice => 'B',
        FileKind::CharDevice => 'C',
        FileKind::Directory => '/',
        FileKind::Fifo => '|',
        FileKind::Symlink => '@',
        FileKind::Socket => '=',
        FileKind::Regular => 'F',
        FileKind::Other(0xd) => '>',
        FileKind::Other(0xe) => 'P',
        FileKind::Other(_) => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_escapes_paths_as_openzfs_does() {
        assert_eq!(escaped(b"/a b\\\xff\x7f~!"), b"/a\\0040b\\0134\\0377\\0177~!");
    }
}
