//! Power cuts: after every flush boundary of a workload, with any part of the unflushed writes lost
//! or torn, independently for each device, the pool opens, holds exactly one of its committed
//! states, no older than the acknowledged one, and its space maps agree with the reachable blocks.
//! Some points continue from there and are cut again; some are checked by OpenZFS.
//!
//! `CENOTE_SEED` selects another run; `CENOTE_TEST_ALL` runs more layouts.

use cenote_poolkit::crash::explore::{Depth, Tally, explore};
use cenote_poolkit::crash::workload::{
    self, Layout, OPERATIONS, ROUNDS_OF_LEAVES, Subject, operations_on_leaves,
};
use cenote_testkit::rng::{cases, number, wants_all};

/// Rounds of a run, some txgs each: usually, and with `CENOTE_TEST_ALL`.
const ROUNDS: (u64, u64) = (40, 78);
/// Minimum number of txgs for each layout, in a round.
const TXGS_MIN: u64 = 4;
/// Minimum number of points of the usual layouts, in a round.
const POINTS_MIN: usize = 200;
/// Number of layouts of operations on leaves that are usually run.
const USUAL: usize = 2;
/// One in this many boundaries is examined: usually, and with `CENOTE_TEST_ALL`.
const STRIDES: (u64, u64) = (16, 4);
/// Minimum number of points of a layout with operations on leaves.
const POINTS_OF_LEAVES_MIN: usize = 150;
/// At least one in this many points is cut again, in its recovery or later.
const AGAIN_OF: usize = 10;
/// At least one in this many points, before further cuts, is checked by OpenZFS.
const JUDGED_OF: usize = 100;

#[test]
fn every_cut_leaves_a_committed_state() {
    let seed = number("CENOTE_SEED").unwrap_or(1);
    println!("CENOTE_SEED={seed}");
    let usual = go_through_datasets(&Layout::USUAL, seed);
    let points: usize = usual.iter().map(|tally| tally.points + tally.again).sum();
    assert!(points >= POINTS_MIN * rounds() as usize, "only {points} points");
    let (cut, again) =
        usual.iter().fold((0, 0), |(cut, again), tally| (cut + tally.points, again + tally.again));
    assert!(again >= cut / AGAIN_OF, "only {again} of {cut} were cut again");
    let judged: usize = usual.iter().map(|tally| tally.judged).sum();
    assert!(judged == 0 || judged >= cut / JUDGED_OF, "only {judged} were shown to OpenZFS");
    if wants_all() {
        go_through_datasets(&Layout::MORE, seed);
    }
}

fn go_through_datasets(layouts: &[Layout], seed: u64) -> Vec<Tally> {
    let tallies = go_through(Subject::Datasets, layouts, seed);
    for (tally, layout) in tallies.iter().zip(layouts) {
        assert!(tally.checkpoints > 0 && tally.audited > 0, "{tally:?}");
        // Blocks that fit a sector are not split.
        assert!(tally.gangs > 0 || layout.ashift() > 9, "{tally:?}");
    }
    tallies
}

/// Returns the number of rounds.
fn rounds() -> u64 {
    cases(ROUNDS.0, ROUNDS.1)
}

/// Scans and operations on devices, beside writes: a scan, a resilver, a rebuild, a removal and an
/// expansion go on after each cut, from where they were. At some points all of them are brought to
/// their ends, and every copy on every leaf is right.
#[test]
fn every_cut_amid_operations_on_leaves_leaves_a_committed_state() {
    let seed = number("CENOTE_SEED").unwrap_or(1);
    println!("CENOTE_SEED={seed}");
    let layouts = if wants_all() { &Layout::OF_LEAVES[..] } else { &Layout::OF_LEAVES[..USUAL] };
    let tallies = go_through(Subject::Leaves, layouts, seed);
    for (tally, layout) in tallies.iter().zip(layouts) {
        let least = [tally.again, tally.finished, tally.verified, tally.rewound].into_iter().min();
        assert!(tally.points > POINTS_OF_LEAVES_MIN && least > Some(0), "{tally:?}");
        assert!(tally.stale > 0 || layout.spare_devices() == 0, "{tally:?}");
    }
    let judged: usize = tallies.iter().map(|tally| tally.judged).sum();
    assert!(judged > 0 || cenote_oracle::zdb().is_none(), "none was shown to OpenZFS");
}

/// Runs each layout on its own thread.
fn go_through(subject: Subject, layouts: &[Layout], seed: u64) -> Vec<Tally> {
    let (start, cpu) = (cenote_rt::monotonic(), cpu_seconds());
    let threads: Vec<_> = layouts
        .iter()
        .map(|&layout| (layout, std::thread::spawn(move || go_through_one(subject, layout, seed))))
        .collect();
    let tallies: Vec<_> = threads
        .into_iter()
        .map(|(layout, thread)| {
            let tally = thread.join().expect("no panic").unwrap_or_else(|error| panic!("{error}"));
            println!("{layout:?}: {tally:?}");
            tally
        })
        .collect();
    let points: usize = tallies.iter().map(|tally| tally.points + tally.again).sum();
    let cpu = cpu_seconds() - cpu;
    let per_minute = points as f64 / (cpu / 60.0).max(0.001);
    let wall = cenote_rt::monotonic().saturating_sub(start).as_secs_f64();
    println!("{points} points in {wall:.0} s, {cpu:.0} s of CPU: {per_minute:.0} per CPU minute");
    tallies
}

fn go_through_one(subject: Subject, layout: Layout, seed: u64) -> Result<Tally, String> {
    let (rounds, operations, depth) = match subject {
        Subject::Datasets => (rounds(), OPERATIONS.to_vec(), Depth::FULL),
        Subject::Leaves => {
            let stride = cases(STRIDES.0, STRIDES.1) as usize;
            (ROUNDS_OF_LEAVES, operations_on_leaves(layout), Depth::of_leaves(stride))
        }
    };
    let work = async {
        let run = workload::run(subject, layout, seed, rounds, workload::memory_device).await;
        let run = run.map_err(|error| format!("{layout:?} seed {seed}: {error:?}"))?;
        println!("{layout:?}: {} txgs, {:?}", run.txgs, run.done);
        assert!(run.txgs >= TXGS_MIN * rounds, "{layout:?}: only {} txgs", run.txgs);
        let left: Vec<_> =
            operations.into_iter().filter(|what| !run.done.contains_key(what)).collect();
        assert!(left.is_empty(), "{layout:?}: never done: {left:?}");
        run.check_order().map_err(|error| format!("{layout:?} seed {seed}: {error}"))?;
        explore(layout, seed, &run, depth).await
    };
    cenote_rt::simulate(seed, work).expect("a runtime")
}

/// Returns the CPU time of this process, without OpenZFS's tools.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let times = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    // The kernel counts in hundredths of a second.
    times.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
