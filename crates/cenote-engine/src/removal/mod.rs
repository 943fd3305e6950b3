//! Removes top-level vdevs with data: disks and mirrors (spec 05 §11, 06 §7, 08 §34).
//!
//! ```text
//!   begin    logs end, nothing is allocated there any more ──> mapping, births: one txg
//!   copy     allocated ranges, ascending ──> other vdevs + entries of the mapping: a txg for
//!            each batch
//!   finish   all is mapped ──> an indirect vdev takes its place: one txg ──> labels cleared
//!   cancel   the copies are freed, the mapping goes: one txg
//! ```
//!
//! Block pointers do not change. While the vdev is being removed, blocks are read from it, and
//! frees go to both places ([`cenote_block::MovedBytes`]). Afterwards its addresses are looked up
//! in the mapping.
//!
//! A batch is read before its txg and written by a task of the sync, together with its entries. So
//! a byte is either not copied, or its copy is in the same uberblock as its entry; frees of the txg
//! follow its tasks. The next batch is read meanwhile.
//!
//! The state on disk is OpenZFS's, at each commit: it continues a removal that was begun here, and
//! the other way round. A crash repeats at most one batch.
//!
//! Obsolete parts of a mapping are recorded, and left out once they are many ([`condense`]).
//!
//! A leaf that lacks copies lacks old births. No scan finds them before the removal has ended, so
//! a scan that begins earlier leaves the logs of leaves as they are, and a resilver follows.
//!
//! Invariants
//! * RV1  A vdev is given away only when every allocated byte of it is mapped.
//! * RV2  Nothing is allocated on a vdev that is being removed, and no block that was allocated
//!   before is written there for the first time.
//! * RV3  A copy is on another vdev, in one piece, and as long as its source.
//!
//! Orders that data depends on
//! 1. Logs end before anything is copied: an empty log block is allocated long before it is
//!    written, and its copy would lack what an fsync was answered for.
//! 2. The copy is written in the txg of its entry, whose commit flushes it before the uberblock.
//! 3. Labels are cleared after the commit of the indirect vdev.
//! 4. Views of earlier states end before the vdev is gone: what was freed since is not copied.

mod begin;
mod cancel;
mod check;
mod condense;
mod copy;
mod finish;
mod record;
mod run;
mod segments;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_ondisk::config::VdevKind;
use cenote_ondisk::indirect::{MAPPING_ENTRY_LEN, REMOVING, RemovingPhys};
use cenote_ondisk::zap::Value;
use cenote_pool::Pool;
use cenote_rt::lock::{AsyncMutex, AsyncMutexGuard, Mutex, Rank};
use cenote_rt::{Error, Kind, Result, tunables};

use crate::background::Background;
use crate::{Engine, EngineError};

/// Lists of remapped blocks, which are not maintained here; part of the feature `obsolete_counts`.
const REMAPPED: &str = "com.delphix:obsolete_counts (remapped blocks)";

/// Why a vdev is not removed, in OpenZFS's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemovalError {
    /// There is no such vdev.
    #[error("no such device in pool")]
    NoSuchVdev,
    /// The vdev is no top-level vdev with data, or the feature is not enabled.
    #[error("operation not supported on this type of pool")]
    NotSupported,
    /// The vdev is being removed already.
    #[error("removal for this vdev is already in progress.")]
    Already,
    /// Another vdev is being removed, or a leaf lacks data.
    #[error("Pool busy; removal may already be in progress")]
    Busy,
    /// The other vdevs have too little space.
    #[error("out of space")]
    NoSpace,
    /// The vdev cannot be read.
    #[error("I/O error")]
    Unreadable,
    /// A vdev with parity, or with another sector size.
    #[error("invalid config; all top-level vdevs must have the same sector size and not be raidz.")]
    Layout,
    /// Vdevs with parity are to be added.
    #[error(
        "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID \
         vdevs"
    )]
    AddsParity,
    /// No vdev is being removed.
    #[error("operation is not in progress")]
    NotRunning,
    /// A vdev is being removed.
    #[error("device removal in progress")]
    InProgress,
    /// The mapping of a removed vdev cannot be read.
    #[error("the mapping of the removed vdev {0} cannot be read")]
    NoMapping(u64),
    /// More is recorded as obsolete than a mapping has.
    #[error("the obsolete bytes of the removed vdev {0} do not fit its mapping")]
    Obsolete(u64),
    /// Bytes could not be read, so that the removal was cancelled.
    #[error("the removal of vdev {vdev} was cancelled: {cause}")]
    Cancelled {
        /// Id of the vdev.
        vdev: u64,
        /// The error.
        cause: String,
    },
}

impl From<RemovalError> for Error {
    fn from(error: RemovalError) -> Self {
        let kind = match error {
            RemovalError::NoSuchVdev | RemovalError::NotRunning => Kind::NotFound,
            RemovalError::Already | RemovalError::Busy | RemovalError::InProgress => Kind::Busy,
            RemovalError::NoSpace => Kind::NoSpace,
            RemovalError::Unreadable | RemovalError::Cancelled { .. } => Kind::Io,
            RemovalError::NotSupported => Kind::Unsupported,
            RemovalError::NoMapping(_) | RemovalError::Obsolete(_) => Kind::Corrupt,
            RemovalError::Layout | RemovalError::AddsParity => Kind::Invalid,
        };
        Self::new(kind, error)
    }
}

impl From<RemovalError> for cenote_dmu::TxStop {
    fn from(error: RemovalError) -> Self {
        Error::from(error).into()
    }
}

/// The state behind [`Removals`].
#[derive(Debug)]
pub(crate) struct RemovalTasks {
    /// Held while a removal is begun, started or cancelled.
    control: AsyncMutex<()>,
    // Held for a few instructions, never across I/O.
    runner: Mutex<Option<Arc<Background>>>,
    /// The task that condenses mappings. As above.
    condenser: Mutex<Option<Arc<Background>>>,
    /// A mapping does not fit what is recorded of it: none is condensed until the next import.
    is_inconsistent: AtomicBool,
    /// The last txg in which bytes were copied.
    copied_in: AtomicU64,
    /// A leaf may lack copies.
    is_lacking: AtomicBool,
    /// Nothing runs, because the pool is being closed. Asked under the lock of `runner`.
    is_stopped: AtomicBool,
}

impl Default for RemovalTasks {
    fn default() -> Self {
        Self {
            control: AsyncMutex::with_default(Rank::RemovalControl),
            runner: Mutex::new(Rank::RemovalRunner, None),
            condenser: Mutex::new(Rank::RemovalRunner, None),
            is_inconsistent: AtomicBool::new(false),
            copied_in: AtomicU64::new(0),
            is_lacking: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        }
    }
}

/// The removal of vdevs with data; from [`Engine::removals`].
#[derive(Debug, Clone, Copy)]
pub struct Removals<'e> {
    pub(crate) engine: &'e Engine,
}

impl<'e> Removals<'e> {
    /// Waits until no removal begins or is cancelled, and keeps others from it.
    pub(crate) async fn control(self) -> AsyncMutexGuard<'e, ()> {
        self.engine.leaf.removal.control.lock().await
    }

    /// Returns the id of the vdev that is being removed.
    #[must_use]
    pub fn removing(self) -> Option<u64> {
        self.engine.store.moved().copied_up_to().map(|(vdev, _)| vdev)
    }

    /// Begins the removal of the top-level vdev with this guid, a disk or mirror with data. It goes
    /// on in the background, and after a crash or an export with the next import.
    ///
    /// # Errors
    /// A [`RemovalError`] or a [`CheckpointError`](crate::CheckpointError), and nothing was
    /// changed; `Kind::Busy` if operations of an earlier import are to be replayed; errors of a
    /// sync.
    pub async fn begin(self, guid: u64) -> Result<()> {
        self.engine
            .even_alone(move |engine| async move {
                let removals = engine.removals();
                let _control = removals.control().await;
                removals.halt().await;
                let begun = begin::begin(&engine, guid).await;
                // Another one that was running goes on.
                removals.start();
                begun
            })
            .await
    }

    /// Returns the estimated bytes of memory for the mapping of a vdev, as OpenZFS does: one entry
    /// for each free range that divides the allocated ones, and for each longest segment. 0 for a
    /// vdev without data.
    #[must_use]
    pub fn mapping_estimate(self, guid: u64) -> u64 {
        let found = self.engine.with_config(|config| {
            let top = config.root.children.iter().find(|top| top.guid == guid);
            top.map(|top| (top.id, top.top.ashift, top.top.is_log))
        });
        let Some((id, ashift, false)) = found else { return 0 };
        let (mut entries, mut bytes) = (0_u64, 0_u64);
        for metaslab in self.engine.alloc.metaslab_figures(id) {
            bytes += metaslab.allocated;
            for (bucket, count) in (ashift..).zip(metaslab.histogram) {
                let least = 1_u64.checked_shl(bucket as u32).unwrap_or(u64::MAX);
                if least < tunables::REMOVAL_MAX_SPAN.get() / 2 {
                    bytes = bytes.saturating_add(count.saturating_mul(least.saturating_mul(2)));
                } else {
                    entries = entries.saturating_add(count);
                }
            }
        }
        entries += bytes / tunables::REMOVE_MAX_SEGMENT.get();
        entries.saturating_mul(MAPPING_ENTRY_LEN as u64)
    }

    /// Cancels the removal: the vdev is used as before.
    ///
    /// # Errors
    /// [`RemovalError::NotRunning`], or errors of a sync.
    pub async fn cancel(self) -> Result<()> {
        self.engine
            .even_alone(|engine| async move {
                let removals = engine.removals();
                let control = removals.control().await;
                if removals.removing().is_none() {
                    return Err(RemovalError::NotRunning.into());
                }
                removals.halt().await;
                let cancelled = cancel::cancel(&engine).await;
                removals.start();
                drop(control);
                cancelled?;
                removals.after_end().await
            })
            .await
    }

    /// Continues a removal that was running when the pool was closed, and condenses mappings; does
    /// nothing while the pool is being closed. To be called after an import.
    pub async fn resume(self) {
        let _control = self.control().await;
        self.start();
        let root = self.engine.config().root;
        // After an error the next block that is freed there asks again.
        if let Ok(true) = self.engine.mos.inspect(|tx| condense::is_due(tx, &root)).await {
            self.start_condensing();
        }
    }

    /// Waits until no removal runs.
    ///
    /// # Errors
    /// The error that ended it.
    pub async fn wait(self) -> Result<()> {
        let runner = self.engine.leaf.removal.runner.lock().clone();
        match runner {
            Some(runner) => runner.wait().await,
            None => Ok(()),
        }
    }

    /// Whether a removal runs.
    #[must_use]
    pub fn is_running(self) -> bool {
        let runner = self.engine.leaf.removal.runner.lock();
        runner.as_ref().is_some_and(|runner| !runner.has_ended())
    }

    /// Returns the stored state.
    ///
    /// # Errors
    /// Errors of a device.
    pub async fn state(self) -> Result<Option<RemovingPhys>> {
        self.engine.mos.inspect(record::state).await
    }

    /// Whether bytes were copied in this txg. A leaf that lacks it lacks old blocks.
    pub(crate) fn has_copied_in(self, txg: u64) -> bool {
        self.engine.leaf.removal.copied_in.load(Ordering::Acquire) == txg
    }

    /// Notes whether a leaf lacks copies.
    pub(crate) fn note_lacking(self, is_lacking: bool) {
        self.engine.leaf.removal.is_lacking.store(is_lacking, Ordering::Release);
    }

    /// Whether a leaf may lack copies that no scan finds yet: until the end of the removal, block
    /// pointers lead to the originals.
    pub(crate) fn hides_copies(self) -> bool {
        self.removing().is_some() && self.engine.leaf.removal.is_lacking.load(Ordering::Acquire)
    }

    /// A removal has ended: a resilver finds the copies that leaves lack.
    async fn after_end(self) -> Result<()> {
        if !self.engine.leaf.removal.is_lacking.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.engine.scans().resume().await
    }

    /// Refuses operations that OpenZFS refuses while a vdev is being removed.
    pub(crate) fn check_none(self) -> Result<()> {
        match self.removing() {
            Some(_) => Err(RemovalError::InProgress.into()),
            None => Ok(()),
        }
    }

    /// Runs the stored removal in the background.
    fn start(self) {
        if self.removing().is_none() || self.engine.is_read_only() {
            return;
        }
        let runner = {
            let mut running = self.engine.leaf.removal.runner.lock();
            let is_stopped = self.engine.leaf.removal.is_stopped.load(Ordering::Acquire);
            if is_stopped || running.as_ref().is_some_and(|runner| !runner.has_ended()) {
                return;
            }
            Arc::clone(running.insert(Arc::default()))
        };
        run::start(self.engine.me.clone(), runner);
    }

    /// Stops the running task, and waits for it.
    async fn halt(self) {
        let runner = self.engine.leaf.removal.runner.lock().clone();
        if let Some(runner) = runner {
            runner.stop();
            // Why it ended is told by the next one.
            drop(runner.wait().await);
        }
    }

    /// Stops the task, so that devices are not used any more. The removal stays as it is on disk.
    pub(crate) async fn suspend(self) {
        self.engine.leaf.removal.is_stopped.store(true, Ordering::Release);
        self.halt().await;
        self.halt_condensing().await;
    }

    /// The pool stays open: undoes [`suspend`](Self::suspend).
    pub(crate) async fn unsuspend(self) {
        self.engine.leaf.removal.is_stopped.store(false, Ordering::Release);
        self.resume().await;
    }

    /// Takes over the removals of a pool that is being opened for writing.
    ///
    /// # Errors
    /// A [`RemovalError`] if they cannot be maintained; errors of a device.
    pub(crate) async fn adopt(self, pool: &Arc<Pool>) -> Result<()> {
        let root = &pool.config().vdev_tree;
        for top in root.children.iter().filter(|top| top.kind == VdevKind::Indirect) {
            if pool.tree().indirect(top.id).is_none() {
                return Err(RemovalError::NoMapping(top.id).into());
            }
        }
        if self.engine.mos.inspect(|tx| record::has_remapped_blocks(tx, root)).await? {
            let lists = vec![REMAPPED.to_owned()];
            return Err(Error::new(Kind::Unsupported, EngineError::Unmaintained(lists)));
        }
        let words = pool.directory_value(REMOVING).map(Value::words).unwrap_or_default();
        let state = RemovingPhys::decode(&words).ok();
        let Some(state) = state.filter(|state| state.state == record::RUNNING) else {
            return Ok(());
        };
        let mapping = cenote_pool::vdevs::mapping_of_removing(pool).await?;
        match mapping.filter(|(vdev, _)| *vdev == state.removing_vdev) {
            Some((vdev, mapping)) => {
                self.engine.alloc.set_allocating(vdev, false);
                let mut dtls = self.engine.tree.leaves().map(|(_, leaf)| leaf.dtl());
                self.note_lacking(dtls.any(|lacks| lacks.is_none_or(|lacks| !lacks.is_empty())));
                self.engine.store.moved().begin(vdev, mapping)
            }
            None => Err(RemovalError::NoMapping(state.removing_vdev).into()),
        }
    }
}
