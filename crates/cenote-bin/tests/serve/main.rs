//! File systems and volumes of a pool, served to the kernel and to real clients: `cenote mount` and
//! `cenote nbd` as separate processes, ended regularly, by others, and by SIGKILL; the pools are
//! checked afterwards.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod absent;
mod allow;
mod closing;
mod copies;
mod created;
mod daemon;
mod deaths;
mod devices;
mod encrypting;
mod exports;
mod follow;
mod fuse;
mod growth;
mod loans;
mod mounts;
mod nbd;
mod packages;
mod person;
mod pipe;
mod places;
mod posix;
mod receiving;
mod redacting;
mod rings;
mod rollback;
mod scripts;
mod scrub;
mod second;
mod sending;
mod sessions;
mod snapshots;
mod tls;
mod top;
mod unkind;
mod watch;
mod wordings;
mod zedlets;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cenote_testkit::golden::PrivateFolder;
use cenote_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};

/// The process of devices that fail on command; tests nothing itself.
#[test]
fn fault_layer() {
    cenote_testkit::faultfs::serve_if_started();
}

/// Size of the pool's device.
const SIZE: u64 = 512 << 20;

/// `fusermount3` has a limit for the mounts of all users: tests that use it do not run beside those
/// that mount thousands.
static MOUNTS: RwLock<()> = RwLock::new(());

/// Keeps tests with thousands of mounts waiting.
fn with_few_mounts() -> RwLockReadGuard<'static, ()> {
    MOUNTS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps tests with `fusermount3` waiting.
fn with_many_mounts() -> RwLockWriteGuard<'static, ()> {
    MOUNTS.write().unwrap_or_else(PoisonError::into_inner)
}

/// A directory with one device, and commands on it.
struct Shed {
    folder: PrivateFolder,
    /// The user who runs the commands.
    uid: Option<u32>,
}

impl Shed {
    /// Creates a shed with a pool `t`.
    fn new(stem: &str) -> Self {
        let shed = Self { folder: PrivateFolder::create(stem), uid: None };
        shed.fill();
        shed
    }

    fn fill(&self) {
        // In its own directory: the search for the pool finds nothing else.
        std::fs::create_dir(self.path("pool")).unwrap();
        let device = std::fs::File::create(self.path("pool/d0")).unwrap();
        device.set_len(SIZE).unwrap();
        std::fs::create_dir(self.path("at")).unwrap();
        if let Some(uid) = self.uid {
            for path in [".", "pool", "pool/d0", "at"] {
                std::os::unix::fs::chown(self.path(path), Some(uid), Some(uid)).unwrap();
            }
        }
        let device = self.text("pool/d0");
        self.zpool(&["create", "-O", "compression=lz4", "t", &device]);
        self.zpool(&["export", "t"]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Returns the directory of the pool's device.
    fn pool(&self) -> String {
        self.text("pool")
    }

    /// Returns a `cenote` command of the user.
    fn cenote(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        command.args(words);
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    fn zpool(&self, words: &[&str]) -> String {
        let folder = self.pool();
        let head = ["zpool", "--embedded", "-d", &folder];
        succeeds(&mut self.cenote(&[&head, words].concat()))
    }

    fn zfs(&self, words: &[&str]) -> String {
        let folder = self.pool();
        let head = ["zfs", "--embedded", "-d", &folder];
        succeeds(&mut self.cenote(&[&head, words].concat()))
    }

    /// Starts a server, and waits until it reports that it is ready.
    fn serve(&self, words: &[&str]) -> Serving {
        let mut command = self.cenote(words);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut serving = Serving { child, text: String::new(), said: None, at: self.path("at") };
        let mut said = BufReader::new(serving.child.stdout.take().unwrap());
        loop {
            let mut line = String::new();
            if said.read_line(&mut line).unwrap() == 0 {
                let status = serving.child.wait().unwrap();
                panic!("{command:?} ended with {status} after\n{}", serving.text);
            }
            serving.text.push_str(&line);
            if line.contains("is mounted at") || line.starts_with("listening at") {
                serving.said = Some(said);
                return serving;
            }
        }
    }

    /// Mounts a dataset at `at`.
    fn mount(&self, dataset: &str, options: &[&str]) -> Serving {
        let (folder, at) = (self.pool(), self.text("at"));
        self.serve(&[&["mount", "-d", &folder], options, &[dataset, &at]].concat())
    }

    /// Checks that the pool has no errors and no leaks.
    fn judge(&self) {
        let folder = self.pool();
        succeeds(&mut self.cenote(&["verify", "--leaks", "-d", &folder, "t"]));
        if let Some(zdb) = cenote_oracle::zdb() {
            let said = zdb.pool("t", Path::new(&folder), &["-bcc", "-h"]);
            assert!(said.is_clean(), "{said}");
        }
    }
}

/// Runs a command that must succeed, and returns its output.
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let out = String::from_utf8_lossy(&stdout).into_owned();
    let err = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?} ended with {status}\n{out}{err}");
    out
}

/// Whether a program is installed; else reports that a part of the test is skipped.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !is_there {
        skip::skip(&skip::current_test(), &format!("no {program} here"));
    }
    is_there
}

/// A running server.
struct Serving {
    child: Child,
    /// Its output before it was ready.
    text: String,
    said: Option<BufReader<ChildStdout>>,
    at: PathBuf,
}

impl Serving {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }

    /// Stops it regularly.
    fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}, after {}", self.rest());
    }

    /// Returns its other output.
    fn rest(&mut self) -> String {
        let mut rest = String::new();
        if let Some(said) = &mut self.said {
            let _ = said.read_to_string(&mut rest);
        }
        rest
    }

    /// Waits until it has ended by itself.
    fn wait(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // After a failed test no process remains.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
    }
}
