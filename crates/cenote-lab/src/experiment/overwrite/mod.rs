//! Report 004: random overwrites of a pool, by how full it is.
//!
//! ```text
//!   disk       one vm-lun of 128 metaslabs of 2 MiB; the report's has 256 of 128 MiB
//!   file       records of 8K, incompressible, fill 10 to 93 % of the disk
//!   load       8K blocks at random places, until 2.5 times the disk is written in all
//!   policies   the allocator of 2013, that of OpenZFS 2.3, and metadata apart from data
//! ```
//!
//! **Scale.** A txg writes a quarter of a metaslab, as the report's least txg of 32 MiB did.
//! Records, sectors and the aggregation limit are compared with each other, and stay. A commit has
//! some hundred small writes in a long chain, whatever the scale: nothing beside 32 MiB, and more
//! than the overwrites beside half a megabyte. So a small pool has a second disk, a special vdev
//! for the metadata of the pool (not of the file) that takes as good as no time; and `vm-lun`,
//! where a write takes 2.6 ms and ten are in progress, becomes `vm-lun-serial`, with the same
//! throughput for writes of each size, but one at a time. Work takes no time of processors, which
//! were not the limit in the report. What is left of a commit is measured, and counted once per
//! 32 MiB.
//!
//! **One difference at a time.** All policies write indirect blocks of 16K, and as many blocks in
//! each txg. What differs is where blocks are.
//!
//! Sources: spec 09 §3.5, §4.1, §1.7; spec 05 §8, §12.

mod pictures;
mod tables;
mod worlds;

use cenote_device::model::table::{HDD_7200, NVME, SSD_SATA_2018, VM_LUN};
use cenote_device::model::{LunParams, Params, RotatingParams};

use self::worlds::{Disk, Outcome, Plan, Size, Variant};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{joined_hash, run_all};
use crate::place::Place;
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "overwrite",
    title: "random overwrites: steady throughput against occupancy, and metaslabs in use",
    published: "U. Vallamsetty, 2013: throughput falls with occupancy; 2.5 x the metaslabs in use",
    policies: &[HISTORIC, CURRENT, SEPARATE],
    devices: &["vm-lun-serial", "hdd-7200", "ssd-sata-2018", "nvme"],
    can_be_real: true,
    measure,
};

const HISTORIC: &str = "historic-2013";
const CURRENT: &str = "openzfs-2.3";
const SEPARATE: &str = "cenote-separate";

/// Name of a disk that is a file.
const FILE: &str = "file";

/// A LUN with the throughput of `vm-lun` that does one command at a time.
const VM_LUN_SERIAL: LunParams =
    LunParams { depth: 1, fixed_ns: VM_LUN.fixed_ns / VM_LUN.depth, ..VM_LUN };

/// Other devices. Positions on the disk are stretched as the pool is smaller than the report's.
const DEVICES: [(&str, Params); 3] = [
    ("hdd-7200", Params::Rotating(RotatingParams { stretch: 128, ..HDD_7200 })),
    ("ssd-sata-2018", Params::Flash(SSD_SATA_2018)),
    ("nvme", Params::Flash(NVME)),
];

/// Occupancy at which the readers' questions are answered.
const ASKED_PERCENT: u64 = 50;

/// A world with its results.
type Run = (Plan, Outcome);

/// Returns the worlds that repeat the report.
fn usual(runs: &[Run]) -> impl Iterator<Item = &Run> {
    let device = runs.first().map(|(plan, _)| plan.device.name);
    let is_usual =
        move |(plan, _): &&Run| plan.variant == Variant::Usual && Some(plan.device.name) == device;
    runs.iter().filter(is_usual)
}

/// Worlds of a scale.
struct Setup {
    size: Size,
    device: Disk,
    percents: &'static [u64],
    has_questions: bool,
}

impl Setup {
    fn of(scale: Scale, place: &Place) -> Self {
        let setup = Self::of_models(scale);
        if place.is_real() {
            let device = Disk { name: FILE, writes_active: 10, ..setup.device };
            // Commits are a part of the work, on the same disk: txgs are of some MiB.
            let (shift, txg_blocks) = match scale {
                Scale::Small => (22, 128),
                Scale::Default | Scale::Full => (24, 512),
            };
            let size = Size { shift, txg_blocks, is_scaled: false, ..setup.size };
            return Self { size, device, ..setup };
        }
        setup
    }

    const fn of_models(scale: Scale) -> Self {
        let params = Params::Lun(VM_LUN_SERIAL);
        let serial = Disk { name: "vm-lun-serial", params, writes_active: 1 };
        let overwrites_percent = 110;
        match scale {
            Scale::Small => Self {
                size: Size {
                    metaslabs: 64,
                    shift: 20,
                    txg_blocks: 32,
                    overwrites_percent: 40,
                    is_scaled: true,
                },
                device: serial,
                percents: &[25, 75],
                has_questions: false,
            },
            Scale::Default => Self {
                size: Size {
                    metaslabs: 128,
                    shift: 21,
                    txg_blocks: 64,
                    overwrites_percent,
                    is_scaled: true,
                },
                device: serial,
                percents: &[10, 25, 50, 75, 90, 93],
                has_questions: true,
            },
            Scale::Full => Self {
                size: Size {
                    metaslabs: 256,
                    shift: 27,
                    txg_blocks: 8192,
                    overwrites_percent,
                    is_scaled: false,
                },
                device: Disk { name: "vm-lun", params: Params::Lun(VM_LUN), writes_active: 10 },
                percents: &[10, 25, 50, 75, 90, 93],
                has_questions: true,
            },
        }
    }

    fn plans(&self, policies: &[&'static Policy], seed: u64) -> Vec<Plan> {
        let plan = |policy, percent, variant, device| Plan {
            policy,
            percent,
            variant,
            device,
            size: self.size,
            seed,
        };
        let mut plans = Vec::new();
        for policy in policies {
            for percent in self.percents {
                plans.push(plan(policy, *percent, Variant::Usual, self.device));
            }
        }
        if self.has_questions {
            plans.extend(self.questions(policies, plan));
        }
        plans
    }

    /// Returns the worlds of the readers' questions.
    fn questions(
        &self,
        policies: &[&'static Policy],
        plan: impl Fn(&'static Policy, u64, Variant, Disk) -> Plan,
    ) -> Vec<Plan> {
        let mut plans = Vec::new();
        for policy in policies.iter().filter(|policy| policy.name != HISTORIC) {
            let mut ask =
                |variant, device| plans.push(plan(policy, ASKED_PERCENT, variant, device));
            if policy.name == CURRENT {
                ask(Variant::Compressed, self.device);
                ask(Variant::Once, self.device);
            }
            ask(Variant::FourDisks, self.device);
            // A file is of the kind that its disk is.
            let others = if self.device.name == FILE { &[][..] } else { &DEVICES };
            for (name, params) in others.iter().copied() {
                ask(Variant::Usual, Disk { name, params, writes_active: 10 });
            }
        }
        plans
    }
}

fn measure(
    options: &Options,
    policies: &[&'static Policy],
) -> std::result::Result<Measured, LabError> {
    let setup = Setup::of(options.scale, &options.place);
    let plans = setup.plans(policies, options.seed);
    let outcomes = run_all(options.jobs, &plans, |plan| worlds::run(&options.place, plan))?;
    let hash = joined_hash(outcomes.iter().map(|outcome| outcome.hash));
    let runs: Vec<Run> = plans.into_iter().zip(outcomes).collect();
    let mut measured = Measured { hash, ..Measured::default() };
    tables::add(&mut measured, &runs, options.place.is_real());
    pictures::add(&mut measured, &runs);
    Ok(measured)
}
