//! A file system that is open for reading and writing.
//!
//! ```text
//!   FUSE, tests, programs ──> Mount: async operations on object numbers, for somebody
//!                               |     handles keep unnamed files, range locks, cookies
//!                               v
//!                             edit::*  one transaction each, admitted with its worst case
//!                               |  `── records ──> intent log ──fsync──> durable
//!                               v
//!                             the head's object set ──txg──> disk
//! ```
//!
//! Nodes are named by their object numbers, which are their inode numbers. Every operation is one
//! transaction, or, where a request is long, several under a lock on its range of bytes, so that
//! others see all of it or nothing. Nothing waits for a disk but what must be read first, what asks
//! to be durable, and what finds the memory for changes full.
//!
//! A [`Handle`] keeps a node that loses its last name. When the last handle goes the node waits to
//! be freed, which the next operation that changes something does, or [`Mount::reap`]; what is
//! still waiting when the program ends is freed by the next mount.
//!
//! Errors carry an [`FsError`](crate::FsError) or a kind that [`errno::of`] turns into the number
//! that a system call gives.
//!
//! Concurrency: everything may be called at once. Order of locks: range locks (of one node), then
//! the object set's, then the small ones in here and in [`Facts`].
//!
//! Sources: spec 03 §9-§13, 04 §17, 07 A7.

mod attributes;
mod brief;
pub mod control;
mod data;
mod device;
pub mod errno;
mod holes;
mod names;
mod open;
mod rollback;
mod statfs;
mod sync;
mod xattr;

use std::sync::{Arc, Mutex, PoisonError};

use cenote_dmu::TxResult;
use cenote_dmu::live::Prefetcher;
use cenote_engine::{Charge, Engine, Head, Ownership};
use cenote_ondisk::znode::Time;
use cenote_rt::{Error, FixedMap, Kind, Result};

use crate::access::Credentials;
use crate::edit::{self, Facts, Op};
use crate::error::FsError;
use crate::range_lock::RangeLocks;

use self::brief::Briefs;

pub use crate::edit::{DirEntry, ReadDirPage};
pub use attributes::Attributes;
pub use data::{AccessTimes, Allocate, WriteOptions};
pub use device::{decode_dev, encode_rdev};
pub use holes::Seek;
pub use open::Handle;
pub use statfs::Space;

/// What a change of attributes writes at most: some dnodes, a spill block, a new layout.
const ATTRIBUTES_COST: u64 = 8 << 10;

/// Snapshots by name and number.
type SnapshotList = Vec<(String, u64)>;

/// A file system that is open for reading and writing.
pub struct Mount {
    name: String,
    engine: Arc<Engine>,
    head: Arc<Head>,
    /// Keeps the dataset from being destroyed and rolled back; none while its content is replaced.
    /// Held for a look.
    ownership: Mutex<Option<Ownership>>,
    /// When it was opened, which is the time of what is not stored.
    opened: Time,
    /// The snapshots as they were seen last, by name and number, and since when. Held for a look.
    snapshots_seen: Mutex<Option<(SnapshotList, Time)>>,
    /// Whoever opened it may not write.
    is_read_only: bool,
    /// What whoever opened it wants noted of reading. Held for a look.
    access_times: Mutex<AccessTimes>,
    /// The count of changes of properties up to which this mount has looked.
    settings_count: Mutex<u64>,
    /// What all mounts of the head share.
    shared: Arc<Shared>,
    /// Inodes of files that are read.
    briefs: Briefs,
    /// Who reads which files from where.
    ahead: Prefetcher,
    /// Nodes that wait to be freed. Held for a look.
    to_reap: Arc<Mutex<Vec<u64>>>,
    /// Nodes that could not be freed. Held for a look.
    unreaped: Mutex<Vec<u64>>,
}

impl Mount {
    /// Name of the dataset.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pool.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The head of the dataset.
    #[must_use]
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// What is known of the file system.
    #[must_use]
    pub fn facts(&self) -> &Arc<Facts> {
        &self.shared.facts
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.shared.facts.root
    }

    /// Whether nothing can be changed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only || self.shared.facts.settings().is_read_only
    }

    /// Whether whoever opened it may not write, whatever properties say.
    #[must_use]
    pub fn is_opened_read_only(&self) -> bool {
        self.is_read_only
    }

    /// What is noted of reading where that is not left to properties.
    #[must_use]
    pub fn access_times(&self) -> AccessTimes {
        *lock(&self.access_times)
    }

    /// Has reading noted otherwise than properties say.
    pub fn set_access_times(&self, wanted: AccessTimes) {
        *lock(&self.access_times) = wanted;
    }

    /// Runs an operation that changes something, for `cred`.
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
        if self.head.log().must_commit(false) {
            self.make_durable(None).await?;
        }
        self.reap_pending().await;
        Ok(value)
    }

    /// The same without anything around it.
    async fn apply<T>(
        &self,
        charge: Charge,
        cred: Option<&Credentials>,
        mut change: impl FnMut(&mut Op<'_, '_>) -> TxResult<T>,
    ) -> Result<T> {
        let now = now();
        let log = self.head.log();
        let applied = self.engine.apply_weighed(&self.head, charge, |tx| {
            let mut op = Op::new(tx, &self.shared.facts, cred, now);
            let value = change(&mut op)?;
            let logged = op.weigh(log)?;
            let kept = op.keep(log)?;
            // Last: from here on nothing fails.
            op.finish(Some((log, kept)));
            Ok((value, logged))
        });
        Ok(applied.await?.0)
    }

    /// Runs an operation that changes nothing.
    pub(crate) async fn look<T>(
        &self,
        cred: Option<&Credentials>,
        mut look: impl FnMut(&mut Op<'_, '_>) -> TxResult<T>,
    ) -> Result<T> {
        if self.head.is_gone() {
            return Err(Error::not_found(FsError::Stale));
        }
        let now = Time::default();
        let live = self.head.live();
        live.inspect(|tx| look(&mut Op::new(tx, &self.shared.facts, cred, now))).await
    }

    /// Takes properties over that were changed. Changes of the file system do so by themselves; who
    /// only reads it goes by what it was told last.
    ///
    /// # Errors
    /// Those of reading them, and of the intent log.
    pub async fn refresh(&self) -> Result<()> {
        let count = self.head.settings_count();
        let is_same = *lock(&self.settings_count) == count;
        if is_same {
            return Ok(());
        }
        let settings = edit::Settings::read(&self.engine, &self.head).await?;
        self.shared.facts.set_settings(settings);
        // The log has a look at `sync=` only when it is asked for something.
        self.engine.commit_log(&self.head, None).await?;
        *lock(&self.settings_count) = count;
        Ok(())
    }

    /// The locks of a node, as long as somebody has them.
    fn locks_of(&self, object: u64) -> Arc<RangeLocks> {
        let mut locks = lock(&self.shared.locks);
        if locks.of.len() > LOCKS_KEPT {
            locks.of.retain(|_, locks| Arc::strong_count(locks) > 1);
            locks.sweeps += 1;
        }
        Arc::clone(locks.of.entry(object).or_default())
    }

    /// The locks of a node, if somebody may have them. If not, how often such were looked for that
    /// nobody has: as long as that stays the same, nobody had any meanwhile.
    fn busy_locks_of(&self, object: u64) -> std::result::Result<Arc<RangeLocks>, u64> {
        let locks = lock(&self.shared.locks);
        locks.of.get(&object).cloned().ok_or(locks.sweeps)
    }
}

/// What all mounts of a head share: who unmounts while the file system is in use, and mounts it
/// again, has two. A node that one of them holds is not freed for the other, so that its number
/// cannot become another's meanwhile.
#[derive(Debug)]
struct Shared {
    facts: Arc<Facts>,
    /// Locks of nodes that somebody works on. Held for a look-up.
    locks: Mutex<NodeLocks>,
}

/// The locks of nodes that somebody works on, or did.
#[derive(Debug, Default)]
struct NodeLocks {
    of: FixedMap<u64, Arc<RangeLocks>>,
    /// How often those were let go of that nobody had.
    sweeps: u64,
}

/// Locks that are kept before those are looked for that nobody has.
const LOCKS_KEPT: usize = 1024;

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time, as inodes have it.
pub(crate) fn now() -> Time {
    let now = cenote_rt::wall_clock();
    Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos().into() }
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("name", &self.name).finish_non_exhaustive()
    }
}
