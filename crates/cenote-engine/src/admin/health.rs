//! The pool's health: whether it is suspended, and what happened that nobody asked for.

use std::sync::{Arc, Mutex, PoisonError};

use crate::Engine;
use crate::admin::damage::Damage;
use crate::txg::closing::Unwritten;
use crate::txg::multihost::Multihost;
use crate::txg::suspend::{FailMode, Suspended, Suspension};

/// A thing that happened without a request, and that the administrator should be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A scrub or resilver was under way and cannot go on, since the datasets change.
    ScanCancelled {
        /// In which txg.
        txg: u64,
    },
    /// A dead tree cannot be read: its space stays taken until the pool is opened again.
    DeadTreeDamaged {
        /// Where, and why.
        cause: String,
    },
    /// Half-received datasets without a way to go on were destroyed.
    AbandonedDestroyed {
        /// Their names.
        names: Vec<String>,
    },
    /// Holds of programs that are gone were released.
    HoldsReleased {
        /// How many.
        count: u64,
    },
    /// Intent logs were given up when the pool was opened: what was promised to be durable since
    /// the last commit is lost.
    LogsDropped {
        /// Numbers of the datasets.
        datasets: Vec<u64>,
    },
    /// The root blocks of these datasets are damaged, so that their intent logs could not be looked
    /// at: what was promised to be durable since the last commit is lost.
    LogsUnread {
        /// Numbers of the datasets.
        datasets: Vec<u64>,
    },
    /// An intent log could not be replayed to its end: what it promised behind that is lost.
    LogCut {
        /// Number of the dataset.
        dataset: u64,
        /// Why.
        cause: String,
    },
    /// The pool was closed by force, and changes in memory are lost.
    NotWritten(Unwritten),
    /// Devices did not answer when the pool was closed: what they were asked before may still be
    /// written when they do, and they are locked until then.
    SilentDevices {
        /// Their paths.
        paths: Vec<String>,
    },
}

/// The state behind [`Health`].
#[derive(Debug)]
pub(crate) struct HealthState {
    pub(crate) suspension: Arc<Suspension>,
    /// Lost blocks and the log of events.
    pub(crate) damage: Arc<Damage>,
    pub(crate) multihost: Multihost,
    // Held for a push or a take.
    notices: Mutex<Vec<Notice>>,
}

impl HealthState {
    pub(crate) fn new(suspension: Arc<Suspension>, damage: Arc<Damage>) -> Self {
        Self { suspension, damage, multihost: Multihost::default(), notices: Mutex::default() }
    }
}

/// The pool's health: suspension, events and notices; made by [`Engine::health`].
#[derive(Debug, Clone, Copy)]
pub struct Health<'e> {
    pub(crate) engine: &'e Engine,
}

impl Health<'_> {
    /// Why the pool is suspended, if it is.
    pub fn suspended(self) -> Option<Suspended> {
        self.engine.health.suspension.cause()
    }

    /// Waits until the pool is suspended.
    pub async fn until_suspended(self) -> Suspended {
        self.engine.health.suspension.until_suspended().await
    }

    /// What happens while the pool is suspended (property `failmode`).
    pub fn failmode(self) -> FailMode {
        self.engine.health.suspension.mode()
    }

    /// Failures of devices stop the pool from now on, instead of suspending it: for whoever has it
    /// open alone and could clear it from nowhere.
    pub fn stop_at_failures(self) {
        self.engine.health.suspension.disarm();
    }

    /// What happened that nobody asked for, since this was called last.
    pub fn take_notices(self) -> Vec<Notice> {
        std::mem::take(
            &mut self.engine.health.notices.lock().unwrap_or_else(PoisonError::into_inner),
        )
    }

    pub(crate) fn add_notice(self, notice: Notice) {
        self.engine.health.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
    }
}
