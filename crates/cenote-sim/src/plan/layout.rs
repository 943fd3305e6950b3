//! Layouts of pools, and the disks of each that may have faults.

use cenote_poolkit::builder::{Top, redundancy_of};
use cenote_rt::Rng;
use cenote_vdev::create::{Redundancy, VdevClass};
use serde::{Deserialize, Serialize};

/// Smallest size of a disk, in MiB.
const MIB_MIN: u64 = 64;

/// Vdevs of a pool, and its disks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// Its name in the table.
    pub(crate) name: String,
    /// Log2 of the sector size.
    pub(crate) ashift: u64,
    /// Size of each disk, in MiB.
    pub(crate) mib: u64,
    /// Disks with faults: never more of a vdev than its redundancy allows.
    pub(crate) victims: Vec<usize>,
}

/// A top-level vdev: redundancy, class, number of disks, and disks that may fail.
pub(crate) type TopPlan = (&'static str, VdevClass, usize, usize);

const DATA: VdevClass = VdevClass::Normal;

/// All layouts.
const LAYOUTS: [(&str, &[TopPlan]); 14] = [
    ("disk", &[("disk", DATA, 1, 0)]),
    ("two disks", &[("disk", DATA, 1, 0), ("disk", DATA, 1, 0)]),
    ("mirror", &[("mirror", DATA, 2, 1)]),
    ("mirror of three", &[("mirror", DATA, 3, 2)]),
    ("two mirrors", &[("mirror", DATA, 2, 1), ("mirror", DATA, 2, 1)]),
    ("raidz1", &[("raidz1", DATA, 3, 1)]),
    ("wide raidz1", &[("raidz1", DATA, 5, 1)]),
    ("raidz2", &[("raidz2", DATA, 4, 2)]),
    ("raidz3", &[("raidz3", DATA, 5, 3)]),
    ("draid1", &[("draid1:2d:4c:1s", DATA, 4, 1)]),
    ("disk and log", &[("disk", DATA, 1, 0), ("disk", VdevClass::Log, 1, 0)]),
    ("mirror and log", &[("mirror", DATA, 2, 1), ("mirror", VdevClass::Log, 2, 1)]),
    ("mirror and special", &[("mirror", DATA, 2, 1), ("mirror", VdevClass::Special, 2, 1)]),
    ("raidz1 and log", &[("raidz1", DATA, 3, 1), ("disk", VdevClass::Log, 1, 0)]),
];

impl Layout {
    /// Draws a layout.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let (name, tops) = LAYOUTS[rng.below(LAYOUTS.len() as u64) as usize];
        let mut victims = Vec::new();
        let mut first = 0;
        for (_, _, disks, may_fail) in tops {
            let offset = rng.below(*disks as u64) as usize;
            victims.extend((0..*may_fail).map(|number| first + (offset + number) % disks));
            first += disks;
        }
        let mib = if name == "draid1" { 2 * MIB_MIN } else { MIB_MIN };
        let ashift = if rng.below(3) == 0 { 12 } else { 9 };
        Self { name: name.to_owned(), ashift, mib, victims }
    }

    /// Returns its row of the table: its name and its top-level vdevs.
    ///
    /// # Panics
    /// If the table has no such layout.
    fn row(&self) -> (&'static str, &'static [TopPlan]) {
        let row = LAYOUTS.into_iter().find(|(name, _)| *name == self.name);
        row.unwrap_or_else(|| panic!("no layout is named {}", self.name))
    }

    /// Returns its name in tables.
    pub(crate) fn title(&self) -> &'static str {
        self.row().0
    }

    /// Number of disks.
    pub(crate) fn disks(&self) -> usize {
        self.row().1.iter().map(|(_, _, disks, _)| disks).sum()
    }

    /// Returns the top-level vdevs as a builder of pools takes them.
    pub(crate) fn tops(&self) -> Vec<Top> {
        let top = |(name, class, disks, _): &TopPlan| -> (Redundancy, VdevClass, usize) {
            let redundancy = if *name == "disk" { Redundancy::Single } else { redundancy_of(name) };
            (redundancy, *class, *disks)
        };
        self.row().1.iter().map(top).collect()
    }
}
