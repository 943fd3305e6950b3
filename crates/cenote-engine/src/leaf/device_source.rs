//! Opens devices by the paths in the config: hot spares, cache devices, and leaves that come back.

use std::fmt;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenMode};
use cenote_rt::BoxFuture;

use crate::Leaves;

/// Opens devices by their paths, for hosts on which they are no files.
pub trait DeviceSource: fmt::Debug + Send + Sync {
    /// Opens the device at `path`; `None` if there is none, or if it is to be opened exclusively
    /// and is open.
    fn open<'a>(&'a self, path: &'a str, mode: OpenMode) -> BoxFuture<'a, Option<Arc<dyn Device>>>;
}

impl Leaves<'_> {
    /// Opens devices with `source` from now on, and not as files. Only the first call for a pool
    /// has an effect.
    pub fn set_device_source(self, source: Arc<dyn DeviceSource>) {
        drop(self.engine.leaf.device_source.set(source));
    }

    /// Opens the device at a path; `None` if it cannot be opened.
    pub(crate) async fn open_at_path(self, path: &str, mode: OpenMode) -> Option<Arc<dyn Device>> {
        if let Some(source) = self.engine.leaf.device_source.get() {
            return source.open(path, mode).await;
        }
        let path = path.to_owned();
        cenote_rt::blocking(move || FileDevice::open(path, mode)).await.ok()?.ok()
    }
}
