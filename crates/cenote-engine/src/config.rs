//! The pool's config, as it will be in the next labels and in the MOS.

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_block::policy::PoolPolicy;
use cenote_ondisk::config::{PoolFacts, VdevConfig};
use cenote_rt::lock::{Mutex, Rank};

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
        self.with(|config| config.clone())
    }

    /// Calls `change` with the config, under its lock.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Config) -> T) -> T {
        change(&mut self.config.lock())
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
