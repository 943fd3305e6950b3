//! Keys of the per-vdev ZAPs and of the pool-wide ones that go with them (spec 05 §3.5, 06 §5.1).

/// Config key: ZAP of a top-level vdev.
pub const CONFIG_TOP: &str = "com.delphix:vdev_zap_top";
/// Config key: ZAP of a leaf.
pub const CONFIG_LEAF: &str = "com.delphix:vdev_zap_leaf";
/// Config key: ZAP of the root (feature vdev_zaps_v2).
pub const CONFIG_ROOT: &str = "com.klarasystems:vdev_zap_root";
/// Pool directory: ZAP that lists all of them.
pub const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";

/// Top: `log`, `special` or `dedup`, a string.
pub const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";
/// Top: space map of blocks that the checkpoint still needs.
pub const POOL_CHECKPOINT_SM: &str = "com.delphix:pool_checkpoint_sm";
/// Top: space map of obsolete bytes of an indirect vdev.
pub const OBSOLETE_SM: &str = "com.delphix:indirect_obsolete_sm";
/// Top: u64 1 if the obsolete counts are exact.
pub const OBSOLETE_COUNTS_PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
/// Top: state of a sequential rebuild.
pub const VDEV_REBUILD: &str = "org.openzfs:vdev_rebuild";
/// Top: state of a RAID-Z expansion (0 none, 1 running, 2 finished).
pub const RAIDZ_EXPAND_STATE: &str = "org.openzfs:raidz_expand_state";
/// Top: start of a RAID-Z expansion.
pub const RAIDZ_EXPAND_START: &str = "org.openzfs:raidz_expand_start_time";
/// Top: end of a RAID-Z expansion.
pub const RAIDZ_EXPAND_END: &str = "org.openzfs:raidz_expand_end_time";
/// Top: bytes that a RAID-Z expansion has copied.
pub const RAIDZ_EXPAND_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";

/// Leaf: last offset of `zpool initialize`.
pub const INITIALIZE_LAST_OFFSET: &str = "com.delphix:next_offset_to_initialize";
/// Leaf: state of `zpool initialize`.
pub const INITIALIZE_STATE: &str = "com.delphix:vdev_initialize_state";
/// Leaf: time of the last action of `zpool initialize`.
pub const INITIALIZE_ACTION_TIME: &str = "com.delphix:vdev_initialize_action_time";
/// Leaf: last offset of `zpool trim`.
pub const TRIM_LAST_OFFSET: &str = "org.zfsonlinux:next_offset_to_trim";
/// Leaf: state of `zpool trim`.
pub const TRIM_STATE: &str = "org.zfsonlinux:vdev_trim_state";
/// Leaf: time of the last action of `zpool trim`.
pub const TRIM_ACTION_TIME: &str = "org.zfsonlinux:vdev_trim_action_time";

/// Leaf: most bytes to trim per second.
pub const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";
/// Leaf: whether trim skips space that was never used.
pub const TRIM_PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
/// Leaf: whether trim erases securely.
pub const TRIM_SECURE: &str = "org.zfsonlinux:vdev_trim_secure";

/// Allocation class of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocationBias {
    /// Intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

impl AllocationBias {
    /// From the value of [`ALLOCATION_BIAS`].
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        Some(match value {
            "log" => Self::Log,
            "special" => Self::Special,
            "dedup" => Self::Dedup,
            _ => return None,
        })
    }

    /// The stored value, without NUL.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Special => "special",
            Self::Dedup => "dedup",
        }
    }
}
