//! A simulation is a function of its seed: two runs send the same commands with the same bytes at
//! the same times in the same order, whatever else the process does and in every process.

use std::process::Command;
use std::sync::Arc;

use cenote_device::{CommandHash, SimulatedDisk};
use cenote_poolkit::crash::workload::{self, Layout, Subject};
use cenote_rt::{Costs, World, simulate};
use cenote_testkit::rng::wants_all;
use cenote_testkit::skip;

/// Minimum number of changes of a long run.
const OPERATIONS: u64 = 1000;
/// Number of rounds of a long run.
const ROUNDS: u64 = 100;
/// Number of rounds of the other runs.
const FEW_ROUNDS: u64 = 15;
/// Variable that makes a child print its hashes.
const CHILD: &str = "CENOTE_DETERMINISM_CHILD";
/// Start of the line with the hashes of a child.
const HASHES: &str = "hashes: ";

/// Hash of a run, and what it did.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Hash of all commands and answers.
    commands: u128,
    /// Hash of everything that was written, in its order.
    written: u64,
    count: u64,
    /// Number of changes.
    operations: u64,
}

fn run_in(world: World, layout: Layout, rounds: u64) -> Outcome {
    let (seed, hash) = (world.seed, CommandHash::new());
    let wrapper = Arc::clone(&hash);
    let disk = move |path, size| wrapper.wrap(Arc::new(SimulatedDisk::new(path, size)));
    let run = simulate(world, workload::run(Subject::Datasets, layout, seed, rounds, disk));
    let run = run.expect("a simulation").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    Outcome {
        commands: hash.value(),
        written: run.log.hash(),
        count: hash.commands(),
        operations: run.operations,
    }
}

/// Returns a machine on which work takes time.
fn machine(seed: u64) -> World {
    World { costs: Some(Costs::frozen()), ..World::new(seed) }
}

fn run(layout: Layout, seed: u64) -> Outcome {
    run_in(machine(seed), layout, FEW_ROUNDS)
}

#[test]
fn runs_with_one_seed_are_equal() {
    let more = if wants_all() { &Layout::MORE[..] } else { &[] };
    for layout in Layout::USUAL.iter().chain(more) {
        // Each world runs beside the others of its process.
        let [first, again, other] = std::thread::scope(|scope| {
            let runs =
                [1, 1, 2].map(|seed| scope.spawn(move || run_in(machine(seed), *layout, ROUNDS)));
            runs.map(|run| run.join().unwrap())
        });
        assert_eq!(again, first, "{layout:?}");
        assert!(first.operations >= OPERATIONS, "only {} operations", first.operations);
        assert_ne!(other.commands, first.commands, "{layout:?}");
        assert_ne!(other.written, first.written, "{layout:?}");
    }
}

/// Tests that the second world of a thread is equal to the first, also after other worlds.
#[test]
fn earlier_worlds_leave_no_trace() {
    let first = run(Layout::Mirror, 3);
    run(Layout::Disk, 4);
    assert_eq!(run(Layout::Mirror, 3), first);
    // Without costs the commands are sent at other times.
    assert_ne!(run_in(World::new(3), Layout::Mirror, FEW_ROUNDS).commands, first.commands);
}

/// Tests that a seed of the order of tasks determines another order, which is as good.
#[test]
fn order_of_tasks_is_determined_by_its_seed() {
    let ordered =
        |interleave| run_in(World { interleave, ..machine(1) }, Layout::Mirror, FEW_ROUNDS);
    let [by_wakeup, first, again, other] = [None, Some(1), Some(1), Some(2)].map(ordered);
    assert_eq!(again, first);
    assert_ne!(first.commands, by_wakeup.commands);
    assert_ne!(other.commands, first.commands);
}

/// Prints the hashes of two runs, for the test that compares processes.
fn hashes() -> String {
    let plain = run(Layout::Raidz2, 1);
    let interleaved = World { interleave: Some(7), ..machine(1) };
    format!("{HASHES}{plain:x?}, {:x?}", run_in(interleaved, Layout::Disk, FEW_ROUNDS))
}

#[test]
fn processes_agree() {
    if std::env::var_os(CHILD).is_some() {
        return println!("\n{}", hashes());
    }
    let mut own = Command::new(std::env::current_exe().unwrap());
    // The other process has one processor, so that nothing may depend on their number.
    let mut bound = Command::new("taskset");
    bound.arg("1").arg(std::env::current_exe().unwrap());
    let mut want = None;
    for child in [&mut own, &mut bound] {
        let child = child.args(["--exact", "processes_agree", "--nocapture"]).env(CHILD, "1");
        let said = match child.output() {
            Err(_) if want.is_some() => {
                return skip::skip(&skip::current_test(), "taskset is not installed");
            }
            said => said.unwrap(),
        };
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with(HASHES)).map(str::to_owned);
        let line = line.unwrap_or_else(|| panic!("a child failed: {text}"));
        assert_eq!(&line, want.get_or_insert_with(hashes));
    }
}
