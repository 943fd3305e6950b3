//! Translates ranges of a vdev to ranges of its leaves, and discards them (TRIM).
//!
//! The ranges are space, not blocks: all sectors are translated, whatever role they could play in a
//! block (spec 06 §4.9, §6.7). RAID-Z returns nothing while it expands, because sectors are being
//! moved then.

use cenote_rt::{Error, Kind, Result};
use futures_util::future::join_all;

use super::device_offset;
use crate::leaf::LeafId;
use crate::read::DEPTH_MAX;
use crate::tree::{Layout, OFFSET_MAX, Place, Tree};
use crate::{LeafRange, NoDevice};

impl Tree {
    /// The ranges of writable leaves that hold the `asize` bytes at `place`. Removed vdevs have
    /// none, and on a dRAID only whole stripes count.
    pub fn translate(&self, place: impl Into<Place>, asize: u64) -> Vec<LeafRange> {
        let Place { vdev, offset } = place.into();
        let mut ranges = Vec::new();
        if let Some(top) = self.top_index(vdev).filter(|_| offset.max(asize) <= OFFSET_MAX) {
            self.add_translated(top, (offset as i64, asize), 0, &mut ranges);
        }
        ranges
    }

    /// Discards the `asize` bytes at `place` on their devices. Devices that do not support it are
    /// skipped.
    ///
    /// # Errors
    /// `Kind::ReadOnly` if the tree was not built for writing, or the first device's error.
    pub async fn discard(&self, place: impl Into<Place>, asize: u64) -> Result<()> {
        self.check_writable()?;
        let ranges = self.translate(place, asize);
        for range in &ranges {
            self.leaf(range.leaf).check_data_area(range.offset, range.len)?;
        }
        let discards = ranges.iter().filter_map(|range| {
            let queue = self.leaf(range.leaf).queue()?;
            Some(queue.discard(range.offset, range.len))
        });
        let mut results = join_all(discards).await.into_iter();
        let is_real = |error: &cenote_rt::Error| error.kind() != Kind::Unsupported;
        match results.find_map(|result| result.err().filter(is_real)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Discards a range of a leaf's device; the offset includes the labels.
    ///
    /// # Errors
    /// `Kind::ReadOnly` if the tree was not built for writing, `Kind::Unsupported` if the device
    /// does not support it; else the device's.
    pub async fn discard_leaf(&self, leaf: LeafId, offset: u64, len: u64) -> Result<()> {
        self.check_writable()?;
        let found = self.leaf(leaf);
        found.check_data_area(offset, len)?;
        let queue = if found.is_writable() { found.queue() } else { None };
        let absent = || Error::new(Kind::Io, NoDevice { guid: found.guid() });
        queue.ok_or_else(absent)?.discard(offset, len).await
    }

    fn add_translated(
        &self,
        vdev: usize,
        (offset, len): (i64, u64),
        depth: u8,
        ranges: &mut Vec<LeafRange>,
    ) {
        let node = &self.vdevs[vdev];
        if depth > DEPTH_MAX || len == 0 {
            return;
        }
        match &node.layout {
            Layout::Leaf(id) => {
                let leaf = self.leaf(*id);
                if let (Some(offset), true) = (device_offset(offset), leaf.is_writable()) {
                    ranges.push(LeafRange { leaf: *id, offset, len });
                }
            }
            Layout::DraidSpare(..) => {
                if let Some(target) = self.spare_target(vdev, offset) {
                    self.add_translated(target, (offset, len), depth + 1, ranges);
                }
            }
            Layout::Mirror => {
                for child in &node.children {
                    self.add_translated(*child, (offset, len), depth + 1, ranges);
                }
            }
            Layout::Raidz(_) | Layout::Draid(_) => {
                let Ok(start) = u64::try_from(offset) else { return };
                let parts = match &node.layout {
                    Layout::Raidz(raidz) => raidz.child_ranges(start, len),
                    Layout::Draid(draid) => draid.child_ranges(start, len),
                    _ => Vec::new(),
                };
                for (child, offset, len) in parts {
                    let Some(child) = node.children.get(child) else { continue };
                    self.add_translated(*child, (offset, len), depth + 1, ranges);
                }
            }
            Layout::Indirect | Layout::Root | Layout::Absent => {}
        }
    }
}
