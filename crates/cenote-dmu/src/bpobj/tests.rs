//! Bpobjs against lists: random appends, nesting and takes.

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_ondisk::bpobj::BpobjForm;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Kind, Rng};

use super::edit::*;
use crate::live::ObjectSpec;
use crate::objects::model::Model;
use crate::space::Space;
use crate::zap::edit::{self as zap, ZapOptions};

/// A plain data block born in `birth` and identified by `number`.
pub(crate) fn block(number: u64, birth: u64) -> BlockPtr {
    let dva = Dva { vdev: 0, offset: number * 512, asize: 1024, gang: false };
    let mut words = [0; 16];
    words[..2].copy_from_slice(&dva.to_words().unwrap());
    // Little-endian, plain file, level 0, fletcher4, lz4, 512 bytes of 1024.
    words[6] = 1 << 63 | 19 << 48 | 7 << 40 | 15 << 32 | 1;
    words[10] = birth;
    words[11] = 1;
    words[12..].fill(number);
    BlockPtr::from_words(words)
}

pub(crate) fn dsize(bp: &BlockPtr) -> u64 {
    bp.asize_total()
}

/// A MOS with a pool directory and the relevant features.
pub(crate) fn mos(model: &mut Model, has_empty: bool) {
    let spec = ObjectSpec::new(ObjectType::OBJECT_DIRECTORY, 512).with_number(1);
    model
        .apply(|tx| {
            zap::create(tx, &spec, ZapOptions::default())?;
            let spec = ObjectSpec::new(ObjectType::ZAP_METADATA, 512);
            let features = zap::create(tx, &spec, ZapOptions::default())?;
            zap::insert(tx, 1, "features_for_write", features)?;
            if has_empty {
                zap::insert(tx, features, "com.delphix:empty_bpobj", 0)?;
            }
            Ok(())
        })
        .unwrap();
}

fn listed(model: &mut Model, object: u64) -> Vec<BlockPtr> {
    let mut found = Vec::new();
    model
        .apply(|tx| {
            found.clear();
            for_each(tx, object, &mut |bp| found.push(*bp))
        })
        .unwrap();
    found
}

fn sum(blocks: &[BlockPtr]) -> Space {
    let mut sum = Space::default();
    for bp in blocks {
        sum += Space::of(bp, dsize(bp));
    }
    sum
}

#[test]
fn forms_and_normal_form() {
    let mut model = Model::default();
    for (has_freed, form, len) in [(false, BpobjForm::Nested, 48), (true, BpobjForm::Freed, 56)] {
        let object = model.apply(|tx| create(tx, BLOCK_SIZE, has_freed)).unwrap();
        let dnode = model.apply(|tx| tx.dnode(object)).unwrap();
        assert_eq!((dnode.bonus_len, dnode.bonus_type), (len, ObjectType::BPOBJ_HDR));
        let bp = block(3, 9);
        model
            .apply(|tx| {
                let entry = BpobjEntry::new(bp, 1024);
                append(tx, object, &[entry, entry, BpobjEntry { is_free: true, ..entry }])
            })
            .unwrap();
        let phys = model.apply(|tx| header(tx, object)).unwrap();
        assert_eq!((phys.form, phys.num_blkptrs), (form, 3));
        assert_eq!((phys.bytes, phys.comp, phys.uncomp), (1024, 512, 1024));
        assert_eq!(phys.num_freed, u64::from(has_freed));
        let stored = listed(&mut model, object);
        assert_eq!(stored[2].words()[..11], bp.words()[..11]);
        assert_eq!(stored[2].words()[11..], [0; 5]);
        assert_eq!(stored[0].words()[11], 1);
    }
}

#[test]
fn sums_of_bpobj_entries() {
    let mut words = *block(1, 2).words();
    assert_eq!(Space::of(&block(1, 2), 9), Space { used: 9, comp: 512, uncomp: 1024 });
    words[6] |= 1 << 56;
    let indirect = BlockPtr::from_words(words);
    assert_eq!(Space::of(&indirect, 9), Space { used: 9, comp: 512, uncomp: 512 });
    let embedded = |kind: u64| {
        BlockPtr::from_words({
            let mut words = [0; 16];
            words[6] = 1 << 63 | kind << 48 | 1 << 39 | 9 << 25 | 0x63;
            words
        })
    };
    assert_eq!(Space::of(&embedded(19), 0), Space { used: 0, comp: 0, uncomp: 100 });
    assert_eq!(Space::of(&embedded(20), 0), Space::default());
    assert_eq!(Space::of(&BlockPtr::HOLE, 0), Space::default());
}

/// Bpobjs of several sizes, with small blocks so that lists move and nest in all ways.
#[test]
fn nested_bpobjs_equal_a_list() {
    for seed in 0..20 {
        let mut rng = Rng::seeded(seed);
        let mut model = Model::with_misses();
        mos(&mut model, seed % 2 == 0);
        let objects_before = model.object_numbers();
        let mut number = 0;
        let mut all: Vec<(u64, Vec<BlockPtr>)> = Vec::new();
        for _ in 0..120 {
            if all.len() < 3 {
                let object = model.apply(|tx| create(tx, 1024, false)).unwrap();
                all.push((object, Vec::new()));
                continue;
            }
            model.evict();
            let index = rng.below(all.len() as u64) as usize;
            match rng.below(4) {
                0 | 1 => {
                    let fresh: Vec<BlockPtr> = (0..rng.below(14))
                        .map(|_| {
                            number += 1;
                            block(number, 5)
                        })
                        .collect();
                    let (object, list) = &mut all[index];
                    let entries: Vec<BpobjEntry> =
                        fresh.iter().map(|bp| BpobjEntry::new(*bp, dsize(bp))).collect();
                    model.apply(|tx| append(tx, *object, &entries)).unwrap();
                    list.extend(fresh);
                }
                2 => {
                    let (child, mut part) = all.swap_remove(index);
                    let other = rng.below(all.len() as u64) as usize;
                    let (object, list) = &mut all[other];
                    model.apply(|tx| append_all(tx, *object, child)).unwrap();
                    list.append(&mut part);
                }
                _ => {
                    let (object, list) = &mut all[index];
                    let max = rng.below(30) as usize;
                    let taken = model.apply(|tx| take(tx, *object, max, &dsize)).unwrap();
                    assert_eq!(taken.blocks.len(), max.min(list.len()));
                    assert_eq!(taken.space, sum(&taken.blocks));
                    for bp in &taken.blocks {
                        let at = list
                            .iter()
                            .position(|other| {
                                other.birth() == bp.birth() && other.dva(0) == bp.dva(0)
                            })
                            .unwrap();
                        list.swap_remove(at);
                    }
                    assert!(!taken.is_empty || list.is_empty());
                }
            }
            for (object, list) in &all {
                let mut found: Vec<_> =
                    listed(&mut model, *object).iter().map(|bp| bp.dva(0)).collect();
                let mut wanted: Vec<_> = list.iter().map(|bp| bp.dva(0)).collect();
                found.sort_unstable();
                wanted.sort_unstable();
                assert_eq!(found, wanted);
                assert_eq!(model.apply(|tx| space(tx, *object)).unwrap(), sum(list));
            }
        }
        for (object, list) in all {
            let taken = model.apply(|tx| take(tx, object, usize::MAX, &dsize)).unwrap();
            assert_eq!(taken.blocks.len(), list.len());
            assert!(taken.is_empty && model.apply(|tx| is_empty(tx, object)).unwrap());
            assert_eq!(model.block_numbers(object), [0_u64; 0]);
            model.apply(|tx| free(tx, object)).unwrap();
        }
        assert_eq!(model.object_numbers(), objects_before, "nothing leaks");
    }
}

#[test]
fn taking_goes_backwards_and_depth_first() {
    let mut model = Model::default();
    mos(&mut model, false);
    let fill = |model: &mut Model, range: std::ops::Range<u64>| {
        let object = model.apply(|tx| create(tx, 1024, false)).unwrap();
        let entries: Vec<BpobjEntry> =
            range.map(|number| BpobjEntry::new(block(number, 1), 1024)).collect();
        model.apply(|tx| append(tx, object, &entries)).unwrap();
        object
    };
    // Nine entries do not fit into a block of eight, so they are linked as a sub-list.
    let (parent, first, second) =
        (fill(&mut model, 0..3), fill(&mut model, 10..19), fill(&mut model, 20..29));
    model.apply(|tx| append_all(tx, parent, first)).unwrap();
    model.apply(|tx| append_all(tx, parent, second)).unwrap();
    let order: Vec<u64> = listed(&mut model, parent).iter().map(|bp| bp.words()[1]).collect();
    let wanted: Vec<u64> = (0..3).rev().chain((20..29).rev()).chain((10..19).rev()).collect();
    assert_eq!(order, wanted);
    let taken = model.apply(|tx| take(tx, parent, 5, &dsize)).unwrap();
    assert_eq!(taken.blocks.iter().map(|bp| bp.words()[1]).collect::<Vec<_>>(), wanted[..5]);
    let order: Vec<u64> = listed(&mut model, parent).iter().map(|bp| bp.words()[1]).collect();
    assert_eq!(order, wanted[5..]);
    model.apply(|tx| free(tx, parent)).unwrap();
    assert_eq!(model.object_numbers().len(), 2);
}

#[test]
fn empty_bpobj_feature_counts_references() {
    let mut model = Model::with_misses();
    mos(&mut model, true);
    let count = |model: &mut Model| {
        model
            .apply(|tx| {
                let table = zap::require_u64(tx, 1, "features_for_write")?;
                zap::require_u64(tx, table, "com.delphix:empty_bpobj")
            })
            .unwrap()
    };
    let one = model.apply(|tx| acquire_empty(tx, 1)).unwrap()[0];
    let two = model.apply(|tx| acquire_empty(tx, 1)).unwrap()[0];
    assert_eq!((one, count(&mut model)), (two, 2));
    assert!(model.apply(|tx| is_shared(tx, one)).unwrap());
    let parent = model.apply(|tx| create(tx, BLOCK_SIZE, false)).unwrap();
    model.apply(|tx| append_all(tx, parent, one)).unwrap();
    assert_eq!(count(&mut model), 1);
    model.apply(|tx| release(tx, two)).unwrap();
    assert_eq!(count(&mut model), 0);
    assert_eq!(model.apply(|tx| zap::lookup(tx, 1, "empty_bpobj")).unwrap(), None);
    assert!(!model.object_numbers().contains(&one));
    let again = model.apply(|tx| release_empty(tx, 1));
    assert_eq!(again.unwrap_err().kind(), Kind::Invariant);
}

#[test]
fn a_bpobj_within_itself_is_found() {
    let mut model = Model::with_misses();
    mos(&mut model, true);
    let object = model.apply(|tx| create(tx, BLOCK_SIZE, false)).unwrap();
    let entry = BpobjEntry::new(block(1, 5), 1024);
    model.apply(|tx| append(tx, object, &[entry])).unwrap();
    let nested = model.apply(|tx| append_all(tx, object, object));
    assert_eq!(nested.unwrap_err().kind(), Kind::Invariant);
    // The shared empty bpobj has no reference left.
    assert_eq!(model.apply(release_empty_of).unwrap_err().kind(), Kind::Invariant);
}

fn release_empty_of(tx: &mut dyn crate::objects::Objects) -> crate::live::TxResult<()> {
    release_empty(tx, 1)
}
