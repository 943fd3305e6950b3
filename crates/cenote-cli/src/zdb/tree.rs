//! The block tree of an object, as `-ddddd` lists it.

use std::sync::Arc;

use cenote_dmu::Dnode;
use cenote_ondisk::blkptr::BlockPtr;

use super::pool::Show;
use crate::io::CommandResult;
use crate::out;

/// Prints the block pointers depth first, and then the ranges that are no holes.
pub(super) async fn print(show: &mut Show<'_, '_>, dnode: &Arc<Dnode>) -> CommandResult {
    out!(show.io, "Indirect blocks:")?;
    let levels = dnode.geometry().levels;
    let top = levels.saturating_sub(1);
    // Blocks that wait, the next one last.
    let count = dnode.phys().blkptrs.len() as u64;
    let mut pending: Vec<(u8, u64)> = (0..count).rev().map(|number| (top, number)).collect();
    while let Some((level, number)) = pending.pop() {
        let pointer = match dnode.block_pointer(level, number).await {
            Ok(Some(pointer)) => pointer,
            Ok(None) => continue,
            Err(error) => {
                show.tolerate(Err(error.into()))?;
                continue;
            }
        };
        if pointer.is_hole() && pointer.birth() == 0 {
            continue;
        }
        line(show, dnode, &pointer, level, number)?;
        if level > 0 && !pointer.is_hole() {
            let per_block = 1_u64 << dnode.geometry().entry_shift();
            let start = number.saturating_mul(per_block);
            pending.extend(
                (start..start.saturating_add(per_block)).rev().map(|below| (level - 1, below)),
            );
        }
    }
    if let Some(spill) = dnode.phys().spill()
        && !spill.is_hole()
    {
        out!(show.io, "Spill block: {}", spill.compact(false))?;
    }
    out!(show.io)?;
    segments(show, dnode).await
}

fn line(
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
    let all = show.options.count('d') > 5;
    out!(show.io, " {}", pointer.compact(all))
}

async fn segments(show: &mut Show<'_, '_>, dnode: &Arc<Dnode>) -> CommandResult {
    let mut from = 0;
    while let Some(start) = dnode.next_data(from).await? {
        let Some(end) = dnode.next_hole(start).await? else { break };
        let size = show.options.size(end - start);
        out!(show.io, "\t\tsegment [{start:016x}, {end:016x}) size {size:>5}")?;
        from = end;
    }
    Ok(())
}
