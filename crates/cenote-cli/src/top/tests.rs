//! Tests of frames and screens, with answers of a daemon as it sends them.

use super::frame::{Frame, Selection, Sort};
use super::sample::Sample;
use super::screen::{self, Notes};
use crate::run_captured;

const SELECTION: Selection = Selection { sort: Sort::Operations, is_reversed: false, rows: 50 };

/// Returns a sample at a second, of a pool with some datasets that each have done as much as their
/// number says in each second.
fn sample(second: u64, datasets: u64, name: &str) -> Sample {
    let datasets: Vec<_> = (1..=datasets)
        .map(|number| {
            let count = number * second;
            serde_json::json!([number, count * 512, 0, second, [20, [count]], [0, []]])
        })
        .collect();
    let io = |count: u64| {
        let times = serde_json::json!({ "first": 20, "counts": [count] });
        let read = serde_json::json!({ "operations": count, "bytes": count << 12, "times": times });
        serde_json::json!({ "read": read, "write": read })
    };
    let leaf = |number: u64| {
        serde_json::json!({
            "name": format!("{name}{number}"), "guid": number.to_string(), "state": "ONLINE",
            "io": io(second * number), "active": number, "queued": 7,
        })
    };
    let pool = serde_json::json!({
        "name": name, "guid": "1", "state": "ONLINE", "txg": 1842, "dirty": 0, "cache": { "hits": 90, "misses": 10 },
        "space": { "size": 1_u64 << 40, "allocated": 1_u64 << 39, "fragmentation": 12 },
        "age_ns": second * 1_000_000_000, "io": io(second * 100), "open": datasets.len(),
        "queues": [["sync_read", 3, 5], ["sync_write", 0, 0], ["async_read", 0, 0],
                   ["async_write", 0, 0], ["scrub", 1, 2], ["trim", 4, 0], ["rebuild", 0, 0]],
        "scan": "  scan: scrub in progress since Mon\n\t1G / 2G scanned\n\twaiting for: ordinary I/O\n",
        "leaves": [leaf(1), leaf(2)], "datasets": datasets,
    });
    let text =
        serde_json::json!({ "process": 1, "at_ns": second * 1_000_000_000, "pools": [pool] });
    serde_json::from_str(&text.to_string()).expect("a sample")
}

fn frame(datasets: u64, selection: Selection) -> Frame {
    let (before, now) = (sample(10, datasets, "tank"), sample(12, datasets, "tank"));
    Frame::between(Some(&before), &now, selection, 0.0)
}

#[test]
fn frames_have_the_busiest_of_ten_thousand_datasets() {
    let frame = frame(10_000, SELECTION);
    assert_eq!(
        (frame.datasets.len(), frame.active_datasets, frame.open_datasets),
        (50, 10_000, 10_000)
    );
    let first = &frame.datasets[0];
    assert_eq!(
        (first.object, first.read.operations, first.commits),
        (Some(10_000), 10_000.0, Some(1.0))
    );
    assert!(frame.datasets.is_sorted_by(|one, other| one.read.bytes > other.read.bytes));
    let reversed = Selection { is_reversed: true, sort: Sort::BytesRead, rows: 3 };
    let objects: Vec<_> =
        self::frame(10_000, reversed).datasets.iter().map(|row| row.object).collect();
    assert_eq!(objects, [Some(1), Some(2), Some(3)]);
    let lines = screen::lines(Some(&frame), SELECTION, &Notes::default(), Some(24));
    assert_eq!(lines.len(), 24);
    let last = lines.last().unwrap();
    assert!(last.ends_with(" more of 10000 open datasets are active"), "{last}");
}

#[test]
fn screens_show_rates_times_queues_and_scans() {
    let frame = frame(3, SELECTION);
    let text = screen::lines(Some(&frame), SELECTION, &Notes::default(), None).join("\n");
    for part in [
        "cenote top, 2.0 s, by operations",
        "tank: ONLINE, 50% of 1T used, 12% fragmented, txg 1842, 0 dirty",
        // 100 a second, all in the bucket of 1.05 to 2.1 ms.
        "read 100/s 400K/s p50 1ms p99 2ms, write 100/s ",
        "active/pending: sync_read 3/5, sync_write 0/0, async_read 0/0, async_write 0/0, scrub 1/2, trim 4/0",
        "  scan: scrub in progress since Mon\n  1G / 2G scanned\n  waiting for: ordinary I/O\n",
        "R/s    W/s   RB/s   WB/s  R-p50  R-p99  W-p50  W-p99    A/P DEVICE",
        "     2.0    2.0     8K     8K    1ms    2ms    1ms    2ms    2/7 tank2\n",
        "SYNC/s DATASET",
    ] {
        let part = part.trim_start();
        assert!(text.contains(part), "{part}\n{text}");
    }
    // The rates since the import, and of another daemon.
    let first = Frame::between(None, &sample(10, 3, "tank"), SELECTION, 0.0);
    assert_eq!((first.is_since_import, first.seconds), (true, 10.0));
    let mut other = sample(20, 3, "tank");
    other.process = 2;
    let now = Frame::between(Some(&sample(10, 3, "tank")), &other, SELECTION, 0.0);
    assert_eq!((now.is_since_import, now.pools[0].read.operations), (true, 100.0));
}

#[test]
fn screens_fit_any_window() {
    let frame = frame(30, SELECTION);
    let notes = Notes { keys: Some("keys"), ..Notes::default() };
    for height in 0..40 {
        let lines = screen::lines(Some(&frame), SELECTION, &notes, Some(height));
        assert!(lines.len() <= height, "{} lines of {height}", lines.len());
        for width in [0, 1, 7, 80] {
            let clipped = lines.iter().map(|line| screen::clipped(line, width));
            assert!(clipped.into_iter().all(|line| line.chars().count() <= width));
        }
    }
    // Both tables have a share.
    let lines = screen::lines(Some(&frame), SELECTION, &notes, Some(24));
    let count = |name: &str| lines.iter().filter(|line| line.contains(name)).count();
    assert_eq!((count("DEVICE"), count("DATASET"), count(" 2/7 ")), (1, 1, 1), "{lines:?}");
}

#[test]
fn names_cannot_disturb_a_terminal() {
    let hostile = "a\x1b[2J\r\n\x07\u{9b}\u{202e}b\tc";
    let (before, now) = (sample(1, 2, hostile), sample(2, 2, hostile));
    let frame = Frame::between(Some(&before), &now, SELECTION, 0.0);
    let notes = Notes { trouble: Some(hostile.to_owned()), ..Notes::default() };
    let lines = screen::lines(Some(&frame), SELECTION, &notes, None);
    let disturbs = |c: char| c.is_control() || c == '\u{202e}';
    assert!(!lines.iter().any(|line| line.contains(disturbs)), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("a?[2J?????b c: ONLINE")), "{lines:?}");
}

#[test]
fn wrong_arguments_are_refused() {
    for (args, want) in [
        (&["-b", "t", "1", "1", "x"][..], "too many arguments\nusage: "),
        (&["-b", "-s", "colour"], "'colour' is not a column to sort by\nusage: "),
        (&["-b", "-n", "x"], "'x' is not a number up to 10000\nusage: "),
        (&["-b", "0"], "interval cannot be zero\nusage: "),
        (&["-b", "0.01"], "the shortest interval is 0.1\nusage: "),
        (&["--wrong"], "invalid option 'wrong'\nusage: "),
    ] {
        let (out, errors, status) = run_captured(&[&["top"], args].concat());
        assert!(status == 2 && out.is_empty() && errors.starts_with(want), "{args:?}: {errors}");
    }
    let (out, _, status) = run_captured(&["top", "--help"]);
    assert!(status == 0 && out.starts_with("usage: cenote top "), "{out}");
}
