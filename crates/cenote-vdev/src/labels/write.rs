//! Writes labels and uberblocks.
//!
//! The order in which labels and uberblocks are written makes a commit atomic; the pool decides it
//! (spec 01 §14): configs into the even labels, flush, the uberblock into its slot of all four,
//! flush, configs into the odd labels, flush. The four labels of a device must never all be newer
//! than every uberblock on it: OpenZFS refuses such a device though its data is intact. So no
//! function here writes more than one pair of configs, except for the first labels of a new member,
//! which carry txg 0 and no uberblock.
//!
//! Every trailer checksum includes the byte offset *on the device*, so the copies differ.
//!
//! Invariants
//! * L1  A write to a label goes to all of its copies (two or four); it succeeds if at least one
//!   copy was written, since a reader uses any valid copy.
//! * L2  The slot of an uberblock is that of its top-level vdev's ashift.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_codec::checksum::embedded::{self, Embedded};
use cenote_device::Device;
use cenote_ondisk::config::PoolState;
use cenote_ondisk::label::{self, Area, LABEL_COUNT};
use cenote_ondisk::nvlist::{Encoding, NvList, NvString};
use cenote_ondisk::uberblock::{self, Uberblock};
use cenote_rt::{Buf, BufMut, Error, Kind, Result, ensure};
use futures_util::future::join_all;

use crate::leaf::{Content, Part};
use crate::tree::{Tree, Vdev};
use crate::{IoClass, LeafId};

/// The pool version that labels of spares and cache devices carry.
const VERSION: u64 = 5000;

/// Bytes at the start of a cache device's data area that say what it holds.
const CACHE_HEADER_LEN: u64 = 4096;

/// Labels that are written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pair {
    /// The first of the front and of the back: before the uberblock.
    Even,
    /// The second ones: after the uberblock.
    Odd,
}

impl Pair {
    /// Their numbers.
    pub const fn labels(self) -> [usize; 2] {
        match self {
            Self::Even => [0, 2],
            Self::Odd => [1, 3],
        }
    }
}

/// Why a label was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelWriteError {
    /// The list is too long.
    #[error("a config of {len} bytes does not fit into a label, which takes {max}")]
    TooLong {
        /// Bytes of the encoded list.
        len: usize,
        /// Bytes there are.
        max: usize,
    },
    /// There is no room for four labels.
    #[error("a device of {size} bytes has no room for labels")]
    TooSmall {
        /// Bytes of the device.
        size: u64,
    },
    /// There is no such slot.
    #[error("a ring of slots of {slot_size} bytes has no slot {slot}")]
    Slot {
        /// Number given.
        slot: u64,
        /// Bytes of a slot.
        slot_size: u64,
    },
}

/// Offset on the device and bytes of a write to a label.
type LabelWrite = (u64, Buf);

/// The slot of the uberblock of `txg` (spec 01 §7.1). `is_multihost` keeps the last slot for
/// heartbeats.
pub fn slot_of(txg: u64, ashift: u64, is_multihost: bool) -> u64 {
    txg % (uberblock::slot_count(ashift) - u64::from(is_multihost))
}

/// The slot of heartbeats, when the pool is watched by several hosts.
pub fn heartbeat_slot(ashift: u64) -> u64 {
    uberblock::slot_count(ashift) - 1
}

/// Gives a device its first labels: `config` (of txg 0) in all four, an empty boot environment and
/// no uberblock, so that nothing of an earlier owner is left (spec 01 §18.1).
///
/// # Errors
/// The device's, if any of the four cannot be written; a [`LabelWriteError`] of `Kind::Invalid`.
pub async fn write_initial(device: &dyn Device, config: &NvList) -> Result<()> {
    let content = encode(config)?;
    let mut writes = Vec::new();
    for index in 0..LABEL_COUNT {
        let offset = offset_of(device, index)?;
        writes.push(sealed(offset, label::BOOT_ENV, &[]));
        writes.push(sealed(offset, label::CONFIG, &content));
        writes.push(empty_ring(offset));
    }
    write_all(device, writes).await.into_iter().collect()
}

/// Labels a hot spare or a cache device (spec 01 §6). `ashift` is that of a cache device; 0 for
/// spares.
///
/// # Errors
/// As [`write_initial`].
pub async fn write_aux(
    device: &dyn Device,
    state: PoolState,
    guid: u64,
    path: &NvString,
    ashift: u64,
) -> Result<()> {
    write_initial(device, &aux_config(state, guid, path, ashift)).await
}

/// The config of a hot spare or a cache device.
pub fn aux_config(state: PoolState, guid: u64, path: &NvString, ashift: u64) -> NvList {
    let mut list = NvList::new();
    list.insert("version", VERSION);
    list.insert("state", state.id());
    list.insert("guid", guid);
    if state == PoolState::L2Cache {
        list.insert("ashift", ashift);
    }
    list.insert("path", path.clone());
    list
}

/// Writes a config into a pair of labels.
///
/// # Errors
/// The device's if neither was written (L1); a [`LabelWriteError`] of `Kind::Invalid`.
pub async fn write_config(device: &dyn Device, pair: Pair, config: &NvList) -> Result<()> {
    let writes = config_writes(device, pair, config)?;
    any_of(write_all(device, writes).await)
}

/// Writes an uberblock into a slot of all four labels.
///
/// # Errors
/// The device's if none was written (L1); a [`LabelWriteError`] of `Kind::Invalid`.
pub async fn write_uberblock(
    device: &dyn Device,
    uberblock: &Uberblock,
    ashift: u64,
    slot: u64,
) -> Result<()> {
    let writes = uberblock_writes(device, uberblock, ashift, slot)?;
    any_of(write_all(device, writes).await)
}

/// Makes a device nobody's: all four labels become zeros, up to the room that ZFS leaves for a
/// partition table at their beginning. A cache device loses its header too, so that what it
/// cached is never taken for something.
///
/// # Errors
/// The device's, if any of it cannot be written.
pub async fn clear(device: &dyn Device) -> Result<()> {
    let is_cache =
        super::read(device).await.labels.iter().any(|label| {
            label.config.as_ref().is_ok_and(|config| config.state == PoolState::L2Cache)
        });
    let start = label::BOOT_ENV.at;
    let zeros = BufMut::zeroed((label::LABEL_LEN - start) as usize).freeze();
    let mut writes = (0..LABEL_COUNT)
        .map(|index| Ok((offset_of(device, index)? + start, zeros.clone())))
        .collect::<Result<Vec<_>>>()?;
    if is_cache && label::leaf_asize(device.info().size) >= CACHE_HEADER_LEN {
        let header = BufMut::zeroed(CACHE_HEADER_LEN as usize).freeze();
        writes.push((label::LABEL_START_LEN, header));
    }
    write_all(device, writes).await.into_iter().collect::<Result<()>>()?;
    device.flush().await
}

impl Tree {
    /// Like [`write_config`], on a leaf: counts failures, and includes the leaf in the next flush.
    ///
    /// # Errors
    /// As [`write_config`], and `Kind::ReadOnly` if the tree was not built for writing.
    pub async fn write_label_config(&self, id: LeafId, pair: Pair, config: &NvList) -> Result<()> {
        let device = self.label_device(id)?;
        let writes = config_writes(&*device, pair, config)?;
        self.write_each(id, writes).await
    }

    /// Like [`write_uberblock`], on a leaf: counts failures, and includes it in the next flush.
    ///
    /// # Errors
    /// As [`write_uberblock`], and `Kind::ReadOnly` if the tree was not built for writing.
    pub async fn write_uberblock(
        &self,
        id: LeafId,
        uberblock: &Uberblock,
        slot: u64,
    ) -> Result<()> {
        let device = self.label_device(id)?;
        let writes = uberblock_writes(&*device, uberblock, self.ashift_of(id), slot)?;
        self.write_each(id, writes).await
    }

    /// Writes a heartbeat: an uberblock in the last slot of one label, past the queue, and not
    /// waited for to be durable. Other hosts look at what the device says now.
    ///
    /// # Errors
    /// The device's, and `Kind::ReadOnly` if the tree was not built for writing.
    pub async fn write_heartbeat(
        &self,
        id: LeafId,
        uberblock: &Uberblock,
        label: usize,
    ) -> Result<()> {
        let device = self.label_device(id)?;
        let ashift = self.ashift_of(id);
        let slot = heartbeat_slot(ashift);
        let (offset, data) = uberblock_write(&*device, uberblock, ashift, slot, label)?;
        device.write(offset, vec![data]).await
    }

    /// The ashift of all vdevs below a top-level vdev is that one's (L2).
    fn ashift_of(&self, id: LeafId) -> u64 {
        let vdev = self.vdevs().find(|vdev| vdev.leaf() == Some(id));
        u64::from(vdev.map_or(0, Vdev::ashift))
    }

    fn label_device(&self, id: LeafId) -> Result<Arc<dyn Device>> {
        self.check_writable()?;
        let leaf = self.leaf(id);
        let device = leaf.device().filter(|_| leaf.is_writable());
        device.ok_or_else(|| Error::new(Kind::Io, crate::NoDevice { guid: leaf.guid() }))
    }

    /// Each place by itself: one that is broken must not keep the others from being written.
    async fn write_each(&self, id: LeafId, writes: Vec<LabelWrite>) -> Result<()> {
        let offsets: BTreeSet<_> = writes.iter().map(|(offset, _)| *offset).collect();
        let copies = offsets.len();
        ensure!("L1", copies == writes.len() && matches!(copies, 2 | 4), "{copies} copies");
        let writes = writes.into_iter().map(|(offset, data)| {
            let part = Part { offset, content: Content::Data(data) };
            self.leaf(id).write(vec![part], None, IoClass::SyncWrite)
        });
        any_of(join_all(writes).await)
    }
}

/// Gives the last two labels of a leaf, which have moved to the new end of its device, the
/// uberblocks of the first two. Without them an import that has only the last labels could not
/// go back to an earlier state, and uberblocks of an earlier use of the device might be there.
///
/// # Errors
/// As [`write_uberblock`], and `Kind::ReadOnly` if the tree was not built for writing.
pub async fn copy_uberblocks(tree: &Tree, id: LeafId) -> Result<()> {
    let device = tree.label_device(id)?;
    let (found, ashift) = (super::read(&*device).await, tree.ashift_of(id));
    let first = found.labels.iter().filter(|label| label.index < LABEL_COUNT / 2);
    let mut newest = BTreeMap::new();
    for found in first.flat_map(|label| &label.uberblocks) {
        let kept = newest.entry(found.slot).or_insert(&found.uberblock);
        if found.uberblock.rank() > kept.rank() {
            *kept = &found.uberblock;
        }
    }
    let mut writes = Vec::new();
    for number in LABEL_COUNT / 2..LABEL_COUNT {
        let (start, empty) = empty_ring(offset_of(&*device, number)?);
        let mut ring = empty.to_vec();
        for (slot, uberblock) in &newest {
            let (at, block) = uberblock_write(&*device, uberblock, ashift, *slot, number)?;
            let at = (at - start) as usize;
            ring[at..at + block.len()].copy_from_slice(&block);
        }
        writes.push((start, Buf::from(ring)));
    }
    tree.write_each(id, writes).await
}

fn config_writes(device: &dyn Device, pair: Pair, config: &NvList) -> Result<Vec<LabelWrite>> {
    let content = encode(config)?;
    let write = |index| Ok(sealed(offset_of(device, index)?, label::CONFIG, &content));
    pair.labels().into_iter().map(write).collect()
}

fn uberblock_writes(
    device: &dyn Device,
    uberblock: &Uberblock,
    ashift: u64,
    slot: u64,
) -> Result<Vec<LabelWrite>> {
    let write = |label| uberblock_write(device, uberblock, ashift, slot, label);
    (0..LABEL_COUNT).map(write).collect()
}

/// An uberblock in a slot of one label.
fn uberblock_write(
    device: &dyn Device,
    uberblock: &Uberblock,
    ashift: u64,
    slot: u64,
    number: usize,
) -> Result<LabelWrite> {
    let slot_size = uberblock::slot_size(ashift);
    let no_slot = || Error::new(Kind::Invalid, LabelWriteError::Slot { slot, slot_size });
    // Checks L2.
    let at = uberblock::slot_offset(ashift, slot).ok_or_else(no_slot)?;
    let area = Area { at: label::RING.at + at, len: slot_size };
    Ok(sealed(offset_of(device, number)?, area, &uberblock.encode()))
}

/// The bytes of a config, if they fit.
fn encode(config: &NvList) -> Result<Vec<u8>> {
    let content = config.encode(Encoding::Xdr);
    let (len, max) = (content.len(), label::CONFIG.content_len());
    if len > max {
        return Err(Error::new(Kind::Invalid, LabelWriteError::TooLong { len, max }));
    }
    Ok(content)
}

fn offset_of(device: &dyn Device, index: usize) -> Result<u64> {
    let size = device.info().size;
    let offset = label::label_offset(size, index);
    offset.ok_or_else(|| Error::new(Kind::Invalid, LabelWriteError::TooSmall { size }))
}

/// An area of the label at `label_offset`: `content`, zeros, and the trailer for that place.
fn sealed(label_offset: u64, area: Area, content: &[u8]) -> LabelWrite {
    let offset = label_offset + area.at;
    let mut block = BufMut::zeroed(area.len as usize);
    block[..content.len()].copy_from_slice(content);
    embedded::seal(Embedded::Label { offset }, &mut block, false)
        .expect("every area has room for a trailer");
    (offset, block.freeze())
}

/// The ring of a label without an uberblock.
fn empty_ring(label_offset: u64) -> LabelWrite {
    (label_offset + label::RING.at, BufMut::zeroed(label::RING.len as usize).freeze())
}

async fn write_all(device: &dyn Device, writes: Vec<LabelWrite>) -> Vec<Result<()>> {
    let writes = writes.into_iter().map(|(offset, data)| device.write(offset, vec![data]));
    join_all(writes).await
}

/// Success if any succeeded, else the first failure.
fn any_of(results: Vec<Result<()>>) -> Result<()> {
    let mut first = Ok(());
    for result in results {
        match result {
            Ok(()) => return Ok(()),
            Err(error) => first = first.and(Err(error)),
        }
    }
    first
}
