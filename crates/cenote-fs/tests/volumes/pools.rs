//! Small pools on images.

use std::path::Path;
use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice, create_file};
use cenote_pool::engine::Engine;
use cenote_pool::engine::create::CreateSpec;
use cenote_pool::import::scan_devices;
use cenote_pool::{Dataset, OpenOptions, Pool, leaks};
use cenote_rt::{Result, Rng};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

use cenote_fs::format::{FsOwners, NewFileSystem};
use cenote_ondisk::znode::Time;

/// Bytes of a device.
pub(crate) const DEVICE_SIZE: u64 = 64 << 20;

/// What a pool is made of.
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

pub(crate) fn devices(images: Vec<Image>) -> Vec<Arc<ImageDevice>> {
    let device = |(number, image)| Arc::new(ImageDevice::new(format!("d{number}"), image));
    images.into_iter().enumerate().map(device).collect()
}

pub(crate) fn as_devices(devices: &[Arc<ImageDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

/// Makes a pool called "tank", whose root is an empty file system.
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

/// A pool on new devices.
pub(crate) async fn fresh(shape: &Shape) -> (Arc<Engine>, Vec<Arc<ImageDevice>>) {
    let devices = shape.devices();
    (make(shape, 7, as_devices(&devices)).await.unwrap(), devices)
}

/// Opens the pool for writing.
pub(crate) async fn open(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Engine>> {
    let scan = scan_devices(devices.clone()).await;
    let found =
        scan.find("tank").map_err(|error| cenote_rt::Error::not_found(error.to_string()))?;
    Engine::open_devices(devices, found.guid(), &OpenOptions::default()).await
}

/// The pool as it is on the devices, opened for reading.
pub(crate) async fn look(devices: &[Arc<ImageDevice>]) -> Result<Arc<Pool>> {
    let images = devices.iter().map(|device| device.image()).collect();
    let scan = scan_devices(as_devices(&self::devices(images))).await;
    let found =
        scan.find("tank").map_err(|error| cenote_rt::Error::not_found(error.to_string()))?;
    Pool::open(found, &OpenOptions::default()).await
}

/// A number of a dataset's properties.
pub(crate) async fn number(dataset: &Dataset, property: &str) -> u64 {
    let row = dataset.props().await.unwrap().get(property).await.unwrap();
    match row.unwrap().value {
        cenote_pool::props::PropValue::Number(number) => number,
        other => panic!("{property}: {other:?}"),
    }
}

/// What the leak check says.
pub(crate) async fn check_space(images: Vec<Image>) -> std::result::Result<(), String> {
    let fail = |error: cenote_rt::Error| format!("{error:?}");
    let pool = look(&devices(images)).await.map_err(fail)?;
    let report = leaks::check(&pool).await.map_err(fail)?;
    if report.is_clean() { Ok(()) } else { Err(format!("space: {:?}", report.lines())) }
}

/// Puts images into files of a folder.
pub(crate) fn unpack(images: &[Image], folder: &Path) {
    use std::os::unix::fs::FileExt;
    std::fs::create_dir_all(folder).unwrap();
    for (number, image) in images.iter().enumerate() {
        let path = folder.join(format!("d{number}.img"));
        create_file(&path, image.size()).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let mut buf = vec![0; 1 << 20];
        for offset in (0..image.size()).step_by(buf.len()) {
            image.read_at(offset, &mut buf);
            if buf.iter().any(|byte| *byte != 0) {
                file.write_all_at(&buf, offset).unwrap();
            }
        }
    }
}

/// What OpenZFS says of the pool: nothing leaks and every block is what it should be. Gives what it
/// printed for these options, if it is there.
pub(crate) fn judge(devices: &[Arc<ImageDevice>], what: &str, options: &[&str]) -> Option<String> {
    let zdb = cenote_oracle::zdb()?;
    let images: Vec<_> = devices.iter().map(|device| device.image()).collect();
    let folder = std::env::temp_dir().join(format!("cenote-vol-{}-{what}", std::process::id()));
    unpack(&images, &folder);
    let said = zdb.pool("tank", &folder, &["-bcc"]);
    assert!(said.is_success(), "{what}: zdb -bcc: {said}");
    let mut printed = String::new();
    if !options.is_empty() {
        let said = zdb.pool("tank", &folder, options);
        assert!(said.is_success(), "{what}: zdb {options:?}: {said}");
        printed = said.to_string();
    }
    std::fs::remove_dir_all(&folder).ok();
    Some(printed)
}
