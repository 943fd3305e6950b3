//! The allocator alone: the cost of an allocation and a free when free space is fragmented.

use std::sync::Arc;

use cenote_block::alloc::{
    Class, MetaslabSpec, MetaslabStore, Options, Request, SpaceAllocator, SpaceGeometry,
    StoredSpace, VdevHealth, VdevSpec,
};
use cenote_rt::{BoxFuture, Result, Rng};

use crate::args::Args;
use crate::usage::since;

const METASLAB_SHIFT: u32 = 29;
const METASLABS: u64 = 64;
const SECTOR: u64 = 4096;
/// Allocations that are timed, and of each txg.
const COUNT: u64 = 200_000;
const ROUND: u64 = 10_000;

/// A disk of sectors.
struct Disk;

impl SpaceGeometry for Disk {
    fn asize_for(&self, _: u64, psize: u64, _: u64) -> Option<u64> {
        Some(psize.next_multiple_of(SECTOR))
    }

    fn health(&self, _: u64) -> VdevHealth {
        VdevHealth::Good
    }
}

/// No space map was ever written.
struct Empty;

impl MetaslabStore for Empty {
    fn load(&self, _: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>> {
        let start = metaslab << METASLAB_SHIFT;
        let free = (start..start + (1 << METASLAB_SHIFT)).into();
        Box::pin(async move { Ok(StoredSpace { free, txg: 0 }) })
    }
}

/// Allocates blocks of 8K, frees some of them so that so many segments are free, and then times
/// allocations of several sizes and as many frees.
pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let segments: u64 = args.number(0)?;
    let (store, geometry) = (Arc::new(Empty), Arc::new(Disk));
    let options = Options { store, geometry, txg: 0, has_logs: true, allocators: 1, seed: 1 };
    let space = SpaceAllocator::new(options);
    let metaslabs =
        (0..METASLABS).map(|id| MetaslabSpec::empty(id << METASLAB_SHIFT, 1 << METASLAB_SHIFT));
    space.add_vdev(vdev(), metaslabs.collect(), None)?;
    let mut txg = 1;
    let mut blocks = Vec::new();
    for number in 0..segments * 2 {
        blocks.extend(space.allocate(&Request::data(8 << 10, txg)).await?);
        if number % ROUND == 0 {
            txg = commit(&space, txg)?;
        }
    }
    let mut rest = Vec::with_capacity(segments as usize);
    for (number, block) in blocks.into_iter().enumerate() {
        if number % 2 == 0 {
            space.free(&block, txg)?;
        } else {
            rest.push(block);
        }
    }
    for _ in 0..4 {
        txg = commit(&space, txg)?;
    }
    println!("free segments: {segments}");
    let mut rng = Rng::seeded(1);
    for psize in [4096, 8192, 128 << 10] {
        let mut spent = [0.0; 3];
        for _ in 0..COUNT / ROUND {
            let start = cenote_rt::monotonic();
            let mut taken = Vec::with_capacity(ROUND as usize);
            for _ in 0..ROUND {
                taken.extend(space.allocate(&Request::data(psize, txg)).await?);
            }
            spent[0] += since(start).as_secs_f64();
            let start = cenote_rt::monotonic();
            for _ in 0..ROUND {
                let index = rng.below(rest.len() as u64) as usize;
                space.free(&rest.swap_remove(index), txg)?;
            }
            spent[1] += since(start).as_secs_f64();
            rest.append(&mut taken);
            let start = cenote_rt::monotonic();
            txg = commit(&space, txg)?;
            spent[2] += since(start).as_secs_f64();
        }
        let [allocate, free, commit] = spent.map(|spent| spent * 1e9 / COUNT as f64);
        println!(
            "{psize}: allocate {allocate:.0} ns, free {free:.0} ns, commit {commit:.0} ns each"
        );
    }
    Ok(())
}

fn commit(space: &SpaceAllocator, txg: u64) -> Result<u64> {
    space.start_flush(txg, false)?;
    while space.next_flush()?.is_some() {}
    space.take_changes(txg)?;
    space.sync_done(txg, 0)?;
    Ok(txg + 1)
}

fn vdev() -> VdevSpec {
    VdevSpec {
        id: 0,
        class: Class::Normal,
        ashift: 12,
        metaslab_shift: METASLAB_SHIFT,
        align: SECTOR,
        width: 1,
        nparity: 0,
        deflate_ratio: 512,
        min_alloc: SECTOR,
        is_allocating: true,
    }
}
