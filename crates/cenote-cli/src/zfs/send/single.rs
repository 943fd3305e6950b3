//! Plans the stream of one snapshot; with `-p`, `-b` or `-h` as a package of its own.

use std::sync::Arc;

use cenote_pool::{Dataset, RedactionList};
use cenote_rt::{Error, Kind};
use cenote_stream::send::SendPlan;

use super::command::Command;
use super::header::{Gatherer, Header};
use super::plan::{Part, Place, Plan};
use super::{cannot_send, estimate, failure, increment};
use crate::io::{Exit, Io};
use crate::source::Source;
use crate::zfs::permits;
use crate::zfs::refuse::existing;

/// Plans the stream.
pub(super) async fn plan(
    command: &Command,
    source: &Source,
    io: &mut Io<'_>,
) -> Result<Plan, Exit> {
    let target = existing(source, &command.target).await?;
    permits::need(source, &target, &["send"], "send").await?;
    let name = target.name().to_owned();
    let place = Place::of(source, &target)?;
    if !target.is_snapshot() {
        if command.has_estimate() {
            return Err(cannot_send(&name, "Invalid argument"));
        }
        if !place.is_constant() && target.pool().presence().is_mounted(target.object()) {
            let why = "target is busy; if a filesystem, it must not be mounted";
            return Err(cannot_send(&name, why));
        }
        place.settle().await?;
    }
    let failed = |error: Error| failure(&name, &error);
    let from = increment::Source::find(command.from.as_deref(), &target).await?;
    let opened = from.open(&target).await?;
    let state = opened.state(&target).await.map_err(failed)?;
    let redaction = match command.redaction() {
        Some(short) => Some(redaction_of(&target, short).await?),
        None => None,
    };
    let list = redaction.as_deref();
    // Whether it can be sent so is known before anything is written.
    SendPlan::new(&target, state.as_ref(), list, &command.options, None).await.map_err(failed)?;
    if command.has_estimate() {
        let block_size = estimate::block_size(&target).await.map_err(failed)?;
        let size = estimate::size(&target, (&opened, list), &command.options, block_size).await;
        let mut lines = estimate::Lines::new(command.is_parsable());
        let text = from.name().map(estimate::FromText::Whole);
        lines.add(&name, text, size.map_err(failed)?);
        super::reports(command, io).write_all(lines.finish().as_bytes())?;
    }
    let mut header = None;
    if command.has_header() && !command.is_dry() {
        let to = target.snapshot_name().unwrap_or_default();
        let gatherer = Gatherer { command, source, from: None, to, is_single: true };
        let package = gatherer.gather(target.head().await.map_err(failed)?, io).await?;
        header = Some(Header::new(&name, Some(&package), command.has_holds())?);
    }
    let part = Part { redaction, ..Part::new(name, target.phys().guid, from) };
    Ok(Plan { place, options: command.options, header, parts: vec![part], held: Vec::new() })
}

/// Reads the redaction list of a bookmark of the target's dataset.
async fn redaction_of(target: &Dataset, short: &str) -> Result<Arc<RedactionList>, Exit> {
    let name = target.name();
    let failed = |error: Error| failure(name, &error);
    if !target.is_snapshot() {
        return Err(cannot_send(name, "cannot do a redacted send to a filesystem"));
    }
    let head = target.head().await.map_err(failed)?;
    let bookmark = match head.bookmark(short).await {
        Err(error) if error.kind() == Kind::NotFound => {
            let name = format!("{}#{short}", head.name());
            return Err(Exit::failed(format!("cannot open '{name}': no such pool or dataset")));
        }
        found => found.map_err(failed)?,
    };
    let list = bookmark.redaction_list(target.pool().mos()).await.map_err(failed)?;
    list.map(Arc::new).ok_or_else(|| cannot_send(name, "not a redaction bookmark"))
}
