//! `zfs send`: writes a snapshot, or its difference from an earlier one, as a stream to standard
//! output.
//!
//! ```text
//!   view ── target, source, estimate ──> SendPlan        the view is dropped
//!   open snapshot ── SendPlan::run ──> records ──> standard output, delivered in pieces
//! ```
//!
//! The stream lasts as long as its reader takes. So a pool of the daemon is not read through a
//! view, which is a loan with a deadline (docs/design/rules.md, rule 1): the snapshot is opened,
//! and cannot be destroyed until the stream has ended. A reader that stops reading holds up nothing
//! but this: the stream advances only as fast as pieces of it are delivered.
//!
//! Sources: spec 07 B5, B6, the manual page zfs-send(8).

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use cenote_ondisk::stream::Record;
use cenote_pool::dsl::DslError;
use cenote_pool::props::PropValue;
use cenote_pool::{Bookmark, Dataset, DatasetKind};
use cenote_rt::{Buf, Error, Kind, monotonic, wall_clock};
use cenote_stream::StreamWriter;
use cenote_stream::send::{Estimate, From, RecordSink, SendError, SendOptions, SendPlan, estimate};

use super::permits;
use super::refuse::existing;
use crate::getopt::{self, Long, Parsed};
use crate::host::CallerStreams;
use crate::io::{CommandResult, Exit, Io};
use crate::source::{Source, dataset_of};
use crate::zpool::block_on;
use crate::{environment, err, nicenum};

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

/// Options of packages and of other kinds of streams, with their long forms.
const UNSUPPORTED: [(char, &str); 8] = [
    ('R', "--replicate"),
    ('I', "-I"),
    ('p', "--props"),
    ('b', "--backup"),
    ('h', "--holds"),
    ('d', "--redact"),
    ('t', "-t"),
    ('S', "--saved"),
];

const TERMINAL: &str =
    "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
const NO_DEDUP: &str = "WARNING: deduplicated send is no longer supported.  A regular,\n\
                        non-deduplicated stream will be generated.\n";
const NO_TYPE: &str = "Warning: incremental source didn't specify type, assuming snapshot. Use '@' \
                       or '#' prefix to avoid ambiguity.";

/// Bytes of the stream after which the output is delivered to the caller.
const DELIVERY: usize = 1 << 20;
/// Interval of lines about progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

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
    let command = Command::check(&parsed, io)?;
    block_on(command.run(source, io))
}

/// The arguments of `zfs send`.
struct Command {
    target: String,
    from: Option<String>,
    options: SendOptions,
    is_dry: bool,
    is_parsable: bool,
    is_verbose: bool,
}

impl Command {
    /// Checks the options in OpenZFS's order.
    fn check(parsed: &Parsed, io: &mut Io<'_>) -> Result<Self, Exit> {
        if parsed.has('D') {
            err!(io, "{NO_DEDUP}")?;
        }
        if parsed.has('X') && !parsed.has('R') {
            let text = "Cannot specify dataset exclusion (-X) on a non-recursive send.";
            return Err(Exit::failed(text));
        }
        let target = match (&parsed.operands[..], parsed.has('t')) {
            ([], true) => String::new(),
            ([], false) => return Err(Exit::usage("missing snapshot argument")),
            ([target], false) => target.clone(),
            _ => return Err(Exit::usage("too many arguments")),
        };
        if parsed.has('s') && !parsed.has('R') {
            let text = "skip-missing flag can only be used in conjunction with replicate";
            return Err(Exit::usage(text));
        }
        let is_package = parsed.has('R') || parsed.has('I');
        if is_package && !target.contains('@') {
            return Err(Exit::failed("Error: Unsupported flag with filesystem or bookmark."));
        }
        if let Some((_, name)) = UNSUPPORTED.iter().find(|(letter, _)| parsed.has(*letter)) {
            let subject = if target.is_empty() { target } else { format!(" '{target}'") };
            let text = format!("cannot send{subject}: {name} is not supported by this version of");
            return Err(Exit::failed(format!("{text} cenote")));
        }
        let from = match parsed.value('i') {
            Some(name) if !name.contains(['@', '#']) => {
                err!(io, "{NO_TYPE}")?;
                Some(format!("@{name}"))
            }
            name => name.map(str::to_owned),
        };
        let head = target.split('@').next().unwrap_or_default();
        let is_short = |name: &String| name.starts_with(['@', '#']);
        let from = from.map(|name| if is_short(&name) { format!("{head}{name}") } else { name });
        let options = SendOptions {
            large_blocks: parsed.has('L'),
            embedded: parsed.has('e'),
            compressed: parsed.has('c'),
            raw: parsed.has('w'),
        };
        let [is_dry, is_parsable, is_verbose] = ['n', 'P', 'v'].map(|letter| parsed.has(letter));
        Ok(Self { target, from, options, is_dry, is_parsable, is_verbose })
    }

    async fn run(&self, source: &Source, io: &mut Io<'_>) -> CommandResult {
        let target = existing(source, &self.target).await?;
        permits::need(source, &target, &["send"], "send").await?;
        if !target.is_snapshot() {
            // A head in use changes while it is sent.
            return Err(cannot_send(target.name(), "Invalid argument"));
        }
        let name = target.name().to_owned();
        let failed = |error: Error| failure(&name, &error);
        let from = Increment::open(&target, self.from.as_deref()).await?;
        let source_state = from.state(&target).await.map_err(failed)?;
        let plan = SendPlan::new(&target, source_state.as_ref(), &self.options, None).await;
        let plan = plan.map_err(failed)?;
        if self.is_verbose || self.is_parsable {
            let size = self.size(&target, &from, &plan).await.map_err(failed)?;
            let text = self.estimate_text(&name, size);
            if self.is_dry {
                io.out.write_all(text.as_bytes())?;
            } else {
                io.err.write_all(text.as_bytes())?;
            }
        }
        if self.is_dry {
            return Ok(());
        }
        drop(from);
        self.send(source, target, &plan, io).await
    }

    /// Sends the stream. The view of the target is dropped first.
    async fn send(
        &self,
        source: &Source,
        target: Dataset,
        plan: &SendPlan,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let name = target.name().to_owned();
        let failed = |error: Error| failure(&name, &error);
        let Some(session) = &source.session else {
            let set = plan.open(&target).await.map_err(failed)?;
            let mut output = self.output(&name, None, io)?;
            let done = plan.run(&set, &mut output).await;
            return output.finish(&name, done);
        };
        let (pool, root) = (target.pool().name().to_owned(), target.phys().bp);
        drop(target);
        let engine = session.pool(&pool)?;
        let opened = if plan.is_raw() {
            engine.snapshots().open(&name).await
        } else {
            engine.snapshots().open_decrypted(&name).await
        };
        let opened = opened.map_err(failed)?;
        if *opened.contents().root() != root {
            // Another snapshot has taken the name since.
            return Err(Exit::Overtaken);
        }
        let streams = session.caller.streams().cloned();
        let mut output = self.output(&name, streams, io)?;
        let done = plan.run(opened.contents(), &mut output).await;
        output.finish(&name, done)
    }

    fn output<'io>(
        &self,
        name: &str,
        streams: Option<Arc<dyn CallerStreams>>,
        io: &'io mut Io<'_>,
    ) -> Result<Output<'io>, Exit> {
        if self.is_verbose && !self.is_parsable {
            err!(io, "TIME        SENT   SNAPSHOT {name}")?;
        }
        let target = Pieces { out: &mut *io.out, streams, undelivered: 0 };
        Ok(Output {
            writer: StreamWriter::new(target),
            err: &mut *io.err,
            name: name.to_owned(),
            next_line: self.is_verbose.then(|| monotonic() + PROGRESS_INTERVAL),
            is_parsable: self.is_parsable,
            failed: None,
        })
    }

    /// Estimates the length of the stream.
    async fn size(
        &self,
        target: &Dataset,
        from: &Increment,
        plan: &SendPlan,
    ) -> Result<u64, Error> {
        let space = match from {
            Increment::Full => {
                let phys = target.phys();
                [phys.uncompressed_bytes, phys.compressed_bytes]
            }
            Increment::Snapshot(from) => {
                let space = target.space_since(from).await?;
                [space.uncomp, space.comp]
            }
            Increment::Bookmark(_, from) => match target.space_since_bookmark(from).await {
                Ok(space) => [space.uncomp, space.comp],
                // The bookmark is older than the sums: the stream's length is counted.
                Err(error) if matches!(error.cause(), Some(DslError::NoFreedSums(_))) => {
                    let mut counter = Counter(0);
                    plan.run(&plan.open(target).await?, &mut counter).await?;
                    return Ok(counter.0);
                }
                Err(error) => return Err(error),
            },
        };
        let [logical, compressed] = space;
        let head = target.head().await?;
        let property = match head.kind().await? {
            DatasetKind::Volume => "volblocksize",
            _ => "recordsize",
        };
        let block_size = match head.props().await?.get(property).await?.map(|row| row.value) {
            Some(PropValue::Number(size)) => size,
            _ => 128 << 10,
        };
        let is_compressed = self.options.compressed || self.options.raw;
        Ok(estimate(&Estimate { logical, compressed, block_size }, is_compressed))
    }

    fn estimate_text(&self, name: &str, size: u64) -> String {
        if self.is_parsable {
            return match &self.from {
                Some(from) => format!("incremental\t{from}\t{name}\t{size}\nsize\t{size}\n"),
                None => format!("full\t{name}\t{size}\nsize\t{size}\n"),
            };
        }
        let what = match &self.from {
            Some(from) => format!("send from {from} to {name}"),
            None => format!("full send of {name}"),
        };
        let (each, total) = (nicenum::bytes_b(size), nicenum::bytes(size));
        format!("{what} estimated size is {each}\ntotal estimated size is {total}\n")
    }
}

/// The source of an increment, by name.
enum Increment {
    Full,
    Snapshot(Dataset),
    /// With the head that has the bookmark.
    Bookmark(Dataset, Bookmark),
}

impl Increment {
    async fn open(target: &Dataset, name: Option<&str>) -> Result<Self, Exit> {
        let Some(name) = name else { return Ok(Self::Full) };
        let Some((head, short)) = name.split_once('#') else {
            return Ok(Self::Snapshot(dataset_of(target.pool(), name).await?));
        };
        let head = dataset_of(target.pool(), head).await?;
        match head.bookmark(short).await {
            Ok(bookmark) => Ok(Self::Bookmark(head, bookmark)),
            Err(error) if error.kind() == Kind::NotFound => {
                let why = format!("incremental source ({name}) does not exist");
                Err(cannot_send(target.name(), &why))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn state(&self, target: &Dataset) -> Result<Option<From>, Error> {
        Ok(match self {
            Self::Full => None,
            Self::Snapshot(from) => Some(From::snapshot(from, target).await?),
            Self::Bookmark(head, from) => Some(From::bookmark(from, head, target).await?),
        })
    }
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

/// Standard output, delivered to the caller piece by piece.
struct Pieces<'io> {
    out: &'io mut (dyn Write + Send),
    streams: Option<Arc<dyn CallerStreams>>,
    undelivered: usize,
}

impl Pieces<'_> {
    fn deliver(&mut self) -> io::Result<()> {
        self.undelivered = 0;
        self.out.flush()?;
        self.streams.as_ref().map_or(Ok(()), |streams| streams.deliver())
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.undelivered += count;
        if self.streams.is_some() && self.undelivered >= DELIVERY {
            self.deliver()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Takes the records of a stream.
struct Output<'io> {
    writer: StreamWriter<Pieces<'io>>,
    err: &'io mut (dyn Write + Send),
    name: String,
    /// Time of the next line about progress, if there are any.
    next_line: Option<Duration>,
    is_parsable: bool,
    /// Why the output takes no more.
    failed: Option<io::Error>,
}

impl Output<'_> {
    fn write(&mut self, record: &Record, payload: &[u8]) -> io::Result<()> {
        self.writer.write(record, payload)?;
        let Some(next) = self.next_line.filter(|next| *next <= monotonic()) else { return Ok(()) };
        self.next_line = Some(next.max(monotonic()) + PROGRESS_INTERVAL);
        let now = jiff::Timestamp::from_second(wall_clock().as_secs().cast_signed());
        let now = now.unwrap_or_default().to_zoned(environment::time_zone());
        let (time, bytes) = (now.strftime("%H:%M:%S"), self.writer.bytes_written());
        if self.is_parsable {
            writeln!(self.err, "{time}\t{bytes}\t{}", self.name)
        } else {
            writeln!(self.err, "{time}   {:>5}   {}", nicenum::bytes_b(bytes), self.name)
        }
    }

    /// Returns the result of the command.
    fn finish(self, name: &str, done: Result<(), Error>) -> CommandResult {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        done.map_err(|error| failure(name, &error))?;
        self.writer.into_inner().deliver()?;
        Ok(())
    }
}

impl RecordSink for Output<'_> {
    async fn put(&mut self, record: &Record, payload: Buf) -> Result<(), Error> {
        self.write(record, &payload).map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            Error::new(Kind::Closed, io::Error::from(kind))
        })
    }
}

/// Counts the bytes of a stream.
struct Counter(u64);

impl RecordSink for Counter {
    async fn put(&mut self, _record: &Record, payload: Buf) -> Result<(), Error> {
        self.0 += (cenote_ondisk::stream::RECORD_LEN + payload.len()) as u64;
        Ok(())
    }
}
