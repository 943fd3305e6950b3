//! Pools in files and in memory: opened, written, checked by cenote and by OpenZFS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_codec::crypto::{KeyFormat, Pbkdf2, WrappingKey};
use cenote_device::{Device, FileDevice, Image, ImageDevice, OpenMode, Recorder, create_file};
use cenote_dmu::live::ObjectSpec;
use cenote_engine::{ApplyOptions, Engine, Head, NewDataset, UserKey};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::import::{ScanOptions, scan, scan_devices};
use cenote_pool::props::PropValue;
use cenote_pool::verify::{self, Finding, Observer, Progress, Summary};
use cenote_pool::{Dataset, OpenOptions, Pool, leaks};
use cenote_rt::{BoxFuture, Error, Result, Rng};
use cenote_testkit::cuts;
use cenote_testkit::golden::PrivateFolder;

use crate::PoolBuilder;

/// Returns builders of pools with each redundancy, and with both usual sector sizes.
pub fn layouts() -> [PoolBuilder; 5] {
    [("disk", 1, 9), ("disk", 1, 12), ("mirror", 2, 9), ("raidz1", 3, 12), ("raidz2", 6, 9)]
        .map(|(name, devices, ashift)| PoolBuilder::of(name, devices).with_ashift(ashift))
        .map(|builder| builder.with_size(128 << 20))
}

/// A pool in files of a directory.
pub struct TestPool {
    builder: PoolBuilder,
    paths: Vec<PathBuf>,
}

impl TestPool {
    /// Creates its files.
    pub fn new(dir: &Path, builder: PoolBuilder) -> Self {
        let paths = (0..builder.device_count()).map(|n| dir.join(format!("d{n}.img")));
        let paths: Vec<_> = paths.collect();
        for path in &paths {
            create_file(path, builder.device_size()).unwrap();
        }
        Self { builder, paths }
    }

    /// Creates the pool.
    ///
    /// # Errors
    /// Errors of a file.
    pub async fn create(&self) -> Result<Arc<Engine>> {
        let open = |path: &PathBuf| {
            FileDevice::open(path, OpenMode::Exclusive).map(|device| device as Arc<dyn Device>)
        };
        self.builder.create(self.paths.iter().map(open).collect::<Result<_>>()?).await
    }

    /// Opens the pool for writing.
    ///
    /// # Errors
    /// Errors of [`Engine::open`].
    pub async fn open(&self) -> Result<Arc<Engine>> {
        let scan = scan(&ScanOptions { paths: self.paths.clone() }).await?;
        let candidate = scan.find(self.builder.name()).expect("the pool is on its devices");
        Engine::open(candidate, &OpenOptions::default()).await
    }
}

/// Returns devices in memory with these contents.
pub fn devices(images: Vec<Image>) -> Vec<Arc<ImageDevice>> {
    let device = |(number, image)| Arc::new(ImageDevice::new(format!("d{number}"), image));
    images.into_iter().enumerate().map(device).collect()
}

/// Converts devices to the form that a pool takes.
pub fn as_devices<D: Device + 'static>(devices: &[Arc<D>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

/// Returns the contents of devices.
pub fn images_of(devices: &[Arc<ImageDevice>]) -> Vec<Image> {
    devices.iter().map(|device| device.image()).collect()
}

/// Returns devices that `recorder` records.
pub fn recorded(recorder: &Arc<Recorder>, devices: &[Arc<ImageDevice>]) -> Vec<Arc<dyn Device>> {
    let wrap = |device: &Arc<ImageDevice>| recorder.wrap(Arc::clone(device) as _, device.image());
    devices.iter().map(wrap).collect()
}

/// Opens the pool "tank" for writing.
///
/// # Errors
/// Errors of [`Engine::open_devices`].
pub async fn open(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Engine>> {
    open_with(devices, &OpenOptions::default()).await
}

/// Opens the pool "tank" for writing, with options.
///
/// # Errors
/// Errors of [`Engine::open_devices`].
pub async fn open_with(
    devices: Vec<Arc<dyn Device>>,
    options: &OpenOptions,
) -> Result<Arc<Engine>> {
    let scan = scan_devices(devices.clone()).await;
    let found = scan.find("tank").map_err(|error| Error::not_found(error.to_string()))?;
    Engine::open_devices(devices, found.guid(), options).await
}

/// Opens the pool "tank" for reading.
///
/// # Errors
/// Errors of [`Pool::open`].
pub async fn open_read_only(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Pool>> {
    let scan = scan_devices(devices).await;
    let found = scan.find("tank").map_err(|error| Error::not_found(error.to_string()))?;
    Pool::open(found, &OpenOptions::default()).await
}

/// Opens the pool "tank" in copies of the devices for reading.
///
/// # Errors
/// Errors of [`Pool::open`].
pub async fn open_copy(devices: &[Arc<ImageDevice>]) -> Result<Arc<Pool>> {
    open_read_only(as_devices(&self::devices(images_of(devices)))).await
}

/// Leaves what a verification finds to its summary.
pub struct Silent;

impl Observer for Silent {
    fn finding(&self, _: Finding) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Verifies every copy of every block. Also returns whether no leaf lacks anything.
///
/// # Errors
/// Errors that end a verification.
pub async fn verify(pool: &Arc<Pool>) -> Result<(Summary, bool)> {
    verify_with(pool, Arc::new(Silent)).await
}

/// Like [`verify`], with an observer.
///
/// # Errors
/// Errors that end a verification.
pub async fn verify_with(pool: &Arc<Pool>, observer: Arc<dyn Observer>) -> Result<(Summary, bool)> {
    let progress = Arc::<Progress>::default();
    let summary = verify::pool(pool, observer, Arc::clone(&progress)).await?;
    Ok((summary, progress.missing().is_empty()))
}

/// Returns a numeric property of a dataset.
///
/// # Panics
/// If the property is not numeric.
pub async fn number_property(dataset: &Dataset, property: &str) -> u64 {
    let row = dataset.props().await.unwrap().get(property).await.unwrap();
    match row.unwrap().value {
        PropValue::Number(number) => number,
        other => panic!("{property}: {other:?}"),
    }
}

/// Returns a dataset of an unspecified type.
pub fn dataset(name: &str) -> NewDataset {
    NewDataset::new(name, ObjSetType::Other)
}

/// Returns a raw key, which is asked for when it is loaded.
pub fn raw_key(material: [u8; 32]) -> UserKey {
    UserKey {
        key: Arc::new(WrappingKey::from_bytes(material)),
        format: KeyFormat::Raw,
        pbkdf2: Pbkdf2 { salt: 0, iterations: 0 },
        location: "prompt".to_owned(),
    }
}

/// Creates an object with blocks of 128 KiB.
///
/// # Errors
/// Errors of [`Engine::apply`].
pub async fn new_object(engine: &Engine, head: &Head) -> Result<u64> {
    let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 128 << 10);
    Ok(engine.apply(head, ApplyOptions::new(), |tx| tx.allocate(&spec)).await?.0)
}

/// Writes a block that compresses to about half.
///
/// # Errors
/// Errors of [`Engine::apply`].
pub async fn write(engine: &Engine, head: &Head, object: u64, block: u64, salt: u64) -> Result<()> {
    let mut bytes = vec![0; 128 << 10];
    Rng::seeded(block << 32 | salt).fill(&mut bytes[..64 << 10]);
    engine.apply(head, ApplyOptions::new(), |tx| tx.write(object, block << 17, &bytes)).await?;
    Ok(())
}

/// Checks that the space of a pool is what its blocks refer to.
///
/// # Panics
/// If anything leaks, or is used twice.
pub async fn assert_no_leaks(pool: &Arc<Pool>) {
    let report = leaks::check(pool).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.lines());
}

/// Runs the leak check on images of the pool "tank".
///
/// # Errors
/// The findings.
pub async fn check_space(images: Vec<Image>) -> std::result::Result<(), String> {
    let fail = |error: Error| format!("{error:?}");
    let pool = open_read_only(as_devices(&devices(images))).await.map_err(fail)?;
    let report = leaks::check(&pool).await.map_err(fail)?;
    if report.is_clean() { Ok(()) } else { Err(format!("space: {:?}", report.lines())) }
}

/// Checks the pool of a directory with OpenZFS. Reports if it is not installed.
///
/// # Panics
/// If `zdb` finds an error or a leak.
pub fn judge(dir: &Path, name: &str) {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let said = zdb.pool(name, dir, &["-bcc", "-dddd", "-y", "-h"]);
    assert!(said.is_success() && said.stdout.contains("No leaks"), "{said}");
}

/// Checks the pool "tank" in these images with OpenZFS.
///
/// # Panics
/// If `zdb` finds an error or a leak.
pub fn judge_images(images: &[Image]) {
    judge(unpack(images).path(), "tank");
}

/// Checks the checkpoint of the pool "tank" in these images with OpenZFS.
///
/// # Panics
/// If `zdb` finds an error.
pub fn judge_checkpoint(images: &[Image]) {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let said = zdb.pool("tank", unpack(images).path(), &["-k", "-bcc", "-dd"]);
    assert!(said.is_success(), "{said}");
}

/// Checks the blocks and the space of the pool "tank" on these devices with OpenZFS. Returns the
/// output of `zdb` for `options`; `None` if it is not installed.
///
/// # Panics
/// If `zdb` finds an error or a leak; `what` is in the message.
pub fn judge_devices(devices: &[Arc<ImageDevice>], what: &str, options: &[&str]) -> Option<String> {
    let zdb = cenote_oracle::zdb()?;
    let folder = unpack(&images_of(devices));
    let said = zdb.pool("tank", folder.path(), &["-bcc"]);
    assert!(said.is_clean(), "{what}: {said}");
    let mut printed = String::new();
    if !options.is_empty() {
        let said = zdb.pool("tank", folder.path(), options);
        assert!(said.is_success(), "{what}: {said}");
        printed = said.to_string();
    }
    Some(printed)
}

/// Writes images to files `d0.img`, `d1.img`, ... of a new folder.
pub fn unpack(images: &[Image]) -> PrivateFolder {
    let folder = PrivateFolder::create("pool");
    cuts::unpack(images, folder.path());
    folder
}
