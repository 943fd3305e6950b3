//! How a block is to be written: from the settings of pool, dataset and object to one policy.
//!
//!     metadata = level > 0, or a type flagged M, or a spill block
//!
//!                     metadata                            data
//!     compression     lz4 ("on"), whatever is set         object's own, else the dataset's
//!     checksum        the dataset's if fit for metadata,  object's own, else the dataset's;
//!                     else fletcher4                      "on" is fletcher4
//!     copies          copies + 1 by redundant_metadata    copies
//!
//! The MOS has three copies of everything and fletcher4. In encrypted object sets blocks of dnodes
//! and the set's own block are never compressed.
//!
//! All of it is pure: the same settings give the same policy, and a table tests it.
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
/// Most copies of a block whose pointer keeps its third address for salt and IV.
const ENCRYPTED_COPIES_MAX: u8 = 2;
/// Level from which on `redundant_metadata=most` copies indirect blocks once more.
const MOST_LEVEL_MIN: u8 = 2;

/// What the pool's features allow.
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
    /// A pool with every feature that this program maintains.
    pub const FULL: Self = Self { has_embedded_data: true, has_hole_birth: true, has_lz4: true };

    /// A pool of which somebody knows what features are active.
    ///
    /// # Errors
    /// Those of who knows.
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
    /// One more copy of all metadata.
    #[default]
    All,
    /// One more copy of most: not of the lowest indirect blocks of data.
    Most,
    /// One more copy of what many files hang on.
    Some,
    /// No more copies than of data.
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

/// Which compression is wanted of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressionSetting {
    /// The function; `On` and `Empty` are possible, `Inherit` means none.
    pub function: CompressionType,
    /// For Zstandard.
    pub zstd_level: ZstdLevel,
}

impl CompressionSetting {
    /// From the value of property `compression`: the function in the low seven bits, above them
    /// the level, 0 for the default (spec 02 §4.4).
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

/// What a dataset, or the MOS, says about its blocks.
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
    /// Whether property `dedup` is anything but off.
    pub is_dedup: bool,
    /// Whether the object set is encrypted.
    pub is_encrypted: bool,
    /// Log2 of the bytes of indirect blocks of new objects; 0: as `zfs_default_ibs` says.
    pub indirect_shift: u8,
}

impl DatasetPolicy {
    /// The MOS's own.
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

/// Which block of which object it is.
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

    /// Whether much else is lost with this block (`redundant_metadata=some`).
    fn is_critical(self) -> bool {
        let is_contents = self.object_type == ObjectType::DNODE && self.level == 0
            || matches!(self.object_type, ObjectType::DIRECTORY_CONTENTS | ObjectType::SA);
        self.object_type.is_metadata() && !is_contents
    }
}

/// What is done with the bytes of a block before they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionPolicy {
    /// Stored as they are, zeros too.
    Off,
    /// Zeros become a hole, anything else is stored as it is.
    Empty,
    /// Zeros become a hole, anything else is compressed if that saves enough.
    With(Compression, ZstdLevel),
}

/// How one block is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each of one rule")]
pub struct WritePolicy {
    /// Type in the pointer.
    pub object_type: ObjectType,
    /// Level in the pointer.
    pub level: u8,
    /// What is done with the bytes.
    pub compression: CompressionPolicy,
    /// What guards them.
    pub checksum: ChecksumAlgorithm,
    /// Addresses of the block.
    pub copies: u8,
    /// Addresses of its gang headers, should it have to be split.
    pub gang_copies: u8,
    /// Whether its data may go into the pointer.
    pub may_embed: bool,
    /// Whether a hole in place of older data tells its birth.
    pub punches_holes: bool,
    /// Whether the block is metadata: never kept for being equal.
    pub is_metadata: bool,
    /// Blocks of data up to so many stored bytes go to the special class.
    pub special_small_blocks: u64,
    /// Whether dedup is wanted, which is refused.
    pub is_dedup: bool,
    /// Whether encryption is wanted, which is refused.
    pub is_encrypted: bool,
}

impl WritePolicy {
    /// The policy for a block; `None` if one of the dnode's own numbers means nothing.
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
    // The functions whose result lies in the block are for labels, gang headers and log blocks.
    if wanted.is_embedded() { None } else { ChecksumAlgorithm::from_id(wanted.id()) }
}

/// Copies of the block, and of its gang headers (spec 02 §5.5).
#[must_use]
pub fn copies(dataset: &DatasetPolicy, block: &BlockSpec) -> (u8, u8) {
    let base = dataset.copies.max(1);
    let is_metadata_type = block.object_type.is_metadata() || block.is_spill;
    let level = block.level;
    // Whether the block, and whether its gang header, gets one more.
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
