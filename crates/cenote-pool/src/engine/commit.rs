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

use std::sync::PoisonError;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::{VdevConfig, label_list};
use cenote_ondisk::uberblock::Uberblock;
use cenote_rt::Result;
use cenote_rt::seeded::{Bug, is_on};
use cenote_vdev::LeafId;
use cenote_vdev::labels::{Pair, slot_of};

use super::{Config, Engine, invariant_error};

/// Top-level vdevs that get the uberblock when the config did not change.
const UBERBLOCK_TOPS: usize = 3;

impl Engine {
    /// Commits `txg`, whose MOS has the root `root`.
    pub(super) async fn commit(&self, txg: u64, root: &BlockPtr) -> Result<()> {
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
            if !self.suspension.pass().await {
                return Err(super::suspend::given_up());
            }
            let turn = self.suspension.turn();
            match self.try_commit(&config, is_dirty, &uberblock).await {
                Ok(()) => break,
                Err(error) => self.suspension.hold(turn, error).await?,
            }
        }
        *self.uberblock.lock().unwrap_or_else(PoisonError::into_inner) = uberblock;
        self.maps.committed(txg, root, &config.root.children);
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
            self.write_uberblock(&tops, uberblock).await?;
        }
        // Order 1.
        self.flush_unless(Bug::NoFlushBeforeLabels).await?;
        if is_dirty {
            self.write_labels(config, &tops, Pair::Even).await?;
            if is_on(Bug::OddLabelsFirst) {
                self.write_labels(config, &tops, Pair::Odd).await?;
            }
            // Order 2.
            self.flush_unless(Bug::NoFlushBeforeUberblock).await?;
        }
        let written = self.write_uberblock(&tops, uberblock).await?;
        if written == 0 {
            return Err(cenote_rt::Error::new(cenote_rt::Kind::Io, "no device took the uberblock"));
        }
        // Order 3.
        self.flush_unless(Bug::NoFlushAfterUberblock).await?;
        if is_dirty {
            self.write_labels(config, &tops, Pair::Odd).await?;
            // Order 4.
            self.flush_unless(Bug::NoFlushAfterLabels).await?;
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
        self.multihost.stamp(&mut uberblock);
        uberblock
    }

    /// Every leaf of the vdevs gets the config; each vdev that holds data must have one that took
    /// it.
    async fn write_labels(&self, config: &Config, tops: &[&VdevConfig], pair: Pair) -> Result<()> {
        for top in tops {
            let mut written = 0;
            let mut last = None;
            for leaf in top.leaves() {
                let list = label_list(&config.facts, top, leaf.guid);
                let Some(id) = self.leaf_id(leaf.guid) else { continue };
                match self.tree.write_label_config(id, pair, &list).await {
                    Ok(()) => written += 1,
                    Err(error) => last = Some(error),
                }
            }
            if written == 0 && !top.top.is_log {
                return Err(last.unwrap_or_else(|| {
                    cenote_rt::Error::new(cenote_rt::Kind::Io, "no device took the label")
                }));
            }
        }
        Ok(())
    }

    /// The uberblock goes to all four labels of every leaf. Gives the leaves that took it.
    async fn write_uberblock(&self, tops: &[&VdevConfig], uberblock: &Uberblock) -> Result<usize> {
        let mut written = 0;
        for top in tops {
            for leaf in top.leaves() {
                let ashift = top.top.ashift;
                let slot = slot_of(uberblock.txg, ashift, self.multihost.is_on());
                let Some(id) = self.leaf_id(leaf.guid) else { continue };
                // A leaf that fails has its error counted; the others have the uberblock.
                if self.tree.write_uberblock(id, uberblock, slot).await.is_ok() {
                    written += 1;
                }
            }
        }
        Ok(written)
    }
}

impl Engine {
    /// Flushes, unless that bug is in.
    async fn flush_unless(&self, bug: Bug) -> Result<()> {
        if is_on(bug) { Ok(()) } else { self.flush_devices().await }
    }

    /// Flushes every leaf that was written, those that came in this very txg included.
    async fn flush_devices(&self) -> Result<()> {
        self.tree.flush().await.map(drop)
    }

    /// The leaf, if it can be written.
    fn leaf_id(&self, guid: u64) -> Option<LeafId> {
        let (id, _) = self.tree.leaves().find(|(_, leaf)| leaf.guid() == guid)?;
        Some(id)
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
