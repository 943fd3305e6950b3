//! Power cuts: all leaves stop at once, and only a part of the unflushed writes survives.

use cenote_testkit::faultfs::PowerCut;
use cenote_testkit::rng;

use crate::layout::{Layout, each};
use crate::load::{Load, Written};
use crate::site::{Site, pause};

/// Writes for a while, cuts the power, and starts again.
fn cut(site: &Site, rng: &mut rng::Rng, kept_percent: u64) -> Written {
    let load = Load::start(site, rng.next_u64());
    pause(400 + rng.below(900));
    let unflushed: u64 =
        (0..site.layer.leaf_count()).map(|leaf| site.layer.counts(leaf).unflushed).sum();
    site.layer.cut(PowerCut { seed: rng.next_u64(), kept_percent, torn_percent: 20 });
    site.kill();
    let written = load.stop(site);
    println!("{:?}: {}, about {unflushed} unflushed writes", site.layout, written.told());
    site.layer.power_on();
    site.start();
    written
}

fn power_cut(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("power_cut", seed);
    let Some(site) = Site::new("power", layout) else { return };
    let kept_percent = [0, 30, 50, 90][rng.below(4) as usize];
    let written = cut(&site, &mut rng, kept_percent);
    site.check_healthy("after a power cut");
    site.check(&written, "after a power cut");
    site.check_counts(&[], "after a power cut");
    site.judge(true);
}

#[test]
fn fsynced_data_survives_a_power_cut() {
    let layouts = Layout::all_or(&[Layout::Single, Layout::Raidz1, Layout::MirrorLog]);
    each(&layouts, 10..10 + rng::cases(1, 6), power_cut);
}

/// One leaf ignores flushes, and loses all unflushed writes at the power cut: the others have them.
fn liar(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("liar", seed);
    let Some(site) = Site::new("liar", layout) else { return };
    let leaf = rng.below(layout.data_leaves() as u64) as usize;
    site.layer.lie_at_flush(leaf);
    let written = cut(&site, &mut rng, 0);
    site.check(&written, "after a power cut");
    site.judge(false);
}

#[test]
fn a_leaf_that_ignores_flushes_costs_only_redundancy() {
    let layouts = Layout::redundant_or(&[]);
    each(&layouts, 60..60 + rng::cases(1, 2), liar);
}

/// The suite finds a daemon whose `fsync` answers before the log is flushed.
#[test]
fn seeded_bug_fsync_before_the_flush_is_found() {
    if !cfg!(debug_assertions) {
        let test = cenote_testkit::skip::current_test();
        return cenote_testkit::skip::skip(&test, "the bugs are not in a build without assertions");
    }
    let mut rng = rng::seeded("an_fsync_that_answers_before_the_flush", 6);
    for _ in 0..3 {
        let bug = Some("NoFlushOfLog");
        let Some(site) = Site::with_bug("early", Layout::Mirror, bug) else { return };
        let written = cut(&site, &mut rng, 0);
        let faults = written.faults(&site);
        if !faults.is_empty() {
            println!("found: {} things, such as {}", faults.len(), faults[0]);
            return;
        }
    }
    panic!("not found");
}
