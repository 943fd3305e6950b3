//! The daemon: commands find it, start it, and lose nothing when it ends.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cenote_testkit::golden::PrivateFolder;
use cenote_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};

use crate::{SIZE, has, succeeds};

/// A directory with devices, a daemon, and a mount point.
pub(crate) struct House {
    folder: PrivateFolder,
}

impl House {
    pub(crate) fn new(stem: &str) -> Self {
        let house = Self { folder: PrivateFolder::create(stem) };
        std::fs::create_dir(house.path("pool")).unwrap();
        for device in ["d0", "d1"] {
            let device = std::fs::File::create(house.path("pool").join(device)).unwrap();
            device.set_len(SIZE / 2).unwrap();
        }
        house
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("CENOTE_STATE_DIR", self.path("state")).env_remove("CENOTE_SOCKET");
        command
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn run(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        succeeds(&mut self.command(&words))
    }

    /// Runs a command that must fail, and returns its status and output.
    pub(crate) fn fails(&self, line: &str) -> (i32, String) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = self.command(&words).output().unwrap();
        assert!(!output.status.success(), "{line}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), said)
    }

    /// Creates the pool `t`.
    pub(crate) fn create(&self, place: &str) {
        let (d0, d1) = (self.text("pool/d0"), self.text("pool/d1"));
        self.run(&format!("zpool create -m {place} -O compression=lz4 t mirror {d0} {d1}"));
    }

    /// Returns the daemon's process number.
    pub(crate) fn pid(&self) -> i32 {
        let lock = std::fs::read_to_string(self.path("state/daemon.lock")).unwrap();
        lock.trim().parse().unwrap()
    }

    /// Kills the daemon, as a crash does.
    pub(crate) fn kill(&self) {
        self.end(Signal::KILL);
    }

    /// Sends the daemon a signal that ends it, and waits for the end.
    pub(crate) fn end(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
        // The kernel releases the lock when the process is gone.
        let lock = std::fs::File::open(self.path("state/daemon.lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // After a failed test no process remains.
        let _ = self.command(&["daemon", "stop"]).output();
    }
}

pub(crate) fn has_fuse() -> bool {
    let is_there = Path::new("/dev/fuse").exists();
    if !is_there {
        skip::skip(&skip::current_test(), "no /dev/fuse");
    }
    is_there
}

#[test]
fn commands_share_the_pools_of_the_daemon() {
    let house = House::new("daemon-commands");
    assert_eq!(house.fails("daemon status").0, 1);
    assert_eq!(house.run("zpool list"), "no pools available\n");
    assert!(house.run("daemon status").starts_with("running (process "));
    house.create("none");
    assert_eq!(house.run("zpool list -H -o name,health"), "t\tONLINE\n");
    house.run("zfs create -o mountpoint=none -o quota=10M t/a");
    house.run("zfs snapshot -r t@one");
    house.run("zfs clone -o mountpoint=none t/a@one t/b");
    assert_eq!(house.run("zfs list -H -t all -o name"), "t\nt@one\nt/a\nt/a@one\nt/b\n");
    assert_eq!(house.run("zfs get -H -o value quota t/a"), "10M\n");
    let (status, said) = house.fails("zfs create t/a");
    assert_eq!((status, said.as_str()), (1, "cannot create 't/a': dataset already exists\n"));
    assert_eq!(house.fails("zfs frobnicate").0, 2);
    let (_, said) = house.fails("zpool create t pool/d0");
    assert!(said.contains("cannot"), "{said}");
    // The daemon has the pool: no other process can open it for writing.
    let folder = house.text("pool");
    let (_, said) = house.fails(&format!("zfs --embedded -d {folder} create t/c"));
    assert!(said.contains("in use by another program"), "{said}");
    let history = house.run("zpool history t");
    assert!(history.contains("zfs snapshot -r t@one"), "{history}");

    // After a kill, the next command starts the daemon and opens the pool.
    house.kill();
    assert_eq!(house.run("zfs get -H -o value quota t/a"), "10M\n");
    assert_eq!(house.run("zfs list -H -t snapshot -o name"), "t@one\nt/a@one\n");
    house.run("daemon stop");
    assert_eq!(house.fails("daemon status").0, 1);
    house.run("zfs destroy -r t/b");

    house.run("zpool export t");
    assert_eq!(house.run("zpool list"), "no pools available\n");
    let said = house.run(&format!("zpool import -d {folder}"));
    assert!(said.contains("pool: t") && said.contains("state: ONLINE"), "{said}");
    house.run(&format!("zpool import -d {folder} t"));
    assert_eq!(house.run("zfs list -H -o name"), "t\nt/a\n");
    house.run("zpool export -a");
    house.run("daemon stop");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &folder, "t"]));
}

/// The environment of the caller applies to the command, but open descriptors of the caller do not
/// stay open in the daemon that it starts.
#[test]
fn commands_run_in_the_callers_environment() {
    let house = House::new("daemon-environment");
    let marker = house.path("marker");
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 9>\"$1\"; exec \"$0\" zpool list", env!("CARGO_BIN_EXE_cenote")]);
    shell.arg(&marker).env("CENOTE_STATE_DIR", house.path("state")).env("TZ", "XYZ-5");
    succeeds(&mut shell);
    let lock = std::fs::read_to_string(house.path("state/daemon.lock")).unwrap();
    let folder = format!("/proc/{}/fd", lock.trim());
    let open: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    let links = open.into_iter().filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    assert!(links.into_iter().all(|link| link != marker));

    house.create("none");
    let said = |name: &str, value: &str, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let output = house.command(&words).env(name, value).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    assert_eq!(said("A", "", "zfs list t -H -o name"), (Some(0), "t\n".into()));
    let (status, text) = said("POSIXLY_CORRECT", "", "zfs list t -H -o name");
    assert!(status == Some(1) && text.contains("cannot open '-H': dataset does not"), "{text}");
    let history = |zone: &str| said("TZ", zone, "zpool history t").1[..60].to_owned();
    assert_ne!(history("XYZ-7"), history("XYZ+7"));
    let guids = said("ZPOOL_VDEV_NAME_GUID", "1", "zpool status t").1;
    assert!(!guids.contains("mirror-0") && !guids.contains("d0"), "{guids}");
    assert!(said("ZPOOL_VDEV_NAME_GUID", "0", "zpool status t").1.contains("mirror-0"));
    house.run("zpool export t");
    let (_, found) = said("ZPOOL_IMPORT_PATH", "pool", "zpool import");
    assert!(found.contains("pool: t"), "{found}");
}

#[test]
fn mountpoint_and_canmount_determine_mounts() {
    if !has_fuse() {
        return;
    }
    let house = House::new("daemon-mounts");
    let at = house.text("at");
    house.create(&at);
    std::fs::write(house.path("at/hello"), "one").unwrap();
    house.run("zfs create t/a");
    std::fs::write(house.path("at/a/file"), vec![7; 300_000]).unwrap();
    assert_eq!(house.run("zfs mount"), format!("{:<30}  {at}\n{:<30}  {at}/a\n", "t", "t/a"));
    house.run("zfs snapshot t/a@one");
    std::fs::write(house.path("at/a/file"), "changed").unwrap();

    // The mount point changes with the name and the property, and with a rollback.
    house.run("zfs rename t/a t/b");
    assert_eq!(std::fs::read(house.path("at/b/file")).unwrap(), b"changed");
    let other = house.text("other");
    house.run(&format!("zfs set mountpoint={other} t/b"));
    assert!(!house.path("at/b/file").exists());
    house.run("zfs rollback t/b@one");
    assert_eq!(std::fs::read(house.path("other/file")).unwrap(), vec![7; 300_000]);

    house.run("zfs unmount t/b");
    assert!(!house.path("other/file").exists());
    let (status, said) = house.fails("zfs unmount t/b");
    assert_eq!((status, said.as_str()), (1, "cannot unmount 't/b': not currently mounted\n"));
    house.run("zfs mount t/b");
    assert!(house.path("other/file").exists());

    // Synced data survives a kill; the dead mounts are replaced.
    let file = std::fs::File::create(house.path("at/kept")).unwrap();
    std::io::Write::write_all(&mut &file, b"kept").unwrap();
    file.sync_all().unwrap();
    house.kill();
    drop(file);
    house.run("zpool list");
    assert_eq!(std::fs::read(house.path("at/kept")).unwrap(), b"kept");
    assert_eq!(std::fs::read(house.path("other/file")).unwrap(), vec![7; 300_000]);

    house.run("zfs destroy -r t/b");
    assert!(!house.path("other/file").exists());
    // A user of the file system prevents an export.
    let open = std::fs::File::open(house.path("at/hello")).unwrap();
    let (_, said) = house.fails("zpool export t");
    assert!(said.contains("pool or dataset is busy"), "{said}");
    drop(open);
    house.run("zpool export t");
    assert!(!house.path("at/hello").exists());
    house.run("daemon stop");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &house.text("pool"), "t"]));
}

#[test]
fn socket_activation_takes_over_the_listening_socket() {
    if !has("systemd-socket-activate") {
        return;
    }
    let house = House::new("daemon-activated");
    std::fs::create_dir(house.path("state")).unwrap();
    let socket = house.path("state/control.sock");
    let state = format!("CENOTE_STATE_DIR={}", house.text("state"));
    let mut command = Command::new("systemd-socket-activate");
    command.arg("-l").arg(&socket).args(["-E", &state, env!("CARGO_BIN_EXE_cenote")]);
    let mut activated = command.args(["daemon", "run"]).stderr(Stdio::null()).spawn().unwrap();
    // The path exists before a process listens; the flag shows that one does.
    let listens = || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let mut lines = sockets.lines().filter(|line| line.ends_with(socket.to_str().unwrap()));
        lines.any(|line| line.split_whitespace().nth(3) == Some("00010000"))
    };
    while !listens() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(house.run("zpool list"), "no pools available\n");
    let process = format!("(process {},", activated.id());
    assert!(house.run("daemon status").contains(&process));
    house.run("daemon stop");
    assert!(activated.wait().unwrap().success());
    assert!(socket.exists(), "it is not ours");
}

/// Memory used by a burst of small writes is returned to the system afterwards. The buffers of a
/// record are 128 KiB each; an allocator that places many of them side by side keeps most of them
/// for the few that the cache holds.
#[test]
fn memory_of_a_burst_of_writes_is_returned() {
    /// KiB that remain: the block cache, 64 MiB, and everything else.
    const STAYS: usize = 130 << 10;
    const FILE: u64 = 96 << 20;
    const WRITES: u64 = 4000;
    if !has_fuse() {
        return;
    }
    let house = House::new("burst");
    // The default is ten seconds.
    let soon = ("_RJEM_MALLOC_CONF", "dirty_decay_ms:1000");
    succeeds(house.command(&["daemon", "start"]).env(soon.0, soon.1));
    house.create(&house.text("mnt"));
    let file = std::fs::File::create_new(house.path("mnt/f")).unwrap();
    let mut rng = cenote_testkit::rng::seeded("burst", 1);
    let mut record = vec![0; 1 << 20];
    for offset in (0..FILE).step_by(record.len()) {
        rng.fill(&mut record);
        file.write_all_at(&record, offset).unwrap();
    }
    for _ in 0..WRITES {
        let offset = rng.next_u64() % (FILE / 8192) * 8192;
        file.write_all_at(&record[..8192], offset).unwrap();
    }
    file.sync_all().unwrap();
    let status = format!("/proc/{}/status", house.pid());
    let taken = || {
        let text = std::fs::read_to_string(&status).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let (burst, begin) = (taken(), Instant::now());
    while taken() > STAYS {
        assert!(begin.elapsed() < Duration::from_secs(40), "{burst} KiB, then {} KiB", taken());
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(file);
    house.run("zpool export t");
}
