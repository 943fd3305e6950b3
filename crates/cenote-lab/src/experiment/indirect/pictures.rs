//! The pictures of the experiment.

use super::{Measured, Run};
use crate::report::{Axis, Chart, Series, rounded};

/// Points of a curve of latencies.
const POINTS: usize = 50;

pub(super) fn add(measured: &mut Measured, runs: &[Run]) {
    measured.charts.push(rates(runs));
    for case in 0..2 {
        measured.charts.push(levels(runs, case));
    }
    measured.charts.push(latencies(runs));
}

fn apart(runs: &[Run], case: usize) -> u64 {
    runs.first().map_or(0, |(plan, _)| plan.cases[case].apart)
}

fn rates(runs: &[Run]) -> Chart {
    let series = |(plan, outcome): &Run| {
        let point = |case: usize| (case as f64, rounded(outcome.cases[case].rate(), 0));
        Series {
            name: plan.policy.name.to_owned(),
            points: (0..2).map(point).collect(),
            is_published: false,
        }
    };
    Chart::Bars {
        title: "Random reads of 8K, by the size of indirect blocks".to_owned(),
        y: Axis::linear("reads a second"),
        groups: (0..2).map(|case| format!("{} records apart", apart(runs, case))).collect(),
        series: runs.iter().map(series).collect(),
    }
}

/// Returns the reads of the disks by level.
fn levels(runs: &[Run], case: usize) -> Chart {
    let series = |(plan, outcome): &Run| {
        let all = outcome.cases[case].reads.max(1) as f64;
        let levels = outcome.cases[case].levels.iter().take(3).enumerate();
        let points = levels
            .map(|(level, sum)| (level as f64, rounded(sum.blocks as f64 * 100.0 / all, 1)))
            .collect();
        Series { name: plan.policy.name.to_owned(), points, is_published: false }
    };
    Chart::Bars {
        title: format!("What disks read, {} records apart", apart(runs, case)),
        y: Axis::linear("disk reads for 100 reads"),
        groups: ["records", "indirect, level 1", "level 2"].map(str::to_owned).to_vec(),
        series: runs.iter().map(series).collect(),
    }
}

/// Returns which part of the reads took at most how long, in the second case.
fn latencies(runs: &[Run]) -> Chart {
    let series = |(plan, outcome): &Run| {
        let times = &outcome.cases[1].times;
        // The slowest hundredth would make the rest narrow.
        let point = |step: usize| {
            let percent = step * 99 / POINTS;
            let index = times.len() * percent / 100;
            Some((rounded(*times.get(index)?, 2), percent as f64))
        };
        Series {
            name: plan.policy.name.to_owned(),
            points: (0..=POINTS).filter_map(point).collect(),
            is_published: false,
        }
    };
    Chart::Lines {
        title: format!("How long reads take, {} records apart", apart(runs, 1)),
        x: Axis::linear("milliseconds"),
        y: Axis::linear("% of the reads that took no longer"),
        series: runs.iter().map(series).collect(),
        marks: Vec::new(),
    }
}
