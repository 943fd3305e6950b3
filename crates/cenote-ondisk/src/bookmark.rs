//! A position in a pool's trees, as stored (`zbookmark_phys_t`): used by the bptree, the scan
//! state, the error logs, and in memory to identify blocks.
//!
//! The level is signed: -1 is the object set's own block, -2 its intent log. Error logs print it
//! as the hexadecimal of the u64 (spec 08 §36).

/// Level of an object set's own block.
pub const LEVEL_OBJSET: i64 = -1;
/// Level of a block of the intent log.
pub const LEVEL_ZIL: i64 = -2;

/// A position in an object set's tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bookmark {
    /// Dataset object; 2^64-1 for none.
    pub objset: u64,
    /// Object in the set.
    pub object: u64,
    /// Level; negative for the set itself and for its log.
    pub level: i64,
    /// Block at that level.
    pub blkid: u64,
}

impl Bookmark {
    /// From four stored words.
    #[must_use]
    pub const fn from_words([objset, object, level, blkid]: [u64; 4]) -> Self {
        Self { objset, object, level: level as i64, blkid }
    }

    /// As four words.
    #[must_use]
    pub const fn to_words(self) -> [u64; 4] {
        [self.objset, self.object, self.level as u64, self.blkid]
    }
}
