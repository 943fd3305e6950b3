//! Makes a txg durable: labels and the uberblock (spec 01 §14).
//!
//! ```text
//!   data, MOS ──flush──> labels 0, 2 ──flush──> uberblock ──flush──> labels 1, 3 ──flush──> done
//!                        (if the config changed)                     (if the config changed)
//! ```
//!
//! Each arrow is a flush of every leaf that was written, and crash safety depends on all of them:
//! 1. Before the uberblock: all blocks that it reaches must be durable. Otherwise it could lead to
//!    blocks that were lost with the write cache.
//! 2. Before the uberblock, after the even labels: a label that is newer than every uberblock is
//!    ignored, but only if the other two labels are not newer as well.
//! 3. After the uberblock, before the odd labels: likewise from the other side; and callers waiting
//!    for the txg must not be told before.
//! 4. At the end, before space is reused: labels of this txg are complete on every device.
//!
//! If one of them fails, all of it is repeated when the pool is resumed: it writes the same
//! contents each time, so that copies already on disk are equal (spec 01 §14).
//!
//! Labels and uberblocks have no dirty time log that would record a failed flush. So a flush counts
//! only if at least one of the leaves that were written neither failed nor left service since: one
//! of those with the uberblock, and one of each vdev with its labels ([`PendingLeaves`]).
//!
//! Invariants
//! * T6  A commit is durable only if a leaf that has it was flushed after the write.

use std::collections::BTreeSet;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::{VdevConfig, label_list};
use cenote_ondisk::uberblock::{ReflowState, Uberblock};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, FixedSet, Kind, Result, ensure, stages};
use cenote_vdev::labels::{Pair, slot_of};
use cenote_vdev::{FlushOutcome, LeafId, Tree};

use crate::admin::events::{Event, PoolEvent};
use crate::{Config, Engine, Scope, invariant_error};

/// Number of top-level vdevs that get the uberblock if the config did not change.
const UBERBLOCK_TOPS: usize = 3;

/// Why a commit must be repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommitError {
    /// No leaf was written.
    #[error("no device took the {0}")]
    NotWritten(&'static str),
    /// No written leaf made it durable.
    #[error("the {what} may be lost: {cause}")]
    NotDurable {
        /// The structure that was written.
        what: &'static str,
        /// The error of the first device.
        cause: String,
    },
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        Self::new(Kind::Io, error)
    }
}

/// Leaves with a write that is yet to be made durable, on at least one of them.
#[derive(Debug)]
pub(crate) struct PendingLeaves {
    what: &'static str,
    /// Each with its service generation before the write, which changes when the leaf leaves
    /// service or gets another device.
    leaves: Vec<(LeafId, u64)>,
    /// Whether no leaf must make it durable, because they belong to a log vdev.
    is_optional: bool,
}

impl PendingLeaves {
    /// Returns an empty set.
    pub(crate) const fn none(what: &'static str) -> Self {
        Self { what, leaves: Vec::new(), is_optional: false }
    }

    /// Returns an empty set that may stay empty: a pool can be imported without its log devices.
    const fn optional(what: &'static str) -> Self {
        Self { what, leaves: Vec::new(), is_optional: true }
    }

    /// Writes to a leaf and adds it. Returns the error if the write fails.
    pub(crate) async fn give(
        &mut self,
        tree: &Tree,
        leaf: LeafId,
        write: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let generation = tree.leaf(leaf).generation();
        write.await?;
        self.leaves.push((leaf, generation));
        Ok(())
    }

    /// Returns the leaves on which the write is durable after a flush with this outcome.
    ///
    /// # Errors
    /// `Kind::Io` if there is none.
    pub(crate) fn settle(mut self, tree: &Tree, flushed: &FlushOutcome) -> Result<Vec<LeafId>> {
        // Checks T6.
        if self.leaves.is_empty() && !self.is_optional {
            return Err(CommitError::NotWritten(self.what).into());
        }
        let has_failed = |leaf| flushed.failed.iter().any(|failed| failed.leaf == leaf);
        self.leaves.retain(|(id, generation)| {
            !has_failed(*id) && tree.leaf(*id).generation() == *generation
        });
        // Checks T6.
        if self.leaves.is_empty() && !self.is_optional {
            let cause = flushed.failed.first();
            let cause = cause.map_or_else(String::new, |failed| failed.error.to_string());
            return Err(CommitError::NotDurable { what: self.what, cause }.into());
        }
        Ok(self.leaves.into_iter().map(|(leaf, _)| leaf).collect())
    }
}

impl Engine {
    /// Commits the txg of a sync with the MOS root `root`.
    pub(crate) async fn commit(&self, scope: &Scope<'_>, root: &BlockPtr) -> Result<()> {
        let txg = scope.context.txg;
        let (config, is_dirty) = scope.change_config(|config| {
            let is_dirty = std::mem::take(&mut config.is_dirty);
            (config.clone(), is_dirty)
        });
        // Checks C1.
        if config.is_unrecorded {
            return Err(invariant_error(format!("txg {txg} leaves a config unrecorded (C1)")));
        }
        if is_dirty {
            let known: FixedSet<u64> = self.tree.leaves().map(|(_, leaf)| leaf.guid()).collect();
            let leaves = concrete(&config).into_iter().flat_map(VdevConfig::leaves);
            let lost = leaves.map(|leaf| leaf.guid).find(|guid| !known.contains(guid));
            ensure!("C3", lost.is_none(), "leaf {lost:?} would get no labels of txg {txg}");
        }
        let is_changed = self.mos.is_dirty(txg) || self.heads.is_dirty(txg);
        ensure!("T2", !is_changed, "txg {txg} was changed after its last pass");
        let uberblock = self.next_uberblock(txg, root, &config);
        let last = self.uberblock().txg;
        ensure!("T1", txg > last, "txg {txg} would be committed after txg {last}");
        let (birth, is_hole) = (root.birth(), root.is_hole());
        ensure!("T2", birth == txg && !is_hole, "txg {txg} has a MOS of txg {birth}");
        loop {
            // Not while another host may have the pool imported.
            if !self.health.suspension.pass().await {
                return Err(crate::txg::suspend::abandoned_error());
            }
            let resume_count = self.health.suspension.resume_count();
            match self.try_commit(&config, is_dirty, &uberblock).await {
                Ok(()) => break,
                Err(error) => self.health.suspension.hold(resume_count, error).await?,
            }
        }
        let (written, now) = (config.revision, self.config.with(|config| config.revision));
        ensure!("C1", now == written, "config {now}, the labels of txg {txg} have {written}");
        *self.txgs.uberblock.lock() = uberblock;
        // I/O that uses the progress of an expansion that has just ended may be in flight.
        if uberblock.raidz_reflow_info != 0 {
            self.tree.expansion().set_progress(uberblock.raidz_reflow_info);
        }
        self.space.maps.committed(txg, root, &config.root.children);
        if is_dirty {
            self.health.damage.note(Event::Pool(PoolEvent::Configured));
        }
        Ok(())
    }

    /// Writes the last uberblock once more, with another reflow word and a later timestamp, and
    /// makes it durable. No commit runs meanwhile.
    pub(crate) async fn rewrite_uberblock(&self, reflow: u64) -> Result<()> {
        let last = self.uberblock();
        let timestamp = last.timestamp.saturating_add(1);
        let uberblock = Uberblock { raidz_reflow_info: reflow, timestamp, ..last };
        let config = self.config();
        loop {
            if !self.health.suspension.pass().await {
                return Err(crate::txg::suspend::abandoned_error());
            }
            let resume_count = self.health.suspension.resume_count();
            let written = async {
                self.check_host()?;
                let taken = self.write_uberblock(&concrete(&config), &uberblock, |_| true).await;
                self.flush_unless(Bug::NoFlushAfterUberblock, taken).await
            };
            match written.await {
                Ok(_) => break,
                Err(error) => self.health.suspension.hold(resume_count, error).await?,
            }
        }
        *self.txgs.uberblock.lock() = uberblock;
        Ok(())
    }

    /// Writes the uberblock with which the pool was opened to the leaves that do not hold it in
    /// each of their labels, and makes it durable.
    ///
    /// A power cut in a commit may leave the uberblock in one label of one leaf. Once anything is
    /// told of its txg it must not depend on that copy: the label is not found any more when the
    /// device grows, and the device may fail while others go on without it.
    pub(crate) async fn complete_commit(&self, holds: impl Fn(u64) -> bool) -> Result<()> {
        if is_on(Bug::FoundCommitIncomplete) {
            return Ok(());
        }
        let (config, uberblock) = (self.config(), self.uberblock());
        let tops = concrete(&config);
        let leaves = tops.iter().flat_map(|top| top.leaves()).map(|leaf| leaf.guid);
        let lacking: FixedSet<u64> = leaves.filter(|guid| !holds(*guid)).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let data = tops.iter().filter(|top| !top.top.is_log);
        let is_held = data.flat_map(|top| top.leaves()).any(|leaf| !lacking.contains(&leaf.guid));
        self.check_host()?;
        let is_wanted = |guid| lacking.contains(&guid);
        let mut taken = self.write_uberblock(&tops, &uberblock, is_wanted).await;
        for leaves in &mut taken {
            leaves.is_optional |= is_held;
        }
        self.flush_unless(Bug::NoFlushAfterUberblock, taken).await.map(drop)
    }

    /// One attempt.
    async fn try_commit(
        &self,
        config: &Config,
        is_dirty: bool,
        uberblock: &Uberblock,
    ) -> Result<()> {
        let txg = uberblock.txg;
        let tops = if is_dirty { concrete(config) } else { some_tops(config, txg) };

        if is_on(Bug::UberblockFirst) {
            self.write_uberblock(&tops, uberblock, |_| true).await;
        }
        // Order 1.
        self.flush_unless(Bug::NoFlushBeforeLabels, Vec::new()).await?;
        stages::reach("commit-data-flushed");
        if is_dirty {
            self.check_host()?;
            let taken = self.write_labels(config, &tops, Pair::Even, None).await?;
            if is_on(Bug::OddLabelsFirst) {
                self.write_labels(config, &tops, Pair::Odd, None).await?;
            }
            // Order 2.
            self.flush_unless(Bug::NoFlushBeforeUberblock, taken).await?;
            stages::reach("commit-even-labels");
        }
        // Importers can find the txg from here on: the last moment to check that no other host has
        // the pool.
        self.check_host()?;
        let taken = self.write_uberblock(&tops, uberblock, |_| true).await;
        // Order 3.
        let durable = self.flush_unless(Bug::NoFlushAfterUberblock, taken).await?;
        stages::reach("commit-uberblock");
        if is_dirty {
            // Not on leaves that may lose the uberblock: all four labels would be newer than any
            // uberblock there.
            let taken = self.write_labels(config, &tops, Pair::Odd, Some(&durable)).await?;
            // Order 4.
            self.flush_unless(Bug::NoFlushAfterLabels, taken).await?;
            stages::reach("commit-odd-labels");
        }
        Ok(())
    }

    fn next_uberblock(&self, txg: u64, root: &BlockPtr, config: &Config) -> Uberblock {
        let mut uberblock = Uberblock {
            txg,
            guid_sum: config.root.guid_sum(),
            timestamp: cenote_rt::wall_clock().as_secs(),
            rootbp: *root,
            software_version: 5000,
            checkpoint_txg: 0,
            ..self.uberblock()
        };
        if let Some(word) = self.leaf.reflow.take_word(&self.tree) {
            uberblock.raidz_reflow_info = word;
        }
        self.health.multihost.stamp(&mut uberblock);
        uberblock
    }

    /// Writes the config to every leaf of the vdevs, or only to those of `among`; at least one leaf
    /// of each data vdev must be written. Returns the written leaves by vdev.
    async fn write_labels(
        &self,
        config: &Config,
        tops: &[&VdevConfig],
        pair: Pair,
        among: Option<&BTreeSet<LeafId>>,
    ) -> Result<Vec<PendingLeaves>> {
        let mut all = Vec::new();
        for top in tops {
            let mut taken = PendingLeaves::none("label");
            let mut last = None;
            for leaf in top.leaves() {
                let list = label_list(&config.stored(), top, leaf.guid);
                let Some(id) = self.tree.leaf_of(leaf.guid) else { continue };
                if among.is_some_and(|among| !among.contains(&id)) {
                    continue;
                }
                let write = self.tree.write_label_config(id, pair, &list);
                last = taken.give(&self.tree, id, write).await.err().or(last);
            }
            // A pool can be imported without its log vdevs.
            if top.top.is_log {
                continue;
            }
            if let (true, Some(error)) = (taken.leaves.is_empty(), last) {
                return Err(error);
            }
            all.push(taken);
        }
        Ok(all)
    }

    /// Writes the uberblock to all four labels of every leaf whose guid is wanted. Returns the
    /// written leaves: those of data vdevs, one of which must make it durable, and those of log
    /// vdevs.
    async fn write_uberblock(
        &self,
        tops: &[&VdevConfig],
        uberblock: &Uberblock,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Vec<PendingLeaves> {
        let (mut holders, mut logs) =
            (PendingLeaves::none("uberblock"), PendingLeaves::optional("uberblock"));
        // Not over the committed uberblock of the txg, which a torn write would destroy.
        let is_beside = uberblock.raidz_reflow().state == ReflowState::Valid;
        let txg = uberblock.txg - u64::from(is_beside);
        for top in tops {
            let taken = if top.top.is_log { &mut logs } else { &mut holders };
            for leaf in top.leaves().filter(|leaf| is_wanted(leaf.guid)) {
                let ashift = top.top.ashift;
                let slot = slot_of(txg, ashift, self.health.multihost.is_on());
                let Some(id) = self.tree.leaf_of(leaf.guid) else { continue };
                // A failing leaf counts an error; the others have the uberblock.
                let write = self.tree.write_uberblock(id, uberblock, slot);
                drop(taken.give(&self.tree, id, write).await);
            }
        }
        vec![holders, logs]
    }

    /// Flushes the blocks that the uberblock will reach: order 1, before the DTLs are read for the
    /// last time.
    pub(crate) async fn flush_data(&self) -> Result<()> {
        self.flush_unless(Bug::NoFlushBeforeLabels, Vec::new()).await.map(drop)
    }

    /// Flushes every leaf that was written, including those added in this txg, unless the bug is
    /// seeded. Returns the leaves whose writes are durable: at least one of each of `taken`.
    async fn flush_unless(&self, bug: Bug, taken: Vec<PendingLeaves>) -> Result<BTreeSet<LeafId>> {
        let flushed =
            if is_on(bug) { FlushOutcome::default() } else { self.tree.flush_for_commit().await? };
        let mut durable = BTreeSet::new();
        for taken in taken {
            durable.extend(taken.settle(&self.tree, &flushed)?);
        }
        Ok(durable)
    }
}

/// Returns up to three data vdevs, starting from one that depends on the txg.
fn some_tops(config: &Config, txg: u64) -> Vec<&VdevConfig> {
    let tops: Vec<_> = concrete(config)
        .into_iter()
        .filter(|top| !top.top.is_log && top.top.metaslab_array != 0)
        .collect();
    let count = tops.len().max(1);
    let first = txg as usize % count;
    (0..tops.len().min(UBERBLOCK_TOPS))
        .filter_map(|index| tops.get((first + index) % count).copied())
        .collect()
}

fn concrete(config: &Config) -> Vec<&VdevConfig> {
    config.root.children.iter().filter(|top| top.kind.is_concrete()).collect()
}
