//! `.zfs` of a mounted file system: snapshots can be read there, and created, renamed and destroyed
//! as directories.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::daemon::{House, has_fuse};
use crate::succeeds;

/// Programs that visit snapshots below `.zfs` all the time do not prevent their destruction.
#[test]
fn snapdir_visitors_do_not_keep_snapshots() {
    const SNAPSHOTS: usize = 12;
    if !has_fuse() {
        return;
    }
    let house = House::new("fuse-visitors");
    let at = house.path("at");
    house.create(at.to_str().unwrap());
    fs::write(at.join("file"), b"bytes").unwrap();
    for number in 0..SNAPSHOTS {
        house.run(&format!("zfs snapshot t@{number}"));
    }
    let (is_done, visits) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for number in 0..SNAPSHOTS {
                        let file = at.join(format!(".zfs/snapshot/{number}/file"));
                        if fs::read(file).is_ok() {
                            visits.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let destroy =
            |number| house.command(&["zfs", "destroy", &format!("t@{number}")]).output().unwrap();
        let destroyed: Vec<_> = (0..SNAPSHOTS - 1).map(destroy).collect();
        is_done.store(true, Ordering::Relaxed);
        for output in destroyed {
            assert!(output.status.success(), "{output:?}");
        }
    });
    assert!(visits.into_inner() > SNAPSHOTS, "snapshots were visited");
    house.run("zfs destroy -r t@11");
    house.run("zpool export t");
}

/// Returns the names in a directory, in order.
fn names(at: &Path) -> Vec<String> {
    let entries = fs::read_dir(at).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn snapdir_shows_snapshots_as_directories() {
    if !has_fuse() {
        return;
    }
    let house = House::new("fuse-zfs");
    let at = house.path("at");
    house.create(at.to_str().unwrap());
    let bytes: Vec<u8> = (0..400_000_u32).map(|n| (n / 7) as u8).collect();
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/file"), &bytes).unwrap();
    fs::hard_link(at.join("d/file"), at.join("d/other")).unwrap();
    symlink("file", at.join("d/link")).unwrap();
    fs::write(at.join("hole"), b"x").unwrap();
    let hole = fs::OpenOptions::new().write(true).open(at.join("hole")).unwrap();
    hole.write_all_at(b"end", 2 << 20).unwrap();
    // An open file keeps the file system mounted.
    drop(hole);
    rustix::fs::setxattr(at.join("d/file"), "user.a", b"one", XattrFlags::empty()).unwrap();
    house.run("zfs snapshot t@one");

    // The file system has changed, the snapshot has not.
    fs::write(at.join("d/file"), b"changed").unwrap();
    fs::remove_file(at.join("d/link")).unwrap();
    let zfs = at.join(".zfs");
    assert_eq!(names(&at), ["d", "hole"], "hidden");
    assert_eq!(names(&zfs), ["shares", "snapshot"]);
    assert_eq!(names(&zfs.join("snapshot")), ["one"]);
    let one = zfs.join("snapshot/one");
    assert_eq!(names(&one), ["d", "hole"]);
    assert_eq!(names(&one.join("d")), ["file", "link", "other"]);
    assert!(fs::read(one.join("d/file")).unwrap() == bytes);
    assert!(fs::read(one.join("d/link")).unwrap() == bytes, "through the link");
    assert_eq!(fs::read(at.join("d/file")).unwrap(), b"changed");
    let mut value = [0; 10];
    let len = rustix::fs::getxattr(one.join("d/file"), "user.a", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"one");
    let hole = fs::File::open(one.join("hole")).unwrap();
    let data = rustix::fs::seek(&hole, rustix::fs::SeekFrom::Data(1 << 20)).unwrap();
    assert!(data > 1 << 20, "{data}");
    drop(hole);

    // A copy of both has no links between them, but keeps those inside of each.
    let number = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
    assert_eq!(number(&one.join("d/file")), number(&one.join("d/other")));
    for name in ["d", "d/file", "hole"] {
        assert_ne!(number(&at.join(name)), number(&one.join(name)), "{name}");
    }
    let archive = house.text("archive");
    let mut tar = Command::new("tar");
    tar.args(["-cf", &archive, "d", ".zfs/snapshot/one"]).current_dir(&at);
    succeeds(&mut tar);
    let copy = house.path("copy");
    fs::create_dir(&copy).unwrap();
    succeeds(Command::new("tar").args(["-xf", &archive]).current_dir(&copy));
    assert!(fs::read(copy.join(".zfs/snapshot/one/d/file")).unwrap() == bytes);
    assert_eq!(fs::read(copy.join("d/file")).unwrap(), b"changed");

    // Nothing in a snapshot can be changed.
    let refused = fs::write(one.join("d/file"), b"").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    for refused in [
        fs::write(one.join("new"), b""),
        fs::remove_file(one.join("hole")),
        fs::remove_dir(one.join("d")),
        fs::create_dir(one.join("e")),
        fs::rename(one.join("hole"), one.join("h")),
        fs::hard_link(one.join("hole"), at.join("h")),
    ] {
        let number = refused.unwrap_err().raw_os_error();
        assert_eq!(number, Some(Errno::ROFS.raw_os_error()));
    }
    let from = fs::File::open(one.join("d/file")).unwrap();
    let mut into = fs::File::create(at.join("restored")).unwrap();
    std::io::copy(&mut &from, &mut into).unwrap();
    assert!(fs::read(at.join("restored")).unwrap() == bytes);
    drop((from, into));

    // Commands that only read close no snapshot in use.
    let held = fs::File::open(one.join("d/file")).unwrap();
    let mut first = [0; 10];
    held.read_exact_at(&mut first, 0).unwrap();
    let kept = "snaps   t  1 kept open below .zfs\n";
    assert!(house.run("daemon status").contains(kept));
    for line in ["zfs list -t all", "zfs get all t@one", "zpool status", "zfs destroy -nr t@one"] {
        house.run(line);
        assert!(house.run("daemon status").contains(kept), "{line}");
    }
    let mut rest = vec![0; bytes.len() - first.len()];
    held.read_exact_at(&mut rest, first.len() as u64).unwrap();
    assert!([&first[..], &rest].concat() == bytes);
    drop(held);

    // Changes by commands are visible, and unused open snapshots do not block commands.
    house.run("zfs snapshot t@two");
    assert_eq!(names(&zfs.join("snapshot")), ["one", "two"]);
    assert_eq!(fs::read(zfs.join("snapshot/two/d/file")).unwrap(), b"changed");
    house.run("zfs destroy t@one");
    assert!(!house.run("daemon status").contains("kept open"));
    assert_eq!(names(&zfs.join("snapshot")), ["two"]);
    assert!(!one.join("d").exists());

    // Creating and removing directories creates and destroys snapshots.
    let refused = fs::create_dir(zfs.join("snapshot/three")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "by default");
    house.run("tunable set zfs_admin_snapshot=1");
    fs::create_dir(zfs.join("snapshot/three")).unwrap();
    fs::rename(zfs.join("snapshot/two"), zfs.join("snapshot/2")).unwrap();
    assert_eq!(house.run("zfs list -H -o name -t snapshot"), "t@2\nt@three\n");
    assert_eq!(fs::read(zfs.join("snapshot/2/d/file")).unwrap(), b"changed");
    fs::remove_dir(zfs.join("snapshot/2")).unwrap();
    assert_eq!(house.run("zfs list -H -o name -t snapshot"), "t@three\n");
    assert_eq!(names(&zfs.join("snapshot")), ["three"]);

    for (snapdir, wanted) in [
        ("hidden", &["d", "hole", "restored"][..]),
        ("visible", &[".zfs", "d", "hole", "restored"]),
        ("hidden", &["d", "hole", "restored"]),
    ] {
        house.run(&format!("zfs set snapdir={snapdir} t"));
        assert_eq!(names(&at), wanted, "{snapdir}");
    }
    house.run("zpool destroy t");
}

/// A snapshot with the number of a destroyed one shows its own names and contents immediately,
/// whatever the kernel has cached of the other.
#[test]
fn snapdir_handles_reused_snapshot_numbers() {
    if !has_fuse() {
        return;
    }
    let house = House::new("fuse-zfs-numbers");
    let at = house.path("at");
    house.create(at.to_str().unwrap());
    let one = at.join(".zfs/snapshot/one");
    let mut numbers = std::collections::BTreeMap::<u64, u32>::new();
    for round in 0..24 {
        let name = format!("only-{round}");
        fs::write(at.join("same"), format!("content {round}")).unwrap();
        fs::create_dir(at.join(&name)).unwrap();
        fs::write(at.join(&name).join("inside"), name.as_bytes()).unwrap();
        house.run("zfs snapshot t@one");
        assert_eq!(names(&one), [name.as_str(), "same"], "round {round}");
        assert_eq!(fs::read(one.join("same")).unwrap(), format!("content {round}").as_bytes());
        assert_eq!(fs::read(one.join(&name).join("inside")).unwrap(), name.as_bytes());
        for earlier in 0..round {
            assert!(!one.join(format!("only-{earlier}")).exists(), "round {round}");
        }
        *numbers.entry(fs::metadata(&one).unwrap().ino()).or_default() += 1;
        fs::remove_dir_all(at.join(&name)).unwrap();
        house.run("zfs destroy t@one");
    }
    println!("{} numbers for 24 snapshots", numbers.len());
    house.run("zpool export t");
}

/// A name that is removed under one of its spellings is gone under all.
#[test]
fn casesensitivity_hides_other_spellings_of_removed_names() {
    if !has_fuse() {
        return;
    }
    let house = House::new("fuse-spellings");
    let at = house.path("at");
    house.create("none");
    house.run(&format!(
        "zfs create -o casesensitivity=insensitive -o mountpoint={} t/i",
        at.to_str().unwrap()
    ));
    let spellings = ["Abc", "ABC", "abc"];
    let there = || spellings.map(|name| at.join(name).exists());
    for removed in spellings {
        for other in spellings {
            assert_eq!(there(), [false; 3], "before {other}");
            fs::write(at.join(other), b"x").unwrap();
            assert_eq!(there(), [true; 3], "{other}");
            fs::remove_file(at.join(removed)).unwrap();
        }
    }
    fs::create_dir(at.join("Abc")).unwrap();
    assert_eq!(there(), [true; 3]);
    fs::remove_dir(at.join("abc")).unwrap();
    assert_eq!(there(), [false; 3]);
    house.run("zpool export t");
}
