//! Flushes the leaves that were written.
//!
//! Only leaves that were written since their last flush are flushed, all at once. If a flush fails,
//! all writes of that leaf since its last flush may be lost: their txgs are in its dirty time log
//! when the flush returns. The flush as a whole fails if a top-level vdev may lack one of these
//! txgs as a result; the logs cannot distinguish blocks, so two leaves of a mirror that failed at
//! different blocks of one txg count as loss.
//!
//! The meaning of a loss depends on the caller and on the class of the vdev:
//!
//! | class          | of a txg ([`Tree::flush_for_commit`])     | of a log ([`Tree::flush`])     |
//! |----------------|-------------------------------------------|--------------------------------|
//! | normal         | fails: the uberblock leads to it          | fails: the log may lie there   |
//! | special, dedup | fails: these blocks are nowhere else      | fails                          |
//! | log            | nothing: the txg has what it says         | fails: the caller syncs       |
//! | cache          | nothing: it is in no tree                 | nothing                        |
//!
//! Records of an intent log stay in memory until their txg is on the other vdevs. So a failed log
//! vdev never holds a txg back; but a record must not be reported as durable if the flush behind it
//! failed.

use std::sync::Arc;

use cenote_rt::lock::branch;
use cenote_rt::{Error, Kind, Result, side_by_side};
use futures_util::future::join_all;

use super::FailedWrite;
use crate::LeafId;
use crate::dtl::{DtlKind, TxgRanges};
use crate::tree::Tree;

/// Why a flush counts as failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vdev {vdev} may have lost writes of txgs up to {txg}: {cause}")]
pub struct FlushError {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// Highest txg concerned.
    pub txg: u64,
    /// Error of the first device that failed.
    pub cause: String,
}

/// A successful flush: everything written can be read back after a power cut.
#[derive(Debug, Clone, Default)]
pub struct FlushOutcome {
    /// Leaves whose flush failed. Their dirty time logs have the txgs concerned.
    pub failed: Vec<FailedWrite>,
}

impl Tree {
    /// Flushes every leaf that was written since its last flush.
    ///
    /// # Errors
    /// `Kind::Io` if a top-level vdev may have lost something; the cause is a [`FlushError`].
    pub async fn flush(&self) -> Result<FlushOutcome> {
        self.flush_leaves(true).await
    }

    /// Like [`flush`](Self::flush), for the commit of a txg: losses on log vdevs are no error,
    /// because the txg contains the logged data. The leaves that failed are in the result all the
    /// same.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), for all vdevs but log vdevs.
    pub async fn flush_for_commit(&self) -> Result<FlushOutcome> {
        self.flush_leaves(false).await
    }

    /// If `needs_logs`, a loss on log vdevs is an error like any other.
    async fn flush_leaves(&self, needs_logs: bool) -> Result<FlushOutcome> {
        let leaves: Vec<(usize, LeafId)> = self
            .child_indices(self.root())
            .flat_map(|top| self.leaves_below(top).into_iter().map(move |leaf| (top, leaf)))
            .collect();
        let flushes = join_all(leaves.iter().map(|(_, leaf)| branch(self.leaf(*leaf).flush())));
        let results = if leaves.len() > 1 { side_by_side(flushes).await } else { flushes.await };
        let mut outcome = FlushOutcome::default();
        let mut lost = Vec::new();
        for ((top, id), result) in leaves.iter().zip(results) {
            let Err((txgs, error)) = result else { continue };
            let leaf = self.leaf(*id);
            let (guid, path, error) = (leaf.guid(), leaf.path.clone(), Arc::new(error));
            outcome.failed.push(FailedWrite { leaf: *id, guid, path, offset: 0, error });
            lost.push((*top, txgs));
        }
        // Only now: all failures are in the dirty time logs.
        for (top, txgs) in lost {
            if self.vdevs[top].is_log && !needs_logs {
                continue;
            }
            self.check_loss(top, &txgs, &outcome)?;
        }
        Ok(outcome)
    }

    fn check_loss(&self, top: usize, txgs: &TxgRanges, outcome: &FlushOutcome) -> Result<()> {
        let outage = self.dtl_at(top, DtlKind::Outage);
        if !outage.intersects(txgs) {
            return Ok(());
        }
        let node = &self.vdevs[top];
        let cause = outcome.failed.first().map_or_else(String::new, |f| f.error.to_string());
        let error = FlushError { vdev: node.id, txg: txgs.max().unwrap_or(0), cause };
        Err(Error::new(Kind::Io, error).with_at(|at| at.vdev = Some(node.guid)))
    }
}
