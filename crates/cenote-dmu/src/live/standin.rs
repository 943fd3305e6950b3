//! Types of the block layer, as they are agreed.

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;

/// What a block is, for its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSpec {
    /// Type of its object, or of the bonus for a spill block.
    pub object_type: ObjectType,
    /// Level.
    pub level: u8,
    /// Whether it is a spill block.
    pub is_spill: bool,
    /// Compression of the dnode, 0: as the dataset says.
    pub dnode_compression: u8,
    /// Checksum of the dnode, 0: as the dataset says.
    pub dnode_checksum: u8,
}

/// How a block is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WritePolicy {
    /// Type of its object.
    pub object_type: ObjectType,
    /// Level.
    pub level: u8,
}

/// For which txg, and where in which tree, a block is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteContext {
    /// Syncing txg.
    pub txg: u64,
    /// Its pass.
    pub pass: u32,
    /// Place of the block.
    pub place: Bookmark,
    /// Blocks or dnodes below.
    pub fill: u64,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// A new block.
    New,
    /// The old block has new content.
    InPlace,
    /// The old block has that content already.
    Kept,
    /// All zeros.
    Hole,
    /// In the pointer.
    Embedded,
}

/// A block that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its pointer.
    pub bp: BlockPtr,
    /// What was done.
    pub how: How,
}
