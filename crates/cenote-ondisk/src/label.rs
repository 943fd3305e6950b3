//! Labels: four copies at both ends of each leaf device.
//!
//! ```text
//!   0         256K       512K        4M                        psize-512K  psize-256K  psize
//!   |   L0    |   L1     |  boot     |  data ...               |    L2     |    L3     |
//!
//!   label:  0  blank 8K | 8K  boot environment 8K | 16K  config 112K | 128K  uberblock ring 128K
//! ```
//!
//! `psize` is the device's size rounded down to 256 KiB. Boot environment, config and each slot of
//! the ring end in a 40-byte trailer, whose SHA-256 covers the block's byte offset on the device: a
//! copy in another label, or one moved by growing the device, is invalid. (The codec crate does the
//! check.) One valid label is enough to find a pool; OpenZFS's scanner does not even check the
//! config's trailer, so neither the result of the check nor the contents may be dropped because of
//! the other.
//!
//! Sources: spec 01 §1, §2, §7.1.

use crate::uberblock;

/// Bytes of a label.
pub const LABEL_LEN: u64 = 256 << 10;
/// Labels of a leaf.
pub const LABEL_COUNT: usize = 4;
/// Start of the data: behind two labels and the boot region.
pub const LABEL_START_LEN: u64 = 4 << 20;
/// Bytes behind the data: two labels.
pub const LABEL_END_LEN: u64 = 2 * LABEL_LEN;
/// Start of the boot region; RAID-Z expansion uses it as scratch space.
pub const BOOT_REGION_AT: u64 = 2 * LABEL_LEN;
/// Bytes of the boot region.
pub const BOOT_REGION_LEN: u64 = LABEL_START_LEN - BOOT_REGION_AT;
/// First word of the header that a cache device has after its first two labels.
pub const CACHE_HEADER_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// Smallest leaf.
pub const DEVICE_SIZE_MIN: u64 = 64 << 20;

/// The part of a label that holds the boot environment.
pub const BOOT_ENV: Area = Area { at: 8 << 10, len: 8 << 10 };
/// The part of a label that holds the configuration.
pub const CONFIG: Area = Area { at: 16 << 10, len: 112 << 10 };
/// The part of a label that holds the uberblocks.
pub const RING: Area = Area { at: 128 << 10, len: uberblock::UBERBLOCK_RING_LEN };

const _: () = assert!(CONFIG.at + CONFIG.len == RING.at && RING.at + RING.len == LABEL_LEN);

/// Bytes of the trailer at the end of each part, and of each slot of the ring.
pub const TRAILER_LEN: usize = 40;

/// A part of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Byte offset in the label.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

impl Area {
    /// Bytes of content, in front of the trailer.
    #[must_use]
    pub const fn content_len(self) -> usize {
        (self.len as usize).saturating_sub(TRAILER_LEN)
    }
}

/// The size on which all offsets are based: rounded down to 256 KiB.
#[must_use]
pub const fn usable_size(device_size: u64) -> u64 {
    device_size / LABEL_LEN * LABEL_LEN
}

/// Byte offset of label 0..=3; `None` for others, and if the device has no room for four.
#[must_use]
pub fn label_offset(device_size: u64, label: usize) -> Option<u64> {
    let size = usable_size(device_size);
    if size < LABEL_LEN * LABEL_COUNT as u64 {
        return None;
    }
    match label {
        0 => Some(0),
        1 => Some(LABEL_LEN),
        2 => size.checked_sub(2 * LABEL_LEN),
        3 => size.checked_sub(LABEL_LEN),
        _ => None,
    }
}

/// Bytes of a leaf that can hold data.
#[must_use]
pub const fn leaf_asize(device_size: u64) -> u64 {
    usable_size(device_size).saturating_sub(LABEL_START_LEN + LABEL_END_LEN)
}

/// Byte offset on the device of a slot of the ring, in the label that starts at `label_offset`;
/// `None` beyond the last slot. The slot's trailer checksum includes this offset.
#[must_use]
pub fn slot_offset(label_offset: u64, ashift: u64, slot: u64) -> Option<u64> {
    let offset = uberblock::slot_offset(ashift, slot)?;
    label_offset.checked_add(RING.at)?.checked_add(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry() {
        let size = (64 << 20) + 12345;
        assert_eq!(usable_size(size), 64 << 20);
        let offsets: Vec<_> = (0..5).map(|label| label_offset(size, label)).collect();
        assert_eq!(
            offsets,
            [Some(0), Some(0x40000), Some((64 << 20) - 0x80000), Some((64 << 20) - 0x40000), None]
        );
        assert_eq!(leaf_asize(size), 62390272);
        assert_eq!(label_offset((1 << 20) - 1, 0), None);
        assert_eq!(leaf_asize(0), 0);
    }

    #[test]
    fn slots() {
        assert_eq!(slot_offset(0x40000, 12, 4), Some(0x64000));
        assert_eq!(slot_offset(0, 13, 16), None);
        assert_eq!((CONFIG.content_len(), BOOT_ENV.content_len()), (114648, 8152));
    }
}
