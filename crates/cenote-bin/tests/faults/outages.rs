//! All leaves fail at once: the pool is suspended, and continues when they are back.

use cenote_testkit::rng;

use crate::layout::{Layout, each};
use crate::load::{Load, Written};
use crate::logs::make_stale;
use crate::site::{Site, pause};

fn take_all_away(site: &Site) {
    (0..site.layer.leaf_count()).for_each(|leaf| site.layer.take_away(leaf));
}

/// Every leaf is removed for a while. Writers wait; nothing is lost.
fn outage(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("outage", seed);
    let Some(site) = Site::new("outage", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(700);
    take_all_away(&site);
    pause(1500);
    site.status();
    site.run("zpool list");
    site.layer.heal_all();
    site.run("zpool clear t");
    pause(700);
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.check(&written, "after an outage");
    site.check_counts(&[], "after an outage");
    site.judge(true);
}

#[test]
fn an_outage_of_all_leaves_loses_nothing() {
    let layouts = Layout::all_or(&[Layout::Mirror]);
    each(&layouts, 30..30 + rng::cases(1, 2), outage);
}

/// The disk of the host that holds all leaves is full for a while; all promised data is there.
fn fills_up(site: &Site, load: Load) -> Written {
    (0..site.layer.leaf_count()).for_each(|leaf| site.layer.fill_host(leaf));
    pause(1500);
    site.status();
    site.layer.heal_all();
    site.run("zpool clear t");
    pause(700);
    let written = load.stop(site);
    println!("{:?}: {}", site.layout, written.told());
    site.check(&written, "after the host was full");
    site.check_counts(&[], "after the host was full");
    written
}

/// The disk of the host that holds all leaves is full: writes that need new space fail.
fn host_full(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("host_full", seed);
    let Some(site) = Site::new("full", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(700);
    fills_up(&site, load);
    site.judge(true);
}

#[test]
fn a_full_host_loses_nothing() {
    let layouts = Layout::all_or(&[Layout::Raidz1]);
    each(&layouts, 32..32 + rng::cases(1, 2), host_full);
}

/// The disk of the host is full while a leaf is stale: the pool may be suspended, and continues
/// with all data when there is space.
fn host_full_beside_a_stale_leaf(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("host_full_stale", seed);
    let Some(site) = Site::new("stale-full", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    make_stale(&site, rng.below(layout.data_leaves() as u64) as usize);
    let written = fills_up(&site, load);
    site.kill();
    site.start();
    site.check(&written, "after a kill");
    site.check_counts(&[], "after a kill");
    site.judge(false);
}

#[test]
fn a_full_host_with_a_stale_leaf_loses_nothing() {
    let layouts = Layout::redundant_or(&[]);
    each(&layouts, 34..34 + rng::cases(1, 2), host_full_beside_a_stale_leaf);
}
