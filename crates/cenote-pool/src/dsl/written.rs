//! Space written since an earlier state (spec 04 §17.3).
//!
//! A deadlist has the blocks that died between a snapshot and the next dataset (spec 04 §10).

use std::sync::Arc;

use cenote_dmu::{Deadlist, ObjSet, Space, deadlist};
use cenote_ondisk::dsl::{BookmarkFlags, DatasetPhys};
use cenote_rt::{Error, Result};

use super::dataset::load_phys;
use super::{Bookmark, Dataset, DslError};

/// Limit for the number of snapshots of a chain; a longer one has a loop.
const CHAIN_MAX: u64 = 1 << 24;

impl Dataset {
    /// Returns the bytes referenced now that the previous snapshot (or the origin) does not
    /// reference.
    pub async fn written(&self) -> Result<u64> {
        let phys = self.phys();
        let mut before = 0;
        if phys.prev_snap_obj != 0 {
            let prev = load_phys(self.mos(), phys.prev_snap_obj).await?;
            let dead = dead_total(self.mos(), phys).await?.used;
            before = prev.referenced_bytes.wrapping_sub(dead);
        }
        Ok(phys.referenced_bytes.wrapping_sub(before))
    }

    /// Returns the bytes referenced now that the earlier snapshot `since` does not reference.
    pub async fn written_since(&self, since: &Self) -> Result<u64> {
        Ok(self.space_since(since).await?.used)
    }

    /// Returns the space referenced now that the earlier snapshot `since` does not reference.
    ///
    /// # Errors
    /// `Kind::NotFound` with [`DslError::NotAncestor`]; errors of reading the pool.
    pub async fn space_since(&self, since: &Self) -> Result<Space> {
        let phys = since.phys();
        let not_ancestor = || DslError::NotAncestor(since.name().to_owned());
        let last = self.deadlists_back_to(phys.creation_txg, not_ancestor).await?;
        if last.reached != Some(since.object()) {
            return Err(Error::not_found(not_ancestor()));
        }
        let mut space = referenced(self.phys());
        space += last.dead;
        space += last.first_deadlist;
        space -= referenced(phys);
        Ok(space)
    }

    /// Returns the bytes referenced now that the earlier snapshot of a bookmark did not reference.
    pub async fn written_since_bookmark(&self, since: &Bookmark) -> Result<u64> {
        Ok(self.space_since_bookmark(since).await?.used)
    }

    /// Like [`space_since`](Self::space_since), of the snapshot of a bookmark.
    ///
    /// # Errors
    /// `Kind::NotFound` also with [`DslError::NoFreedSums`].
    pub async fn space_since_bookmark(&self, since: &Bookmark) -> Result<Space> {
        if !since.phys.flags.contains(BookmarkFlags::HAS_FBN) {
            return Err(Error::not_found(DslError::NoFreedSums(since.name.clone())));
        }
        let not_ancestor = || DslError::NotAncestor(since.name.clone());
        let last = self.deadlists_back_to(since.phys.creation_txg, not_ancestor).await?;
        let mut space = referenced(self.phys());
        space += last.dead;
        space += space_of(since.phys.freed_before_next);
        space -= space_of(since.phys.referenced);
        Ok(space)
    }

    /// Walks back to the dataset whose previous snapshot was taken in `txg` or before.
    async fn deadlists_back_to(
        &self,
        txg: u64,
        not_ancestor: impl Fn() -> DslError,
    ) -> Result<ChainSums> {
        let mos = self.mos();
        let mut phys: Arc<DatasetPhys> = Arc::new(self.phys().clone());
        let mut dead = Space::default();
        if phys.creation_txg <= txg && self.is_snapshot() {
            return Err(Error::not_found(not_ancestor()));
        }
        for _ in 0..CHAIN_MAX {
            if phys.prev_snap_txg <= txg {
                let first_deadlist = dead_total(mos, &phys).await?;
                let reached = (phys.prev_snap_obj != 0).then_some(phys.prev_snap_obj);
                return Ok(ChainSums { dead, first_deadlist, reached });
            }
            dead += dead_space(mos, &phys, 0, txg).await?;
            phys = Arc::new(load_phys(mos, phys.prev_snap_obj).await?);
        }
        Err(Error::corrupt(DslError::Loop { object: self.object() }))
    }

    /// Returns the bytes that destroying the snapshots from `self` to `last` frees; `last` is the
    /// same snapshot or a later one of the same head.
    pub async fn space_of_snapshots(&self, last: &Self) -> Result<u64> {
        let mos = self.mos();
        let (first_txg, min) = (self.phys().creation_txg, self.phys().prev_snap_txg);
        let mut object = last.phys().next_snap_obj;
        let mut used = 0_u64;
        for _ in 0..CHAIN_MAX {
            let phys = load_phys(mos, object).await?;
            if phys.prev_snap_txg < first_txg {
                return Ok(used);
            }
            used = used.wrapping_add(dead_space(mos, &phys, min, u64::MAX).await?.used);
            if phys.prev_snap_txg == first_txg {
                return Ok(used);
            }
            object = phys.prev_snap_obj;
        }
        Err(Error::corrupt(DslError::Loop { object: self.object() }))
    }
}

/// Returns the space on the deadlist of a dataset.
async fn dead_total(mos: &Arc<ObjSet>, dataset: &DatasetPhys) -> Result<Space> {
    match dataset.deadlist_obj {
        0 => Ok(Space::default()),
        object => mos.read(|objects| deadlist::space(objects, object)).await,
    }
}

/// Returns the space on the deadlist of a dataset that was born in `(min, max]`; both are keys of
/// the deadlist, `min` may be 0 and `max` 2^64-1.
async fn dead_space(mos: &Arc<ObjSet>, dataset: &DatasetPhys, min: u64, max: u64) -> Result<Space> {
    match dataset.deadlist_obj {
        0 => Ok(Space::default()),
        object => Deadlist::open(mos, object).await?.range_sums(min, max).await,
    }
}

/// Returns the space that a dataset references.
const fn referenced(phys: &DatasetPhys) -> Space {
    space_of([phys.referenced_bytes, phys.compressed_bytes, phys.uncompressed_bytes])
}

const fn space_of([used, comp, uncomp]: [u64; 3]) -> Space {
    Space { used, comp, uncomp }
}

/// Sums over the deadlists of a chain of datasets.
struct ChainSums {
    /// Dead space of the deadlists on the way that was born before the start.
    dead: Space,
    /// Space of the whole deadlist of the dataset right after the start.
    first_deadlist: Space,
    /// The snapshot that the walk reached.
    reached: Option<u64>,
}
