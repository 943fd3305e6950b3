//! A device that a command opened by its path, before it belongs to an open pool.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenError, OpenMode, create_file};
use cenote_ondisk::nvlist::NvString;
use cenote_rt::{Buf, BufMut, Error, Result};
use cenote_vdev::create::LeafSpec;
use cenote_vdev::labels::{self, DeviceLabels};

use super::Found;

/// Reasons why a command cannot open a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A process has the device open exclusively: it is mounted, or belongs to an open pool.
    #[error(transparent)]
    InUse(Error),
    /// Any other error, with the path.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::InUse(error) | DeviceError::Failed(error) => error,
        }
    }
}

/// A regular file or block device that a command opened by its path. Clones share the open file.
#[derive(Debug, Clone)]
pub struct PoolDevice {
    path: PathBuf,
    device: Arc<dyn Device>,
}

impl PoolDevice {
    /// Opens a device for reading. Takes no lock.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] with the kind of the system's error, or `Kind::Invalid` if the path
    /// is neither a regular file nor a block device.
    pub async fn open_for_reading(path: &Path) -> Result<Self, DeviceError> {
        Self::open(path, OpenMode::ReadOnly).await
    }

    /// Opens a device for reading and writing, and locks it until the last clone is dropped.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if a process has locked it; else as for
    /// [`open_for_reading`](Self::open_for_reading).
    pub async fn open_exclusively(path: &Path) -> Result<Self, DeviceError> {
        Self::open(path, OpenMode::Exclusive).await
    }

    /// Creates a sparse file of `size` bytes.
    ///
    /// # Errors
    /// `Kind::Exists` if the path exists; else with the kind of the system's error.
    pub async fn create_file(path: &Path, size: u64) -> Result<()> {
        let path = path.to_owned();
        cenote_rt::blocking(move || create_file(&path, size)).await?
    }

    async fn open(path: &Path, mode: OpenMode) -> Result<Self, DeviceError> {
        let path = path.to_owned();
        let target = path.clone();
        match cenote_rt::blocking(move || FileDevice::open(&target, mode)).await? {
            Ok(device) => Ok(Self { path, device }),
            Err(error) if matches!(error.cause(), Some(OpenError::InUse(_))) => {
                Err(DeviceError::InUse(error))
            }
            Err(error) => Err(DeviceError::Failed(error)),
        }
    }

    /// Returns the path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the leaf that it would be in a new vdev; `None` if the path contains a NUL byte.
    pub fn leaf_spec(&self) -> Option<LeafSpec> {
        let path = NvString::from_bytes(self.path.as_os_str().as_bytes())?;
        Some(LeafSpec { path, ..LeafSpec::of(self.device.info()) })
    }

    /// Reads its four labels. Read errors are recorded in each label.
    pub async fn labels(&self) -> DeviceLabels {
        labels::read(&*self.device).await
    }

    /// Returns the leaf and the pool that its labels name; `None` if it has no usable label.
    pub async fn found(&self) -> Option<Found> {
        Found::read(Arc::clone(&self.device)).await
    }

    /// Overwrites its labels with zeros: it belongs to no pool any more.
    ///
    /// # Errors
    /// `Kind::Io` if a label cannot be overwritten; `Kind::ReadOnly` if it was opened for reading.
    pub async fn clear_labels(&self) -> Result<()> {
        labels::clear(&*self.device).await
    }

    /// Reads `len` bytes at byte `offset` of the device.
    ///
    /// # Errors
    /// `Kind::Io` with path and offset, also if the range leaves the device.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Buf> {
        Ok(self.device.read(offset, BufMut::zeroed(len)).await?.freeze())
    }

    /// Returns the open device, for the engine.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_rt::Kind;
    use cenote_testkit::golden::PrivateFolder;

    #[test]
    fn an_exclusive_device_is_in_use_until_its_last_clone_is_dropped() {
        let folder = PrivateFolder::create("pool-device");
        let path = folder.path().join("d0");
        std::fs::write(&path, vec![7; 1 << 20]).expect("a file");
        let done = cenote_rt::block_on(1, async {
            let first = PoolDevice::open_exclusively(&path).await.expect("opens");
            assert_eq!(first.path(), path);
            let spec = first.leaf_spec().expect("no NUL in the path");
            assert_eq!((spec.path.to_str(), spec.size), (path.to_str(), 1 << 20));
            let second = first.clone();
            drop(first);
            let refused = PoolDevice::open_exclusively(&path).await;
            assert!(matches!(refused, Err(DeviceError::InUse(_))), "{refused:?}");
            let reader = PoolDevice::open_for_reading(&path).await.expect("takes no lock");
            assert_eq!(reader.read(100, 5).await.expect("bytes")[..], [7; 5]);
            let refused = reader.clear_labels().await.expect_err("is open for reading");
            assert_eq!(refused.kind(), Kind::ReadOnly);
            drop(second);
            PoolDevice::open_exclusively(&path).await.expect("opens again");
        });
        done.expect("a runtime");
    }

    #[test]
    fn a_missing_device_and_a_folder_are_errors_of_their_kind() {
        let folder = PrivateFolder::create("pool-device-kinds");
        let done = cenote_rt::block_on(1, async {
            let kind = async |path: &Path| match PoolDevice::open_for_reading(path).await {
                Err(DeviceError::Failed(error)) => error.kind(),
                other => panic!("{other:?}"),
            };
            assert_eq!(kind(folder.path()).await, Kind::Invalid);
            assert_eq!(kind(&folder.path().join("none")).await, Kind::NotFound);
        });
        done.expect("a runtime");
    }
}
