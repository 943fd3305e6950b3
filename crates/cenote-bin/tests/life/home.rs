//! A directory with devices and a daemon that is a child of the test, so that the test can wait for
//! its end.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cenote_testkit::golden::PrivateFolder;
use rustix::process::{Pid, Signal, kill_process};

use crate::proc::{self, Connection, Process};

/// Limit for every command. The machine may be busy with other tests.
pub(crate) const COMMAND_MAX: Duration = Duration::from_mins(1);
/// Limit for the end of a daemon that was killed or told to stop.
const END_MAX: Duration = Duration::from_secs(30);
/// Limit for a new daemon to open the pools and mount everything.
const READY_MAX: Duration = Duration::from_secs(10);
/// Limit for the kernel and helper processes to clean up after a daemon.
const REMAINS_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// Size of each device.
const SIZE: u64 = 96 << 20;

/// A directory with devices `pool/d0` to `pool/d3`, and a daemon.
#[derive(Debug)]
pub(crate) struct Home {
    daemon: Mutex<Option<Child>>,
    /// Mounted file systems of the host.
    small: Mutex<Vec<PathBuf>>,
    /// A program with arguments that runs the daemon under a limit.
    pub(crate) limit: Mutex<Vec<String>>,
    folder: PrivateFolder,
}

/// Resources of a daemon that must be gone after its end.
#[derive(Debug)]
pub(crate) struct Remains {
    helpers: Vec<Process>,
    connections: BTreeSet<Connection>,
}

/// A running command.
pub(crate) struct Running {
    line: String,
    pid: Pid,
    ended: std::sync::mpsc::Receiver<std::io::Result<Output>>,
}

impl Home {
    pub(crate) fn new(stem: &str) -> Self {
        let folder = PrivateFolder::create(&format!("life-{stem}"));
        let (daemon, small, limit) = Default::default();
        let home = Self { daemon, small, limit, folder };
        for folder in ["pool", "stages", "state"] {
            std::fs::create_dir(home.path(folder)).unwrap();
        }
        for number in 0..4 {
            let device = std::fs::File::create(home.path(&format!("pool/d{number}"))).unwrap();
            device.set_len(SIZE).unwrap();
        }
        home
    }

    /// Creates a home with a running daemon and a pool `t` with four mounted file systems.
    pub(crate) fn with_pool(stem: &str) -> Self {
        let home = Self::new(stem);
        home.start_with_pool();
        home
    }

    /// Starts the daemon, and creates the pool `t`.
    pub(crate) fn start_with_pool(&self) {
        self.start();
        self.wait_until_ready();
        let (at, d0, d1) = (self.text("at"), self.text("pool/d0"), self.text("pool/d1"));
        self.run(&format!("zpool create -m {at} t mirror {d0} {d1}"));
        for dataset in ["t/a", "t/a/b", "t/c"] {
            self.run(&format!("zfs create {dataset}"));
        }
    }

    /// Mounts a small file system of the host. Returns false, with a message, if that is not
    /// possible.
    pub(crate) fn mount_small(&self, name: &str, size: u64) -> bool {
        let at = self.path(name);
        std::fs::create_dir_all(&at).unwrap();
        let options = std::ffi::CString::new(format!("size={size}")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        if let Err(error) = rustix::mount::mount("tmpfs", &at, "tmpfs", flags, Some(&*options)) {
            let why = format!("no small file system: {error}");
            cenote_testkit::skip::skip(&cenote_testkit::skip::current_test(), &why);
            return false;
        }
        self.small.lock().unwrap().push(at);
        true
    }

    /// Creates a device.
    pub(crate) fn make_device(&self, name: &str) {
        std::fs::File::create(self.path(name)).unwrap().set_len(SIZE).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn environment(&self, command: &mut Command) {
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("CENOTE_STATE_DIR", self.path("state")).env_remove("CENOTE_SOCKET");
    }

    /// Starts a daemon without waiting for it.
    pub(crate) fn start(&self) {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log"));
        let log = log.unwrap();
        let limit = self.limit.lock().unwrap().clone();
        let program = env!("CARGO_BIN_EXE_cenote");
        let mut command = match limit.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        self.environment(&mut command);
        command.args(["daemon", "run"]).env("CENOTE_STAGES", self.path("stages"));
        // Terminal signals are for the test.
        command.process_group(0).stdout(log.try_clone().unwrap()).stderr(log);
        *self.daemon.lock().unwrap() = Some(command.spawn().unwrap());
    }

    /// Returns the daemon's process number.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.lock().unwrap().as_ref().unwrap().id()
    }

    /// Returns the log of all daemons.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Starts a command.
    pub(crate) fn begin(&self, line: &str) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        self.environment(&mut command);
        command.args(line.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (sender, ended) = channel();
        // Ends with the command.
        std::thread::spawn(move || sender.send(child.wait_with_output()));
        Running { line: line.to_owned(), pid, ended }
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn run(&self, line: &str) -> String {
        let (status, said) = self.ends(line);
        assert!(status.success(), "{line}: {status}\n{said}\n{}", self.log());
        said
    }

    /// Runs a command that must end in time, and returns its status and output.
    pub(crate) fn ends(&self, line: &str) -> (ExitStatus, String) {
        self.begin(line).end(self)
    }

    /// Waits until the daemon answers, which it does once its pools are open and mounted.
    pub(crate) fn wait_until_ready(&self) {
        let begin = Instant::now();
        loop {
            let (status, _) = self.ends("daemon status");
            if status.success() {
                break;
            }
            assert!(begin.elapsed() < READY_MAX, "no daemon after {READY_MAX:?}\n{}", self.log());
            std::thread::sleep(PAUSE);
        }
        assert!(begin.elapsed() < READY_MAX, "ready after {:?}\n{}", begin.elapsed(), self.log());
    }

    /// Returns the current resources of the daemon without a request to it: it may be stopped.
    pub(crate) fn remains(&self) -> Remains {
        let helpers = proc::children(self.pid());
        let numbers: BTreeSet<String> =
            proc::mounts(self.folder()).into_iter().map(|line| line.number).collect();
        let all = proc::connections().unwrap_or_default();
        let connections = all.into_iter().filter(|(number, _)| numbers.contains(number)).collect();
        Remains { helpers, connections }
    }

    /// Sends the daemon a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        // The child was not waited for, so the process number is still its own.
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the daemon's end.
    pub(crate) fn wait_for_end(&self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            let ended = self.daemon.lock().unwrap().as_mut().unwrap().try_wait().unwrap();
            if let Some(status) = ended {
                *self.daemon.lock().unwrap() = None;
                return status;
            }
            let stacks = || proc::stacks(self.pid());
            assert!(begin.elapsed() < END_MAX, "lives on: {}\n{}", stacks(), self.log());
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts a daemon after the end of another one, which had `remains`, and checks that it is
    /// ready in time, that each mount exists once and answers, and that nothing of the other one
    /// remains.
    pub(crate) fn revive(&self, remains: &Remains) {
        self.start();
        self.wait_until_ready();
        self.check_mounts();
        let begin = Instant::now();
        loop {
            let helpers: Vec<_> =
                remains.helpers.iter().filter(|helper| helper.is_alive()).collect();
            let all = proc::connections().unwrap_or_default();
            let connections: Vec<_> = remains.connections.intersection(&all).collect();
            if helpers.is_empty() && connections.is_empty() {
                return;
            }
            let left = format!("processes {helpers:?}, connections {connections:?}");
            assert!(begin.elapsed() < REMAINS_MAX, "left of the dead daemon: {left}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the names of the open pools; remembered ones whose devices are missing are listed as
    /// UNAVAIL.
    pub(crate) fn open_pools(&self) -> Vec<String> {
        let listed = self.run("zpool list -H -o name,health");
        let pools = listed.lines().filter_map(|line| line.split_once('\t'));
        let open = pools.filter(|(_, health)| *health != "UNAVAIL");
        open.map(|(name, _)| name.to_owned()).collect()
    }

    /// Checks that each mount below the directory exists once, and that those of open pools answer.
    /// A pool that could not be imported again keeps a mount that fails with `ENOTCONN`, which is
    /// safer than showing programs the empty directory below it.
    pub(crate) fn check_mounts(&self) {
        let mounts = proc::mounts(self.folder());
        let places: BTreeSet<&Path> = mounts.iter().map(|line| line.at.as_path()).collect();
        assert_eq!(places.len(), mounts.len(), "stuck: {mounts:?}");
        let open = self.open_pools();
        let is_open = |line: &&proc::MountLine| {
            open.iter().any(|pool| line.source.split('/').next() == Some(pool))
        };
        let places: BTreeSet<&Path> =
            mounts.iter().filter(is_open).map(|line| line.at.as_path()).collect();
        let mut look = Command::new("timeout");
        look.args(["20", "stat", "-f", "-c", "%T"]).args(&places);
        if !places.is_empty() {
            let looked = look.output().unwrap();
            assert!(looked.status.success(), "{looked:?}\n{}", self.log());
        }
    }

    /// Returns the names of the mounted file systems, and of the others.
    pub(crate) fn mounted(&self) -> (Vec<String>, Vec<String>) {
        let said = self.run("zfs list -H -t filesystem -o mounted,name");
        let rows = said.lines().filter_map(|line| line.split_once('\t'));
        let (yes, no): (Vec<_>, Vec<_>) = rows.partition(|(mounted, _)| *mounted == "yes");
        let names = |rows: Vec<(&str, &str)>| rows.iter().map(|row| row.1.to_owned()).collect();
        (names(yes), names(no))
    }

    /// Stops the daemon, and checks the pools.
    pub(crate) fn judge(&self, pools: &[&str]) {
        for pool in pools {
            self.run(&format!("zpool export {pool}"));
        }
        self.run("daemon stop");
        self.wait_for_end();
        let left = proc::mounts(self.folder());
        assert!(left.is_empty(), "{left:?}");
        let folder = self.text("pool");
        for pool in pools {
            self.run(&format!("verify --leaks -d {folder} {pool}"));
            if let Some(zdb) = cenote_oracle::zdb() {
                let said = zdb.pool(pool, Path::new(&folder), &["-bcc", "-h"]);
                assert!(said.is_clean(), "{said}");
            }
        }
    }
}

impl Running {
    /// Whether it has not ended.
    pub(crate) fn is_running(&self) -> bool {
        // The waiting thread belongs to this process: a command that has ended is gone.
        Path::new(&format!("/proc/{}", self.pid.as_raw_nonzero())).exists()
    }

    /// Waits for its end, with a time limit. Returns its status and output.
    pub(crate) fn end(self, home: &Home) -> (ExitStatus, String) {
        let Ok(output) = self.ended.recv_timeout(COMMAND_MAX) else {
            // Not waited for: it may hang in the kernel.
            let _ = kill_process(self.pid, Signal::KILL);
            panic!("'{}' did not end within {COMMAND_MAX:?}\n{}", self.line, home.log());
        };
        let Output { status, stdout, stderr } = output.unwrap();
        (status, String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
    }
}

/// Writes a file and syncs it.
pub(crate) fn keep(path: &Path, contents: &[u8]) {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(contents).and_then(|()| file.sync_all()).unwrap();
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(mut child) = self.daemon.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = child.kill();
            let begin = Instant::now();
            while begin.elapsed() < END_MAX && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(PAUSE);
            }
        }
        let small = std::mem::take(&mut *self.small.lock().unwrap_or_else(PoisonError::into_inner));
        for at in small {
            let _ = rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH);
        }
        for line in proc::mounts(self.folder.path()).iter().rev() {
            let flags = rustix::mount::UnmountFlags::DETACH;
            if rustix::mount::unmount(&line.at, flags).is_err() {
                let mut command = Command::new("fusermount3");
                let _ = command.arg("-uzq").arg(&line.at).stderr(Stdio::null()).status();
            }
        }
    }
}
