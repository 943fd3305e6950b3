//! What programs see of a mounted file system, beside ext4: the checks of `posix.py` run on both,
//! and the answers are the same, but for a list of differences with their reasons.
//!
//! The other file system is ext4 in a file behind a loop device. Where that is not possible it is
//! the one that temporary files are on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use cenote_testkit::skip;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::daemon::House;
use crate::fuse::can_mount;
use crate::{Shed, has, succeeds};

/// Bytes of the ext4 file system.
const EXT4_SIZE: u64 = 256 << 20;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/posix.py");

/// What is answered otherwise than by ext4, and why: the beginning of the check, our answer.
const DIFFERENCES: [(&str, &str); 10] = [
    // The package for FUSE does not know the request; nothing is made.
    ("unnamed_files: O_TMPFILE", "['ENOTSUP']"),
    ("unnamed_files: links", ""),
    ("unnamed_files: link", ""),
    ("unnamed_files: content", ""),
    // As OpenZFS does: a write takes set-id bits off a program, the set-group-id bit too if the
    // group may not execute it, and off nothing that nobody can execute.
    ("privileges_of_files: owner writes 2767", "['0o767']"),
    ("privileges_of_files: owner truncates 2767", "['0o767']"),
    ("privileges_of_files: owner writes 6666", "['0o6666']"),
    ("privileges_of_files: other writes 6666", "['0o6666']"),
    ("privileges_of_files: owner truncates 6666", "['0o6666']"),
    // Refused all the same.
    ("append_only_files: append and map", "['ENODEV', b'content']"),
];
/// A `chown` that names neither owner nor group: the kernel does not say that it was one.
const EMPTY_CHOWN: &str = "privileges_of_files: owner changes nothing";

/// An ext4 file system behind a loop device.
struct Ext4 {
    at: PathBuf,
}

impl Ext4 {
    /// Makes and mounts one; none where that is not possible.
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

/// Runs the checks in a new folder there.
fn answers(at: &Path, checks: &[&str]) -> BTreeMap<String, String> {
    let folder = at.join("posix");
    std::fs::create_dir(&folder).unwrap();
    let said = succeeds(Command::new("python3").arg(SCRIPT).arg(&folder).args(checks));
    let parts = said.lines().map(|line| {
        let mut parts = line.splitn(3, ": ");
        let mut part = || parts.next().unwrap_or_default().to_owned();
        (format!("{}: {}", part(), part()), part())
    });
    // An answer may be a question that has colons in it: the rest of the line is the answer.
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
fn answers_are_those_of_ext4() {
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

/// What a process has in a mapping is copied, also where the kernel keeps written pages back.
#[test]
fn mapped_pages_are_copied_with_writeback() {
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

/// An ACL is set only where the kernel has agreed to check it, whatever the property became since
/// the file system was mounted.
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
    // Owner, a named user, group, mask, others: tag, rights, user.
    let entries = [(1, 6, u32::MAX), (2, 7, 1001), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 4, 0)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, user) in entries {
        acl.extend([tag, 0, rights, 0]);
        acl.extend(u32::to_le_bytes(user));
    }
    let name = "system.posix_acl_access";
    let set = || rustix::fs::setxattr(&file, name, &acl, XattrFlags::empty());
    assert_eq!(set(), Err(Errno::OPNOTSUPP));
    house.run("zfs set acltype=posix t");
    assert_eq!(set(), Err(Errno::OPNOTSUPP), "the mount is older");
    house.run("zfs unmount t");
    house.run("zfs mount t");
    assert_eq!(set(), Ok(()));
    house.run("zfs set acltype=off t");
    house.run("zpool export t");
}
