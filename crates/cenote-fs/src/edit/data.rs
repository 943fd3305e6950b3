//! The contents of files: writing, truncating, and punching holes (spec 03 §10.3).
//!
//! ```text
//!   size      one block of ──────────────────────────────> blocks of recordsize
//!             512, 1024, 1536, ... up to recordsize
//! ```
//!
//! A file has one block, of as many sectors as it needs, until it outgrows the dataset's record
//! size. Then it has blocks of the record size, or, if its only block is larger, of the next power
//! of two. Block sizes never shrink, and never change once there is a second block.

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::PFlags;
use cenote_rt::{Buf, Kind};

use super::attributes::{SetAttributes, SetTime};
use super::{Inode, Op, attributes, permit, record, refuse};
use crate::error::FsError;

const SECTOR: u64 = 512;
/// Largest size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Position and length of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteFacts {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Size of the file after the write.
    pub size: u64,
}

/// Position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At an offset.
    At(u64),
    /// At the end of the file.
    End,
}

/// Returns the block size for a file that grows to `end` bytes; `None` if it stays as it is.
#[must_use]
pub fn block_size_for(size: u64, block: u64, end: u64, record_size: u64) -> Option<u64> {
    let end = end.max(size);
    let may_grow = !block.is_power_of_two() || block < record_size;
    if size > block || end <= block || !may_grow {
        return None;
    }
    let target = if block > record_size && !block.is_power_of_two() {
        block.next_power_of_two()
    } else {
        record_size
    };
    let new = block.max(target.min(end.next_multiple_of(SECTOR)));
    (new != block).then_some(new)
}

/// Enlarges the block of a file that grows to `end` bytes.
fn grow(tx: &mut Tx<'_>, inode: &Inode, end: u64, record_size: u64) -> TxResult<()> {
    let dnode = tx.dnode(inode.object)?;
    if dnode.maxblkid > 0 {
        return Ok(());
    }
    let block = dnode.data_block_size();
    match block_size_for(inode.size(), block, end, record_size) {
        Some(size) => tx.set_block_size(inode.object, size),
        None => Ok(()),
    }
}

/// Returns the inode of a regular file.
pub(super) fn file(op: &mut Op<'_, '_>, object: u64) -> TxResult<Inode> {
    let inode = op.inode(object)?;
    inode.check_data()?;
    Ok(inode)
}

/// Writes bytes. `whole` may hold prepared blocks that the write covers entirely: they are used as
/// they are if the file has blocks of their size.
///
/// # Errors
/// [`FsError::FileTooLarge`]; permission and quota errors.
pub fn write(
    op: &mut Op<'_, '_>,
    object: u64,
    place: Place,
    bytes: &[u8],
    whole: &[(u64, Buf)],
) -> TxResult<WriteFacts> {
    let mut inode = file(op, object)?;
    let size = inode.size();
    let offset = match place {
        Place::At(offset) => offset,
        Place::End => size,
    };
    permit::write(op, &inode, offset)?;
    if bytes.is_empty() {
        return Ok(WriteFacts { offset, len: 0, size });
    }
    let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= SIZE_MAX);
    let Some(end) = end else { return Err(refuse(Kind::Limit, FsError::FileTooLarge)) };
    permit::quota_of_write(op, &inode)?;
    grow(op.tx, &inode, end, op.facts.settings().record_size)?;
    op.note_changed(object, offset..end);
    put(op.tx, object, offset, bytes, whole)?;
    if end > size {
        inode.set_word(ZplAttr::Size, end);
    }
    attributes::drop_privileges(op, &mut inode)?;
    op.touch_content(&mut inode);
    op.store(&inode)?;
    record::write(op, &inode, offset, bytes.len() as u64);
    Ok(WriteFacts { offset, len: bytes.len() as u64, size: end.max(size) })
}

fn put(
    tx: &mut Tx<'_>,
    object: u64,
    offset: u64,
    bytes: &[u8],
    whole: &[(u64, Buf)],
) -> TxResult<()> {
    let block = tx.dnode(object)?.data_block_size();
    let (mut at, mut rest) = (offset, bytes);
    for (start, data) in whole {
        let skip = start.checked_sub(at).and_then(|skip| usize::try_from(skip).ok());
        let is_whole = data.len() as u64 == block && start.is_multiple_of(block);
        let Some(skip) = skip.filter(|skip| is_whole && skip + data.len() <= rest.len()) else {
            continue;
        };
        let (before, behind) = rest.split_at(skip);
        tx.write(object, at, before)?;
        tx.write_block(object, start / block, data.clone())?;
        at = start + data.len() as u64;
        rest = behind.get(data.len()..).unwrap_or(&[]);
    }
    tx.write(object, at, rest)
}

/// Sets the size of a file. Truncated bytes read as zeros if the file grows again.
///
/// # Errors
/// The errors of [`write`].
pub fn truncate(op: &mut Op<'_, '_>, object: u64, size: u64) -> TxResult<Inode> {
    let mut inode = file(op, object)?;
    permit::write(op, &inode, 0)?;
    set_size(op, &mut inode, size)?;
    attributes::drop_privileges(op, &mut inode)?;
    op.touch_content(&mut inode);
    op.store(&inode)?;
    record::truncate(op, &inode, size, 0);
    Ok(inode)
}

/// Sets the size of a file, without changing its other attributes.
pub(super) fn set_size(op: &mut Op<'_, '_>, inode: &mut Inode, size: u64) -> TxResult<()> {
    if size > SIZE_MAX {
        return Err(refuse(Kind::Limit, FsError::FileTooLarge));
    }
    let before = inode.size();
    if size > before {
        grow(op.tx, inode, size, op.facts.settings().record_size)?;
    } else if size < before {
        op.note_changed(inode.object, size..u64::MAX);
        op.tx.free_range(inode.object, size, None)?;
    }
    if size == 0 {
        inode.set_flags(inode.flags() - PFlags::SPARSE);
    }
    inode.set_word(ZplAttr::Size, size);
    Ok(())
}

/// Punches a hole into a file: the range reads as zeros, and its whole blocks are freed. The size
/// does not change.
///
/// # Errors
/// The errors of [`write`].
pub fn free(op: &mut Op<'_, '_>, object: u64, offset: u64, len: u64) -> TxResult<Inode> {
    let mut inode = file(op, object)?;
    permit::write(op, &inode, offset)?;
    let end = offset.saturating_add(len).min(inode.size());
    if offset < end {
        op.note_changed(object, offset..end);
        op.tx.free_range(object, offset, Some(end - offset))?;
    }
    attributes::drop_privileges(op, &mut inode)?;
    op.touch_content(&mut inode);
    op.store(&inode)?;
    if offset < end {
        record::truncate(op, &inode, offset, end - offset);
    } else {
        let mtime = Some(SetTime::Now);
        record::set_attributes(op, &inode, &SetAttributes { mtime, ..Default::default() });
    }
    Ok(inode)
}
