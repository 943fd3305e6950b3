use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cenote_ondisk::config::{RaidZ, VdevConfig, VdevKind as ConfigKind};
use cenote_rt::{Buf, Rng, seeded, simulate};

use super::*;
use crate::bench::{BIRTH, Bench, leaves, top, vdev};
use crate::{IoClass, Place, TxgRanges};

const ASHIFT: u32 = 12;
/// Bytes of each old child that the tests use.
const CHILD_LEN: u64 = 11 << 20;

fn expanding(width: u64, nparity: u64) -> VdevConfig {
    let kind = RaidZ { nparity, expanding: true, expand_txgs: Vec::new() };
    top(vdev(ConfigKind::RaidZ(kind), 0, 2, leaves(width)), ASHIFT.into())
}

/// A vdev that expands, and what its blocks hold.
struct Moving {
    bench: Bench,
    blocks: BTreeMap<u64, Vec<u8>>,
    rng: Rng,
    width: u64,
    end: u64,
}

impl Moving {
    async fn new(width: u64, nparity: u64, seed: u64) -> Self {
        let bench = Bench::new(expanding(width, nparity));
        let (blocks, rng, end) = (BTreeMap::new(), Rng::seeded(seed), (width - 1) * CHILD_LEN);
        let mut moving = Self { bench, blocks, rng, width, end };
        let mut offset = 0;
        while offset < end - (1 << 20) {
            let psize = (1 + moving.rng.below(24)) << ASHIFT;
            moving.put(offset, psize as usize).await;
            let asize = moving.bench.tree.asize_for(0, psize, BIRTH).unwrap();
            let gap = if moving.rng.below(4) == 0 { 0 } else { moving.rng.below(160) };
            offset += asize + (gap << ASHIFT);
        }
        moving
    }

    async fn put(&mut self, offset: u64, psize: usize) {
        let mut data = vec![0; psize];
        self.rng.fill(&mut data);
        put(&self.bench.tree, offset, &data).await;
        self.blocks.insert(offset, data);
    }

    /// Writes some blocks of a range anew.
    async fn rewrite(&mut self, range: Range<u64>, count: u64) {
        let there: Vec<_> = self.blocks.range(range).map(|(at, data)| (*at, data.len())).collect();
        for _ in 0..count.min(there.len() as u64) {
            let (offset, psize) = there[self.rng.below(there.len() as u64) as usize];
            self.put(offset, psize).await;
        }
    }

    async fn check(&self, what: &str) {
        for (offset, data) in &self.blocks {
            let place = Place { vdev: 0, offset: *offset };
            let same = |read: &[u8]| read == data;
            let read = self.bench.tree.scrub(place, data.len() as u64, BIRTH, &same).await;
            let read = read.unwrap();
            assert!(read.good.is_some() && read.bad.is_empty(), "{what}: {offset:#x}: {read:?}");
        }
    }

    async fn move_first_rows(&mut self) {
        let tree = Arc::clone(&self.bench.tree);
        let len = tree.expansion().first_rows_len(0).unwrap();
        let held = tree.expansion().hold(0, 0..len, true).await.unwrap();
        let rows = tree.expansion().read_first_rows(0).await.unwrap();
        tree.expansion().write_scratch(&rows).await.unwrap();
        tree.expansion().set_progress(1 << 55 | len >> 9);
        drop(held);
        self.check("in the boot areas").await;
        let (again, lacking) = tree.expansion().read_scratch(0).await.unwrap();
        assert!(lacking.is_empty());
        assert!(tree.expansion().write_first_rows(&again, BIRTH).await.is_empty());
        tree.expansion().set_progress(2 << 55 | len >> 9);
        self.check("behind the first rows").await;
    }

    /// Copies one part; returns its end.
    async fn copy_part(&mut self) -> u64 {
        let tree = Arc::clone(&self.bench.tree);
        let Reflow { offset, next, .. } = tree.reflow();
        let limit = copy_limit(offset, ASHIFT, self.width - 1).min(self.end);
        let to = limit.min(next + ((1 + self.rng.below(600)) << ASHIFT));
        let held = tree.expansion().hold(0, next..to, false).await.unwrap();
        tree.expansion().copy(0, next..to, BIRTH).await.unwrap();
        held.note_copied();
        to
    }
}

async fn put(tree: &Tree, offset: u64, data: &[u8]) {
    let place = Place { vdev: 0, offset };
    let written = tree.write(place, Buf::from(data.to_vec()), BIRTH, IoClass::AsyncWrite).await;
    assert!(!written.unwrap().is_degraded);
}

/// All sectors move, part by part, while blocks before, at and behind the progress are written.
async fn everything_moves((width, nparity): (u64, u64), seed: u64) {
    let mut moving = Moving::new(width, nparity, seed).await;
    moving.check("at the beginning").await;
    moving.move_first_rows().await;
    let mut round = 0;
    loop {
        let reflow = moving.bench.tree.reflow();
        if reflow.offset >= moving.end {
            break;
        }
        let limit = copy_limit(reflow.offset, ASHIFT, width - 1).min(moving.end);
        while moving.bench.tree.reflow().next < limit {
            let to = moving.copy_part().await;
            let around = to.saturating_sub(1 << 20)..to + (1 << 20);
            moving.rewrite(around, 6).await;
            moving.rewrite(0..moving.end, 2).await;
            if moving.rng.below(12) == 0 {
                break;
            }
        }
        if moving.rng.below(6) == 0 {
            // A copy failed.
            moving.bench.tree.expansion().retry();
            moving.rewrite(reflow.offset..limit, 4).await;
        }
        let to = moving.bench.tree.reflow().next;
        if round % 4 == 0 {
            moving.check(&format!("width {width}, seed {seed}, copied up to {to:#x}")).await;
        }
        moving.bench.tree.expansion().set_progress(4 << 55 | to >> 9);
        round += 1;
        if round % 4 == 0 {
            moving.check(&format!("width {width}, seed {seed}, behind {to:#x}")).await;
        }
    }
    moving.check(&format!("width {width}, seed {seed}, at the end")).await;
}

#[test]
fn blocks_are_read_and_written_while_sectors_move() {
    for (seed, geometry) in (0..).zip([(4, 1), (3, 1), (5, 2), (6, 3)]) {
        simulate(seed, everything_moves(geometry, seed)).unwrap();
    }
}

/// A write of a range waits for its copy, a read does not, and a copy waits for writes before it.
async fn write_waits_for_a_copy() {
    let mut moving = Moving::new(4, 1, 7).await;
    moving.move_first_rows().await;
    let tree = Arc::clone(&moving.bench.tree);
    let Reflow { next, .. } = tree.reflow();
    let to = next + (2 << 20);
    let found = moving.blocks.range(next..to).next().map(|(at, data)| (*at, data.clone()));
    let (offset, old) = found.expect("a block there");
    let held = tree.expansion().hold(0, next..to, false).await.unwrap();
    let (writer, new) = (Arc::clone(&tree), vec![7; old.len()]);
    let data = new.clone();
    let writing = cenote_rt::spawn(async move { put(&writer, offset, &data).await });
    for _ in 0..100 {
        cenote_rt::yield_now().await;
    }
    assert!(!writing.is_finished(), "a write passes a copy");
    moving.check("during a copy").await;
    tree.expansion().copy(0, next..to, BIRTH).await.unwrap();
    held.note_copied();
    drop(held);
    writing.await.unwrap();
    moving.blocks.insert(offset, new);
    moving.check("before the progress is recorded").await;
    tree.expansion().set_progress(4 << 55 | to >> 9);
    moving.check("after it").await;
    // Tickets of an earlier state keep a copy waiting.
    let ticket = tree.enter(Place { vdev: 0, offset: to }, 4096, BIRTH, false).await;
    let copier = Arc::clone(&tree);
    let holding = cenote_rt::spawn(async move {
        drop(copier.expansion().hold(0, to..to + 4096, false).await.unwrap());
    });
    for _ in 0..100 {
        cenote_rt::yield_now().await;
    }
    assert!(!holding.is_finished(), "a copy passes a read");
    drop(ticket);
    holding.await.unwrap();
}

#[test]
fn copies_and_writes_wait_for_each_other() {
    simulate(1, write_waits_for_a_copy()).unwrap();
}

/// Nothing is copied over sectors that are in use, and from a child that lacks something.
#[test]
fn impossible_copies_are_refused() {
    simulate(1, async {
        let mut moving = Moving::new(4, 1, 3).await;
        moving.move_first_rows().await;
        let tree = Arc::clone(&moving.bench.tree);
        let Reflow { offset, .. } = tree.reflow();
        let limit = copy_limit(offset, ASHIFT, 3);
        assert_eq!(limit >> ASHIFT, (offset >> ASHIFT) + (offset >> ASHIFT) / 3 - 3);
        let refused = tree.expansion().copy(0, offset..limit + 4096, BIRTH).await.unwrap_err();
        assert!(matches!(refused.cause(), Some(ReflowError::Overlap { .. })), "{refused:?}");
        let refused = tree.expansion().copy(0, offset..limit, BIRTH).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invariant, "nothing is held");
        let held = tree.expansion().hold(0, offset..limit, false).await.unwrap();
        tree.leaf(LeafId(1)).note_missing(&TxgRanges::of(BIRTH));
        let refused = tree.expansion().copy(0, offset..limit, BIRTH).await.unwrap_err();
        assert_eq!(refused.cause(), Some(&ReflowError::NotWhole(0)));
        assert!(held.children().is_err());
        let second = tree.expansion().hold(0, offset..limit, false).await.unwrap_err();
        assert_eq!(second.kind(), Kind::Invariant);
        assert_eq!(tree.expansion().first_rows_len(1).unwrap_err().kind(), Kind::Invalid);
    })
    .unwrap();
}

#[test]
fn mistakes_are_found() {
    let fails = |bug: Bug| {
        let run = AssertUnwindSafe(|| {
            simulate(1, async {
                seeded::set(Some(bug));
                match bug {
                    Bug::ReflowCopiesBesideWrites => write_waits_for_a_copy().await,
                    _ => everything_moves((4, 1), 1).await,
                }
            })
        });
        catch_unwind(run).is_err()
    };
    let unfound: Vec<_> = Bug::OF_COPIES.into_iter().filter(|bug| !fails(*bug)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
