//! Two runs with one seed write the same bytes in the same order.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

use std::sync::Arc;

use cenote_device::{Device, SimulatedDisk};
use cenote_poolkit::crash::workload::{self, DEVICE_SIZE, Layout};
use cenote_testkit::rng::wants_all;

/// Minimum number of changes of a run.
const OPERATIONS: u64 = 1000;
/// Number of rounds.
const ROUNDS: u64 = 100;

fn disk(path: String) -> Arc<dyn Device> {
    Arc::new(SimulatedDisk::new(path, DEVICE_SIZE))
}

/// Returns the hash of everything that a run writes.
fn hash(layout: Layout, seed: u64) -> u64 {
    let run = cenote_rt::simulate(seed, workload::run(layout, seed, ROUNDS, disk));
    let run = run.expect("a runtime").unwrap();
    assert!(run.operations >= OPERATIONS, "only {} operations", run.operations);
    run.log.hash()
}

#[test]
fn runs_with_one_seed_are_equal() {
    let more = if wants_all() { &Layout::MORE[..] } else { &[] };
    for layout in Layout::USUAL.iter().chain(more) {
        let [first, again, other] = std::thread::scope(|scope| {
            let runs = [1, 1, 2].map(|seed| scope.spawn(move || hash(*layout, seed)));
            runs.map(|run| run.join().unwrap())
        });
        assert_eq!(again, first, "{layout:?}");
        assert_ne!(other, first, "{layout:?}");
    }
}
