//! One reader for committed and open states: the functions that find names, properties, bookmarks,
//! holds and permissions give the same answers for the frozen object set and for a transaction,
//! whatever the ZAPs contain.

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{ReadObjects, Tx, TxResult, TxStop, deadlist};
use cenote_engine::GrantChange;
use cenote_ondisk::dsl::{DatasetFlags, DatasetPhys, DirPhys, key};
use cenote_ondisk::feature::FeatureFlags;
use cenote_ondisk::zap::Value;
use cenote_pool::dsl::bookmark::{bookmarks_of, find_bookmark};
use cenote_pool::dsl::dataset::{find_snapshot, get_dataset, holds_of, snapshots_of};
use cenote_pool::dsl::deleg::{Requester, permits};
use cenote_pool::dsl::dir::{ancestry, children_of, find_dir, get_dir};
use cenote_pool::features::{FEATURES, Feature, refcount};
use cenote_pool::mos;
use cenote_pool::props::DATASET_PROPERTIES;
use cenote_pool::props::lookup::{Settings, own_value};
use cenote_rt::{Rng, block_on};
use cenote_testkit::rng;

use crate::memory::MemoryPool;

const DATASETS: [&str; 4] = ["tank", "tank/a", "tank/a/b", "tank/a/b/c"];
/// Names of snapshots, bookmarks and holds; some differ in case only.
const NAMES: [&str; 6] = ["one", "ONE", "One", "two", "s.3", "gone"];
const SUFFIXES: [&str; 6] = ["", "$iuv", "$inherit", "$recvd", "$nosuch", "$"];
const PERMISSIONS: [&str; 4] = ["snapshot", "mount", "@ops", "@more"];
const DELEGATION_KEYS: [&str; 12] = [
    "ul$1", "ud$1", "Ul$1", "gl$7", "gd$7", "el$", "ed$", "s-$@ops", "S-$@more", "c-$", "ul$", "x",
];

/// The objects of the pool that a case changes.
#[derive(Debug, Clone, Default)]
struct Targets {
    heads: Vec<u64>,
    props: Vec<u64>,
    delegations: Vec<u64>,
    jumps: Vec<u64>,
    bookmarks: u64,
    holds: u64,
    snapshots: u64,
    root: u64,
    snapshot: u64,
}

type Change = (u64, Vec<u8>, Option<Value>);

/// Returns a value that is often well-formed for its place, and often not.
fn value(rng: &mut Rng, usual: u64) -> Value {
    match rng.below(8) {
        0 => Value::bytes_of(b"text\0"),
        1 => Value::bytes_of(&[0xff, 0xfe]),
        2 => Value::words_of(&[]),
        3 => Value::words_of(&[rng.next_u64(), 2]),
        4 => Value::U64(rng.next_u64()),
        _ => Value::U64(usual),
    }
}

/// Returns changes of all kinds of ZAPs.
fn changes(rng: &mut Rng, targets: &Targets) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    let mut put = |rng: &mut Rng, zap: u64, key: &[u8], value: Value| {
        all.push((zap, key.to_vec(), (rng.below(3) != 0).then_some(value)));
    };
    for list in &targets.props {
        for _ in 0..24 {
            let property = &DATASET_PROPERTIES[rng.below(DATASET_PROPERTIES.len() as u64) as usize];
            let name = if rng.below(4) == 0 { "a:user" } else { property.name };
            let name = format!("{name}{}", SUFFIXES[rng.below(6) as usize]);
            let usual = rng.below(5);
            let value = value(rng, usual);
            put(rng, *list, name.as_bytes(), value);
        }
        put(rng, *list, b"$hasrecvd", Value::U64(0));
        put(rng, *list, b"\xffodd", Value::U64(0));
    }
    for name in NAMES {
        // All sizes of `zfs_bookmark_phys`, and shorter and longer ones.
        let words: Vec<u64> = (0..rng.below(15)).map(|_| rng.below(99)).collect();
        // Most cases have no invalid bookmark, which fails the whole list.
        let is_valid = words.len() >= 3 || rng.below(12) == 0;
        let words = if is_valid { words } else { vec![1, 2, 3] };
        put(rng, targets.bookmarks, name.as_bytes(), Value::words_of(&words));
        let time = value(rng, 99);
        put(rng, targets.holds, name.as_bytes(), time);
        let object = value(rng, targets.snapshot);
        put(rng, targets.snapshots, name.as_bytes(), object);
    }
    for (deleg, jump) in targets.delegations.iter().zip(targets.jumps.iter().cycle()) {
        for key in DELEGATION_KEYS {
            put(rng, *deleg, key.as_bytes(), Value::U64(*jump));
        }
        for name in PERMISSIONS {
            let value = value(rng, 0);
            put(rng, *jump, name.as_bytes(), value);
        }
    }
    all
}

fn change(tx: &mut Tx<'_>, targets: &Targets, all: &[Change], is_folded: bool) -> TxResult<()> {
    for (object, key, value) in all {
        match value {
            Some(value) => zap::update(tx, *object, key, value.clone())?,
            None => zap::take(tx, *object, key).map(drop)?,
        }
    }
    let [_, head, ..] = targets.heads[..] else { return Ok(()) };
    let mut phys: DatasetPhys = get_dataset(tx, head)?;
    phys.flags.set(DatasetFlags::CI_DATASET, is_folded);
    tx.set_bonus(head, &phys.encode())
}

/// Adds an answer or the kind of an error to `facts`; returns only requests for blocks.
fn note<T: std::fmt::Debug>(facts: &mut Vec<String>, found: TxResult<T>) -> TxResult<()> {
    facts.push(match found {
        Ok(found) => format!("{found:?}"),
        Err(TxStop::Fail(error)) => format!("{error}"),
        Err(need) => return Err(need),
    });
    Ok(())
}

/// Returns a dir without its space figures, which change with every txg.
fn without_space((object, dir): &(u64, DirPhys)) -> [u64; 6] {
    let DirPhys { parent_obj, head_dataset_obj, child_dir_zapobj, props_zapobj, .. } = *dir;
    [*object, parent_obj, head_dataset_obj, child_dir_zapobj, props_zapobj, dir.deleg_zapobj]
}

fn is_of_datasets(feature: &Feature) -> bool {
    feature.flags.contains(FeatureFlags::PER_DATASET)
}

/// Returns the answers of all functions.
fn answers(objects: &mut dyn ReadObjects, targets: &Targets) -> TxResult<Vec<String>> {
    let mut facts = Vec::new();
    for name in DATASETS {
        let path = name.split('/').skip(1);
        let found = find_dir(objects, targets.root, path);
        note(&mut facts, found.map(|found| found.as_ref().map(without_space)))?;
    }
    for head in &targets.heads {
        let dataset = get_dataset(objects, *head)?;
        let dir = get_dir(objects, dataset.dir_obj)?;
        let dirs = ancestry(objects, dataset.dir_obj);
        note(&mut facts, dirs.map(|dirs| dirs.iter().map(without_space).collect::<Vec<_>>()))?;
        note(&mut facts, children_of(objects, dataset.dir_obj))?;
        note(&mut facts, snapshots_of(objects, &dataset))?;
        note(&mut facts, bookmarks_of(objects, *head))?;
        for name in NAMES.into_iter().chain(["oNe", ""]) {
            note(&mut facts, find_snapshot(objects, &dataset, name))?;
            note(&mut facts, find_bookmark(objects, *head, name))?;
        }
        for (uid, gid) in [(1, 7), (1, 5), (2, 7), (3, 3)] {
            let requester = Requester { uid, gids: vec![gid], is_trusted: false };
            for permission in PERMISSIONS {
                for is_snapshot in [false, true] {
                    let at = (dataset.dir_obj, is_snapshot);
                    note(&mut facts, permits(objects, at, &requester, &[permission]))?;
                }
            }
        }
        let settings = Settings::of(objects, &dataset);
        for name in DATASET_PROPERTIES.iter().map(|property| property.name).chain(["a:user"]) {
            note(&mut facts, own_value(objects, dir.props_zapobj, name))?;
            if let Ok(settings) = &settings {
                facts.push(format!(
                    "{:?} {:?}",
                    settings.find(name, true),
                    settings.find(name, false)
                ));
            }
        }
        note(&mut facts, settings.map(drop))?;
    }
    for head in &targets.heads {
        let list = get_dataset(objects, *head)?.deadlist_obj;
        note(&mut facts, deadlist::keys(objects, list))?;
        note(&mut facts, deadlist::space(objects, list))?;
        for (min, max) in [(0, u64::MAX), (0, 9), (5, 99)] {
            note(&mut facts, deadlist::space_range(objects, list, min, max))?;
        }
    }
    // The counts of the others change with each txg.
    for feature in FEATURES.iter().filter(|feature| is_of_datasets(feature)) {
        note(&mut facts, refcount(objects, feature))?;
    }
    let snapshot = get_dataset(objects, targets.snapshot)?;
    note(&mut facts, holds_of(objects, &snapshot))?;
    note(&mut facts, Settings::of(objects, &snapshot).map(|settings| format!("{settings:?}")))?;
    Ok(facts)
}

async fn targets(pool: &MemoryPool) -> Targets {
    let reader = pool.reader().await;
    let mut targets = Targets { root: reader.root_dir().object, ..Targets::default() };
    for name in DATASETS {
        let dataset = reader.dataset(name).await.unwrap();
        targets.heads.push(dataset.object());
        targets.props.push(dataset.dir().phys.props_zapobj);
        let deleg = dataset.dir().phys.deleg_zapobj;
        if deleg != 0 {
            targets.delegations.push(deleg);
            let jump = mos::u64(reader.mos(), deleg, "ul$1").await.unwrap();
            targets.jumps.push(jump.unwrap());
        }
    }
    let head = reader.dataset("tank/a").await.unwrap();
    targets.bookmarks = head.extra(key::BOOKMARKS).await.unwrap().unwrap();
    targets.snapshots = head.phys().snapnames_zapobj;
    let snapshot = reader.dataset("tank/a@one").await.unwrap();
    targets.snapshot = snapshot.object();
    targets.holds = snapshot.phys().userrefs_obj;
    targets
}

#[test]
fn committed_and_open_states_are_read_alike() {
    let mut rng = rng::seeded("committed and open states", 0x0eade5);
    let cases = rng::cases(12, 200);
    block_on(2, async {
        let pool = MemoryPool::new().await;
        for name in &DATASETS[1..] {
            pool.create(name).await;
        }
        for name in &DATASETS[..3] {
            let grant = GrantChange { key: "ul$1".into(), names: vec!["mount".into()] };
            pool.engine.datasets().allow(name, vec![grant]).await.unwrap();
        }
        pool.snap("tank/a@one").await;
        let of = |name: &str| vec![(name.to_owned(), "tank/a@one".to_owned())];
        pool.engine.bookmarks().create(of("tank/a#one")).await.unwrap();
        let held = vec![("tank/a@one".to_owned(), "one".to_owned())];
        pool.engine.snapshots().hold(held, false).await.unwrap();
        let targets = targets(&pool).await;
        for case in 0..cases {
            let (all, is_folded) = (changes(&mut rng, &targets), rng.below(2) == 0);
            let these = targets.clone();
            let pending = pool.engine.tamper(move |tx| {
                change(tx, &these, &all, is_folded)?;
                answers(tx, &these)
            });
            let pending = pending.await.unwrap();
            let these = targets.clone();
            let open = pool.engine.tamper(move |tx| answers(tx, &these)).await.unwrap();
            let view = pool.engine.view().await.unwrap();
            let frozen = view.mos().read(|objects| answers(objects, &targets)).await.unwrap();
            let reader = pool.reader().await;
            let cold = reader.mos().read(|objects| answers(objects, &targets)).await.unwrap();
            for (name, found) in [("open", open), ("frozen", frozen), ("imported", cold)] {
                let both = pending.iter().zip(&found);
                let odd: Vec<_> = both.filter(|(a, b)| a != b).take(3).collect();
                assert!(odd.is_empty(), "case {case}: {name} state: {odd:#?}");
                assert_eq!(pending.len(), found.len(), "case {case}: {name} state");
            }
        }
    })
    .unwrap();
}

#[test]
fn bookmarks_of_case_insensitive_datasets_are_found_and_destroyed_in_any_case() {
    block_on(2, async {
        let pool = MemoryPool::new().await;
        let head = pool.create("tank/a").await.object();
        pool.snap("tank/a@one").await;
        let flag = pool.engine.tamper(move |tx| {
            let mut phys = get_dataset(tx, head)?;
            phys.flags.insert(DatasetFlags::CI_DATASET);
            tx.set_bonus(head, &phys.encode())
        });
        flag.await.unwrap();
        let of = vec![("tank/a#Mark".to_owned(), "tank/a@ONE".to_owned())];
        pool.engine.bookmarks().create(of).await.unwrap();
        let view = pool.engine.view().await.unwrap();
        assert_eq!(view.bookmark("tank/a#mARK").await.unwrap().name, "tank/a#Mark");
        assert_eq!(view.dataset("tank/a@oNE").await.unwrap().name(), "tank/a@one");
        pool.engine.bookmarks().destroy_all(vec!["tank/a#mark".to_owned()]).await.unwrap();
        let view = pool.engine.view().await.unwrap();
        assert!(view.bookmark("tank/a#Mark").await.is_err());
    })
    .unwrap();
}
