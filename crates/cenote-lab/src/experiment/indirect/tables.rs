//! The tables of the experiment, with their judgements.

use super::worlds::{Case, Figures, LEVELS, Plan};
use super::{LARGEST, Measured, Run, SMALLEST};
use crate::report::{Cell, Check, Table};

/// Published reads per second, by policy and case.
const PUBLISHED: [(&str, [f64; 2]); 2] = [(SMALLEST, [583.0, 700.0]), (LARGEST, [665.0, 1260.0])];
/// Published mean bytes of an indirect block on disk, by policy and level.
const SIZES: [(&str, [f64; 2]); 2] = [(SMALLEST, [1024.0, 7235.0]), (LARGEST, [5632.0, 55_000.0])];
/// Parts by which those may differ, by level. At a tenth of the report's scale the pointers in a
/// block of level 2 have more bytes in common.
const SIZES_SLACK: [f64; 2] = [0.15, 0.3];
/// Part by which counts of random places may differ.
const COUNTS_SLACK: f64 = 0.05;
/// Ranges of the gain of indirect blocks of 128K over those of 16K, by case.
const GAINS: [(f64, f64); 2] = [(1.0, 1.2), (1.5, 1.95)];
/// Least rate of a larger indirect block, compared with a smaller one.
const NOWHERE_WORSE: f64 = 0.98;

const FINDINGS: [&str; 4] = [
    "A read of a record that is not cached needs the indirect block above it first: two reads, one \
     after the other. Where places are 1024 records apart, each has an indirect block of its own, \
     of 16K or of 128K: the only gain is that the level above has 64 times fewer blocks, which are \
     read once.",
    "Where places are 128 records apart, an indirect block of 128K has the pointers of eight of \
     them, and one of 16K that of one. Most reads find it in the cache and need one disk read.",
    "All records are equal, so an indirect block holds equal checksums and compresses to a \
     sixteenth. With other data it does not: one of 128K has some 70 KB on disk, which takes a \
     disk half a millisecond longer to read.",
    "Destroying the dataset reads the indirect blocks and no record: one eighth of the reads with \
     128K.",
];

pub(super) fn add(measured: &mut Measured, runs: &[Run], is_large: bool) {
    add_reads(measured, runs);
    add_trees(measured, runs);
    for (plan, outcome) in runs {
        for (case, figures) in plan.cases.iter().zip(&outcome.cases) {
            judge_counts(measured, plan, case, figures);
        }
    }
    judge_trees(measured, runs);
    if is_large {
        judge_sizes(measured, runs);
        judge_rates(measured, runs);
    }
    measured.findings.extend(FINDINGS.map(str::to_owned));
}

fn of<'a>(runs: &'a [Run], name: &str) -> Option<&'a Run> {
    runs.iter().find(|(plan, _)| plan.policy.name == name)
}

fn published(name: &str, case: usize) -> Option<f64> {
    PUBLISHED.iter().find(|(policy, _)| *policy == name).map(|(_, rates)| rates[case])
}

fn add_reads(measured: &mut Measured, runs: &[Run]) {
    let columns = [
        ("policy", None),
        ("indirect KiB", Some(0)),
        ("apart", Some(0)),
        ("reads", Some(0)),
        ("reads/s", Some(0)),
        ("published", Some(0)),
        ("L0", Some(0)),
        ("KiB", Some(0)),
        ("L1", Some(0)),
        ("KiB", Some(0)),
        ("L2", Some(0)),
        ("KiB", Some(0)),
        ("ms p50", Some(1)),
        ("p99", Some(1)),
        ("disk %", Some(0)),
    ];
    let mut table = Table::new("random reads of 8K by 16 threads, from a cold cache", &columns);
    for index in 0..2 {
        for (plan, outcome) in runs {
            let (case, figures) = (&plan.cases[index], &outcome.cases[index]);
            let mut row: Vec<Cell> = vec![
                plan.policy.name.into(),
                (1_u64 << plan.shift() >> 10).into(),
                case.apart.into(),
                case.reads.into(),
                figures.rate().into(),
                published(plan.policy.name, index).into(),
            ];
            for level in &figures.levels[..3] {
                row.push((level.blocks as f64 / plan.rounds as f64).into());
                row.push((level.bytes as f64 / 1024.0 / plan.rounds as f64).into());
            }
            row.extend([
                figures.percentile(50).into(),
                figures.percentile(99).into(),
                figures.busy.into(),
            ]);
            table.row(row);
        }
    }
    measured.tables.push(table);
}

fn add_trees(measured: &mut Measured, runs: &[Run]) {
    let columns = [
        ("policy", None),
        ("L1", Some(0)),
        ("bytes", Some(0)),
        ("L2", Some(0)),
        ("bytes", Some(0)),
        ("L3 and above", Some(0)),
        ("destroy s", Some(2)),
        ("reads", Some(0)),
    ];
    let mut table = Table::new("the file's indirect blocks, and destroying it", &columns);
    for (plan, outcome) in runs {
        let tree = &outcome.tree;
        table.row(vec![
            plan.policy.name.into(),
            tree[1].blocks.into(),
            tree[1].mean().into(),
            tree[2].blocks.into(),
            tree[2].mean().into(),
            tree[LEVELS - 1].blocks.into(),
            outcome.destroy_s.into(),
            outcome.destroy_reads.into(),
        ]);
    }
    measured.tables.push(table);
}

/// Judges the records that were read: random ones among `records / apart`, each once.
fn judge_counts(measured: &mut Measured, plan: &Plan, case: &Case, figures: &Figures) {
    let places = (plan.records / case.apart) as f64;
    let distinct = places * (1.0 - (-(case.reads as f64) / places).exp());
    let read = figures.levels[0].blocks as f64 / plan.rounds as f64;
    let what = format!("{}, {} apart: records read from disks", plan.policy.name, case.apart);
    measured.checks.push(Check::near(what, read, distinct, COUNTS_SLACK, 0));
}

fn judge_trees(measured: &mut Measured, runs: &[Run]) {
    for (plan, outcome) in runs {
        // A pointer has 128 bytes.
        let each = 1_u64 << (plan.shift() - 7);
        let ones = plan.records.div_ceil(each);
        for (level, want) in [(1, ones), (2, ones.div_ceil(each))] {
            let what = format!("{}: blocks of level {level}", plan.policy.name);
            measured.checks.push(Check::equal(what, outcome.tree[level].blocks, want));
        }
    }
}

fn judge_sizes(measured: &mut Measured, runs: &[Run]) {
    for (name, sizes) in SIZES {
        let Some((_, outcome)) = of(runs, name) else { continue };
        for (level, want, slack) in [(1, sizes[0], SIZES_SLACK[0]), (2, sizes[1], SIZES_SLACK[1])] {
            // The last one is not full.
            if outcome.tree[level].blocks > 4 {
                let what = format!("{name}: bytes of a block of level {level}");
                let mean = outcome.tree[level].mean();
                measured.checks.push(Check::near(what, mean, want, slack, 0));
            }
        }
    }
}

fn judge_rates(measured: &mut Measured, runs: &[Run]) {
    let rate = |run: &Run, case: usize| run.1.cases[case].rate();
    if let (Some(small), Some(large)) = (of(runs, SMALLEST), of(runs, LARGEST)) {
        for (case, (least, most)) in GAINS.into_iter().enumerate() {
            let what = format!("{} apart: reads/s of 128K over 16K", small.0.cases[case].apart);
            let gain = rate(large, case) / rate(small, case);
            measured.checks.push(Check::within(what, gain, least, most, 2));
        }
    }
    for pair in runs.windows(2) {
        for case in 0..2 {
            let (before, after) = (&pair[0], &pair[1]);
            let what = format!(
                "{} apart: reads/s of {} over {}",
                after.0.cases[case].apart, after.0.policy.name, before.0.policy.name
            );
            let part = rate(after, case) / rate(before, case);
            measured.checks.push(Check::at_least(what, part, NOWHERE_WORSE, 2));
        }
    }
}
