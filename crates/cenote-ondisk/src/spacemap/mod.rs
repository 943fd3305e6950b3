//! Space maps: logs of ALLOC and FREE ranges.
//!
//! A space map is an object whose bonus is [`SpaceMapPhys`] and whose data is a stream of u64 words
//! ([`entry`]). The object stores neither the map's offset nor its unit: the owner knows them
//! ([`Geometry`]), and there are six kinds of owners (spec 05 §2.4). Entries apply strictly in
//! stream order; a range may be allocated and freed any number of times.
//!
//! ```text
//!   metaslab   start of the metaslab, unit 2^ashift     log        0, 512, with vdev ids
//!   checkpoint 0, 2^ashift, FREE only                   obsolete   0, 1 byte, ALLOC only
//!   DTL        0, one txg, ALLOC only
//! ```
//!
//! Log space maps (`com.delphix:log_spacemap`): the pool directory's [`LOG_SPACEMAP_ZAP`] maps a
//! txg in hex to one map for the whole pool; each top-level vdev's array named by
//! [`UNFLUSHED_PHYS_TXGS`] holds for every metaslab the txg from which on the logs must be applied
//! to its own map, 0 = never logged (spec 05 §4).

pub mod entry;
pub mod histogram;

pub use entry::{Action, Decoder, Entry, Geometry, Item, Stamp, Writer};

use crate::words;

/// Pool directory: ZAP txg (hex) → log space map.
pub const LOG_SPACEMAP_ZAP: &str = "com.delphix:log_spacemap_zap";
/// Top-level vdev ZAP: object with one u64 per metaslab.
pub const UNFLUSHED_PHYS_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
/// Unit of log space maps.
pub const LOG_SPACEMAP_SHIFT: u8 = 9;
/// Buckets of the stored histogram.
pub const HISTOGRAM_BUCKETS: usize = 32;
/// Bonus length without histogram.
pub const SPACE_MAP_V0_LEN: usize = 24;
/// Bonus length with histogram.
pub const SPACE_MAP_PHYS_LEN: usize = 320;

/// Why bytes of a space map are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptSpaceMap {
    /// The bonus is shorter than the oldest header.
    #[error("space map: bonus of {len} bytes, expected 24 or 320")]
    BonusLength {
        /// Bytes found.
        len: usize,
    },
    /// The length is not whole words, or larger than the object.
    #[error("space map: length {length} in an object of {object_size} bytes")]
    Length {
        /// Bytes of entries that the header claims.
        length: u64,
        /// Bytes of the object.
        object_size: u64,
    },
    /// The first word of a two-word entry is the last one of its block.
    #[error("space map: word {index}: two-word entry is cut off at the end of its block")]
    Straddle {
        /// Index of the word in the stream.
        index: u64,
    },
    /// An entry reaches beyond the map, or does not fit in 64 bits.
    #[error(
        "space map: word {index}: segment at {offset:#x} of {units} units is outside of the map"
    )]
    OutOfRange {
        /// Index of the entry's first word.
        index: u64,
        /// Offset as stored, in units.
        offset: u64,
        /// Length in units.
        units: u64,
    },
}

/// Header of a space map, kept in the bonus buffer of its object (spec 05 §2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceMapPhys {
    /// Once the object number; written as found, never read.
    pub object: u64,
    /// Bytes of the object that hold entries, from offset 0.
    pub length: u64,
    /// Net bytes allocated by the entries; negative for maps of frees.
    pub allocated: i64,
    /// Zero; kept as found.
    pub reserved: [u64; 5],
    /// Free segments by size: bucket `i` counts `2^(i+shift) <= bytes < 2^(i+shift+1)`. Absent in
    /// the 24-byte header.
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
}

impl SpaceMapPhys {
    /// Decodes the bonus buffer of a space map.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptSpaceMap> {
        let [object, length, allocated] =
            words::exact(bonus).ok_or(CorruptSpaceMap::BonusLength { len: bonus.len() })?;
        let histogram = match bonus.len() {
            SPACE_MAP_PHYS_LEN.. => bonus.get(64..).and_then(words::exact),
            _ => None,
        };
        let reserved = bonus.get(24..64).map_or([0; 5], words::padded);
        Ok(Self { object, length, allocated: allocated as i64, reserved, histogram })
    }

    /// The bonus buffer: 320 bytes with a histogram, else 24.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = words::to_bytes(&[self.object, self.length, self.allocated as u64]);
        if let Some(histogram) = &self.histogram {
            bytes.extend(words::to_bytes(&self.reserved));
            bytes.extend(words::to_bytes(histogram));
        }
        bytes
    }

    /// Checks the length against the bytes that the object has.
    pub const fn check_size(&self, object_size: u64) -> Result<(), CorruptSpaceMap> {
        if self.length > object_size || !self.length.is_multiple_of(8) {
            return Err(CorruptSpaceMap::Length { length: self.length, object_size });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Object 0x46 of spec 05 §2.10.
    #[test]
    fn a_real_header() {
        let mut words_ = [0_u64; 40];
        words_[..3].copy_from_slice(&[0x46, 0x5b0, 0x8d_7c00]);
        words_[8..16].copy_from_slice(&[8, 0xf, 4, 7, 8, 0xc, 1, 1]);
        words_[21] = 1;
        let bytes = words::to_bytes(&words_);
        let phys = SpaceMapPhys::decode(&bytes).unwrap();
        assert_eq!((phys.length, phys.allocated), (0x5b0, 0x8d_7c00));
        assert_eq!(phys.histogram.unwrap()[13], 1);
        assert_eq!(phys.encode(), bytes);
        let old = SpaceMapPhys::decode(&bytes[..24]).unwrap();
        assert_eq!(old.histogram, None);
        assert_eq!(old.encode(), bytes[..24]);
        assert!(SpaceMapPhys::decode(&bytes[..23]).is_err());
        assert!(phys.check_size(0x5b0).is_ok());
        assert!(phys.check_size(0x5af).is_err());
    }

    #[test]
    fn allocated_is_signed() {
        let bytes = words::to_bytes(&[0x60, 0x50, 0xffff_ffff_ffff_c400]);
        assert_eq!(SpaceMapPhys::decode(&bytes).unwrap().allocated, -0x3c00);
    }
}
