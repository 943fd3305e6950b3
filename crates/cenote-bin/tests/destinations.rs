//! `cenote cp` of a volume or file to an existing destination: block devices are written in place,
//! regular files replaced after the complete copy, everything else refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cenote_testkit::golden::PrivateFolder;
use cenote_testkit::skip::skip;
use cenote_testkit::{compare, golden};

fn cp(images: &Path, args: &[&str], target: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
    command.args(["cp", "-d"]).arg(images).args(args).arg(target).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

fn refused(output: &Output, words: &str) {
    assert_eq!(output.status.code(), Some(1), "{}", said(output));
    assert!(said(output).contains(words), "{}", said(output));
}

/// Names in a directory, to check that no temporary file remains.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A loop device over a file.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(output.stdout).unwrap();
        output.status.success().then(|| Self(PathBuf::from(path.trim())))
    }

    /// A loop device over a file of `bytes` times 0xee.
    fn filled(file: &Path, bytes: usize) -> Option<Self> {
        fs::write(file, vec![0xee; bytes]).unwrap();
        Self::over(file)
    }

    fn is_a_device(&self) -> bool {
        fs::symlink_metadata(&self.0).unwrap().file_type().is_block_device()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn cp_refuses_destinations_that_are_no_files() {
    let Some(golden) = golden("g-zvol") else { return };
    let folder = PrivateFolder::create("kinds");
    let at = |name: &str| folder.path().join(name);
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let _socket = UnixListener::bind(at("socket")).unwrap();
    std::os::unix::fs::symlink("/dev/null", at("null")).unwrap();
    std::os::unix::fs::symlink("fifo", at("to-fifo")).unwrap();
    fs::create_dir_all(at("folder/v8K")).unwrap();
    let before = names(folder.path());
    for (name, kind) in [
        ("fifo", "a FIFO"),
        ("to-fifo", "a FIFO"),
        ("socket", "a socket"),
        ("null", "a character device"),
        ("folder", "a directory"),
    ] {
        let output = cp(&golden.images(), &["g-zvol/v8K"], &at(name));
        refused(&output, &format!("': it exists and is {kind}"));
    }
    assert_eq!(names(folder.path()), before);
    assert!(fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
    assert!(fs::symlink_metadata(at("null")).unwrap().file_type().is_symlink());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[test]
fn cp_of_a_tree_replaces_no_devices() {
    let Some(golden) = golden("g-basic") else { return };
    let folder = PrivateFolder::create("tree");
    let entries = golden.manifest("lz4");
    let file = entries.iter().find(|entry| entry.kind == cenote_testkit::EntryKind::File);
    let name = String::from_utf8(file.unwrap().path.0.clone()).unwrap();
    fs::create_dir_all(folder.path().join(&name).parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join(&name)).status().unwrap().success());
    let output = cp(&golden.images(), &["-r", "g-basic/lz4"], folder.path());
    refused(&output, &format!("cp: {name}: cannot create: File exists"));
    let kept = fs::symlink_metadata(folder.path().join(&name)).unwrap();
    assert!(kept.file_type().is_fifo());
    assert!(!names(folder.path()).iter().any(|name| name.starts_with(".cenote")));
}

#[test]
fn cp_replaces_a_file_after_the_complete_copy() {
    let Some(golden) = golden("g-zvol") else { return };
    let copy = golden.private_copy();
    let folder = PrivateFolder::create("replaced");
    let target = folder.path().join("image");
    fs::write(&target, "what was there").unwrap();
    // Held open: a reader keeps the old contents.
    let old = File::open(&target).unwrap();
    succeeds(&cp(copy.path(), &["g-zvol/v8K"], &target));
    let whole = fs::read(&target).unwrap();
    assert_eq!(whole.len() as u64, golden.volume_sum("v8K").size);
    assert_eq!(old.metadata().unwrap().nlink(), 0);

    // All devices are damaged: with --strict the copy ends in the middle.
    fs::write(&target, "what was there").unwrap();
    let needle = whole.chunks(8192).rfind(|block| block[0] != 0).unwrap();
    let mut damaged = 0;
    for device in copy.devices() {
        let bytes = fs::read(&device).unwrap();
        let file = OpenOptions::new().write(true).open(&device).unwrap();
        for (index, sector) in bytes.chunks(512).enumerate() {
            if sector == &needle[..512] {
                file.write_all_at(&[sector[0] ^ 1], index as u64 * 512).unwrap();
                damaged += 1;
            }
        }
    }
    if damaged == 0 {
        return skip("cp_replaces_a_file_after_the_complete_copy", "v8K is compressed");
    }
    let output = cp(copy.path(), &["--strict", "g-zvol/v8K"], &target);
    refused(&output, "stopped at the first damage");
    assert_eq!(fs::read(&target).unwrap(), b"what was there");
    assert_eq!(names(folder.path()), ["image"]);
}

#[test]
fn cp_refuses_a_device_of_the_source_pool() {
    let Some(golden) = golden("g-zvol") else { return };
    let copy = golden.private_copy();
    let before = fs::read(copy.device(0)).unwrap();
    refused(&cp(copy.path(), &["g-zvol/v8K"], &copy.device(0)), "it is a device of the pool");
    assert!(fs::read(copy.device(0)).unwrap() == before, "the pool's device has changed");
}

#[test]
fn cp_writes_block_devices_in_place() {
    let Some(golden) = golden("g-zvol") else { return };
    let folder = PrivateFolder::create("block");
    let size = golden.volume_sum("sparse").size as usize;
    let Some(device) = Loop::filled(&folder.path().join("disk"), size + 65536) else {
        return skip("cp_writes_block_devices_in_place", "no loop devices here, or not root");
    };
    let image = folder.path().join("image");
    succeeds(&cp(&golden.images(), &["g-zvol/sparse"], &image));
    let link = folder.path().join("by-id");
    std::os::unix::fs::symlink(&device.0, &link).unwrap();
    succeeds(&cp(&golden.images(), &["g-zvol/sparse"], &link));
    assert!(device.is_a_device() && fs::symlink_metadata(&link).unwrap().is_symlink());
    let written = fs::read(folder.path().join("disk")).unwrap();
    compare::assert_bytes("the device", &written[..size], &fs::read(&image).unwrap());
    assert!(written[size..].iter().all(|byte| *byte == 0xee), "bytes behind the volume changed");

    // In use by another program: nothing is written.
    let o_excl = rustix::fs::OFlags::EXCL.bits() as i32;
    let held = OpenOptions::new().read(true).custom_flags(o_excl).open(&device.0).unwrap();
    refused(&cp(&golden.images(), &["g-zvol/v8K"], &device.0), "in use by another program");
    drop(held);
    assert!(fs::read(folder.path().join("disk")).unwrap() == written);
}

#[test]
fn cp_refuses_devices_too_small_or_in_use() {
    let Some(golden) = golden("g-zvol") else { return };
    let folder = PrivateFolder::create("small");
    let size = golden.volume_sum("v8K").size as usize;
    let disk = folder.path().join("disk");
    let Some(device) = Loop::filled(&disk, size - 512) else {
        return skip("cp_refuses_devices_too_small_or_in_use", "no loop devices here, or not root");
    };
    let output = cp(&golden.images(), &["g-zvol/v8K"], &device.0);
    refused(&output, &format!("the device has {} bytes, {size} are needed", size - 512));
    assert!(device.is_a_device() && fs::read(&disk).unwrap().iter().all(|byte| *byte == 0xee));
    // A tree cannot be copied to a device.
    refused(&cp(&golden.images(), &["-r", "g-zvol/v8K", "/"], &device.0), "has no files");

    // A device of the source pool, by another name.
    let copy = golden.private_copy();
    let Some(own) = Loop::over(&copy.device(0)) else {
        return skip("cp_refuses_devices_too_small_or_in_use", "no more loop devices");
    };
    let disks = folder.path().join("disks");
    fs::create_dir(&disks).unwrap();
    std::os::unix::fs::symlink(&own.0, disks.join("d0")).unwrap();
    for (index, other) in copy.devices().iter().enumerate().skip(1) {
        std::os::unix::fs::symlink(other, disks.join(format!("d{index}"))).unwrap();
    }
    let before = fs::read(copy.device(0)).unwrap();
    refused(&cp(&disks, &["g-zvol/v8K"], &own.0), "is");
    assert!(fs::read(copy.device(0)).unwrap() == before, "the pool's device has changed");
}
