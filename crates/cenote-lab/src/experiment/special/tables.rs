//! Tables, judgements and pictures of the experiment.

use super::worlds::{Outcome, Task};
use super::{Measured, Run};
use crate::report::{Axis, Cell, Chart, Check, Series, Table, rounded};

/// Least gain of random reads: a read of the disk instead of two.
const READS_GAIN: f64 = 1.6;
/// Reads of the disk that may be those of the pool's configuration.
const FEW: f64 = 2.0;
const TASKS: [&str; 3] = ["listing", "random reads", "scrub"];

const FINDINGS: [&str; 3] = [
    "With a special vdev no dnode and no indirect block is read from the disk: a listing costs the \
     disk nothing.",
    "A random read of a record is one read of the disk instead of two, the second of which could \
     not begin before the first had ended.",
    "A scrub reads the tree first. That part becomes short; the records stay on the disk, and take \
     as long as before.",
];

pub(super) fn add(measured: &mut Measured, runs: &[Run]) {
    let columns = [
        ("metadata", None),
        ("listing s", Some(2)),
        ("disk reads", Some(0)),
        ("special", Some(0)),
        ("reads s", Some(2)),
        ("disk reads", Some(0)),
        ("special", Some(0)),
        ("scrub s", Some(2)),
        ("disk reads", Some(0)),
        ("special", Some(0)),
    ];
    let mut table =
        Table::new("a file and many objects on one hdd-7200, from a cold cache", &columns);
    for (plan, outcome) in runs {
        let mut row: Vec<Cell> = vec![plan.name().into()];
        for task in tasks(outcome) {
            row.extend([task.seconds.into(), task.disk.into(), task.special.into()]);
        }
        table.row(row);
    }
    measured.tables.push(table);
    for pair in runs.chunks_exact(2) {
        judge(measured, &pair[0], &pair[1]);
    }
    measured.charts.push(chart(runs));
    measured.findings.extend(FINDINGS.map(str::to_owned));
}

fn tasks(outcome: &Outcome) -> [Task; 3] {
    [outcome.listing, outcome.reads, outcome.scrub]
}

fn judge(measured: &mut Measured, (_, without): &Run, (plan, with): &Run) {
    let what = "with special: reads of the disk for a listing";
    measured.checks.push(Check::at_most(what, with.listing.disk as f64, FEW, 0));
    let what = "with special: reads of the disk for a random read";
    let each = with.reads.disk as f64 / plan.places() as f64;
    measured.checks.push(Check::near(what, each, 1.0, 0.05, 2));
    let what = "random reads: gain of a special vdev";
    let gain = without.reads.seconds / with.reads.seconds;
    measured.checks.push(Check::at_least(what, gain, READS_GAIN, 2));
    let what = "scrub: seconds with a special vdev, over those without";
    let part = with.scrub.seconds / without.scrub.seconds;
    measured.checks.push(Check::at_most(what, part, 1.0, 2));
}

fn chart(runs: &[Run]) -> Chart {
    let series = |(plan, outcome): &Run| Series {
        name: plan.name().to_owned(),
        points: tasks(outcome)
            .iter()
            .enumerate()
            .map(|(index, task)| (index as f64, rounded(task.seconds, 2)))
            .collect(),
        is_published: false,
    };
    Chart::Bars {
        title: "With metadata on the disk, and on a special vdev".to_owned(),
        y: Axis::linear("seconds"),
        groups: TASKS.map(str::to_owned).to_vec(),
        series: runs.iter().map(series).collect(),
    }
}
