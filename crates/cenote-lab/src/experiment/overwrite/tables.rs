//! The tables of the experiment, with their judgements.

use super::worlds::Variant;
use super::{CURRENT, HISTORIC, Measured, Run, SEPARATE, usual};
use crate::report::{Cell, Check, Table};

/// Log2 of the largest aggregated write.
const LONGEST: usize = 17;
/// Published figures: part of the writes of a fill that have 128K, and their mean KiB.
const FILL_LONG_PERCENT: f64 = 14_321.0 / 18_448.0 * 100.0;
const FILL_KIB: f64 = 109.0;
/// Least rate of metadata apart from data, compared with OpenZFS 2.3, by percent of occupancy.
const GOALS: [(u64, f64); 3] = [(50, 1.25), (75, 1.4), (93, 1.5)];
/// Metaslabs of the smallest pool that is compared with the report's.
const METASLABS_TO_JUDGE: u64 = 128;
/// Least rate at all other occupancies.
const NOWHERE_WORSE: f64 = 0.97;
/// Overwrites a second of the reference model (spec 09 §3.5), by policy and occupancy.
const MODEL: [(&str, [(u64, f64); 5]); 3] = [
    (HISTORIC, [(10, 8021.0), (25, 4357.0), (50, 2942.0), (75, 1864.0), (93, 1299.0)]),
    (CURRENT, [(10, 10549.0), (25, 6215.0), (50, 3369.0), (75, 1941.0), (93, 1308.0)]),
    (SEPARATE, [(10, 10504.0), (25, 7591.0), (50, 4241.0), (75, 2806.0), (93, 2109.0)]),
];

const FINDINGS: [&str; 6] = [
    "The policies differ only in where they place blocks. With 2013's, the outer part of the disk \
     is preferred, which keeps the rest empty: the report's 2.5 times as many metaslabs in use. \
     OpenZFS 2.3 uses all of them, and its free runs are longer where there is much free space. \
     From 75 % on both are equal: what is free between blocks that stay is single holes, and no \
     choice among holes makes them longer.",
    "An overwrite of 8K writes an indirect block twice, and these are written again soon, in most \
     txgs. Half of all holes are theirs. In metaslabs of their own they leave long free runs to \
     each other, and data leave longer ones, too.",
    "Rates at the report's txg are those of txgs of 32 MiB: the time of a commit, measured with \
     txgs of one overwrite, is counted once per 32 MiB. The other columns are as measured.",
    "Compression costs nothing if data do not compress. Without overwriting (each block of a \
     sparse file written once) the rate does not fall: fragmentation, not the random order, is \
     what costs.",
    "On flash the shape of free space matters less: a write of 8K costs little more per byte than \
     one of 128K. On a rotating disk it matters most.",
    "A separate log does not appear: nothing here is written synchronously, so that a log device \
     would be idle.",
];

pub(super) fn add(measured: &mut Measured, runs: &[Run], is_real: bool) {
    add_rates(measured, runs);
    add_questions(measured, runs);
    measured.findings.extend(FINDINGS.map(str::to_owned));
    if is_real {
        // The bounds and the model are those of the modelled disks.
        return;
    }
    judge_curves(measured, runs);
    // Smaller pools have too few blocks between two commits.
    if runs.first().is_some_and(|(plan, _)| plan.size.metaslabs >= METASLABS_TO_JUDGE) {
        judge_fill(measured, runs);
        judge_spread(measured, runs);
    }
    judge_policy(measured, runs);
    add_model(measured, runs);
}

fn run_of<'a>(runs: &'a [Run], policy: &str, percent: u64) -> Option<&'a Run> {
    usual(runs).find(|(plan, _)| plan.policy.name == policy && plan.percent == percent)
}

/// Returns the settled rate at the report's txg.
fn rate((plan, run): &Run) -> f64 {
    run.scaled_rate(plan)
}

fn percentile(run: &Run, percent: usize) -> f64 {
    let times = &run.1.txg_ms;
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

fn add_rates(measured: &mut Measured, runs: &[Run]) {
    let columns = [
        ("policy", None),
        ("full %", Some(0)),
        ("first 8K/s", Some(0)),
        ("settled", Some(0)),
        ("trend", Some(2)),
        ("at the report's txg", Some(0)),
        ("MB/s", Some(1)),
        ("of the emptiest", Some(2)),
        ("write KiB", Some(1)),
        ("written", Some(2)),
        ("in use", Some(0)),
        ("x full", Some(2)),
        ("frag %", Some(0)),
        ("txg ms p50", Some(1)),
        ("p99", Some(1)),
        ("deferred %", Some(1)),
        ("commit %", Some(0)),
    ];
    let mut table = Table::new("random overwrites of 8K", &columns);
    for one in usual(runs) {
        let (plan, run) = one;
        let (_, used) = run.used();
        let emptiest = usual(runs).find(|(other, _)| other.policy.name == plan.policy.name);
        table.row(vec![
            plan.policy.name.into(),
            plan.percent.into(),
            run.samples.first().map(|sample| sample.rate).into(),
            run.settled(|sample| sample.rate).into(),
            run.trend().into(),
            rate(one).into(),
            (rate(one) * super::worlds::BLOCK as f64 / 1e6).into(),
            emptiest.map(|emptiest| rate(one) / rate(emptiest)).into(),
            run.settled(|sample| sample.write_kib).into(),
            run.settled(|sample| sample.amplification).into(),
            used.into(),
            times_full(one).into(),
            run.fragmentation.into(),
            percentile(one, 50).into(),
            percentile(one, 99).into(),
            run.deferred.into(),
            (run.least_txg_ms / percentile(one, 50).max(1e-9) * 100.0).into(),
        ]);
    }
    measured.tables.push(table);
}

/// Returns the metaslabs in use, compared with those that the file needs.
fn times_full((plan, run): &Run) -> f64 {
    run.used().1 as f64 / (plan.size.metaslabs * plan.percent) as f64 * 100.0
}

fn add_model(measured: &mut Measured, runs: &[Run]) {
    let columns = [
        ("policy", None),
        ("full %", Some(0)),
        ("model 8K/s", Some(0)),
        ("ours", Some(0)),
        ("deviation %", Some(0)),
        ("over openzfs-2.3: model", Some(2)),
        ("ours", Some(2)),
    ];
    let mut table = Table::new("compared with a model of allocations without an engine", &columns);
    for (policy, figures) in MODEL {
        for (percent, model) in figures {
            let Some(one) = run_of(runs, policy, percent) else { continue };
            let current = MODEL[1].1.iter().find(|(other, _)| *other == percent);
            let ours = run_of(runs, CURRENT, percent).map(|current| rate(one) / rate(current));
            table.row(vec![
                policy.into(),
                percent.into(),
                model.into(),
                rate(one).into(),
                ((rate(one) / model - 1.0) * 100.0).into(),
                current.map(|(_, current)| model / current).into(),
                ours.into(),
            ]);
        }
    }
    measured.tables.push(table);
}

/// Adds what the report's readers asked for.
fn add_questions(measured: &mut Measured, runs: &[Run]) {
    let asked: Vec<_> =
        runs.iter().filter(|run| !usual(runs).any(|usual| std::ptr::eq(usual, *run))).collect();
    if asked.is_empty() {
        return;
    }
    let columns = [
        ("question", None),
        ("device", None),
        ("policy", None),
        ("first 8K/s", Some(0)),
        ("settled", Some(0)),
        ("write KiB", Some(1)),
        ("written", Some(2)),
        ("over openzfs-2.3", Some(2)),
    ];
    let title = format!("what readers asked for, {} % full", super::ASKED_PERCENT);
    let mut table = Table::new(&title, &columns);
    for one in asked {
        let (plan, run) = one;
        let settled = run.settled(|sample| sample.rate);
        let current = runs.iter().find(|(other, _)| {
            other.policy.name == CURRENT
                && (other.variant, other.device.name) == (plan.variant, plan.device.name)
        });
        let over = current
            .filter(|_| plan.policy.name != CURRENT)
            .map(|(_, current)| settled / current.settled(|sample| sample.rate));
        let row: Vec<Cell> = vec![
            question(plan.variant).into(),
            plan.device.name.into(),
            plan.policy.name.into(),
            run.samples.first().map(|sample| sample.rate).into(),
            settled.into(),
            run.settled(|sample| sample.write_kib).into(),
            run.settled(|sample| sample.amplification).into(),
            over.into(),
        ];
        table.row(row);
    }
    measured.tables.push(table);
    let usual = run_of(runs, CURRENT, super::ASKED_PERCENT);
    let compressed = runs.iter().find(|(plan, _)| plan.variant == Variant::Compressed);
    if let Some((usual, compressed)) = usual.zip(compressed) {
        let ratio = rate(compressed) / rate(usual);
        let what = "rate with compression, over that without";
        measured.checks.push(Check::near(what, ratio, 1.0, 0.03, 3));
    }
    if let Some((_, once)) = runs.iter().find(|(plan, _)| plan.variant == Variant::Once) {
        let first = once.samples.first().map_or(0.0, |sample| sample.rate);
        let ratio = once.settled(|sample| sample.rate) / first.max(1.0);
        let what = "without overwriting: last rate over the first";
        measured.checks.push(Check::at_least(what, ratio, 0.8, 2));
    }
}

const fn question(variant: Variant) -> &'static str {
    match variant {
        Variant::Usual => "another device",
        Variant::Compressed => "compression on",
        Variant::Once => "never overwritten",
        Variant::FourDisks => "four disks",
    }
}

fn judge_fill(measured: &mut Measured, runs: &[Run]) {
    let Some(one) = run_of(runs, HISTORIC, 25) else { return };
    let (plan, run) = one;
    let all: u64 = run.fill_sizes.iter().sum();
    let long = run.fill_sizes[LONGEST] as f64 * 100.0 / all.max(1) as f64;
    let checks = &mut measured.checks;
    let what = "writes of 128K while filling, % (report 78)";
    checks.push(Check::at_least(what, long, FILL_LONG_PERCENT.floor(), 1));
    let what = "mean write while filling, KiB (report 109)";
    checks.push(Check::near(what, run.fill_kib, FILL_KIB, 0.1, 1));
    let full = run.full_after_fill as f64 / plan.size.metaslabs as f64 * 100.0;
    checks.push(Check::within("full metaslabs after filling 25 %, %", full, 23.8, 26.2, 1));
}

fn judge_spread(measured: &mut Measured, runs: &[Run]) {
    if let Some(one) = run_of(runs, HISTORIC, 25) {
        let what = "historic-2013, 25 % full: metaslabs in use, times those needed (report 2.5)";
        measured.checks.push(Check::within(what, times_full(one), 2.1, 2.9, 2));
        let half = one.1.used_at_half() as f64 / one.1.used().1.max(1) as f64;
        let what = "historic-2013, 25 % full: in use at half time, over the end";
        measured.checks.push(Check::near(what, half, 1.0, 0.05, 2));
        let first = one.1.samples.iter().map(|sample| sample.rate).fold(0.0, f64::max);
        let drop = first / one.1.settled(|sample| sample.rate);
        let what = "historic-2013, 25 % full: best rate over the settled one";
        measured.checks.push(Check::at_least(what, drop, 1.3, 2));
    }
    let of = |percent| run_of(runs, HISTORIC, percent).map(rate);
    if let (Some(emptiest), Some(before), Some(after)) = (of(10), of(25), of(50)) {
        // Between the occupancies that were measured.
        let ratio = (before + (after - before) / 5.0) / emptiest;
        let what = "historic-2013: rate at 30 % over that at 10 % (a reader: 0.5)";
        measured.checks.push(Check::within(what, ratio, 0.4, 0.6, 2));
    }
}

fn judge_curves(measured: &mut Measured, runs: &[Run]) {
    for policy in [HISTORIC, CURRENT, SEPARATE] {
        let rates: Vec<f64> =
            usual(runs).filter(|(plan, _)| plan.policy.name == policy).map(rate).collect();
        if rates.len() > 1 {
            let rises = rates.windows(2).filter(|pair| pair[1] >= pair[0]).count() as u64;
            let what = format!("{policy}: occupancies with a higher rate than the one before");
            measured.checks.push(Check::equal(what, rises, 0));
        }
    }
}

/// Judges metadata apart from data against OpenZFS 2.3, in the same run.
fn judge_policy(measured: &mut Measured, runs: &[Run]) {
    for ours in usual(runs).filter(|(plan, _)| plan.policy.name == SEPARATE) {
        let percent = ours.0.percent;
        let Some(theirs) = run_of(runs, CURRENT, percent) else { continue };
        let is_judged = ours.0.size.metaslabs >= METASLABS_TO_JUDGE;
        let goal = GOALS.iter().find(|(at, _)| *at == percent && is_judged);
        let least = goal.map_or(NOWHERE_WORSE, |(_, goal)| *goal);
        let what = format!("{percent} % full: rate apart, over openzfs-2.3");
        measured.checks.push(Check::at_least(what, rate(ours) / rate(theirs), least, 2));
        let ratio = percentile(ours, 99) / percentile(theirs, 99).max(1e-9);
        let what = format!("{percent} % full: p99 of a txg apart, over openzfs-2.3");
        measured.checks.push(Check::at_most(what, ratio, 1.0, 2));
    }
}
