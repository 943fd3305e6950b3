//! Tests the crash suite: it finds each seeded bug of the engine, and nothing without a bug.
//!
//! A bug is found by the engine itself, which suspends the pool; by a state that was not committed,
//! inconsistent space, or a missing earlier txg after a cut; or by the order of a commit. The
//! result of a cut takes precedence.

use std::ops::Range;
use std::sync::Mutex;

use cenote_poolkit::crash::explore::{Depth, explore};
use cenote_poolkit::crash::workload::{self, Layout, ROUNDS_OF_LEAVES, Subject};
use cenote_rt::World;
use cenote_rt::seeded::{self, Bug};
use cenote_testkit::bugs;

/// Rounds of a run.
const ROUNDS: u64 = 30;
const SEED: u64 = 7;
/// Seeds that are tried until a bug is found: few cuts hit some of them.
const SEEDS_MAX: u64 = 4;
/// Bugs that are tested at a time.
const AT_A_TIME: usize = 2;

/// Runs the suite with a layout and a bug.
fn suite(subject: Subject, layout: Layout, bug: Option<Bug>, seed: u64) -> Result<(), String> {
    let (rounds, depth) = match subject {
        Subject::Datasets => (ROUNDS, Depth::QUICK),
        Subject::Leaves => (ROUNDS_OF_LEAVES, Depth::QUICK_OF_LEAVES),
    };
    let work = async {
        let run = workload::run(subject, layout, seed, rounds, workload::memory_device).await;
        if bug == Some(Bug::DroppedPad) {
            // The leak check uses the same arithmetic, and would agree with the bug.
            seeded::set(None);
        }
        let run = run.map_err(|error| format!("the engine: {error}"))?;
        explore(layout, seed, &run, depth).await.map_err(|error| format!("a cut: {error}"))?;
        run.check_order().map_err(|error| format!("the order: {error}"))
    };
    cenote_rt::simulate(World { bug, ..World::new(seed) }, work).expect("a runtime")
}

/// Returns a layout in which a bug can have an effect.
fn layout_of(bug: Bug) -> Layout {
    match bug {
        Bug::LostParity | Bug::DroppedPad => Layout::Raidz2,
        Bug::LostCopy => Layout::Mirror,
        _ => Layout::Disk,
    }
}

/// Returns the seeds to try: more than one when a bug must be found.
fn seeds_with(bug: Option<Bug>) -> Range<u64> {
    SEED..SEED + if bug.is_some() { SEEDS_MAX } else { 1 }
}

/// Without a bug nothing is found. The test below runs this one in separate processes, each with a
/// bug, because bugs are global to a process.
#[test]
fn nothing_is_found_in_the_engine() {
    let bug = bugs::switch_on(&Bug::OF_POOLS);
    let all = vec![Layout::Disk, Layout::Mirror, Layout::Raidz2];
    for layout in bug.map_or(all, |bug| vec![layout_of(bug)]) {
        for seed in seeds_with(bug) {
            let found = suite(Subject::Datasets, layout, bug, seed);
            assert_eq!(found, Ok(()), "{layout:?} with {bug:?}, seed {seed}");
        }
    }
}

/// Like the test above, of operations on leaves.
#[test]
fn nothing_is_found_amid_operations_on_leaves() {
    let bug = bugs::switch_on(&Bug::OF_CUT_LEAVES);
    let layouts = match bug {
        None => vec![Layout::Mirror, Layout::Raidz1],
        Some(Bug::ReflowWidensEarly) => vec![Layout::Raidz1],
        Some(_) => vec![Layout::Mirror],
    };
    for layout in layouts {
        for seed in seeds_with(bug) {
            let found = suite(Subject::Leaves, layout, bug, seed);
            assert_eq!(found, Ok(()), "{layout:?} with {bug:?}, seed {seed}");
        }
    }
}

#[test]
fn every_seeded_bug_is_found() {
    check_found(&Bug::OF_POOLS, "nothing_is_found_in_the_engine");
}

#[test]
fn every_seeded_bug_of_operations_on_leaves_is_found() {
    check_found(&Bug::OF_CUT_LEAVES, "nothing_is_found_amid_operations_on_leaves");
}

fn check_found(bugs: &[Bug], test: &'static str) {
    if bugs::are_missing() {
        return;
    }
    let left = Mutex::new(bugs.iter().copied());
    let missed = Mutex::new(Vec::new());
    let look = || {
        loop {
            let Some(bug) = left.lock().expect("no panic").next() else { return };
            match said_of(test, bug) {
                Some(said) => println!("{bug:?}: found by {said}"),
                None => missed.lock().expect("no panic").push(bug),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(look);
        }
    });
    assert_eq!(missed.into_inner().expect("no panic"), [], "not found");
}

/// Returns the finding of a test in an engine with a bug.
fn said_of(test: &str, bug: Bug) -> Option<String> {
    let text = bugs::failure(test, bug, &[])?;
    let found = |line: &str| {
        let line = line.trim();
        let is_one = line.starts_with("left: Err(")
            || ["a leaf lacks data", "the vdev has not"].iter().any(|text| line.starts_with(text))
            // A suspended pool, which nobody clears.
            || line.contains("deadlock in the simulation")
            || line.ends_with("its labels");
        is_one.then(|| line.chars().take(160).collect())
    };
    Some(text.lines().find_map(found).unwrap_or_else(|| panic!("{bug:?}: {text}")))
}
