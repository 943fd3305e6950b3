//! Commits records to the log (spec 07 A9, A10).
//!
//! ```text
//!   callers ── ready list ── one has the turn: takes all of it, fills blocks, writes, flushes
//!              `── the others find their records durable when their turn comes
//! ```
//!
//! While one commit is written, the records of all others are collected: the slower the device, the
//! more commits share a write and a flush.
//!
//! A block is written with the address of the next, which is allocated first; its size depends on
//! the remaining records, or on the last commits.
//!
//! Invariants
//! * L6  The records of a log block fit into it.
//! * L10  Records count as durable only if no leaf left service between their write and the flush.
//! * L12  A chain is used only when the txg whose header leads to it is on disk.
//! * L13  Records count as durable only if all blocks of the chain up to theirs were written.

use std::sync::atomic::Ordering;

use cenote_block::LOG_BLOCK_ALIGN;
use cenote_dmu::TxStop;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::zil::{LogBlock, ZIL_CHAIN_LEN, ZilHeader};
use cenote_pool::props::lookup::Settings;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, BufMut, Error, Kind, Result, ensure, tunables};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::EngineError;
use crate::IntentLogs;
use crate::dsl;
use crate::error::ZilError;
use crate::zil::chain::{BlockState, Chain, Stage};
use crate::zil::queue::Queued;
use crate::zil::record::Piece;
use crate::zil::{Bursts, Head, Log, SyncMode};

/// Blocks of a commit that are in flight at a time.
const WRITES_MAX: usize = 16;

/// How records are made durable.
enum CommitPath {
    /// In the chain.
    Chain,
    /// Only by a sync.
    Sync,
}

impl IntentLogs<'_> {
    /// Makes the records of `object` and of names durable; with `None`, all records of the head.
    /// The guarantee is the same whether the log or a sync is used.
    ///
    /// # Errors
    /// Errors of a sync, if one was necessary: the pool is then suspended.
    pub async fn commit(self, head: &Head, object: Option<u64>) -> Result<()> {
        let log = head.log();
        self.refresh(head).await?;
        if log.mode() == SyncMode::Disabled {
            return Ok(());
        }
        // Before the check: records are dropped after the txg was marked.
        let ticket = log.queue().pull(object);
        // Records of that txg are dropped with it.
        if self.is_unrecorded(log) {
            return self.engine.sync().await.map(drop);
        }
        let Some(ticket) = ticket else { return Ok(()) };
        let mut bursts = self.writer_of(log).await?;
        if log.queue().is_done(ticket) {
            return Ok(());
        }
        // From here until `finish` only this task has the records. If it ends early, the next
        // writer notices, and syncs.
        let (records, last) = log.queue().take();
        let way = match records {
            Some(records) => self.write_records(head, &mut bursts, records).await,
            None => Err(Error::new(Kind::Busy, ZilError::WriterGone)),
        };
        let way = match way {
            Err(error) if error.kind() == Kind::Invariant => return Err(error),
            // The chain may have a gap: the sync removes it.
            Err(_) => {
                log.chain().retire();
                CommitPath::Sync
            }
            // A later change may have replaced the data of a record while it was written.
            Ok(_) if self.is_unrecorded(log) => CommitPath::Sync,
            Ok(way) => way,
        };
        if let CommitPath::Sync = way {
            // Checks H2.
            if head.is_gone() {
                return Err(Error::not_found(EngineError::HeadGone(head.object())));
            }
            self.engine.sync().await?;
        }
        log.queue().finish(last);
        Ok(())
    }

    /// Whether there are changes without records that are not on disk.
    fn is_unrecorded(self, log: &Log) -> bool {
        log.unrecorded.load(Ordering::Acquire) > self.engine.uberblock().txg
    }

    async fn write_records(
        self,
        head: &Head,
        bursts: &mut Bursts,
        records: Vec<Queued>,
    ) -> Result<CommitPath> {
        let since = cenote_rt::monotonic();
        if let CommitPath::Sync = self.prepare_chain(head).await? {
            return Ok(CommitPath::Sync);
        }
        // Records of committed txgs are not needed.
        let committed = head.log().queue().last_committed();
        let records = records.into_iter().filter(|queued| queued.txg > committed);
        let pieces = records.map(|queued| Piece::new(queued.txg, queued.record));
        let pieces: Vec<_> = pieces.filter(|piece| !piece.is_empty()).collect();
        let max = max_block();
        let room = max as usize - ZIL_CHAIN_LEN;
        if pieces.iter().any(|piece| piece.whole_len() > room) {
            return Ok(CommitPath::Sync);
        }
        if pieces.is_empty() {
            return Ok(CommitPath::Chain);
        }
        let count = pieces.len() as u64;
        let service = self.engine.tree.service_changes();
        let pieces = self.write_early(head, pieces).await?;
        bursts.rotate_right(1);
        bursts[0] = pieces.iter().map(Piece::len).sum();
        let written = self.write_blocks(head, bursts, pieces).await?;
        let gap = head.log().chain().unwritten_of_last(written);
        ensure!("L13", gap.is_none(), "log block {gap:?} was not written before its records count");
        // Order 2: all blocks of the chain up to here are written.
        if !is_on(Bug::NoFlushOfLog) {
            self.engine.tree.flush().await?;
        }
        // A leaf that left service meanwhile was not flushed, and may be the only one with the
        // blocks. Callers are then answered after a sync instead.
        // Checks L10.
        if self.engine.tree.service_changes() != service {
            return Err(Error::new(Kind::Io, ZilError::LeafLeft));
        }
        head.activity().committed(count, since);
        Ok(CommitPath::Chain)
    }

    /// Starts a chain if there is none.
    async fn prepare_chain(self, head: &Head) -> Result<CommitPath> {
        let log = head.log();
        adopt(head);
        if head.is_locked() {
            return Ok(CommitPath::Sync);
        }
        let stage = log.chain().stage.clone();
        match stage {
            Stage::Live if log.chain().is_usable => {
                let (begun, on_disk) = (log.chain().anchored(), self.engine.uberblock().txg);
                let is_reached = begun.is_some_and(|begun| begun <= on_disk);
                ensure!("L12", is_reached, "a chain of txg {begun:?} is used in txg {on_disk}");
                return Ok(CommitPath::Chain);
            }
            Stage::None if !self.engine.logs.is_frozen() => {
                let id = {
                    let mut rng = self.engine.txgs.rng.lock();
                    [rng.next_u64(), rng.next_u64()]
                };
                log.chain().begin(id);
                // Without space for a log block, the sync that follows makes the records durable.
                if let Err(error) = self.allocate_block(head, LOG_BLOCK_ALIGN).await {
                    log.chain().retire();
                    if error.kind() == Kind::Invariant {
                        return Err(error);
                    }
                }
            }
            Stage::Claimed(header) if !has_records(&header) => {
                self.discard(head, &header).await?;
            }
            _ => {}
        }
        // Order 1: the header is written by the sync that makes these records durable.
        Ok(CommitPath::Sync)
    }

    /// Reads the data of a piece that does not have it. Returns false if its object was freed.
    async fn fetch(self, head: &Head, piece: &mut Piece) -> Result<bool> {
        let Some(range) = piece.wanted() else { return Ok(true) };
        let object = piece.object;
        // Under the object set's lock: a later change either was not applied, or has kept the bytes
        // (K1).
        let read = head.live().inspect(|tx| {
            if let Some(kept) = piece.kept() {
                return Ok(kept);
            }
            let len = usize::try_from(range.end - range.start);
            let len = len.map_err(|error| TxStop::Fail(Error::new(Kind::Limit, error)))?;
            tx.read(object, range.start, len).map(Buf::from)
        });
        match read.await {
            Ok(bytes) => {
                let (found, len) = (bytes.len() as u64, range.end - range.start);
                ensure!("K1", found == len, "{found} of {len} bytes of a write to object {object}");
                piece.give(bytes);
                Ok(true)
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes the pieces into blocks of the chain, and returns the number of the blocks.
    async fn write_blocks(
        self,
        head: &Head,
        bursts: &Bursts,
        mut pieces: Vec<Piece>,
    ) -> Result<usize> {
        let log = head.log();
        pieces.reverse();
        let (mut writes, mut count) = (FuturesUnordered::new(), 0);
        // A failed or cancelled write settles its block, so that no task waits forever.
        while !pieces.is_empty() {
            let (bp, mut seq) = {
                let chain = log.chain();
                let Some(link) = chain.links.back().filter(|_| chain.stage == Stage::Live) else {
                    return Err(Error::new(Kind::Busy, ZilError::ChainGone));
                };
                (link.bp, chain.last_record)
            };
            let mut records = Vec::new();
            let mut max_txg = 0;
            let room = bp.lsize() as usize - ZIL_CHAIN_LEN;
            while let Some(piece) = pieces.last_mut() {
                // One after the other: all of it together could be all dirty data.
                if !self.fetch(head, piece).await? {
                    pieces.pop();
                    continue;
                }
                let before = records.len();
                let is_whole = piece.pack(&mut records, room - before, &mut seq);
                if records.len() > before {
                    max_txg = max_txg.max(piece.txg);
                }
                if !is_whole {
                    break;
                }
                pieces.pop();
            }
            let next = self.next_block(head, &pieces, bursts, (bp, max_txg, seq)).await?;
            let (len, lsize) = (records.len(), bp.lsize());
            ensure!("L6", len <= room, "{len} bytes of records for a block of {lsize} bytes");
            let writing = Writing { log, bp, is_done: false };
            let block = encode(&bp, &next, &records);
            if writes.len() >= WRITES_MAX {
                writes.next().await.transpose()?;
            }
            count += 1;
            writes.push(async move {
                // Owned by this future, so that they end with it.
                let mut writing = writing;
                let keys = head.seal_keys();
                let store = &self.engine.store;
                let result = store.write_log(&writing.bp, block, keys.as_deref()).await;
                writing.is_done = result.is_ok();
                result
            });
        }
        while let Some(result) = writes.next().await {
            result?;
        }
        Ok(count)
    }

    /// Allocates the block after the last, which is about to be written: atomic with respect to
    /// syncs (L3).
    async fn next_block(
        self,
        head: &Head,
        left: &[Piece],
        bursts: &Bursts,
        (bp, max_txg, seq): (BlockPtr, u64, u64),
    ) -> Result<BlockPtr> {
        let burst = match left.iter().map(Piece::len).sum::<usize>() {
            0 => bursts.iter().copied().max().unwrap_or(0),
            left => left,
        };
        let size = ((ZIL_CHAIN_LEN + burst) as u64).next_multiple_of(LOG_BLOCK_ALIGN);
        let note = |chain: &mut Chain| {
            chain.last_record = seq;
            // Checks L1: only this task fills and takes blocks of the chain, in their order.
            let link = chain.links.iter_mut().rev().find(|link| link.bp == bp);
            let link = link.expect("the block that is being filled");
            assert!(link.state == BlockState::Empty, "a log block is filled twice");
            link.max_txg = max_txg;
            link.state = BlockState::Writing;
        };
        self.allocate_with(head, size.min(max_block()), note).await
    }

    async fn allocate_block(self, head: &Head, size: u64) -> Result<BlockPtr> {
        self.allocate_with(head, size, |_| ()).await
    }

    async fn allocate_with(
        self,
        head: &Head,
        size: u64,
        note: impl FnOnce(&mut Chain),
    ) -> Result<BlockPtr> {
        let log = head.log();
        // Order 3: while this is held no txg is closed.
        let gate = self.engine.logs.gate.lock().await;
        self.engine.check_running()?;
        let txg = self.engine.open_txg();
        let _gate = Some(gate).filter(|_| !is_on(Bug::GateDroppedEarly));
        let identity = {
            let chain = log.chain();
            [chain.id[0], chain.id[1], head.object(), chain.next_block]
        };
        let keys = head.seal_keys();
        let bp = self.engine.store.alloc_log(size, txg, identity, keys.as_deref()).await?;
        // Both under one lock: a sync that ends the chain in between would free the block that is
        // being filled, which counts as empty until it is noted as being written.
        let mut chain = log.chain();
        if !chain.push(bp) {
            return Err(Error::new(Kind::Busy, ZilError::ChainGone));
        }
        note(&mut chain);
        Ok(bp)
    }

    /// Reads the properties again if they may have changed.
    pub(super) async fn refresh(self, head: &Head) -> Result<()> {
        let log = head.log();
        if !log.is_stale.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let object = head.object();
        let looked_up = self
            .engine
            .mos
            .inspect(|tx| {
                let dir = dsl::get_dataset(tx, object)?.dir_obj;
                let settings = Settings::of_dir(tx, dir)?;
                Ok((settings.number("sync", 0), settings.number("logbias", 0)))
            })
            .await;
        match looked_up {
            Ok((mode, bias)) => {
                let before = log.mode();
                log.mode.store(mode, Ordering::Release);
                if before == SyncMode::Disabled {
                    // Earlier changes have no records.
                    log.note_unrecorded(self.engine.open_txg());
                }
                log.is_for_throughput.store(bias == 1, Ordering::Release);
                Ok(())
            }
            // It was destroyed meanwhile, or is being created.
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            Err(error) => {
                log.mark_stale();
                Err(error)
            }
        }
    }
}

/// A block in flight; its end, however it comes, wakes waiting tasks. After a failed block nothing
/// would be found by a replay: the chain accepts no more.
struct Writing<'a> {
    log: &'a Log,
    bp: BlockPtr,
    is_done: bool,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut chain = self.log.chain();
        // The block is one of the last: there may be thousands before it.
        if let Some(link) = chain.links.iter_mut().rev().find(|link| link.bp == self.bp) {
            link.state = BlockState::Written;
        }
        if !self.is_done {
            chain.retire();
        }
        drop(chain);
        if !is_on(Bug::SettledNotNotified) {
            self.log.settled.notify_waiters();
        }
    }
}

/// Reads the header, if it was not read before.
pub(crate) fn adopt(head: &Head) {
    if head.log().chain().stage != Stage::Unknown {
        return;
    }
    // The object set's lock comes before the chain's.
    match ZilHeader::decode(&head.live().zil_header()) {
        Ok(header) => head.log().chain().adopt(header),
        Err(_) => head.log().chain().stage = Stage::Foreign,
    }
}

/// Returns the maximum size of a log block.
fn max_block() -> u64 {
    let max = tunables::ZIL_MAX_BLOCK.get();
    (max / LOG_BLOCK_ALIGN * LOG_BLOCK_ALIGN).max(LOG_BLOCK_ALIGN)
}

fn has_records(header: &ZilHeader) -> bool {
    header.flags.contains(cenote_ondisk::zil::ZilFlags::REPLAY_NEEDED)
}

/// Encodes a block without magic and checksum, which the store adds.
fn encode(bp: &BlockPtr, next: &BlockPtr, records: &[u8]) -> BufMut {
    let mut block = BufMut::zeroed(bp.lsize() as usize);
    LogBlock::fill_slim(&mut block, next, records).expect("records are packed by the block's room");
    block
}
