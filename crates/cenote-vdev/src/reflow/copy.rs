//! Copies sectors of an expanding RAID-Z to their new places.
//!
//! Sector `x` moves from child `x % (width - 1)` to child `x % width`. The sectors of a range lie
//! contiguously on each child before and after, so a copy reads once from each old child and writes
//! once to each child.
//!
//! The new places of the first rows are old places of the same rows, so these rows take a detour:
//! they are written to the boot areas of the children, and only then over their old places.

use std::ops::Range;

use cenote_rt::lock::branch;
use cenote_rt::{Buf, BufMut, Error, Kind, Result, ensure};
use futures_util::future::join_all;

use super::{Expansion, ReflowError};
use crate::IoClass;
use crate::leaf::{Content, DATA_START, LeafId, Part};
use crate::raidz::SCRATCH_BYTES;
use crate::reflow::copy_limit;

/// Byte of a device at which the boot area begins.
const SCRATCH_START: u64 = DATA_START - SCRATCH_BYTES as u64;

/// The first rows of an expanding vdev, as they are after the move: the bytes of each child.
#[derive(Debug, Clone)]
pub struct FirstRows {
    columns: Vec<(LeafId, Buf)>,
}

/// Where the first rows of a vdev are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the boot area.
    Scratch,
    /// At the start of the data area.
    Start,
}

impl At {
    const fn offset(self) -> u64 {
        match self {
            Self::Scratch => SCRATCH_START,
            Self::Start => DATA_START,
        }
    }
}

impl FirstRows {
    /// Whether a part of them belongs on this leaf.
    pub fn has(&self, leaf: LeafId) -> bool {
        self.columns.iter().any(|(child, _)| *child == leaf)
    }
}

impl Expansion<'_> {
    /// Returns the number of bytes of an expanding vdev that its first rows take.
    ///
    /// # Errors
    /// A [`ReflowError`] if the vdev does not expand.
    pub fn first_rows_len(self, vdev: u64) -> Result<u64> {
        let (raidz, _) = self.expanding(vdev)?;
        Ok(raidz.width * SCRATCH_BYTES as u64)
    }

    /// Copies the bytes `range` of an expanding vdev, whole sectors, to their new places, as part
    /// of `txg`. The caller holds the range.
    ///
    /// # Errors
    /// A [`ReflowError`], or the device's error; then the copy must be repeated.
    pub async fn copy(self, vdev: u64, range: Range<u64>, txg: u64) -> Result<()> {
        let (raidz, _) = self.expanding(vdev)?;
        let (ashift, width) = (raidz.ashift, raidz.width);
        let old_width = width - 1;
        let limit = copy_limit(self.progress().offset, ashift, old_width);
        // Checks RF1.
        if range.end > limit || range.start > range.end {
            let (start, end) = (range.start >> ashift, range.end >> ashift);
            return Err(Error::new(Kind::Invariant, ReflowError::Overlap { vdev, start, end }));
        }
        let is_held = self.tree.gate.holds(vdev, &range);
        ensure!("RF3", is_held, "bytes {range:?} of vdev {vdev} are copied beside other I/O");
        let children = self.children(vdev)?;
        let (first, count) = (range.start >> ashift, (range.end - range.start) >> ashift);
        let sources = self.read_old(&children, (first, count), (ashift, old_width)).await?;
        // A child that left service, or lacks something by now, may have returned stale bytes.
        if self.children(vdev)? != children {
            return Err(Error::new(Kind::Busy, ReflowError::NotWhole(vdev)));
        }
        let columns = rearranged(&sources, count, width, ashift);
        let writes = columns.into_iter().zip(first..).map(|(data, sector)| {
            let (leaf, _) = children[(sector % width) as usize];
            let offset = DATA_START + ((sector / width) << ashift);
            self.write_part(leaf, offset, data, Some(txg))
        });
        join_all(writes).await.into_iter().collect()
    }

    /// Reads `count` sectors from `first` on at their old places: one buffer for each old child,
    /// beginning with that of the first sector.
    async fn read_old(
        self,
        children: &[(LeafId, u64)],
        (first, count): (u64, u64),
        (ashift, old_width): (u32, u64),
    ) -> Result<Vec<Buf>> {
        let reads = (0..count.min(old_width)).map(|index| {
            let sector = first + index;
            let (leaf, _) = children[(sector % old_width) as usize];
            let offset = DATA_START + ((sector / old_width) << ashift);
            let len = (sectors_of(count, old_width, index) << ashift) as usize;
            self.tree.leaf(leaf).read(offset, len, IoClass::Removal)
        });
        join_all(reads).await.into_iter().collect()
    }

    async fn write_part(
        self,
        leaf: LeafId,
        offset: u64,
        data: Buf,
        txg: Option<u64>,
    ) -> Result<()> {
        let part = Part { offset, content: Content::Data(data) };
        branch(self.tree.leaf(leaf).write(vec![part], txg, IoClass::Removal)).await
    }

    /// Reads the first rows at their old places. The caller holds their range.
    ///
    /// # Errors
    /// A [`ReflowError`], or the device's error.
    pub async fn read_first_rows(self, vdev: u64) -> Result<FirstRows> {
        let (raidz, _) = self.expanding(vdev)?;
        let (ashift, width) = (raidz.ashift, raidz.width);
        let children = self.children(vdev)?;
        let count = self.first_rows_len(vdev)? >> ashift;
        let sources = self.read_old(&children, (0, count), (ashift, width - 1)).await?;
        if self.children(vdev)? != children {
            return Err(Error::new(Kind::Busy, ReflowError::NotWhole(vdev)));
        }
        let columns = rearranged(&sources, count, width, ashift);
        let columns = children.iter().map(|(leaf, _)| *leaf).zip(columns).collect();
        Ok(FirstRows { columns })
    }

    /// Writes the first rows to the boot areas.
    ///
    /// # Errors
    /// The first device's error.
    pub async fn write_scratch(self, rows: &FirstRows) -> Result<()> {
        let writes = rows
            .columns
            .iter()
            .map(|(leaf, data)| self.write_part(*leaf, At::Scratch.offset(), data.clone(), None));
        join_all(writes).await.into_iter().collect()
    }

    /// Writes the first rows to the start of the vdev, as part of `txg`. Returns the children that
    /// did not take them.
    pub async fn write_first_rows(self, rows: &FirstRows, txg: u64) -> Vec<LeafId> {
        let writes = rows.columns.iter().map(async |(leaf, data)| {
            let written = self.write_part(*leaf, At::Start.offset(), data.clone(), Some(txg)).await;
            written.is_err().then_some(*leaf)
        });
        join_all(writes).await.into_iter().flatten().collect()
    }

    /// Reads the first rows from the boot areas, after a crash. Also returns the children from
    /// which they cannot be read.
    ///
    /// # Errors
    /// A [`ReflowError`] if the vdev does not expand.
    pub async fn read_scratch(self, vdev: u64) -> Result<(FirstRows, Vec<LeafId>)> {
        let (_, top) = self.expanding(vdev)?;
        let (mut columns, mut lacking) = (Vec::new(), Vec::new());
        for child in &self.tree.vdevs[top].children {
            // Each copy of a child that is being replaced has its own boot area.
            for leaf in self.tree.leaves_below(*child) {
                let len = SCRATCH_BYTES as usize;
                let read =
                    self.tree.leaf(leaf).read(At::Scratch.offset(), len, IoClass::Removal).await;
                match read {
                    Ok(data) => columns.push((leaf, data)),
                    Err(_) => lacking.push(leaf),
                }
            }
        }
        Ok((FirstRows { columns }, lacking))
    }
}

/// Number of the sectors `index`, `index + width`, ... below `count`.
const fn sectors_of(count: u64, width: u64, index: u64) -> u64 {
    count / width + (index < count % width) as u64
}

/// Distributes `count` sectors that lie on the old children among `width` children: the bytes of
/// each, beginning with the child of the first sector.
fn rearranged(sources: &[Buf], count: u64, width: u64, ashift: u32) -> Vec<Buf> {
    let (len, old_width) = (1_usize << ashift, width - 1);
    let column = |index: u64| {
        let sectors = sectors_of(count, width, index);
        let mut data = BufMut::for_filling((sectors as usize) << ashift);
        let places = data.chunks_exact_mut(len);
        for (place, sector) in places.zip((index..).step_by(width as usize)) {
            let (source, row) = ((sector % old_width) as usize, (sector / old_width) as usize);
            place.copy_from_slice(&sources[source][row << ashift..(row << ashift) + len]);
        }
        data.freeze()
    };
    (0..count.min(width)).map(column).collect()
}
