//! The file systems that have a live FUSE connection.
//!
//! Invariants
//! * MOUNT-1  A dataset has at most one live FUSE connection. Two connections would be two file
//!   systems for the kernel: each caches pages, names and lengths of files that programs change
//!   through the other, and an `O_APPEND` write through one overwrites data that was synced through
//!   the other.
//!
//! A connection lives from before it is mounted until the kernel has ended it and its last request
//! is answered. That can be long after its file system was unmounted: a process has files open, or
//! another mount namespace has copies of the mount. Until then every mount of the dataset uses the
//! same connection ([`FuseMount::mount_again`](super::FuseMount::mount_again)), or is refused.
//!
//! [`Served::claim`] checks this, in every build, for each new connection. Other processes cannot
//! serve the dataset: the devices of the pool are locked.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_engine::Engine;
use cenote_fs::Mount;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result};

use super::FuseError;

/// The address of an open pool, and the number of a dataset.
type Key = (usize, u64);

/// The datasets with a live connection. LOCK: held for a lookup.
static SERVED: Mutex<BTreeSet<Key>> = Mutex::new(Rank::FuseServed, BTreeSet::new());

/// The right to have the only live connection of a dataset; dropped when the connection has ended.
#[derive(Debug)]
pub(super) struct Served {
    key: Key,
    /// Keeps the address from being reused.
    _engine: Arc<Engine>,
}

impl Served {
    /// Claims a dataset for a new connection.
    ///
    /// # Errors
    /// [`FuseError::Served`], `Kind::Busy`, if the dataset has a live connection.
    pub(super) fn claim(mount: &Mount) -> Result<Self> {
        let engine = Arc::clone(mount.engine());
        let key = (Arc::as_ptr(&engine).addr(), mount.head().object());
        let is_new = SERVED.lock().insert(key);
        // Checks MOUNT-1.
        if !is_new && !is_on(Bug::SecondConnection) {
            return Err(Error::new(Kind::Busy, FuseError::Served));
        }
        Ok(Self { key, _engine: engine })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let was_there = SERVED.lock().remove(&self.key);
        // Checks MOUNT-1.
        assert!(was_there || is_on(Bug::SecondConnection), "a connection ended twice");
    }
}
