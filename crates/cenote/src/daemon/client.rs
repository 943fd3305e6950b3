//! A command that the daemon runs: this process lends it its descriptors and waits.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use cenote_cli::environment;
use rustix::fs::{FlockOperation, flock};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::place::Place;
use super::wire::Request;

/// How long a daemon that was started has until it listens.
const START_PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Has the daemon run a command, and gives its status.
pub(super) fn run(stream: &mut UnixStream, request: &Request) -> std::io::Result<i32> {
    let message = request.encode();
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let lent = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut descriptors = SendAncillaryBuffer::new(&mut space);
    if !descriptors.push(SendAncillaryMessage::ScmRights(&lent)) {
        return Err(std::io::Error::other("no room for descriptors"));
    }
    let pieces = [IoSlice::new(&message)];
    let sent = sendmsg(&*stream, &pieces, &mut descriptors, SendFlags::NOSIGNAL)?;
    stream.write_all(message.get(sent..).unwrap_or_default())?;
    let mut status = [0; 4];
    stream.read_exact(&mut status)?;
    Ok(i32::from_le_bytes(status))
}

/// Connects to the daemon, if one runs.
pub(super) fn connect(place: &Place) -> Option<UnixStream> {
    UnixStream::connect(&place.socket).ok()
}

/// Connects to the daemon, and starts it if none runs.
#[expect(clippy::disallowed_methods, reason = "whoever only passes a command has no runtime")]
pub(super) fn connect_or_start(place: &Place) -> std::io::Result<UnixStream> {
    if let Some(stream) = connect(place) {
        return Ok(stream);
    }
    let mut daemon = start(place)?;
    let mut waited = Duration::ZERO;
    while waited < START_PATIENCE {
        if let Some(stream) = connect(place) {
            return Ok(stream);
        }
        if let Some(status) = daemon.try_wait()? {
            // Somebody else's daemon may have been quicker.
            return connect(place).ok_or_else(|| {
                let log = place.log();
                std::io::Error::other(format!("it ended ({status}); see {}", log.display()))
            });
        }
        std::thread::sleep(LOOK);
        waited += LOOK;
    }
    Err(std::io::Error::other("it does not answer"))
}

/// Ends the daemon, and waits until it has ended.
pub(super) fn stop(place: &Place) -> std::io::Result<()> {
    let Some(mut stream) = connect(place) else {
        return Err(std::io::Error::other("it does not run"));
    };
    if run(&mut stream, &Request::of_daemon("stop"))? != 0 {
        return Err(std::io::Error::other("permission denied"));
    }
    // LOCK: it has this one until it has left everything in order.
    flock(&File::open(place.lock())?, FlockOperation::LockExclusive)?;
    Ok(())
}

/// Starts a daemon that outlives this process.
fn start(place: &Place) -> std::io::Result<std::process::Child> {
    place.make()?;
    let log: OwnedFd =
        std::fs::OpenOptions::new().create(true).append(true).open(place.log())?.into();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["daemon", "run", super::DETACHED]).current_dir("/").stdin(Stdio::null());
    // What concerns a command is none of the next one's.
    for name in environment::NAMES {
        command.env_remove(name);
    }
    command.stdout(log.try_clone()?).stderr(log).spawn()
}
