//! Adds a top-level vdev to a tree in use (`zpool add`; spec 01 §14).
//!
//! The new vdev is built in a tree of its own. Its vdevs and leaves are then renumbered to follow
//! the existing ones and linked below the root. Nothing else changes but the state of the root.
//!
//! Invariants
//! * R1  A vdev that is added gets the next id.
//! * R2  A tree is grown by one task at a time: the numbers that were assigned are still free when
//!   they are taken.
//!
//! Concurrency: leaves are added first, then vdevs, then the link below the root, so a reader that
//! finds the vdev finds all of it. The caller must not rely on the number of leaves meanwhile.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use cenote_device::Device;
use cenote_ondisk::config::VdevConfig;
use cenote_rt::{Error, Kind, Result, ensure};

use crate::build::BuildOptions;
use crate::dtl::TxgRanges;
use crate::leaf::LeafId;
use crate::tree::{Layout, Tree, Vdev};

/// Why a vdev cannot be added to a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// The vdev's id is not the next free one.
    #[error("cannot add top-level vdev {id}: the tree has {count}, so the next id is {count}")]
    Place {
        /// Id in its config.
        id: u64,
        /// Vdevs below the root.
        count: usize,
    },
}

impl Tree {
    /// Adds the top-level vdev `top`, whose id must be the next free one; `open` returns the device
    /// of a leaf. The new leaves have empty dirty time logs.
    ///
    /// # Errors
    /// `Kind::Invalid` if the id is not the next free one; `Kind::Closed` once the tree was closed.
    pub fn grow(
        &self,
        top: &VdevConfig,
        open: impl Fn(&VdevConfig) -> Option<Arc<dyn Device>>,
    ) -> Result<()> {
        self.check_open()?;
        let count = self.tops.len();
        if usize::try_from(top.id).ok() != Some(count) {
            // Checks R1.
            return Err(Error::new(Kind::Invalid, GrowError::Place { id: top.id, count }));
        }
        let options = BuildOptions {
            is_writable: self.is_writable,
            load: Arc::clone(&self.load),
            ..BuildOptions::default()
        };
        let root = VdevConfig::root(0, vec![top.clone()]);
        let (vdevs, leaves) = Self::build_vdevs(&root, open, &options)?;
        // The temporary tree's own root is not moved.
        let (vdev_base, leaf_base) = (self.vdevs.len() - 1, self.leaves.len());
        let mut vdevs = vdevs.into_iter().skip(1).collect::<Vec<_>>();
        for vdev in &mut vdevs {
            shift(vdev, vdev_base, leaf_base);
        }
        for leaf in &leaves {
            leaf.set_dtl(TxgRanges::default());
        }
        let place = vdev_base + 1;
        let (leaf_end, vdev_end) = (leaf_base + leaves.len(), place + vdevs.len());
        let reshaping = self.deriving.lock();
        self.leaves.grow(leaves);
        self.vdevs.grow(vdevs);
        self.tops.grow(vec![AtomicUsize::new(place)]);
        let (leaf_count, vdev_count) = (self.leaves.len(), self.vdevs.len());
        ensure!(
            "R2",
            (leaf_count, vdev_count) == (leaf_end, vdev_end),
            "{leaf_count} leaves and {vdev_count} vdevs, instead of {leaf_end} and {vdev_end}"
        );
        drop(reshaping);
        if let Err(error) = self.check_open() {
            // The tree was closed concurrently, and `close` may have missed these leaves.
            self.revoke_leaves();
            return Err(error);
        }
        self.derive_states();
        Ok(())
    }
}

/// Shifts the indices of vdevs and leaves; the root stays index 0.
pub(crate) fn shift(vdev: &mut Vdev, vdevs: usize, leaves: usize) {
    let moved = |index: &mut usize| *index += vdevs;
    vdev.parent.iter_mut().filter(|parent| **parent > 0).for_each(moved);
    vdev.children.iter_mut().for_each(moved);
    match &mut vdev.layout {
        Layout::Leaf(LeafId(leaf)) => *leaf += leaves,
        Layout::DraidSpare(LeafId(leaf), draid, _) => {
            *leaf += leaves;
            draid.iter_mut().for_each(moved);
        }
        Layout::Root
        | Layout::Mirror
        | Layout::Raidz(_)
        | Layout::Draid(_)
        | Layout::Indirect
        | Layout::Absent => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{BIRTH, Bench, leaves, shapes, top, vdev, wait};
    use crate::{IoClass, Place};
    use cenote_ondisk::config::VdevKind as ConfigKind;
    use cenote_rt::{Buf, Rng};

    /// Adds every kind of vdev to a mirror: each writes, reads and flushes like one that was built
    /// with the tree, and the existing vdevs do not change.
    #[test]
    fn zpool_add_gives_vdevs_that_work_like_the_first() {
        let first = top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 9);
        let bench = Bench::new(first);
        let mut rng = Rng::seeded(3);
        let mut blocks = Vec::new();
        for (id, (name, shape, _)) in (1..).zip(shapes()) {
            let alone = Bench::new(shape);
            let mut config = alone.config.children[0].clone();
            config.id = id;
            config.guid += 1000 * id;
            config.children.iter_mut().for_each(|leaf| leaf.guid += 1000 * id);
            let device = |leaf: &VdevConfig| {
                let device = alone.devices.get(&(leaf.guid - 1000 * id));
                device.map(|device| Arc::clone(device) as Arc<dyn Device>)
            };
            let wrong = VdevConfig { id: id + 1, ..config.clone() };
            assert_eq!(bench.tree.grow(&wrong, device).unwrap_err().kind(), Kind::Invalid);
            bench.tree.grow(&config, device).unwrap();
            let vdev = bench.tree.top(id).unwrap();
            assert_eq!((vdev.guid(), vdev.id()), (config.guid, id), "{name}");
            assert_eq!(bench.tree.children(vdev).count(), config.children.len());
            assert!(bench.tree.leaves().all(|(_, leaf)| leaf.is_writable()));
            let mut bytes = vec![0; 10_240];
            rng.fill(&mut bytes);
            for (vdev, offset) in [(0, id << 20), (id, 0)] {
                let place = Place { vdev, offset };
                let data = Buf::from(bytes.clone());
                let done = wait(bench.tree.write(place, data, BIRTH, IoClass::SyncWrite)).unwrap();
                assert!(!done.is_degraded, "{name}");
                blocks.push((place, bytes.clone()));
            }
            assert!(wait(bench.tree.flush()).unwrap().failed.is_empty());
        }
        assert_eq!(bench.tree.tops().count(), 1 + shapes().len());
        for (place, bytes) in &blocks {
            let verify = |read: &[u8]| read == &bytes[..];
            let read = bench.tree.read(*place, bytes.len() as u64, BIRTH, &verify);
            assert!(wait(read).unwrap().bad.is_empty(), "{place:?}");
        }
    }
}
