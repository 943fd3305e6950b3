//! Closing pools through the daemon, with slow readers and failing devices.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Duration;

use cenote_testkit::faultfs::FaultLayer;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use crate::daemon::{House, has_fuse};
use crate::mounts::{is_root, takes_number};
use crate::{SIZE, succeeds};

/// A generous limit.
const SOON: Duration = Duration::from_secs(90);
/// The test function that is the layer's process.
const LAYER: &str = "fault_layer";

#[expect(clippy::disallowed_methods, reason = "the daemon is another process")]
fn wait(pause: Duration) {
    std::thread::sleep(pause);
}

fn passed(since: Duration) -> Duration {
    cenote_rt::monotonic().saturating_sub(since)
}

fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// A listing with a blocked output does not keep devices open or locked.
#[test]
fn export_does_not_wait_for_readers_of_output() {
    let house = House::new("closing-readers");
    house.create("none");
    house.run("zfs create -o mountpoint=none t/a");
    house.run("zfs snapshot -r t@one");
    let folder = house.text("pool");
    for verb in ["zfs list -t all -o name,used,creation", "zpool status -v t"] {
        let (mut reader, writer) = full_pipe();
        let words: Vec<&str> = verb.split(' ').collect();
        let mut listing = house.command(&words);
        let writer = OwnedFd::from(writer);
        let listing = listing.stdout(writer.try_clone().unwrap()).stderr(Stdio::from(writer));
        let mut listing = listing.spawn().unwrap();
        // The command was sent, and waits for its reader.
        wait(Duration::from_millis(300));
        house.run("zpool export t");
        // Another program can use the pool immediately, and then the daemon again.
        succeeds(&mut house.command(&["zfs", "--embedded", "-d", &folder, "set", "a:b=c", "t"]));
        house.run(&format!("zpool import -d {folder} t"));
        let mut said = Vec::new();
        // The command holds the only other end of the pipe, once it is dropped here.
        let drain = std::thread::spawn(move || reader.read_to_end(&mut said).map(drop));
        listing.wait().unwrap();
        drop(drain);
        assert_eq!(house.run("zpool list -H -o name,health"), "t\tONLINE\n");
    }
    house.run("zpool destroy t");
    house.run(&format!("zpool import -D -f -d {folder} t"));
    house.run("zpool export t");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &folder, "t"]));
}

/// A mounted pool with a synced file, on devices that fail on command.
struct Failing {
    /// Dropped before its directory.
    layer: FaultLayer,
    house: House,
}

impl Failing {
    fn new(stem: &str) -> Option<Self> {
        if !has_fuse() {
            return None;
        }
        let house = House::new(stem);
        let layer = FaultLayer::start(LAYER, &house.path("pool"), &[SIZE / 2; 2])?;
        let (d0, d1) = (layer.leaf(0), layer.leaf(1));
        let place = house.text("at");
        house.run(&format!("zpool create -m {place} t mirror {} {}", d0.display(), d1.display()));
        let mut file = std::fs::File::create(house.path("at/kept")).unwrap();
        file.write_all(&vec![7; 300_000]).unwrap();
        file.sync_all().unwrap();
        Some(Self { layer, house })
    }

    /// Removes the devices during a write. Returns the thread that waits for an fsync.
    fn fail(&self, name: &str) -> std::thread::JoinHandle<std::io::Result<()>> {
        let path = self.house.path(&format!("at/{name}"));
        let mut file = std::fs::File::create(path).unwrap();
        file.write_all(&vec![9; 200_000]).unwrap();
        (0..2).for_each(|leaf| self.layer.take_away(leaf));
        std::thread::spawn(move || {
            file.write_all(&vec![8; 100_000])?;
            file.sync_all()
        })
    }

    /// Removes the devices during a write, and waits until the pool is suspended. Returns the
    /// thread that waits for an fsync.
    fn suspend(&self, name: &str) -> std::thread::JoinHandle<std::io::Result<()>> {
        let waiter = self.fail(name);
        let since = cenote_rt::monotonic();
        while self.house.run("zpool list -H -o health") != "SUSPENDED\n" {
            assert!(passed(since) < SOON, "the pool is not suspended");
            wait(Duration::from_millis(100));
        }
        waiter
    }

    fn import(&self) {
        self.layer.heal_all();
        let leaves = self.layer.leaves();
        self.house.run(&format!("zpool import -d {} t", leaves.display()));
        self.check();
    }

    fn check(&self) {
        assert_eq!(std::fs::read(self.house.path("at/kept")).unwrap(), vec![7; 300_000]);
    }
}

#[test]
fn suspended_pool_is_shown_and_can_be_closed() {
    let Some(failing) = Failing::new("closing-suspended") else { return };
    let house = &failing.house;
    let waiter = failing.suspend("lost");
    let said = house.run("zpool status t");
    for wanted in [
        " state: SUSPENDED\n",
        "status: One or more devices are faulted in response to IO failures.\n",
        "action: Make sure the affected devices are connected, then run 'zpool clear'.\n",
        "   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-HC\n",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(house.run("zpool status -x").contains("state: SUSPENDED"));
    assert_eq!(house.run("zpool get -H -o value health t"), "SUSPENDED\n");
    assert!(house.run("zpool list -j").contains("\"SUSPENDED\""));
    assert!(house.run("daemon status").contains("pool    t  suspended"));
    let since = cenote_rt::monotonic();
    assert!(house.run("top -b t 0.1 1").contains("\nt: SUSPENDED, "));
    assert!(passed(since) < Duration::from_secs(2), "{:?}", passed(since));

    let (status, said) = house.fails("zpool export t");
    let wanted = "cannot export 't': pool I/O is currently suspended\n";
    assert_eq!((status, said.as_str()), (1, wanted));
    let (_, said) = house.fails("zpool destroy t");
    assert_eq!(said, "cannot destroy 't': pool I/O is currently suspended\n");
    assert_eq!(house.run("zpool list -H -o name,health"), "t\tSUSPENDED\n");

    let since = cenote_rt::monotonic();
    let output = house.command(&["zpool", "export", "-f", "t"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("closed by force"), "{said}");
    assert!(passed(since) < SOON, "{:?}", passed(since));
    assert_eq!(house.run("zpool list"), "no pools available\n");
    let error = waiter.join().unwrap().expect_err("the pool was closed under it");
    let numbers = [Errno::IO, Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error);
    assert!(numbers.contains(&error.raw_os_error().unwrap()), "{error}");
    failing.import();

    // Destroying it by force closes it, and reports that it was not destroyed.
    drop(failing.suspend("lost too"));
    let (_, said) = house.fails("zpool destroy -f t");
    assert!(said.contains("it was closed, and is not destroyed"), "{said}");
    assert_eq!(house.run("zpool list"), "no pools available\n");
    failing.import();
    house.run("zpool export t");
    let images = failing.layer.images();
    let images = images.to_str().unwrap();
    succeeds(&mut house.command(&["verify", "--leaks", "-d", images, "t"]));
}

/// With `failmode=panic` failing devices stop the pool: no command can write it, and each of them
/// that closes pools can close it.
#[test]
fn stopped_pool_is_shown_and_can_be_closed() {
    let Some(failing) = Failing::new("closing-stopped") else { return };
    let house = &failing.house;
    house.run("zpool set failmode=panic t");
    for (line, is_status_zero) in
        [("zpool export t", true), ("zpool export -f t", true), ("zpool destroy -f t", false)]
    {
        let waiter = failing.fail("lost");
        waiter.join().unwrap().expect_err("the pool was stopped");
        failing.layer.heal_all();
        // The first sync that fails stops the pool.
        let since = cenote_rt::monotonic();
        while !house.run("daemon status").contains("pool    t  stopped") {
            assert!(passed(since) < SOON, "the pool is not stopped");
            wait(Duration::from_millis(100));
        }
        assert_eq!(house.run("zpool list -H -o name,health"), "t\tSUSPENDED\n");
        for said in [house.run("zpool status t"), house.run("zpool status -x")] {
            assert!(said.contains("stopped by an error"), "{said}");
            assert!(said.contains("then import it again"), "{said}");
        }
        let (status, said) = house.fails("zpool clear t");
        assert!(status == 1 && said.contains("pool is stopped"), "{said}");
        let words: Vec<&str> = line.split(' ').collect();
        let output = house.command(&words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), is_status_zero, "{line}: {said}");
        assert!(said.contains("closed by force") || !is_status_zero, "{line}: {said}");
        assert_eq!(house.run("zpool list"), "no pools available\n", "{line}");
        failing.import();
    }
    house.run("zpool export t");
    let images = failing.layer.images();
    let images = images.to_str().unwrap();
    succeeds(&mut house.command(&["verify", "--leaks", "-d", images, "t"]));
}

/// Metadata that is not cached cannot be read: the pool is still shown.
#[test]
fn suspended_pool_with_unreadable_metadata_is_shown() {
    let Some(failing) = Failing::new("closing-memory") else { return };
    let house = &failing.house;
    house.run("zpool set cachefile=none t");
    house.run("zpool set comment=here t");
    let columns = "name,guid,size,readonly,failmode,cachefile,comment";
    let list = format!("zpool list -H -p -o {columns}");
    let before = house.run(&list);
    let waiter = failing.suspend("lost");
    house.run("tunable set cenote_suspended_read_ms=0");

    assert_eq!(house.run(&list), before);
    assert_eq!(house.run("zpool list -H -o name,health"), "t\tSUSPENDED\n");
    let row = house.run("zpool list -H t");
    let cells: Vec<&str> = row.trim_end().split('\t').collect();
    assert_eq!((cells.len(), cells[0], cells[9], cells[10]), (11, "t", "SUSPENDED", "-"), "{row}");
    assert!(cells[1..4].iter().all(|cell| cell.ends_with(['K', 'M'])), "{row}");
    assert_eq!(cells[8], "-", "tables of duplicates are on disk: {row}");
    let rows = house.run("zpool list -v -H t");
    assert!(rows.starts_with(&row) && rows.contains("mirror-0"), "{rows}");
    assert_eq!(house.run("zpool get -H -o value health t"), "SUSPENDED\n");
    assert!(house.run("zpool get all t").contains("SUSPENDED"));

    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&house.run(line)).unwrap_or_else(|error| panic!("{line}: {error}"))
    };
    let status = &json("zpool status -v -D -j t")["pools"]["t"];
    assert_eq!(status["state"], "SUSPENDED");
    assert!(status["status"].as_str().unwrap().contains("IO failures"), "{status}");
    assert_eq!(status["vdevs"]["t"]["vdevs"]["mirror-0"]["vdev_type"], "mirror", "{status}");
    let list = &json("zpool list -v -j")["pools"]["t"];
    assert_eq!(list["state"], "SUSPENDED");
    assert_eq!(list["properties"]["health"]["value"], "SUSPENDED");
    let text = house.run("zpool status -v t");
    assert!(text.contains(" state: SUSPENDED\n") && text.contains("mirror-0"), "{text}");

    house.run("zpool export -f t");
    waiter.join().unwrap().expect_err("the pool was closed under it");
    failing.import();
    house.run("zpool export t");
}

#[test]
fn daemon_with_a_suspended_pool_stops() {
    let Some(failing) = Failing::new("closing-stop") else { return };
    let house = &failing.house;
    for by_signal in [false, true] {
        let waiter = failing.suspend("lost");
        let since = cenote_rt::monotonic();
        if by_signal {
            house.end(Signal::TERM);
        } else {
            house.run("daemon stop");
        }
        assert!(passed(since) < SOON, "{:?}", passed(since));
        waiter.join().unwrap().expect_err("the pool was closed under it");
        let log = std::fs::read_to_string(house.path("state/daemon.log")).unwrap_or_default();
        assert!(log.contains("closed by force"), "{log}");
        // The pool is still recorded.
        failing.layer.heal_all();
        assert_eq!(house.run("zpool list -H -o name,health"), "t\tONLINE\n");
        failing.check();
    }
    house.run("zpool export t");
}

/// A pool imported without its log device is opened without it again.
#[test]
fn pool_imported_without_its_log_device_is_reopened() {
    let house = House::new("closing-log");
    let (d0, d1, folder) = (house.text("pool/d0"), house.text("pool/d1"), house.text("pool"));
    house.run(&format!("zpool create -m none t {d0} log {d1}"));
    house.run("zpool export t");
    std::fs::rename(house.path("pool/d1"), house.path("gone")).unwrap();
    house.fails(&format!("zpool import -d {folder} t"));
    house.run(&format!("zpool import -m -d {folder} t"));
    house.run("zfs create t/a");
    house.kill();
    assert_eq!(house.run("zfs list -H -o name"), "t\nt/a\n");
    let said = house.run("zpool status t");
    assert!(said.contains("UNAVAIL"), "{said}");
    let log = std::fs::read_to_string(house.path("state/daemon.log")).unwrap_or_default();
    assert!(log.contains("log device missing"), "{log}");
    house.run("daemon stop");
    assert_eq!(house.run("zfs list -H -o name"), "t\nt/a\n");
    house.run("zpool export t");
}

/// The kernel gives the number of an ended connection to the next mount. A daemon that waits for a
/// device has not noticed the end of its own, and unmounts no mount of others.
#[test]
fn mounts_of_others_are_not_unmounted_by_number() {
    if !is_root() {
        return;
    }
    let Some(failing) = Failing::new("closing-others") else { return };
    let (house, other) = (&failing.house, House::new("closing-other"));
    other.create(&other.text("at"));
    std::fs::write(other.path("at/file"), "kept").unwrap();
    let number = std::fs::metadata(house.path("at")).unwrap().dev();
    // A thread of the daemon writes to the log, and comes back when the device answers.
    let mut file = std::fs::File::create(house.path("at/lost")).unwrap();
    (0..2).for_each(|leaf| failing.layer.hang(leaf));
    let waiter = std::thread::spawn(move || {
        file.write_all(&[9; 5000])?;
        file.sync_all()
    });
    wait(Duration::from_secs(1));
    assert!(!waiter.is_finished());
    // The kernel aborts the connection, and then finds that it is in use.
    assert_eq!(unmount(house.path("at"), UnmountFlags::FORCE), Err(Errno::BUSY));
    waiter.join().unwrap().expect_err("aborted");
    unmount(house.path("at"), UnmountFlags::DETACH).unwrap();
    if takes_number(&other, number) {
        house.run("zpool export -f t");
        assert_eq!(std::fs::read_to_string(other.path("at/file")).unwrap(), "kept");
    }
    failing.layer.heal_all();
    other.run("zpool export t");
}
