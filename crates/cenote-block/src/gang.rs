//! Gang headers: the members of a block that was split because there was no contiguous space.
//!
//! ```text
//!      0  member pointers, 128 bytes each; holes after the last
//!   size-40  magic, checksum (verifier: vdev and offset of DVA 0, physical birth)
//! ```
//!
//! A header has 512 bytes, or one allocation unit of its vdev if the feature
//! `com.klarasystems:dynamic_gang_header` is active (spec 02 §6.1).
//!
//! The magic tells the header's byte order. The leader's byte-order bit describes the data, and
//! differs if a raw stream from a host of the other byte order was received.

use cenote_codec::checksum::embedded::MAGIC;
use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BlockPtr};
use cenote_ondisk::endian::Endian;

use crate::error::BlockError;

/// Bytes of a classic gang header.
pub(crate) const HEADER_SIZE: u64 = 512;
/// Bytes of the trailer with magic and checksum.
pub(crate) const TRAILER_LEN: usize = 40;
/// Deepest nesting of gang blocks that is followed. Splitting into the three members of a classic
/// header reaches single sectors after ten levels.
pub(crate) const GANG_DEPTH_MAX: u32 = 16;

/// Returns the members in a verified header of `leader`.
pub(crate) fn members(header: &[u8], leader: &BlockPtr) -> Result<Vec<BlockPtr>, BlockError> {
    let (slots, trailer) = header.split_at(header.len().saturating_sub(TRAILER_LEN));
    // The magic can be wrong only if verification is switched off.
    let magic = trailer.first_chunk().and_then(|magic| Endian::of_magic(*magic, MAGIC));
    let order = magic.unwrap_or(leader.endian());
    let (slots, _pad) = slots.as_chunks::<BLOCK_PTR_LEN>();
    let members: Vec<BlockPtr> = slots
        .iter()
        .map(|bytes| BlockPtr::from_bytes_in(bytes, order))
        .filter(|member| !member.is_hole())
        .collect();
    let found = members.iter().fold(0_u64, |sum, member| sum.saturating_add(member.psize()));
    if found != leader.psize() {
        return Err(BlockError::GangSize { found, expected: leader.psize() });
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(psize: u64) -> BlockPtr {
        let mut words = [0; 16];
        words[0] = 1;
        words[1] = 8;
        words[6] = 1 << 63 | 7 << 40 | 2 << 32 | (psize / 512 - 1) << 16 | (psize / 512 - 1);
        BlockPtr::from_words(words)
    }

    #[test]
    fn members_add_up_or_are_refused() {
        let leader = pointer(1024);
        let mut header = vec![0; 512];
        header[..128].copy_from_slice(&pointer(512).to_bytes());
        let short = members(&header, &leader).unwrap_err();
        assert!(matches!(short, BlockError::GangSize { found: 512, expected: 1024 }));
        header[128..256].copy_from_slice(&pointer(512).to_bytes());
        assert_eq!(members(&header, &leader).unwrap().len(), 2);
        // The trailer of a large header is not read as a member.
        let mut large = header.clone();
        large.resize(4096, 0);
        large[4056..].fill(0xff);
        assert_eq!(members(&large, &leader).unwrap().len(), 2);
        assert!(members(&[], &leader).is_err());
    }

    #[test]
    fn the_magic_tells_the_order() {
        let leader = pointer(512);
        let mut header = vec![0; 512];
        for (place, word) in header.chunks_exact_mut(8).zip(pointer(512).words()) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        assert!(members(&header, &leader).is_err());
        header[472..480].copy_from_slice(&MAGIC.to_be_bytes());
        assert_eq!(members(&header, &leader).unwrap(), [pointer(512)]);
    }
}
