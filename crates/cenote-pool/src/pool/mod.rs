//! An open pool.

mod choose;
mod error;
pub(crate) mod indirect;
mod load;
mod metadata;
mod names;
mod open;

pub use choose::Rewind;
pub use error::OpenError;
pub use load::{PoolParts, assemble_apart, stored_config};
pub use open::OpenOptions;

use std::sync::Arc;

use cenote_block::{BlockStore, Grounds};
use cenote_dmu::ObjSet;
use cenote_ondisk::checkpoint::POOL_CHECKPOINT;
use cenote_ondisk::config::PoolConfig;
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::zap::Value;
use cenote_rt::lock::Mutex;
use cenote_rt::{FixedMap, Result};
use cenote_vdev::Tree;

use crate::accounting::Space;
use crate::dsl::Dir;
use crate::errlog::{self, DamagedBlock};
use crate::features::FeatureTable;
use crate::import::AuxDevice;
use crate::keys::KeyStore;
use crate::{Presence, mos};

/// A pool as of one of its uberblocks.
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
    /// Returns how the blocks of this state are protected against reuse: by a pin if the pool is
    /// being written.
    pub fn grounds(&self) -> &Grounds {
        &self.grounds
    }

    /// Checks that the state could be read until now. Readers that report errors and continue call
    /// this before they return what they found.
    ///
    /// # Errors
    /// `Kind::Overtaken` if the state was given up: read again from a fresh view. `Kind::Closed` if
    /// the pool was closed.
    pub fn check_valid(&self) -> Result<()> {
        self.tree().check_open()?;
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

    /// Returns the pool version: 5000, or 1 to 28 without feature flags.
    pub fn version(&self) -> u64 {
        self.uberblock.version
    }

    /// Returns the txg of this state.
    pub fn txg(&self) -> u64 {
        self.uberblock.txg
    }

    /// The uberblock.
    pub fn uberblock(&self) -> &Uberblock {
        &self.uberblock
    }

    /// Returns the config in the MOS, with the current paths of the devices.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The vdev tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The block store.
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }

    /// The meta object set.
    pub fn mos(&self) -> &Arc<ObjSet> {
        &self.mos
    }

    /// Returns the entries of the pool directory, in ZAP order.
    pub fn directory(&self) -> &[(String, Value)] {
        &self.directory
    }

    /// Returns the object of an entry of the pool directory, `None` if it is missing or 0.
    pub fn directory_object(&self, name: &str) -> Option<u64> {
        self.directory_value(name).and_then(Value::first).filter(|object| *object != 0)
    }

    /// Returns the value of an entry of the pool directory.
    pub fn directory_value(&self, name: &str) -> Option<&Value> {
        self.directory.iter().find(|(entry, _)| entry == name).map(|(_, value)| value)
    }

    /// The feature flags.
    pub fn features(&self) -> &FeatureTable {
        &self.features
    }

    /// The root directory.
    pub fn root_dir(&self) -> &Arc<Dir> {
        &self.root_dir
    }

    /// Returns the origin snapshot of file systems that are no clones.
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

    /// The loaded keys.
    pub fn keys(&self) -> &Arc<KeyStore> {
        &self.keys
    }

    /// The state of the pool on this host: where and how it is mounted.
    pub fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    /// Returns the txg from which the pool was rewound.
    pub fn rewound_from(&self) -> Option<u64> {
        self.rewound_from
    }

    /// Returns a random number that identifies this import.
    pub fn load_guid(&self) -> u64 {
        self.load_guid
    }

    /// Damage that did not prevent opening the pool.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the txg of the checkpoint, if there is one.
    pub fn checkpoint_txg(&self) -> Option<u64> {
        let words = self.directory_value(POOL_CHECKPOINT)?.words();
        words.get(CHECKPOINT_TXG_WORD).copied()
    }

    /// Returns the space figures, computed on first use.
    pub async fn space(&self) -> Result<Arc<Space>> {
        let lock = || self.space.lock();
        if let Some(space) = lock().clone() {
            return Ok(space);
        }
        let space = Arc::new(Space::compute(self).await?);
        *lock() = Some(Arc::clone(&space));
        Ok(space)
    }

    /// Returns the blocks in the error log.
    pub async fn error_log(&self) -> Result<Vec<DamagedBlock>> {
        errlog::all(&self.mos, self.features.is_active("head_errlog")).await
    }
}

/// Index of the txg in an uberblock's words.
const CHECKPOINT_TXG_WORD: usize = 2;
