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
use cenote_ondisk::config::{LeafConfig, TopConfig, VdevConfig, VdevKind as ConfigKind};
use cenote_rt::{Error, Kind, Result};

use crate::build::BuildOptions;
use crate::dtl::TxgRanges;
use crate::leaf::{Leaf, LeafId};
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
    /// `Kind::Invalid` if the id is another.
    pub fn grow(
        &self,
        top: &VdevConfig,
        open: impl Fn(&VdevConfig) -> Option<Arc<dyn Device>>,
    ) -> Result<()> {
        let count = self.tops.len();
        if usize::try_from(top.id).ok() != Some(count) {
            return Err(Error::new(Kind::Invalid, GrowError::Place { id: top.id, count }));
        }
        let options = BuildOptions {
            is_writable: self.is_writable,
            load: Arc::clone(&self.load),
            ..BuildOptions::default()
        };
        let root = VdevConfig {
            kind: ConfigKind::Root,
            id: 0,
            guid: 0,
            create_txg: 0,
            top: TopConfig::default(),
            leaf: LeafConfig::default(),
            zap_root: None,
            children: vec![top.clone()],
        };
        let (vdevs, leaves) = Self::parts(&root, open, &options)?;
        // The root of its own is left behind.
        let (vdev_base, leaf_base) = (self.vdevs.len() - 1, self.leaves.len());
        let mut vdevs = vdevs.into_iter().skip(1).collect::<Vec<_>>();
        vdevs.iter_mut().for_each(|vdev| shift(vdev, vdev_base, leaf_base));
        leaves.iter().for_each(|leaf: &Leaf| leaf.set_dtl(TxgRanges::default()));
        let place = vdev_base + 1;
        self.leaves.grow(leaves);
        self.vdevs.grow(vdevs);
        self.tops.grow(vec![place]);
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
