//! `zpool import` of pools with a missing device, or with a damaged newest state.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cenote_engine::Engine;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::zap::Value;
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::{Result, block_on};

use crate::Shed;

/// First byte of a device that is allocated.
const DATA_START: u64 = 4 << 20;

/// Returns the uberblocks of a pool on one device, the oldest first.
fn uberblocks(folder: &Path) -> Vec<Uberblock> {
    let options = ScanOptions { paths: vec![folder.to_path_buf()] };
    let scan = block_on(1, scan(&options)).expect("a runtime").expect("devices");
    let mut all = scan.find("t").expect("the pool").uberblocks();
    all.sort_by_key(|uberblock| uberblock.txg);
    all.dedup_by_key(|uberblock| uberblock.txg);
    all
}

/// Destroys all copies of these blocks.
fn destroy(device: &Path, blocks: &[BlockPtr]) {
    let file = std::fs::File::options().write(true).open(device).expect("a device");
    for dva in blocks.iter().flat_map(|block| block.dvas().collect::<Vec<_>>()) {
        file.write_all_at(&[0x5a; 512], dva.offset + DATA_START).expect("a write");
    }
}

/// Creates and exports a pool `t` whose property `user:n` names its state; returns the states by
/// txg.
fn made(name: &str) -> (Shed, BTreeMap<u64, u64>) {
    let shed = Shed::new(name, 1);
    shed.succeeds("zpool create -O user:n=0 t d0");
    let states = block_on(2, change(shed.path())).expect("a runtime").expect("changes");
    (shed, states)
}

/// Changes the pool in many txgs of one import, which use free space in ascending order.
async fn change(folder: &Path) -> Result<BTreeMap<u64, u64>> {
    let scan = scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await?;
    let candidate = scan.find("t").expect("the pool");
    let engine = Engine::open(candidate, &OpenOptions::default()).await?;
    let mut states = BTreeMap::from([(engine.uberblock().txg, 0)]);
    for number in 1..=12 {
        let value = Value::bytes_of(format!("{number}\0").as_bytes());
        engine.properties().set("t", "user:n", value).await?;
        states.insert(engine.uberblock().txg, number);
    }
    engine.export().await?;
    Ok(states)
}

/// Returns the state of the pool at a txg.
fn at(states: &BTreeMap<u64, u64>, txg: u64) -> String {
    states.range(..=txg).next_back().expect("a state").1.to_string()
}

/// Returns the block with the property values of `txg`, if that txg wrote one.
async fn values(folder: &Path, txg: u64) -> Result<Option<BlockPtr>> {
    struct Finder(u64, Option<BlockPtr>);
    impl Visitor for Finder {
        async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
            let is_ours = bp.object_type() == ObjectType::DSL_PROPS && bp.birth() == self.0;
            if is_ours && place.level == 0 && !bp.is_embedded() {
                self.1 = Some(*bp);
            }
            Ok(Flow::Continue)
        }

        fn damage(&mut self, _: Damage) {}
    }
    let scan = scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await?;
    let options = OpenOptions { txg: Some(txg), ..OpenOptions::default() };
    let pool = Pool::open(scan.find("t").expect("the pool"), &options).await?;
    let mut finder = Finder(txg, None);
    traverse::pool(&pool, traverse::Options::default(), &mut finder).await?;
    Ok(finder.1)
}

#[test]
fn import_m_ignores_a_missing_log_device() {
    let shed = Shed::new("without-log", 2);
    let device = |name: &str| shed.path().join(name);
    shed.succeeds("zpool create t d0 log d1");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zpool export t");
    let log = std::fs::rename(device("d1"), device("away"));
    log.expect("the log device");
    std::fs::create_dir(device("elsewhere")).expect("a folder");
    std::fs::rename(device("away"), device("elsewhere/d1")).expect("the log device");
    let (out, err, status) = shed.run("zpool import t");
    let head =
        "The devices below are missing or corrupted, use '-m' to import the pool anyway:\n\t";
    let tail = " [log]\n\ncannot import 't': one or more devices is currently unavailable\n";
    assert!(err.starts_with(head) && err.ends_with(tail), "{err}");
    assert_eq!((out.as_str(), status), ("", 1));
    shed.succeeds("zpool import -m t");
    shed.succeeds("zfs create t/b");
    let text = shed.succeeds("zpool status t");
    assert!(text.contains(" state: DEGRADED\n") && text.contains("UNAVAIL"), "{text}");
    // The log device comes back, and is used again.
    shed.succeeds("zpool export t");
    std::fs::rename(device("elsewhere/d1"), device("d1")).expect("the log device");
    shed.succeeds("zpool import t");
    assert_eq!(shed.succeeds("zfs list -H -o name"), "t\nt/a\nt/b\n");
    shed.judge("t");
}

#[test]
fn import_f_rewinds_past_a_damaged_newest_state() {
    let (shed, states) = made("rewind");
    let device = shed.path().join("d0");
    let all = uberblocks(shed.path());
    let [.., before, newest] = &all[..] else { panic!("{} uberblocks", all.len()) };
    destroy(&device, &[newest.rootbp]);
    let (_, err, status) = shed.run("zpool import t");
    assert_eq!(status, 1, "{err}");
    assert!(err.starts_with("cannot import 't': I/O error"), "{err}");
    assert!(
        err.contains("\n\tRecovery is possible, but will result in some data loss.\n"),
        "{err}"
    );
    assert!(err.contains("\n\tby executing 'zpool import -F t'.  A scrub of the pool\n"), "{err}");
    let bytes = std::fs::read(&device).expect("the device");
    let out = shed.succeeds("zpool import -Fn t");
    assert!(out.starts_with("Would be able to return t to its state as of "), "{out}");
    assert!(bytes == std::fs::read(&device).expect("the device"), "a trial writes nothing");
    let (_, err, status) = shed.run("zpool import -n t");
    assert!(status == 2 && err.starts_with("-n or -X only meaningful with -F\n"), "{err}");
    let out = shed.succeeds("zpool import -F t");
    assert!(out.starts_with("Pool t returned to its state as of "), "{out}");
    came_back_as(&shed, &at(&states, before.txg), newest.txg);
}

/// Asserts that the pool is in that state, and continues with txgs that were never used.
fn came_back_as(shed: &Shed, state: &str, newest: u64) {
    assert_eq!(shed.succeeds("zfs get -H -o value user:n t"), format!("{state}\n"));
    shed.succeeds("zfs create t/new");
    shed.judge("t");
    assert!(uberblocks(shed.path()).last().expect("an uberblock").txg > newest);
}

/// A state whose root block is intact cannot be used if a block that it references is destroyed.
#[test]
fn import_x_rewinds_further_than_import_f() {
    let (shed, states) = made("extreme");
    let device = shed.path().join("d0");
    let all = uberblocks(shed.path());
    // Uberblocks within the safe rewind distance.
    let newest = all.last().expect("an uberblock").txg;
    let first = all.partition_point(|uberblock| uberblock.txg + 4 < newest);
    let (kept, lost) = all.split_at(first);
    destroy(&device, &lost.iter().map(|uberblock| uberblock.rootbp).collect::<Vec<_>>());
    let (spoilt, whole) = (kept[first - 1].txg, kept[first - 2].txg);
    let values = block_on(2, values(shed.path(), spoilt)).expect("a runtime").expect("a state");
    destroy(&device, &[values.expect("values of properties")]);
    let none = "\n\tDestroy and re-create the pool from\n\ta backup source.\n";
    for line in ["zpool import t", "zpool import -F t"] {
        let (_, err, status) = shed.run(line);
        assert!(status == 1 && err.ends_with(none), "{line}: {err}");
    }
    let out = shed.succeeds("zpool import -FX t");
    assert!(out.starts_with("Pool t returned to its state as of "), "{out}");
    came_back_as(&shed, &at(&states, whole), newest);
}

#[test]
fn import_t_opens_a_given_txg() {
    let (shed, states) = made("txg");
    let all = uberblocks(shed.path());
    let [.., wanted, _, _, newest] = &all[..] else { panic!("{} uberblocks", all.len()) };
    let out = shed.succeeds(&format!("zpool import -T {} t", wanted.txg));
    assert!(out.starts_with("Pool t returned to its state as of "), "{out}");
    came_back_as(&shed, &at(&states, wanted.txg), newest.txg);
}
