//! File systems that programs use after they were unmounted: in another mount namespace, as a
//! container does, or through files that stayed open.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cenote_rt::seeded::Bug;
use cenote_testkit::{bugs, rng};

use crate::daemon::{House, has_fuse};
use crate::mounts::is_root;
use crate::watch::until;
use crate::{has, succeeds};

/// A shell in a mount namespace with copies of the mounts below a folder.
struct Container {
    shell: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Container {
    fn start(folder: &Path) -> Self {
        // Copies of the mounts of other daemons, which may run tests now, are unmounted immediately.
        let script = "grep ' - fuse' /proc/self/mountinfo | while read -r _ _ _ _ at _; do
            case $at in \"$0\"/*) ;; *) umount -l \"$at\" 2>/dev/null ;; esac
            done; echo ready; exec sh";
        let mut shell = Command::new("unshare");
        shell.args(["-m", "--propagation", "private", "sh", "-c", script]).arg(folder);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (shell.stdin.take(), BufReader::new(shell.stdout.take().unwrap()));
        let mut container = Self { shell, input, output };
        assert_eq!(container.answer(), "ready");
        container
    }

    /// Runs a command in the shell, and returns the line that it prints.
    fn run(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Ends the shell, and its mount namespace.
    fn end(mut self) {
        drop(self.input.take());
        self.shell.wait().unwrap();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// A daemon with a pool `t`, mounted at `mnt`, and a file system `t/w`; `None` if this machine
/// cannot test it.
fn house(stem: &str) -> Option<House> {
    if !has_fuse() || !is_root() || !has("unshare") {
        return None;
    }
    let house = House::new(stem);
    house.create(&house.text("mnt"));
    house.run("zfs create t/w");
    Some(house)
}

fn append(path: &Path, text: &str) {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

fn mounted(house: &House) -> String {
    house.run("zfs get -H -o value mounted t/w")
}

/// Returns how many times a path is a mount point.
fn mounts_at(path: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let places = table.lines().filter_map(|line| line.split(' ').nth(1));
    places.filter(|place| Path::new(place) == path).count()
}

/// Repeats a command until it succeeds: a process that another test starts has the descriptors of
/// this one until it executes its program.
pub(crate) fn eventually(house: &House, line: &str) {
    let begin = Instant::now();
    let words: Vec<&str> = line.split(' ').collect();
    loop {
        let output = house.command(&words).output().unwrap();
        if output.status.success() {
            return;
        }
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(begin.elapsed() < Duration::from_mins(1), "{line}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Invariant MOUNT-1: with a second connection the container would append where its kernel last saw
/// the end of the file, over data that was synced.
#[test]
fn file_system_with_copies_is_mounted_again_through_its_connection() {
    let Some(house) = house("copies-again") else { return };
    let log = house.path("mnt/w/log");
    let device = || fs::metadata(house.path("mnt/w")).unwrap().dev();
    let mut container = Container::start(house.path("mnt").parent().unwrap());
    let line = format!("exec 3>>{}; printf first >&3; echo done", log.display());
    assert_eq!(container.run(&line), "done");
    let before = device();
    house.run("zfs unmount t/w");
    assert_eq!(mounted(&house), "no\n");
    // Its dataset stays busy, as with OpenZFS.
    let (_, said) = house.fails("zfs destroy t/w");
    assert_eq!(said, "cannot destroy 't/w': dataset is busy\n");
    house.run("zfs mount t/w");
    assert_eq!((mounted(&house), device()), ("yes\n".to_owned(), before));
    append(&log, "-ACKNOWLEDGED");
    assert_eq!(container.run("printf -- -old >&3 && echo done"), "done");
    assert_eq!(fs::read_to_string(&log).unwrap(), "first-ACKNOWLEDGED-old");

    // At another place, with other options, and after a rename.
    house.run("zfs snapshot t/w@s");
    house.run("zfs rename t/w t/v");
    let moved = house.path("mnt/v/log");
    assert_eq!(fs::metadata(house.path("mnt/v")).unwrap().dev(), before);
    append(&moved, "-more");
    house.run("zfs unmount t/v");
    house.run("zfs mount -o ro,noexec t/v");
    assert!(File::options().append(true).open(&moved).is_err());
    assert_eq!(fs::read_to_string(&moved).unwrap(), "first-ACKNOWLEDGED-old-more");
    house.run("zfs mount -o remount,rw t/v");
    append(&moved, "-rw");
    // A rollback while it is mounted only in the container.
    house.run("zfs unmount t/v");
    house.run("zfs rollback t/v@s");
    assert_eq!(container.run("printf -- -new >&3 && echo done"), "done");
    house.run("zfs mount t/v");
    assert_eq!(fs::read_to_string(&moved).unwrap(), "first-ACKNOWLEDGED-old-new");
    house.run("zfs rename t/v t/w");

    // When the container has ended, the next mount is a new one.
    house.run("zfs unmount t/w");
    container.end();
    eventually(&house, "zfs destroy t/w@s");
    eventually(&house, "zfs mount t/w");
    assert_eq!(fs::read_to_string(&log).unwrap(), "first-ACKNOWLEDGED-old-new");
    house.run("zfs destroy t/w");
    house.run("zpool export t");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &house.text("pool"), "t"]));
}

/// `umount -l` leaves open files usable; mounting again must not make a second file system of them.
#[test]
fn lazily_unmounted_file_system_is_mounted_again_through_its_connection() {
    let Some(house) = house("copies-lazy") else { return };
    let log = house.path("mnt/w/log");
    let mut open = File::options().create(true).append(true).open(&log).unwrap();
    open.write_all(b"first").unwrap();
    let device = open.metadata().unwrap().dev();
    for round in 0..3 {
        let before = fs::read_to_string(&log).unwrap();
        succeeds(Command::new("umount").arg("-l").arg(house.path("mnt/w")));
        assert_eq!(mounted(&house), "no\n");
        house.run(if round == 1 { "zfs mount -a" } else { "zfs mount t/w" });
        assert_eq!(fs::metadata(&log).unwrap().dev(), device);
        append(&log, "-ACKNOWLEDGED");
        open.write_all(b"-old").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), before + "-ACKNOWLEDGED-old");
    }
    let text = fs::read_to_string(&log).unwrap();
    // A connection that was mounted read-only serves no writers: busy, as with OpenZFS.
    house.run("zfs create t/r");
    house.run("zfs unmount t/r");
    house.run("zfs mount -o ro t/r");
    let folder = File::open(house.path("mnt/r")).unwrap();
    succeeds(Command::new("umount").arg("-l").arg(house.path("mnt/r")));
    let (_, said) = house.fails("zfs mount t/r");
    assert_eq!(said, "cannot mount 't/r': mountpoint or dataset is busy\n");
    drop(folder);
    eventually(&house, "zfs mount t/r");
    append(&house.path("mnt/r/file"), "kept");

    // Its users get errors when the pool is closed.
    succeeds(Command::new("umount").arg("-l").arg(house.path("mnt/w")));
    house.run("zpool export t");
    assert!(open.write_all(b"lost").is_err());
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    assert_ne!(fs::metadata(&log).unwrap().dev(), device);
    assert_eq!(fs::read_to_string(&log).unwrap(), text);
    house.run("zpool export t");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &house.text("pool"), "t"]));
}

#[test]
fn seeded_bugs_of_connections_are_found() {
    if !has_fuse() || !is_root() || !has("unshare") {
        return;
    }
    bugs::check_found(
        &Bug::OF_CONNECTIONS,
        "panicked at",
        |_| "copies::lazily_unmounted_file_system_is_mounted_again_through_its_connection",
    );
}

/// Every command compares the mounts with the kernel's table, while others mount and unmount.
#[test]
fn commands_forget_no_mount_that_others_make() {
    const MOUNTERS: usize = 3;
    const READERS: usize = 5;
    if !has_fuse() {
        return;
    }
    let time = if rng::wants_all() { 60 } else { 6 };
    let house = House::new("copies-notice");
    house.create(&house.text("mnt"));
    let names: Vec<String> = (0..MOUNTERS).map(|number| format!("n{number}")).collect();
    for name in &names {
        house.run(&format!("zfs create t/{name}"));
    }
    let begin = Instant::now();
    let is_on = || begin.elapsed() < Duration::from_secs(time);
    std::thread::scope(|scope| {
        for name in &names {
            let (house, place) = (&house, house.path("mnt").join(name));
            scope.spawn(move || {
                while is_on() {
                    house.run(&format!("zfs unmount t/{name}"));
                    house.run(&format!("zfs mount t/{name}"));
                    assert_eq!(mounts_at(&place), 1, "t/{name}");
                }
            });
        }
        for _ in 0..READERS {
            scope.spawn(|| {
                while is_on() {
                    house.run("tunable get zfs_txg_timeout");
                }
            });
        }
    });
    let all = house.run("zfs list -H -o mounted");
    assert_eq!(all, "yes\n".repeat(MOUNTERS + 1));
    house.run("zpool export t");
    let left: Vec<PathBuf> = names.iter().map(|name| house.path("mnt").join(name)).collect();
    assert!(left.iter().all(|place| mounts_at(place) == 0));
}

/// A file system that cannot be unmounted stays in its place, and is in no other one.
#[test]
fn moved_file_system_in_use_is_mounted_once() {
    if !has_fuse() {
        return;
    }
    let time = if rng::wants_all() { 60 } else { 6 };
    let house = House::new("copies-moved");
    house.create(&house.text("mnt"));
    house.run("zfs create t/x");
    let places = [house.path("mnt/x"), house.path("other")];
    let begin = Instant::now();
    let is_on = || begin.elapsed() < Duration::from_secs(time);
    let set = format!("zfs set mountpoint={} t/x", places[1].display());
    let counts = || places.each_ref().map(|place| mounts_at(place));
    std::thread::scope(|scope| {
        for line in [set.as_str(), "zfs inherit mountpoint t/x", "zfs list"] {
            let house = &house;
            scope.spawn(move || {
                let words: Vec<&str> = line.split(' ').collect();
                while is_on() {
                    // It may be in use.
                    house.command(&words).output().unwrap();
                }
            });
        }
        for place in &places {
            scope.spawn(move || {
                while is_on() {
                    let open = File::open(place);
                    std::thread::sleep(Duration::from_millis(20));
                    drop(open);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        while is_on() {
            // A mount that moves while the kernel prints its table may be in it twice.
            let is_twice = (0..5).all(|_| counts().iter().sum::<usize>() > 1);
            assert!(!is_twice, "{:?}", counts());
        }
    });
    let place = house.run("zfs get -H -o value mountpoint t/x");
    let wanted = places.each_ref().map(|at| usize::from(at == Path::new(place.trim())));
    // It may be in use for a moment after the last file was closed (see `eventually`).
    until(&format!("the file system moves to {place}"), || {
        house.run("zfs list");
        counts() == wanted
    });
    eventually(&house, "zpool export t");
}
