//! The pool's checkpoint: taking it, what it holds, discarding it (spec 05 §10, 08 §33).
//!
//! ```text
//!   take      the uberblock of the last commit into the pool directory
//!   keep      what it reaches and is freed: stays allocated, FREE in a map of its vdev
//!   discard   the entry goes; then in each txg some of the maps, until all is free
//! ```
//!
//! Going back to it is an import: see `rewind`.
//!
//! Order that consistency depends on
//! 1. The checkpoint is taken by a task that runs before all others, and its txg is told to the
//!    allocator in that moment: nothing of the txg is freed before its tasks have run.
//! 2. What leaves a checkpoint map is freed in the same txg, which records both.
//! 3. The entry of the directory goes before the first range: there is never an uberblock that
//!    promises a checkpoint of which something is gone.

mod maps;
mod rewind;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::checkpoint::POOL_CHECKPOINT;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::words;
use cenote_ondisk::zap::Value;
use cenote_pool::Pool;
use cenote_pool::features::FeatureState;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::{BoxFuture, Error, Kind, Result, tunables};

use crate::SpaceManager;
use crate::dsl::{Env, features, history};
use crate::{Answer, Scope, Task, is_fatal};

pub(crate) use maps::hold;

/// The feature that is active while there is a checkpoint, or one is being discarded.
pub(crate) const FEATURE: &str = "zpool_checkpoint";

/// Why something about the checkpoint cannot be done, in OpenZFS's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// There is one.
    #[error("checkpoint exists")]
    Exists,
    /// The last one is not gone yet.
    #[error("currently discarding checkpoint")]
    Discarding,
    /// There is none.
    #[error("checkpoint does not exist")]
    NotThere,
    /// The feature is not enabled.
    #[error("unsupported version or feature")]
    NotEnabled,
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        let kind = match error {
            CheckpointError::Exists => Kind::Exists,
            CheckpointError::Discarding => Kind::Busy,
            CheckpointError::NotThere => Kind::NotFound,
            CheckpointError::NotEnabled => Kind::Unsupported,
        };
        Self::new(kind, error)
    }
}

/// Whether there is a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckpointState {
    /// There is none.
    #[default]
    None,
    /// Of that txg.
    Kept(u64),
    /// It is given up, and part of what it held is not free yet.
    Discarding,
}

/// What the engine knows of it.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    // Held for a look, never across I/O.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: CheckpointState,
    /// Bytes held, by vdev.
    held: BTreeMap<u64, u64>,
}

impl Checkpoint {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a pass recorded in the maps.
    pub(crate) fn note_held(&self, more: &BTreeMap<u64, u64>) {
        let mut inner = self.lock();
        for (vdev, bytes) in more {
            *inner.held.entry(*vdev).or_default() += bytes;
        }
    }
}

impl SpaceManager<'_> {
    /// Whether there is a checkpoint.
    pub fn checkpoint_state(self) -> CheckpointState {
        self.engine.space.checkpoint.lock().state
    }

    /// Bytes that only the checkpoint holds.
    pub fn checkpoint_bytes(self) -> u64 {
        self.engine.space.checkpoint.lock().held.values().sum()
    }

    /// Refuses what would take the ground from under a checkpoint: devices that go, another guid.
    pub(crate) fn check_no_checkpoint(self) -> Result<()> {
        match self.checkpoint_state() {
            CheckpointState::None => Ok(()),
            CheckpointState::Kept(_) => Err(CheckpointError::Exists.into()),
            CheckpointState::Discarding => Err(CheckpointError::Discarding.into()),
        }
    }

    /// Keeps the pool as it is now, so that an import can go back to it.
    ///
    /// # Errors
    /// A [`CheckpointError`], or a sync's.
    pub async fn take_checkpoint(self) -> Result<()> {
        // What was done up to here is to be part of it.
        self.engine.sync().await?;
        let answer = Answer::new();
        self.engine.run_first(Box::new(Take { answer: Arc::clone(&answer) })).await?;
        answer.take()
    }

    /// Gives the checkpoint up. What it held is freed bit by bit, with each txg some.
    ///
    /// # Errors
    /// A [`CheckpointError`], or a sync's.
    pub async fn discard_checkpoint(self) -> Result<()> {
        let answer = Answer::new();
        self.engine.run_first(Box::new(Discard { answer: Arc::clone(&answer) })).await?;
        answer.take()
    }

    /// What a pool that is being opened has of it.
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
        self.tell_allocator();
        Ok(())
    }

    fn set_checkpoint(self, state: CheckpointState) {
        self.engine.space.checkpoint.lock().state = state;
        self.tell_allocator();
    }

    fn tell_allocator(self) {
        self.engine.alloc.set_checkpoint(match self.checkpoint_state() {
            CheckpointState::Kept(txg) => Some(txg),
            CheckpointState::None | CheckpointState::Discarding => None,
        });
    }

    /// Frees some of what a checkpoint that was given up held (order 2). In pass 1 of each txg.
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
                *held = held.saturating_sub(bytes);
            }
            if !taken.is_empty {
                return Ok(());
            }
        }
        if budget == 0 {
            // The vdevs behind were not looked at.
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
        self.engine.space.checkpoint.lock().held.clear();
        self.set_checkpoint(CheckpointState::None);
        Ok(())
    }
}

/// Takes a checkpoint.
struct Take {
    answer: Arc<Answer<()>>,
}

impl Task for Take {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let env = engine.datasets().env(context.txg);
            let uberblock = engine.uberblock();
            let result = match engine.space().check_no_checkpoint() {
                Ok(()) => engine.mos_apply(context.txg, |tx| take(tx, &env, &uberblock)).await,
                Err(error) => Err(error),
            };
            match result {
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => self.answer.put(Err(error)),
                Ok(()) => {
                    // Order 1: what this txg frees is freed after this.
                    engine.space().set_checkpoint(CheckpointState::Kept(uberblock.txg));
                    self.answer.put(Ok(()));
                }
            }
            Ok(())
        })
    }
}

fn take(tx: &mut Tx<'_>, env: &Env, uberblock: &Uberblock) -> TxResult<()> {
    if !features::is_enabled(tx, FEATURE)? {
        return Err(Error::from(CheckpointError::NotEnabled).into());
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

/// Gives a checkpoint up.
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
            match result {
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => self.answer.put(Err(error)),
                Ok(()) => {
                    // From here on frees of this txg are frees.
                    engine.space().set_checkpoint(CheckpointState::Discarding);
                    self.answer.put(Ok(()));
                }
            }
            Ok(())
        })
    }
}
