//! Tables, judgements and pictures of the second part: overwrites, and operations on whole files.

use super::aged::{Outcome, Plan, Task};
use super::worlds::LEVELS;
use super::{LARGEST, Measured, SMALLEST};
use crate::report::{Axis, Cell, Chart, Check, Series, Table, rounded};

/// A world of the second part with its results.
pub(super) type Aged = (Plan, Outcome);

/// Published overwrites per second, by policy.
const PUBLISHED: [(&str, f64); 2] = [(SMALLEST, 1100.0), (LARGEST, 1150.0)];
/// Range of the gain of indirect blocks of 128K over those of 16K.
const GAIN: (f64, f64) = (1.02, 1.15);
/// Part by which the bytes of an overwrite may differ from the formula: the file's dnode is in
/// them, too.
const BYTES_SLACK: f64 = 0.05;
/// An operation on the whole file.
struct Operation {
    name: &'static str,
    task: fn(&Outcome) -> Task,
    reads_records: bool,
    /// Most time with indirect blocks of 128K, as a part of that with 16K.
    slower: f64,
}

/// The report saw nothing slower. A send has most of its time from records, which it reads in the
/// order of the file: it gains nothing, and waits longer for an indirect block now and then.
const OPERATIONS: [Operation; 4] = [
    Operation { name: "rm", task: |outcome| outcome.remove, reads_records: false, slower: 1.02 },
    Operation {
        name: "destroy",
        task: |outcome| outcome.destroy,
        reads_records: false,
        slower: 1.02,
    },
    Operation { name: "scrub", task: |outcome| outcome.scrub, reads_records: true, slower: 1.02 },
    Operation { name: "send", task: |outcome| outcome.send, reads_records: true, slower: 1.05 },
];

const FINDINGS: [&str; 4] = [
    "An overwrite reads the indirect block above the record, if it is not cached, and each txg \
     writes every changed indirect block twice. Places of a txg are so far apart that with 128K as \
     many blocks of level 1 change as with 16K, but hardly any above: fewer writes of more bytes. \
     Checksums differ here, so that compression saves only two thirds of an indirect block.",
    "The rate is not the report's. A txg has a small part of the report's overwrites at places as \
     far apart, so that a write costs a seek where the report's sorted writes were neighbours; and \
     the small cache holds written records, too, so that more indirect blocks are read than in the \
     report. Only the ratio is judged.",
    "Scrub, rm and destroy read each indirect block once: an eighth of the blocks with 128K. After \
     random overwrites these reads are at random places. A scrub also reads the records, which is \
     most of its time.",
    "Send reads the blocks that a scrub reads, in the order of the file, and gains nothing from \
     larger indirect blocks: its time is that of the records, and what is behind an indirect block \
     is read when that has been read.",
];

pub(super) fn add(measured: &mut Measured, runs: &[Aged], is_large: bool) {
    if runs.is_empty() {
        return;
    }
    add_overwrites(measured, runs);
    add_tasks(measured, runs);
    judge(measured, runs, is_large);
    measured.charts.extend([overwrite_chart(runs), task_chart(runs)]);
    measured.findings.extend(FINDINGS.map(str::to_owned));
}

fn of<'a>(runs: &'a [Aged], name: &str) -> Option<&'a Aged> {
    runs.iter().find(|(plan, _)| plan.policy.name == name)
}

fn add_overwrites(measured: &mut Measured, runs: &[Aged]) {
    let columns = [
        ("policy", None),
        ("records", Some(0)),
        ("overwrites", Some(0)),
        ("per txg", Some(0)),
        ("per s", Some(0)),
        ("commit ms", Some(1)),
        ("scaled per s", Some(0)),
        ("published", Some(0)),
        ("reads each", Some(2)),
        ("writes each", Some(2)),
        ("KiB each", Some(1)),
        ("disk %", Some(0)),
        ("cache MiB", Some(1)),
        ("frag %", Some(0)),
    ];
    let title = "overwrites of 8K by 4 threads, disks 80 % full";
    let mut table = Table::new(title, &columns);
    for (plan, outcome) in runs {
        let done = &outcome.overwrites;
        let published = PUBLISHED.iter().find(|(name, _)| *name == plan.policy.name);
        table.row(vec![
            plan.policy.name.into(),
            plan.records().into(),
            done.count.into(),
            plan.txg_blocks().into(),
            done.rate().into(),
            done.least_txg_ms.into(),
            done.scaled_rate(plan).into(),
            published.map(|(_, rate)| *rate).into(),
            done.each(done.reads).into(),
            done.each(done.writes).into(),
            (done.each(done.written) / 1024.0).into(),
            done.busy.into(),
            (plan.cache() as f64 / f64::from(1 << 20)).into(),
            outcome.fragmentation.into(),
        ]);
    }
    measured.tables.push(table);
}

fn add_tasks(measured: &mut Measured, runs: &[Aged]) {
    let columns = [
        ("policy", None),
        ("L1", Some(0)),
        ("bytes", Some(0)),
        ("rm s", Some(2)),
        ("reads", Some(0)),
        ("destroy s", Some(2)),
        ("reads", Some(0)),
        ("scrub s", Some(2)),
        ("reads", Some(0)),
        ("send s", Some(2)),
        ("reads", Some(0)),
    ];
    let title = "the overwritten file: removal, destruction of its dataset, scrub, send";
    let mut table = Table::new(title, &columns);
    for (plan, outcome) in runs {
        let mut row: Vec<Cell> = vec![
            plan.policy.name.into(),
            outcome.tree[1].blocks.into(),
            outcome.tree[1].mean().into(),
        ];
        for task in OPERATIONS.iter().map(|operation| (operation.task)(outcome)) {
            row.extend([task.seconds.into(), task.reads.into()]);
        }
        table.row(row);
    }
    measured.tables.push(table);
}

/// Returns the bytes that an overwrite writes: its record, and its part of the indirect blocks that
/// a txg changes, twice each.
fn bytes_each(plan: &Plan, outcome: &Outcome) -> f64 {
    let per_txg = plan.txg_blocks() as f64;
    let changed = |level: &super::worlds::Sum| {
        let all = level.blocks as f64;
        all * (1.0 - (1.0 - 1.0 / all.max(1.0)).powf(per_txg)) * level.mean()
    };
    let above: f64 = outcome.tree[1..LEVELS].iter().map(changed).sum();
    super::worlds::RECORD as f64 + 2.0 * above / per_txg
}

fn judge(measured: &mut Measured, runs: &[Aged], is_large: bool) {
    for (plan, outcome) in runs {
        let name = plan.policy.name;
        let done = &outcome.overwrites;
        let (kib, want) = (done.each(done.written) / 1024.0, bytes_each(plan, outcome) / 1024.0);
        let what = format!("{name}: KiB written for an overwrite");
        measured.checks.push(Check::near(what, kib, want, BYTES_SLACK, 1));
        let metadata: u64 = outcome.tree[1..].iter().map(|level| level.blocks).sum();
        for operation in &OPERATIONS {
            let reads = (operation.task)(outcome).reads;
            // Neighbours are read together; beside the file's there are blocks of its object set.
            let most = metadata as f64 * 1.02 + 4.0;
            let (block, most) = if operation.reads_records {
                ("block", most + outcome.tree[0].blocks as f64)
            } else {
                ("indirect block", most)
            };
            let what = format!("{name}: reads of {}, each {block} at most once", operation.name);
            measured.checks.push(Check::at_most(what, reads as f64, most, 0));
        }
    }
    let (Some(small), Some(large)) = (of(runs, SMALLEST), of(runs, LARGEST)) else { return };
    if is_large {
        let rate = |(plan, outcome): &Aged| outcome.overwrites.scaled_rate(plan);
        let gain = rate(large) / rate(small);
        let what = "overwrites/s of 128K over 16K";
        measured.checks.push(Check::within(what, gain, GAIN.0, GAIN.1, 2));
        for Operation { name, task, slower, .. } in &OPERATIONS {
            let part = task(&large.1).seconds / task(&small.1).seconds;
            let what = format!("seconds of {name}, 128K over 16K");
            measured.checks.push(Check::at_most(what, part, *slower, 2));
        }
    }
}

/// Returns bars of each policy, one group for each figure.
fn bars(
    runs: &[Aged],
    title: &str,
    unit: &str,
    groups: &[&str],
    figure: impl Fn(&Outcome, usize) -> f64,
) -> Chart {
    let series = |(plan, outcome): &Aged| Series {
        name: plan.policy.name.to_owned(),
        points: (0..groups.len())
            .map(|group| (group as f64, rounded(figure(outcome, group), 2)))
            .collect(),
        is_published: false,
    };
    Chart::Bars {
        title: title.to_owned(),
        y: Axis::linear(unit),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        series: runs.iter().map(series).collect(),
    }
}

fn overwrite_chart(runs: &[Aged]) -> Chart {
    let title = "What disks do for an overwrite of 8K";
    bars(runs, title, "commands for an overwrite", &["reads", "writes"], |outcome, group| {
        let done = &outcome.overwrites;
        done.each(if group == 0 { done.reads } else { done.writes })
    })
}

fn task_chart(runs: &[Aged]) -> Chart {
    let title = "Operations on the overwritten file, from a cold cache";
    let names = OPERATIONS.map(|operation| operation.name);
    bars(runs, title, "seconds", &names, |outcome, group| (OPERATIONS[group].task)(outcome).seconds)
}
