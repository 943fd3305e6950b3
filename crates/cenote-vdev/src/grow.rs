//! A tree that gets another top-level vdev while it is in use (`zpool add`; spec 01 §14).
//!
//! The new vdev is built as in a tree of its own, and hung below the root with its numbers moved
//! behind those that are there. Nothing of the old changes but the state of the root.
//!
//! Concurrency: leaves come first, then vdevs, then their place below the root: whoever finds the
//! vdev finds all of it. Nobody else may grow the tree meanwhile, or build on the number of its
//! leaves.

use std::sync::Arc;

use cenote_device::Device;
use cenote_ondisk::config::VdevConfig;
use cenote_rt::{Error, Kind, Result};

use crate::build::BuildOptions;
use crate::dtl::TxgRanges;
use crate::leaf::LeafId;
use crate::tree::{Layout, Tree, Vdev};

/// Why a tree takes no vdev.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// Its number is not the next.
    #[error("top-level vdev {id} cannot come behind {count} others")]
    Place {
        /// Id in its config.
        id: u64,
        /// Vdevs below the root.
        count: usize,
    },
}

impl Tree {
    /// Adds the top-level vdev `top`, whose id is the next; `open` gives the device of a leaf. Its
    /// leaves lack nothing.
    ///
    /// # Errors
    /// `Kind::Invalid` if the id is another; `Kind::Closed` once the tree was closed.
    pub fn grow(
        &self,
        top: &VdevConfig,
        open: impl Fn(&VdevConfig) -> Option<Arc<dyn Device>>,
    ) -> Result<()> {
        self.check_open()?;
        let count = self.tops.len();
        if usize::try_from(top.id).ok() != Some(count) {
            return Err(Error::new(Kind::Invalid, GrowError::Place { id: top.id, count }));
        }
        let options = BuildOptions {
            is_writable: self.is_writable,
            load: Arc::clone(&self.load),
            ..BuildOptions::default()
        };
        let root = VdevConfig::root(0, vec![top.clone()]);
        let (vdevs, leaves) = Self::parts(&root, open, &options)?;
        // The root of its own is left behind.
        let (vdev_base, leaf_base) = (self.vdevs.len() - 1, self.leaves.len());
        let mut vdevs = vdevs.into_iter().skip(1).collect::<Vec<_>>();
        for vdev in &mut vdevs {
            shift(vdev, vdev_base, leaf_base);
        }
        for leaf in &leaves {
            leaf.set_dtl(TxgRanges::default());
        }
        let place = vdev_base + 1;
        self.leaves.grow(leaves);
        self.vdevs.grow(vdevs);
        self.tops.grow(vec![place]);
        if let Err(error) = self.check_open() {
            // Closed meanwhile, which may have passed these leaves over.
            self.revoke_leaves();
            return Err(error);
        }
        self.derive_states();
        Ok(())
    }
}

/// Moves the numbers of vdevs and leaves; the root stays the first.
fn shift(vdev: &mut Vdev, vdevs: usize, leaves: usize) {
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

    /// A mirror, and behind it every other form: each writes, reads and flushes as one that was
    /// there from the beginning, and the others stay what they are.
    #[test]
    fn vdevs_that_come_are_like_those_that_were_there() {
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
