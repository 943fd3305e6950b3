//! Sending the rest of an interrupted stream (`-t`): the token names the snapshot and the place
//! (spec 07 B5.5, B8).
//!
//! The snapshot and the source of its increment are found by their guids, near the name that the
//! token has: in that file system, then in everything below its parent, and so on up to the pool.
//! So they may have been renamed since.

use std::sync::Arc;

use cenote_ondisk::nvlist::NvList;
use cenote_pool::dsl::DslError;
use cenote_pool::{Bookmark, Dataset, Pool, RedactionList, mos};
use cenote_rt::Error;
use cenote_stream::send::SendOptions;
use cenote_stream::token::decode_list;
use cenote_stream::{ResumePoint, ResumeToken};

use super::command::Command;
use super::increment;
use super::plan::{Part, Place, Plan};
use super::{estimate, failure};
use crate::io::{Exit, Io};
use crate::source::Source;
use crate::zfs::permits;
use crate::zstream;

/// Exit status of OpenZFS for all failures with a token.
const STATUS: i32 = 255;

fn cannot_resume(why: impl std::fmt::Display) -> Exit {
    Exit::FailedWith(format!("cannot resume send: {why}"), STATUS)
}

/// Returns a failure with the status that failures with a token have.
pub(super) fn with_status(exit: Exit) -> Exit {
    match exit {
        Exit::Failed(message) => Exit::FailedWith(message, STATUS),
        other => other,
    }
}

/// Plans the rest of the stream that the token of a command is of.
pub(super) async fn plan(
    command: &Command,
    source: &Source,
    io: &mut Io<'_>,
) -> Result<Plan, Exit> {
    let list = decode_list(command.token()).map_err(cannot_resume)?;
    if command.has_estimate() {
        print(&list, super::reports(command, io))?;
    }
    let token = ResumeToken::decode(command.token());
    let token = token.map_err(|_| cannot_resume("resume token is corrupt"))?;
    let found = find(source, &token).await?;
    let target = &found.target;
    permits::need(source, target, &["send"], "send").await?;
    let options = SendOptions {
        large_blocks: command.options.large_blocks || token.allows_large_blocks,
        embedded: command.options.embedded || token.allows_embedded,
        compressed: command.options.compressed || token.allows_compressed,
        raw: command.options.raw || token.is_raw,
    };
    let mut part = Part::new(target.name().to_owned(), target.phys().guid, found.from);
    if let Some(guids) = &token.redact_snaps {
        part.redaction = redaction_of(target, guids).await?;
    }
    let ResumeToken { object, offset, .. } = token;
    part.resume = Some(ResumePoint { object, offset }).filter(|_| object != 0 || offset != 0);
    if command.has_estimate() {
        let failed = |error: Error| failure(target.name(), &error);
        let from = part.from.open(target).await?;
        let block_size = estimate::block_size(target).await.map_err(failed)?;
        let what = (&from, part.redaction.as_deref());
        let size = estimate::size(target, what, &options, block_size).await.map_err(failed)?;
        let mut lines = estimate::Lines::new(command.is_parsable());
        let from = part.from.name().map(estimate::FromText::Whole);
        lines.add(target.name(), from, size.saturating_sub(token.bytes));
        super::reports(command, io).write_all(lines.finish().as_bytes())?;
    }
    let place = Place::of(source, target)?;
    Ok(Plan { place, options, header: None, parts: vec![part], held: Vec::new() })
}

pub(super) fn print(list: &NvList, out: &mut (dyn std::io::Write + Send)) -> std::io::Result<()> {
    writeln!(out, "resume token contents:")?;
    zstream::nvlist::print(out, list, 0)
}

/// Finds the list of a redacted stream: that of a bookmark of the target with respect to the same
/// snapshots, or else the only one of its dataset. A redacted target lacks their blocks itself.
async fn redaction_of(target: &Dataset, guids: &[u64]) -> Result<Option<Arc<RedactionList>>, Exit> {
    if target.redaction_snapshots().await?.is_some() {
        return Ok(None);
    }
    let mos = target.pool().mos();
    let mut found = Vec::new();
    for bookmark in target.head().await?.bookmarks().await? {
        let of_bookmark = bookmark.redaction_snapshots(mos).await?;
        if of_bookmark.is_some_and(|of_bookmark| is_same_set(&of_bookmark, guids)) {
            found.push(bookmark);
        }
    }
    let of_target = found.iter().find(|bookmark| bookmark.phys.guid == target.phys().guid);
    let ((Some(bookmark), _) | (None, [bookmark])) = (of_target, &found[..]) else {
        return Err(cannot_resume("no appropriate redaction bookmark exists"));
    };
    match bookmark.redaction_list(mos).await {
        Err(error) if matches!(error.cause(), Some(DslError::IncompleteRedaction(_))) => {
            Err(cannot_resume("incomplete redaction bookmark provided"))
        }
        list => Ok(list?.map(Arc::new)),
    }
}

fn is_same_set(one: &[u64], other: &[u64]) -> bool {
    one.len() == other.len() && one.iter().all(|guid| other.contains(guid))
}

/// The snapshot of a token, and the source of its increment.
struct Found {
    target: Dataset,
    from: increment::Source,
}

/// A snapshot or bookmark with the guid that was looked for.
enum Named {
    Snapshot(Dataset),
    Bookmark(Bookmark),
}

impl Named {
    fn name(&self) -> &str {
        match self {
            Self::Snapshot(snapshot) => snapshot.name(),
            Self::Bookmark(bookmark) => &bookmark.name,
        }
    }
}

async fn find(source: &Source, token: &ResumeToken) -> Result<Found, Exit> {
    let name = token.to_name.to_string_lossy();
    let gone = || cannot_resume(format!("'{name}' used in the initial send no longer exists"));
    let top = name.split(['/', '@']).next().unwrap_or_default();
    if !source.has_pools() {
        return Err(gone());
    }
    let pool = match source.pool(top).await {
        Ok(pool) => pool,
        Err(Exit::Overtaken) => return Err(Exit::Overtaken),
        Err(_) => return Err(gone()),
    };
    let target = match by_guid(&pool, &name, token.to_guid, Wanted::Snapshot).await? {
        Some(Named::Snapshot(target)) => target,
        _ if pool.dataset(&name).await.is_ok() => {
            let text = "is no longer the same snapshot used in the initial send";
            return Err(cannot_resume(format!("'{name}' {text}")));
        }
        _ => return Err(gone()),
    };
    let from = source_of(token, &pool, &name).await?;
    Ok(Found { target, from })
}

/// Finds the source of the increment that a token is of, nearest to the dataset called `name`.
pub(super) async fn source_of(
    token: &ResumeToken,
    pool: &Arc<Pool>,
    name: &str,
) -> Result<increment::Source, Exit> {
    let Some(guid) = token.from_guid else { return Ok(increment::Source::Nothing) };
    let wanted = Wanted::SourceFor(token.book_redact_snaps.as_deref());
    let Some(found) = by_guid(pool, name, guid, wanted).await? else {
        return Err(cannot_resume(format!("incremental source {guid:#x} no longer exists")));
    };
    Ok(increment::Source::Named { name: found.name().to_owned(), guid })
}

/// Kind of what is looked for by its guid.
#[derive(Debug, Clone, Copy)]
enum Wanted<'a> {
    Snapshot,
    /// The source of an increment: a snapshot or bookmark; if it was redacted with respect to
    /// snapshots, a bookmark with respect to the same.
    SourceFor(Option<&'a [u64]>),
}

impl Wanted<'_> {
    async fn is_snapshot(self, found: &Dataset) -> Result<bool, Error> {
        match self {
            Self::SourceFor(Some(guids)) => {
                let of_found = found.redaction_snapshots().await?;
                Ok(of_found.is_some_and(|found| is_same_set(&found, guids)))
            }
            Self::Snapshot | Self::SourceFor(None) => Ok(true),
        }
    }

    async fn is_bookmark(self, found: &Bookmark, head: &Dataset) -> Result<bool, Error> {
        let Self::SourceFor(guids) = self else { return Ok(false) };
        let of_found = found.redaction_snapshots(head.pool().mos()).await?;
        Ok(match (of_found, guids) {
            (None, None) => true,
            (Some(found), Some(guids)) => is_same_set(&found, guids),
            _ => false,
        })
    }
}

/// Finds what has a guid nearest to the dataset called `name`.
async fn by_guid(
    pool: &Arc<Pool>,
    name: &str,
    guid: u64,
    wanted: Wanted<'_>,
) -> Result<Option<Named>, Error> {
    let mut at = name.split('@').next();
    let mut searched: Option<&str> = None;
    while let Some(top) = at {
        if let Some(top) = mos::optional(pool.dataset(top).await)? {
            let found = below(&top, guid, wanted, searched).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        searched = Some(top);
        at = top.rsplit_once('/').map(|(parent, _)| parent);
    }
    Ok(None)
}

/// Searches a dataset and everything below it, but not in the dataset `searched`.
async fn below(
    top: &Dataset,
    guid: u64,
    wanted: Wanted<'_>,
    searched: Option<&str>,
) -> Result<Option<Named>, Error> {
    let mut pending = vec![top.clone()];
    while let Some(dataset) = pending.pop() {
        if Some(dataset.name()) == searched {
            continue;
        }
        let mut snapshots = dataset.snapshots().await?.into_iter();
        if let Some(found) = snapshots.find(|snapshot| snapshot.phys().guid == guid)
            && wanted.is_snapshot(&found).await?
        {
            return Ok(Some(Named::Snapshot(found)));
        }
        for bookmark in dataset.bookmarks().await? {
            if bookmark.phys.guid == guid && wanted.is_bookmark(&bookmark, &dataset).await? {
                return Ok(Some(Named::Bookmark(bookmark)));
            }
        }
        pending.extend(dataset.children().await?.into_iter().rev());
    }
    Ok(None)
}
