//! Helpers of this crate's unit tests.

use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice};
use cenote_vdev::create::{self, CreateSpec, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

use crate::Engine;
use crate::admin::create::CreateSpec as PoolSpec;

/// Creates a pool `t` in memory.
pub(crate) async fn pool() -> Arc<Engine> {
    let device: Arc<dyn Device> = Arc::new(ImageDevice::new("d", Image::zeroed(64 << 20)));
    let leaves = vec![LeafSpec::of(device.info())];
    let top = TopSpec { redundancy: Redundancy::Single, class: VdevClass::Normal, leaves };
    let spec = CreateSpec { tops: vec![top], ..CreateSpec::default() };
    let vdevs = create::pool(&spec, 4, &mut Guids::unguessable()).expect("spec");
    Engine::create(PoolSpec::new("t", vdevs, vec![device])).await.expect("made")
}
