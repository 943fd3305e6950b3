//! Removed vdevs: mapping of their offsets to other vdevs (spec 05 §11, 06 §7).
//!
//! ```text
//!   mapping   bonus max_offset | bytes_mapped | num_entries | [counts object]
//!             data  source u64 | DVA of the destination (2 words)        24 bytes, sorted
//!   births    bonus count       data  offset u64 | txg u64                16 bytes, sorted
//!   counts    data  u32 per mapping entry: bytes no longer referenced
//! ```
//!
//! A block on an indirect vdev may span several entries; a destination may lie on another removed
//! vdev and be mapped again.

use crate::bits::Bits;
use crate::blkptr::Dva;
use crate::words;

/// Vdev config: mapping object.
pub const CONFIG_MAPPING: &str = "com.delphix:indirect_object";
/// Vdev config: births object.
pub const CONFIG_BIRTHS: &str = "com.delphix:indirect_births";
/// Vdev config: the vdev that was removed before this one.
pub const CONFIG_PREV: &str = "com.delphix:prev_indirect_vdev";
/// Pool directory: state of the removal, [`RemovingPhys`].
pub const REMOVING: &str = "com.delphix:removing";
/// Pool directory: state of condensing, [`CondensingPhys`].
pub const CONDENSING_INDIRECT: &str = "com.delphix:condensing_indirect";
/// Bytes of a mapping entry.
pub const MAPPING_ENTRY_LEN: usize = 24;
/// Bytes of a births entry.
pub const BIRTH_ENTRY_LEN: usize = 16;

/// Source of an entry in sectors; bit 63 above it is a mark without meaning on disk.
const SRC_OFFSET: Bits<0, 63> = Bits;

/// Why the objects of a removed vdev are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptIndirect {
    /// A header is too short.
    #[error("indirect vdev: {what} of {len} bytes")]
    Length {
        /// Name of the structure.
        what: &'static str,
        /// Bytes or words found.
        len: usize,
    },
    /// Entries are not sorted, or overlap.
    #[error("indirect mapping: entry {index} at {offset:#x} begins inside its predecessor")]
    Order {
        /// Number of the entry.
        index: usize,
        /// Its source.
        offset: u64,
    },
    /// An entry has no length.
    #[error("indirect mapping: entry {index} at {offset:#x} is empty")]
    Empty {
        /// Number of the entry.
        index: usize,
        /// Its source.
        offset: u64,
    },
}

/// Header of a mapping (`vdev_indirect_mapping_phys_t`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MappingPhys {
    /// Past the last source byte.
    pub max_offset: u64,
    /// Bytes mapped.
    pub bytes_mapped: u64,
    /// Entries.
    pub num_entries: u64,
    /// Counts object; `None` in the header of 24 bytes.
    pub counts_obj: Option<u64>,
}

impl MappingPhys {
    /// Decodes the bonus buffer.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptIndirect> {
        let [max_offset, bytes_mapped, num_entries] = words::exact(bonus)
            .ok_or(CorruptIndirect::Length { what: "mapping header", len: bonus.len() })?;
        Ok(Self { max_offset, bytes_mapped, num_entries, counts_obj: words::u64_at(bonus, 24) })
    }

    /// The bonus buffer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = words::to_bytes(&[self.max_offset, self.bytes_mapped, self.num_entries]);
        bytes.extend(self.counts_obj.iter().flat_map(|obj| obj.to_le_bytes()));
        bytes
    }
}

/// Mapping of a range of a removed vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingEntry {
    /// First byte on the removed vdev.
    pub source: u64,
    /// Its new address; the asize is the length.
    pub target: Dva,
}

impl MappingEntry {
    /// Decodes 24 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8; MAPPING_ENTRY_LEN]) -> Self {
        let [source, first, second] = words::padded(bytes);
        let source = SRC_OFFSET.get(source).saturating_mul(512);
        Self { source, target: Dva::from_words([first, second]) }
    }

    /// The 24 bytes; `None` if an address does not fit or is not whole sectors.
    #[must_use]
    pub fn encode(&self) -> Option<[u8; MAPPING_ENTRY_LEN]> {
        if !self.source.is_multiple_of(512) {
            return None;
        }
        let [first, second] = self.target.to_words()?;
        let source = SRC_OFFSET.with(0, self.source / 512)?;
        words::to_bytes(&[source, first, second]).try_into().ok()
    }

    /// Past the last byte on the removed vdev.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.source.saturating_add(self.target.asize)
    }
}

/// A mapping in memory, checked: entries are sorted and disjoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mapping {
    entries: Vec<MappingEntry>,
}

/// A piece of a range on a removed vdev, and its new address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Offset within the requested range.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Vdev of the copy.
    pub vdev: u32,
    /// Offset on it.
    pub vdev_offset: u64,
}

impl Mapping {
    /// Decodes the data of a mapping object, as many entries as the header says.
    pub fn decode(data: &[u8]) -> Result<Self, CorruptIndirect> {
        let (chunks, partial) = data.as_chunks::<MAPPING_ENTRY_LEN>();
        if !partial.is_empty() {
            return Err(CorruptIndirect::Length { what: "mapping data", len: data.len() });
        }
        let entries: Vec<MappingEntry> = chunks.iter().map(MappingEntry::decode).collect();
        let mut end = 0;
        for (index, entry) in entries.iter().enumerate() {
            if entry.source < end {
                return Err(CorruptIndirect::Order { index, offset: entry.source });
            }
            if entry.target.asize == 0 {
                return Err(CorruptIndirect::Empty { index, offset: entry.source });
            }
            end = entry.end();
        }
        Ok(Self { entries })
    }

    /// Adds entries at the end.
    ///
    /// # Errors
    /// [`CorruptIndirect`] if they are empty, or not behind the last one; nothing was added.
    pub fn append(&mut self, more: &[MappingEntry]) -> Result<(), CorruptIndirect> {
        let (mut end, known) = (self.end(), self.entries.len());
        for (index, entry) in (known..).zip(more) {
            let offset = entry.source;
            if offset < end {
                return Err(CorruptIndirect::Order { index, offset });
            }
            if entry.target.asize == 0 {
                return Err(CorruptIndirect::Empty { index, offset });
            }
            end = entry.end();
        }
        self.entries.extend_from_slice(more);
        Ok(())
    }

    /// Past the last byte that is mapped.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.entries.last().map_or(0, MappingEntry::end)
    }

    /// All entries, by source.
    #[must_use]
    pub fn entries(&self) -> &[MappingEntry] {
        &self.entries
    }

    /// Splits `[offset, offset + size)` of the removed vdev into pieces with their new addresses;
    /// `None` if any byte is not mapped.
    #[must_use]
    pub fn pieces(&self, offset: u64, size: u64) -> Option<Vec<Piece>> {
        let end = offset.checked_add(size)?;
        let mut pieces = Vec::new();
        let mut at = offset;
        let mut index = self.entries.partition_point(|entry| entry.end() <= offset);
        while at < end {
            let entry = self.entries.get(index).filter(|entry| entry.source <= at)?;
            let inner = at - entry.source;
            let len = entry.end().min(end) - at;
            pieces.push(Piece {
                offset: at - offset,
                size: len,
                vdev: entry.target.vdev,
                vdev_offset: entry.target.offset.checked_add(inner)?,
            });
            at += len;
            index += 1;
        }
        Some(pieces)
    }
}

/// An entry of the births object: the bytes from the previous offset up to this one were copied in
/// this txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BirthEntry {
    /// Past the last byte.
    pub offset: u64,
    /// Txg.
    pub txg: u64,
}

impl BirthEntry {
    /// The 16 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words::to_bytes(&[self.offset, self.txg])
    }
}

/// The number of entries of a births object, from its bonus.
pub fn births_count(bonus: &[u8]) -> Result<u64, CorruptIndirect> {
    words::u64_at(bonus, 0)
        .ok_or(CorruptIndirect::Length { what: "births header", len: bonus.len() })
}

/// The entries in a piece of a births object.
pub fn births(data: &[u8]) -> impl ExactSizeIterator<Item = BirthEntry> + '_ {
    let (entries, _partial) = data.as_chunks::<BIRTH_ENTRY_LEN>();
    entries.iter().map(|bytes| {
        let [offset, txg] = words::padded(bytes);
        BirthEntry { offset, txg }
    })
}

/// Physical birth of the copy of `offset`, among sorted entries.
#[must_use]
pub fn birth_of(births: &[BirthEntry], offset: u64) -> Option<u64> {
    let at = births.partition_point(|entry| entry.offset <= offset);
    births.get(at).map(|entry| entry.txg)
}

/// The u32 counts in a piece of a counts object.
pub fn counts(data: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    let (counts, _partial) = data.as_chunks::<4>();
    counts.iter().map(|count| u32::from_le_bytes(*count))
}

/// State of device removal (`spa_removing_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovingPhys {
    /// 0 none, 1 running, 2 finished, 3 canceled.
    pub state: u64,
    /// Vdev that is or was last being removed.
    pub removing_vdev: u64,
    /// Vdev removed last, the start of the chain of indirect vdevs; `None` = none.
    pub prev_indirect_vdev: Option<u64>,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Bytes to copy.
    pub to_copy: u64,
    /// Bytes copied.
    pub copied: u64,
}

impl RemovingPhys {
    /// Decodes the words of the ZAP value.
    pub fn decode(words: &[u64]) -> Result<Self, CorruptIndirect> {
        let [state, removing_vdev, prev, start_time, end_time, to_copy, copied] = *words else {
            return Err(CorruptIndirect::Length { what: "removing state", len: words.len() });
        };
        Ok(Self {
            state,
            removing_vdev,
            prev_indirect_vdev: Some(prev).filter(|prev| *prev != u64::MAX),
            start_time,
            end_time,
            to_copy,
            copied,
        })
    }

    /// The words of the ZAP value.
    #[must_use]
    pub fn encode(&self) -> [u64; 7] {
        [
            self.state,
            self.removing_vdev,
            self.prev_indirect_vdev.unwrap_or(u64::MAX),
            self.start_time,
            self.end_time,
            self.to_copy,
            self.copied,
        ]
    }
}

/// State of condensing a mapping (`spa_condensing_indirect_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CondensingPhys {
    /// Indirect vdev.
    pub vdev: u64,
    /// Space map of the ranges that were obsolete before.
    pub prev_obsolete_sm_obj: u64,
    /// Mapping under construction.
    pub next_mapping_obj: u64,
}

impl CondensingPhys {
    /// Decodes the words of the ZAP value.
    pub const fn decode(words: &[u64]) -> Result<Self, CorruptIndirect> {
        let [vdev, prev_obsolete_sm_obj, next_mapping_obj] = *words else {
            return Err(CorruptIndirect::Length { what: "condensing state", len: words.len() });
        };
        Ok(Self { vdev, prev_obsolete_sm_obj, next_mapping_obj })
    }

    /// The words of the ZAP value.
    #[must_use]
    pub const fn encode(&self) -> [u64; 3] {
        [self.vdev, self.prev_obsolete_sm_obj, self.next_mapping_obj]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Spec 05 §11: <1:26d000:7d800> -> <0:4ca600>.
    #[test]
    fn a_real_entry() {
        let data = words::to_bytes(&[0x1368, 0x3ec, 0x2653]);
        let mapping = Mapping::decode(&data).unwrap();
        let entry = mapping.entries()[0];
        assert_eq!((entry.source, entry.target.asize), (0x26_d000, 0x7_d800));
        assert_eq!((entry.target.vdev, entry.target.offset), (0, 0x4c_a600));
    }

    #[test]
    fn pieces_of_a_split_block() {
        let empty = words::to_bytes(&[0, 4, 100, 4, 0, 50]);
        assert_eq!(Mapping::decode(&empty), Err(CorruptIndirect::Empty { index: 1, offset: 2048 }));
        let data = words::to_bytes(&[0, 4, 100, 4, 1 << 32 | 2, 50, 8, 2, 9]);
        let mapping = Mapping::decode(&data).unwrap();
        let got = mapping.pieces(1024, 2048).unwrap();
        let piece = |offset, size, vdev, vdev_offset| Piece { offset, size, vdev, vdev_offset };
        assert_eq!(got, [piece(0, 1024, 0, 102 * 512), piece(1024, 1024, 1, 50 * 512)]);
        assert_eq!(mapping.pieces(2048, 2048), None, "a hole behind the second entry");
        assert_eq!(mapping.pieces(u64::MAX, 2), None);
        assert_eq!(mapping.pieces(0, 0), Some(vec![]));
        let twice = words::to_bytes(&[0, 4, 100, 3, 2, 50]);
        assert_eq!(Mapping::decode(&twice), Err(CorruptIndirect::Order { index: 1, offset: 1536 }));
    }

    #[test]
    fn headers_births_and_states() {
        let bytes = words::to_bytes(&[1, 2, 3, 4]);
        for len in [24, 32] {
            let phys = MappingPhys::decode(&bytes[..len]).unwrap();
            assert_eq!(phys.counts_obj, (len == 32).then_some(4));
            assert_eq!(phys.encode(), bytes[..len]);
        }
        let births: Vec<_> = births(&words::to_bytes(&[0x1000, 30, 0x2000, 31])).collect();
        for (offset, want) in [(0, Some(30)), (0xfff, Some(30)), (0x1000, Some(31)), (0x2000, None)]
        {
            assert_eq!(birth_of(&births, offset), want);
        }
        let words_ = [2, 1, u64::MAX, 3, 4, 5, 6];
        let removing = RemovingPhys::decode(&words_).unwrap();
        assert_eq!(removing.prev_indirect_vdev, None);
        assert_eq!(removing.encode(), words_);
        assert!(CondensingPhys::decode(&words_).is_err());
        let condensing = CondensingPhys::decode(&words_[3..6]).unwrap();
        assert_eq!((condensing.vdev, condensing.encode()), (3, [3, 4, 5]));
        let data: Vec<u8> = [0x1_8000_u32, 0x8400].iter().flat_map(|c| c.to_le_bytes()).collect();
        assert_eq!(counts(&data).collect::<Vec<_>>(), [0x1_8000, 0x8400]);
    }

    proptest! {
        #[test]
        fn random_mappings_never_panic(words_: Vec<u64>, offset: u64, size: u64) {
            let mapping = Mapping::decode(&words::to_bytes(&words_)).ok();
            if let Some(pieces) = mapping.and_then(|mapping| mapping.pieces(offset, size)) {
                let total: u64 = pieces.iter().map(|piece| piece.size).sum();
                prop_assert_eq!(total, size);
            }
        }

        #[test]
        fn pieces_cover_the_requested_range(
            runs in proptest::collection::vec((0_u64..3, 1_u64..5), 1..20),
            offset in 0_u64..60,
            size in 1_u64..20,
        ) {
            let mut rows = Vec::new();
            let mut at = 0;
            let mut mapped = std::collections::BTreeMap::new();
            for (gap, len) in runs {
                at += gap;
                let target = 1000 + at * 3;
                rows.extend([at, len, target]);
                for sector in 0..len {
                    mapped.insert(at + sector, target + sector);
                }
                at += len;
            }
            let mapping = Mapping::decode(&words::to_bytes(&rows)).unwrap();
            let want: Option<Vec<u64>> = (offset..offset + size).map(|s| mapped.get(&s).copied()).collect();
            let got = mapping.pieces(offset * 512, size * 512).map(|pieces| {
                pieces
                    .iter()
                    .flat_map(|p| (0..p.size / 512).map(|s| p.vdev_offset / 512 + s))
                    .collect::<Vec<_>>()
            });
            prop_assert_eq!(got, want);
        }
    }
}
