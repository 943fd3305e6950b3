//! The pool's checkpoint: creating, holding, discarding (spec 05 §10, 08 §33).
//!
//! ```text
//!   take      the uberblock of the last commit into the pool directory
//!   keep      what it reaches and is freed: stays allocated, FREE in a map of its vdev
//!   discard   the entry goes; then in each txg some of the maps, until all is free
//! ```
//!
//! Rewinding to it is an import: see `rewind`.
//!
//! Order that consistency depends on
//! 1. The checkpoint is created by a task that runs before all others, and the allocator learns its
//!    txg at that time: nothing of the txg is freed before its tasks have run.
//! 2. Ranges removed from a checkpoint map are freed in the same txg, which records both.
//! 3. The directory entry is removed before the first range: no uberblock has a checkpoint that is
//!    partly freed.
//!
//! Invariants
//! * CP1  The checkpoint map of a vdev has only FREE entries.
//! * CP2  The held bytes of a vdev are those of its map, and none without a map.

mod maps;
mod rewind;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::checkpoint::POOL_CHECKPOINT;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::words;
use cenote_ondisk::zap::Value;
use cenote_pool::Pool;
use cenote_pool::features::FeatureState;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{BoxFuture, Error, Kind, Result, ensure, tunables};

use crate::SpaceManager;
use crate::dsl::{Env, features, history};
use crate::{Answer, Scope, Task};

pub(crate) use maps::hold;

/// The feature that is active while a checkpoint exists or is being discarded.
pub(crate) const FEATURE: &str = "zpool_checkpoint";

/// Bits of an offset, in sectors, in an entry of a space map of the old format.
const OLD_OFFSET_BITS: u32 = 47;

/// Reasons why a checkpoint operation fails, in OpenZFS's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// A checkpoint exists.
    #[error("checkpoint exists")]
    Exists,
    /// The last checkpoint is still being discarded.
    #[error("currently discarding checkpoint")]
    Discarding,
    /// There is no checkpoint.
    #[error("checkpoint does not exist")]
    NotThere,
    /// A RAID-Z vdev expands.
    #[error("raidz expansion in progress")]
    Expanding,
    /// The feature is not enabled.
    #[error("unsupported version or feature")]
    NotEnabled,
    /// A vdev is being removed.
    #[error("device removal in progress")]
    Removing,
    /// A vdev is too large for the offsets in space maps of the old format.
    #[error("device exceeds supported size")]
    TooLarge,
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        let kind = match error {
            CheckpointError::Exists => Kind::Exists,
            CheckpointError::Discarding
            | CheckpointError::Removing
            | CheckpointError::Expanding => Kind::Busy,
            CheckpointError::NotThere => Kind::NotFound,
            CheckpointError::NotEnabled | CheckpointError::TooLarge => Kind::Unsupported,
        };
        Self::new(kind, error)
    }
}

/// State of the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckpointState {
    /// There is no checkpoint.
    #[default]
    None,
    /// It exists, with this txg.
    Kept(u64),
    /// The checkpoint is being discarded, and part of its space is not free yet.
    Discarding,
}

/// The checkpoint's state in memory.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    // Held for single reads and updates, never across I/O.
    inner: Mutex<Inner>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { inner: Mutex::with_default(Rank::Checkpoint) }
    }
}

#[derive(Debug, Default)]
struct Inner {
    state: CheckpointState,
    /// Held bytes, by vdev.
    held: BTreeMap<u64, u64>,
}

impl Checkpoint {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Adds the bytes that a pass recorded in the maps.
    pub(crate) fn note_held(&self, more: &BTreeMap<u64, u64>) {
        let mut inner = self.lock();
        for (vdev, bytes) in more {
            *inner.held.entry(*vdev).or_default() += bytes;
        }
    }
}

impl SpaceManager<'_> {
    /// Returns the state of the checkpoint.
    pub fn checkpoint_state(self) -> CheckpointState {
        self.engine.space.checkpoint.lock().state
    }

    /// Returns the bytes that only the checkpoint holds.
    pub fn checkpoint_bytes(self) -> u64 {
        self.engine.space.checkpoint.lock().held.values().sum()
    }

    /// Refuses operations that would invalidate a checkpoint, for example a device removal or a new
    /// guid.
    pub(crate) fn check_no_checkpoint(self) -> Result<()> {
        match self.checkpoint_state() {
            CheckpointState::None => Ok(()),
            CheckpointState::Kept(_) => Err(CheckpointError::Exists.into()),
            CheckpointState::Discarding => Err(CheckpointError::Discarding.into()),
        }
    }

    /// Creates a checkpoint of the pool, to which an import can rewind.
    ///
    /// # Errors
    /// A [`CheckpointError`], or errors of a sync.
    pub async fn take_checkpoint(self) -> Result<()> {
        // Earlier changes are part of the checkpoint.
        self.engine.sync().await?;
        let answer = Answer::new();
        self.engine.run_first(Box::new(Take { answer: Arc::clone(&answer) })).await?;
        answer.take()
    }

    /// Discards the checkpoint. Its space is freed in the following txgs.
    ///
    /// # Errors
    /// A [`CheckpointError`], or errors of a sync.
    pub async fn discard_checkpoint(self) -> Result<()> {
        let answer = Answer::new();
        self.engine.run_first(Box::new(Discard { answer: Arc::clone(&answer) })).await?;
        answer.take()
    }

    /// Loads the checkpoint's state of a pool that is being opened.
    pub(crate) async fn adopt_checkpoint(self, pool: &Pool) -> Result<()> {
        if pool.features().state(FEATURE) != FeatureState::Active {
            return Ok(());
        }
        let space = pool.space().await?;
        let state = match pool.checkpoint_txg() {
            Some(txg) => CheckpointState::Kept(txg),
            None => CheckpointState::Discarding,
        };
        {
            let mut inner = self.engine.space.checkpoint.lock();
            inner.state = state;
            inner.held = space.vdevs.iter().map(|vdev| (vdev.id, vdev.checkpoint)).collect();
        }
        self.tell_allocator()
    }

    fn set_checkpoint(self, state: CheckpointState) -> Result<()> {
        self.engine.space.checkpoint.lock().state = state;
        self.tell_allocator()
    }

    fn tell_allocator(self) -> Result<()> {
        self.engine.alloc.set_checkpoint(match self.checkpoint_state() {
            CheckpointState::Kept(txg) => Some(txg),
            CheckpointState::None | CheckpointState::Discarding => None,
        })
    }

    /// Frees a part of a discarded checkpoint's space (order 2), in pass 1 of each txg.
    pub(crate) async fn discard_checkpoint_part(self, txg: u64) -> Result<()> {
        if self.checkpoint_state() != CheckpointState::Discarding {
            return Ok(());
        }
        let mut budget = tunables::SPA_DISCARD_MEMORY_LIMIT.get();
        let root = self.engine.config().root;
        for top in root.children.iter().filter(|top| top.kind.is_concrete()) {
            if budget == 0 {
                return Ok(());
            }
            let taken = self.engine.mos_apply(txg, |tx| maps::take_some(tx, top, budget)).await?;
            let Some(taken) = taken else { continue };
            budget = budget.saturating_sub(taken.words);
            let mut bytes = 0;
            for range in taken.ranges {
                let len = range.end - range.start;
                self.engine.alloc.free_range(top.id, range.start, len, txg)?;
                bytes += len;
            }
            {
                let mut inner = self.engine.space.checkpoint.lock();
                let held = inner.held.entry(top.id).or_default();
                let (before, vdev) = (*held, top.id);
                ensure!("CP2", bytes <= before, "vdev {vdev}: {bytes} of {before} bytes released");
                *held = before - bytes;
                let (left, has_map) = (*held, !taken.is_empty);
                ensure!("CP2", has_map || left == 0, "vdev {vdev}: {left} bytes are in no map");
            }
            if !taken.is_empty {
                return Ok(());
            }
        }
        if budget == 0 {
            // The remaining vdevs were not processed.
            return Ok(());
        }
        let env = self.engine.datasets().env(txg);
        self.engine
            .mos_apply(txg, |tx| {
                features::add(tx, FEATURE, -1)?;
                let text = "finished discarding checkpointed state from the pool";
                history::log_pool(tx, &env, "spa discard checkpoint", text)
            })
            .await?;
        let left = self.checkpoint_bytes();
        ensure!("CP2", left == 0, "{left} bytes are left of a checkpoint that was discarded");
        self.engine.space.checkpoint.lock().held.clear();
        self.set_checkpoint(CheckpointState::None)
    }
}

/// The task that creates a checkpoint.
struct Take {
    answer: Arc<Answer<()>>,
}

impl Task for Take {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let env = engine.datasets().env(context.txg);
            let uberblock = engine.uberblock();
            let is_removing = engine.removals().removing().is_some();
            let result = match engine.space().check_no_checkpoint() {
                Ok(()) if is_removing => Err(CheckpointError::Removing.into()),
                // A rewind would find sectors that have moved.
                Ok(()) if engine.is_reflowing() => Err(CheckpointError::Expanding.into()),
                Ok(()) => {
                    let root = engine.config().root.clone();
                    let is_large = root.children.iter().any(is_beyond_old_maps);
                    engine.mos_apply(context.txg, |tx| take(tx, &env, &uberblock, is_large)).await
                }
                Err(error) => Err(error),
            };
            if self.answer.unless_refused(result)?.is_some() {
                // Order 1: frees of this txg follow.
                engine.space().set_checkpoint(CheckpointState::Kept(uberblock.txg))?;
                self.answer.put(Ok(()));
            }
            Ok(())
        })
    }
}

/// Like [`SpaceManager::check_no_checkpoint`], in a transaction: a checkpoint may have been taken
/// earlier in the same sync.
pub(crate) fn check_none(tx: &mut Tx<'_>) -> TxResult<()> {
    if exists(tx)? {
        return Err(Error::from(CheckpointError::Exists).into());
    }
    Ok(())
}

/// Whether the pool has a checkpoint.
pub(crate) fn exists(tx: &mut Tx<'_>) -> TxResult<bool> {
    features::is_active(tx, FEATURE)
}

/// Whether offsets of a top-level vdev may be too large for entries of space maps of the old
/// format, which have 47 bits for a number of sectors. The checkpoint's map has such offsets.
fn is_beyond_old_maps(top: &VdevConfig) -> bool {
    top.top.asize.checked_shr(top.top.ashift as u32 + OLD_OFFSET_BITS).unwrap_or(0) > 0
}

fn take(
    tx: &mut Tx<'_>,
    env: &Env,
    uberblock: &Uberblock,
    is_beyond_old_maps: bool,
) -> TxResult<()> {
    if !features::is_enabled(tx, FEATURE)? {
        return Err(Error::from(CheckpointError::NotEnabled).into());
    }
    if is_beyond_old_maps && !features::is_enabled(tx, "spacemap_v2")? {
        return Err(Error::from(CheckpointError::TooLarge).into());
    }
    let kept = Uberblock { endian: Endian::Little, checkpoint_txg: uberblock.txg, ..*uberblock };
    let words: Vec<u64> = words::iter(&kept.encode()).collect();
    zap::insert(tx, DIRECTORY, POOL_CHECKPOINT, Value::words_of(&words))?;
    features::add(tx, FEATURE, 1)?;
    history::log_pool(
        tx,
        env,
        "spa checkpoint",
        &format!("checkpointed uberblock txg={}", kept.txg),
    )
}

/// The task that discards a checkpoint.
struct Discard {
    answer: Arc<Answer<()>>,
}

impl Task for Discard {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let result = match engine.space().checkpoint_state() {
                CheckpointState::None => Err(CheckpointError::NotThere.into()),
                CheckpointState::Discarding => Err(CheckpointError::Discarding.into()),
                CheckpointState::Kept(_) => {
                    let entry = |tx: &mut Tx<'_>| zap::remove(tx, DIRECTORY, POOL_CHECKPOINT);
                    engine.mos_apply(context.txg, entry).await
                }
            };
            if self.answer.unless_refused(result)?.is_some() {
                // From here on frees of this txg take effect.
                engine.space().set_checkpoint(CheckpointState::Discarding)?;
                self.answer.put(Ok(()));
            }
            Ok(())
        })
    }
}
