//! `autoreplace`: a new, empty device in the place of one that is out of service replaces it.
//!
//! OpenZFS's daemon formats any new disk that it finds in that place. Here the device must be
//! blank: a path may lead to another disk after a restart of the host, and nobody is asked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_device::{Device, FileDevice, OpenMode};
use cenote_ondisk::config::VdevKind;
use cenote_rt::{BufMut, Error, Kind, Result};
use cenote_vdev::{VdevAux, VdevState, labels};

use super::config;
use crate::create::{LeafSpec, plan_leaf};
use crate::{Attach, Leaves};

/// Bytes at both ends of a device that must be zeros. Labels of pools, partition tables, and what
/// file systems and other volume managers are known by are there.
const ENDS: u64 = 4 << 20;
/// Bytes that are read at a time.
const PIECE: u64 = 64 << 10;
/// Pieces between the ends that must be zeros.
const PIECES: u64 = 64;

impl Leaves<'_> {
    /// Returns the leaves that a new device may replace by itself, with their paths: they are out
    /// of service, not on request, and are not being replaced. None if the pool does not have the
    /// property `autoreplace`, is suspended, has a checkpoint, or is losing a vdev.
    pub fn to_replace(self) -> Vec<(u64, String)> {
        let is_wanted = self.engine.leaf.autoreplace.load(Ordering::Relaxed)
            && !self.engine.is_read_only()
            && self.engine.health().suspended().is_none()
            && self.engine.space().check_no_checkpoint().is_ok()
            && self.engine.removals().check_none().is_ok();
        if !is_wanted {
            return Vec::new();
        }
        let root = self.engine.config().root;
        let is_out = |guid: u64| {
            self.engine.tree.vdev(guid).is_some_and(|vdev| match vdev.state() {
                VdevState::CantOpen | VdevState::Removed => true,
                VdevState::Faulted => vdev.aux() != VdevAux::External,
                _ => false,
            })
        };
        let is_replaced = |guid: u64| {
            config::parent_of(&root, guid).is_some_and(|parent| parent.kind == VdevKind::Replacing)
        };
        let leaves = root.leaves().filter(|leaf| leaf.kind.is_real_leaf());
        let leaves = leaves.filter(|leaf| is_out(leaf.guid) && !is_replaced(leaf.guid));
        let path = |text: &cenote_ondisk::nvlist::NvString| text.to_string_lossy().into_owned();
        leaves.filter_map(|leaf| Some((leaf.guid, path(leaf.leaf.path.as_ref()?)))).collect()
    }

    /// Replaces a leaf by the device at a path, if that is blank. Returns whether it did; a
    /// resilver is to be started then ([`Scans::resume`](crate::Scans::resume)).
    ///
    /// # Errors
    /// As for [`attach`](Self::attach), and errors of the new device.
    pub async fn replace_by_blank(self, guid: u64, path: &str) -> Result<bool> {
        // The new device has labels before the pool takes it: what is known to be refused now is
        // not tried.
        if self.engine.scans().is_rebuilding().await?
            || self.to_replace().iter().all(|(leaf, _)| *leaf != guid)
        {
            return Ok(false);
        }
        let opened = self.open_at_path(path, OpenMode::Exclusive).await;
        let Some(device) = opened else { return Ok(false) };
        if !is_blank(&*device).await? {
            return Ok(false);
        }
        let new = plan_leaf(&LeafSpec::of(device.info()), Arc::clone(&device))?;
        let new_guid = new.config.guid;
        let attached = self.attach(guid, new, Attach::Replace).await;
        if attached.is_err() && self.engine.config().root.find(new_guid).is_some() {
            return Ok(true);
        }
        // Of a pool that an error stopped, the last commit may be on its devices.
        if attached.is_err() && self.engine.check_stopped().is_ok() && !is_blank(&*device).await? {
            let clear = async { labels::clear(&*device).await };
            let cut = async { Ok(()) };
            self.before_close(clear, cut).await?;
        }
        attached.map(|()| true)
    }
}

/// Whether the device at a path is blank. It is opened for reading only.
///
/// # Errors
/// Errors of the device.
pub async fn is_blank_at(path: &str) -> Result<bool> {
    let path = path.to_owned();
    let opened = cenote_rt::blocking(move || FileDevice::open(path, OpenMode::ReadOnly)).await;
    let device = opened.map_err(|error| Error::new(Kind::Io, error))??;
    is_blank(&*device).await
}

/// Whether both ends of a device are zeros, and pieces between them.
async fn is_blank(device: &dyn Device) -> Result<bool> {
    let size = device.info().size;
    let last = size.saturating_sub(ENDS);
    let ends = (0..ENDS.min(size)).step_by(PIECE as usize);
    let ends = ends.chain((last..size).step_by(PIECE as usize));
    let step = (size / PIECES).max(PIECE).next_multiple_of(PIECE);
    for at in ends.chain((0..size).step_by(step as usize)) {
        let read = device.read(at, BufMut::zeroed(PIECE.min(size - at) as usize)).await?;
        if read.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}
