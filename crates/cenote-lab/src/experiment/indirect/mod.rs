//! Report 000: the size of indirect blocks.
//!
//! ```text
//!   disks      three hdd-10k-sas, each a vdev
//!   file       records of 8K, all with the same bytes: then an indirect block compresses to 1/16
//!   cases      16 threads read records at random that are 1024, and 128 records apart
//!   policies   indirect blocks of 16K, as before illumos #7104; 32K, 64K; 128K
//! ```
//!
//! A random read needs the record and the indirect block above it, which is not cached yet. Larger
//! indirect blocks are fewer: where reads are as dense as one in 128 records, one of 128K serves
//! eight of them. Nothing is gained where each read has an indirect block of its own.
//!
//! At the end the dataset is destroyed. That reads every indirect block and no record.
//!
//! In other worlds (`aged`) the file fills four fifths of the disks, and each record has other
//! bytes. Four threads overwrite records at random. Then the file is scrubbed, sent, removed, and
//! destroyed with its dataset.
//!
//! Sources: spec 09 §3.1; spec 02 §4.

mod aged;
mod effects;
mod pictures;
mod tables;
mod worlds;

use self::effects::Aged;
use self::worlds::{Case, Outcome, Plan};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{joined_hash, run_all};
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "indirect",
    title: "reads, overwrites, scrub and removal of a large file, by the size of indirect blocks",
    published: "illumos #7104, M. Ahrens, 2016: 583 to 665, and 700 to 1260 reads/s with 128K",
    policies: &[SMALLEST, "indirect-32k", "indirect-64k", LARGEST],
    devices: &["hdd-10k-sas"],
    can_be_real: false,
    measure,
};

const SMALLEST: &str = "indirect-16k";
const LARGEST: &str = "openzfs-2.3";

/// The report's cases, at its scale.
const CASES: [Case; 2] = [Case { apart: 1024, reads: 9_700 }, Case { apart: 128, reads: 97_000 }];
const RECORDS: u64 = 10_000_000;

/// The results of a policy.
type Run = (Plan, Outcome);

fn measure(
    options: &Options,
    policies: &[&'static Policy],
) -> std::result::Result<Measured, LabError> {
    let (scale, rounds) = match options.scale {
        Scale::Small => (100, 2),
        Scale::Default => (10, 4),
        Scale::Full => (1, 1),
    };
    let cases = CASES.map(|case| Case { reads: case.reads / scale, ..case });
    let plan = |policy: &&'static Policy| Plan {
        policy,
        records: RECORDS / scale,
        cases,
        rounds,
        seed: options.seed,
    };
    let plans: Vec<Plan> = policies.iter().map(plan).collect();
    let outcomes = run_all(options.jobs, &plans, worlds::run)?;
    let aged = age(options, policies)?;
    let hashes = outcomes.iter().map(|outcome| outcome.hash);
    let hash = joined_hash(hashes.chain(aged.iter().map(|(_, outcome)| outcome.hash)));
    let runs: Vec<Run> = plans.into_iter().zip(outcomes).collect();
    let mut measured = Measured { hash, ..Measured::default() };
    // At a hundredth most indirect blocks of level 2 are not full, and seeks are short.
    let is_large = options.scale != Scale::Small;
    tables::add(&mut measured, &runs, is_large);
    pictures::add(&mut measured, &runs);
    effects::add(&mut measured, &aged, is_large);
    Ok(measured)
}

/// Runs the worlds of the second part.
fn age(
    options: &Options,
    policies: &[&'static Policy],
) -> std::result::Result<Vec<Aged>, LabError> {
    let (parts, txgs) = match options.scale {
        Scale::Small => (1500, 20),
        Scale::Default => (300, 150),
        Scale::Full => (1, 200),
    };
    let plan = |policy: &&'static Policy| aged::Plan { policy, parts, txgs, seed: options.seed };
    // A small run compares only the ends.
    let is_run = |policy: &&&'static Policy| {
        options.scale != Scale::Small || [SMALLEST, LARGEST].contains(&policy.name)
    };
    let plans: Vec<_> = policies.iter().filter(is_run).map(plan).collect();
    let outcomes = run_all(options.jobs, &plans, aged::run)?;
    Ok(plans.into_iter().zip(outcomes).collect())
}
