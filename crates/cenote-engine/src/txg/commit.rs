//! Making a txg durable: labels and the uberblock (spec 01 §14).
//!
//! ```text
//!   data, MOS ──flush──> labels 0, 2 ──flush──> uberblock ──flush──> labels 1, 3 ──flush──> done
//!                        (if the config changed)                     (if the config changed)
//! ```
//!
//! Each arrow is a flush of every leaf that was written, and crash safety rests on all of them:
//! 1. Before the uberblock: what it reaches must be on disk before it is. Otherwise it would lead
//!    into blocks that were lost with the cache.
//! 2. Before the uberblock, between the even labels and it: a label that is newer than every
//!    uberblock is ignored, but only as long as the other two labels are not newer as well.
//! 3. After the uberblock, before the odd labels: the same from the other side; and nobody who
//!    waits for the txg may be told before.
//! 4. At the end, before space is reused: labels of this txg are whole on every device.
//!
//! If one of them fails, all of it is done again, once the pool is resumed: what it writes is the
//! same each time, and whatever of it is on disk already says the same (spec 01 §14).
//!
//! What is no block has no dirty time log that would tell of a flush that failed. So a flush counts
//! only if of the leaves that took the uberblock, and of those of each vdev that took its labels,
//! one is left that neither failed nor left service since ([`Taken`]).

use std::collections::BTreeSet;
use std::sync::PoisonError;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::{VdevConfig, label_list};
use cenote_ondisk::uberblock::Uberblock;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result, stages};
use cenote_vdev::labels::{Pair, slot_of};
use cenote_vdev::{FlushOutcome, LeafId, Tree};

use crate::admin::events::{Event, PoolEvent};
use crate::{Config, Engine, invariant_error};

/// Top-level vdevs that get the uberblock when the config did not change.
const UBERBLOCK_TOPS: usize = 3;

/// Why a commit has to be done again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommitError {
    /// Nobody took it.
    #[error("no device took the {0}")]
    NotTaken(&'static str),
    /// Whoever took it failed to make it durable.
    #[error("the {what} may be lost: {cause}")]
    NotDurable {
        /// What was written.
        what: &'static str,
        /// What the first device said.
        cause: String,
    },
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        Self::new(Kind::Io, error)
    }
}

/// Leaves that took what is to be made durable, one of which must.
#[derive(Debug)]
pub(crate) struct Taken {
    what: &'static str,
    /// Each as it was before: its turn changes when it leaves service or gets another device.
    leaves: Vec<(LeafId, u64)>,
    /// Whether none of them need make it durable: they are those of a log vdev.
    is_optional: bool,
}

impl Taken {
    /// Nobody so far.
    pub(crate) const fn none(what: &'static str) -> Self {
        Self { what, leaves: Vec::new(), is_optional: false }
    }

    /// Nobody so far, and nobody need be: a pool must be found without its log devices.
    const fn optional(what: &'static str) -> Self {
        Self { what, leaves: Vec::new(), is_optional: true }
    }

    /// Has a leaf take it. Gives the error if it does not.
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

    /// Keeps those for which it is durable after a flush with that outcome.
    ///
    /// # Errors
    /// `Kind::Io` if there is none.
    pub(crate) fn settle(mut self, tree: &Tree, flushed: &FlushOutcome) -> Result<Vec<LeafId>> {
        if self.leaves.is_empty() && !self.is_optional {
            return Err(CommitError::NotTaken(self.what).into());
        }
        let has_failed = |leaf| flushed.failed.iter().any(|failed| failed.leaf == leaf);
        self.leaves.retain(|(id, generation)| {
            !has_failed(*id) && tree.leaf(*id).generation() == *generation
        });
        if self.leaves.is_empty() && !self.is_optional {
            let cause = flushed.failed.first();
            let cause = cause.map_or_else(String::new, |failed| failed.error.to_string());
            return Err(CommitError::NotDurable { what: self.what, cause }.into());
        }
        Ok(self.leaves.into_iter().map(|(leaf, _)| leaf).collect())
    }
}

impl Engine {
    /// Commits `txg`, whose MOS has the root `root`.
    pub(crate) async fn commit(&self, txg: u64, root: &BlockPtr) -> Result<()> {
        let (config, is_dirty) = self.with_config(|config| {
            let is_dirty = std::mem::take(&mut config.is_dirty);
            (config.clone(), is_dirty)
        });
        if config.is_unrecorded {
            return Err(invariant_error(format!("txg {txg} leaves a config unrecorded")));
        }
        let uberblock = self.next_uberblock(txg, root, &config);
        loop {
            // Not while another host may have the pool.
            if !self.health.suspension.pass().await {
                return Err(crate::txg::suspend::given_up());
            }
            let turn = self.health.suspension.turn();
            match self.try_commit(&config, is_dirty, &uberblock).await {
                Ok(()) => break,
                Err(error) => self.health.suspension.hold(turn, error).await?,
            }
        }
        *self.txgs.uberblock.lock().unwrap_or_else(PoisonError::into_inner) = uberblock;
        self.space.maps.committed(txg, root, &config.root.children);
        if is_dirty {
            self.health.damage.note(Event::Pool(PoolEvent::Configured));
        }
        Ok(())
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
            self.write_uberblock(&tops, uberblock).await;
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
        // From here on others may find the txg: the last moment to see that nobody else has the
        // pool.
        self.check_host()?;
        let taken = self.write_uberblock(&tops, uberblock).await;
        // Order 3.
        let durable = self.flush_unless(Bug::NoFlushAfterUberblock, taken).await?;
        stages::reach("commit-uberblock");
        if is_dirty {
            // Not where the uberblock may be lost: all four labels would be newer than any there.
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
        self.health.multihost.stamp(&mut uberblock);
        uberblock
    }

    /// Every leaf of the vdevs gets the config, or only those of `among`; each vdev that holds data
    /// must have one that took it. Gives those that did, by vdev.
    async fn write_labels(
        &self,
        config: &Config,
        tops: &[&VdevConfig],
        pair: Pair,
        among: Option<&BTreeSet<LeafId>>,
    ) -> Result<Vec<Taken>> {
        let mut all = Vec::new();
        for top in tops {
            let mut taken = Taken::none("label");
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
            // The pool does without a log.
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

    /// The uberblock goes to all four labels of every leaf. Gives the leaves that took it: those of
    /// vdevs that hold data, of which one must keep it, and those of logs.
    async fn write_uberblock(&self, tops: &[&VdevConfig], uberblock: &Uberblock) -> Vec<Taken> {
        let (mut holders, mut logs) = (Taken::none("uberblock"), Taken::optional("uberblock"));
        for top in tops {
            let taken = if top.top.is_log { &mut logs } else { &mut holders };
            for leaf in top.leaves() {
                let ashift = top.top.ashift;
                let slot = slot_of(uberblock.txg, ashift, self.health.multihost.is_on());
                let Some(id) = self.tree.leaf_of(leaf.guid) else { continue };
                // A leaf that fails has its error counted; the others have the uberblock.
                let write = self.tree.write_uberblock(id, uberblock, slot);
                drop(taken.give(&self.tree, id, write).await);
            }
        }
        vec![holders, logs]
    }

    /// Makes durable what the uberblock is going to lead to: order 1, before the logs of what
    /// leaves lack are looked at for the last time.
    pub(crate) async fn flush_data(&self) -> Result<()> {
        self.flush_unless(Bug::NoFlushBeforeLabels, Vec::new()).await.map(drop)
    }

    /// Flushes every leaf that was written, those that came in this very txg included, unless that
    /// bug is in. Gives the leaves for which what they took is durable now: one at least of each of
    /// `taken`.
    async fn flush_unless(&self, bug: Bug, taken: Vec<Taken>) -> Result<BTreeSet<LeafId>> {
        let flushed =
            if is_on(bug) { FlushOutcome::default() } else { self.tree.flush_for_commit().await? };
        let mut durable = BTreeSet::new();
        for taken in taken {
            durable.extend(taken.settle(&self.tree, &flushed)?);
        }
        Ok(durable)
    }
}

/// Up to three vdevs that hold data, from one that changes with the txg on.
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
