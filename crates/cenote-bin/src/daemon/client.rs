//! The client: sends a command to the daemon and handles the command's standard streams.
//!
//! ```text
//!   socket ──> answers ──> queue ──> standard output and error, the terminal
//! ```
//!
//! Answers are read as fast as they arrive, even if the output is blocked: `zfs list | less`
//! buffers its output here and not in the daemon. A request is sent again as long as no daemon has
//! accepted it (ONCE-1 in [`super::wire`]): the daemon may have been killed, be stopping, or be
//! busy.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use cenote_cli::io::words;
use cenote_cli::{environment, key_input, key_place, leaf_scripts};
use cenote_rt::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::person::Person;
use super::place::Place;
use super::silence::Silence;
use super::streams::has_ended;
use super::wire::{INPUT_MAX, Kind, Reply, Request, read_answer};

/// How long a client tries to find a daemon that accepts its request.
const TIMEOUT: Duration = Duration::from_mins(1);
/// How long a client waits for other commands of its user to end, if the user has too many.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// Interval of checks whether a daemon without an answer is alive.
const ALIVE_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Answers of up to 32 KiB that are buffered for standard output: more than the daemon buffers of
/// one command of another user.
const QUEUE: usize = 1 << 13;
/// Answers that are buffered of a stream of `zfs send`, which is as fast as its reader.
const STREAM_QUEUE: usize = 1 << 6;
/// Interval of checks whether the daemon still waits for scripts.
const SCRIPTS_INTERVAL: Duration = Duration::from_millis(100);
/// Exit status if the reader of the output is gone, as a shell shows SIGPIPE.
const PIPE_STATUS: i32 = 141;

/// Result of sending a request.
enum Outcome {
    /// The command is run; its answers come over this connection.
    Accepted(UnixStream),
    /// The command was not run, because the daemon is busy; with the daemon's message.
    Busy(String),
    /// The command was not run, because the daemon is stopping or has ended: the next daemon will
    /// run it.
    Later,
}

/// Runs a command in the daemon, which is started if necessary. Returns the command's status.
///
/// # Errors
/// Errors of starting the daemon and of the connection, or a daemon that does not accept the
/// request.
pub(super) fn run_or_start(place: &Place, request: &Request) -> std::io::Result<i32> {
    run_or_start_into(place, request, &unbuffered(std::io::stdout())?)
}

/// Like [`run_or_start`], with a file instead of standard output.
pub(super) fn run_or_start_into(
    place: &Place,
    request: &Request,
    out: &File,
) -> std::io::Result<i32> {
    let mut daemon = Starting::default();
    relay(place, attempts(place, request, || daemon.look(place))?, request, out)
}

/// Runs a command in the daemon, `None` if no daemon is running.
pub(super) fn run(place: &Place, request: &Request) -> std::io::Result<Option<i32>> {
    let out = unbuffered(std::io::stdout())?;
    match attempts(place, request, absent) {
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(None),
        stream => relay(place, stream?, request, &out).map(Some),
    }
}

fn absent() -> std::io::Result<()> {
    Err(ErrorKind::NotConnected.into())
}

/// The answers to an accepted request, up to the end of the connection.
pub(super) struct Answers(UnixStream);

impl Answers {
    /// Reads them all; returns what is for standard output, and the status.
    ///
    /// # Errors
    /// Errors of the connection.
    pub(super) fn collected(self) -> std::io::Result<(Vec<u8>, i32)> {
        let mut output = Vec::new();
        for answer in self {
            match answer? {
                (Kind::Output, bytes) => output.extend(bytes),
                (Kind::Status, status) => {
                    let status = status.first_chunk().ok_or(ErrorKind::InvalidData)?;
                    return Ok((output, i32::from_le_bytes(*status)));
                }
                _ => {}
            }
        }
        Err(ErrorKind::UnexpectedEof.into())
    }
}

impl Iterator for Answers {
    type Item = std::io::Result<(Kind, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(read_answer(&mut self.0))
    }
}

/// Sends a request, and returns the answers.
///
/// # Errors
/// `NotConnected` if no daemon is running; errors of the connection.
pub(super) fn answers(place: &Place, request: &Request) -> std::io::Result<Answers> {
    attempts(place, request, absent).map(Answers)
}

/// Like [`answers`], but starts the daemon if necessary.
///
/// # Errors
/// The errors of [`run_or_start`].
pub(super) fn answers_or_start(place: &Place, request: &Request) -> std::io::Result<Answers> {
    let mut daemon = Starting::default();
    attempts(place, request, || daemon.look(place)).map(Answers)
}

/// Sends a request until a daemon accepts it. Calls `absent` when no daemon is listening.
#[expect(clippy::disallowed_methods, reason = "a process that only passes a command on")]
fn attempts(
    place: &Place,
    request: &Request,
    mut absent: impl FnMut() -> std::io::Result<()>,
) -> std::io::Result<UnixStream> {
    let end = monotonic() + TIMEOUT;
    let mut cause = "it does not answer".to_owned();
    let mut busy_end = None;
    while monotonic() < end {
        match connect(place) {
            Ok(None) => absent()?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(Some(stream)) => match exchange(place, stream, request)? {
                Outcome::Accepted(stream) => return Ok(stream),
                Outcome::Later => {}
                Outcome::Busy(why) => {
                    cause = why;
                    if monotonic() > *busy_end.get_or_insert(monotonic() + BUSY_TIMEOUT) {
                        break;
                    }
                }
            },
        }
        std::thread::sleep(PAUSE);
    }
    Err(std::io::Error::other(cause))
}

/// Connects to the daemon, `None` if no process is listening.
///
/// # Errors
/// `WouldBlock` if the socket's backlog is full.
fn connect(place: &Place) -> std::io::Result<Option<UnixStream>> {
    // A blocking connect would wait for as long as a daemon with a full backlog accepts no clients.
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

/// Whether an error means that the connection is lost.
fn is_lost(error: &std::io::Error) -> bool {
    let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    kinds.contains(&error.kind())
}

/// Sends a request, and waits for the daemon's decision about it.
fn exchange(place: &Place, mut stream: UnixStream, request: &Request) -> std::io::Result<Outcome> {
    if let Err(error) = stream.write_all(&request.encode())
        && !is_lost(&error)
    {
        return Err(error);
    }
    // Even if the request was not sent completely: the answer says why.
    wait_for_answer(place, &stream)?;
    match read_answer(&mut stream) {
        Ok((Kind::Accepted, _)) => Ok(Outcome::Accepted(stream)),
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
/// A daemon that does not answer, see [`Silence`].
fn wait_for_answer(place: &Place, stream: &UnixStream) -> std::io::Result<()> {
    // Another process may have created the socket and passed it to the daemon.
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

/// Processes the answers to an accepted request. Returns the command's status.
fn relay(
    place: &Place,
    mut stream: UnixStream,
    request: &Request,
    out: &File,
) -> std::io::Result<i32> {
    let person = Person::waits_for(place, request);
    let is_stream = request.args.iter().take(2).eq(["zfs", "send"]);
    let (queue, answers) = sync_channel(if is_stream { STREAM_QUEUE } else { QUEUE });
    let (replies, out) = (stream.try_clone()?, out.try_clone()?);
    let args = request.args.clone();
    let writer = std::thread::spawn(move || write_answers(&answers, replies, out, &args));
    let ended = loop {
        match read_answer(&mut stream) {
            Ok((Kind::Status, status)) => match status.first_chunk() {
                Some(status) => break Ok(i32::from_le_bytes(*status)),
                None => break Err(ErrorKind::InvalidData.into()),
            },
            Ok(answer) => {
                person.hears();
                // The writer lives until the queue is dropped.
                drop(queue.send(answer));
            }
            Err(error) if is_lost(&error) => {
                let text = "it ended while it ran the command";
                break Err(std::io::Error::new(error.kind(), text));
            }
            Err(error) => break Err(error),
        }
    };
    drop(queue);
    let failed = writer.join().unwrap_or(Some(1));
    // The status of a failed command takes precedence over that of failed output.
    ended.map(|status| if status == 0 { failed.unwrap_or(0) } else { status })
}

/// Writes the queued output, and replies to requests. Returns a status if some of the output could
/// not be written.
fn write_answers(
    answers: &Receiver<(Kind, Vec<u8>)>,
    mut replies: UnixStream,
    mut out: File,
    args: &[OsString],
) -> Option<i32> {
    let (mut err, mut failed) = (std::io::stderr(), None);
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
                    // Tells a running command that its client is gone.
                    replies.shutdown(std::net::Shutdown::Write).ok();
                }
            }
            Kind::Errors => drop(err.write_all(&payload)),
            Kind::AskKey => {
                let (is_raw, prompt) = payload.split_first().unwrap_or((&0, &[]));
                let prompt = String::from_utf8_lossy(prompt);
                let reply = match key_input::read_key(&prompt, *is_raw != 0, &mut out) {
                    Ok((key, true)) => Reply::Typed(key),
                    Ok((key, false)) => Reply::Read(key),
                    Err(error) => Reply::Failed(error.to_string()),
                };
                send_reply(&mut replies, &reply);
            }
            Kind::AskKeyAt => {
                let location = String::from_utf8_lossy(&payload);
                let read = if may_ask_for_files(&replies) {
                    key_place::read_key_at(&location)
                } else {
                    Err("the daemon of another user may not read key files".to_owned())
                };
                let reply = read.map_or_else(Reply::Failed, Reply::Read);
                send_reply(&mut replies, &reply);
            }
            Kind::AskPath => {
                let reply = if may_ask_for_files(&replies) {
                    find_path(&payload)
                } else {
                    Reply::Failed("the daemon of another user may not look for files".to_owned())
                };
                send_reply(&mut replies, &reply);
            }
            Kind::AskScripts => {
                let request = leaf_scripts::Request::decode(&payload);
                let request = request.filter(|request| request.is_asked_for_by(args));
                let reply = match request.filter(|_| may_ask_for_files(&replies)) {
                    Some(request) => run_scripts(request, &replies),
                    None => Reply::Failed("the daemon may not run these scripts".to_owned()),
                };
                send_reply(&mut replies, &reply);
            }
            Kind::AskInput => {
                let most = payload.first_chunk().map_or(0, |most| u32::from_le_bytes(*most));
                let reply = match read_input(INPUT_MAX.min(most as usize)) {
                    Ok(bytes) => Reply::Read(bytes),
                    Err(error) => Reply::Failed(error.to_string()),
                };
                send_reply(&mut replies, &reply);
            }
            _ => {}
        }
    }
    failed
}

/// Looks for a file with the rights of this process.
fn find_path(path: &[u8]) -> Reply {
    match std::fs::canonicalize(OsStr::from_bytes(path)) {
        Ok(path) => Reply::Read(path.into_os_string().into_vec()),
        Err(error) => Reply::Failed(words(&error)),
    }
}

/// Runs scripts, as long as the daemon waits for them.
fn run_scripts(request: leaf_scripts::Request, daemon: &UnixStream) -> Reply {
    let (done, lines) = sync_channel(1);
    let run = move || drop(done.send(request.run()));
    if let Err(error) = std::thread::Builder::new().name("scripts".to_owned()).spawn(run) {
        return Reply::Failed(error.to_string());
    }
    loop {
        match lines.recv_timeout(SCRIPTS_INTERVAL) {
            Ok(lines) => return Reply::Read(leaf_scripts::encode_lines(&lines)),
            Err(RecvTimeoutError::Timeout) if !has_ended(daemon) => {}
            Err(_) => return Reply::Failed("the scripts did not end".to_owned()),
        }
    }
}

/// Whether the daemon may have what this process can read: root's, and the user's own.
fn may_ask_for_files(daemon: &UnixStream) -> bool {
    let owner = socket_peercred(daemon).map(|peer| peer.uid);
    owner.is_ok_and(|owner| owner.is_root() || owner == rustix::process::geteuid())
}

fn send_reply(replies: &mut UnixStream, reply: &Reply) {
    let (header, bytes) = reply.encode();
    // If the daemon has gone, the thread that reads its answers finds out.
    let _ = replies.write_all(&header).and_then(|()| replies.write_all(bytes));
}

/// Reads standard input once: as much as is there, at most `most` bytes, none at its end.
fn read_input(most: usize) -> std::io::Result<Vec<u8>> {
    // Without the standard library's buffer, so that bytes behind a stream are left to the next
    // reader where possible.
    let mut input = unbuffered(std::io::stdin())?;
    let mut bytes = vec![0; most];
    loop {
        match input.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => {
                bytes.truncate(read?);
                return Ok(bytes);
            }
        }
    }
}

/// Bypasses the standard library's buffer, which searches for line ends.
fn unbuffered(stream: impl AsFd) -> std::io::Result<File> {
    Ok(stream.as_fd().try_clone_to_owned()?.into())
}

/// Stops the daemon, and waits until it has ended.
///
/// # Errors
/// No daemon is running, or it is another user's.
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

/// Waits until the daemon with this process number has closed its pools. The next daemon may
/// already be running then.
///
/// # Errors
/// A daemon that is stopped, or that makes no progress for a long time, see [`Silence`].
#[expect(clippy::disallowed_methods, reason = "a process that only passes a command on")]
fn wait_for_end(place: &Place, process: &str) -> std::io::Result<()> {
    let lock = File::open(place.lock())?;
    // LOCK: the daemon holds this lock until its pools are closed.
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

/// Returns the process number that the lock file has for the daemon.
pub(super) fn daemon_process(place: &Place) -> String {
    std::fs::read_to_string(place.lock()).unwrap_or_default()
}

/// A daemon started by this process.
#[derive(Default)]
struct Starting(Option<Child>);

impl Starting {
    /// Starts the daemon, or checks whether it has failed.
    fn look(&mut self, place: &Place) -> std::io::Result<()> {
        let Some(child) = &mut self.0 else {
            self.0 = Some(start(place)?);
            return Ok(());
        };
        match child.try_wait()? {
            None => Ok(()),
            // Another daemon started first, and may have ended since.
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

/// Returns the reason that a failed daemon has logged.
fn last_words(place: &Place) -> Option<String> {
    let log = std::fs::read_to_string(place.log()).ok()?;
    let words = log.lines().next_back()?.strip_prefix(super::FAILURE)?;
    Some(words.to_owned())
}

/// Size from which a log is replaced when a daemon starts.
const LOG_MAX: u64 = 16 << 20;

/// Starts a daemon that outlives this process.
fn start(place: &Place) -> std::io::Result<Child> {
    place.make()?;
    // One earlier log is kept, so that logs cannot fill the disk.
    if std::fs::metadata(place.log()).is_ok_and(|log| log.len() > LOG_MAX) {
        drop(std::fs::rename(place.log(), place.log().with_extension("log.old")));
    }
    let log: OwnedFd =
        std::fs::OpenOptions::new().create(true).append(true).open(place.log())?.into();
    let mut command = Command::new(std::env::current_exe()?);
    place.give_to(&mut command);
    command.args(["daemon", "run", super::DETACHED]).current_dir("/").stdin(Stdio::null());
    // Settings of this command do not apply to the next one.
    for name in environment::NAMES {
        command.env_remove(name);
    }
    command.stdout(log.try_clone()?).stderr(log).spawn()
}
