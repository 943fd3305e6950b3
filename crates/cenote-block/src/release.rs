//! Freeing and claiming the space of blocks: every address of a pointer, and for a gang block
//! those of its headers and members.
//!
//! A pointer tells of a gang only how much space all of it takes. The header has to be read to
//! free the rest, and it is read whole, down to the last nested one, before anything is freed: a
//! header that cannot be read leaves the block allocated as it was, and the error says so. What the
//! caller makes of that (leak it, try again later) is his business.
//!
//! A header's address is freed with the size of a classic header (spec 05 §5.6), as it was when the
//! block was born: an expansion changes what a size takes.
//!
//! Sources: spec 02 §6.3; spec 05 §5.6; spec 07 A12.

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_rt::{BoxFuture, Error, Kind, Result};
use cenote_vdev::VdevKind;

use crate::error::{BlockError, WriteError};
use crate::gang::GANG_DEPTH_MAX;
use crate::grounds::Grounds;
use crate::store::BlockStore;

impl BlockStore {
    /// Frees the space of a block in txg `txg`. Holes and embedded data have none. What the pool's
    /// checkpoint reaches stays allocated, and is told as held with the txg's changes.
    ///
    /// # Errors
    /// `Kind::Unsupported` for blocks that others may refer to as well (dedup, clones), for blocks
    /// under encryption and for addresses on removed vdevs; reading errors when the header of a
    /// gang block cannot be read. Nothing was freed then. `Kind::Invariant` when the space is not
    /// allocated, or the block is younger than `txg`.
    pub async fn free(&self, bp: &BlockPtr, txg: u64) -> Result<()> {
        let space = self.space()?;
        if bp.birth() > txg {
            let cause = WriteError::FromTheFuture { birth: bp.birth(), txg };
            return Err(Error::new(Kind::Invariant, cause));
        }
        // A header and its members are of one birth. Physical: a clone is younger than its bytes.
        let is_kept = space.is_kept(bp.physical_birth(), txg);
        for dva in self.owned_addresses(bp).await? {
            if is_kept { space.free_held(&dva, txg)? } else { space.free(&dva, txg)? }
        }
        Ok(())
    }

    /// Takes the space of a block that the space maps call free, in txg `txg`: log blocks that were
    /// written after the last commit, and what they point to. With `is_dry_run` it is only asked
    /// whether that could be done.
    ///
    /// # Errors
    /// As the allocator's claim, and as [`free`](Self::free).
    pub async fn claim(&self, bp: &BlockPtr, txg: u64, is_dry_run: bool) -> Result<()> {
        let space = self.space()?;
        for dva in self.owned_addresses(bp).await? {
            space.claim(&dva, txg, is_dry_run).await?;
        }
        Ok(())
    }

    /// Every address that belongs to the block alone, with the space that it takes itself.
    async fn owned_addresses(&self, bp: &BlockPtr) -> Result<Vec<Dva>> {
        if bp.is_embedded() || bp.is_hole() {
            return Ok(Vec::new());
        }
        bp.validate().map_err(Error::corrupt)?;
        check_owner(bp)?;
        let mut addresses = Vec::new();
        self.add_addresses(bp, 0, &mut addresses).await?;
        for dva in &addresses {
            let top = self.tree().top(u64::from(dva.vdev));
            let top = top.ok_or_else(|| Error::corrupt(BlockError::Vdev { vdev: dva.vdev }))?;
            if top.kind() == VdevKind::Indirect {
                let cause = WriteError::RemovedVdev { vdev: dva.vdev };
                return Err(Error::new(Kind::Unsupported, cause));
            }
        }
        Ok(addresses)
    }

    fn add_addresses<'a>(
        &'a self,
        bp: &'a BlockPtr,
        depth: u32,
        into: &'a mut Vec<Dva>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if !bp.is_gang() {
                into.extend(bp.dvas());
                return Ok(());
            }
            if depth >= GANG_DEPTH_MAX {
                let cause = BlockError::GangDepth { limit: GANG_DEPTH_MAX };
                return Err(Error::corrupt(cause));
            }
            let birth = bp.physical_birth();
            for dva in bp.dvas() {
                into.push(self.header_of(dva, birth)?);
            }
            for member in self.gang_members(bp, &Grounds::Allocated).await? {
                member.validate().map_err(Error::corrupt)?;
                self.add_addresses(&member, depth + 1, into).await?;
            }
            Ok(())
        })
    }
}

/// Refuses blocks whose space is counted by tables that are not maintained.
fn check_owner(bp: &BlockPtr) -> Result<()> {
    let cause = if bp.is_dedup() {
        WriteError::Dedup
    } else if bp.physical_birth() < bp.birth() {
        // The bytes are older than their place in the tree: a reference to another's block.
        WriteError::Cloned
    } else if bp.is_protected() {
        WriteError::Encrypted
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::Unsupported, cause))
}
