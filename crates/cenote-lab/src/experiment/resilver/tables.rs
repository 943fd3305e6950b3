//! Tables, judgements and pictures of the experiment.

use super::worlds::{Filled, Outcome, Plan};
use super::{Measured, Run};
use crate::report::{Axis, Chart, Check, Series, Table, rounded};

/// Rate of the outermost track, in MB/s.
const RATE_MB: f64 = 150.0;
/// Part by which the time of a rebuild may differ from bytes over rate.
const REBUILD_SLACK: f64 = 0.1;
/// Least time of a healing resilver, over that of a rebuild: it reads the tree first.
const HEALING_LEAST: f64 = 0.98;

const FINDINGS: [&str; 4] = [
    "A rebuild copies what is allocated, in the order of the disk, and knows neither records nor \
     files. Its time is bytes over rate if nothing was overwritten; the holes that overwrites \
     leave are passed, or read with their neighbours, at the same rate.",
    "A rebuild is slower than this bound by a sixth: the old disk works all the time, but it has \
     several reads in progress, and spends a seventh of its time on positioning.",
    "A healing resilver reads the tree first, and then its blocks sorted by place. So it is slower \
     by the reads of the tree, and by what sorting cannot hold: most for small records in random \
     order.",
    "A rebuild verifies no checksum, since it doesn't know any: OpenZFS scrubs afterwards, and the \
     sum of both is more than a resilver takes. What a rebuild gains is the time until there are \
     two copies again.",
];

pub(super) fn add(measured: &mut Measured, runs: &[Run], is_large: bool) {
    let columns = [
        ("file", None),
        ("MB", Some(0)),
        ("healing s", Some(2)),
        ("MB/s", Some(1)),
        ("reads", Some(0)),
        ("rebuild s", Some(2)),
        ("MB/s", Some(1)),
        ("reads", Some(0)),
        ("ratio", Some(2)),
        ("old side busy %", Some(0)),
        ("new side %", Some(0)),
        ("scrub s", Some(2)),
        ("empty s", Some(2)),
        ("empty, -s", Some(2)),
    ];
    let mut table = Table::new("filling a new side of a mirror, beside an idle pool", &columns);
    for (plan, outcome) in runs {
        let mb = outcome.allocated as f64 / 1e6;
        let rate = |filled: &Filled| mb / filled.seconds.max(1e-9);
        let (healing, rebuild) = (&outcome.healing, &outcome.rebuild);
        table.row(vec![
            plan.file().into(),
            mb.into(),
            healing.seconds.into(),
            rate(healing).into(),
            healing.reads.into(),
            rebuild.seconds.into(),
            rate(rebuild).into(),
            rebuild.reads.into(),
            (healing.seconds / rebuild.seconds).into(),
            rebuild.busy[0].into(),
            rebuild.busy[1].into(),
            outcome.scrub_s.into(),
            outcome.empty_s[0].into(),
            outcome.empty_s[1].into(),
        ]);
    }
    measured.tables.push(table);
    for (plan, outcome) in runs {
        let name = plan.file();
        let what = format!("{name}: bytes that the rebuild read, over those allocated");
        let part = outcome.rebuild.read as f64 / outcome.allocated as f64;
        measured.checks.push(Check::at_least(what, part, 0.98, 2));
        if is_large {
            judge_times(measured, plan, outcome);
        }
    }
    if is_large {
        judge_fragmentation(measured, runs);
    }
    measured.charts.push(chart(runs));
    measured.findings.extend(FINDINGS.map(str::to_owned));
}

fn judge_times(measured: &mut Measured, plan: &Plan, outcome: &Outcome) {
    let name = plan.file();
    let at_rate = |bytes: u64| bytes as f64 / 1e6 / RATE_MB;
    let (least, seconds) = (at_rate(outcome.allocated), outcome.rebuild.seconds);
    measured.checks.push(if plan.is_overwritten {
        let most = at_rate(outcome.rebuild.passed) * (1.0 + REBUILD_SLACK);
        let what =
            format!("{name}: seconds of the rebuild, bytes without and with holes over rate");
        Check::within(what, seconds, least, most, 2)
    } else {
        let what = format!("{name}: seconds of the rebuild, bytes over rate");
        Check::near(what, seconds, least, REBUILD_SLACK, 2)
    });
    let what = format!("{name}: healing over rebuild");
    measured.checks.push(Check::at_least(
        what,
        outcome.healing.seconds / seconds,
        HEALING_LEAST,
        2,
    ));
}

/// Judges whether the factor grows with the fragmentation.
fn judge_fragmentation(measured: &mut Measured, runs: &[Run]) {
    let ratio = |(_, outcome): &Run| outcome.healing.seconds / outcome.rebuild.seconds;
    for pair in runs.chunks_exact(2) {
        let what =
            format!("{}K: healing over rebuild, overwritten over in order", pair[0].0.record >> 10);
        measured.checks.push(Check::at_least(what, ratio(&pair[1]) / ratio(&pair[0]), 1.0, 2));
    }
}

fn chart(runs: &[Run]) -> Chart {
    let series = |name: &str, figure: &dyn Fn(&Run) -> f64| Series {
        name: name.to_owned(),
        points: runs
            .iter()
            .enumerate()
            .map(|(index, run)| (index as f64, rounded(figure(run), 2)))
            .collect(),
        is_published: false,
    };
    Chart::Bars {
        title: "Time until a new side of a mirror has everything".to_owned(),
        y: Axis::linear("seconds"),
        groups: runs.iter().map(|(plan, _)| plan.file()).collect(),
        series: vec![
            series("healing resilver", &|(_, outcome)| outcome.healing.seconds),
            series("sequential rebuild", &|(_, outcome)| outcome.rebuild.seconds),
            series("scrub after it", &|(_, outcome)| outcome.scrub_s),
        ],
    }
}
