//! Allocation classes, and which block belongs in which (spec 05 §7).
//!
//!     dedup ──> special ──> normal          log ──> embedded log ──> normal
//!
//! A class is a set of metaslab groups; a full one hands its blocks on. Nothing on disk says what
//! class a block came from.

use cenote_rt::tunables;

/// What space is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Everything.
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
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Normal, Self::Log, Self::EmbeddedLog, Self::Special, Self::Dedup];

    /// Where blocks go that do not fit.
    #[must_use]
    pub fn fallback(self) -> Option<Self> {
        match self {
            Self::Dedup if tunables::DDT_DATA_IS_SPECIAL.get() != 0 => Some(Self::Special),
            Self::Dedup | Self::Special | Self::EmbeddedLog => Some(Self::Normal),
            Self::Log => Some(Self::EmbeddedLog),
            Self::Normal => None,
        }
    }

    /// Whether it serves the intent log only.
    #[must_use]
    pub const fn is_log(self) -> bool {
        matches!(self, Self::Log | Self::EmbeddedLog)
    }
}

/// What the choice of a class depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placement {
    /// The object's type is a metadata type.
    pub is_metadata: bool,
    /// A dedup table.
    pub is_dedup_table: bool,
    /// Level in the object's tree.
    pub level: u8,
    /// Contents of files or volumes.
    pub is_file_data: bool,
    /// Size after compression.
    pub psize: u64,
    /// Property `special_small_blocks` of the dataset, bytes.
    pub special_small_blocks: u64,
}
