//! Space of a volume on any layout, before it exists: what it reserves and what its data will
//! occupy, with the arithmetic.
//!
//! ```text
//!   allocated   sectors of a block with parity and padding
//!   charged     allocated / 512 x ratio; ratio = 128K / (sectors of an allocated 128K block):
//!               RAID-Z is accounted as if all blocks had 128K, so small blocks are charged more
//!   reserved    data (RAID-Z: charged) + (7 + indirect blocks of a full volume) x copies of 128K
//! ```
//!
//! Exact to the byte: the reservation, and what incompressible data is charged. Indirect blocks are
//! always compressed, to a size that depends on the checksums in them: here is an upper bound.
//!
//! This is a second derivation: `cenote_fs::volume` has the one that the engine uses, and tests
//! compare both with a real pool.
//!
//! Sources: spec 03 §16.2, spec 05 §5, spec 06 §2.2, §4.2, spec 09 §3.4.

use std::fmt::Write;

use crate::report::Table;

const KIB: u64 = 1 << 10;
/// Block size of the accounting of RAID-Z, and largest indirect block.
const RECORD: u64 = 128 * KIB;
/// Bytes of a block pointer.
const POINTER: u64 = 128;
/// Metadata blocks that every volume reserves.
const METADATA_MIN: u64 = 7;

/// Redundancy of a vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VdevShape {
    /// A disk, or a mirror: a block has its own size.
    Plain,
    /// RAID-Z.
    Raidz {
        /// Disks.
        width: u64,
        /// Parity sectors per row.
        nparity: u64,
    },
}

/// Why a layout or a volume cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// The name is not that of a layout.
    #[error("'{0}' is not a layout: disk, mirror, raidz1, raidz2 or raidz3")]
    Layout(String),
    /// Too few or too many disks.
    #[error("{layout} needs {least} to 255 disks, not {width}")]
    Width {
        /// The layout.
        layout: String,
        /// Least number of disks.
        least: u64,
        /// The given number.
        width: u64,
    },
    /// The sector size is not supported.
    #[error("the log2 of the sector size is 9 to 16, not {0}")]
    Ashift(u64),
    /// The block size is not supported.
    #[error("a block size is a power of two from 512 to 16M, not {0}")]
    BlockSize(u64),
    /// The size is not a multiple of the block size.
    #[error("a size of {size} is not a multiple of the block size of {block}")]
    Size {
        /// Size of the volume.
        size: u64,
        /// Block size.
        block: u64,
    },
}

/// A top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VdevSpace {
    /// Redundancy.
    pub shape: VdevShape,
    /// Log2 of the sector size.
    pub ashift: u64,
}

impl VdevSpace {
    /// Returns a vdev by the name of its redundancy.
    ///
    /// # Errors
    /// [`SpaceError::Layout`], [`SpaceError::Width`], [`SpaceError::Ashift`].
    pub fn new(layout: &str, width: u64, ashift: u64) -> Result<Self, SpaceError> {
        if !(9..=16).contains(&ashift) {
            return Err(SpaceError::Ashift(ashift));
        }
        let nparity = match layout {
            "disk" | "mirror" => return Ok(Self { shape: VdevShape::Plain, ashift }),
            "raidz" | "raidz1" => 1,
            "raidz2" => 2,
            "raidz3" => 3,
            other => return Err(SpaceError::Layout(other.to_owned())),
        };
        let least = nparity + 1;
        if !(least..=255).contains(&width) {
            return Err(SpaceError::Width { layout: layout.to_owned(), least, width });
        }
        Ok(Self { shape: VdevShape::Raidz { width, nparity }, ashift })
    }

    /// Returns the bytes that a block occupies.
    #[must_use]
    pub fn allocated(&self, bytes: u64) -> u64 {
        let sectors = bytes.div_ceil(1 << self.ashift);
        let all = match self.shape {
            VdevShape::Plain => sectors,
            VdevShape::Raidz { width, nparity } => {
                let rows = sectors.div_ceil(width - nparity);
                (sectors + nparity * rows).next_multiple_of(nparity + 1)
            }
        };
        all << self.ashift
    }

    /// Returns the bytes that a block is charged with.
    #[must_use]
    pub fn charged(&self, bytes: u64) -> u64 {
        (self.allocated(bytes) >> 9) * self.ratio()
    }

    /// Returns the charged bytes of an allocated sector of 512.
    fn ratio(&self) -> u64 {
        RECORD / (self.allocated(RECORD) >> 9)
    }
}

/// A volume that is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeSpace {
    /// Size.
    pub size: u64,
    /// Block size.
    pub block: u64,
    /// Copies of data (`copies`).
    pub copies: u64,
    /// Bytes of an indirect block in the reservation: 128K, or 16K before 2016.
    pub indirect: u64,
}

/// The predicted space of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// Blocks of data.
    pub blocks: u64,
    /// Reserved for data.
    pub reserved_data: u64,
    /// Reserved for metadata.
    pub reserved_metadata: u64,
    /// Charged for all data, if it is incompressible.
    pub data: u64,
    /// Charged for metadata at most, without the volume's few other blocks.
    pub metadata_most: u64,
    /// Allocated for all data.
    pub allocated: u64,
}

impl Prediction {
    /// Returns the reservation (`refreservation`).
    #[must_use]
    pub const fn reservation(&self) -> u64 {
        self.reserved_data + self.reserved_metadata
    }
}

impl VolumeSpace {
    /// Returns a volume with one copy of data and indirect blocks of 128K.
    ///
    /// # Errors
    /// [`SpaceError::BlockSize`], [`SpaceError::Size`].
    pub fn new(size: u64, block: u64) -> Result<Self, SpaceError> {
        if !block.is_power_of_two() || !(512..=16 << 20).contains(&block) {
            return Err(SpaceError::BlockSize(block));
        }
        if size == 0 || !size.is_multiple_of(block) {
            return Err(SpaceError::Size { size, block });
        }
        Ok(Self { size, block, copies: 1, indirect: RECORD })
    }

    /// Returns the number of indirect blocks of a full volume, by level from 1 on.
    #[must_use]
    pub fn indirect_blocks(&self) -> Vec<u64> {
        let (mut levels, mut count) = (Vec::new(), self.size / self.block);
        while count > 1 {
            count = count.div_ceil(self.indirect / POINTER);
            levels.push(count);
        }
        levels
    }

    /// Predicts the space of the volume.
    #[must_use]
    pub fn on(&self, vdev: &VdevSpace) -> Prediction {
        let blocks = self.size / self.block;
        let one = vdev.allocated(self.block);
        let reserved_data = match vdev.shape {
            VdevShape::Plain => self.size,
            // In units of records of 128K, rounded down.
            VdevShape::Raidz { .. } => {
                let units =
                    u128::from(blocks) * u128::from(one) / u128::from(vdev.allocated(RECORD) >> 9);
                u64::try_from(units * 256).unwrap_or(u64::MAX)
            }
        };
        let metadata_copies = (self.copies + 1).min(3);
        let indirect: u64 = self.indirect_blocks().iter().sum();
        let reserved_metadata = (METADATA_MIN + indirect) * metadata_copies * self.indirect;
        Prediction {
            blocks,
            reserved_data: reserved_data * self.copies,
            reserved_metadata,
            data: blocks * vdev.charged(self.block) * self.copies,
            metadata_most: indirect * vdev.charged(self.indirect) * metadata_copies,
            allocated: blocks * one * self.copies,
        }
    }

    /// Explains a prediction, line by line.
    #[must_use]
    pub fn explain(&self, vdev: &VdevSpace) -> String {
        let found = self.on(vdev);
        let mut text = String::new();
        let sector = 1_u64 << vdev.ashift;
        let sectors = self.block.div_ceil(sector);
        let mut line = |what: String| {
            let _ = writeln!(text, "  {what}");
        };
        line(format!("{} / {} = {} blocks of data", self.size, self.block, found.blocks));
        match vdev.shape {
            VdevShape::Plain => line(format!(
                "a block has {sectors} sectors of {sector}: {} bytes",
                vdev.allocated(self.block)
            )),
            VdevShape::Raidz { width, nparity } => {
                let rows = sectors.div_ceil(width - nparity);
                let all = sectors + nparity * rows;
                let padded = all.next_multiple_of(nparity + 1);
                line(format!(
                    "a block has {sectors} sectors of {sector}, in {rows} rows of {} with {nparity} of \
                     parity: {all} sectors, {padded} with padding (a multiple of {})",
                    width - nparity,
                    nparity + 1
                ));
                line(format!(
                    "allocated {} bytes a block: {} % of it is data",
                    vdev.allocated(self.block),
                    self.block * 100 / vdev.allocated(self.block)
                ));
                line(format!(
                    "a block of 128K occupies {} bytes, so each 512 allocated bytes are charged as {}",
                    vdev.allocated(RECORD),
                    vdev.ratio()
                ));
                line(format!("a block is charged as {} bytes", vdev.charged(self.block)));
            }
        }
        let levels: Vec<_> = self.indirect_blocks().iter().map(u64::to_string).collect();
        line(format!(
            "{} pointers in an indirect block of {}: {} of them by level; {METADATA_MIN} more blocks",
            self.indirect / POINTER,
            self.indirect,
            levels.join(" + ")
        ));
        line(format!(
            "reserved: {} for data, {} for {} copies of metadata: {}",
            found.reserved_data,
            found.reserved_metadata,
            (self.copies + 1).min(3),
            found.reservation()
        ));
        line(format!(
            "when all is written and nothing compresses, data is charged as {}, and indirect blocks as \
             {} at most",
            found.data, found.metadata_most
        ));
        text
    }
}

/// Returns a table of volumes of one size with several block sizes.
///
/// # Errors
/// Errors of [`VolumeSpace::new`].
pub fn table(
    size: u64,
    blocks: &[u64],
    copies: u64,
    vdev: &VdevSpace,
) -> Result<Table, SpaceError> {
    let columns = [
        ("volblock", Some(0)),
        ("blocks", Some(0)),
        ("allocated a block", Some(0)),
        ("data %", Some(1)),
        ("reserved", Some(0)),
        ("charged, data", Some(0)),
        ("metadata at most", Some(0)),
    ];
    let mut table = Table::new(&format!("volumes of {size} bytes"), &columns);
    for block in blocks {
        let volume = VolumeSpace { copies, ..VolumeSpace::new(size, *block)? };
        let found = volume.on(vdev);
        let one = vdev.allocated(*block);
        table.row(vec![
            (*block).into(),
            found.blocks.into(),
            one.into(),
            (*block as f64 * 100.0 / one as f64).into(),
            found.reservation().into(),
            found.data.into(),
            found.metadata_most.into(),
        ]);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_those_of_the_report() {
        let vdev = VdevSpace::new("disk", 1, 12).unwrap();
        let gib = |block, indirect| {
            let volume = VolumeSpace { indirect, ..VolumeSpace::new(16 << 30, block).unwrap() };
            format!("{:.3}", volume.on(&vdev).reservation() as f64 / (1_u64 << 30) as f64)
        };
        let blocks = [4 << 10, 8 << 10, 16 << 10, 128 << 10];
        assert_eq!(
            blocks.map(|block| gib(block, 128 << 10)),
            ["17.003", "16.502", "16.252", "16.033"]
        );
        assert_eq!(
            blocks.map(|block| gib(block, 16 << 10)),
            ["17.008", "16.504", "16.252", "16.032"]
        );
    }

    #[test]
    fn sectors_of_raidz_are_counted_with_padding() {
        let vdev = VdevSpace::new("raidz1", 4, 12).unwrap();
        let sizes = [4 << 10, 8 << 10, 128 << 10].map(|bytes| vdev.allocated(bytes) >> 10);
        // Spec 09 §3.6.
        assert_eq!(sizes, [8, 16, 176]);
        assert_eq!(vdev.charged(128 << 10), (176 << 1) * ((128 << 10) / (176 << 1)));
    }

    #[test]
    fn impossible_layouts_and_volumes_are_refused() {
        assert_eq!(
            VdevSpace::new("raidz2", 2, 12).unwrap_err().to_string(),
            "raidz2 needs 3 to 255 disks, not 2"
        );
        assert!(VdevSpace::new("raid5", 4, 12).is_err() && VdevSpace::new("disk", 1, 8).is_err());
        assert!(VolumeSpace::new(1 << 20, 3000).is_err() && VolumeSpace::new(1000, 512).is_err());
    }
}
