//! Changes space maps: create, append, truncate, histogram (spec 05 §2.6-§2.8).
//!
//! The owner decides the meaning of a map's ranges, and when it is condensed; this module appends
//! words to the stream and updates the header.
//!
//! Invariants
//! * S1  An entry lies within the range of its map and consists of whole sectors.
//! * S2  The ranges of one append are disjoint and ascend.
//! * S3  A map does not count more allocated or freed bytes than its range has, except a log, which
//!   covers all vdevs.

use std::ops::Range;

use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::spacemap::{
    Action, Decoder, Entry, Geometry, HISTOGRAM_BUCKETS, Item, SPACE_MAP_PHYS_LEN,
    SPACE_MAP_V0_LEN, Writer, entry,
};
use cenote_ondisk::words;
use cenote_rt::{Kind, ensure};

use crate::error::DmuError;
use crate::live::{ObjectSpec, TxResult};
use crate::objects::{Objects, corrupt, expect_type, fail};

pub use super::header;

/// Log2 of the size of indirect blocks of a space map.
const INDIRECT_SHIFT: u8 = 14;

/// Layout of a space map object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapFormat {
    /// Bytes of a data block.
    pub block_size: u64,
    /// Whether the header has a histogram (feature spacemap_histogram; the owner counts it).
    pub has_histogram: bool,
}

impl MapFormat {
    const fn header_len(self) -> usize {
        if self.has_histogram { SPACE_MAP_PHYS_LEN } else { SPACE_MAP_V0_LEN }
    }
}

/// Txg and pass of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Txg.
    pub txg: u64,
    /// Sync pass.
    pub pass: u32,
}

/// Encoding of ranges as words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFormat {
    /// Offset, size and unit of the map.
    pub geometry: Geometry,
    /// Whether two-word entries may be used (feature spacemap_v2).
    pub has_v2: bool,
    /// Id of the vdev, in log space maps.
    pub vdev: Option<u32>,
}

/// Creates an empty map.
pub fn create(tx: &mut dyn Objects, form: &MapFormat) -> TxResult<u64> {
    let spec = ObjectSpec {
        indirect_shift: INDIRECT_SHIFT,
        ..ObjectSpec::new(ObjectType::SPACE_MAP, form.block_size)
    };
    tx.allocate(&spec.with_bonus(ObjectType::SPACE_MAP_HEADER, form.header_len()))
}

/// Length of the words in bytes, and whether the header has a histogram.
pub fn length(tx: &mut dyn Objects, object: u64) -> TxResult<(u64, bool)> {
    header(tx, object).map(|phys| (phys.length, phys.histogram.is_some()))
}

/// Appends ranges, disjoint and ascending; without ranges the map does not change.
pub fn append(
    tx: &mut dyn Objects,
    object: u64,
    form: &EntryFormat,
    action: Action,
    ranges: impl IntoIterator<Item = Range<u64>>,
    stamp: Stamp,
) -> TxResult<()> {
    let mut phys = header(tx, object)?;
    let block_size = tx.dnode(object)?.data_block_size();
    let mut writer = Writer::new(form.geometry.shift, block_size, phys.length);
    let (mut total, mut end) = (0_u64, 0);
    for range in ranges {
        if total == 0 {
            let pass = stamp.pass as u16;
            writer.stamp(entry::Stamp { action, pass, txg: stamp.txg });
        }
        let entry = placed(object, form, action, &range)?;
        let start = range.start;
        ensure!("S2", start >= end, "a range from {start:#x} after one to {end:#x}");
        end = range.end;
        writer.range(entry, form.has_v2);
        total = total.wrapping_add(entry.size);
    }
    if total == 0 {
        return Ok(());
    }
    let bytes = words::to_bytes(writer.words());
    tx.write(object, phys.length, &bytes)?;
    phys.object = object;
    phys.length = phys.length.wrapping_add(bytes.len() as u64);
    phys.allocated = match action {
        Action::Alloc => phys.allocated.wrapping_add_unsigned(total),
        Action::Free => phys.allocated.wrapping_sub_unsigned(total),
    };
    let (allocated, size) = (phys.allocated, form.geometry.size);
    let is_within = form.vdev.is_some() || allocated.unsigned_abs() <= size;
    ensure!("S3", is_within, "the space map {object} of {size} bytes counts {allocated}");
    tx.set_bonus(object, &phys.encode())
}

/// Empties a map; creates a new object if the present one does not have the wanted layout. Returns
/// the number of the object, which may differ.
pub fn truncate(tx: &mut dyn Objects, object: u64, form: &MapFormat) -> TxResult<u64> {
    let dnode = expect_type(tx, object, ObjectType::SPACE_MAP, "a space map")?;
    let must_move = (form.has_histogram && usize::from(dnode.bonus_len) != form.header_len())
        || dnode.data_block_size() != form.block_size
        || dnode.indblkshift != INDIRECT_SHIFT;
    if must_move {
        tx.free(object)?;
        return create(tx, form);
    }
    let mut phys = header(tx, object)?;
    tx.free_range(object, 0, None)?;
    (phys.length, phys.allocated) = (0, 0);
    phys.histogram = phys.histogram.map(|_| [0; HISTOGRAM_BUCKETS]);
    tx.set_bonus(object, &phys.encode())?;
    Ok(object)
}

/// Removes entries from the end of a map, in whole data blocks and at most `max` bytes of words,
/// but at least one block (spec 05 §2.7). Returned in ascending order of the stream; empty if the
/// map is.
pub fn take_last(
    tx: &mut dyn Objects,
    object: u64,
    geometry: &Geometry,
    max: u64,
) -> TxResult<Vec<Entry>> {
    let mut phys = header(tx, object)?;
    let block_size = tx.dnode(object)?.data_block_size();
    let last = phys.length.saturating_sub(1) / block_size;
    let blocks = (max / block_size).max(1);
    let start = if phys.length == 0 { 0 } else { (last + 1).saturating_sub(blocks) * block_size };
    let mut decoder = Decoder::new(*geometry);
    let mut entries = Vec::new();
    for offset in (start..phys.length).step_by(block_size as usize) {
        let len = block_size.min(phys.length - offset);
        let data = tx.read(object, offset, len as usize)?;
        for item in decoder.block(&data) {
            if let Item::Entry(entry) = item.map_err(|error| corrupt(object, error))? {
                entries.push(entry);
            }
        }
    }
    for entry in &entries {
        phys.allocated = match entry.action {
            Action::Alloc => phys.allocated.wrapping_sub_unsigned(entry.size),
            Action::Free => phys.allocated.wrapping_add_unsigned(entry.size),
        };
    }
    if phys.length > 0 {
        tx.free_range(object, start, None)?;
        phys.length = start;
        tx.set_bonus(object, &phys.encode())?;
    }
    Ok(entries)
}

/// Replaces the histogram, if the header has one.
pub fn set_histogram(
    tx: &mut dyn Objects,
    object: u64,
    histogram: &[u64; HISTOGRAM_BUCKETS],
) -> TxResult<()> {
    let mut phys = header(tx, object)?;
    if phys.histogram.is_some_and(|old| old != *histogram) {
        phys.histogram = Some(*histogram);
        tx.set_bonus(object, &phys.encode())?;
    }
    Ok(())
}

/// Encodes a range as an entry, relative to the map's start.
fn placed(object: u64, form: &EntryFormat, action: Action, range: &Range<u64>) -> TxResult<Entry> {
    let Geometry { start, size, shift } = form.geometry;
    let (Range { start: from, end }, unit) = (range, 1_u64 << shift);
    let relative = from.checked_sub(start);
    let len = end.checked_sub(*from).filter(|len| *len > 0 && len.is_multiple_of(unit));
    // Checks S1.
    if let (Some(offset), Some(len)) = (relative, len)
        && offset.is_multiple_of(unit)
        && offset.checked_add(len).is_some_and(|end| end <= size)
    {
        return Ok(Entry { action, offset, size: len, vdev: form.vdev });
    }
    fail(Kind::Invariant, object, DmuError::Range { start: *from, end: *end, shift })
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
