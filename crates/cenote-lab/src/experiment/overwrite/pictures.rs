//! The pictures of the experiment.

use super::{Measured, Run, SEPARATE, usual};
use crate::report::{Axis, CellMap, Chart, Series, rounded};

/// Occupancy whose metaslabs are drawn: the report's.
const DRAWN_PERCENT: u64 = 25;
/// Metaslabs in a row of a map, as in the report.
const MAP_WIDTH: usize = 16;
/// Log2 of the sizes of writes that have bars.
const SIZES: std::ops::RangeInclusive<usize> = 9..=17;

pub(super) fn add(measured: &mut Measured, runs: &[Run]) {
    let names = policies(runs);
    measured.charts.push(curves(runs, &names, false));
    measured.charts.push(curves(runs, &names, true));
    measured.charts.push(times(runs, &names));
    measured.charts.push(free_maps(runs, &names));
    measured.charts.push(fragmentation_maps(runs, &names));
    measured.charts.push(sizes(runs, &names));
}

fn policies(runs: &[Run]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for (plan, _) in runs {
        if !names.contains(&plan.policy.name) {
            names.push(plan.policy.name);
        }
    }
    names
}

/// Returns the settled rates by occupancy, or relative to the least one.
fn curves(runs: &[Run], names: &[&str], is_relative: bool) -> Chart {
    let of = |name: &&str| {
        let own = || usual(runs).filter(|(plan, _)| plan.policy.name == *name);
        let rate = |(plan, run): &Run| run.scaled_rate(plan);
        let most = own().map(rate).next().unwrap_or(1.0);
        let point = |run: &Run| {
            let value = if is_relative { rate(run) / most } else { rate(run) / 1000.0 };
            (run.0.percent as f64, rounded(value, 3))
        };
        Series { name: (*name).to_owned(), points: own().map(point).collect(), is_published: false }
    };
    let mut series: Vec<_> = names.iter().map(of).collect();
    let (title, y) = if is_relative {
        // A reader's reading of the report's curve.
        let name = "report: half at 30 %".to_owned();
        series.push(Series { name, points: vec![(30.0, 0.5)], is_published: true });
        ("Steady overwrites, relative to the emptiest pool", "part of the rate when emptiest")
    } else {
        ("Steady overwrites by occupancy", "thousand overwrites of 8K a second")
    };
    Chart::Lines {
        title: title.to_owned(),
        x: Axis::linear("part of the disk that the file fills, %"),
        y: Axis::linear(y),
        series,
        marks: Vec::new(),
    }
}

/// Returns the run of a policy at an occupancy, or at the nearest one.
fn run_at<'a>(runs: &'a [Run], name: &str, percent: u64) -> Option<&'a Run> {
    let own = usual(runs).filter(|(plan, _)| plan.policy.name == name);
    own.min_by_key(|(plan, _)| plan.percent.abs_diff(percent))
}

fn times(runs: &[Run], names: &[&str]) -> Chart {
    let mut percents = Vec::new();
    let of = |name: &&str| {
        let (plan, run) = run_at(runs, name, super::ASKED_PERCENT)?;
        percents.push(plan.percent);
        let point = |sample: &super::worlds::Sample| {
            (rounded(sample.at, 2), rounded(sample.rate / 1000.0, 3))
        };
        let points = run.samples.iter().map(point).collect();
        Some(Series { name: (*name).to_owned(), points, is_published: false })
    };
    let series: Vec<_> = names.iter().filter_map(of).collect();
    let percent = percents.first().copied().unwrap_or_default();
    Chart::Lines {
        title: format!("Overwrites of a pool that is {percent} % full, over time"),
        x: Axis::linear("virtual seconds since the first overwrite"),
        y: Axis::linear("thousand overwrites of 8K a second"),
        series,
        marks: Vec::new(),
    }
}

/// Returns the free space of the metaslabs, a row of maps for each policy.
fn free_maps(runs: &[Run], names: &[&str]) -> Chart {
    let mut maps = Vec::new();
    let mut across = 1;
    for name in names {
        let Some((_, run)) = run_at(runs, name, DRAWN_PERCENT) else { continue };
        across = run.frames.len().max(1);
        for (index, frame) in run.frames.iter().enumerate() {
            let at = if index == 0 { (*name).to_owned() } else { format!("{:.0} s", frame.at) };
            let cells = frame.free.iter().map(|free| Some(rounded(*free, 1))).collect();
            maps.push(CellMap { name: at, cells });
        }
    }
    Chart::Maps {
        title: format!(
            "Free space of each metaslab, {DRAWN_PERCENT} % full: after the fill, and while blocks \
             are overwritten"
        ),
        width: MAP_WIDTH,
        across,
        maps,
        figure: "% free".to_owned(),
        range: (0.0, 100.0),
    }
}

/// Returns the fragmentation of the metaslabs at the end, a row of maps for each policy.
fn fragmentation_maps(runs: &[Run], names: &[&str]) -> Chart {
    let mut maps = Vec::new();
    let mut across = 1;
    for name in names {
        let own: Vec<_> = usual(runs).filter(|(plan, _)| plan.policy.name == *name).collect();
        across = own.len().max(1);
        for (index, (plan, run)) in own.into_iter().enumerate() {
            let Some(frame) = run.frames.last() else { continue };
            let percent = format!("{} % full", plan.percent);
            let title = if index == 0 { format!("{name}, {percent}") } else { percent };
            let cells = frame.fragmentation.iter().copied().map(Some).collect();
            maps.push(CellMap { name: title, cells });
        }
    }
    Chart::Maps {
        title: "Fragmentation of the free space in each metaslab at the end".to_owned(),
        width: MAP_WIDTH,
        across,
        maps,
        figure: "% fragmentation".to_owned(),
        range: (0.0, 100.0),
    }
}

/// Returns the sizes of device writes: while filling, and settled.
fn sizes(runs: &[Run], names: &[&str]) -> Chart {
    let groups: Vec<String> = SIZES
        .map(|log2| {
            let bytes = 1_u64 << log2;
            if bytes < 1024 { format!("{bytes}") } else { format!("{}K", bytes >> 10) }
        })
        .collect();
    let series_of = |name: String, counts: &[u64; 32]| {
        let all: u64 = counts.iter().sum();
        let part = |log2: usize| counts[log2] as f64 * 100.0 / all.max(1) as f64;
        let point = |(index, log2): (usize, usize)| (index as f64, rounded(part(log2), 1));
        Series { name, points: SIZES.enumerate().map(point).collect(), is_published: false }
    };
    let mut series = Vec::new();
    if let Some((_, run)) = run_at(runs, names.last().unwrap_or(&SEPARATE), DRAWN_PERCENT) {
        series.push(series_of("while filling".to_owned(), &run.fill_sizes));
    }
    for name in names {
        if let Some((_, run)) = run_at(runs, name, DRAWN_PERCENT) {
            series.push(series_of(format!("{name}, settled"), &run.sizes));
        }
    }
    Chart::Bars {
        title: format!("Sizes of device writes, {DRAWN_PERCENT} % full"),
        y: Axis::linear("% of the writes, from this size up to the next"),
        groups,
        series,
    }
}
