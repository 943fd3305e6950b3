//! The tables of the experiment, with their judgements.

use std::collections::BTreeSet;

use super::layout::{
    Case, Layout, OF_REPORT, REPORT_WIDTH_MAX, WIDTH_MAX, affected, bytes_name, cases_of,
    differences_of_2m, sector_name,
};
use super::runs::{FileRun, Outcome, Plan};
use super::{DEVICES, LIMIT, Measured, Runs};
use crate::policy::Policy;
use crate::report::{Cell, Check, Table};

/// The policies with the bug and with the fix alone, and the published factor.
const BEFORE: &str = "before-8005";
const AFTER: &str = "after-8005";
const PUBLISHED: f64 = 2.0;
/// The device that is a disk by itself.
const BARE_DISK: &str = "hdd-10k-sas";
/// The device whose gap is fitted to the report.
const FITTED: &str = "raid-array-rmw";

const FINDINGS: [&str; 4] = [
    "Pads go round: unless the allocated sectors are a multiple of the number of disks, the next \
     record begins on another disk, and each disk has a gap only once in width / pads columns \
     (see the strips). A factor of two then needs a gap as expensive as all those columns: 5.3 ms on \
     raid-array-rmw (fitted), about a read and a write of a stripe unit a revolution later, not \
     the 1.05 ms that would do if every column had a gap (raid-array-lun).",
    "Where pads do not go round (512K on four disks with single parity: 172 sectors, a multiple of \
     four), one disk has all gaps and the others wait for it.",
    "Bare disks do not care: a gap is a sector that passes below the head.",
    "cenote differs from after-8005 only on bare disks, by an aggregation limit of 1M: with eight \
     records in flight two long writes take all of them, and 1M on ten disks is slower than with \
     128K. That is a limit of this engine, not of the disks.",
];

/// Adds which layouts are affected: report, arithmetic, and recorded writes of each policy.
pub(super) fn add_layouts(
    measured: &mut Measured,
    runs: &Runs,
    records: &[u64],
    policies: &[&Policy],
) {
    let mut columns = vec![
        ("record".to_owned(), None),
        ("sector".to_owned(), None),
        ("parity".to_owned(), Some(0)),
        ("report".to_owned(), None),
        ("arithmetic".to_owned(), None),
    ];
    columns.extend(policies.iter().map(|policy| (format!("gaps: {}", policy.name), None)));
    let columns: Vec<_> = columns.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
    let title = "widths (numbers of disks) on which records leave gaps, uncompressed";
    let mut table = Table::new(title, &columns);
    let report = cases_of(&OF_REPORT);
    for record in records {
        for ashift in [9, 12] {
            for nparity in [1, 2, 3] {
                let is_run = |layout: &Layout| runs.iter().any(|(plan, _)| plan.layout == *layout);
                let layouts: Vec<_> =
                    super::layout::layouts(ashift, nparity, WIDTH_MAX).filter(is_run).collect();
                if layouts.is_empty() {
                    continue;
                }
                let said = layouts.iter().filter(|layout| report.contains(&layout.with(*record)));
                let computed =
                    layouts.iter().filter(|layout| layout.with(*record).left_out(LIMIT) > 0);
                let mut row: Vec<Cell> = vec![
                    bytes_name(*record).into(),
                    sector_name(ashift).into(),
                    nparity.into(),
                    widths(said),
                    widths(computed),
                ];
                for policy in policies {
                    let has_gap = |layout: &&Layout| {
                        file_of(runs, **layout, *record, policy)
                            .is_some_and(|file| file.open_blocks > 0)
                    };
                    row.push(widths(layouts.iter().filter(has_gap)));
                }
                table.row(row);
            }
        }
    }
    measured.tables.push(table);
    judge_layouts(measured, runs, policies);
}

fn judge_layouts(measured: &mut Measured, runs: &Runs, policies: &[&Policy]) {
    let report = cases_of(&OF_REPORT);
    let is_slip = |case: &&Case| {
        let Layout { nparity, width, .. } = case.layout;
        case.record == 512 << 10 && width == 6 && nparity > 1
    };
    let computed: BTreeSet<Case> = [9, 12]
        .into_iter()
        .flat_map(|ashift| [1, 2, 3].map(|nparity| (ashift, nparity)))
        .flat_map(|(a, p)| super::layout::layouts(a, p, REPORT_WIDTH_MAX))
        .flat_map(|layout| [128, 256, 512, 1024].map(|kib| layout.with(kib << 10)))
        .filter(|case| case.left_out(LIMIT) > 0)
        .collect();
    let (slips, others): (Vec<&Case>, Vec<&Case>) =
        report.symmetric_difference(&computed).partition(is_slip);
    let what = "layouts up to 10 disks where report and arithmetic differ, besides 512K on 6 disks";
    measured.checks.push(Check::equal(what, others.len() as u64, 0));
    let what = "layouts with 2M up to 18 disks where arithmetic and spec 09 differ";
    measured.checks.push(Check::equal(what, differences_of_2m(LIMIT), 0));
    for policy in policies {
        let limit = limit_of(policy);
        let (mut wrong, mut open) = (0, 0);
        for (plan, outcome) in runs.iter().filter(|(plan, _)| plan.policy.name == policy.name) {
            for file in &outcome.files {
                let left_out =
                    limit.map_or(0, |limit| plan.layout.with(file.record).left_out(limit));
                let expected = (file.blocks > 0).then_some(file.blocks * left_out);
                wrong += u64::from(expected != Some(file.pads - file.filled));
                open += file.pads - file.filled;
            }
        }
        let what =
            format!("{}: files whose unwritten pads differ from the arithmetic", policy.name);
        measured.checks.push(Check::equal(what, wrong, 0));
        if limit.is_none() {
            let what = format!("{}: unwritten pads", policy.name);
            measured.checks.push(Check::equal(what, open, 0));
        }
    }
    let slips: Vec<_> = slips.iter().map(|case| case.name()).collect();
    measured.findings.push(format!(
        "Report and arithmetic differ for 512K on six disks ({}): with double parity a block has \
         1536 or 192 sectors, a multiple of three, and needs no pad; with triple parity it has two \
         or three pads after columns of 171 or 172 KiB.",
        slips.join("; ")
    ));
    let left = |ashift, nparity| affected(1 << 20, ashift, nparity, REPORT_WIDTH_MAX, 2 * LIMIT);
    measured.findings.extend(FINDINGS.map(str::to_owned));
    measured.findings.push(format!(
        "With a limit of 256K, 1M records still leave gaps on {:?}, {:?}, {:?} disks (single, \
         double, triple parity; sectors of 512 bytes) and {:?}, {:?}, {:?} disks (4K).",
        left(9, 1),
        left(9, 2),
        left(9, 3),
        left(12, 1),
        left(12, 2),
        left(12, 3)
    ));
}

/// Returns the aggregation limit that counts optional writes, if the policy has one.
fn limit_of(policy: &Policy) -> Option<u64> {
    let is_limited = policy
        .tunables
        .iter()
        .any(|(tunable, value)| tunable.name == "cenote_optional_io_is_limited" && *value == 1);
    let limit = policy
        .tunables
        .iter()
        .find(|(tunable, _)| tunable.name == "zfs_vdev_aggregation_limit_non_rotating");
    is_limited.then(|| limit.map_or(LIMIT, |(_, value)| *value))
}

fn widths<'a>(layouts: impl Iterator<Item = &'a Layout>) -> Cell {
    let widths: Vec<_> = layouts.map(|layout| layout.width.to_string()).collect();
    if widths.is_empty() { Cell::Empty } else { widths.join(" ").into() }
}

fn file_of<'a>(
    runs: &'a Runs,
    layout: Layout,
    record: u64,
    policy: &Policy,
) -> Option<&'a FileRun> {
    let is_it = |(plan, _): &&(Plan, Outcome)| {
        plan.policy.name == policy.name && plan.layout == layout && plan.records.contains(&record)
    };
    let (_, outcome) = runs.iter().find(is_it)?;
    outcome.files.iter().find(|file| file.record == record)
}

/// Adds the rates of each device.
pub(super) fn add_rates(measured: &mut Measured, runs: &Runs, policies: &[&Policy]) {
    for (name, params) in DEVICES {
        let of_device: Runs =
            runs.iter().filter(|(plan, _)| plan.device == params).cloned().collect();
        add_rates_of(measured, name, &of_device, policies);
    }
}

fn add_rates_of(measured: &mut Measured, device: &str, runs: &Runs, policies: &[&Policy]) {
    let mut names = vec!["case".to_owned(), "column KiB".to_owned(), "gaps/disk".to_owned()];
    names.extend(policies.iter().map(|policy| format!("MB/s {}", policy.name)));
    names.extend(["slower", "by gaps", "report", "deviation %"].map(str::to_owned));
    let decimals = |index: usize| match index {
        0 => None,
        2 => Some(0),
        index if index >= names.len() - 4 && index != names.len() - 2 => Some(2),
        _ => Some(1),
    };
    let columns: Vec<_> =
        names.iter().enumerate().map(|(index, name)| (name.as_str(), decimals(index))).collect();
    let title = format!(
        "rates on {device}; gaps/disk: {BEFORE}, on the disk with most of them; slower: its time over \
         that of {AFTER}"
    );
    let mut table = Table::new(&title, &columns);
    let mut cases: Vec<(u64, Layout)> = Vec::new();
    for (plan, _) in runs {
        let case = (plan.records[0], plan.layout);
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    for (record, layout) in cases {
        let case = layout.with(record);
        let file = |name: &str| {
            let policy = policies.iter().find(|policy| policy.name == name)?;
            file_of(runs, layout, record, policy)
        };
        let (before, after) = (file(BEFORE), file(AFTER));
        let slower = before.zip(after).map(|(before, after)| before.seconds / after.seconds);
        let by_gaps = before.zip(after).map(|(before, after)| expected(device, before, after));
        let is_affected = case.left_out(LIMIT) > 0;
        let has_figure = is_affected && slower.is_some() && device != BARE_DISK;
        let said = has_figure.then_some(PUBLISHED);
        let mut row: Vec<Cell> = vec![
            case.name().into(),
            case.longest().map(|bytes| bytes as f64 / 1024.0).into(),
            before.map(|file| file.gaps_max).into(),
        ];
        for policy in policies {
            let file = file_of(runs, layout, record, policy);
            row.push(file.map(rate).into());
        }
        let deviation = slower.zip(said).map(|(ours, said)| (ours / said - 1.0) * 100.0);
        row.extend::<[Cell; 4]>([slower.into(), by_gaps.into(), said.into(), deviation.into()]);
        table.row(row);
        if let (Some(slower), Some(by_gaps)) = (slower, by_gaps) {
            judge_rate(measured, device, &case, slower, by_gaps);
        }
    }
    measured.tables.push(table);
    if device == FITTED {
        judge_fit(measured);
    }
}

/// Judges the median of the affected cases with records of 1M.
fn judge_fit(measured: &mut Measured) {
    let Some(table) = measured.tables.last() else { return };
    let slower_at = table.columns.len() - 4;
    let figure = |row: &Vec<Cell>| match (&row[0], &row[slower_at], &row[slower_at + 2]) {
        (Cell::Text(case), Cell::Number(slower), Cell::Number(_)) if case.starts_with("1M ") => {
            Some(*slower)
        }
        _ => None,
    };
    let mut slower: Vec<f64> = table.rows.iter().filter_map(figure).collect();
    slower.sort_by(f64::total_cmp);
    if let Some(median) = slower.get(slower.len() / 2).copied().filter(|_| slower.len() > 2) {
        let what = format!("{FITTED}: median of the affected 1M cases (fitted), slower");
        measured.checks.push(Check::near(what, median, PUBLISHED, 0.1, 2));
    }
}

/// Returns MB/s of data.
pub(super) fn rate(file: &FileRun) -> f64 {
    (file.record * file.starts.len() as u64) as f64 / 1e6 / file.seconds
}

/// Returns how much slower the gaps of the disk with most of them make a file.
fn expected(device: &str, before: &FileRun, after: &FileRun) -> f64 {
    let lun = DEVICES.iter().find_map(|(name, params)| match params {
        cenote_device::model::Params::Lun(lun) if *name == device => Some(lun.gap_ns),
        _ => None,
    });
    let gaps = before.gaps_max.saturating_sub(after.gaps_max);
    1.0 + (gaps * lun.unwrap_or_default()) as f64 / 1e9 / after.seconds
}

fn judge_rate(measured: &mut Measured, device: &str, case: &Case, slower: f64, by_gaps: f64) {
    let is_affected = case.left_out(LIMIT) > 0;
    let name = format!("{device}, {}: slower", case.name());
    measured.checks.push(match device {
        BARE_DISK => Check::at_most(name, slower, 1.06, 2),
        _ if is_affected => Check::near(name, slower, by_gaps, 0.1, 2),
        _ => Check::near(name, slower, 1.0, 0.03, 2),
    });
}

/// Adds the part of compressed records that leave a gap.
pub(super) fn add_packed(measured: &mut Measured, runs: &Runs, policies: &[&Policy]) {
    let mut names = vec!["layout".to_owned()];
    names.extend(policies.iter().map(|policy| policy.name.to_owned()));
    let columns: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| (name.as_str(), (index > 0).then_some(0)))
        .collect();
    let title =
        "records of 2M that lz4 packs 1.3 to 3 times: percent that leave a gap, sectors of 4K";
    let mut table = Table::new(title, &columns);
    let mut layouts: Vec<Layout> = Vec::new();
    for (plan, _) in runs {
        if !layouts.contains(&plan.layout) {
            layouts.push(plan.layout);
        }
    }
    let share = |layout: Layout, policy: &Policy| {
        let is_it = |name: &str, of: Layout| name == policy.name && of == layout;
        let (_, outcome) = runs.iter().find(|(plan, _)| is_it(plan.policy.name, plan.layout))?;
        let open: u64 = outcome.files.iter().map(|file| file.open_blocks).sum();
        let blocks: u64 = outcome.files.iter().map(|file| file.blocks).sum();
        Some(open as f64 * 100.0 / blocks.max(1) as f64)
    };
    for layout in &layouts {
        let mut row: Vec<Cell> =
            vec![format!("raidz{} of {}", layout.nparity, layout.width).into()];
        row.extend(policies.iter().map(|policy| Cell::from(share(*layout, policy))));
        table.row(row);
    }
    measured.tables.push(table);
    for policy in policies {
        let shares: Vec<f64> = layouts.iter().filter_map(|layout| share(*layout, policy)).collect();
        let with_gap = shares.iter().filter(|share| **share > 0.0).count() as u64;
        let what = format!("{}: layouts on which compressed records leave gaps", policy.name);
        if policy.name == BEFORE {
            measured.checks.push(Check::equal(what, with_gap, shares.len() as u64));
        } else if limit_of(policy).is_none() {
            measured.checks.push(Check::equal(what, with_gap, 0));
        }
    }
}
