//! `cenote cp`: extracted files, compared with the manifest; as root and as nobody; from a pool
//! with lost blocks.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use cenote_testkit::golden::PrivateFolder;
use cenote_testkit::{Entry, EntryKind, RawPath, compare, golden, skip};
use sha2::{Digest, Sha256};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn cenote() -> Command {
    Command::new(env!("CARGO_BIN_EXE_cenote"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Everything below `root`, in the form of a manifest.
fn entries_of(root: &Path) -> Vec<Entry> {
    let mut entries = vec![entry_of(root, b".".to_vec())];
    let mut pending = vec![(root.to_path_buf(), Vec::new())];
    while let Some((directory, prefix)) = pending.pop() {
        for found in fs::read_dir(&directory).unwrap() {
            let found = found.unwrap();
            let name = found.file_name().into_vec();
            let path = if prefix.is_empty() { name } else { [&prefix[..], b"/", &name].concat() };
            let entry = entry_of(&found.path(), path.clone());
            if entry.kind == EntryKind::Dir {
                pending.push((found.path(), path));
            }
            entries.push(entry);
        }
    }
    entries
}

fn entry_of(path: &Path, shown: Vec<u8>) -> Entry {
    let meta = fs::symlink_metadata(path).unwrap();
    let file_type = meta.file_type();
    let kind = match () {
        () if file_type.is_dir() => EntryKind::Dir,
        () if file_type.is_file() => EntryKind::File,
        () if file_type.is_symlink() => EntryKind::Symlink,
        () if file_type.is_fifo() => EntryKind::Fifo,
        () if file_type.is_char_device() => EntryKind::Chr,
        () if file_type.is_block_device() => EntryKind::Blk,
        () => EntryKind::Sock,
    };
    let is_device = matches!(kind, EntryKind::Chr | EntryKind::Blk);
    let rdev = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    Entry {
        path: RawPath(shown),
        kind,
        mode: meta.permissions().mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink(),
        ino: 0,
        mtime_ns: meta.mtime() * 1_000_000_000 + meta.mtime_nsec(),
        size: (kind == EntryKind::File).then_some(meta.len()),
        sha256: (kind == EntryKind::File).then(|| sum_of(path)),
        target: (kind == EntryKind::Symlink)
            .then(|| RawPath(fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec())),
        rdev: is_device.then_some(rdev),
        xattrs: xattrs_of(path),
        xattr_error: None,
    }
}

fn sum_of(path: &Path) -> String {
    let (mut file, mut hash) = (File::open(path).unwrap(), Sha256::new());
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read(&mut part).unwrap() {
            0 => return hex(&hash.finalize()),
            len => hash.update(&part[..len]),
        }
    }
}

fn xattrs_of(path: &Path) -> BTreeMap<String, String> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (String::from_utf8_lossy(name).into_owned(), hex(&Sha256::digest(&value[..len])))
        })
        .collect()
}

/// The number in "cp: N extended attributes were not set ...".
fn told(output: &Output, what: &str) -> usize {
    let err = String::from_utf8_lossy(&output.stderr);
    let line = err.lines().find(|line| line.contains(what));
    line.map_or(0, |line| line.split(' ').nth(1).unwrap().parse().unwrap())
}

/// Compares everything except inode numbers. Extended attributes that the target's file system
/// refused must be reported.
fn assert_extracted(what: &str, root: &Path, mut wanted: Vec<Entry>, output: &Output) {
    let mut ours = entries_of(root);
    let mut missing = 0;
    let by_path: BTreeMap<_, _> =
        ours.iter().map(|entry| (entry.path.clone(), entry.xattrs.clone())).collect();
    for entry in &mut wanted {
        entry.ino = 0;
        if let Some(kept) = by_path.get(&entry.path) {
            let before = entry.xattrs.len();
            entry.xattrs.retain(|name, _| kept.contains_key(name));
            missing += before - entry.xattrs.len();
        }
    }
    ours.sort_by(|a, b| a.path.cmp(&b.path));
    compare::assert_entries(what, &ours, &wanted);
    // Links to one inode share attributes: each is set once and compared several times.
    let reported = told(output, "extended attributes were not set");
    assert!(
        missing >= reported && (missing > 0) == (reported > 0),
        "{missing} missing, {reported} told"
    );
}

#[test]
fn cp_of_whole_file_systems_as_root() {
    if !is_root() {
        skip::skip("cp_of_whole_file_systems_as_root", "not root");
        return;
    }
    for (pool, label) in [
        ("g-basic", "acl"),
        ("g-basic", "plain"),
        ("g-basic", "lz4@two"),
        ("g-legacy", "v3"),
        ("g-quota", "a"),
    ] {
        let Some(golden) = golden(pool) else { continue };
        let folder = PrivateFolder::create("extract");
        let target = folder.path().join("out");
        let output = cenote()
            .args(["cp", "-r", "-d"])
            .arg(golden.images())
            .arg(format!("{pool}/{label}"))
            .arg(&target)
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{pool} {label}: {err}");
        assert_extracted(&format!("{pool} {label}"), &target, golden.manifest(label), &output);
    }
}

#[test]
fn cp_of_a_file_system_as_nobody() {
    let Some(golden) = golden("g-basic") else { return };
    let folder = PrivateFolder::create("nobody");
    let target = folder.path().join("out");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (uid, gid) = (65534, 65534);
    let mut command = if is_root() {
        // The program and the images must be accessible to nobody: they are copied to a readable
        // directory.
        let program = folder.path().join("cenote");
        fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()]);
        command.arg(program);
        command
    } else {
        cenote()
    };
    let output = command
        .args(["cp", "-r", "-d"])
        .arg(golden.images())
        .args(["g-basic/acl"])
        .arg(&target)
        .output();
    let Ok(output) = output else {
        skip::skip("cp_of_a_file_system_as_nobody", "setpriv is not installed");
        return;
    };
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    let (uid, gid) = if is_root() {
        (uid, gid)
    } else {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    };
    let mut wanted = golden.manifest("acl");
    let devices =
        wanted.iter().filter(|e| matches!(e.kind, EntryKind::Chr | EntryKind::Blk)).count();
    assert_eq!(told(&output, "devices were not made"), devices);
    wanted.retain(|entry| !matches!(entry.kind, EntryKind::Chr | EntryKind::Blk));
    for entry in &mut wanted {
        // Set-id bits are kept only with their owner.
        entry.mode &= if entry.uid == uid { !0 } else { !0o4000 };
        entry.mode &= if entry.gid == gid || entry.kind == EntryKind::Dir { !0 } else { !0o2000 };
        if entry.kind == EntryKind::Dir && entry.gid != gid {
            entry.mode &= !0o2000;
        }
        (entry.uid, entry.gid) = (uid, gid);
    }
    assert_extracted("acl as nobody", &target, wanted, &output);
}

#[test]
fn cp_keeps_holes() {
    let Some(golden) = golden("g-basic") else { return };
    let folder = PrivateFolder::create("sparse");
    let output = cenote()
        .args(["cp", "-r", "-d"])
        .arg(golden.images())
        .args(["g-basic/plain", "sparse"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut sparse = 0;
    for entry in golden.manifest("plain") {
        let Some(name) = entry.path.0.strip_prefix(b"sparse/") else { continue };
        let path = folder.path().join("sparse").join(std::ffi::OsStr::from_bytes(name));
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(Some(meta.len()), entry.size);
        assert_eq!(Some(sum_of(&path)), entry.sha256);
        sparse += u32::from(meta.blocks() * 512 < meta.len() / 2);
    }
    assert!(sparse >= 1, "no file has holes");
}

#[test]
fn cp_of_volumes_and_single_files() {
    let Some(golden) = golden("g-zvol") else { return };
    let folder = PrivateFolder::create("volume");
    let target = folder.path().join("image");
    let run = |args: &[&str], target: &Path| {
        let output =
            cenote().args(["cp", "-d"]).arg(golden.images()).args(args).arg(target).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let wanted = golden.volume_sum("sparse");
    run(&["g-zvol/sparse"], &target);
    let meta = fs::metadata(&target).unwrap();
    assert_eq!((meta.len(), sum_of(&target)), (wanted.size, wanted.sha256.clone()));
    assert!(meta.blocks() * 512 < meta.len() / 4, "{} blocks", meta.blocks());
    // Again, to a symbolic link: the link is replaced, its target is not touched.
    let other = folder.path().join("other");
    fs::write(&other, "kept").unwrap();
    fs::remove_file(&target).unwrap();
    std::os::unix::fs::symlink(&other, &target).unwrap();
    run(&["g-zvol/v8K"], &target);
    assert_eq!(fs::read(&other).unwrap(), b"kept");
    assert_eq!(sum_of(&target), golden.volume_sum("v8K").sha256);
}

/// Finds `needle` on the device; the data of the pool is not compressed.
fn find(image: &Path, needle: &[u8]) -> Vec<u64> {
    let bytes = fs::read(image).unwrap();
    bytes
        .chunks(512)
        .enumerate()
        .filter(|(_, sector)| sector.starts_with(needle))
        .map(|(index, _)| index as u64 * 512)
        .collect()
}

#[test]
fn cp_reports_lost_blocks_and_leaves_holes() {
    let Some(golden) = golden("g-basic") else { return };
    let copy = golden.private_copy();
    let cat = |path: &str| {
        let mut command = cenote();
        command.args(["cat", "-d"]).arg(copy.path()).args(["g-basic/plain", path]);
        command.output().unwrap()
    };
    let is_large = |entry: &&Entry| {
        entry.kind == EntryKind::File
            && entry.size.is_some_and(|size| (300_000..2_000_000).contains(&size))
    };
    let entries = golden.manifest("plain");
    // A file whose second block has contents that occur on the device once.
    let (path, block, places) = entries
        .iter()
        .filter(is_large)
        .find_map(|entry| {
            let path = String::from_utf8(entry.path.0.clone()).ok()?;
            let bytes = cat(&path).stdout;
            let block = bytes.get(131_072..262_144)?.to_vec();
            let is_noise = block[..64].iter().any(|byte| *byte != 0);
            let places = if is_noise { find(&copy.device(0), &block[..512]) } else { Vec::new() };
            (!places.is_empty()).then_some((path, block, places))
        })
        .expect("a file to damage");
    let mut shown = cenote();
    shown.args(["where", "-H", "-d"]).arg(copy.path()).args(["g-basic/plain", &path]);
    let shown = String::from_utf8(shown.output().unwrap().stdout).unwrap();
    let line = |place: &u64| format!("131072\t{place}\t131072\tdata\t");
    assert!(places.iter().any(|place| shown.contains(&line(place))), "{places:?}: {shown}");
    let whole = cat(&path).stdout;
    let device = fs::OpenOptions::new().write(true).open(copy.device(0)).unwrap();
    for place in places {
        device.write_all_at(&[block[0] ^ 1], place).unwrap();
    }
    let folder = PrivateFolder::create("lost");
    let cp = |strict: &[&str], name: &str| {
        let output = cenote()
            .args(["cp", "-r"])
            .args(strict)
            .arg("-d")
            .arg(copy.path())
            .arg("g-basic/plain")
            .arg(folder.path().join(name))
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, err) = cp(&[], "all");
    assert_eq!(status, Some(1), "{err}");
    let line = err.lines().find(|line| line.starts_with(&format!("cp: {path}: "))).expect(&err);
    assert!(line.contains("131072 bytes at offset 131072 are lost"), "{line}");
    assert!(line.contains("d0.img"), "{line}");
    let extracted = fs::read(folder.path().join("all").join(&path)).unwrap();
    let mut wanted = whole.clone();
    wanted[131_072..262_144].fill(0);
    compare::assert_bytes(&path, &extracted, &wanted);
    // Everything else was copied.
    let names = |entries: &[Entry]| {
        entries.iter().map(|e| e.path.clone()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&entries_of(&folder.path().join("all"))), names(&entries));

    let (status, err) = cp(&["--strict"], "strict");
    assert_eq!(status, Some(1));
    assert!(err.contains("are lost") && err.contains("stopped at the first damage"), "{err}");

    let output = cat(&path);
    assert_eq!(output.status.code(), Some(1));
    compare::assert_bytes("up to the damage", &output.stdout, &whole[..131_072]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("131072 bytes at offset 131072"));
}
