//! Damage to the devices of a pool by hardware or users, seeded and repeatable.
//!
//! A [`Damage`] is applied to a device file of a private copy and prints as one line, so that a
//! failing case can be repeated by hand.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cenote_rt::Rng;

/// Bytes of one vdev label; two stand at each end of a device (spec 01 §1).
pub const LABEL_BYTES: u64 = 256 << 10;
/// Bytes of a sector in this module, independent of the pool's ashift.
pub const SECTOR_BYTES: u64 = 512;

/// One piece of damage to one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// One bit is inverted.
    FlipBit {
        /// Byte.
        offset: u64,
        /// 0 to 7.
        bit: u8,
    },
    /// Zeroes.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Seeded random bytes.
    Noise {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Seed of the random bytes.
        seed: u64,
    },
    /// Two ranges exchanged: each is good data in the wrong place.
    Swap {
        /// First byte of one.
        a: u64,
        /// First byte of the other.
        b: u64,
        /// Bytes of each.
        len: u64,
    },
    /// The device ends here.
    Truncate {
        /// Bytes that stay.
        size: u64,
    },
    /// A label is replaced by one of another pool's device.
    ForeignLabel {
        /// The other device.
        source: PathBuf,
        /// 0 to 3.
        label: u8,
    },
}

impl Damage {
    /// A random kind of damage with its place in `within`, on a device of `size` bytes.
    ///
    /// `foreign` lists devices of other pools; without any, labels stay as they are.
    pub fn random(rng: &mut Rng, within: &Range<u64>, size: u64, foreign: &[PathBuf]) -> Self {
        let offset = sector_in(rng, within);
        let len = SECTOR_BYTES << rng.below(6);
        match rng.below(20) {
            0..8 => {
                Self::FlipBit { offset: offset + rng.below(SECTOR_BYTES), bit: rng.below(8) as u8 }
            }
            8..12 => Self::Zero { offset, len },
            12..15 => Self::Noise { offset, len, seed: rng.next_u64() },
            15..18 => Self::Swap { a: offset, b: sector_in(rng, &(0..size)), len: SECTOR_BYTES },
            18 if !foreign.is_empty() => Self::ForeignLabel {
                source: foreign[rng.below(foreign.len() as u64) as usize].clone(),
                label: rng.below(4) as u8,
            },
            _ => Self::Truncate { size: offset },
        }
    }

    /// Applies the damage to `device`. Ranges beyond the end of the device are cut.
    pub fn apply(&self, device: &Path) {
        let fail = |error: std::io::Error| -> ! { panic!("{}: {self}: {error}", device.display()) };
        let file = OpenOptions::new().read(true).write(true).open(device);
        let file = file.unwrap_or_else(|error| fail(error));
        self.apply_to(&file).unwrap_or_else(|error| fail(error));
    }

    fn apply_to(&self, file: &File) -> std::io::Result<()> {
        self.apply_on(&mut &*file)
    }

    /// Applies the damage to any medium.
    pub(crate) fn apply_on(&self, medium: &mut impl Medium) -> std::io::Result<()> {
        let size = medium.size()?;
        match self {
            Self::FlipBit { offset, bit } => {
                let mut byte = read(medium, *offset, 1, size)?;
                for byte in &mut byte {
                    *byte ^= 1 << bit;
                }
                medium.write_at(*offset, &byte)
            }
            Self::Zero { offset, len } => {
                medium.write_at(*offset, &vec![0; cut(*offset, *len, size)])
            }
            Self::Noise { offset, len, seed } => {
                let mut noise = vec![0; cut(*offset, *len, size)];
                Rng::seeded(*seed).fill(&mut noise);
                medium.write_at(*offset, &noise)
            }
            Self::Swap { a, b, len } => {
                let len = (*len).min(size.saturating_sub(*a)).min(size.saturating_sub(*b));
                let (at_a, at_b) = (read(medium, *a, len, size)?, read(medium, *b, len, size)?);
                medium.write_at(*a, &at_b)?;
                medium.write_at(*b, &at_a)
            }
            Self::Truncate { size } => medium.set_size(*size),
            Self::ForeignLabel { source, label } => {
                let other = File::open(source)?;
                let other_size = other.metadata()?.len();
                let from = label_offset(other_size, *label);
                let bytes = read(&&other, from, LABEL_BYTES, other_size)?;
                let target = label_offset(size, *label);
                medium.write_at(target, &bytes[..cut(target, LABEL_BYTES, size)])
            }
        }
    }
}

/// The object of the damage: a file, or an overlay over one.
pub(crate) trait Medium {
    /// Bytes.
    fn size(&self) -> std::io::Result<u64>;
    /// Fills `bytes` from `offset`, all inside.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()>;
    /// Writes `bytes` at `offset`, all inside.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()>;
    /// Makes it end at `size`.
    fn set_size(&mut self, size: u64) -> std::io::Result<()>;
}

impl Medium for &File {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_size(&mut self, size: u64) -> std::io::Result<()> {
        self.set_len(size)
    }
}

/// Where label 0 to 3 starts on a device: two at each end, the device's size rounded down to
/// whole labels.
pub fn label_offset(size: u64, label: u8) -> u64 {
    let index = u64::from(label) * LABEL_BYTES;
    let end = size / LABEL_BYTES * LABEL_BYTES;
    if label < 2 { index } else { (end + index).saturating_sub(4 * LABEL_BYTES) }
}

fn sector_in(rng: &mut Rng, within: &Range<u64>) -> u64 {
    let first = within.start / SECTOR_BYTES;
    let count = (within.end / SECTOR_BYTES).saturating_sub(first).max(1);
    (first + rng.below(count)) * SECTOR_BYTES
}

fn cut(offset: u64, len: u64, size: u64) -> usize {
    size.saturating_sub(offset).min(len) as usize
}

fn read(medium: &impl Medium, offset: u64, len: u64, size: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; cut(offset, len, size)];
    medium.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FlipBit { offset, bit } => write!(out, "bit {bit} of byte {offset:#x} flipped"),
            Self::Zero { offset, len } => write!(out, "{len:#x} bytes at {offset:#x} zeroed"),
            Self::Noise { offset, len, seed } => {
                write!(out, "{len:#x} bytes at {offset:#x} made noise of seed {seed:#x}")
            }
            Self::Swap { a, b, len } => {
                write!(out, "{len:#x} bytes at {a:#x} and {b:#x} exchanged")
            }
            Self::Truncate { size } => write!(out, "truncated to {size:#x} bytes"),
            Self::ForeignLabel { source, label } => {
                write!(out, "label {label} taken from {}", source.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::PrivateFolder;

    fn device(folder: &PrivateFolder, name: &str, fill: u8) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, vec![fill; 4 * LABEL_BYTES as usize + 1000]).unwrap();
        path
    }

    #[test]
    fn damage_lands_where_it_says() {
        let folder = PrivateFolder::create("damage");
        let other = device(&folder, "other", 0xbb);
        let last = LABEL_BYTES * 3;
        for (damage, offset, want) in [
            (Damage::FlipBit { offset: 10, bit: 3 }, 10, 0xaa ^ 8),
            (Damage::Zero { offset: 512, len: 512 }, 1023, 0),
            (Damage::ForeignLabel { source: other.clone(), label: 3 }, last, 0xbb),
        ] {
            let path = device(&folder, "one", 0xaa);
            damage.apply(&path);
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes[offset as usize], want, "{damage}");
            assert_eq!(bytes[offset as usize - 1] == 0xaa, !matches!(damage, Damage::Zero { .. }));
        }
    }

    #[test]
    fn swapping_twice_changes_nothing() {
        let folder = PrivateFolder::create("swap");
        let path = device(&folder, "one", 1);
        Damage::Noise { offset: 0, len: 4096, seed: 7 }.apply(&path);
        let before = std::fs::read(&path).unwrap();
        let swap = Damage::Swap { a: 0, b: 2048, len: 512 };
        swap.apply(&path);
        assert_ne!(std::fs::read(&path).unwrap(), before);
        swap.apply(&path);
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn random_damage_never_fails_and_repeats() {
        let folder = PrivateFolder::create("random");
        let other = device(&folder, "other", 0xbb);
        let size = 4 * LABEL_BYTES + 1000;
        let run = || {
            let mut rng = Rng::seeded(3);
            let path = device(&folder, "one", 0xaa);
            for _ in 0..200 {
                let now = std::fs::metadata(&path).unwrap().len();
                let damage = Damage::random(&mut rng, &(0..now), now, std::slice::from_ref(&other));
                if !matches!(damage, Damage::Truncate { .. }) {
                    damage.apply(&path);
                }
                assert!(!damage.to_string().is_empty());
            }
            assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
            std::fs::read(&path).unwrap()
        };
        assert!(run() == run());
    }
}
