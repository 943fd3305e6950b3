//! Claims every allocated address of the pool in [`Claims`].

use std::sync::Arc;

use cenote_dmu::{Bpobj, Bptree, Deadlist, SpaceMap};
use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::deadlist::is_livelist_free;
use cenote_ondisk::dsl::key;
use cenote_ondisk::indirect::MappingEntry;
use cenote_ondisk::spacemap::{Geometry, Item};
use cenote_ondisk::vdev_zap::POOL_CHECKPOINT_SM;
use cenote_rt::{BoxFuture, FixedMap, Result};
use cenote_vdev::IndirectMap;

use super::segments::{Claims, Segment};
use super::shared::{Leftover, Refcounts};
use super::{Census, Origin, Reference};
use crate::accounting::top_zap;
use crate::pool::indirect;
use crate::traverse::{self, Damage, Flow, Options, Visitor};
use crate::{Pool, mos};

/// Size of a gang header that counts as allocated (spec 05 §5.6).
const GANG_HEADER: u64 = 512;
/// Maximum depth of nested gang blocks.
const GANG_DEPTH_MAX: u32 = 16;
/// Maximum number of removed vdevs between an address and its data.
const REMAP_DEPTH_MAX: u32 = 64;

/// Results of one pass other than the segments.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Bytes of all addresses.
    pub(super) bytes: u64,
    /// Bytes of repeated references, part of `bytes`.
    pub(super) shared_bytes: u64,
    /// Bytes that only the checkpoint holds.
    pub(super) checkpoint_bytes: u64,
    /// Bytes of dedup entries without references.
    pub(super) unreferenced_bytes: u64,
    /// Addresses whose size is less than their vdevs need for the block.
    pub(super) short: Vec<Segment>,
    pub(super) leftovers: Vec<Leftover>,
    pub(super) damage: Vec<String>,
}

/// One pass.
pub(super) struct Claimer<'a, C> {
    pool: &'a Arc<Pool>,
    claims: Claims,
    census: &'a mut C,
    counts: bool,
    shared: Refcounts,
    /// The vdev that is being removed, and the mapping of its copied blocks.
    removing: Option<(u64, IndirectMap)>,
    pass: Pass,
    origin: Origin,
}

impl<'a, C: Census> Claimer<'a, C> {
    pub(super) async fn new(
        pool: &'a Arc<Pool>,
        claims: Claims,
        census: &'a mut C,
        counts: bool,
    ) -> Result<Self> {
        let mut pass = Pass::default();
        let shared = Refcounts::load(pool).await.unwrap_or_else(|error| {
            pass.damage.push(format!("tables of shared blocks: {error}"));
            Refcounts::default()
        });
        let removing = indirect::of_removing(pool.mos(), &pool.config().vdev_tree).await;
        let removing = removing.unwrap_or_else(|error| {
            pass.damage.push(format!("mapping of a vdev that is being removed: {error}"));
            None
        });
        Ok(Self { pool, claims, census, counts, shared, removing, pass, origin: Origin::Tree })
    }

    pub(super) fn into_parts(mut self) -> (Claims, Pass) {
        self.pass.leftovers = self.shared.leftovers();
        (self.claims, self.pass)
    }

    /// Claims everything. Damage is noted, and the rest is claimed.
    pub(super) async fn claim_all(&mut self) -> Result<()> {
        let pool = Arc::clone(self.pool);
        self.origin = Origin::FreeQueue;
        for name in [key::SYNC_BPOBJ, key::FREE_BPOBJ] {
            if let Some(object) = pool.directory_object(name)
                && let Err(error) = self.claim_bpobj(object).await
            {
                self.pass.damage.push(format!("{name}: {error}"));
            }
        }
        if let Err(error) = self.claim_destroyed().await {
            self.pass.damage.push(format!("destroyed datasets: {error}"));
        }
        self.claim_unreferenced().await;
        self.origin = Origin::Tree;
        traverse::pool(&pool, Options::default(), self).await?;
        if pool.features().is_active("zpool_checkpoint")
            && let Err(error) = self.claim_checkpoint().await
        {
            self.pass.damage.push(format!("checkpoint: {error}"));
        }
        Ok(())
    }

    async fn claim_bpobj(&mut self, object: u64) -> Result<()> {
        let mut batch = Vec::new();
        Bpobj::open(self.pool.mos(), object)
            .await?
            .for_each(|bp| {
                batch.push(*bp);
                Ok(())
            })
            .await?;
        for bp in batch {
            self.count_reference(&bp, &Bookmark::default()).await;
        }
        Ok(())
    }

    /// Claims object sets and clones whose blocks are yet to be freed.
    async fn claim_destroyed(&mut self) -> Result<()> {
        let pool = Arc::clone(self.pool);
        if let Some(object) = pool.directory_object(key::BPTREE_OBJ) {
            let tree = Bptree::open(pool.mos(), object).await?;
            for index in tree.phys().begin..tree.phys().end {
                let entry = tree.entry(index).await?;
                // Already freed completely, out of order.
                if entry.is_done() {
                    continue;
                }
                traverse::destroyed(pool.store(), pool.grounds(), &entry, self).await?;
            }
        }
        let Some(object) = pool.directory_object(key::DELETED_CLONES) else { return Ok(()) };
        for (_, value) in mos::entries(pool.mos(), object).await? {
            let Some(object) = value.first() else { continue };
            // A cloned or deduplicated block is listed once for each reference.
            let mut left = Vec::new();
            let mut freed: FixedMap<Option<Dva>, u64> = FixedMap::default();
            Deadlist::open(pool.mos(), object)
                .await?
                .for_each(|bp| {
                    // In reverse, so that a FREE comes before its ALLOC.
                    let is_free = is_livelist_free(bp);
                    let waiting = freed.entry(bp.dva(0)).or_default();
                    match (is_free, *waiting) {
                        (true, _) => *waiting += 1,
                        (false, 0) => left.push(*bp),
                        (false, _) => *waiting -= 1,
                    }
                    Ok(())
                })
                .await?;
            for bp in left {
                self.count_reference(&bp, &Bookmark::default()).await;
            }
        }
        Ok(())
    }

    /// Claims blocks that a dedup log frees when it is flushed.
    async fn claim_unreferenced(&mut self) {
        for bp in self.shared.unreferenced().to_vec() {
            self.pass.unreferenced_bytes += bp.asize_total();
            if let Err(error) = self.claim(&bp, 0).await {
                self.pass.damage.push(format!("dedup log, {}: {error}", bp.compact(true)));
            }
        }
    }

    /// Claims space that is freed in the pool but held by the checkpoint.
    async fn claim_checkpoint(&mut self) -> Result<()> {
        let pool = Arc::clone(self.pool);
        for vdev in &pool.config().vdev_tree.children {
            let Some(object) = top_zap(pool.mos(), vdev, POOL_CHECKPOINT_SM).await? else {
                continue;
            };
            let geometry =
                Geometry { start: 0, size: vdev.top.asize, shift: vdev.top.ashift as u8 };
            let mut ranges = Vec::new();
            SpaceMap::open(pool.mos(), object)
                .await?
                .for_each(geometry, |item| {
                    if let Item::Entry(entry) = item {
                        ranges.push((entry.offset, entry.size));
                    }
                    Ok(())
                })
                .await?;
            for (offset, size) in ranges {
                self.pass.checkpoint_bytes += size;
                self.claims.claim(vdev.id, offset, size);
            }
        }
        Ok(())
    }

    /// Counts a reference to a block, and claims its space on the first one.
    async fn count_reference(&mut self, bp: &BlockPtr, place: &Bookmark) {
        if bp.is_hole() || bp.is_redacted() {
            return;
        }
        let bp = &self.shared.whole(bp);
        let reference = match self.shared.count_reference(bp) {
            _ if bp.is_embedded() => Reference::First,
            reference => reference,
        };
        if self.counts {
            self.census.count(bp, place, self.origin, reference);
        }
        let bytes = bp.asize_total();
        self.pass.bytes += bytes;
        match reference {
            Reference::First if !bp.is_embedded() => {
                if let Err(error) = self.claim(bp, 0).await {
                    self.pass.damage.push(format!("gang block {place:?}: {error}"));
                }
            }
            Reference::First => {}
            Reference::Again(_) => self.pass.shared_bytes += bytes,
        }
    }

    fn claim<'b>(&'b mut self, bp: &'b BlockPtr, depth: u32) -> BoxFuture<'b, Result<()>> {
        Box::pin(async move {
            for dva in bp.dvas() {
                let (vdev, offset) = (u64::from(dva.vdev), dva.offset);
                let asize = if dva.gang {
                    let tree = self.pool.tree();
                    tree.asize_for(vdev, GANG_HEADER, bp.physical_birth()).unwrap_or(dva.asize)
                } else {
                    self.check_size(bp, dva);
                    dva.asize
                };
                self.claim_range(vdev, offset, asize, 0);
            }
            if bp.is_gang() && depth < GANG_DEPTH_MAX {
                for member in self.pool.store().gang_members(bp, self.pool.grounds()).await? {
                    self.claim(&member, depth + 1).await?;
                }
            }
            Ok(())
        })
    }

    /// Reports an address whose size does not fit its block with parity and padding.
    fn check_size(&mut self, bp: &BlockPtr, dva: Dva) {
        let (vdev, start) = (u64::from(dva.vdev), dva.offset);
        let needed = self.pool.tree().asize_for(vdev, bp.psize(), bp.physical_birth());
        // Blocks of a removed vdev keep their allocated sizes.
        let is_moved = self.pool.tree().indirect(vdev).is_some();
        if self.counts && !is_moved && needed.is_some_and(|needed| dva.asize < needed) {
            self.pass.short.push(Segment { vdev, start, end: start.saturating_add(dva.asize) });
        }
    }

    /// Claims a range. On a removed vdev its new location is claimed, too; on a vdev that is being
    /// removed, its copies.
    fn claim_range(&mut self, vdev: u64, offset: u64, size: u64, depth: u32) {
        self.claims.claim(vdev, offset, size);
        let pieces = match (self.pool.tree().indirect(vdev), &self.removing) {
            (Some(map), _) => map.pieces(offset, size),
            // Copying proceeds upwards and may have stopped in the middle of a block.
            (None, Some((removing, map))) if *removing == vdev => {
                let copied = map.entries().last().map_or(0, MappingEntry::end);
                let size = copied.clamp(offset, offset.saturating_add(size)) - offset;
                map.pieces(offset, size)
            }
            _ => None,
        };
        for piece in pieces.unwrap_or_default() {
            if depth < REMAP_DEPTH_MAX {
                self.claim_range(u64::from(piece.vdev), piece.vdev_offset, piece.size, depth + 1);
            }
        }
    }
}

impl<C: Census> Visitor for Claimer<'_, C> {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        self.count_reference(bp, place).await;
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        self.pass.damage.push(format!("{:?}: {}", damage.place, damage.error));
    }
}
