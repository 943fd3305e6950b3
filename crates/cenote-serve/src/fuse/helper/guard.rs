//! The guard: aborts the FUSE connections of a server that died.
//!
//! A killed process has ended only when all of its threads have, and a thread that waits for a FUSE
//! request which its own process had read waits forever. The guard watches the server from outside:
//! once its first thread has ended, or it dumps core, no request will be answered any more, and the
//! guard aborts the connections through the kernel's control files. Each request then fails, the
//! threads end, and the mounts are dead mounts as after any other death of a server.
//!
//! The kernel reuses the number of an ended connection, perhaps for a connection of the next
//! server. Therefore the guard opens the control file of a connection when it is told about it,
//! while the server lives, and aborts through that file: once the connection has ended, writing to
//! the file has no effect.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Child;

use cenote_rt::lock::{Mutex, MutexGuard, Rank};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::{GUARD, ignore_signals, start};

/// Directory of the connections, one folder each.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Type of the file system there (`FUSE_CTL_SUPER_MAGIC`).
const FUSECTL: u64 = 0x6573_5543;
/// Interval of checks on the server.
const LOOK_SECONDS: i64 = 1;

/// State in the server.
struct State {
    /// The guard, and the pipe to it.
    process: Option<(Child, OwnedFd)>,
    /// Numbers of the devices of all connections, each with the number of the call that told it.
    known: BTreeMap<Vec<u8>, u64>,
    /// Number of the last such call.
    watched: u64,
}

/// LOCK: held while a line is written to the pipe, which the guard reads promptly.
static STATE: Mutex<State> = Mutex::new(Rank::MountGuard, State::new());

fn state() -> MutexGuard<'static, State> {
    STATE.lock()
}

/// Starts the guard before it is needed.
///
/// # Errors
/// Errors of starting a process.
pub(in crate::fuse) fn prepare() -> std::io::Result<()> {
    state().ensure()
}

/// A connection that the guard watches.
#[derive(Debug, Clone)]
pub(in crate::fuse) struct Watched {
    device: Vec<u8>,
    call: u64,
}

/// Makes the guard abort the connection with that number (`MAJOR:MINOR`) if this process dies.
///
/// # Errors
/// Errors of starting a process.
pub(in crate::fuse) fn watch(device: &[u8]) -> std::io::Result<Watched> {
    let mut state = state();
    let watched = state.add(device);
    state.tell(b'+', device).inspect_err(|_| {
        state.remove(&watched);
    })?;
    Ok(watched)
}

/// Removes an ended connection, unless another one has its number by now.
pub(in crate::fuse) fn forget(watched: &Watched) {
    let mut state = state();
    if state.remove(watched) {
        // A guard that is started later gets only the remaining connections.
        let _ = state.tell(b'-', &watched.device);
    }
}

impl State {
    const fn new() -> Self {
        Self { process: None, known: BTreeMap::new(), watched: 0 }
    }

    fn add(&mut self, device: &[u8]) -> Watched {
        self.watched += 1;
        self.known.insert(device.to_vec(), self.watched);
        Watched { device: device.to_vec(), call: self.watched }
    }

    /// Returns false if another connection has the number.
    fn remove(&mut self, watched: &Watched) -> bool {
        let is_known = self.known.get(&watched.device) == Some(&watched.call);
        is_known && self.known.remove(&watched.device).is_some()
    }

    /// Starts the guard if none runs, and sends it all connections.
    fn ensure(&mut self) -> std::io::Result<()> {
        if let Some((child, _)) = &mut self.process
            && matches!(child.try_wait(), Ok(None))
        {
            return Ok(());
        }
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let pid = std::process::id().to_string();
        let child = start(&[GUARD, &pid], reader)?;
        self.process = Some((child, writer));
        for device in self.known.keys() {
            self.write(b'+', device)?;
        }
        Ok(())
    }

    fn tell(&mut self, sign: u8, device: &[u8]) -> std::io::Result<()> {
        self.ensure()?;
        match self.write(sign, device) {
            // The guard was killed just now.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                self.process = None;
                self.ensure()
            }
            told => told,
        }
    }

    /// Writes one line, which is short enough for an atomic write to a pipe.
    fn write(&self, sign: u8, device: &[u8]) -> std::io::Result<()> {
        let Some((_, pipe)) = &self.process else { return Ok(()) };
        let line = [&[sign], device, b"\n"].concat();
        rustix::io::write(pipe, &line).map(drop).map_err(Into::into)
    }
}

/// Watches the server until it ends; the main function of the guard.
pub(super) fn run(server: &OsStr) {
    ignore_signals();
    let Some(connections) = connections() else { return drain() };
    let status = Path::new("/proc").join(server).join("status");
    let (mut known, mut text) = (BTreeMap::new(), Vec::new());
    let open = |device: &[u8]| {
        let file = abort_file(&connections, device).ok()?;
        // Checked after the file was opened: so the number belonged to the server when the file was
        // opened. A killed server keeps its connections while any of its threads exists, and a
        // thread may wait for one.
        (!is_gone(&status)).then_some(file)
    };
    let stdin = std::io::stdin();
    loop {
        let mut watched = [PollFd::new(&stdin, PollFlags::IN)];
        let look = Timespec { tv_sec: LOOK_SECONDS, tv_nsec: 0 };
        let is_told = !matches!(poll(&mut watched, Some(&look)), Ok(0));
        if is_told {
            let mut piece = [0; 4096];
            match rustix::io::read(stdin.as_fd(), &mut piece) {
                Ok(0) => break,
                Ok(len) => {
                    text.extend_from_slice(piece.get(..len).unwrap_or_default());
                    take_lines(&mut text, &mut known, open);
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => break,
            }
        } else if is_dead(&status) {
            break;
        }
    }
    for file in known.values() {
        let _ = rustix::io::write(file, b"1");
    }
}

/// Without access to the control files the guard can do nothing.
fn drain() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// Consumes complete lines. The result of `open` for a connection is kept until the connection
/// ends.
fn take_lines<T>(
    text: &mut Vec<u8>,
    known: &mut BTreeMap<Vec<u8>, T>,
    open: impl Fn(&[u8]) -> Option<T>,
) {
    while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = text.drain(..=end).collect();
        match line.split_first() {
            Some((b'+', device)) => {
                let device = device.trim_ascii_end();
                known.extend(open(device).map(|file| (device.to_vec(), file)));
            }
            Some((b'-', device)) => {
                known.remove(device.trim_ascii_end());
            }
            _ => {}
        }
    }
}

/// Whether the process will not answer any more: its first thread has ended, or it dumps core.
fn is_dead(status: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(status) else { return true };
    text.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        matches!(words[..], ["State:", "Z" | "X"] | ["CoreDumping:", "1"])
    })
}

/// Whether no thread of the process is left: all its files are closed.
fn is_gone(status: &Path) -> bool {
    std::fs::read_to_string(status).map_or(true, |text| has_no_thread(&text))
}

/// Whether the first thread, which has ended, was the last one: it is counted until the process is
/// waited for.
fn has_no_thread(status: &str) -> bool {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()
    };
    matches!(field("State:"), Some("Z" | "X")) && matches!(field("Threads:"), Some("0" | "1"))
}

/// Opens the file that aborts a connection, in the folder whose name is the device number as one
/// integer.
fn abort_file(connections: &OwnedFd, device: &[u8]) -> std::io::Result<OwnedFd> {
    let number = connection_number(device)
        .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
    let path = format!("{number}/abort");
    Ok(openat(connections, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn abort_one(connections: &OwnedFd, device: &[u8]) -> std::io::Result<()> {
    rustix::io::write(abort_file(connections, device)?, b"1")?;
    Ok(())
}

fn connection_number(device: &[u8]) -> Option<u64> {
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?)
}

/// Opens the directory of the connections: where it is mounted, or, for root, by mounting it.
fn connections() -> Option<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let mounted = openat(CWD, CONNECTIONS, flags, Mode::empty()).ok().filter(|folder| {
        rustix::fs::fstatfs(folder).is_ok_and(|found| found.f_type as u64 == FUSECTL)
    });
    let detached = || {
        let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
        fsconfig_create(&context).ok()?;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()
    };
    mounted.or_else(detached)
}

/// Whether connections can be aborted from outside: the control files are accessible.
pub(in crate::fuse) fn can_abort() -> bool {
    connections().is_some()
}

/// Aborts a connection of this process: every user of it gets errors from now on. Returns false if
/// the control files are not accessible.
pub(in crate::fuse) fn abort_now(device: &[u8]) -> bool {
    connections().is_some_and(|connections| abort_one(&connections, device).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_ended_with_its_last_thread() {
        let status = |state: &str, threads: u32| format!("State:\t{state}\nThreads:\t{threads}\n");
        assert!(has_no_thread(&status("Z (zombie)", 1)));
        assert!(!has_no_thread(&status("Z (zombie)", 2)), "one waits for its own mount");
        assert!(!has_no_thread(&status("S (sleeping)", 1)));
        assert!(is_gone(Path::new("/proc/0/status")));
        assert!(!is_gone(Path::new("/proc/self/status")));
    }

    #[test]
    fn guard_reads_only_complete_lines() {
        let text = b"+0:45\n+0:46\n-0:45\n+0:99\n+0:4".to_vec();
        let (mut text, mut known) = (text, BTreeMap::new());
        let open = |device: &[u8]| (device != b"0:99").then_some(device.len());
        take_lines(&mut text, &mut known, open);
        assert_eq!(known, [(b"0:46".to_vec(), 4)].into());
        text.extend_from_slice(b"7\n");
        take_lines(&mut text, &mut known, open);
        assert_eq!(known.len(), 2);
        assert_eq!(connection_number(b"0:45"), Some(45));
        assert_eq!(connection_number(b"1:2"), Some(1 << 20 | 2));
        assert_eq!(connection_number(b"x"), None);
    }

    /// The end of a connection may be noticed after another one got its number.
    #[test]
    fn a_late_end_does_not_forget_the_next_connection() {
        let mut state = State::new();
        let [first, second] = [state.add(b"0:45"), state.add(b"0:45")];
        assert!(!state.remove(&first) && state.known.contains_key(&b"0:45"[..]));
        assert!(state.remove(&second) && state.known.is_empty());
    }

    #[test]
    fn a_living_process_is_not_dead() {
        assert!(!is_dead(Path::new("/proc/self/status")));
        assert!(is_dead(Path::new("/proc/self/no-such-status")));
    }
}
