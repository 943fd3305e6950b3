//! What a pool holds, shown to the kernel and to real clients: `cenote mount` and `cenote nbd` as
//! processes of their own, ended in order, by others, and by SIGKILL; the pools judged afterwards.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allow;
mod closing;
mod created;
mod daemon;
mod deaths;
mod exports;
mod follow;
mod fuse;
mod mounts;
mod nbd;
mod places;
mod posix;
mod rollback;
mod second;
mod snapshots;
mod tls;
mod unkind;
mod watch;
mod wordings;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use cenote_testkit::golden::PrivateFolder;
use cenote_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};

/// The process of devices that fail on command; as a test it does nothing.
#[test]
fn fault_layer() {
    cenote_testkit::faultfs::serve_if_started();
}

/// Bytes of the pool's device.
const SIZE: u64 = 512 << 20;

/// A folder with one device, and the commands on it.
struct Shed {
    folder: PrivateFolder,
    /// The user whose commands they are.
    uid: Option<u32>,
}

impl Shed {
    /// With a pool `t` on it.
    fn new(stem: &str) -> Self {
        let shed = Self { folder: PrivateFolder::create(stem), uid: None };
        shed.fill();
        shed
    }

    fn fill(&self) {
        // By itself: nothing else is looked at when the pool is looked for.
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

    /// Where the pool is.
    fn pool(&self) -> String {
        self.text("pool")
    }

    /// `cenote`, as the user.
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

    /// Starts a verb that stays, and waits until it says that it is ready.
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

    /// Nothing is wrong with the pool, and nothing leaks.
    fn judge(&self) {
        let folder = self.pool();
        succeeds(&mut self.cenote(&["verify", "--leaks", "-d", &folder, "t"]));
        if let Some(zdb) = cenote_oracle::zdb() {
            let said = zdb.pool("t", Path::new(&folder), &["-bcc", "-h"]);
            assert!(said.is_clean(), "{said}");
        }
    }
}

/// Runs a command that must succeed, and gives what it says.
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let out = String::from_utf8_lossy(&stdout).into_owned();
    let err = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?} ended with {status}\n{out}{err}");
    out
}

/// Whether a program is installed; else says that a part of the test is skipped.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !is_there {
        skip::skip(&skip::current_test(), &format!("no {program} here"));
    }
    is_there
}

/// A verb that stays.
struct Serving {
    child: Child,
    /// What it said before it was ready.
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

    /// Ends it in order.
    fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}, after {}", self.rest());
    }

    /// What else it said.
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

    /// Ends it at once.
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
        // A test has failed: nothing is left behind.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
    }
}
