//! Reads and writes files.
//!
//! A read references the blocks under the object set's lock, without copying, and copies them once
//! into the caller's buffer after unlocking. A write prepares its whole blocks before it takes the
//! lock. Requests longer than [`CHUNK`] are split into several transactions.
//!
//! Invariants
//! * D1  A read fills the part of the caller's buffer that it reports, and no more.
//! * D2  A transaction that succeeds writes its whole chunk.

use cenote_dmu::live::Piece;
use cenote_engine::Charge;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::Time;
use cenote_rt::{Buf, BufMut, Error, Kind, Result, ensure};

use super::inode_cache::Times;
use super::{ATTRIBUTES_COST, Mount, now};
use crate::access::Credentials;
use crate::edit::{self, Inode, Op, Place, WriteFacts};
use crate::error::FsError;

/// Maximum bytes per write transaction, apart from whole blocks.
const CHUNK: u64 = 1 << 20;
/// Maximum bytes per read under the lock.
const READ_CHUNK: u64 = 4 << 20;
/// With `relatime`, the access time is updated at least once a day.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

/// Access time settings of a mount; `None` follows the property.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessTimes {
    /// Overrides `atime`.
    pub has_atime: Option<bool>,
    /// Overrides `relatime`.
    pub is_relatime: Option<bool>,
}

/// Options of a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// At the end of the file at the time of the write (`O_APPEND`); the offset is ignored.
    pub is_append: bool,
    /// Durable when it returns (`O_SYNC`, `O_DSYNC`).
    pub is_sync: bool,
    /// The bytes come from a cached page, which was changed when the flags of the node allowed it:
    /// flags that were set later do not apply.
    pub is_write_back: bool,
}

/// Operation on a range of a file (`fallocate`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Extend the file if it is shorter. No space is reserved: in a file system that never
    /// overwrites, that would not guarantee that later writes succeed.
    Extend,
    /// Only check whether there is space (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// The range becomes zeros and, where possible, a hole (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Like `PunchHole`, and extends the file (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange,
    /// Like `ZeroRange`, without extending the file.
    ZeroRangeKeepSize,
}

/// Result of a read under the lock, besides the blocks.
struct Found {
    block_size: u64,
    /// Existing bytes of the request.
    len: usize,
    is_atime_current: bool,
}

/// Whether data of a file system's files may stay in caches after they are closed (`primarycache`).
#[must_use]
pub fn caches_data(mount: &Mount) -> bool {
    mount.shared.facts.settings().caches_data
}

impl Mount {
    /// Reads bytes into `into`; fewer than its length at the end of the file. Permissions were
    /// checked when the node was opened.
    ///
    /// # Errors
    /// `FsError::IsADirectory`, `FsError::WrongKind`; read errors.
    pub async fn read(&self, object: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let locks = match self.busy_locks_of(object) {
            Ok(locks) => locks,
            Err(sweeps) => {
                let done = self.read_unlocked(object, offset, into).await?;
                // A writer adds its locks before it changes anything. If there still are none, no
                // write happened in between, and the read saw one state.
                if self.busy_locks_of(object).is_err_and(|now| now == sweeps) {
                    return Ok(done);
                }
                self.locks_of(object)
            }
        };
        let end = offset.saturating_add(into.len() as u64);
        let _guard = locks.shared(offset..end.max(offset.saturating_add(1))).await;
        self.read_unlocked(object, offset, into).await
    }

    async fn read_unlocked(&self, object: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let (mut done, since) = (0, cenote_rt::monotonic());
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            let count = self.read_some(object, at, rest).await?;
            if count == 0 {
                break;
            }
            done += count;
        }
        self.head.activity().read(object, offset, done as u64, since);
        Ok(done)
    }

    async fn read_some(&self, object: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let wanted = into.len();
        let find = || self.find_pieces(object, offset, wanted);
        let (blocks, found) = self.head.live().gather(find).await?;
        if !found.is_atime_current {
            self.update_atime(object).await?;
        }
        let first = offset / found.block_size.max(1);
        let end = (offset + found.len as u64).div_ceil(found.block_size.max(1));
        let (count, needed) = (blocks.len() as u64, if found.len == 0 { 0 } else { end - first });
        ensure!("D1", count == needed, "{count} of {needed} blocks of node {object} at {offset}");
        ensure!("D1", found.len <= wanted, "{} bytes for {wanted}", found.len);
        let into = into.get_mut(..found.len).unwrap_or(&mut []);
        copy(blocks.iter().map(Option::as_ref), offset, found.block_size, into);
        Ok(found.len)
    }

    async fn find_pieces(
        &self,
        object: u64,
        offset: u64,
        len: usize,
    ) -> Result<(Vec<Piece>, Found)> {
        self.inspect(None, |op| {
            let file = self.inodes.get(op, object)?;
            let rest = file.size.saturating_sub(offset).min(READ_CHUNK);
            let len = usize::try_from(rest).map_or(len, |rest| rest.min(len));
            let block_size = file.dnode.data_block_size();
            let mut pieces = Vec::new();
            if len > 0 {
                let last = (offset + len as u64 - 1) / block_size;
                let blocks = offset / block_size..last + 1;
                for blkid in blocks.clone() {
                    pieces.push(op.tx.peek(object, blkid)?);
                }
                let waits = pieces.iter().any(|piece| matches!(piece, Piece::Stored(_)));
                self.ahead.note(op.tx, object, blocks, waits);
            }
            let is_atime_current = self.are_current(&file.times);
            Ok((pieces, Found { block_size, len, is_atime_current }))
        })
        .await
    }

    /// Whether a read of this inode now leaves the access time unchanged.
    pub(super) fn is_atime_current(&self, inode: &Inode) -> bool {
        self.are_current(&Times::of(inode))
    }

    fn are_current(&self, times: &Times) -> bool {
        let (settings, given) = (self.shared.facts.settings(), self.access_times());
        !given.has_atime.unwrap_or(settings.has_atime)
            || self.is_read_only()
            || given.is_relatime.unwrap_or(settings.is_relatime) && is_atime_current(times, now())
    }

    /// Updates the access time of a node after a read.
    pub(super) async fn update_atime(&self, object: u64) -> Result<()> {
        let noted = self.apply(Charge::write(ATTRIBUTES_COST), None, |op| {
            let mut inode = op.inode(object)?;
            inode.set_time(ZplAttr::Atime, op.now);
            op.store(&inode)
        });
        match noted.await {
            // A full pool can still be read, and the node may have been removed by now.
            Err(error) => match error.kind() {
                Kind::NoSpace | Kind::Quota | Kind::ReadOnly | Kind::NotFound => Ok(()),
                _ => Err(error),
            },
            Ok(()) => Ok(()),
        }
    }

    /// Writes bytes at an offset. Returns their position, and the size of the file. A write that
    /// fails in the middle reports the bytes written so far; the next call then returns the error.
    ///
    /// # Errors
    /// `Kind::NoSpace`, `Kind::Quota`; `FsError::FileTooLarge`; errors of flag checks.
    pub async fn write(
        &self,
        cred: &Credentials,
        object: u64,
        offset: u64,
        bytes: &[u8],
        options: WriteOptions,
    ) -> Result<WriteFacts> {
        let since = cenote_rt::monotonic();
        let locks = self.locks_of(object);
        // Appends, and changes of the size of the only block, affect the whole file.
        let is_long = bytes.len() as u64 > CHUNK;
        let range = if options.is_append || is_long {
            0..u64::MAX
        } else {
            offset..offset.saturating_add(bytes.len() as u64).max(offset.saturating_add(1))
        };
        let guard = locks.exclusive(range).await;
        let place = if options.is_append { Place::End } else { Place::At(offset) };
        let is_write_back = options.is_write_back;
        let facts = self.write_chunks(cred, object, (place, is_write_back), bytes).await?;
        let (start, len) = (facts.offset, facts.len);
        ensure!("R3", guard.covers(start, len), "{len} bytes at {start} of node {object}");
        self.head.activity().written(object, start, bytes.len() as u64, since);
        drop(guard);
        if options.is_sync {
            self.fsync(object).await?;
        }
        Ok(facts)
    }

    async fn write_chunks(
        &self,
        cred: &Credentials,
        object: u64,
        (mut place, is_write_back): (Place, bool),
        bytes: &[u8],
    ) -> Result<WriteFacts> {
        let mut whole: Option<WriteFacts> = None;
        let mut rest = bytes;
        loop {
            let (chunk, behind) = rest.split_at(self.chunk_len(place, rest.len()));
            let shape = self.shape(object).await?;
            let blocks = shape.whole_blocks(place, chunk);
            let charge = shape.charge(place, chunk.len() as u64);
            let written = self.change(charge, Some(cred), |op| {
                op.is_write_back = is_write_back;
                edit::write(op, object, place, chunk, &blocks)
            });
            let facts = match (written.await, whole) {
                (Ok(facts), None) => facts,
                (Ok(facts), Some(before)) => WriteFacts { offset: before.offset, ..facts },
                (Err(error), None) => return Err(error),
                // A partial write is reported as such.
                (Err(_), Some(before)) => return Ok(before),
            };
            let (len, want) = (facts.len, chunk.len() as u64);
            ensure!("D2", len == want, "{len} of {want} bytes of node {object} were written");
            let at = match place {
                Place::At(offset) => offset,
                Place::End => facts.offset,
            };
            place = Place::At(at + chunk.len() as u64);
            whole = Some(WriteFacts { len: bytes.len() as u64 - behind.len() as u64, ..facts });
            rest = behind;
            if rest.is_empty() {
                return Ok(whole.unwrap_or(facts));
            }
        }
    }

    /// Returns the length of the next transaction: up to a multiple of a chunk in the file.
    fn chunk_len(&self, place: Place, len: usize) -> usize {
        let chunk = CHUNK.max(self.shared.facts.settings().record_size);
        let within = match place {
            Place::At(offset) => offset % chunk,
            Place::End => 0,
        };
        len.min((chunk - within) as usize)
    }

    /// Returns the block sizes of a file.
    async fn shape(&self, object: u64) -> Result<Shape> {
        let record = self.shared.facts.settings().record_size;
        self.inspect(None, |op| {
            let dnode = op.tx.dnode(object)?;
            let block = dnode.data_block_size();
            let may_grow = dnode.maxblkid == 0 && (block < record || !block.is_power_of_two());
            Ok(Shape { block, record: record.max(block.next_power_of_two()), may_grow })
        })
        .await
    }

    /// Copies a range from one file to another, or to a range of the same file that does not
    /// overlap. Returns the number of bytes: fewer than requested at the end of the source, or
    /// before an error, which the next call then returns. The data is written anew; blocks are not
    /// shared.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read) and [`write`](Self::write); `FsError::WrongKind` if the
    /// ranges overlap, before anything is copied.
    pub async fn copy_range(
        &self,
        cred: &Credentials,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Result<u64> {
        let ((source, start), (target, place)) = (from, to);
        if source == target && start.abs_diff(place) < len {
            return Err(Error::new(Kind::Invalid, FsError::WrongKind));
        }
        // The end of the source is the present one, even if the copy extends the same file.
        let len = len.min(self.attributes(source).await?.size.saturating_sub(start));
        let mut buf = vec![0; usize::try_from(len.min(CHUNK)).unwrap_or(0)];
        let mut done = 0;
        while done < len {
            let want = usize::try_from(len - done).map_or(buf.len(), |rest| rest.min(buf.len()));
            let part = buf.get_mut(..want).unwrap_or(&mut []);
            let copied = async {
                let count = self.read(source, start.saturating_add(done), part).await?;
                if count == 0 {
                    return Ok((0, 0));
                }
                let bytes = part.get(..count).unwrap_or(&[]);
                let options = WriteOptions::default();
                let at = place.saturating_add(done);
                let written = self.write(cred, target, at, bytes, options).await?;
                Ok((count as u64, written.len))
            };
            match copied.await {
                Ok((read, written)) => {
                    done += written;
                    if read == 0 || written < read {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Extends a file, or punches a hole into it.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write); `FsError::WrongKind` for an empty range.
    pub async fn allocate(
        &self,
        cred: &Credentials,
        object: u64,
        offset: u64,
        len: u64,
        how: Allocate,
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| Error::new(Kind::Limit, FsError::FileTooLarge))?;
        if len == 0 {
            return Err(Error::new(Kind::Invalid, FsError::WrongKind));
        }
        let locks = self.locks_of(object);
        let _guard = locks.exclusive(0..u64::MAX).await;
        let (frees, extends) = match how {
            Allocate::Extend => (false, true),
            Allocate::KeepSize => (false, false),
            Allocate::PunchHole | Allocate::ZeroRangeKeepSize => (true, false),
            Allocate::ZeroRange => (true, true),
        };
        if !frees && self.engine.datasets().space_of(&self.head).await?.available < len {
            return Err(Error::new(Kind::NoSpace, FsError::NoRoom { len }));
        }
        let charge =
            if frees { Charge::free(2 * ATTRIBUTES_COST) } else { Charge::write(ATTRIBUTES_COST) };
        self.change(charge, Some(cred), |op| {
            let size = edit_size(op, object)?;
            if frees {
                edit::free(op, object, offset, len)?;
            }
            if extends && end > size {
                edit::truncate(op, object, end)?;
            }
            Ok(())
        })
        .await
    }
}

/// Shorter writes are copied under the lock.
const WHOLE_MIN: u64 = 32 << 10;

/// The block sizes of a file when it was looked up.
#[derive(Debug, Clone, Copy)]
struct Shape {
    block: u64,
    /// The block size after growing to the maximum.
    record: u64,
    may_grow: bool,
}

impl Shape {
    /// Returns the maximum that a write of this length writes: whole blocks, and their indirect
    /// blocks.
    fn charge(self, place: Place, len: u64) -> Charge {
        let block = match place {
            Place::At(offset) if self.may_grow => {
                self.record.min(self.block.max((offset + len).next_multiple_of(512)))
            }
            Place::End if self.may_grow => self.record,
            _ => self.block,
        };
        let offset = match place {
            Place::At(offset) => offset,
            Place::End => 0,
        };
        let blocks = (offset % block + len).div_ceil(block) + u64::from(place == Place::End);
        // Block pointers of 128 bytes, and the same for the levels above.
        Charge::write(blocks.saturating_mul(256) + ATTRIBUTES_COST).with_blocks(blocks, block)
    }

    /// Returns the blocks that a write covers entirely, ready to be put into the file.
    fn whole_blocks(self, place: Place, bytes: &[u8]) -> Vec<(u64, Buf)> {
        let Place::At(offset) = place else { return Vec::new() };
        // Blocks that still grow will have the record size when they stop.
        let block = if self.may_grow { self.record } else { self.block };
        if (bytes.len() as u64) < block.max(WHOLE_MIN) {
            return Vec::new();
        }
        let first = offset.next_multiple_of(block);
        let skip = usize::try_from(first - offset).unwrap_or(usize::MAX);
        let whole = bytes.get(skip..).unwrap_or(&[]).chunks_exact(block as usize);
        let ready = |(index, bytes): (usize, &[u8])| {
            let mut buf = BufMut::for_filling(bytes.len());
            buf.copy_from_slice(bytes);
            (first + index as u64 * block, buf.freeze())
        };
        whole.enumerate().map(ready).collect()
    }
}

fn edit_size(op: &mut Op<'_, '_>, object: u64) -> cenote_dmu::TxResult<u64> {
    let inode = op.inode(object)?;
    inode.check_data()?;
    Ok(inode.size())
}

/// Whether with `relatime` a read leaves the access time unchanged.
fn is_atime_current(times: &Times, now: Time) -> bool {
    times.read > times.changed && now.seconds - times.read.seconds < RELATIME_SECONDS
}

/// Copies the requested bytes out of the blocks, starting with the block of `offset`.
fn copy<'a>(
    blocks: impl Iterator<Item = Option<&'a Buf>>,
    offset: u64,
    block_size: u64,
    into: &mut [u8],
) {
    let mut within = (offset % block_size) as usize;
    let mut rest = into;
    for block in blocks {
        let count = rest.len().min(block_size as usize - within);
        let (target, behind) = rest.split_at_mut(count);
        match block.and_then(|block| block.get(within..within + count)) {
            Some(source) => target.copy_from_slice(source),
            None => target.fill(0),
        }
        (rest, within) = (behind, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatime_updates_atime_after_a_change_or_a_day() {
        let at = |seconds, nanoseconds| Time { seconds, nanoseconds };
        let times = Times { read: at(1000, 1), changed: at(1000, 0) };
        let day = RELATIME_SECONDS;
        assert!(
            is_atime_current(&times, at(1000, 1)) && is_atime_current(&times, at(999 + day, 0))
        );
        assert!(!is_atime_current(&times, at(1000 + day, 0)), "a day has passed");
        let unread = Times { read: at(1000, 0), ..times };
        assert!(!is_atime_current(&unread, at(1000, 1)), "changed at the same time, or later");
    }
}
