//! A file system that is open for reading and writing.
//!
//! ```text
//!   FUSE, tests, programs ──> Mount: async operations on object numbers, with credentials
//!                               |     handles keep unnamed files, range locks, cookies
//!                               v
//!                             edit::*  one transaction each, admitted with its worst case
//!                               |  `── records ──> intent log ──fsync──> durable
//!                               v
//!                             the head's object set ──txg──> disk
//! ```
//!
//! Nodes are identified by their object numbers, which are their inode numbers. Every operation is
//! one transaction, or, if the request is long, several under a lock on its range of bytes, so that
//! others see all of it or nothing. Operations wait for a disk only for blocks that must be read,
//! for requested durability, and while too many changes are in memory.
//!
//! A [`Handle`] keeps a node that loses its last name. When the last handle is dropped, the node is
//! queued to be freed, which the next modifying operation does, or [`Mount::reap`]; nodes still
//! queued when the program ends are freed by the next mount.
//!
//! Errors have an [`FsError`](crate::FsError) as cause, or a kind that [`errno::of`] converts to
//! the number of a system call.
//!
//! Concurrency: all functions may be called concurrently. Order of locks: range locks (of one
//! node), then the object set's, then the small ones in this module and in [`Facts`].
//!
//! Sources: spec 03 §9-§13, 04 §17, 07 A7.

mod attributes;
pub mod control;
mod data;
mod device;
pub mod errno;
mod holes;
mod inode_cache;
mod names;
mod open;
mod recount;
mod rollback;
mod statfs;
mod sync;
mod xattr;

use std::sync::Arc;

use cenote_dmu::TxResult;
use cenote_dmu::live::Prefetcher;
use cenote_engine::{ApplyOptions, Charge, Engine, Head, Ownership};
use cenote_ondisk::znode::Time;
use cenote_rt::lock::{Mutex, MutexGuard};
use cenote_rt::{Error, FixedMap, Kind, Result};

use crate::access::Credentials;
use crate::edit::{self, Facts, Op};
use crate::error::FsError;
use crate::range_lock::RangeLocks;

use self::inode_cache::InodeCache;
use self::recount::Recounter;

pub use crate::edit::{DirEntry, ReadDirPage};
pub use attributes::Attributes;
pub use data::{AccessTimes, Allocate, WriteOptions, caches_data};
pub use device::{decode_dev, encode_rdev};
pub use holes::Seek;
pub use open::Handle;
pub use statfs::Space;

/// Maximum written by a change of attributes: some dnodes, a spill block, a new layout.
const ATTRIBUTES_COST: u64 = 8 << 10;

/// Snapshots by name and number.
type SnapshotList = Vec<(String, u64)>;

/// A file system that is open for reading and writing.
pub struct Mount {
    /// Counts what each owner has.
    recounter: Recounter,
    name: String,
    engine: Arc<Engine>,
    head: Arc<Head>,
    /// Keeps the dataset from being destroyed or rolled back; `None` while its contents are
    /// replaced. LOCK: held for a lookup.
    ownership: Mutex<Option<Ownership>>,
    /// Time of opening, which is the time of nodes that are not stored.
    opened: Time,
    /// The last seen list of snapshots, and the time since which it is unchanged. LOCK: held for a
    /// lookup.
    snapshots_seen: Mutex<Option<(SnapshotList, Time)>>,
    /// Whether the mount was opened read-only.
    is_read_only: bool,
    /// Access time settings of the mount. LOCK: held for a lookup.
    access_times: Mutex<AccessTimes>,
    /// The change count of properties at this mount's last refresh.
    settings_count: Mutex<u64>,
    /// State shared by all mounts of the head.
    shared: Arc<Shared>,
    /// Cached inodes of files being read.
    inodes: InodeCache,
    /// State of reading ahead.
    ahead: Prefetcher,
    /// Nodes queued to be freed. LOCK: held for a lookup.
    to_reap: Arc<Mutex<Vec<u64>>>,
    /// Nodes that could not be freed. LOCK: held for a lookup.
    unreaped: Mutex<Vec<u64>>,
}

impl Mount {
    /// Returns the name of the dataset.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pool.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the head of the dataset.
    #[must_use]
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// Returns the cached state of the file system.
    #[must_use]
    pub fn facts(&self) -> &Arc<Facts> {
        &self.shared.facts
    }

    /// Returns the root directory.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.shared.facts.root
    }

    /// Whether the file system is read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only || self.shared.facts.settings().is_read_only
    }

    /// Whether the mount was opened read-only, independent of properties.
    #[must_use]
    pub fn is_opened_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the access time settings that override properties.
    #[must_use]
    pub fn access_times(&self) -> AccessTimes {
        *lock(&self.access_times)
    }

    /// Sets the access time settings that override properties.
    pub fn set_access_times(&self, wanted: AccessTimes) {
        *lock(&self.access_times) = wanted;
    }

    /// Runs a modifying operation for `cred`.
    pub(crate) async fn change<T>(
        &self,
        charge: Charge,
        cred: Option<&Credentials>,
        change: impl FnMut(&mut Op<'_, '_>) -> TxResult<T>,
    ) -> Result<T> {
        self.refresh().await?;
        if self.is_read_only() {
            return Err(Error::new(Kind::ReadOnly, FsError::ReadOnly));
        }
        let value = self.apply(charge, cred, change).await?;
        self.recounter.note_change(self);
        if self.head.log().must_commit(false) {
            self.make_durable(None).await?;
        }
        self.reap_pending().await;
        Ok(value)
    }

    /// Runs a modifying operation without the steps before and after it.
    async fn apply<T>(
        &self,
        charge: Charge,
        cred: Option<&Credentials>,
        mut change: impl FnMut(&mut Op<'_, '_>) -> TxResult<T>,
    ) -> Result<T> {
        let now = now();
        let log = self.head.log();
        let options = ApplyOptions::charged(charge).logged();
        let applied = self.engine.apply(&self.head, options, |tx| {
            let mut op = Op::new(tx, &self.shared.facts, cred, now);
            let value = change(&mut op)?;
            // Must be last: nothing fails after it.
            Ok((value, op.finish(Some(log))?))
        });
        Ok(applied.await?.0)
    }

    /// Runs an operation that changes nothing.
    pub(crate) async fn inspect<T>(
        &self,
        cred: Option<&Credentials>,
        mut inspect: impl FnMut(&mut Op<'_, '_>) -> TxResult<T>,
    ) -> Result<T> {
        // Checks H2.
        if self.head.is_gone() {
            return Err(Error::not_found(FsError::Stale));
        }
        let now = Time::default();
        let live = self.head.live();
        live.inspect(|tx| inspect(&mut Op::new(tx, &self.shared.facts, cred, now))).await
    }

    /// Loads changed properties. Modifying operations do this themselves; read-only users have the
    /// properties of their last refresh.
    ///
    /// # Errors
    /// Errors of reading them, and of the intent log.
    pub async fn refresh(&self) -> Result<()> {
        let count = self.head.settings_count();
        let is_same = *lock(&self.settings_count) == count;
        if is_same {
            return Ok(());
        }
        let settings = edit::Settings::read(&self.engine, &self.head).await?;
        self.shared.facts.set_settings(settings);
        // The log reads the property `sync` only when it commits.
        self.engine.intent_logs().commit(&self.head, None).await?;
        *lock(&self.settings_count) = count;
        Ok(())
    }

    /// Returns the range locks of a node, which exist while they are used.
    fn locks_of(&self, object: u64) -> Arc<RangeLocks> {
        let mut locks = lock(&self.shared.locks);
        if locks.of.len() > LOCKS_KEPT {
            locks.of.retain(|_, locks| Arc::strong_count(locks) > 1);
            locks.sweeps += 1;
        }
        Arc::clone(locks.of.entry(object).or_default())
    }

    /// Returns the range locks of a node if they may be in use; otherwise the number of sweeps of
    /// unused locks. While that number is unchanged, the node's locks were never used in between.
    fn busy_locks_of(&self, object: u64) -> std::result::Result<Arc<RangeLocks>, u64> {
        let locks = lock(&self.shared.locks);
        locks.of.get(&object).cloned().ok_or(locks.sweeps)
    }
}

/// State shared by all mounts of a head. A file system that is unmounted while in use and mounted
/// again has two mounts. A node that one of them holds is not freed by the other, so that its
/// number cannot be reused meanwhile.
#[derive(Debug)]
struct Shared {
    facts: Arc<Facts>,
    /// Range locks of nodes. LOCK: held for a lookup.
    locks: Mutex<NodeLocks>,
}

/// Range locks of nodes that are or were in use.
#[derive(Debug, Default)]
struct NodeLocks {
    of: FixedMap<u64, Arc<RangeLocks>>,
    /// Number of sweeps that removed unused locks.
    sweeps: u64,
}

/// Number of locks at which unused ones are removed.
const LOCKS_KEPT: usize = 1024;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock()
}

/// Returns the time in the form of inodes.
pub(crate) fn now() -> Time {
    let now = cenote_rt::wall_clock();
    Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos().into() }
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("name", &self.name).finish_non_exhaustive()
    }
}
