//! Changes the queue of destroyed object sets (spec 04 §12).
//!
//!     add ──> end ... begin ──> advance, step by step: subtract the freed space, store where to
//!             resume; at the end of an entry `begin` advances and the entry becomes zeros
//!
//! This module only keeps the queue; the caller walks the trees and frees their blocks. A damaged
//! entry stays first; later entries that are finished are marked, and removed together with it.
//!
//! Invariants
//! * Q1  Only entries from `begin` to `end` are changed, and a queue is freed only without entries.

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::bptree::{BPTREE_PHYS_LEN, BptreeEntry, BptreePhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Kind, ensure};

use super::ENTRY_LEN;
use crate::error::DmuError;
use crate::live::{ObjectSpec, TxResult};
use crate::objects::{Objects, fail};
use crate::space::Space;

pub use super::{entry, header};

const BLOCK_SIZE: u64 = 128 << 10;

/// Creates an empty queue.
pub fn create(tx: &mut dyn Objects) -> TxResult<u64> {
    let spec = ObjectSpec::new(ObjectType::UINT64_METADATA, BLOCK_SIZE);
    tx.allocate(&spec.with_bonus(ObjectType::UINT64_METADATA, BPTREE_PHYS_LEN))
}

/// Whether the queue is empty.
pub fn is_empty(tx: &mut dyn Objects, object: u64) -> TxResult<bool> {
    header(tx, object).map(|phys| phys.begin == phys.end)
}

/// Adds the root of an object set; its blocks born after `birth_txg` are to be freed, and `space`
/// is charged for them.
pub fn add(
    tx: &mut dyn Objects,
    object: u64,
    root: &BlockPtr,
    birth_txg: u64,
    space: Space,
) -> TxResult<()> {
    let mut phys = header(tx, object)?;
    let entry = BptreeEntry { bp: *root, birth_txg, resume: Bookmark::default() };
    tx.write(object, phys.end * ENTRY_LEN, &entry.encode())?;
    phys.end += 1;
    phys.bytes = phys.bytes.wrapping_add(space.used);
    phys.comp = phys.comp.wrapping_add(space.comp);
    phys.uncomp = phys.uncomp.wrapping_add(space.uncomp);
    tx.set_bonus(object, &phys.encode())
}

/// The entry to work on; `None` if the queue is empty.
pub fn first(tx: &mut dyn Objects, object: u64) -> TxResult<Option<(u64, BptreeEntry)>> {
    let phys = header(tx, object)?;
    for index in phys.begin..phys.end {
        let entry = entry(tx, object, index)?;
        if !entry.is_done() {
            return Ok(Some((index, entry)));
        }
    }
    Ok(None)
}

/// Subtracts freed space from the sums.
pub fn subtract(tx: &mut dyn Objects, object: u64, freed: Space) -> TxResult<()> {
    let mut phys = header(tx, object)?;
    let sums = Space { used: phys.bytes, comp: phys.comp, uncomp: phys.uncomp };
    let rest = sums.saturating_sub(freed);
    (phys.bytes, phys.comp, phys.uncomp) = (rest.used, rest.comp, rest.uncomp);
    tx.set_bonus(object, &phys.encode())
}

/// Stores where the walk of an entry resumes.
pub fn suspend(tx: &mut dyn Objects, object: u64, index: u64, resume: Bookmark) -> TxResult<()> {
    let BptreePhys { begin, end, .. } = header(tx, object)?;
    ensure!("Q1", (begin..end).contains(&index), "entry {index} of {begin} to {end}");
    let entry = BptreeEntry { resume, ..entry(tx, object, index)? };
    tx.write(object, index * ENTRY_LEN, &entry.encode())
}

/// Removes an entry whose blocks are all freed: the first one together with finished ones behind
/// it; a later one is only marked.
pub fn finish(tx: &mut dyn Objects, object: u64, index: u64) -> TxResult<()> {
    let mut phys = header(tx, object)?;
    // Checks Q1.
    if !(phys.begin..phys.end).contains(&index) {
        let (begin, end) = (phys.begin, phys.end);
        return fail(Kind::Invariant, object, DmuError::BptreeIndex { index, begin, end });
    }
    if index > phys.begin {
        let done = BptreeEntry { birth_txg: BptreeEntry::DONE, ..entry(tx, object, index)? };
        return tx.write(object, index * ENTRY_LEN, &done.encode());
    }
    loop {
        tx.free_range(object, phys.begin * ENTRY_LEN, Some(ENTRY_LEN))?;
        phys.begin += 1;
        if phys.begin == phys.end || !entry(tx, object, phys.begin)?.is_done() {
            break;
        }
    }
    tx.set_bonus(object, &phys.encode())
}

/// Frees the queue, which must be empty.
pub fn free(tx: &mut dyn Objects, object: u64) -> TxResult<()> {
    let phys = header(tx, object)?;
    // Checks Q1.
    if phys.begin != phys.end {
        let (index, begin, end) = (phys.end, phys.begin, phys.end);
        return fail(Kind::Invariant, object, DmuError::BptreeIndex { index, begin, end });
    }
    tx.free(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpobj::tests::block;
    use crate::objects::model::Model;

    #[test]
    fn a_queue_of_trees() {
        let mut model = Model::with_misses();
        let object = model.apply(|tx| create(tx)).unwrap();
        let one = Space { used: 10, comp: 20, uncomp: 30 };
        for number in 0..2000 {
            model.apply(|tx| add(tx, object, &block(number, 5), number, one)).unwrap();
        }
        let phys = model.apply(|tx| header(tx, object)).unwrap();
        assert_eq!((phys.begin, phys.end, phys.uncomp), (0, 2000, 60_000));
        let resume = Bookmark { objset: u64::MAX, object: 3, level: 0, blkid: 9 };
        model.apply(|tx| suspend(tx, object, 0, resume)).unwrap();
        let (index, entry) = model.apply(|tx| first(tx, object)).unwrap().unwrap();
        assert_eq!((index, entry.resume, entry.bp), (0, resume, block(0, 5)));
        // Entries 1 and 3 finish before 0 does.
        for index in [1, 3, 0] {
            model.apply(|tx| finish(tx, object, index)).unwrap();
        }
        let (index, entry) = model.apply(|tx| first(tx, object)).unwrap().unwrap();
        assert_eq!((index, entry.birth_txg), (2, 2));
        model.apply(|tx| finish(tx, object, 2)).unwrap();
        assert_eq!(model.apply(|tx| header(tx, object)).unwrap().begin, 4);
        model.apply(|tx| subtract(tx, object, Space { used: 1, comp: 90_000, uncomp: 0 })).unwrap();
        let phys = model.apply(|tx| header(tx, object)).unwrap();
        assert_eq!((phys.bytes, phys.comp), (19_999, 0));
        assert_eq!(model.apply(|tx| finish(tx, object, 2)).unwrap_err().kind(), Kind::Invariant);
        assert!(model.apply(|tx| free(tx, object)).is_err());
        for index in 4..2000 {
            model.apply(|tx| finish(tx, object, index)).unwrap();
        }
        assert!(model.apply(|tx| is_empty(tx, object)).unwrap());
        assert_eq!(model.apply(|tx| first(tx, object)).unwrap(), None);
        model.apply(|tx| free(tx, object)).unwrap();
    }
}
