//! Layouts of new vdevs: from the devices that an administrator names to vdevs with guids.

use std::sync::Arc;

use cenote_device::Device;
use cenote_ondisk::config::VdevConfig;
use cenote_pool::import::PoolDevice;
use cenote_rt::Result;
/// Allocation classes and redundancy of new vdevs, their leaves, and reasons to refuse them.
pub use cenote_vdev::create::{
    CreateError, CreateSpec as PoolLayout, LeafSpec, Redundancy, TopSpec, VdevClass,
};
use cenote_vdev::create::{Created, Guids, cache, distributed_spares, leaf, pool, spare, top};

use super::create::FIRST_TXG;
use super::{Admin, NewVdevs};
use crate::NewLeaf;

/// Open devices by the guids of their leaves.
pub type LeafDevices = Vec<(u64, Arc<dyn Device>)>;

/// Returns an unpredictable guid, never 0.
///
/// # Errors
/// An error of the source of random numbers.
pub fn new_guid() -> Result<u64> {
    Guids::unguessable().next_guid()
}

/// Returns the vdevs of a new pool, with new guids, and their devices by leaf guid. `devices` are
/// found by the paths of the leaves.
///
/// # Errors
/// `Kind::Invalid` with a [`CreateError`], or an error of the source of random numbers.
pub fn plan_pool(layout: &PoolLayout, devices: &[PoolDevice]) -> Result<(Created, LeafDevices)> {
    let vdevs = pool(layout, FIRST_TXG, &mut Guids::unguessable())?;
    let leaves = vdevs.root.leaves().chain(&vdevs.spares).chain(&vdevs.caches);
    let devices = devices_of(leaves, devices);
    Ok((vdevs, devices))
}

impl Admin<'_> {
    /// Returns the vdevs of a layout with new guids, as [`add_vdevs`](Admin::add_vdevs) takes them.
    /// `devices` are found by the paths of the leaves. Changes nothing.
    ///
    /// # Errors
    /// `Kind::Invalid` with a [`CreateError`], or an error of the source of random numbers.
    pub fn plan_vdevs(self, layout: &PoolLayout, devices: &[PoolDevice]) -> Result<NewVdevs> {
        let mut guids = Guids::unguessable();
        let (first, txg) = (self.next_vdev_id(), self.engine.open_txg());
        let (mut tops, mut spares, mut caches) = (Vec::new(), Vec::new(), Vec::new());
        let mut distributed = Vec::new();
        for (id, spec) in (first..).zip(&layout.tops) {
            let top = top(spec, id, layout.ashift, txg, &mut guids)?;
            distributed.extend(distributed_spares(&top, &mut guids)?);
            tops.push((top, spec.class));
        }
        for spec in &layout.spares {
            spares.push(spare(spec, &mut guids)?);
        }
        // In OpenZFS's order, in which spares are called in.
        spares.extend(distributed);
        for spec in &layout.caches {
            caches.push(cache(spec, layout.ashift, &mut guids)?);
        }
        let leaves = tops.iter().flat_map(|(top, _)| top.leaves());
        let devices = devices_of(leaves.chain(&spares).chain(&caches), devices);
        Ok(NewVdevs { tops, spares, caches, devices })
    }
}

/// Returns a leaf with a new guid that is to be attached to a vdev, or to replace a leaf.
///
/// # Errors
/// `Kind::Invalid` with a [`CreateError`], or an error of the source of random numbers.
pub fn plan_leaf(spec: &LeafSpec, device: Arc<dyn Device>) -> Result<NewLeaf> {
    let config = leaf(spec, 0, 0, &mut Guids::unguessable())?;
    let device = Some(device);
    Ok(NewLeaf { config, device, ashift: spec.logical_ashift, is_sequential: false })
}

/// Returns a distributed spare of the pool, given by its entry in the list of spares, as a leaf
/// that is to replace another one.
#[must_use]
pub fn plan_distributed_spare(spare: &VdevConfig) -> NewLeaf {
    let mut config = spare.clone();
    config.leaf.is_spare = true;
    NewLeaf { config, device: None, ashift: 0, is_sequential: false }
}

/// Returns the devices with the paths of the leaves, by leaf guid. Distributed spares have none.
fn devices_of<'a>(
    leaves: impl Iterator<Item = &'a VdevConfig>,
    devices: &[PoolDevice],
) -> LeafDevices {
    let device = |leaf: &VdevConfig| {
        let path = leaf.leaf.path.as_ref()?;
        let is_at_path =
            |device: &&PoolDevice| device.leaf_spec().is_some_and(|spec| spec.path == *path);
        let device = devices.iter().find(is_at_path)?;
        Some((leaf.guid, Arc::clone(device.device())))
    };
    leaves.filter_map(device).collect()
}
