//! The first request of a connection: versions and capabilities.

use rustix::param::page_size;

use super::request::Fields;
use super::{Errno, InitFlags};

/// The protocol version of this server.
const MAJOR: u32 = 7;
const MINOR: u32 = 33;
/// The oldest version whose answers have this format.
const MINOR_MIN: u32 = 23;
/// Times have nanoseconds.
const GRANULARITY_NS: u32 = 1;

/// The parameters that the server requests; flags apply only if the kernel has them.
#[derive(Debug, Clone, Copy)]
pub(in crate::fuse) struct Negotiation {
    pub(in crate::fuse) wanted: InitFlags,
    /// Longest write, and read.
    pub(in crate::fuse) request_max: u32,
    /// Requests that the kernel may have in flight in the background.
    pub(in crate::fuse) background: u16,
    /// Longest write, and read, if requests come through io_uring; `None` if they shall not.
    pub(in crate::fuse) ring_max: Option<u32>,
}

/// Result of the first request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::fuse) enum Initialized {
    /// The body of the answer, and the flags that both have; with `FUSE_OVER_IO_URING`, the kernel
    /// waits for slots of all its queues.
    Agreed(Vec<u8>, InitFlags),
    /// The kernel has a newer major version, and repeats the request after this body.
    Again(Vec<u8>),
    Failed(Errno),
}

impl Negotiation {
    /// Answers the first request, given its arguments.
    pub(super) fn answer(self, arguments: &[u8]) -> Initialized {
        let mut fields = Fields::new(arguments);
        let (Some(major), Some(minor)) = (fields.u32(), fields.u32()) else {
            return Initialized::Failed(Errno::EIO);
        };
        if major > MAJOR {
            return Initialized::Again(
                [MAJOR, MINOR].iter().flat_map(|n| n.to_ne_bytes()).collect(),
            );
        }
        let (Some(read_ahead), Some(flags)) = (fields.u32(), fields.u32()) else {
            return Initialized::Failed(Errno::EIO);
        };
        if major < MAJOR || minor < MINOR_MIN {
            return Initialized::Failed(Errno::EPROTO);
        }
        let more = fields.u32().unwrap_or(0);
        let mut known = InitFlags::from_bits_truncate(u64::from(flags));
        if known.contains(InitFlags::FUSE_INIT_EXT) {
            known |= InitFlags::from_bits_truncate(u64::from(more) << u32::BITS);
        }
        let mut agreed = known & self.wanted;
        let mut request_max = self.request_max;
        if let Some(ring_max) = self.ring_max
            && known.contains(InitFlags::FUSE_OVER_IO_URING)
        {
            agreed |= InitFlags::FUSE_INIT_EXT | InitFlags::FUSE_OVER_IO_URING;
            request_max = ring_max;
        }
        let congestion = u32::from(self.background) * 3 / 4;
        let words = [
            MAJOR,
            MINOR,
            read_ahead,
            agreed.bits() as u32,
            pair(self.background, congestion as u16),
            request_max,
            GRANULARITY_NS,
            pair((request_max as usize / page_size()) as u16, 0),
            (agreed.bits() >> u32::BITS) as u32,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        Initialized::Agreed(
            words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            known & (agreed | !InitFlags::FUSE_OVER_IO_URING),
        )
    }
}

/// Returns two numbers of 16 bits, adjacent in memory.
fn pair(first: u16, second: u16) -> u32 {
    let ([a, b], [c, d]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEGOTIATION: Negotiation = Negotiation {
        wanted: InitFlags::FUSE_MAX_PAGES.union(InitFlags::FUSE_POSIX_ACL),
        request_max: 1 << 20,
        background: 64,
        ring_max: None,
    };

    fn body(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn versions_and_flags_are_agreed_on() {
        let flags = InitFlags::FUSE_MAX_PAGES | InitFlags::FUSE_ASYNC_READ;
        let Initialized::Agreed(answer, known) =
            NEGOTIATION.answer(&body(&[7, 45, 128 << 10, flags.bits() as u32, 0]))
        else {
            panic!("not agreed")
        };
        assert_eq!((answer.len(), known), (64, flags));
        let word = |at: usize| answer.get(at * 4..at * 4 + 4).map(<[u8]>::to_vec);
        let bits = InitFlags::FUSE_MAX_PAGES.bits() as u32;
        assert_eq!(word(3), Some(bits.to_ne_bytes().to_vec()));
        assert_eq!(answer.get(16..18), Some(&64_u16.to_ne_bytes()[..]));
        let pages = ((1 << 20) / page_size()) as u16;
        assert_eq!(answer.get(28..30), Some(&pages.to_ne_bytes()[..]));
    }

    #[test]
    fn other_versions_are_answered_with_the_supported_one() {
        assert!(matches!(NEGOTIATION.answer(&body(&[8, 0, 0, 0])), Initialized::Again(_)));
        assert_eq!(NEGOTIATION.answer(&body(&[7, 8, 0, 0])), Initialized::Failed(Errno::EPROTO));
        assert_eq!(NEGOTIATION.answer(&[7]), Initialized::Failed(Errno::EIO));
    }
}
