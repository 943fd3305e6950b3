//! The log's part in the sync of a txg (spec 07 A11, A14).
//!
//! ```text
//!   pass 1, before the data sets   wait for blocks that lead to what this txg allocated
//!                                  header of each log that moves ──> its object set
//!                                  blocks that are over          ──> freed with this pass
//!   after the uberblock            records of the txg are dropped; a new chain may be used
//! ```

use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::objset::{ObjSetType, ZIL_HEADER_LEN};
use cenote_rt::{FixedSet, Result};

use crate::dsl::{blocks, features};
use crate::invariant_error;
use crate::zil::chain::Stage;
use crate::zil::{Engine, Head};

/// Feature of logs that may hold extended attributes.
const ZILSAXATTR: &str = "zilsaxattr";

impl Engine {
    /// What `txg` means for the logs: headers change, and the blocks given are to be freed.
    pub(crate) async fn sync_logs(&self, txg: u64) -> Result<Vec<BlockPtr>> {
        let mut freed = Vec::new();
        for head in self.heads.with_logs() {
            let step = {
                // L3, with the wish to be woken told before the look.
                loop {
                    let mut settled = std::pin::pin!(head.log().settled.notified());
                    settled.as_mut().enable();
                    if let Some(step) = head.log().try_step(txg) {
                        break step;
                    }
                    settled.await;
                }
            };
            freed.extend(step.freed);
            // Of blocks of data that were written early, what the object set does not take goes.
            let early = head.log().chain().take_early(txg);
            if !early.is_empty() {
                let is_gone = head.is_gone();
                let taken = if is_gone { Vec::new() } else { head.live().early(txg) };
                let taken: FixedSet<_> = taken.into_iter().map(|bp| bp.dva(0)).collect();
                freed.extend(early.into_iter().filter(|bp| !taken.contains(&bp.dva(0))));
            }
            if let Some(header) = step.header {
                let bytes: [u8; ZIL_HEADER_LEN] = header
                    .encode()
                    .try_into()
                    .map_err(|_| invariant_error("a log header has another length".into()))?;
                head.live().set_zil_header(txg, bytes)?;
            }
            if step.is_begun || step.is_ended {
                self.mark_log_feature(txg, &head, step.is_begun).await?;
            }
        }
        self.heads.forget_removed();
        Ok(freed)
    }

    /// A file system whose log may hold extended attributes says so (spec 07 A10).
    async fn mark_log_feature(&self, txg: u64, head: &Head, is_begun: bool) -> Result<()> {
        if head.live().kind() != ObjSetType::Zfs || head.is_gone() {
            return Ok(());
        }
        let object = head.object();
        self.mos_apply(txg, |tx| {
            if !features::is_enabled(tx, ZILSAXATTR)? {
                return Ok(());
            }
            if is_begun {
                blocks::activate(tx, object, ZILSAXATTR)
            } else {
                blocks::deactivate(tx, object, ZILSAXATTR)
            }
        })
        .await
    }

    /// `txg` is on disk.
    pub(crate) async fn logs_committed(&self, txg: u64) -> Result<()> {
        for head in self.heads.all() {
            head.log().queue().committed(txg);
            head.log().chain().committed(txg);
            self.refresh_log(&head).await?;
        }
        self.excise_logs(txg);
        Ok(())
    }

    /// Ends every chain with the next sync, and begins none any more: the pool is about to be
    /// closed, or a log device to be removed. Commits sync from now on, until the logs are thawed.
    pub(crate) async fn freeze_logs(&self) {
        for head in self.heads.all() {
            self.freeze_log(&head).await;
        }
    }

    async fn freeze_log(&self, head: &Arc<Head>) {
        // Nobody is in the middle of writing, and who comes later finds no chain.
        let _writer = head.log().writer.lock().await;
        let mut chain = head.log().chain();
        chain.is_frozen = true;
        chain.retire();
    }

    /// Empties the log of every head, so that no log block is left on any device.
    ///
    /// # Errors
    /// `Kind::Busy` if operations of an earlier opening wait for their replay.
    pub async fn retire_logs(&self) -> Result<()> {
        if self.heads.all().iter().any(|head| head.log().is_claimed()) {
            return Err(cenote_rt::Error::new(cenote_rt::Kind::Busy, "a log waits for its replay"));
        }
        let result = self.drain_logs().await;
        self.thaw_logs();
        result
    }

    /// Ends every chain, and lets none begin until the logs are thawed: commits sync meanwhile.
    pub(crate) async fn drain_logs(&self) -> Result<()> {
        self.freeze_logs().await;
        // What one sync could not free yet, of its successor's allocation, the next one can.
        let mut result = self.sync().await;
        while result.is_ok() && self.heads.all().iter().any(|head| has_chain(head)) {
            result = self.sync().await;
        }
        result.map(drop)
    }

    /// Lets chains begin again.
    pub(crate) fn thaw_logs(&self) {
        for head in self.heads.all() {
            head.log().chain().is_frozen = false;
        }
    }

    /// Forgets what leaves of log vdevs lack that no log block can be among: the blocks of chains
    /// live for a few txgs only, and nothing else is on these vdevs. `committed` is on disk.
    fn excise_logs(&self, committed: u64) {
        let lacking =
            self.tree.leaves().map(|(_, leaf)| leaf).filter(|leaf| {
                leaf.is_writable() && leaf.dtl().is_some_and(|lacks| !lacks.is_empty())
            });
        let logs: Vec<_> = lacking
            .filter_map(|leaf| Some((leaf, self.tree.top_of(leaf.guid())?)))
            .filter(|(_, top)| top.is_log())
            .collect();
        if logs.is_empty() {
            return;
        }
        let heads = self.heads.with_logs();
        if heads.iter().any(|head| head.log().is_claimed()) {
            return;
        }
        for (leaf, top) in logs {
            let births = heads.iter().filter_map(|head| head.log().oldest_on(top.id()));
            let oldest = births.min().unwrap_or(u64::MAX).min(committed + 1);
            self.tree.excise_dtl(leaf.guid(), oldest);
        }
    }
}

fn has_chain(head: &Head) -> bool {
    let chain = head.log().chain();
    matches!(chain.stage, Stage::Live | Stage::Retiring) || chain.has_orphans()
}
