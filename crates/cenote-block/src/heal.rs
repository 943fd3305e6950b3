//! Self-healing after a read that found bad copies, and reports of lost blocks.
//!
//!     read recovered, a copy was bad  -> the good bytes are written over the bad ones
//!     no copy is good                 -> the bad parts, and the block's place in the tree, go to
//!                                        the reporter
//!
//! A repair writes the bytes that the checksum covers to the place that the pointer names, so it
//! does not change the pool's contents and needs no txg. It happens only on writable trees, and
//! only with proof that the block is still in place ([`crate::grounds`], E1, E2): without proof
//! nothing is counted, reported or written. If a repair fails, the leaf stays as it was; the read
//! has succeeded all the same.
//!
//! The writes of a repair run in their own task, which holds the guard: a reader that is cancelled
//! leaves no write behind that could overwrite another block.
//!
//! Sources: spec 06 §3.2, §4.6; spec 08 §36 (processing of the reports).

use std::sync::Arc;

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, Error};
use cenote_vdev::{BadChild, Cause, IoClass, Rewrite};

use crate::alloc::Guard;
use crate::error::CopyFailure;
use crate::grounds::{Evidence, ReadAttempt};
use crate::store::BlockStore;

/// Receives reports of lost and of repaired blocks.
pub trait Reporter: Send + Sync {
    /// No copy of the block could be read: `error` has the places and causes
    /// ([`BlockError::AllCopiesBad`](crate::BlockError::AllCopiesBad)).
    fn unrecoverable(&self, place: &Bookmark, bp: &BlockPtr, error: &Error);

    /// These parts of a block were bad, found by I/O of this class; `repaired` of them were written
    /// again.
    fn found_bad(&self, bad: &[BadChild], class: IoClass, repaired: usize);
}

/// A block, or a gang header, that was read although parts of it were bad.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) bp: BlockPtr,
    /// The bytes that verified.
    pub(crate) data: Buf,
    /// The copy that was read.
    pub(crate) dva: Dva,
    /// Bad parts of that copy.
    pub(crate) bad: Vec<BadChild>,
    /// Copies that were tried before.
    pub(crate) copies: Vec<CopyFailure>,
    /// The guard under which the block was read, if there was one.
    pub(crate) guard: Option<Guard>,
}

impl BlockStore {
    /// Writes the good bytes of a block (or gang header) over its bad parts: in the copy that was
    /// read, and in the copies tried before it.
    pub(crate) async fn heal(&self, found: Recovered, reading: ReadAttempt<'_>) {
        let Recovered { bp, data, dva, bad, copies, guard } = found;
        let (evidence, class) = (self.judge(&bp, reading, guard), reading.class);
        let lost = copies.into_iter().filter_map(|copy| {
            let dva = bp.dva(usize::from(copy.dva))?;
            Some((dva, copy.bad))
        });
        let mut parts: Vec<_> = std::iter::once((dva, bad)).chain(lost).collect();
        let Evidence::Proven(guard) = evidence else {
            // A device's own error is counted in any case.
            let is_io = |bad: &BadChild| matches!(bad.cause, Cause::Io(_));
            for (_, bad) in &mut parts {
                bad.retain(is_io);
            }
            return self.tell_recovered(&parts, class, 0);
        };
        self.note_recovered();
        for (_, bad) in &mut parts {
            self.tree().count_checksum_errors(bad, class);
        }
        let may_repair = guard.is_some() || is_on(Bug::RepairWithoutEvidence);
        let mut repaired = 0;
        if may_repair && self.tree().is_writable() {
            repaired = self.rewrite(data, bp.physical_birth(), parts.clone(), guard).await;
        }
        self.tell_recovered(&parts, class, repaired);
    }

    /// Writes the bytes of a block over parts of its copies, in a task of its own that holds the
    /// guard. Returns the number of parts that were written.
    pub(crate) async fn rewrite(
        &self,
        data: Buf,
        birth: u64,
        parts: Vec<(Dva, Vec<BadChild>)>,
        guard: Option<Guard>,
    ) -> usize {
        let tree = Arc::clone(self.tree());
        let task = cenote_rt::spawn(async move {
            let mut written = 0;
            for (dva, parts) in parts {
                let outcome = tree.repair(dva, &data, birth, &parts, Rewrite::Repair).await;
                written += outcome.map_or(0, |outcome| outcome.repaired.len());
            }
            // E1: the devices have answered.
            drop(guard);
            written
        });
        let written = task.await.unwrap_or(0);
        self.note_repaired(written as u64);
        written
    }

    fn tell_recovered(&self, parts: &[(Dva, Vec<BadChild>)], class: IoClass, repaired: usize) {
        self.report_bad(parts.iter().flat_map(|(_, bad)| bad), class, repaired);
    }

    /// Reports bad parts of a block.
    pub(crate) fn report_bad<'a>(
        &self,
        bad: impl IntoIterator<Item = &'a BadChild>,
        class: IoClass,
        repaired: usize,
    ) {
        let found: Vec<_> = bad.into_iter().cloned().collect();
        if let (Some(reporter), false) = (self.reporter(), found.is_empty()) {
            reporter.found_bad(&found, class, repaired);
        }
    }

    /// Reports a lost block (E2: the error names bad copies only with proof).
    pub(crate) fn report(&self, place: &Bookmark, bp: &BlockPtr, error: &Error) {
        let is_lost = matches!(error.cause(), Some(crate::BlockError::AllCopiesBad { .. }));
        if let (true, Some(reporter)) = (is_lost, self.reporter()) {
            reporter.unrecoverable(place, bp, error);
        }
    }
}
