//! Creates pools of any layout on any devices.

use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice};
use cenote_engine::Engine;
use cenote_engine::admin::NewVdevs;
use cenote_engine::create::CreateSpec;
use cenote_fs::format::{FsOwners, NewFileSystem};
use cenote_ondisk::feature::Feature;
use cenote_ondisk::znode::Time;
use cenote_rt::{Result, Rng};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

use crate::pools;

/// A top-level vdev: its redundancy, its allocation class, and the number of its devices.
pub type Top = (Redundancy, VdevClass, usize);

/// The first txg of a new pool.
const FIRST_TXG: u64 = 4;

/// A pool to be created. By default its name is "tank", its devices have 64 MiB, the minimum, with
/// sectors of 512 bytes, its guids are random, its root dataset is empty, and it has the features
/// of a new pool.
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    name: String,
    tops: Vec<Top>,
    device_size: u64,
    ashift: u64,
    features: Vec<&'static Feature>,
    seed: Option<u64>,
    has_file_system: bool,
}

impl PoolBuilder {
    /// Returns a builder of a pool with these top-level vdevs.
    #[must_use]
    pub fn new(tops: Vec<Top>) -> Self {
        let features = cenote_pool::features::identity().collect();
        Self {
            name: "tank".into(),
            tops,
            device_size: 64 << 20,
            ashift: 9,
            features,
            seed: None,
            has_file_system: false,
        }
    }

    /// Returns a builder of a pool with one top-level vdev, which is named like in `zpool create`:
    /// `disk`, `mirror`, `raidz2`, `draid1:2d:4c:1s`.
    #[must_use]
    pub fn of(redundancy: &str, devices: usize) -> Self {
        Self::new(vec![(redundancy_of(redundancy), VdevClass::Normal, devices)])
    }

    /// Returns a builder of a pool of disks without redundancy.
    #[must_use]
    pub fn disks(count: usize) -> Self {
        Self::new(vec![(Redundancy::Single, VdevClass::Normal, 1); count])
    }

    /// Returns a builder of a pool of one disk with sectors of 4 KiB, whose root dataset is a file
    /// system. The guids are always equal.
    #[must_use]
    pub fn file_system() -> Self {
        Self::disks(1).with_ashift(12).with_seed(7).with_file_system()
    }

    /// Makes the root dataset an empty file system.
    #[must_use]
    pub fn with_file_system(self) -> Self {
        Self { has_file_system: true, ..self }
    }

    /// Adds disks for intent logs.
    #[must_use]
    pub fn with_logs(mut self, count: usize) -> Self {
        self.tops.extend(vec![(Redundancy::Single, VdevClass::Log, 1); count]);
        self
    }

    /// Sets the size of the devices that the builder makes.
    #[must_use]
    pub fn with_size(self, device_size: u64) -> Self {
        Self { device_size, ..self }
    }

    /// Sets the name.
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets the log2 of the sector size.
    #[must_use]
    pub fn with_ashift(self, ashift: u64) -> Self {
        Self { ashift, ..self }
    }

    /// Draws the guids from a seeded generator.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Sets the enabled features.
    #[must_use]
    pub fn with_features(self, features: Vec<&'static Feature>) -> Self {
        Self { features, ..self }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of devices.
    pub fn device_count(&self) -> usize {
        self.tops.iter().map(|(.., devices)| devices).sum()
    }

    /// Returns the size of a device.
    pub fn device_size(&self) -> u64 {
        self.device_size
    }

    /// Returns empty devices in memory.
    pub fn memory_devices(&self) -> Vec<Arc<ImageDevice>> {
        pools::devices(vec![Image::zeroed(self.device_size); self.device_count()])
    }

    /// Creates the pool on new devices in memory.
    ///
    /// # Panics
    /// If the layout is not valid on these devices.
    pub async fn create_in_memory(&self) -> (Arc<Engine>, Vec<Arc<ImageDevice>>) {
        let devices = self.memory_devices();
        (self.create(pools::as_devices(&devices)).await.unwrap(), devices)
    }

    /// Creates the pool on these devices, in the order of the top-level vdevs, and opens it for
    /// writing.
    ///
    /// # Errors
    /// Errors of a device.
    ///
    /// # Panics
    /// If the layout is not valid on these devices.
    pub async fn create(&self, devices: Vec<Arc<dyn Device>>) -> Result<Arc<Engine>> {
        assert_eq!(devices.len(), self.device_count());
        let mut unused = &devices[..];
        let mut tops = Vec::new();
        for (redundancy, class, count) in &self.tops {
            let (leaves, rest) = unused.split_at(*count);
            tops.push(top_spec(*redundancy, *class, leaves));
            unused = rest;
        }
        let spec = create::CreateSpec { tops, ashift: Some(self.ashift), ..Default::default() };
        let vdevs = match self.seed {
            Some(seed) => {
                let mut rng = Rng::seeded(seed);
                create::pool(&spec, FIRST_TXG, &mut Guids::new(|| Ok(rng.next_u64())))
            }
            None => create::pool(&spec, FIRST_TXG, &mut Guids::unguessable()),
        };
        let mut spec = CreateSpec::new(&self.name, vdevs.unwrap(), devices);
        spec.features.clone_from(&self.features);
        if self.has_file_system {
            spec.fill_root = Box::new(|tx| NewFileSystem::at(Time::default()).fill(tx));
            spec.probe = Some(Arc::new(FsOwners { counts_objects: true, counts_projects: true }));
        }
        Engine::create(spec).await
    }
}

/// Returns the redundancy with this name.
///
/// # Panics
/// If the name is malformed.
pub fn redundancy_of(name: &str) -> Redundancy {
    Redundancy::parse(name).unwrap().unwrap_or(Redundancy::Single)
}

/// Returns a top-level vdev that can be added to a pool next (`zpool add`).
///
/// # Errors
/// Errors of `guids`.
pub fn new_vdev(
    engine: &Engine,
    (redundancy, class): (Redundancy, VdevClass),
    ashift: u64,
    devices: &[Arc<dyn Device>],
    guids: &mut Guids<impl FnMut() -> Result<u64>>,
) -> Result<NewVdevs> {
    let (spec, id) = (top_spec(redundancy, class, devices), engine.admin().next_vdev_id());
    let top = create::top(&spec, id, Some(ashift), 1, guids)?;
    let leaves: Vec<_> = top.leaves().map(|leaf| leaf.guid).collect();
    Ok(NewVdevs {
        tops: vec![(top, class)],
        spares: Vec::new(),
        caches: Vec::new(),
        devices: leaves.into_iter().zip(devices.iter().map(Arc::clone)).collect(),
    })
}

fn top_spec(redundancy: Redundancy, class: VdevClass, devices: &[Arc<dyn Device>]) -> TopSpec {
    let leaves = devices.iter().map(|device| LeafSpec::of(device.info())).collect();
    TopSpec { redundancy, class, leaves }
}
