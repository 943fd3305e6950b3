//! Devices by name. All figures of the models are in this file, each with its source.
//!
//! "Estimated" marks figures without a published source, "fitted" those that were chosen so that a
//! published result comes out. The figures and fits are those of spec 09 §2, unless a comment says
//! otherwise.

use super::{DiskModel, Flash, FlashParams, Lun, LunParams, Rotating, RotatingParams};

/// Figures of a device of any kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Params {
    /// A rotating disk.
    Rotating(RotatingParams),
    /// An SSD.
    Flash(FlashParams),
    /// A LUN.
    Lun(LunParams),
}

impl Params {
    /// Returns an idle device of `size` bytes; an SSD has been written all over. The seed decides
    /// the order in which a disk compares commands.
    #[must_use]
    pub fn build(self, size: u64, seed: u64) -> Box<dyn DiskModel> {
        match self {
            Self::Rotating(params) => Box::new(Rotating::new(params, seed)),
            Self::Flash(params) => Box::new(Flash::preconditioned(params, size)),
            Self::Lun(params) => Box::new(Lun::new(params)),
        }
    }
}

/// All devices.
pub const DEVICES: [(&str, Params); 8] = [
    ("hdd-10k-sas", Params::Rotating(HDD_10K_SAS)),
    ("hdd-15k-sas", Params::Rotating(HDD_15K_SAS)),
    ("hdd-7200", Params::Rotating(HDD_7200)),
    ("ssd-sata-2012", Params::Flash(SSD_SATA_2012)),
    ("ssd-sata-2018", Params::Flash(SSD_SATA_2018)),
    ("nvme", Params::Flash(NVME)),
    ("vm-lun", Params::Lun(VM_LUN)),
    ("raid-array-lun", Params::Lun(RAID_ARRAY_LUN)),
];

/// Returns the figures of a device by its name.
#[must_use]
pub fn find(name: &str) -> Option<Params> {
    DEVICES.into_iter().find(|(known, _)| *known == name).map(|(_, params)| params)
}

/// A SAS disk of 10 000 revolutions per minute. Savvio 10K.4 manual: seek 3.8 ms on average (writes
/// 4.4), one track 0.30 (0.56), full stroke 7.81 (8.18), overhead 0.2 ms; 678 kB a track on average
/// are 113 MB/s. Capacity and skill are fitted together to the reads of seed 000. The link is SAS-2
/// (600 MB/s); cache size from the manual, off as SAS disks are delivered.
pub const HDD_10K_SAS: RotatingParams = RotatingParams {
    capacity: 146_000_000_000,
    rpm: 10_000,
    seek_ms: [0.30, 3.8, 7.8],
    settle_ms: 0.6,
    rate_mb: [150.0, 90.0],
    overhead_ms: 0.20,
    tags: 32,
    skill: 0.28,
    starved_ns: 500_000_000,
    link_mb: 600.0,
    cache_bytes: 16 << 20,
    is_cache_on: false,
    stretch: 1,
};

/// A SAS disk of 15 000 revolutions per minute. Ultrastar C15K600: seek 2.9 ms on average (writes
/// 3.1), cache 64 MiB, link SAS-2; one track and full stroke are estimated.
pub const HDD_15K_SAS: RotatingParams = RotatingParams {
    capacity: 300_000_000_000,
    rpm: 15_000,
    seek_ms: [0.20, 2.9, 6.0],
    settle_ms: 0.4,
    rate_mb: [200.0, 120.0],
    overhead_ms: 0.20,
    tags: 32,
    skill: 0.28,
    starved_ns: 500_000_000,
    link_mb: 600.0,
    cache_bytes: 64 << 20,
    is_cache_on: false,
    stretch: 1,
};

/// A SATA disk of 7 200 revolutions per minute. Constellation manual: seek 8.0 ms on average
/// (writes 8.4), one track 0.5 (0.7), full stroke 17.35 (17.8); rates below those of its successor
/// ES.3 (175 and 83 MB/s); cache 64 MiB. The link is SATA 2 (300 MB/s). The cache is on, as SATA
/// disks are delivered. A command goes first when it is 1 s old, not 0.5 s as for the faster disks:
/// at depth 32 a tenth of all reads is older than 0.5 s, and the spec's rate there has no limit.
pub const HDD_7200: RotatingParams = RotatingParams {
    capacity: 2_000_000_000_000,
    rpm: 7_200,
    seek_ms: [0.5, 8.0, 17.4],
    settle_ms: 0.4,
    rate_mb: [150.0, 75.0],
    overhead_ms: 0.20,
    tags: 32,
    skill: 0.28,
    starved_ns: 1_000_000_000,
    link_mb: 300.0,
    cache_bytes: 64 << 20,
    is_cache_on: true,
    stretch: 1,
};

/// A SATA SSD of 2012, class M550 with 128 GB: 350 MB/s when fresh, 350/7.8 = 45 MB/s in the steady
/// state, which is the rate of seed 003. Two planes are needed to reach 350 MB/s with 16 lanes of
/// 1.3 ms. The time of a command on the link is that of `SSD_SATA_2018`; buffer and erase unit are
/// estimated.
pub const SSD_SATA_2012: FlashParams = FlashParams {
    lanes: 16,
    page_bytes: 16 << 10,
    planes: 2,
    read_ns: 75_000,
    program_ns: 1_300_000,
    link_mb: 540.0,
    spare: 0.07,
    program_mb: 350.0,
    overhead_ns: 50_000,
    command_ns: 3_660,
    buffer_bytes: 4 << 20,
    erase_bytes: 4 << 20,
};

/// A SATA SSD of 2018. The time of a command on the link is fitted to 90 000 reads of 4 KiB a
/// second at depth 32; buffer and erase unit are estimated.
pub const SSD_SATA_2018: FlashParams = FlashParams {
    lanes: 32,
    page_bytes: 16 << 10,
    planes: 1,
    read_ns: 60_000,
    program_ns: 700_000,
    link_mb: 550.0,
    spare: 0.12,
    program_mb: 500.0,
    overhead_ns: 40_000,
    command_ns: 3_660,
    buffer_bytes: 16 << 20,
    erase_bytes: 4 << 20,
};

/// An NVMe SSD. The time of a command on the link is fitted to 500 000 reads of 4 KiB a second at
/// depth 128; buffer and erase unit are estimated.
pub const NVME: FlashParams = FlashParams {
    lanes: 128,
    page_bytes: 16 << 10,
    planes: 1,
    read_ns: 60_000,
    program_ns: 600_000,
    link_mb: 3200.0,
    spare: 0.12,
    program_mb: 2800.0,
    overhead_ns: 10_000,
    command_ns: 720,
    buffer_bytes: 64 << 20,
    erase_bytes: 4 << 20,
};

/// The disk of a virtual machine of 2013. Fixed time and rate are fitted to seed 004 (1 302
/// writes/s of 109 KiB, 7.3 ms); the depth is `zfs_vdev_max_pending` of its time.
pub const VM_LUN: LunParams =
    LunParams { depth: 10, fixed_ns: 2_600_000, rate_mb: 220.0, gap_ns: 0, near_bytes: 64 << 10 };

/// An array's LUN that pays for gaps between writes. The gap is fitted to seed 002: writes of
/// 128 KiB with gaps take twice as long, 128 KiB / 125 MB/s = 1.05 ms.
pub const RAID_ARRAY_LUN: LunParams = LunParams {
    depth: 1,
    fixed_ns: 200_000,
    rate_mb: 150.0,
    gap_ns: 1_050_000,
    near_bytes: 64 << 10,
};
