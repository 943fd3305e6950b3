//! A fault layer, a pool on its leaves, and a daemon with this pool: all of it is removed when the
//! test ends, even if it fails.
//!
//! The daemon is a child of the test, so that the test can wait for its end. Every command has a
//! time limit; a hanging command fails the test.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cenote_testkit::faultfs::FaultLayer;
use cenote_testkit::golden::PrivateFolder;
use rustix::process::{Pid, Signal, kill_process};

use crate::layout::Layout;

/// Size of the volume.
pub(crate) const VOLUME: u64 = 8 << 20;
/// Limit for every command: the machine may be busy with other tests.
const COMMAND_MAX: Duration = Duration::from_secs(45);
/// Limit for the end of a killed daemon, and for the first answer of a new one.
const DAEMON_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// Variable that puts a bug into the daemon.
const BUG: &str = "CENOTE_SEEDED_BUG";

/// A pool `t` on failing leaves, and its daemon.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) layout: Layout,
    daemon: Mutex<Option<Child>>,
    bug: Option<String>,
    pub(crate) layer: FaultLayer,
    folder: PrivateFolder,
}

impl Site {
    /// Creates the leaves and the pool. Returns `None`, with a message, without FUSE.
    pub(crate) fn new(stem: &str, layout: Layout) -> Option<Self> {
        Self::with_bug(stem, layout, None)
    }

    /// Like [`Self::new`], with a seeded bug in the daemon.
    pub(crate) fn with_bug(stem: &str, layout: Layout, bug: Option<&str>) -> Option<Self> {
        let folder = PrivateFolder::create(&format!("faults-{stem}"));
        let layer = FaultLayer::start("fault_layer", folder.path(), &layout.sizes())?;
        let (daemon, bug) = (Mutex::new(None), bug.map(str::to_owned));
        let site = Self { layout, daemon, bug, layer, folder };
        site.start();
        let (at, words) = (site.text("at"), layout.words(&site.layer));
        site.run("tunable set zfs_txg_timeout=1");
        site.run(&format!("zpool create -m {at} t {words}"));
        if layout == Layout::Single {
            site.run("zfs set copies=2 t");
        }
        if layout == Layout::Special {
            site.run("zfs set special_small_blocks=16K t");
        }
        site.run("zfs create -o compression=lz4 t/a");
        site.run("zfs create -o recordsize=16K t/b");
        site.run(&format!("zfs create -V {VOLUME} -o cenote:nbd=on t/v"));
        Some(site)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("CENOTE_STATE_DIR", self.path("state")).env_remove("CENOTE_SOCKET");
        command.env_remove(BUG);
        command
    }

    /// Starts a daemon, and waits until it answers.
    pub(crate) fn start(&self) {
        std::fs::create_dir_all(self.path("state")).unwrap();
        let log = self.path("state/daemon.log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = self.command(&["daemon", "run"]);
        if let Some(bug) = &self.bug {
            command.env(BUG, bug);
        }
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        *self.daemon.lock().unwrap() = Some(child);
        let started = Instant::now();
        while !self.attempt("daemon status").is_some_and(|output| output.status.success()) {
            assert!(started.elapsed() < DAEMON_MAX, "no daemon:\n{}", self.log());
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the daemon's log since the test began.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("state/daemon.log")).unwrap_or_default()
    }

    /// Runs a command. Returns `None` if it did not end in time and was killed.
    pub(crate) fn attempt(&self, line: &str) -> Option<Output> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = self.command(&words);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (sender, receiver) = channel();
        let waiting = std::thread::spawn(move || sender.send(child.wait_with_output()));
        let Ok(output) = receiver.recv_timeout(COMMAND_MAX) else {
            // Not waited for: it may hang in the kernel.
            let _ = kill_process(pid, Signal::KILL);
            return None;
        };
        waiting.join().unwrap().unwrap();
        Some(output.unwrap())
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn run(&self, line: &str) -> String {
        let (status, said) = self.ends(line);
        assert!(status.success(), "{line}: {status}\n{said}\n{}", self.log());
        said
    }

    /// Runs a command that must end in time, and returns its status and output.
    pub(crate) fn ends(&self, line: &str) -> (ExitStatus, String) {
        let Some(Output { status, stdout, stderr }) = self.attempt(line) else {
            panic!("'{line}' did not end within {COMMAND_MAX:?}\n{}", self.log());
        };
        let text = [stdout, stderr].concat();
        (status, String::from_utf8_lossy(&text).into_owned())
    }

    /// Sends the daemon a signal, and waits for its end.
    pub(crate) fn signal(&self, signal: Signal) -> ExitStatus {
        let mut child = self.daemon.lock().unwrap().take().unwrap();
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&child), signal);
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if started.elapsed() > DAEMON_MAX {
                let _ = kill_process(Pid::from_child(&child), Signal::KILL);
                panic!("the daemon lives {DAEMON_MAX:?} after {signal:?}\n{}", self.log());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for the end of a daemon that was told to stop.
    pub(crate) fn await_end(&self) {
        if self.daemon.lock().unwrap().is_some() {
            self.signal(Signal::CONT);
        }
    }

    /// Kills the daemon, as a crash does.
    pub(crate) fn kill(&self) {
        let status = self.signal(Signal::KILL);
        assert_eq!(status.signal(), Some(9), "it ended by itself\n{}", self.log());
    }

    /// Ends the daemon by `daemon stop`.
    pub(crate) fn stop(&self) {
        self.run("daemon stop");
        let mut child = self.daemon.lock().unwrap().take().unwrap();
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Before the layer: requests in flight then fail, and the daemon can end.
        if let Some(mut child) = self.daemon.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = child.kill();
            // A daemon that hangs in the kernel until the layer is gone must not block the test.
            for _ in 0..200 {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = self.text("at");
        let places = table.lines().filter_map(|line| line.split(' ').nth(1));
        let mut places: Vec<_> = places.filter(|at| at.starts_with(&below)).collect();
        places.reverse();
        for at in places {
            let flags = rustix::mount::UnmountFlags::DETACH;
            if rustix::mount::unmount(at, flags).is_err() {
                let _ =
                    Command::new("fusermount3").args(["-uzq", at]).stderr(Stdio::null()).status();
            }
        }
    }
}

/// Waits while load and faults continue.
pub(crate) fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
