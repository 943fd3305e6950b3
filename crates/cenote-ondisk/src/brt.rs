//! The block reference table: extra references to cloned blocks (spec 08 §27).
//!
//! Per top-level vdev a pair of objects: an array of u16, the number of entries per 16 MiB region,
//! and a ZAP from the byte offset of DVA[0] (one u64 key) to the references beyond the first. The
//! header is in the bonus of the array object.
//!
//! Two byte orders need care. The array is declared u64, so the array of a foreign pool arrives
//! swapped in groups of four: [`counters`] undoes that according to the header's own order word.
//! The values of the ZAP are 8 one-byte integers in the byte order of the *writer*, unless the
//! endian feature made them one u64.

use crate::endian::Endian;
use crate::words;
use crate::zap::Value;

/// Pool directory: prefix of the key, followed by the decimal vdev id.
pub const BRT_KEY_PREFIX: &str = "com.fudosecurity:brt:vdev:";
/// Bytes of the header.
pub const BRT_PHYS_LEN: usize = 56;

/// A BRT header is too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("brt: bonus of {len} bytes, expected 56")]
pub struct CorruptBrt {
    /// Bytes found.
    pub len: usize,
}

/// Header of one vdev's table (`brt_vdev_phys_t`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BrtPhys {
    /// ZAP of the entries.
    pub entries_obj: u64,
    /// Regions.
    pub region_count: u64,
    /// Byte order of the counters: 0 little, 1 big endian.
    pub byte_order: u64,
    /// Entries in all regions.
    pub total_count: u64,
    /// Bytes of a region.
    pub region_size: u64,
    /// Allocated size of blocks that have an entry.
    pub used_space: u64,
    /// `used_space` times the number of extra references.
    pub saved_space: u64,
}

impl BrtPhys {
    /// Decodes the bonus buffer.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptBrt> {
        let [
            entries_obj,
            region_count,
            byte_order,
            total_count,
            region_size,
            used_space,
            saved_space,
        ] = words::exact(bonus).ok_or(CorruptBrt { len: bonus.len() })?;
        Ok(Self {
            entries_obj,
            region_count,
            byte_order,
            total_count,
            region_size,
            used_space,
            saved_space,
        })
    }

    /// The bonus buffer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words::to_bytes(&[
            self.entries_obj,
            self.region_count,
            self.byte_order,
            self.total_count,
            self.region_size,
            self.used_space,
            self.saved_space,
        ])
    }

    /// Byte order of the host that writes the counters, as far as the header shows it: the word
    /// itself was swapped with the block, so any nonzero value means big-endian.
    #[must_use]
    pub const fn order(&self) -> Endian {
        if self.byte_order == 0 { Endian::Little } else { Endian::Big }
    }

    /// Region of an offset.
    #[must_use]
    pub const fn region_of(&self, offset: u64) -> Option<u64> {
        offset.checked_div(self.region_size)
    }
}

/// The counters in a piece of the region array. `is_swapped`: the block was foreign and was swapped
/// as u64, which reverses each group of four counters along with their bytes; so the bytes are
/// right and only the groups are reversed back.
#[must_use]
pub fn counters(data: &[u8], is_swapped: bool) -> Vec<u16> {
    let (groups, _partial) = data.as_chunks::<8>();
    let mut counters = Vec::with_capacity(groups.len().saturating_mul(4));
    for group in groups {
        let word = u64::from_le_bytes(*group);
        let [a, b, c, d] =
            [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16];
        counters.extend(if is_swapped { [d, c, b, a] } else { [a, b, c, d] });
    }
    counters
}

/// The count of an entry: one u64, or eight bytes in the writer's order.
#[must_use]
pub fn entry_count(value: &Value, writer: Endian) -> Option<u64> {
    match value.as_bytes() {
        Some(bytes) => bytes.try_into().ok().map(|bytes| writer.u64(bytes)),
        None => value.single(),
    }
}

/// Pool directory key of a vdev's table.
#[must_use]
pub fn key_of_vdev(vdev: u64) -> String {
    format!("{BRT_KEY_PREFIX}{vdev}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spec 08 §27, vdev 0.
    #[test]
    fn a_real_header() {
        let bytes = words::to_bytes(&[76, 9, 0, 13, 16_777_216, 729_600, 1_387_008]);
        let phys = BrtPhys::decode(&bytes).unwrap();
        assert_eq!((phys.entries_obj, phys.total_count, phys.saved_space), (76, 13, 1_387_008));
        assert_eq!(phys.region_of(33 << 20), Some(2));
        assert_eq!(BrtPhys::default().region_of(1), None);
        assert_eq!(phys.encode(), bytes);
        assert_eq!(key_of_vdev(3), "com.fudosecurity:brt:vdev:3");
    }

    #[test]
    fn counters_and_counts() {
        let native = [1, 0, 2, 0, 3, 0, 4, 1];
        assert_eq!(counters(&native, false), [1, 2, 3, 0x104]);
        let big = [0, 1, 0, 2, 0, 3, 1, 4];
        let swapped: Vec<u8> = big.iter().rev().copied().collect();
        assert_eq!(counters(&swapped, true), [1, 2, 3, 0x104]);
        let bytes = Value::bytes_of(&[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(entry_count(&bytes, Endian::Little), Some(1));
        assert_eq!(entry_count(&bytes, Endian::Big), Some(1 << 56));
        assert_eq!(entry_count(&Value::U64(5), Endian::Big), Some(5));
        assert_eq!(entry_count(&Value::bytes_of(&[1]), Endian::Little), None);
    }
}
