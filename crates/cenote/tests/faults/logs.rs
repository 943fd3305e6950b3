//! Log devices that die while `fsync` depends on them.

use cenote_testkit::rng;

use crate::layout::{Layout, each};
use crate::load::Load;
use crate::site::{Site, pause};

/// Every log device dies. Writers go on, and a pool that is opened without the log has everything.
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
    site.kill();
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.start();
    let listed = site.run("zpool list -H -o name");
    if listed.trim() != "t" {
        site.run(&format!("zpool import -m -d {} t", site.text("leaves")));
    }
    site.check(&written, "without its log");
    site.check_counts(&[], "without its log");
    site.judge(false);
}

#[test]
fn a_dead_log_device_loses_nothing() {
    let layouts = [Layout::MirrorLog, Layout::MirrorTwoLogs];
    let count = if rng::wants_all() { 2 } else { 1 };
    each(&layouts[..count], 40..40 + rng::cases(1, 4), log_dies);
}
