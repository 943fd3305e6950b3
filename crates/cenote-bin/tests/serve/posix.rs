//! POSIX behaviour of a mounted file system, compared with ext4: the checks of `posix.py` run on
//! both, and the results are equal except for a list of differences with reasons.
//!
//! The other file system is ext4 in a file on a loop device, or if that is not possible, the one of
//! temporary files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use cenote_testkit::skip;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::daemon::House;
use crate::fuse::can_mount;
use crate::{Shed, has, succeeds};

/// Size of the ext4 file system.
const EXT4_SIZE: u64 = 256 << 20;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/posix.py");

/// Differences from ext4, with reasons: the beginning of the check, cenote's result.
const DIFFERENCES: [(&str, &str); 7] = [
    // As for other kinds of nodes; only ext4 has another error for these.
    ("unnamed_files: in a removed directory", "['ENOENT']"),
    // As in OpenZFS: a write removes set-id bits of a program, including the set-group-id bit if
    // the group may not execute it, and none of a file that no user can execute.
    ("privileges_of_files: owner writes 2767", "['0o767']"),
    ("privileges_of_files: owner truncates 2767", "['0o767']"),
    ("privileges_of_files: owner writes 6666", "['0o6666']"),
    ("privileges_of_files: other writes 6666", "['0o6666']"),
    ("privileges_of_files: owner truncates 6666", "['0o6666']"),
    // Refused as well.
    ("append_only_files: append and map", "['ENODEV', b'content']"),
];
/// A `chown` with neither owner nor group: the kernel does not pass it on as one.
const EMPTY_CHOWN: &str = "privileges_of_files: owner changes nothing";

/// An ext4 file system on a loop device.
struct Ext4 {
    at: PathBuf,
}

impl Ext4 {
    /// Creates and mounts one, `None` if that is not possible.
    fn mount(shed: &Shed) -> Option<Self> {
        if !has("mkfs.ext4") {
            return None;
        }
        let (image, at) = (shed.path("ext4.image"), shed.path("ext4"));
        std::fs::File::create(&image).unwrap().set_len(EXT4_SIZE).unwrap();
        std::fs::create_dir(&at).unwrap();
        succeeds(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let mut mount = Command::new("mount");
        let mounted =
            mount.args(["-o", "loop,acl,user_xattr"]).args([&image, &at]).output().unwrap();
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
            skip::skip(&skip::current_test(), &format!("no ext4 behind a loop device: {why}"));
            return None;
        }
        Some(Self { at })
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Runs the checks in a new directory there.
fn answers(at: &Path, checks: &[&str]) -> BTreeMap<String, String> {
    let folder = at.join("posix");
    std::fs::create_dir(&folder).unwrap();
    let said = succeeds(Command::new("python3").arg(SCRIPT).arg(&folder).args(checks));
    let parts = said.lines().map(|line| {
        let mut parts = line.splitn(3, ": ");
        let mut part = || parts.next().unwrap_or_default().to_owned();
        (format!("{}: {}", part(), part()), part())
    });
    // A result may contain colons: it is the rest of the line.
    parts.collect()
}

fn compare(ours: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) {
    let mut wrong = Vec::new();
    for check in ours.keys().chain(wanted.keys().filter(|check| !ours.contains_key(*check))) {
        let answer = |from: &BTreeMap<String, String>| from.get(check).cloned().unwrap_or_default();
        let (our, theirs) = (answer(ours), answer(wanted));
        let is_listed = DIFFERENCES.iter().any(|(what, answer)| what == check && *answer == our)
            || check.starts_with(EMPTY_CHOWN);
        if our != theirs && !is_listed {
            wrong.push(format!("{check}: {our}, and ext4: {theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn posix_results_equal_ext4() {
    if !can_mount() || !has("python3") {
        return;
    }
    let shed = Shed::new("posix");
    shed.zpool(&["import", "t"]);
    shed.zfs(&["set", "acltype=posix", "t"]);
    shed.zpool(&["export", "t"]);
    let ext4 = Ext4::mount(&shed);
    let peer = ext4.as_ref().map_or_else(|| shed.path("peer"), |ext4| ext4.at.clone());
    std::fs::create_dir_all(&peer).unwrap();
    let wanted = answers(&peer, &[]);
    let mounted = shed.mount("t", &[]);
    let found = answers(&shed.path("at"), &[]);
    mounted.stop();
    drop(ext4);
    compare(&found, &wanted);
    shed.judge();
}

/// Mapped data is copied, even if the kernel delays writing the pages back.
#[test]
fn copy_file_range_includes_mapped_pages() {
    const CHECKS: [&str; 3] =
        ["mapped_pages_are_copied", "mapped_bytes_are_those_of_read_and_write", "flags_while_open"];
    if !can_mount() || !has("python3") {
        return;
    }
    let shed = Shed::new("posix-writeback");
    let ext4 = Ext4::mount(&shed);
    let peer = ext4.as_ref().map_or_else(|| shed.path("peer"), |ext4| ext4.at.clone());
    std::fs::create_dir_all(&peer).unwrap();
    let wanted = answers(&peer, &CHECKS);
    let mounted = shed.mount("t", &["-o", "writeback"]);
    let found = answers(&shed.path("at"), &CHECKS);
    mounted.stop();
    drop(ext4);
    compare(&found, &wanted);
    shed.judge();
}

/// An ACL is set only if the kernel has agreed to check ACLs at mount, whatever the property is
/// now.
#[test]
fn acls_need_a_kernel_that_checks_them() {
    if !can_mount() {
        return;
    }
    let house = House::new("posix-acls");
    let at = house.path("at");
    house.create(at.to_str().unwrap());
    let file = at.join("file");
    std::fs::write(&file, b"x").unwrap();
    // Owner, a named user, group, mask, others: tag, permissions, user.
    let entries = [(1, 6, u32::MAX), (2, 7, 1001), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 4, 0)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, user) in entries {
        acl.extend([tag, 0, rights, 0]);
        acl.extend(u32::to_le_bytes(user));
    }
    let name = "system.posix_acl_access";
    let set = || rustix::fs::setxattr(&file, name, &acl, XattrFlags::empty());
    assert_eq!(set(), Err(Errno::OPNOTSUPP));
    let used = std::fs::File::open(&file).unwrap();
    house.run("zfs set acltype=posix t");
    assert_eq!(set(), Err(Errno::OPNOTSUPP), "the mount is older");
    drop(used);
    house.run("zfs unmount t");
    house.run("zfs mount t");
    assert_eq!(set(), Ok(()));
    // A file system that is not in use is mounted again by itself.
    house.run("zfs set acltype=off t");
    assert_eq!(set(), Err(Errno::OPNOTSUPP));
    house.run("zfs set acltype=posix t");
    assert_eq!(set(), Ok(()));
    house.run("zfs set acltype=off t");
    house.run("zpool export t");
}
