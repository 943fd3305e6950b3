//! The text of a frame, as lines.
//!
//! ```text
//!   cenote top, 2.0 s, by operations
//!   tank: ONLINE, 43% of 2.73T used, 12% fragmented, txg 1842, 12M dirty, 97% cache hits
//!     read 812/s 101M/s p50 2ms p99 31ms, write ...
//!     active/pending: sync_read 3/0, sync_write 0/0, ...
//!     scan: scrub in progress since ...
//!
//!     R/s   W/s   RB/s   WB/s R-p50 R-p99 W-p50 W-p99   A/P  DEVICE
//!   ...
//!     R/s   W/s   RB/s   WB/s R-p50 R-p99 W-p50 W-p99 SYNC/s DATASET
//!   ...
//! ```

use std::fmt::Write as _;

use super::frame::{Frame, PoolFrame, Row, Selection};
use super::sample::Rate;
use crate::nicenum::{bytes, time};

/// Classes that are always shown; others only while they have I/Os.
const USUAL: [&str; 5] = ["sync_read", "sync_write", "async_read", "async_write", "scrub"];
const UNUSUAL: [&str; 4] = ["removal", "initialize", "trim", "rebuild"];
/// Most lines about scans of a pool.
const SCAN_LINES: usize = 4;
/// Lines of a table besides its rows: an empty line and the titles.
const TABLE_LINES: usize = 2;

/// What a screen shows besides a frame.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes {
    /// Why there are no newer figures.
    pub(super) trouble: Option<String>,
    pub(super) is_paused: bool,
    /// The keys, in a terminal.
    pub(super) keys: Option<&'static str>,
}

/// Returns the lines of a frame: at most `height`, if there is a limit.
pub(super) fn lines(
    frame: Option<&Frame>,
    selection: Selection,
    notes: &Notes,
    height: Option<usize>,
) -> Vec<String> {
    let mut lines = vec![title(frame, selection, notes)];
    lines.extend(notes.trouble.clone());
    if let Some(frame) = frame {
        lines.extend(pools(frame, height.map(|height| height / 2)));
        let left = height.map(|height| height.saturating_sub(lines.len()));
        let (devices, datasets) = shares(frame, left);
        lines.extend(table("A/P", "DEVICE", &frame.devices, devices));
        lines.extend(table("SYNC/s", "DATASET", &frame.datasets, datasets));
        let hidden = frame.active_datasets - frame.datasets.len().min(datasets);
        if hidden > 0 {
            let open = frame.open_datasets;
            lines.push(format!("{hidden} more of {open} open datasets are active"));
        }
    }
    if let Some(height) = height {
        lines.truncate(height);
    }
    lines.into_iter().map(|line| printable(&line)).collect()
}

fn title(frame: Option<&Frame>, selection: Selection, notes: &Notes) -> String {
    let order = if selection.is_reversed { ", reversed" } else { "" };
    let interval = match frame {
        Some(frame) if frame.is_since_import => "since the import".to_owned(),
        Some(frame) => format!("{:.1} s", frame.seconds),
        None => "no figures yet".to_owned(),
    };
    let pause = if notes.is_paused { ", PAUSED" } else { "" };
    let keys = notes.keys.map(|keys| format!("   {keys}")).unwrap_or_default();
    format!("cenote top, {interval}, by {}{order}{pause}{keys}", selection.sort.name())
}

/// Returns the lines of the pools.
fn pools(frame: &Frame, most: Option<usize>) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, pool) in frame.pools.iter().enumerate() {
        let own = pool_lines(pool);
        if index > 0 && most.is_some_and(|most| lines.len() + own.len() > most) {
            lines.push(format!("{} more pools", frame.pools.len() - index));
            return lines;
        }
        lines.extend(own);
    }
    if frame.pools.is_empty() {
        lines.push("no pools available".to_owned());
    }
    lines
}

fn pool_lines(pool: &PoolFrame) -> Vec<String> {
    let percent = (pool.space.allocated as f64 * 100.0 / pool.space.size.max(1) as f64).round();
    let mut head =
        format!("{}: {}, {percent}% of {} used", pool.name, pool.state, bytes(pool.space.size));
    if let Some(fragmentation) = pool.space.fragmentation {
        let _ = write!(head, ", {fragmentation}% fragmented");
    }
    let _ = write!(head, ", txg {}, {} dirty", pool.txg, bytes(pool.dirty));
    if let Some(hits) = pool.cache_hit_percent {
        let _ = write!(head, ", {hits:.0}% cache hits");
    }
    let mut lines = vec![head, format!("  read {}, write {}", rate(pool.read), rate(pool.write))];
    let queue = |name: &&&str| {
        let queue = pool.queues.get(**name)?;
        let is_shown = USUAL.contains(*name) || queue.active + queue.pending > 0;
        is_shown.then(|| format!("{name} {}/{}", queue.active, queue.pending))
    };
    let queues: Vec<_> = USUAL.iter().chain(&UNUSUAL).filter_map(|name| queue(&name)).collect();
    lines.push(format!("  active/pending: {}", queues.join(", ")));
    lines.extend(pool.scan.iter().take(SCAN_LINES).map(|line| format!("  {line}")));
    lines
}

fn rate(rate: Rate) -> String {
    format!(
        "{}/s {}/s p50 {} p99 {}",
        number(rate.operations),
        bytes(rate.bytes as u64),
        time(rate.p50_ns.unwrap_or(0)),
        time(rate.p99_ns.unwrap_or(0)),
    )
}

/// Formats a rate: with a decimal below ten.
fn number(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { bytes(rate.round() as u64) }
}

/// Returns the numbers of rows of both tables: each has half of the lines, and those that the other
/// one does not need.
fn shares(frame: &Frame, left: Option<usize>) -> (usize, usize) {
    let (devices, datasets) = (frame.devices.len(), frame.datasets.len());
    // The line about hidden datasets.
    let has_more = frame.active_datasets > 0;
    let Some(left) = left.map(|left| left.saturating_sub(2 * TABLE_LINES + usize::from(has_more)))
    else {
        return (devices, datasets);
    };
    let devices_share = devices.min((left / 2).max(left.saturating_sub(datasets)));
    (devices_share, datasets.min(left - devices_share))
}

/// Returns a table, without lines if it has no rows.
fn table(extra: &str, name: &str, rows: &[Row], most: usize) -> Vec<String> {
    if most == 0 || rows.is_empty() {
        return Vec::new();
    }
    let titles = ["R/s", "W/s", "RB/s", "WB/s", "R-p50", "R-p99", "W-p50", "W-p99", extra];
    let mut lines = vec![String::new(), cells(&titles.map(str::to_owned), name)];
    lines.extend(rows.iter().take(most).map(|row| {
        let ms = |ns: Option<u64>| time(ns.unwrap_or(0));
        let extra = match (&row.queue, row.commits) {
            (Some(queue), _) => format!("{}/{}", queue.active, queue.pending),
            (None, commits) => number(commits.unwrap_or(0.0)),
        };
        let figures = [
            number(row.read.operations),
            number(row.write.operations),
            bytes(row.read.bytes as u64),
            bytes(row.write.bytes as u64),
            ms(row.read.p50_ns),
            ms(row.read.p99_ns),
            ms(row.write.p50_ns),
            ms(row.write.p99_ns),
            extra,
        ];
        match row.state.as_deref().filter(|state| *state != "ONLINE") {
            Some(state) => cells(&figures, &format!("{} {state}", row.name)),
            None => cells(&figures, &row.name),
        }
    }));
    lines
}

fn cells(figures: &[String; 9], name: &str) -> String {
    let mut line = String::new();
    for figure in figures {
        let _ = write!(line, "{figure:>6} ");
    }
    line.push_str(name);
    line
}

/// Characters that change the direction of text or have no width.
const INVISIBLE: [std::ops::RangeInclusive<char>; 4] = [
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
];

/// Returns a line without characters that would disturb a terminal.
pub(super) fn printable(line: &str) -> String {
    let is_invisible = |c: char| INVISIBLE.iter().any(|range| range.contains(&c));
    line.replace('\t', " ").replace(|c: char| c.is_control() || is_invisible(c), "?")
}

/// Returns the first characters of a line.
pub(super) fn clipped(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}
