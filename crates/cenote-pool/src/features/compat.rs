//! Feature sets of the `compatibility` property (spec 06 §19.1, row 25).
//!
//! The property is a comma-separated list of file names; each file lists features. A few sets of
//! releases are built in; other files are searched where OpenZFS installs them.

use std::collections::BTreeSet;

use super::FEATURES;

/// Directories of the files, in search order.
const FOLDERS: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// Maximum length of a file.
const FILE_LEN_MAX: u64 = 16 << 10;
/// Features that GRUB 2.12 reads, or that do not affect it.
const GRUB2: [&str; 22] = [
    "allocation_classes",
    "async_destroy",
    "block_cloning",
    "bookmarks",
    "device_rebuild",
    "embedded_data",
    "empty_bpobj",
    "enabled_txg",
    "extensible_dataset",
    "filesystem_limits",
    "hole_birth",
    "large_blocks",
    "livelist",
    "log_spacemap",
    "lz4_compress",
    "project_quota",
    "resilver_defer",
    "spacemap_histogram",
    "spacemap_v2",
    "userobj_accounting",
    "zilsaxattr",
    "zpool_checkpoint",
];

/// Returns the features that a value of the property allows, or `None` if it names a file that
/// cannot be read.
#[must_use]
pub fn allowed(compatibility: Option<&str>) -> Option<BTreeSet<&'static str>> {
    let every = || super::identity().map(|feature| feature.name).collect();
    match compatibility {
        None | Some("" | "off") => Some(every()),
        Some("legacy") => Some(BTreeSet::new()),
        Some(list) => {
            let mut allowed: BTreeSet<&'static str> = every();
            for name in list.split(',') {
                let set = set(name)?;
                allowed.retain(|feature| set.contains(feature));
            }
            Some(allowed)
        }
    }
}

fn set(name: &str) -> Option<BTreeSet<&'static str>> {
    from_files(name).or_else(|| built_in(name))
}

fn from_files(name: &str) -> Option<BTreeSet<&'static str>> {
    if name.contains('/') || name.is_empty() {
        return None;
    }
    let text = FOLDERS.iter().find_map(|folder| {
        let path = std::path::Path::new(folder).join(name);
        let meta = std::fs::metadata(&path).ok().filter(|meta| meta.len() <= FILE_LEN_MAX)?;
        std::fs::read_to_string(path).ok().filter(|_| meta.is_file())
    })?;
    Some(parse(&text))
}

/// Parses names separated by white space and commas; `#` starts a comment.
fn parse(text: &str) -> BTreeSet<&'static str> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
    let words = lines.flat_map(|line| line.split([' ', '\t', ',']));
    words.filter_map(|word| super::by_name(word).map(|feature| feature.name)).collect()
}

fn built_in(name: &str) -> Option<BTreeSet<&'static str>> {
    let release = match name {
        "grub2" | "grub2-2.12" => return Some(GRUB2.into_iter().collect()),
        "openzfs-2.1-linux" => (2, 1),
        "openzfs-2.2" | "openzfs-2.2-linux" => (2, 2),
        "openzfs-2.3" | "openzfs-2.3-linux" => (2, 3),
        _ => return None,
    };
    let features = FEATURES.iter().filter(|feature| feature.since <= release);
    Some(features.map(|feature| feature.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility_feature_sets() {
        assert_eq!(allowed(None).map(|set| set.len()), Some(44));
        assert_eq!(allowed(Some("legacy")).map(|set| set.len()), Some(0));
        assert_eq!(built_in("openzfs-2.1-linux").map(|set| set.len()), Some(34));
        assert_eq!(built_in("grub2").map(|set| set.len()), Some(22));
        assert_eq!(allowed(Some("no-such-set")), None);
        assert_eq!(parse("# x\nlz4_compress, sha512 # skein\n").len(), 2);
    }
}
