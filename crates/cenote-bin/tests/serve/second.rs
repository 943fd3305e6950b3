//! A second daemon while the first does not answer: it refuses, says why, and changes nothing.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::{House, has_fuse};

/// Limit for a refusal, on a busy machine.
const SOON: Duration = Duration::from_mins(1);

/// A stopped daemon, continued on drop.
struct Stopped(Pid);

impl Stopped {
    fn new(house: &House) -> Self {
        let pid = Pid::from_raw(house.pid()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

/// Every file in the state directory except the log, with its inode, size, and time of change.
fn state(house: &House) -> BTreeMap<String, (u64, u64, i64, i64)> {
    let entries = std::fs::read_dir(house.path("state")).unwrap().map(Result::unwrap);
    let files = entries.map(|entry| {
        let meta = entry.metadata().unwrap();
        let facts = (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
        (entry.file_name().into_string().unwrap(), facts)
    });
    files.filter(|(name, _)| name != "daemon.log").collect()
}

/// Runs a command that must fail soon, and returns its message.
fn refused(mut command: Command) -> String {
    let begin = Instant::now();
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?}");
    assert!(begin.elapsed() < SOON, "{command:?} took {:?}", begin.elapsed());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn second_daemon_refuses_while_the_first_is_stopped() {
    if !has_fuse() {
        return;
    }
    let house = House::new("second");
    house.create(&house.text("mnt"));
    std::fs::write(house.path("mnt/file"), "kept").unwrap();
    let stopped = Stopped::new(&house);
    let before = state(&house);
    let process = house.pid();
    let why = format!("it is stopped (process {process}); 'kill -CONT {process}' lets it go on");

    let said = refused(house.command(&["daemon", "run"]));
    assert_eq!(said, "cenote daemon: another daemon runs with this folder of state\n");
    let said = refused(house.command(&["daemon", "start"]));
    assert_eq!(said, format!("cenote daemon: {why}\n"));
    let said = refused(house.command(&["daemon", "stop"]));
    assert_eq!(said, format!("cenote daemon: {why}\n"));
    let said = refused(house.command(&["daemon", "status"]));
    assert_eq!(said, format!("cenote daemon: {why}\n"));
    let said = refused(house.command(&["zpool", "list"]));
    assert_eq!(said, format!("cannot reach the cenote daemon: {why}\n"));
    assert_eq!(state(&house), before);

    // A daemon that would listen elsewhere cannot find the first one by its socket.
    let mut elsewhere = house.command(&["daemon", "start"]);
    elsewhere.env("CENOTE_SOCKET", house.path("other.sock"));
    assert_eq!(refused(elsewhere), format!("cenote daemon: {why}\n"));
    assert!(!house.path("other.sock").exists());
    assert_eq!(state(&house), before);

    // A daemon with its own state cannot lock the devices.
    let folder = house.text("pool");
    let mut other = house.command(&["zpool", "import", "-f", "-d", &folder, "t"]);
    other.env("CENOTE_STATE_DIR", house.path("other"));
    let said = refused(other);
    assert!(said.contains("is in use by another process"), "{said}");
    let mut end = house.command(&["daemon", "stop"]);
    assert!(end.env("CENOTE_STATE_DIR", house.path("other")).status().unwrap().success());
    assert_eq!(state(&house), before);

    // The first daemon continues unaffected.
    drop(stopped);
    assert_eq!(house.pid(), process);
    assert_eq!(house.run("zpool list -H -o name,health"), "t\tONLINE\n");
    assert_eq!(std::fs::read(house.path("mnt/file")).unwrap(), b"kept");
    house.run("zpool export t");
    house.run("daemon stop");
}

/// More clients than the socket's backlog: each gets an error, and none blocks.
#[test]
fn many_clients_of_a_stopped_daemon_get_an_error() {
    const CLIENTS: usize = 24;
    let house = House::new("second-many");
    assert_eq!(house.run("zpool list"), "no pools available\n");
    let stopped = Stopped::new(&house);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let said = refused(house.command(&["zpool", "list"]));
                assert!(said.contains("it is stopped"), "{said}");
            });
        }
    });
    drop(stopped);
    assert_eq!(house.run("zpool list"), "no pools available\n");
    house.run("daemon stop");
}
