//! The tables of the experiment, with their judgements and pictures.

use super::worlds::{CHANGE_S, CHANGES, Figures, Load, Sample, Setting};
use super::{Measured, SettingRun};
use crate::report::{Axis, Cell, Chart, Check, Series, Table, rounded};

/// Ticks in a second.
const HZ: f64 = 100.0;
/// MB of a record.
const RECORD_MB: f64 = 0.131_072;

const FINDINGS: [&str; 5] = [
    "A delay of d ticks of 10 ms allows 100 / d reads a second, whatever the disk can do: 25 reads \
     of 128K are 3.3 MB/s. One other read per half second is enough, if they come regularly: the \
     throttle looks back 50 ticks. Random reads at the same rate leave gaps longer than that, in \
     which the scrub runs at full speed.",
    "The report's 100 MB/s with a delay of 0 was the most that its server could do. One modelled \
     disk reads 150 MB/s at its outer edge.",
    "The values in force can be changed while a scrub runs (cenote tunable set \
     zfs_scrub_delay=0, or a write to parameters/zfs_scrub_delay). They are whole numbers, decimal \
     or 0x: the two-byte write of mdb that the report warns of cannot happen.",
    "Between no throttle and the clamp, a share of the disk's time is the better bargain: long \
     reads, one at a time, and rests in proportion. How much others are slowed down is the setting \
     (cenote_scrub_slowdown_pct).",
    "The pool was written in one piece, so that the scrub reads sequentially. In an aged pool all \
     rates without a delay are lower; the clamp is the same.",
];

pub(super) fn add(measured: &mut Measured, runs: &[SettingRun], change: &[Sample], is_real: bool) {
    add_rates(measured, runs);
    add_published(measured, runs, if is_real { 0.1 } else { 0.03 });
    add_changes(measured, change);
    if !is_real {
        judge(measured, runs);
    }
    judge_changes(measured, change);
    add_charts(measured, runs, change);
    measured.findings.extend(FINDINGS.map(str::to_owned));
}

fn figures_of(runs: &[SettingRun], setting: Setting, load: Load) -> Option<Figures> {
    let run = runs.iter().find(|run| run.setting == setting)?;
    run.figures.iter().find(|(of, _)| *of == load).map(|(_, figures)| *figures)
}

fn add_rates(measured: &mut Measured, runs: &[SettingRun]) {
    let columns = [
        ("setting", None),
        ("other reads/s", None),
        ("MB/s", Some(2)),
        ("reads/s", Some(1)),
        ("other p50 ms", Some(1)),
        ("p99", Some(1)),
        ("p99.9", Some(1)),
        ("disk %", Some(0)),
    ];
    let mut table = Table::new("scrub of one disk, and latency of the other reads", &columns);
    for run in runs {
        for (load, figures) in &run.figures {
            let has_scrub = run.setting != Setting::Off;
            let has_others = *load != Load::None;
            let when = |is_so: bool, value: f64| Cell::from(is_so.then_some(value));
            table.row(vec![
                run.setting.name().into(),
                load.name().into(),
                when(has_scrub, figures.scrub),
                when(has_scrub, figures.reads),
                when(has_others, figures.p50),
                when(has_others, figures.p99),
                when(has_others, figures.p999),
                figures.busy.into(),
            ]);
        }
    }
    measured.tables.push(table);
}

fn add_published(measured: &mut Measured, runs: &[SettingRun], slack: f64) {
    let columns = [
        ("setting", None),
        ("report MB/s", Some(1)),
        ("by the formula", Some(2)),
        ("ours at 20/s", Some(2)),
        ("deviation %", Some(1)),
    ];
    let mut table = Table::new("the clamp: 100 ticks a second, records of 128K", &columns);
    for (ticks, said) in [(4, Some(3.2)), (2, None), (1, Some(13.1))] {
        let Some(ours) = figures_of(runs, Setting::Delay(ticks), Load::Random(20)) else {
            continue;
        };
        let formula = HZ / ticks as f64 * RECORD_MB;
        table.row(vec![
            format!("delay {ticks}").into(),
            said.into(),
            formula.into(),
            ours.scrub.into(),
            ((ours.scrub / formula - 1.0) * 100.0).into(),
        ]);
        let what = format!("delay {ticks}, 20 other reads/s: reads a second");
        measured.checks.push(Check::near(what, ours.reads, HZ / ticks as f64, slack, 2));
    }
    measured.tables.push(table);
}

/// Returns mean MB/s of each setting, without the two seconds after a change.
fn means(change: &[Sample]) -> Vec<f64> {
    let spans = change.chunks(CHANGE_S as usize);
    spans
        .map(|span| {
            let settled = span.get(2..).unwrap_or_default();
            settled.iter().map(|(_, rate)| rate).sum::<f64>() / settled.len().max(1) as f64
        })
        .collect()
}

fn add_changes(measured: &mut Measured, change: &[Sample]) {
    let columns = [("from second", Some(0)), ("setting", None), ("MB/s", Some(2))];
    let title = "tunables changed while scrubs run, 20 other reads/s: mean without the first two \
                 seconds";
    let mut table = Table::new(title, &columns);
    for (index, (setting, rate)) in CHANGES.iter().zip(means(change)).enumerate() {
        table.row(vec![(index as u64 * CHANGE_S).into(), setting.name().into(), rate.into()]);
    }
    measured.tables.push(table);
}

fn judge(measured: &mut Measured, runs: &[SettingRun]) {
    let of = |setting, load| figures_of(runs, setting, load);
    if let Some(clamped) = of(Setting::Delay(4), Load::Regular(2)) {
        let what = "delay 4, one other read each half second: MB/s";
        measured.checks.push(Check::near(what, clamped.scrub, HZ / 4.0 * RECORD_MB, 0.03, 2));
    }
    if let (Some(four), Some(zero)) =
        (of(Setting::Delay(4), Load::None), of(Setting::Delay(0), Load::None))
    {
        let what = "idle pool: delay 4 over delay 0, MB/s";
        measured.checks.push(Check::near(what, four.scrub / zero.scrub, 1.0, 0.05, 3));
    }
    let rates: Vec<f64> = [4, 2, 1, 0]
        .into_iter()
        .filter_map(|ticks| of(Setting::Delay(ticks), Load::Random(20)).map(|found| found.scrub))
        .collect();
    let rises = rates.windows(2).filter(|pair| pair[1] <= pair[0]).count() as u64;
    let what = "20 other reads/s: smaller delays that are not faster";
    measured.checks.push(Check::equal(what, rises, 0));
    // Spec 09 §3.2: (other reads/s, least factor of MB/s, greatest factor of p99).
    for (load, faster, slower) in [(20, 1.4, 1.1), (20, 4.0, 1.3), (60, 2.5, 1.0)] {
        let Some(clamped) = of(Setting::Delay(4), Load::Random(load)) else { continue };
        let shares = [10, 20, 25].map(|pct| of(Setting::Share(pct), Load::Random(load)));
        let shares: Vec<_> = shares.into_iter().flatten().collect();
        // A goal names no setting: one of them has to meet it.
        if shares.len() < 3 {
            continue;
        }
        let allowed = shares.iter().filter(|share| share.p99 <= slower * clamped.p99);
        let best = allowed.map(|share| share.scrub / clamped.scrub).fold(0.0, f64::max);
        let what = format!(
            "{load} other reads/s: best share at {slower} x the p99 of delay 4, its MB/s over those of \
             delay 4"
        );
        measured.checks.push(Check::at_least(what, best, faster, 2));
    }
}

fn judge_changes(measured: &mut Measured, change: &[Sample]) {
    for (setting, rate) in CHANGES.iter().zip(means(change)) {
        if let Setting::Delay(ticks) = setting
            && *ticks > 0
        {
            let what = format!("changed to delay {ticks} while a scrub runs: MB/s");
            let want = HZ / *ticks as f64 * RECORD_MB;
            measured.checks.push(Check::near(what, rate, want, 0.1, 2));
        }
    }
}

fn add_charts(measured: &mut Measured, runs: &[SettingRun], change: &[Sample]) {
    let marks = CHANGES
        .iter()
        .enumerate()
        .map(|(index, setting)| ((index as u64 * CHANGE_S) as f64, setting.name()));
    let points = change.iter().map(|(second, rate)| (*second, rounded(*rate, 2))).collect();
    measured.charts.push(Chart::Lines {
        title: "Tunables changed while a scrub runs, 20 other reads a second".to_owned(),
        x: Axis::linear("seconds"),
        y: Axis::linear("scrub, MB/s"),
        series: vec![Series { name: "scrub".to_owned(), points, is_published: false }],
        marks: marks.collect(),
    });
    for load in [20, 60] {
        measured.charts.extend(trade_off(runs, load));
    }
}

/// Returns rate against latency, a line for each throttle.
fn trade_off(runs: &[SettingRun], load: u64) -> Option<Chart> {
    let kinds: [(&str, &[Setting]); 3] = [
        (
            "zfs_scrub_delay 4, 2, 1, 0",
            &[Setting::Delay(4), Setting::Delay(2), Setting::Delay(1), Setting::Delay(0)],
        ),
        ("openzfs-2.3", &[Setting::QueueLimits]),
        (
            "share, slowing down 10, 20, 25 %",
            &[Setting::Share(10), Setting::Share(20), Setting::Share(25)],
        ),
    ];
    let series: Vec<Series> = kinds
        .into_iter()
        .map(|(name, settings)| {
            let found = settings
                .iter()
                .filter_map(|setting| figures_of(runs, *setting, Load::Random(load)));
            let points = found.map(|found| (rounded(found.p99, 2), rounded(found.scrub, 2)));
            Series { name: name.to_owned(), points: points.collect(), is_published: false }
        })
        .collect();
    let count: usize = series.iter().map(|series| series.points.len()).sum();
    let alone = figures_of(runs, Setting::Off, Load::Random(load));
    let marks = alone.map(|alone| (rounded(alone.p99, 2), "no scrub".to_owned()));
    (count > 2).then(|| Chart::Lines {
        title: format!("What a throttle buys, {load} other reads a second: up and left is better"),
        x: Axis::linear("99th percentile of other reads, ms"),
        y: Axis::linear("scrub, MB/s"),
        series,
        marks: marks.into_iter().collect(),
    })
}
