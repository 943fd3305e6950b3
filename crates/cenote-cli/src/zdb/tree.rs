//! The block tree of an object, listed with `-ddddd`.

use std::sync::Arc;

use cenote_dmu::{Dnode, StoredForm};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::dnode::DNODE_SLOT_LEN;

use super::dataset::Set;
use super::pool::Show;
use crate::io::CommandResult;
use crate::out;

/// Prints the block pointers depth first, then the ranges that are not holes.
pub(super) async fn print(show: &mut Show<'_, '_>, set: &Set, dnode: &Arc<Dnode>) -> CommandResult {
    if let Some(spill) = dnode.phys().spill()
        && !spill.is_hole()
    {
        out!(show.io, "\nSpill block: {}", spill.compact(false))?;
    }
    out!(show.io, "Indirect blocks:")?;
    let top = dnode.geometry().levels.saturating_sub(1);
    // Pointers not yet printed, the next one last.
    let mut pending: Vec<(u8, u64, BlockPtr)> = Vec::new();
    push(&mut pending, top, 0, dnode.pointers());
    while let Some((level, number, pointer)) = pending.pop() {
        line(show, dnode, &pointer, level, number).await?;
        let Some(below) = level.checked_sub(1) else { continue };
        if pointer.is_hole() {
            continue;
        }
        match dnode.read_pointer(&pointer, level, number, false).await {
            Ok(block) => {
                let first = number << dnode.geometry().entry_shift();
                push(&mut pending, below, first, BlockPtr::all_in(&block));
            }
            Err(error) => show.tolerate(Err(error.into()))?,
        }
    }
    out!(show.io)?;
    let result = match dnode.object() {
        0 => slots(show, set).await,
        _ => segments(show, dnode).await,
    };
    show.tolerate(result)
}

/// Adds the pointers of a block in reverse, except holes without a birth txg.
fn push(
    pending: &mut Vec<(u8, u64, BlockPtr)>,
    level: u8,
    first: u64,
    pointers: impl Iterator<Item = BlockPtr>,
) {
    let start = pending.len();
    let is_shown = |pointer: &BlockPtr| !pointer.is_hole() || pointer.birth() != 0;
    let numbered = (first..).zip(pointers).filter(|(_, pointer)| is_shown(pointer));
    pending.extend(numbered.map(|(number, pointer)| (level, number, pointer)));
    pending.get_mut(start..).unwrap_or_default().reverse();
}

async fn line(
    show: &mut Show<'_, '_>,
    dnode: &Dnode,
    pointer: &BlockPtr,
    level: u8,
    number: u64,
) -> CommandResult {
    let geometry = dnode.geometry();
    let offset = number.saturating_mul(geometry.span(level)).saturating_mul(geometry.block_size);
    write!(show.io.out, "{offset:16x} ")?;
    for step in (0..geometry.levels).rev() {
        if step == level {
            write!(show.io.out, "L{level}")?;
        } else {
            write!(show.io.out, " ")?;
        }
    }
    if pointer.is_hole() {
        let size = pointer.lsize();
        return out!(show.io, " 0:0:0 {size:x}L B={}", pointer.birth());
    }
    if show.options.count('b') >= 6 {
        write!(show.io.out, " {}", pointer.verbose())?;
    } else {
        write!(show.io.out, " {}", pointer.compact(show.options.count('d') > 5))?;
    }
    if show.options.has('Z') && pointer.compression() == Some(CompressionType::Zstd) {
        zstd_header(show, dnode, pointer, number).await?;
    }
    out!(show.io)
}

/// Prints the header of a block that is compressed with Zstandard (spec 03): the length of its
/// frame, and in one word the version of the library and the level, both big endian.
async fn zstd_header(
    show: &mut Show<'_, '_>,
    dnode: &Dnode,
    pointer: &BlockPtr,
    number: u64,
) -> CommandResult {
    let embedded = pointer.embedded_payload();
    let (stored, how) = match &embedded {
        Some(payload) => (payload.as_bytes().to_vec(), "EMBEDDED"),
        None => match dnode.read_stored(pointer, number, StoredForm::AsOnDisk).await {
            Ok(stored) => (stored.to_vec(), "NORMAL"),
            Err(error) => return show.tolerate(Err(error.into())),
        },
    };
    let Some([a, b, c, d, version @ .., level]) = stored.first_chunk::<8>() else { return Ok(()) };
    let size = u32::from_be_bytes([*a, *b, *c, *d]);
    let [high, middle, low] = *version;
    let version = u32::from_be_bytes([0, high, middle, low]);
    write!(show.io.out, " ZSTD:size={size}:version={version}:level={level}:{how}")?;
    Ok(())
}

fn segment(show: &mut Show<'_, '_>, start: u64, end: u64) -> CommandResult {
    let size = show.options.size(end - start);
    out!(show.io, "\t\tsegment [{start:016x}, {end:016x}) size {size:>5}")
}

async fn segments(show: &mut Show<'_, '_>, dnode: &Arc<Dnode>) -> CommandResult {
    let mut from = 0;
    while let Some(start) = dnode.next_data(from).await? {
        let Some(end) = dnode.next_hole(start).await? else { break };
        segment(show, start, end)?;
        from = end;
    }
    Ok(())
}

/// Prints runs of used slots of the meta-dnode.
async fn slots(show: &mut Show<'_, '_>, set: &Set) -> CommandResult {
    let mut run: Option<(u64, u64)> = None;
    let mut dnodes = set.objset.dnodes(1);
    while let Some(dnode) = dnodes.next().await {
        let dnode = dnode?;
        let start = dnode.object() * DNODE_SLOT_LEN as u64;
        let end = start + dnode.phys().len() as u64;
        run = match run {
            Some((first, last)) if last == start => Some((first, end)),
            Some((first, last)) => {
                segment(show, first, last)?;
                Some((start, end))
            }
            None => Some((start, end)),
        };
    }
    match run {
        Some((first, last)) => segment(show, first, last),
        None => Ok(()),
    }
}
