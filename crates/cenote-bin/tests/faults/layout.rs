//! The pool layouts of the scenarios.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cenote_testkit::faultfs::FaultLayer;
use cenote_testkit::{rng, skip};

/// Size of a data leaf.
pub(crate) const LEAF: u64 = 160 << 20;
/// Size of a log leaf.
const LOG_LEAF: u64 = 80 << 20;

/// Layout of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One leaf, and two copies of each block.
    Single,
    Mirror,
    Raidz1,
    Raidz2,
    Draid,
    /// A mirror, and a log device.
    MirrorLog,
    /// A mirror, and a log of two sides.
    MirrorTwoLogs,
    /// A mirror, and a mirror for metadata and small blocks.
    Special,
}

impl Layout {
    pub(crate) const ALL: [Self; 8] = [
        Self::Single,
        Self::Mirror,
        Self::Raidz1,
        Self::Raidz2,
        Self::Draid,
        Self::MirrorLog,
        Self::MirrorTwoLogs,
        Self::Special,
    ];

    /// Returns all layouts with `CENOTE_TEST_ALL`, else these few.
    pub(crate) fn all_or(few: &[Self]) -> Vec<Self> {
        if rng::wants_all() { Self::ALL.to_vec() } else { few.to_vec() }
    }

    /// Returns all redundant layouts with `CENOTE_TEST_ALL`, else these few.
    pub(crate) fn redundant_or(few: &[Self]) -> Vec<Self> {
        if rng::wants_all() { Self::redundant().collect() } else { few.to_vec() }
    }

    /// Returns the layouts that survive the loss of any leaf.
    pub(crate) fn redundant() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|layout| *layout != Self::Single)
    }

    /// Whether blocks survive the loss of any two leaves.
    pub(crate) fn is_doubly_redundant(self) -> bool {
        self == Self::Raidz2
    }

    /// The sizes of the leaves.
    pub(crate) fn sizes(self) -> Vec<u64> {
        match self {
            Self::Single => vec![LEAF],
            Self::Mirror => vec![LEAF; 2],
            Self::Raidz1 => vec![LEAF; 3],
            Self::Raidz2 | Self::Special => vec![LEAF; 4],
            Self::Draid => vec![LEAF; 5],
            Self::MirrorLog => vec![LEAF, LEAF, LOG_LEAF],
            Self::MirrorTwoLogs => vec![LEAF, LEAF, LOG_LEAF, LOG_LEAF],
        }
    }

    /// Returns the number of leaves with file data and metadata; the others are log devices.
    pub(crate) fn data_leaves(self) -> usize {
        match self {
            Self::MirrorLog | Self::MirrorTwoLogs => 2,
            _ => self.sizes().len(),
        }
    }

    /// Returns the arguments of `zpool create` after the pool's name.
    pub(crate) fn words(self, layer: &FaultLayer) -> String {
        let words = match self {
            Self::Single => "0",
            Self::Mirror => "mirror 0 1",
            Self::Raidz1 => "raidz1 0 1 2",
            Self::Raidz2 => "raidz2 0 1 2 3",
            Self::Draid => "draid1:3d:5c:1s 0 1 2 3 4",
            Self::MirrorLog => "mirror 0 1 log 2",
            Self::MirrorTwoLogs => "mirror 0 1 log mirror 2 3",
            Self::Special => "mirror 0 1 special mirror 2 3",
        };
        let path = |word: &str| match word.parse() {
            Ok(leaf) => layer.leaf(leaf).to_str().unwrap().to_owned(),
            Err(_) => word.to_owned(),
        };
        words.split(' ').map(path).collect::<Vec<_>>().join(" ")
    }
}

/// Runs a scenario on each layout, and with each seed; reports all that fail.
pub(crate) fn each(
    layouts: &[Layout],
    seeds: std::ops::Range<u64>,
    scenario: impl Fn(Layout, u64),
) {
    if layouts.is_empty() {
        return skip::skip(&skip::current_test(), "runs with CENOTE_TEST_ALL only");
    }
    let runs = layouts.iter().flat_map(|layout| seeds.clone().map(|seed| (*layout, seed)));
    let fails = |(layout, seed): &(Layout, u64)| {
        // A scenario has its own site, which is not used after a failure.
        catch_unwind(AssertUnwindSafe(|| scenario(*layout, *seed))).is_err()
    };
    let failed: Vec<_> = runs.filter(fails).collect();
    assert!(failed.is_empty(), "failed: {failed:?}");
}
