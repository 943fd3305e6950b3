//! The logs in the sync of a txg (spec 07 A11, A14).
//!
//! ```text
//!   pass 1, before the data sets   wait for blocks that lead to what this txg allocated
//!                                  header of each log that moves ──> its object set
//!                                  blocks that are over          ──> freed with this pass
//!   after the uberblock            records of the txg are dropped; a new chain may be used
//! ```

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::objset::{ObjSetType, ZIL_HEADER_LEN};
use cenote_rt::{Error, FixedSet, Kind, Result, ensure};

use crate::dsl::{blocks, features};
use crate::invariant_error;
use crate::zil::chain::Stage;
use crate::zil::{FrozenLogs, Head};
use crate::{EngineError, IntentLogs};

/// Feature of logs that may contain extended attributes.
const ZILSAXATTR: &str = "zilsaxattr";

impl<'e> IntentLogs<'e> {
    /// Updates the headers of the logs for `txg`, and returns the blocks to be freed.
    pub(crate) async fn sync_all(self, txg: u64) -> Result<Vec<BlockPtr>> {
        let mut freed = Vec::new();
        for head in self.engine.heads.with_logs() {
            let step = {
                // L3; registered for a wake-up before the check.
                loop {
                    let mut settled = std::pin::pin!(head.log().settled.notified());
                    settled.as_mut().enable();
                    if let Some(step) = head.log().try_step(txg) {
                        break step;
                    }
                    // The thread that writes the block may never come back from the kernel.
                    self.engine.health.suspension.unless_abandoned(settled).await?;
                }
            };
            let young = step.freed.iter().map(BlockPtr::birth).find(|birth| *birth > txg);
            ensure!("L2", young.is_none(), "txg {txg} frees a log block of txg {young:?}");
            freed.extend(step.freed);
            // Data blocks written early that the object set does not use are freed.
            let early = head.log().chain().take_early(txg);
            if !early.is_empty() {
                let is_gone = head.is_gone();
                let taken = if is_gone { Vec::new() } else { head.live().early(txg) };
                let taken: FixedSet<_> = taken.into_iter().map(|bp| bp.dva(0)).collect();
                let places: FixedSet<_> = early.iter().map(|bp| bp.dva(0)).collect();
                let is_known = taken.is_subset(&places);
                ensure!("L5", is_known, "txg {txg} uses an early block that the log does not have");
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
                self.mark_feature(txg, &head, step.is_begun).await?;
            }
        }
        self.engine.heads.forget_removed();
        Ok(freed)
    }

    /// Activates the feature for a file system whose log may contain extended attributes (spec 07
    /// A10).
    async fn mark_feature(self, txg: u64, head: &Head, is_begun: bool) -> Result<()> {
        if head.live().kind() != ObjSetType::Zfs || head.is_gone() {
            return Ok(());
        }
        let object = head.object();
        self.engine
            .mos_apply(txg, |tx| {
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

    /// Tells the logs that `txg` is on disk.
    pub(crate) async fn committed(self, txg: u64) -> Result<()> {
        for head in self.engine.heads.all() {
            head.log().queue().committed(txg);
            head.log().chain().committed(txg);
            self.refresh(&head).await?;
        }
        self.excise(txg);
        Ok(())
    }

    /// Ends every chain with the next sync, and starts none until the returned value is dropped:
    /// the pool is about to be closed, or a log device to be removed. Commits use a sync meanwhile.
    ///
    /// # Errors
    /// [`EngineError::Suspended`] if the pool is closed by force meanwhile.
    pub(crate) async fn freeze_all(self) -> Result<FrozenLogs<'e>> {
        // First: a head that is opened later has frozen logs as well.
        let frozen = FrozenLogs::new(self.engine);
        for head in self.engine.heads.all() {
            // Waits for a running writer; later ones find no chain and start none.
            let _writer = self.writer_of(head.log()).await?;
            head.log().chain().retire();
        }
        Ok(frozen)
    }

    /// Empties the log of every head, so that no device has log blocks.
    ///
    /// # Errors
    /// `Kind::Busy` if operations of an earlier import are to be replayed.
    pub async fn retire(self) -> Result<()> {
        self.end_all().await.map(drop)
    }

    /// Ends every chain, and prevents new ones until the returned value is dropped: no device has
    /// log blocks.
    ///
    /// # Errors
    /// `Kind::Busy` if operations of an earlier import are to be replayed.
    pub(crate) async fn end_all(self) -> Result<FrozenLogs<'e>> {
        if let Some(head) = self.engine.heads.all().iter().find(|head| head.log().is_claimed()) {
            return Err(Error::new(Kind::Busy, EngineError::Unreplayed(head.object())));
        }
        self.drain().await
    }

    /// Ends every chain, and prevents new ones until the returned value is dropped: commits use a
    /// sync meanwhile.
    pub(crate) async fn drain(self) -> Result<FrozenLogs<'e>> {
        let frozen = self.freeze_all().await?;
        self.engine.sync().await?;
        // Blocks allocated in the next txg are freed by a second sync.
        while self.engine.heads.all().iter().any(|head| has_chain(head)) {
            self.engine.sync().await?;
        }
        Ok(frozen)
    }

    /// Clears the DTL entries of log vdevs' leaves that cannot concern any log block: blocks of
    /// chains live for a few txgs only, and log vdevs have nothing else. `committed` is on disk.
    fn excise(self, committed: u64) {
        let lacking =
            self.engine.tree.leaves().map(|(_, leaf)| leaf).filter(|leaf| {
                leaf.is_writable() && leaf.dtl().is_some_and(|lacks| !lacks.is_empty())
            });
        let logs: Vec<_> = lacking
            .filter_map(|leaf| Some((leaf, self.engine.tree.top_of(leaf.guid())?)))
            .filter(|(_, top)| top.is_log())
            .collect();
        if logs.is_empty() {
            return;
        }
        let heads = self.engine.heads.with_logs();
        if heads.iter().any(|head| head.log().is_claimed()) {
            return;
        }
        for (leaf, top) in logs {
            let births = heads.iter().filter_map(|head| head.log().oldest_on(top.id()));
            let oldest = births.min().unwrap_or(u64::MAX).min(committed + 1);
            self.engine.tree.excise_dtl(leaf.guid(), oldest);
        }
    }
}

fn has_chain(head: &Head) -> bool {
    let chain = head.log().chain();
    matches!(chain.stage, Stage::Live | Stage::Retiring) || chain.has_orphans()
}
