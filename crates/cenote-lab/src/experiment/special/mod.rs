//! Metadata on a special vdev.
//!
//! ```text
//!   disk      hdd-7200, alone, and with a special vdev of nvme
//!   file      records of 8K; one is read for each indirect block, in random order, by 16 threads
//!   objects   many small files, whose dnodes are read in random order, as a listing by name does
//!   scrub     of everything
//! ```
//!
//! No report is repeated. A random read needs an indirect block and then the record: two reads of a
//! disk, of which a special vdev takes one.
//!
//! Sources: spec 09 §3.6; spec 05 §9.

mod tables;
mod worlds;

use self::worlds::{Outcome, Plan};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{joined_hash, run_all};
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "special",
    title: "metadata on a special vdev: listing, random reads, scrub",
    published: "none; bounds by counting: a read without metadata on the disk is one read less",
    policies: &["openzfs-2.3"],
    devices: &["hdd-7200", "nvme"],
    can_be_real: false,
    measure,
};

/// A world with its results.
type Run = (Plan, Outcome);

fn measure(
    options: &Options,
    policies: &[&'static Policy],
) -> std::result::Result<Measured, LabError> {
    let (records, objects) = match options.scale {
        Scale::Small => (32 << 10, 4 << 10),
        Scale::Default => (256 << 10, 32 << 10),
        Scale::Full => (4 << 20, 256 << 10),
    };
    let mut plans = Vec::new();
    for policy in policies {
        for has_special in [false, true] {
            plans.push(Plan { policy, has_special, records, objects, seed: options.seed });
        }
    }
    let outcomes = run_all(options.jobs, &plans, worlds::run)?;
    let hash = joined_hash(outcomes.iter().map(|outcome| outcome.hash));
    let runs: Vec<Run> = plans.into_iter().zip(outcomes).collect();
    let mut measured = Measured { hash, ..Measured::default() };
    tables::add(&mut measured, &runs);
    Ok(measured)
}
