//! Writes a block that has no good copy again, with bytes from elsewhere (a corrective receive).
//!
//! The bytes must have the checksum of the pointer, so the block becomes what it was: no pointer
//! changes, and no txg is needed. All parts of all copies are written, because which of them are
//! bad cannot be told without a good one.
//!
//! As in [`crate::mend`], the block belongs to a committed state that a pin keeps in place, and a
//! guard is taken while the pin is valid and kept until the devices have answered (E1 of
//! [`crate::grounds`]).

use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::{Buf, Error, Kind, Result};
use cenote_vdev::{BadChild, Cause, LeafRange, Rewrite, Verify as _};

use crate::alloc::{GuardOutcome, Pin};
use crate::error::{BlockError, WriteError};
use crate::gang::GANG_DEPTH_MAX;
use crate::grounds::{Grounds, overtaken};
use crate::store::BlockStore;

impl BlockStore {
    /// Whether bytes in their stored form are those of a block: whether they have its checksum.
    ///
    /// # Errors
    /// If the checksum cannot be computed.
    pub fn fits(&self, bp: &BlockPtr, stored: &[u8]) -> Result<bool> {
        let has_place = !bp.is_hole() && !bp.is_embedded();
        let is_long_enough = has_place && stored.len() as u64 == bp.psize();
        // Whatever is written is verified.
        Ok(is_long_enough && self.verifier_that(bp, true)?.verify(stored))
    }

    /// Writes all copies of a block again. `stored` are its bytes in their stored form; the members
    /// of a gang block get theirs if its headers are good. Returns the number of parts that were
    /// written and that failed.
    ///
    /// # Errors
    /// `Kind::Checksum` if the bytes are not those of the block; `Kind::Overtaken` if the pin is
    /// not valid any more; errors of reading gang headers.
    pub async fn restore(
        &self,
        bp: &BlockPtr,
        pin: &Arc<Pin>,
        stored: &Buf,
    ) -> Result<(usize, usize)> {
        bp.validate().map_err(Error::corrupt)?;
        if !self.fits(bp, stored)? {
            return Err(Error::new(Kind::Checksum, WriteError::OtherBlock));
        }
        let (mut written, mut failed) = (0, 0);
        let mut left = vec![(*bp, stored.clone(), 0)];
        while let Some((bp, data, depth)) = left.pop() {
            if bp.is_gang() {
                if depth >= GANG_DEPTH_MAX {
                    return Err(Error::corrupt(BlockError::GangDepth { limit: GANG_DEPTH_MAX }));
                }
                let members = self.gang_members(&bp, &Grounds::Pinned(Arc::clone(pin))).await?;
                let mut at = 0;
                for member in members {
                    let end = at + member.psize() as usize;
                    let part = data.slice(at..end).filter(|part| self.fits_member(&member, part));
                    let other = || Error::new(Kind::Checksum, WriteError::OtherBlock);
                    left.push((member, part.ok_or_else(other)?, depth + 1));
                    at = end;
                }
                continue;
            }
            let (of_block, failed_here) = self.write_again(&bp, pin, data).await?;
            written += of_block;
            failed += failed_here;
        }
        Ok((written, failed))
    }

    /// Whether bytes are those of a member of a gang block. One that is a gang block itself has no
    /// checksum over them.
    fn fits_member(&self, member: &BlockPtr, part: &[u8]) -> bool {
        member.is_gang() || self.fits(member, part).unwrap_or(false)
    }

    async fn write_again(
        &self,
        bp: &BlockPtr,
        pin: &Arc<Pin>,
        data: Buf,
    ) -> Result<(usize, usize)> {
        // Checks E1, E2.
        let guard = match self.guard_pinned(bp, pin) {
            GuardOutcome::Unchanged(guard) => guard,
            GuardOutcome::Outside => return Ok((0, 0)),
            GuardOutcome::Reused => return Err(overtaken()),
        };
        let (tree, bp) = (Arc::clone(self.tree()), *bp);
        let birth = bp.physical_birth();
        // In its own task: a caller that goes away leaves no write behind without a guard.
        let task = cenote_rt::spawn(async move {
            let (mut written, mut failed) = (0, 0);
            for dva in bp.dvas() {
                let ranges = tree.layout_ranges(dva, bp.psize(), birth);
                let parts: Vec<_> = ranges.into_iter().map(|range| part_of(&tree, range)).collect();
                match tree.repair(dva, &data, birth, &parts, Rewrite::Repair).await {
                    Ok(outcome) => {
                        written += outcome.repaired.len();
                        failed += outcome.failed.len();
                    }
                    Err(_) => failed += parts.len(),
                }
            }
            // E1: the devices have answered.
            drop(guard);
            (written, failed)
        });
        let (written, failed) = task.await.map_err(|error| Error::new(Kind::Io, error))?;
        self.note_repaired(written as u64);
        Ok((written, failed))
    }
}

fn part_of(tree: &cenote_vdev::Tree, range: LeafRange) -> BadChild {
    let LeafRange { leaf, offset, len } = range;
    let of_leaf = tree.leaf(leaf);
    let (guid, path) = (of_leaf.guid(), of_leaf.path().to_owned());
    BadChild { leaf, guid, path, offset, len, cause: Cause::Suspect, errors: 0 }
}
