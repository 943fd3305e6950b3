//! Names of vdevs as the options of a command want them (`-g`, `-L`, `-P`).
//!
//! A file goes by its whole path, a disk by the last part of it and without the partition that
//! OpenZFS made on it, an absent device by its guid, everything else by kind and number.

use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_pool::status::VdevReport;

use crate::getopt::Parsed;

/// How vdevs are called.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// `-g`: by guid.
    pub(super) by_guid: bool,
    /// `-L`: symbolic links resolved.
    pub(super) follows_links: bool,
    /// `-P`: whole paths.
    pub(super) has_paths: bool,
    /// Guids of disks that OpenZFS partitioned itself.
    whole_disks: Vec<u64>,
}

impl Names {
    /// What the options say.
    pub(super) fn of(parsed: &Parsed) -> Self {
        Self {
            by_guid: parsed.has('g'),
            follows_links: parsed.has('L'),
            has_paths: parsed.has('P'),
            whole_disks: Vec::new(),
        }
    }

    /// The same for the vdevs of a config, which tells whole disks from partitions.
    pub(super) fn within(mut self, config: &VdevConfig) -> Self {
        let leaves = config.leaves().filter(|leaf| leaf.leaf.whole_disk);
        self.whole_disks = leaves.map(|leaf| leaf.guid).collect();
        self
    }

    /// The name of one vdev; the root has that of the pool.
    pub(super) fn vdev(&self, vdev: &VdevReport) -> String {
        match vdev.kind {
            VdevKind::Root => vdev.name.clone(),
            _ if self.by_guid => vdev.guid.to_string(),
            VdevKind::Disk | VdevKind::File if vdev.path.as_ref() == Some(&vdev.name) => {
                let is_disk = vdev.kind == VdevKind::Disk;
                self.device(&vdev.name, is_disk, self.whole_disks.contains(&vdev.guid))
            }
            _ => vdev.name.clone(),
        }
    }

    /// The name of a device that is there, at `path`.
    pub(super) fn device(&self, path: &str, is_disk: bool, is_whole: bool) -> String {
        let mut path = path.to_owned();
        if self.follows_links
            && let Ok(real) = std::fs::canonicalize(&path)
        {
            path = real.to_string_lossy().into_owned();
        }
        // An image of a disk is a file here, whatever the config calls it.
        if !is_disk || self.has_paths || !path.starts_with("/dev/") {
            return path;
        }
        let name = path.rsplit('/').next().unwrap_or(&path);
        if is_whole { without_partition(name).to_owned() } else { name.to_owned() }
    }
}

/// `sda1` as `sda`, `nvme0n1p1` as `nvme0n1`, `ata-X-part1` as `ata-X`: what OpenZFS shows of a
/// disk that it was given whole.
fn without_partition(name: &str) -> &str {
    if let Some((disk, "1")) = name.rsplit_once("-part") {
        return disk;
    }
    let disk = name.strip_suffix('1').unwrap_or(name);
    let is_letter = |c: char| c.is_ascii_lowercase();
    let is_plain = disk.len() > 2
        && ["sd", "hd", "vd", "xvd"].iter().any(|start| disk.starts_with(start))
        && disk.chars().all(is_letter);
    let numbered =
        disk.strip_suffix('p').filter(|disk| disk.ends_with(|c: char| c.is_ascii_digit()));
    match numbered {
        Some(disk) => disk,
        None if is_plain => disk,
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_lose_directory_and_partition() {
        let names = Names::default();
        for (path, want) in [
            ("/dev/sda1", "sda"),
            ("/dev/sda3", "sda3"),
            ("/dev/nvme0n1p1", "nvme0n1"),
            ("/dev/disk/by-id/ata-X_1-part1", "ata-X_1"),
            ("/dev/mapper/one1", "one1"),
            ("/images/sda1", "/images/sda1"),
        ] {
            assert_eq!(names.device(path, true, true), want);
        }
        assert_eq!(names.device("/dev/x", false, false), "/dev/x");
        assert_eq!(names.device("/dev/sda1", true, false), "sda1");
        let with_paths = Names { has_paths: true, ..names };
        assert_eq!(with_paths.device("/dev/sda1", true, true), "/dev/sda1");
    }
}
