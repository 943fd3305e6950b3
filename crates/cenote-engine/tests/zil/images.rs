//! Devices that are images in memory: opened as a pool, checked by cenote and by OpenZFS.

use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice};
use cenote_engine::Engine;
use cenote_pool::import::scan_devices;
use cenote_pool::{OpenOptions, Pool, leaks};
use cenote_rt::{Error, Result};
use cenote_testkit::cuts;
use cenote_testkit::golden::PrivateFolder;

/// Returns new devices with these images.
pub(crate) fn devices(images: Vec<Image>) -> Vec<Arc<ImageDevice>> {
    let device = |(number, image)| Arc::new(ImageDevice::new(format!("d{number}"), image));
    images.into_iter().enumerate().map(device).collect()
}

pub(crate) fn as_devices(devices: &[Arc<ImageDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

/// Returns the current contents of the devices.
pub(crate) fn images_of(devices: &[Arc<ImageDevice>]) -> Vec<Image> {
    devices.iter().map(|device| device.image()).collect()
}

/// Opens the pool "tank" for writing.
pub(crate) async fn open(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Engine>> {
    open_with(devices, &OpenOptions::default()).await
}

/// Opens the pool "tank" for writing, with options.
pub(crate) async fn open_with(
    devices: Vec<Arc<dyn Device>>,
    options: &OpenOptions,
) -> Result<Arc<Engine>> {
    let scan = scan_devices(devices.clone()).await;
    let found = scan.find("tank").map_err(|error| Error::not_found(error.to_string()))?;
    Engine::open_devices(devices, found.guid(), options).await
}

/// Opens the pool on the devices for reading.
pub(crate) async fn look(devices: &[Arc<ImageDevice>]) -> Result<Arc<Pool>> {
    let copies = self::devices(images_of(devices));
    let scan = scan_devices(as_devices(&copies)).await;
    let found = scan.find("tank").map_err(|error| Error::not_found(error.to_string()))?;
    Pool::open(found, &OpenOptions::default()).await
}

/// Runs the leak check on images.
pub(crate) async fn check_space(images: Vec<Image>) -> std::result::Result<(), String> {
    let fail = |error: Error| format!("{error:?}");
    let pool = look(&devices(images)).await.map_err(fail)?;
    let report = leaks::check(&pool).await.map_err(fail)?;
    if report.is_clean() { Ok(()) } else { Err(format!("space: {:?}", report.lines())) }
}

/// Checks the pool with OpenZFS: no leaks, and all blocks are correct. Returns its output for
/// `options`, if it is installed.
pub(crate) fn judge(devices: &[Arc<ImageDevice>], what: &str, options: &[&str]) -> Option<String> {
    let zdb = cenote_oracle::zdb()?;
    let folder = PrivateFolder::create(what);
    cuts::unpack(&images_of(devices), folder.path());
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
