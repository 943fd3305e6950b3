//! Volumes exported by the daemon: which, how, to which clients, and for how long.

#![expect(clippy::disallowed_methods, reason = "clients are watched in real time")]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use cenote_serve::nbd::options::OptionKind;
use cenote_serve::nbd::wire::{Command as Request, Request as Wire, request_flag};

use crate::daemon::House;
use crate::nbd::{OK, Raw, UNKNOWN};
use crate::{has, succeeds};

const VOLUME: u64 = 16 << 20;

/// Client flags: fixed newstyle, no zeros.
const FLAGS: u32 = 3;
const PERMISSION: u32 = 1;

fn house(stem: &str) -> House {
    let house = House::new(stem);
    house.create("none");
    house.run("zfs create -o cenote:nbd=on t/images");
    for name in ["t/images/a", "t/images/b", "t/other"] {
        house.run(&format!("zfs create -s -V {VOLUME} {name}"));
    }
    house.run("zfs snapshot t/images/a@one");
    house
}

fn connect(house: &House) -> Raw {
    Raw::connect(&house.path("state/nbd.sock"), FLAGS)
}

/// Returns the number of exports.
fn count(house: &House) -> usize {
    let listed = connect(house).option(OptionKind::List, b"");
    assert_eq!(listed.last(), Some(&OK));
    listed.len() - 1
}

#[test]
fn nbd_property_snapdev_and_volmode_determine_exports() {
    let house = house("exports-which");
    let socket = house.path("state/nbd.sock");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(count(&house), 2);
    assert_eq!(connect(&house).go("t/images/a"), OK);
    for hidden in ["t/other", "t/images", "t/images/a@one", "t/none", "u/a", ""] {
        assert_eq!(connect(&house).go(hidden), UNKNOWN, "{hidden}");
    }
    house.run("zfs set snapdev=visible t/images/a");
    house.run("zfs set cenote:nbd=off t/images/b");
    assert_eq!(count(&house), 2);
    let mut snapshot = connect(&house);
    assert_eq!(snapshot.go("t/images/a@one"), OK);
    assert_eq!(snapshot.request(Request::Write, 0, 0, 512), PERMISSION);
    let (_, said) = house.fails("zfs destroy t/images/a@one");
    assert_eq!(said, "cannot destroy 't/images/a@one': dataset is busy\n");
    drop(snapshot);
    // A single volume needs no name.
    assert_eq!(connect(&house).go(""), OK);
    house.run("zfs set readonly=on t/images/a");
    let mut fixed = connect(&house);
    assert_eq!(fixed.go("t/images/a"), OK);
    assert_eq!(fixed.request(Request::Write, 0, 0, 512), PERMISSION);
    house.run("zfs set volmode=none t/images");
    assert_eq!(count(&house), 0);
    house.run("zfs inherit volmode t/images");
    house.run("zfs rename t/images/a t/images/c");
    assert_eq!(connect(&house).go("t/images/a"), UNKNOWN);
    assert_eq!(connect(&house).go("t/images/c"), OK);
}

#[test]
fn nbd_volume_in_use_cannot_be_destroyed() {
    let house = house("exports-use");
    let mut client = connect(&house);
    assert_eq!(client.go("t/images/a"), OK);
    assert_eq!(client.request(Request::Write, request_flag::FUA, 4096, 8192), 0);
    let (status, said) = house.fails("zfs destroy -r t/images/a");
    assert_eq!((status, said.as_str()), (1, "cannot destroy 't/images/a': dataset is busy\n"));
    for action in ["export", "destroy"] {
        let (status, said) = house.fails(&format!("zpool {action} t"));
        let wanted = format!("cannot {action} 't': pool is busy\n");
        assert_eq!((status, said), (1, wanted));
    }
    let said = house.run("daemon status");
    assert!(said.contains("pool    t  open\n"), "{said}");
    assert!(
        said.contains("export  t/images/a  1 in use\nexport  t/images/b  0 in use\n"),
        "{said}"
    );
    house.run("zfs rename t/images/a t/images/z");
    let said = house.run("daemon status");
    assert!(said.contains("export  t/images/z  1 in use\n"), "{said}");
    house.run("zfs rename t/images/z t/images/a");
    // A new client sees the new size; a connected one the old size.
    house.run(&format!("zfs set volsize={} t/images/a", 2 * VOLUME));
    assert_ne!(client.request(Request::Read, 0, VOLUME, 512), 0);
    let mut second = connect(&house);
    assert_eq!(second.go("t/images/a"), OK);
    assert_eq!(second.request(Request::Read, 0, VOLUME, 512), 0);
    // A disabled export accepts no new clients.
    house.run("zfs set cenote:nbd=off t/images");
    assert_eq!(connect(&house).go("t/images/a"), UNKNOWN);
    assert_eq!(client.request(Request::Flush, 0, 0, 0), 0);
    drop((client, second));
    house.run("zfs inherit cenote:nbd t/images");
    house.run("zfs set cenote:nbd=on t");

    // After a kill, the flushed data is there and exported.
    house.kill();
    house.run("zpool list");
    assert_eq!(count(&house), 3);
    if has("qemu-io") {
        let locator = format!("nbd+unix:///t/images/a?socket={}", house.text("state/nbd.sock"));
        let said = succeeds(
            Command::new("qemu-io")
                .args(["-f", "raw", "-c", "read -P 1 4096 8192", "-c", "read -P 0 0 4096"])
                .arg(locator),
        );
        assert!(!said.contains("failed"), "{said}");
    }
    house.run("zfs destroy -r t/images");
    assert_eq!(count(&house), 1);
    house.run("zpool export t");
    assert_eq!(count(&house), 0);
    house.run("daemon stop");
    assert!(!house.path("state/nbd.sock").exists());
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &house.text("pool"), "t"]));
}

#[test]
fn nbd_listen_serves_a_tcp_port() {
    if !has("nbdinfo") {
        return;
    }
    let house = House::new("exports-port");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut start = house.command(&["daemon", "start"]);
    succeeds(start.env("CENOTE_NBD_LISTEN", format!("127.0.0.1:{port}")));
    house.create("none");
    house.run(&format!("zfs create -s -V {VOLUME} -o cenote:nbd=on t/v"));
    let locator = format!("nbd://127.0.0.1:{port}/t/v");
    let said = succeeds(Command::new("nbdinfo").args(["--size", &locator]));
    assert_eq!(said.trim(), VOLUME.to_string());
}

/// All clients share the memory for requests. A client that requests much and reads no answers
/// delays others only briefly: short requests continue immediately, and for a long one the client
/// is disconnected.
#[test]
fn nbd_client_that_reads_no_answers_is_disconnected() {
    const LONG: u32 = 32 << 20;
    let house = house("exports-memory");
    house.run("zfs create -s -V 64M t/images/long");
    house.run("tunable set cenote_nbd_memory_bytes=67108864");
    house.run("tunable set cenote_nbd_stall_ms=1000");
    let mut stalled = connect(&house);
    assert_eq!(stalled.go("t/images/long"), OK);
    let mut stalled = stalled.into_stream();
    let read = Wire { command: Request::Read, flags: 0, cookie: 7, offset: 0, len: LONG };
    // Two requests use all of the memory.
    stalled.write_all(&[read.encode(), read.encode()].concat()).unwrap();
    // The first answer has begun, so both requests are in progress.
    stalled.read_exact(&mut [0; 16]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let mut other = connect(&house);
    assert_eq!(other.option(OptionKind::StructuredReply, b""), [OK]);
    assert_eq!(other.go("t/images/long"), OK);
    let begin = Instant::now();
    for _ in 0..100 {
        assert_eq!(other.request(Request::Read, 0, 0, 4096), 0);
    }
    assert!(begin.elapsed() < Duration::from_millis(900), "short requests wait");
    assert_eq!(other.request(Request::Read, request_flag::DF, 0, LONG), 0);
    // It was disconnected in the middle of an answer.
    let mut rest = Vec::new();
    let _ = stalled.read_to_end(&mut rest);
    assert!(rest.len() < LONG as usize, "{} bytes", rest.len());
    // While no other client waits, a slow client is not disconnected.
    assert_eq!(other.request(Request::Write, 0, 0, LONG), 0);
    assert_eq!(other.request(Request::Flush, 0, 0, 0), 0);
    drop(other);
    house.run("zpool export t");
}
