//! Compression functions: their numbers and names (spec 02 §4.1).

/// A compression function's number, as in a block pointer, a dnode or a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompressionType {
    /// Inherited from the parent; zero in holes.
    Inherit,
    /// The default: lz4, or lzjb in old pools; never in a block pointer.
    On,
    /// Stored uncompressed.
    Off,
    /// The first function of ZFS.
    Lzjb,
    /// A policy that only detects zeros; never in a block pointer.
    Empty,
    /// zlib at level 1 to 9.
    Gzip(u8),
    /// Runs of zeros.
    Zle,
    /// LZ4 behind its length.
    Lz4,
    /// Zstandard behind its length, level and version.
    Zstd,
}

impl CompressionType {
    /// One past the largest number.
    pub const COUNT: u8 = 17;

    /// The function with this number.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::Inherit,
            1 => Self::On,
            2 => Self::Off,
            3 => Self::Lzjb,
            4 => Self::Empty,
            5..=13 => Self::Gzip(id - 4),
            14 => Self::Zle,
            15 => Self::Lz4,
            16 => Self::Zstd,
            _ => return None,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Inherit => 0,
            Self::On => 1,
            Self::Off => 2,
            Self::Lzjb => 3,
            Self::Empty => 4,
            Self::Gzip(level) => level.saturating_add(4),
            Self::Zle => 14,
            Self::Lz4 => 15,
            Self::Zstd => 16,
        }
    }

    /// Its name in zdb's output of a block pointer (the property's value differs for `off`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::On => "on",
            Self::Off => "uncompressed",
            Self::Lzjb => "lzjb",
            Self::Empty => "empty",
            Self::Gzip(1) => "gzip-1",
            Self::Gzip(2) => "gzip-2",
            Self::Gzip(3) => "gzip-3",
            Self::Gzip(4) => "gzip-4",
            Self::Gzip(5) => "gzip-5",
            Self::Gzip(6) => "gzip-6",
            Self::Gzip(7) => "gzip-7",
            Self::Gzip(8) => "gzip-8",
            Self::Gzip(_) => "gzip-9",
            Self::Zle => "zle",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for id in 0..=u8::MAX {
            let found = CompressionType::from_id(id);
            assert_eq!(found.map(CompressionType::id), (id < CompressionType::COUNT).then_some(id));
        }
        assert_eq!(CompressionType::Gzip(6).name(), "gzip-6");
        assert_eq!(CompressionType::from_id(10), Some(CompressionType::Gzip(6)));
    }
}
