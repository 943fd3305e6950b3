//! A bpobj: an append-only list of block pointers, with sub-lists.
//!
//! ```text
//!   bonus  num_blkptrs | bytes | comp uncomp | subobjs num_subobjs | num_freed
//!          '-- version < 3 --'  '-- < 26 --'   '---- default ----'   '- livelists -'
//!   data   128-byte block pointers, entry i at byte i * 128
//! ```
//!
//! The form of an object is determined by its bonus length only, never by pool features: both of
//! the longer forms coexist in one pool. The sums include the sub-objects. Entries are normalized
//! when stored (no checksum, no fill): usable for freeing and accounting, not for reading. A
//! sub-object list (object type 53) is an array of u64 object numbers. Consumers go backwards, own
//! entries first, then sub-objects, and truncate as they go (spec 04 §11).

use crate::blkptr::BlockPtr;
use crate::words;

/// Bytes of an entry.
pub const BPOBJ_ENTRY_LEN: usize = 128;

/// Why the header of a bpobj is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptBpobj {
    /// Shorter than the oldest form.
    #[error("bpobj: bonus of {len} bytes, expected at least 16")]
    Length {
        /// Bytes found.
        len: usize,
    },
    /// More entries than fit into the object.
    #[error("bpobj: {count} block pointers in an object of {object_size} bytes")]
    Count {
        /// Entries that the header claims.
        count: u64,
        /// Bytes of the object.
        object_size: u64,
    },
}

/// The words in a bpobj's bonus, oldest first; the number is the length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BpobjForm {
    /// Count and bytes (pool version below 3).
    Sized = 16,
    /// And compressed, uncompressed (below 26).
    Summed = 32,
    /// And sub-objects.
    Nested = 48,
    /// And the count of FREE entries (livelists).
    Freed = 56,
}

/// Header of a bpobj (`bpobj_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpobjPhys {
    /// Words present on disk.
    pub form: BpobjForm,
    /// Own entries, without sub-objects.
    pub num_blkptrs: u64,
    /// Allocated sizes of all entries, with sub-objects (this sum and the next two).
    pub bytes: u64,
    /// Physical sizes.
    pub comp: u64,
    /// Logical sizes.
    pub uncomp: u64,
    /// Object that lists sub-objects, 0 = none.
    pub subobjs: u64,
    /// Entries of that list.
    pub num_subobjs: u64,
    /// FREE entries among `num_blkptrs` (livelists).
    pub num_freed: u64,
}

impl BpobjPhys {
    /// Decodes the bonus buffer of a bpobj.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptBpobj> {
        let form = match bonus.len() {
            56.. => BpobjForm::Freed,
            48.. => BpobjForm::Nested,
            32.. => BpobjForm::Summed,
            16.. => BpobjForm::Sized,
            len => return Err(CorruptBpobj::Length { len }),
        };
        let present = bonus.get(..form as usize).unwrap_or(bonus);
        let [num_blkptrs, bytes, comp, uncomp, subobjs, num_subobjs, num_freed] =
            words::padded(present);
        Ok(Self { form, num_blkptrs, bytes, comp, uncomp, subobjs, num_subobjs, num_freed })
    }

    /// Encodes the bonus buffer, with the length of its form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = words::to_bytes(&[
            self.num_blkptrs,
            self.bytes,
            self.comp,
            self.uncomp,
            self.subobjs,
            self.num_subobjs,
            self.num_freed,
        ]);
        bytes.truncate(self.form as usize);
        bytes
    }

    /// Checks the number of entries against the bytes that the object has.
    pub const fn check_size(&self, object_size: u64) -> Result<(), CorruptBpobj> {
        if self.num_blkptrs > object_size / BPOBJ_ENTRY_LEN as u64 {
            return Err(CorruptBpobj::Count { count: self.num_blkptrs, object_size });
        }
        Ok(())
    }

    /// Whether the sums are stored (the oldest form has the bytes only).
    #[must_use]
    pub fn has_sums(&self) -> bool {
        self.form >= BpobjForm::Summed
    }

    /// Whether there are neither entries nor sub-objects.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.num_blkptrs == 0 && self.num_subobjs == 0
    }
}

/// The entries in a piece of a bpobj's data that starts on an entry; a partial last one is ignored.
pub fn entries(data: &[u8]) -> impl DoubleEndedIterator<Item = BlockPtr> + ExactSizeIterator + '_ {
    let (entries, _partial) = data.as_chunks::<BPOBJ_ENTRY_LEN>();
    entries.iter().map(BlockPtr::from_bytes)
}

/// The form in which a block pointer is stored: usable for freeing and accounting only (spec 04
/// §11.1). Bit 0 of the fill word marks FREE entries of a livelist.
#[must_use]
pub fn normalized(bp: &BlockPtr, is_free: bool) -> BlockPtr {
    let mut words = *bp.words();
    for (index, word) in words.iter_mut().enumerate() {
        let is_kept = match index {
            6 | 10 => true,
            11 => false,
            12..=15 => bp.is_dedup() && !bp.is_embedded(),
            _ => !bp.is_embedded(),
        };
        if !is_kept {
            *word = 0;
        }
        if index == 11 {
            *word = u64::from(is_free);
        }
    }
    BlockPtr::from_words(words)
}

/// The object numbers in a piece of a sub-object list.
pub fn subobjs(data: &[u8]) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
    words::iter(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_read_by_length() {
        let all = words::to_bytes(&[7, 1, 2, 3, 4, 5, 6]);
        for (len, want) in [
            (16, [7, 1, 0, 0, 0, 0, 0]),
            (24, [7, 1, 0, 0, 0, 0, 0]),
            (32, [7, 1, 2, 3, 0, 0, 0]),
            (48, [7, 1, 2, 3, 4, 5, 0]),
            (56, [7, 1, 2, 3, 4, 5, 6]),
        ] {
            let phys = BpobjPhys::decode(&all[..len]).unwrap();
            let got = [
                phys.num_blkptrs,
                phys.bytes,
                phys.comp,
                phys.uncomp,
                phys.subobjs,
                phys.num_subobjs,
                phys.num_freed,
            ];
            assert_eq!(got, want, "length {len}");
            assert_eq!(phys.encode(), all[..phys.form as usize], "length {len}");
        }
        assert_eq!(BpobjPhys::decode(&all[..15]), Err(CorruptBpobj::Length { len: 15 }));
        let phys = BpobjPhys::decode(&all).unwrap();
        assert!(phys.check_size(7 * 128).is_ok());
        assert!(phys.check_size(7 * 128 - 1).is_err());
    }

    /// Object 175 of spec 04 §27.
    #[test]
    fn a_real_entry() {
        let mut data = [0; 128];
        for (word, value) in
            [(0, 4_u64), (1, 0x1_815d), (2, 4), (3, 0x865a), (6, 0x800a_070f_0003_001f), (10, 0x1c)]
        {
            data[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
        let all: Vec<_> = entries(&data).collect();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].birth(), 28);
        assert_eq!(normalized(&all[0], false), all[0]);
    }

    #[test]
    fn stored_pointers_are_normalized() {
        let mut words = [7_u64; 16];
        let stored = |words, is_free| *normalized(&BlockPtr::from_words(words), is_free).words();
        words[6] = 1 << 63;
        let plain = stored(words, true);
        assert_eq!(plain[..6], [7; 6]);
        assert_eq!(plain[9..], [7, 7, 1, 0, 0, 0, 0]);
        words[6] = 1 << 62;
        assert_eq!(stored(words, false)[9..], [7, 7, 0, 7, 7, 7, 7]);
        words[6] = 1 << 39 | 1 << 62;
        let mut embedded = [0; 16];
        (embedded[6], embedded[10]) = (words[6], 7);
        assert_eq!(stored(words, false), embedded);
    }
}
