//! Histories of whole pools with faults: see the library.
//!
//! `CENOTE_SEED` gives the first seed, `CENOTE_CASES` the number of histories; `CENOTE_TEST_ALL`
//! runs many.

use std::path::Path;
use std::process::Command;

use cenote_sim::batch::{self, Extent};
use cenote_testkit::rng::{cases, number};

/// Histories of a short run, and of a long one: under two minutes and an hour of two processors, with
/// half a second of processor time each.
const FEW: u64 = 300;
const MANY: u64 = 15_000;

/// Histories that showed bugs.
#[test]
fn histories_of_mended_bugs_lose_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let (_, failure) = batch::run_file(&path).unwrap();
        if let Some(failure) = failure {
            panic!("{}: {}", path.display(), failure.text());
        }
    }
}

#[test]
fn histories_lose_nothing() {
    let base = number("CENOTE_SEED").unwrap_or(1);
    println!("CENOTE_SEED={base}");
    let (tally, failure) = batch::run(base, Extent::Count(cases(FEW, MANY)));
    println!("{tally}");
    if let Some(failure) = failure {
        panic!("{}", failure.shrunk());
    }
}

/// Runs histories in a process of its own. Returns what it prints.
fn run_apart(seed: u64, interleaved: bool) -> String {
    let program = env!("CARGO_BIN_EXE_sim");
    let arguments = ["--count", "3", "--no-shrink", "--base", &seed.to_string()];
    // On one processor the histories run one after the other, otherwise side by side.
    let mut command = if interleaved {
        Command::new(program)
    } else {
        let mut command = Command::new("taskset");
        command.args(["-c", "0", program]);
        command
    };
    let ended = command.args(arguments).output();
    let ended = ended.or_else(|_| Command::new(program).args(arguments).output());
    let ended = ended.expect("it starts");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    String::from_utf8(ended.stdout).expect("text")
}

#[test]
fn a_seed_gives_the_same_commands_in_every_process() {
    let base = number("CENOTE_SEED").unwrap_or(500);
    for seed in (base..).step_by(3).take(4) {
        let (one, other) = (run_apart(seed, true), run_apart(seed, false));
        assert_eq!(one, other, "seed {seed}");
        assert!(one.contains("hash of the commands: "), "{one}");
        assert_ne!(one, run_apart(seed + 1, true), "seed {seed}");
    }
}
