//! Log devices that fail while `fsync` depends on them.

use std::time::Instant;

use cenote_testkit::rng;

use crate::closings::{CLOSE_MAX, STATUS_MAX};
use crate::layout::{Layout, each};
use crate::load::Load;
use crate::site::{Site, pause};

/// Kills the daemon; the next one opens the pool without log devices, with all promised data.
fn comes_back_without_its_log(site: &Site, load: Load) {
    // What only the failed log had is in the pool: otherwise the crash would be a second failure.
    site.run("zpool sync t");
    site.kill();
    let written = load.stop(site);
    println!("{:?}: {}", site.layout, written.told());
    site.start();
    let listed = site.run("zpool list -H -o name");
    if listed.trim() != "t" {
        site.run(&format!("zpool import -m -d {} t", site.text("leaves")));
    }
    site.check(&written, "without its log");
    site.check_counts(&[], "without its log");
    site.judge(false);
}

/// Every log device fails. Writers continue, and a pool that is opened without the log has
/// everything.
fn log_dies(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("log_dies", seed);
    let Some(site) = Site::new("log", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(400 + rng.below(600));
    (layout.data_leaves()..site.layer.leaf_count()).for_each(|leaf| site.layer.take_away(leaf));
    pause(2000);
    let status = site.status().text;
    assert!(status.contains("FAULTED") || status.contains("UNAVAIL"), "{status}\n{}", site.log());
    assert!(!status.contains("SUSPENDED"), "{status}\n{}", site.log());
    comes_back_without_its_log(&site, load);
}

#[test]
fn a_failed_log_device_loses_nothing() {
    let layouts = [Layout::MirrorLog, Layout::MirrorTwoLogs];
    let count = if rng::wants_all() { 2 } else { 1 };
    each(&layouts[..count], 40..40 + rng::cases(1, 4), log_dies);
}

/// Every log device fails while a data leaf is stale, or being resilvered: it was removed.
fn log_dies_beside_a_stale_leaf(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("log_dies_stale", seed);
    let Some(site) = Site::new("stale-log", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    make_stale(&site, 0);
    (layout.data_leaves()..site.layer.leaf_count()).for_each(|leaf| site.layer.take_away(leaf));
    pause(1500);
    let status = site.status().text;
    assert!(!status.contains("SUSPENDED"), "{status}\n{}", site.log());
    // By now it may have what it missed.
    assert!(status.contains("resilver"), "{status}\n{}", site.log());
    comes_back_without_its_log(&site, load);
}

/// Removes a leaf for a while under load, so that it is stale.
pub(crate) fn make_stale(site: &Site, leaf: usize) {
    pause(500);
    site.layer.take_away(leaf);
    pause(1300);
    site.layer.heal(leaf);
    site.run("zpool clear t");
    let path = site.layer.leaf(leaf).to_str().unwrap().to_owned();
    site.run(&format!("zpool online t {path}"));
    pause(300);
}

#[test]
fn a_failed_log_device_and_a_stale_leaf_lose_nothing() {
    let layouts = [Layout::MirrorLog, Layout::MirrorTwoLogs];
    let count = if rng::wants_all() { 2 } else { 0 };
    each(&layouts[..count], 44..44 + rng::cases(1, 3), log_dies_beside_a_stale_leaf);
}

/// The log device of a pool under load hangs while it is removed. The status is still shown. With
/// an even seed the device answers again, and the removal ends; with an odd one the daemon is
/// stopped before, and the next one has everything, with the log or without it.
fn hanging_log_is_removed(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("hanging_log", seed);
    let Some(site) = Site::new("hanging-log", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(300 + rng.below(400));
    let log = layout.data_leaves();
    let path = site.layer.leaf(log).to_str().unwrap().to_owned();
    let is_stopped = !seed.is_multiple_of(2);
    site.layer.hang(log);
    std::thread::scope(|threads| {
        let removal = threads.spawn(|| site.ends(&format!("zpool remove t {path}")));
        pause(1500 + rng.below(1000));
        let since = Instant::now();
        assert!(site.status().text.contains("state: "), "{}", site.log());
        assert!(since.elapsed() < STATUS_MAX, "status after {:?}", since.elapsed());
        if is_stopped {
            let since = Instant::now();
            site.ends("daemon stop");
            assert!(since.elapsed() < CLOSE_MAX, "stopped after {:?}", since.elapsed());
        }
        site.layer.heal_all();
        let (status, said) = removal.join().unwrap();
        assert!(is_stopped || status.success(), "{status}: {said}\n{}", site.log());
        println!("{layout:?}, seed {seed}: removed: {status}: {said}");
    });
    let written = if is_stopped {
        let written = load.stop(&site);
        site.await_end();
        site.start();
        written
    } else {
        pause(500);
        let status = site.status().text;
        assert!(!status.contains(&path) && !status.contains("SUSPENDED"), "{status}");
        site.kill();
        let written = load.stop(&site);
        site.start();
        written
    };
    println!("{layout:?}: {}", written.told());
    site.check(&written, "after its log hung");
    site.check_counts(&[], "after its log hung");
    site.judge(false);
}

#[test]
fn a_log_device_that_hangs_is_removed() {
    each(&[Layout::MirrorLog], 50..52, hanging_log_is_removed);
}
