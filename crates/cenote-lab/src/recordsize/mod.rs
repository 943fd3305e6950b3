//! Which record size suits a recording of `cenote trace`: each is replayed by arithmetic.
//!
//! ```text
//!   read      whole records of what is not in a cache; adjacent ones in one go
//!   written   each changed record once per transaction group, and the indirect blocks above it
//!   parts     a write of a part of a record that is not in the cache reads the record
//!   tails     the last record of a file beyond one record is a whole one
//! ```
//!
//! Two devices weigh them: their time decides. Without data, compression is not considered: it
//! favours larger records, and takes tails away.
//!
//! Sources: spec 05 §2, spec 09 §3.4.

mod replay;
mod trace;

use std::fmt::Write as _;

use crate::report::{Axis, Chart, Footer, Report, Series, Table, rounded};

pub use replay::{Cost, DeviceTimes};
pub use trace::{Access, Trace, TraceError};

/// Record sizes: 4K to 1M.
const RECORDS: std::ops::RangeInclusive<u32> = 12..=20;
/// A rotating disk, and an SSD.
const DEVICES: [DeviceTimes; 2] = [
    DeviceTimes { name: "disk", access_s: 8e-3, rate: 150e6 },
    DeviceTimes { name: "SSD", access_s: 80e-6, rate: 500e6 },
];
/// A larger record with this much more time is preferred: it has less metadata, and compresses
/// better.
const TOLERANCE: f64 = 1.03;

/// What a recording costs with each record size.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Record size and cost.
    pub costs: Vec<(u64, Cost)>,
    /// Share of reads and of writes among the accesses that begin where another one ended.
    sequential: f64,
    /// Median length of reads and of writes; 0 without any.
    medians: [u64; 2],
    counts: [usize; 2],
    lost: u64,
}

impl Advice {
    /// Replays a recording with every record size, with a cache of this many bytes.
    #[must_use]
    pub fn new(trace: &Trace, cache_bytes: u64) -> Self {
        let records = RECORDS.map(|shift| 1_u64 << shift);
        let cost = |record| (record, replay::replay(&trace.accesses, record, cache_bytes));
        let lengths = |is_write: bool| {
            let own = trace.accesses.iter().filter(|access| access.is_write == is_write);
            let mut lengths: Vec<_> = own.map(|access| access.len).collect();
            lengths.sort_unstable();
            lengths
        };
        let lengths = [lengths(false), lengths(true)];
        let median = |lengths: &Vec<u64>| lengths.get(lengths.len() / 2).copied().unwrap_or(0);
        Self {
            costs: records.map(cost).collect(),
            sequential: sequential(&trace.accesses),
            medians: [median(&lengths[0]), median(&lengths[1])],
            counts: lengths.map(|lengths| lengths.len()),
            lost: trace.lost,
        }
    }

    /// Returns the record size for a device.
    fn best(&self, device: &DeviceTimes) -> (u64, Cost) {
        let times = self.costs.iter().map(|(_, cost)| cost.seconds(device));
        let least = times.fold(f64::INFINITY, f64::min);
        let good = |(_, cost): &&(u64, Cost)| cost.seconds(device) <= least * TOLERANCE;
        self.costs.iter().rev().find(good).copied().unwrap_or((128 << 10, Cost::default()))
    }

    /// Returns the record size for a disk and for an SSD.
    #[must_use]
    pub fn best_sizes(&self) -> [u64; 2] {
        DEVICES.map(|device| self.best(&device).0)
    }

    /// Returns a row for each record size.
    #[must_use]
    pub fn table(&self) -> Table {
        let columns = [
            ("recordsize", None),
            ("read x", Some(2)),
            ("reads", Some(0)),
            ("parts read", Some(0)),
            ("written x", Some(2)),
            ("indirect MB", Some(2)),
            ("tails MB", Some(2)),
            ("disk s", Some(2)),
            ("SSD s", Some(2)),
        ];
        let mut table = Table::new("the recording, replayed", &columns);
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let times = |bytes: u64, of: u64| if of > 0 { bytes as f64 / of as f64 } else { 0.0 };
        for (record, cost) in &self.costs {
            let written = cost.write_bytes + cost.indirect_bytes;
            table.row(vec![
                size_text(*record).as_str().into(),
                times(cost.read_bytes, cost.read).into(),
                cost.reads.into(),
                cost.part_reads.into(),
                times(written, cost.written).into(),
                mb(cost.indirect_bytes).into(),
                mb(cost.tail_bytes).into(),
                cost.seconds(&DEVICES[0]).into(),
                cost.seconds(&DEVICES[1]).into(),
            ]);
        }
        table
    }

    /// Returns table, picture and recommendation as a report.
    #[must_use]
    pub fn report(&self) -> Report {
        let series = DEVICES.iter().map(|device| {
            let point = |(record, cost): &(u64, Cost)| {
                ((record >> 10) as f64, rounded(cost.seconds(device), 3))
            };
            let points = self.costs.iter().map(point).collect();
            Series { name: device.name.to_owned(), points, is_published: false }
        });
        let mark = |device: &DeviceTimes| {
            let (size, _) = self.best(device);
            ((size >> 10) as f64, format!("{}: {}", device.name, size_text(size)))
        };
        let chart = Chart::Lines {
            title: "Time of the recorded accesses, by record size".to_owned(),
            x: Axis { name: "recordsize, KiB".to_owned(), is_log: true },
            y: Axis { name: "seconds".to_owned(), is_log: true },
            series: series.collect(),
            marks: DEVICES.iter().map(mark).collect(),
        };
        let none = || "none".to_owned();
        Report {
            experiment: "recordsize".to_owned(),
            title: "which record size suits the accesses of a recording".to_owned(),
            published: none(),
            tables: vec![self.table()],
            checks: Vec::new(),
            charts: vec![chart],
            findings: self.explain().lines().map(str::to_owned).collect(),
            footer: Footer {
                hash: none(),
                seed: 0,
                costs: none(),
                scale: none(),
                devices: DEVICES.iter().map(|device| device.name.to_owned()).collect(),
                policies: Vec::new(),
            },
        }
    }

    /// Returns the recommendation and its reasons, in lines.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut text = String::new();
        let [reads, writes] = self.counts;
        let [read_len, write_len] = self.medians;
        let _ = writeln!(
            text,
            "{reads} reads, half of them of {} at most; {writes} writes, half of them of {} at most; \
             {:.0} % begin where another one of the file ended.",
            size_text(read_len),
            size_text(write_len),
            self.sequential * 100.0
        );
        for device in &DEVICES {
            let (size, cost) = self.best(device);
            let _ = writeln!(
                text,
                "{}: recordsize={}. {}",
                device.name,
                size_text(size),
                self.reason(device, (size, cost))
            );
        }
        if self.lost > 0 {
            let _ =
                writeln!(text, "{} accesses are missing: the recorder was too slow.", self.lost);
        }
        text.push_str(
            "Without data, compression is left out; it takes tails away and favours larger records.\n",
        );
        text
    }

    /// Returns why the neighbours of a record size are worse.
    fn reason(&self, device: &DeviceTimes, (size, cost): (u64, Cost)) -> String {
        let own = cost.seconds(device).max(1e-9);
        let at = |wanted: u64| self.costs.iter().find(|(record, _)| *record == wanted);
        let mut reasons = Vec::new();
        if let Some((record, smaller)) = at(size / 4).or_else(|| at(size / 2)) {
            let ratio = smaller.seconds(device) / own;
            let more = smaller.reads + smaller.part_reads;
            let few = cost.reads + cost.part_reads;
            let why = if ratio < TOLERANCE {
                "no faster, and has more metadata".to_owned()
            } else if more > few {
                format!("{ratio:.2} times as slow: {more} reads of the device instead of {few}")
            } else {
                let [many, less] = [smaller, &cost].map(|cost| cost.indirect_bytes as f64 / 1e6);
                format!(
                    "{ratio:.2} times as slow: {many:.1} MB of indirect blocks instead of {less:.1}"
                )
            };
            reasons.push(format!("{} is {why}.", size_text(*record)));
        }
        if let Some((record, larger)) = at(size * 4).or_else(|| at(size * 2)) {
            let ratio = larger.seconds(device) / own;
            let moved = |cost: &Cost| {
                let all =
                    cost.read_bytes + cost.part_bytes + cost.write_bytes + cost.indirect_bytes;
                all as f64 / 1e6
            };
            let (much, less) = (moved(larger), moved(&cost));
            let why =
                format!("{ratio:.2} times as slow: it moves {much:.1} MB instead of {less:.1}");
            reasons.push(format!("{} is {why}.", size_text(*record)));
        }
        reasons.join(" ")
    }
}

/// Returns the share of accesses that begin where another one of the file ended.
fn sequential(accesses: &[Access]) -> f64 {
    let mut ends = std::collections::BTreeMap::new();
    let mut count = 0_usize;
    for access in accesses {
        let before = ends.insert((access.object, access.is_write), access.end());
        count += usize::from(before == Some(access.offset));
    }
    count as f64 / accesses.len().max(1) as f64
}

fn size_text(bytes: u64) -> String {
    match bytes {
        0 => "-".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(accesses: impl Iterator<Item = (bool, u64, u64)>) -> Advice {
        let access = |(us, (is_write, offset, len)): (u64, (bool, u64, u64))| Access {
            us: us * 1000,
            is_write,
            object: 7,
            offset,
            len,
        };
        let accesses = (0..).zip(accesses).map(access).collect();
        Advice::new(&Trace { accesses, lost: 0, is_complete: true }, 16 << 20)
    }

    /// Places in a file of 4 GiB, far from each other.
    fn place(number: u64, step: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % ((4 << 30) / step) * step
    }

    #[test]
    fn a_database_gets_its_page_size() {
        let advice = advice((0..4000).map(|n| (n % 2 == 0, place(n, 16 << 10), 16 << 10)));
        assert_eq!(advice.best_sizes()[1], 16 << 10, "{}", advice.explain());
        let text = advice.explain();
        assert!(
            text.contains("half of them of 16K at most") && text.contains("SSD: recordsize=16K. "),
            "{text}"
        );
        assert!(text.contains("64K is ") && text.contains(" times as slow: it moves "), "{text}");
    }

    #[test]
    fn a_log_gets_large_records() {
        let advice = advice((0..4000).map(|n| (true, n * 5000, 5000)));
        // Even larger ones write the last record of each txg again.
        assert_eq!(advice.best_sizes(), [256 << 10; 2], "{}", advice.explain());
        assert!(advice.explain().contains("100 % begin where"), "{}", advice.explain());
    }

    #[test]
    fn report_has_a_picture_and_survives_storing() {
        let advice = advice((0..400).map(|n| (n % 2 == 0, place(n, 16 << 10), 16 << 10)));
        let report = advice.report();
        assert_eq!(Report::from_json(&report.to_json()).unwrap(), report);
        let svg = crate::picture::to_svg(&report);
        for words in ["Time of the recorded accesses", "recordsize, KiB", "SSD: 16K"] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        assert_eq!(report.findings.join("\n") + "\n", advice.explain());
        // No access takes no time.
        let none = super::Advice::new(&Trace::default(), 0).report();
        assert!(crate::picture::to_svg(&none).starts_with("<svg"));
    }

    #[test]
    fn tables_have_a_row_for_each_record() {
        let table = advice((0..100).map(|n| (false, place(n, 4096), 4096))).table();
        let text = crate::text::render_table(&table, true);
        assert_eq!(text.lines().count(), 9, "{text}");
        assert!(
            text.starts_with("4K\t1.00\t") && text.lines().last().unwrap().starts_with("1M\t2"),
            "{text}"
        );
    }
}
