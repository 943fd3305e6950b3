//! Reading a stream: order, bounds and checksums of its records (spec 07 B1, B7, B13).
//!
//! ```text
//!   BEGIN package, END          BEGIN substream … END          END
//!     Between ──> Header ──> Between ──> Substream ──> Between ──> (end of input)
//! ```
//!
//! A record is returned only after its own checksum matched. Its payload is covered by the next
//! record's checksum, so that a receiver must not make a payload durable as valid before it has the
//! record behind it: [`StreamReader`] reads one record ahead, and returns a payload only when
//! the checksum behind it matched.

use std::io::{self, Read};

use cenote_ondisk::blkptr::BLOCK_SIZE_MAX;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{
    Begin, CHECKSUM_AT, CorruptRecord, HeaderType, InvalidRecord, RECORD_LEN, Record, RecordBytes,
    RecordLimits, byte_order, checksum_words,
};

use crate::checksum::RunningChecksum;

/// Payloads longer than this are read piece by piece, so that a lying length costs no memory.
const READ_STEP: usize = 1 << 20;

/// Why a stream can't be read on.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The source failed.
    #[error("byte {offset} of the stream: {source}")]
    Io {
        /// Offset in the stream.
        offset: u64,
        /// The error.
        source: io::Error,
    },
    /// The stream ends in a record, a payload or a substream.
    #[error("the stream ends early, at byte {offset}")]
    Truncated {
        /// Offset in the stream.
        offset: u64,
    },
    /// Bytes that are no record.
    #[error("record at byte {offset} of the stream: {source}")]
    Corrupt {
        /// Offset of the record.
        offset: u64,
        /// The cause.
        source: CorruptRecord,
    },
    /// A record that no sender may write.
    #[error("{name} record at byte {offset} of the stream is invalid: {source}")]
    Invalid {
        /// Name of the record's type.
        name: &'static str,
        /// Offset of the record.
        offset: u64,
        /// The cause.
        source: InvalidRecord,
    },
    /// The checksum does not match what was read.
    #[error("checksum mismatch in the {name} record at byte {offset} of the stream, or before it")]
    Checksum {
        /// Name of the record's type.
        name: &'static str,
        /// Offset of the record.
        offset: u64,
    },
    /// A record that may not be where it is: anything but a BEGIN between substreams, or a BEGIN
    /// inside one.
    #[error("{name} record at byte {offset} of the stream is out of place")]
    Misplaced {
        /// Name of the record's type.
        name: &'static str,
        /// Offset of the record.
        offset: u64,
    },
}

/// A record with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The record.
    pub record: Record,
    /// Its payload, in the sender's byte order.
    pub payload: Vec<u8>,
    /// Offset of the record in the stream.
    pub offset: u64,
    /// Whether the record belongs to the package, not to a substream.
    pub is_package: bool,
}

impl Item {
    /// Bytes of the record and its payload.
    #[must_use]
    pub fn stored_len(&self) -> u64 {
        (RECORD_LEN + self.payload.len()) as u64
    }
}

/// Where in the stream the next record is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Before the first record.
    Start,
    /// In a package, between substreams.
    Between,
    /// Behind the header of a package.
    Header,
    /// In a substream.
    Substream(RecordLimits),
    /// Behind the last record.
    Finished,
}

/// Reads a stream.
#[derive(Debug)]
pub struct StreamReader<R> {
    source: R,
    offset: u64,
    endian: Endian,
    checksum: RunningChecksum,
    place: Place,
    is_package: bool,
    /// Read and checked but for its payload.
    pending: Option<Item>,
    /// Does not refuse records by their fields.
    is_lenient: bool,
}

impl<R: Read> StreamReader<R> {
    /// A reader at the start of a stream.
    pub const fn new(source: R) -> Self {
        Self {
            source,
            offset: 0,
            endian: Endian::Little,
            checksum: RunningChecksum::new(Endian::Little),
            place: Place::Start,
            is_package: false,
            pending: None,
            is_lenient: false,
        }
    }

    /// Like [`StreamReader::new`], but takes records with fields that no sender may write, as long
    /// as their payloads are bounded: for tools that show or rewrite streams.
    pub const fn lenient(source: R) -> Self {
        let mut reader = Self::new(source);
        reader.is_lenient = true;
        reader
    }

    /// Sets the offset at which the stream begins in its source: errors and items name offsets in
    /// the source.
    #[must_use]
    pub const fn starting_at(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Byte order of the stream; known after the first record.
    pub const fn endian(&self) -> Endian {
        self.endian
    }

    /// The checksum's words after what was read.
    pub const fn checksum(&self) -> [u64; 4] {
        self.checksum.words()
    }

    /// Bytes read so far.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    fn advance(&mut self) -> Result<Option<Item>, StreamError> {
        let ready = match self.pending.take() {
            Some(ready) => Some(ready),
            None => self.read_item()?,
        };
        // Nothing behind an END covers it: it is returned before the sender goes on.
        if ready.as_ref().is_some_and(|ready| !matches!(ready.record, Record::End(_))) {
            self.pending = self.read_item()?;
        }
        Ok(ready)
    }

    /// Reads a record, checks it against the checksum so far, and reads its payload.
    fn read_item(&mut self) -> Result<Option<Item>, StreamError> {
        if matches!(self.place, Place::Finished) {
            return Ok(None);
        }
        let offset = self.offset;
        let bytes = self.read_record()?;
        let corrupt = |source| StreamError::Corrupt { offset, source };
        if matches!(self.place, Place::Start) {
            self.endian = byte_order(&bytes).map_err(corrupt)?;
        }
        let record = Record::decode(&bytes, self.endian).map_err(corrupt)?;
        let was_in_substream = matches!(self.place, Place::Substream(_));
        self.check_checksum(&record, &bytes, offset)?;
        let limits = self.step(&record, offset)?;
        if let Some(limits) = limits {
            self.check_fields(&record, &limits, offset)?;
        }
        let payload = self.read_payload(record.payload_len())?;
        self.checksum.feed(&payload);
        let is_package = match &record {
            Record::Begin(begin) => begin.header == HeaderType::Compound,
            _ => !was_in_substream,
        };
        Ok(Some(Item { record, payload, offset, is_package }))
    }

    /// Follows the order of records. Returns the bounds of the record's fields.
    fn step(&mut self, record: &Record, offset: u64) -> Result<Option<RecordLimits>, StreamError> {
        let misplaced = StreamError::Misplaced { name: record.name(), offset };
        let (next, limits) = match (self.place, record) {
            (Place::Start | Place::Between, Record::Begin(begin)) => {
                return self.begin(begin, offset);
            }
            (Place::Header, Record::End(_)) => (Place::Between, None),
            (Place::Between, Record::End(_)) => (Place::Finished, None),
            (Place::Substream(_), Record::Begin(_)) => return Err(misplaced),
            (Place::Substream(limits), Record::End(_)) => {
                let next = if self.is_package { Place::Between } else { Place::Finished };
                (next, Some(limits))
            }
            (Place::Substream(limits), _) => (self.place, Some(limits)),
            _ => return Err(misplaced),
        };
        self.place = next;
        Ok(limits)
    }

    fn begin(&mut self, begin: &Begin, offset: u64) -> Result<Option<RecordLimits>, StreamError> {
        let limits = RecordLimits::new(begin, BLOCK_SIZE_MAX);
        self.place = match (self.place, begin.header) {
            (Place::Start, HeaderType::Compound) => {
                self.is_package = true;
                Place::Header
            }
            (_, HeaderType::Substream) => Place::Substream(limits),
            _ => return Err(StreamError::Misplaced { name: "BEGIN", offset }),
        };
        Ok(Some(limits))
    }

    /// Compares a record's checksum words with what was read, and adds the record.
    fn check_checksum(
        &mut self,
        record: &Record,
        bytes: &RecordBytes,
        offset: u64,
    ) -> Result<(), StreamError> {
        if matches!(record, Record::Begin(_)) {
            self.checksum = RunningChecksum::new(self.endian);
            self.checksum.feed(bytes);
            return Ok(());
        }
        let (body, words) = bytes.split_at(CHECKSUM_AT);
        let before = self.checksum.words();
        self.checksum.feed(body);
        let stored = checksum_words(bytes, self.endian);
        let is_match = stored == [0; 4] || stored == self.checksum.words();
        let is_end_match = match record {
            // The END of a whole package has no checksum of its own.
            Record::End(end) => end.checksum == before || matches!(self.place, Place::Between),
            _ => true,
        };
        if !is_match || !is_end_match {
            return Err(StreamError::Checksum { name: record.name(), offset });
        }
        if matches!(record, Record::End(_)) {
            // The END of a whole package, which `zstream` gives checksum words, starts anew.
            self.checksum = RunningChecksum::new(self.endian);
        } else {
            self.checksum.feed(words);
        }
        Ok(())
    }

    fn check_fields(
        &self,
        record: &Record,
        limits: &RecordLimits,
        offset: u64,
    ) -> Result<(), StreamError> {
        let name = record.name();
        let invalid = |source| StreamError::Invalid { name, offset, source };
        let len = record.payload_len();
        if self.is_lenient && !matches!(record, Record::Begin(_)) {
            let is_bounded = len <= BLOCK_SIZE_MAX;
            return if is_bounded { Ok(()) } else { Err(invalid(InvalidRecord::Payload { len })) };
        }
        record.check(limits).map_err(invalid)
    }

    fn read_record(&mut self) -> Result<RecordBytes, StreamError> {
        let mut bytes = [0; RECORD_LEN];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let count = self.read_some_into(rest)?;
            if count == 0 {
                return Err(StreamError::Truncated { offset: self.offset });
            }
            filled += count;
        }
        Ok(bytes)
    }

    fn read_payload(&mut self, len: u64) -> Result<Vec<u8>, StreamError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut payload = Vec::new();
        while payload.len() < len {
            let from = payload.len();
            payload.resize(from.saturating_add(READ_STEP).min(len), 0);
            let mut filled = from;
            while let Some(rest) = payload.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                let count = self.read_some_into(rest)?;
                if count == 0 {
                    return Err(StreamError::Truncated { offset: self.offset });
                }
                filled += count;
            }
        }
        Ok(payload)
    }

    fn read_some_into(&mut self, target: &mut [u8]) -> Result<usize, StreamError> {
        loop {
            match self.source.read(target) {
                Ok(count) => {
                    self.offset += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(StreamError::Io { offset: self.offset, source }),
            }
        }
    }
}

/// The records, each with a payload that the checksum behind it covers. Nothing follows an error.
impl<R: Read> Iterator for StreamReader<R> {
    type Item = Result<Item, StreamError>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.advance();
        if result.is_err() {
            self.place = Place::Finished;
            self.pending = None;
        }
        result.transpose()
    }
}
