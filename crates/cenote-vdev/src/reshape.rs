//! Replaces a top-level vdev of a tree in use by another version of it: a mirror in place of a disk
//! (`zpool attach`), a replacement beside a disk, a vdev without one of its leaves (spec 06 §9.3,
//! §10).
//!
//! ```text
//!   root ── top-level vdev 0: leaf a               I/O that began before goes on here
//!        `─ its next version: mirror ─ leaf a      I/O that begins now
//!                                    `─ leaf b
//! ```
//!
//! The whole top-level vdev is built anew, from its new config; leaves that it had before are taken
//! over with their devices, logs and counters. A leaf that the new version does not have leaves the
//! tree. An I/O uses the version that it found at its beginning: blocks that are written to the
//! earlier one do not reach a new leaf, so its dirty time log must have the txgs of all writes that
//! may be in flight.
//!
//! Superseded vdevs stay in the arena until the pool is closed: some hundred bytes each.
//!
//! Invariants
//! * R3  A tree changes its shape in one task at a time, under the lock of the states.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_device::Device;
use cenote_ondisk::config::VdevConfig;
use cenote_rt::{Error, Kind, Result, ensure};

use crate::build::BuildOptions;
use crate::dtl::TxgRanges;
use crate::grow::shift;
use crate::leaf::LeafId;
use crate::tree::{Layout, Tree};

/// Why a top-level vdev cannot be replaced by another version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReshapeError {
    /// There is no such vdev.
    #[error("there is no top-level vdev {0}")]
    NoSuchVdev(u64),
}

/// Leaves that changed with the shape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reshaped {
    /// Leaves that are new.
    pub added: Vec<LeafId>,
    /// Leaves that left the tree.
    pub retired: Vec<LeafId>,
}

impl Tree {
    /// Replaces the top-level vdev with the id of `top`; `open` returns the device of a new leaf.
    /// Leaves are known by their guids; with `renamed` a leaf has another guid from now on, that of
    /// its parent, whose place it takes. New leaves have empty dirty time logs.
    ///
    /// # Errors
    /// `Kind::Invalid` if there is no such vdev; `Kind::Closed` once the tree was closed.
    pub fn reshape(
        &self,
        top: &VdevConfig,
        renamed: Option<(u64, u64)>,
        open: impl Fn(&VdevConfig) -> Option<Arc<dyn Device>>,
    ) -> Result<Reshaped> {
        self.check_open()?;
        let options = BuildOptions {
            is_writable: self.is_writable,
            load: Arc::clone(&self.load),
            ..BuildOptions::default()
        };
        let root = VdevConfig::root(0, vec![top.clone()]);
        let (vdevs, built) = Self::build_vdevs(&root, open, &options)?;
        // The temporary tree's own root is not moved.
        let mut vdevs = vdevs.into_iter().skip(1).collect::<Vec<_>>();
        let slot = usize::try_from(top.id).ok().and_then(|id| self.tops.get(id));
        let slot =
            slot.ok_or_else(|| Error::new(Kind::Invalid, ReshapeError::NoSuchVdev(top.id)))?;
        let mut reshaped = Reshaped::default();
        {
            let _one = self.deriving.lock();
            let before = self.subtree(slot.load(Ordering::Acquire));
            let (vdev_base, leaf_base) = (self.vdevs.len() - 1, self.leaves.len());
            let (mut places, mut added) = (Vec::new(), Vec::new());
            for leaf in built {
                let guid = leaf.guid();
                let earlier = renamed.filter(|(_, now)| *now == guid).map_or(guid, |(was, _)| was);
                let kept = before.iter().map(|index| &self.vdevs[*index]);
                let mut kept = kept.filter(|vdev| vdev.guid == earlier);
                if let Some((place, vdev)) = kept.find_map(|vdev| Some((vdev.leaf()?, vdev))) {
                    let least = leaf.sizes.least_asize.load(Ordering::Relaxed);
                    self.leaf(place).sizes.least_asize.store(least, Ordering::Relaxed);
                    places.push((place, Some(vdev)));
                    continue;
                }
                places.push((LeafId(leaf_base + added.len()), None));
                leaf.set_dtl(TxgRanges::default());
                added.push(leaf);
            }
            for vdev in &mut vdevs {
                shift(vdev, vdev_base, 0);
                if let Layout::Leaf(leaf) | Layout::DraidSpare(leaf, ..) = &mut vdev.layout
                    && let Some((place, kept)) = places.get(leaf.0)
                {
                    *leaf = *place;
                    if let Some(kept) = kept {
                        vdev.status.set((kept.state(), kept.aux()));
                        self.leaf(*place).set_guid(vdev.guid);
                    }
                }
            }
            reshaped.added = (leaf_base..leaf_base + added.len()).map(LeafId).collect();
            let kept: Vec<_> = places.iter().map(|(place, _)| *place).collect();
            let gone = before.iter().filter_map(|index| self.vdevs[*index].leaf());
            reshaped.retired = gone.filter(|leaf| !kept.contains(leaf)).collect();
            let place = vdev_base + 1;
            let vdev_end = place + vdevs.len();
            self.leaves.grow(added);
            self.vdevs.grow(vdevs);
            let vdev_count = self.vdevs.len();
            // Checks R3.
            ensure!("R3", vdev_count == vdev_end, "{vdev_count} vdevs, instead of {vdev_end}");
            // The new version is complete before it can be found.
            slot.store(place, Ordering::Release);
            reshaped.retired.iter().for_each(|leaf| self.leaf(*leaf).retire());
        }
        if let Err(error) = self.check_open() {
            // The tree was closed concurrently, and `close` may have missed these leaves.
            self.revoke_leaves();
            return Err(error);
        }
        self.derive_states();
        Ok(reshaped)
    }

    /// The arena indices of a vdev and of everything below it.
    fn subtree(&self, index: usize) -> Vec<usize> {
        let below = self.child_indices(&self.vdevs[index]).flat_map(|child| self.subtree(child));
        std::iter::once(index).chain(below).collect()
    }

    /// Takes the device of a leaf that left the tree, once no I/O is in flight there. `None` if it
    /// has none, or if it was not idle in `timeout`: then it is cut off.
    pub async fn take_device(&self, leaf: LeafId, timeout: Duration) -> Option<Arc<dyn Device>> {
        self.leaf(leaf).take_device(timeout).await
    }
}

#[cfg(test)]
mod tests {
    use cenote_device::MemoryDevice;
    use cenote_ondisk::config::VdevKind as ConfigKind;
    use cenote_rt::Buf;

    use super::*;
    use crate::bench::{BIRTH, Bench, leaves, raidz, top, vdev, wait};
    use crate::{DtlKind, IoClass, Place, VdevKind, VdevState};

    const PLACE: Place = Place { vdev: 0, offset: 1 << 20 };

    fn device() -> Arc<dyn Device> {
        Arc::new(MemoryDevice::new("new", vec![0; 16 << 20]))
    }

    fn put(tree: &Tree, byte: u8, txg: u64) {
        let data = Buf::from(vec![byte; 8192]);
        wait(tree.write(PLACE, data, txg, IoClass::SyncWrite)).unwrap();
    }

    fn get(tree: &Tree, birth: u64) -> u8 {
        let same = |read: &[u8]| read.iter().all(|byte| *byte == read[0] && *byte > 0);
        wait(tree.read(PLACE, 8192, birth, &same)).unwrap().data[0]
    }

    /// A disk becomes a mirror, and its second side a disk again, with the guid of the mirror.
    #[test]
    fn disk_becomes_a_mirror_and_a_disk_again() {
        let mut disk = vdev(ConfigKind::File, 0, 100, Vec::new());
        disk.top.ashift = 9;
        let bench = Bench::new(VdevConfig::root(1, vec![disk.clone()]));
        let tree = &bench.tree;
        put(tree, 1, BIRTH);
        let mut mirror = vdev(ConfigKind::Mirror, 0, 7, leaves(2));
        mirror.top.ashift = 9;
        let reshaped = tree.reshape(&mirror, None, |_| Some(device())).unwrap();
        assert_eq!((reshaped.added.len(), reshaped.retired.len()), (1, 0));
        assert_eq!((tree.top(0).unwrap().kind(), tree.vdevs().count()), (VdevKind::Mirror, 4));
        tree.leaf(reshaped.added[0]).note_missing(&TxgRanges::new([(4, BIRTH + 1)]));
        assert_eq!(get(tree, BIRTH), 1, "the new side lacks it");
        put(tree, 2, BIRTH + 1);
        assert!(tree.is_dtl_required(100) && !tree.is_dtl_required(101));
        assert!(tree.excise_dtl(101, BIRTH + 1));
        // The first side leaves.
        disk.guid = 7;
        let reshaped = tree.reshape(&disk, Some((101, 7)), |_| None).unwrap();
        assert_eq!((reshaped.added.len(), reshaped.retired.len()), (0, 1));
        assert_eq!(tree.vdevs().map(|vdev| vdev.guid).collect::<Vec<_>>(), [1, 7]);
        assert_eq!(tree.leaf_of(7), tree.top(0).unwrap().leaf());
        assert_eq!((get(tree, BIRTH + 1), tree.leaf_of(100)), (2, None));
        let timeout = Duration::from_secs(1);
        let old = wait(tree.take_device(reshaped.retired[0], timeout)).unwrap();
        assert_eq!(old.info().path, "d100");
        assert_eq!(tree.root().state(), VdevState::Healthy);
        assert!(wait(tree.close(timeout)).is_empty());
    }

    /// A child of a RAID-Z is replaced; a write that began before the change still ends.
    #[test]
    fn child_of_a_raidz_gets_a_replacement() {
        let bench = Bench::new(raidz(9, 3, 1));
        let tree = &bench.tree;
        put(tree, 1, BIRTH);
        let mut config = bench.config.children[0].clone();
        let old = std::mem::replace(&mut config.children[1], VdevConfig::hole(1));
        let new = vdev(ConfigKind::File, 1, 200, Vec::new());
        let children = vec![VdevConfig { id: 0, ..old.clone() }, new];
        config.children[1] = vdev(ConfigKind::Replacing, 1, 8, children);
        let reshaped = tree.reshape(&config, None, |_| Some(device())).unwrap();
        let txgs = TxgRanges::new([(4, BIRTH + 1)]);
        tree.leaf(reshaped.added[0]).note_missing(&txgs);
        assert_eq!((get(tree, BIRTH), tree.vdevs().count()), (1, 7));
        assert_eq!(tree.dtl(8, DtlKind::Partial), Some(txgs));
        put(tree, 3, BIRTH + 2);
        tree.excise_dtl(200, u64::MAX);
        config.children[1] = vdev(ConfigKind::File, 1, 200, Vec::new());
        let reshaped = tree.reshape(&config, None, |_| None).unwrap();
        assert_eq!(reshaped.retired, [LeafId(1)]);
        assert_eq!(tree.leaves().count(), 3);
        assert_eq!(get(tree, BIRTH + 2), 3);
        assert!(tree.leaf(LeafId(1)).device().is_none());
    }

    #[test]
    fn unknown_vdev_is_refused() {
        let bench = Bench::new(top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 9));
        let other = vdev(ConfigKind::File, 5, 9, Vec::new());
        let error = bench.tree.reshape(&other, None, |_| None).unwrap_err();
        assert_eq!(error.cause(), Some(&ReshapeError::NoSuchVdev(5)));
    }

    /// Shapes change all the time beside writes, reads and flushes: every read returns what was
    /// written, and everything ends.
    #[test]
    fn shapes_change_beside_io() {
        let bench = Bench::new(top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 9));
        let tree = Arc::clone(&bench.tree);
        wait(async move {
            let writer = Arc::clone(&tree);
            let io = cenote_rt::spawn(async move {
                for round in 0..400_u64 {
                    let byte = (round % 250) as u8 + 1;
                    let data = Buf::from(vec![byte; 4096]);
                    let txg = BIRTH + round;
                    writer.write(PLACE, data, txg, IoClass::SyncWrite).await.unwrap();
                    let same = move |read: &[u8]| read.iter().all(|found| *found == byte);
                    let read = writer.read(PLACE, 4096, txg, &same).await.unwrap();
                    assert_eq!(read.data[0], byte);
                    if round % 10 == 0 {
                        writer.flush().await.unwrap();
                    }
                }
            });
            let mut count = 0;
            while !io.is_finished() {
                count += 1;
                let mut mirror = vdev(ConfigKind::Mirror, 0, 2, leaves(2));
                mirror.top.ashift = 9;
                mirror.children.push(vdev(ConfigKind::File, 2, 1000 + count, Vec::new()));
                let reshaped = tree.reshape(&mirror, None, |_| Some(device())).unwrap();
                tree.leaf(reshaped.added[0]).note_missing(&TxgRanges::new([(0, BIRTH + 1000)]));
                cenote_rt::yield_now().await;
                mirror.children.pop();
                let reshaped = tree.reshape(&mirror, None, |_| None).unwrap();
                let taken = tree.take_device(reshaped.retired[0], Duration::from_secs(5)).await;
                assert!(taken.is_some());
            }
            io.await.unwrap();
            assert_eq!(tree.leaves().count(), 2);
        });
    }
}
