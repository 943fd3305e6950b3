//! The checksum that runs over a substream: fletcher4 that is never finished (spec 07 B1).
//!
//! Its state after some bytes follows from the state before them and the fletcher4 of these bytes
//! alone, so that long payloads go through the kernel that checks blocks.

use cenote_codec::fletcher::{fletcher4, fletcher4_be};
use cenote_ondisk::endian::Endian;

/// State of the checksum of a substream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningChecksum {
    sums: [u64; 4],
    endian: Endian,
}

impl RunningChecksum {
    /// The state before a BEGIN, of a stream in `endian` order.
    #[must_use]
    pub const fn new(endian: Endian) -> Self {
        Self { sums: [0; 4], endian }
    }

    /// The four words.
    #[must_use]
    pub const fn words(&self) -> [u64; 4] {
        self.sums
    }

    /// Adds bytes. A last piece of less than four bytes is not covered, as in OpenZFS.
    pub fn feed(&mut self, bytes: &[u8]) {
        let added = match self.endian {
            Endian::Little => fletcher4(bytes),
            Endian::Big => fletcher4_be(bytes),
        };
        self.add(added, bytes.len());
    }

    /// Adds `len` bytes by their fletcher4, in the order of the stream.
    pub fn add(&mut self, added: [u64; 4], len: usize) {
        // Each sum adds up the one before it, once for each word: after n words the earlier sums
        // have been added n, n(n+1)/2 and n(n+1)(n+2)/6 times. These are whole numbers that may
        // exceed 64 bits before the division.
        let once = u128::from(len as u64 / 4);
        let twice = once * (once + 1) / 2;
        let thrice = twice * (once + 2) / 3;
        let times = [1, once as u64, twice as u64, thrice as u64];
        let mut sums = added;
        for (index, sum) in sums.iter_mut().enumerate() {
            for (times, earlier) in times.iter().zip(self.sums[..=index].iter().rev()) {
                *sum = sum.wrapping_add(times.wrapping_mul(*earlier));
            }
        }
        self.sums = sums;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_codec::fletcher::fletcher4_scalar;
    use proptest::prelude::*;

    proptest! {
        /// Pieces of whole words give the sum of the whole.
        #[test]
        fn pieces_add_up(words in proptest::collection::vec(any::<[u8; 4]>(), 0..400),
                         cuts in proptest::collection::vec(0usize..400, 0..4)) {
            let bytes = words.concat();
            for endian in [Endian::Little, Endian::Big] {
                let mut cuts: Vec<usize> =
                    cuts.iter().map(|cut| (cut * 4).min(bytes.len())).collect();
                cuts.extend([0, bytes.len()]);
                cuts.sort_unstable();
                let mut running = RunningChecksum::new(endian);
                for pair in cuts.windows(2) {
                    running.feed(&bytes[pair[0]..pair[1]]);
                }
                let whole = fletcher4_scalar(&bytes, endian == Endian::Big);
                prop_assert_eq!(running.words(), whole);
            }
        }
    }
}
