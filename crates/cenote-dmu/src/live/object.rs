//! Allocates and frees objects, and changes their dnodes: types, bonus, spill.

use std::sync::Arc;

use cenote_block::{Seal, SentForm};
use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BLOCK_SIZE_MAX, BlockPtr, SECTOR_SIZE};
use cenote_ondisk::dnode::{
    DNODE_CORE_LEN, DNODE_SLOT_LEN, DNODE_SLOTS_MAX, DnodeFlags, DnodePhys, LEVELS_MAX,
    blkptr_count,
};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, BufMut, ensure, tunables};

use super::error::LiveError;
use super::layer::{ObjectLayer, SpillChange};
use super::stop::{ObjectSpec, TxResult};
use super::tx::Tx;

/// Largest spill block.
const SPILL_LEN_MAX: usize = 128 << 10;

impl Tx<'_> {
    /// Allocates an object, under the requested number or any.
    pub fn allocate(&mut self, spec: &ObjectSpec) -> TxResult<u64> {
        let slots = spec.slots.max(1);
        let indirect_shift = match spec.indirect_shift {
            0 => self.source.indirect_shift,
            shift => shift,
        };
        let head = match new_dnode(&ObjectSpec { indirect_shift, ..*spec }, slots) {
            Ok(head) => head,
            Err(cause) => return Err(self.refuse(spec.number.unwrap_or(0), cause)),
        };
        let object = match spec.number {
            Some(number) => self.claim_number(number, slots)?,
            None => self.find_number(slots)?,
        };
        let before = self.overlay.objects.insert(object, ObjectLayer::fresh(Arc::new(head)));
        ensure!("V5", before.is_none(), "object {object} was changed in this transaction");
        self.overlay.count_delta += 1;
        Ok(object)
    }

    /// Frees an object with all its blocks.
    pub fn free(&mut self, object: u64) -> TxResult<()> {
        self.touch(object)?.set_freed();
        self.overlay.count_delta -= 1;
        self.cursor.freed += 1;
        Ok(())
    }

    /// Changes the bonus; its length becomes that of `bytes`.
    pub fn set_bonus(&mut self, object: u64, bytes: &[u8]) -> TxResult<()> {
        let capacity = self.dnode(object)?.bonus_area.len();
        if bytes.len() > capacity {
            return Err(self.refuse(object, LiveError::BonusLength { len: bytes.len(), capacity }));
        }
        let head = self.head_mut(object)?;
        head.bonus_area.fill(0);
        if let Some(target) = head.bonus_area.get_mut(..bytes.len()) {
            target.copy_from_slice(bytes);
        }
        head.bonus_len = bytes.len() as u16;
        Ok(())
    }

    /// Sets the bonus of an object that another pool has encrypted: all of its area is ciphertext,
    /// of which `len` bytes are in use.
    pub fn set_sealed_bonus(&mut self, object: u64, len: usize, area: &[u8]) -> TxResult<()> {
        let Some(used) = u16::try_from(len).ok().filter(|_| len <= area.len()) else {
            return Err(self.refuse(object, LiveError::BonusLength { len, capacity: area.len() }));
        };
        self.set_bonus(object, area)?;
        self.head_mut(object)?.bonus_len = used;
        Ok(())
    }

    /// Records what protects the block of dnodes that begins with object `first`, which another
    /// pool has encrypted.
    pub fn seal_dnodes(&mut self, first: u64, seal: Seal) {
        self.overlay.seals.insert(first / DNODE_SLOTS_MAX as u64, seal);
    }

    /// Gives the tree of an object at least so many levels, and this highest block. Frees nothing:
    /// blocks beyond must have been freed.
    pub fn set_tree_shape(&mut self, object: u64, levels: u8, max_block: u64) -> TxResult<()> {
        let head = self.dnode(object)?;
        let present = head.nlevels;
        if levels < present || levels > LEVELS_MAX {
            return Err(self.refuse(object, LiveError::Levels { present, wanted: levels }));
        }
        if (present, head.maxblkid) != (levels, max_block) {
            let head = self.head_mut(object)?;
            (head.nlevels, head.maxblkid) = (levels, max_block);
        }
        Ok(())
    }

    /// Changes the type of an object, as when a ZAP is created in a directory object.
    pub fn set_object_type(&mut self, object: u64, object_type: ObjectType) -> TxResult<()> {
        if !object_type.is_valid() || object_type == ObjectType::NONE {
            return Err(self.refuse(object, LiveError::ObjectType(object_type.0)));
        }
        self.head_mut(object)?.object_type = object_type;
        Ok(())
    }

    /// Changes the type of the bonus.
    pub fn set_bonus_type(&mut self, object: u64, bonus_type: ObjectType) -> TxResult<()> {
        if !bonus_type.is_valid() {
            return Err(self.refuse(object, LiveError::ObjectType(bonus_type.0)));
        }
        self.head_mut(object)?.bonus_type = bonus_type;
        Ok(())
    }

    /// Sets the object's own checksum and compression functions, 0 to use the dataset's.
    pub fn set_block_policy(&mut self, object: u64, checksum: u8, compression: u8) -> TxResult<()> {
        let head = self.dnode(object)?;
        if (head.checksum, head.compress) == (checksum, compression) {
            return Ok(());
        }
        let head = self.head_mut(object)?;
        (head.checksum, head.compress) = (checksum, compression);
        Ok(())
    }

    /// Sets or removes the spill block. With one, the bonus has 128 bytes less room.
    pub fn set_spill(&mut self, object: u64, spill: Option<&[u8]>) -> TxResult<()> {
        let Some(bytes) = spill else {
            let head = self.head_mut(object)?;
            if head.spill.take().is_some() {
                head.flags.remove(DnodeFlags::SPILL_BLKPTR);
                head.bonus_area.resize(head.bonus_area.len() + BLOCK_PTR_LEN, 0);
                self.touch(object)?.spill = SpillChange::Removed;
            }
            return Ok(());
        };
        self.check_spill_len(object, bytes.len())?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(self.refuse(object, LiveError::SpillZero));
        }
        let mut block = BufMut::for_filling(bytes.len());
        block.copy_from_slice(bytes);
        self.put_spill(object, block.freeze(), None)
    }

    /// Sets the spill block to one that was sent in this form.
    pub fn set_sent_spill(&mut self, object: u64, block: Buf, form: SentForm) -> TxResult<()> {
        self.check_spill_len(object, block.len())?;
        self.put_spill(object, block, Some(form))
    }

    fn check_spill_len(&self, object: u64, len: usize) -> TxResult<()> {
        if len == 0 || len > SPILL_LEN_MAX || !len.is_multiple_of(SECTOR_SIZE as usize) {
            return Err(self.refuse(object, LiveError::SpillLength { len }));
        }
        Ok(())
    }

    fn put_spill(&mut self, object: u64, block: Buf, form: Option<SentForm>) -> TxResult<()> {
        let head = self.dnode(object)?;
        if head.spill.is_none() {
            let (len, area) = (usize::from(head.bonus_len), head.bonus_area.len());
            let Some(capacity) = area.checked_sub(BLOCK_PTR_LEN).filter(|room| *room >= len) else {
                let capacity = area.saturating_sub(BLOCK_PTR_LEN);
                return Err(self.refuse(object, LiveError::BonusLength { len, capacity }));
            };
            let head = self.head_mut(object)?;
            // Bytes behind the bonus could be mistaken for an old pointer (spec 02 §7.6).
            head.bonus_area.truncate(capacity);
            head.spill = Some(BlockPtr::HOLE);
            head.flags.insert(DnodeFlags::SPILL_BLKPTR);
        }
        self.touch(object)?.spill = SpillChange::Set(block, form);
        Ok(())
    }

    /// Creates one of the accounting objects, which have no slots in the meta-dnode.
    pub(super) fn make_special(&mut self, object: u64) -> TxResult<()> {
        if self.find(object)?.is_none() {
            let spec = ObjectSpec::new(ObjectType::USERGROUP_USED, SECTOR_SIZE);
            let head = new_dnode(&spec, 1).map_err(|cause| self.refuse(object, cause))?;
            self.overlay.objects.insert(object, ObjectLayer::fresh(Arc::new(head)));
        }
        Ok(())
    }
}

/// A dnode without blocks.
pub(super) fn new_dnode(spec: &ObjectSpec, slots: usize) -> Result<DnodePhys, LiveError> {
    if slots > DNODE_SLOTS_MAX {
        return Err(LiveError::Slots { object: 0, slots });
    }
    if !spec.object_type.is_valid() || spec.object_type == ObjectType::NONE {
        return Err(LiveError::ObjectType(spec.object_type.0));
    }
    if !spec.bonus_type.is_valid() {
        return Err(LiveError::ObjectType(spec.bonus_type.0));
    }
    let block_size = spec.block_size.max(1).next_multiple_of(SECTOR_SIZE);
    if block_size > BLOCK_SIZE_MAX {
        return Err(LiveError::BlockSize { size: spec.block_size });
    }
    let capacity = slots * DNODE_SLOT_LEN - DNODE_CORE_LEN - BLOCK_PTR_LEN;
    if spec.bonus_len > capacity {
        return Err(LiveError::BonusLength { len: spec.bonus_len, capacity });
    }
    let indblkshift = match spec.indirect_shift {
        0 => tunables::DEFAULT_IBS.get() as u8,
        shift => shift.clamp(12, 17),
    };
    let behind = spec.bonus_len + if spec.has_spill { BLOCK_PTR_LEN } else { 0 };
    let pointers = blkptr_count(spec.bonus_type, behind, slots);
    let area = slots * DNODE_SLOT_LEN - DNODE_CORE_LEN - pointers * BLOCK_PTR_LEN;
    Ok(DnodePhys {
        object_type: spec.object_type,
        indblkshift,
        nlevels: 1,
        bonus_type: spec.bonus_type,
        checksum: 0,
        compress: 0,
        flags: DnodeFlags::empty(),
        data_block_sectors: (block_size / SECTOR_SIZE) as u16,
        bonus_len: spec.bonus_len as u16,
        extra_slots: (slots - 1) as u8,
        maxblkid: 0,
        used: 0,
        reserved: [0; 35],
        blkptrs: vec![BlockPtr::HOLE; pointers],
        bonus_area: vec![0; area],
        spill: None,
    })
}
