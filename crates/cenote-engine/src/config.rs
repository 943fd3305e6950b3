//! The pool's config, as it will be in the next labels and in the MOS.
//!
//! Invariants
//! * C1  The config changes only in the running sync, or while the `syncing` lock is held and no
//!   sync runs ([`ConfigChanger`]). A sync copies the config several times: a task starts from a
//!   copy and stores the changed copy, a pass writes it to the MOS, the commit writes it to the
//!   labels. A change from outside the sync would be overwritten by a task, or would be in the
//!   labels and not in the MOS. Checked in every build: [`ConfigState::replace`] compares
//!   revisions, and the commit refuses a config that is not in the MOS.
//! * C2  Vdevs get the next ids, also if several requests add some concurrently.
//! * C3  Each leaf of the config is a leaf of the vdev tree, so that labels are written to it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_block::policy::PoolPolicy;
use cenote_ondisk::config::{PoolFacts, VdevConfig};
use cenote_rt::Result;
use cenote_rt::lock::{AsyncMutexGuard, Mutex, Rank};

use crate::error::invariant_error;
use crate::txg::tasks::Scope;

/// The config, and whether it is to be written.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Facts about the pool.
    pub(crate) facts: PoolFacts,
    /// The name on disk, if the pool has a temporary one.
    pub(crate) stored_name: Option<String>,
    /// Whether vdevs have property objects.
    pub(crate) has_vdev_zaps: bool,
    /// The vdevs.
    pub(crate) root: VdevConfig,
    /// The config in the MOS is older.
    pub(crate) is_unrecorded: bool,
    /// The config in the labels is older.
    pub(crate) is_dirty: bool,
    /// Number of changes since the pool was opened.
    pub(crate) revision: u64,
}

/// A permission to change the config (C1).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfigChanger<'a>(PhantomData<&'a ()>);

impl<'a> ConfigChanger<'a> {
    /// Returns the permission of the running sync.
    pub(crate) const fn of_sync(_: &'a Scope<'_>) -> Self {
        Self(PhantomData)
    }

    /// Returns the permission of the holder of the `syncing` lock.
    pub(crate) const fn between_syncs(_: &'a AsyncMutexGuard<'_, ()>) -> Self {
        Self(PhantomData)
    }
}

impl Config {
    /// Returns the facts as stored on disk.
    pub(crate) fn stored(&self) -> PoolFacts {
        let mut facts = self.facts.clone();
        if let Some(name) = &self.stored_name {
            facts.name.clone_from(name);
        }
        facts
    }

    /// Marks the config as changed.
    pub(crate) fn touch(&mut self) {
        self.is_unrecorded = true;
        self.is_dirty = true;
    }

    pub(crate) fn take_unrecorded(&mut self) -> bool {
        std::mem::take(&mut self.is_unrecorded)
    }
}

/// The config and the derived block policy, each behind its lock.
#[derive(Debug)]
pub(crate) struct ConfigState {
    // Both are held for a copy or a change in memory, never across I/O.
    config: Mutex<Config>,
    /// Block formats that the pool's active features permit.
    policy: Mutex<PoolPolicy>,
    /// The dir `$MOS`, which is charged for the MOS; 0 until the MOS of a new pool exists.
    mos_dir: AtomicU64,
}

impl ConfigState {
    pub(crate) fn new(config: Config, policy: PoolPolicy, mos_dir: u64) -> Self {
        Self {
            config: Mutex::new(Rank::EngineConfig, config),
            policy: Mutex::new(Rank::BlockPolicy, policy),
            mos_dir: AtomicU64::new(mos_dir),
        }
    }

    /// Returns a copy of the config.
    pub(crate) fn get(&self) -> Config {
        self.with(Config::clone)
    }

    /// Calls `inspect` with the config, under its lock.
    pub(crate) fn with<T>(&self, inspect: impl FnOnce(&Config) -> T) -> T {
        inspect(&self.config.lock())
    }

    /// Changes the config (C1).
    pub(crate) fn change<T>(
        &self,
        _: ConfigChanger<'_>,
        change: impl FnOnce(&mut Config) -> T,
    ) -> T {
        let mut config = self.config.lock();
        config.revision += 1;
        change(&mut config)
    }

    /// Replaces the config by a changed copy of it (C1).
    ///
    /// # Errors
    /// `Kind::Invariant` if the config has changed since it was copied.
    pub(crate) fn replace(&self, _: ConfigChanger<'_>, changed: Config) -> Result<()> {
        let mut config = self.config.lock();
        // Checks C1.
        if config.revision != changed.revision {
            return Err(invariant_error("the config changed beside a task (C1)".into()));
        }
        *config = Config { revision: changed.revision + 1, ..changed };
        Ok(())
    }

    pub(crate) fn policy(&self) -> PoolPolicy {
        *self.policy.lock()
    }

    pub(crate) fn set_policy(&self, policy: PoolPolicy) {
        *self.policy.lock() = policy;
    }

    pub(crate) fn mos_dir(&self) -> u64 {
        self.mos_dir.load(Ordering::Acquire)
    }

    pub(crate) fn set_mos_dir(&self, dir: u64) {
        self.mos_dir.store(dir, Ordering::Release);
    }
}
