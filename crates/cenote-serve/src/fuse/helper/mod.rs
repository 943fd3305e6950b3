//! Processes besides the server of mounts: path workers and the guard.
//!
//! ```text
//!   server ── socket: operation, paths, descriptor ──> path worker   makes and resolves mount
//!          <───────────── result ────────────────────                points, attaches, unmounts
//!          ── socket: connections ───────────────────> guard         aborts them after a death
//! ```
//!
//! **Why.** A thread that accesses a file system served by its own process sends a request to
//! itself. If the process is killed then, that thread cannot end: the kernel waits for the answer
//! to a request that was read. The descriptors of the process stay open with it, so the kernel does
//! not end the connection, and the process, its mounts and all of their users hang forever. Mount
//! points are nested, so even the path of a mount point may lead through mounts of the same
//! process.
//!
//! A path worker serves nothing. It may wait for the server like any other program: when the server
//! has ended, so have its connections, and the worker's requests fail. A worker that does not
//! answer in time is killed and ends when it can.
//!
//! The guard covers the rest: threads of the server also write to descriptors of commands and read
//! devices of pools, which may be files in mounts of the server. It notices the death of the server
//! from outside, and aborts its connections through the kernel's control files (`fusectl`), which
//! ends all requests.
//!
//! Guarantees
//! * F1  No thread of a serving process resolves a path that may be in a mount of its own. A path
//!   worker does all work on paths; numbers of devices come from descriptors and `/proc`.
//! * F2  The guard knows a connection before it is attached anywhere.
//!
//! Both run this program with other arguments: `main` calls [`run`] before anything else.

pub(super) mod guard;
mod worker;

use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Error, Kind, Result};
use nix::sys::signal::{SigSet, Signal};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::FuseError;

/// Arguments that make this program a path worker, and a guard.
const WORKER: &str = "fuse-path-worker";
const GUARD: &str = "fuse-guard";
/// Time limit of work on paths. Unmounting waits until the kernel has written its pages back.
const DEADLINE: Duration = Duration::from_mins(1);
/// Longest message: two paths and a few words.
const MESSAGE_MAX: usize = 64 << 10;
/// Idle workers that are kept for the next operation.
const IDLE_MAX: usize = 1;

/// Operations of a path worker, the first byte of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    /// Path: resolves it, and detaches a dead mount there. Answer: the path, and whether a live
    /// cenote mount is there.
    Clear = 1,
    /// Path, `1` if it must be empty: creates the folder. Answer: the path without links.
    MakeRoom,
    /// Path, and a descriptor of a mount: attaches it.
    Attach,
    /// Path and options: mounts with `fusermount3`. Answer: a descriptor of the connection.
    MountUnprivileged,
    /// Path, device number, and variant: unmounts.
    Unmount,
    /// Path, device number, flags, and the places to bind from. Answer: the path.
    Bind,
    /// Path, device number, and flags: remounts.
    Remount,
    /// Path: writes dirty pages back.
    Flush,
    /// Path of a folder: removes it if it is empty.
    RemoveFolder,
}

impl Operation {
    fn of(byte: u8) -> Option<Self> {
        const ALL: [Operation; 9] = [
            Operation::Clear,
            Operation::MakeRoom,
            Operation::Attach,
            Operation::MountUnprivileged,
            Operation::Unmount,
            Operation::Bind,
            Operation::Remount,
            Operation::Flush,
            Operation::RemoveFolder,
        ];
        ALL.into_iter().find(|operation| *operation as u8 == byte)
    }
}

/// The failed step of work on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Resolve = 1,
    Create,
    NotEmpty,
    Attach,
    Unmount,
    Hidden,
    Worker,
    Link,
    Helper,
    TooMany,
}

/// A failure of work on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathError {
    pub(super) step: Step,
    pub(super) errno: Errno,
}

impl PathError {
    pub(super) fn of(step: Step, errno: Errno) -> Self {
        Self { step, errno }
    }

    pub(super) fn new(step: Step, error: &std::io::Error) -> Self {
        Self::of(step, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    /// Converts it to an error about a mount point.
    fn told(self, at: &Path) -> Error {
        let (at, error) = (at.to_owned(), std::io::Error::from(self.errno));
        let kind = match (self.step, self.errno) {
            (Step::Resolve, Errno::NOTCONN) | (Step::Worker, _) => Kind::Io,
            (Step::Resolve, _) | (Step::Attach, Errno::NOENT) => Kind::NotFound,
            (_, Errno::PERM | Errno::ACCESS) => Kind::Permission,
            (_, Errno::BUSY) => Kind::Busy,
            (Step::NotEmpty | Step::Link, _) => Kind::Invalid,
            _ => Kind::Io,
        };
        let cause = match self.step {
            Step::Resolve => FuseError::Place { at, error },
            Step::Create => FuseError::Create { at, error },
            Step::NotEmpty => FuseError::NotEmpty { at },
            Step::Attach => FuseError::Refused { at, error },
            Step::Unmount => FuseError::Unmount { at, error },
            Step::Hidden => FuseError::Hidden { at },
            Step::Link => FuseError::Link { at },
            Step::Worker => FuseError::Worker { at, error },
            Step::Helper => FuseError::NoHelper,
            Step::TooMany => FuseError::TooMany { at },
        };
        Error::new(kind, cause)
    }
}

/// Result of work on a path: fields of the answer, and an optional descriptor.
type Answer = (Vec<Vec<u8>>, Option<OwnedFd>);

/// Runs this program as a path worker or guard if its arguments say so. Must be called first in
/// `main` of a program that mounts file systems; from then on mounting is possible.
pub fn run(args: &[std::ffi::OsString]) -> Option<ExitCode> {
    CAN_START.store(true, Ordering::Relaxed);
    match args.get(1).map(|word| word.as_bytes()) {
        Some(word) if word == WORKER.as_bytes() => worker::run(),
        Some(word) if word == GUARD.as_bytes() => guard::run(args.get(2)?),
        _ => return None,
    }
    Some(ExitCode::SUCCESS)
}

/// Set by [`run`]: this program can be started as a helper.
static CAN_START: AtomicBool = AtomicBool::new(false);

/// Ignores signals to the process group or control group of the server: helpers end when their
/// socket is closed.
fn ignore_signals() {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    let _ = signals.thread_block();
    let _ = rustix::process::chdir("/");
}

/// Starts this program as a helper, with its end of a socket as standard input.
fn start(words: &[&str], input: OwnedFd) -> std::io::Result<Child> {
    if !CAN_START.load(Ordering::Relaxed) {
        return Err(std::io::Error::other("this program does not run path workers"));
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("cenote").args(words).current_dir("/").env_clear();
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn()
}

/// A running path worker.
struct Worker {
    socket: OwnedFd,
    child: Child,
}

#[derive(Default)]
struct Workers {
    idle: Vec<Worker>,
    /// Abandoned workers, until they have ended.
    leaving: Vec<Child>,
}

/// Workers of this process. LOCK: held for a lookup, never while a worker works.
static WORKERS: Mutex<Workers> =
    Mutex::new(Rank::MountWorkers, Workers { idle: Vec::new(), leaving: Vec::new() });

fn workers() -> MutexGuard<'static, Workers> {
    WORKERS.lock()
}

impl Worker {
    fn start() -> std::io::Result<Self> {
        let (socket, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(DEADLINE))?;
        set_socket_timeout(&socket, Timeout::Send, Some(DEADLINE))?;
        Ok(Self { socket, child: start(&[WORKER], other)? })
    }

    /// Returns an idle worker, or a new one.
    fn take() -> std::io::Result<Self> {
        let idle = {
            let mut workers = workers();
            workers.leaving.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            workers.idle.pop()
        };
        idle.map_or_else(Self::start, Ok)
    }

    fn give_back(self) {
        let mut workers = workers();
        if workers.idle.len() < IDLE_MAX {
            workers.idle.push(self);
        } else {
            // It ends when its socket is closed.
            workers.leaving.push(self.child);
        }
    }

    /// Kills a worker that does not answer. Its end may take long and is not waited for.
    fn give_up(mut self) {
        let _ = self.child.kill();
        workers().leaving.push(self.child);
    }
}

/// Starts a worker before it is needed: everything that a mount needs must exist before the mount.
///
/// # Errors
/// Errors of starting a process.
pub(super) fn prepare() -> std::io::Result<()> {
    Worker::take()?.give_back();
    Ok(())
}

/// Sends a path worker an operation, and waits for the answer.
fn ask(
    operation: Operation,
    fields: &[&[u8]],
    lent: Option<BorrowedFd<'_>>,
) -> Result<Answer, PathError> {
    let failed = |error: &std::io::Error| PathError::new(Step::Worker, error);
    let mut message = vec![operation as u8];
    message.extend_from_slice(&fields.join(&0));
    let worker = Worker::take().map_err(|error| failed(&error))?;
    let sent = if send(worker.socket.as_fd(), &message, lent).is_ok() {
        Ok(worker)
    } else {
        // The idle worker was killed before it did anything: another one repeats the operation.
        worker.give_up();
        let worker = Worker::start().map_err(|error| failed(&error))?;
        send(worker.socket.as_fd(), &message, lent).map(|()| worker)
    };
    let worker = sent.map_err(|error| failed(&error))?;
    match receive(worker.socket.as_fd()) {
        Ok(Some((answer, fd))) => {
            worker.give_back();
            decode(&answer).map(|fields| (fields, fd))
        }
        Ok(None) => {
            worker.give_up();
            Err(PathError::of(Step::Worker, Errno::PIPE))
        }
        Err(error) => {
            worker.give_up();
            let is_late = error.kind() == std::io::ErrorKind::WouldBlock;
            Err(if is_late { PathError::of(Step::Worker, Errno::TIMEDOUT) } else { failed(&error) })
        }
    }
}

/// Sends a path worker an operation on a path, on a blocking thread.
///
/// # Errors
/// A [`FuseError`].
pub(super) async fn work(
    operation: Operation,
    at: &Path,
    fields: Vec<Vec<u8>>,
    lent: Option<OwnedFd>,
) -> Result<Answer> {
    // Lexically: the worker has another working directory.
    let path = std::path::absolute(at).map_err(|error| Error::new(Kind::Io, error))?;
    let asked = cenote_rt::blocking(move || {
        let mut all = vec![path.as_os_str().as_bytes()];
        all.extend(fields.iter().map(Vec::as_slice));
        ask(operation, &all, lent.as_ref().map(AsFd::as_fd))
    });
    asked.await?.map_err(|error| error.told(at))
}

/// Returns the path in a field of an answer.
pub(super) fn path_of(fields: &[Vec<u8>], index: usize) -> PathBuf {
    let field = fields.get(index).map(Vec::as_slice).unwrap_or_default();
    PathBuf::from(OsStr::from_bytes(field))
}

fn encode(done: &Result<Answer, PathError>) -> Vec<u8> {
    match done {
        Ok((fields, _)) => {
            let mut message = vec![0];
            message.extend_from_slice(&fields.join(&0));
            message
        }
        Err(error) => {
            let mut message = vec![error.step as u8];
            message.extend_from_slice(&error.errno.raw_os_error().to_le_bytes());
            message
        }
    }
}

fn decode(answer: &[u8]) -> Result<Vec<Vec<u8>>, PathError> {
    const STEPS: [Step; 10] = [
        Step::Resolve,
        Step::Create,
        Step::NotEmpty,
        Step::Attach,
        Step::Unmount,
        Step::Hidden,
        Step::Worker,
        Step::Link,
        Step::Helper,
        Step::TooMany,
    ];
    let lost = PathError::of(Step::Worker, Errno::PROTO);
    let (step, rest) = answer.split_first().ok_or(lost)?;
    if *step == 0 {
        return Ok(rest.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect());
    }
    let step = STEPS.into_iter().find(|known| *known as u8 == *step).ok_or(lost)?;
    let number = rest.try_into().map(i32::from_le_bytes).map_err(|_| lost)?;
    Err(PathError::of(step, Errno::from_raw_os_error(number)))
}

fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    lent: Option<BorrowedFd<'_>>,
) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let lent: Vec<_> = lent.into_iter().collect();
    if !lent.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&lent)) {
        return Err(std::io::Error::other("no room for a descriptor"));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Returns the next message; `None` at the end of the socket.
fn receive(socket: BorrowedFd<'_>) -> std::io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut message = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut message)];
    let got = loop {
        match recvmsg(socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            got => break got?.bytes,
        }
    };
    let mut fd = None;
    for came in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = came {
            fd = came.last();
        }
    }
    message.truncate(got);
    Ok((got > 0).then_some((message, fd)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_worker_results_survive_the_round_trip() {
        let done = Ok((vec![b"/a b".to_vec(), b"1".to_vec()], None));
        assert_eq!(decode(&encode(&done)), Ok(vec![b"/a b".to_vec(), b"1".to_vec()]));
        let error = PathError::of(Step::Unmount, Errno::BUSY);
        assert_eq!(decode(&encode(&Err(error))), Err(error));
        assert_eq!(error.told(Path::new("/x")).kind(), Kind::Busy);
        assert_eq!(decode(&[]).expect_err("empty").step, Step::Worker);
        assert_eq!(decode(&[77, 0, 0, 0, 0]).expect_err("unknown").step, Step::Worker);
        assert_eq!(Operation::of(Operation::Flush as u8), Some(Operation::Flush));
        assert_eq!(Operation::of(0), None);
    }
}
