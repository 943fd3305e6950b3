//! The sync of one txg (spec 04 §19.4, 05 §5.2, 01 §14).
//!
//! ```text
//!   pass   data sets -> what they did to the MOS -> MOS -> [1] tasks -> frees -> space maps
//!    1        |                                       everything that the txg changed
//!    2 ..     |  (sets made by tasks)                 what recording that changed
//!             v
//!   nothing left to record -> flush -> labels 0, 2 -> flush -> uberblock -> flush -> labels 1, 3
//! ```
//!
//! From pass 2 on a block of this txg whose size does not change is rewritten in place, so the
//! changes get fewer until a pass allocates nothing: then the maps contain exactly the blocks that
//! the MOS reaches.
//!
//! Orders that consistency depends on
//! 1. Datasets before tasks: a snapshot sees its head complete.
//! 2. Frees after the writes of their pass: space freed in this txg is not reused before txg + 3.
//! 3. Space maps last in each pass: they record everything that the pass did.
//! 4. Waiting callers are told only after the uberblock is durable.
//! 5. The DTLs in the MOS are complete for all blocks that the uberblock reaches. Otherwise a crash
//!    would lose them, and a stale leaf would count as up to date.
//! 6. The point at which a receive is resumed is stored with the root that carries the data in
//!    front of it (`dsl::receive`).

use std::sync::Arc;

use cenote_block::policy::{BlockSpec, DatasetPolicy, PoolPolicy, WritePolicy};
use cenote_dmu::live::{PolicySource, SyncContext};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::pool_list;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Kind, Result, ensure, trace};

use crate::dsl::space::{Sizes, Use};
use crate::dsl::{self, Env, history, space};
use crate::txg::heads::{Head, policy_of};
use crate::txg::ledger::Ledger;
use crate::{Engine, Notice, Scope, Task, invariant_error};

/// Maximum number of passes: real pools need three or four.
const PASSES_MAX: u32 = 1000;

/// A txg that is being synced.
pub(crate) struct Syncing<'a> {
    engine: &'a Engine,
    /// The scope of the tasks, and the permission to change the config.
    scope: &'a Scope<'a>,
    pub(crate) txg: u64,
    pass: u32,
    /// Block changes of the MOS.
    ledger: Ledger,
    /// Space that `$MOS` is yet to be charged.
    pending: Sizes,
    /// Blocks to be freed in this pass.
    killed: Vec<BlockPtr>,
    /// The root of the MOS after the last pass.
    root: Option<BlockPtr>,
}

impl Engine {
    /// Syncs the txg of `scope`, which is closed. Returns the root of the MOS, `None` if there was
    /// nothing to write.
    pub(crate) async fn sync_passes(
        &self,
        scope: &Scope<'_>,
        tasks: &mut [Box<dyn Task>],
    ) -> Result<Option<BlockPtr>> {
        let txg = scope.context.txg;
        let mut syncing = Syncing {
            engine: self,
            scope,
            txg,
            pass: 0,
            ledger: Ledger::new(Arc::clone(&self.tree)),
            pending: Sizes::default(),
            killed: Vec::new(),
            root: None,
        };
        for pass in 1..=PASSES_MAX {
            syncing.pass = pass;
            trace::pass(pass).run(syncing.pass(tasks)).await?;
            if syncing.is_converged() && syncing.is_all_recorded().await? {
                let (killed, changed) = (syncing.killed.len(), self.alloc.changed(txg).len());
                ensure!(
                    "T2",
                    killed == 0 && changed == 0,
                    "txg {txg} leaves {killed} blocks to free, {changed} metaslabs to record"
                );
                return Ok(syncing.root);
            }
        }
        // Checks T3.
        Err(invariant_error(format!("txg {txg} still changes after {PASSES_MAX} passes")))
    }
}

impl Syncing<'_> {
    async fn pass(&mut self, tasks: &mut [Box<dyn Task>]) -> Result<()> {
        if self.pass == 1 {
            // Before the datasets, whose headers change with it.
            self.killed.extend(self.engine.intent_logs().sync_all(self.txg).await?);
        }
        let has_early_tasks = is_on(Bug::TasksBeforeDatasets);
        if self.pass == 1 && has_early_tasks {
            self.run_tasks(tasks).await?;
        }
        self.sync_heads().await?;
        self.charge_mos().await?;
        self.sync_mos().await?;
        if self.pass == 1 {
            // The import of a pool on a full host needs no more space for them.
            if tasks.iter().any(|task| task.may_change_objects()) {
                self.write_records().await?;
            }
            if !has_early_tasks {
                self.run_tasks(tasks).await?;
            }
            self.killed.extend(self.engine.space().free_some(self.txg).await?);
            self.engine.space().discard_checkpoint_part(self.txg).await?;
        }
        self.free_killed().await?;
        if self.pass == 1 {
            self.engine.health().record_damage(self.txg).await?;
            self.engine.leaves().probe_failed(self.scope).await;
            self.engine.leaves().diagnose(self.scope).await;
        }
        self.engine.leaves().record_dtls(self.scope, self.pass).await?;
        self.engine.removals().record_moved(self.txg, self.pass).await?;
        if self.pass > 1 || self.has_work() {
            self.record_space().await?;
        }
        self.write_config().await
    }

    async fn run_tasks(&self, tasks: &mut [Box<dyn Task>]) -> Result<()> {
        for task in tasks.iter_mut() {
            task.run(self.scope).await?;
        }
        if tasks.is_empty() { Ok(()) } else { self.update_label_features().await }
    }

    /// Writes the pending records of the history. If it is damaged they are lost: no import depends
    /// on it.
    async fn write_records(&self) -> Result<()> {
        let records = std::mem::take(&mut self.engine.state().records);
        if records.is_empty() {
            return Ok(());
        }
        let env = Env { context: self.scope.context, ..self.engine.datasets().env(self.txg) };
        let write = self.engine.mos_apply(self.txg, |tx| {
            let mut records = records.iter();
            records.try_for_each(|record| history::log_pool(tx, &env, record.event, &record.text))
        });
        match write.await {
            Err(error) if error.kind() == Kind::Invariant => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether this txg changes anything: otherwise nothing is written.
    fn has_work(&self) -> bool {
        let engine = self.engine;
        self.root.is_some()
            || engine.mos.is_dirty(self.txg)
            || engine.config().is_unrecorded
            || !engine.alloc.changed(self.txg).is_empty()
    }

    fn is_converged(&self) -> bool {
        !self.engine.mos.is_dirty(self.txg)
            && self.pending == Sizes::default()
            && !self.engine.heads.is_dirty(self.txg)
    }

    /// Flushes all writes, and returns whether the DTLs in the MOS are complete (order 5). Writes
    /// of the last pass may have failed after the DTLs were stored, and a flush that fails now adds
    /// to them: another pass stores that.
    async fn is_all_recorded(&self) -> Result<bool> {
        let engine = self.engine;
        if self.root.is_some() {
            let mut resume_count = engine.health.suspension.resume_count();
            while let Err(error) = engine.flush_data().await {
                engine.health.suspension.hold(resume_count, error).await?;
                resume_count = engine.health.suspension.resume_count();
            }
        }
        Ok(is_on(Bug::LateDtlNotRecorded) || !engine.tree.has_changed_dtls())
    }

    /// Writes every dataset that this txg changed, and accounts for it in the MOS.
    async fn sync_heads(&mut self) -> Result<()> {
        for head in self.engine.heads.dirty(self.txg) {
            self.sync_head(&head).await?;
        }
        Ok(())
    }

    async fn sync_head(&mut self, head: &Head) -> Result<()> {
        let ledger = Ledger::new(Arc::clone(&self.engine.tree));
        let policy = head.policy();
        // A head that was opened before the probe was set uses it as well.
        let probe = head.probe().or_else(|| self.engine.datasets().owner_probe());
        let context = SyncContext {
            txg: self.txg,
            pass: u64::from(self.pass),
            sink: &ledger,
            policy: &policy,
            probe: probe.as_deref(),
        };
        let synced = head.live().sync(&context).await?;
        if !synced.is_changed {
            return Ok(());
        }
        let entries = ledger.take();
        self.note_leaks(&entries.leaks);
        let tree = &self.engine.tree;
        // With the root that carries the data in front of the point (order 6).
        let point = head.received().take(self.txg);
        let freed = self
            .engine
            .mos_apply(self.txg, |tx| {
                let freed = dsl::blocks::account(tx, tree, head.object(), &entries, &synced)?;
                if let Some(point) = point {
                    dsl::receive::resume::store_point(tx, head.object(), point)?;
                }
                Ok(freed)
            })
            .await?;
        self.killed.extend(freed);
        Ok(())
    }

    fn note_leaks(&self, causes: &[String]) {
        for cause in causes {
            self.engine.health().add_notice(Notice::BlocksLeaked { cause: cause.clone() });
        }
    }

    /// Charges `$MOS` for the growth of the MOS in the last pass; charging within the pass itself
    /// would never end (spec 04 §19.5).
    async fn charge_mos(&mut self) -> Result<()> {
        let sizes = std::mem::take(&mut self.pending);
        if sizes == Sizes::default() {
            return Ok(());
        }
        let dir = self.engine.config.mos_dir();
        self.engine.mos_apply(self.txg, |tx| space::did_use(tx, dir, Use::Head, sizes)).await
    }

    async fn sync_mos(&mut self) -> Result<()> {
        if !self.engine.mos.is_dirty(self.txg) {
            return Ok(());
        }
        let policy = MosPolicy(self.engine.pool_policy());
        let context = SyncContext {
            txg: self.txg,
            pass: u64::from(self.pass),
            sink: &self.ledger,
            policy: &policy,
            probe: None,
        };
        let synced = self.engine.mos.sync(&context).await?;
        self.root = Some(synced.root);
        let entries = self.ledger.take();
        self.pending += entries.born;
        for block in &entries.killed {
            self.pending -= Sizes::of(block, &self.engine.tree);
        }
        self.killed.extend(entries.killed);
        Ok(())
    }

    /// Frees the blocks that this pass replaced (order 2).
    async fn free_killed(&mut self) -> Result<()> {
        for block in std::mem::take(&mut self.killed) {
            // The header of a gang block is read before any part of it is freed.
            let mut resume_count = self.engine.health.suspension.resume_count();
            while let Err(error) = self.engine.store.free(&block, self.txg).await {
                // Its parts are leaked: their places are not known.
                if matches!(error.kind(), Kind::Checksum | Kind::Corrupt) {
                    self.note_leaks(&[error.to_string()]);
                    break;
                }
                self.engine.health.suspension.hold(resume_count, error).await?;
                resume_count = self.engine.health.suspension.resume_count();
            }
        }
        Ok(())
    }

    async fn record_space(&mut self) -> Result<()> {
        let recorded = self.engine.space().record_space(self.txg, self.pass).await?;
        if !recorded.arrays.is_empty() {
            let count = recorded.arrays.len();
            let stored = self.scope.change_config(|config| {
                let mut stored = 0;
                for (vdev, array) in recorded.arrays {
                    if let Some(top) = config.root.children.get_mut(vdev as usize) {
                        top.top.metaslab_array = array;
                        config.touch();
                        stored += 1;
                    }
                }
                stored
            });
            ensure!("SM1", stored == count, "{stored} of {count} arrays of space maps have a vdev");
        }
        Ok(())
    }

    /// Updates the labels' list of active features that reading the MOS needs.
    async fn update_label_features(&self) -> Result<()> {
        let features = self.engine.mos_apply(self.txg, dsl::features::for_label).await?;
        self.scope.change_config(|config| {
            if config.facts.features_for_read.as_ref() != Some(&features) {
                config.facts.features_for_read = Some(features);
                config.touch();
            }
        });
        Ok(())
    }

    /// Writes the config if it changed; the labels of this txg get the same.
    async fn write_config(&mut self) -> Result<()> {
        let txg = self.txg;
        let config = self.scope.change_config(|config| {
            config.take_unrecorded().then(|| {
                config.facts.txg = txg;
                config.clone()
            })
        });
        let Some(config) = config else { return Ok(()) };
        let list = pool_list(&config.stored(), &config.root, config.has_vdev_zaps);
        self.engine
            .mos_apply(txg, |tx| {
                let object = dsl::need_directory_object(tx, "config")?;
                cenote_dmu::nvlist::write(tx, object, &list)
            })
            .await
    }
}

/// Block policy of the MOS: three copies, always compressed.
struct MosPolicy(PoolPolicy);

impl PolicySource for MosPolicy {
    fn policy(&self, block: &BlockSpec) -> Result<WritePolicy> {
        policy_of(&self.0, &DatasetPolicy::MOS, block)
    }

    fn has_hole_births(&self) -> bool {
        self.0.has_hole_birth
    }
}
