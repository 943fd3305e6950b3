//! `zfs send`: writes snapshots as a stream to standard output: one, or its difference from an
//! earlier one; a package of several; the rest of an interrupted stream.
//!
//! ```text
//!   a view:  command ── names, guids, header, estimates ──> Plan      the view is dropped
//!   holds:   what a package sends cannot be destroyed
//!   some parts: a view ── target, source ──> a SendPlan for each      the view is dropped
//!   each part:  open snapshot ── SendPlan::run ──> records ──> standard output, in pieces
//! ```
//!
//! The stream lasts as long as its reader takes. So a pool of the daemon is not read through a
//! view, which is a loan with a deadline (docs/design/rules.md, rule 1): the snapshot is opened,
//! and cannot be destroyed until its part of the stream has ended. A reader that stops reading
//! holds up nothing but this: the stream advances only as fast as pieces of it are delivered. When
//! the reader goes away, the command ends, and its holds with it.
//!
//! Memory: the header, and the name and guid of each snapshot, beside what one substream takes.
//!
//! After an error the stream has no further record, and a package no end: no receiver takes a part
//! for the whole.
//!
//! Sources: spec 07 B5 to B8, the manual page zfs-send(8).

mod command;
mod estimate;
mod header;
mod holds;
mod increment;
mod order;
mod output;
mod package;
mod plan;
mod saved;
mod single;
#[cfg(test)]
mod tests;
mod token;

use std::io::Write;

use cenote_rt::{Error, Kind};
use cenote_stream::send::SendError;

use self::command::{Command, Task};
use self::holds::Holds;
use self::output::Output;
use self::plan::{Contents, Part, Place, Plan, Prepared};
use crate::getopt::{self, Long};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::zpool::block_on;

const OPTIONS: &str = ":i:I:RDpVvnPLeht:cwbd:SsX:";

const LONGS: [Long; 18] = [
    Long::flag("replicate", 'R'),
    Long::with_argument("redact", 'd'),
    Long::flag("props", 'p'),
    Long::flag("parsable", 'P'),
    Long::flag("dedup", 'D'),
    Long::flag("proctitle", 'V'),
    Long::flag("verbose", 'v'),
    Long::flag("dryrun", 'n'),
    Long::flag("large-block", 'L'),
    Long::flag("embed", 'e'),
    Long::with_argument("resume", 't'),
    Long::flag("compressed", 'c'),
    Long::flag("raw", 'w'),
    Long::flag("backup", 'b'),
    Long::flag("holds", 'h'),
    Long::flag("saved", 'S'),
    Long::flag("skip-missing", 's'),
    Long::with_argument("exclude", 'X'),
];

const TERMINAL: &str =
    "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";

/// Returns the message for a command line, the words behind `zfs send`, that would write a stream
/// to standard output; only callers know whether that is a terminal.
pub(super) fn terminal_refusal(args: &[String]) -> Option<&'static str> {
    let parsed = getopt::parse(args, OPTIONS, &LONGS).ok()?;
    let is_complete = parsed.operands.len() == 1 || parsed.has('t');
    (is_complete && !parsed.has('n')).then_some(TERMINAL)
}

/// Runs `zfs send`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, OPTIONS, &LONGS)?;
    let command = Command::check(parsed, io)?;
    let done = block_on(send(&command, source, io));
    if command.task == Task::Resume { done.map_err(token::with_status) } else { done }
}

async fn send(command: &Command, source: &Source, io: &mut Io<'_>) -> CommandResult {
    let plan = source.step(io, async |io| plan_of(command, source, io).await).await?;
    if command.is_dry() { Ok(()) } else { send_plan(command, source, &plan, io).await }
}

/// Sends what is planned, and holds its snapshots meanwhile.
async fn send_plan(
    command: &Command,
    source: &Source,
    plan: &Plan,
    io: &mut Io<'_>,
) -> CommandResult {
    let holds = match &plan.place {
        Place::Engine(engine) if !engine.is_read_only() && !plan.held.is_empty() => {
            Some(Holds::place(engine, source.requester(), &plan.held).await?)
        }
        _ => None,
    };
    let done = source.while_waited_for(send_all(command, source, plan, io)).await;
    if let Some(holds) = holds {
        holds.release().await;
    }
    done.unwrap_or(Err(Exit::Pipe))
}

async fn plan_of(command: &Command, source: &Source, io: &mut Io<'_>) -> Result<Plan, Exit> {
    match command.task {
        Task::One => single::plan(command, source, io).await,
        Task::Package => package::plan(command, source, io).await,
        Task::Resume => token::plan(command, source, io).await,
        Task::Saved => saved::plan(command, source, io).await,
    }
}

/// Sends everything that is planned.
async fn send_all(
    command: &Command,
    source: &Source,
    plan: &Plan,
    io: &mut Io<'_>,
) -> CommandResult {
    let mut output = Output::new(command, source.streams().cloned(), io);
    if let Some(header) = &plan.header {
        output.begin_package(header)?;
    }
    let mut parts = &plan.parts[..];
    while !parts.is_empty() {
        let prepared = Box::pin(plan.place.prepare(parts, &plan.options)).await?;
        let (now, later) = parts.split_at(prepared.len());
        for (part, prepared) in now.iter().zip(prepared) {
            Box::pin(send_part(part, prepared, &mut output)).await?;
        }
        parts = later;
    }
    if plan.header.is_some() {
        output.end_package()?;
    }
    output.finish()
}

/// Sends one substream. No view of the pool is held meanwhile.
async fn send_part(part: &Part, prepared: Prepared, output: &mut Output<'_>) -> CommandResult {
    let failed = |error: Error| failure(&part.name, &error);
    let send = prepared.send;
    let (engine, root) = match prepared.contents {
        Contents::Snapshot { engine, root } => (engine, root),
        Contents::State(target) => {
            let set = send.open(&target).await.map_err(failed)?;
            output.begin_part(&part.name)?;
            let done = send.run(&set, output).await;
            return output.end_part(done);
        }
    };
    let snapshots = engine.snapshots();
    let opened = if send.is_raw() {
        snapshots.open(&part.name).await
    } else {
        snapshots.open_decrypted(&part.name).await
    };
    let opened = opened.map_err(failed)?;
    if *opened.contents().root() != *root {
        return Err(cannot_send(&part.name, "it was replaced while it was sent"));
    }
    output.begin_part(&part.name)?;
    let done = send.run(opened.contents(), output).await;
    output.end_part(done)
}

/// Where estimates are written: standard output has the stream, unless nothing is sent.
fn reports<'io>(command: &Command, io: &'io mut Io<'_>) -> &'io mut (dyn Write + Send) {
    if command.is_dry() { &mut *io.out } else { &mut *io.err }
}

fn cannot_send(name: &str, why: &str) -> Exit {
    Exit::failed(format!("warning: cannot send '{name}': {why}"))
}

/// Returns OpenZFS's message about a failed send.
fn failure(name: &str, error: &Error) -> Exit {
    let why = match error.cause::<SendError>() {
        Some(SendError::LargeMicrozap) => {
            "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to \
             generate stream"
                .to_owned()
        }
        Some(cause) => cause.to_string(),
        None if error.kind() == Kind::KeyUnavailable => "dataset key must be loaded".to_owned(),
        None => error.to_string(),
    };
    Exit::of(error, format!("warning: cannot send '{name}': {why}"))
}
