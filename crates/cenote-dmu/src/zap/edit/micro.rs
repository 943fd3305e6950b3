//! Micro ZAPs: one slot is written per change; conversion of full ones (spec 03 §2, §6.1).

use std::collections::BTreeMap;

use cenote_ondisk::zap::micro::MicroEntry;
use cenote_ondisk::zap::micro_edit::{
    CONVERTED_SHIFT, MICRO_LEN_MAX, MICRO_STEP, Room, fits_leaf, fits_slot, slot_bytes, slot_offset,
};
use cenote_ondisk::zap::{Entry, FatHeader, Key, KeyRef, MicroZap, Value, leaf_edit};
use cenote_rt::Buf;

use super::{Body, Fat, Present, decode_micro, exists, open};
use crate::live::TxResult;
use crate::objects::Objects;

/// Stores an entry that fits a slot; returns false if the ZAP must be converted to a fat one.
pub(super) fn put(
    tx: &mut dyn Objects,
    object: u64,
    block: &Buf,
    key: &KeyRef<'_>,
    value: &Value,
    present: Present,
) -> TxResult<bool> {
    let (KeyRef::Name(name), Some(value)) = (key, value.single()) else { return Ok(false) };
    let zap = decode_micro(object, block)?;
    let (slot, cd) = match zap.room_for(name) {
        Room::Slot { slot, cd } => (slot, cd),
        Room::Convert => return Ok(false),
        Room::Taken if present == Present::Refuse => return Err(exists(object, key)),
        Room::Taken => {
            let Some(found) = zap.get(name) else { return Ok(false) };
            let offset = slot_offset(found.slot) as u64;
            tx.write(object, offset, &value.to_le_bytes())?;
            return Ok(true);
        }
        Room::Grow => {
            let size = block.len().saturating_add(MICRO_STEP);
            if size > MICRO_LEN_MAX {
                return Ok(false);
            }
            let mut grown = block.to_vec();
            grown.resize(size, 0);
            return put_grown(tx, object, grown, name, value);
        }
    };
    let entry = MicroEntry { slot, name, value, cd };
    tx.write(object, slot_offset(slot) as u64, &slot_bytes(Some(&entry)))?;
    Ok(true)
}

/// Stores an entry in a block that was extended by new slots.
fn put_grown(
    tx: &mut dyn Objects,
    object: u64,
    mut block: Vec<u8>,
    name: &[u8],
    value: u64,
) -> TxResult<bool> {
    let room = MicroZap::decode(&block).map(|zap| zap.room_for(name));
    let Ok(Room::Slot { slot, cd }) = room else { return Ok(false) };
    let bytes = slot_bytes(Some(&MicroEntry { slot, name, value, cd }));
    let room = block.get_mut(slot_offset(slot)..).unwrap_or(&mut []);
    room.iter_mut().zip(bytes).for_each(|(byte, new)| *byte = new);
    tx.set_block_size(object, block.len() as u64)?;
    tx.write_block(object, 0, block.into())?;
    Ok(true)
}

/// Stores numbers by name in an empty micro ZAP, which gets fat if they do not fit: whatever their
/// count in the time that writing them takes. The names are different.
pub fn fill(tx: &mut dyn Objects, object: u64, entries: &[(String, u64)]) -> TxResult<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let Body::Micro(empty) = open(tx, object)? else {
        return Err(exists(object, &KeyRef::Name(&[])));
    };
    let hash = decode_micro(object, &empty)?.hash();
    // Names with one hash are told apart by how many came before.
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    let hashed: Vec<(u64, u32)> = entries
        .iter()
        .map(|(name, _)| {
            let hash = hash.name(name.as_bytes());
            let count = counts.entry(hash).or_default();
            *count += 1;
            (hash, *count - 1)
        })
        .collect();
    let len = slot_offset(entries.len()).next_multiple_of(MICRO_STEP);
    let fits = |name: &str| fits_slot(&KeyRef::from(name), &Value::U64(0));
    let is_micro = len <= MICRO_LEN_MAX
        && entries.iter().all(|(name, _)| fits(name))
        && counts.values().all(|count| fits_leaf(*count as usize));
    if !is_micro {
        let mut fat = convert(tx, object)?;
        for ((name, value), (hash, cd)) in entries.iter().zip(hashed) {
            let (key, value) = (Key::Name(name.clone().into_bytes()), Value::U64(*value));
            fat.restore(&Entry { hash, cd, key, value })?;
        }
        return fat.finish();
    }
    let mut block = empty.to_vec();
    block.truncate(slot_offset(0));
    for (slot, ((name, value), (_, cd))) in entries.iter().zip(hashed).enumerate() {
        let entry = MicroEntry { slot, name: name.as_bytes(), value: *value, cd };
        block.extend(slot_bytes(Some(&entry)));
    }
    block.resize(len, 0);
    tx.set_block_size(object, len as u64)?;
    tx.write_block(object, 0, block.into())
}

/// Clears the slot of a name.
pub(super) fn remove(
    tx: &mut dyn Objects,
    object: u64,
    block: &Buf,
    key: &KeyRef<'_>,
) -> TxResult<Option<Value>> {
    let KeyRef::Name(name) = key else { return Ok(None) };
    let Some(found) = decode_micro(object, block)?.get(name) else { return Ok(None) };
    tx.write(object, slot_offset(found.slot) as u64, &slot_bytes(None))?;
    Ok(Some(Value::U64(found.value)))
}

/// Converts a micro ZAP to a fat one. Hashes and differentiators stay, so cursors stay valid.
pub(super) fn convert<'t>(
    tx: &'t mut (dyn Objects + 't),
    object: u64,
) -> TxResult<Fat<'t, dyn Objects + 't>> {
    let block = match open(tx, object)? {
        Body::Micro(block) => block,
        Body::Fat(block) => return Fat::open(tx, object, block),
    };
    let zap = decode_micro(object, &block)?;
    let hash = zap.hash();
    tx.set_block_size(object, 1 << CONVERTED_SHIFT)?;
    let header = FatHeader::fresh(CONVERTED_SHIFT, hash);
    let leaf = leaf_edit::format(CONVERTED_SHIFT, 0, 0, !hash.normflags.is_empty());
    let mut fat = Fat::fresh(tx, object, header, leaf);
    for slot in zap.slots() {
        let (hash, key) = (hash.name(slot.name), Key::Name(slot.name.to_vec()));
        fat.restore(&Entry { hash, cd: slot.cd, key, value: Value::U64(slot.value) })?;
    }
    Ok(fat)
}
