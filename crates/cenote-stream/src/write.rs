//! Writing a stream: records get their checksum words (spec 07 B1).

use std::io::{self, Write};

use cenote_codec::fletcher::fletcher4;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{CHECKSUM_AT, Record, RecordBytes, set_checksum_words};

use crate::checksum::RunningChecksum;

/// Frames one record: encodes it, sets its checksum words, and adds record and payload to
/// `checksum`. A BEGIN starts the checksum again; an END gets the checksum before it, too.
///
/// The ENDs of a package say `is_package`: their words at the record's end are zero.
pub fn frame(
    checksum: &mut RunningChecksum,
    endian: Endian,
    record: &Record,
    payload: &[u8],
    is_package: bool,
) -> RecordBytes {
    let bytes = frame_record(checksum, endian, record, is_package);
    checksum.feed(payload);
    bytes
}

/// Like [`frame`], without the payload.
fn frame_record(
    checksum: &mut RunningChecksum,
    endian: Endian,
    record: &Record,
    is_package: bool,
) -> RecordBytes {
    let mut bytes = match record {
        Record::End(end) if !is_package => {
            let end = cenote_ondisk::stream::End { checksum: checksum.words(), ..*end };
            Record::End(end).encode(endian)
        }
        other => other.encode(endian),
    };
    let (body, words) = bytes.split_at(CHECKSUM_AT);
    if matches!(record, Record::Begin(_)) {
        *checksum = RunningChecksum::new(endian);
        checksum.feed(body);
        checksum.feed(words);
    } else if !is_package {
        checksum.feed(body);
        set_checksum_words(&mut bytes, endian, checksum.words());
        checksum.feed(bytes.split_at(CHECKSUM_AT).1);
    }
    bytes
}

/// Writes a stream in little-endian order.
#[derive(Debug)]
pub struct StreamWriter<W> {
    target: W,
    checksum: RunningChecksum,
    bytes_written: u64,
}

impl<W: Write> StreamWriter<W> {
    /// A writer at the start of a stream.
    pub const fn new(target: W) -> Self {
        let checksum = RunningChecksum::new(Endian::Little);
        Self { target, checksum, bytes_written: 0 }
    }

    /// Writes a record of a substream, or the BEGIN of a package.
    ///
    /// # Errors
    /// The target's.
    ///
    /// # Panics
    /// If the payload's length is not what the record says: the stream would be unreadable.
    pub fn write(&mut self, record: &Record, payload: &[u8]) -> io::Result<()> {
        self.write_summed(record, payload, fletcher4(payload))
    }

    /// Writes a record like [`write`](Self::write), with the fletcher4 of its payload.
    ///
    /// # Errors
    /// The target's.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    pub fn write_summed(
        &mut self,
        record: &Record,
        payload: &[u8],
        sums: [u64; 4],
    ) -> io::Result<()> {
        assert_eq!(record.payload_len(), payload.len() as u64, "payload of {}", record.name());
        let bytes = frame_record(&mut self.checksum, Endian::Little, record, false);
        self.checksum.add(sums, payload.len());
        self.put(&bytes, payload)
    }

    /// Writes an END of a package: of its header, with the checksum of the header, or of the whole,
    /// without.
    ///
    /// # Errors
    /// The target's.
    pub fn end_package(&mut self, is_header: bool) -> io::Result<()> {
        let checksum = if is_header { self.checksum.words() } else { [0; 4] };
        let end = cenote_ondisk::stream::End { checksum, to_guid: 0 };
        let bytes = frame(&mut self.checksum, Endian::Little, &Record::End(end), &[], true);
        self.put(&bytes, &[])
    }

    /// Bytes written so far.
    pub const fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// The target.
    pub fn into_inner(self) -> W {
        self.target
    }

    fn put(&mut self, record: &RecordBytes, payload: &[u8]) -> io::Result<()> {
        self.target.write_all(record)?;
        self.target.write_all(payload)?;
        self.bytes_written += (record.len() + payload.len()) as u64;
        Ok(())
    }
}
