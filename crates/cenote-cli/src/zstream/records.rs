//! Records of stored streams, one stream after the other, and framing them again.

use std::io::{BufRead, ErrorKind, Write};

use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{CHECKSUM_AT, Record, set_checksum_words};
use cenote_stream::{Item, RunningChecksum, StreamError, StreamReader, frame};

use crate::io::{CommandResult, Exit, words};

/// How records are checked besides their checksums and order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Fields that no sender may write are accepted.
    Lenient,
    /// All fields are checked.
    Strict,
}

/// Calls `visit` with each record of all streams in `input`, and with the byte order of its stream.
pub(crate) fn for_each_record(
    input: &mut dyn BufRead,
    strictness: Strictness,
    mut visit: impl FnMut(Item, Endian) -> CommandResult,
) -> CommandResult {
    let mut offset = 0;
    while !is_at_end(input)? {
        let reader = match strictness {
            Strictness::Lenient => StreamReader::lenient(&mut *input),
            Strictness::Strict => StreamReader::new(&mut *input),
        };
        let mut reader = reader.starting_at(offset);
        while let Some(item) = reader.next() {
            visit(item.map_err(|error| failure(&error))?, reader.endian())?;
        }
        offset = reader.offset();
    }
    Ok(())
}

fn is_at_end(input: &mut dyn BufRead) -> CommandResult<bool> {
    loop {
        match input.fill_buf() {
            Ok(bytes) => return Ok(bytes.is_empty()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(read_failure(&error)),
        }
    }
}

/// The message for an error of reading.
pub(super) fn read_failure(error: &std::io::Error) -> Exit {
    Exit::failed(format!("Error while reading file: {}", words(error)))
}

fn failure(error: &StreamError) -> Exit {
    match error {
        StreamError::Io { source, .. } => read_failure(source),
        StreamError::Truncated { offset } => {
            Exit::failed(format!("Error: unexpected end-of-file at byte {offset}"))
        }
        other => Exit::failed(format!("Error: {other}")),
    }
}

/// Reads until `buffer` is full or the input ends. Returns the number of bytes read.
pub(super) fn fill(input: &mut dyn BufRead, buffer: &mut [u8]) -> CommandResult<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(read_failure(&error)),
        }
    }
    Ok(filled)
}

/// Writes records with new checksums, as OpenZFS's zstream does: also the ENDs of a package have
/// checksum words, which senders leave out.
pub(super) struct Rewriter {
    checksum: RunningChecksum,
}

impl Rewriter {
    pub(super) const fn new() -> Self {
        Self { checksum: RunningChecksum::new(Endian::Little) }
    }

    /// Writes a record and its payload in `endian` order.
    pub(super) fn write(
        &mut self,
        record: &Record,
        payload: &[u8],
        endian: Endian,
        out: &mut (dyn Write + Send),
    ) -> CommandResult {
        let bytes = match record {
            Record::End(end) => {
                let mut end = *end;
                if end.checksum != [0; 4] {
                    end.checksum = self.checksum.words();
                }
                let mut bytes = Record::End(end).encode(endian);
                self.checksum.feed(bytes.split_at(CHECKSUM_AT).0);
                set_checksum_words(&mut bytes, endian, self.checksum.words());
                self.checksum = RunningChecksum::new(endian);
                bytes
            }
            other => frame(&mut self.checksum, endian, other, payload, false),
        };
        out.write_all(&bytes)?;
        Ok(out.write_all(payload)?)
    }
}
