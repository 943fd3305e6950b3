//! Allocation classes, and the choice of a class for a block (spec 05 §7).
//!
//!     dedup ──> special ──> normal          log ──> embedded log ──> normal
//!
//! A class is a set of metaslab groups; blocks that do not fit go to the next class. The class of a
//! block is not recorded on disk.

use cenote_rt::tunables;

/// An allocation class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// All data.
    Normal,
    /// Intent log, on log vdevs.
    Log,
    /// Intent log, in one metaslab of each large normal vdev.
    EmbeddedLog,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 5] =
        [Self::Normal, Self::Log, Self::EmbeddedLog, Self::Special, Self::Dedup];

    /// The class to use when this one is full.
    #[must_use]
    pub fn fallback(self) -> Option<Self> {
        match self {
            Self::Dedup if tunables::DDT_DATA_IS_SPECIAL.get() != 0 => Some(Self::Special),
            Self::Dedup | Self::Special | Self::EmbeddedLog => Some(Self::Normal),
            Self::Log => Some(Self::EmbeddedLog),
            Self::Normal => None,
        }
    }

    /// Whether the class is used for the intent log only.
    #[must_use]
    pub const fn is_log(self) -> bool {
        matches!(self, Self::Log | Self::EmbeddedLog)
    }
}

/// The properties of a block that decide its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placement {
    /// Whether the object's type is a metadata type.
    pub is_metadata: bool,
    /// Whether the block belongs to a dedup table.
    pub is_dedup_table: bool,
    /// Level in the object's tree.
    pub level: u8,
    /// Whether the block holds contents of files or volumes.
    pub is_file_data: bool,
    /// Size after compression.
    pub psize: u64,
    /// Property `special_small_blocks` of the dataset, bytes.
    pub special_small_blocks: u64,
}
