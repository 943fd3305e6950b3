//! The tree of vdevs.
//!
//!     root -- top-level vdev 0: raidz -- leaf
//!          |                          |- replacing -- leaf
//!          |                          |            `- leaf
//!          |                          `- leaf
//!          |- top-level vdev 1: hole
//!          `- top-level vdev 2: leaf
//!
//! Vdevs lie in an arena and refer to each other by index. A vdev never changes its place: the tree
//! changes its shape by growing ([`crate::grow`]), or by getting another version of everything
//! below the root in place of one top-level vdev ([`crate::reshape`]). An I/O finds its top-level
//! vdev once, and uses that version to its end. Leaves belong to all versions. Facts that are read
//! through the tree itself (mappings of removed vdevs, dirty time logs, progress of an expansion)
//! are set later, behind locks that are never held across I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cenote_ondisk::blkptr::Dva;
use cenote_rt::lock::{Mutex, RwLock};

use crate::IndirectMap;
use crate::arena::Arena;
use crate::draid::Draid;
use crate::dtl::{DtlKind, MissingRedundancy, TxgRanges};
use crate::layout;
use crate::leaf::{Freshness, Leaf, LeafId};
use crate::queue::{Load, Plug};
use crate::raidz::Raidz;
use crate::reflow::ReflowGate;
use crate::state::{Status, VdevAux, VdevState};

/// Offsets in vdevs beyond this are refused, so that arithmetic on them cannot overflow.
pub(crate) const OFFSET_MAX: u64 = 1 << 58;

/// An address: top-level vdev and byte in its data area, as in a [`Dva`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// Byte in its data area.
    pub offset: u64,
}

impl From<Dva> for Place {
    fn from(dva: Dva) -> Self {
        Self { vdev: u64::from(dva.vdev), offset: dva.offset }
    }
}

impl From<&Dva> for Place {
    fn from(dva: &Dva) -> Self {
        Self::from(*dva)
    }
}

/// Type of a vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VdevKind {
    /// The root: its children are the top-level vdevs.
    Root,
    /// A regular file.
    File,
    /// A block device.
    Disk,
    /// Copies on all children.
    Mirror,
    /// A mirror of a device and its replacement.
    Replacing,
    /// A mirror of a device and the hot spares that stand in for it.
    Spare,
    /// Parity, in stripes of the block's own size.
    Raidz,
    /// Parity, with declustered groups and distributed spares.
    Draid,
    /// A distributed spare of a dRAID.
    DraidSpare,
    /// A removed vdev whose data was moved to others.
    Indirect,
    /// The slot of a log device that was removed.
    Hole,
    /// A vdev that the config does not describe.
    Missing,
}

impl VdevKind {
    /// Whether it is a leaf.
    pub fn is_leaf(self) -> bool {
        matches!(self, Self::File | Self::Disk | Self::DraidSpare)
    }
}

/// How a vdev maps an address to addresses on its children.
#[derive(Debug)]
pub(crate) enum Layout {
    Root,
    Leaf(LeafId),
    /// The spare's own leaf, the arena index of its dRAID if that exists, and its number there.
    DraidSpare(LeafId, Option<usize>, u64),
    Mirror,
    Raidz(Raidz),
    Draid(Draid),
    Indirect,
    Absent,
}

/// One vdev.
#[derive(Debug)]
pub struct Vdev {
    pub(crate) guid: u64,
    pub(crate) id: u64,
    pub(crate) kind: VdevKind,
    pub(crate) status: Status,
    pub(crate) parent: Option<usize>,
    pub(crate) children: Vec<usize>,
    pub(crate) ashift: u32,
    pub(crate) asize: u64,
    pub(crate) is_log: bool,
    pub(crate) layout: Layout,
}

impl Vdev {
    /// Its guid; 0 for holes and missing vdevs.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Its index among its parent's children.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its type.
    pub fn kind(&self) -> VdevKind {
        self.kind
    }

    /// Its state.
    pub fn state(&self) -> VdevState {
        self.status.state()
    }

    /// The reason of its state.
    pub fn aux(&self) -> VdevAux {
        self.status.aux()
    }

    /// Sector size of its top-level vdev, log2.
    pub fn ashift(&self) -> u32 {
        self.ashift
    }

    /// Capacity of its data area as stored in the config; top-level vdevs only.
    pub fn asize(&self) -> u64 {
        self.asize
    }

    /// Whether it is a top-level vdev for the intent log only.
    pub fn is_log(&self) -> bool {
        self.is_log
    }

    /// Its leaf, if it is one.
    pub fn leaf(&self) -> Option<LeafId> {
        match self.layout {
            Layout::Leaf(leaf) | Layout::DraidSpare(leaf, ..) => Some(leaf),
            _ => None,
        }
    }

    /// Parity columns, 0 without parity.
    pub fn nparity(&self) -> u64 {
        match &self.layout {
            Layout::Raidz(raidz) => raidz.nparity,
            Layout::Draid(draid) => draid.nparity(),
            _ => 0,
        }
    }
}

/// The vdevs of a pool.
#[derive(Debug)]
pub struct Tree {
    /// The root first; earlier versions too.
    pub(crate) vdevs: Arena<Vdev>,
    /// The children of the root, whose own list of children is empty: the present version of each.
    pub(crate) tops: Arena<AtomicUsize>,
    /// All leaves that the tree ever had.
    pub(crate) leaves: Arena<Leaf>,
    pub(crate) is_writable: bool,
    /// Set once, by [`Tree::close`].
    pub(crate) is_closed: AtomicBool,
    pub(crate) missing_tops_allowed: usize,
    pub(crate) load: Arc<Load>,
    pub(crate) indirect: RwLock<BTreeMap<u64, Arc<IndirectMap>>>,
    pub(crate) gate: ReflowGate,
    /// Held while states of parents are derived from those of their children, and while the tree
    /// changes its shape.
    pub(crate) deriving: Mutex<()>,
}

impl Tree {
    /// The root.
    pub fn root(&self) -> &Vdev {
        &self.vdevs[0]
    }

    /// Every vdev, each parent before its children.
    pub fn vdevs(&self) -> impl Iterator<Item = &Vdev> {
        self.indices().into_iter().map(|index| &self.vdevs[index])
    }

    /// The arena indices of the present vdevs, each parent before its children.
    pub(crate) fn indices(&self) -> Vec<usize> {
        let mut all = vec![0];
        let mut at = 0;
        while let Some(index) = all.get(at).copied() {
            all.extend(self.child_indices(&self.vdevs[index]));
            at += 1;
        }
        all
    }

    /// The arena index of the vdev with that guid.
    pub(crate) fn index_of(&self, guid: u64) -> Option<usize> {
        self.indices().into_iter().find(|index| self.vdevs[*index].guid == guid && guid != 0)
    }

    /// The vdev with that guid.
    pub fn vdev(&self, guid: u64) -> Option<&Vdev> {
        self.index_of(guid).map(|index| &self.vdevs[index])
    }

    /// The children of a vdev of this tree.
    pub fn children<'a>(&'a self, vdev: &'a Vdev) -> impl Iterator<Item = &'a Vdev> {
        self.child_indices(vdev).map(|child| &self.vdevs[child])
    }

    pub(crate) fn child_indices<'a>(
        &'a self,
        vdev: &'a Vdev,
    ) -> impl DoubleEndedIterator<Item = usize> + 'a {
        let tops = (vdev.kind == VdevKind::Root).then(|| self.tops.iter());
        let tops = tops.into_iter().flatten().map(|top| top.load(Ordering::Acquire));
        vdev.children.iter().copied().chain(tops)
    }

    /// The top-level vdevs, by id.
    pub fn tops(&self) -> impl Iterator<Item = &Vdev> {
        self.children(self.root())
    }

    /// The top-level vdev with that id.
    pub fn top(&self, id: u64) -> Option<&Vdev> {
        self.top_index(id).map(|index| &self.vdevs[index])
    }

    pub(crate) fn top_index(&self, id: u64) -> Option<usize> {
        Some(self.tops.get(usize::try_from(id).ok()?)?.load(Ordering::Acquire))
    }

    /// Whether the tree may be written: it was built for writing, and is not closed.
    pub fn is_writable(&self) -> bool {
        self.is_writable && !self.is_closed()
    }

    /// The load that its queues consult; the pool reports its amount of dirty data there.
    pub fn load(&self) -> &Arc<Load> {
        &self.load
    }

    /// Holds all async writes back until the plug is dropped, so that they are aggregated.
    #[must_use]
    pub fn plug(&self) -> Plug {
        Plug::new(&self.load)
    }

    /// The leaf `id` of this tree.
    pub fn leaf(&self, id: LeafId) -> &Leaf {
        &self.leaves[id.0]
    }

    /// All leaves.
    pub fn leaves(&self) -> impl Iterator<Item = (LeafId, &Leaf)> {
        let leaves = self.leaves.iter().enumerate();
        leaves.filter(|(_, leaf)| !leaf.is_retired()).map(|(index, leaf)| (LeafId(index), leaf))
    }

    /// Sum of all guids, wrapping, as the uberblock has it (spec 01 §7).
    pub fn guid_sum(&self) -> u64 {
        self.vdevs().fold(0, |sum, vdev| sum.wrapping_add(vdev.guid))
    }

    /// Sets the txgs that the leaf with this guid may lack. Returns false if there is no such leaf.
    pub fn set_dtl(&self, guid: u64, ranges: TxgRanges) -> bool {
        self.leaf_of(guid).map(|leaf| self.leaf(leaf).set_dtl(ranges)).is_some()
    }

    /// Returns the leaves whose logs changed since the last call, by guid, each with its whole log:
    /// the logs to store in the syncing txg.
    pub fn changed_dtls(&self) -> Vec<(u64, TxgRanges)> {
        let changed = |(_, leaf): (_, &Leaf)| Some((leaf.guid(), leaf.take_changed_dtl()?));
        self.leaves().filter_map(changed).collect()
    }

    /// Whether some leaf's log changed since [`changed_dtls`](Self::changed_dtls) was called.
    pub fn has_changed_dtls(&self) -> bool {
        self.leaves().any(|(_, leaf)| leaf.has_changed_dtl())
    }

    /// Removes all txgs before `txg` from the log of the leaf with this guid: nothing that is
    /// needed was born in them. Returns false if there is no such leaf.
    pub fn excise_dtl(&self, guid: u64, txg: u64) -> bool {
        self.leaf_of(guid).map(|leaf| self.leaf(leaf).excise(txg)).is_some()
    }

    /// Returns a log of the vdev with this guid, computed from those of its leaves (spec 06 §8).
    pub fn dtl(&self, guid: u64, kind: DtlKind) -> Option<TxgRanges> {
        Some(self.dtl_at(self.index_of(guid)?, kind))
    }

    pub(crate) fn dtl_at(&self, index: usize, kind: DtlKind) -> TxgRanges {
        self.dtl_without(index, kind, None)
    }

    /// The log as it would be if one leaf were unreadable.
    fn dtl_without(&self, index: usize, kind: DtlKind, without: Option<usize>) -> TxgRanges {
        let vdev = &self.vdevs[index];
        if let Some(leaf) = vdev.leaf() {
            let leaf = self.leaf(leaf);
            let is_unavailable = !leaf.is_readable() || leaf.is_excluded || without == Some(index);
            return match kind {
                DtlKind::Outage if is_unavailable => TxgRanges::all(),
                DtlKind::Scrub => leaf.scrub_dtl(),
                _ => leaf.dtl().unwrap_or_default(),
            };
        }
        let of_children = |kind| -> Vec<TxgRanges> {
            let children = self.child_indices(vdev);
            children.map(|child| self.dtl_without(child, kind, without)).collect()
        };
        let needed = match &vdev.layout {
            Layout::Mirror => vdev.children.len().max(1),
            Layout::Raidz(_) | Layout::Draid(_) => vdev.nparity() as usize + 1,
            Layout::Indirect => return TxgRanges::default(),
            Layout::Absent if vdev.kind == VdevKind::Hole => return TxgRanges::default(),
            Layout::Absent => return TxgRanges::all(),
            _ => 1,
        };
        match kind {
            DtlKind::Scrub => TxgRanges::default(),
            DtlKind::Partial => TxgRanges::in_at_least(1, &of_children(kind)),
            DtlKind::PermanentOutage => TxgRanges::in_at_least(needed, &of_children(kind)),
            _ => TxgRanges::in_at_least(needed, &of_children(DtlKind::Outage)),
        }
    }

    /// Returns the leaves that lack data which the layout promises on them.
    ///
    /// Data missing on a leaf below a replacing or spare vdev counts only if the other leaves below
    /// it lack it too: each of them can stand in for the others.
    pub fn missing_redundancy(&self) -> Vec<MissingRedundancy> {
        let missing = self.indices().into_iter().filter_map(|index| {
            let (leaf, own) = (self.vdevs[index].leaf()?, self.dtl_at(index, DtlKind::Outage));
            let is_absent = own == TxgRanges::all();
            let group = self.dtl_at(self.stand_in_group(index), DtlKind::Outage);
            let txgs = own.intersection(&group);
            (!txgs.is_empty()).then_some(MissingRedundancy { leaf, txgs, is_absent })
        });
        missing.collect()
    }

    /// The topmost replacing or spare vdev above a vdev; the vdev itself if there is none.
    fn stand_in_group(&self, vdev: usize) -> usize {
        let (mut group, mut at) = (vdev, vdev);
        while let Some(parent) = self.vdevs[at].parent {
            if matches!(self.vdevs[parent].kind, VdevKind::Replacing | VdevKind::Spare) {
                group = parent;
            }
            at = parent;
        }
        group
    }

    /// Whether the leaf with this guid has the only copy of some data (`vdev_dtl_required`).
    pub fn is_dtl_required(&self, guid: u64) -> bool {
        let Some(index) = self.index_of(guid) else { return false };
        let Some(top) = self.top_above(index) else { return false };
        !self.dtl_without(top, DtlKind::Outage, Some(index)).is_empty()
    }

    /// Whether the leaf with this guid has the only copy of some data, or would have it without the
    /// children of its RAID-Z or dRAID that are being replaced: as OpenZFS 2.3, which leaves room
    /// for the failure of a device that is busy with a resilver.
    pub(crate) fn is_needed_by_replacements(&self, guid: u64) -> bool {
        self.is_dtl_required(guid) || self.has_no_room_beside_replacements(guid)
    }

    fn has_no_room_beside_replacements(&self, guid: u64) -> bool {
        let index = self.index_of(guid);
        let Some(top) = index.and_then(|index| self.top_above(index)) else { return false };
        let vdev = &self.vdevs[top];
        if !matches!(vdev.layout, Layout::Raidz(_) | Layout::Draid(_)) {
            return false;
        }
        let outages = self.child_indices(vdev).map(|child| {
            if self.vdevs[child].kind == VdevKind::Replacing {
                TxgRanges::all()
            } else {
                self.dtl_without(child, DtlKind::Outage, index)
            }
        });
        let outages: Vec<_> = outages.collect();
        !TxgRanges::in_at_least(vdev.nparity() as usize + 1, &outages).is_empty()
    }

    /// The top-level vdev above a vdev.
    pub(crate) fn top_above(&self, mut index: usize) -> Option<usize> {
        while let Some(parent) = self.vdevs[index].parent {
            if parent == 0 {
                return Some(index);
            }
            index = parent;
        }
        None
    }

    /// The leaves at and below a vdev.
    pub(crate) fn leaves_below(&self, index: usize) -> Vec<LeafId> {
        let vdev = &self.vdevs[index];
        let below = self.child_indices(vdev).flat_map(|child| self.leaves_below(child));
        vdev.leaf().into_iter().chain(below).collect()
    }

    /// Sets the mapping of the removed vdev with this id.
    pub fn set_indirect(&self, vdev: u64, map: Arc<IndirectMap>) {
        self.indirect.write().insert(vdev, map);
    }

    /// The mapping of the removed vdev with that id, if it was set.
    pub fn indirect(&self, vdev: u64) -> Option<Arc<IndirectMap>> {
        self.indirect.read().get(&vdev).cloned()
    }

    /// Allocated bytes of `psize` bytes of physical birth `birth` on the top-level vdev `vdev`;
    /// `None` if there is no such vdev.
    pub fn asize_for(&self, vdev: u64, psize: u64, birth: u64) -> Option<u64> {
        let top = self.top(vdev)?;
        if psize > OFFSET_MAX {
            return None;
        }
        match &top.layout {
            Layout::Raidz(raidz) => Some(raidz.asize(psize, birth)),
            Layout::Draid(draid) => Some(draid.asize(psize)),
            Layout::Absent | Layout::Root => None,
            _ => Some(psize.next_multiple_of(1 << top.ashift)),
        }
    }

    /// First byte and length of metaslab `index` of `1 << shift` bytes on the top-level vdev
    /// `vdev`; `None` if there is no such vdev or metaslab.
    pub fn metaslab_range(&self, vdev: u64, index: u64, shift: u32) -> Option<(u64, u64)> {
        let top = self.top(vdev)?;
        let end = index.checked_add(1)?.checked_mul(1_u64.checked_shl(shift)?)?;
        if end > OFFSET_MAX {
            return None;
        }
        Some(match &top.layout {
            Layout::Draid(draid) => draid.metaslab(index, shift),
            _ => layout::metaslab_range(index, shift),
        })
    }

    /// Accounted bytes per allocated sector of 512 (spec 06 §2.2): 512 without parity. `None` if
    /// there is no such vdev.
    pub fn deflate_ratio(&self, vdev: u64) -> Option<u64> {
        // Birth 0: an expansion does not change the accounting of space.
        let sectors = self.asize_for(vdev, 1 << 17, 0)? >> 9;
        (1_u64 << 17).checked_div(sectors)
    }

    /// Whether the subtree can return a block of this birth: that of the best child for mirrors.
    pub(crate) fn freshness(&self, vdev: usize, birth: u64) -> Freshness {
        let vdev = &self.vdevs[vdev];
        match vdev.layout {
            Layout::Leaf(leaf) | Layout::DraidSpare(leaf, ..) => {
                self.leaves[leaf.0].freshness(birth)
            }
            Layout::Mirror => {
                let children = vdev.children.iter().map(|child| self.freshness(*child, birth));
                children.min().unwrap_or(Freshness::Absent)
            }
            Layout::Raidz(_) | Layout::Draid(_) | Layout::Indirect
                if vdev.state().is_readable() =>
            {
                Freshness::Fresh
            }
            _ => Freshness::Absent,
        }
    }

    /// Whether a leaf at or below a vdev is unreadable, or had an I/O error that was not handled
    /// yet, and may have a block of this birth.
    pub(crate) fn may_be_on_unavailable_leaf(&self, vdev: usize, birth: u64) -> bool {
        let leaves = self.leaves_below(vdev);
        leaves.into_iter().any(|leaf| {
            let leaf = self.leaf(leaf);
            let is_unavailable = !leaf.is_readable() || leaf.has_failed();
            is_unavailable && !leaf.dtl().is_some_and(|lacks| lacks.contains(birth))
        })
    }

    /// Whether some leaf that holds data is unreadable, or had an I/O error that was not handled
    /// yet: an unreadable block may become readable then.
    pub fn has_unavailable_leaves(&self) -> bool {
        let is_log = |vdev: &Vdev| self.top_of(vdev.guid).is_some_and(|top| top.is_log);
        let is_unavailable =
            |leaf: LeafId| !self.leaf(leaf).is_readable() || self.leaf(leaf).has_failed();
        self.vdevs().any(|vdev| vdev.leaf().is_some_and(is_unavailable) && !is_log(vdev))
    }

    /// The children of a mirror in the order of reading (spec 06 §3.1): fresh ones by load, then
    /// stale ones; absent ones are left out.
    pub(crate) fn mirror_order(&self, vdev: usize, offset: i64, birth: u64) -> Vec<usize> {
        let children = &self.vdevs[vdev].children;
        let count = children.len().max(1) as i64;
        // Regions of 2 MiB stay on one child, so that each child sees sequential reads.
        let preferred = (offset >> 21).rem_euclid(count);
        let key = |(index, child): (usize, &usize)| {
            let freshness = self.freshness(*child, birth);
            let load = self.vdevs[*child].leaf().map_or(0, |leaf| self.leaves[leaf.0].in_flight());
            let rotation = (index as i64 - preferred).rem_euclid(count);
            (freshness, load, rotation, *child)
        };
        let mut order: Vec<_> = children.iter().enumerate().map(key).collect();
        order.retain(|(freshness, ..)| *freshness != Freshness::Absent);
        order.sort_unstable();
        order.into_iter().map(|(.., child)| child).collect()
    }
}
