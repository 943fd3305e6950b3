//! Streams of pools that the daemon has: the client gets them as fast as it reads.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cenote_testkit::golden::golden;
use cenote_testkit::streams::recorded_stream;

use crate::daemon::House;

#[test]
fn sends_of_a_pool_in_use_hold_their_snapshot() {
    let Some(golden) = golden("g-send2") else { return };
    let copy = golden.private_copy();
    let house = House::new("sending");
    house.run(&format!("zpool import -N -d {} g-send2", copy.path().display()));
    house.run("zfs create -o mountpoint=none g-send2/new");
    for (name, args) in [
        ("full-Lec", "-Lec g-send2/a@one"),
        ("inc", "-i @one g-send2/a@two"),
        ("large-plain", "g-send2/large@1"),
    ] {
        let line = format!("zfs send {args}");
        let words: Vec<&str> = line.split(' ').collect();
        let sent = house.command(&words).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&sent.stderr), "", "{line}");
        assert!(sent.status.success() && sent.stdout == recorded_stream(&golden, name).bytes);
    }

    // While the reader stalls, the snapshot stays, and everything else goes on.
    let mut stalled = house.command(&["zfs", "send", "g-send2/large@1"]);
    let mut stalled = stalled.stdout(Stdio::piped()).spawn().unwrap();
    let mut begin = [0; 312];
    stalled.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
    let (status, said) = house.fails("zfs destroy g-send2/large@1");
    assert_eq!(status, 1);
    assert!(said.contains("busy"), "{said}");
    house.run("zfs snapshot g-send2/new@a");
    house.run("zfs destroy g-send2/new@a");

    // When it goes away, the stream ends and the snapshot can be destroyed.
    stalled.kill().unwrap();
    stalled.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let destroy = ["zfs", "destroy", "g-send2/large@1"];
    while !house.command(&destroy).output().unwrap().status.success() {
        assert!(Instant::now() < end, "the snapshot is still in use");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(house.run("daemon status").starts_with("running"));
    house.run("zpool export g-send2");
}
