//! Tables, judgements and pictures of the experiment.

use super::worlds::{Outcome, Plan, RECORD_SIZES, REVOLUTION_NS, Space};
use super::{Measured, Runs};
use crate::report::{Axis, Chart, Check, Series, Table, rounded};

/// Part by which the time of a partial write may differ from arithmetic.
const RAW_SLACK: f64 = 0.05;
/// Least slowdown of writes that begin or end inside of a sector.
const RAW_SLOWER: f64 = 1.5;
/// Least rate of overwrites with the matching ashift, over that of 9, on the emulating disk; and
/// of ashift 12 over 9 on a disk of 512-byte sectors, where nothing is gained.
const GAIN_LEAST: f64 = 1.0;
const NATIVE_LEAST: f64 = 0.9;

const FINDINGS: [&str; 4] = [
    "A disk with sectors of 4096 bytes that is told to write a part of one reads the sector, waits \
     until it comes round again, and writes it: a revolution, 8.3 ms.",
    "A pool asks for what its ashift allows. With 9, compressed blocks (indirect blocks are always \
     compressed) have multiples of 512 bytes, and all blocks behind one of an odd size begin \
     inside of a sector. With 12 no write does.",
    "In a long sequential write only the ends of aggregated commands are partial: a fill loses a \
     third. Random overwrites of a full pool lose more than half.",
    "The price of 12 is space: compressed records are rounded up to 4096 bytes, and a record of 4K \
     or 8K hardly compresses any more.",
];

pub(super) fn add(measured: &mut Measured, runs: &Runs, is_large: bool) {
    add_raw(measured, runs);
    add_pools(measured, runs, is_large);
    add_spaces(measured, runs);
    measured.charts.extend([pool_chart(runs), space_chart(runs)]);
    measured.findings.extend(FINDINGS.map(str::to_owned));
}

fn add_raw(measured: &mut Measured, runs: &Runs) {
    let columns = [
        ("bytes behind a sector", Some(0)),
        ("writes", Some(0)),
        ("ms each", Some(2)),
        ("ratio", Some(2)),
    ];
    let mut table = Table::new("writes of 8K to hdd-7200-512e, one after the other", &columns);
    let aligned = runs.raw.first().map_or(1.0, |raw| raw.mean_ms);
    for raw in &runs.raw {
        let ratio = raw.mean_ms / aligned;
        table.row(vec![raw.shift.into(), raw.writes.into(), raw.mean_ms.into(), ratio.into()]);
        if raw.shift != 0 {
            let want = aligned + REVOLUTION_NS as f64 / 1e6;
            let what = "ms of a write of 8K with partial sectors: a revolution more";
            measured.checks.push(Check::near(what, raw.mean_ms, want, RAW_SLACK, 2));
            let what = "slower by partial sectors";
            measured.checks.push(Check::at_least(what, ratio, RAW_SLOWER, 2));
        }
    }
    measured.tables.push(table);
}

fn disk_name(is_emulated: bool) -> &'static str {
    if is_emulated { "hdd-7200-512e" } else { "hdd-7200" }
}

fn of(runs: &Runs, is_emulated: bool, ashift: u64) -> Option<&(Plan, Outcome)> {
    let is_wanted =
        |(plan, _): &&(Plan, Outcome)| plan.is_emulated == is_emulated && plan.ashift == ashift;
    runs.pools.iter().find(is_wanted)
}

fn add_pools(measured: &mut Measured, runs: &Runs, is_large: bool) {
    let columns = [
        ("disk", None),
        ("ashift", Some(0)),
        ("fill MB/s", Some(1)),
        ("overwrites/s", Some(0)),
        ("over ashift 9", Some(2)),
        ("writes each", Some(2)),
        ("KiB", Some(1)),
        ("partial %", Some(1)),
        ("disk ms for a write", Some(2)),
    ];
    let mut table =
        Table::new("a file that fills 80 % of the disk, overwritten at random", &columns);
    for (plan, outcome) in &runs.pools {
        let nine = of(runs, plan.is_emulated, 9).map(|(_, nine)| outcome.rate / nine.rate);
        table.row(vec![
            disk_name(plan.is_emulated).into(),
            plan.ashift.into(),
            outcome.fill_mb.into(),
            outcome.rate.into(),
            nine.into(),
            outcome.writes.into(),
            outcome.write_kib.into(),
            (outcome.partial * 100.0).into(),
            outcome.busy_ms.into(),
        ]);
    }
    measured.tables.push(table);
    for is_emulated in [false, true] {
        let name = disk_name(is_emulated);
        let pair = (of(runs, is_emulated, 9), of(runs, is_emulated, 12));
        let (Some((_, nine)), Some((_, twelve))) = pair else { continue };
        let what = format!("{name}: % of writes with partial sectors, ashift 12");
        measured.checks.push(Check::within(what, twelve.partial * 100.0, 0.0, 0.0, 1));
        if !is_large {
            continue;
        }
        let what = format!("{name}: overwrites/s of ashift 12 over 9");
        let gain = twelve.rate / nine.rate;
        measured.checks.push(if is_emulated {
            // Each partial write costs a revolution at most, in which a disk may do other work.
            let revolutions = nine.writes * nine.partial * REVOLUTION_NS as f64 / 1e9;
            let most = nine.rate.recip() / (nine.rate.recip() - revolutions).max(1e-9);
            Check::within(what, gain, GAIN_LEAST, most, 2)
        } else {
            Check::at_least(what, gain, NATIVE_LEAST, 2)
        });
    }
}

fn add_spaces(measured: &mut Measured, runs: &Runs) {
    let columns = [
        ("record KiB", Some(0)),
        ("blocks", Some(0)),
        ("KiB, ashift 9", Some(0)),
        ("KiB, ashift 12", Some(0)),
        ("more %", Some(1)),
    ];
    let title = "space of files of 2 MiB that lz4 compresses to three fifths";
    let mut table = Table::new(title, &columns);
    for record in RECORD_SIZES {
        let (Some(nine), Some(twelve)) = (space(runs, record, 9), space(runs, record, 12)) else {
            continue;
        };
        let (nine_kib, twelve_kib) = (nine.allocated() / 1024, twelve.allocated() / 1024);
        table.row(vec![
            (record / 1024).into(),
            (nine.allocated.len() as u64).into(),
            nine_kib.into(),
            twelve_kib.into(),
            ((twelve_kib as f64 / nine_kib as f64 - 1.0) * 100.0).into(),
        ]);
        let want: u64 = nine.stored.iter().map(|stored| rounded_up(*stored, record)).sum();
        let what = format!("records of {}K: bytes at ashift 12, by rounding", record / 1024);
        measured.checks.push(Check::equal(what, twelve.allocated(), want));
    }
    measured.tables.push(table);
}

/// Returns the bytes at ashift 12 of a block with `stored` bytes at ashift 9.
fn rounded_up(stored: u64, record: u64) -> u64 {
    stored.next_multiple_of(4096).min(record)
}

fn space(runs: &Runs, record: u64, ashift: u64) -> Option<&Space> {
    runs.spaces.iter().find(|space| space.record == record && space.ashift == ashift)
}

fn pool_chart(runs: &Runs) -> Chart {
    let series = |ashift: u64| Series {
        name: format!("ashift {ashift}"),
        points: [false, true]
            .into_iter()
            .enumerate()
            .filter_map(|(index, is_emulated)| {
                let (_, outcome) = of(runs, is_emulated, ashift)?;
                Some((index as f64, rounded(outcome.rate, 0)))
            })
            .collect(),
        is_published: false,
    };
    Chart::Bars {
        title: "Random overwrites of 8K, disk 80 % full".to_owned(),
        y: Axis::linear("overwrites a second"),
        groups: ["sectors of 512 bytes", "sectors of 4096 bytes, 512e"].map(str::to_owned).to_vec(),
        series: [9, 12].map(series).to_vec(),
    }
}

fn space_chart(runs: &Runs) -> Chart {
    let series = |ashift: u64| Series {
        name: format!("ashift {ashift}"),
        points: RECORD_SIZES
            .into_iter()
            .enumerate()
            .filter_map(|(index, record)| {
                let space = space(runs, record, ashift)?;
                let logical = space.allocated.len() as f64 * record as f64;
                Some((index as f64, rounded(space.allocated() as f64 / logical * 100.0, 1)))
            })
            .collect(),
        is_published: false,
    };
    Chart::Bars {
        title: "Space of compressible records, by ashift".to_owned(),
        y: Axis::linear("% of the bytes written"),
        groups: RECORD_SIZES.map(|record| format!("{}K records", record / 1024)).to_vec(),
        series: [9, 12].map(series).to_vec(),
    }
}
