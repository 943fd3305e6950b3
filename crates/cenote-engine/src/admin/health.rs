//! The pool's health: suspension, and notices of events that no request caused.

use std::sync::Arc;

use cenote_pool::figures::{CacheStats, StoreStats};
use cenote_rt::lock::{Mutex, Rank};

use crate::Engine;
use crate::admin::damage::Damage;
use crate::admin::told_history::ToldHistory;
use crate::txg::closing::Unwritten;
use crate::txg::multihost::Multihost;
use crate::txg::suspend::{FailMode, Suspended, Suspension};

/// A notice for the administrator about something that no request caused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A scan cannot go on for the time being.
    ScanStalled {
        /// The error.
        cause: String,
    },
    /// The stored state of a scan was damaged, and the scan was dropped.
    ScanDropped {
        /// The damage.
        cause: String,
    },
    /// The removal of a vdev cannot go on for the time being, or was cancelled.
    RemovalStalled {
        /// The error.
        cause: String,
    },
    /// The tree of a destroyed dataset is damaged: its space stays allocated until the pool is
    /// imported again.
    DeadTreeDamaged {
        /// The place and the error.
        cause: String,
    },
    /// Blocks below a damaged indirect block, or in a damaged gang block, were freed without being
    /// found: they stay allocated.
    BlocksLeaked {
        /// The place and the error.
        cause: String,
    },
    /// Partially received datasets that cannot be resumed were destroyed.
    AbandonedDestroyed {
        /// Their names.
        names: Vec<String>,
    },
    /// Temporary holds of ended programs were released.
    HoldsReleased {
        /// Their number.
        count: u64,
    },
    /// Intent logs were discarded at the import: synchronous changes since the last commit are
    /// lost.
    LogsDropped {
        /// The dataset objects.
        datasets: Vec<u64>,
    },
    /// The root blocks of these datasets are damaged, so that their intent logs could not be read:
    /// synchronous changes since the last commit are lost.
    LogsUnread {
        /// The dataset objects.
        datasets: Vec<u64>,
    },
    /// An intent log could not be replayed completely: its later changes are lost.
    LogCut {
        /// The dataset object.
        dataset: u64,
        /// The error.
        cause: String,
    },
    /// The pool was closed by force, and changes in memory were lost.
    NotWritten(Unwritten),
    /// Devices did not answer when the pool was closed: they stay locked until they do, and may
    /// still write earlier requests.
    SilentDevices {
        /// Their paths.
        paths: Vec<String>,
    },
}

/// The state behind [`Health`].
#[derive(Debug)]
pub(crate) struct HealthState {
    pub(crate) suspension: Arc<Suspension>,
    /// Lost blocks and the event log.
    pub(crate) damage: Arc<Damage>,
    pub(crate) multihost: Multihost,
    pub(crate) history: ToldHistory,
    // Held for a push or a take.
    notices: Mutex<Vec<Notice>>,
}

impl HealthState {
    pub(crate) fn new(
        suspension: Arc<Suspension>,
        damage: Arc<Damage>,
        history: ToldHistory,
    ) -> Self {
        Self {
            suspension,
            damage,
            multihost: Multihost::default(),
            history,
            notices: Mutex::with_default(Rank::Notices),
        }
    }
}

/// The pool's health: suspension, events, notices and counters; made by [`Engine::health`].
#[derive(Debug, Clone, Copy)]
pub struct Health<'e> {
    pub(crate) engine: &'e Engine,
}

impl Health<'_> {
    /// Returns why the pool is suspended, if it is.
    pub fn suspended(self) -> Option<Suspended> {
        self.engine.health.suspension.cause()
    }

    /// Returns the error that stopped the pool, if one did and the pool is still open. A stopped
    /// pool writes nothing any more, and can only be closed; a suspended one is not stopped.
    pub fn stopped(self) -> Option<String> {
        if self.engine.tree.is_closed() || !self.engine.health.suspension.is_failed() {
            return None;
        }
        self.engine.state().stopped.clone()
    }

    /// Waits until the pool is suspended.
    pub async fn until_suspended(self) -> Suspended {
        self.engine.health.suspension.until_suspended().await
    }

    /// Returns the property `failmode`.
    pub fn failmode(self) -> FailMode {
        self.engine.health.suspension.mode()
    }

    /// Makes device failures stop the pool instead of suspending it, for programs without `zpool
    /// clear`.
    pub fn stop_at_failures(self) {
        self.engine.health.suspension.disarm();
    }

    /// Whether the pool was closed: no request reaches its devices any more.
    pub fn is_closed(self) -> bool {
        self.engine.tree.is_closed()
    }

    /// Returns the counters of the block cache, since the import.
    pub fn cache_stats(self) -> CacheStats {
        self.engine.store.cache_stats()
    }

    /// Returns the counters of block reads and writes, since the import.
    pub fn store_stats(self) -> StoreStats {
        self.engine.store.stats()
    }

    /// Returns the notices since the last call.
    pub fn take_notices(self) -> Vec<Notice> {
        std::mem::take(&mut self.engine.health.notices.lock())
    }

    pub(crate) fn add_notice(self, notice: Notice) {
        self.engine.health.notices.lock().push(notice);
    }
}
