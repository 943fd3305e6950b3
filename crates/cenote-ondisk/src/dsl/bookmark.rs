//! Bookmarks: the value of an entry in a head's bookmarks ZAP (spec 04 §15).
//!
//! Three words (v1) or twelve (v2). Short values read as zero-extended, so any length from three
//! words up is accepted; the count found is kept, because an update of a v1 bookmark stays v1.

use super::CorruptDsl;
use bitflags::bitflags;

/// Words of the short form.
pub const BOOKMARK_V1_WORDS: usize = 3;
/// Words of the long form.
pub const BOOKMARK_V2_WORDS: usize = 12;

bitflags! {
    /// Flags of a v2 bookmark.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct BookmarkFlags: u64 {
        /// The "freed before next" sums are maintained.
        const HAS_FBN = 1;
        /// The snapshot from which it was created still exists.
        const SNAPSHOT_EXISTS = 2;
        const _ = !0;
    }
}

/// A bookmark (`zfs_bookmark_phys_t`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BookmarkPhys {
    /// Words that the stored value had.
    pub word_count: usize,
    /// Guid of the snapshot.
    pub guid: u64,
    /// Creation txg of the snapshot.
    pub creation_txg: u64,
    /// Creation time of the snapshot, seconds.
    pub creation_time: u64,
    /// Redaction list object, 0 = none.
    pub redaction_obj: u64,
    /// Flags.
    pub flags: BookmarkFlags,
    /// Referenced, compressed, uncompressed bytes at creation.
    pub referenced: [u64; 3],
    /// These three sums for blocks freed before the next snapshot.
    pub freed_before_next: [u64; 3],
    /// IV-set guid of an encrypted snapshot.
    pub ivset_guid: u64,
}

impl BookmarkPhys {
    /// Decodes the words of a ZAP value.
    pub fn decode(words: &[u64]) -> Result<Self, CorruptDsl> {
        if words.len() < BOOKMARK_V1_WORDS {
            return Err(CorruptDsl::BookmarkLength { count: words.len() });
        }
        let mut w = [0; BOOKMARK_V2_WORDS];
        for (slot, word) in w.iter_mut().zip(words) {
            *slot = *word;
        }
        Ok(Self {
            word_count: words.len(),
            guid: w[0],
            creation_txg: w[1],
            creation_time: w[2],
            redaction_obj: w[3],
            flags: BookmarkFlags::from_bits_retain(w[4]),
            referenced: [w[5], w[6], w[7]],
            freed_before_next: [w[8], w[9], w[10]],
            ivset_guid: w[11],
        })
    }

    /// Encodes the words: as many as were decoded, at most twelve.
    #[must_use]
    pub fn encode(&self) -> Vec<u64> {
        let [r0, r1, r2] = self.referenced;
        let [f0, f1, f2] = self.freed_before_next;
        let mut words = vec![
            self.guid,
            self.creation_txg,
            self.creation_time,
            self.redaction_obj,
            self.flags.bits(),
            r0,
            r1,
            r2,
            f0,
            f1,
            f2,
            self.ivset_guid,
        ];
        words.truncate(self.word_count);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lengths() {
        let v2 =
            [0x77, 24, 99, 0, 3, 2_025_984, 1_924_096, 4_676_608, 494_592, 431_104, 929_792, 0];
        let mark = BookmarkPhys::decode(&v2).unwrap();
        assert_eq!(mark.flags, BookmarkFlags::HAS_FBN | BookmarkFlags::SNAPSHOT_EXISTS);
        assert_eq!(mark.freed_before_next[0], 494_592);
        assert_eq!(mark.encode(), v2);
        let short = BookmarkPhys::decode(&v2[..3]).unwrap();
        assert_eq!(short.referenced, [0; 3]);
        assert_eq!(short.encode(), v2[..3]);
        assert_eq!(BookmarkPhys::decode(&v2[..2]), Err(CorruptDsl::BookmarkLength { count: 2 }));
    }
}
