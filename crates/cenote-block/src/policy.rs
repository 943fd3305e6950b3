//! Write policies: derives how a block is written from the properties of pool, dataset and object.
//!
//!     metadata = level > 0, or a type flagged M, or a spill block
//!
//!                     metadata                            data
//!     compression     lz4 ("on"), whatever is set         object's own, else the dataset's
//!     checksum        the dataset's if fit for metadata,  object's own, else the dataset's;
//!                     else fletcher4                      "on" is fletcher4
//!     copies          copies + 1 by redundant_metadata    copies
//!
//! The MOS has three copies of everything and fletcher4. In encrypted object sets, dnode blocks and
//! the object set's own block are never compressed.
//!
//! All functions are pure: the same settings give the same policy, and a table tests it.
//!
//! Sources: spec 02 §3.6, §5.1, §5.2, §5.4, §5.5; spec 05 §7.

#[cfg(test)]
mod tests;

use cenote_codec::checksum::ChecksumAlgorithm;
use cenote_codec::compress::{Compression, ZstdLevel};
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::object_type::ObjectType;

/// Most copies of any block.
const COPIES_MAX: u8 = 3;
/// Most copies of an encrypted block, whose pointer keeps salt and IV in its third address.
const ENCRYPTED_COPIES_MAX: u8 = 2;
/// Lowest level of indirect blocks that get an additional copy with `redundant_metadata=most`.
const MOST_LEVEL_MIN: u8 = 2;

/// Features of the pool that affect writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolPolicy {
    /// Whether `com.delphix:embedded_data` is enabled.
    pub has_embedded_data: bool,
    /// Whether `com.delphix:hole_birth` is active.
    pub has_hole_birth: bool,
    /// Whether `org.illumos:lz4_compress` is active.
    pub has_lz4: bool,
}

impl PoolPolicy {
    /// All features that this program maintains.
    pub const FULL: Self = Self { has_embedded_data: true, has_hole_birth: true, has_lz4: true };

    /// Derives the policy from a function that tells whether a feature is active.
    ///
    /// # Errors
    /// Errors of `is_active`.
    pub fn of<E>(mut is_active: impl FnMut(&'static str) -> Result<bool, E>) -> Result<Self, E> {
        Ok(Self {
            has_embedded_data: is_active("embedded_data")?,
            has_hole_birth: is_active("hole_birth")?,
            has_lz4: is_active("lz4_compress")?,
        })
    }
}

/// Property `redundant_metadata`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RedundantMetadata {
    /// One additional copy of all metadata.
    #[default]
    All,
    /// One additional copy of most metadata: not of the lowest indirect blocks of data.
    Most,
    /// One additional copy of critical metadata.
    Some,
    /// No additional copies.
    None,
}

impl RedundantMetadata {
    /// The value with this number.
    #[must_use]
    pub const fn from_id(id: u64) -> Option<Self> {
        Some(match id {
            0 => Self::All,
            1 => Self::Most,
            2 => Self::Some,
            3 => Self::None,
            _ => return None,
        })
    }
}

/// A value of property `compression`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressionSetting {
    /// The function; `On` and `Empty` are possible, `Inherit` means none.
    pub function: CompressionType,
    /// Level of Zstandard.
    pub zstd_level: ZstdLevel,
}

impl CompressionSetting {
    /// Decodes the value of property `compression`: the function in the low seven bits, the level
    /// above them, 0 for the default (spec 02 §4.4).
    #[must_use]
    pub fn from_property(value: u64) -> Option<Self> {
        let function = CompressionType::from_id((value & 0x7f) as u8)?;
        let zstd_level = match value >> 7 {
            0 => ZstdLevel::default(),
            level => ZstdLevel::from_id(u8::try_from(level).ok()?)?,
        };
        Some(Self { function, zstd_level })
    }
}

/// The properties of a dataset, or of the MOS, that affect writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatasetPolicy {
    /// Property `compression`.
    pub compression: CompressionSetting,
    /// Property `checksum`.
    pub checksum: ChecksumType,
    /// Property `copies`.
    pub copies: u8,
    /// Property `redundant_metadata`.
    pub redundant_metadata: RedundantMetadata,
    /// Property `special_small_blocks`, bytes.
    pub special_small_blocks: u64,
    /// Whether property `dedup` is not `off`.
    pub is_dedup: bool,
    /// Whether the object set is encrypted.
    pub is_encrypted: bool,
    /// Log2 of the size of indirect blocks of new objects; 0: use `zfs_default_ibs`.
    pub indirect_shift: u8,
}

impl DatasetPolicy {
    /// The properties of the MOS.
    pub const MOS: Self = Self { copies: COPIES_MAX, ..Self::DEFAULT };

    /// All properties at their defaults.
    pub const DEFAULT: Self = Self {
        compression: CompressionSetting {
            function: CompressionType::On,
            zstd_level: ZstdLevel::DEFAULT,
        },
        checksum: ChecksumType::On,
        copies: 1,
        redundant_metadata: RedundantMetadata::All,
        special_small_blocks: 0,
        is_dedup: false,
        is_encrypted: false,
        indirect_shift: 0,
    };
}

/// A block within an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSpec {
    /// The dnode's type; for a spill block, the type of the bonus buffer.
    pub object_type: ObjectType,
    /// Level in the object's tree.
    pub level: u8,
    /// Whether it is a spill block.
    pub is_spill: bool,
    /// The dnode's own compression, 0 = the dataset's.
    pub dnode_compression: u8,
    /// The dnode's own checksum, 0 = the dataset's.
    pub dnode_checksum: u8,
}

impl BlockSpec {
    /// A block of an object without settings of its own.
    #[must_use]
    pub const fn new(object_type: ObjectType, level: u8) -> Self {
        Self { object_type, level, is_spill: false, dnode_compression: 0, dnode_checksum: 0 }
    }

    fn is_metadata(self) -> bool {
        self.level > 0 || self.is_spill || self.object_type.is_metadata()
    }

    /// Whether the loss of this block affects much else (`redundant_metadata=some`).
    fn is_critical(self) -> bool {
        let is_contents = self.object_type == ObjectType::DNODE && self.level == 0
            || matches!(self.object_type, ObjectType::DIRECTORY_CONTENTS | ObjectType::SA);
        self.object_type.is_metadata() && !is_contents
    }
}

/// How the bytes of a block are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionPolicy {
    /// Stored uncompressed, zeros too.
    Off,
    /// Zeros become a hole, other blocks are stored uncompressed.
    Empty,
    /// Zeros become a hole, other blocks are compressed if that saves enough.
    With(Compression, ZstdLevel),
}

/// How one block is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each of one rule")]
pub struct WritePolicy {
    /// Type recorded in the pointer.
    pub object_type: ObjectType,
    /// Level recorded in the pointer.
    pub level: u8,
    /// Compression of the bytes.
    pub compression: CompressionPolicy,
    /// Checksum function.
    pub checksum: ChecksumAlgorithm,
    /// Number of copies.
    pub copies: u8,
    /// Number of copies of its gang headers, if it must be split.
    pub gang_copies: u8,
    /// Whether its data may be embedded in the pointer.
    pub may_embed: bool,
    /// Whether a hole that replaces older data records its birth.
    pub punches_holes: bool,
    /// Whether the block is metadata, which is excluded from nopwrite.
    pub is_metadata: bool,
    /// Largest stored size of data blocks that go to the special class.
    pub special_small_blocks: u64,
    /// Whether dedup is requested, which is refused.
    pub is_dedup: bool,
    /// Whether the block is protected as one of an encrypted object set.
    pub is_encrypted: bool,
}

impl WritePolicy {
    /// The policy for a block; `None` if one of the dnode's own settings is invalid.
    #[must_use]
    pub fn of(pool: &PoolPolicy, dataset: &DatasetPolicy, block: &BlockSpec) -> Option<Self> {
        let (copies, gang_copies) = copies(dataset, block);
        let is_set_wide = matches!(block.object_type, ObjectType::DNODE | ObjectType::OBJSET);
        Some(Self {
            object_type: block.object_type,
            level: block.level,
            compression: compression(*pool, dataset, *block)?,
            checksum: checksum(dataset, *block)?,
            copies,
            gang_copies,
            may_embed: pool.has_embedded_data
                && block.level == 0
                && !is_set_wide
                && !dataset.is_encrypted,
            punches_holes: pool.has_hole_birth,
            is_metadata: block.is_metadata(),
            special_small_blocks: dataset.special_small_blocks,
            is_dedup: dataset.is_dedup && !block.is_metadata(),
            is_encrypted: dataset.is_encrypted,
        })
    }
}

fn compression(
    pool: PoolPolicy,
    dataset: &DatasetPolicy,
    block: BlockSpec,
) -> Option<CompressionPolicy> {
    let is_raw = block.level == 0
        && matches!(block.object_type, ObjectType::DNODE | ObjectType::OBJSET)
        && dataset.is_encrypted;
    if is_raw {
        return Some(CompressionPolicy::Empty);
    }
    let CompressionSetting { function, zstd_level } = dataset.compression;
    let wanted = match (block.is_metadata(), block.dnode_compression) {
        (true, _) => CompressionType::On,
        (false, 0) => function,
        (false, own) => CompressionType::from_id(own)?,
    };
    let on = if pool.has_lz4 { Compression::Lz4 } else { Compression::Lzjb };
    Some(match wanted {
        CompressionType::On => CompressionPolicy::With(on, zstd_level),
        CompressionType::Inherit | CompressionType::Off if !dataset.is_dedup => {
            CompressionPolicy::Off
        }
        CompressionType::Inherit | CompressionType::Off | CompressionType::Empty => {
            CompressionPolicy::Empty
        }
        other => CompressionPolicy::With(Compression::from_id(other.id())?, zstd_level),
    })
}

fn checksum(dataset: &DatasetPolicy, block: BlockSpec) -> Option<ChecksumAlgorithm> {
    let default = ChecksumType::Fletcher4;
    let resolve = |wanted| match wanted {
        ChecksumType::Inherit | ChecksumType::On => default,
        wanted => wanted,
    };
    let wanted = match (block.is_metadata(), block.dnode_checksum) {
        (false, own @ 1..) => resolve(ChecksumType::from_id(own)?),
        (false, 0) => resolve(dataset.checksum),
        (true, _) => {
            let wanted = resolve(dataset.checksum);
            if wanted.is_metadata() { wanted } else { default }
        }
    };
    // Checksum functions that are stored in the block itself are for labels, gang headers and log
    // blocks.
    if wanted.is_embedded() { None } else { ChecksumAlgorithm::from_id(wanted.id()) }
}

/// Copies of the block, and of its gang headers (spec 02 §5.5).
#[must_use]
pub fn copies(dataset: &DatasetPolicy, block: &BlockSpec) -> (u8, u8) {
    let base = dataset.copies.max(1);
    let is_metadata_type = block.object_type.is_metadata() || block.is_spill;
    let level = block.level;
    // Whether the block, and whether its gang header, gets an additional copy.
    let (block_more, gang_more) = match dataset.redundant_metadata {
        RedundantMetadata::All => (block.is_metadata(), true),
        RedundantMetadata::Most => (
            is_metadata_type || level >= MOST_LEVEL_MIN,
            is_metadata_type || level.saturating_add(1) >= MOST_LEVEL_MIN,
        ),
        RedundantMetadata::Some => (block.is_critical(), block.object_type.is_metadata()),
        RedundantMetadata::None => (false, false),
    };
    let holds_salt = dataset.is_encrypted && block.object_type.is_encrypted();
    let most = if holds_salt { ENCRYPTED_COPIES_MAX } else { COPIES_MAX };
    let count = |more: bool| base.saturating_add(u8::from(more)).min(most);
    (count(block_more), count(block_more || gang_more))
}
