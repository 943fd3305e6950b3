//! Tunables: every policy constant of the engine, under OpenZFS's name, in one table.
//!
//! A tunable is an atomic number with a name, a default, a range and a line of help. It can be
//! read and set while running, in decimal or 0x hexadecimal. No policy constant lives elsewhere;
//! what the on-disk format fixes is not policy and stands beside its decoder.

use std::sync::atomic::{AtomicU64, Ordering};

/// One policy number.
#[derive(Debug)]
pub struct Tunable {
    /// OpenZFS's name; `cenote_…` where OpenZFS has none.
    pub name: &'static str,
    /// Value until it is set.
    pub default: u64,
    /// Smallest value accepted.
    pub min: u64,
    /// Largest value accepted.
    pub max: u64,
    /// What it does, with its unit.
    pub help: &'static str,
    value: AtomicU64,
}

/// Why a tunable was not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// No such name.
    #[error("no tunable is named '{0}'")]
    Unknown(String),
    /// Not a number.
    #[error("'{0}' is not a decimal or 0x hexadecimal number")]
    NotANumber(String),
    /// Outside the range.
    #[error("{name} takes {min} to {max}, not {value}")]
    Range {
        /// The tunable.
        name: &'static str,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
        /// The value refused.
        value: u64,
    },
}

impl Tunable {
    const fn new(
        name: &'static str,
        default: u64,
        (min, max): (u64, u64),
        help: &'static str,
    ) -> Self {
        Self { name, default, min, max, help, value: AtomicU64::new(default) }
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// The value now, as a length or count in memory.
    #[must_use]
    pub fn get_usize(&self) -> usize {
        usize::try_from(self.get()).unwrap_or(usize::MAX)
    }

    /// Sets it, if the value is in range.
    pub fn set(&self, value: u64) -> Result<(), TunableError> {
        if value < self.min || value > self.max {
            let &Self { name, min, max, .. } = self;
            return Err(TunableError::Range { name, min, max, value });
        }
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// The tunable of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Tunable> {
    ALL.iter().copied().find(|tunable| tunable.name == name)
}

/// Sets the tunable `name` from text, as `-o name=value` on a command line gives it.
pub fn set(name: &str, text: &str) -> Result<(), TunableError> {
    let tunable = find(name).ok_or_else(|| TunableError::Unknown(name.to_owned()))?;
    let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    tunable.set(value.map_err(|_| TunableError::NotANumber(text.to_owned()))?)
}

macro_rules! tunables {
    ($($ident:ident = $name:literal, $default:expr, $range:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $ident: Tunable = Tunable::new($name, $default, $range, $help);
        )*
        /// Every tunable, in the order of this file.
        pub static ALL: &[&Tunable] = &[$(&$ident),*];
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

tunables! {
    BLOCK_CACHE_BYTES = "zfs_arc_max", 64 * MIB, (MIB, 1 << 46),
        "bytes of decompressed blocks that the cache keeps";
    DEVICE_QUEUE_DEPTH = "zfs_vdev_max_active", 64, (1, 4096),
        "I/Os in flight on one leaf device";
    IO_URING = "cenote_io_uring", 1, (0, 1),
        "whether devices are read through io_uring where the kernel allows it";
    DIRECT_IO = "cenote_direct_io", 0, (0, 1),
        "whether aligned reads of devices bypass the page cache";
    AGGREGATION_LIMIT = "zfs_vdev_aggregation_limit", MIB, (0, 16 * MIB),
        "bytes up to which neighbouring I/Os are issued as one";
    READ_GAP_LIMIT = "zfs_vdev_read_gap_limit", 32 * KIB, (0, MIB),
        "bytes of gap that an aggregated read may bridge";
    SCAN_MEMORY_BYTES = "zfs_scan_mem_lim_soft_max", 64 * MIB, (MIB, 1 << 40),
        "bytes of block pointers and data that verify holds while it sorts";
    VERIFY_CHECKSUMS = "cenote_verify_checksums", 1, (0, 1),
        "whether checksums are verified; 0 exists to show that the tests notice";
    PREFETCH_BYTES = "zfetch_max_distance", 16 * MIB, (0, 1 << 30),
        "bytes read ahead of a sequential reader";
    VERIFY_BATCH_BYTES = "cenote_verify_batch_bytes", 2 * MIB, (64 * KIB, 1 << 30),
        "bytes of neighbouring blocks that verify reads and judges in one go";
    TRAVERSE_PREFETCH_BLOCKS = "cenote_traverse_prefetch_blocks", 16, (0, 4096),
        "indirect blocks and blocks of dnodes that a traversal reads ahead of their turn";
    RECONSTRUCT_ATTEMPTS_MAX = "zfs_reconstruct_indirect_combinations_max", 4096, (1, 1 << 20),
        "combinations of copies tried before a split block counts as lost";
    RAIDZ_COMBINATIONS_MAX = "cenote_raidz_combinations_max", 65536, (1, 1 << 32),
        "sets of children whose bytes RAID-Z leaves out in turn before a block counts as lost";
    SLOP_SHIFT = "spa_slop_shift", 5, (1, 31),
        "the pool keeps 1/2^shift of its space back";
    MULTIHOST_IMPORT_INTERVALS = "zfs_multihost_import_intervals", 20, (1, 1000),
        "heartbeat intervals to watch a pool that another host may hold";
    MULTIHOST_INTERVAL = "zfs_multihost_interval", 1000, (100, 1 << 32),
        "milliseconds between heartbeats";
    MULTIHOST_FAIL_INTERVALS = "zfs_multihost_fail_intervals", 10, (0, 1 << 16),
        "missed heartbeats after which a pool suspends itself";
    IMPORT_DEVICES = "cenote_import_devices", 16, (1, 1024),
        "devices whose labels are read at the same time while looking for pools";
    EMBEDDED_SLOG_MIN_MS = "zfs_embedded_slog_min_ms", 64, (2, 1 << 16),
        "metaslabs above which a normal vdev gives one to the intent log";
    MAX_MISSING_TVDS = "zfs_max_missing_tvds", 0, (0, 1 << 16),
        "missing top-level vdevs with which a pool may still be opened";
    USER_INDIRECT_IS_SPECIAL = "zfs_user_indirect_is_special", 1, (0, 1),
        "whether indirect blocks of files count as metadata for the special class";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_in_range() {
        let mut names = std::collections::BTreeSet::new();
        for tunable in ALL {
            assert!(names.insert(tunable.name), "{}", tunable.name);
            assert!((tunable.min..=tunable.max).contains(&tunable.default), "{}", tunable.name);
        }
    }

    #[test]
    fn text_is_decimal_or_hexadecimal_and_bounded() {
        for (text, want) in [
            ("7", Ok(())),
            ("0x6", Ok(())),
            ("x", Err(TunableError::NotANumber("x".into()))),
            ("99", Err(TunableError::Range { name: "spa_slop_shift", min: 1, max: 31, value: 99 })),
        ] {
            assert_eq!(set("spa_slop_shift", text), want, "{text}");
        }
        assert_eq!(SLOP_SHIFT.get(), 6);
        SLOP_SHIFT.set(5).expect("default");
        assert!(set("no_such", "1").is_err());
    }
}
