//! `zfs receive`: makes snapshots of a stream on standard input.
//!
//! ```text
//!   BEGIN of one snapshot ──> one::substream
//!   BEGIN of a package ──> its header ──> one::substream for each snapshot
//! ```
//!
//! The stream is input from a network: [`StreamReader`] checks its order, bounds and checksums
//! before a record is applied.
//!
//! Sources: spec 07 B9, the manual page zfs-receive(8).

mod failure;
mod heal;
mod input;
mod naming;
mod one;
mod package;
mod place;
mod props;
mod search;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_engine::{Engine, ReceiveRefusal};
use cenote_ondisk::stream::{HeaderType, Record};
use cenote_stream::StreamReader;

use self::input::Input;
use self::naming::Naming;
use self::one::Stream;
use self::place::Context;
use self::props::Overrides;
use super::create::wording;
use super::permits;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::zpool::block_on;

const OPTIONS: &str = ":o:x:dehMnuvFsAc";
/// Message for a stream that would be typed.
const TERMINAL: &str =
    "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.";

/// The arguments of `zfs receive`.
struct Command {
    source: Source,
    argument: String,
    naming: Naming,
    overrides: Overrides,
    options: Parsed,
    /// Datasets that exist after a receive that is only planned (`-n`).
    planned: RefCell<BTreeSet<String>>,
}

/// Returns the message for a command line, the words behind `zfs receive`, that would read a stream
/// from standard input; only callers know whether that is a terminal.
pub(super) fn terminal_refusal(args: &[String]) -> Option<&'static str> {
    let parsed = getopt::parse(args, OPTIONS, &[]).ok()?;
    (parsed.operands.len() == 1 && !parsed.has('A')).then_some(TERMINAL)
}

/// Runs `zfs receive`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, OPTIONS, &[])?;
    let overrides = Overrides::parse(&parsed)?;
    if parsed.has('d') && parsed.has('e') {
        let text = "invalid option combination: -d and -e are mutually exclusive";
        return Err(Exit::usage(text));
    }
    let [argument] = getopt::exactly(&parsed.operands, ["missing snapshot argument"])?;
    let line = command_line(Tool::Zfs, "receive", args);
    if parsed.has('A') {
        if ['d', 'e', 'n', 's', 'u'].into_iter().any(|letter| parsed.has(letter)) {
            return Err(Exit::usage("invalid option"));
        }
        return block_on(discard(source, argument, &line, io));
    }
    overrides.check()?;
    let command = Command::of(source, argument, &parsed, overrides);
    block_on(command.run(&line, io))
}

/// Destroys what an interrupted receive has left (`-A`).
async fn discard(source: &Source, name: &str, line: &str, io: &mut Io<'_>) -> CommandResult {
    let target = super::refuse::existing(source, name).await;
    let target = target.map_err(|exit| Exit::usage(exit.message()))?;
    permits::need(source, &target, &["destroy", "mount"], "destroy").await?;
    let nothing = || {
        let text = "does not have any resumable receive state to abort";
        Exit::failed(format!("'{name}' {text}"))
    };
    if place::token_of(&target).await?.is_none() {
        return Err(nothing());
    }
    drop(target);
    Writer::run(source, name, Some(line), io, async |engine, _| {
        let done = engine.receives().discard(name).await;
        done.map_err(|error| match error.cause() {
            Some(ReceiveRefusal::NothingSaved) => nothing(),
            _ => Exit::cannot("destroy", name, wording(&error)),
        })
    })
    .await
}

impl Command {
    fn of(source: &Source, argument: &str, parsed: &Parsed, overrides: Overrides) -> Self {
        let naming = match (parsed.has('e'), parsed.has('d')) {
            (true, _) => Naming::LastPart,
            (false, true) => Naming::BelowPool,
            (false, false) => Naming::BelowSent,
        };
        Self {
            // Files of another system can be those of its root: a user without rights there does
            // not get them mounted here.
            source: source.with_mounts_left(parsed.has('u') || !source.is_trusted()),
            argument: argument.to_owned(),
            naming,
            overrides,
            options: parsed.clone(),
            planned: RefCell::default(),
        }
    }

    /// `-F`
    fn is_forced(&self) -> bool {
        self.options.has('F')
    }

    /// `-v`
    fn is_verbose(&self) -> bool {
        self.options.has('v')
    }

    /// `-M`
    fn unmounts_by_force(&self) -> bool {
        self.options.has('M')
    }

    async fn run(self, line: &str, io: &mut Io<'_>) -> CommandResult {
        let mut stream = StreamReader::new(Input::of(&self.source)?);
        let first = match stream.next().transpose() {
            Ok(Some(first)) => first,
            Ok(None) => return Err(failure::cannot_receive("failed to read from stream")),
            Err(error) => return Err(failure::at_start(&error)),
        };
        let pool = self.argument.split(['/', '@']).next().unwrap_or_default().to_owned();
        if self.naming != Naming::BelowSent {
            self.check_top().await?;
        }
        if self.options.has('n') {
            return self.all(None, &mut stream, first, io).await;
        }
        if self.source.pool(&pool).await.is_err() {
            return Err(failure::no_parent(&pool));
        }
        let source = self.source.clone();
        Box::pin(Writer::run(&source, &pool, Some(line), io, async |engine, io| {
            // Of a pool that this command opened: what was received is written meanwhile.
            engine.start_sync_task();
            self.all(Some(engine), &mut stream, first, io).await
        }))
        .await
    }

    /// Refuses `-d` and `-e` below a dataset that does not exist.
    async fn check_top(&self) -> CommandResult {
        if self.argument.contains('@') {
            return Ok(());
        }
        let name = &self.argument;
        match super::refuse::existing(&self.source, name).await {
            Ok(_) => Ok(()),
            Err(Exit::Failed(_)) => {
                Err(failure::cannot_receive(format_args!("specified fs ({name}) does not exist")))
            }
            Err(exit) => Err(exit),
        }
    }

    /// Receives one snapshot, or a package.
    async fn all(
        &self,
        engine: Option<&Arc<Engine>>,
        stream: &mut Stream,
        first: cenote_stream::Item,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let Record::Begin(begin) = &first.record else {
            return Err(failure::cannot_receive("invalid stream (bad record type)"));
        };
        let sent = String::from_utf8_lossy(&begin.to_name).into_owned();
        let Some((top, _)) = sent.split_once('@') else {
            return Err(failure::cannot_receive("invalid stream (bad snapshot name)"));
        };
        if begin.header == HeaderType::Compound {
            return Box::pin(self.package(engine, stream, (&first, top), io)).await;
        }
        let context = Context { top, is_recursive: false, dataset: None };
        Box::pin(self.substream(engine, stream, first, context, io)).await
    }
}
