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
use cenote_rt::{Buf, Error, Result};
use cenote_vdev::{BadChild, Cause, LeafRange, Verify as _};

use crate::alloc::{GuardOutcome, Pin};
use crate::error::{BlockError, WriteError};
use crate::gang::GANG_DEPTH_MAX;
use crate::grounds::{Grounds, overtaken};
use crate::store::BlockStore;

/// Coarse estimate of the time to find the form of a block: rare, and never short.
const FIND_NS: u64 = 1_000_000;

impl BlockStore {
    /// Writes all copies of a block again, as far as the devices take them, with the first of
    /// `forms` that is the block in its stored form. The members of a gang block get their parts if
    /// its headers are good. Returns whether there was such a form.
    ///
    /// # Errors
    /// `Kind::Overtaken` if the pin is not valid any more; errors of reading gang headers.
    pub async fn restore(
        &self,
        bp: &BlockPtr,
        pin: &Arc<Pin>,
        mut forms: impl Iterator<Item = Vec<u8>> + Send + 'static,
    ) -> Result<bool> {
        bp.validate().map_err(Error::corrupt)?;
        let fits = self.fits(bp)?;
        let found = cenote_rt::cpu(FIND_NS, move || forms.find(|form| fits(form))).await?;
        let Some(stored) = found.map(Buf::from) else { return Ok(false) };
        let mut left = vec![(*bp, stored, 0)];
        while let Some((bp, data, depth)) = left.pop() {
            if !bp.is_gang() {
                self.write_again(&bp, pin, data).await?;
                continue;
            }
            if depth >= GANG_DEPTH_MAX {
                return Err(Error::corrupt(BlockError::GangDepth { limit: GANG_DEPTH_MAX }));
            }
            let mut at = 0;
            for member in self.gang_members(&bp, &Grounds::Pinned(Arc::clone(pin))).await? {
                let end = at + member.psize() as usize;
                let part = data.slice(at..end).unwrap_or_else(Buf::empty);
                // One that is a gang block itself has no checksum over these bytes.
                if !member.is_gang() && !self.fits(&member)?(&part) {
                    return Err(Error::corrupt(WriteError::OtherBlock));
                }
                left.push((member, part, depth + 1));
                at = end;
            }
        }
        Ok(true)
    }

    /// Returns a function that tells whether bytes are a block in its stored form: whether they
    /// have its length and checksum. Whatever is written is verified.
    fn fits(&self, bp: &BlockPtr) -> Result<impl Fn(&[u8]) -> bool + Send + 'static> {
        let (verifier, len) = (self.verifier_that(bp, true)?, bp.psize());
        Ok(move |bytes: &[u8]| bytes.len() as u64 == len && verifier.verify(bytes))
    }

    async fn write_again(&self, bp: &BlockPtr, pin: &Arc<Pin>, data: Buf) -> Result<()> {
        // Checks E1, E2.
        let guard = match self.guard_pinned(bp, pin) {
            GuardOutcome::Unchanged(guard) => guard,
            GuardOutcome::Outside => return Ok(()),
            GuardOutcome::Reused => return Err(overtaken()),
        };
        let (tree, birth) = (self.tree(), bp.physical_birth());
        let parts_at = |dva| {
            let ranges = tree.layout_ranges(dva, bp.psize(), birth).into_iter();
            (dva, ranges.map(|range| part_of(tree, range)).collect())
        };
        self.rewrite(data, birth, bp.dvas().map(parts_at).collect(), Some(guard)).await;
        Ok(())
    }
}

fn part_of(tree: &cenote_vdev::Tree, range: LeafRange) -> BadChild {
    let LeafRange { leaf, offset, len } = range;
    let of_leaf = tree.leaf(leaf);
    let (guid, path) = (of_leaf.guid(), of_leaf.path().to_owned());
    BadChild { leaf, guid, path, offset, len, cause: Cause::Suspect, errors: 0 }
}
