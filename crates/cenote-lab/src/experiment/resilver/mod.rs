//! A new side of a mirror: a healing resilver against a sequential rebuild.
//!
//! ```text
//!   disks     hdd-7200: one with a file, and a new one that is attached to it
//!   file      records of 8K, of 128K; written in order, and then overwritten at random
//!   healing   zpool attach: reads the tree, and then its blocks in the order of the disk
//!   rebuild   zpool attach -s: reads what space maps say is allocated, in the order of the disk
//! ```
//!
//! No report is repeated: the bounds are arithmetic and the order of both ways in OpenZFS. What an
//! empty pool takes is measured, and subtracted. The scrub after a rebuild, which is what verifies
//! its data, is measured apart.
//!
//! Sources: spec 09 §3.6; spec 06 §15.

mod tables;
mod worlds;

use self::worlds::{Outcome, Plan};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{joined_hash, run_all};
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "resilver",
    title: "a new side of a mirror: healing resilver against sequential rebuild",
    published: "none; bounds by arithmetic: a rebuild copies what is allocated at the disk's rate",
    policies: &["openzfs-2.3"],
    devices: &["hdd-7200"],
    can_be_real: false,
    measure,
};

/// A world with its results.
type Run = (Plan, Outcome);

/// Bytes of a record, by file.
const FILES: [u64; 3] = [8 << 10, 32 << 10, 128 << 10];

fn measure(
    options: &Options,
    policies: &[&'static Policy],
) -> std::result::Result<Measured, LabError> {
    let bytes: u64 = match options.scale {
        Scale::Small => 24 << 20,
        Scale::Default => 1 << 30,
        Scale::Full => 8 << 30,
    };
    let mut plans = Vec::new();
    for policy in policies {
        for record in FILES {
            for is_overwritten in [false, true] {
                let seed = options.seed;
                plans.push(Plan { policy, record, bytes, is_overwritten, seed });
            }
        }
    }
    let outcomes = run_all(options.jobs, &plans, worlds::run)?;
    let hash = joined_hash(outcomes.iter().map(|outcome| outcome.hash));
    let runs: Vec<Run> = plans.into_iter().zip(outcomes).collect();
    let mut measured = Measured { hash, ..Measured::default() };
    tables::add(&mut measured, &runs, options.scale != Scale::Small);
    Ok(measured)
}
