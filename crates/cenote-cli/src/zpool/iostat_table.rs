//! The layout of `zpool iostat`: fixed-width columns after the names, or a histogram per vdev.
//!
//! ```text
//!               capacity     operations     bandwidth
//! pool        alloc   free   read  write   read  write
//! ----------  -----  -----  -----  -----  -----  -----
//! t            363K   112M     16    606   438K  1.82M
//! ```
//!
//! Layout: spec 06 §20, and the output of OpenZFS's command.

use std::fmt::Write as _;

use cenote_pool::figures::{Direction, Histogram, QueueStats};

use super::iostat_columns::{Group, queues, sizes, waits};
use super::scripts::Columns;
use crate::leaf_scripts::Leaf;
use crate::nicenum;

/// Narrowest column of names.
const NAME_WIDTH_MIN: usize = 10;
/// Buckets of latency; the last ends after two minutes.
const LATENCY_BUCKETS: usize = 37;
/// Buckets of sizes, log2: a sector to the largest block.
const SIZE_BUCKETS: std::ops::Range<usize> = 9..25;

/// Content and format of the table.
#[derive(Debug, Clone)]
pub(super) struct Layout<'a> {
    /// The groups of columns.
    pub(super) groups: Vec<Group>,
    /// Columns of scripts.
    pub(super) columns: Option<&'a Columns>,
    /// `-H`
    pub(super) is_scripted: bool,
    /// `-p`
    pub(super) is_literal: bool,
    /// Title of the name column.
    pub(super) of: &'static str,
    /// Width of the name column.
    pub(super) name_width: usize,
}

/// One line, or one histogram.
#[derive(Debug, Clone)]
pub(super) enum Line {
    /// Title of an allocation class; its vdevs follow.
    Title(&'static str),
    /// A vdev.
    Vdev(Box<Row>),
    /// The end of a pool.
    Separator,
}

/// A vdev.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) depth: usize,
    /// What scripts know it by.
    pub(super) leaf: Option<Leaf>,
    /// Allocated and free space, where known.
    pub(super) capacity: Option<(u64, u64)>,
    /// Its I/O in the reported time.
    pub(super) io: QueueStats,
    /// Factor for counts.
    pub(super) scale: f64,
    /// Factor for histogram counts.
    pub(super) histogram_scale: f64,
}

/// Returns the width of the name column for these lines.
pub(super) fn name_width<'a>(lines: impl Iterator<Item = &'a Line>) -> usize {
    let width = |line: &Line| match line {
        Line::Vdev(row) => row.depth + row.name.chars().count(),
        _ => 0,
    };
    lines.map(width).max().unwrap_or(0).max(NAME_WIDTH_MIN)
}

impl Layout<'_> {
    /// Returns the histogram that is shown instead of columns.
    pub(super) fn histogram(&self) -> Option<Group> {
        let is_one =
            |group: &&Group| matches!(group, Group::LatencyHistogram | Group::SizeHistogram);
        self.groups.iter().find(is_one).copied()
    }

    /// Returns both title lines, and one of dashes.
    pub(super) fn header(&self) -> String {
        let widths = |group: Group| group.width(self.is_literal);
        let names = ["", self.of];
        let [above, below] = titles(names, self.name_width, &self.groups, widths);
        let more = self.columns.map(Columns::header).unwrap_or_default();
        format!("{above}\n{below}{more}\n{}", self.separator())
    }

    /// Returns a line of dashes.
    pub(super) fn separator(&self) -> String {
        let widths = |group: Group| group.width(self.is_literal);
        let more = self.columns.map(Columns::separator).unwrap_or_default();
        separator(self.name_width, &self.groups, widths) + &more + "\n"
    }

    /// Formats one line.
    pub(super) fn line(&self, line: &Line) -> String {
        match (line, self.histogram()) {
            (Line::Vdev(row), Some(group)) => self.buckets(row, group),
            (Line::Vdev(row), None) => self.row(row),
            (_, Some(_)) => String::new(),
            _ if self.is_scripted => String::new(),
            (Line::Title(title), None) => self.title(title),
            (Line::Separator, None) => self.separator(),
        }
    }

    fn title(&self, title: &str) -> String {
        let mut text = format!("{title:0$}", self.name_width);
        for group in &self.groups {
            for _ in group.bottom() {
                let _ = write!(text, "  {:>1$}", "-", group.width(self.is_literal));
            }
        }
        text + "\n"
    }

    fn row(&self, row: &Row) -> String {
        let mut text = if self.is_scripted {
            row.name.clone()
        } else {
            let width = self.name_width.saturating_sub(row.depth);
            format!("{:1$}{2:width$}", "", row.depth, row.name)
        };
        for group in &self.groups {
            for cell in self.cells(row, *group) {
                let _ = if self.is_scripted {
                    write!(text, "\t{cell}")
                } else {
                    write!(text, "  {cell:>0$}", group.width(self.is_literal))
                };
            }
        }
        if let (Some(columns), Some(leaf)) = (self.columns, &row.leaf) {
            text.push_str(&columns.row(leaf));
        }
        text + "\n"
    }

    fn cells(&self, row: &Row, group: Group) -> Vec<String> {
        let number = |number: u64| self.number(number);
        let io = &row.io;
        match group {
            Group::Default => {
                let (read, write) = (io.direction(Direction::Read), io.direction(Direction::Write));
                let mut cells = match row.capacity {
                    Some((allocated, free)) => vec![number(allocated), number(free)],
                    None => vec!["-".to_owned(), "-".to_owned()],
                };
                let counts = [read.operations, write.operations, read.bytes, write.bytes];
                cells.extend(counts.map(|count| number(scaled(count, row.scale))));
                cells
            }
            Group::Latency => waits(io).iter().map(|waits| self.time(mean(waits))).collect(),
            Group::Queues => queues(io).map(number).to_vec(),
            Group::LatencyHistogram | Group::SizeHistogram => Vec::new(),
        }
    }

    fn number(&self, number: u64) -> String {
        if self.is_literal { number.to_string() } else { nicenum::bytes(number) }
    }

    fn time(&self, ns: u64) -> String {
        if self.is_literal && ns > 0 { ns.to_string() } else { nicenum::time(ns) }
    }

    /// Formats the histogram of one vdev.
    fn buckets(&self, row: &Row, group: Group) -> String {
        let (columns, range): (Vec<Histogram>, _) = match group {
            Group::LatencyHistogram => (waits(&row.io).to_vec(), 0..LATENCY_BUCKETS),
            _ => (sizes(&row.io).to_vec(), SIZE_BUCKETS),
        };
        // Counts beyond the last bucket are added to it.
        let count = |column: &Histogram, at: usize| {
            let counts = column.counts();
            let counts = if at + 1 == range.end {
                counts.get(at..).unwrap_or_default().iter().sum()
            } else {
                counts.get(at).copied().unwrap_or(0)
            };
            scaled(counts, row.histogram_scale)
        };
        let all = || columns.iter().flat_map(|column| range.clone().map(|at| count(column, at)));
        let digits = if self.is_literal { all().max().unwrap_or(0).max(1).ilog10() + 1 } else { 0 };
        let width = (digits as usize).max(5);
        let title = if group == Group::LatencyHistogram { "latency" } else { "req_size" };
        let name_width = self.name_width.max(title.len());
        let mut text = if self.is_scripted {
            format!("\n{}\n", row.name)
        } else {
            let header_width = name_width.max(row.name.chars().count());
            let names = [&*row.name, title];
            let [above, below] = titles(names, header_width, &[group], |_| width);
            let line = separator(header_width, &[group], |_| width);
            format!("\n{above}\n{below}\n{line}\n")
        };
        for at in range.clone() {
            let is_time = group == Group::LatencyHistogram;
            let edge = if is_time { (2 << at) - 1 } else { 1_u64 << at };
            let _ = match (self.is_scripted, is_time) {
                (true, _) => write!(text, "{edge}"),
                (false, true) => write!(text, "{:name_width$}", nicenum::time(edge)),
                (false, false) => write!(text, "{:name_width$}", nicenum::bytes(edge)),
            };
            for column in &columns {
                let cell = self.number(count(column, at));
                let _ = if self.is_scripted {
                    write!(text, "\t{cell}")
                } else {
                    write!(text, "  {cell:>width$}")
                };
            }
            text.push('\n');
        }
        if !self.is_scripted {
            text.push_str(&"-".repeat(name_width + (width + 2) * columns.len()));
            text.push('\n');
        }
        text
    }
}

/// Returns both lines of titles.
fn titles(
    [above, below]: [&str; 2],
    name_width: usize,
    groups: &[Group],
    width: impl Fn(Group) -> usize,
) -> [String; 2] {
    let mut lines = [format!("{above:name_width$}"), format!("{below:name_width$}")];
    for group in groups {
        for (title, columns) in group.top() {
            lines[0].push_str(&centred(title, *columns, width(*group)));
        }
        // If only some columns have an upper title, the others have none.
        for title in group.bottom() {
            lines[1].push_str(&centred(title, 1, width(*group)));
        }
    }
    lines
}

/// Returns a title over this number of columns, centred as OpenZFS does: over two columns half of
/// the title is left of the middle, over one column it ends at the right edge.
fn centred(title: &str, columns: usize, width: usize) -> String {
    let whole = width * columns + 2 * (columns - 1);
    let start = (whole / columns).saturating_sub(title.len() / columns);
    format!("  {:start$}{title:1$}", "", whole.saturating_sub(start))
}

/// Returns dashes below titles.
fn separator(name_width: usize, groups: &[Group], width: impl Fn(Group) -> usize) -> String {
    let mut text = "-".repeat(name_width);
    for group in groups {
        for _ in group.bottom() {
            let _ = write!(text, "  {}", "-".repeat(width(*group)));
        }
    }
    text
}

fn scaled(count: u64, scale: f64) -> u64 {
    (count as f64 * scale) as u64
}

fn mean(times: &Histogram) -> u64 {
    times.sum().checked_div(times.count()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(groups: &[Group]) -> Layout<'static> {
        Layout {
            groups: groups.to_vec(),
            columns: None,
            is_scripted: false,
            is_literal: false,
            of: "pool",
            name_width: 10,
        }
    }

    /// The expected text is the output of OpenZFS's command.
    #[test]
    fn iostat_titles_are_those_of_openzfs() {
        assert_eq!(
            layout(&[Group::Default]).header(),
            "              capacity     operations     bandwidth \n\
             pool        alloc   free   read  write   read  write\n\
             ----------  -----  -----  -----  -----  -----  -----\n"
        );
        let wide =
            Layout { name_width: 16, ..layout(&[Group::Default, Group::Latency, Group::Queues]) };
        let header = wide.header();
        let lines: Vec<&str> = header.lines().collect();
        assert_eq!(
            lines[0],
            "                    capacity     operations     bandwidth    total_wait     \
             disk_wait    syncq_wait    asyncq_wait  scrub   trim  rebuild   syncq_read    \
             syncq_write   \
             asyncq_read  asyncq_write   scrubq_read   trimq_write  rebuildq_write"
        );
        assert_eq!(
            lines[1],
            "pool              alloc   free   read  write   read  write   read  write   read  \
             write   read  write   read  write   wait   wait   wait   pend  activ   pend  \
             activ   pend  \
             activ   pend  activ   pend  activ   pend  activ   pend  activ"
        );
    }

    #[test]
    fn iostat_histograms_are_those_of_openzfs() {
        let row = Row {
            name: "t".to_owned(),
            depth: 0,
            leaf: None,
            capacity: None,
            io: QueueStats::default(),
            scale: 1.0,
            histogram_scale: 1.0,
        };
        let text = layout(&[Group::SizeHistogram]).line(&Line::Vdev(Box::new(row.clone())));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "",
                "t             sync_read    sync_write    async_read    async_write      \
                 scrub         trim         rebuild  ",
                "req_size      ind    agg    ind    agg    ind    agg    ind    agg    \
                 ind    agg    ind    agg    ind    agg",
                "----------  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  \
                 -----  -----  -----  -----",
            ]
        );
        assert!(lines[4].starts_with("512             0      0"), "{text}");
        assert_eq!((lines.len(), lines[20].len()), (21, 108));
        assert_eq!((lines[18], lines[19]), (&*last("8M", 14), &*last("16M", 14)));
        let text = layout(&[Group::LatencyHistogram]).line(&Line::Vdev(Box::new(row)));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..3],
            [
                "t            total_wait     disk_wait    syncq_wait    asyncq_wait",
                "latency      read  write   read  write   read  write   read  write  scrub   trim  \
                 rebuild",
            ]
        );
        assert_eq!((lines[4], lines[40]), (&*last("1ns", 11), &*last("137s", 11)));
        assert_eq!(lines[41].len(), 87);
    }

    fn last(label: &str, columns: usize) -> String {
        format!("{label:10}{}", "      0".repeat(columns))
    }
}
