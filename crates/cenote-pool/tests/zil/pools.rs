//! Small pools on images: made, opened, cut off, and looked at.

use std::path::Path;
use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice, create_file};
use cenote_pool::engine::Engine;
use cenote_pool::engine::create::CreateSpec;
use cenote_pool::import::scan_devices;
use cenote_pool::{OpenOptions, Pool, leaks};
use cenote_rt::{Result, Rng};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

/// Bytes of a device: the smallest there is.
pub(crate) const DEVICE_SIZE: u64 = 64 << 20;

/// Shapes of pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Disk,
    Mirror,
    Raidz1,
    Slog,
}

impl Layout {
    pub(crate) const ALL: [Self; 4] = [Self::Disk, Self::Mirror, Self::Raidz1, Self::Slog];

    fn tops(self) -> Vec<(Redundancy, VdevClass, usize)> {
        match self {
            Self::Disk => vec![(Redundancy::Single, VdevClass::Normal, 1)],
            Self::Mirror => vec![(Redundancy::Mirror, VdevClass::Normal, 2)],
            Self::Raidz1 => vec![(Redundancy::Raidz(1), VdevClass::Normal, 3)],
            Self::Slog => vec![
                (Redundancy::Single, VdevClass::Normal, 1),
                (Redundancy::Single, VdevClass::Log, 1),
            ],
        }
    }

    pub(crate) fn devices(self) -> usize {
        self.tops().iter().map(|(.., count)| count).sum()
    }
}

/// Makes a pool called "tank".
pub(crate) async fn make(
    layout: Layout,
    seed: u64,
    devices: Vec<Arc<dyn Device>>,
) -> Result<Arc<Engine>> {
    let mut leaves = devices.iter().map(|device| LeafSpec::of(device.info()));
    let tops = layout.tops().into_iter().map(|(redundancy, class, count)| TopSpec {
        redundancy,
        class,
        leaves: leaves.by_ref().take(count).collect(),
    });
    let spec = create::CreateSpec {
        tops: tops.collect(),
        ashift: Some(if layout == Layout::Raidz1 { 12 } else { 9 }),
        ..create::CreateSpec::default()
    };
    let mut rng = Rng::seeded(seed);
    let vdevs = create::pool(&spec, 4, &mut Guids::new(|| Ok(rng.next_u64())))?;
    Engine::create(CreateSpec::new("tank", vdevs, devices)).await
}

/// New devices on these images.
pub(crate) fn devices(images: Vec<Image>) -> Vec<Arc<ImageDevice>> {
    let device = |(number, image)| Arc::new(ImageDevice::new(format!("d{number}"), image));
    images.into_iter().enumerate().map(device).collect()
}

pub(crate) fn as_devices(devices: &[Arc<ImageDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

/// Opens the pool for writing.
pub(crate) async fn open(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Engine>> {
    open_with(devices, &OpenOptions::default()).await
}

/// The same in another way.
pub(crate) async fn open_with(
    devices: Vec<Arc<dyn Device>>,
    options: &OpenOptions,
) -> Result<Arc<Engine>> {
    let scan = scan_devices(devices.clone()).await;
    let found =
        scan.find("tank").map_err(|error| cenote_rt::Error::not_found(error.to_string()))?;
    Engine::open_devices(devices, found.guid(), options).await
}

/// What the leak check says of images.
pub(crate) async fn check_space(images: Vec<Image>) -> std::result::Result<(), String> {
    let fail = |error: cenote_rt::Error| format!("{error:?}");
    let scan = scan_devices(as_devices(&devices(images))).await;
    let candidate = scan.find("tank").map_err(|error| error.to_string())?;
    let pool = Pool::open(candidate, &OpenOptions::default()).await.map_err(fail)?;
    let report = leaks::check(&pool).await.map_err(fail)?;
    if report.is_clean() { Ok(()) } else { Err(format!("space: {:?}", report.lines())) }
}

/// Puts images into files of a folder.
pub(crate) fn unpack(images: &[Image], folder: &Path) {
    use std::os::unix::fs::FileExt;
    std::fs::create_dir_all(folder).unwrap();
    for (number, image) in images.iter().enumerate() {
        let path = folder.join(format!("d{number}.img"));
        std::fs::remove_file(&path).ok();
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

/// What OpenZFS says of images: nothing leaks, and every log can be printed. True if it was asked.
pub(crate) fn judge(images: &[Image], what: &str) -> bool {
    let Some(zdb) = cenote_oracle::zdb() else { return false };
    let folder = std::env::temp_dir().join(format!("cenote-zil-{}-{what}", std::process::id()));
    unpack(images, &folder);
    for options in ["-bcc", "-iiii"] {
        let said = zdb.pool("tank", &folder, &[options]);
        assert!(said.is_success(), "{what}: zdb {options}: {said}");
    }
    std::fs::remove_dir_all(&folder).ok();
    true
}
