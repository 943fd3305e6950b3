//! Gang blocks, which a pool without contiguous space writes: a header with pointers to the parts.
//!
//! The header is written by the same host as the block, so in its byte order, and its verifier is
//! made of the first copy's address, for all copies (spec 02 §3.4, §6).

use super::target;
use super::walk::{Walk, order_bit};
use cenote_ondisk::endian::Endian;

/// Bytes of a header.
const HEADER_LEN: usize = 512;
/// Bit of an offset word that says that a header is there.
const GANG: u64 = 1 << 63;

impl Walk<'_> {
    /// Writes `bytes` in two parts and a header that leads to them, on each of `tops`, and puts
    /// the header's addresses into the pointer `words`.
    pub(super) fn put_gang(
        &mut self,
        order: Endian,
        tops: &[u64],
        words: &mut [u64; 16],
        bytes: &[u8],
    ) {
        self.report.gangs += 1;
        let sector = self.sector_len(tops);
        let (first, second) = bytes.split_at((bytes.len() / 2).next_multiple_of(sector));
        let members = [first, second].map(|part| self.put_member(order, tops, words, part));
        let places: Vec<_> =
            tops.iter().map(|top| self.target.allocate(*top, HEADER_LEN)).collect();
        let mut header = vec![0; HEADER_LEN];
        for (slot, member) in header.chunks_exact_mut(128).zip(&members) {
            target::put_words(order, slot, member);
        }
        let birth = if words[9] == 0 { words[10] } else { words[9] };
        target::seal(order, &mut header, [tops[0], places[0].0, birth, 0]);
        for (index, (top, (offset, asize))) in tops.iter().zip(places).enumerate() {
            self.target.write(*top, offset, &header);
            let of_members = members.iter().map(|member| member[2 * index] & 0xff_ffff);
            words[2 * index] = (asize / 512 + of_members.sum::<u64>()) | (top << 32);
            words[2 * index + 1] = (offset / 512) | GANG;
        }
    }

    fn put_member(
        &mut self,
        order: Endian,
        tops: &[u64],
        leader: &[u64; 16],
        part: &[u8],
    ) -> [u64; 16] {
        let mut words = [0; 16];
        for (index, top) in tops.iter().enumerate() {
            words[2 * index..2 * index + 2].copy_from_slice(&self.target.put(*top, part));
        }
        let sectors = part.len() as u64 / 512 - 1;
        words[6] = leader[6] & (0xff << 40) | 2 << 32 | sectors << 16 | sectors | order_bit(order);
        words[9..11].copy_from_slice(&leader[9..11]);
        let id = (leader[6] >> 40) as u8;
        words[12..].copy_from_slice(&target::checksum(id, order, part, self.source.salt.as_ref()));
        words
    }
}
