//! A pool of 512-byte sectors on disks whose sectors have 4096 bytes.
//!
//! ```text
//!   disk      hdd-7200 with sectors of 512 bytes, and of 4096 that takes commands of 512 (512e)
//!   raw       writes of 8K one after the other, at multiples of 4096 bytes, and 512 bytes later
//!   pool      a file fills 80 % of the disk, and is overwritten at random; by ashift of the pool
//!   space     files of compressible records; by ashift and size of the records
//! ```
//!
//! No report is repeated: the bounds are arithmetic. A write of a part of a sector is a read of the
//! sector, and a write when it passes the head again: a revolution later.
//!
//! The write cache of the disks is off, so that the time of a write is the time of the medium. As
//! in `overwrite`, the metadata of the pool is on a disk that takes as good as no time, and
//! positions are stretched.
//!
//! Sources: spec 09 §3.6.

mod emulated;
mod tables;
mod worlds;

use self::worlds::{Plan, Raw, Space};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{joined_hash, run_all};
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "ashift",
    title: "pools of 512-byte sectors on disks with sectors of 4096 bytes",
    published: "none; bounds by arithmetic: a write of a part of a sector takes a revolution more",
    policies: &["openzfs-2.3"],
    devices: &["hdd-7200", "hdd-7200-512e"],
    can_be_real: false,
    measure,
};

/// Disks: whether sectors are emulated, and ashift of the pool.
const PAIRS: [(bool, u64); 4] = [(false, 9), (false, 12), (true, 9), (true, 12)];

/// Everything that was measured.
struct Runs {
    raw: Vec<Raw>,
    pools: Vec<(Plan, worlds::Outcome)>,
    spaces: Vec<Space>,
}

fn measure(
    options: &Options,
    policies: &[&'static Policy],
) -> std::result::Result<Measured, LabError> {
    let (records, passes, raw_writes) = match options.scale {
        Scale::Small => (6_553, 1, 200),
        Scale::Default => (20_000, 2, 1_000),
        Scale::Full => (200_000, 3, 10_000),
    };
    let seed = options.seed;
    let mut measured = Measured::default();
    let mut hashes = Vec::new();
    let mut runs = Runs { raw: Vec::new(), pools: Vec::new(), spaces: Vec::new() };
    for shift in [0, worlds::SMALL_SECTOR] {
        runs.raw.push(worlds::raw(seed, shift, raw_writes));
    }
    for policy in policies {
        let plan =
            |(is_emulated, ashift)| Plan { policy, is_emulated, ashift, records, passes, seed };
        let plans = PAIRS.map(plan);
        let outcomes = run_all(options.jobs, &plans, worlds::run)?;
        hashes.extend(outcomes.iter().map(|outcome| outcome.hash));
        runs.pools.extend(plans.into_iter().zip(outcomes));
        for ashift in [9, 12] {
            let (spaces, hash) = worlds::space(policy, seed, ashift)?;
            runs.spaces.extend(spaces);
            hashes.push(hash);
        }
    }
    measured.hash = joined_hash(hashes);
    tables::add(&mut measured, &runs, options.scale != Scale::Small);
    Ok(measured)
}
