//! Small pools on images: created, opened, crashed, and checked.

use std::sync::Arc;

use cenote_device::Device;
use cenote_engine::Engine;
use cenote_engine::create::CreateSpec;
use cenote_rt::{Result, Rng};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

pub(crate) use crate::images::{as_devices, check_space, devices, judge, open, open_with};

/// Size of a device: the minimum.
pub(crate) const DEVICE_SIZE: u64 = 64 << 20;

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

    fn tops(self) -> Vec<(Redundancy, VdevClass, usize)> {
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

    pub(crate) fn devices(self) -> usize {
        self.tops().iter().map(|(.., count)| count).sum()
    }
}

/// Creates a pool "tank".
pub(crate) async fn make(
    layout: Layout,
    seed: u64,
    devices: Vec<Arc<dyn Device>>,
) -> Result<Arc<Engine>> {
    let mut leaves = devices.iter().map(|device| LeafSpec::of(device.info()));
    let tops = layout.tops().into_iter().map(|(redundancy, class, count)| TopSpec {
        redundancy,
        class,
        leaves: leaves.by_ref().take(count).collect(),
    });
    let spec = create::CreateSpec {
        tops: tops.collect(),
        ashift: Some(if layout == Layout::Raidz1 { 12 } else { 9 }),
        ..create::CreateSpec::default()
    };
    let mut rng = Rng::seeded(seed);
    let vdevs = create::pool(&spec, 4, &mut Guids::new(|| Ok(rng.next_u64())))?;
    Engine::create(CreateSpec::new("tank", vdevs, devices)).await
}
