//! The guard: aborts the FUSE connections of a server that died.
//!
//! A killed process has ended only when all of its threads have, and a thread that waits for a FUSE
//! request which its own process had read waits forever. The guard watches the server from outside:
//! once its first thread has ended, or it dumps core, no request will be answered any more, and the
//! guard aborts the connections through the kernel's control files. Each request then fails, the
//! threads end, and the mounts are dead mounts as after any other death of a server.
//!
//! The kernel reuses the number of an ended connection, perhaps for a mount of another program.
//! Therefore the server opens the control file of a connection while that is open, and hands it to
//! the guard. Both abort through that file only: once the connection has ended, writing to the file
//! has no effect.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{DEADLINE, GUARD, ignore_signals, receive, send, start};
use crate::fuse::connection;

/// Directory of the connections, one folder each.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Type of the file system there (`FUSE_CTL_SUPER_MAGIC`).
const FUSECTL: u64 = 0x6573_5543;
/// Interval of checks on the server.
const LOOK_SECONDS: i64 = 1;

/// State in the server.
struct State {
    /// The guard, and the socket to it.
    process: Option<(Child, OwnedFd)>,
    /// The control files of all connections by device number, each with the number of the call
    /// that told it.
    known: BTreeMap<Vec<u8>, (u64, Arc<OwnedFd>)>,
    /// Number of the last such call.
    watched: u64,
    /// Directory of the connections.
    folder: Option<OwnedFd>,
}

/// LOCK: held while a message is sent to the guard, which reads it promptly.
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
    /// Its control file; `None` if the control files are not accessible.
    file: Option<Arc<OwnedFd>>,
}

impl Watched {
    /// Aborts the connection: every user of it gets errors from now on. Does nothing if it has
    /// ended. Returns false if the control files are not accessible.
    pub(in crate::fuse) fn abort(&self) -> bool {
        self.file.as_deref().is_some_and(|file| rustix::io::write(file, b"1").is_ok())
    }
}

/// Makes the guard abort a connection, whose device has that number (`MAJOR:MINOR`), if this
/// process dies.
///
/// # Errors
/// Errors of starting a process; the system's error if descriptors run out.
pub(in crate::fuse) fn watch(channel: &OwnedFd, device: &[u8]) -> std::io::Result<Watched> {
    let mut state = state();
    let file = state.open(device)?;
    // If the connection is open now, the number was its own when the file was opened.
    let file = file.filter(|_| connection::is_open(channel)).map(Arc::new);
    let watched = state.add(device, file);
    state.tell(&watched).inspect_err(|_| {
        state.remove(&watched);
    })?;
    Ok(watched)
}

/// Removes an ended connection, unless another one has its number by now.
pub(in crate::fuse) fn forget(watched: &Watched) {
    let mut state = state();
    if state.remove(watched) {
        // A guard that is started later gets only the remaining connections.
        let _ = state.tell(&Watched { file: None, ..watched.clone() });
    }
}

impl State {
    const fn new() -> Self {
        Self { process: None, known: BTreeMap::new(), watched: 0, folder: None }
    }

    /// Opens the file that aborts a connection, in the folder whose name is the device number as
    /// one integer. Returns `None` if the control files are not accessible.
    ///
    /// # Errors
    /// The system's error if descriptors or memory run out.
    fn open(&mut self, device: &[u8]) -> std::io::Result<Option<OwnedFd>> {
        if self.folder.is_none() {
            self.folder = connections().ok();
        }
        let (Some(folder), Some(number)) = (&self.folder, connection_number(device)) else {
            return Ok(None);
        };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(folder, format!("{number}/abort"), flags, Mode::empty()) {
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(errno.into()),
            opened => Ok(opened.ok()),
        }
    }

    fn add(&mut self, device: &[u8], file: Option<Arc<OwnedFd>>) -> Watched {
        self.watched += 1;
        let (device, call) = (device.to_vec(), self.watched);
        match &file {
            Some(file) => self.known.insert(device.clone(), (call, Arc::clone(file))),
            None => self.known.remove(&device),
        };
        Watched { device, call, file }
    }

    /// Returns false if another connection has the number.
    fn remove(&mut self, watched: &Watched) -> bool {
        let is_known =
            self.known.get(&watched.device).is_some_and(|(call, _)| *call == watched.call);
        is_known && self.known.remove(&watched.device).is_some()
    }

    /// Starts the guard if none runs, and sends it all connections.
    fn ensure(&mut self) -> std::io::Result<()> {
        if let Some((child, _)) = &mut self.process
            && matches!(child.try_wait(), Ok(None))
        {
            return Ok(());
        }
        let (socket, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(DEADLINE))?;
        let pid = std::process::id().to_string();
        let child = start(&[GUARD, &pid], other)?;
        self.process = Some((child, socket));
        for (device, (_, file)) in &self.known {
            self.send(device, Some(file))?;
        }
        Ok(())
    }

    /// Tells the guard about a connection, or with no file that the one with that number has ended.
    fn tell(&mut self, watched: &Watched) -> std::io::Result<()> {
        self.ensure()?;
        match self.send(&watched.device, watched.file.as_deref()) {
            // The guard was killed just now.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                self.process = None;
                self.ensure()
            }
            told => told,
        }
    }

    fn send(&self, device: &[u8], file: Option<&OwnedFd>) -> std::io::Result<()> {
        let Some((_, socket)) = &self.process else { return Ok(()) };
        send(socket.as_fd(), device, file.map(AsFd::as_fd))
    }
}

/// Watches the server until it ends; the main function of the guard.
pub(super) fn run(server: &OsStr) {
    ignore_signals();
    let status = Path::new("/proc").join(server).join("status");
    let mut known = BTreeMap::new();
    let stdin = std::io::stdin();
    loop {
        let mut watched = [PollFd::new(&stdin, PollFlags::IN)];
        let look = Timespec { tv_sec: LOOK_SECONDS, tv_nsec: 0 };
        let is_told = !matches!(poll(&mut watched, Some(&look)), Ok(0) | Err(Errno::INTR));
        if is_told {
            match receive(stdin.as_fd()) {
                Ok(Some((device, file))) => note(&mut known, device, file),
                Ok(None) => break,
                Err(_) if is_dead(&status) => break,
                // Memory is short, say: the server lives, and so do its mounts.
                Err(_) => drop(poll(&mut [], Some(&look))),
            }
        } else if is_dead(&status) {
            break;
        }
    }
    for file in known.values() {
        let _ = rustix::io::write(file, b"1");
    }
}

/// Keeps the control file of a connection until a message without one tells its end.
fn note<T>(known: &mut BTreeMap<Vec<u8>, T>, device: Vec<u8>, file: Option<T>) {
    match file {
        Some(file) => known.insert(device, file),
        None => known.remove(&device),
    };
}

/// Whether the process will not answer any more: its first thread has ended, or it dumps core.
fn is_dead(status: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(status) else { return true };
    text.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        matches!(words[..], ["State:", "Z" | "X"] | ["CoreDumping:", "1"])
    })
}

fn connection_number(device: &[u8]) -> Option<u64> {
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?)
}

/// Opens the directory of the connections: where it is mounted, or, for root, by mounting it.
fn connections() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let mounted = openat(CWD, CONNECTIONS, flags, Mode::empty()).ok().filter(|folder| {
        rustix::fs::fstatfs(folder).is_ok_and(|found| found.f_type as u64 == FUSECTL)
    });
    let detached = || {
        let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    mounted.map_or_else(detached, Ok)
}

/// Whether connections can be aborted from outside: the control files are accessible.
///
/// # Errors
/// Why they are not.
pub(in crate::fuse) fn can_abort() -> std::io::Result<()> {
    connections().map(drop).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_keeps_the_files_of_connections() {
        let mut known = BTreeMap::new();
        for (device, file) in [("0:45", Some(1)), ("0:46", Some(2)), ("0:45", None), ("0:9", None)]
        {
            note(&mut known, device.as_bytes().to_vec(), file);
        }
        assert_eq!(known, [(b"0:46".to_vec(), 2)].into());
        note(&mut known, b"0:46".to_vec(), Some(3));
        assert_eq!(known, [(b"0:46".to_vec(), 3)].into());
        assert_eq!(connection_number(b"0:45"), Some(45));
        assert_eq!(connection_number(b"1:2"), Some(1 << 20 | 2));
        assert_eq!(connection_number(b"x"), None);
    }

    /// The end of a connection may be noticed after another one got its number.
    #[test]
    fn a_late_end_does_not_forget_the_next_connection() {
        let mut state = State::new();
        let file = || Some(Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap())));
        let [first, second] = [state.add(b"0:45", file()), state.add(b"0:45", file())];
        assert!(!state.remove(&first) && state.known.contains_key(&b"0:45"[..]));
        assert!(state.remove(&second) && state.known.is_empty());
        let [first, second] = [state.add(b"0:45", file()), state.add(b"0:45", None)];
        assert!(!state.remove(&first) && !state.remove(&second) && state.known.is_empty());
    }

    #[test]
    fn a_living_process_is_not_dead() {
        assert!(!is_dead(Path::new("/proc/self/status")));
        assert!(is_dead(Path::new("/proc/self/no-such-status")));
    }
}
