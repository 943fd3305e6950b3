//! Changes in parts: like one change after the other, but all of them or none.

use std::cell::Cell;
use std::sync::Arc;

use cenote_dmu::live::{Live, LiveError, ObjectSpec};
use cenote_dmu::{ObjSet, Tx, TxResult};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_rt::{Error, Kind, Rng};
use futures_util::future::join;

use crate::bench::{Bench, Layout};

const FILE: ObjectType = ObjectType::PLAIN_FILE_CONTENTS;
const BLOCK: u64 = 4096;
/// Blocks of each object.
const BLOCKS: u64 = 3;

fn run(test: impl AsyncFnOnce(Bench) + Send + 'static) {
    cenote_rt::block_on(2, async move {
        test(Bench::new(Layout::Single { ashift: 9 }, 7)).await;
    })
    .unwrap();
}

/// A set with this many objects on disk, of which nothing is cached.
async fn with_objects(bench: &Bench, count: usize) -> (Arc<Live>, Vec<u64>) {
    let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
    let mut objects = Vec::new();
    for number in 0..count {
        let spec = ObjectSpec::new(FILE, BLOCK);
        let object = live.apply(4, |tx| tx.allocate(&spec)).await.unwrap();
        let bytes = vec![number as u8; (BLOCKS * BLOCK) as usize];
        live.apply(4, |tx| tx.write(object, 0, &bytes)).await.unwrap();
        objects.push(object);
    }
    bench.sync(&live, 4).await;
    let set = ObjSet::open(bench.store.clone(), &live.root(), None, 54).await.unwrap();
    bench.store.clear_cache();
    (Live::open(bench.blocks(), &set).unwrap(), objects)
}

/// What a part does: a few changes of some of the objects, and a new one.
fn change(tx: &mut Tx<'_>, objects: &[u64], mut rng: Rng) -> TxResult<u64> {
    for _ in 0..rng.below(6) {
        let object = objects[rng.below(objects.len() as u64) as usize];
        let at = rng.below(BLOCKS * BLOCK);
        match rng.below(8) {
            0 if tx.find(object)?.is_some() => tx.free(object)?,
            _ if tx.find(object)?.is_none() => {}
            1 => tx.free_range(object, at, Some(rng.below(2 * BLOCK)))?,
            2 => tx.write(object, at, &vec![rng.below(256) as u8; BLOCK as usize])?,
            _ => tx.write(object, at, &[rng.below(256) as u8; 5])?,
        }
    }
    tx.allocate(&ObjectSpec::new(FILE, BLOCK))
}

async fn contents(live: &Live, objects: &[u64]) -> Vec<Option<Vec<u8>>> {
    let mut contents = Vec::new();
    for object in objects {
        let read = live.inspect(|tx| match tx.find(*object)? {
            Some(_) => tx.read(*object, 0, (2 * BLOCKS * BLOCK) as usize).map(Some),
            None => Ok(None),
        });
        contents.push(read.await.unwrap());
    }
    contents
}

#[test]
fn parts_do_what_single_changes_do() {
    let mut rng = cenote_testkit::rng::seeded("parts", 0x7061_7274);
    for case in 0..cenote_testkit::rng::cases(20, 400) {
        let (seed, misses) = (rng.next_u64(), [0, 30, 100][case as usize % 3]);
        run(async move |bench| {
            let mut rng = Rng::seeded(seed);
            let other = Bench::new(Layout::Single { ashift: 9 }, 7);
            let (whole, objects) = with_objects(&bench, 40).await;
            let (single, _) = with_objects(&other, 40).await;
            bench.set_misses(misses);
            for txg in 5..7 {
                let parts = 1 + rng.below(60) as usize;
                let seeds: Vec<u64> = (0..parts).map(|_| rng.next_u64()).collect();
                let part =
                    |tx: &mut Tx<'_>, part: usize| change(tx, &objects, Rng::seeded(seeds[part]));
                // Something is in the layer of the txg already.
                for live in [&whole, &single] {
                    live.apply(txg, |tx| part(tx, 0)).await.unwrap();
                }
                let numbers = whole.apply_parts(txg, parts, part).await.unwrap();
                for (at, number) in numbers.into_iter().enumerate() {
                    assert_eq!(single.apply(txg, |tx| part(tx, at)).await.unwrap(), number);
                }
                let all: Vec<u64> = (1..200).collect();
                assert!(contents(&whole, &all).await == contents(&single, &all).await, "{seed}");
                assert_eq!(whole.dirty_bytes(txg), single.dirty_bytes(txg));
                bench.sync(&whole, txg).await;
                other.sync(&single, txg).await;
                assert!(contents(&whole, &all).await == contents(&single, &all).await, "{seed}");
            }
        });
    }
}

#[test]
fn a_part_that_fails_takes_the_others_with_it() {
    run(async |bench| {
        let (live, objects) = with_objects(&bench, 100).await;
        let before = contents(&live, &objects).await;
        let failed = live.apply_parts(5, 100, |tx, part| {
            tx.write(objects[part], 9, &[1; 9])?;
            if part < 77 {
                Ok(())
            } else {
                Err(Error::new(Kind::NoSpace, LiveError::NoNumber).into())
            }
        });
        assert_eq!(failed.await.unwrap_err().kind(), Kind::NoSpace);
        assert!(!live.has_changes());
        assert!(contents(&live, &objects).await == before);
    });
}

/// Each part is run for each block that it needs, and not for those that others need.
#[test]
fn a_thousand_parts_take_time_in_proportion() {
    run(async |bench| {
        let (live, objects) = with_objects(&bench, 1000).await;
        bench.set_misses(100);
        let calls = Cell::new(0_u64);
        let count = objects.len();
        live.apply_parts(5, count, |tx, part| {
            calls.set(calls.get() + 1);
            tx.write(objects[part], 9, &[1; 9])
        })
        .await
        .unwrap();
        // Two levels above the dnodes, a block of dnodes, and the block that is changed; and once
        // more, above the parts before it.
        let calls = calls.get();
        assert!(calls <= 8 * 1000, "{calls} calls");
        assert!(
            contents(&live, &objects).await.iter().flatten().all(|bytes| bytes[9..18] == [1; 9])
        );
    });
}

#[test]
fn changes_of_others_are_kept() {
    run(async |bench| {
        let (live, objects) = with_objects(&bench, 100).await;
        bench.set_misses(100);
        let calls = Cell::new(0_u64);
        let parts = live.apply_parts(5, 100, |tx, part| {
            calls.set(calls.get() + 1);
            // What the others wrote is seen.
            let count = tx.read(objects[0], 0, 1)?;
            tx.write(objects[part], BLOCK, &count)
        });
        let others = async {
            for round in 1..4 {
                live.apply(5, |tx| tx.write(objects[0], 0, &[round])).await.unwrap();
            }
        };
        let (made, ()) = join(parts, others).await;
        made.unwrap();
        assert!(calls.get() > 100, "nothing was run again");
        for bytes in contents(&live, &objects).await.into_iter().flatten() {
            assert_eq!(bytes[BLOCK as usize], 3);
        }
    });
}

/// Parts that are run ahead, to see what they need, lack what those before them will do.
#[test]
fn a_part_may_need_what_the_one_before_it_did() {
    run(async |bench| {
        let (live, objects) = with_objects(&bench, 50).await;
        bench.set_misses(100);
        let mark = |part: usize| [200 + part as u8];
        live.apply_parts(5, 50, |tx, part| {
            if let Some(before) = part.checked_sub(1)
                && tx.read(objects[before], 0, 1)? != mark(before)
            {
                return Err(Error::new(Kind::Invalid, LiveError::NoNumber).into());
            }
            // Some need more than those behind them.
            for far in (20..26).filter(|_| part.is_multiple_of(4)) {
                tx.read(objects[(part + far) % 50], BLOCK, 1)?;
            }
            tx.write(objects[part], 0, &mark(part))
        })
        .await
        .unwrap();
    });
}
