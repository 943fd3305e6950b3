//! The dnode: describes an object, in one to 32 slots of 512 bytes.
//!
//! ```text
//!    0  type     indblkshift  nlevels   nblkptr   bonustype  checksum  compress  flags
//!    8  datablkszsec (u16)    bonuslen (u16)      extra_slots      3 zero bytes
//!   16  maxblkid (u64)                  24  used (u64)              32  32 zero bytes
//!   64  nblkptr block pointers of 128 bytes, then the bonus area up to the end of the slots
//!       or, with the spill flag, up to the last 128 bytes: the spill pointer
//! ```
//!
//! A block of dnodes is walked with [`slots`]: a large dnode's interior slots are bonus bytes and
//! must never be decoded as dnodes. The bonus area is kept whole, beyond `bonus_len`, because under
//! encryption all of it is ciphertext, and so that encoding returns the decoded bytes.
//!
//! Rules that decoding a [`DnodePhys`] checks
//! * N1  1 to 3 block pointers, 1 to 32 slots; everything lies within the slots.
//! * N2  The data block has 512 bytes to 16 MiB, an indirect block 4 KiB to 128 KiB.
//! * N3  1 to 12 levels, so that an overflow of shifts by `(indblkshift - 7) * levels` can be
//!   detected.
//! * N4  The bonus is no longer than its area.
//!
//! Sources: spec 02 §7, §9, §10.2.

use bitflags::bitflags;

use crate::blkptr::{BLOCK_PTR_LEN, BLOCK_PTR_SHIFT, BlockPtr, SECTOR_SIZE};
use crate::bytes::Reader;
use crate::endian::Endian;
use crate::object_type::ObjectType;
use crate::words;

/// Log2 of the bytes of a slot.
pub const DNODE_SHIFT: u32 = 9;
/// Bytes of a slot.
pub const DNODE_SLOT_LEN: usize = 1 << DNODE_SHIFT;
/// Bytes in front of the block pointers.
pub const DNODE_CORE_LEN: usize = 64;
/// Block pointers of a dnode, at most.
pub const BLKPTRS_MAX: usize = 3;
/// Most slots of a dnode, and slots of a block of dnodes.
pub const DNODE_SLOTS_MAX: usize = 32;
/// Bytes of a block of dnodes.
pub const DNODE_BLOCK_LEN: usize = DNODE_SLOT_LEN * DNODE_SLOTS_MAX;
/// Object numbers are below this.
pub const OBJECT_MAX: u64 = 1 << 48;
/// Levels of the deepest object, with 4 KiB indirect blocks.
pub const LEVELS_MAX: u8 = 12;

bitflags! {
    /// Flags of a dnode; unknown bits are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DnodeFlags: u8 {
        /// `used` counts bytes, not sectors.
        const USED_BYTES = 1 << 0;
        /// The space is included in the accounting of owners.
        const USERUSED_ACCOUNTED = 1 << 1;
        /// The last 128 bytes are a pointer to the spill block.
        const SPILL_BLKPTR = 1 << 2;
        /// The object is included in the accounting of owners.
        const USEROBJUSED_ACCOUNTED = 1 << 3;
        const _ = !0;
    }
}

/// Why a dnode is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptDnode {
    /// The slots end before the dnode does.
    #[error("dnode: {len} bytes left, needs {needed}")]
    Length {
        /// Bytes available.
        len: usize,
        /// Length according to the dnode.
        needed: usize,
    },
    /// The object type is unknown.
    #[error("dnode: object type {0} is unknown")]
    ObjectType(u8),
    /// The bonus type is unknown.
    #[error("dnode: bonus type {0} is unknown")]
    BonusType(u8),
    /// Too many slots.
    #[error("dnode: {0} extra slots, at most 31")]
    ExtraSlots(u8),
    /// Indirect blocks of an impossible size.
    #[error("dnode: indirect block shift {0} is not in 12..=17")]
    IndirectShift(u8),
    /// No level, or too many.
    #[error("dnode: {0} levels, expected 1..=12")]
    Levels(u8),
    /// No block pointer, or too many.
    #[error("dnode: {0} block pointers, expected 1..=3")]
    BlockPtrs(u8),
    /// Data blocks of an impossible size.
    #[error("dnode: data block of {0} sectors, expected 1..=32768")]
    DataBlockSize(u16),
    /// The bonus is longer than its area.
    #[error("dnode: bonus of {len} bytes, there is room for {capacity}")]
    BonusLength {
        /// Bytes claimed.
        len: u16,
        /// Bytes of the area.
        capacity: usize,
    },
}

/// A dnode (`dnode_phys_t`), checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnodePhys {
    /// Type of the object; never free.
    pub object_type: ObjectType,
    /// Log2 of the size of indirect blocks.
    pub indblkshift: u8,
    /// Levels of the block tree; 1 = the pointers here point at data.
    pub nlevels: u8,
    /// Type of the bonus content, also of the spill block.
    pub bonus_type: ObjectType,
    /// Number of the checksum function for data; 0: that of the dataset.
    pub checksum: u8,
    /// Number of the compression function for data; 0: that of the dataset.
    pub compress: u8,
    /// Flags.
    pub flags: DnodeFlags,
    /// Size of data blocks in sectors.
    pub data_block_sectors: u16,
    /// Bytes of the bonus in use.
    pub bonus_len: u16,
    /// Slots beyond the first.
    pub extra_slots: u8,
    /// Highest block number that may exist.
    pub maxblkid: u64,
    /// Space charged, in bytes or sectors: see [`Self::used_bytes`].
    pub used: u64,
    /// Zero; kept as found.
    pub reserved: [u8; 35],
    /// The top of the block tree, 1 to 3 pointers.
    pub blkptrs: Vec<BlockPtr>,
    /// The whole bonus area: see [`Self::bonus`].
    pub bonus_area: Vec<u8>,
    /// Pointer to the spill block, if the flag says so.
    pub spill: Option<BlockPtr>,
}

impl DnodePhys {
    /// Decodes the dnode at the start of `bytes` (little-endian), which may be longer; `None` if
    /// the slot is free.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, CorruptDnode> {
        let core = Core::read(bytes)
            .ok_or(CorruptDnode::Length { len: bytes.len(), needed: DNODE_SLOT_LEN })?;
        if core.object_type == ObjectType::NONE.0 {
            return Ok(None);
        }
        core.validate()?;
        let needed = core.slots() * DNODE_SLOT_LEN;
        let short = CorruptDnode::Length { len: bytes.len(), needed };
        let body = bytes.get(DNODE_CORE_LEN..needed).ok_or(short)?;
        let too_long = |capacity| CorruptDnode::BonusLength { len: core.bonus_len, capacity };
        let flags = DnodeFlags::from_bits_retain(core.flags);
        let mut pointers_len = usize::from(core.nblkptr) * BLOCK_PTR_LEN;
        let (body, spill) = if flags.contains(DnodeFlags::SPILL_BLKPTR) {
            let (before, spill) = body.split_last_chunk::<BLOCK_PTR_LEN>().ok_or(too_long(0))?;
            // OpenZFS gives the list of a redaction three pointers, and writes the pointer to its
            // spill block over the second half of the last one, which it does not use then.
            if pointers_len > before.len() {
                pointers_len -= BLOCK_PTR_LEN;
                let is_unused = before.iter().skip(pointers_len).all(|byte| *byte == 0);
                if !is_unused || core.bonus_len != 0 {
                    return Err(too_long(0));
                }
            }
            (before, Some(BlockPtr::from_bytes(spill)))
        } else {
            (body, None)
        };
        let (pointers, bonus_area) = body.split_at_checked(pointers_len).ok_or(short)?;
        if usize::from(core.bonus_len) > bonus_area.len() {
            return Err(too_long(bonus_area.len()));
        }
        Ok(Some(core.into_dnode(BlockPtr::all_in(pointers).collect(), bonus_area.to_vec(), spill)))
    }

    /// The slots' bytes, little-endian.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend([self.object_type.0, self.indblkshift, self.nlevels]);
        bytes.extend([self.blkptrs.len() as u8, self.bonus_type.0, self.checksum, self.compress]);
        bytes.push(self.flags.bits());
        bytes.extend(self.data_block_sectors.to_le_bytes());
        bytes.extend(self.bonus_len.to_le_bytes());
        let (first, second) = self.reserved.split_at(3);
        bytes.push(self.extra_slots);
        bytes.extend(first);
        bytes.extend(words::to_bytes(&[self.maxblkid, self.used]));
        bytes.extend(second);
        bytes.extend(self.blkptrs.iter().flat_map(BlockPtr::to_bytes));
        bytes.extend(&self.bonus_area);
        bytes.extend(self.spill.iter().flat_map(BlockPtr::to_bytes));
        bytes
    }

    /// Slots that the dnode takes.
    #[must_use]
    pub fn slots(&self) -> usize {
        usize::from(self.extra_slots) + 1
    }

    /// Bytes that the dnode takes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a dnode is never empty")]
    pub fn len(&self) -> usize {
        self.slots() * DNODE_SLOT_LEN
    }

    /// The top of the block tree.
    #[must_use]
    pub fn blkptrs(&self) -> &[BlockPtr] {
        &self.blkptrs
    }

    /// Number of pointers at the top.
    #[must_use]
    pub fn nblkptr(&self) -> usize {
        self.blkptrs.len()
    }

    /// The bonus content.
    #[must_use]
    pub fn bonus(&self) -> &[u8] {
        self.bonus_area.get(..usize::from(self.bonus_len)).unwrap_or(&self.bonus_area)
    }

    /// The pointer to the spill block.
    #[must_use]
    pub const fn spill(&self) -> Option<&BlockPtr> {
        self.spill.as_ref()
    }

    /// Bytes of a data block.
    #[must_use]
    pub const fn data_block_size(&self) -> u64 {
        self.data_block_sectors as u64 * SECTOR_SIZE
    }

    /// Bytes of an indirect block.
    #[must_use]
    pub const fn indirect_block_size(&self) -> u64 {
        match 1_u64.checked_shl(self.indblkshift as u32) {
            Some(size) => size,
            None => 0,
        }
    }

    /// Log2 of the pointers in an indirect block.
    #[must_use]
    pub const fn indirect_ptrs_shift(&self) -> u32 {
        (self.indblkshift as u32).saturating_sub(BLOCK_PTR_SHIFT)
    }

    /// Log2 of the data blocks below one pointer in a block (or the dnode) whose children are at
    /// `level`.
    #[must_use]
    pub const fn level_shift(&self, level: u8) -> u32 {
        self.indirect_ptrs_shift().saturating_mul(level as u32)
    }

    /// Space charged in bytes.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        if self.flags.contains(DnodeFlags::USED_BYTES) {
            self.used
        } else {
            self.used.saturating_mul(SECTOR_SIZE)
        }
    }

    /// One past the last byte that a block may hold.
    #[must_use]
    pub const fn data_len_max(&self) -> u64 {
        self.maxblkid.saturating_add(1).saturating_mul(self.data_block_size())
    }
}

/// The fixed part before the pointers, unchecked.
struct Core {
    object_type: u8,
    indblkshift: u8,
    nlevels: u8,
    nblkptr: u8,
    bonus_type: u8,
    checksum: u8,
    compress: u8,
    flags: u8,
    data_block_sectors: u16,
    bonus_len: u16,
    extra_slots: u8,
    maxblkid: u64,
    used: u64,
    reserved: [u8; 35],
}

impl Core {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes.get(..DNODE_SLOT_LEN)?, Endian::Little);
        let [object_type, indblkshift, nlevels, nblkptr] = reader.array()?;
        let [bonus_type, checksum, compress, flags] = reader.array()?;
        let (data_block_sectors, bonus_len) = (reader.u16()?, reader.u16()?);
        let (extra_slots, first) = (reader.u8()?, reader.array::<3>()?);
        let (maxblkid, used) = (reader.u64()?, reader.u64()?);
        let mut reserved = [0; 35];
        let found = first.into_iter().chain(reader.array::<32>()?);
        reserved.iter_mut().zip(found).for_each(|(byte, found)| *byte = found);
        Some(Self {
            object_type,
            indblkshift,
            nlevels,
            nblkptr,
            bonus_type,
            checksum,
            compress,
            flags,
            data_block_sectors,
            bonus_len,
            extra_slots,
            maxblkid,
            used,
            reserved,
        })
    }

    fn slots(&self) -> usize {
        usize::from(self.extra_slots) + 1
    }

    fn validate(&self) -> Result<(), CorruptDnode> {
        if !ObjectType(self.object_type).is_valid() {
            return Err(CorruptDnode::ObjectType(self.object_type));
        }
        if !ObjectType(self.bonus_type).is_valid() {
            return Err(CorruptDnode::BonusType(self.bonus_type));
        }
        if self.slots() > DNODE_SLOTS_MAX {
            return Err(CorruptDnode::ExtraSlots(self.extra_slots));
        }
        if !(12..=17).contains(&self.indblkshift) {
            return Err(CorruptDnode::IndirectShift(self.indblkshift));
        }
        if !(1..=LEVELS_MAX).contains(&self.nlevels) {
            return Err(CorruptDnode::Levels(self.nlevels));
        }
        if !(1..=3).contains(&self.nblkptr) {
            return Err(CorruptDnode::BlockPtrs(self.nblkptr));
        }
        if !(1..=32768).contains(&self.data_block_sectors) {
            return Err(CorruptDnode::DataBlockSize(self.data_block_sectors));
        }
        Ok(())
    }

    fn into_dnode(
        self,
        blkptrs: Vec<BlockPtr>,
        bonus_area: Vec<u8>,
        spill: Option<BlockPtr>,
    ) -> DnodePhys {
        DnodePhys {
            object_type: ObjectType(self.object_type),
            indblkshift: self.indblkshift,
            nlevels: self.nlevels,
            bonus_type: ObjectType(self.bonus_type),
            checksum: self.checksum,
            compress: self.compress,
            flags: DnodeFlags::from_bits_retain(self.flags),
            data_block_sectors: self.data_block_sectors,
            bonus_len: self.bonus_len,
            extra_slots: self.extra_slots,
            maxblkid: self.maxblkid,
            used: self.used,
            reserved: self.reserved,
            blkptrs,
            bonus_area,
            spill,
        }
    }
}

/// Kind of a slot in a block of dnodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Unallocated.
    Free,
    /// The first slot of a dnode.
    Head {
        /// Slots that the dnode takes, cut at the end of the block.
        slots: usize,
    },
    /// Bonus bytes of the large dnode before it.
    Interior,
}

/// Number of block pointers of a new dnode with this bonus (spec 02 §7.4).
#[must_use]
pub fn blkptr_count(bonus_type: ObjectType, bonus_len: usize, slots: usize) -> usize {
    if bonus_type == ObjectType::SA {
        return 1;
    }
    let area = slots.saturating_mul(DNODE_SLOT_LEN).saturating_sub(DNODE_CORE_LEN);
    (area.saturating_sub(bonus_len) >> BLOCK_PTR_SHIFT).clamp(1, BLKPTRS_MAX)
}

/// The dnodes of a block: index of the first slot, and the bytes of all of its slots. Free slots
/// are skipped; a dnode that claims more slots than the block has is cut at the end of the block.
pub fn slots(block: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut index = 0_usize;
    std::iter::from_fn(move || {
        loop {
            let start = index.checked_mul(DNODE_SLOT_LEN)?;
            let rest = block.get(start..).filter(|rest| rest.len() >= DNODE_SLOT_LEN)?;
            let found = index;
            let slots = slots_claimed(rest);
            index = index.checked_add(slots.unwrap_or(1))?;
            if let Some(slots) = slots {
                let len = rest.len().min(slots * DNODE_SLOT_LEN);
                return Some((found, rest.get(..len)?));
            }
        }
    })
}

/// The kind of slot `index` of a block.
#[must_use]
pub fn slot(block: &[u8], index: usize) -> Slot {
    for (start, bytes) in slots(block) {
        let slots = bytes.len() / DNODE_SLOT_LEN;
        if start == index {
            return Slot::Head { slots };
        }
        if start > index {
            return Slot::Free;
        }
        if index < start.saturating_add(slots) {
            return Slot::Interior;
        }
    }
    Slot::Free
}

/// Number of slots that the dnode at the start of `bytes` claims; `None` if it is free.
fn slots_claimed(bytes: &[u8]) -> Option<usize> {
    let object_type = *bytes.first()?;
    let extra_slots = *bytes.get(12)?;
    (object_type != ObjectType::NONE.0).then(|| usize::from(extra_slots) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A DSL dir without blocks, of a real pool (spec 02 §7.1).
    fn dsl_dir() -> Vec<u8> {
        let mut bytes = vec![0; DNODE_SLOT_LEN];
        bytes[..12].copy_from_slice(&[0x0c, 0x11, 1, 1, 0x0c, 0, 0, 0, 1, 0, 0, 1]);
        bytes
    }

    #[test]
    fn a_real_dnode() {
        let bytes = dsl_dir();
        let dnode = DnodePhys::decode(&bytes).unwrap().unwrap();
        assert_eq!((dnode.object_type, dnode.bonus_type), (ObjectType(12), ObjectType(12)));
        assert_eq!((dnode.bonus().len(), dnode.bonus_area.len()), (256, 320));
        assert_eq!((dnode.data_block_size(), dnode.indirect_block_size()), (512, 1 << 17));
        assert_eq!(dnode.level_shift(1), 10);
        assert_eq!((dnode.slots(), dnode.nblkptr()), (1, 1));
        assert_eq!(dnode.encode(), bytes);
        assert_eq!(DnodePhys::decode(&[0; 512]), Ok(None));
    }

    #[test]
    fn refusals() {
        let rows: [(usize, u8, CorruptDnode); 9] = [
            (0, 60, CorruptDnode::ObjectType(60)),
            (4, 0xff, CorruptDnode::BonusType(0xff)),
            (12, 32, CorruptDnode::ExtraSlots(32)),
            (12, 1, CorruptDnode::Length { len: 512, needed: 1024 }),
            (1, 11, CorruptDnode::IndirectShift(11)),
            (2, 0, CorruptDnode::Levels(0)),
            (3, 4, CorruptDnode::BlockPtrs(4)),
            (8, 0, CorruptDnode::DataBlockSize(0)),
            (3, 3, CorruptDnode::BonusLength { len: 256, capacity: 64 }),
        ];
        for (offset, byte, expected) in rows {
            let mut bytes = dsl_dir();
            bytes[offset] = byte;
            assert_eq!(DnodePhys::decode(&bytes), Err(expected));
        }
        assert!(DnodePhys::decode(&dsl_dir()[..511]).is_err());
    }

    /// The list of a redaction with respect to 40 snapshots, of OpenZFS 2.3.2: its third pointer
    /// and the pointer to its spill block overlap.
    #[test]
    fn a_spill_pointer_may_lie_over_an_unused_pointer() {
        let mut bytes = vec![0; DNODE_SLOT_LEN];
        bytes[..13].copy_from_slice(&[195, 17, 1, 3, 195, 0, 0, 5, 0, 1, 0, 0, 0]);
        // One sector on vdev 0, as the first place of the block.
        bytes[384..400].copy_from_slice(&words::to_bytes(&[1, 0x97_0f00]));
        bytes[432..440].copy_from_slice(&words::to_bytes(&[0x8007_0207_0000_0000]));
        let dnode = DnodePhys::decode(&bytes).unwrap().unwrap();
        assert_eq!((dnode.nblkptr(), dnode.bonus_area.len()), (2, 64));
        assert!(dnode.blkptrs.iter().all(BlockPtr::is_hole));
        let spill = dnode.spill().unwrap();
        assert_eq!(spill.to_bytes()[..], bytes[384..]);
        // Written again, it has room for both.
        bytes[3] = 2;
        assert_eq!(dnode.encode(), bytes);
        bytes[3] = 3;
        bytes[320] = 1;
        let overlap = CorruptDnode::BonusLength { len: 0, capacity: 0 };
        assert_eq!(DnodePhys::decode(&bytes), Err(overlap));
    }

    #[test]
    fn interior_slots_are_skipped() {
        let mut block = vec![0; DNODE_BLOCK_LEN];
        for (index, extra) in [(1, 0), (4, 2), (31, 31)] {
            let mut bytes = dsl_dir();
            bytes[12] = extra;
            block[index * 512..(index + 1) * 512].copy_from_slice(&bytes);
        }
        block[5 * 512] = 19;
        let found: Vec<_> = slots(&block).map(|(index, bytes)| (index, bytes.len())).collect();
        assert_eq!(found, [(1, 512), (4, 1536), (31, 512)]);
        assert_eq!(slot(&block, 0), Slot::Free);
        assert_eq!(slot(&block, 4), Slot::Head { slots: 3 });
        assert_eq!(slot(&block, 6), Slot::Interior);
        assert_eq!(slot(&block, 7), Slot::Free);
        assert_eq!(slots(&block[..700]).count(), 0);
    }

    #[test]
    fn pointers_by_bonus() {
        let rows = [(0, 1, 3), (64, 1, 3), (65, 1, 2), (192, 1, 2), (193, 1, 1), (320, 1, 1)];
        for (bonus_len, slots, expected) in rows {
            assert_eq!(blkptr_count(ObjectType::DSL_DIR, bonus_len, slots), expected);
        }
        assert_eq!(blkptr_count(ObjectType::SA, 0, 2), 1);
    }

    proptest! {
        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048), calm: bool) {
            if calm && bytes.len() > 64 {
                let head = [0x2c, 12 + bytes[1] % 6, 1 + bytes[2] % 12, 1 + bytes[3] % 3];
                bytes[..4].copy_from_slice(&head);
                bytes[4] %= 54;
                let extra = bytes[5] % 4;
                bytes[8..13].copy_from_slice(&[1, 0, 32, 0, extra]);
            }
            let _ = (slots(&bytes).count(), slot(&bytes, 3));
            if let Ok(Some(dnode)) = DnodePhys::decode(&bytes) {
                prop_assert_eq!(&dnode.encode()[..], &bytes[..dnode.len()]);
                let _ = (dnode.bonus(), dnode.used_bytes(), dnode.data_len_max());
            }
        }
    }
}
