//! Synchronous writes with log devices of several kinds.
//!
//! ```text
//!   disk      ssd-sata-2012 with a volume of blocks of 8K
//!   log       none (on the disk itself), another ssd-sata-2012, ssd-sata-2018, vm-lun, nvme
//!   load      1, 8 and 32 writers of 8K at random blocks, each write durable before the next
//! ```
//!
//! No report is repeated. The bound is the device's own: the model of the log device, given the
//! same commands one after the other, says how long a write with its flush takes. Work takes no
//! time of processors, so that only devices and the log's order are compared.
//!
//! No rotating disk is compared: its model writes what directly follows the last byte at once, also
//! after a pause in which the disk has turned on. A log on it would be ten times too fast.
//!
//! Sources: spec 09 §3.6; spec 07 §1.

mod tables;
mod worlds;

use cenote_device::model::Params;
use cenote_device::model::table::{NVME, SSD_SATA_2012, SSD_SATA_2018, VM_LUN};

use self::worlds::{Outcome, Plan};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{joined_hash, run_all};
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "log",
    title: "synchronous writes with log devices of several kinds",
    published: "none; bounds by the models of the devices: a write of the log and its flush",
    policies: &["openzfs-2.3"],
    devices: &["ssd-sata-2012", "ssd-sata-2018", "vm-lun", "nvme"],
    can_be_real: false,
    measure,
};

/// Log devices by name.
const LOGS: [(&str, Option<Params>); 5] = [
    ("none", None),
    ("ssd-sata-2012", Some(Params::Flash(SSD_SATA_2012))),
    ("vm-lun", Some(Params::Lun(VM_LUN))),
    ("ssd-sata-2018", Some(Params::Flash(SSD_SATA_2018))),
    ("nvme", Some(Params::Flash(NVME))),
];
const WRITERS: [u64; 3] = [1, 8, 32];

/// A world with its results.
type Run = (Plan, Outcome);

fn measure(
    options: &Options,
    policies: &[&'static Policy],
) -> std::result::Result<Measured, LabError> {
    let writes = match options.scale {
        Scale::Small => 256,
        Scale::Default => 2_048,
        Scale::Full => 65_536,
    };
    let mut plans = Vec::new();
    for policy in policies {
        for (name, log) in LOGS {
            for writers in WRITERS {
                let seed = options.seed;
                plans.push(Plan { policy, name, log, writers, writes, seed });
            }
        }
    }
    let outcomes = run_all(options.jobs, &plans, worlds::run)?;
    let hash = joined_hash(outcomes.iter().map(|outcome| outcome.hash));
    let runs: Vec<Run> = plans.into_iter().zip(outcomes).collect();
    let mut measured = Measured { hash, ..Measured::default() };
    tables::add(&mut measured, &runs);
    Ok(measured)
}
