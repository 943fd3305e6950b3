//! Dnodes: OBJECT and FREEOBJECTS (spec 07 B9.4).
//!
//! ```text
//!   free number                       allocated with exactly this number, type, sizes, slots
//!   slots or fewer pointers differ    freed; allocated anew in a later txg
//!   another file with other blocks    contents freed, dnode set
//!   the same file, larger blocks      contents and block size kept (the sender switched to -L)
//!   else                              dnode set, contents kept
//! ```
//!
//! An object of an increment may be the file that was received before, or another file that got its
//! number. Blocks that did not change are not sent, so contents are kept unless it is certain that
//! they belong to another file, whose blocks are all sent.

use std::ops::Range;

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::dnode::{DnodePhys, blkptr_count};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::SaHeader;
use cenote_ondisk::stream::{Object, ObjectFlags, object_type};

use super::ReceiveError;

/// Where the generation is behind the header of system attributes, in every layout.
const SA_GENERATION: usize = 16;
/// Where it is in a legacy znode.
const ZNODE_GENERATION: usize = 64;

/// Rules of a stream for its objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectRules {
    /// The whole snapshot is sent.
    pub(super) is_full: bool,
    /// Each object says whether it keeps its spill block.
    pub(super) has_spill_flags: bool,
    /// The pool has the feature of zstd.
    pub(super) has_zstd: bool,
}

/// Result of applying an OBJECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// The object is as the record says.
    Done,
    /// Numbers were freed that can be claimed in a later txg.
    Freed,
}

/// Applies an OBJECT.
pub(super) fn put(
    tx: &mut Tx<'_>,
    record: &Object,
    bonus: &[u8],
    rules: ObjectRules,
) -> TxResult<Put> {
    let (kind, bonus_kind) = types(record)?;
    let (object, slots) = (record.object, record.slot_count());
    let mut has_freed = free_inner(tx, object, slots)?;
    let before = tx.find(object)?;
    if let Some(before) = &before
        && (before.slots() as u64 != slots
            || blkptr_count(bonus_kind, bonus.len(), slots as usize) < before.blkptrs().len())
    {
        tx.free(object)?;
        has_freed = true;
    }
    if has_freed {
        return Ok(Put::Freed);
    }
    match before {
        None => {
            let spec = ObjectSpec {
                slots: slots as usize,
                ..ObjectSpec::new(kind, record.block_size.into())
                    .with_bonus(bonus_kind, bonus.len())
                    .with_number(object)
            };
            tx.allocate(&spec)?;
        }
        Some(before) => change(tx, record, (kind, bonus_kind), bonus, &before, rules)?,
    }
    let (checksum, compression) = block_policy(record, rules);
    tx.set_block_policy(object, checksum, compression)?;
    tx.set_bonus(object, bonus)?;
    Ok(Put::Done)
}

/// Frees the objects within the slots of another one; returns whether there were any.
pub(super) fn free_inner(tx: &mut Tx<'_>, object: u64, slots: u64) -> TxResult<bool> {
    let mut has_freed = false;
    for inner in object + 1..object.saturating_add(slots) {
        if tx.find(inner)?.is_some() {
            tx.free(inner)?;
            has_freed = true;
        }
    }
    Ok(has_freed)
}

/// Refuses a spill block of an object that cannot have one.
pub(super) fn check_spill(tx: &mut Tx<'_>, object: u64) -> TxResult<()> {
    let dnode = tx.find(object)?.ok_or(ReceiveError::NoObject { object })?;
    if dnode.bonus_type != ObjectType::SA {
        return Err(ReceiveError::Spill { object }.into());
    }
    Ok(())
}

/// Returns the types of an object and of its bonus. Blocks of dnodes and object sets are no
/// objects.
pub(super) fn types(record: &Object) -> TxResult<(ObjectType, ObjectType)> {
    let invalid = |kind| ReceiveError::ObjectType { object: record.object, kind };
    let is_content = |kind: &ObjectType| {
        !matches!(*kind, ObjectType::NONE | ObjectType::DNODE | ObjectType::OBJSET)
    };
    let kind = object_type(record.kind).filter(is_content).ok_or_else(|| invalid(record.kind))?;
    let bonus = object_type(record.bonus_kind).ok_or_else(|| invalid(record.bonus_kind))?;
    Ok((kind, bonus))
}

/// Changes an existing object with the same slots.
fn change(
    tx: &mut Tx<'_>,
    record: &Object,
    (kind, bonus_kind): (ObjectType, ObjectType),
    bonus: &[u8],
    before: &DnodePhys,
    rules: ObjectRules,
) -> TxResult<()> {
    let object = record.object;
    let found = before.data_block_size();
    let mut block_size = u64::from(record.block_size);
    if block_size != found {
        let is_file = [kind, before.object_type] == [ObjectType::PLAIN_FILE_CONTENTS; 2];
        if is_file && !rules.is_full && before.maxblkid > 0 && is_same_file(record, bonus, before)?
        {
            if block_size < found {
                let wanted = block_size;
                return Err(ReceiveError::BlockSize { object, found, wanted }.into());
            }
            block_size = found;
        } else {
            tx.free_range(object, 0, None)?;
        }
    }
    let record = &Object { block_size: block_size as u32, ..*record };
    retype(tx, record, (kind, bonus_kind), before, rules)
}

/// Gives an existing object the types and the block size of the record, and removes a spill block
/// that the sender does not have.
pub(super) fn retype(
    tx: &mut Tx<'_>,
    record: &Object,
    (kind, bonus_kind): (ObjectType, ObjectType),
    before: &DnodePhys,
    rules: ObjectRules,
) -> TxResult<()> {
    let (object, block_size) = (record.object, u64::from(record.block_size));
    let keeps_spill = record.flags.contains(ObjectFlags::SPILL);
    let is_changed = kind != before.object_type
        || block_size != before.data_block_size()
        || bonus_kind != before.bonus_type
        || record.bonus_len as usize != before.bonus().len();
    if !keeps_spill && (is_changed || rules.has_spill_flags) {
        tx.set_spill(object, None)?;
    }
    if is_changed {
        tx.set_object_type(object, kind)?;
        tx.set_bonus_type(object, bonus_kind)?;
        tx.set_block_size(object, block_size)?;
    }
    Ok(())
}

/// Whether an object is the file that was received before, and not another one with its number:
/// their generations tell.
fn is_same_file(record: &Object, bonus: &[u8], before: &DnodePhys) -> TxResult<bool> {
    let (_, bonus_kind) = types(record)?;
    let generations =
        generation(bonus_kind, bonus).zip(generation(before.bonus_type, before.bonus()));
    let (sent, received) = generations.ok_or_else(|| ReceiveError::BlockSize {
        object: record.object,
        found: before.data_block_size(),
        wanted: record.block_size.into(),
    })?;
    Ok(sent == received)
}

/// Returns the generation of a file in its bonus (spec 03 §8.5, §14).
fn generation(kind: ObjectType, bonus: &[u8]) -> Option<u64> {
    let (at, order) = match kind {
        ObjectType::SA => {
            let header = SaHeader::decode(bonus).ok().flatten()?;
            (header.size.checked_add(SA_GENERATION)?, header.order)
        }
        ObjectType::ZNODE => (ZNODE_GENERATION, Endian::Little),
        _ => return None,
    };
    bonus.get(at..)?.first_chunk().map(|word| order.u64(*word))
}

/// Returns the checksum and compression of an object's own. Functions that need a feature of the
/// pool are replaced by the dataset's, unless the stream requires the feature.
fn block_policy(record: &Object, rules: ObjectRules) -> (u8, u8) {
    use ChecksumType as C;
    let checksum = match C::from_id(record.checksum) {
        None | Some(C::Sha512 | C::Skein | C::EdonR | C::Blake3) => 0,
        Some(_) => record.checksum,
    };
    let compression = match CompressionType::from_id(record.compression) {
        None => 0,
        Some(CompressionType::Zstd) if !rules.has_zstd => 0,
        Some(_) => record.compression,
    };
    (checksum, compression)
}

/// Frees at most `max` of the objects in `range`. Returns the number at which to continue.
pub(super) fn free_some(tx: &mut Tx<'_>, range: Range<u64>, max: usize) -> TxResult<u64> {
    let mut next = range.start;
    for _ in 0..max {
        match tx.next_object(next)? {
            Some(object) if object < range.end => {
                tx.free(object)?;
                next = object + 1;
            }
            _ => return Ok(range.end),
        }
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_of_both_kinds_of_file_systems() {
        let mut znode = vec![0; 264];
        znode[64..72].copy_from_slice(&7_u64.to_le_bytes());
        assert_eq!(generation(ObjectType::ZNODE, &znode), Some(7));
        let mut attributes = vec![0; 168];
        attributes[..4].copy_from_slice(&0x002f_505a_u32.to_le_bytes());
        attributes[4..6].copy_from_slice(&(1_u16 << 10 | 2).to_le_bytes());
        attributes[24..32].copy_from_slice(&9_u64.to_le_bytes());
        assert_eq!(generation(ObjectType::SA, &attributes), Some(9));
        assert_eq!(generation(ObjectType::NONE, &attributes), None);
        assert_eq!(generation(ObjectType::SA, &attributes[..24]), None);
    }
}
