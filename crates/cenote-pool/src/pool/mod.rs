//! An open pool.

mod choose;
mod error;
pub(crate) mod indirect;
mod load;
mod names;
mod open;
mod sound;

pub use choose::Rewind;
pub use error::OpenError;
pub use load::{PoolParts, stored_config};
pub use open::OpenOptions;

use std::sync::{Arc, Mutex, PoisonError};

use cenote_block::{BlockStore, Grounds};
use cenote_dmu::ObjSet;
use cenote_ondisk::checkpoint::POOL_CHECKPOINT;
use cenote_ondisk::config::PoolConfig;
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::zap::Value;
use cenote_rt::{FixedMap, Result};
use cenote_vdev::Tree;

use crate::accounting::Space;
use crate::dsl::Dir;
use crate::errlog::{self, DamagedBlock};
use crate::features::FeatureTable;
use crate::import::AuxDevice;
use crate::keys::KeyStore;
use crate::{Presence, mos};

/// A pool as one of its uberblocks has it. Everything that it hands out is of that txg.
#[derive(Debug)]
pub struct Pool {
    pub(crate) config: PoolConfig,
    pub(crate) uberblock: Uberblock,
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) mos: Arc<ObjSet>,
    pub(crate) directory: mos::Entries,
    pub(crate) features: FeatureTable,
    pub(crate) root_dir: Arc<Dir>,
    pub(crate) origin_snapshot: Option<u64>,
    pub(crate) spares: Vec<AuxDevice>,
    pub(crate) caches: Vec<AuxDevice>,
    pub(crate) keys: Arc<KeyStore>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) is_deflated: bool,
    pub(crate) rewound_from: Option<u64>,
    pub(crate) warnings: Vec<String>,
    pub(crate) dir_names: Mutex<FixedMap<u64, String>>,
    pub(crate) space: Mutex<Option<Arc<Space>>>,
    pub(crate) load_guid: u64,
    pub(crate) grounds: Grounds,
}

impl Pool {
    /// How the pointers of this state stay good: by a pin, if the pool is being written.
    pub fn grounds(&self) -> &Grounds {
        &self.grounds
    }

    /// Whether everything that was read so far was of this state. Commands that pass over errors
    /// ask before they show what they found.
    ///
    /// # Errors
    /// `Kind::Overtaken` if the state was given up: read again from a fresh view.
    pub fn check_valid(&self) -> Result<()> {
        self.grounds.check()
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.root_dir.name
    }

    /// The pool's guid.
    pub fn guid(&self) -> u64 {
        self.config.facts.pool_guid
    }

    /// Pool version: 5000, or 1 to 28 without feature flags.
    pub fn version(&self) -> u64 {
        self.uberblock.version
    }

    /// The txg that everything is of.
    pub fn txg(&self) -> u64 {
        self.uberblock.txg
    }

    /// The uberblock.
    pub fn uberblock(&self) -> &Uberblock {
        &self.uberblock
    }

    /// The config kept in the MOS, with the paths at which the devices were found.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The vdevs.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Where blocks are read.
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }

    /// The meta object set.
    pub fn mos(&self) -> &Arc<ObjSet> {
        &self.mos
    }

    /// Entries of the pool directory, in ZAP order.
    pub fn directory(&self) -> &[(String, Value)] {
        &self.directory
    }

    /// The object that the pool directory names; none if there is no entry, or 0 stands in it.
    pub fn directory_object(&self, name: &str) -> Option<u64> {
        self.directory_value(name).and_then(Value::first).filter(|object| *object != 0)
    }

    /// An entry of the pool directory.
    pub fn directory_value(&self, name: &str) -> Option<&Value> {
        self.directory.iter().find(|(entry, _)| entry == name).map(|(_, value)| value)
    }

    /// Its feature flags.
    pub fn features(&self) -> &FeatureTable {
        &self.features
    }

    /// The root directory.
    pub fn root_dir(&self) -> &Arc<Dir> {
        &self.root_dir
    }

    /// The snapshot that file systems which are no clones begin with.
    pub fn origin_snapshot(&self) -> Option<u64> {
        self.origin_snapshot
    }

    /// Hot spares.
    pub fn spares(&self) -> &[AuxDevice] {
        &self.spares
    }

    /// Cache devices.
    pub fn caches(&self) -> &[AuxDevice] {
        &self.caches
    }

    /// Keys that were loaded.
    pub fn keys(&self) -> &Arc<KeyStore> {
        &self.keys
    }

    /// What is not stored in it: where it mounts, and what of it.
    pub fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    /// The txg that a rewind gave up, if there was one.
    pub fn rewound_from(&self) -> Option<u64> {
        self.rewound_from
    }

    /// A random number that tells one opening of the pool from another.
    pub fn load_guid(&self) -> u64 {
        self.load_guid
    }

    /// What was damaged and could be done without.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The txg of the checkpoint, if there is one.
    pub fn checkpoint_txg(&self) -> Option<u64> {
        let words = self.directory_value(POOL_CHECKPOINT)?.words();
        words.get(CHECKPOINT_TXG_WORD).copied()
    }

    /// The deflate ratio of a top-level vdev; plain bytes on pools from before deflation.
    pub fn deflate_ratio(&self, vdev: u64) -> u64 {
        use crate::accounting::deflate::RATIO_ONE;
        if !self.is_deflated {
            return RATIO_ONE;
        }
        self.tree.deflate_ratio(vdev).unwrap_or(RATIO_ONE)
    }

    /// Space figures, computed when first asked for.
    pub async fn space(&self) -> Result<Arc<Space>> {
        let lock = || self.space.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(space) = lock().clone() {
            return Ok(space);
        }
        let space = Arc::new(Space::compute(self).await?);
        *lock() = Some(Arc::clone(&space));
        Ok(space)
    }

    /// Blocks known to be damaged.
    pub async fn error_log(&self) -> Result<Vec<DamagedBlock>> {
        errlog::all(&self.mos, self.features.is_active("head_errlog")).await
    }
}

/// Word of an uberblock: its txg.
const CHECKPOINT_TXG_WORD: usize = 2;
