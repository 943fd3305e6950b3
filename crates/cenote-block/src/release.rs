//! Frees and claims the space of blocks: every address of a pointer, and for a gang block those of
//! its headers and members.
//!
//! The pointer of a gang block tells only how much space the whole gang takes. The header must be
//! read to free the members, and all headers, down to the last nested one, are read before anything
//! is freed: if a header cannot be read, the block stays allocated, and the error says so. The
//! caller decides whether to leak the space or to try again later.
//!
//! Invariants
//! * H3  Only a block that was born after the last commit is claimed: older ones are in the maps.
//!
//! A header's address is freed with the size of a classic header (spec 05 §5.6), computed as of the
//! block's birth: a RAID-Z expansion changes the allocated size of later blocks.
//!
//! Sources: spec 02 §6.3; spec 05 §5.6; spec 07 A12.

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Error, Kind, Result, ensure};
use cenote_vdev::VdevKind;

use crate::error::{BlockError, WriteError};
use crate::gang::GANG_DEPTH_MAX;
use crate::grounds::Grounds;
use crate::moved::FreedRange;
use crate::store::BlockStore;

impl BlockStore {
    /// Frees the space of a block in txg `txg`. Holes and embedded data have none. Space that the
    /// pool's checkpoint uses stays allocated, and is reported as `held` in the txg's changes.
    ///
    /// # Errors
    /// `Kind::Unsupported` for blocks that other pointers may share (dedup, clones); read errors if
    /// the header of a gang block cannot be read. Nothing was freed then. `Kind::Invariant` if the
    /// space is not allocated, or the block is younger than `txg`.
    pub async fn free(&self, bp: &BlockPtr, txg: u64) -> Result<()> {
        let space = self.space()?;
        // Checks W4.
        if bp.birth() > txg {
            let cause = WriteError::FromTheFuture { birth: bp.birth(), txg };
            return Err(Error::new(Kind::Invariant, cause));
        }
        // A header and its members have one birth. Physical: a clone is younger than its bytes.
        let birth = bp.physical_birth();
        let is_in_checkpoint = space.is_in_checkpoint(birth, txg);
        for dva in self.owned_addresses(bp).await? {
            let (vdev, offset) = (u64::from(dva.vdev), dva.offset);
            let asize = if dva.gang { self.header_of(dva, birth)?.asize } else { dva.asize };
            let freed = FreedRange { vdev, offset, asize, is_in_checkpoint };
            self.moved().free((self.tree(), space), freed, txg)?;
        }
        Ok(())
    }

    /// Claims the space of a block that the space maps list as free, in txg `txg`: log blocks that
    /// were written after the last commit, and blocks that they point to. With `is_dry_run` only
    /// checks whether that is possible.
    ///
    /// # Errors
    /// Errors of the allocator's claim, and of [`free`](Self::free).
    pub async fn claim(&self, bp: &BlockPtr, txg: u64, is_dry_run: bool) -> Result<()> {
        let space = self.space()?;
        let (birth, committed) = (bp.birth(), space.committed());
        ensure!("H3", birth > committed, "a block of txg {birth} is claimed after txg {committed}");
        for dva in self.owned_addresses(bp).await? {
            let top = self.tree().top(u64::from(dva.vdev));
            if top.is_some_and(|top| top.kind() == VdevKind::Indirect) {
                let cause = WriteError::RemovedVdev { vdev: dva.vdev };
                return Err(Error::new(Kind::Unsupported, cause));
            }
            space.claim(&dva, txg, is_dry_run).await?;
        }
        Ok(())
    }

    /// Every address that belongs to this block alone, with the space of that address.
    async fn owned_addresses(&self, bp: &BlockPtr) -> Result<Vec<Dva>> {
        if bp.is_embedded() || bp.is_hole() {
            return Ok(Vec::new());
        }
        bp.validate().map_err(Error::corrupt)?;
        check_owner(bp)?;
        let mut addresses = Vec::new();
        self.add_addresses(bp, 0, &mut addresses).await?;
        for dva in &addresses {
            let is_known = self.tree().top(u64::from(dva.vdev)).is_some();
            if !is_known {
                return Err(Error::corrupt(BlockError::Vdev { vdev: dva.vdev }));
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
            if is_on(Bug::GangMembersKept) {
                return Ok(());
            }
            for member in self.gang_members(bp, &Grounds::Allocated).await? {
                member.validate().map_err(Error::corrupt)?;
                self.add_addresses(&member, depth + 1, into).await?;
            }
            Ok(())
        })
    }
}

/// Refuses blocks whose references are counted in tables that this program does not maintain.
fn check_owner(bp: &BlockPtr) -> Result<()> {
    let cause = if bp.is_dedup() {
        WriteError::Dedup
    } else if bp.physical_birth() < bp.birth() {
        // The bytes are older than their place in the tree: a clone of another block.
        WriteError::Cloned
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::Unsupported, cause))
}
