//! Figures of one top-level vdev, from the headers of its space maps (spec 05 §2.2, §3, §4).
//!
//! A metaslab's own space map gives its allocated bytes as of a txg U; later changes are in the
//! pool's log space maps. Headers and logs together give exact figures without reading the entries
//! of any metaslab.

use std::sync::Arc;

use cenote_dmu::{ObjSet, spacemap};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::spacemap::{SpaceMapPhys, UNFLUSHED_PHYS_TXGS};
use cenote_ondisk::vdev_zap::{ALLOCATION_BIAS, AllocationBias, POOL_CHECKPOINT_SM};
use cenote_ondisk::words;
use cenote_rt::{Error, Result, tunables};
use cenote_vdev::{Tree, layout};

use crate::mos;
use cenote_block::alloc::fragmentation;

/// Limit for the number of metaslabs; above it `asize` and `metaslab_shift` are inconsistent.
const METASLABS_MAX: u64 = 1 << 18;

/// Allocation class of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocationClass {
    /// The normal class.
    Normal,
    /// Metadata and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
    /// The intent log.
    Log,
}

/// Figures of a metaslab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabFigures {
    /// Offset on the vdev.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Its space map object; 0 if nothing was ever allocated in it.
    pub space_map: u64,
    /// The header of its space map.
    pub header: Option<SpaceMapPhys>,
    /// First txg of which log entries apply; 0 if it was never logged.
    pub unflushed_txg: u64,
    /// Allocated bytes, logs included.
    pub allocated: u64,
    /// Percent, or `None` if the space map has no histogram.
    pub fragmentation: Option<u64>,
}

/// Figures of a top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevFigures {
    /// Vdev id.
    pub id: u64,
    /// Vdev guid.
    pub guid: u64,
    /// Allocation class.
    pub class: AllocationClass,
    /// Whether new data may go to it.
    pub is_allocating: bool,
    /// Whether it has space at all: false for indirect and missing vdevs and holes.
    pub is_concrete: bool,
    /// Sum of the sizes of its metaslabs.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Freed bytes that a checkpoint still holds.
    pub checkpoint: u64,
    /// Bytes of metaslabs that could be added, because its devices have grown.
    pub expandable: u64,
    /// Percent.
    pub fragmentation: Option<u64>,
    /// Deflate ratio.
    pub ratio: u64,
    /// Log2 of the metaslab size.
    pub metaslab_shift: u32,
    /// The metaslabs.
    pub metaslabs: Vec<MetaslabFigures>,
    /// Index of the metaslab that is reserved for the intent log.
    pub embedded_log: Option<usize>,
    /// Why figures are incomplete.
    pub damage: Option<String>,
}

/// Returns the offset and length in bytes of a metaslab on its vdev: dRAID aligns it to whole rows
/// (spec 05 §3.3).
pub fn metaslab_range(id: u64, shift: u32, row: u64) -> (u64, u64) {
    let (start, end) = (id << shift, (id + 1) << shift);
    if row <= 1 {
        return (start, end - start);
    }
    let aligned = start.next_multiple_of(row);
    (aligned, end.saturating_sub(aligned) / row * row)
}

/// A vdev would have too many metaslabs, or metaslabs of an impossible size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("vdev {vdev}: metaslab shift {shift} does not fit asize {asize}")]
struct MetaslabShift {
    vdev: u64,
    shift: u32,
    asize: u64,
}

impl VdevFigures {
    /// Reads the space map headers; log entries are applied later.
    pub(crate) async fn read(
        mos: &Arc<ObjSet>,
        config: &VdevConfig,
        ratio: u64,
        checkpointed: bool,
    ) -> Result<Self> {
        let class = mos::unless_interrupted(class_of(mos, config).await)?;
        let is_concrete = config.kind.is_concrete();
        let mut figures = Self {
            id: config.id,
            guid: config.guid,
            class: class.as_ref().copied().unwrap_or_else(|_| class_in_config(config)),
            is_allocating: !config.top.non_allocating,
            is_concrete,
            size: 0,
            allocated: 0,
            checkpoint: 0,
            expandable: 0,
            fragmentation: None,
            ratio,
            metaslab_shift: config.top.metaslab_shift as u32,
            metaslabs: Vec::new(),
            embedded_log: None,
            damage: class.err().map(|error| format!("its class cannot be read: {error}")),
        };
        if is_concrete {
            let read = mos::unless_interrupted(figures.read_metaslabs(mos, config).await)?;
            figures.note(read);
        }
        if checkpointed {
            let read = mos::unless_interrupted(figures.read_checkpoint(mos, config).await)?;
            figures.note(read);
        }
        Ok(figures)
    }

    /// Keeps the first error.
    fn note(&mut self, read: Result<()>) {
        if let Err(error) = read {
            self.damage.get_or_insert_with(|| error.to_string());
        }
    }

    async fn read_metaslabs(&mut self, mos: &Arc<ObjSet>, config: &VdevConfig) -> Result<()> {
        let shift = self.metaslab_shift;
        let count = config.top.asize.checked_shr(shift).unwrap_or(0);
        if shift >= 63 || count > METASLABS_MAX {
            let (vdev, asize) = (config.id, config.top.asize);
            return Err(Error::corrupt(MetaslabShift { vdev, shift, asize }));
        }
        let row = row_size(config);
        let maps = words_of(mos, config.top.metaslab_array, count).await?;
        let unflushed = match top_zap(mos, config, UNFLUSHED_PHYS_TXGS).await? {
            Some(object) => words_of(mos, object, count).await?,
            None => vec![0; maps.len()],
        };
        for (id, (space_map, unflushed_txg)) in maps.into_iter().zip(unflushed).enumerate() {
            let (start, size) = metaslab_range(id as u64, shift, row);
            let header = match space_map {
                0 => None,
                object => Some(header(mos, object).await?),
            };
            let histogram = header.as_ref().map(|header| header.histogram);
            let fragmentation = match histogram {
                None => Some(0),
                Some(None) => None,
                Some(Some(histogram)) => {
                    Some(fragmentation::of_metaslab(&histogram, config.top.ashift as u8))
                }
            };
            let allocated = header.as_ref().map_or(0, |header| header.allocated.max(0) as u64);
            self.metaslabs.push(MetaslabFigures {
                start,
                size,
                space_map,
                header,
                unflushed_txg,
                allocated,
                fragmentation,
            });
        }
        self.embedded_log = self.pick_embedded_log();
        Ok(())
    }

    /// Returns the emptiest metaslab (the first of several), like OpenZFS at each import.
    fn pick_embedded_log(&self) -> Option<usize> {
        if self.class != AllocationClass::Normal
            || self.metaslabs.len() <= tunables::EMBEDDED_SLOG_MIN_MS.get_usize()
        {
            return None;
        }
        (0..self.metaslabs.len()).min_by_key(|id| self.metaslabs[*id].allocated)
    }

    async fn read_checkpoint(&mut self, mos: &Arc<ObjSet>, config: &VdevConfig) -> Result<()> {
        if let Some(object) = top_zap(mos, config, POOL_CHECKPOINT_SM).await? {
            self.checkpoint = header(mos, object).await?.allocated.min(0).unsigned_abs();
        }
        Ok(())
    }

    /// Computes the expandable size from the current sizes of the devices.
    pub(crate) fn set_expandable(&mut self, tree: &Tree, config: &VdevConfig) {
        if !self.is_concrete || self.damage.is_some() {
            return;
        }
        let size = |leaf: &VdevConfig| {
            let leaf = tree.leaf(tree.vdev(leaf.guid)?.leaf()?);
            Some(leaf.device()?.info().size)
        };
        let most = layout::asize(config, config.top.ashift as u32, &size).unwrap_or(0);
        let more = most.saturating_sub(config.top.asize);
        self.expandable = more >> self.metaslab_shift << self.metaslab_shift;
    }

    /// Applies a log entry: `len` bytes at `offset` were allocated or freed in `txg`.
    pub(crate) fn apply_log(&mut self, offset: u64, len: u64, is_alloc: bool, txg: u64) {
        let Some(id) = offset.checked_shr(self.metaslab_shift) else { return };
        let Some(metaslab) = usize::try_from(id).ok().and_then(|id| self.metaslabs.get_mut(id))
        else {
            return;
        };
        if metaslab.unflushed_txg == 0 || txg < metaslab.unflushed_txg {
            return;
        }
        metaslab.allocated = if is_alloc {
            metaslab.allocated.wrapping_add(len)
        } else {
            metaslab.allocated.wrapping_sub(len)
        };
    }

    /// Clears all fragmentation figures, for a pool whose space maps have no histograms.
    pub(crate) fn clear_fragmentation(&mut self) {
        self.metaslabs.iter_mut().for_each(|metaslab| metaslab.fragmentation = None);
    }

    /// Sums up the metaslabs, after all logs were applied.
    pub(crate) fn sum_up(&mut self) {
        let sum = |figure: fn(&MetaslabFigures) -> u64| {
            self.metaslabs.iter().map(figure).fold(0, u64::wrapping_add)
        };
        (self.size, self.allocated) = (sum(|m| m.size), sum(|m| m.allocated));
        if !self.is_concrete || self.damage.is_some() {
            return;
        }
        let others =
            self.metaslabs.iter().enumerate().filter(|(id, _)| Some(*id) != self.embedded_log);
        self.fragmentation = fragmentation::of_group(others.map(|(_, metaslab)| {
            (metaslab.size.saturating_sub(metaslab.allocated), metaslab.fragmentation)
        }));
    }

    /// Returns the free bytes.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.allocated)
    }
}

/// Returns the bytes of a row of a dRAID vdev, 1 for other vdevs.
pub fn row_size(config: &VdevConfig) -> u64 {
    match &config.kind {
        VdevKind::Draid(draid) => {
            let width = draid.ndata.saturating_add(draid.nparity);
            width.checked_shl(config.top.ashift as u32).unwrap_or(1).max(1)
        }
        _ => 1,
    }
}

/// Returns a number in the vdev's top ZAP.
pub(crate) async fn top_zap(
    mos: &Arc<ObjSet>,
    config: &VdevConfig,
    key: &str,
) -> Result<Option<u64>> {
    match config.top.zap_top {
        Some(zap @ 1..) => mos::u64(mos, zap, key).await,
        _ => Ok(None),
    }
}

/// Returns the allocation class of a vdev from its ZAP.
async fn class_of(mos: &Arc<ObjSet>, config: &VdevConfig) -> Result<AllocationClass> {
    let bias = match config.top.zap_top {
        Some(zap @ 1..) => mos::value(mos, zap, ALLOCATION_BIAS).await?,
        _ => None,
    };
    let bias = bias.as_ref().and_then(|bias| bias.as_str()).and_then(AllocationBias::parse);
    Ok(match bias {
        Some(AllocationBias::Special) => AllocationClass::Special,
        Some(AllocationBias::Dedup) => AllocationClass::Dedup,
        Some(AllocationBias::Log) => AllocationClass::Log,
        None => class_in_config(config),
    })
}

/// Returns as much of the allocation class as the config has.
const fn class_in_config(config: &VdevConfig) -> AllocationClass {
    if config.top.is_log { AllocationClass::Log } else { AllocationClass::Normal }
}

/// Returns the header of the space map in `object`.
pub(crate) async fn header(mos: &Arc<ObjSet>, object: u64) -> Result<SpaceMapPhys> {
    mos.read(|objects| spacemap::header(objects, object)).await
}

/// Returns the first `count` words of an object, with zeros after its end.
pub(crate) async fn words_of(mos: &Arc<ObjSet>, object: u64, count: u64) -> Result<Vec<u64>> {
    let count = usize::try_from(count).unwrap_or(0);
    let mut array = vec![0; count];
    if object != 0 {
        let dnode = mos.dnode(object).await?;
        let len = (count as u64 * 8).min(dnode.geometry().byte_count());
        let bytes = dnode.read_at(0, len as usize).await?;
        for (slot, word) in array.iter_mut().zip(words::iter(&bytes)) {
            *slot = word;
        }
    }
    Ok(array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draid_metaslabs_start_at_whole_rows() {
        // Spec 05 §3.3: 6 x 512 dRAID, metaslab 1.
        let (start, size) = metaslab_range(1, 25, 6 * 512);
        assert_eq!(start, 0x200_0400);
        assert_eq!(size % (6 * 512), 0);
        assert!(start + size <= 2 << 25);
        assert_eq!(metaslab_range(3, 24, 1), (3 << 24, 1 << 24));
    }
}
