//! Devices that have become longer (`zpool reopen`, `zpool online -e`; spec 06 §2.1, §10).
//!
//! ```text
//!   device longer ──adopt──> labels at its new end, size shown as expandable
//!                 ──use────> counts for the size of the vdev, once its other sides have room, too
//! ```
//!
//! A leaf adopts the size of its device when the administrator requests it: until then the labels
//! are where they were when the device was opened. A vdev does not become larger by that alone.

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_ondisk::label;
use cenote_rt::Result;

use crate::leaf::Leaf;

/// Sizes of a leaf that its vdev determines.
#[derive(Debug, Default)]
pub(crate) struct LeafSizes {
    /// Bytes of data that the device must have room for; 0 if the config does not say.
    pub(crate) least_asize: AtomicU64,
    /// Bytes of the device that count for the size of the vdev; 0 until there was a device.
    used: AtomicU64,
}

impl LeafSizes {
    pub(crate) fn of_device(size: u64) -> Self {
        Self { used: size.into(), ..Self::default() }
    }
}

impl Leaf {
    /// Lets the leaf, if it is in service, use labels at the end of its device, if that has become
    /// longer. Returns whether it has. To be called while no commit runs, since the leaf gets
    /// another device for [`generation`](Self::generation).
    ///
    /// # Errors
    /// Errors of the device; `Kind::Closed` once the tree was closed.
    pub async fn adopt_size(&self) -> Result<bool> {
        let Some(device) = self.device().filter(|_| self.is_writable()) else { return Ok(false) };
        let Some(longer) = device.grown().await? else { return Ok(false) };
        let trial = self.try_device(longer)?;
        self.end_trial(&trial, true)?;
        // Unflushed writes are written again to the new handle, before it gets more.
        self.flush().await.map_err(|(_, error)| error)?;
        Ok(true)
    }

    /// Lets the size of its vdev count all of its device.
    pub fn use_all(&self) {
        if let Some(device) = self.device() {
            self.sizes.used.store(device.info().size, Ordering::Relaxed);
        }
    }

    /// Bytes of its device that count for the size of its vdev; `None` without a device.
    pub fn used_size(&self) -> Option<u64> {
        let size = self.device()?.info().size;
        // A device that came back may be shorter, and the first one may come later.
        Some(match self.sizes.used.load(Ordering::Relaxed) {
            0 => size,
            used => used.min(size),
        })
    }

    /// Bytes of data by which its vdev may become larger through this leaf.
    pub fn unused_asize(&self) -> u64 {
        let Some(used) = self.used_size() else { return 0 };
        let whole = self.device().map_or(0, |device| device.info().size);
        label::leaf_asize(whole) - label::leaf_asize(used)
    }
}
