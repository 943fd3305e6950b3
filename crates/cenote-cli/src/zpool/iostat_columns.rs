//! The columns of `zpool iostat`, by group: titles and values.
//!
//! A group has two title lines: the upper one spans one or two columns per title, the lower one has
//! a title per column. Layout: spec 06 §20.

use cenote_pool::figures::IoClass::{
    AsyncRead, AsyncWrite, Initializing, Rebuild, Removal, Scrub, SyncRead, SyncWrite, Trim,
};
use cenote_pool::figures::{ClassStats, Direction, Histogram, IoClass, QueueStats};

/// A group of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Capacity, operations, bandwidth.
    Default,
    /// `-l`
    Latency,
    /// `-q`
    Queues,
    /// `-w`
    LatencyHistogram,
    /// `-r`
    SizeHistogram,
}

/// A title, and the number of columns below it.
pub(super) type Title = (&'static str, usize);

const WAITS: [Title; 7] = [
    ("total_wait", 2),
    ("disk_wait", 2),
    ("syncq_wait", 2),
    ("asyncq_wait", 2),
    ("scrub", 1),
    ("trim", 1),
    ("rebuild", 1),
];

impl Group {
    /// Returns the upper title line.
    pub(super) fn top(self) -> &'static [Title] {
        match self {
            Self::Default => &[("capacity", 2), ("operations", 2), ("bandwidth", 2)],
            Self::Latency => &WAITS,
            Self::LatencyHistogram => WAITS.get(..4).unwrap_or_default(),
            Self::Queues => &[
                ("syncq_read", 2),
                ("syncq_write", 2),
                ("asyncq_read", 2),
                ("asyncq_write", 2),
                ("scrubq_read", 2),
                ("trimq_write", 2),
                ("rebuildq_write", 2),
            ],
            Self::SizeHistogram => &[
                ("sync_read", 2),
                ("sync_write", 2),
                ("async_read", 2),
                ("async_write", 2),
                ("scrub", 2),
                ("trim", 2),
                ("rebuild", 2),
            ],
        }
    }

    /// Returns the lower title line: one title per column.
    pub(super) fn bottom(self) -> &'static [&'static str] {
        match self {
            Self::Default => &["alloc", "free", "read", "write", "read", "write"],
            Self::Latency => &[
                "read", "write", "read", "write", "read", "write", "read", "write", "wait", "wait",
                "wait",
            ],
            Self::LatencyHistogram => &[
                "read", "write", "read", "write", "read", "write", "read", "write", "scrub",
                "trim", "rebuild",
            ],
            Self::Queues => &const { twice(["pend", "activ"]) },
            Self::SizeHistogram => &const { twice(["ind", "agg"]) },
        }
    }

    /// Returns the width of a column of numbers; wider for exact numbers.
    pub(super) fn width(self, is_literal: bool) -> usize {
        match self {
            _ if !is_literal => 5,
            Self::Default => 15,
            Self::Latency | Self::LatencyHistogram => 10,
            Self::Queues | Self::SizeHistogram => 6,
        }
    }
}

const fn twice([a, b]: [&'static str; 2]) -> [&'static str; 14] {
    [a, b, a, b, a, b, a, b, a, b, a, b, a, b]
}

/// The I/O classes of each pair of columns of queues and sizes. Background work for the pool is
/// counted with asynchronous I/O.
const CLASSES: [&[IoClass]; 7] = [
    &[SyncRead],
    &[SyncWrite],
    &[AsyncRead],
    &[AsyncWrite, Initializing, Removal],
    &[Scrub],
    &[Trim],
    &[Rebuild],
];

/// Returns the merged histograms of some classes.
fn of_classes(
    io: &QueueStats,
    classes: &[IoClass],
    part: impl Fn(&ClassStats) -> Histogram,
) -> Histogram {
    let mut all = Histogram::default();
    for class in classes {
        all.merge(&part(io.class(*class)));
    }
    all
}

/// Returns the values of `-l` and `-w`, by column.
pub(super) fn waits(io: &QueueStats) -> [Histogram; 11] {
    let (read, write) = (io.direction(Direction::Read), io.direction(Direction::Write));
    let [sync_read, sync_write, async_read, async_write, scrub, trim, rebuild] =
        CLASSES.map(|classes| of_classes(io, classes, |class| class.wait));
    [
        read.total,
        write.total,
        read.service,
        write.service,
        sync_read,
        sync_write,
        async_read,
        async_write,
        scrub,
        trim,
        rebuild,
    ]
}

/// Returns the values of `-r`, by column.
pub(super) fn sizes(io: &QueueStats) -> [Histogram; 14] {
    let of = |at: usize| {
        let classes = CLASSES[at / 2];
        let is_single = at.is_multiple_of(2);
        of_classes(io, classes, |class| if is_single { class.individual } else { class.aggregated })
    };
    std::array::from_fn(of)
}

/// Returns the values of `-q`, by column.
pub(super) fn queues(io: &QueueStats) -> [u64; 14] {
    std::array::from_fn(|at| {
        let classes = CLASSES[at / 2].iter().map(|class| io.class(*class));
        let is_pending = at.is_multiple_of(2);
        classes.map(|class| if is_pending { class.queued } else { class.active }).sum()
    })
}
