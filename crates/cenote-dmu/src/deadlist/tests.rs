//! Deadlists against maps of births.

use std::collections::BTreeMap;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::{Kind, Rng};

use super::edit::*;
use crate::bpobj::edit::{self as bpobj, BpobjEntry};
use crate::bpobj::tests::{block, dsize, mos};
use crate::objects::model::Model;
use crate::space::Space;
use crate::zap::edit as zap;

/// The expected deadlist: its blocks by key.
type Wanted = BTreeMap<u64, Vec<BlockPtr>>;

fn sum<'a>(blocks: impl IntoIterator<Item = &'a BlockPtr>) -> Space {
    let mut sum = Space::default();
    blocks.into_iter().for_each(|bp| sum += Space::of(bp, dsize(bp)));
    sum
}

fn numbers(blocks: &[BlockPtr]) -> Vec<u64> {
    let mut numbers: Vec<u64> = blocks.iter().map(|bp| bp.words()[1]).collect();
    numbers.sort_unstable();
    numbers
}

fn check(model: &mut Model, object: u64, wanted: &Wanted) {
    let found = model.apply(|tx| keys(tx, object)).unwrap().unwrap();
    assert!(found.keys().eq(wanted.keys()));
    for (key, list) in found {
        let mut blocks = Vec::new();
        model
            .apply(|tx| {
                blocks.clear();
                bpobj::for_each(tx, list, &mut |bp| blocks.push(*bp))
            })
            .unwrap();
        assert_eq!(numbers(&blocks), numbers(&wanted[&key]), "key {key}");
        if model.apply(|tx| bpobj::is_shared(tx, list)).unwrap() {
            assert!(blocks.is_empty());
        }
    }
    let total = model.apply(|tx| space(tx, object)).unwrap();
    assert_eq!(total, sum(wanted.values().flatten()));
    let bounds: Vec<u64> = wanted.keys().copied().chain([u64::MAX]).collect();
    for pair in bounds.windows(3) {
        let range = model.apply(|tx| space_range(tx, object, pair[0], pair[2])).unwrap();
        let wanted = wanted.range(pair[0]..pair[2]).flat_map(|(_, blocks)| blocks);
        assert_eq!(range, sum(wanted));
    }
}

fn users_of_empty(model: &mut Model) -> u64 {
    model
        .apply(|tx| {
            let table = zap::require_u64(tx, 1, "features_for_write")?;
            Ok(zap::lookup_u64(tx, table, "com.delphix:empty_bpobj")?.unwrap_or(0))
        })
        .unwrap()
}

#[test]
fn deadlist_equals_a_map_by_birth() {
    for seed in 0..12 {
        let mut rng = Rng::seeded(seed);
        let mut model = Model::with_misses();
        let has_empty = seed % 3 != 0;
        mos(&mut model, has_empty);
        let before = model.object_numbers();
        let head = model.apply(|tx| create_with(tx, [0, 1])).unwrap();
        let (mut txg, mut number) = (5, 0);
        let mut wanted = Wanted::from([(0, vec![]), (1, vec![])]);
        let mut snapshots: Vec<(u64, Wanted)> = Vec::new();
        for _ in 0..60 {
            txg += 1 + rng.below(3);
            model.evict();
            match rng.below(6) {
                0..=2 => {
                    let blocks: Vec<BlockPtr> = (0..rng.below(40))
                        .map(|_| {
                            number += 1;
                            block(number, 1 + rng.below(txg - 1))
                        })
                        .collect();
                    let entries: Vec<BpobjEntry> =
                        blocks.iter().map(|bp| BpobjEntry::new(*bp, dsize(bp))).collect();
                    model.apply(|tx| insert_all(tx, head, &entries)).unwrap();
                    for bp in blocks {
                        let (_, list) = wanted.range_mut(..bp.birth()).next_back().unwrap();
                        list.push(bp);
                    }
                }
                3 => {
                    model.apply(|tx| add_key(tx, head, txg)).unwrap();
                    wanted.insert(txg, vec![]);
                    txg += 1;
                }
                4 if wanted.len() > 2 => {
                    let at = 1 + rng.below(wanted.len() as u64 - 1) as usize;
                    let key = *wanted.keys().nth(at).unwrap();
                    model.apply(|tx| remove_key(tx, head, key)).unwrap();
                    let moved = wanted.remove(&key).unwrap();
                    wanted.range_mut(..key).next_back().unwrap().1.extend(moved);
                }
                _ if snapshots.len() < 3 => {
                    // A second deadlist with some blocks, to be merged later.
                    let other = model.apply(|tx| clone_keys(tx, head, txg - 2)).unwrap();
                    let mut theirs: Wanted = wanted
                        .keys()
                        .filter(|key| **key < txg - 2)
                        .map(|key| (*key, vec![]))
                        .collect();
                    number += 1;
                    let bp = block(number, 1 + rng.below(txg - 1));
                    model.apply(|tx| insert(tx, other, &bp, dsize(&bp))).unwrap();
                    theirs.range_mut(..bp.birth()).next_back().unwrap().1.push(bp);
                    check(&mut model, other, &theirs);
                    snapshots.push((other, theirs));
                }
                _ => {
                    let (other, theirs) = snapshots.pop().unwrap();
                    model.apply(|tx| merge(tx, head, other, &dsize)).unwrap();
                    for (key, blocks) in theirs {
                        wanted.range_mut(..=key).next_back().unwrap().1.extend(blocks);
                    }
                }
            }
            check(&mut model, head, &wanted);
        }
        let target = model.apply(|tx| bpobj::create(tx, bpobj::BLOCK_SIZE, false)).unwrap();
        let min = *wanted.keys().nth(1).unwrap();
        let moved = wanted.split_off(&min);
        let space = model.apply(|tx| move_to(tx, head, target, min)).unwrap();
        assert_eq!(space, sum(moved.values().flatten()));
        assert_eq!(model.apply(|tx| bpobj::space(tx, target)).unwrap(), space);
        check(&mut model, head, &wanted);
        model.apply(|tx| bpobj::free(tx, target)).unwrap();
        for (other, _) in snapshots {
            model.apply(|tx| free(tx, other)).unwrap();
        }
        model.apply(|tx| free(tx, head)).unwrap();
        assert_eq!(users_of_empty(&mut model), 0);
        assert_eq!(model.object_numbers(), before, "nothing leaks");
    }
}

/// Example of spec 04 §10.2: keys 0, 1, 0x18, 0x19 share the empty bpobj until they get blocks.
#[test]
fn keys_as_in_a_real_pool() {
    let mut model = Model::default();
    mos(&mut model, true);
    let head = model.apply(|tx| create_with(tx, [0, 1, 0x18, 0x19])).unwrap();
    assert_eq!(users_of_empty(&mut model), 4);
    for (number, birth) in [(1, 18), (2, 25), (3, 25)] {
        let bp = block(number, birth);
        model.apply(|tx| insert(tx, head, &bp, dsize(&bp))).unwrap();
    }
    assert_eq!(users_of_empty(&mut model), 2);
    let found = model.apply(|tx| keys(tx, head)).unwrap().unwrap();
    let counts: Vec<u64> = found
        .values()
        .map(|list| model.apply(|tx| bpobj::header(tx, *list)).unwrap().num_blkptrs)
        .collect();
    assert_eq!(counts, [0, 1, 2, 0]);
    let clone = model.apply(|tx| clone_keys(tx, head, 0x19)).unwrap();
    let found = model.apply(|tx| keys(tx, clone)).unwrap().unwrap();
    assert!(found.keys().eq(&[0, 1, 0x18]));
    assert!(model.apply(|tx| zap::contains(tx, head, "18")).unwrap());
    // No block is born at or before the lowest key.
    let bp = block(9, 0);
    assert_eq!(model.apply(|tx| insert(tx, head, &bp, 1)).unwrap_err().kind(), Kind::Invariant);
}

#[test]
fn the_old_form_is_one_bpobj() {
    let mut model = Model::default();
    mos(&mut model, false);
    let old = model.apply(|tx| bpobj::create(tx, bpobj::BLOCK_SIZE, false)).unwrap();
    let blocks = [block(1, 3), block(2, 9)];
    for bp in &blocks {
        model.apply(|tx| insert(tx, old, bp, dsize(bp))).unwrap();
    }
    assert_eq!(model.apply(|tx| space(tx, old)).unwrap(), sum(&blocks));
    assert_eq!(model.apply(|tx| clone_keys(tx, old, 9)).unwrap_err().kind(), Kind::Unsupported);
    let head = model.apply(|tx| create_with(tx, [0, 5])).unwrap();
    model.apply(|tx| merge(tx, head, old, &dsize)).unwrap();
    check(&mut model, head, &Wanted::from([(0, vec![blocks[0]]), (5, vec![blocks[1]])]));
    assert!(!model.object_numbers().contains(&old));
}
