//! The intent log of a head (spec 07 A).
//!
//! ```text
//!   apply ── record ──> queue ── commit: ready ── writer ──> blocks ──flush──> durable
//!                         |                                   chain
//!                         `─ dropped when the txg is synced   `─ freed when the txgs are synced
//!
//!   import:  check ── claim every chain, before anything is allocated ── sync ── replay ── discard
//! ```
//!
//! A log makes single operations durable before their txg. Operations that it cannot contain (no
//! space, a failed device, no chain yet) are made durable by a sync of the txg instead.
//!
//! Lock order: the object set's, then a log's queue or chain, which are never held together; the
//! writer lock and the gate are taken before all of them. A writer never waits for a sync while one
//! of its blocks is in flight, and a sync waits for such blocks only.
//!
//! Large writes bypass the log: their blocks are written at their final place, and the records
//! point at them (`early`).
//!
//! The invariants of the chain are in `chain`. Crash safety depends on these rules:
//! 1. A chain is used only when the txg with its first header is on disk.
//! 2. A record is acknowledged after its block and all previous ones were written and then the
//!    devices flushed.
//! 3. The open txg does not change while a block is being allocated in it (the gate): otherwise the
//!    maps of that txg could be completed without the block.
//! 4. Claiming takes place before anything else is allocated, all in one txg.

mod chain;
mod claim;
mod commit;
mod early;
mod kept;
mod queue;
mod record;
mod replay;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zil::ZilFlags;
use cenote_rt::lock::{AsyncMutex, AsyncMutexGuard, Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Notify, Result, tunables};

use chain::{Chain, Stage, Step};
use queue::Queue;

use crate::{Engine, Head};
pub(crate) use commit::adopt;
pub use kept::{ChangedBytes, KeptData};
pub use record::LogRecord;
pub(crate) use replay::Outcome;
pub use replay::{Operation, Replayed, Replayer, VolumeReplayer};

/// The property `sync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Requested synchronous operations are durable.
    Standard,
    /// Every operation is durable before it returns.
    Always,
    /// Nothing is durable before its txg.
    Disabled,
}

impl SyncMode {
    const fn from_property(value: u64) -> Self {
        match value {
            1 => Self::Always,
            2 => Self::Disabled,
            _ => Self::Standard,
        }
    }
}

/// The most bytes that a log writes for the records of a change before the txg of the change is
/// synced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogBytes(pub(crate) u64);

/// The log of a head.
#[derive(Debug)]
pub struct Log {
    queue: Mutex<Queue>,
    chain: Mutex<Chain>,
    /// Serializes writers, with the sizes of the last commits.
    writer: AsyncMutex<Bursts>,
    /// A block was written, or failed.
    settled: Notify,
    mode: AtomicU64,
    /// Data is written to its place immediately instead of into the log (`logbias=throughput`).
    is_for_throughput: AtomicBool,
    /// Properties may have changed since they were read.
    is_stale: AtomicBool,
    /// The last txg that may have changes without records: only a sync makes it durable.
    unrecorded: AtomicU64,
}

/// Sizes of the last commits, the newest first.
type Bursts = [usize; 8];

impl Default for Log {
    fn default() -> Self {
        Self {
            queue: Mutex::with_default(Rank::LogQueue),
            chain: Mutex::with_default(Rank::LogChain),
            writer: AsyncMutex::with_default(Rank::LogWriter),
            settled: Notify::new(),
            mode: AtomicU64::new(0),
            is_for_throughput: AtomicBool::new(false),
            is_stale: AtomicBool::new(true),
            unrecorded: AtomicU64::new(0),
        }
    }
}

impl Log {
    // Both locks are held for a few instructions, never across I/O.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock()
    }

    /// Adds an operation that was applied in `txg`. Call it at the end of the closure that applies
    /// it, when nothing can fail any more, which keeps the order of operations.
    pub fn record(&self, txg: u64, record: LogRecord) {
        // A commit of an unrecorded txg is a sync, which needs no records.
        if self.mode() == SyncMode::Disabled || txg <= self.unrecorded.load(Ordering::Acquire) {
            return;
        }
        let is_kept = self.queue().push(txg, record);
        if !is_kept && !is_on(Bug::NewerDataInLog) {
            self.note_unrecorded(txg);
        }
    }

    /// Records a change in `txg` that has no record: commits use a sync until that is on disk.
    pub fn note_unrecorded(&self, txg: u64) {
        self.unrecorded.fetch_max(txg, Ordering::AcqRel);
    }

    /// Adds the records of a change to the log, in the order in which changes are applied. To be
    /// called at the end of the closure that makes the change, which must not fail afterwards.
    /// Returns the bytes that the log may write for the records.
    ///
    /// # Errors
    /// Errors of the transaction; the log is unchanged then.
    pub fn append(&self, tx: &Tx<'_>, records: Vec<LogRecord>) -> TxResult<LogBytes> {
        let bytes = self.log_bytes(&records);
        let changed = |record: &LogRecord| {
            let range = record.changed.clone()?;
            Some(ChangedBytes { object: record.object, range, is_freed: false })
        };
        let kept = self.keep(tx, &records.iter().filter_map(changed).collect::<Vec<_>>())?;
        // From here on nothing fails.
        self.give(tx.txg(), kept);
        for record in records {
            self.record(tx.txg(), record);
        }
        Ok(bytes)
    }

    /// Returns the most bytes that the log writes for records before their txg is synced, if they
    /// are committed. A change is charged with them: a block that is written over and over, and
    /// made durable each time, takes the space of one block in the dataset, and of one block for
    /// each write in the log.
    pub fn log_bytes(&self, records: &[LogRecord]) -> LogBytes {
        if self.mode() == SyncMode::Disabled {
            return LogBytes::default();
        }
        LogBytes(records.iter().map(LogRecord::written).sum())
    }

    /// Notes in `txg` that a record of the claimed chain is replayed.
    pub(crate) fn note_replayed(&self, txg: u64, seq: u64) {
        self.chain().note_replayed(txg, seq);
    }

    /// Returns the property `sync`, as last read.
    pub fn mode(&self) -> SyncMode {
        SyncMode::from_property(self.mode.load(Ordering::Acquire))
    }

    /// Whether an operation must be committed before it returns.
    pub fn must_commit(&self, is_wanted: bool) -> bool {
        match self.mode() {
            SyncMode::Standard => is_wanted,
            SyncMode::Always => true,
            SyncMode::Disabled => false,
        }
    }

    /// Whether a synchronous write of `len` bytes should pass its data with the record
    /// ([`LogRecord::write`]); otherwise the data is fetched or pointed at when the record is
    /// written ([`LogRecord::write_later`]).
    pub fn wants_data(&self, len: u64) -> bool {
        let is_for_throughput = self.is_for_throughput.load(Ordering::Acquire);
        !is_for_throughput && len <= tunables::ZIL_MAX_COPIED.get()
    }

    /// Includes the records of an object in every commit: it was opened with `O_SYNC` for the first
    /// time, or is about to be renamed.
    pub fn make_sync(&self, object: u64) {
        self.queue().make_sync(object);
    }

    /// Drops the records of an object without names.
    pub fn forget(&self, object: u64) {
        self.queue().forget(object);
    }

    /// Returns the approximate memory of records, in bytes.
    pub fn memory(&self) -> usize {
        self.queue().memory()
    }

    /// Whether operations of an earlier import are to be replayed.
    pub fn is_claimed(&self) -> bool {
        matches!(self.chain().stage, Stage::Claimed(_))
    }

    /// Whether operations are to be replayed, before anything else may be changed.
    pub fn awaits_replay(&self) -> bool {
        match &self.chain().stage {
            Stage::Claimed(header) => header.flags.contains(ZilFlags::REPLAY_NEEDED),
            _ => false,
        }
    }

    /// Marks the properties as possibly changed.
    pub(super) fn mark_stale(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// Returns the blocks to free with the dataset in `txg`, `None` if the chain is not in memory.
    pub(super) fn doom(&self, txg: u64) -> Option<Vec<BlockPtr>> {
        self.chain().doom(txg)
    }

    /// Returns the effect of the sync of `txg` on the log, `None` while it must wait for blocks.
    fn try_step(&self, txg: u64) -> Option<Step> {
        let mut chain = self.chain();
        let waits = chain.is_unsettled(txg) && !is_on(Bug::UnsettledBlocksIgnored);
        (!waits).then(|| chain.step(txg))
    }

    /// Ends the chain if it has blocks on this failed top-level vdev. Returns whether it has.
    pub(super) fn leave_vdev(&self, vdev: u64) -> bool {
        let mut chain = self.chain();
        let has_any = chain.oldest_on(vdev).is_some();
        if has_any {
            chain.retire();
        }
        has_any
    }

    /// Whether the chain has blocks on this top-level vdev.
    pub fn has_blocks_on(&self, vdev: u64) -> bool {
        self.oldest_on(vdev).is_some()
    }

    /// Returns the birth of the oldest block of the chain on this top-level vdev.
    fn oldest_on(&self, vdev: u64) -> Option<u64> {
        self.chain().oldest_on(vdev)
    }

    /// Whether a later sync has blocks to free.
    pub(super) fn has_orphans(&self) -> bool {
        self.chain().has_orphans()
    }

    /// Closes the log of a destroyed dataset.
    pub(super) fn close(&self) {
        self.chain().close();
        self.settled.notify_waiters();
    }
}

/// The state behind [`IntentLogs`].
pub(crate) struct LogState {
    /// Held while a log block is allocated in the open txg, and while the open txg changes.
    pub(crate) gate: AsyncMutex<()>,
    /// Replayers by type of object set. Held for a copy.
    replayers: Mutex<Vec<(ObjSetType, Arc<dyn Replayer>)>>,
    /// Number of [`FrozenLogs`]; no chain begins unless it is zero.
    freezes: AtomicUsize,
    /// Heads whose intent logs could not be read at import, each with the last txg before that.
    /// Held for a lookup.
    unread: Mutex<BTreeMap<u64, u64>>,
}

impl Default for LogState {
    fn default() -> Self {
        Self {
            gate: AsyncMutex::with_default(Rank::LogGate),
            replayers: Mutex::with_default(Rank::Replayers),
            freezes: AtomicUsize::new(0),
            unread: Mutex::with_default(Rank::UnreadLogs),
        }
    }
}

impl LogState {
    /// Whether no chain may begin. Asked under a log's writer lock, which a freeze takes after it
    /// was counted.
    fn is_frozen(&self) -> bool {
        self.freezes.load(Ordering::Acquire) > 0
    }
}

/// Frozen intent logs. They are thawed when the last of these values is dropped, however its owner
/// ends.
#[must_use]
pub(crate) struct FrozenLogs<'e> {
    engine: &'e Engine,
}

impl<'e> FrozenLogs<'e> {
    fn new(engine: &'e Engine) -> Self {
        engine.logs.freezes.fetch_add(1, Ordering::AcqRel);
        Self { engine }
    }
}

impl Drop for FrozenLogs<'_> {
    fn drop(&mut self) {
        let freezes = self.engine.logs.freezes.fetch_sub(1, Ordering::AcqRel);
        // Checks L8.
        assert!(freezes > 0, "the logs are not frozen");
    }
}

/// The intent logs of all heads; made by [`Engine::intent_logs`].
#[derive(Debug, Clone, Copy)]
pub struct IntentLogs<'e> {
    pub(crate) engine: &'e Engine,
}

impl<'e> IntentLogs<'e> {
    /// Waits until no other task writes or replays the log.
    ///
    /// # Errors
    /// [`EngineError::Suspended`] if the pool is closed by force meanwhile: the other one may wait
    /// for a device.
    async fn writer_of<'l>(&self, log: &'l Log) -> Result<AsyncMutexGuard<'l, Bursts>> {
        self.engine.health.suspension.unless_abandoned(log.writer.lock()).await
    }

    pub(crate) fn replayers(self) -> MutexGuard<'e, Vec<(ObjSetType, Arc<dyn Replayer>)>> {
        self.engine.logs.replayers.lock()
    }
}
