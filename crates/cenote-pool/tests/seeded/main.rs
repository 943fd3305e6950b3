//! The crash suite is itself tested: with each of the engine's bugs switched on it must find
//! something, and nothing without.
//!
//! A bug is found by the engine itself, which suspends the pool; by a state that is not what was
//! committed, space that is not accounted for, or an earlier txg that is gone after a cut; or by
//! the order of a commit. What a cut shows counts first.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

#[path = "../crash/explore.rs"]
#[expect(dead_code, reason = "the crash suite uses more of it")]
mod explore;
#[path = "../crash/judge.rs"]
mod judge;
#[path = "../crash/model.rs"]
mod model;
#[path = "../crash/order.rs"]
mod order;
#[path = "../crash/workload.rs"]
#[expect(dead_code, reason = "the crash suite uses more of it")]
mod workload;

use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice};
use cenote_rt::seeded::{self, Bug};
use explore::{Depth, explore};
use workload::{DEVICE_SIZE, Layout};

/// Rounds of a run.
const ROUNDS: u64 = 30;
const SEED: u64 = 7;

fn image(path: String) -> Arc<dyn Device> {
    Arc::new(ImageDevice::new(path, Image::zeroed(DEVICE_SIZE)))
}

/// What the suite has to say of a layout, of a run with that bug.
fn suite(layout: Layout, bug: Option<Bug>) -> Result<(), String> {
    seeded::set(bug);
    let work = async {
        let run = workload::run(layout, SEED, ROUNDS, image).await;
        if bug == Some(Bug::DroppedPad) {
            // The leak check asks the same arithmetic, and would agree with it.
            seeded::set(None);
        }
        let run = run.map_err(|error| format!("the engine: {error}"))?;
        let depth = Depth::QUICK;
        let cuts =
            explore(layout, SEED, &run, depth).await.map_err(|error| format!("a cut: {error}"));
        cuts.and_then(|_| order::check(&run.log).map_err(|error| format!("the order: {error}")))
    };
    let verdict = cenote_rt::simulate(SEED, work).expect("a runtime");
    seeded::set(None);
    verdict
}

/// Where a bug can show at all.
fn layout_of(bug: Bug) -> Layout {
    match bug {
        Bug::LostParity | Bug::DroppedPad => Layout::Raidz2,
        Bug::LostCopy => Layout::Mirror,
        _ => Layout::Disk,
    }
}

#[test]
fn every_seeded_bug_is_found() {
    if !cfg!(debug_assertions) {
        let test = cenote_testkit::skip::current_test();
        return cenote_testkit::skip::skip(&test, "the bugs are not in a build without assertions");
    }
    for layout in [Layout::Disk, Layout::Mirror, Layout::Raidz2] {
        assert_eq!(suite(layout, None), Ok(()), "{layout:?} without a bug");
    }
    let mut missed = Vec::new();
    for bug in Bug::OF_POOLS {
        let start = cenote_rt::monotonic();
        let verdict = suite(layout_of(bug), Some(bug));
        let took = cenote_rt::monotonic().saturating_sub(start).as_secs_f64();
        match verdict {
            Err(error) => {
                let error: String = error.chars().take(160).collect();
                println!("{bug:?}: found in {took:.1} s by {error}");
            }
            Ok(()) => missed.push(bug),
        }
    }
    assert_eq!(missed, [], "not found");
}
