//! Checksum functions: their numbers, names and properties (spec 02 §3.1).
//!
//! The functions themselves are `ChecksumAlgorithm` of the codec crate, which depends on no format
//! and therefore has a type of its own: without `inherit` and `on`, which are property values. The
//! numbers of both are equal; a test of the block layer, which uses both, compares them. This
//! module knows where each number is allowed, and the two properties that change how a stored
//! checksum is compared: functions with the `dedup` property are truncated under encryption, the
//! others folded (spec 02 §3.5).

/// A checksum function's number, as in a block pointer, a dnode or a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the functions' own")]
pub enum ChecksumType {
    /// Inherited from the parent; never in a block pointer.
    Inherit = 0,
    /// The default, fletcher4; never in a block pointer.
    On = 1,
    Off = 2,
    /// SHA-256 in a trailer whose verifier is the offset on the device.
    Label = 3,
    GangHeader = 4,
    /// fletcher2 in a trailer; log blocks of old pools.
    Zilog = 5,
    Fletcher2 = 6,
    Fletcher4 = 7,
    Sha256 = 8,
    /// fletcher4 in the chain header of a log block.
    Zilog2 = 9,
    NoParity = 10,
    Sha512 = 11,
    Skein = 12,
    EdonR = 13,
    Blake3 = 14,
}

impl ChecksumType {
    /// All of them, by number.
    pub const ALL: [Self; 15] = [
        Self::Inherit,
        Self::On,
        Self::Off,
        Self::Label,
        Self::GangHeader,
        Self::Zilog,
        Self::Fletcher2,
        Self::Fletcher4,
        Self::Sha256,
        Self::Zilog2,
        Self::NoParity,
        Self::Sha512,
        Self::Skein,
        Self::EdonR,
        Self::Blake3,
    ];

    /// The function with this number.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// Its number.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Its name in zdb's output and in properties.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::On => "on",
            Self::Off => "off",
            Self::Label => "label",
            Self::GangHeader => "gang_header",
            Self::Zilog => "zilog",
            Self::Fletcher2 => "fletcher2",
            Self::Fletcher4 => "fletcher4",
            Self::Sha256 => "sha256",
            Self::Zilog2 => "zilog2",
            Self::NoParity => "noparity",
            Self::Sha512 => "sha512",
            Self::Skein => "skein",
            Self::EdonR => "edonr",
            Self::Blake3 => "blake3",
        }
    }

    /// Whether the function is allowed for metadata.
    #[must_use]
    pub const fn is_metadata(self) -> bool {
        !matches!(
            self,
            Self::Inherit
                | Self::On
                | Self::Off
                | Self::Zilog
                | Self::Fletcher2
                | Self::Zilog2
                | Self::NoParity
        )
    }

    /// Whether the checksum is stored in the block.
    #[must_use]
    pub const fn is_embedded(self) -> bool {
        matches!(self, Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// Whether equal checksums count as equal data without a comparison.
    #[must_use]
    pub const fn is_dedup(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha512 | Self::Skein | Self::Blake3)
    }

    /// Whether the function is keyed with the pool's salt.
    #[must_use]
    pub const fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::EdonR | Self::Blake3)
    }

    /// Whether it is strong enough for nopwrite.
    #[must_use]
    pub const fn is_nopwrite(self) -> bool {
        self.is_dedup() || matches!(self, Self::EdonR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_properties() {
        for (id, kind) in ChecksumType::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(kind.id()), id);
            assert_eq!(ChecksumType::from_id(kind.id()), Some(kind));
        }
        assert_eq!(ChecksumType::from_id(15), None);
        // Flags of OpenZFS 2.3.2: 2 metadata, 4 embedded, 8 dedup, 16 salted, 32 nopwrite.
        let flags = [0, 0, 0, 6, 6, 4, 0, 2, 42, 4, 0, 42, 58, 50, 58];
        for (kind, expected) in ChecksumType::ALL.into_iter().zip(flags) {
            let found = u8::from(kind.is_metadata()) * 2
                + u8::from(kind.is_embedded()) * 4
                + u8::from(kind.is_dedup()) * 8
                + u8::from(kind.is_salted()) * 16
                + u8::from(kind.is_nopwrite()) * 32;
            assert_eq!(found, expected, "{}", kind.name());
        }
    }
}
