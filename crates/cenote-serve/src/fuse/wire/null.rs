//! A file system that does nothing: the fuzz target and the tests of the wire decode requests with
//! it.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::request::{dispatch, initialize};
use super::{InitFlags, Negotiation, Way};

/// Reads its arguments, and answers everything with an error, by dropping the reply.
pub(super) struct NullFilesystem;

const NEGOTIATION: Negotiation =
    Negotiation { wanted: InitFlags::all(), request_max: 1 << 20, background: 64, ring_max: None };

/// Decodes one message of a kernel, as the first of a connection and as a later one. Answers go to
/// `channel`.
pub(in crate::fuse) fn take_apart(channel: &Arc<OwnedFd>, message: &[u8]) {
    black_box(initialize(channel, message, NEGOTIATION).is_some());
    black_box(dispatch(&NullFilesystem, Way::Channel(Arc::clone(channel)), message));
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
        let way = || Way::Channel(Arc::clone(&channel));
        let mut answer = [0; 256];
        for opcode in 0..64 {
            for len in 0..100 {
                for byte in [0, b'a', 0xff] {
                    let message = message(opcode, &vec![byte; len]);
                    dispatch(&NullFilesystem, way(), &message);
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
            dispatch(&NullFilesystem, way(), &message(1, &[])[..len]);
            assert!(ours.recv(&mut answer).is_err(), "{len} bytes");
        }
    }
}
