//! The daemon's socket: one thread for each command that runs.
//!
//! ```text
//!   accept ──> who is it? ──> request and descriptors ──> command ──> status
//!                                                          `─ the socket closes: whoever watches
//!                                                             for a repeat ends
//! ```
//!
//! Commands are synchronous functions over the engine's tasks, so each has a thread; the engine's
//! own work goes on in the runtime and outlives them.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use cenote_cli::{Caller, Io, Session};
use cenote_rt::Runtime;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt::socket_peercred,
};

use super::accept;
use super::log::{self, Level};
use super::pools::Pools;
use super::wire::{HEADER, Request};

/// Commands at a time.
const COMMANDS_MAX: usize = 256;
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// Larger writes go out at once.
const OUTPUT_BUFFER: usize = 64 << 10;

/// Takes commands until the process ends.
pub(super) fn serve(
    listener: UnixListener,
    runtime: Runtime,
    pools: Arc<Pools>,
) -> std::io::Result<()> {
    accept::serve(
        "command",
        COMMANDS_MAX,
        move || Ok(listener.accept()?.0),
        move |stream| {
            if let Err(error) = command(&stream, &runtime, &pools) {
                log::warn("command not run", &[("cause", &error)]);
            }
        },
    )
}

/// Runs one command.
fn command(stream: &UnixStream, runtime: &Runtime, pools: &Arc<Pools>) -> std::io::Result<()> {
    let peer = socket_peercred(stream)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (request, [stdin, stdout, stderr]) = receive(stream)?;
    stream.set_read_timeout(None)?;
    let uid = peer.uid.as_raw();
    let caller = Caller::new(uid, peer.gid.as_raw(), request.folder);
    let caller = caller.with_input(stdin).with_environment(request.environment);
    let gone = caller.gone();
    let args: Vec<String> =
        request.args.iter().map(|arg| cenote_cli::argument::from_os(arg)).collect();
    // Who waits for the answer reads; who is gone does not.
    let watched = stream.try_clone()?;
    std::thread::Builder::new().name("caller".to_owned()).spawn(move || {
        let mut byte = [0];
        while matches!((&watched).read(&mut byte), Ok(1..)) {}
        gone.set();
    })?;
    let mut out = BufWriter::with_capacity(OUTPUT_BUFFER, File::from(stdout));
    let mut err = File::from(stderr);
    let session = Session { host: Arc::<Pools>::clone(pools), caller };
    let is_stop = args == ["daemon", "stop"] && session.caller.is_trusted();
    let is_status = args == ["daemon", "status"];
    let run = AssertUnwindSafe(|| {
        if is_status {
            let report = runtime.lend(|| pools.report());
            return i32::from(write!(out, "{report}").is_err());
        }
        let mut io = Io { out: &mut out, err: &mut err };
        runtime.lend(|| pools.notice());
        runtime.lend(|| cenote_cli::run_for(&session, &args, &mut io))
    });
    let status = if is_stop { Ok(0) } else { std::panic::catch_unwind(run) };
    let status = status.unwrap_or_else(|_| {
        let _ = writeln!(err, "internal error: the command was given up");
        1
    });
    drop(out);
    let line = args.join(" ");
    let fields: &[(&str, &dyn Display)] = &[("uid", &uid), ("line", &line), ("status", &status)];
    log::log(Level::Debug, "command", fields);
    let mut stream = stream;
    let answered = stream.write_all(&status.to_le_bytes());
    stream.shutdown(std::net::Shutdown::Both).ok();
    if is_stop {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)?;
    }
    // A caller that is gone needs no answer.
    answered.or(Ok(()))
}

/// A request with the three descriptors that come with it.
fn receive(stream: &UnixStream) -> std::io::Result<(Request, [OwnedFd; 3])> {
    let bad = |error: super::wire::BadRequest| std::io::Error::other(error);
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut messages = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut header)];
    let got = recvmsg(stream, &mut pieces, &mut messages, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptors = Vec::new();
    for message in messages.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    let mut stream = stream;
    stream.read_exact(header.get_mut(got..).unwrap_or_default())?;
    let mut body = Vec::new();
    let length = Request::length(header).map_err(bad)?;
    stream.take(length as u64).read_to_end(&mut body)?;
    let request = Request::decode(&body).map_err(bad)?;
    let descriptors = descriptors.try_into();
    Ok((request, descriptors.map_err(|_| std::io::Error::other("a request without descriptors"))?))
}
