//! Report 002, illumos #8005: long records on RAID-Z left gaps, and some storage wrote half as
//! fast.
//!
//! A block on RAID-Z may end in pads. A pad between two records is written as an optional write
//! that joins both, unless the joined write would exceed the aggregation limit: then a gap of a
//! sector stays, which costs time on a LUN whose array reads, changes and writes back the stripe
//! unit around it.
//!
//! ```text
//!   1. arithmetic   which layouts have pads after columns beyond the limit     (layout)
//!   2. layouts      worlds with disks that do one write at a time: unwritten pads, by policy
//!   3. rates        worlds with 64 records: MB/s on two LUNs and on bare disks, by policy
//!   4. compression  records of many sizes: part of the records that leave a gap
//! ```
//!
//! **How often there is a gap.** A record leaves at most `parity` gaps on the whole vdev. Unless
//! the allocated sectors are a multiple of the number of disks, the next record begins on another
//! disk, so that the gaps go round, and each disk has one gap in `width / pads` columns. The gap of
//! `raid-array-lun` (1.05 ms) was fitted as if each column had one, which is right only where the
//! gaps do not go round. `raid-array-rmw` is fitted with the geometry: a gap of 5.3 ms, about the
//! time in which a disk of an array reads a stripe unit and writes it a revolution later. One
//! parameter is fitted to one figure, the median of the affected cases with records of 1M.
//!
//! **Records in flight.** The engine writes at most eight batches of a file at a time. Records of
//! 1M are a batch each, so that a disk that is ahead of the others runs out of writes, and its last
//! pad has nothing to join. That happens at the border of two txgs: from then on the gap itself
//! holds the disks apart. The files of this experiment are written in one txg each; with two or
//! more, rates with the fix are hardly better than without.
//!
//! Sources: spec 06 §12, spec 09 §2.4, §3.3.

mod layout;
mod pictures;
mod runs;
mod tables;

use cenote_device::model::table::{HDD_10K_SAS, RAID_ARRAY_LUN};
use cenote_device::model::{LunParams, Params};

use self::layout::{Layout, REPORT_WIDTH_MAX, WIDTH_MAX, layouts};
use self::runs::{Outcome, Plan, Purpose, run};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{joined_hash, run_all};
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "pads",
    title: "long records on RAID-Z: gaps where padding was left out, and what a gap costs",
    published: "illumos #8005 (M. Ahrens, 2017): about 2 x slower, affected layouts",
    policies: &["before-8005", "limit-256k", "after-8005", "cenote"],
    devices: &["raid-array-lun", "raid-array-rmw", "hdd-10k-sas"],
    can_be_real: false,
    measure,
};

/// The aggregation limit of the time.
const LIMIT: u64 = 128 << 10;

/// An array's LUN whose gaps cost so much that the median of the affected cases with records of 1M
/// is slower by the report's factor of two.
const RAID_ARRAY_RMW: LunParams = LunParams { gap_ns: 5_300_000, ..RAID_ARRAY_LUN };

/// Devices of the rates.
const DEVICES: [(&str, Params); 3] = [
    ("raid-array-lun", Params::Lun(RAID_ARRAY_LUN)),
    ("raid-array-rmw", Params::Lun(RAID_ARRAY_RMW)),
    ("hdd-10k-sas", Params::Rotating(HDD_10K_SAS)),
];

/// Files of compressed records. The engine writes at most 16 MiB of a dataset at a time, eight such
/// records: longer files would leave gaps where a disk has no further write to join.
const PACKED_FILES: usize = 6;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Cases of the rates. The last three have no pads, or short columns: they were not affected.
const RATES: [(u64, Layout); 12] = [
    (MIB, Layout::new(12, 2, 10)),
    (MIB, Layout::new(9, 2, 10)),
    (MIB, Layout::new(12, 1, 8)),
    (MIB, Layout::new(9, 1, 8)),
    (MIB, Layout::new(9, 2, 8)),
    (MIB, Layout::new(12, 3, 9)),
    (MIB, Layout::new(12, 2, 4)),
    (512 * KIB, Layout::new(12, 1, 4)),
    (256 * KIB, Layout::new(12, 2, 4)),
    (MIB, Layout::new(12, 2, 9)),
    (MIB, Layout::new(12, 1, 5)),
    (128 * KIB, Layout::new(12, 2, 10)),
];

/// The cases of a scale.
#[derive(Debug)]
struct Program {
    layouts: Vec<Layout>,
    records: Vec<u64>,
    rates: Vec<(u64, Layout)>,
    rate_count: u64,
    packed: Vec<Layout>,
}

impl Program {
    fn at(scale: Scale) -> Self {
        let all_to = |width_max| {
            let pairs = [9, 12].into_iter().flat_map(|a| [1, 2, 3].map(|p| (a, p)));
            pairs.flat_map(|(a, p)| layouts(a, p, width_max)).collect::<Vec<_>>()
        };
        let packed = |width_max| {
            let layouts = [1, 2, 3].into_iter().flat_map(|p| layouts(12, p, width_max));
            layouts.filter(|layout| layout.width % 2 == 0).collect::<Vec<_>>()
        };
        match scale {
            Scale::Small => Self {
                layouts: vec![
                    Layout::new(12, 1, 8),
                    Layout::new(9, 2, 5),
                    Layout::new(12, 2, 10),
                    Layout::new(12, 3, 6),
                ],
                records: vec![512 * KIB, MIB],
                rates: vec![RATES[0], RATES[7], RATES[9]],
                rate_count: 64,
                packed: vec![Layout::new(12, 2, 6)],
            },
            Scale::Default => Self {
                layouts: all_to(REPORT_WIDTH_MAX),
                records: vec![128 * KIB, 256 * KIB, 512 * KIB, MIB],
                rates: RATES.to_vec(),
                rate_count: 64,
                packed: packed(REPORT_WIDTH_MAX),
            },
            Scale::Full => Self {
                layouts: all_to(WIDTH_MAX),
                records: vec![128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB],
                rates: RATES.to_vec(),
                rate_count: 512,
                packed: packed(WIDTH_MAX),
            },
        }
    }
}

/// Worlds of one kind with their results.
type Runs = Vec<(Plan, Outcome)>;

fn measure(options: &Options, policies: &[&'static Policy]) -> Result<Measured, LabError> {
    let program = Program::at(options.scale);
    let plan = |layout, records, policy| Plan {
        layout,
        records,
        count: 9,
        first: 2,
        policy,
        device: DEVICES[0].1,
        purpose: Purpose::Layout,
        seed: options.seed,
    };
    let mut plans = Vec::new();
    for policy in policies {
        for layout in &program.layouts {
            plans.push(plan(*layout, program.records.clone(), *policy));
        }
        for layout in &program.packed {
            let packed = plan(*layout, vec![2 * MIB; PACKED_FILES], *policy);
            plans.push(Plan { purpose: Purpose::Compressed, count: 8, first: 1, ..packed });
        }
        for (record, layout) in &program.rates {
            for (_, device) in DEVICES {
                let rate = plan(*layout, vec![*record], *policy);
                let (count, purpose) = (program.rate_count, Purpose::Rate);
                plans.push(Plan { count, device, purpose, ..rate });
            }
        }
    }
    let outcomes = run_all(options.jobs, &plans, run)?;
    let hash = joined_hash(outcomes.iter().map(|outcome| outcome.hash));
    let mut all: Runs = plans.into_iter().zip(outcomes).collect();
    let rates: Runs = all.extract_if(.., |(plan, _)| plan.purpose == Purpose::Rate).collect();
    let packed: Runs =
        all.extract_if(.., |(plan, _)| plan.purpose == Purpose::Compressed).collect();

    let mut measured = Measured { hash, ..Measured::default() };
    tables::add_layouts(&mut measured, &all, &program.records, policies);
    tables::add_rates(&mut measured, &rates, policies);
    tables::add_packed(&mut measured, &packed, policies);
    pictures::add(&mut measured, &rates, &program.records);
    Ok(measured)
}
