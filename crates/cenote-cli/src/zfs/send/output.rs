//! The stream on its way to standard output, and the lines about its progress.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use cenote_ondisk::stream::Record;
use cenote_rt::{Error, Kind, monotonic, wall_clock};
use cenote_stream::StreamWriter;
use cenote_stream::send::{Payload, RecordSink};

use super::command::Command;
use super::failure;
use super::header::Header;
use crate::host::CallerStreams;
use crate::io::{CommandResult, Io};
use crate::{environment, nicenum};

/// Bytes of the stream after which the output is delivered to the caller.
const DELIVERY: usize = 1 << 20;
/// Interval of lines about progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

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
pub(super) struct Output<'io> {
    writer: StreamWriter<Pieces<'io>>,
    err: &'io mut (dyn Write + Send),
    /// Snapshot of the substream, and where in the stream it begins.
    part: (String, u64),
    has_progress: bool,
    is_parsable: bool,
    /// Time of the next line about progress.
    next_line: Duration,
    /// Why the output takes no more.
    failed: Option<io::Error>,
}

impl<'io> Output<'io> {
    pub(super) fn new(
        command: &Command,
        streams: Option<Arc<dyn CallerStreams>>,
        io: &'io mut Io<'_>,
    ) -> Self {
        let target = Pieces { out: &mut *io.out, streams, undelivered: 0 };
        Self {
            writer: StreamWriter::new(target),
            err: &mut *io.err,
            part: (String::new(), 0),
            has_progress: command.has_progress(),
            is_parsable: command.is_parsable(),
            next_line: Duration::ZERO,
            failed: None,
        }
    }

    /// Writes the header of a package.
    pub(super) fn begin_package(&mut self, header: &Header) -> CommandResult {
        self.writer.write(&Record::Begin(Box::new(header.begin.clone())), &header.payload)?;
        self.writer.end_package(true)?;
        Ok(())
    }

    /// Writes the end of a package, after all its substreams.
    pub(super) fn end_package(&mut self) -> CommandResult {
        self.writer.end_package(false)?;
        Ok(())
    }

    /// Begins the substream of a snapshot.
    pub(super) fn begin_part(&mut self, name: &str) -> CommandResult {
        if self.has_progress && !self.is_parsable {
            writeln!(self.err, "TIME        SENT   SNAPSHOT {name}")?;
        }
        self.part = (name.to_owned(), self.writer.bytes_written());
        self.next_line = monotonic() + PROGRESS_INTERVAL;
        Ok(())
    }

    /// Ends the substream: returns why it is not complete.
    pub(super) fn end_part(&mut self, done: Result<(), Error>) -> CommandResult {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        done.map_err(|error| failure(&self.part.0, &error))
    }

    /// Delivers the end of the stream.
    pub(super) fn finish(self) -> CommandResult {
        self.writer.into_inner().deliver()?;
        Ok(())
    }

    fn write(&mut self, record: &Record, payload: &Payload) -> io::Result<()> {
        self.writer.write_summed(record, payload, payload.sums())?;
        if !self.has_progress {
            return Ok(());
        }
        let now = monotonic();
        if now < self.next_line {
            return Ok(());
        }
        self.next_line = now + PROGRESS_INTERVAL;
        let time = jiff::Timestamp::from_second(wall_clock().as_secs().cast_signed());
        let time = time.unwrap_or_default().to_zoned(environment::time_zone());
        let time = time.strftime("%H:%M:%S");
        let (name, begin) = &self.part;
        let bytes = self.writer.bytes_written() - begin;
        if self.is_parsable {
            writeln!(self.err, "{time}\t{bytes}\t{name}")
        } else {
            writeln!(self.err, "{time}   {:>5}   {name}", nicenum::bytes_b(bytes))
        }
    }
}

impl RecordSink for Output<'_> {
    async fn put(&mut self, record: &Record, payload: Payload) -> Result<(), Error> {
        self.write(record, &payload).map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            Error::new(Kind::Closed, io::Error::from(kind))
        })
    }
}
