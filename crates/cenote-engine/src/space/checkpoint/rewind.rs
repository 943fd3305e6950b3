//! Rewinds to the checkpoint (spec 01 §16.5, 08 §33).
//!
//! ```text
//!   newest MOS ── entry ──> kept uberblock, txg = newest + 1 ──flush──> opened like any other
//! ```
//!
//! The checkpoint's uberblock becomes the newest one. Everything later, including its maps of held
//! space, becomes unreachable. Its `checkpoint_txg` stays: until the next commit it shows that the
//! pool was rewound, and intent logs that were unclaimed at the checkpoint are dropped.
//!
//! Crash safety: nothing else is written until the flush has returned. A lost or torn uberblock
//! leaves the pool unchanged, with its checkpoint.

use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::Pool;
use cenote_pool::import::Candidate;
use cenote_pool::pool::{OpenError, OpenOptions};
use cenote_rt::Result;
use cenote_vdev::labels::slot_of;

use crate::SpaceManager;
use crate::dsl::history;
use crate::dsl::operation::Request;
use crate::txg::commit::PendingLeaves;
use crate::{CheckpointError, Engine};

/// Number of top-level vdevs that get the uberblock.
const TOPS: usize = 3;

impl SpaceManager<'_> {
    /// Records in the history that the pool was rewound to its checkpoint of `txg`.
    pub(crate) async fn note_rewind(self, txg: u64) -> Result<()> {
        self.engine
            .datasets()
            .operate(Request::free(), move |tx, env, _| {
                let text = format!("rewound state to txg={txg}");
                history::log_pool(tx, env, "checkpoint rewind", &text)
            })
            .await
    }
}

impl Engine {
    /// Makes the checkpoint of a pool, whose devices are open for writing, its newest state.
    /// Returns the txg of the checkpoint.
    pub(crate) async fn rewind_to_checkpoint(
        candidate: &Candidate,
        options: &OpenOptions,
    ) -> Result<u64> {
        let pool = Pool::open(candidate, options).await.map_err(|error| {
            match error.cause::<OpenError>() {
                Some(OpenError::NoCheckpoint) => CheckpointError::NotThere.into(),
                _ => error,
            }
        })?;
        let kept = *pool.uberblock();
        let uberblocks = candidate.uberblocks();
        let newest = uberblocks.iter().max_by_key(|uberblock| uberblock.rank()).unwrap_or(&kept);
        // The multihost fields are the current ones.
        let Uberblock { mmp_magic, mmp_delay, mmp_config, .. } = *newest;
        let is_multihost = newest.mmp().is_some_and(|mmp| mmp.delay_ns != 0);
        let uberblock = Uberblock {
            txg: newest.txg.max(pool.rewound_from().unwrap_or(kept.txg)) + 1,
            timestamp: cenote_rt::wall_clock().as_secs(),
            checkpoint_txg: kept.txg,
            mmp_magic,
            mmp_delay,
            mmp_config,
            ..kept
        };
        let is_data = |top: &&VdevConfig| top.kind.is_concrete() && !top.top.is_log;
        let (tree, mut taken) = (pool.tree(), PendingLeaves::none("uberblock"));
        for top in pool.config().vdev_tree.children.iter().filter(is_data).take(TOPS) {
            let slot = slot_of(uberblock.txg, top.top.ashift, is_multihost);
            for leaf in top.leaves() {
                let Some(id) = tree.leaf_of(leaf.guid) else { continue };
                // If one fails, the others have it.
                let write = tree.write_uberblock(id, &uberblock, slot);
                drop(taken.give(tree, id, write).await);
            }
        }
        // The pool is rewound now. Space of later txgs may be reused only after this.
        let flushed = tree.flush().await?;
        taken.settle(tree, &flushed)?;
        Ok(kept.txg)
    }
}
