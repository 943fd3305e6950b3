//! Builds a tree from a config and devices.
//!
//! The config says which vdevs the pool has, the caller which devices were found. A missing device
//! or an impossible geometry becomes the state of its vdev, never an error of the whole tree, so
//! that everything readable in a damaged pool can be read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use cenote_device::Device;
use cenote_ondisk::config::{VdevConfig, VdevKind as ConfigKind};
use cenote_ondisk::label;
use cenote_rt::lock::{Mutex, Rank, RwLock};
use cenote_rt::{Error, Result};

use crate::draid::Draid;
use crate::layout;
use crate::leaf::{Leaf, LeafId};
use crate::queue::Load;
use crate::raidz::Raidz;
use crate::reflow::ReflowGate;
use crate::state::{self, ChildState, Status, VdevAux, VdevState};
use crate::tree::{Layout, Tree, Vdev, VdevKind};

/// Options for building a tree.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Number of dead top-level vdevs with which the root still counts as readable.
    pub missing_tops_allowed: usize,
    /// Whether leaves that are offline, faulted or removed are read when no other leaf has the
    /// block. Their data may be old, so only bytes that match the checksum are used.
    pub uses_excluded_leaves: bool,
    /// Whether the tree may be written. A tree built without it refuses every write.
    pub is_writable: bool,
    /// Reasons why leaves have no device, by guid; leaves not listed are just missing.
    pub leaf_aux: BTreeMap<u64, VdevAux>,
    /// Pool-wide load that the leaf queues consult. A tree that replaces another one takes over its
    /// load.
    pub load: Arc<Load>,
}

/// Why a tree cannot be built from a config.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The outermost vdev is not the root.
    #[error("the config's tree begins with a vdev of type {0}, not with the root")]
    NotARoot(&'static str),
}

impl Tree {
    /// Builds the tree of the config `root`; `open` returns the device of a leaf, or `None`.
    pub fn build(
        root: &VdevConfig,
        open: impl Fn(&VdevConfig) -> Option<Arc<dyn Device>>,
        options: &BuildOptions,
    ) -> Result<Arc<Self>> {
        let (mut vdevs, leaves) = Self::build_vdevs(root, open, options)?;
        let tops = vdevs.first_mut().map(|root| std::mem::take(&mut root.children));
        let tree = Self {
            vdevs: vdevs.into(),
            tops: tops.into_iter().flatten().map(AtomicUsize::new).collect::<Vec<_>>().into(),
            leaves: leaves.into(),
            is_writable: options.is_writable,
            is_closed: AtomicBool::new(false),
            missing_tops_allowed: options.missing_tops_allowed,
            load: Arc::clone(&options.load),
            indirect: RwLock::with_default(Rank::IndirectMaps),
            gate: ReflowGate::default(),
            deriving: Mutex::with_default(Rank::VdevStates),
        };
        tree.derive_states();
        Ok(Arc::new(tree))
    }

    /// Returns the vdevs of the config `root`, each parent before its children, and the leaves.
    pub(crate) fn build_vdevs(
        root: &VdevConfig,
        open: impl Fn(&VdevConfig) -> Option<Arc<dyn Device>>,
        options: &BuildOptions,
    ) -> Result<(Vec<Vdev>, Vec<Leaf>)> {
        if root.kind != ConfigKind::Root {
            return Err(Error::corrupt(BuildError::NotARoot(root.kind.name())));
        }
        let mut builder = Builder { open, options, vdevs: Vec::new(), leaves: Vec::new() };
        builder.add(root, None, 0, 0);
        builder.link_spares();
        Ok((builder.vdevs, builder.leaves))
    }

    /// Derives the states of interior vdevs, children first.
    pub(crate) fn derive_states(&self) {
        // Serialized: the last caller sees every change made before.
        let _one = self.deriving.lock();
        for vdev in self.indices().into_iter().rev().map(|index| &self.vdevs[index]) {
            let child = |child: &Vdev| ChildState { state: child.state(), is_log: child.is_log };
            let children: Vec<_> = self.children(vdev).map(child).collect();
            let status = match (&vdev.layout, vdev.kind) {
                (Layout::Leaf(_) | Layout::DraidSpare(..), _) => continue,
                (Layout::Root, _) => state::of_root(&children, self.missing_tops_allowed),
                (Layout::Mirror, _) => {
                    state::of_interior(&children, children.len().saturating_sub(1))
                }
                (Layout::Raidz(_) | Layout::Draid(_), _) => {
                    state::of_interior(&children, vdev.nparity() as usize)
                }
                (Layout::Indirect, _) | (Layout::Absent, VdevKind::Hole) => {
                    (VdevState::Healthy, VdevAux::None)
                }
                (Layout::Absent, VdevKind::Missing) => (VdevState::CantOpen, VdevAux::OpenFailed),
                (Layout::Absent, _) => (VdevState::CantOpen, VdevAux::CorruptData),
            };
            vdev.status.set(status);
        }
    }
}

struct Builder<'a, Open> {
    open: Open,
    options: &'a BuildOptions,
    vdevs: Vec<Vdev>,
    leaves: Vec<Leaf>,
}

impl<Open: Fn(&VdevConfig) -> Option<Arc<dyn Device>>> Builder<'_, Open> {
    /// Adds `config` and its descendants; returns its index. `least_asize` is the number of bytes
    /// that its parent needs it to hold.
    fn add(
        &mut self,
        config: &VdevConfig,
        parent: Option<usize>,
        ashift: u32,
        least_asize: u64,
    ) -> usize {
        // All vdevs below a top-level vdev have its ashift.
        let (ashift, least_asize) = match parent {
            Some(0) => ((config.top.ashift as u32).clamp(9, 16), layout::min_asize(config)),
            _ => (ashift, least_asize),
        };
        let index = self.vdevs.len();
        let (kind, layout) = self.layout(config, ashift);
        self.vdevs.push(Vdev {
            guid: config.guid,
            id: config.id,
            kind,
            status: Status::new(VdevState::Healthy, VdevAux::None),
            parent,
            children: Vec::new(),
            ashift,
            asize: config.top.asize,
            is_log: config.top.is_log,
            layout,
        });
        if let Some(leaf) = self.vdevs[index].leaf() {
            self.leaves[leaf.0].sizes.least_asize = least_asize.into();
            let (state, aux) = self.leaf_state(config, leaf);
            self.vdevs[index].status.set((state, aux));
        }
        let least_asize = layout::min_child_asize(config, least_asize);
        for child in &config.children {
            let child = self.add(child, Some(index), ashift, least_asize);
            self.vdevs[index].children.push(child);
        }
        index
    }

    fn layout(&mut self, config: &VdevConfig, ashift: u32) -> (VdevKind, Layout) {
        match &config.kind {
            ConfigKind::Root => (VdevKind::Root, Layout::Root),
            ConfigKind::Mirror => (VdevKind::Mirror, Layout::Mirror),
            ConfigKind::Replacing => (VdevKind::Replacing, Layout::Mirror),
            ConfigKind::Spare => (VdevKind::Spare, Layout::Mirror),
            ConfigKind::RaidZ(raidz) => {
                let raidz = Raidz {
                    ashift,
                    width: config.children.len() as u64,
                    nparity: raidz.nparity,
                    expand_txgs: raidz.expand_txgs.clone(),
                    is_expanding: raidz.expanding,
                };
                let layout = if raidz.is_valid() { Layout::Raidz(raidz) } else { Layout::Absent };
                (VdevKind::Raidz, layout)
            }
            ConfigKind::Draid(draid) => {
                let geometry = Draid::of(draid, ashift, config.children.len());
                // dRAID with failure domains permutes differently, and no OpenZFS release has it.
                let geometry = geometry.filter(|_| draid.nchildren.is_none());
                (VdevKind::Draid, geometry.map_or(Layout::Absent, Layout::Draid))
            }
            ConfigKind::DraidSpare { spare_id, .. } => {
                let leaf = self.add_leaf(config, None);
                (VdevKind::DraidSpare, Layout::DraidSpare(leaf, None, *spare_id))
            }
            ConfigKind::File => (VdevKind::File, self.open_leaf(config)),
            ConfigKind::Disk => (VdevKind::Disk, self.open_leaf(config)),
            ConfigKind::Hole => (VdevKind::Hole, Layout::Absent),
            ConfigKind::Missing => (VdevKind::Missing, Layout::Absent),
            ConfigKind::Indirect => (VdevKind::Indirect, Layout::Indirect),
        }
    }

    fn open_leaf(&mut self, config: &VdevConfig) -> Layout {
        let device = (self.open)(config);
        Layout::Leaf(self.add_leaf(config, device))
    }

    fn add_leaf(&mut self, config: &VdevConfig, device: Option<Arc<dyn Device>>) -> LeafId {
        let path = match &device {
            Some(device) => device.info().path.clone(),
            None => config
                .leaf
                .path
                .as_ref()
                .map_or_else(String::new, |path| path.to_string_lossy().into_owned()),
        };
        let mut leaf = Leaf::new(config.guid, path, device, &self.options.load);
        // Until its dirty time log is loaded, all of its data may be stale: a mismatch is no
        // evidence against the device, and other leaves are read first.
        let (resilver, rebuild) = (config.leaf.resilver_txg, config.leaf.rebuild_txg);
        leaf.is_stale_until_dtl_loaded = config.leaf.dtl_object.is_some_and(|object| object != 0)
            || resilver.is_some()
            || rebuild.is_some();
        self.leaves.push(leaf);
        LeafId(self.leaves.len() - 1)
    }

    /// A leaf's state from its config and device (spec 06 §2.3).
    fn leaf_state(&mut self, config: &VdevConfig, id: LeafId) -> (VdevState, VdevAux) {
        let leaf = &mut self.leaves[id.0];
        let recorded = VdevAux::of_config(config.leaf.aux_state.as_deref());
        let is_distributed = matches!(config.kind, ConfigKind::DraidSpare { .. });
        let size = leaf.device().map(|device| device.info().size);
        let (state, aux) = match size {
            _ if config.leaf.offline => (VdevState::Offline, VdevAux::None),
            _ if config.leaf.removed => (VdevState::Removed, VdevAux::None),
            // A fault recorded at an earlier opening may be over; one set by the administrator
            // persists.
            _ if config.leaf.faulted && recorded == VdevAux::External => {
                (VdevState::Faulted, recorded)
            }
            None if !is_distributed => {
                let aux = self.options.leaf_aux.get(&config.guid).copied();
                (VdevState::CantOpen, aux.unwrap_or(VdevAux::OpenFailed))
            }
            Some(size) if label::leaf_asize(size) == 0 => (VdevState::CantOpen, VdevAux::TooSmall),
            // The device shrank: the labels at its end would now lie in the middle of the leaf's
            // data.
            Some(size) if !leaf.fits(size) => (VdevState::CantOpen, VdevAux::BadLabel),
            _ if config.leaf.degraded => (VdevState::Degraded, recorded),
            _ => (VdevState::Healthy, VdevAux::None),
        };
        let is_excluded = !state.is_readable();
        leaf.set_service(!is_excluded, !is_excluded && self.options.is_writable);
        let has_room = size.is_some_and(|size| label::leaf_asize(size) > 0);
        if is_excluded && has_room && self.options.uses_excluded_leaves {
            leaf.set_service(true, false);
            leaf.is_stale_until_dtl_loaded = true;
            leaf.is_excluded = true;
        }
        (state, aux)
    }

    /// Links each distributed spare to its dRAID.
    fn link_spares(&mut self) {
        // A distributed spare belongs to the nearest dRAID above it.
        for index in 0..self.vdevs.len() {
            let mut above = self.vdevs[index].parent;
            while let Some(at) = above {
                if matches!(self.vdevs[at].layout, Layout::Draid(_)) {
                    break;
                }
                above = self.vdevs[at].parent;
            }
            let found = above;
            let Layout::DraidSpare(leaf, draid, spare) = &mut self.vdevs[index].layout else {
                continue;
            };
            let (leaf, spare) = (*leaf, *spare);
            *draid = found;
            let has_place = found.is_some_and(|at| match &self.vdevs[at].layout {
                Layout::Draid(geometry) => geometry.spare_child(spare, 0).is_some(),
                _ => false,
            });
            if !has_place {
                self.leaves[leaf.0].set_service(false, false);
                self.vdevs[index].status.set((VdevState::CantOpen, VdevAux::OpenFailed));
            }
        }
    }
}
