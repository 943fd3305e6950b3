//! Imports of pools that lack a device, or whose newest state is damaged.

use std::os::unix::fs::FileExt;
use std::path::Path;

use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::import::{ScanOptions, scan};

use crate::Shed;

/// Where allocation begins on a device.
const DATA_START: u64 = 4 << 20;

/// The uberblocks of a pool on one device, the oldest first.
fn uberblocks(folder: &Path) -> Vec<Uberblock> {
    let options = ScanOptions { paths: vec![folder.to_path_buf()] };
    let scan = cenote_rt::block_on(1, scan(&options)).expect("a runtime").expect("devices");
    let mut all = scan.find("t").expect("the pool").uberblocks().to_vec();
    all.sort_by_key(|uberblock| uberblock.txg);
    all.dedup_by_key(|uberblock| uberblock.txg);
    all
}

/// Destroys what these uberblocks lead to.
fn destroy(device: &Path, uberblocks: &[Uberblock]) {
    let file = std::fs::File::options().write(true).open(device).expect("a device");
    for dva in uberblocks.iter().flat_map(|uberblock| uberblock.rootbp.dvas().collect::<Vec<_>>()) {
        file.write_all_at(&[0x5a; 512], dva.offset + DATA_START).expect("a write");
    }
}

/// A pool `t` with datasets that came in txgs of their own, exported.
fn made(name: &str) -> Shed {
    let shed = Shed::new(name, 1);
    shed.succeeds("zpool create t d0");
    for number in 0..6 {
        shed.succeeds(&format!("zfs create t/{number}"));
    }
    shed.succeeds("zpool export t");
    shed
}

fn datasets(shed: &Shed) -> usize {
    shed.succeeds("zfs list -H -o name -r t").lines().count() - 1
}

#[test]
fn a_pool_comes_without_its_log_if_that_is_asked_for() {
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
    // It comes back, and is used again.
    shed.succeeds("zpool export t");
    std::fs::rename(device("elsewhere/d1"), device("d1")).expect("the log device");
    shed.succeeds("zpool import t");
    assert_eq!(shed.succeeds("zfs list -H -o name"), "t\nt/a\nt/b\n");
    shed.judge("t");
}

#[test]
fn the_newest_state_is_given_up_if_that_is_asked_for() {
    let shed = made("rewind");
    let device = shed.path().join("d0");
    let all = uberblocks(shed.path());
    destroy(&device, &all[all.len() - 1..]);
    let (_, err, status) = shed.run("zpool import t");
    assert_eq!(status, 1, "{err}");
    assert!(err.starts_with("cannot import 't': I/O error"), "{err}");
    assert!(
        err.contains("\n\tRecovery is possible, but will result in some data loss.\n"),
        "{err}"
    );
    assert!(err.contains("\n\tby executing 'zpool import -F t'.  A scrub of the pool\n"), "{err}");
    let before = std::fs::read(&device).expect("the device");
    let out = shed.succeeds("zpool import -Fn t");
    assert!(out.starts_with("Would be able to return t to its state as of "), "{out}");
    assert!(before == std::fs::read(&device).expect("the device"), "a trial writes nothing");
    let (_, err, status) = shed.run("zpool import -n t");
    assert!(status == 2 && err.starts_with("-n or -X only meaningful with -F\n"), "{err}");
    let out = shed.succeeds("zpool import -F t");
    assert!(out.starts_with("Pool t returned to its state as of "), "{out}");
    assert_eq!(datasets(&shed), 6);
    shed.succeeds("zfs create t/new");
    shed.judge("t");
    let newest = uberblocks(shed.path()).last().expect("an uberblock").txg;
    assert!(newest > all.last().expect("an uberblock").txg);
}

#[test]
fn older_states_are_gone_back_to_only_if_asked_for() {
    let shed = made("extreme");
    let all = uberblocks(shed.path());
    // All that is within reach of what is safe.
    let newest = all.last().expect("an uberblock").txg;
    let first = all.partition_point(|uberblock| uberblock.txg + 4 < newest);
    destroy(&shed.path().join("d0"), &all[first..]);
    let (_, err, status) = shed.run("zpool import t");
    assert_eq!(status, 1, "{err}");
    let lost = "\n\tDestroy and re-create the pool from\n\ta backup source.\n";
    assert!(err.ends_with(lost), "{err}");
    let (_, err, status) = shed.run("zpool import -F t");
    assert!(status == 1 && err.ends_with(lost), "{err}");
    let out = shed.succeeds("zpool import -FX t");
    assert!(out.starts_with("Pool t returned to its state as of "), "{out}");
    assert!((1..=6).contains(&datasets(&shed)));
    shed.succeeds("zfs create t/new");
    shed.judge("t");
}

#[test]
fn a_txg_can_be_named() {
    let shed = made("txg");
    let all = uberblocks(shed.path());
    let mut counts = Vec::new();
    // As long as nothing is written the states stay.
    for uberblock in &all {
        let folder = shed.path().to_str().expect("UTF-8");
        let txg = uberblock.txg.to_string();
        let head = ["zfs", "--embedded", "-d", folder, "-T", &txg];
        let (out, _, status) =
            crate::cenote(&[&head[..], &["list", "-H", "-o", "name", "-r", "t"]].concat());
        // What is long ago may have been written over.
        if status == 0 {
            counts.push((uberblock.txg, out.lines().count() - 1));
        }
    }
    let wanted = counts.iter().rev().find(|(_, count)| *count < 6);
    let &(txg, count) = wanted.expect("a state with fewer datasets");
    let out = shed.succeeds(&format!("zpool import -T {txg} t"));
    assert!(out.starts_with("Pool t returned to its state as of "), "{out}");
    assert_eq!(datasets(&shed), count);
    shed.succeeds("zfs create t/new");
    shed.judge("t");
}
