//! Feature flags: the list of all OpenZFS features, and the effect of unknown ones.
//!
//! ```text
//!   MOS  features_for_read   guid -> count   unknown and in use: the pool cannot be opened
//!        features_for_write  guid -> count   unknown and in use: it can be opened for reading
//!   label features_for_read  active ones without which the MOS cannot be read
//! ```
//!
//! A count of 0 means "enabled, but not in use", and is harmless for any feature. The order is that
//! of OpenZFS's own list, in which `zpool get all` and `zpool upgrade -v` print them and in which a
//! new pool enables them. Names, flags and descriptions of the first 44 were compared with OpenZFS
//! 2.3.2's table.
//!
//! Sources: spec 01 §11.

use bitflags::bitflags;

bitflags! {
    /// How a feature affects opening, and where its state is stored.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FeatureFlags: u8 {
        /// Software without it can still read the pool: stored in `features_for_write`.
        const READ_ONLY_COMPATIBLE = 1 << 0;
        /// Needed to read the MOS itself: listed in the labels while active.
        const IN_LABEL = 1 << 1;
        /// Active from the moment it is enabled.
        const ACTIVE_ON_ENABLE = 1 << 2;
        /// Recorded on every dataset that uses it.
        const PER_DATASET = 1 << 3;
        /// Not enabled by `zpool upgrade`, only by name.
        const NO_UPGRADE = 1 << 4;
    }
}

/// A feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Short name, as in `feature@NAME`.
    pub name: &'static str,
    /// The name on disk.
    pub guid: &'static str,
    /// OpenZFS's description.
    pub description: &'static str,
    /// Its flags.
    pub flags: FeatureFlags,
    /// Short names of features that must be enabled first.
    pub needs: &'static [&'static str],
    /// First release with the feature, as (major, minor).
    pub since: (u8, u8),
}

const EXT: &[&str] = &["extensible_dataset"];
const EXT_BOOKMARK_V2: &[&str] = &["extensible_dataset", "bookmark_v2"];
const EXT_REMOVAL: &[&str] = &["extensible_dataset", "device_removal"];
const EXT_BOOKMARKS: &[&str] = &["extensible_dataset", "bookmarks"];
const EXT_LARGE_BLOCKS: &[&str] = &["extensible_dataset", "large_blocks"];
const REDACTED: &[&str] = &["redaction_bookmarks"];
const REDACTION: &[&str] = &["bookmark_v2", "extensible_dataset", "bookmarks"];

/// Every known feature. W: read-only compatible, M: in the label, A: active on enable, D: per
/// dataset, N: no upgrade.
#[rustfmt::skip]
pub const FEATURES: [Feature; 48] = [
    feature("async_destroy", "com.delphix:async_destroy", "W", &[], (2, 1),
        "Destroy filesystems asynchronously."),
    feature("empty_bpobj", "com.delphix:empty_bpobj", "W", &[], (2, 1),
        "Snapshots use less space."),
    feature("lz4_compress", "org.illumos:lz4_compress", "A", &[], (2, 1),
        "LZ4 compression algorithm support."),
    feature("multi_vdev_crash_dump", "com.joyent:multi_vdev_crash_dump", "", &[], (2, 1),
        "Crash dumps to multiple vdev pools."),
    feature("spacemap_histogram", "com.delphix:spacemap_histogram", "W", &[], (2, 1),
        "Spacemaps maintain space histograms."),
    feature("enabled_txg", "com.delphix:enabled_txg", "W", &[], (2, 1),
        "Record txg at which a feature is enabled"),
    feature("hole_birth", "com.delphix:hole_birth", "MA", &["enabled_txg"], (2, 1),
        "Retain hole birth txg for more precise zfs send"),
    feature("extensible_dataset", "com.delphix:extensible_dataset", "", &[], (2, 1),
        "Enhanced dataset functionality, used by other features."),
    feature("embedded_data", "com.delphix:embedded_data", "MA", &[], (2, 1),
        "Blocks which compress very well use even less space."),
    feature("bookmarks", "com.delphix:bookmarks", "W", EXT, (2, 1),
        "\"zfs bookmark\" command"),
    feature("filesystem_limits", "com.joyent:filesystem_limits", "W", EXT, (2, 1),
        "Filesystem and snapshot limits."),
    feature("large_blocks", "org.open-zfs:large_blocks", "D", EXT, (2, 1),
        "Support for blocks larger than 128KB."),
    feature("large_dnode", "org.zfsonlinux:large_dnode", "D", EXT, (2, 1),
        "Variable on-disk size of dnodes."),
    feature("sha512", "org.illumos:sha512", "D", EXT, (2, 1),
        "SHA-512/256 hash algorithm."),
    feature("skein", "org.illumos:skein", "D", EXT, (2, 1),
        "Skein hash algorithm."),
    feature("edonr", "org.illumos:edonr", "D", EXT, (2, 1),
        "Edon-R hash algorithm."),
    feature("userobj_accounting", "org.zfsonlinux:userobj_accounting", "WD", EXT, (2, 1),
        "User/Group object accounting."),
    feature("encryption", "com.datto:encryption", "D", EXT_BOOKMARK_V2, (2, 1),
        "Support for dataset level encryption"),
    feature("project_quota", "org.zfsonlinux:project_quota", "WD", EXT, (2, 1),
        "space/object accounting based on project ID."),
    feature("device_removal", "com.delphix:device_removal", "M", &[], (2, 1),
        "Top-level vdevs can be removed, reducing logical pool size."),
    feature("obsolete_counts", "com.delphix:obsolete_counts", "W", EXT_REMOVAL, (2, 1),
        "Reduce memory used by removed devices when their blocks are freed or remapped."),
    feature("zpool_checkpoint", "com.delphix:zpool_checkpoint", "W", &[], (2, 1),
        "Pool state can be checkpointed, allowing rewind later."),
    feature("spacemap_v2", "com.delphix:spacemap_v2", "WA", &[], (2, 1),
        "Space maps representing large segments are more efficient."),
    feature("allocation_classes", "org.zfsonlinux:allocation_classes", "W", &[], (2, 1),
        "Support for separate allocation classes."),
    feature("resilver_defer", "com.datto:resilver_defer", "W", &[], (2, 1),
        "Support for deferring new resilvers when one is already running."),
    feature("bookmark_v2", "com.datto:bookmark_v2", "", EXT_BOOKMARKS, (2, 1),
        "Support for larger bookmarks"),
    feature("redaction_bookmarks", "com.delphix:redaction_bookmarks", "", REDACTION, (2, 1),
        "Support for bookmarks which store redaction lists for zfs redacted send/recv."),
    feature("redacted_datasets", "com.delphix:redacted_datasets", "D", EXT, (2, 1),
        "Support for redacted datasets, produced by receiving a redacted zfs send stream."),
    feature("bookmark_written", "com.delphix:bookmark_written", "", REDACTION, (2, 1),
        "Additional accounting, enabling the written#<bookmark> property (space written \
         since a bookmark), and estimates of send stream sizes for incrementals from \
         bookmarks."),
    feature("log_spacemap", "com.delphix:log_spacemap", "W", &["spacemap_v2"], (2, 1),
        "Log metaslab changes on a single spacemap and flush them periodically."),
    feature("livelist", "com.delphix:livelist", "W", EXT, (2, 1),
        "Improved clone deletion performance."),
    feature("device_rebuild", "org.openzfs:device_rebuild", "W", &[], (2, 1),
        "Support for sequential mirror/dRAID device rebuilds"),
    feature("zstd_compress", "org.freebsd:zstd_compress", "D", EXT, (2, 1),
        "zstd compression algorithm support."),
    feature("draid", "org.openzfs:draid", "M", &[], (2, 1),
        "Support for distributed spare RAID"),
    feature("zilsaxattr", "org.openzfs:zilsaxattr", "WD", EXT, (2, 2),
        "Support for xattr=sa extended attribute logging in ZIL."),
    feature("head_errlog", "com.delphix:head_errlog", "A", &[], (2, 2),
        "Support for per-dataset on-disk error logs."),
    feature("blake3", "org.openzfs:blake3", "D", EXT, (2, 2),
        "BLAKE3 hash algorithm."),
    feature("block_cloning", "com.fudosecurity:block_cloning", "W", &[], (2, 2),
        "Support for block cloning via Block Reference Table."),
    feature("vdev_zaps_v2", "com.klarasystems:vdev_zaps_v2", "M", &[], (2, 2),
        "Support for root vdev ZAP."),
    feature("redaction_list_spill", "com.delphix:redaction_list_spill", "", REDACTED, (2, 3),
        "Support for increased number of redaction_snapshot arguments in zfs redact."),
    feature("raidz_expansion", "org.openzfs:raidz_expansion", "M", &[], (2, 3),
        "Support for raidz expansion"),
    feature("fast_dedup", "com.klarasystems:fast_dedup", "W", &[], (2, 3),
        "Support for advanced deduplication"),
    feature("longname", "org.zfsonlinux:longname", "D", EXT, (2, 3),
        "support filename up to 1024 bytes"),
    feature("large_microzap", "com.klarasystems:large_microzap", "WD", EXT_LARGE_BLOCKS, (2, 3),
        "Support for microzaps larger than 128KB."),
    feature("dynamic_gang_header", "com.klarasystems:dynamic_gang_header", "MN", &[], (2, 4),
        "Support for dynamically sized gang headers"),
    feature("block_cloning_endian", "com.truenas:block_cloning_endian", "W", &[], (2, 4),
        "Fixes BRT ZAP endianness on new pools."),
    feature("physical_rewrite", "com.truenas:physical_rewrite", "WD", EXT, (2, 4),
        "Support for preserving logical birth time during rewrite."),
    feature("draid_failure_domains", "com.seagate:draid_failure_domains", "M", &["draid"], (2, 5),
        "Support for failure domains in dRAID"),
];

const fn feature(
    name: &'static str,
    guid: &'static str,
    letters: &'static str,
    needs: &'static [&'static str],
    since: (u8, u8),
    description: &'static str,
) -> Feature {
    let mut letters = letters.as_bytes();
    let mut flags = FeatureFlags::empty();
    while let [letter, rest @ ..] = letters {
        flags = flags.union(match *letter {
            b'W' => FeatureFlags::READ_ONLY_COMPATIBLE,
            b'M' => FeatureFlags::IN_LABEL,
            b'A' => FeatureFlags::ACTIVE_ON_ENABLE,
            b'D' => FeatureFlags::PER_DATASET,
            b'N' => FeatureFlags::NO_UPGRADE,
            _ => panic!("unknown letter"),
        });
        letters = rest;
    }
    Feature { name, guid, description, flags, needs, since }
}

impl Feature {
    /// Whether software without the feature can still read the pool.
    #[must_use]
    pub const fn is_read_only_compatible(&self) -> bool {
        self.flags.contains(FeatureFlags::READ_ONLY_COMPATIBLE)
    }

    /// Whether labels list it while it is active.
    #[must_use]
    pub const fn is_in_label(&self) -> bool {
        self.flags.contains(FeatureFlags::IN_LABEL)
    }

    /// Whether it is recorded on every dataset that uses it.
    #[must_use]
    pub const fn is_per_dataset(&self) -> bool {
        self.flags.contains(FeatureFlags::PER_DATASET)
    }
}

/// The feature with this name on disk.
#[must_use]
pub fn by_guid(guid: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.guid == guid)
}

/// The feature with this short name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_needs_come_first() {
        for (index, feature) in FEATURES.iter().enumerate() {
            let earlier = &FEATURES[..index];
            assert!(earlier.iter().all(|e| e.name != feature.name && e.guid != feature.guid));
            assert_eq!(by_guid(feature.guid), by_name(feature.name));
            let (_, short) = feature.guid.split_once(':').unwrap();
            assert_eq!(short, feature.name);
            for need in feature.needs {
                assert!(by_name(need).is_some(), "{need}");
            }
        }
        let of = |release| FEATURES.iter().filter(|feature| feature.since <= release).count();
        assert_eq!((of((2, 1)), of((2, 2)), of((2, 3))), (34, 39, 44));
        let in_label = FEATURES.iter().filter(|feature| feature.is_in_label()).count();
        assert_eq!(in_label, 8);
    }
}
