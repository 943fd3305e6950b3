//! Appends to the pool's history (spec 01 §13, 04 §23).
//!
//!     creation part, kept for ever | ring: new records replace the oldest ones
//!
//! Until the first command is recorded there is no creation part, and everything is ring. With that
//! command all records so far become the creation part, and the ring begins behind it.

use std::ops::Range;

use cenote_ondisk::endian::Endian;
use cenote_ondisk::history::{HISTORY_PHYS_LEN, HistoryPhys, key};
use cenote_ondisk::nvlist::{Encoding, NvList};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::words;
use cenote_rt::Kind;

use crate::error::DmuError;
use crate::live::{ObjectSpec, TxResult};
use crate::objects::{Objects, corrupt, expect_type, fail};

const BLOCK_SIZE: u64 = 128 << 10;
/// Smallest and largest size of a history, in bytes.
const SIZE_RANGE: (u64, u64) = (128 << 10, 1 << 30);

/// Size of the history of a pool with `usable` bytes in its normal class.
#[must_use]
pub fn size_for(usable: u64) -> u64 {
    (usable / 1000).clamp(SIZE_RANGE.0, SIZE_RANGE.1)
}

/// Creates an empty history.
pub fn create(tx: &mut dyn Objects, usable: u64) -> TxResult<u64> {
    let spec = ObjectSpec::new(ObjectType::SPA_HISTORY, BLOCK_SIZE)
        .with_bonus(ObjectType::SPA_HISTORY_OFFSETS, HISTORY_PHYS_LEN);
    let object = tx.allocate(&spec)?;
    let phys = HistoryPhys { phys_max_off: size_for(usable), ..HistoryPhys::default() };
    tx.set_bonus(object, &phys.encode())?;
    Ok(object)
}

/// Appends a record. `Kind::Limit` if it is larger than the whole ring.
pub fn append(tx: &mut dyn Objects, object: u64, record: &NvList) -> TxResult<()> {
    let dnode = expect_type(tx, object, ObjectType::SPA_HISTORY, "a history")?;
    let mut phys = HistoryPhys::decode(dnode.bonus()).map_err(|error| corrupt(object, error))?;
    let bytes = record.encode(Encoding::Native(Endian::Little));
    let ring = phys.phys_max_off - phys.create_len;
    if bytes.len() as u64 + 8 >= ring {
        let cause = DmuError::HistoryRecord { len: bytes.len(), ring };
        return fail(Kind::Limit, object, cause);
    }
    put(tx, object, &mut phys, &(bytes.len() as u64).to_le_bytes())?;
    put(tx, object, &mut phys, &bytes)?;
    if phys.create_len == 0 && record.contains(key::COMMAND) {
        phys.create_len = phys.eof;
        phys.bof = phys.eof;
    }
    tx.set_bonus(object, &phys.encode())
}

/// Returns the end of the history, which only grows, and the records from an earlier end on; none
/// if they have more than `most` bytes. Overwritten ones are left out.
pub fn records_from(
    tx: &mut dyn Objects,
    object: u64,
    from: u64,
    most: usize,
) -> TxResult<(u64, Vec<u8>)> {
    let dnode = expect_type(tx, object, ObjectType::SPA_HISTORY, "a history")?;
    let phys = HistoryPhys::decode(dnode.bonus()).map_err(|error| corrupt(object, error))?;
    // The creation part is not overwritten, and the ring begins behind it.
    let parts = [from.min(phys.create_len)..phys.create_len, from.max(phys.bof)..phys.eof];
    let len = |part: &Range<u64>| part.end.saturating_sub(part.start);
    let mut bytes = Vec::new();
    if parts.iter().map(len).fold(0, u64::saturating_add) <= most as u64 {
        for part in parts.iter().filter(|part| !part.is_empty()) {
            bytes.extend(get(tx, object, &phys, part.start, len(part) as usize)?);
        }
    }
    Ok((phys.eof, bytes))
}

/// Writes a piece at the end; drops the oldest records until it fits.
fn put(tx: &mut dyn Objects, object: u64, phys: &mut HistoryPhys, bytes: &[u8]) -> TxResult<()> {
    let (ring, len) = (phys.phys_max_off - phys.create_len, bytes.len() as u64);
    while ring - (phys.eof - phys.bof) <= len {
        let head = get(tx, object, phys, phys.bof, 8)?;
        let record = words::u64_at(&head, 0).unwrap_or(0).saturating_add(8);
        let bof = phys.bof.saturating_add(record);
        if bof > phys.eof {
            // The records are damaged: start over with the new one.
            phys.bof = phys.eof;
        } else {
            phys.bof = bof;
        }
        phys.records_lost = phys.records_lost.wrapping_add(1);
    }
    let first = phys.physical(phys.eof);
    let until_end = (phys.phys_max_off - first).min(len) as usize;
    let (head, tail) = bytes.split_at(until_end);
    tx.write(object, first, head)?;
    if !tail.is_empty() {
        tx.write(object, phys.create_len, tail)?;
    }
    phys.eof = phys.eof.saturating_add(len);
    Ok(())
}

fn get(
    tx: &mut dyn Objects,
    object: u64,
    phys: &HistoryPhys,
    logical: u64,
    len: usize,
) -> TxResult<Vec<u8>> {
    let first = phys.physical(logical);
    let until_end = (phys.phys_max_off - first).min(len as u64) as usize;
    let mut bytes = tx.read(object, first, until_end)?;
    if until_end < len {
        bytes.extend(tx.read(object, phys.create_len, len - until_end)?);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
