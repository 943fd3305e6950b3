//! Layouts of small pools, with and without log devices.

use cenote_poolkit::PoolBuilder;
use cenote_poolkit::builder::Top;
use cenote_vdev::create::{Redundancy, VdevClass};

/// Pool layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Disk,
    Mirror,
    Raidz1,
    Slog,
    MirroredSlog,
    MirrorAndSlog,
}

impl Layout {
    pub(crate) const ALL: [Self; 4] = [Self::Disk, Self::Mirror, Self::Raidz1, Self::Slog];

    fn tops(self) -> Vec<Top> {
        match self {
            Self::Disk => vec![(Redundancy::Single, VdevClass::Normal, 1)],
            Self::Mirror => vec![(Redundancy::Mirror, VdevClass::Normal, 2)],
            Self::Raidz1 => vec![(Redundancy::Raidz(1), VdevClass::Normal, 3)],
            Self::Slog => vec![
                (Redundancy::Single, VdevClass::Normal, 1),
                (Redundancy::Single, VdevClass::Log, 1),
            ],
            Self::MirroredSlog => vec![
                (Redundancy::Single, VdevClass::Normal, 1),
                (Redundancy::Mirror, VdevClass::Log, 2),
            ],
            Self::MirrorAndSlog => vec![
                (Redundancy::Mirror, VdevClass::Normal, 2),
                (Redundancy::Single, VdevClass::Log, 1),
            ],
        }
    }

    /// Returns the number of data devices: log devices come after them.
    pub(crate) fn main_devices(self) -> usize {
        let tops = self.tops().into_iter();
        tops.filter(|(_, class, _)| *class != VdevClass::Log).map(|(.., count)| count).sum()
    }

    /// Returns a builder of the pool, with guids of this seed.
    pub(crate) fn builder(self, seed: u64) -> PoolBuilder {
        let ashift = if self == Self::Raidz1 { 12 } else { 9 };
        PoolBuilder::new(self.tops()).with_ashift(ashift).with_seed(seed)
    }
}
