//! Streams of pools that the daemon has: the client gets them as fast as it reads.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cenote_testkit::golden::golden;
use cenote_testkit::streams::recorded_stream;

use crate::daemon::{House, has_fuse};
use crate::receiving::{leave, receives, send};

/// Of a pool that is imported read-only.
#[test]
fn sends_of_the_daemon_equal_those_of_openzfs() {
    let Some(golden) = golden("g-send2") else { return };
    let copy = golden.private_copy();
    let house = House::new("sending-only");
    house.run(&format!("zpool import -N -o readonly=on -d {} g-send2", copy.path().display()));
    for (name, args) in [
        ("full-Lec", "-Lec g-send2/a@one"),
        ("inc", "-i @one g-send2/a@two"),
        ("large-plain", "g-send2/large@1"),
        ("enc-raw-inc", "-w -i @1 g-send2/e@2"),
    ] {
        let line = format!("zfs send {args}");
        let words: Vec<&str> = line.split(' ').collect();
        let sent = house.command(&words).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&sent.stderr), "", "{line}");
        assert!(sent.status.success(), "{line}");
        let recorded = recorded_stream(&golden, name).bytes;
        // The nvlist of a raw stream is encoded in another way.
        let is_raw = args.starts_with("-w");
        assert!(is_raw || sent.stdout == recorded, "{line}");
        assert!(sent.stdout.len().abs_diff(recorded.len()) < 1000, "{line}");
    }
    house.run("zpool export g-send2");
}

/// While the reader stalls, the snapshot stays, and everything else goes on. When the reader goes
/// away, the stream ends, and the snapshot can be destroyed.
#[test]
fn sends_of_a_pool_in_use_hold_their_snapshot() {
    let Some(golden) = golden("g-zvol") else { return };
    let copy = golden.private_copy();
    let house = House::new("sending");
    house.run(&format!("zpool import -N -d {} g-zvol", copy.path().display()));
    house.run("zfs snapshot -r g-zvol@new");
    let name = "g-zvol/v128K@new";
    let mut stalled = house.command(&["zfs", "send", name]);
    let mut stalled = stalled.stdout(Stdio::piped()).spawn().unwrap();
    let mut begin = [0; 312];
    stalled.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
    let (status, said) = house.fails(&format!("zfs destroy {name}"));
    assert_eq!(status, 1);
    assert!(said.contains("busy"), "{said}");
    house.run("zfs create -o mountpoint=none g-zvol/other");
    house.run("zfs destroy g-zvol/other");

    stalled.kill().unwrap();
    stalled.wait().unwrap();
    let end = Instant::now() + Duration::from_mins(1);
    let destroy = ["zfs", "destroy", name];
    while !house.command(&destroy).output().unwrap().status.success() {
        assert!(Instant::now() < end, "the snapshot is still in use");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(house.run("daemon status").starts_with("running"));
    house.run("zpool export g-zvol");
}

/// A file system or volume itself, of a pool in use: what was written before is in the stream.
#[test]
fn heads_are_sent_unless_they_are_mounted() {
    if !has_fuse() {
        return;
    }
    let house = House::new("sending-heads");
    house.create("none");
    house.run(&format!("zfs create -o mountpoint={} t/a", house.text("a")));
    let file = house.path("a").join("file");
    std::fs::write(&file, vec![7; 300_000]).unwrap();
    let (status, said) = house.fails("zfs send t/a");
    assert_eq!(
        (status, said.trim_end()),
        (1, "warning: cannot send 't/a': target is busy; if a filesystem, it must not be mounted")
    );
    house.run("zfs unmount t/a");
    let stream = send(&house, "t/a");
    receives(&house, "-u t/b", &stream);
    house.run(&format!("zfs set mountpoint={} t/b", house.text("b")));
    assert_eq!(std::fs::read(house.path("b").join("file")).unwrap(), vec![7; 300_000]);
    leave(&house);
}
