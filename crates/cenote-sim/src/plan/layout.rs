//! Layouts of pools, and the disks of each that may have faults.

use std::ops::Range;

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
    /// Number of disks without faults that do not belong to the pool at first. Their numbers follow
    /// those of the others.
    #[serde(default)]
    pub(crate) spares: usize,
    /// Number of disks without faults that are hot spares of the pool at first. Their numbers
    /// follow those of all others.
    #[serde(default)]
    pub(crate) hot_spares: usize,
    /// Names of the models of the disks, by number; the others are like the first one.
    #[serde(default)]
    pub(crate) models: Vec<String>,
}

/// A top-level vdev: redundancy, class, number of disks, and disks that may fail.
pub(crate) type TopPlan = (&'static str, VdevClass, usize, usize);

/// The model of disks without one.
const MODEL: &str = "nvme";
/// Models of disks, by the number of draws that they have.
const MODELS: [&str; 8] = [
    "nvme",
    "nvme",
    "ssd-sata-2018",
    "ssd-sata-2018",
    "hdd-10k-sas",
    "hdd-7200",
    "vm-lun",
    "raid-array-lun",
];

const DATA: VdevClass = VdevClass::Normal;

/// All layouts.
const LAYOUTS: [(&str, &[TopPlan]); 16] = [
    ("disk", &[("disk", DATA, 1, 0)]),
    ("two disks", &[("disk", DATA, 1, 0), ("disk", DATA, 1, 0)]),
    // Of three or more vdevs one can be removed.
    ("four disks", &[("disk", DATA, 1, 0); 4]),
    ("three mirrors", &[("mirror", DATA, 2, 1); 3]),
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
        let model = |rng: &mut Rng| MODELS[rng.below(MODELS.len() as u64) as usize].to_owned();
        let models = if rng.below(4) == 0 { first } else { 1 };
        let models = (0..models).map(|_| model(rng)).collect();
        let spares = rng.below(3) as usize;
        Self { name: name.to_owned(), ashift, mib, victims, spares, hot_spares: 0, models }
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

    /// Returns the name of the model of a disk.
    pub(crate) fn model(&self, disk: usize) -> &str {
        self.models.get(disk).or(self.models.first()).map_or(MODEL, String::as_str)
    }

    /// Number of disks, with those that do not belong to the pool at first.
    pub(crate) fn all_disks(&self) -> usize {
        self.disks() + self.spares + self.hot_spares
    }

    /// Numbers of the disks that are hot spares at first.
    pub(crate) fn hot_spares(&self) -> Range<usize> {
        self.disks() + self.spares..self.all_disks()
    }

    /// Whether a disk may leave the pool, and may come to it: one with faults, or a spare one.
    pub(crate) fn may_move(&self, disk: usize) -> bool {
        self.victims.contains(&disk) || disk >= self.disks()
    }

    /// Number of disks that the pool has at first.
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
