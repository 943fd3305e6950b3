//! Mends a block for a scan: reads every copy, and writes what is bad or missing.
//!
//! ```text
//!   all copies and parity read ── one is good ── guard ── bad and missing parts written
//!                             `── none: left as it is, the caller reports it
//! ```
//!
//! The block belongs to a committed state that a pin keeps in place. A guard is taken while the pin
//! is valid, and kept until the devices have answered (E1 of [`crate::grounds`]): so no other block
//! is overwritten, even if the state is given up meanwhile. Blocks of an intent log may be read
//! while they are being written: only those that verify count, which are never changed again, and
//! nothing else about them is an error.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, Error, Kind, Result};
use cenote_vdev::{BadChild, Cause, ClassReader, IoClass, LeafReader, Rewrite, Verify};

use crate::alloc::{GuardOutcome, Pin};
use crate::gang;
use crate::grounds::{Grounds, overtaken};
use crate::store::BlockStore;
use crate::verify::Verifier;

/// What the caller knows about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MendKind {
    /// Nothing: bad parts are counted.
    Unread,
    /// It was read before, and bad parts were counted then: the caller reports those, and parts
    /// that are found to be bad now are not reported a second time.
    Counted,
    /// The copy with this index was read before, and its bad parts were counted then: only that
    /// copy is written. The block is no gang block.
    CountedCopy(u8),
    /// It belongs to an intent log, and may not be written yet.
    Log,
}

/// Result of mending a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mended {
    /// Bytes written to leaves.
    pub written: u64,
    /// Parts whose write failed.
    pub failed: u64,
    /// Number of blocks, gang headers or members without a good copy.
    pub unreadable: u64,
}

impl Mended {
    fn add(&mut self, other: Self) {
        self.written += other.written;
        self.failed += other.failed;
        self.unreadable += other.unreadable;
    }
}

/// A copy of a block and its parts that are to be written.
struct Parts {
    /// Index of the DVA.
    index: usize,
    dva: Dva,
    bad: Vec<BadChild>,
    missing: Vec<BadChild>,
}

impl Parts {
    /// Whether a part of the copy is bad or missing, and the copy is not left out.
    fn is_to_be_written(&self, kind: MendKind) -> bool {
        let is_left_out =
            matches!(kind, MendKind::CountedCopy(only) if usize::from(only) != self.index);
        !is_left_out && (!self.bad.is_empty() || !self.missing.is_empty())
    }
}

impl BlockStore {
    /// Whether a leaf in service lacks a part of the block, according to its dirty time log. The
    /// members of a gang block may be anywhere.
    pub fn lacks_parts(&self, bp: &BlockPtr) -> bool {
        let (tree, birth) = (self.tree(), bp.physical_birth());
        if !tree.leaves().any(|(_, leaf)| leaf.is_missing(birth)) {
            return false;
        }
        bp.is_gang() || bp.dvas().any(|dva| !tree.missing_parts(dva, bp.psize(), birth).is_empty())
    }

    /// Writes the parts of a block that are bad, or that leaves in service lack.
    ///
    /// # Errors
    /// `Kind::Overtaken` if the pin is not valid any more; `Kind::Closed` if the pool was closed;
    /// `Kind::Corrupt` if the pointer is invalid.
    pub async fn mend(&self, bp: &BlockPtr, pin: &Arc<Pin>, kind: MendKind) -> Result<Mended> {
        let reader = ClassReader::new(self.tree(), IoClass::Scrub);
        self.mend_with(&reader, bp, pin, kind).await
    }

    /// Like [`mend`](Self::mend), with a reader that may have the bytes already. What it has was
    /// read while the pin was valid.
    ///
    /// # Errors
    /// Errors of [`mend`](Self::mend).
    pub async fn mend_with(
        &self,
        reader: &dyn LeafReader,
        bp: &BlockPtr,
        pin: &Arc<Pin>,
        kind: MendKind,
    ) -> Result<Mended> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(Mended::default());
        }
        self.mend_at(reader, bp, (pin, kind), 0).await
    }

    async fn mend_at(
        &self,
        reader: &dyn LeafReader,
        bp: &BlockPtr,
        (pin, kind): (&Arc<Pin>, MendKind),
        depth: u32,
    ) -> Result<Mended> {
        bp.validate().map_err(Error::corrupt)?;
        if !bp.is_gang() {
            let verifier = self.verifier(bp)?;
            return self.mend_copies(reader, (bp, bp.psize()), &verifier, pin, kind).await;
        }
        let grounds = Grounds::Pinned(Arc::clone(pin));
        let proven = self.proven_header(bp, depth, &grounds).await?;
        let mut mended = match &proven {
            Some(header) => {
                let same = |data: &[u8]| data == &header[..];
                let size = header.len() as u64;
                self.mend_copies(reader, (bp, size), &same, pin, kind).await?
            }
            None => self.mend_header(reader, bp, pin, kind).await?,
        };
        if mended.unreadable > 0 || is_on(Bug::MembersNotMended) {
            return Ok(mended);
        }
        let members = match &proven {
            Some(header) => gang::members(header, bp).map_err(Error::corrupt)?,
            None => self.gang_members(bp, &grounds).await?,
        };
        for member in members {
            let part = self.mend_at(reader, &member, (pin, kind), depth + 1);
            mended.add(Box::pin(part).await?);
        }
        // Each part may verify, and the whole does not.
        let is_lost = proven.is_none() && depth == 0 && kind != MendKind::Log;
        if is_lost && !is_on(Bug::StaleHeaderAccepted) {
            mended.unreadable = mended.unreadable.max(1);
        }
        Ok(mended)
    }

    /// Mends all copies of a header that does not lead to its block.
    async fn mend_header(
        &self,
        reader: &dyn LeafReader,
        bp: &BlockPtr,
        pin: &Arc<Pin>,
        kind: MendKind,
    ) -> Result<Mended> {
        let verifier = Verifier::gang_header(bp, self.verifies());
        let mut sizes = self.gang_header_sizes(bp);
        if sizes.len() > 1 {
            // A header has one size, and no other verifies.
            let grounds = Grounds::Speculative;
            let header = self.gang_header(bp, &[], self.reading(&grounds, 0)).await;
            sizes.retain(|size| header.as_ref().is_ok_and(|header| header.len() as u64 == *size));
        }
        let Some(size) = sizes.first() else {
            let unreadable = u64::from(kind != MendKind::Log);
            return Ok(Mended { unreadable, ..Mended::default() });
        };
        self.mend_copies(reader, (bp, *size), &verifier, pin, kind).await
    }

    /// Mends all copies of `size` bytes.
    async fn mend_copies(
        &self,
        reader: &dyn LeafReader,
        (bp, size): (&BlockPtr, u64),
        verify: &dyn Verify,
        pin: &Arc<Pin>,
        kind: MendKind,
    ) -> Result<Mended> {
        let (tree, birth) = (&**self.tree(), bp.physical_birth());
        let (mut good, mut copies) = (None, Vec::new());
        for (index, dva) in bp.dvas().enumerate() {
            let read = tree.scrub_with(reader, dva, size, birth, verify).await;
            let bad = match read {
                Ok(read) => {
                    good = good.or(read.good);
                    read.bad
                }
                Err(error) if error.kind() == Kind::Closed => return Err(error),
                // The address is invalid; another copy may be good.
                Err(_) => Vec::new(),
            };
            copies.push(Parts { index, dva, bad, missing: tree.missing_parts(dva, size, birth) });
        }
        // The devices were closed under the reader: what could not be read is not bad.
        tree.check_open()?;
        if is_on(Bug::OneCopyMended) {
            copies.truncate(1);
        }
        let Some(data) = good else {
            pin.check()?;
            // A device that fails now may have the block later: who lacks it has to get it then.
            let is_io = |bad: &BadChild| matches!(bad.cause, Cause::Io(_));
            let may_return = |copy: &Parts| {
                copy.bad.iter().any(is_io) || copy.bad.is_empty() && kind != MendKind::Log
            };
            if copies.iter().any(may_return) {
                copies.iter().flat_map(|copy| &copy.missing).for_each(|part| {
                    tree.leaf(part.leaf).note_missing_txg(birth);
                });
            }
            let unreadable = u64::from(kind != MendKind::Log);
            return Ok(Mended { unreadable, ..Mended::default() });
        };
        if kind == MendKind::Log {
            for copy in &mut copies {
                copy.bad.clear();
            }
        }
        copies.retain(|copy| copy.is_to_be_written(kind));
        if copies.is_empty() {
            return Ok(Mended::default());
        }
        // Checks E1, E2.
        let guard = match self.guard_pinned(bp, pin) {
            GuardOutcome::Unchanged(guard) => guard,
            GuardOutcome::Outside => return Ok(Mended::default()),
            GuardOutcome::Reused => return Err(overtaken()),
        };
        if kind == MendKind::Unread {
            let bad = copies.iter_mut().flat_map(|copy| &mut copy.bad);
            tree.count_checksum_errors(bad, IoClass::Scrub);
        }
        let bad: Vec<_> = copies.iter().flat_map(|copy| &copy.bad).cloned().collect();
        let lacking: Vec<_> =
            copies.iter().flat_map(|copy| &copy.missing).map(|part| part.leaf).collect();
        let tree = Arc::clone(self.tree());
        let mut writing = Box::pin(async move {
            let (mut mended, mut repaired) = (Mended::default(), 0);
            for copy in copies {
                let written =
                    write(&tree, &copy.dva, &data, birth, &copy.bad, Rewrite::Repair).await;
                repaired += copy.bad.len() as u64 - written.failed.min(copy.bad.len() as u64);
                mended.add(written);
                let why = Rewrite::Unwritten(birth);
                mended.add(write(&tree, &copy.dva, &data, birth, &copy.missing, why).await);
            }
            // E1: the devices have answered.
            drop(guard);
            (mended, repaired)
        });
        // The writes are submitted at once, so that the caller can join those of several blocks.
        // The rest is in its own task: a scan that is stopped leaves no write behind without a
        // guard.
        let first = poll_fn(|context| Poll::Ready(writing.as_mut().poll(context))).await;
        let written = match first {
            Poll::Ready(written) => Ok(written),
            Poll::Pending => cenote_rt::spawn(writing).await,
        };
        let (mended, repaired) = written.map_err(|error| {
            // How much was written is not known.
            for leaf in lacking {
                self.tree().leaf(leaf).note_missing_txg(birth);
            }
            Error::new(Kind::Io, error)
        })?;
        self.tell_mended(&bad, repaired, kind);
        Ok(mended)
    }

    fn tell_mended(&self, bad: &[BadChild], repaired: u64, kind: MendKind) {
        if bad.is_empty() {
            return;
        }
        self.note_recovered();
        self.note_repaired(repaired);
        if !matches!(kind, MendKind::Counted | MendKind::CountedCopy(_)) {
            self.report_bad(bad, IoClass::Scrub, repaired as usize);
        }
    }
}

/// Writes parts of one copy. What is missing counts as a write of its txg: if it fails, or the
/// flush after it, the leaf lacks it as before.
async fn write(
    tree: &cenote_vdev::Tree,
    dva: &Dva,
    data: &Buf,
    birth: u64,
    parts: &[BadChild],
    why: Rewrite,
) -> Mended {
    let Ok(outcome) = tree.repair(*dva, data, birth, parts, why).await else {
        return Mended { failed: parts.len() as u64, ..Mended::default() };
    };
    let written = outcome.repaired.iter().map(|range| range.len).sum();
    Mended { written, failed: outcome.failed.len() as u64, unreadable: 0 }
}
