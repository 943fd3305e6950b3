//! Writes a block: from an address on a top-level vdev to writes on leaves.
//!
//!     Tree::write -> Plan (pure) -> one batch per leaf, all at once -> verdict, dirty time logs
//!                      |- leaf:    the bytes
//!                      |- mirror:  the same to every child
//!                      `- raidz:   columns, parity, pads
//!
//! Every block is a complete stripe, so a write never reads (spec 06 §4.7). A block counts as
//! written when it can be read back from the leaves that took it: one child of a mirror, all but
//! `nparity` columns of each row. A leaf that did not take its part, for any reason, gets the txg
//! into its dirty time log before the caller learns the outcome, and is read last for this txg from
//! then on (spec 06 §8).
//!
//! Self-healing uses the same plan: only the parts that lie where a leaf was found wrong are
//! written again.
//!
//! Invariants
//! * W1  What is written in each column is what the map of a later read expects there, byte for
//!   byte, the filler of the last sector and of short dRAID columns being zeros.
//! * W2  A leaf that lacks a part of a block written in txg T has T in its log when the write
//!   returns. A distributed spare has none of its own for that: a read through it asks the leaf
//!   below it, whose log has T.
//! * W4  A block does not count as written on a leaf that has left service meanwhile: no flush
//!   covers such a leaf.
//! * W3  Nothing is written outside of the data area, or by a tree that was not built for writing.
//! * W5  The parts of a block on one leaf ascend and do not overlap.
//! * W6  The parts of a block on an indirect vdev are those of its mapping, and cover it.
//!
//! Guarantees
//! * W7  A distributed spare that is being filled keeps in its log what no leaf below it took.

mod discard;
mod flush;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, BufMut, Error, Kind, Result, ensure};

pub use flush::{FlushError, FlushOutcome};
use plan::{Builder, LeafWrite, Plan};

use crate::leaf::{Content, DATA_START, Part};
use crate::queue::WriteGroup;
use crate::raidz::Reflow;
use crate::sides::Sides;
use crate::tree::{Layout, OFFSET_MAX, Place, Tree, VdevKind};
use crate::{BadChild, IoClass, LeafId, LeafRange, TxgRanges};

/// Longest block that is written: the format's bound.
const PSIZE_MAX: u64 = 16 << 20;

/// Why a block was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The tree was built for reading.
    #[error("the pool's devices are open for reading only")]
    ReadOnly,
    /// The address names no vdev.
    #[error("there is no top-level vdev {0}")]
    NoSuchVdev(u64),
    /// The vdev has no data of its own.
    #[error("vdev {vdev} is of kind {kind:?} and cannot be written")]
    NotConcrete {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Its type.
        kind: VdevKind,
    },
    /// The address or length is out of range.
    #[error("{psize} bytes at {offset:#x} of vdev {vdev}, which has {asize}, cannot be written")]
    Range {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
        /// Length given.
        psize: u64,
        /// Bytes of its data area.
        asize: u64,
    },
    /// The start of an expanding vdev lies in the boot areas: it must be copied back first.
    #[error("vdev {0} is expanding, and its scratch area was not copied back")]
    Scratch(u64),
    /// Too many devices failed or are absent.
    #[error("{psize} bytes at {offset:#x} of vdev {vdev} were not written where they can be read")]
    Lost {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
        /// Length given.
        psize: u64,
        /// Error of the first device that failed; `None` if all are absent.
        cause: Option<String>,
    },
}

/// A failed write or flush of a leaf.
#[derive(Debug, Clone)]
pub struct FailedWrite {
    /// The leaf.
    pub leaf: LeafId,
    /// Guid of the leaf.
    pub guid: u64,
    /// Path of the leaf.
    pub path: String,
    /// First byte on the device, labels included; 0 for a flush.
    pub offset: u64,
    /// The device's error.
    pub error: Arc<Error>,
}

/// A block that was written, and can be read back.
#[derive(Debug, Clone, Default)]
pub struct WriteOutcome {
    /// Leaves that failed. Their dirty time logs have the txg.
    pub failed: Vec<FailedWrite>,
    /// Whether a copy or a column is missing: because of a failure, or because a leaf is absent.
    pub is_degraded: bool,
}

/// Why parts of a block are written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rewrite {
    /// A device had other bytes: they count as repairs.
    Repair,
    /// A power cut kept them from being written, or the leaf was away: they count as writes of this
    /// txg, which a leaf lacks if they fail, and not as repairs, because no device was wrong.
    Unwritten(u64),
    /// Like `Unwritten`, as I/O of a rebuild: the bytes are of blocks that were born before `end`.
    Rebuild {
        /// What they count as.
        birth: u64,
        /// End of their births.
        end: u64,
    },
}

/// Result of repairing the bad parts of a block.
#[derive(Debug, Clone, Default)]
pub struct RepairOutcome {
    /// Parts that were written again.
    pub repaired: Vec<LeafRange>,
    /// Leaves that failed.
    pub failed: Vec<FailedWrite>,
}

impl Tree {
    /// Writes a block of `data.len()` bytes, of physical birth `txg`, at `place`.
    ///
    /// # Errors
    /// `Kind::Io` if the block cannot be read back from the leaves that took it, `Kind::ReadOnly`
    /// if the tree was not built for writing, `Kind::Invariant` if an allocator cannot have
    /// returned the address. The cause is a [`WriteError`].
    pub async fn write(
        &self,
        place: impl Into<Place>,
        data: Buf,
        txg: u64,
        class: IoClass,
    ) -> Result<WriteOutcome> {
        let place = place.into();
        let psize = data.len() as u64;
        // Before the vdev is looked for: its shape may change with the progress.
        let ticket = self.enter(place, psize, txg, true).await;
        let top = self.check_write(place, psize, txg)?;
        let mut builder = Builder::new(self, txg, ticket.reflow);
        let plan = builder.add(top, place.offset as i64, filled(data, self.vdevs[top].ashift), 0);
        self.carry_out((builder, plan), (place, top, psize), txg, class).await
    }

    /// Writes the sides of a range ([`Sides::write`]).
    pub(crate) async fn write_sides(
        &self,
        place: Place,
        sides: &Sides,
        txg: u64,
        class: IoClass,
    ) -> Result<WriteOutcome> {
        let psize = sides.of_child(0).len() as u64;
        let ticket = self.enter(place, psize, txg, true).await;
        let top = self.check_write(place, psize, txg)?;
        let mut builder = Builder::new(self, txg, ticket.reflow);
        let plan = builder.add_sides(top, place.offset as i64, sides);
        self.carry_out((builder, plan), (place, top, psize), txg, class).await
    }

    /// Writes what was planned, and judges the outcome.
    async fn carry_out(
        &self,
        (builder, plan): (Builder<'_>, Plan),
        (place, top, psize): (Place, usize, u64),
        txg: u64,
        class: IoClass,
    ) -> Result<WriteOutcome> {
        let (writes, absent) = builder.into_writes();
        for leaf in absent.into_iter().filter(|_| !is_on(Bug::AbsentLeafNotLogged)) {
            self.leaf(leaf).note_missing_txg(txg);
        }
        let mut is_failed = vec![false; writes.len()];
        let takers: Vec<LeafId> = writes.iter().map(|write| write.leaf).collect();
        let mut failed = Vec::new();
        for (number, write) in self.send(writes, Some(txg), class).await {
            if !is_on(Bug::FailedWriteNotLogged) {
                self.leaf(write.leaf).note_missing_txg(txg);
            }
            is_failed[number] = true;
            failed.push(write);
        }
        // A leaf that left service after it took its part cannot be read any more (W4).
        fence(Ordering::SeqCst);
        for (leaf, is_failed) in takers.into_iter().zip(&mut is_failed) {
            *is_failed |= !self.leaf(leaf).stays_in_service();
        }
        let verdict = plan.judge(&is_failed);
        for (number, write) in failed.iter().enumerate() {
            let (leaf, guid) = (self.leaf(write.leaf), write.guid);
            ensure!(
                "W2",
                leaf.lacks(txg),
                "failed write {number} to leaf {guid} is not in its log"
            );
        }
        // Checks W4.
        if verdict.is_readable {
            return Ok(WriteOutcome { failed, is_degraded: !verdict.is_whole });
        }
        let Place { vdev, offset } = place;
        let cause = failed.first().map(|failed| failed.error.to_string());
        let error = Error::new(Kind::Io, WriteError::Lost { vdev, offset, psize, cause });
        Err(error.with_at(|at| {
            at.vdev = Some(self.vdevs[top].guid);
            at.offset = Some(offset);
            at.txg = Some(txg);
        }))
    }

    /// Writes the bad parts of a block again; `data` are the verified bytes of the block. Does
    /// nothing in a tree that was not built for writing.
    ///
    /// # Errors
    /// `Kind::Invariant` if the address is out of range; device errors are in the result.
    pub async fn repair(
        &self,
        place: impl Into<Place>,
        data: &Buf,
        birth: u64,
        bad: &[BadChild],
        why: Rewrite,
    ) -> Result<RepairOutcome> {
        if !self.is_writable() || bad.is_empty() {
            return Ok(RepairOutcome::default());
        }
        let place = place.into();
        let ticket = self.enter(place, data.len() as u64, birth, true).await;
        let top = self.check_place(place, data.len() as u64)?;
        let mut builder = Builder::new(self, birth, ticket.reflow);
        let data = filled(data.clone(), self.vdevs[top].ashift);
        let whole = (place.offset as i64, data.len());
        let shadows = self.shadow_ranges(top, whole, birth, ticket.reflow);
        let plan = builder.add(top, place.offset as i64, data, 0);
        let absent = std::mem::take(&mut builder.absent_below_spares);
        let (writes, _) = builder.into_writes();
        let leaves: Vec<LeafId> = if is_on(Bug::RepairToWrongLeaf) {
            writes.iter().map(|write| write.leaf).collect()
        } else {
            Vec::new()
        };
        let all_bad = bad;
        let mut is_failed = vec![false; writes.len()];
        let (numbers, writes): (Vec<usize>, Vec<LeafWrite>) = writes
            .into_iter()
            .enumerate()
            .map(|(number, write)| {
                let guid = self.leaf(write.leaf).guid();
                let bad = bad.iter().filter(|bad| bad.leaf == write.leaf && bad.guid == guid);
                let mut ranges: Vec<_> =
                    bad.map(|bad| (bad.offset, bad.offset + bad.len)).collect();
                // Copies of a bad place are bad as well.
                let copied = shadows.iter().filter(|(first, second)| {
                    second.leaf == write.leaf && all_bad.iter().any(|bad| touches(bad, first))
                });
                ranges.extend(copied.map(|(_, copy)| (copy.offset, copy.offset + copy.len)));
                let parts = write.parts.iter().filter_map(|part| cut(part, &ranges)).collect();
                let next = (number + 1).checked_rem(leaves.len());
                let leaf = next.map_or(write.leaf, |next| leaves[next]);
                (number, LeafWrite { leaf, parts })
            })
            .filter(|(_, write)| !write.parts.is_empty())
            .unzip();
        let ranges = writes.iter().map(|write| {
            let leaf = write.leaf;
            let ranges = write.parts.iter().map(|part| (part.offset, part.len()));
            ranges.map(|(offset, len)| LeafRange { leaf, offset, len }).collect()
        });
        let mut ranges: Vec<Vec<LeafRange>> = ranges.collect();
        let mut outcome = RepairOutcome::default();
        let (unwritten, class) = match why {
            Rewrite::Repair => (None, IoClass::AsyncWrite),
            Rewrite::Unwritten(txg) => (Some(txg), IoClass::AsyncWrite),
            Rewrite::Rebuild { birth, .. } => (Some(birth), IoClass::Rebuild),
        };
        for (number, failed) in self.send(writes, unwritten, class).await {
            if let Some(txg) = unwritten {
                self.leaf(failed.leaf).note_missing_txg(txg);
            }
            is_failed[numbers[number]] = true;
            ranges[number].clear();
            outcome.failed.push(failed);
        }
        if unwritten.is_some() {
            // Bad parts are always where reads look: the rest of the verdict is not needed.
            let lacking = plan.judge(&is_failed).lacking;
            self.note_spares(birth, why, &lacking, &absent);
        }
        for range in ranges.into_iter().flatten() {
            if unwritten.is_none() {
                self.leaf(range.leaf).count_repair(range.len);
            }
            outcome.repaired.push(range);
        }
        Ok(outcome)
    }

    /// Records what was not written below distributed spares that are being filled (W7). `lacking`
    /// are spares of which no leaf took a part; `absent` are leaves out of service that should have
    /// taken one, each with its spare.
    fn note_spares(
        &self,
        birth: u64,
        why: Rewrite,
        lacking: &[LeafId],
        absent: &[(LeafId, LeafId)],
    ) {
        if is_on(Bug::RebuildForgetsSpareHome) {
            return;
        }
        for spare in lacking {
            if self.leaf(*spare).is_missing(birth) {
                self.leaf(*spare).note_missing_txg(birth);
            }
        }
        // Another leaf has the part. The one that is absent lacks it once it is back, although it
        // was in service when the blocks were born.
        let others = absent.iter().filter(|(spare, _)| !lacking.contains(spare));
        for (_, leaf) in others.filter(|(spare, _)| self.leaf(*spare).is_missing(birth)) {
            let end = if let Rewrite::Rebuild { end, .. } = why { end } else { birth + 1 };
            self.leaf(*leaf).note_missing(&TxgRanges::new([(birth, end)]));
        }
    }

    /// Writes to a leaf at a device offset, labels included; for data that is not a block.
    ///
    /// # Errors
    /// The device's, or `Kind::ReadOnly` if the tree was not built for writing.
    pub async fn write_leaf(
        &self,
        leaf: LeafId,
        offset: u64,
        data: Buf,
        class: IoClass,
    ) -> Result<()> {
        self.check_writable()?;
        self.leaf(leaf).check_data_area(offset, data.len() as u64)?;
        let part = Part { offset, content: Content::Data(data) };
        self.leaf(leaf).write(vec![part], None, class).await
    }

    /// The first and the second place of each column of a block that is written to two places, on
    /// children that are leaves.
    fn shadow_ranges(
        &self,
        top: usize,
        whole: (i64, usize),
        birth: u64,
        reflow: Reflow,
    ) -> Vec<(LeafRange, LeafRange)> {
        let shadows = self.shadows(top, whole, birth, reflow);
        if shadows.is_empty() {
            return Vec::new();
        }
        let Some(map) = self.map(top, whole.0, whole.1, birth, reflow) else { return Vec::new() };
        let at = |child: usize, offset: i64, len: usize| {
            let leaf = self.vdevs[*self.vdevs[top].children.get(child)?].leaf()?;
            Some(LeafRange { leaf, offset: device_offset(offset)?, len: len as u64 })
        };
        let pairs = shadows.into_iter().filter_map(|(id, child, offset)| {
            let column = map.column(id);
            let second = at(child, offset, column.len)?;
            Some((at(column.child, column.offset, column.len)?, second))
        });
        pairs.collect()
    }

    /// Submits all writes at once; returns which failed, by number.
    async fn send(
        &self,
        writes: Vec<LeafWrite>,
        txg: Option<u64>,
        class: IoClass,
    ) -> Vec<(usize, FailedWrite)> {
        let mut admitted = Vec::with_capacity(writes.len());
        for write in &writes {
            admitted.push(self.leaf(write.leaf).begin_write(&write.parts, txg).await);
        }
        let parts = writes.iter().zip(&admitted).filter(|(_, admitted)| admitted.is_ok());
        let mut group = WriteGroup::of(parts.map(|(write, _)| write.parts.len()).sum());
        for ((write, admitted), number) in writes.iter().zip(&admitted).zip(0..) {
            if let Ok(admitted) = admitted {
                group.write(admitted.queue(), class, &write.parts, number);
            }
        }
        let mut errors = group.done().await;
        let (mut failed, mut due) = (Vec::new(), Vec::new());
        for (number, (write, admitted)) in writes.into_iter().zip(admitted).enumerate() {
            let leaf = self.leaf(write.leaf);
            let offset = write.parts.first().map_or(0, |part| part.offset);
            let result = match admitted {
                Err(error) => Err(error),
                Ok(admitted) => {
                    let at = errors.iter().position(|(member, _)| *member as usize == number);
                    let result = at.map_or(Ok(()), |at| Err(errors.swap_remove(at).1));
                    let finished = leaf.finish_write(admitted, write.parts, txg, class, result);
                    let (result, is_flush_due) = finished.await;
                    due.extend(is_flush_due.then_some(leaf));
                    result
                }
            };
            if let Err(error) = result {
                let (guid, path, error) = (leaf.guid(), leaf.path.clone(), Arc::new(error));
                failed.push((number, FailedWrite { leaf: write.leaf, guid, path, offset, error }));
            }
        }
        // Only now: no write is held any more.
        for leaf in due {
            leaf.flush_if_due().await;
        }
        failed
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        // Checks W3.
        if self.is_writable {
            return Ok(());
        }
        Err(Error::new(Kind::ReadOnly, WriteError::ReadOnly))
    }

    /// Arena index of the top-level vdev, if the address is in range.
    fn check_place(&self, place: Place, psize: u64) -> Result<usize> {
        let Place { vdev, offset } = place;
        let top = self.top_index(vdev);
        // Checks W3.
        let top = top.ok_or_else(|| Error::new(Kind::Invariant, WriteError::NoSuchVdev(vdev)))?;
        let (ashift, asize) = (self.vdevs[top].ashift, self.vdevs[top].asize);
        let is_aligned = offset.is_multiple_of(1 << ashift.clamp(9, 16));
        // Checks W3.
        if offset > OFFSET_MAX || !is_aligned || psize == 0 || psize > PSIZE_MAX {
            let error = WriteError::Range { vdev, offset, psize, asize };
            return Err(Error::new(Kind::Invariant, error));
        }
        Ok(top)
    }

    /// Like [`check_place`](Self::check_place), and checks that a new block may be written there
    /// (W3).
    fn check_write(&self, place: Place, psize: u64, txg: u64) -> Result<usize> {
        self.check_writable()?;
        let top = self.check_place(place, psize)?;
        let Place { vdev, offset } = place;
        let node = &self.vdevs[top];
        let broken = |error| Err(Error::new(Kind::Invariant, error));
        // Checks W3.
        match &node.layout {
            Layout::Raidz(raidz) if raidz.is_expanding && self.reflow().is_scratch_valid => {
                return broken(WriteError::Scratch(vdev));
            }
            Layout::Leaf(_) | Layout::Mirror | Layout::Raidz(_) | Layout::Draid(_) => {}
            _ => return broken(WriteError::NotConcrete { vdev, kind: node.kind }),
        }
        let asize = self.asize_for(vdev, psize, txg).unwrap_or(u64::MAX);
        // Checks W3.
        // Trees in tests, and configs whose size was never stored, have asize 0.
        if node.asize != 0 && offset.checked_add(asize).is_none_or(|end| end > node.asize) {
            return broken(WriteError::Range { vdev, offset, psize, asize: node.asize });
        }
        Ok(top)
    }
}

/// Returns `data` padded with zeros to the end of its sector.
fn filled(data: Buf, ashift: u32) -> Buf {
    let len = data.len().next_multiple_of(1 << ashift);
    if len == data.len() {
        return data;
    }
    let mut whole = BufMut::for_filling(len);
    let (head, tail) = whole.split_at_mut(data.len());
    head.copy_from_slice(&data);
    tail.fill(0);
    whole.freeze()
}

/// Whether a bad part overlaps a range.
fn touches(bad: &BadChild, range: &LeafRange) -> bool {
    let (bad_end, end) = (bad.offset + bad.len, range.offset + range.len);
    bad.leaf == range.leaf && bad.offset < end && range.offset < bad_end
}

/// The range of a part that `ranges` of the same leaf overlap, if any.
fn cut(part: &Part, ranges: &[(u64, u64)]) -> Option<Part> {
    let Content::Data(data) = &part.content else { return None };
    let (start, end) = (part.offset, part.offset + part.len());
    let touching = ranges.iter().filter(|(from, to)| *from < end && start < *to);
    let touched = touching.map(|(from, to)| (start.max(*from), end.min(*to)));
    let (from, to) = touched.reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)))?;
    let data = data.slice((from - start) as usize..(to - start) as usize)?;
    Some(Part { offset: from, content: Content::Data(data) })
}

/// Byte on the device of byte `offset` of a leaf's data area; `None` before its start (W3).
fn device_offset(offset: i64) -> Option<u64> {
    u64::try_from(offset).ok()?.checked_add(DATA_START)
}
