//! Names of vdevs according to the options of a command (`-g`, `-L`, `-P`).
//!
//! A file is named by its whole path, a disk by the last part of its path without the partition
//! that OpenZFS made on it, an absent device by its guid, everything else by kind and number.
//!
//! [`find`] is the inverse: a vdev may be given by guid, by path, by one of these names, by parity
//! and number of a dRAID, by the last part of its path, or by another path of the same file. The
//! first of these that matches any vdev decides, and it must match exactly one.

use std::path::Path;

use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_pool::status::{VdevReport, vdev_name};

use crate::environment;
use crate::getopt::Parsed;

/// Why a word denotes no vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FindVdevError {
    #[error("no such device in pool")]
    Absent,
    #[error("several devices of the pool have that name; use the path or the guid")]
    Ambiguous,
}

/// Returns the vdev below `root` that a word on the command line denotes; `file` is the word as a
/// path.
pub(crate) fn find<'a>(
    root: &'a VdevConfig,
    word: &str,
    file: &Path,
) -> Result<&'a VdevConfig, FindVdevError> {
    let names = Names::default().within(root);
    find_among(&root.walk().skip(1).collect::<Vec<_>>(), &names, word, file)
}

/// Returns the one of `vdevs`, such as hot spares, that a word on the command line denotes.
pub(super) fn find_among<'a>(
    vdevs: &[&'a VdevConfig],
    names: &Names,
    word: &str,
    file: &Path,
) -> Result<&'a VdevConfig, FindVdevError> {
    let path = |vdev: &VdevConfig| vdev.leaf.path.as_ref().map(ToString::to_string);
    let is_path =
        |vdev: &VdevConfig, fits: &dyn Fn(&str) -> bool| path(vdev).is_some_and(|path| fits(&path));
    let real = || file.canonicalize().ok();
    let ways: [&dyn Fn(&VdevConfig) -> bool; 6] = [
        &|vdev| vdev.guid.to_string() == word,
        &|vdev| is_path(vdev, &|path| path == word),
        &|vdev| names.config(vdev) == word,
        &|vdev| short_name(vdev).is_some_and(|name| name == word),
        &|vdev| is_path(vdev, &|path| path.rsplit('/').next() == Some(word)),
        &|vdev| {
            is_path(vdev, &|path| {
                Path::new(path).canonicalize().ok().is_some_and(|path| Some(path) == real())
            })
        },
    ];
    for fits in ways {
        let mut found = vdevs.iter().copied().filter(|vdev| fits(vdev));
        match (found.next(), found.next()) {
            (None, _) => {}
            (Some(vdev), None) => return Ok(vdev),
            (Some(_), Some(_)) => return Err(FindVdevError::Ambiguous),
        }
    }
    Err(FindVdevError::Absent)
}

/// The name of a dRAID without its geometry: `draid1-0`, as OpenZFS's commands take it.
fn short_name(vdev: &VdevConfig) -> Option<String> {
    let VdevKind::Draid(draid) = &vdev.kind else { return None };
    Some(format!("draid{}-{}", draid.nparity, vdev.id))
}

/// How vdevs are named.
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
    /// Returns the naming of the options and the environment variables that replace them.
    pub(super) fn of(parsed: &Parsed) -> Self {
        Self {
            by_guid: parsed.has('g') || environment::is_on(environment::BY_GUID),
            follows_links: parsed.has('L') || environment::is_on(environment::FOLLOWS_LINKS),
            has_paths: parsed.has('P') || environment::is_on(environment::HAS_PATHS),
            whole_disks: Vec::new(),
        }
    }

    /// Returns this naming for the vdevs of a config, which distinguishes whole disks from
    /// partitions.
    pub(super) fn within(mut self, config: &VdevConfig) -> Self {
        let leaves = config.leaves().filter(|leaf| leaf.leaf.whole_disk);
        self.whole_disks = leaves.map(|leaf| leaf.guid).collect();
        self
    }

    /// Returns the name of one vdev; the root has the pool's name.
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

    /// Returns the name of a vdev in a config.
    pub(super) fn config(&self, vdev: &VdevConfig) -> String {
        let name = vdev_name(vdev);
        match vdev.kind {
            VdevKind::Disk | VdevKind::File => {
                self.device(&name, vdev.kind == VdevKind::Disk, vdev.leaf.whole_disk)
            }
            _ => name,
        }
    }

    /// Returns the name of an existing device at `path`.
    pub(super) fn device(&self, path: &str, is_disk: bool, is_whole: bool) -> String {
        let mut path = path.to_owned();
        if self.follows_links
            && let Ok(real) = std::fs::canonicalize(&path)
        {
            path = real.to_string_lossy().into_owned();
        }
        // An image of a disk is a file here, even if the config says disk.
        if !is_disk || self.has_paths || !path.starts_with("/dev/") {
            return path;
        }
        let name = path.rsplit('/').next().unwrap_or(&path);
        if is_whole { without_partition(name).to_owned() } else { name.to_owned() }
    }
}

/// Shortens `sda1` to `sda`, `nvme0n1p1` to `nvme0n1`, `ata-X-part1` to `ata-X`: OpenZFS shows a
/// disk that it was given whole in this way.
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
    fn a_vdev_is_found_by_each_of_its_names() {
        let leaf = |guid, kind, path: &str, whole_disk| {
            let mut leaf = VdevConfig { guid, kind, ..VdevConfig::hole(0) };
            leaf.leaf.path = Some(path.into());
            leaf.leaf.whole_disk = whole_disk;
            leaf
        };
        let children = vec![
            leaf(11, VdevKind::Disk, "/dev/disk/by-id/ata-X-part1", true),
            leaf(12, VdevKind::File, "/images/a/d0", false),
            leaf(13, VdevKind::File, "/images/b/d0", false),
            leaf(14, VdevKind::File, "/images/b/12", false),
        ];
        let kind = VdevKind::Mirror;
        let mirror = VdevConfig { guid: 10, kind, children, ..VdevConfig::hole(0) };
        let root = VdevConfig::root(9, vec![mirror]);
        let find = |word| find(&root, word, Path::new(word)).map(|vdev| vdev.guid);
        for (word, want) in [
            ("11", Ok(11)),
            ("/dev/disk/by-id/ata-X-part1", Ok(11)),
            ("ata-X", Ok(11)),
            ("ata-X-part1", Ok(11)),
            ("mirror-0", Ok(10)),
            ("/images/b/d0", Ok(13)),
            // The guid of one vdev is the name of another.
            ("12", Ok(12)),
            ("d0", Err(FindVdevError::Ambiguous)),
            ("d1", Err(FindVdevError::Absent)),
            ("root", Err(FindVdevError::Absent)),
        ] {
            assert_eq!(find(word), want, "{word}");
        }
    }

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
