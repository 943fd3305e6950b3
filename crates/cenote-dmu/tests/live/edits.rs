//! Structures in objects: changed in transactions, synced, and read back.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::live::{Live, ObjectSpec};
use cenote_dmu::{
    Bpobj, Bptree, Deadlist, ObjSet, SpaceMap, Zap, bpobj, bptree, deadlist, history, nvlist,
    read_nvlist, spacemap, zap,
};
use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_ondisk::history::HistoryPhys;
use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::spacemap::{Action, Geometry, Item};
use cenote_ondisk::zap::{Entry, Key, KeyRef, NormFlags, Value, ZapFlags};
use cenote_ranges::RangeSet;
use cenote_rt::Rng;

use crate::bench::{Bench, Layout};
use crate::walk::walk;

use bpobj::edit::BpobjEntry;
use zap::edit::ZapOptions;

const GEOMETRY: Geometry = Geometry { start: 0, size: 1 << 40, shift: 9 };

/// The objects, and their expected contents.
struct State {
    zaps: Vec<(u64, bool, BTreeMap<Key, Value>)>,
    deadlist: u64,
    births: Vec<u64>,
    queue: u64,
    queued: usize,
    map: u64,
    space: RangeSet,
    trees: u64,
    list: u64,
    history: u64,
    records: u64,
}

fn dsize(bp: &BlockPtr) -> u64 {
    bp.asize_total()
}

fn block(number: u64, birth: u64) -> BlockPtr {
    let dva = Dva { vdev: 0, offset: number * 512, asize: 512, gang: false };
    let mut words = [7; 16];
    words[..6].fill(0);
    words[..2].copy_from_slice(&dva.to_words().unwrap());
    words[6] = 1 << 63 | 19 << 48 | 7 << 40 | 2 << 32;
    words[7..10].fill(0);
    words[10] = birth;
    BlockPtr::from_words(words)
}

/// Creates a pool directory, its features, and one object of each kind.
async fn create(live: &Live, txg: u64) -> State {
    live.apply(txg, |tx| {
        let directory = ObjectSpec::new(ObjectType::OBJECT_DIRECTORY, 0).with_number(1);
        zap::edit::create(tx, &directory, ZapOptions::default())?;
        let other = ObjectSpec::new(ObjectType::ZAP_METADATA, 0);
        let features = zap::edit::create(tx, &other, ZapOptions::default())?;
        zap::edit::insert(tx, 1, "features_for_write", features)?;
        zap::edit::insert(tx, features, "com.delphix:empty_bpobj", 0)?;
        let words = ObjectSpec::new(ObjectType::DDT_ZAP, 1024);
        let flags = ZapFlags::UINT64_KEY | ZapFlags::HASH64;
        let folding = ZapOptions { normflags: NormFlags::TOUPPER, ..ZapOptions::default() };
        let zaps = vec![
            (zap::edit::create(tx, &other, ZapOptions::default())?, false, BTreeMap::new()),
            (zap::edit::create(tx, &other, folding)?, false, BTreeMap::new()),
            (
                zap::edit::create(tx, &words, ZapOptions { flags, ..ZapOptions::default() })?,
                true,
                BTreeMap::new(),
            ),
        ];
        let form = spacemap::edit::MapFormat { block_size: 4096, has_histogram: true };
        Ok(State {
            zaps,
            deadlist: deadlist::edit::create_with(tx, [0, 2, 5])?,
            births: Vec::new(),
            queue: bpobj::edit::create(tx, 4096, false)?,
            queued: 0,
            map: spacemap::edit::create(tx, &form)?,
            space: RangeSet::default(),
            trees: bptree::edit::create(tx)?,
            list: nvlist::create(tx)?,
            history: history::create(tx, 0)?,
            records: 0,
        })
    })
    .await
    .unwrap()
}

async fn change_zap(live: &Live, txg: u64, state: &mut State, rng: &mut Rng) {
    let index = rng.below(state.zaps.len() as u64) as usize;
    let (object, has_words, wanted) = &mut state.zaps[index];
    let number = rng.below(4000);
    let key = if *has_words {
        Key::Words(vec![number, number * 3])
    } else {
        let case = if number.is_multiple_of(2) { "Name" } else { "nAME" };
        Key::Name(format!("{case}{}", number / 2).into_bytes())
    };
    let grows = txg % 12 < 8;
    if rng.below(10) < if grows { 9 } else { 2 } {
        let value = match rng.below(12) {
            0 if txg > 12 => Value::bytes_of(&vec![7; rng.below(300) as usize]),
            _ => Value::U64(rng.next_u64()),
        };
        live.apply(txg, |tx| zap::edit::update(tx, *object, &key, value.clone())).await.unwrap();
        wanted.insert(key, value);
    } else {
        let taken = live.apply(txg, |tx| zap::edit::take(tx, *object, &key)).await.unwrap();
        assert_eq!(taken, wanted.remove(&key));
    }
}

async fn change_lists(live: &Live, txg: u64, state: &mut State, rng: &mut Rng) {
    let births: Vec<u64> = (0..rng.below(200)).map(|_| 1 + rng.below(9)).collect();
    let blocks: Vec<BpobjEntry> = births
        .iter()
        .map(|birth| {
            let bp = block(rng.below(1 << 30), *birth);
            BpobjEntry::new(bp, dsize(&bp))
        })
        .collect();
    live.apply(txg, |tx| deadlist::edit::insert_all(tx, state.deadlist, &blocks)).await.unwrap();
    state.births.extend(births);
    if rng.below(3) == 0 {
        // All blocks born from txg 5 on are queued to be freed; then some of them are freed.
        let (from, to) = (state.deadlist, state.queue);
        live.apply(txg, |tx| {
            deadlist::edit::move_to(tx, from, to, 5)?;
            deadlist::edit::add_key(tx, from, 5)
        })
        .await
        .unwrap();
        let before = state.births.len();
        state.births.retain(|birth| *birth <= 5);
        state.queued += before - state.births.len();
    }
    let max = rng.below(150) as usize;
    let queue = state.queue;
    let taken = live.apply(txg, |tx| bpobj::edit::take(tx, queue, max, &dsize)).await.unwrap();
    assert_eq!(taken.blocks.len(), max.min(state.queued));
    state.queued -= taken.blocks.len();
}

async fn change_rest(live: &Live, txg: u64, state: &mut State, rng: &mut Rng) {
    let mut alloc = RangeSet::default();
    for _ in 0..rng.below(60) {
        let start = rng.below(1 << 20) * 512;
        alloc.add(start..start + 512 * (1 + rng.below(40)));
    }
    let alloc = alloc.difference(&state.space);
    let free: RangeSet = state.space.iter().take(rng.below(30) as usize).collect();
    state.space.union(&alloc);
    state.space.subtract(&free);
    let form = spacemap::edit::EntryFormat { geometry: GEOMETRY, has_v2: true, vdev: None };
    let stamp = spacemap::edit::Stamp { txg, pass: 1 };
    let (map, list, history) = (state.map, state.list, state.history);
    let mut record = NvList::default();
    record.insert("history command", "x".repeat(rng.below(3000) as usize).as_str());
    let root = block(txg, txg);
    live.apply(txg, |tx| {
        spacemap::edit::append(tx, map, &form, Action::Alloc, alloc.iter(), stamp)?;
        spacemap::edit::append(tx, map, &form, Action::Free, free.iter(), stamp)?;
        nvlist::write(tx, list, &record)?;
        history::append(tx, history, &record)?;
        bptree::edit::add(tx, state.trees, &root, txg, cenote_dmu::Space::default())
    })
    .await
    .unwrap();
    state.records += 1;
}

async fn check(set: &Arc<ObjSet>, state: &State, txgs: u64) {
    for (object, _, wanted) in &state.zaps {
        let zap = Zap::open(set, *object).await.unwrap();
        let entries = zap.to_vec().await.unwrap();
        assert!(entries.is_sorted_by(|a, b| a.cursor() < b.cursor()));
        assert_eq!(zap.entry_count(), entries.len() as u64);
        let found: BTreeMap<Key, Value> =
            entries.into_iter().map(|Entry { key, value, .. }| (key, value)).collect();
        assert_eq!(&found, wanted);
        for (key, value) in wanted.iter().take(20) {
            let found = match KeyRef::from(key) {
                KeyRef::Name(name) => zap.lookup(name).await.unwrap(),
                KeyRef::Words(words) => zap.lookup_words(words).await.unwrap(),
            };
            assert_eq!(found.as_ref(), Some(value));
        }
        zap.stats().await.unwrap();
    }
    let deadlist = Deadlist::open(set, state.deadlist).await.unwrap();
    assert_eq!(deadlist.sums().used, state.births.len() as u64 * 512);
    let mut births = Vec::new();
    deadlist
        .for_each(|bp| {
            births.push(bp.birth());
            Ok(())
        })
        .await
        .unwrap();
    let mut wanted = state.births.clone();
    births.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(births, wanted);
    let queue = Bpobj::open(set, state.queue).await.unwrap();
    assert_eq!(queue.phys().bytes, state.queued as u64 * 512);
    let mut count = 0;
    queue
        .for_each(|_| {
            count += 1;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(count, state.queued);
    let mut space = RangeSet::default();
    let map = SpaceMap::open(set, state.map).await.unwrap();
    map.for_each(GEOMETRY, |item| {
        if let Item::Entry(entry) = item {
            let range = entry.offset..entry.offset + entry.size;
            match entry.action {
                Action::Alloc => space.try_add(range).unwrap(),
                Action::Free => space.try_remove(range).unwrap(),
            }
        }
        Ok(())
    })
    .await
    .unwrap();
    assert!(space.iter().eq(state.space.iter()));
    let trees = Bptree::open(set, state.trees).await.unwrap();
    assert_eq!(trees.phys().end, txgs);
    assert!(read_nvlist(set, state.list).await.unwrap().contains("history command"));
    let history = set.dnode(state.history).await.unwrap();
    let phys = HistoryPhys::decode(history.bonus().unwrap()).unwrap();
    assert!(phys.eof > phys.create_len || state.records == 1);
}

async fn run(layout: Layout, seed: u64, txgs: u64) {
    let mut rng = Rng::seeded(seed);
    let mut bench = Bench::new(layout, seed);
    bench.policies.0 = cenote_block::policy::DatasetPolicy::MOS;
    let mut live = Live::create(bench.blocks(), 0, ObjSetType::Meta);
    let first = 4;
    let mut state = create(&live, first).await;
    for txg in first..first + txgs {
        bench.set_misses([0, 30][rng.below(2) as usize]);
        for _ in 0..400 {
            change_zap(&live, txg, &mut state, &mut rng).await;
        }
        change_lists(&live, txg, &mut state, &mut rng).await;
        change_rest(&live, txg, &mut state, &mut rng).await;
        bench.sync(&live, txg).await;
        let set = ObjSet::open(bench.store.clone(), &live.root(), None, 0).await.unwrap();
        check(&set, &state, txg - first + 1).await;
        let walk = walk(&set, txg).await;
        bench.check_alive(&walk.blocks, &format!("txg {txg}"));
        if rng.below(4) == 0 {
            live = Live::open(bench.blocks(), &set).unwrap();
            bench.store.clear_cache();
        }
    }
}

#[test]
fn structures_are_read_back() {
    let mut rng = cenote_testkit::rng::seeded("edits", 0xed17);
    for case in 0..cenote_testkit::rng::cases(2, 20) {
        let layout = [Layout::Single { ashift: 9 }, Layout::RaidZ { ashift: 12, width: 4 }];
        let run = run(layout[case as usize % 2], rng.next_u64(), 26);
        cenote_rt::block_on(2, run).unwrap();
    }
}
