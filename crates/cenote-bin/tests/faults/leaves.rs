//! Failing leaves within the redundancy of the layout: applications see no errors.

use std::time::Duration;

use cenote_testkit::faultfs::{Fault, Op};
use cenote_testkit::rng::{self, Rng};

use crate::layout::{Layout, each};
use crate::load::Load;
use crate::site::{Site, pause};

fn any_leaf(rng: &mut Rng, layout: Layout) -> usize {
    rng.below(layout.data_leaves() as u64) as usize
}

/// Heals all leaves, and brings them back into service.
fn recover(site: &Site) {
    site.layer.heal_all();
    site.run("zpool clear t");
    for leaf in 0..site.layer.leaf_count() {
        let path = site.layer.leaf(leaf).to_str().unwrap().to_owned();
        site.run(&format!("zpool online t {path}"));
    }
}

/// One leaf returns errors of some kind for a while.
fn one_leaf_fails(layout: Layout, seed: u64, faults: &[Fault]) {
    let mut rng = rng::seeded("one_leaf_fails", seed);
    let Some(site) = Site::new("eio", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(600);
    let leaf = any_leaf(&mut rng, layout);
    for fault in faults {
        site.layer.inject(leaf, fault.clone());
    }
    pause(1500);
    site.status();
    site.run("zfs list -t all");
    recover(&site);
    pause(300);
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.check(&written, "after the fault");
    site.check_counts(&[leaf], "after the fault");
    site.check_files("after the fault");
    site.kill();
    site.start();
    site.check(&written, "after a kill");
    site.judge(false);
}

#[test]
fn one_leaf_with_write_errors() {
    each(&Layout::redundant_or(&[]), 1..1 + rng::cases(1, 2), |layout, seed| {
        one_leaf_fails(layout, seed, &[Fault::all(Op::Write).every(3)]);
    });
}

#[test]
fn one_leaf_with_all_errors() {
    each(&Layout::redundant_or(&[Layout::Mirror]), 2..2 + rng::cases(1, 2), |layout, seed| {
        let all = [Fault::all(Op::Read), Fault::all(Op::Write).torn(), Fault::all(Op::Flush)];
        one_leaf_fails(layout, seed, &all);
    });
}

#[test]
fn one_leaf_with_flush_errors() {
    each(&Layout::redundant_or(&[]), 3..3 + rng::cases(1, 2), |layout, seed| {
        one_leaf_fails(layout, seed, &[Fault::all(Op::Flush).every(2)]);
    });
}

/// A leaf is removed, and comes back with its old contents.
fn a_leaf_comes_back_stale(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("a_leaf_comes_back_stale", seed);
    let Some(site) = Site::new("stale", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(800);
    let leaf = any_leaf(&mut rng, layout);
    site.layer.take_away(leaf);
    pause(1500);
    recover(&site);
    pause(300);
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.check(&written, "after it came back");
    site.check_counts(&[], "after it came back");
    site.check_files("at the end");
    site.judge(false);
}

#[test]
fn a_removed_leaf_comes_back_stale() {
    each(&Layout::redundant_or(&[Layout::Draid]), 4..4 + rng::cases(1, 2), a_leaf_comes_back_stale);
}

/// Leaves are removed one after the other. Each is stale afterwards, so that with the next removed
/// leaf two leaves miss blocks. With redundancy for one leaf some blocks cannot be read meanwhile,
/// and the error log says so; afterwards all are readable.
fn leaves_in_rotation(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("leaves_in_rotation", seed);
    let Some(site) = Site::new("rotation", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(500);
    let first = any_leaf(&mut rng, layout);
    for step in 0..4 {
        let leaf = (first + step) % layout.data_leaves();
        site.layer.take_away(leaf);
        pause(700);
        recover(&site);
    }
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.check(&written, "after the rotation");
    site.check_counts(&[], "after the rotation");
    if layout.is_doubly_redundant() {
        site.check_files("at the end");
    }
    site.judge(false);
}

#[test]
fn leaves_fail_one_after_the_other() {
    each(&Layout::redundant_or(&[Layout::Raidz1]), 5..5 + rng::cases(1, 2), leaves_in_rotation);
}

/// A leaf comes back with contents older than its removal, like a disk image restored from a
/// snapshot. Only that leaf may have checksum errors.
fn a_leaf_comes_back_older(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("a_leaf_comes_back_older", seed);
    let Some(site) = Site::new("older", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(500);
    let leaf = any_leaf(&mut rng, layout);
    site.layer.remember(leaf);
    pause(900);
    site.layer.take_away(leaf);
    pause(700);
    site.layer.recall(leaf);
    recover(&site);
    pause(300);
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.check(&written, "after it came back");
    site.check_counts(&[leaf], "after it came back");
    site.check_files("after it came back");
    site.kill();
    site.start();
    site.check(&written, "after a kill");
    site.check_files("after a kill");
    site.judge(false);
}

#[test]
fn a_leaf_that_was_restored_from_a_snapshot_is_repaired() {
    each(&Layout::redundant_or(&[]), 6..6 + rng::cases(0, 2), a_leaf_comes_back_older);
}

/// A slow leaf and one with short failures: nothing is lost.
fn slow_and_flickering(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("slow_and_flickering", seed);
    let Some(site) = Site::new("slow", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    let leaf = any_leaf(&mut rng, layout);
    site.layer.slow_down(leaf, Duration::from_millis(20));
    pause(500);
    for op in [Op::Read, Op::Write, Op::Flush] {
        let fault = Fault::all(op).lasting(Duration::from_millis(50 + rng.below(300)));
        site.layer.inject(leaf, fault);
        pause(400);
    }
    site.status();
    recover(&site);
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.check(&written, "after it was slow");
    site.check_counts(&[], "after it was slow");
    site.check_files("after it was slow");
    site.judge(false);
}

#[test]
fn slow_leaves_and_short_failures_lose_nothing() {
    each(&Layout::redundant_or(&[]), 7..7 + rng::cases(0, 2), slow_and_flickering);
}
