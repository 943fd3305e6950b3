//! Leaves that fail within the redundancy of the layout: nobody notices but the administrator.

use cenote_testkit::faultfs::{Fault, Op};
use cenote_testkit::rng::{self, Rng};

use crate::layout::{Layout, each};
use crate::load::Load;
use crate::site::{Site, pause};

/// The layouts of a scenario: these few, or all that have redundancy.
pub(crate) fn layouts(few: &[Layout]) -> Vec<Layout> {
    if rng::wants_all() { Layout::redundant().collect() } else { few.to_vec() }
}

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

/// One leaf returns errors of a kind for a while.
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
    each(&layouts(&[Layout::Raidz1]), 1..1 + rng::cases(1, 2), |layout, seed| {
        one_leaf_fails(layout, seed, &[Fault::all(Op::Write).every(3)]);
    });
}

#[test]
fn one_leaf_with_all_errors() {
    each(&layouts(&[Layout::Mirror]), 2..2 + rng::cases(1, 2), |layout, seed| {
        let all = [Fault::all(Op::Read), Fault::all(Op::Write).torn(), Fault::all(Op::Flush)];
        one_leaf_fails(layout, seed, &all);
    });
}

#[test]
fn one_leaf_with_flush_errors() {
    each(&layouts(&[]), 3..3 + rng::cases(1, 2), |layout, seed| {
        one_leaf_fails(layout, seed, &[Fault::all(Op::Flush).every(2)]);
    });
}

/// A leaf goes away, and comes back with the bytes of an earlier moment.
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
fn a_leaf_goes_and_comes_back_stale() {
    each(&layouts(&[Layout::Draid]), 4..4 + rng::cases(1, 2), a_leaf_comes_back_stale);
}

/// Leaves take turns at being away. Each lacks what was written meanwhile, so together with the
/// leaf that is away there are two that lack blocks. With redundancy for one leaf some blocks cannot
/// be read meanwhile, and the error log says so; afterwards all are there.
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
    // RAID-Z with one parity column stops for good when two leaves lack a block.
    each(&layouts(&[Layout::Raidz2]), 5..5 + rng::cases(1, 2), leaves_in_rotation);
}
