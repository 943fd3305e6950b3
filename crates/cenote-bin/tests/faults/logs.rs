//! Log devices that fail while `fsync` depends on them.

use cenote_testkit::rng;

use crate::layout::{Layout, each};
use crate::load::Load;
use crate::site::{Site, pause};

/// Kills the daemon; the next one opens the pool without log devices, with all promised data.
fn comes_back_without_its_log(site: &Site, load: Load) {
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

/// Every log device fails while a data leaf is stale: it was removed, and nothing resilvers it.
fn log_dies_beside_a_stale_leaf(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("log_dies_stale", seed);
    let Some(site) = Site::new("stale-log", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    make_stale(&site, 0);
    (layout.data_leaves()..site.layer.leaf_count()).for_each(|leaf| site.layer.take_away(leaf));
    pause(1500);
    let status = site.status().text;
    assert!(!status.contains("SUSPENDED"), "{status}\n{}", site.log());
    assert!(status.contains("(resilver needed)"), "{status}\n{}", site.log());
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
