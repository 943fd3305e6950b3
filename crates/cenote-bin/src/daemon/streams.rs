//! The daemon's side of a command's connection: output is buffered, and sent when the command uses
//! no pool any more.
//!
//! ```text
//!   command ──write──> chunk ──> spool ──deliver──> socket ──> client ──> its standard output
//! ```
//!
//! Guarantees (docs/design/rules.md, rule 1)
//! * LOAN-1  Writing never waits for the client. Only [`CallerStreams::deliver`] does, and commands
//!   call it between steps, when they have dropped every view of a pool.
//!
//! Invariants (docs/design/rules.md, rules 1 and 5)
//! * LOAN-2  Another user's client must read the output by a deadline that is set when sending
//!   begins; otherwise the connection is closed and the output dropped. Cenote's own client reads
//!   output as it arrives, and buffers it if its standard output is blocked.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_cli::{CallerStreams, leaf_scripts};
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{monotonic, tunables};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::spool::{Share, Spool};
use super::wire::{self, INPUT_MAX, KEY_MAX, Kind, Reply};

/// Bytes of one stream that are collected before they go to the spool.
const CHUNK: usize = 32 << 10;
/// Minimum rate at which another user's client must read output.
const BYTES_PER_SECOND: u64 = 1 << 20;
/// Message if a user's command collects too many rows.
const TOO_MANY_ROWS: &str = "more rows than this user may have in memory";
/// Message if a user's output is truncated.
const TOO_MUCH: &str = "more output than this user may have waiting";
/// Deadline for another user to type a key.
const KEY_TIMEOUT: Duration = Duration::from_mins(5);
/// Maximum length of a path in a reply, that of Linux.
const PATH_MAX: usize = 4096;
/// Deadline for the process of another user to look for a path.
const PATH_TIMEOUT: Duration = Duration::from_secs(30);

/// The streams of one command.
#[derive(Debug)]
pub(super) struct Streams {
    stream: UnixStream,
    is_trusted: bool,
    /// Held for single reads and updates.
    kept: Mutex<Kept>,
}

/// Output that was not sent yet.
#[derive(Debug)]
struct Kept {
    spool: Spool,
    chunk: Vec<u8>,
    kind: Kind,
    /// Memory of rows that the command collects; `None` for users without a limit.
    rows: Option<Share>,
    /// Errors after the spool was full and standard output was truncated.
    cut: Option<Vec<u8>>,
    has_delivered: bool,
    /// The client is disconnected.
    is_broken: bool,
}

impl Streams {
    /// Returns the streams of a command that charges collected rows to `rows`.
    pub(super) fn new(
        stream: UnixStream,
        is_trusted: bool,
        spool: Spool,
        rows: Option<Share>,
    ) -> Arc<Self> {
        let kept = Kept {
            spool,
            rows,
            chunk: Vec::new(),
            kind: Kind::Output,
            cut: None,
            has_delivered: false,
            is_broken: false,
        };
        Arc::new(Self { stream, is_trusted, kept: Mutex::new(Rank::DaemonStreams, kept) })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    /// Returns a writer of one of the two streams. Flushing it does nothing: see LOAN-1.
    pub(super) fn writer(self: &Arc<Self>, kind: Kind) -> Writer {
        Writer { streams: Arc::clone(self), kind }
    }

    /// Returns the deadline for the client to read this many bytes.
    fn deadline(&self, bytes: u64) -> Option<Duration> {
        let time = Duration::from_secs(tunables::CLIENT_TIMEOUT.get() + bytes / BYTES_PER_SECOND);
        (!self.is_trusted).then(|| monotonic() + time)
    }

    /// Sends an answer immediately, after everything that was delivered.
    ///
    /// # Errors
    /// `BrokenPipe` if the client is disconnected or does not read in time.
    pub(super) fn send(&self, kind: Kind, payload: &[u8]) -> std::io::Result<()> {
        let answer = wire::answer(kind, payload);
        let sent = send_all(&self.stream, &answer, self.deadline(answer.len() as u64));
        self.kept().is_broken |= sent.is_err();
        sent
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        self.kept().is_broken = true;
        self.stream.shutdown(std::net::Shutdown::Both).ok();
    }

    /// Delivers, then asks the client's process as [`request`](Self::request) does.
    fn ask(
        &self,
        question: (Kind, &[u8]),
        most: usize,
        timeout: Option<Duration>,
    ) -> std::io::Result<Reply> {
        self.deliver()?;
        self.request(question, most, timeout)
    }

    /// Asks the client's process for bytes, and receives its reply of at most `most` bytes.
    fn request(
        &self,
        (kind, payload): (Kind, &[u8]),
        most: usize,
        timeout: Option<Duration>,
    ) -> std::io::Result<Reply> {
        self.send(kind, payload)?;
        let deadline = timeout.filter(|_| !self.is_trusted).map(|time| monotonic() + time);
        let receive = || {
            let mut header = [0; Reply::HEADER];
            receive_all(&self.stream, &mut header, deadline)?;
            let length = Reply::length(header, most).ok_or(ErrorKind::InvalidData)?;
            let mut bytes = vec![0; length];
            receive_all(&self.stream, &mut bytes, deadline)?;
            Ok(Reply::decode(header, bytes))
        };
        let reply = receive();
        self.kept().is_broken |= reply.is_err();
        reply
    }
}

impl CallerStreams for Streams {
    fn deliver(&self) -> std::io::Result<()> {
        let (spool, cut) = {
            let mut kept = self.kept();
            kept.release_rows();
            if let Err(error) = kept.seal() {
                let text = format!("cannot write output: {error}\n");
                kept.write(Kind::Errors, text.as_bytes())?;
            }
            kept.has_delivered |= kept.spool.len() > 0;
            let empty = kept.spool.renewed();
            (std::mem::replace(&mut kept.spool, empty), kept.cut.take())
        };
        if self.kept().is_broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let deadline = self.deadline(spool.len());
        let sent = spool.drain(|piece| send_all(&self.stream, piece, deadline));
        let sent = sent.and_then(|()| send_all(&self.stream, &cut.unwrap_or_default(), deadline));
        self.kept().is_broken |= sent.is_err();
        sent.map_err(|_| ErrorKind::BrokenPipe.into())
    }

    fn charge(&self, bytes: u64) -> std::io::Result<()> {
        let mut kept = self.kept();
        // Checks SHARE-4.
        if kept.rows.as_mut().is_some_and(|rows| !rows.grow(bytes)) {
            return Err(std::io::Error::other(TOO_MANY_ROWS));
        }
        Ok(())
    }

    fn discard(&self) {
        let mut kept = self.kept();
        kept.release_rows();
        kept.chunk.clear();
        kept.cut = None;
        kept.spool = kept.spool.renewed();
    }

    fn has_delivered(&self) -> bool {
        self.kept().has_delivered
    }

    fn ask_key(&self, prompt: &str, is_raw: bool) -> std::io::Result<(Vec<u8>, bool)> {
        let payload = [&[u8::from(is_raw)], prompt.as_bytes()].concat();
        match self.ask((Kind::AskKey, &payload), KEY_MAX, Some(KEY_TIMEOUT))? {
            Reply::Read(key) => Ok((key, false)),
            Reply::Typed(key) => Ok((key, true)),
            Reply::Failed(why) => Err(std::io::Error::other(why)),
        }
    }

    fn ask_key_at(&self, location: &str) -> std::io::Result<Vec<u8>> {
        match self.ask((Kind::AskKeyAt, location.as_bytes()), KEY_MAX, Some(KEY_TIMEOUT))? {
            Reply::Read(key) | Reply::Typed(key) => Ok(key),
            Reply::Failed(why) => Err(std::io::Error::other(why)),
        }
    }

    fn read_input(&self) -> std::io::Result<Vec<u8>> {
        let most = (INPUT_MAX as u32).to_le_bytes();
        // No deadline: input comes at the speed of a network, and a command that waits for it uses
        // a connection of its user's share.
        match self.ask((Kind::AskInput, &most), INPUT_MAX, None)? {
            Reply::Read(bytes) | Reply::Typed(bytes) => Ok(bytes),
            Reply::Failed(why) => Err(std::io::Error::other(why)),
        }
    }

    fn find_path(&self, path: &Path) -> std::io::Result<PathBuf> {
        let path = path.as_os_str().as_bytes();
        if path.len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        match self.request((Kind::AskPath, path), PATH_MAX, Some(PATH_TIMEOUT))? {
            Reply::Read(path) | Reply::Typed(path) => Ok(OsString::from_vec(path).into()),
            Reply::Failed(why) => Err(std::io::Error::other(why)),
        }
    }

    fn run_scripts(&self, request: &leaf_scripts::Request) -> std::io::Result<Vec<Vec<String>>> {
        // No deadline, as for input: scripts may sample a device for a while.
        let payload = request.encode();
        match self.request((Kind::AskScripts, &payload), leaf_scripts::ANSWER_MAX, None)? {
            Reply::Read(lines) | Reply::Typed(lines) => {
                Ok(leaf_scripts::decode_lines(&lines, request.leaves.len()))
            }
            Reply::Failed(why) => Err(std::io::Error::other(why)),
        }
    }

    fn is_gone(&self) -> bool {
        self.kept().is_broken || has_ended(&self.stream)
    }
}

impl Kept {
    fn release_rows(&mut self) {
        self.rows = self.rows.take().map(Share::renewed);
    }

    /// Moves the chunk to the spool, as an answer. If the spool is full, the output is truncated
    /// there.
    fn seal(&mut self) -> std::io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let answer = wire::answer(self.kind, &self.chunk);
        self.chunk.clear();
        self.spool.append(&answer).map_err(|error| {
            self.cut.get_or_insert_default();
            match error.kind() {
                ErrorKind::QuotaExceeded => std::io::Error::other(TOO_MUCH),
                _ => error,
            }
        })
    }

    fn write(&mut self, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
        if self.is_broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if kind != self.kind {
            let sealed = self.seal();
            self.kind = kind;
            if kind == Kind::Output {
                sealed?;
            }
        }
        match &mut self.cut {
            Some(_) if kind == Kind::Output => return Err(std::io::Error::other(TOO_MUCH)),
            Some(cut) => {
                if cut.len() < CHUNK {
                    cut.extend(wire::answer(kind, bytes));
                }
                return Ok(());
            }
            None => {}
        }
        for piece in bytes.chunks(CHUNK) {
            if self.chunk.len() + piece.len() > CHUNK {
                self.seal()?;
            }
            self.chunk.extend_from_slice(piece);
        }
        Ok(())
    }
}

/// One of the two output streams of a command.
#[derive(Debug)]
pub(super) struct Writer {
    streams: Arc<Streams>,
    kind: Kind,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.streams.kept().write(self.kind, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the time until a deadline, which nothing that the client does extends (LOAN-2).
///
/// # Errors
/// `TimedOut` if the deadline has passed.
fn time_left(deadline: Duration) -> std::io::Result<Duration> {
    let left = deadline.saturating_sub(monotonic());
    if is_on(Bug::DeadlineExtended) {
        return Ok(left.max(Duration::from_secs(1)));
    }
    // Checks LOAN-2.
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Waits until the socket can send or receive.
fn wait(stream: &UnixStream, flags: PollFlags, deadline: Option<Duration>) -> std::io::Result<()> {
    let left = match deadline {
        None => None,
        Some(deadline) => {
            let left = time_left(deadline)?;
            Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
        }
    };
    match poll(&mut [PollFd::new(stream, flags)], left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends bytes, with an optional deadline for all of them.
///
/// # Errors
/// `TimedOut`, and errors of the socket.
pub(super) fn send_all(
    stream: &UnixStream,
    mut bytes: &[u8],
    deadline: Option<Duration>,
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match send(stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(stream, PollFlags::OUT, deadline)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether the other side has closed its end of a connection, or is gone.
pub(super) fn has_ended(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut polled, Some(&now)), Ok(1..))
}

/// Fills the buffer, with an optional deadline for all bytes.
///
/// # Errors
/// `TimedOut`, `UnexpectedEof` if the connection ends before, and errors of the socket.
pub(super) fn receive_all(
    stream: &UnixStream,
    room: &mut [u8],
    deadline: Option<Duration>,
) -> std::io::Result<()> {
    let mut filled = 0;
    while let Some(left) = room.get_mut(filled..).filter(|left| !left.is_empty()) {
        if let Some(deadline) = deadline {
            time_left(deadline)?;
        }
        match recv(stream, left, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((count, _)) => filled += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(stream, PollFlags::IN, deadline)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(is_trusted: bool) -> (Arc<Streams>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let spool = Spool::new(&std::env::temp_dir(), None);
        (Streams::new(ours, is_trusted, spool, None), theirs)
    }

    #[test]
    fn output_is_sent_only_when_delivered() {
        let (streams, mut client) = streams(true);
        let (mut out, mut err) = (streams.writer(Kind::Output), streams.writer(Kind::Errors));
        write!(out, "dropped").unwrap();
        streams.discard();
        write!(out, "on").unwrap();
        write!(out, "e").unwrap();
        write!(err, "two").unwrap();
        out.flush().unwrap();
        client.set_nonblocking(true).unwrap();
        assert!(wire::read_answer(&mut client).is_err());
        assert!(!streams.has_delivered());
        streams.deliver().unwrap();
        assert_eq!(wire::read_answer(&mut client).unwrap(), (Kind::Output, b"one".to_vec()));
        assert_eq!(wire::read_answer(&mut client).unwrap(), (Kind::Errors, b"two".to_vec()));
        assert!(streams.has_delivered() && !streams.is_gone());
        drop(client);
        assert!(streams.is_gone());
        writeln!(out).unwrap();
        assert_eq!(streams.deliver().map_err(|e| e.kind()), Err(ErrorKind::BrokenPipe));
        assert_eq!(writeln!(out).map_err(|e| e.kind()), Err(ErrorKind::BrokenPipe));
    }

    #[test]
    fn too_much_output_is_truncated_with_a_message() {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let budget = super::super::spool::Budget::new(100_000, 100_000);
        let spool = Spool::new(&std::env::temp_dir(), Some(budget.share(7)));
        let streams = Streams::new(ours, false, spool, None);
        let (mut out, mut err) = (streams.writer(Kind::Output), streams.writer(Kind::Errors));
        let line = [b'x'; 1000];
        let error = std::iter::repeat_with(|| out.write_all(&line)).take(200).find_map(Result::err);
        assert_eq!(error.expect("too much").to_string(), TOO_MUCH);
        writeln!(err, "told").unwrap();
        streams.deliver().unwrap();
        drop((streams, out, err));
        let answers: Vec<_> = std::iter::from_fn(|| wire::read_answer(&mut client).ok()).collect();
        let bytes = answers.iter().filter(|(kind, _)| *kind == Kind::Output);
        assert!((60_000..100_000).contains(&bytes.map(|(_, bytes)| bytes.len()).sum::<usize>()));
        assert_eq!(answers.last(), Some(&(Kind::Errors, b"told\n".to_vec())));
    }

    #[test]
    fn collected_rows_are_charged_until_they_are_delivered() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let budget = super::super::spool::Budget::new(100, 100);
        let spool = Spool::new(&std::env::temp_dir(), None);
        let streams = Streams::new(ours, false, spool, Some(budget.share(7)));
        streams.charge(90).unwrap();
        assert_eq!(streams.charge(20).unwrap_err().to_string(), TOO_MANY_ROWS);
        // Another command of the same user has no room either.
        assert!(!budget.share(7).grow(20));
        streams.discard();
        streams.charge(90).unwrap();
        streams.deliver().unwrap();
        streams.charge(90).unwrap();
        drop(streams);
        assert!(budget.share(8).grow(100));
    }

    #[test]
    fn deadlines_cover_all_bytes() {
        cenote_rt::seeded::set_from_environment();
        let soon = || Some(monotonic() + Duration::from_millis(50));
        // A byte now and then does not extend the deadline.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let drips = std::thread::spawn(move || while send_all(&theirs, &[0], None).is_ok() {});
        let received = receive_all(&ours, &mut vec![0; 1 << 20], soon());
        assert_eq!(received.map_err(|e| e.kind()), Err(ErrorKind::TimedOut));
        drop(ours);
        drips.join().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let sent = send_all(&ours, &vec![0; 16 << 20], soon());
        assert_eq!(sent.map_err(|e| e.kind()), Err(ErrorKind::TimedOut));
    }
}
