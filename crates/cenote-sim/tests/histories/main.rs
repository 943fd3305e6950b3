//! Histories of whole pools with faults: see the library.
//!
//! `CENOTE_SEED` gives the first seed, `CENOTE_CASES` the number of histories; `CENOTE_TEST_ALL`
//! runs many.

use std::path::Path;

use cenote_sim::batch::{self, Extent};
use cenote_testkit::rng::{cases, number};

/// Histories of a short run, and of a long one.
const FEW: u64 = 250;
const MANY: u64 = 8_000;

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
