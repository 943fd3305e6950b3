//! Log records and their packing into blocks (spec 07 A6-A8).
//!
//! ```text
//!   header  type | length | txg | sequence          put in front when the record is packed
//!   body    the caller's bytes, padded to 8         or, of a write, object | offset | len | data
//! ```
//!
//! The data of a write is kept with the record or fetched when the record is packed: the object has
//! it until the txg is synced, or until a later change replaces it, which gives it to the record
//! first ([`kept`](crate::zil::kept)). A block that a large write covers, or any with
//! `logbias=throughput`, is written early instead, and the record points at it (`early`).
//!
//! Invariants
//! * L9  A record has as many bytes as its header says.

use std::ops::Range;
use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::words;
use cenote_ondisk::zil::RecordKind;
use cenote_ondisk::zil::record::{RECORD_HEADER_LEN, WRITE_BASE_LEN};
use cenote_rt::Buf;

use crate::zil::kept::LaterData;

/// Data of a write.
#[derive(Debug, Clone)]
pub(super) enum Data {
    /// Kept with the record.
    Kept(Buf),
    /// Fetched from the object when the record is packed.
    Later(Arc<LaterData>),
}

/// Contents of a record.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Bytes after the header.
    Body(Vec<u8>),
    /// A write.
    Write { offset: u64, data: Data },
}

/// The log record of one operation.
#[derive(Debug, Clone)]
pub struct LogRecord {
    pub(super) kind: u64,
    /// Its object; 0 for operations on names.
    pub(super) object: u64,
    /// Every commit includes it; otherwise only commits of its object.
    pub(super) is_sync: bool,
    pub(super) content: Content,
    /// The bytes of the object that the operation changed.
    pub(super) changed: Option<Range<u64>>,
}

impl LogRecord {
    /// Returns the record of an operation on names (create, remove, link, rename), which every
    /// commit includes. `body` follows the header.
    #[must_use]
    pub fn of_names(kind: RecordKind, body: Vec<u8>) -> Self {
        let content = Content::Body(padded(body));
        Self { kind: kind as u64, object: 0, is_sync: true, content, changed: None }
    }

    /// Returns the record of an operation on one object. `body` follows the header.
    #[must_use]
    pub fn of_object(kind: RecordKind, object: u64, body: Vec<u8>) -> Self {
        let content = Content::Body(padded(body));
        Self { kind: kind as u64, object, is_sync: false, content, changed: None }
    }

    /// Returns the record of a write, with its data.
    #[must_use]
    pub fn write(object: u64, offset: u64, data: Buf) -> Self {
        let changed = Some(offset..offset.saturating_add(data.len() as u64));
        let content = Content::Write { offset, data: Data::Kept(data) };
        Self { kind: RecordKind::Write as u64, object, is_sync: false, content, changed }
    }

    /// Returns the record of a write whose data is read from the object when the record is packed.
    /// An earlier change of the data gives it to the record.
    #[must_use]
    pub fn write_later(object: u64, offset: u64, len: u64) -> Self {
        let range = offset..offset.saturating_add(len);
        let data = Data::Later(Arc::new(LaterData::new(object, range.clone())));
        let content = Content::Write { offset, data };
        let changed = Some(range);
        Self { kind: RecordKind::Write as u64, object, is_sync: false, content, changed }
    }

    /// Returns the record of a removed range; `len` 0 means to the end of the file.
    #[must_use]
    pub fn truncate(object: u64, offset: u64, len: u64) -> Self {
        let body = words::to_bytes(&[object, offset, len]);
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        let changed = Some(offset..end);
        Self { changed, ..Self::of_object(RecordKind::Truncate, object, body) }
    }

    /// Makes every commit include the record, whatever its object.
    #[must_use]
    pub fn synchronous(self) -> Self {
        Self { is_sync: true, ..self }
    }

    /// Returns its data, if that is fetched later.
    pub(super) fn later(&self) -> Option<&Arc<LaterData>> {
        match &self.content {
            Content::Write { data: Data::Later(later), .. } => Some(later),
            _ => None,
        }
    }

    /// Returns the number of data bytes.
    pub(super) fn data_len(&self) -> u64 {
        match &self.content {
            Content::Body(_) => 0,
            Content::Write { data: Data::Kept(data), .. } => data.len() as u64,
            Content::Write { data: Data::Later(later), .. } => later.len(),
        }
    }

    /// Returns the bytes that a commit writes for it, in the log or at their final place.
    pub(super) fn written(&self) -> u64 {
        match &self.content {
            Content::Body(body) => body.len() as u64,
            Content::Write { .. } => self.data_len(),
        }
    }

    /// Returns its memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let content = match &self.content {
            Content::Body(body) => body.len(),
            Content::Write { data: Data::Kept(data), .. } => data.len(),
            Content::Write { data: Data::Later(_), .. } => 0,
        };
        size_of::<Self>() + content
    }
}

fn padded(mut body: Vec<u8>) -> Vec<u8> {
    body.resize(body.len().next_multiple_of(8), 0);
    body
}

/// A record of which a part may be packed already.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) txg: u64,
    pub(super) object: u64,
    kind: u64,
    content: PieceContent,
}

#[derive(Debug)]
enum PieceContent {
    Body(Vec<u8>),
    /// A write with its data.
    Write {
        offset: u64,
        data: Buf,
    },
    /// A part of a write, whose data is fetched when it is packed.
    Fetch(Range<u64>, Arc<LaterData>),
    /// A write within one block, which is on disk.
    Indirect {
        range: Range<u64>,
        bp: BlockPtr,
    },
}

/// Minimum data of a write at the end of a block that continues in the next; also the unit of
/// splitting: a sector of a volume is written completely or not at all.
const SPLIT_MIN: usize = 512;

impl Piece {
    pub(super) fn new(txg: u64, record: LogRecord) -> Self {
        let content = match record.content {
            Content::Body(body) => PieceContent::Body(body),
            Content::Write { offset, data: Data::Kept(data) } => {
                PieceContent::Write { offset, data }
            }
            Content::Write { data: Data::Later(later), .. } => {
                PieceContent::Fetch(later.range(), later)
            }
        };
        Self { txg, object: record.object, kind: record.kind, content }
    }

    /// Returns the bytes of the object that are to be fetched.
    pub(super) fn wanted(&self) -> Option<Range<u64>> {
        match &self.content {
            PieceContent::Fetch(range, _) => Some(range.clone()),
            _ => None,
        }
    }

    /// Returns these bytes if a later change has replaced them. Call it under the object set's
    /// lock, or for a copy made under it.
    pub(super) fn kept(&self) -> Option<Buf> {
        match &self.content {
            PieceContent::Fetch(range, later) => later.kept(range),
            _ => None,
        }
    }

    /// Sets the fetched data.
    pub(super) fn give(&mut self, data: Buf) {
        if let PieceContent::Fetch(range, _) = &self.content {
            self.content = PieceContent::Write { offset: range.start, data };
        }
    }

    /// Splits a write without fetched data into a piece for each block of this size.
    pub(super) fn by_block(self, size: u64) -> Vec<Self> {
        let PieceContent::Fetch(range, later) = &self.content else { return vec![self] };
        if size == 0 {
            return vec![self];
        }
        let (range, later, Self { txg, object, kind, .. }) = (range.clone(), later, &self);
        let (txg, object, kind) = (*txg, *object, *kind);
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = (at / size).saturating_add(1).saturating_mul(size).min(range.end);
            let content = PieceContent::Fetch(at..end, Arc::clone(later));
            pieces.push(Self { txg, object, kind, content });
            at = end;
        }
        pieces
    }

    /// Makes the piece point at its data block.
    pub(super) fn point_at(&mut self, bp: BlockPtr) {
        if let PieceContent::Fetch(range, _) = &self.content {
            self.content = PieceContent::Indirect { range: range.clone(), bp };
        }
    }

    /// Returns the bytes that the rest of it needs in a block.
    pub(super) fn len(&self) -> usize {
        let data = match &self.content {
            PieceContent::Body(body) => return RECORD_HEADER_LEN + body.len(),
            PieceContent::Write { data, .. } => data.len(),
            PieceContent::Fetch(range, _) => (range.end - range.start) as usize,
            PieceContent::Indirect { .. } => 0,
        };
        WRITE_BASE_LEN + data.next_multiple_of(8)
    }

    /// Returns the bytes that must fit into one block.
    pub(super) fn whole_len(&self) -> usize {
        match &self.content {
            PieceContent::Body(_) | PieceContent::Indirect { .. } => self.len(),
            PieceContent::Write { .. } | PieceContent::Fetch(..) => {
                self.len().min(WRITE_BASE_LEN + SPLIT_MIN)
            }
        }
    }

    /// Whether nothing is left: a write of no bytes would be read as an indirect one.
    pub(super) fn is_empty(&self) -> bool {
        match &self.content {
            PieceContent::Write { data, .. } => data.is_empty(),
            PieceContent::Fetch(range, _) => range.is_empty(),
            PieceContent::Body(_) | PieceContent::Indirect { .. } => false,
        }
    }

    /// Appends as much as fits into `room` bytes. Returns true if all of it did. Fetched data must
    /// have been set.
    pub(super) fn pack(&mut self, into: &mut Vec<u8>, room: usize, seq: &mut u64) -> bool {
        let fits = self.len() <= room;
        if !fits && self.whole_len() > room {
            return false;
        }
        match &mut self.content {
            PieceContent::Fetch(..) => false,
            PieceContent::Body(body) => {
                if !fits {
                    return false;
                }
                put_header(into, self.kind, RECORD_HEADER_LEN + body.len(), self.txg, seq);
                into.extend_from_slice(body);
                true
            }
            PieceContent::Indirect { range, bp } => {
                put_header(into, self.kind, WRITE_BASE_LEN, self.txg, seq);
                let len = range.end - range.start;
                into.extend(words::to_bytes(&[self.object, range.start, len, 0]));
                into.extend(bp.to_bytes());
                true
            }
            PieceContent::Write { offset, data } => {
                let most = (room - WRITE_BASE_LEN) & !7;
                let over = (*offset % SPLIT_MIN as u64) as usize + most;
                let len = if fits { data.len() } else { most - over % SPLIT_MIN };
                let stored = len.next_multiple_of(8);
                put_header(into, self.kind, WRITE_BASE_LEN + stored, self.txg, seq);
                into.extend(words::to_bytes(&[self.object, *offset, len as u64, 0]));
                // The pointer of an indirect write.
                into.extend([0; 128]);
                // Checks L9.
                let part = data.slice(0..len).expect("a part of the data");
                into.extend_from_slice(&part);
                into.resize(into.len() + stored - len, 0);
                *offset += len as u64;
                // Checks L9.
                *data = data.slice(len..data.len()).expect("the other part of the data");
                fits
            }
        }
    }
}

fn put_header(into: &mut Vec<u8>, kind: u64, len: usize, txg: u64, seq: &mut u64) {
    *seq += 1;
    into.extend(words::to_bytes(&[kind, len as u64, txg, *seq]));
}
