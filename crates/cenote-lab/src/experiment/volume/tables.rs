//! The tables of the experiment, with their judgements and pictures.

use super::{Copied, Measured, PUBLISHED_SIZE};
use crate::report::{Axis, Cell, Chart, Check, Series, Table, rounded};
use crate::space::{VdevSpace, VolumeSpace};

/// The device that has the report's rate.
const WORN: &str = "ssd-worn";
/// Least size of an image whose times are judged.
const SIZE_FOR_TIMES: u64 = 512 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1_u64 << 20) as f64;

/// Published figures of a block size: USED and REFER in GiB, seconds.
fn published(block: u64) -> Option<[f64; 3]> {
    match block >> 10 {
        4 => Some([17.0, 14.6, 352.2]),
        128 => Some([16.0, 8.42, 200.0]),
        _ => None,
    }
}

fn vdev() -> VdevSpace {
    VdevSpace { shape: crate::space::VdevShape::Plain, ashift: super::ASHIFT }
}

fn reservation(size: u64, block: u64, indirect: u64) -> u64 {
    let volume = VolumeSpace { size, block, copies: 1, indirect };
    volume.on(&vdev()).reservation()
}

pub(super) fn add(measured: &mut Measured, size: u64, copies: &[Copied]) {
    add_reservations(measured);
    let devices: Vec<_> = copies.chunk_by(|a, b| a.device == b.device).collect();
    // Space is the same on all of them.
    let last = devices.last().map_or(&[][..], |copies| copies);
    add_copies(measured, size, last);
    add_times(measured, size, copies);
    for of in &devices {
        add_ratios(measured, of[0].device, size, of);
    }
    judge(measured, size, copies);
    judge_data(measured, last);
    add_charts(measured, size, &devices);
    measured.findings.extend(FINDINGS.map(str::to_owned));
}

const FINDINGS: [&str; 4] = [
    "USED is the reservation: the size, and room for the indirect blocks of a full volume. With \
     blocks of 4K those are 1.0 GiB, with 128K 34 MiB. It says nothing about what was written.",
    "REFER differs because a block of 4K cannot shrink on sectors of 4K, while 128K of the same data \
     fit into three fifths of their sectors. Metadata are 2 to 3 % of REFER at 4K: the report's \
     guess \"more indirect blocks\" explains USED, \"compression works on larger units\" REFER.",
    "The file was hardly sparse: du and ls -s show compressed blocks, so 8.42G on disk are 14.3 GiB \
     of data, 89 % of the image, if lz4 packs them 1.69 times.",
    "Both copies of the report wrote 43 MiB/s, so its times differ as the bytes written do. An SSD \
     that writes sequentially at that rate (ssd-worn: one parameter, fitted) gives the ratio of \
     the report's times; the times are longer than the report's, because the source is read from \
     the same SSD, where reads wait for writes. ssd-sata-2012 collects garbage for random writes \
     only: it is faster than two slow processors, and with blocks of 4K, which cost more work per \
     byte, the ratio is larger.",
];

/// Adds the reservations at the published size, by the formula.
fn add_reservations(measured: &mut Measured) {
    let columns = [
        ("volblock", None),
        ("128K indirect", Some(3)),
        ("16K indirect", Some(3)),
        ("report", Some(1)),
    ];
    let mut table = Table::new("USED of a new volume of 16 GiB by the formula, GiB", &columns);
    for kib in [4, 8, 16, 128] {
        let of = |indirect| reservation(PUBLISHED_SIZE, kib << 10, indirect) as f64 / GIB;
        let said = published(kib << 10).map(|[used, ..]| used);
        table.row(vec![
            format!("{kib}K").into(),
            of(128 << 10).into(),
            of(16 << 10).into(),
            said.into(),
        ]);
        if let Some(said) = said {
            let what =
                format!("USED at 16 GiB, {kib}K blocks, GiB, against the report's {said:.1}");
            measured.checks.push(Check::within(what, of(128 << 10), said - 0.05, said + 0.05, 3));
        }
    }
    measured.tables.push(table);
}

fn add_copies(measured: &mut Measured, size: u64, copies: &[Copied]) {
    let columns = [
        ("volblock", None),
        ("used", Some(0)),
        ("by formula", Some(0)),
        ("refer", Some(0)),
        ("data", Some(0)),
        ("metadata", Some(0)),
        ("ratio", Some(2)),
        ("written", Some(0)),
        ("refer GiB at 16", Some(2)),
        ("report", Some(2)),
        ("deviation %", Some(1)),
    ];
    let title = format!("copies of an image of {} MiB, bytes", size >> 20);
    let mut table = Table::new(&title, &columns);
    for copy in copies {
        let scaled = copy.referenced as f64 * (PUBLISHED_SIZE / size) as f64 / GIB;
        let said = published(copy.block).map(|[_, refer, _]| refer);
        table.row(vec![
            name(copy).into(),
            copy.used.into(),
            reservation(size, copy.block, 128 << 10).into(),
            copy.referenced.into(),
            copy.data.into(),
            copy.referenced.saturating_sub(copy.data).into(),
            (copy.source_data as f64 / copy.data.max(1) as f64).into(),
            copy.written.into(),
            scaled.into(),
            said.into(),
            said.map(|said| (scaled / said - 1.0) * 100.0).into(),
        ]);
    }
    measured.tables.push(table);
}

/// Adds the times on each device.
fn add_times(measured: &mut Measured, size: u64, copies: &[Copied]) {
    let columns = [
        ("device", None),
        ("volblock", None),
        ("seconds", Some(1)),
        ("MiB/s", Some(1)),
        ("seconds at 16 GiB", Some(0)),
        ("report", Some(0)),
        ("deviation %", Some(1)),
    ];
    let mut table = Table::new("time of the copies", &columns);
    for copy in copies {
        let scaled = copy.seconds * (PUBLISHED_SIZE / size) as f64;
        let said = published(copy.block).map(|[.., seconds]| seconds);
        table.row(vec![
            copy.device.into(),
            name(copy).into(),
            copy.seconds.into(),
            (copy.written as f64 / MIB / copy.seconds).into(),
            scaled.into(),
            said.into(),
            said.map(|said| (scaled / said - 1.0) * 100.0).into(),
        ]);
    }
    measured.tables.push(table);
}

fn name(copy: &Copied) -> String {
    format!("{}K", copy.block >> 10)
}

/// Returns the copies with blocks of 4K and of 128K.
fn ends(copies: &[Copied]) -> Option<(&Copied, &Copied)> {
    let of = |kib: u64| copies.iter().find(|copy| copy.block == kib << 10);
    of(4).zip(of(128))
}

/// Adds how the report's two block sizes compare.
fn add_ratios(measured: &mut Measured, device: &str, size: u64, copies: &[Copied]) {
    let Some((small, large)) = ends(copies) else { return };
    let columns =
        [("4K over 128K", None), ("report", Some(2)), ("ours", Some(2)), ("deviation %", Some(1))];
    let mut table = Table::new(&format!("blocks of 4K and of 128K on {device}"), &columns);
    let ratio = |of: fn(&Copied) -> f64| of(small) / of(large);
    let rows: [(&str, Option<f64>, f64); 3] = [
        ("REFER", Some(14.6 / 8.42), ratio(|copy| copy.referenced as f64)),
        ("bytes written", None, ratio(|copy| copy.written as f64)),
        ("time", Some(352.2 / 200.0), ratio(|copy| copy.seconds)),
    ];
    for (what, said, ours) in rows {
        let deviation = said.map(|said| (ours / said - 1.0) * 100.0);
        let row: Vec<Cell> = vec![what.into(), said.into(), ours.into(), deviation.into()];
        table.row(row);
    }
    measured.tables.push(table);
    let (refer, written, time) = (rows[0].2, rows[1].2, rows[2].2);
    if device == WORN {
        measured.checks.push(Check::near("REFER of 4K over 128K", refer, 1.73, 0.03, 3));
    }
    // Of a smaller image, dirty data and the buffer of the SSD hold a large part.
    if device == WORN && size >= SIZE_FOR_TIMES {
        let what = format!("{device}: time of 4K over 128K, against bytes written");
        measured.checks.push(Check::near(what, time, written, 0.1, 3));
        let what = format!("{device}: time of 4K over 128K, against the report");
        measured.checks.push(Check::near(what, time, 352.2 / 200.0, 0.1, 3));
    }
}

fn judge(measured: &mut Measured, size: u64, copies: &[Copied]) {
    let wrong =
        |copy: &&Copied| copy.used != reservation(size, copy.block, 128 << 10).max(copy.referenced);
    let what = "volumes whose USED is not that of the formula, to the byte";
    measured.checks.push(Check::equal(what, copies.iter().filter(wrong).count() as u64, 0));
}

fn judge_data(measured: &mut Measured, copies: &[Copied]) {
    if let Some((_, large)) = ends(copies) {
        let packed = large.source_data as f64 / large.data.max(1) as f64;
        measured.checks.push(Check::near("compression of 128K blocks", packed, 1.69, 0.01, 3));
        let of_source = large.referenced as f64 / large.source_referenced.max(1) as f64;
        measured.checks.push(Check::near(
            "REFER at 128K over that of the source",
            of_source,
            1.0,
            0.005,
            4,
        ));
    }
}

fn add_charts(measured: &mut Measured, size: u64, devices: &[&[Copied]]) {
    let copies = devices.last().map_or(&[][..], |copies| copies);
    let scale = (PUBLISHED_SIZE / size) as f64;
    let bars = |name: &str, of: &dyn Fn(&Copied) -> Option<f64>, is_published| {
        let points = copies
            .iter()
            .enumerate()
            .filter_map(|(index, copy)| of(copy).map(|value| (index as f64, rounded(value, 3))));
        Series { name: name.to_owned(), points: points.collect(), is_published }
    };
    let gib = |bytes: u64| Some(bytes as f64 * scale / GIB);
    measured.charts.push(Chart::Bars {
        title: "Space of the image by block size".to_owned(),
        y: Axis::linear("GiB, scaled to an image of 16 GiB"),
        groups: copies.iter().map(name).collect(),
        series: vec![
            bars(
                "reserved (USED)",
                &|copy| Some(reservation(PUBLISHED_SIZE, copy.block, 128 << 10) as f64 / GIB),
                false,
            ),
            bars("occupied (REFER)", &|copy| gib(copy.referenced), false),
            bars("metadata", &|copy| gib(copy.referenced.saturating_sub(copy.data)), false),
            bars("report: USED", &|copy| published(copy.block).map(|said| said[0]), true),
            bars("report: REFER", &|copy| published(copy.block).map(|said| said[1]), true),
        ],
    });
    let Some((_, large)) = ends(copies) else { return };
    let time = |copies: &[Copied], block: u64| {
        let seconds =
            |block: u64| copies.iter().find(|copy| copy.block == block).map(|copy| copy.seconds);
        Some(seconds(block)? / seconds(128 << 10)?)
    };
    let mut series: Vec<_> = devices
        .iter()
        .rev()
        .map(|of| {
            let name = format!("time on {}", of[0].device);
            bars(&name, &|copy| time(of, copy.block), false)
        })
        .collect();
    series.push(bars(
        "bytes written",
        &|copy| Some(copy.written as f64 / large.written as f64),
        false,
    ));
    series.push(bars(
        "report: time",
        &|copy| published(copy.block).map(|said| said[2] / 200.0),
        true,
    ));
    measured.charts.push(Chart::Bars {
        title: "Time and bytes written, compared with blocks of 128K".to_owned(),
        y: Axis::linear("times as much as with 128K"),
        groups: copies.iter().map(name).collect(),
        series,
    });
}
