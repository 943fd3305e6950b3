//! A file system that does nothing: the fuzz target and the tests of the wire decode requests with
//! it.

use std::ffi::OsStr;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::request::{dispatch, initialize};
use super::{
    AccessFlags, Changes, FileHandle, Filesystem, INodeNo, InitFlags, Negotiation, OpenFile,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, WriteFlags,
};

/// Reads its arguments, and answers everything with an error, by dropping the reply.
struct NullFilesystem;

const NEGOTIATION: Negotiation =
    Negotiation { wanted: InitFlags::all(), request_max: 1 << 20, background: 64 };

/// Decodes one message of a kernel, as the first of a connection and as a later one. Answers go to
/// `channel`.
pub(in crate::fuse) fn take_apart(channel: &Arc<OwnedFd>, message: &[u8]) {
    black_box(initialize(channel, message, NEGOTIATION).is_some());
    black_box(dispatch(&NullFilesystem, channel, message));
}

impl Filesystem for NullFilesystem {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, _reply: ReplyEntry) {
        black_box((request.uid(), parent, name));
    }

    fn forget(&self, request: &Request, node: INodeNo, lookups: u64) {
        black_box((request.uid(), node, lookups));
    }

    fn getattr(&self, request: &Request, node: INodeNo, _reply: ReplyAttr) {
        black_box((request.uid(), node));
    }

    fn setattr(&self, request: &Request, node: INodeNo, changes: &Changes, _reply: ReplyAttr) {
        black_box((request.uid(), node, changes));
    }

    fn readlink(&self, request: &Request, node: INodeNo, _reply: ReplyData) {
        black_box((request.uid(), node));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        _reply: ReplyEntry,
    ) {
        black_box((request.uid(), parent, name, mode, umask, device));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _reply: ReplyEntry,
    ) {
        black_box((request.uid(), parent, name, mode, umask));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, _reply: ReplyEmpty) {
        black_box((request.uid(), parent, name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, _reply: ReplyEmpty) {
        black_box((request.uid(), parent, name));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        _reply: ReplyEntry,
    ) {
        black_box((request.uid(), parent, name, target));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        _reply: ReplyEmpty,
    ) {
        black_box((request.uid(), parent, name, new_parent, new_name, flags));
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        _reply: ReplyEntry,
    ) {
        black_box((request.uid(), node, new_parent, new_name));
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, _reply: ReplyOpen) {
        black_box((request.uid(), node, flags));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        _reply: ReplyCreate,
    ) {
        black_box((request.uid(), parent, name, mode, umask, flags));
    }

    fn release(&self, node: INodeNo, handle: FileHandle, _reply: ReplyEmpty) {
        black_box((node, handle));
    }

    fn read(&self, request: &Request, file: OpenFile, offset: u64, len: u32, _reply: ReplyData) {
        black_box((request.uid(), file, offset, len));
    }

    fn write(
        &self,
        request: &Request,
        file: OpenFile,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _reply: ReplyWrite,
    ) {
        black_box((request.uid(), file, offset, data, write_flags, flags));
    }

    fn fsync(&self, request: &Request, file: OpenFile, _reply: ReplyEmpty) {
        black_box((request.uid(), file));
    }

    fn opendir(&self, request: &Request, node: INodeNo, _reply: ReplyOpen) {
        black_box((request.uid(), node));
    }

    fn readdir(&self, request: &Request, node: INodeNo, offset: u64, _reply: ReplyDirectory) {
        black_box((request.uid(), node, offset));
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        offset: u64,
        _reply: ReplyDirectoryPlus,
    ) {
        black_box((request.uid(), node, offset));
    }

    fn statfs(&self, request: &Request, node: INodeNo, _reply: ReplyStatfs) {
        black_box((request.uid(), node));
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _reply: ReplyEmpty,
    ) {
        black_box((request.uid(), node, name, value, flags));
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        len: u32,
        _reply: ReplyXattr,
    ) {
        black_box((request.uid(), node, name, len));
    }

    fn listxattr(&self, request: &Request, node: INodeNo, len: u32, _reply: ReplyXattr) {
        black_box((request.uid(), node, len));
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, _reply: ReplyEmpty) {
        black_box((request.uid(), node, name));
    }

    fn access(&self, request: &Request, node: INodeNo, mask: AccessFlags, _reply: ReplyEmpty) {
        black_box((request.uid(), node, mask));
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        command: u32,
        data: &[u8],
        _reply: ReplyIoctl,
    ) {
        black_box((request.uid(), node, command, data));
    }

    fn fallocate(
        &self,
        request: &Request,
        file: OpenFile,
        offset: u64,
        len: u64,
        mode: i32,
        _reply: ReplyEmpty,
    ) {
        black_box((request.uid(), file, offset, len, mode));
    }

    fn lseek(
        &self,
        request: &Request,
        file: OpenFile,
        offset: i64,
        whence: i32,
        _reply: ReplyLseek,
    ) {
        black_box((request.uid(), file, offset, whence));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: OpenFile,
        from_offset: u64,
        to: OpenFile,
        to_offset: u64,
        len: u64,
        _reply: ReplyWrite,
    ) {
        black_box((request.uid(), from, from_offset, to, to_offset, len));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// Opcodes without an answer: two that forget nodes, and the answer to a notification.
    const UNANSWERED: [u32; 3] = [2, 41, 42];
    const HEADER: usize = 40;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let len = (HEADER + body.len()) as u32;
        let mut message: Vec<u8> = [len, opcode].iter().flat_map(|n| n.to_ne_bytes()).collect();
        message.extend(7_u64.to_ne_bytes());
        message.resize(HEADER, 0);
        message.extend(body);
        message
    }

    #[test]
    fn every_request_is_answered_once_however_short_it_is() {
        let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("set");
        let channel = Arc::new(OwnedFd::from(theirs));
        let mut answer = [0; 256];
        for opcode in 0..64 {
            for len in 0..100 {
                for byte in [0, b'a', 0xff] {
                    let message = message(opcode, &vec![byte; len]);
                    dispatch(&NullFilesystem, &channel, &message);
                    let case = format!("opcode {opcode}, {len} bytes of {byte}");
                    let answered = ours.recv(&mut answer).unwrap_or(0);
                    assert_eq!(answered == 0, UNANSWERED.contains(&opcode), "{case}");
                    if answered > 0 {
                        assert_eq!(answer[8..16], 7_u64.to_ne_bytes(), "{case}");
                    }
                    assert!(ours.recv(&mut answer).is_err(), "{case}: answered twice");
                }
            }
        }
        // Without a number a message cannot be answered.
        for len in 0..HEADER {
            dispatch(&NullFilesystem, &channel, &message(1, &[])[..len]);
            assert!(ours.recv(&mut answer).is_err(), "{len} bytes");
        }
    }
}
