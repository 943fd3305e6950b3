//! Writable object sets on a real block store and allocator in memory: compared with a model,
//! walked by an independent checker after every txg, and read back.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod accounting;
mod bench;
mod cases;
mod edits;
mod model;
mod parts;
mod walk;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_codec::crypto::Suite;
use cenote_dmu::ObjSet;
use cenote_dmu::live::Live;
use cenote_ondisk::objset::ObjSetType;
use cenote_rt::Rng;
use cenote_testkit::shrink::{play, steps};

use bench::{Bench, Layout};
use model::Model;
use walk::{Walk, walk_with};

/// Txg of the last change of each block: by object, its generation and its blocks.
type Changed = BTreeMap<u64, (u64, BTreeMap<u64, u64>)>;

/// Records the differences between `before` and `after`.
fn note_changes(changed: &mut Changed, before: &Model, after: &Model, txg: u64) {
    changed.retain(|object, _| after.objects.contains_key(object));
    for (object, state) in &after.objects {
        let entry = changed.entry(*object).or_default();
        if entry.0 != state.generation {
            *entry = (state.generation, BTreeMap::new());
        }
        let old = before.objects.get(object).filter(|old| old.generation == state.generation);
        let old = old.map(model::Object::blocks).unwrap_or_default();
        let new = state.blocks();
        for blkid in old.keys().chain(new.keys()) {
            if old.get(blkid) != new.get(blkid) {
                entry.1.insert(*blkid, txg);
            }
        }
    }
}

/// Checks that no hole birth is lost: a block's birth, as a send sees it, is not older than its
/// last change.
fn check_births(walk: &Walk, changed: &Changed, txg: u64) {
    for (object, (_, blocks)) in changed {
        let births = &walk.births[object];
        for (blkid, since) in blocks {
            let found = births.iter().find(|(first, last, _)| (first..=last).contains(&blkid));
            let birth = found.map_or(0, |(.., birth)| *birth);
            assert!(birth >= *since, "object {object} block {blkid}: {birth} < {since} in {txg}");
        }
    }
}

async fn check(bench: &Bench, live: &Live, model: &Model, changed: &Changed, txg: u64) -> Walk {
    let store = bench.store.clone();
    let set = ObjSet::open(store, &live.root(), bench.keys(), live.id()).await.unwrap();
    model::compare(&set, model).await;
    let walk = walk_with(&set, txg, bench.keys()).await;
    check_locked(bench, &set).await;
    check_births(&walk, changed, txg);
    bench.check_alive(&walk.blocks, &format!("txg {txg}"));
    walk
}

/// Without its keys an encrypted set has the same objects, and its MACs are verified up to the
/// blocks of dnodes.
async fn check_locked(bench: &Bench, set: &Arc<ObjSet>) {
    if bench.keys().is_none() {
        return;
    }
    bench.store.clear_cache();
    let store = bench.store.clone();
    let locked = ObjSet::open(store, set.root(), None, set.id()).await.unwrap();
    assert!(locked.is_locked());
    let (mut with, mut without) = (set.dnodes(0), locked.dnodes(0));
    while let Some(found) = with.next().await {
        let (found, same) = (found.unwrap(), without.next().await.unwrap().unwrap());
        assert_eq!(found.object(), same.object());
        assert_eq!(found.phys().blkptrs, same.phys().blkptrs);
        let is_hidden = found.phys().bonus_type.is_encrypted() && found.phys().bonus_len > 0;
        assert_eq!(found.phys().bonus() != same.phys().bonus(), is_hidden);
    }
    assert!(without.next().await.is_none());
}

async fn reopen(bench: &Bench, live: &Live) -> Arc<Live> {
    let store = bench.store.clone();
    let set = ObjSet::open(store, &live.root(), bench.keys(), live.id()).await.unwrap();
    Live::open(bench.blocks(), &set).unwrap()
}

/// Splits a history into txgs of `every` steps on average.
fn txgs(steps: &[u64], every: u64) -> impl Iterator<Item = &[u64]> {
    steps.split_inclusive(move |step| step.is_multiple_of(every))
}

/// Random numbers for the events around the steps of a txg.
fn around(steps: &[u64]) -> Rng {
    Rng::seeded(steps.last().map_or(0, |step| !step))
}

/// A set whose txgs overlap: changes continue in the next txg while one is being synced.
async fn overlapping(bench: Bench, seed: u64, steps: &[u64]) {
    let mut live = Live::create(bench.blocks(), 54, ObjSetType::Zvol);
    let (mut model, mut before, mut changed) = (Model::default(), Model::default(), Changed::new());
    let mut parts = txgs(steps, 20);
    let mut txg = 4;
    model::change(&live, txg, &mut model, parts.next().unwrap_or_default()).await;
    let (mut holes, mut deepest) = (0, 0);
    while let Some(part) = parts.next() {
        let mut rng = around(part);
        bench.set_misses([0, 0, 10, 40][rng.below(4) as usize]);
        if rng.below(4) == 0 {
            bench.store.clear_cache();
        }
        let at_end = model.clone();
        let (first, rest) = part.split_at(part.len() * 3 / 4);
        model::change(&live, txg + 1, &mut model, first).await;
        let changing = model::change(&live, txg + 1, &mut model, rest);
        futures_util::future::join(bench.pass(&live, txg, 1, None), changing).await;
        bench.commit(&live, txg);
        note_changes(&mut changed, &before, &at_end, txg);
        let walk = check(&bench, &live, &at_end, &changed, txg).await;
        (holes, deepest) = (holes + walk.holes_with_birth, deepest.max(walk.deepest));
        before = at_end;
        txg += 1;
        if rng.below(10) == 0 && !live.is_dirty(txg) {
            live = reopen(&bench, &live).await;
        } else if rng.below(10) == 0 {
            bench.sync(&live, txg).await;
            note_changes(&mut changed, &before, &model, txg);
            check(&bench, &live, &model, &changed, txg).await;
            live = reopen(&bench, &live).await;
            before = model.clone();
            txg += 1;
            model::change(&live, txg, &mut model, parts.next().unwrap_or_default()).await;
        }
    }
    println!("seed {seed:#x}: {holes} holes with births, {deepest} levels of indirect blocks");
}

#[test]
fn sets_with_overlapping_txgs_equal_the_model() {
    let mut rng = cenote_testkit::rng::seeded("overlapping", 0x11fe);
    let layouts = [
        Layout::Single { ashift: 9 },
        Layout::Single { ashift: 12 },
        Layout::RaidZ { ashift: 9, width: 4 },
    ];
    for case in 0..cenote_testkit::rng::cases(3, 60) {
        let layout = layouts[case as usize % 3];
        let seed = rng.next_u64();
        play(steps(seed, 500), |steps| {
            cenote_rt::block_on(2, overlapping(Bench::new(layout, seed), seed, steps)).unwrap();
        });
    }
}

#[test]
fn encrypted_sets_equal_the_model() {
    let mut rng = cenote_testkit::rng::seeded("encrypted", 0xc4e9);
    let layouts = [Layout::Single { ashift: 12 }, Layout::RaidZ { ashift: 9, width: 4 }];
    for case in 0..cenote_testkit::rng::cases(2, 24) {
        let layout = layouts[case as usize % 2];
        let suite = [Suite::Aes256Gcm, Suite::Aes192Ccm, Suite::Aes128Gcm][case as usize % 3];
        let seed = rng.next_u64();
        play(steps(seed, 300), |steps| {
            let bench = Bench::encrypted(layout, seed, suite);
            cenote_rt::block_on(2, overlapping(bench, seed, steps)).unwrap();
        });
    }
}

/// A MOS: changed between the passes of a txg, which rewrite its blocks in place.
async fn passes(layout: Layout, seed: u64, steps: &[u64]) -> u64 {
    let mut bench = Bench::new(layout, seed);
    bench.policies.0 = cenote_block::policy::DatasetPolicy::MOS;
    let mut live = Live::create(bench.blocks(), 0, ObjSetType::Meta);
    let (mut model, mut changed) = (Model::default(), Changed::new());
    for (part, txg) in txgs(steps, 20).zip(4..) {
        let mut rng = around(part);
        bench.set_misses([0, 20][rng.below(2) as usize]);
        let before = model.clone();
        for (ops, pass) in part.chunks(4).zip(1..) {
            model::change(&live, txg, &mut model, ops).await;
            bench.pass(&live, txg, pass, None).await;
        }
        bench.commit(&live, txg);
        note_changes(&mut changed, &before, &model, txg);
        check(&bench, &live, &model, &changed, txg).await;
        if rng.below(8) == 0 {
            live = reopen(&bench, &live).await;
        }
    }
    bench.how("in place")
}

#[test]
fn passes_of_one_txg_rewrite_in_place() {
    let mut rng = cenote_testkit::rng::seeded("passes", 0x9a55);
    let in_place = AtomicU64::new(0);
    for case in 0..cenote_testkit::rng::cases(2, 40) {
        let layout = [Layout::Single { ashift: 12 }, Layout::RaidZ { ashift: 12, width: 3 }];
        let (layout, seed) = (layout[case as usize % 2], rng.next_u64());
        play(steps(seed, 240), |steps| {
            let count = cenote_rt::block_on(2, passes(layout, seed, steps)).unwrap();
            in_place.fetch_add(count, Ordering::Relaxed);
        });
    }
    let in_place = in_place.into_inner();
    assert!(in_place > 50, "{in_place} blocks were written in place");
}
