//! What no sender may write: bounds of a record's fields (spec 07 B13).
//!
//! A receiver checks each record before it takes memory or space for it.

use super::body::{Embedded, FreeObjects, Object, ObjectRange, Range, Spill, Write};
use super::{Begin, ObjectFlags, Record, StreamFeatures, object_type};
use crate::blkptr::{BLOCK_PTR_LEN, EMBEDDED_MAX, SMALL_BLOCK_MAX};
use crate::compression_type::CompressionType;
use crate::dnode::{
    DNODE_CORE_LEN, DNODE_SLOT_LEN, DNODE_SLOTS_MAX, LEVELS_MAX, OBJECT_MAX, blkptr_count,
};
use crate::object_type::ObjectType;

/// Bytes of the payload of a substream's BEGIN, at most.
const BEGIN_PAYLOAD_MAX: u64 = 64 << 20;

/// A field that no sender may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRecord {
    /// The payload is longer than any.
    #[error("payload of {len} bytes")]
    Payload {
        /// Bytes.
        len: u64,
    },
    /// The object number is 0 or too large.
    #[error("object {object}")]
    Object {
        /// Number.
        object: u64,
    },
    /// The type of an object or of its bonus is unknown.
    #[error("object {object}: type {kind}")]
    Kind {
        /// Object number.
        object: u64,
        /// Number of the type.
        kind: u32,
    },
    /// A block size is too small, too large, or no multiple of 512.
    #[error("object {object}: block of {len} bytes")]
    BlockSize {
        /// Object number.
        object: u64,
        /// Bytes.
        len: u64,
    },
    /// The dnode's slots, or what they hold, do not fit.
    #[error("object {object}: dnode of {slots} slots with a bonus of {bonus_len} bytes")]
    Dnode {
        /// Object number.
        object: u64,
        /// Slots.
        slots: u8,
        /// Bytes of the bonus.
        bonus_len: u32,
    },
    /// A raw dnode has levels, indirect blocks or pointers that it can't have; or one that is not
    /// raw has any.
    #[error(
        "object {object}: dnode of {levels} levels, indirect blocks of 2^{indirect_block_shift} \
         bytes, {blkptr_count} block pointers"
    )]
    RawDnode {
        /// Object number.
        object: u64,
        /// Levels.
        levels: u8,
        /// Logarithm of an indirect block's bytes.
        indirect_block_shift: u8,
        /// Block pointers.
        blkptr_count: u8,
    },
    /// Flags that the stream's features do not allow.
    #[error("object {object}: flags {flags:#x}")]
    Flags {
        /// Object number.
        object: u64,
        /// Flags.
        flags: u8,
    },
    /// A compression or checksum that is unknown, or that the stream's features do not name.
    #[error("object {object}: compression {compression}")]
    Compression {
        /// Object number.
        object: u64,
        /// Number of the compression.
        compression: u8,
    },
    /// A checksum property that is unknown.
    #[error("object {object}: checksum {checksum}")]
    Checksum {
        /// Object number.
        object: u64,
        /// Number of the checksum.
        checksum: u8,
    },
    /// Lengths of a compressed block contradict each other.
    #[error("object {object}: {logical_len} bytes compressed to {compressed_len}")]
    CompressedLen {
        /// Object number.
        object: u64,
        /// Bytes of the data.
        logical_len: u64,
        /// Bytes of the payload.
        compressed_len: u64,
    },
    /// A range ends behind 2^64.
    #[error("object {object}: range of {len} bytes at {offset}")]
    Range {
        /// Object number.
        object: u64,
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A record of a kind that the stream's features exclude.
    #[error("{name} record in a stream whose features exclude it")]
    Unexpected {
        /// Name of the record's type.
        name: &'static str,
    },
}

/// What bounds the records of one substream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLimits {
    /// Features of the stream.
    pub features: StreamFeatures,
    /// The stream says of each object whether it keeps its spill block.
    pub has_spill_flags: bool,
    /// Bytes of a block, at most: 16 MiB, or less in an old pool.
    pub block_max: u64,
}

impl RecordLimits {
    /// The limits of the substream that `begin` begins, for a pool with blocks of `block_max` bytes
    /// at most.
    #[must_use]
    pub const fn new(begin: &Begin, block_max: u64) -> Self {
        Self {
            features: begin.features,
            has_spill_flags: begin.flags.contains(super::BeginFlags::SPILL_BLOCK),
            block_max,
        }
    }

    const fn is_raw(&self) -> bool {
        self.features.contains(StreamFeatures::RAW)
    }

    const fn largest_block(&self) -> u64 {
        if self.features.contains(StreamFeatures::LARGE_BLOCKS) {
            self.block_max
        } else {
            SMALL_BLOCK_MAX
        }
    }

    /// Checks that the stream's features name a compression.
    fn check_compression(&self, object: u64, compression: u8) -> Result<(), InvalidRecord> {
        let needs = match CompressionType::from_id(compression) {
            Some(CompressionType::Lz4) => StreamFeatures::LZ4,
            Some(CompressionType::Zstd) => StreamFeatures::ZSTD,
            Some(_) => StreamFeatures::empty(),
            None => return Err(InvalidRecord::Compression { object, compression }),
        };
        if self.features.contains(needs) {
            Ok(())
        } else {
            Err(InvalidRecord::Compression { object, compression })
        }
    }

    fn check_flags(&self, object: u64, flags: ObjectFlags) -> Result<(), InvalidRecord> {
        let mut allowed = ObjectFlags::empty();
        allowed.set(ObjectFlags::RAW_BYTESWAPPED, self.is_raw());
        allowed.set(ObjectFlags::SPILL, self.has_spill_flags);
        if allowed.contains(flags) {
            Ok(())
        } else {
            Err(InvalidRecord::Flags { object, flags: flags.bits() })
        }
    }
}

/// Checks the length of a block: 512 bytes to `max`.
fn check_block(object: u64, len: u64, max: u64) -> Result<(), InvalidRecord> {
    let fits = (512..=max).contains(&len);
    if fits { Ok(()) } else { Err(InvalidRecord::BlockSize { object, len }) }
}

/// Checks an object number.
fn check_object(object: u64) -> Result<(), InvalidRecord> {
    if (1..OBJECT_MAX).contains(&object) { Ok(()) } else { Err(InvalidRecord::Object { object }) }
}

/// Checks that a range ends before 2^64.
fn check_range(object: u64, offset: u64, len: u64) -> Result<(), InvalidRecord> {
    let ends = offset.checked_add(len).is_some();
    if ends { Ok(()) } else { Err(InvalidRecord::Range { object, offset, len }) }
}

impl Record {
    /// Checks the fields of a record.
    ///
    /// # Errors
    /// [`InvalidRecord`] names the field.
    pub fn check(&self, limits: &RecordLimits) -> Result<(), InvalidRecord> {
        match self {
            Self::Begin(begin) => check_begin(begin),
            Self::Object(object) => object.check(limits),
            Self::FreeObjects(range) => range.check(),
            Self::Write(write) => write.check(limits),
            Self::Free(range) => range.check(),
            Self::Redact(range) => {
                if limits.features.contains(StreamFeatures::REDACTED) {
                    range.check()
                } else {
                    Err(InvalidRecord::Unexpected { name: self.name() })
                }
            }
            Self::End(_) => Ok(()),
            Self::WriteByRef(_) => Err(InvalidRecord::Unexpected { name: self.name() }),
            Self::Spill(spill) => spill.check(limits),
            Self::WriteEmbedded(embedded) => embedded.check(limits),
            Self::ObjectRange(range) => range.check(limits),
        }
    }
}

fn check_begin(begin: &Begin) -> Result<(), InvalidRecord> {
    let len = u64::from(begin.payload_len);
    if len > BEGIN_PAYLOAD_MAX { Err(InvalidRecord::Payload { len }) } else { Ok(()) }
}

impl Object {
    fn check(&self, limits: &RecordLimits) -> Result<(), InvalidRecord> {
        let object = self.object;
        check_object(object)?;
        let invalid_kind = |kind| InvalidRecord::Kind { object, kind };
        let kind = object_type(self.kind).filter(|kind| *kind != ObjectType::NONE);
        kind.ok_or_else(|| invalid_kind(self.kind))?;
        let bonus = object_type(self.bonus_kind).ok_or_else(|| invalid_kind(self.bonus_kind))?;
        let has_kind = bonus != ObjectType::NONE;
        if has_kind != (self.bonus_len != 0) && bonus != ObjectType::SA {
            return Err(invalid_kind(self.bonus_kind));
        }
        let block_size = u64::from(self.block_size);
        check_block(object, block_size, limits.largest_block())?;
        if !block_size.is_multiple_of(512) {
            return Err(InvalidRecord::BlockSize { object, len: block_size });
        }
        if crate::checksum_type::ChecksumType::from_id(self.checksum).is_none() {
            return Err(InvalidRecord::Checksum { object, checksum: self.checksum });
        }
        if CompressionType::from_id(self.compression).is_none() {
            return Err(InvalidRecord::Compression { object, compression: self.compression });
        }
        self.check_slots(limits)?;
        limits.check_flags(object, self.flags)?;
        self.check_raw(limits, bonus)
    }

    /// Bytes of the dnode for the bonus, beside one block pointer.
    fn bonus_max(&self) -> u64 {
        let slots = self.slot_count().saturating_mul(DNODE_SLOT_LEN as u64);
        slots.saturating_sub(DNODE_CORE_LEN as u64).saturating_sub(BLOCK_PTR_LEN as u64)
    }

    fn check_slots(&self, limits: &RecordLimits) -> Result<(), InvalidRecord> {
        let slots = self.slot_count();
        let end = self.object.saturating_add(slots);
        let fits = slots <= DNODE_SLOTS_MAX as u64
            && end <= OBJECT_MAX
            && (slots == 1 || limits.features.contains(StreamFeatures::LARGE_DNODE))
            && u64::from(self.bonus_len) <= self.bonus_max();
        let Self { object, slots, bonus_len, .. } = *self;
        if fits { Ok(()) } else { Err(InvalidRecord::Dnode { object, slots, bonus_len }) }
    }

    fn check_raw(&self, limits: &RecordLimits, bonus: ObjectType) -> Result<(), InvalidRecord> {
        let (shift, levels, blkptrs) = (self.indirect_block_shift, self.levels, self.blkptr_count);
        let is_valid = if limits.is_raw() {
            (u64::from(self.bonus_len)..=self.bonus_max()).contains(&u64::from(self.raw_bonus_len))
                && (shift == 0 || (12..=17).contains(&shift))
                && (1..=LEVELS_MAX).contains(&levels)
                && usize::from(blkptrs)
                    == blkptr_count(bonus, self.bonus_len as usize, self.slot_count() as usize)
        } else {
            (self.raw_bonus_len, shift, levels, blkptrs) == (0, 0, 0, 0)
        };
        if is_valid {
            return Ok(());
        }
        Err(InvalidRecord::RawDnode {
            object: self.object,
            levels,
            indirect_block_shift: shift,
            blkptr_count: blkptrs,
        })
    }
}

impl FreeObjects {
    fn check(&self) -> Result<(), InvalidRecord> {
        check_range(self.first, self.first, self.count)
    }
}

impl Range {
    fn check(&self) -> Result<(), InvalidRecord> {
        check_object(self.object)?;
        if self.len == Self::TO_THE_END {
            return Ok(());
        }
        check_range(self.object, self.offset, self.len)
    }
}

impl Write {
    /// The stream's features need not name the compression: `zstream recompress` of OpenZFS 2.3
    /// leaves them as they were.
    fn check(&self, limits: &RecordLimits) -> Result<(), InvalidRecord> {
        let object = self.object;
        check_object(object)?;
        let kind = object_type(self.kind).filter(|kind| *kind != ObjectType::NONE);
        kind.ok_or(InvalidRecord::Kind { object, kind: self.kind })?;
        check_block(object, self.logical_len, limits.largest_block())?;
        check_range(object, self.offset, self.logical_len)?;
        let Self { logical_len, compressed_len, .. } = *self;
        let lengths = InvalidRecord::CompressedLen { object, logical_len, compressed_len };
        if self.compression == 0 && !limits.is_raw() {
            return if compressed_len == 0 { Ok(()) } else { Err(lengths) };
        }
        if CompressionType::from_id(self.compression).is_none() {
            return Err(InvalidRecord::Compression { object, compression: self.compression });
        }
        if (1..=logical_len).contains(&compressed_len) { Ok(()) } else { Err(lengths) }
    }
}

impl Spill {
    fn check(&self, limits: &RecordLimits) -> Result<(), InvalidRecord> {
        let object = self.object;
        check_object(object)?;
        check_block(object, self.len, limits.block_max)?;
        limits.check_flags(object, self.flags)?;
        let compressed_len = self.compressed_len;
        let is_valid = if limits.is_raw() {
            (1..=self.len).contains(&compressed_len)
        } else {
            compressed_len == 0
        };
        if is_valid {
            return Ok(());
        }
        Err(InvalidRecord::CompressedLen { object, logical_len: self.len, compressed_len })
    }
}

impl Embedded {
    /// The length of the block may be over 128 KiB without `LARGE_BLOCKS`: senders write that
    /// (spec 07 B15, defect 2).
    fn check(&self, limits: &RecordLimits) -> Result<(), InvalidRecord> {
        let object = self.object;
        check_object(object)?;
        if limits.is_raw() || !limits.features.contains(StreamFeatures::EMBED_DATA) {
            return Err(InvalidRecord::Unexpected { name: "WRITE_EMBEDDED" });
        }
        check_block(object, self.len, limits.block_max)?;
        if !self.is_spill() {
            check_range(object, self.offset, self.len)?;
        }
        limits.check_compression(object, self.compression)?;
        let (logical, physical) = (self.logical_len, self.physical_len);
        let is_off = CompressionType::from_id(self.compression) == Some(CompressionType::Off);
        let is_valid = (1..=EMBEDDED_MAX).contains(&(physical as usize))
            && logical >= physical
            && (!is_off || logical == physical)
            && u64::from(logical) <= self.len;
        if is_valid {
            return Ok(());
        }
        Err(InvalidRecord::CompressedLen {
            object,
            logical_len: logical.into(),
            compressed_len: physical.into(),
        })
    }
}

impl ObjectRange {
    fn check(&self, limits: &RecordLimits) -> Result<(), InvalidRecord> {
        if !limits.is_raw() {
            return Err(InvalidRecord::Unexpected { name: "OBJECT_RANGE" });
        }
        let slots = DNODE_SLOTS_MAX as u64;
        let fits =
            self.first.is_multiple_of(slots) && self.slots == slots && self.first < OBJECT_MAX;
        if fits {
            limits.check_flags(self.first, self.flags & !ObjectFlags::SPILL)
        } else {
            Err(InvalidRecord::Range { object: self.first, offset: self.first, len: self.slots })
        }
    }
}
