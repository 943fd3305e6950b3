//! Readers during writes that reuse space as fast as possible.
//!
//! A pool is filled to some percentage and then overwritten continuously, with changing snapshots,
//! and exports and imports in between, while all kinds of readers read it: views that are held for
//! long, the live head, open snapshots, the verifier, the leak checker, prefetches; and metaslabs
//! are unloaded and loaded again. Device reads take long, some longer than several txgs, so that
//! pointers become stale under their readers (`slow`).
//!
//! Every read returns what the model has, or fails with `Kind::Overtaken`. Afterwards every byte is
//! compared, no checksum error was counted, nothing was repaired or reported, and OpenZFS finds no
//! errors. Each of `Bug::OF_READERS` is found by the suite.
//!
//! Everything is determined by the seed: one thread, devices in memory. `CENOTE_TEST_ALL` runs
//! more.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

mod damage;
mod readers;
mod slow;
mod world;

use cenote_rt::seeded::Bug;
use cenote_testkit::bugs;
use cenote_testkit::rng::wants_all;
use world::{Layout, World};

/// Fill levels, in percent of the usable space.
const FILLS: [u64; 3] = [5, 50, 99];

/// Runs one pool to its end.
fn run(layout: Layout, fill: u64, seed: u64, bug: Option<Bug>) {
    cenote_rt::simulate(world::machine(seed, bug), async {
        let world = World::new(layout, fill, seed).await;
        let readers = readers::start(&world);
        let ends: &[u64] = if wants_all() { &[50, 100, 150, 200] } else { &[30, 40] };
        let mut first = 0;
        for end in ends {
            world.churn(first..*end).await;
            world.export_and_import().await;
            first = *end;
        }
        world.end();
        let seen = readers.join().await;
        println!(
            "{layout:?} {fill} %: {} reads, {} overtaken, {} closed, {} checks, {} slow reads, {} txgs",
            seen.reads,
            seen.overtaken,
            seen.closed,
            seen.checks,
            world.slow_reads(),
            world.engine().uberblock().txg
        );
        assert!(seen.closed > 0, "no reader met an export");
        assert!(seen.reads > 100, "the readers read nothing: {seen:?}");
        world.judge().await;
    })
    .unwrap();
}

fn run_all(layout: Layout) {
    let seeds = if wants_all() { 1..6 } else { 1..2 };
    for seed in seeds {
        for fill in FILLS {
            run(layout, fill, seed, None);
        }
    }
}

#[test]
fn mirror() {
    run_all(Layout::Mirror);
}

#[test]
fn raidz2() {
    run_all(Layout::Raidz2);
}

#[test]
fn draid() {
    run_all(Layout::Draid);
}

#[test]
fn disk_with_two_copies() {
    run_all(Layout::Copies);
}

/// The test below runs this one in separate processes, each with a bug.
#[test]
fn with_a_bug() {
    let bug = bugs::switch_on(&Bug::OF_READERS);
    if bug.is_some() {
        // Ends with the first pool in which the bug has an effect.
        for seed in 1..9 {
            for fill in FILLS {
                println!("seed {seed}");
                run(Layout::Mirror, fill, seed, bug);
            }
        }
    }
}

#[test]
fn every_seeded_bug_is_found() {
    bugs::check_found(&Bug::OF_READERS, "panicked at", |_| "with_a_bug");
}
