//! Reading ahead of who reads an object, so that he finds what he asks for in the cache.
//!
//! ```text
//!   request ──> streams (`streams`): part of one? ── what it will ask for
//!                                                      `──> blocks, as far as their pointers are
//!                                                           known; else those above them
//! ```
//!
//! What is expected is looked for in the same transaction as what is asked for, which costs a few
//! look-ups, and is read by tasks of its own, into the cache. Where an indirect block is not in
//! memory it is read first, and the next request goes on from there; indirect blocks are read
//! further ahead than data, so that this is rare. Nobody waits for any of it, and what fails is met
//! again by whoever really wants the block. In a set that nobody changes (a snapshot) there are no
//! transactions: a task looks for what is expected, and waits for blocks above.
//!
//! Bounds: streams of an object and how far each reads ahead (`zfetch_...`), an eighth of the cache
//! for each; the store's bound on bytes that are being read ahead, beyond which nothing is begun;
//! [`OBJECTS_MAX`] objects.
//!
//! Lock order: the object set's, then the one in here, which is held for look-ups.

mod streams;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_rt::{FixedMap, tunables};

use self::streams::{BLOCKS_MIN, Bounds, Extent, Streams, Wish};
use super::step::Step;
use super::tx::Tx;
use super::view::geometry_of;
use crate::dnode::Dnode;

/// Objects whose readers are known.
const OBJECTS_MAX: usize = 1024;

/// Who reads what, of some objects.
#[derive(Debug, Default)]
pub struct ReadAhead {
    objects: Mutex<FixedMap<u64, Streams>>,
}

impl ReadAhead {
    /// Takes note that data blocks of an object are asked for, and starts reading those that will
    /// be next. `waits`: not all of them were in memory. To be called once for each request, when
    /// the closure has what it needs.
    pub fn note(&self, tx: &Tx<'_>, object: u64, blocks: Range<u64>, waits: bool) {
        if tunables::PREFETCH_DISABLE.get() != 0 {
            return;
        }
        let Ok(dnode) = tx.dnode(object) else { return };
        let extent = Extent {
            block_size: dnode.data_block_size(),
            blocks: geometry_of(&dnode).max_block.saturating_add(1),
        };
        self.follow(object, extent, blocks, waits, |wish| {
            (data(tx, object, wish), above(tx, object, wish))
        });
    }

    /// The same of an object in a set that nobody changes. What will be next is looked for and read
    /// by a task.
    pub fn note_dnode(&self, dnode: &Arc<Dnode>, blocks: Range<u64>) {
        if tunables::PREFETCH_DISABLE.get() != 0 {
            return;
        }
        let extent =
            Extent { block_size: dnode.geometry().block_size, blocks: dnode.block_count() };
        let mut wanted = Vec::new();
        // Whether the reader waits is not known before he has read: he counts as one who does.
        self.follow(dnode.object(), extent, blocks, true, |wish| {
            wanted.clone_from(&wish.data);
            (None, wish.above.end)
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

    /// Notes a request, and has `read` begin with what will be next; it gives where it had to stop,
    /// and how far blocks above are on the way.
    fn follow(
        &self,
        object: u64,
        extent: Extent,
        blocks: Range<u64>,
        waits: bool,
        read: impl FnOnce(&Wish) -> (Option<(usize, u64)>, u64),
    ) {
        if extent.blocks < BLOCKS_MIN {
            return;
        }
        let (bounds, now) = (bounds(), cenote_rt::monotonic());
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut objects, object, now, bounds.reap);
        let streams = objects.entry(object).or_default();
        if let Some(wish) = streams.note(blocks, waits, extent, &bounds, now) {
            let (stopped, above) = read(&wish);
            streams.followed(&wish, stopped, above);
        }
    }
}

/// Starts reading data; gives the range and block before which it had to stop.
fn data(tx: &Tx<'_>, object: u64, wish: &Wish) -> Option<(usize, u64)> {
    for (index, range) in wish.data.iter().enumerate() {
        for block in range.clone() {
            match tx.block(object, block) {
                Err(Step::Need(missing)) => {
                    let has_begun = tx.source.blocks.prefetch(&missing);
                    // What is below an indirect block is not known before that is there.
                    if !has_begun || missing.place.object != object || missing.place.level != 0 {
                        return Some((index, block));
                    }
                }
                Err(Step::Fail(_)) => return Some((index, block)),
                Ok(_) => {}
            }
        }
    }
    None
}

/// Starts reading indirect blocks; gives the data block up to which they are there or on the way.
fn above(tx: &Tx<'_>, object: u64, wish: &Wish) -> u64 {
    let Ok(dnode) = tx.dnode(object) else { return wish.above.start };
    let tree = geometry_of(&dnode);
    if tree.levels <= 1 {
        return wish.above.end;
    }
    let span = tree.span(1).max(1);
    let mut block = wish.above.start;
    while block < wish.above.end {
        if let Err(Step::Need(missing)) = tx.block(object, block)
            && missing.place.level != 0
            && !tx.source.blocks.prefetch(&missing)
        {
            break;
        }
        block = (block / span + 1).saturating_mul(span);
    }
    block
}

fn bounds() -> Bounds {
    let share = tunables::BLOCK_CACHE_BYTES.get() / 8;
    Bounds {
        streams: tunables::PREFETCH_STREAMS.get_usize(),
        distance_min: tunables::PREFETCH_MIN_BYTES.get().min(share),
        distance_max: tunables::PREFETCH_BYTES.get().min(share),
        indirect_max: tunables::PREFETCH_INDIRECT_BYTES.get(),
        reorder: tunables::PREFETCH_REORDER.get(),
        reap: Duration::from_secs(tunables::PREFETCH_REAP_SECONDS.get()),
    }
}

/// Forgets who has not read for a while if there are too many; if all have, everybody.
fn make_room(objects: &mut FixedMap<u64, Streams>, object: u64, now: Duration, reap: Duration) {
    if objects.len() < OBJECTS_MAX || objects.contains_key(&object) {
        return;
    }
    objects.retain(|_, streams| now.saturating_sub(streams.used()) < reap);
    if objects.len() >= OBJECTS_MAX {
        objects.clear();
    }
}
