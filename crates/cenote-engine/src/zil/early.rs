//! Data blocks that are written early at their final place, with a record that points at them (spec
//! 07 A7.4, A9).
//!
//! ```text
//!   logbias=throughput          every block that a write covers
//!   a log device                no block
//!   else                        blocks covered by writes of 32K and more, and of half a block
//! ```
//!
//! Only a block that its write covers from end to end is written early. The rest of another block
//! may belong to a later write, which is not in this commit: replaying the record would bring that
//! write back, though it was never made durable, and without those between the two.
//!
//! A block is written with the contents as of the record's txg, and the sync of that txg uses it,
//! unless it was changed meanwhile; unused blocks are freed. If a record's txg is being synced, or
//! its block is no longer in memory or was changed, the record contains its data.
//!
//! Crash safety: the block is allocated before the txg is closed (the hold, which the sync waits
//! for), so that it is in that txg's maps; and it is written before the log block that points at
//! it, so one flush makes both durable. Claiming reads the block: a torn block ends the log.
//!
//! Invariants
//! * L5  A block that was written early was born in the txg of its record, and is either used by
//!   the sync of this txg or freed by it.

use std::sync::Arc;

use cenote_block::alloc::Class;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result, ensure, tunables};
use futures_util::stream::{self, StreamExt};

use crate::IntentLogs;
use crate::zil::Head;
use crate::zil::record::Piece;

/// Blocks of a commit that are written early at a time.
const WRITES_MAX: usize = 16;

/// Prevents a txg from being synced while a block is written in it.
struct Hold {
    head: Arc<Head>,
    txg: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.head.log().chain().release(self.txg);
        self.head.log().settled.notify_waiters();
    }
}

impl IntentLogs<'_> {
    /// Writes the blocks of pieces that are to point at them.
    pub(super) async fn write_early(self, head: &Head, pieces: Vec<Piece>) -> Result<Vec<Piece>> {
        let is_for_throughput =
            head.log().is_for_throughput.load(std::sync::atomic::Ordering::Acquire);
        let has_log_device = self.engine.alloc.class_figures(Class::Log).deflated_space > 0;
        if has_log_device && !is_for_throughput {
            return Ok(pieces);
        }
        let mut work = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(range) = piece.wanted() else {
                work.push((piece, None));
                continue;
            };
            let size = self.block_size_of(head, piece.object).await?;
            let len = range.end - range.start;
            let is_large = len >= tunables::IMMEDIATE_WRITE_SZ.get() && len >= size / 2;
            if size == 0 || !(is_for_throughput || is_large) {
                work.push((piece, None));
                continue;
            }
            for part in piece.by_block(size) {
                let range = part.wanted().unwrap_or_default();
                let is_whole = range.end - range.start == size;
                work.push((part, is_whole.then_some(range.start / size)));
            }
        }
        let written = work.into_iter().map(async |(mut piece, number)| {
            if let Some(number) = number
                && let Some(bp) = self.write_block_early(head, &piece, number).await?
                // After a later change the block is useless, and is freed with its txg.
                && piece.kept().is_none()
            {
                piece.point_at(bp);
            }
            Ok::<_, Error>(piece)
        });
        // In the order of the records.
        let written: Vec<_> = stream::iter(written).buffered(WRITES_MAX).collect().await;
        written.into_iter().collect()
    }

    /// Returns the block size of an object, 0 if it was freed.
    async fn block_size_of(self, head: &Head, object: u64) -> Result<u64> {
        let found = head.live().inspect(|tx| tx.find(object)).await?;
        Ok(found.map_or(0, |dnode| dnode.data_block_size()))
    }

    /// Returns the pointer to a block as of the piece's txg, `None` if its data must be in the log.
    async fn write_block_early(
        self,
        head: &Head,
        piece: &Piece,
        number: u64,
    ) -> Result<Option<BlockPtr>> {
        let Some(head) = self
            .engine
            .heads
            .get(head.object())
            .filter(|open| std::ptr::eq(Arc::as_ptr(open), head))
        else {
            return Ok(None);
        };
        let (txg, object) = (piece.txg, piece.object);
        let hold = {
            // While this is held no txg is closed (order 3 of the logs).
            let _gate = self.engine.logs.gate.lock().await;
            self.engine.check_running()?;
            if self.engine.open_txg() != txg {
                return Ok(None);
            }
            head.log().chain().hold(txg);
            Hold { head, txg }
        };
        // A separate task: a started block is written and recorded even if the caller is cancelled.
        let task = cenote_rt::spawn(async move {
            let head = Arc::clone(&hold.head);
            let hold = Some(hold).filter(|_| !is_on(Bug::HoldReleasedEarly));
            let written = head.live().write_early(txg, object, number, &head.policy()).await;
            if let Ok(Some(early)) = &written
                && early.is_new
            {
                let birth = early.bp.birth();
                ensure!("L5", birth == txg, "a block of txg {birth} was written early in {txg}");
                head.log().chain().note_early(txg, early.bp);
            }
            drop(hold);
            written
        });
        match task.await.map_err(|error| Error::new(Kind::Io, error))? {
            Ok(early) => Ok(early.map(|early| early.bp)),
            Err(error) if error.kind() == Kind::Invariant => Err(error),
            // The log may have space, or the sync that follows without one.
            Err(_) => Ok(None),
        }
    }
}
