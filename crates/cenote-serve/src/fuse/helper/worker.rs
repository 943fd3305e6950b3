//! The path worker: processes one operation after the other until its socket is closed.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{Answer, Operation, PathError, Step, encode, ignore_signals, receive, send};
use crate::fuse::{Unmount, place};

/// What `fusermount3` says when its limit is reached.
const TOO_MANY: &str = "too many FUSE filesystems";
/// Longest text of its standard error that is read.
const SAID_MAX: usize = 4 << 10;

/// Processes operations until the server closes the socket, which is the standard input.
pub(super) fn run() {
    ignore_signals();
    let stdin = std::io::stdin();
    while let Ok(Some((message, fd))) = receive(stdin.as_fd()) {
        let (mut answer, reply) = match act(&message, fd) {
            Ok((fields, fd)) => (Ok((fields, None)), fd),
            Err(error) => (Err(error), None),
        };
        if let Ok((fields, _)) = &mut answer
            && fields.is_empty()
        {
            fields.push(Vec::new());
        }
        // A descriptor is closed here as soon as it was handed over: a process that does not serve
        // a connection must not keep it open.
        if send(stdin.as_fd(), &encode(&answer), reply.as_ref().map(AsFd::as_fd)).is_err() {
            return;
        }
    }
}

fn act(message: &[u8], fd: Option<OwnedFd>) -> Result<Answer, PathError> {
    let unknown = PathError::of(Step::Worker, Errno::PROTO);
    let (operation, rest) = message.split_first().ok_or(unknown)?;
    let operation = Operation::of(*operation).ok_or(unknown)?;
    let fields: Vec<&[u8]> = rest.split(|byte| *byte == 0).collect();
    let path =
        |index: usize| Path::new(OsStr::from_bytes(fields.get(index).copied().unwrap_or_default()));
    let at = path(0);
    let word = |index: usize| fields.get(index).copied().unwrap_or_default();
    let text = |index: usize| std::str::from_utf8(word(index)).unwrap_or_default();
    let flags = |index: usize| MountFlags::from_bits_retain(text(index).parse().unwrap_or(0));
    let of_path = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let done = || Ok((Vec::new(), None));
    match operation {
        Operation::Clear => {
            let (at, is_ours) = place::clear(at)?;
            Ok((vec![of_path(&at), u8::from(is_ours).to_string().into_bytes()], None))
        }
        Operation::MakeRoom => Ok((vec![of_path(&place::make_room(at, text(1) == "1")?)], None)),
        Operation::Attach => place::attach(&fd.ok_or(unknown)?, at).and_then(|()| done()),
        Operation::MountUnprivileged => Ok((Vec::new(), Some(mount_unprivileged(at, text(1))?))),
        Operation::Unmount => {
            let how = match text(2) {
                "force" => Unmount::Force,
                "detach" => Unmount::Detach,
                _ => Unmount::Plain,
            };
            place::unmount_device(at, word(1), how).and_then(|()| done())
        }
        Operation::Bind => {
            let from: Vec<&Path> = (3..fields.len()).map(path).collect();
            Ok((vec![of_path(&place::bind(&from, word(1), at, flags(2))?)], None))
        }
        Operation::Remount => place::remount(at, word(1), flags(2)).and_then(|()| done()),
        Operation::Flush => {
            place::flush(at);
            done()
        }
        Operation::RemoveFolder => {
            place::remove_folder(at);
            done()
        }
    }
}

/// Mounts with `fusermount3`, which has the privileges. Returns the descriptor of the connection,
/// which that program sends over a socket.
fn mount_unprivileged(at: &Path, options: &str) -> Result<OwnedFd, PathError> {
    let failed = |error: std::io::Error| PathError::new(Step::Attach, &error);
    let (socket, other) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| PathError::of(Step::Attach, errno))?;
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(options).arg("--").arg(at).env("_FUSE_COMMFD", "0");
    command.stdin(other).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => PathError::new(Step::Helper, &error),
        _ => failed(error),
    })?;
    drop(command);
    let received = receive(socket.as_fd());
    let status = child.wait().map_err(failed)?;
    match received.map_err(failed)? {
        Some((_, Some(fd))) if status.success() => Ok(fd),
        // The reason is only on its standard error, as text; mostly it is a missing permission.
        _ if said(&mut child).contains(TOO_MANY) => Err(PathError::of(Step::TooMany, Errno::USERS)),
        _ => Err(PathError::of(Step::Attach, Errno::PERM)),
    }
}

/// Returns what an ended process has written to its standard error.
fn said(child: &mut Child) -> String {
    let Some(mut stderr) = child.stderr.take() else { return String::new() };
    let mut text = vec![0; SAID_MAX];
    // A process that it started may have the pipe: its end is not waited for.
    let length = match rustix::io::ioctl_fionbio(&stderr, true) {
        Ok(()) => stderr.read(&mut text).unwrap_or(0),
        Err(_) => 0,
    };
    text.truncate(length);
    String::from_utf8_lossy(&text).into_owned()
}
