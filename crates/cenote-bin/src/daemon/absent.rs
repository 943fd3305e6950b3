//! Recorded pools that could not be opened: shown as UNAVAIL, and opened when their devices appear.
//!
//! ```text
//!   cache file ──> not open ──device appeared──> opened and mounted
//!                     │
//!                     └──zpool export──> forgotten
//! ```
//!
//! A pool whose disks are not there when the daemon starts stays in the cache file, and in this
//! list, where `zpool list` and `zpool status` find it. The daemon looks every few seconds which
//! device paths of such pools exist, which reads no device, and tries to open a pool again if that
//! has changed. A pool that cannot be opened for another reason is tried again after a minute, then
//! after two, four and so on, up to an hour; the log has a line for each new reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_cli::AbsentPool;
use cenote_pool::import::Candidate;
use cenote_pool::status::PoolStatus;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Error, monotonic};

use super::pools::{Pools, Which};

/// Interval at which the daemon looks for devices.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between attempts to open a pool with the same devices: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_mins(1), Duration::from_hours(1)];

/// The recorded pools that could not be opened, by guid.
#[derive(Debug)]
pub(super) struct AbsentPools {
    /// Held for single reads and updates.
    list: Mutex<BTreeMap<u64, Absent>>,
}

#[derive(Debug)]
struct Absent {
    pool: Arc<AbsentPool>,
    /// Paths of its devices that existed at the last attempt to open it.
    present: BTreeSet<PathBuf>,
    /// Time of the next attempt with the same devices, and the time from the last one to it.
    next: Duration,
    pause: Duration,
}

impl Default for AbsentPools {
    fn default() -> Self {
        Self { list: Mutex::with_default(Rank::DaemonAbsent) }
    }
}

impl AbsentPools {
    /// Adds a pool that could not be opened for this reason; `None` if no device of it was found.
    /// Returns whether the reason is another one than before.
    pub(super) fn add(
        &self,
        candidate: &Candidate,
        why: Option<&Error>,
        present: BTreeSet<PathBuf>,
    ) -> bool {
        let status = PoolStatus::of_unopened(candidate, why);
        let mut list = self.list.lock();
        let before = list.remove(&candidate.guid());
        let before = before.filter(|before| before.present == present);
        let is_new =
            before.as_ref().is_none_or(|before| before.pool.status.failure != status.failure);
        let pause = before.map_or(PAUSES[0], |before| (before.pause * 2).min(PAUSES[1]));
        let pool = Arc::new(AbsentPool { status, root: candidate.root.clone() });
        let next = monotonic() + pause;
        list.insert(candidate.guid(), Absent { pool, present, next, pause });
        is_new
    }

    /// Removes a pool.
    pub(super) fn remove(&self, guid: u64) {
        self.list.lock().remove(&guid);
    }

    /// Returns the pools.
    pub(super) fn all(&self) -> Vec<Arc<AbsentPool>> {
        self.list.lock().values().map(|absent| Arc::clone(&absent.pool)).collect()
    }

    /// Whether the pool could not be opened.
    pub(super) fn has(&self, guid: u64) -> bool {
        self.list.lock().contains_key(&guid)
    }

    /// Whether it is time to try to open the pool again: other devices of it exist, or the pause is
    /// over.
    pub(super) fn is_due(&self, guid: u64, present: &BTreeSet<PathBuf>) -> bool {
        let is_due = |absent: &Absent| absent.present != *present || monotonic() >= absent.next;
        self.list.lock().get(&guid).is_some_and(is_due)
    }
}

/// Looks for devices of absent pools for as long as the daemon runs.
pub(super) async fn look(pools: Weak<Pools>) {
    loop {
        cenote_rt::sleep(INTERVAL).await;
        let Some(pools) = pools.upgrade() else { return };
        if !pools.absent().is_empty() {
            pools.open_recorded(Which::DueAbsent).await;
        }
    }
}
