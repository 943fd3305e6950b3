//! The daemon's command socket: one thread for each running command.
//!
//! ```text
//!   accept ──> share of the uid ──> request ──> accepted ──> command ──> its output ──> status
//! ```
//!
//! Commands are synchronous functions over the engine's tasks, so each has a thread; the engine's
//! own work runs in the runtime and outlives them. The output of a command is buffered until the
//! command uses no pool ([`super::streams`]).

use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_cli::{Caller, CallerStreams, Io, Session};
use cenote_rt::{Runtime, monotonic, trace, tunables};
use rustix::net::{SendFlags, send, sockopt::socket_peercred};

use super::accept::{self, Service, Shares, SpareDescriptors, is_trusted};
use super::loan;
use super::log;
use super::pools::Pools;
use super::spool::{Budget, Spool};
use super::streams::{Streams, receive_all};
use super::wire::{self, BadRequest, HEADER, Kind, Request};

/// Maximum numbers of concurrent commands.
const SHARES: Shares = Shares { trusted: 256, others: 128, each: 32 };
/// Deadline for a client's whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request that are received at a time.
const REQUEST_PIECE: usize = 64 << 10;
/// Bytes of requests being received from other users: of each user, and of all.
const REQUESTS_MAX: [u64; 2] = [8 << 20, 32 << 20];
/// Bytes of table rows that commands of other users collect in memory, because columns are aligned:
/// of each user, and of all.
const ROWS_MAX: [u64; 2] = [256 << 20, 512 << 20];
/// Bytes of buffered output for other users: of each user, and of all.
const OUTPUT_MAX: [u64; 2] = [128 << 20, 512 << 20];

/// The commands of one daemon.
#[derive(Debug)]
pub(super) struct Commands {
    listener: UnixListener,
    runtime: Runtime,
    pools: Arc<Pools>,
    /// Directory for output that does not fit into memory.
    folder: PathBuf,
    requests: Arc<Budget>,
    rows: Arc<Budget>,
    output: Arc<Budget>,
    /// The daemon is stopping: requests are for the next one.
    is_ending: AtomicBool,
}

impl Commands {
    /// Runs commands until the process ends; `spare` are descriptors for trusted clients.
    pub(super) fn serve(
        (listener, spare): (UnixListener, SpareDescriptors),
        runtime: Runtime,
        pools: Arc<Pools>,
        folder: PathBuf,
    ) -> std::io::Result<Arc<Self>> {
        let [requests, rows, output] =
            [REQUESTS_MAX, ROWS_MAX, OUTPUT_MAX].map(|[each, all]| Budget::new(each, all));
        let is_ending = AtomicBool::new(false);
        let commands =
            Arc::new(Self { listener, runtime, pools, folder, requests, rows, output, is_ending });
        accept::serve("command", SHARES, Arc::clone(&commands), spare)?;
        Ok(commands)
    }

    /// Makes clients send all further requests to the next daemon.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    fn command(&self, stream: UnixStream) -> std::io::Result<()> {
        let peer = socket_peercred(&stream)?;
        let uid = peer.uid.as_raw();
        let share = |budget: &Arc<Budget>| (!is_trusted(uid)).then(|| budget.share(uid));
        let spool = Spool::new(&self.folder, share(&self.output));
        let received = self.receive(&stream, uid);
        let streams = Streams::new(stream, is_trusted(uid), spool, share(&self.rows));
        let done = match received {
            Ok(_) if self.is_ending.load(Ordering::Acquire) => streams.send(Kind::Ending, &[]),
            Ok(request) => self.run(request, (uid, peer.gid.as_raw()), &streams),
            Err(error) => {
                let told = match error.kind() {
                    ErrorKind::QuotaExceeded => streams.send(Kind::Busy, BUSY.as_bytes()),
                    ErrorKind::UnexpectedEof => Ok(()),
                    _ => streams.send(Kind::Refused, error.to_string().as_bytes()),
                };
                // A disconnected client needs no answer.
                drop(told);
                Err(error)
            }
        };
        streams.close();
        done
    }

    /// Receives a request, with a deadline for all of it.
    fn receive(&self, stream: &UnixStream, uid: u32) -> std::io::Result<Request> {
        let bad = |error: BadRequest| std::io::Error::other(error);
        let timeout = REQUEST_TIMEOUT.min(Duration::from_secs(tunables::CLIENT_TIMEOUT.get()));
        let deadline = Some(monotonic() + timeout);
        let mut share = (!is_trusted(uid)).then(|| self.requests.share(uid));
        let mut header = [0; HEADER];
        receive_all(stream, &mut header, deadline)?;
        let length = Request::length(header).map_err(bad)?;
        // Memory grows with the received bytes, whatever the header's length says.
        let mut body = Vec::new();
        while body.len() < length {
            let piece = REQUEST_PIECE.min(length - body.len());
            if share.as_mut().is_some_and(|share| !share.grow(piece as u64)) {
                return Err(ErrorKind::QuotaExceeded.into());
            }
            let start = body.len();
            body.resize(start + piece, 0);
            receive_all(stream, body.get_mut(start..).unwrap_or_default(), deadline)?;
        }
        Request::decode(&body).map_err(bad)
    }

    /// Runs a command, and sends its output and status.
    fn run(
        &self,
        request: Request,
        (uid, gid): (u32, u32),
        streams: &Arc<Streams>,
    ) -> std::io::Result<()> {
        // ONCE-1: before any part of it runs.
        if streams.send(Kind::Accepted, &[]).is_err() {
            return Ok(());
        }
        let caller = Caller::new(uid, gid, request.folder);
        let caller = caller.with_environment(request.environment);
        let caller = caller.with_streams(Arc::<Streams>::clone(streams));
        let args: Vec<String> =
            request.args.iter().map(|arg| cenote_cli::argument::from_os(arg)).collect();
        let is_stop = args == ["daemon", "stop"] && caller.is_trusted();
        let session = Session { host: Arc::<Pools>::clone(&self.pools), caller };
        let mut err = streams.writer(Kind::Errors);
        let line = args.join(" ");
        let span = trace::request(|| &line, || None, || None);
        let carry_out = || span.within(|| self.carry_out(&session, &args, streams));
        let status = std::panic::catch_unwind(AssertUnwindSafe(carry_out));
        let status = status.unwrap_or_else(|_| {
            let _ = writeln!(err, "internal error: the command was given up");
            1
        });
        log::debug!(uid = %uid, line = %line, status = %status, "command");
        // No pool is used any more: a slow client does no harm.
        drop(session);
        // A disconnected client needs no answer.
        if streams.deliver().is_ok() {
            let _ = streams.send(Kind::Status, &status.to_le_bytes());
        }
        if is_stop {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::TERM)?;
        }
        Ok(())
    }

    fn carry_out(&self, session: &Session, args: &[String], streams: &Arc<Streams>) -> i32 {
        let (mut out, mut err) = (streams.writer(Kind::Output), streams.writer(Kind::Errors));
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        match words[..] {
            ["daemon", "ping"] => 0,
            ["daemon", "stop"] => i32::from(!session.caller.is_trusted()),
            ["daemon", "leaves", pool] => loan::print_leaves(session, pool, &mut out),
            ["daemon", "lend", pool] => {
                self.runtime.lend(|| loan::lend(session, pool, streams, &mut err))
            }
            ["daemon", "waiting", ..] => {
                let about = args.get(2..).unwrap_or_default();
                let text = self.runtime.lend(|| cenote_cli::waiting_for(session, about));
                let text = text.unwrap_or_default();
                i32::from(write!(out, "{text}").is_err())
            }
            ["daemon", "status"] => {
                let report = self.runtime.lend(|| self.pools.report());
                i32::from(write!(out, "{report}").is_err())
            }
            _ => {
                let mut io = Io { out: &mut out, err: &mut err };
                self.runtime.lend(|| self.pools.notice());
                self.runtime.lend(|| cenote_cli::run_for(session, args, &mut io))
            }
        }
    }
}

/// Message to a user whose whole share is in use.
const BUSY: &str = "too many commands at a time";

impl Service for Commands {
    type Stream = UnixStream;

    fn accept(&self) -> std::io::Result<(UnixStream, u32)> {
        let stream = self.listener.accept()?.0;
        // A client without credentials counts as another user.
        let uid = socket_peercred(&stream).map_or(u32::MAX, |peer| peer.uid.as_raw());
        Ok((stream, uid))
    }

    fn serve(&self, stream: UnixStream) {
        if let Err(error) = self.command(stream) {
            // Not a warning: any user can cause this as often as it connects.
            log::debug!(cause = %error, "command not run");
        }
    }

    fn refuse(&self, stream: UnixStream) {
        let answer = wire::answer(Kind::Busy, BUSY.as_bytes());
        let _ = send(&stream, &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}
