//! Tables, judgements and pictures of the experiment.

use super::{Measured, Run, WRITERS};
use crate::report::{Axis, Chart, Check, Series, Table, rounded};

/// Part by which the latency of a single writer may differ from that of the log's commands alone.
const ALONE_SLACK: f64 = 0.1;

const FINDINGS: [&str; 3] = [
    "A synchronous write ends when its record is in the log and the device was flushed: the \
     latency of a single writer is that of these two commands, on the device that has the log. The \
     engine adds nothing.",
    "Writers that come while the log is written share the next commit: a flush serves 32 of them, \
     and they have many times the writes a second.",
    "A log device gains what its write and flush are shorter than the disk's. One of the disk's own \
     kind gains nothing on an otherwise idle disk, and a slower one makes every synchronous write \
     slower than no log device.",
];

pub(super) fn add(measured: &mut Measured, runs: &[Run]) {
    let columns = [
        ("log", None),
        ("writers", Some(0)),
        ("writes/s", Some(0)),
        ("ms mean", Some(3)),
        ("p50", Some(3)),
        ("p99", Some(3)),
        ("log KiB", Some(1)),
        ("flushes/s", Some(0)),
        ("writes a flush", Some(1)),
        ("device ms", Some(3)),
    ];
    let mut table =
        Table::new("synchronous writes of 8K to a volume on one ssd-sata-2012", &columns);
    for (plan, outcome) in runs {
        let flushes = outcome.flushes.max(1) as f64;
        table.row(vec![
            plan.name.into(),
            plan.writers.into(),
            outcome.rate().into(),
            outcome.mean().into(),
            outcome.percentile(50).into(),
            outcome.percentile(99).into(),
            (outcome.log_bytes as f64 / 1024.0 / outcome.log_writes.max(1) as f64).into(),
            (outcome.flushes as f64 / outcome.seconds).into(),
            (outcome.times.len() as f64 / flushes).into(),
            outcome.device_ms.into(),
        ]);
    }
    measured.tables.push(table);
    for (plan, outcome) in runs.iter().filter(|(plan, _)| plan.writers == 1) {
        let what = format!("log {}: ms of a write, as its commands alone", plan.name);
        measured.checks.push(Check::near(what, outcome.mean(), outcome.device_ms, ALONE_SLACK, 3));
    }
    judge_writers(measured, runs);
    measured.charts.extend([
        chart(runs, "Synchronous writes of 8K", "writes a second", |run| run.1.rate()),
        chart(runs, "Their latency, median", "milliseconds", |run| run.1.percentile(50)),
    ]);
    measured.findings.extend(FINDINGS.map(str::to_owned));
}

/// Judges whether more writers have more writes a second, with fewer flushes for each.
fn judge_writers(measured: &mut Measured, runs: &[Run]) {
    for group in runs.chunks_exact(WRITERS.len()) {
        let rates: Vec<f64> = group.iter().map(|(_, outcome)| outcome.rate()).collect();
        let least = rates.windows(2).map(|pair| pair[1] / pair[0]).fold(f64::MAX, f64::min);
        let what = format!("log {}: writes/s with more writers, over fewer", group[0].0.name);
        measured.checks.push(Check::at_least(what, least, 1.0, 2));
    }
}

fn chart(runs: &[Run], title: &str, unit: &str, figure: impl Fn(&Run) -> f64) -> Chart {
    let series = |group: &[Run]| Series {
        name: group[0].0.name.to_owned(),
        points: group.iter().map(|run| (run.0.writers as f64, rounded(figure(run), 3))).collect(),
        is_published: false,
    };
    let log_axis = |name: &str| Axis { name: name.to_owned(), is_log: true };
    Chart::Lines {
        title: title.to_owned(),
        x: log_axis("writers"),
        y: log_axis(unit),
        series: runs.chunks_exact(WRITERS.len()).map(series).collect(),
        marks: Vec::new(),
    }
}
