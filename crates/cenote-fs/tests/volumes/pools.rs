//! Small pools on images.

use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice};
use cenote_engine::Engine;
use cenote_engine::create::CreateSpec;
use cenote_pool::Dataset;
use cenote_rt::{Result, Rng};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

use cenote_fs::format::{FsOwners, NewFileSystem};
use cenote_ondisk::znode::Time;

pub(crate) use crate::images::{as_devices, check_space, devices, images_of, judge, look, open};

/// Bytes of a device.
pub(crate) const DEVICE_SIZE: u64 = 64 << 20;

/// The devices of a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) redundancy: Redundancy,
    pub(crate) width: usize,
    pub(crate) ashift: u64,
    pub(crate) has_slog: bool,
    pub(crate) size: u64,
}

impl Shape {
    /// One disk of 4K sectors.
    pub(crate) const DISK: Self = Self {
        redundancy: Redundancy::Single,
        width: 1,
        ashift: 12,
        has_slog: false,
        size: DEVICE_SIZE,
    };

    pub(crate) fn images(&self) -> Vec<Image> {
        (0..self.width + usize::from(self.has_slog)).map(|_| Image::zeroed(self.size)).collect()
    }

    pub(crate) fn devices(&self) -> Vec<Arc<ImageDevice>> {
        devices(self.images())
    }
}

/// Creates a pool called "tank", whose root is an empty file system.
pub(crate) async fn make(
    shape: &Shape,
    seed: u64,
    devices: Vec<Arc<dyn Device>>,
) -> Result<Arc<Engine>> {
    let mut leaves = devices.iter().map(|device| LeafSpec::of(device.info()));
    let mut top = |redundancy, class, width| {
        let leaves = leaves.by_ref().take(width).collect();
        TopSpec { redundancy, class, leaves }
    };
    let mut tops = vec![top(shape.redundancy, VdevClass::Normal, shape.width)];
    if shape.has_slog {
        tops.push(top(Redundancy::Single, VdevClass::Log, 1));
    }
    let spec =
        create::CreateSpec { tops, ashift: Some(shape.ashift), ..create::CreateSpec::default() };
    let mut rng = Rng::seeded(seed);
    let vdevs = create::pool(&spec, 4, &mut Guids::new(|| Ok(rng.next_u64())))?;
    let mut spec = CreateSpec::new("tank", vdevs, devices);
    spec.fill_root = Box::new(|tx| NewFileSystem::at(Time::default()).fill(tx));
    spec.probe = Some(Arc::new(FsOwners { counts_objects: true, counts_projects: true }));
    Engine::create(spec).await
}

/// Creates a pool on new devices.
pub(crate) async fn fresh(shape: &Shape) -> (Arc<Engine>, Vec<Arc<ImageDevice>>) {
    let devices = shape.devices();
    (make(shape, 7, as_devices(&devices)).await.unwrap(), devices)
}

/// Returns a numeric property of a dataset.
pub(crate) async fn number(dataset: &Dataset, property: &str) -> u64 {
    let row = dataset.props().await.unwrap().get(property).await.unwrap();
    match row.unwrap().value {
        cenote_pool::props::PropValue::Number(number) => number,
        other => panic!("{property}: {other:?}"),
    }
}
