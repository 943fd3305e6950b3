//! Plans the stream of one snapshot; with `-p`, `-b` or `-h` as a package of its own.

use cenote_rt::Error;
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
        if !place.is_constant() {
            // It would change while it is sent.
            let why = "of a pool that is open for writing only snapshots can be sent";
            return Err(cannot_send(&name, why));
        }
    }
    let failed = |error: Error| failure(&name, &error);
    let from = increment::Source::find(command.from.as_deref(), &target).await?;
    let opened = from.open(&target).await?;
    let state = opened.state(&target).await.map_err(failed)?;
    // Whether it can be sent so is known before anything is written.
    SendPlan::new(&target, state.as_ref(), &command.options, None).await.map_err(failed)?;
    if command.has_estimate() {
        let block_size = estimate::block_size(&target).await.map_err(failed)?;
        let size = estimate::size(&target, &opened, &command.options, block_size).await;
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
    let parts = vec![Part::new(name, target.phys().guid, from)];
    Ok(Plan { place, options: command.options, header, parts, held: Vec::new() })
}
