//! Mounts of the daemon: options, properties, messages.

use std::fs;
use std::os::unix::fs::MetadataExt;

use cenote_testkit::golden::golden;
use sha2::Digest;

use crate::copies::eventually;
use crate::daemon::{House, has_fuse};
use crate::nbd::{OK, Raw};
use crate::succeeds;

/// Returns the mount options that the kernel shows.
pub(crate) fn kernel_options(at: &str) -> String {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut lines = table.lines().rev().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = lines.find(|fields| fields[1] == at).expect("it is mounted");
    found[3].to_owned()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Mounts a file system until it has the number of an ended connection. Returns false, and counts
/// the test as skipped, if another program has the number.
pub(crate) fn takes_number(house: &House, number: u64) -> bool {
    let is_taken = (0..100).any(|_| {
        house.run("zfs unmount t");
        house.run("zfs mount t");
        fs::metadata(house.path("at")).unwrap().dev() == number
    });
    if !is_taken {
        let test = cenote_testkit::skip::current_test();
        cenote_testkit::skip::skip(&test, "another program has the number");
    }
    is_taken
}

/// Limit for polling.
const LOOKS_MAX: u32 = 10_000;

/// `mount -t zfs`.
pub(crate) fn mount_helper(house: &House, words: &[&str]) -> std::process::Output {
    let link = house.path("mount.zfs");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cenote"), &link).unwrap();
    }
    let mut command = std::process::Command::new(&link);
    command.args(words).env("CENOTE_STATE_DIR", house.path("state"));
    command.output().unwrap()
}

#[test]
fn mount_options_override_properties() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-options");
    let at = house.text("at");
    house.create(&at);
    house.run("zfs create t/a");
    house.run("zfs create -u t/b");
    house.run("zfs create -o canmount=noauto t/c");
    let mounted = |names: &str| house.run(&format!("zfs get -H -o value mounted {names}"));
    assert_eq!(mounted("t t/a t/b t/c"), "yes\nyes\nno\nno\n");
    assert_eq!(house.run("zfs list -H -o name,mounted t/b"), "t/b\tno\n");
    assert_eq!(house.run("zfs mount -v -a"), "Mounting ZFS filesystems: (1/1)\n");
    assert_eq!(mounted("t/b t/c"), "yes\nno\n");
    house.run("zfs unmount -a");
    assert_eq!(house.run("zfs mount"), "");
    house.run("zfs mount -R t");
    assert_eq!(mounted("t t/a t/b t/c"), "yes\nyes\nyes\nno\n");

    house.run("zfs mount -o ro,noexec t/c");
    let said = house.run("zfs get -H -o property,value,source readonly,exec t/c");
    assert_eq!(said, "readonly\ton\ttemporary\nexec\toff\ttemporary\n");
    assert!(kernel_options(&format!("{at}/c")).contains("noexec"));
    assert!(fs::write(house.path("at/c/x"), "x").is_err());
    house.run("zfs unmount t/c");
    assert_eq!(house.run("zfs get -H -o value,source readonly t/c"), "off\tdefault\n");

    for (line, wanted) in [
        ("zfs mount t/a", "cannot mount 't/a': filesystem already mounted\n"),
        ("zfs mount t/none", "cannot open 't/none': dataset does not exist\n"),
        ("zfs unmount t/c", "cannot unmount 't/c': not currently mounted\n"),
        ("zfs unmount /proc", "cannot unmount '/proc': not a ZFS filesystem\n"),
    ] {
        assert_eq!(house.fails(line), (1, wanted.to_owned()), "{line}");
    }
    let (_, said) = house.fails("zfs mount -o sideways t/c");
    assert_eq!(said, "cannot mount 't/c': unknown mount option 'sideways'\n");
    house.run("zfs unmount t/b");
    house.run("zfs set mountpoint=legacy t/b");
    let (_, said) = house.fails("zfs mount t/b");
    let wanted = "cannot mount 't/b': legacy mountpoint\nuse mount(8) to mount this filesystem\n";
    assert_eq!(said, wanted);

    // A user who mounts explicitly chooses the place.
    let helper = |words: &[&str]| mount_helper(&house, words);
    fs::create_dir(house.path("legacy")).unwrap();
    let legacy = house.text("legacy");
    assert_eq!(helper(&["t/a", &legacy]).status.code(), Some(32), "not legacy");
    assert!(helper(&["t/b", &legacy, "-o", "noauto,ro"]).status.success());
    assert_eq!(
        house.run("zfs mount").lines().last().unwrap().split_whitespace().last(),
        Some(&*legacy)
    );
    house.run(&format!("zfs unmount {legacy}"));

    // A directory that is not empty.
    fs::create_dir_all(house.path("full/inside")).unwrap();
    let full = house.text("full");
    let (_, said) = house.fails(&format!("zfs set -u overlay=off mountpoint={full} t/none"));
    assert!(said.contains("does not exist"), "{said}");
    house.run(&format!("zfs set -u overlay=off mountpoint={full} t/b"));
    assert_eq!(mounted("t/b"), "no\n");
    let (_, said) = house.fails("zfs mount t/b");
    assert_eq!(said, format!("cannot mount '{full}': directory is not empty\n"));
    house.run("zfs mount -O t/b");
    assert!(!house.path("full/inside").exists());
    house.run("zpool export t");
    assert!(house.path("full/inside").exists());
}

#[test]
fn remount_changes_options() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-again");
    house.create(&house.text("at"));
    let told = |name: &str| house.run(&format!("zfs get -H -o value,source {name} t"));
    assert_eq!(told("atime"), "on\tdefault\n");
    house.run("zfs mount -o remount,noatime t");
    assert_eq!(told("atime"), "off\ttemporary\n");
    let file = house.path("at/file");
    fs::write(&file, "kept").unwrap();
    let read = || {
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        let found = fs::metadata(&file).unwrap();
        (found.atime(), found.atime_nsec())
    };
    let first = read();
    house.run("zfs unmount t");
    house.run("zfs mount -o noatime t");
    assert_eq!(read(), first, "nothing is noted");
    // Setting a property to another value overrides the mount option.
    house.run("zfs set atime=off t");
    assert_eq!(told("atime"), "off\tlocal\n");
    house.run("zfs set atime=on relatime=off t");
    assert_eq!(told("atime"), "on\tlocal\n");
    // Also if the value does not change, and for descendants, except those with a local value.
    house.run("zfs create t/a");
    house.run("zfs create -o atime=on t/b");
    for name in ["t", "t/a", "t/b"] {
        house.run(&format!("zfs mount -o remount,noatime,noexec {name}"));
    }
    house.run("zfs set atime=on t");
    assert_eq!(told("atime"), "on\tlocal\n");
    let others = |name: &str| house.run(&format!("zfs get -H -o value,source {name} t/a t/b"));
    assert_eq!(others("atime"), "on\tinherited from t\noff\ttemporary\n");
    house.run("zfs inherit exec t/b");
    assert_eq!(others("exec"), "off\ttemporary\non\tdefault\n");
    assert!(kernel_options(&house.text("at/a")).contains("noexec"));
    assert!(!kernel_options(&house.text("at/b")).contains("noexec"));
    house.run("zfs destroy t/a");
    house.run("zfs destroy t/b");
    house.run("zfs mount -o remount,ro t");
    assert_eq!(told("readonly"), "on\ttemporary\n");
    assert!(fs::write(&file, "lost").is_err());
    house.run("zfs mount -o remount,rw t");
    fs::write(&file, "kept").unwrap();
    // Mounted read-only, it is opened again for writing.
    house.run("zfs unmount t");
    house.run("zfs mount -o ro t");
    assert!(fs::write(&file, "lost").is_err());
    house.run("zfs mount -o remount,rw t");
    fs::write(&file, "kept").unwrap();
    house.run("zfs unmount t");
    let (_, said) = house.fails("zfs mount -o remount,ro t");
    assert_eq!(said, "cannot mount 't': filesystem is not mounted\n");
}

/// `zfs unmount` returns after the changes are written: a crash then loses nothing, and the space
/// that the file system uses is known.
#[test]
fn unmount_writes_changes() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-write");
    house.create(&house.text("at"));
    house.run("zfs create -o compression=off t/fs");
    house.run("zfs snapshot t/fs@before");
    fs::write(house.path("at/fs/file"), vec![1_u8; 200_000]).unwrap();
    house.run("zfs unmount t/fs");
    let written = house.run("zfs get -Hp -o value written@before t/fs");
    assert!(written.trim().parse::<u64>().unwrap() > 200_000, "{written}");
}

/// `umount` does not tell the daemon, which notices it anyway.
#[test]
fn umount_by_others_is_noticed() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-others");
    house.create(&house.text("at"));
    fs::write(house.path("at/file"), "kept").unwrap();
    let unmount = |how: &[&str]| {
        let mut command = if is_root() {
            std::process::Command::new("umount")
        } else {
            let mut command = std::process::Command::new("fusermount3");
            command.arg("-u");
            command
        };
        succeeds(command.args(how).arg(house.path("at")));
    };
    for _ in 0..5 {
        unmount(&[]);
        assert_eq!(house.run("zfs get -H -o value mounted t"), "no\n");
        house.run("zfs mount -o noxattr t");
        assert_eq!(house.run("zfs get -H -o value mounted,xattr t"), "yes\noff\n");
        assert!(
            rustix::fs::setxattr(
                house.path("at/file"),
                "user.name",
                b"value",
                rustix::fs::XattrFlags::empty()
            )
            .is_err()
        );
    }
    // Detached, but a file is open.
    let open = fs::File::open(house.path("at/file")).unwrap();
    unmount(&[if is_root() { "-l" } else { "-z" }]);
    if is_root() {
        // Root mounts it again through the same connection, and stays when the file is closed.
        let connections = || {
            let fds = fs::read_dir(format!("/proc/{}/fd", house.pid())).unwrap();
            let links = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
            links.filter(|link| link.as_os_str() == "/dev/fuse").count()
        };
        let before = connections();
        house.run("zfs mount t");
        assert_eq!(connections(), before);
        assert_eq!(std::io::read_to_string(&open).unwrap(), "kept");
        drop(open);
    } else {
        // Only root can mount it again through the same connection.
        let (_, said) = house.fails("zfs mount t");
        assert_eq!(said, "cannot mount 't': mountpoint or dataset is busy\n");
        assert_eq!(std::io::read_to_string(&open).unwrap(), "kept");
        drop(open);
        eventually(&house, "zfs mount t");
    }
    for _ in 0..3 {
        assert_eq!(house.run("zfs get -H -o value mounted t"), "yes\n");
        assert_eq!(fs::read_to_string(house.path("at/file")).unwrap(), "kept");
    }
}

/// A mount whose connection somebody aborts is told from one that was unmounted, and mounted again
/// on request.
#[test]
fn aborted_connections_are_told() {
    if !has_fuse() || !is_root() {
        return;
    }
    let house = House::new("mounts-aborted");
    house.create(&house.text("at"));
    fs::write(house.path("at/file"), "kept").unwrap();
    // The kernel aborts it, and then finds that it is in use.
    let open = fs::File::open(house.path("at/file")).unwrap();
    let forced = rustix::mount::unmount(house.path("at"), rustix::mount::UnmountFlags::FORCE);
    assert_eq!(forced, Err(rustix::io::Errno::BUSY));
    drop(open);
    let aborted = || {
        let log = fs::read_to_string(house.path("state/daemon.log")).unwrap();
        log.contains("event=\"connection aborted\" dataset=t")
    };
    for _ in 0..LOOKS_MAX {
        house.run("zpool list");
        if aborted() {
            break;
        }
    }
    assert!(aborted());
    assert_eq!(house.run("zfs get -H -o value mounted t"), "no\n");
    house.run("zfs mount t");
    assert_eq!(fs::read_to_string(house.path("at/file")).unwrap(), "kept");
    house.run("zpool export t");
}

/// The kernel gives the number of an ended connection to the next mount. A daemon that has not
/// noticed the end of its own does not abort that of another one when it stops.
#[test]
fn ended_connections_are_not_aborted_by_number() {
    if !has_fuse() || !is_root() {
        return;
    }
    let (house, other) = (House::new("mounts-ended"), House::new("mounts-other"));
    house.create(&house.text("at"));
    fs::write(house.path("at/file"), "open").unwrap();
    let number = fs::metadata(house.path("at")).unwrap().dev();
    let open = fs::File::open(house.path("at/file")).unwrap();
    rustix::mount::unmount(house.path("at"), rustix::mount::UnmountFlags::DETACH).unwrap();
    // The last command of this daemon: it sees a connection without a mount.
    assert_eq!(house.run("zfs list -H -o mounted t"), "no\n");
    drop(open);
    other.create(&other.text("at"));
    fs::write(other.path("at/file"), "kept").unwrap();
    if !takes_number(&other, number) {
        return;
    }
    house.end(rustix::process::Signal::TERM);
    assert_eq!(fs::read_to_string(other.path("at/file")).unwrap(), "kept");
    other.run("zpool export t");
}

/// A property of a hidden file system changes nothing at the mount that hides it.
#[test]
fn mounts_of_others_at_the_same_place_keep_their_options() {
    if !has_fuse() || !is_root() {
        return;
    }
    let house = House::new("mounts-hidden");
    let at = house.text("at");
    house.create(&at);
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &at, "tmpfs", flags, None).unwrap();
    let before = kernel_options(&at);
    let output = house.command(&["zfs", "set", "exec=off", "t"]).output().unwrap();
    let after = kernel_options(&at);
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(after, before, "{said}");
    assert!(said.contains("cannot remount 't': mountpoint or dataset is busy"), "{said}");
    house.run("zfs set exec=off t");
    assert!(kernel_options(&at).contains("noexec"));
    house.run("zpool export t");
}

/// Commands that move mounts run beside those that look for mounts which others have removed.
#[test]
fn moved_mounts_are_not_taken_for_unmounted_ones() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-moved");
    house.create(&house.text("at"));
    house.run("zfs create -p t/a/b");
    fs::write(house.path("at/a/b/file"), "kept").unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    house.run("zfs list -H -o name");
                }
            });
        }
        for _ in 0..20 {
            for (line, file) in [
                ("zfs rename t/a t/x".to_owned(), "at/x/b/file"),
                (format!("zfs set mountpoint={} t/x", house.text("other")), "other/b/file"),
                ("zfs inherit mountpoint t/x".to_owned(), "at/x/b/file"),
                ("zfs rename t/x t/a".to_owned(), "at/a/b/file"),
            ] {
                let words = line.split(' ').collect::<Vec<_>>();
                let run = || house.command(&words).output().unwrap();
                let is_busy = |done: &std::process::Output| {
                    String::from_utf8_lossy(&done.stderr).contains("is busy")
                };
                // A child of another test has the file of before open until it is its program.
                let mut tries = (0..10).map(|_| run()).skip_while(is_busy);
                let done = tries.next().unwrap_or_else(run);
                let read = fs::read(house.path(file));
                if !done.status.success() || !read.as_ref().is_ok_and(|bytes| bytes == b"kept") {
                    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                    panic!("'{line}': {done:?}, and then {file}: {read:?}");
                }
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(house.run("zfs list -H -o mounted t/a t/a/b"), "yes\nyes\n");
    let log = fs::read_to_string(house.path("state/daemon.log")).unwrap();
    assert!(!log.contains("unmounted by others"), "{log}");
    house.run("zpool export t");
}

/// A child's mount point may be above its parent's.
#[test]
fn mount_order_follows_mount_points() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-order");
    house.create("none");
    let at = house.text("at");
    house.run(&format!("zfs create -u -o mountpoint={at}/in/side t/a"));
    house.run(&format!("zfs create -u -o mountpoint={at}/in t/a/b"));
    house.run(&format!("zfs create -u -o mountpoint={at} t/a/b/c"));
    let all = "yes\nyes\nyes\n";
    let mounted = || house.run("zfs get -H -o value mounted t/a t/a/b t/a/b/c");
    house.run("zfs mount -a");
    assert_eq!(mounted(), all);
    fs::write(house.path("at/in/side/file"), "a").unwrap();
    house.run("zfs unmount -a");
    house.run("zfs mount -R t/a/b t/a");
    assert_eq!(mounted(), all);
    assert_eq!(fs::read_to_string(house.path("at/in/side/file")).unwrap(), "a");
    house.run("zpool export t");
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    assert_eq!(mounted(), all);
    assert_eq!(fs::read_to_string(house.path("at/in/side/file")).unwrap(), "a");
}

#[test]
fn mount_by_name_and_mount_all() {
    if !has_fuse() || !is_root() {
        return;
    }
    let house = House::new("mounts-helper");
    house.create("none");
    let (at, device) = (house.text("at"), house.text("pool/d1"));
    fs::create_dir(&at).unwrap();
    house.run("zfs set -u mountpoint=legacy t");
    for words in [
        vec![device.as_str(), &at],
        vec!["-s", "-o", "sideways,ro", "t", &at],
        vec!["-v", "-o", "zfsutil", "t", &at],
    ] {
        let done = mount_helper(&house, &words);
        assert!(done.status.success(), "{words:?}: {done:?}");
        assert_eq!(house.run("zfs get -H -o value mounted t"), "yes\n", "{words:?}");
        house.run("zfs unmount t");
    }
    for words in [vec!["-o", "sideways", "t", &at], vec!["/dev/null", &at], vec!["t", "/dev/null"]]
    {
        assert!(!mount_helper(&house, &words).status.success(), "{words:?}");
    }
}

#[test]
fn set_changes_mounted_file_systems() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-live");
    let at = house.text("at");
    house.create(&at);
    let file = house.path("at/file");
    fs::write(&file, "one").unwrap();
    let open = fs::File::open(&file).unwrap();
    // A file is open: as root the file system is not mounted again.
    house.run("zfs set readonly=on t");
    assert!(fs::write(&file, "two").is_err());
    house.run("zfs set readonly=off t");
    fs::write(&file, "two").unwrap();
    if is_root() {
        let device = fs::metadata(&file).unwrap().dev();
        house.run("zfs set exec=off t");
        assert!(kernel_options(&at).contains("noexec"));
        house.run("zfs set exec=on setuid=off devices=off t");
        let options = kernel_options(&at);
        assert!(!options.contains("noexec") && options.contains("nosuid,nodev"), "{options}");
        assert_eq!(fs::metadata(&file).unwrap().dev(), device, "the same mount");
    }
    drop(open);

    // From now on atime is updated, or not.
    let read_at = || {
        fs::read(&file).unwrap();
        // The kernel asks again after a second.
        succeeds(std::process::Command::new("sleep").arg("1.1"));
        let seen = fs::metadata(&file).unwrap();
        (seen.atime(), seen.atime_nsec())
    };
    house.run("zfs set atime=off t");
    fs::write(&file, "three").unwrap();
    let before = read_at();
    assert_eq!(read_at(), before);
    house.run("zfs set atime=on relatime=off t");
    fs::write(&file, "four").unwrap();
    assert_ne!(read_at(), before);

    // Setting a mount point mounts an unmounted file system; with -u nothing changes.
    house.run("zfs create -o mountpoint=none t/a");
    let other = house.text("other");
    house.run(&format!("zfs set mountpoint={other} t/a"));
    fs::write(house.path("other/x"), "x").unwrap();
    house.run("zfs set -u mountpoint=none t/a");
    house.run("zfs create -u t/b");
    assert!(house.path("other/x").exists());
    assert_eq!(house.run("zfs get -H -o value mounted t/a t/b"), "yes\nno\n");
    house.run("zfs rename -u t/a t/c");
    assert!(house.path("other/x").exists());
    house.run("zfs set canmount=off t/c");
    assert!(!house.path("other/x").exists());
    house.run("zpool export t");
}

#[test]
fn rename_and_destroy_refuse_file_systems_in_use() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-busy");
    let at = house.text("at");
    house.create(&at);
    house.run("zfs create -p t/a/below");
    house.run("zfs create -o mountpoint=legacy t/l");
    fs::create_dir(house.path("legacy")).unwrap();
    let legacy = house.text("legacy");
    assert!(mount_helper(&house, &["t/l", &legacy]).status.success());
    fs::write(house.path("at/a/file"), "kept").unwrap();
    let mounts = house.run("zfs mount");
    let mut open = fs::File::open(house.path("at/a/file")).unwrap();
    // Descendants are unmounted first, and mounted again.
    let busy = format!("cannot unmount '{at}/a': pool or dataset is busy\n");
    for line in [
        "zfs rename t/a t/b",
        "zfs set mountpoint=/elsewhere t/a",
        "zfs set canmount=off t/a",
        "zfs destroy -r t/a",
    ] {
        let (_, said) = house.fails(line);
        assert_eq!(said, busy, "{line}");
        assert_eq!(house.run("zfs list -H -o name,canmount -r t/a"), "t/a\ton\nt/a/below\ton\n");
        assert_eq!(house.run("zfs mount"), mounts, "{line}");
    }
    // A mount that properties did not determine stays, even after a rename.
    house.run("zfs rename t/l t/m");
    assert!(house.run("zfs mount").contains(&format!("{:<30}  {legacy}\n", "t/m")));
    if !is_root() {
        return;
    }
    // -f ends the connections of its users.
    house.run("zfs rename -f t/a t/b");
    let mut text = String::new();
    assert!(std::io::Read::read_to_string(&mut open, &mut text).is_err());
    let open = fs::File::open(house.path("at/b/file")).unwrap();
    house.run("zfs destroy -f -r t/b");
    assert!(!house.path("at/b/file").exists());
    assert_eq!(house.run("zfs list -H -o name"), "t\nt/m\n");
    drop(open);
    house.run("zpool export t");
}

#[test]
fn import_readonly_serves_pools() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-reading");
    house.create(&house.text("at"));
    fs::write(house.path("at/file"), "kept").unwrap();
    house.run("zfs create -V 8M -s -o cenote:nbd=on t/v");
    house.run("zpool export t");
    let (pool, root) = (house.text("pool"), house.text("root"));
    let sums = || {
        let read = |device: &str| fs::read(house.path("pool").join(device)).unwrap();
        (sha2::Sha256::digest(read("d0")), sha2::Sha256::digest(read("d1")))
    };
    let before = sums();
    house.run(&format!("zpool import -d {pool} -o readonly=on -R {root} t u"));
    let said = house.run("zpool get -H -o value name,readonly,altroot,cachefile u");
    assert_eq!(said, format!("u\non\n{root}\nnone\n"));
    let at = format!("{root}{}", house.text("at"));
    assert_eq!(house.run("zfs get -H -o value mountpoint,mounted u"), format!("{at}\nyes\n"));
    assert_eq!(fs::read_to_string(format!("{at}/file")).unwrap(), "kept");
    assert!(fs::write(format!("{at}/file"), "changed").is_err());
    for line in ["zfs create u/x", "zfs set atime=off u", "zfs snapshot u@one"] {
        let (_, said) = house.fails(line);
        assert!(said.contains("read-only"), "{line}: {said}");
    }
    assert_eq!(house.fails("zpool sync"), (1, "cannot sync 'u': pool is read-only\n".to_owned()));
    let mut client = Raw::connect(&house.path("state/nbd.sock"), 3);
    assert_eq!(client.go("u/v"), OK);
    drop(client);
    house.run("zpool export u");
    assert_eq!(sums(), before, "nothing was written");

    // A temporary name; nothing is mounted.
    house.run(&format!("zpool import -d {pool} -N -t t u"));
    assert_eq!(house.run("zfs get -H -o value mounted u"), "no\n");
    house.run("zfs create -u u/x");
    house.run("zpool export u");
    house.run(&format!("zpool import -d {pool} t"));
    assert_eq!(house.run("zfs list -H -o name"), "t\nt/v\nt/x\n");
    house.run("zpool export t");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &pool, "t"]));
}

#[test]
fn load_key_mounts_encrypted_file_systems_read_only() {
    let Some(golden) = golden("g-crypt").filter(|_| has_fuse()) else { return };
    let house = House::new("mounts-keys");
    let (images, root) = (golden.images(), house.text("root"));
    let images = images.to_str().unwrap();
    house.run(&format!("zpool import -d {images} -f -o readonly=on -R {root} g-crypt"));
    let status = |name: &str| house.run(&format!("zfs get -H -o value keystatus,mounted {name}"));
    assert_eq!(status("g-crypt/gcm"), "unavailable\nno\n");
    let (_, said) = house.fails("zfs mount g-crypt/gcm");
    assert_eq!(said, "cannot mount 'g-crypt/gcm': encryption key not loaded\n");
    let (wrong, pass) = (golden.key_file("hex"), golden.key_file("pass"));
    let load = |key: &std::path::Path, name: &str| {
        format!("zfs load-key -L file://{} {name}", key.display())
    };
    assert_eq!(
        house.fails(&load(&wrong, "g-crypt/gcm")),
        (255, "Key load error: Incorrect key provided for 'g-crypt/gcm'.\n".to_owned())
    );
    house.run(&load(&pass, "g-crypt/gcm"));
    let (_, said) = house.fails(&load(&pass, "g-crypt/gcm"));
    assert_eq!(said, "Key load error: Key already loaded for 'g-crypt/gcm'.\n");
    house.run("zfs mount g-crypt/gcm");
    assert_eq!(status("g-crypt/gcm"), "available\nyes\n");
    let at = house.run("zfs get -H -o value mountpoint g-crypt/gcm");
    let name = "added/after-snapshot";
    let file = std::path::Path::new(at.trim()).join(name);
    let key = format!("g-crypt/gcm={}", pass.display());
    let output = house.command(&["cat", "-d", images, "-k", &key, "g-crypt/gcm", name]).output();
    assert!(fs::read(&file).unwrap() == output.unwrap().stdout, "{name}");
    let (status_of_unload, said) = house.fails("zfs unload-key g-crypt/gcm");
    let busy = "Key unload error: 'g-crypt/gcm' is busy.\n";
    assert_eq!((status_of_unload, said.as_str()), (255, busy));
    house.run("zfs unmount -u g-crypt/gcm");
    assert_eq!(status("g-crypt/gcm"), "unavailable\nno\n");
    assert_eq!(house.run("zfs unload-key -a"), "");
    house.run("zpool export g-crypt");
}

/// `zpool import -l` loads keys from their stored locations. The pool is imported also if keys
/// cannot be loaded: each of them is reported, and the status is 1.
#[test]
fn import_l_asks_for_the_key_of_each_encryption_root() {
    let Some(golden) = golden("g-crypt").filter(|_| has_fuse()) else { return };
    let house = House::new("mounts-import-keys");
    let (images, root) = (golden.images(), house.text("root"));
    let images = images.to_str().unwrap();
    let import = format!("zpool import -l -d {images} -f -o readonly=on -R {root} g-crypt");
    let (status, said) = house.fails(&import);
    assert_eq!(status, 1, "{said}");
    let file = "Key load error: Failed to open key material file: No such file or directory\n";
    assert_eq!(said, file.repeat(3));
    assert_eq!(house.run("zpool list -H -o name"), "g-crypt\n");
    house.run("zpool export g-crypt");
    house.create(&house.text("at"));
    house.run("zpool export t");
    house.run(&format!("zpool import -l -d {} t", house.text("pool")));
    house.run("zpool export t");
}

#[test]
fn status_names_damaged_files_by_mounted_path() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-damage");
    let at = house.text("at");
    house.create(&at);
    house.run("zfs create -o compression=off t/fs");
    let bytes: Vec<u8> = (0..64_u8).cycle().take(4096).map(|byte| byte.wrapping_mul(37)).collect();
    fs::write(house.path("at/fs/lost"), &bytes).unwrap();
    house.run("zpool export t");
    for name in ["pool/d0", "pool/d1"] {
        let mut device = fs::read(house.path(name)).unwrap();
        let copies: Vec<_> =
            (0..device.len()).step_by(512).filter(|at| device[*at..].starts_with(&bytes)).collect();
        assert_eq!(copies.len(), 1, "one copy on each side");
        device[copies[0]] ^= 1;
        fs::write(house.path(name), device).unwrap();
    }
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    fs::read(house.path("at/fs/lost")).unwrap_err();
    house.run("zpool sync t");
    let status = house.run("zpool status -v t");
    assert!(status.ends_with(&format!("files:\n\n        {at}/fs/lost\n")), "{status}");
    house.run("zfs unmount t/fs");
    let status = house.run("zpool status -v t");
    assert!(status.ends_with("files:\n\n        t/fs:/lost\n"), "{status}");
}

#[test]
fn kernel_caches_are_consistent() {
    if !has_fuse() {
        return;
    }
    let house = House::new("mounts-believed");
    let at = house.text("at");
    house.create(&at);
    house.run("zfs create -o casesensitivity=insensitive t/i");
    let path = |name: &str| house.path("at").join(name);
    // Names that do not exist, then exist, and then do not.
    for name in ["one", "two", "three", "i/One"] {
        assert!(!path(name).exists() && !path(name).exists(), "{name}");
    }
    let mut bytes = vec![0; 300_000];
    cenote_rt::Rng::seeded(5).fill(&mut bytes);
    fs::write(path("one"), &bytes).unwrap();
    fs::write(path("i/one"), b"one").unwrap();
    fs::hard_link(path("one"), path("two")).unwrap();
    assert!(path("one").exists() && path("two").exists() && path("i/One").exists());
    fs::rename(path("one"), path("three")).unwrap();
    assert!(!path("one").exists() && path("three").exists());
    // The allocated size is known after the sync, and requested then.
    house.run("zpool sync t");
    let taken = || fs::metadata(path("three")).unwrap().blocks() * 512;
    let is_told = (0..LOOKS_MAX).any(|_| {
        house.run("zfs list");
        taken() >= bytes.len() as u64
    });
    assert!(is_told, "{} bytes taken", taken());
    // The kernel passes this through without interpreting it.
    let file = fs::File::open(path("three")).unwrap();
    let before = fs::metadata(path("three")).unwrap();
    rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::NODUMP).unwrap();
    let after = fs::metadata(path("three")).unwrap();
    let ctime = |meta: &fs::Metadata| (meta.ctime(), meta.ctime_nsec());
    assert!(ctime(&after) > ctime(&before));
    drop(file);
    // A rollback changes these.
    house.run("zfs snapshot t@a");
    fs::rename(path("three"), path("one")).unwrap();
    fs::write(path("two"), b"changed").unwrap();
    fs::write(path("four"), b"four").unwrap();
    assert!(path("one").exists() && !path("three").exists() && path("four").exists());
    house.run("zfs rollback t@a");
    assert!(!path("one").exists() && path("three").exists() && !path("four").exists());
    assert_eq!(fs::read(path("two")).unwrap(), bytes);
    house.run("zpool destroy t");
    house.run("daemon stop");
}
