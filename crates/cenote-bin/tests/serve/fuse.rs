//! A mounted file system: operations of programs on files, and the state after its server is
//! killed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use cenote_testkit::{place, skip};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, IFlags, Mode, RenameFlags, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::Errno;

use super::{Shed, has, succeeds, with_few_mounts};

/// Whether file systems can be mounted here; else reports that the test is skipped.
pub(crate) fn can_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let can = Path::new("/dev/fuse").exists() && is_root;
    if !can {
        skip::skip(&skip::current_test(), "no /dev/fuse, or not root");
    }
    can
}

/// The attributes of a tree that `cp -a` keeps.
fn facts(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut facts = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            let size = if kind.is_dir() { 0 } else { meta.len() };
            let (mode, uid, gid, rdev) = (meta.mode(), meta.uid(), meta.gid(), meta.rdev());
            let (seconds, part) = (meta.mtime(), meta.mtime_nsec());
            let links = if kind.is_dir() { 0 } else { meta.nlink() };
            let target = fs::read_link(&path).ok();
            let fact = format!(
                "{mode:o} {uid}:{gid} {size} {links} {rdev} {seconds}.{part:09} {target:?}"
            );
            if kind.is_dir() {
                pending.push(path.clone());
            }
            facts.insert(path.strip_prefix(root).unwrap().to_path_buf(), fact);
        }
    }
    facts
}

fn assert_same(ours: &Path, wanted: &Path) {
    let (found, expected) = (facts(ours), facts(wanted));
    for (path, fact) in &expected {
        assert_eq!(found.get(path), Some(fact), "{}", path.display());
    }
    assert_eq!(found.len(), expected.len());
    succeeds(
        Command::new("diff").args(["-r", "--no-dereference", "-x", "fifo"]).args([ours, wanted]),
    );
}

/// Files other than plain ones: links of both kinds, a hole, a fifo, unusual modes, owners and
/// times.
fn oddities(at: &Path) {
    fs::create_dir(at).unwrap();
    fs::write(at.join("one"), b"one").unwrap();
    fs::hard_link(at.join("one"), at.join("two")).unwrap();
    symlink("../somewhere", at.join("link")).unwrap();
    fs::create_dir(at.join("empty")).unwrap();
    succeeds(Command::new("mkfifo").arg(at.join("fifo")));
    let mut hole = File::create(at.join("hole")).unwrap();
    hole.seek(SeekFrom::Start(3 << 20)).unwrap();
    hole.write_all(b"behind it").unwrap();
    fs::set_permissions(at.join("hole"), fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::lchown(at.join("link"), Some(12), Some(34)).unwrap();
    let name = "ein Name mit Blanks, Ümläuten\nund mehr";
    fs::write(at.join(name), vec![7; 200_000]).unwrap();
    let then = Timespec { tv_sec: -86_401, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: then, last_modification: then };
    rustix::fs::utimensat(CWD, at.join("one"), &times, AtFlags::empty()).unwrap();
}

#[test]
fn copied_tree_is_durable() {
    if !can_mount() {
        return;
    }
    let shed = Shed::new("fuse-tree");
    let at = shed.path("at");
    let (crates, odd) = (place::checkout().join("crates/cenote-fs"), shed.path("odd"));
    oddities(&odd);
    let mounted = shed.mount("t", &[]);
    for from in [&crates, &odd] {
        succeeds(Command::new("cp").arg("-a").arg(from).arg(&at));
        assert_same(&at.join(from.file_name().unwrap()), from);
    }
    let space = rustix::fs::statvfs(&at).unwrap();
    assert!(space.f_blocks > space.f_bfree && space.f_bfree > 0);
    mounted.stop();
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0, "unmounted");
    // The data was in the kernel's cache; now it is on disk.
    let mounted = shed.mount("t", &["-o", "ro"]);
    for from in [&crates, &odd] {
        assert_same(&at.join(from.file_name().unwrap()), from);
    }
    let refused = fs::write(at.join("new"), b"").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    // Unmounted by another program, the process ends.
    succeeds(Command::new("umount").arg(&at));
    mounted.wait();
    shed.judge();
}

#[test]
fn names_links_and_attributes() {
    if !can_mount() {
        return;
    }
    let shed = Shed::new("fuse-names");
    let at = shed.path("at");
    let mounted = shed.mount("t", &[]);
    let (a, b) = (at.join("a"), at.join("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let refused = OpenOptions::new().write(true).create_new(true).open(&a).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert!(!a.exists());

    fs::create_dir_all(at.join("d/e")).unwrap();
    let refused = fs::remove_dir(at.join("d")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty);
    let inside = fs::rename(at.join("d"), at.join("d/e/f")).unwrap_err();
    assert_eq!(inside.kind(), ErrorKind::InvalidInput);
    fs::rename(at.join("d/e"), at.join("e")).unwrap();
    fs::remove_dir(at.join("d")).unwrap();

    // An unlinked file exists while it is open.
    let mut open = OpenOptions::new().read(true).write(true).open(&b).unwrap();
    fs::remove_file(&b).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    open.write_all(b"still here").unwrap();
    open.rewind().unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    drop(open);

    let many = at.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..1000 {
        fs::write(many.join(format!("file-{number}")), [number as u8; 100]).unwrap();
    }
    assert_eq!(fs::read_dir(&many).unwrap().count(), 1000);
    let listed = succeeds(Command::new("ls").arg("-l").arg(&many));
    assert_eq!(listed.lines().count(), 1001);
    fs::remove_dir_all(&many).unwrap();
    let too_long = fs::metadata(at.join("x".repeat(256))).unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    xattrs(&at);
    rights(&at);
    flags(&at);
    mounted.stop();
    shed.judge();
}

/// Flags and projects, by the system calls and programs that set them.
fn flags(at: &Path) {
    let path = at.join("flagged");
    fs::write(&path, b"x").unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&file), Ok(IFlags::empty()));
    rustix::fs::ioctl_setflags(&file, IFlags::IMMUTABLE | IFlags::NODUMP).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&file), Ok(IFlags::IMMUTABLE | IFlags::NODUMP));
    let refused = fs::write(&path, b"y").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let refused = fs::remove_file(&path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    rustix::fs::ioctl_setflags(&file, IFlags::NODUMP).unwrap();
    let unknown = rustix::fs::ioctl_setflags(&file, IFlags::COMPRESSED);
    assert_eq!(unknown, Err(Errno::OPNOTSUPP));
    fs::write(&path, b"y").unwrap();
    if !has("chattr") || !has("lsattr") {
        return;
    }
    let folder = at.join("project");
    fs::create_dir(&folder).unwrap();
    succeeds(Command::new("chattr").args(["-p", "77", "+P"]).arg(&folder));
    fs::write(folder.join("member"), b"m").unwrap();
    let told = succeeds(Command::new("lsattr").arg("-p").arg(&folder));
    assert!(told.trim_start().starts_with("77 "), "{told}");
    let told = succeeds(Command::new("lsattr").arg("-pd").arg(&folder));
    assert!(told.split_whitespace().nth(1).unwrap().contains('P'), "{told}");
}

fn xattrs(at: &Path) {
    let path = at.join("x");
    fs::write(&path, b"x").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    let get = |name: &str| {
        let mut value = vec![0; 100_000];
        rustix::fs::getxattr(&path, name, &mut value[..]).map(|len| value[..len].to_vec())
    };
    set("user.small", b"value", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.small", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.none", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    let large = vec![9; 60_000];
    set("user.large", &large, XattrFlags::empty()).unwrap();
    assert_eq!(get("user.small").unwrap(), b"value");
    assert_eq!(get("user.large").unwrap(), large);
    let mut small = [0; 2];
    let range = rustix::fs::getxattr(&path, "user.small", &mut small[..]);
    assert_eq!(range, Err(Errno::RANGE));
    let mut names = vec![0; 1000];
    let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    let mut names: Vec<&[u8]> = names[..len].split_inclusive(|byte| *byte == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"user.large\0"[..], b"user.small\0"]);
    rustix::fs::removexattr(&path, "user.small").unwrap();
    assert_eq!(get("user.small"), Err(Errno::NODATA));
    // A program loses its capabilities when it is written to.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set("security.capability", &capability, XattrFlags::empty()).unwrap();
    assert_eq!(get("security.capability").unwrap(), capability);
    fs::write(&path, b"y").unwrap();
    assert_eq!(get("security.capability"), Err(Errno::NODATA));
}

/// Permissions of a user, and set-id bits.
fn rights(at: &Path) {
    let run = |uid: u32, script: &str| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sh");
        // A supplementary group, which the kernel knows but requests do not contain.
        command.arg("-c").arg(script).current_dir("/").uid(uid).gid(uid);
        command.env("AT", at).output().unwrap()
    };
    if !run(1000, "cd \"$AT\"").status.success() {
        return skip::skip(&skip::current_test(), "the folder is closed to other users");
    }
    let path = at.join("program");
    fs::write(&path, b"x").unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let bits = || fs::metadata(&path).unwrap().mode() & 0o7777;
    mode(0o6777);
    assert_eq!(bits(), 0o6777);
    assert!(run(1001, "echo y >> \"$AT/program\"").status.success());
    assert_eq!(bits(), 0o777, "somebody else wrote");
    mode(0o6777);
    fs::write(&path, b"root").unwrap();
    assert_eq!(bits(), 0o6777, "root wrote");
    std::os::unix::fs::chown(&path, Some(1000), Some(7)).unwrap();
    assert_eq!(bits(), 0o777, "given away");
    mode(0o600);
    assert!(!run(1001, "cat \"$AT/program\"").status.success());
    assert!(run(1000, "cat \"$AT/program\" && touch \"$AT/program\"").status.success());
    assert!(!run(1001, "chmod 777 \"$AT/program\"").status.success());
    assert!(!run(1001, "rm -f \"$AT/program\"").status.success());
    fs::create_dir(at.join("open")).unwrap();
    fs::set_permissions(at.join("open"), fs::Permissions::from_mode(0o3777)).unwrap();
    std::os::unix::fs::chown(at.join("open"), Some(0), Some(77)).unwrap();
    assert!(run(1000, "umask 027; echo x > \"$AT/open/mine\"").status.success());
    let made = fs::metadata(at.join("open/mine")).unwrap();
    assert_eq!((made.mode() & 0o7777, made.uid(), made.gid()), (0o640, 1000, 77));
    assert!(!run(1001, "rm -f \"$AT/open/mine\"").status.success(), "sticky");
}

#[test]
fn data_of_every_kind() {
    if !can_mount() {
        return;
    }
    let shed = Shed::new("fuse-data");
    let at = shed.path("at");
    let mounted = shed.mount("t", &[]);
    let path = at.join("data");
    let open = || OpenOptions::new().read(true).write(true).create(true).clone();
    let file = open().open(&path).unwrap();
    // In pieces of all sizes, compared with memory.
    let mut model = vec![0u8; 4 << 20];
    for (number, len) in [1, 511, 4096, 70_000, 128 << 10, 300_001, 1 << 20].iter().enumerate() {
        let start = number * 391_111;
        let bytes: Vec<u8> = (0..*len).map(|n| (n * 7 + number) as u8).collect();
        file.write_all_at(&bytes, start as u64).unwrap();
        model[start..start + len].copy_from_slice(&bytes);
    }
    file.set_len(4 << 20).unwrap();
    assert!(fs::read(&path).unwrap() == model);
    rustix::fs::fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        1 << 20,
        600_000,
    )
    .unwrap();
    model[1 << 20..(1 << 20) + 600_000].fill(0);
    assert!(fs::read(&path).unwrap() == model);
    // A file open for reading and writing may be mapped, and a hole may be dirty.
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1 << 20)).unwrap();
    assert_eq!(hole, 4 << 20);
    let copy = open().open(at.join("copy")).unwrap();
    let (mut from, mut to) = (1000, 0);
    let count = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 500_000);
    let count = count.unwrap();
    assert!(fs::read(at.join("copy")).unwrap() == model[1000..1000 + count]);
    let mut more = OpenOptions::new().append(true).open(at.join("copy")).unwrap();
    more.write_all(b"end").unwrap();
    assert_eq!(fs::metadata(at.join("copy")).unwrap().len(), count as u64 + 3);
    drop(File::create(at.join("copy")).unwrap());
    assert_eq!(fs::metadata(at.join("copy")).unwrap().len(), 0);
    direct(&at);
    locks(&path);
    mapped(&path, &mut model);
    mounted.stop();
    let mounted = shed.mount("t", &[]);
    assert!(fs::read(&path).unwrap() == model);
    let file = File::open(&path).unwrap();
    let seek = |from| rustix::fs::seek(&file, from).unwrap();
    let hole = seek(rustix::fs::SeekFrom::Hole(1 << 20));
    assert_eq!(hole, 1 << 20);
    let data = seek(rustix::fs::SeekFrom::Data(1 << 20));
    assert!((1 << 20..(1 << 20) + 600_000).contains(&data), "{data}");
    drop(file);
    mounted.stop();
    shed.judge();
}

/// Without the kernel's cache.
fn direct(at: &Path) {
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let path = at.join("direct");
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).custom_flags(direct);
    let file = options.open(&path).unwrap();
    let space = vec![0xab; 3 * 65_536];
    let skip = space.as_ptr().align_offset(4096);
    file.write_all_at(&space[skip..skip + 131_072], 4096).unwrap();
    let read = fs::read(&path).unwrap();
    assert_eq!(read.len(), 135_168);
    assert!(read[..4096].iter().all(|byte| *byte == 0));
    assert!(read[4096..].iter().all(|byte| *byte == 0xab));
}

fn locks(path: &Path) {
    let (one, two) = (File::open(path).unwrap(), File::open(path).unwrap());
    rustix::fs::flock(&one, FlockOperation::LockExclusive).unwrap();
    let refused = rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(Errno::WOULDBLOCK));
    rustix::fs::flock(&one, FlockOperation::Unlock).unwrap();
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared).unwrap();
}

/// Mapped into memory, by a language in which that is safe.
fn mapped(path: &Path, model: &mut [u8]) {
    if !has("python3") {
        return;
    }
    let script = "import mmap, sys\n\
        f = open(sys.argv[1], 'r+b')\n\
        m = mmap.mmap(f.fileno(), 0)\n\
        assert m[5] == int(sys.argv[2])\n\
        m[100000:100005] = b'hello'\n\
        m.flush()\n\
        m[2000000:2000005] = b'later'\n";
    let fifth = model[5].to_string();
    succeeds(Command::new("python3").args(["-c", script]).arg(path).arg(fifth));
    model[100_000..100_005].copy_from_slice(b"hello");
    model[2_000_000..2_000_005].copy_from_slice(b"later");
    assert!(fs::read(path).unwrap() == *model);
}

#[test]
fn fsynced_data_survives_a_kill() {
    if !can_mount() {
        return;
    }
    let shed = Shed::new("fuse-kill");
    let at = shed.path("at");
    for round in 0..3 {
        let mounted = shed.mount("t", &[]);
        for earlier in 0..round {
            let found = fs::read(at.join(format!("sync-{earlier}"))).unwrap();
            assert!(found == vec![earlier as u8 + 1; 300_000], "round {round}");
            assert!(!at.join(format!("gone-{earlier}")).exists());
        }
        let gone = at.join(format!("gone-{round}"));
        fs::write(&gone, vec![9; 10_000]).unwrap();
        let path = at.join(format!("sync-{round}"));
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![round as u8 + 1; 300_000]).unwrap();
        fs::remove_file(&gone).unwrap();
        file.sync_all().unwrap();
        fs::write(at.join(format!("maybe-{round}")), b"not asked for").unwrap();
        drop(file);
        mounted.kill();
        // The mount is dead until the next mount detaches it.
        let mut error = rustix::fs::statvfs(&at).err();
        while matches!(error, Some(Errno::CANCELED | Errno::CONNABORTED)) {
            // It was under way while the kernel ended a connection through io_uring.
            error = rustix::fs::statvfs(&at).err();
        }
        assert_eq!(error, Some(Errno::NOTCONN));
    }
    shed.mount("t", &[]).stop();
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    shed.judge();
}

/// A user without privileges.
const NOBODY: u32 = 65_534;

/// Returns a shed whose commands run as that user; `None`, and the test counts as skipped, if its
/// folder is closed to other users.
fn shed_of_nobody(name: &str) -> Option<Shed> {
    // A directory that only its owner may search.
    let folder = cenote_testkit::golden::PrivateFolder::create(name);
    let walk = |path: &Path| fs::metadata(path).unwrap().mode() & 0o001 != 0;
    if !folder.path().ancestors().all(walk) {
        skip::skip(&skip::current_test(), "the folder is closed to other users");
        return None;
    }
    Some(Shed { folder, uid: Some(NOBODY) })
}

#[test]
fn users_without_privileges_can_mount() {
    if !can_mount() || !has("fusermount3") {
        return;
    }
    let _few = with_few_mounts();
    let Some(shed) = shed_of_nobody("fuse-nobody") else { return };
    shed.fill();
    let at = shed.path("at");
    let mounted = shed.mount("t", &[]);
    // Not even root sees it.
    assert_eq!(fs::read_dir(&at).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let mut command = Command::new("sh");
    std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
    let script = "echo mine > \"$AT/file\" && cat \"$AT/file\" && sync \"$AT/file\"";
    // The root of a new file system belongs to root, whoever created it.
    let made = command.args(["-c", script]).env("AT", &at).output().unwrap();
    let owner = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success() || owner.contains("ermission denied"), "{owner}");
    mounted.kill();
    let again = shed.mount("t", &[]);
    again.stop();
    let mode = Mode::from_raw_mode(fs::metadata(&at).unwrap().mode());
    assert!(mode.contains(Mode::RUSR), "it is unmounted");
    shed.judge();
}

/// What other users have mounted counts, too.
#[test]
fn the_limit_of_fusermount_is_told() {
    if !can_mount() {
        return;
    }
    let Some(shed) = shed_of_nobody("fuse-limit") else { return };
    shed.fill();
    let program = shed.path("fusermount3");
    let text = "fusermount3: too many FUSE filesystems mounted; mount_max=N can be set in /etc/f";
    fs::write(&program, format!("#!/bin/sh\necho '{text}' >&2\nexit 1\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = shed.cenote(&["mount", "-d", &shed.pool(), "t", &shed.text("at")]);
    let said = command.env("PATH", shed.folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("the limit is mount_max in /etc/fuse.conf, 1000 unless set"), "{said}");
}

#[test]
fn mount_refuses_invalid_uses() {
    let shed = Shed::new("fuse-wrong");
    let folder = shed.pool();
    for (words, status, wanted) in [
        (&["mount", "-d", &folder, "t"][..], 2, "a dataset and a mount point are needed"),
        (&["mount", "-o", "zoned", "t", "/x"], 2, "unknown mount option 'zoned'"),
        (&["mount", "-d", &folder, "t", "/nowhere/at/all"], 1, "cannot mount 't':"),
        (&["mount", "-d", &folder, "t/none", "/mnt"], 1, "cannot open 't/none':"),
        (&["nbd", "--socket", "/x", "--listen", "y", "t"], 2, "exclude each other"),
        (&["nbd", "-d", &folder], 2, "one pool or dataset is needed"),
    ] {
        let output = shed.cenote(words).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {err}");
        assert!(err.contains(wanted), "{words:?}: {err}");
    }
    shed.judge();
}
