//! Encrypted dnode blocks: cores and pointers stay plaintext, bonuses of encrypted types are
//! encrypted (spec 08 §9, §11).
//!
//!       0     64            +128*n             end-128  end
//!      +------+-------------+------------------+--------+
//!      | core | n pointers  |      bonus       | spill  |   a dnode of 1..32 slots
//!      +------+-------------+------------------+--------+
//!      |  a   |  records    | message, or a    | record |   a: authenticated as stored
//!
//! The tree can be walked, checksummed and scrubbed without keys. Of the core, the fields that a
//! raw receive recomputes are masked: all flags but the spill flag, and the space used. A bonus is
//! encrypted over its whole capacity, not just the used length, so that the length is visible and
//! the unused bytes are not.
//!
//! The core enters the tag as stored, in either byte order, but the MACs of an object set in
//! little-endian ([`portable_part`]).

use super::pieces::Pieces;
use super::pointer::{POINTER_BYTES, Pointer, is_encrypted_type};
use super::{ByteOrder, CryptError};

/// Bytes of a dnode slot.
pub(super) const SLOT_BYTES: usize = 512;
/// Bytes of the fixed part.
const CORE_BYTES: usize = 64;

const TYPE: usize = 0;
const NBLKPTR: usize = 3;
const BONUS_TYPE: usize = 4;
const FLAGS: usize = 7;
const DATA_SECTORS: usize = 8;
const BONUS_LEN: usize = 10;
const EXTRA_SLOTS: usize = 12;
const MAX_BLOCK_ID: usize = 16;
const USED: usize = 24;

/// The only flag that a raw receive preserves: a spill pointer is present.
const FLAG_SPILL: u8 = 1 << 2;

type Core = [u8; CORE_BYTES];

/// A dnode, split into its parts.
struct Dnode<'a> {
    core: &'a Core,
    pointers: &'a [[u8; POINTER_BYTES]],
    spill: Option<&'a [u8; POINTER_BYTES]>,
    bonus: &'a [u8],
    /// Offset of the bonus in the dnode.
    bonus_offset: usize,
}

impl<'a> Dnode<'a> {
    /// Splits a dnode; `bytes` are all of its slots, `offset` is used in the error only.
    fn split(bytes: &'a [u8], offset: usize) -> Result<Dnode<'a>, CryptError> {
        let slots = bytes.len() / SLOT_BYTES;
        let (core, body) =
            bytes.split_first_chunk().ok_or(CryptError::DnodeSlots { offset, slots })?;
        let core: &Core = core;
        let nblkptr = core[NBLKPTR];
        let too_many = CryptError::DnodePointers { offset, nblkptr };
        let (pointers, mut bonus) =
            body.split_at_checked(usize::from(nblkptr) * POINTER_BYTES).ok_or(too_many)?;
        let mut spill = None;
        if core[FLAGS] & FLAG_SPILL != 0 {
            let (before, last) = bonus.split_last_chunk().ok_or(too_many)?;
            (bonus, spill) = (before, Some(last));
        }
        let bonus_offset = CORE_BYTES + pointers.len();
        Ok(Dnode { core, pointers: pointers.as_chunks().0, spill, bonus, bonus_offset })
    }

    fn is_bonus_sealed(&self) -> bool {
        let is_used = self.core[BONUS_LEN] != 0 || self.core[BONUS_LEN + 1] != 0;
        self.core[TYPE] != 0 && is_used && is_encrypted_type(self.core[BONUS_TYPE])
    }

    /// The core without the fields that a raw receive recomputes.
    fn masked_core(&self) -> Core {
        let mut core = *self.core;
        core[FLAGS] &= FLAG_SPILL;
        core[USED..USED + 8].fill(0);
        core
    }

    fn records(&self, version: u64, order: ByteOrder, mut add: impl FnMut(&[u8])) {
        for bytes in self.pointers.iter().chain(self.spill) {
            add(Pointer::decode(order, bytes).record(version).as_bytes());
        }
    }
}

/// The map of a dnode block in its stored order.
pub(super) fn pieces(version: u64, order: ByteOrder, data: &[u8]) -> Result<Pieces, CryptError> {
    if !data.len().is_multiple_of(SLOT_BYTES) {
        return Err(CryptError::BlockLength { len: data.len(), unit: SLOT_BYTES });
    }
    let mut pieces = Pieces::default();
    let mut offset = 0;
    while let Some(rest) = data.get(offset..).filter(|rest| !rest.is_empty()) {
        let slots = 1 + rest.get(EXTRA_SLOTS).map_or(0, |extra| usize::from(*extra));
        let len = slots * SLOT_BYTES;
        let bytes = rest.get(..len).ok_or(CryptError::DnodeSlots { offset, slots })?;
        let dnode = Dnode::split(bytes, offset)?;
        pieces.clear(&dnode.masked_core());
        dnode.records(version, order, |record| pieces.clear(record));
        if dnode.is_bonus_sealed() {
            let start = offset + dnode.bonus_offset;
            pieces.seal(start..start + dnode.bonus.len());
        } else {
            pieces.clear(dnode.bonus);
        }
        offset += len;
    }
    Ok(pieces)
}

/// The contribution of a dnode inside an object set to its MACs: core, little-endian, and records.
///
/// `slot` is one dnode slot at `offset` of the object set.
pub(super) fn portable_part(
    version: u64,
    order: ByteOrder,
    slot: &[u8; SLOT_BYTES],
    offset: usize,
    mut add: impl FnMut(&[u8]),
) -> Result<(), CryptError> {
    let dnode = Dnode::split(slot, offset)?;
    let mut core = dnode.masked_core();
    if order == ByteOrder::Big {
        for range in [DATA_SECTORS..DATA_SECTORS + 2, BONUS_LEN..BONUS_LEN + 2] {
            core[range].reverse();
        }
        core[MAX_BLOCK_ID..MAX_BLOCK_ID + 8].reverse();
    }
    add(&core);
    dnode.records(version, order, add);
    Ok(())
}

/// Whether a slot holds an object.
pub(super) fn is_allocated(slot: &[u8; SLOT_BYTES]) -> bool {
    slot[TYPE] != 0
}
