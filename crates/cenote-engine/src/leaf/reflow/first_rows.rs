//! The first rows of an expansion, whose new places overlap their old ones (spec 06 §5.4).
//!
//! ```text
//!   old places ──read──> memory ──> boot areas ──flush──> uberblock: boot areas valid
//!                                                    ──> new places ──flush──> uberblock: done
//! ```
//!
//! Both uberblocks have the txg of the last commit and a later timestamp, so that they win over it.
//! The first one is written to the slot of the txg before: if its write is torn, the committed
//! uberblock is intact.
//!
//! A child that does not take its first rows after the boot areas became valid lacks everything
//! from then on: its dirty time log has all txgs, and a resilver writes them.

use std::sync::Arc;

use cenote_ondisk::uberblock::ReflowState as ScratchState;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Error, Kind, Result, ensure};
use cenote_vdev::{FirstRows, LeafId, ReflowError, TxgRanges};

use super::{expanding, word_of};
use crate::admin::create::FIRST_TXG;
use crate::{Answer, Leaves, Scope, Task};

/// The task that moves the first rows: in a sync, so that no commit runs meanwhile.
struct MoveFirstRows {
    vdev: u64,
    answer: Arc<Answer<bool>>,
}

impl Task for MoveFirstRows {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let txg = scope.context.txg;
            let is_done = scope.engine.leaves().move_first_rows_in(self.vdev, txg).await?;
            if is_done {
                // The uberblock of this txg has another state, so the txg must be written.
                scope.change_config(crate::Config::touch);
            }
            self.answer.put(Ok(is_done));
            Ok(())
        })
    }
}

impl Leaves<'_> {
    /// Moves the first rows of an expanding vdev. Returns false if a device failed before anything
    /// was changed.
    pub(super) async fn move_first_rows(self, vdev: u64) -> Result<bool> {
        let answer = Answer::new();
        let task = MoveFirstRows { vdev, answer: Arc::clone(&answer) };
        self.engine.run_task(Box::new(task)).await?;
        answer.take()
    }

    async fn move_first_rows_in(self, vdev: u64, txg: u64) -> Result<bool> {
        let (engine, tree) = (self.engine, &self.engine.tree);
        let Ok(len) = tree.expansion().first_rows_len(vdev) else { return Ok(false) };
        if tree.expansion().progress().offset != 0 {
            return Ok(true);
        }
        let held = tree.expansion().hold(vdev, 0..len, true).await?;
        let Ok(children) = held.children() else { return Ok(false) };
        let Ok(rows) = tree.expansion().read_first_rows(vdev).await else { return Ok(false) };
        if tree.expansion().write_scratch(&rows).await.is_err() {
            return Ok(false);
        }
        let is_child = |leaf: LeafId| children.iter().any(|(child, _)| *child == leaf);
        match tree.flush_for_commit().await {
            Ok(flushed) if !flushed.failed.iter().any(|failed| is_child(failed.leaf)) => {}
            _ => return Ok(false),
        }
        if held.children().is_ok_and(|now| now != children) || held.children().is_err() {
            return Ok(false);
        }
        if !is_on(Bug::ReflowSkipsScratch) {
            engine.rewrite_uberblock(word_of(len, ScratchState::Valid)).await?;
        }
        self.put_first_rows(vdev, &rows, Vec::new(), txg).await?;
        let word = word_of(len, ScratchState::InvalidSynced);
        engine.rewrite_uberblock(word).await?;
        tree.expansion().set_progress(word);
        engine.leaf.reflow.next.set(word_of(len, ScratchState::InvalidSyncedReflow), None);
        Ok(true)
    }

    /// Writes the first rows to their places until enough children have them. `lacking` are
    /// children whose rows are not known.
    async fn put_first_rows(
        self,
        vdev: u64,
        rows: &FirstRows,
        lacking: Vec<LeafId>,
        txg: u64,
    ) -> Result<()> {
        let (engine, tree) = (self.engine, &self.engine.tree);
        let is_recorded = engine.uberblock().raidz_reflow().state == ScratchState::Valid;
        let is_safe = is_recorded || is_on(Bug::ReflowSkipsScratch);
        ensure!("RF5", is_safe, "the first rows of vdev {vdev} would be overwritten");
        let nparity = tree.top(vdev).map_or(0, cenote_vdev::Vdev::nparity);
        loop {
            let resume_count = engine.health.suspension.resume_count();
            let mut lacking = lacking.clone();
            lacking.extend(tree.expansion().write_first_rows(rows, txg).await);
            let flushed = tree.flush_for_commit().await;
            let failed = flushed.as_ref().map_or(&[][..], |flushed| &flushed.failed);
            let failed = failed.iter().map(|failed| failed.leaf);
            lacking.extend(failed.filter(|leaf| rows.has(*leaf)));
            lacking.sort_unstable();
            lacking.dedup();
            for leaf in &lacking {
                tree.leaf(*leaf).note_missing(&TxgRanges::new([(FIRST_TXG, txg + 1)]));
            }
            if lacking.len() as u64 <= nparity && flushed.is_ok() {
                return Ok(());
            }
            let error = Error::new(Kind::Io, ReflowError::NotWhole(vdev));
            engine.health.suspension.hold(resume_count, error).await?;
        }
    }

    /// Completes the move of first rows that a crash has interrupted: the boot areas have the only
    /// copy. Before anything is written to the pool.
    pub(crate) async fn restore_first_rows(self) -> Result<()> {
        let (engine, tree) = (self.engine, &self.engine.tree);
        let uberblock = engine.uberblock();
        let reflow = uberblock.raidz_reflow();
        if reflow.state != ScratchState::Valid {
            return Ok(());
        }
        let vdev = engine.with_config(|config| expanding(&config.root).map(|top| top.id));
        let broken = || Error::corrupt(ReflowError::NotExpanding(vdev.unwrap_or(0)));
        let vdev = vdev.ok_or_else(broken)?;
        if tree.expansion().first_rows_len(vdev)? != reflow.offset {
            return Err(broken());
        }
        let (rows, lacking) = tree.expansion().read_scratch(vdev).await?;
        self.put_first_rows(vdev, &rows, lacking, uberblock.txg).await?;
        let word = word_of(reflow.offset, ScratchState::InvalidSyncedOnImport);
        engine.rewrite_uberblock(word).await?;
        tree.expansion().set_progress(word);
        Ok(())
    }
}
