//! The client: sends a command to the daemon, and is the command's standard streams.
//!
//! ```text
//!   socket ──> answers ──> queue ──> standard output and error, the terminal
//! ```
//!
//! Answers are read as fast as they come, whatever takes the output: `zfs list | less` keeps its
//! output here and nothing in the daemon. A request is sent again only as long as no daemon has
//! accepted it (ONCE-1 in [`super::wire`]): the daemon may just have been killed, be ending, or
//! have too much to do.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use cenote_cli::{environment, key_input};
use cenote_rt::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::place::Place;
use super::silence::Silence;
use super::wire::{KeyReply, Kind, Request, read_answer};

/// How long a client looks for a daemon that takes its request.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long a client of a user with too many commands waits for one of them to end.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at a daemon that has not answered yet.
const ALIVE_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Answers that are kept until standard output takes them, of 32 KiB at most: more than the daemon
/// keeps of one command of another user.
const QUEUE: usize = 1 << 13;
/// Status of a command whose output nobody reads, as a shell shows SIGPIPE.
const PIPE_STATUS: i32 = 141;

/// What became of a request.
enum Outcome {
    /// It was run, and ended with this status.
    Ended(i32),
    /// No part of it was run, since the daemon has too much to do, as it says.
    Busy(String),
    /// No part of it was run, since the daemon ends or has ended: the next one will.
    Later,
}

/// Has the daemon run a command, and starts one if none runs. Returns the command's status.
///
/// # Errors
/// Those of starting it, of the connection, and a daemon that does not take the request.
pub(super) fn run_or_start(place: &Place, request: &Request) -> std::io::Result<i32> {
    let mut daemon = Starting::default();
    attempts(place, request, || daemon.look(place))
}

/// Has the daemon run a command; none if no daemon runs.
pub(super) fn run(place: &Place, request: &Request) -> std::io::Result<Option<i32>> {
    match attempts(place, request, || Err(ErrorKind::NotConnected.into())) {
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(None),
        done => done.map(Some),
    }
}

/// Sends a request until a daemon has accepted it. `absent` is called when none listens.
#[expect(clippy::disallowed_methods, reason = "a process that only passes a command on")]
fn attempts(
    place: &Place,
    request: &Request,
    mut absent: impl FnMut() -> std::io::Result<()>,
) -> std::io::Result<i32> {
    let end = monotonic() + PATIENCE;
    let mut cause = "it does not answer".to_owned();
    let mut busy_end = None;
    while monotonic() < end {
        match connect(place) {
            Ok(None) => absent()?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(Some(stream)) => match exchange(place, stream, request)? {
                Outcome::Ended(status) => return Ok(status),
                Outcome::Later => {}
                Outcome::Busy(why) => {
                    cause = why;
                    if monotonic() > *busy_end.get_or_insert(monotonic() + BUSY_PATIENCE) {
                        break;
                    }
                }
            },
        }
        std::thread::sleep(PAUSE);
    }
    Err(std::io::Error::other(cause))
}

/// Connects to the daemon; none if nobody listens.
///
/// # Errors
/// `WouldBlock` if as many clients wait for the daemon already as the kernel lets wait.
fn connect(place: &Place) -> std::io::Result<Option<UnixStream>> {
    // Connecting would block for as long as a daemon that takes no clients has too many of them.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream: UnixStream =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?.into();
    let connected = net::connect(&stream, &SocketAddrUnix::new(&place.socket)?);
    match connected.map_err(std::io::Error::from) {
        Ok(()) => {
            stream.set_nonblocking(false)?;
            Ok(Some(stream))
        }
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// Whether an error means that the other side is gone.
fn is_lost(error: &std::io::Error) -> bool {
    let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    kinds.contains(&error.kind())
}

/// Sends a request, and does what the answers say until the command has ended.
fn exchange(place: &Place, mut stream: UnixStream, request: &Request) -> std::io::Result<Outcome> {
    if let Err(error) = stream.write_all(&request.encode())
        && !is_lost(&error)
    {
        return Err(error);
    }
    // Also if not all of it was sent: the answer says why.
    wait_for_answer(place, &stream)?;
    match read_answer(&mut stream) {
        Ok((Kind::Accepted, _)) => relay(stream).map(Outcome::Ended),
        Ok((Kind::Busy, why)) => Ok(Outcome::Busy(String::from_utf8_lossy(&why).into_owned())),
        Ok((Kind::Ending, _)) => Ok(Outcome::Later),
        Ok((_, why)) => Err(std::io::Error::other(String::from_utf8_lossy(&why).into_owned())),
        Err(error) if is_lost(&error) => Ok(Outcome::Later),
        Err(error) => Err(error),
    }
}

/// Waits for the first answer, which a daemon sends before it runs the command.
///
/// # Errors
/// A daemon that does not answer, as [`Silence`] tells.
fn wait_for_answer(place: &Place, stream: &UnixStream) -> std::io::Result<()> {
    // Another process may have listened first, and handed the socket over.
    let process = match daemon_process(place).trim().parse() {
        Ok(process) => process,
        Err(_) => socket_peercred(stream)?.pid.as_raw_pid(),
    };
    let mut silence = Silence::of(process);
    while poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&ALIVE_INTERVAL)) == Ok(0) {
        silence.check()?;
    }
    Ok(())
}

/// Does what the answers to an accepted request say. Returns the command's status.
fn relay(mut stream: UnixStream) -> std::io::Result<i32> {
    let (queue, answers) = sync_channel(QUEUE);
    let replies = stream.try_clone()?;
    let writer = std::thread::spawn(move || write_answers(&answers, replies));
    let ended = loop {
        match read_answer(&mut stream) {
            Ok((Kind::Status, status)) => match status.first_chunk() {
                Some(status) => break Ok(i32::from_le_bytes(*status)),
                None => break Err(ErrorKind::InvalidData.into()),
            },
            // The writer lives until the queue is dropped.
            Ok(answer) => drop(queue.send(answer)),
            Err(error) if is_lost(&error) => {
                let text = "it ended while it ran the command";
                break Err(std::io::Error::new(error.kind(), text));
            }
            Err(error) => break Err(error),
        }
    };
    drop(queue);
    let failed = writer.join().unwrap_or(Some(1));
    // A command that failed by itself says more than its output that nobody took.
    ended.map(|status| if status == 0 { failed.unwrap_or(0) } else { status })
}

/// Writes output until there is no more. Returns a status if some could not be written.
fn write_answers(answers: &Receiver<(Kind, Vec<u8>)>, mut replies: UnixStream) -> Option<i32> {
    let (mut out, mut err) = (unbuffered(std::io::stdout()).ok()?, std::io::stderr());
    let mut failed = None;
    for (kind, payload) in answers {
        match kind {
            Kind::Output if failed.is_none() => {
                if let Err(error) = out.write_all(&payload) {
                    failed = Some(if error.kind() == ErrorKind::BrokenPipe {
                        PIPE_STATUS
                    } else {
                        let _ = writeln!(err, "cannot write output: {error}");
                        1
                    });
                    // A command that goes on ends when it sees this.
                    replies.shutdown(std::net::Shutdown::Write).ok();
                }
            }
            Kind::Errors => drop(err.write_all(&payload)),
            Kind::AskKey => {
                let (is_raw, prompt) = payload.split_first().unwrap_or((&0, &[]));
                let prompt = String::from_utf8_lossy(prompt);
                let reply = match key_input::read_key(&prompt, *is_raw != 0, &mut out) {
                    Ok((key, true)) => KeyReply::Typed(key),
                    Ok((key, false)) => KeyReply::Read(key),
                    Err(error) => KeyReply::Failed(error.to_string()),
                };
                let _ = replies.write_all(&reply.encode());
            }
            _ => {}
        }
    }
    failed
}

/// A descriptor past the standard library's buffer, which looks for line ends.
fn unbuffered(stream: impl AsFd) -> std::io::Result<File> {
    Ok(stream.as_fd().try_clone_to_owned()?.into())
}

/// Ends the daemon, and waits until it has ended.
///
/// # Errors
/// A daemon that does not run, and one of another user.
pub(super) fn stop(place: &Place) -> std::io::Result<()> {
    let before = daemon_process(place);
    match run(place, &Request::of_daemon("stop")) {
        Ok(Some(0)) => {}
        Ok(Some(_)) => return Err(std::io::Error::other("permission denied")),
        Ok(None) => return Err(std::io::Error::other("it does not run")),
        Err(error) => return Err(error),
    }
    wait_for_end(place, &before)
}

/// Waits until the daemon with this process number has left everything in order. The next one may
/// already run then.
///
/// # Errors
/// A daemon that is stopped, or that does nothing for a long time, as [`Silence`] tells.
#[expect(clippy::disallowed_methods, reason = "a process that only passes a command on")]
fn wait_for_end(place: &Place, process: &str) -> std::io::Result<()> {
    let lock = File::open(place.lock())?;
    // LOCK: the daemon has this one until its pools are left.
    let mut silence = process.trim().parse().ok().map(Silence::of);
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if daemon_process(place) != process {
            return Ok(());
        }
        silence.as_mut().map_or(Ok(()), Silence::check)?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// What the lock file says about the daemon that has it.
pub(super) fn daemon_process(place: &Place) -> String {
    std::fs::read_to_string(place.lock()).unwrap_or_default()
}

/// A daemon that this process starts.
#[derive(Default)]
struct Starting(Option<Child>);

impl Starting {
    /// Starts it, or looks whether it has failed.
    fn look(&mut self, place: &Place) -> std::io::Result<()> {
        let Some(child) = &mut self.0 else {
            self.0 = Some(start(place)?);
            return Ok(());
        };
        match child.try_wait()? {
            None => Ok(()),
            // Another daemon was quicker, and may have ended since.
            Some(status) if status.success() => {
                self.0 = None;
                Ok(())
            }
            Some(status) => Err(std::io::Error::other(match last_words(place) {
                Some(words) => words,
                None => format!("it ended ({status}); see {}", place.log().display()),
            })),
        }
    }
}

/// Returns what a daemon that did not start has logged as the reason.
fn last_words(place: &Place) -> Option<String> {
    let log = std::fs::read_to_string(place.log()).ok()?;
    let words = log.lines().next_back()?.strip_prefix(super::FAILURE)?;
    Some(words.to_owned())
}

/// Starts a daemon that outlives this process.
fn start(place: &Place) -> std::io::Result<Child> {
    place.make()?;
    let log: OwnedFd =
        std::fs::OpenOptions::new().create(true).append(true).open(place.log())?.into();
    let mut command = Command::new(std::env::current_exe()?);
    place.give_to(&mut command);
    command.args(["daemon", "run", super::DETACHED]).current_dir("/").stdin(Stdio::null());
    // What concerns a command is none of the next one's.
    for name in environment::NAMES {
        command.env_remove(name);
    }
    command.stdout(log.try_clone()?).stderr(log).spawn()
}
