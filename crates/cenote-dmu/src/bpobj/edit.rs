//! Changing bpobjs: append, nest, take from the end, free (spec 04 §11).
//!
//!     append      adds own entries; the sums in the header grow with them
//!     append_all  makes another bpobj part of this one: small ones are copied, large ones linked
//!     take        takes own entries from the last, then sub-lists from the last, depth first;
//!                 empty parts are freed at once, so that the bpobj is valid wherever this stops
//!
//! The shared empty bpobj (`empty`) is never appended to, and freed only by its last user.
//!
//! Invariants
//! * B2  A bpobj is not made part of itself.
//! * B3  No more blocks are taken than the caller may free in a txg.

use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BlockPtr};
use cenote_ondisk::bpobj::{BpobjForm, BpobjPhys, entries, normalized, subobjs};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Kind, ensure};

use super::empty;
use crate::error::DmuError;
use crate::live::{ObjectSpec, TxResult};
use crate::objects::{Objects, corrupt, expect_type, fail};
use crate::space::Space;

pub use super::empty::{acquire_empty, is_shared, release_empty, shared_empty};
pub use super::{header, is_empty, space};

/// Data block size of all bpobjs except the pool's deferred frees.
pub const BLOCK_SIZE: u64 = 128 << 10;
/// Number of entries taken per read.
const TAKEN_AT_ONCE: u64 = 1024;
const ENTRY_LEN: u64 = BLOCK_PTR_LEN as u64;

/// A block pointer to be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpobjEntry {
    /// The block pointer, as stored in its parent.
    pub bp: BlockPtr,
    /// Bytes charged for it (spec 04 §9.1).
    pub dsize: u64,
    /// Whether it is a FREE entry of a livelist.
    pub is_free: bool,
}

impl BpobjEntry {
    /// An entry for a block to be freed.
    #[must_use]
    pub const fn new(bp: BlockPtr, dsize: u64) -> Self {
        Self { bp, dsize, is_free: false }
    }

    /// The entry's contribution to the sums.
    #[must_use]
    pub fn space(&self) -> Space {
        let mut sum = Space::default();
        if self.is_free {
            sum -= Space::of(&self.bp, self.dsize);
        } else {
            sum += Space::of(&self.bp, self.dsize);
        }
        sum
    }
}

/// Blocks taken from the end of a bpobj.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TakenBlocks {
    /// The blocks, in the order of consumption.
    pub blocks: Vec<BlockPtr>,
    /// The space charged for them, which was subtracted from the header.
    pub space: Space,
    /// Whether the bpobj is empty now.
    pub is_empty: bool,
}

/// Creates a bpobj; with `has_freed` (feature livelist is active) its header counts FREE entries.
pub fn create(tx: &mut dyn Objects, block_size: u64, has_freed: bool) -> TxResult<u64> {
    let form = if has_freed { BpobjForm::Freed } else { BpobjForm::Nested };
    let spec = ObjectSpec::new(ObjectType::BPOBJ, block_size);
    tx.allocate(&spec.with_bonus(ObjectType::BPOBJ_HDR, form as usize))
}

/// Appends block pointers.
pub fn append(tx: &mut dyn Objects, object: u64, new: &[BpobjEntry]) -> TxResult<()> {
    if new.is_empty() {
        return Ok(());
    }
    let mut phys = header(tx, object)?;
    let offset = phys.num_blkptrs.wrapping_mul(ENTRY_LEN);
    let mut bytes = Vec::with_capacity(new.len() * BLOCK_PTR_LEN);
    let mut space = Space::from(phys);
    for entry in new {
        bytes.extend(normalized(&entry.bp, entry.is_free).to_bytes());
        space += entry.space();
        phys.num_freed = phys.num_freed.wrapping_add(u64::from(entry.is_free));
    }
    tx.write(object, offset, &bytes)?;
    phys.num_blkptrs = phys.num_blkptrs.wrapping_add(new.len() as u64);
    set_space(&mut phys, space);
    tx.set_bonus(object, &phys.encode())
}

/// Makes `child` part of `object`; the previous owner must not use the number of `child` any more.
pub fn append_all(tx: &mut dyn Objects, object: u64, child: u64) -> TxResult<()> {
    if is_shared(tx, child)? {
        return release_empty(tx, 1);
    }
    ensure!("B2", object != child, "bpobj {object} would contain itself");
    let mut part = header(tx, child)?;
    if part.is_empty() {
        return free(tx, child);
    }
    let mut phys = header(tx, object)?;
    if phys.form < BpobjForm::Nested {
        let len = phys.form as usize;
        return fail(Kind::Unsupported, object, DmuError::FlatBpobj { len });
    }
    let has_moved_list = move_sublists(tx, object, &mut phys, &mut part)?;
    let fits_block = part.num_blkptrs * ENTRY_LEN <= block_size(tx, child)?;
    let mut space = Space::from(phys);
    space += Space::from(part);
    set_space(&mut phys, space);
    if has_moved_list && fits_block {
        if part.num_blkptrs > 0 {
            let len = (part.num_blkptrs * ENTRY_LEN) as usize;
            let bytes = tx.read(child, 0, len)?;
            tx.write(object, phys.num_blkptrs * ENTRY_LEN, &bytes)?;
            phys.num_blkptrs = phys.num_blkptrs.wrapping_add(part.num_blkptrs);
            phys.num_freed = phys.num_freed.wrapping_add(part.num_freed);
        }
        tx.free(child)?;
    } else {
        tx.set_bonus(child, &part.encode())?;
        list(tx, &mut phys, &child.to_le_bytes())?;
    }
    tx.set_bonus(object, &phys.encode())
}

/// Calls `visit` for all entries, in the order in which OpenZFS consumes them.
pub fn for_each(
    tx: &mut dyn Objects,
    object: u64,
    visit: &mut dyn FnMut(&BlockPtr),
) -> TxResult<()> {
    let mut waiting = vec![object];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(object) = waiting.pop() {
        if !seen.insert(object) {
            return Err(corrupt(object, DmuError::Cycle { object }));
        }
        let phys = header(tx, object)?;
        let mut end = phys.num_blkptrs;
        while end > 0 {
            let start = (end - 1) / TAKEN_AT_ONCE * TAKEN_AT_ONCE;
            let bytes = read_entries(tx, object, start, end)?;
            entries(&bytes).rev().for_each(|bp| visit(&bp));
            end = start;
        }
        waiting.extend(sublists(tx, &phys)?);
    }
    Ok(())
}

/// Takes at most `max` block pointers from the end; `dsize` returns the bytes charged for each.
///
/// The caller frees the blocks in the same txg, and only if the transaction succeeded.
pub fn take(
    tx: &mut dyn Objects,
    object: u64,
    max: usize,
    dsize: &dyn Fn(&BlockPtr) -> u64,
) -> TxResult<TakenBlocks> {
    let mut taken = TakenBlocks::default();
    let mut path = vec![(object, header(tx, object)?)];
    while let Some((object, phys)) = path.last_mut() {
        let found = taken.blocks.len();
        ensure!("B3", found <= max, "{found} blocks taken, at most {max}");
        let left = (max - found) as u64;
        if phys.num_blkptrs > 0 {
            if left == 0 {
                break;
            }
            let part = take_own(tx, *object, phys, left.min(TAKEN_AT_ONCE), dsize, &mut taken)?;
            for (_, phys) in &mut path {
                let rest = Space::from(*phys).saturating_sub(part);
                set_space(phys, rest);
            }
        } else if phys.num_subobjs > 0 {
            let child = last_sublist(tx, phys)?;
            if path.iter().any(|(object, _)| *object == child) {
                return Err(corrupt(child, DmuError::Cycle { object: child }));
            }
            path.push((child, header(tx, child)?));
        } else {
            let done = *object;
            drop_list(tx, phys)?;
            if path.len() == 1 {
                taken.is_empty = true;
                break;
            }
            path.pop();
            tx.free(done)?;
            if let Some((_, parent)) = path.last_mut() {
                parent.num_subobjs -= 1;
            }
        }
    }
    for (object, phys) in path {
        tx.set_bonus(object, &phys.encode())?;
    }
    Ok(taken)
}

/// Frees a bpobj with its sub-lists; the blocks that they list are not freed.
pub fn free(tx: &mut dyn Objects, object: u64) -> TxResult<()> {
    let mut waiting = vec![object];
    while let Some(object) = waiting.pop() {
        let mut phys = header(tx, object)?;
        waiting.extend(sublists(tx, &phys)?);
        phys.num_subobjs = 0;
        drop_list(tx, &mut phys)?;
        tx.free(object)?;
    }
    Ok(())
}

/// Frees a bpobj, or drops one reference if it is the shared empty one.
pub fn release(tx: &mut dyn Objects, object: u64) -> TxResult<()> {
    if is_shared(tx, object)? { release_empty(tx, 1) } else { free(tx, object) }
}

/// Returns a bpobj that can be appended to: a new one in place of the shared empty one. True if a
/// new one was created.
pub(crate) fn own(tx: &mut dyn Objects, object: u64) -> TxResult<(u64, bool)> {
    if !is_shared(tx, object)? {
        return Ok((object, false));
    }
    release_empty(tx, 1)?;
    let has_freed = empty::counts_freed(tx)?;
    Ok((create(tx, BLOCK_SIZE, has_freed)?, true))
}

fn take_own(
    tx: &mut dyn Objects,
    object: u64,
    phys: &mut BpobjPhys,
    max: u64,
    dsize: &dyn Fn(&BlockPtr) -> u64,
    taken: &mut TakenBlocks,
) -> TxResult<Space> {
    let end = phys.num_blkptrs;
    let start = ((end - 1) / TAKEN_AT_ONCE * TAKEN_AT_ONCE).max(end.saturating_sub(max));
    let bytes = read_entries(tx, object, start, end)?;
    let mut part = Space::default();
    for bp in entries(&bytes).rev() {
        part += Space::of(&bp, dsize(&bp));
        taken.blocks.push(bp);
    }
    taken.space += part;
    phys.num_blkptrs = start;
    // Only whole blocks are freed; a partly used one stays.
    let size = block_size(tx, object)?;
    tx.free_range(object, (start * ENTRY_LEN).next_multiple_of(size), None)?;
    Ok(part)
}

/// Copies the list of sub-lists if it is short; returns true if there is none left.
fn move_sublists(
    tx: &mut dyn Objects,
    object: u64,
    phys: &mut BpobjPhys,
    part: &mut BpobjPhys,
) -> TxResult<bool> {
    if part.subobjs == 0 {
        return Ok(true);
    }
    let len = part.num_subobjs.saturating_mul(8);
    if len > block_size(tx, part.subobjs)? {
        return Ok(false);
    }
    let bytes = tx.read(part.subobjs, 0, len as usize)?;
    if subobjs(&bytes).any(|child| child == object) {
        return Err(corrupt(object, DmuError::Cycle { object }));
    }
    if part.num_subobjs > 0 {
        list(tx, phys, &bytes)?;
    }
    part.num_subobjs = 0;
    drop_list(tx, part)?;
    Ok(true)
}

/// Appends object numbers to the list of sub-lists, which is created if necessary.
fn list(tx: &mut dyn Objects, phys: &mut BpobjPhys, numbers: &[u8]) -> TxResult<()> {
    if phys.subobjs == 0 {
        phys.subobjs = tx.allocate(&ObjectSpec::new(ObjectType::BPOBJ_SUBOBJ, BLOCK_SIZE))?;
    }
    tx.write(phys.subobjs, phys.num_subobjs.saturating_mul(8), numbers)?;
    phys.num_subobjs = phys.num_subobjs.wrapping_add((numbers.len() / 8) as u64);
    Ok(())
}

/// Frees the list of sub-lists if it is empty.
fn drop_list(tx: &mut dyn Objects, phys: &mut BpobjPhys) -> TxResult<()> {
    if phys.subobjs != 0 && phys.num_subobjs == 0 {
        tx.free(phys.subobjs)?;
        phys.subobjs = 0;
    }
    Ok(())
}

fn sublists(tx: &mut dyn Objects, phys: &BpobjPhys) -> TxResult<Vec<u64>> {
    if phys.subobjs == 0 || phys.num_subobjs == 0 {
        return Ok(Vec::new());
    }
    let list = expect_type(tx, phys.subobjs, ObjectType::BPOBJ_SUBOBJ, "a list of bpobjs")?;
    let claimed = phys.num_subobjs.saturating_mul(8);
    if claimed > list.data_len_max() {
        let object_size = list.data_len_max();
        return Err(corrupt(phys.subobjs, DmuError::Short { claimed, object_size }));
    }
    Ok(subobjs(&tx.read(phys.subobjs, 0, claimed as usize)?).collect())
}

fn last_sublist(tx: &mut dyn Objects, phys: &BpobjPhys) -> TxResult<u64> {
    let bytes = tx.read(phys.subobjs, (phys.num_subobjs - 1).wrapping_mul(8), 8)?;
    Ok(subobjs(&bytes).next().unwrap_or(0))
}

fn read_entries(tx: &mut dyn Objects, object: u64, start: u64, end: u64) -> TxResult<Vec<u8>> {
    let (claimed, object_size) = (end.saturating_mul(ENTRY_LEN), tx.dnode(object)?.data_len_max());
    if claimed > object_size {
        return Err(corrupt(object, DmuError::Short { claimed, object_size }));
    }
    tx.read(object, start * ENTRY_LEN, ((end - start) * ENTRY_LEN) as usize)
}

fn block_size(tx: &mut dyn Objects, object: u64) -> TxResult<u64> {
    Ok(tx.dnode(object)?.data_block_size())
}

fn set_space(phys: &mut BpobjPhys, space: Space) {
    (phys.bytes, phys.comp, phys.uncomp) = (space.used, space.comp, space.uncomp);
}
