//! Devices and pools for tests, and their checks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_device::{Device, FileDevice, OpenMode, create_file};
use cenote_dmu::Tx;
use cenote_dmu::live::ObjectSpec;
use cenote_engine::create::CreateSpec;
use cenote_engine::{ApplyOptions, Engine, Head, NewDataset};
use cenote_ondisk::feature::Feature;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Result, Rng};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

const DEVICE_SIZE: u64 = 128 << 20;

/// A directory that is removed on drop.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// A new one.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cenote-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Set to keep the pool that a test has created.
        if std::env::var_os("CENOTE_KEEP").is_none() {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }
}

/// Converts devices to the form that a pool takes.
pub(crate) fn as_devices<D: Device + 'static>(devices: &[Arc<D>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

/// A pool layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Its redundancy.
    pub(crate) name: &'static str,
    /// Number of devices.
    pub(crate) devices: usize,
    /// Log2 of the sector size.
    pub(crate) ashift: u64,
}

impl Layout {
    /// All tested layouts.
    pub(crate) const ALL: [Self; 5] = [
        Self { name: "disk", devices: 1, ashift: 9 },
        Self { name: "disk", devices: 1, ashift: 12 },
        Self { name: "mirror", devices: 2, ashift: 9 },
        Self { name: "raidz1", devices: 3, ashift: 12 },
        Self { name: "raidz2", devices: 6, ashift: 9 },
    ];
}

/// A pool in a directory.
pub(crate) struct TestPool {
    name: String,
    layout: Layout,
    paths: Vec<PathBuf>,
}

impl TestPool {
    /// Creates its devices.
    pub(crate) fn new(dir: &Path, name: &str, layout: Layout) -> Self {
        let paths: Vec<_> = (0..layout.devices).map(|n| dir.join(format!("d{n}.img"))).collect();
        for path in &paths {
            create_file(path, DEVICE_SIZE).unwrap();
        }
        Self { name: name.into(), layout, paths }
    }

    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        let open = |path: &PathBuf| {
            FileDevice::open(path, OpenMode::Exclusive).map(|device| device as Arc<dyn Device>)
        };
        self.paths.iter().map(open).collect()
    }

    /// Opens it again.
    pub(crate) async fn open(&self) -> Result<Arc<Engine>> {
        let scan = scan(&ScanOptions { paths: self.paths.clone() }).await?;
        let candidate = scan.find(&self.name).expect("the pool is on its devices");
        Engine::open(candidate, &OpenOptions::default()).await
    }

    /// Creates the pool.
    pub(crate) async fn create(&self) -> Result<Arc<Engine>> {
        let devices = self.devices()?;
        let redundancy = Redundancy::parse(self.layout.name).unwrap().unwrap_or(Redundancy::Single);
        let top = TopSpec {
            redundancy,
            class: VdevClass::Normal,
            leaves: devices.iter().map(|device| LeafSpec::of(device.info())).collect(),
        };
        let spec = create::CreateSpec {
            tops: vec![top],
            ashift: Some(self.layout.ashift),
            ..create::CreateSpec::default()
        };
        let vdevs = create::pool(&spec, 4, &mut Guids::unguessable())?;
        Engine::create(CreateSpec::new(&self.name, vdevs, devices)).await
    }
}

/// Creates a pool of these disks without redundancy.
pub(crate) async fn create_on(
    name: &str,
    devices: Vec<Arc<dyn Device>>,
    features: Vec<&'static Feature>,
) -> Result<Arc<Engine>> {
    create_with(name, devices, 9, features).await
}

/// Creates a pool with sectors of this size.
pub(crate) async fn create_with(
    name: &str,
    devices: Vec<Arc<dyn Device>>,
    ashift: u64,
    features: Vec<&'static Feature>,
) -> Result<Arc<Engine>> {
    let disk = |device: &Arc<dyn Device>| TopSpec {
        redundancy: Redundancy::Single,
        class: VdevClass::Normal,
        leaves: vec![LeafSpec::of(device.info())],
    };
    let spec = create::CreateSpec {
        tops: devices.iter().map(disk).collect(),
        ashift: Some(ashift),
        ..create::CreateSpec::default()
    };
    let vdevs = create::pool(&spec, 4, &mut Guids::unguessable())?;
    Engine::create(CreateSpec { features, ..CreateSpec::new(name, vdevs, devices) }).await
}

/// Returns a dataset of an unspecified type.
pub(crate) fn dataset(name: &str) -> NewDataset {
    let fill = Box::new(|_: &mut Tx<'_>| Ok(()));
    let (kind, props) = (ObjSetType::Other, Vec::new());
    NewDataset { name: name.into(), kind, props, fill }
}

/// Creates an object with blocks of 128 KiB.
pub(crate) async fn new_object(engine: &Engine, head: &Head) -> Result<u64> {
    let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 128 << 10);
    Ok(engine.apply(head, ApplyOptions::new(), |tx| tx.allocate(&spec)).await?.0)
}

/// Writes a block that compresses to about half.
pub(crate) async fn write(
    engine: &Engine,
    head: &Head,
    object: u64,
    block: u64,
    salt: u64,
) -> Result<()> {
    let mut bytes = vec![0; 128 << 10];
    Rng::seeded(block << 32 | salt).fill(&mut bytes[..64 << 10]);
    engine.apply(head, ApplyOptions::new(), |tx| tx.write(object, block << 17, &bytes)).await?;
    Ok(())
}

/// Checks the pool's checkpoint with OpenZFS.
pub(crate) fn judge_checkpoint(dir: &Path, name: &str) {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let said = zdb.pool(name, dir, &["-k", "-bcc", "-dd"]);
    assert!(said.is_success(), "{said}");
}

/// Checks the pool with OpenZFS. Reports if it is not installed.
pub(crate) fn judge(dir: &Path, name: &str) {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let said = zdb.pool(name, dir, &["-bcc", "-dddd", "-y", "-h"]);
    assert!(said.is_success() && said.stdout.contains("No leaks"), "{said}");
}
