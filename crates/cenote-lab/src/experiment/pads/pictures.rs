//! The pictures of the experiment.

use super::layout::{Layout, WIDTH_MAX, bytes_name, layouts, sector_name};
use super::{DEVICES, LIMIT, Measured, Runs};
use crate::report::{Axis, Chart, Series, Span, Strip};

/// The case whose writes are drawn.
const DRAWN: (u64, Layout) = (1 << 20, Layout::new(12, 2, 10));
/// Records that are drawn, and those before them.
const DRAWN_RECORDS: usize = 10;
const DRAWN_FIRST: usize = 20;

pub(super) fn add(measured: &mut Measured, rates: &Runs, records: &[u64]) {
    measured.charts.push(grid(records));
    measured.charts.extend(strips(rates));
    measured.charts.push(bars(rates));
}

/// Returns unwritten pads of a record by layout, by the arithmetic.
fn grid(records: &[u64]) -> Chart {
    let (mut rows, mut cells) = (Vec::new(), Vec::new());
    for record in records.iter().filter(|record| **record > LIMIT) {
        for ashift in [9, 12] {
            for nparity in [1, 2, 3] {
                rows.push(format!("{} {} Z{nparity}", bytes_name(*record), sector_name(ashift)));
                let mut row = vec![None; (WIDTH_MAX - 2) as usize];
                for layout in layouts(ashift, nparity, WIDTH_MAX) {
                    let left_out = layout.with(*record).left_out(LIMIT);
                    row[(layout.width - 3) as usize] = Some(left_out as f64);
                }
                cells.push(row);
            }
        }
    }
    Chart::Grid {
        title: "Gaps that a record left on the vdev before 2017".to_owned(),
        corner: "record, sector, parity / disks".to_owned(),
        columns: (3..=WIDTH_MAX).map(|width| width.to_string()).collect(),
        rows,
        cells,
        figure: "gaps per record".to_owned(),
        range: (0.0, 3.0),
        decimals: 0,
    }
}

/// Returns what the disks of one vdev were asked to write, for the first and the last policy.
fn strips(rates: &Runs) -> Vec<Chart> {
    let (record, layout) = DRAWN;
    let is_drawn = |(plan, _): &&(super::Plan, super::Outcome)| {
        plan.layout == layout && plan.records == [record] && plan.device == DEVICES[1].1
    };
    let drawn: Vec<_> = rates.iter().filter(is_drawn).collect();
    let ends = [drawn.first(), drawn.last()];
    let mut charts: Vec<Chart> = Vec::new();
    for (plan, outcome) in ends.into_iter().flatten() {
        let Some(file) = outcome.files.first() else { continue };
        let (Some(first), Some(last)) =
            (file.starts.get(DRAWN_FIRST), file.starts.get(DRAWN_FIRST + DRAWN_RECORDS))
        else {
            continue;
        };
        let offset =
            |sector: u64| cenote_vdev::DATA_START + ((sector / layout.width) << layout.ashift);
        let window = offset(*first)..offset(*last);
        let mut strips = Vec::new();
        for disk in 0..layout.width {
            let mut writes: Vec<_> = file
                .log
                .iter()
                .filter(|write| write.device == disk)
                .map(|write| (write.offset, write.offset + write.len))
                .filter(|(start, end)| *end > window.start && *start < window.end)
                .collect();
            writes.sort_unstable();
            let kib = |at: u64| (at.clamp(window.start, window.end) - window.start) as f64 / 1024.0;
            let mut spans = Vec::new();
            let mut end = window.start;
            for (index, (from, to)) in writes.into_iter().enumerate() {
                if from > end {
                    spans.push(Span { start: kib(end), end: kib(from), class: 2 });
                }
                spans.push(Span { start: kib(from), end: kib(to), class: index % 2 });
                end = end.max(to);
            }
            strips.push(Strip { name: format!("disk {disk}"), spans });
        }
        charts.push(Chart::Strips {
            title: format!(
                "What ten disks were asked to write: {}, records 20 to 29 of {}",
                plan.policy.name,
                layout.with(record).name()
            ),
            x: Axis::linear("offset on each disk, KiB"),
            classes: vec![
                "write".to_owned(),
                "next write".to_owned(),
                "gap of a sector".to_owned(),
            ],
            strips,
        });
    }
    charts
}

/// Returns how much slower the bug made each case, by device.
fn bars(rates: &Runs) -> Chart {
    let (first, last) = ("before-8005", "after-8005");
    let mut groups: Vec<String> = Vec::new();
    let mut published = Vec::new();
    for (plan, _) in rates.iter().filter(|(plan, _)| plan.policy.name == first) {
        let case = plan.layout.with(plan.records[0]);
        if !groups.contains(&case.name()) {
            published.extend((case.left_out(LIMIT) > 0).then_some((groups.len() as f64, 2.0)));
            groups.push(case.name());
        }
    }
    let seconds = |group: &str, device, policy| {
        let is_it = |(plan, _): &&(super::Plan, super::Outcome)| {
            plan.policy.name == policy
                && plan.device == device
                && plan.layout.with(plan.records[0]).name() == group
        };
        let (_, outcome) = rates.iter().find(is_it)?;
        outcome.files.first().map(|file| file.seconds)
    };
    let of_device = |(name, device): (&str, _)| {
        let point = |(index, group): (usize, &String)| {
            let slower = seconds(group, device, first)? / seconds(group, device, last)?;
            Some((index as f64, crate::report::rounded(slower, 3)))
        };
        let points = groups.iter().enumerate().filter_map(point).collect();
        Series { name: name.to_owned(), points, is_published: false }
    };
    let mut series: Vec<_> = DEVICES.into_iter().map(of_device).collect();
    series.push(Series {
        name: "report: about 2".to_owned(),
        points: published,
        is_published: true,
    });
    Chart::Bars {
        title: format!("How many times slower {first} is than {last}"),
        y: Axis::linear("times slower"),
        groups,
        series,
    }
}
