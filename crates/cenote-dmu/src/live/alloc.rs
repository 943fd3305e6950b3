//! Allocates object numbers.
//!
//! A cursor assigns numbers in order and skips allocated ones. When it enters the span of a level-1
//! block of the meta-dnode (32768 objects), it jumps to the next span that is at most a quarter
//! full, so that a set full of objects is not searched slot by slot. A freed number counts as
//! allocated until the txg that freed it is committed (V5). In a new set the cursor starts behind
//! the first block of dnodes, as in OpenZFS (spec 02 §11).

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::{self, DNODE_SLOT_LEN, DNODE_SLOTS_MAX, OBJECT_MAX};
use cenote_rt::{Error, Kind};

use super::error::LiveError;
use super::layer::Head;
use super::stop::TxResult;
use super::tx::Tx;
use crate::objset::META_DNODE;

/// Slots of a block of dnodes.
const SLOTS: u64 = DNODE_SLOTS_MAX as u64;
/// Number of freed objects after which the search restarts at the first number.
const FREED_MIN: u64 = 1 << 17;

/// Position of the search for free numbers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    /// Next number to examine.
    pub(super) next: u64,
    /// Objects freed since the search restarted.
    pub(super) freed: u64,
}

impl Cursor {
    /// The cursor of a new set.
    pub(super) fn of_new_set() -> Self {
        Self { next: SLOTS, freed: 0 }
    }
}

/// Bit mask of the slots `slot .. slot + slots`.
fn mask(slot: u64, slots: usize) -> u32 {
    let run = if slots >= DNODE_SLOTS_MAX { u32::MAX } else { (1 << slots) - 1 };
    run.checked_shl(slot as u32).unwrap_or(0)
}

impl Tx<'_> {
    /// Finds a free number with `slots` slots.
    pub(super) fn find_number(&mut self, slots: usize) -> TxResult<u64> {
        let span = self.objects_per_l1();
        let limit = OBJECT_MAX;
        if self.cursor.freed >= FREED_MIN {
            self.cursor.freed = 0;
            self.cursor.next = 0;
        }
        while self.cursor.next < limit {
            if self.cursor.next.is_multiple_of(span) && !self.is_l1_spacious(self.cursor.next)? {
                self.cursor.next += span;
                continue;
            }
            let (block, slot) = (self.cursor.next / SLOTS, self.cursor.next % SLOTS);
            let taken = self.taken_slots(block)?;
            let last = SLOTS.saturating_sub(slots as u64);
            let free = (slot..=last).find(|slot| taken & mask(*slot, slots) == 0);
            if let Some(slot) = free {
                let object = block * SLOTS + slot;
                self.cursor.next = object + slots as u64;
                self.has_found_number = true;
                return Ok(object);
            }
            self.cursor.next = (block + 1) * SLOTS;
        }
        let error = Error::new(Kind::NoSpace, LiveError::NoNumber);
        Err(error.in_object(self.source.id, META_DNODE).into())
    }

    /// Checks that the requested number is free.
    pub(super) fn claim_number(&mut self, object: u64, slots: usize) -> TxResult<u64> {
        let (block, slot) = (object / SLOTS, object % SLOTS);
        if object == META_DNODE || object >= OBJECT_MAX || slot + slots as u64 > SLOTS {
            return Err(self.refuse(object, LiveError::Slots { object, slots }));
        }
        // Unlike the search, a claim may use a number that an earlier txg freed.
        let mut taken = self.base_slots(block)?;
        let below = self.source.below.iter().map(|below| (below.txg, &*below.layer));
        for (txg, layer) in below.chain([(self.txg, &self.overlay)]) {
            for (number, changes) in layer.objects.range(block * SLOTS..(block + 1) * SLOTS) {
                let bits = mask(number % SLOTS, changes.slots());
                match changes.head {
                    Head::Freed { .. } if txg < self.txg => taken &= !bits,
                    _ => taken |= bits,
                }
            }
        }
        // Checks V5.
        if taken & mask(slot, slots) != 0 {
            let error = Error::new(Kind::Exists, LiveError::Taken { object });
            return Err(error.in_object(self.source.id, object).into());
        }
        Ok(object)
    }

    /// Slots of a block of dnodes that must not be assigned.
    fn taken_slots(&self, block: u64) -> TxResult<u32> {
        // Object 0 is the meta-dnode itself.
        let mut taken = u32::from(block == 0);
        let meta = &self.source.base.phys.meta_dnode;
        let pointer = self.view().pointer(META_DNODE, meta, 0, block)?;
        if pointer.fill() >= SLOTS {
            return Ok(u32::MAX);
        }
        let below = self.source.below.iter().map(|below| &*below.layer);
        for layer in below.chain([&self.overlay]) {
            for (number, changes) in layer.objects.range(block * SLOTS..(block + 1) * SLOTS) {
                taken |= mask(number % SLOTS, changes.slots());
            }
        }
        Ok(taken | self.base_slots(block)?)
    }

    /// Slots that are allocated in a committed block of dnodes.
    fn base_slots(&self, block: u64) -> TxResult<u32> {
        let Some((bytes, _)) = self.view().meta_block(block * SLOTS)? else { return Ok(0) };
        let heads = dnode::slots(&bytes);
        let bits = heads.map(|(slot, bytes)| mask(slot as u64, bytes.len() / DNODE_SLOT_LEN));
        Ok(bits.fold(0, |taken, bits| taken | bits))
    }

    /// Objects under one level-1 block of the meta-dnode.
    fn objects_per_l1(&self) -> u64 {
        let meta = &self.source.base.phys.meta_dnode;
        SLOTS << meta.indirect_ptrs_shift()
    }

    /// Whether at most a quarter of the objects under a level-1 block are allocated.
    fn is_l1_spacious(&self, first: u64) -> TxResult<bool> {
        let (meta, span) = (&self.source.base.phys.meta_dnode, self.objects_per_l1());
        let fill = if meta.nlevels > 1 {
            self.view().pointer(META_DNODE, meta, 1, first / span)?.fill()
        } else {
            meta.blkptrs.iter().filter(|_| first == 0).map(BlockPtr::fill).sum()
        };
        Ok(fill <= span / 4)
    }
}
