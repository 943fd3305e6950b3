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
//! A log makes single operations durable before their txg is. What it cannot take (no space, a
//! failed device, no chain yet) is made durable by a sync of the txg instead: a commit is never
//! less than that.
//!
//! Order of locks: the object set's, then a log's queue or chain, which never hold each other; the
//! writer's turn and the gate are taken before all of them. A writer never waits for a sync while a
//! block of its is on its way, and a sync waits for such blocks only.
//!
//! Large writes do not go through the log: their blocks are written where they will stay, and the
//! records point at them (`early`).
//!
//! Invariants of the chain are in `chain`. Crash safety rests on
//! 1. A chain is used only when the txg with its first header is on disk.
//! 2. A record is told to be durable after its block, and all before it, were written and then the
//!    devices flushed.
//! 3. The open txg does not change while a block is being allocated in it (the gate): otherwise the
//!    maps of that txg could be finished without the block.
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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zil::ZilFlags;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{AsyncMutex, Error, Kind, Notify, Result, tunables};

use chain::{Chain, Stage, Step};
use queue::Queue;

use crate::{Charge, Engine, EngineError, Head};
pub use kept::{ChangedBytes, KeptData};
pub use record::LogRecord;
pub use replay::{Operation, Replayed, Replayer, VolumeReplayer};

/// What commits do (property `sync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// What was asked to be durable is.
    Standard,
    /// Every operation is, before it returns.
    Always,
    /// Nothing is before its txg.
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

/// The log of a head.
#[derive(Debug)]
pub struct Log {
    queue: Mutex<Queue>,
    chain: Mutex<Chain>,
    /// Whose turn it is to write, with sizes of the last bursts.
    writer: AsyncMutex<Bursts>,
    /// A block was written, or failed.
    settled: Notify,
    mode: AtomicU64,
    /// Data goes to its place at once rather than into the log (`logbias=throughput`).
    is_for_throughput: AtomicBool,
    /// Properties may have changed since the mode was looked up.
    is_stale: AtomicBool,
    /// The last txg that may have changes without records: only a sync makes it durable.
    unrecorded: AtomicU64,
}

/// How much the last commits wrote, the newest first.
type Bursts = [usize; 8];

impl Default for Log {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            chain: Mutex::default(),
            writer: AsyncMutex::new(Bursts::default()),
            settled: Notify::new(),
            mode: AtomicU64::new(0),
            is_for_throughput: AtomicBool::new(false),
            is_stale: AtomicBool::new(true),
            unrecorded: AtomicU64::new(0),
        }
    }
}

impl Log {
    // Both are held for a few instructions, never across I/O.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation that was applied in `txg`. To keep the order of operations this is called
    /// at the end of the closure that applies it, when nothing can fail any more.
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

    /// Notes that something was done in `txg` that no record tells of: a commit is a sync as long
    /// as that is not on disk.
    pub fn note_unrecorded(&self, txg: u64) {
        self.unrecorded.fetch_max(txg, Ordering::AcqRel);
    }

    /// How many bytes may be written of records before their txg is synced, if they are committed:
    /// what a change is charged for its log.
    ///
    /// # Errors
    /// Those of the transaction.
    pub fn weigh(&self, tx: &Tx<'_>, records: &[LogRecord]) -> TxResult<u64> {
        if self.mode() == SyncMode::Disabled {
            return Ok(0);
        }
        let is_for_throughput = self.is_for_throughput.load(Ordering::Acquire);
        let mut bytes = 0;
        for record in records {
            let len = record.data_len();
            // Data that is written where it stays goes in whole blocks.
            let is_early =
                len > 0 && (is_for_throughput || len >= tunables::IMMEDIATE_WRITE_SZ.get());
            let dnode = if is_early { tx.find(record.object)? } else { None };
            bytes += record.written(dnode.map(|dnode| dnode.data_block_size()));
        }
        Ok(bytes)
    }

    /// What commits do, as far as is known.
    pub fn mode(&self) -> SyncMode {
        SyncMode::from_property(self.mode.load(Ordering::Acquire))
    }

    /// Whether an operation has to be committed before it returns.
    pub fn must_commit(&self, is_wanted: bool) -> bool {
        match self.mode() {
            SyncMode::Standard => is_wanted,
            SyncMode::Always => true,
            SyncMode::Disabled => false,
        }
    }

    /// Whether the data of a write of so many bytes that is to be durable at once should be given
    /// with its record ([`LogRecord::write`]); else it is better fetched or pointed at when the
    /// record is written ([`LogRecord::write_later`]).
    pub fn wants_data(&self, len: u64) -> bool {
        let is_for_throughput = self.is_for_throughput.load(Ordering::Acquire);
        !is_for_throughput && len <= tunables::ZIL_MAX_COPIED.get()
    }

    /// Makes what is recorded of an object go with every commit: the object was opened with
    /// `O_SYNC` for the first time, or is about to be renamed.
    pub fn make_sync(&self, object: u64) {
        self.queue().make_sync(object);
    }

    /// Drops what is recorded of an object whose last name is gone.
    pub fn forget(&self, object: u64) {
        self.queue().forget(object);
    }

    /// Bytes of records in memory, about.
    pub fn memory(&self) -> usize {
        self.queue().memory()
    }

    /// Whether an earlier opening left operations that wait for their replay.
    pub fn is_claimed(&self) -> bool {
        matches!(self.chain().stage, Stage::Claimed(_))
    }

    /// Whether some of them do: nothing else may be changed before.
    pub fn awaits_replay(&self) -> bool {
        match &self.chain().stage {
            Stage::Claimed(header) => header.flags.contains(ZilFlags::REPLAY_NEEDED),
            _ => false,
        }
    }

    /// The properties may have changed.
    pub(super) fn mark_stale(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// The blocks that go with their dataset in `txg`; none if the chain is not in memory.
    pub(super) fn doom(&self, txg: u64) -> Option<Vec<BlockPtr>> {
        self.chain().doom(txg)
    }

    /// What the sync of `txg` does to the log; none as long as it has to wait for blocks.
    fn try_step(&self, txg: u64) -> Option<Step> {
        let mut chain = self.chain();
        (!chain.is_unsettled(txg)).then(|| chain.step(txg))
    }

    /// Ends the chain if it has blocks on that top-level vdev, which is gone. Tells whether it has.
    pub(super) fn leave_vdev(&self, vdev: u64) -> bool {
        let mut chain = self.chain();
        let has_any = chain.oldest_on(vdev).is_some();
        if has_any {
            chain.retire();
        }
        has_any
    }

    /// Birth of the oldest block of the chain on that top-level vdev.
    fn oldest_on(&self, vdev: u64) -> Option<u64> {
        self.chain().oldest_on(vdev)
    }

    /// Whether a later sync has something to free.
    pub(super) fn has_orphans(&self) -> bool {
        self.chain().has_orphans()
    }

    /// The dataset is gone.
    pub(super) fn close(&self) {
        self.chain().close();
        self.settled.notify_waiters();
    }
}

/// The state behind [`IntentLogs`].
#[derive(Default)]
pub(crate) struct LogState {
    /// Held while a log block is allocated in the open txg, and while the open txg changes.
    pub(crate) gate: AsyncMutex<()>,
    /// By the kind of object set whose logs each one replays. Held for a copy.
    replayers: Mutex<Vec<(ObjSetType, Arc<dyn Replayer>)>>,
    /// Heads whose intent logs could not be read when the pool was opened, each with the last txg
    /// before that. Held for a look-up.
    unread: Mutex<BTreeMap<u64, u64>>,
}

/// The intent logs of all heads; made by [`Engine::intent_logs`].
#[derive(Debug, Clone, Copy)]
pub struct IntentLogs<'e> {
    pub(crate) engine: &'e Engine,
}

impl<'e> IntentLogs<'e> {
    pub(crate) fn replayers(self) -> MutexGuard<'e, Vec<(ObjSetType, Arc<dyn Replayer>)>> {
        self.engine.logs.replayers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// [`apply`](Self::apply) that also records what it did: the closure gives its value and the
    /// records, which get into the log in the order in which the operations are applied.
    ///
    /// # Errors
    /// `Kind::Busy` while the head's log waits for its replay; those of `apply`.
    pub async fn apply_logged<T>(
        &self,
        head: &Head,
        change: impl FnMut(&mut Tx<'_>) -> TxResult<(T, Vec<LogRecord>)>,
    ) -> Result<(T, u64)> {
        self.apply_charged_logged(head, Charge::UNKNOWN, change).await
    }

    /// [`apply_charged`](Self::apply_charged) that also records what it did, as
    /// [`apply_logged`](Self::apply_logged) does: the way of every change that a user makes.
    ///
    /// # Errors
    /// Those of both.
    pub async fn apply_charged_logged<T>(
        &self,
        head: &Head,
        charge: Charge,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<(T, Vec<LogRecord>)>,
    ) -> Result<(T, u64)> {
        check_replayed(head)?;
        self.apply_weighed(head, charge, |tx| logged(head, tx, &mut change)).await
    }
}

/// Runs a change and takes down what it says it did, when nothing can fail any more. Tells how
/// many bytes may be written of it before its txg is synced, for its value.
fn logged<T>(
    head: &Head,
    tx: &mut Tx<'_>,
    change: &mut impl FnMut(&mut Tx<'_>) -> TxResult<(T, Vec<LogRecord>)>,
) -> TxResult<(T, u64)> {
    let (value, records) = change(tx)?;
    let bytes = head.log().weigh(tx, &records)?;
    let changed = |record: &LogRecord| {
        let range = record.changed.clone()?;
        Some(ChangedBytes { object: record.object, range, is_freed: false })
    };
    let kept = head.log().keep(tx, &records.iter().filter_map(changed).collect::<Vec<_>>())?;
    // From here on nothing fails.
    head.log().give(tx.txg(), kept);
    for record in records {
        head.log().record(tx.txg(), record);
    }
    Ok((value, bytes))
}

/// What an earlier opening left comes before anything new: replayed later, it would undo that.
fn check_replayed(head: &Head) -> Result<()> {
    if head.log().awaits_replay() {
        let object = head.object();
        return Err(Error::new(Kind::Busy, EngineError::Unreplayed(object)));
    }
    Ok(())
}
