//! Helpers of this crate's unit tests.

use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice};
use cenote_vdev::create::{
    self, CreateSpec, Created, Guids, LeafSpec, Redundancy, TopSpec, VdevClass,
};

use crate::Engine;
use crate::admin::create::CreateSpec as PoolSpec;

/// Creates a pool `t` in memory.
pub(crate) async fn pool() -> Arc<Engine> {
    let device: Arc<dyn Device> = Arc::new(ImageDevice::new("d", Image::zeroed(64 << 20)));
    let vdevs = vdevs(Redundancy::Single, std::slice::from_ref(&device));
    Engine::create(PoolSpec::new("t", vdevs, vec![device])).await.expect("made")
}

/// Returns the configs of a new pool with one top-level vdev.
pub(crate) fn vdevs(redundancy: Redundancy, devices: &[Arc<dyn Device>]) -> Created {
    let leaves = devices.iter().map(|device| LeafSpec::of(device.info())).collect();
    let top = TopSpec { redundancy, class: VdevClass::Normal, leaves };
    let spec = CreateSpec { tops: vec![top], ..CreateSpec::default() };
    create::pool(&spec, 4, &mut Guids::unguessable()).expect("spec")
}
