//! Prefetch: reads blocks of an object into the cache before a reader requests them.
//!
//! ```text
//!   request ──> streams (`streams`): does it continue a stream? ── expected blocks
//!                                                      `──> read, as far as their pointers are
//!                                                           cached; else the indirect blocks above
//! ```
//!
//! The expected blocks are looked up in the transaction of the request itself, which costs a few
//! look-ups, and are read into the cache by separate tasks. An indirect block that is not cached is
//! read first, and the next request continues from there; indirect blocks are read further ahead
//! than data, so that this is rare. No caller waits for prefetch; an error is found again by the
//! reader that needs the block. An object set that nothing changes (a snapshot) has no
//! transactions: a task looks the expected blocks up, and waits for indirect blocks.
//!
//! Limits: the number of streams of an object and their distance (`zfetch_...`), an eighth of the
//! cache for each; the store's limit on bytes being prefetched, beyond which no read is started;
//! [`OBJECTS_MAX`] objects.
//!
//! Lock order: the object set's lock, then the one in here, which is held while the next blocks are
//! looked up (`Rank::Prefetch`).

mod streams;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{FixedMap, tunables};

use self::streams::{BLOCKS_MIN, ObjectShape, PrefetchLimits, PrefetchPlan, Streams};
use super::stop::TxStop;
use super::tx::Tx;
use super::view::geometry_of;
use crate::dnode::Dnode;

/// Most objects whose streams are remembered.
const OBJECTS_MAX: usize = 1024;

/// The streams of recently read objects.
#[derive(Debug)]
pub struct Prefetcher {
    objects: Mutex<FixedMap<u64, Streams>>,
}

impl Default for Prefetcher {
    fn default() -> Self {
        Self { objects: Mutex::with_default(Rank::Prefetch) }
    }
}

impl Prefetcher {
    /// Records a request for data blocks of an object, and starts reading the blocks that are
    /// expected next. `waits`: not all requested blocks were cached. To be called once per request,
    /// when the closure has all blocks that it needs.
    pub fn note(&self, tx: &Tx<'_>, object: u64, blocks: Range<u64>, waits: bool) {
        if tunables::PREFETCH_DISABLE.get() != 0 {
            return;
        }
        let Ok(dnode) = tx.dnode(object) else { return };
        let shape = ObjectShape {
            block_size: dnode.data_block_size(),
            blocks: geometry_of(&dnode).max_block.saturating_add(1),
        };
        self.follow(object, shape, blocks, waits, |plan| {
            (data(tx, object, plan), above(tx, object, plan))
        });
    }

    /// Like [`note`](Self::note), for an object in a set that nothing changes. A task looks the
    /// expected blocks up and reads them.
    pub fn note_dnode(&self, dnode: &Arc<Dnode>, blocks: Range<u64>) {
        if tunables::PREFETCH_DISABLE.get() != 0 {
            return;
        }
        let shape =
            ObjectShape { block_size: dnode.geometry().block_size, blocks: dnode.block_count() };
        let mut wanted = Vec::new();
        // Whether the reader waits is not known before it has read, so it counts as waiting.
        self.follow(dnode.object(), shape, blocks, true, |plan| {
            wanted.clone_from(&plan.data);
            (None, plan.above.end)
        });
        if wanted.iter().all(Range::is_empty) {
            return;
        }
        let dnode = Arc::clone(dnode);
        drop(cenote_rt::spawn(async move {
            for block in wanted.into_iter().flatten() {
                dnode.prefetch_block(0, block).await;
            }
        }));
    }

    /// Records a request, and calls `read` to read the expected blocks; it returns where it had to
    /// stop, and how far indirect blocks are being read.
    fn follow(
        &self,
        object: u64,
        shape: ObjectShape,
        blocks: Range<u64>,
        waits: bool,
        read: impl FnOnce(&PrefetchPlan) -> (Option<(usize, u64)>, u64),
    ) {
        if shape.blocks < BLOCKS_MIN {
            return;
        }
        let (limits, now) = (limits(), cenote_rt::monotonic());
        let mut objects = self.objects.lock();
        make_room(&mut objects, object, now, limits.reap);
        let streams = objects.entry(object).or_default();
        if let Some(plan) = streams.note(blocks, waits, shape, &limits, now) {
            let (stopped, above) = read(&plan);
            streams.followed(&plan, stopped, above);
        }
    }
}

/// Starts reading data; returns the range and block before which it had to stop.
fn data(tx: &Tx<'_>, object: u64, plan: &PrefetchPlan) -> Option<(usize, u64)> {
    for (index, range) in plan.data.iter().enumerate() {
        for block in range.clone() {
            match tx.block(object, block) {
                Err(TxStop::Need(missing)) => {
                    let has_begun = tx.source.blocks.prefetch(&missing);
                    // Blocks below an uncached indirect block are unknown.
                    if !has_begun || missing.place.object != object || missing.place.level != 0 {
                        return Some((index, block));
                    }
                }
                Err(TxStop::Fail(_)) => return Some((index, block)),
                Ok(_) => {}
            }
        }
    }
    None
}

/// Starts reading indirect blocks; returns the data block up to which they are cached or being
/// read.
fn above(tx: &Tx<'_>, object: u64, plan: &PrefetchPlan) -> u64 {
    let Ok(dnode) = tx.dnode(object) else { return plan.above.start };
    let tree = geometry_of(&dnode);
    if tree.levels <= 1 {
        return plan.above.end;
    }
    let span = tree.span(1).max(1);
    let mut block = plan.above.start;
    while block < plan.above.end {
        if let Err(TxStop::Need(missing)) = tx.block(object, block)
            && missing.place.level != 0
            && !tx.source.blocks.prefetch(&missing)
        {
            break;
        }
        block = (block / span + 1).saturating_mul(span);
    }
    block
}

fn limits() -> PrefetchLimits {
    let share = tunables::BLOCK_CACHE_BYTES.get() / 8;
    PrefetchLimits {
        streams: tunables::PREFETCH_STREAMS.get_usize(),
        distance_min: tunables::PREFETCH_MIN_BYTES.get().min(share),
        distance_max: tunables::PREFETCH_BYTES.get().min(share),
        indirect_max: tunables::PREFETCH_INDIRECT_BYTES.get(),
        reorder: tunables::PREFETCH_REORDER.get(),
        reap: Duration::from_secs(tunables::PREFETCH_REAP_SECONDS.get()),
    }
}

/// Drops objects that were not read for a while if there are too many; if all were read recently,
/// drops all.
fn make_room(objects: &mut FixedMap<u64, Streams>, object: u64, now: Duration, reap: Duration) {
    if objects.len() < OBJECTS_MAX || objects.contains_key(&object) {
        return;
    }
    objects.retain(|_, streams| now.saturating_sub(streams.used()) < reap);
    if objects.len() >= OBJECTS_MAX {
        objects.clear();
    }
}
