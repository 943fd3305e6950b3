//! Writes the blocks that leaves lack, in the order of their addresses.
//!
//! ```text
//!   blocks ── by address ──> batches of neighbours ──> extents ──> each block is mended
//!                            several at once
//! ```
//!
//! Blocks with adjacent addresses are read together, in reads of up to
//! [`tunables::AGGREGATION_LIMIT`] bytes per leaf: a class of scan reads has few I/Os in flight, so
//! that reads of single blocks would leave a disk waiting. The writes of a batch are adjacent as
//! well, and the queue of the leaf joins them. An extent that cannot be read as a whole is read
//! block by block.
//!
//! While delays hold scans back ([`ThrottleModel::Delays`]), each block is a batch of its own.

use std::sync::Arc;

use cenote_block::MendKind;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::verify::Extents;
use cenote_rt::lock::branch;
use cenote_rt::{Semaphore, poll_first, tunables};
use cenote_vdev::queue::{ScanKind, ThrottleModel};
use futures_util::future::join_all;

use super::round::Mender;
use super::run::Runner;

/// Unit in which the memory of blocks is counted.
const UNIT: u64 = 64 << 10;
/// Allocated bytes of a batch, of the first copies.
const BATCH_BYTES: u64 = 2 << 20;

/// A block that a leaf lacks.
pub(super) type Fill = (BlockPtr, Bookmark);

/// The vdev and the offset of the first copy, and its allocated bytes.
fn address((bp, _): &Fill) -> (u32, u64, u64) {
    bp.dva(0).map_or((0, 0, 0), |dva| (dva.vdev, dva.offset, dva.asize))
}

/// Splits blocks, sorted by address, into batches.
fn batches(mut fills: Vec<Fill>, bytes_max: u64) -> Vec<Vec<Fill>> {
    fills.sort_by_key(address);
    fills.dedup_by_key(|(bp, _)| *bp);
    let mut batches: Vec<Vec<Fill>> = Vec::new();
    let (mut vdev, mut bytes) = (None, 0);
    for fill in fills {
        let (at, _, asize) = address(&fill);
        match batches.last_mut() {
            Some(batch) if vdev == Some(at) && bytes + asize <= bytes_max => {
                bytes += asize;
                batch.push(fill);
            }
            _ => {
                (vdev, bytes) = (Some(at), asize);
                batches.push(vec![fill]);
            }
        }
    }
    batches
}

/// Bytes of memory that a block needs: those of the parts that are read, and of the block.
fn memory((bp, _): &Fill) -> u64 {
    bp.dvas().map(|dva| dva.asize).sum::<u64>() + bp.psize()
}

/// Reads the blocks, and writes what leaves lack of them. Returns when the devices have answered,
/// or once the runner was stopped.
pub(super) async fn write(
    mender: &Arc<Mender>,
    runner: &Arc<Runner>,
    kind: ScanKind,
    fills: Vec<Fill>,
) {
    let most = (tunables::SCAN_MEMORY_BYTES.get() / UNIT).clamp(1, 1 << 16) as u32;
    let permits = Arc::new(Semaphore::new(most as usize));
    let is_delayed = ThrottleModel::now() == ThrottleModel::Delays;
    // At least four batches at once.
    let bytes_max = if is_delayed { 0 } else { BATCH_BYTES.min(u64::from(most) * UNIT / 8) };
    for batch in batches(fills, bytes_max) {
        let bytes: u64 = batch.iter().map(memory).sum();
        let units = (bytes.div_ceil(UNIT) as u32).clamp(1, most);
        let Ok(permit) = Arc::clone(&permits).acquire_many_owned(units).await else { break };
        if runner.is_stopped() {
            break;
        }
        let tree = mender.tree();
        let is_stopped = runner.stop_flag();
        let slot = tree.load().pace(kind, tree.tops().count() as u64, &is_stopped).await;
        let mender = Arc::clone(mender);
        cenote_rt::spawn(async move {
            write_batch(&mender, &batch).await;
            drop((permit, slot));
        });
    }
    // An error means that the runtime ends.
    drop(permits.acquire_many(most).await);
}

async fn write_batch(mender: &Mender, batch: &[Fill]) {
    let ranges = batch.iter().flat_map(|(bp, _)| mender.leaf_ranges(bp));
    let extents = Extents::read(mender.tree(), ranges.collect()).await;
    let blocks = batch.iter().map(|(bp, place)| {
        let is_log = bp.object_type() == ObjectType::INTENT_LOG;
        let kind = if is_log { MendKind::Log } else { MendKind::Unread };
        branch(mender.mend(&extents, bp, place, kind))
    });
    // The writes of all blocks are queued before the first one is issued.
    let plug = mender.tree().plug();
    poll_first(join_all(blocks), || drop(plug)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block with a copy at this place.
    fn fill(vdev: u64, offset: u64, asize: u64) -> Fill {
        let mut words = [0; 16];
        (words[0], words[1]) = (vdev << 32 | asize >> 9, offset >> 9);
        (BlockPtr::from_words(words), Bookmark::default())
    }

    fn offsets(batches: &[Vec<Fill>]) -> Vec<Vec<(u32, u64)>> {
        let at = |fill: &Fill| (address(fill).0, address(fill).1);
        batches.iter().map(|batch| batch.iter().map(at).collect()).collect()
    }

    #[test]
    fn batches_are_sorted_bounded_and_of_one_vdev() {
        let fills = vec![
            fill(1, 0, 4096),
            fill(0, 8192, 4096),
            fill(0, 0, 4096),
            fill(0, 0, 4096),
            fill(0, 4096, 4096),
            fill(0, 1 << 20, 8192),
        ];
        let want = vec![vec![(0, 0), (0, 4096)], vec![(0, 8192)], vec![(0, 1 << 20)], vec![(1, 0)]];
        assert_eq!(offsets(&batches(fills.clone(), 8192)), want);
        let single = batches(fills, 0);
        assert_eq!((single.len(), single.iter().all(|batch| batch.len() == 1)), (5, true));
    }
}
