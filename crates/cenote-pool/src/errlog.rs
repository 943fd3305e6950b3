//! The error logs: blocks that could not be read (spec 04 §22, spec 08 §36).
//!
//! There are two: errors of the last finished scan and since, and errors of the running scan. With
//! `head_errlog` an entry names the head dataset and the block's birth txg, from which the
//! snapshots and clones that share the block are found; otherwise it names just the object set.
//! An entry with a birth txg is not shown once no dataset has the block: its file was overwritten
//! or removed. Scans drop it from the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dsl::key;
use cenote_ondisk::errlog::{ERRLOG_LAST, ERRLOG_SCRUB, HeadEntry, parse_plain};
use cenote_rt::Result;
use cenote_rt::seeded::{Bug, is_on};

use crate::dsl::{Dataset, Dir, dataset::load_phys};
use crate::{Pool, mos};

/// One damaged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedBlock {
    /// Its bookmark; the object set is a dataset object, 0 the MOS.
    pub place: Bookmark,
    /// Physical birth, if known; the logical one if OpenZFS before 2.4 wrote the entry.
    pub birth: Option<u64>,
}

impl DamagedBlock {
    /// Returns its physical birth, as its dataset has it now; `None` if the dataset has no block
    /// there.
    ///
    /// # Errors
    /// If what leads to the block cannot be read.
    pub async fn birth_in(&self, pool: &Arc<Pool>) -> Result<Option<u64>> {
        if self.place.objset == 0 {
            return Ok(self.birth);
        }
        let dataset = pool.dataset_by_object(self.place.objset).await?;
        let found = pointer_in(&dataset, &self.place).await?;
        Ok(found.filter(|found| !found.is_hole()).map(|found| found.physical_birth()))
    }
}

/// Reads the entries of one log.
async fn read(mos: &Arc<ObjSet>, object: u64, by_head: bool) -> Result<Vec<DamagedBlock>> {
    let mut blocks = Vec::new();
    for (key, value) in mos::entries(mos, object).await? {
        if !by_head {
            blocks.extend(
                parse_plain(key.as_bytes()).map(|place| DamagedBlock { place, birth: None }),
            );
            continue;
        }
        let (Some(head), Some(sub)) = (key::to_number(key.as_bytes()), value.first()) else {
            continue;
        };
        for (key, _) in mos::entries(mos, sub).await? {
            let Some(entry) = HeadEntry::parse(key.as_bytes()) else { continue };
            let HeadEntry { object, level, blkid, birth } = entry;
            let place = Bookmark { objset: head, object, level, blkid };
            blocks.push(DamagedBlock { place, birth: (birth != 0).then_some(birth) });
        }
    }
    Ok(blocks)
}

/// Returns the entries of both logs, sorted and without duplicates.
pub(crate) async fn all(mos: &Arc<ObjSet>, by_head: bool) -> Result<Vec<DamagedBlock>> {
    let mut blocks = Vec::new();
    for log in [ERRLOG_LAST, ERRLOG_SCRUB] {
        if let Some(object @ 1..) = mos::u64(mos, mos::DIRECTORY, log).await? {
            blocks.extend(read(mos, object, by_head).await?);
        }
    }
    blocks.sort_unstable();
    blocks.dedup();
    Ok(blocks)
}

/// A damaged object of a dataset or snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedObject {
    /// Dataset object; 0 is the MOS.
    pub objset: u64,
    /// Object in it.
    pub object: u64,
}

impl Pool {
    /// Returns every object that the error log names, in the heads, snapshots and clones that share
    /// the damaged block; sorted, without duplicates. Omits blocks that no dataset has any more. A
    /// block whose datasets cannot be read is listed in the head that the entry names.
    ///
    /// # Errors
    /// If the error log cannot be read, and interruptions.
    pub async fn damaged_objects(self: &Arc<Self>) -> Result<Vec<DamagedObject>> {
        let mut objects = BTreeSet::new();
        for block in self.error_log().await? {
            objects.extend(self.objects_with(&block).await?);
        }
        Ok(objects.into_iter().collect())
    }

    /// Returns the objects that have a block of the error log.
    async fn objects_with(self: &Arc<Self>, block: &DamagedBlock) -> Result<Vec<DamagedObject>> {
        let Bookmark { objset, object, .. } = block.place;
        let mut datasets = vec![objset];
        if let Some(birth) = block.birth.filter(|_| objset != 0) {
            let holders = Holders::find(self, &block.place, birth).await?;
            if !(holders.found.is_empty() && holders.is_incomplete) {
                datasets = holders.found;
            }
        }
        Ok(datasets.into_iter().map(|objset| DamagedObject { objset, object }).collect())
    }
}

/// Where the blocks are that the error log names for one object set.
#[derive(Debug)]
pub struct DamagedSet {
    pool: Arc<Pool>,
    /// The head and its snapshots, oldest first; none of the MOS.
    line: Vec<Dataset>,
}

impl DamagedSet {
    /// Returns the datasets that may have the blocks that the error log names for an object set.
    ///
    /// # Errors
    /// If a dataset of them cannot be read.
    pub async fn load(pool: &Arc<Pool>, objset: u64) -> Result<Self> {
        let mut line = Vec::new();
        if objset != 0 {
            let head = pool.dataset_by_object(objset).await?;
            if !is_on(Bug::ErrorScrubSkipsSnapshots) {
                line = head.snapshots().await?;
            }
            line.push(head);
        }
        Ok(Self { pool: Arc::clone(pool), line })
    }

    /// Returns the pointer to a block that the error log names; `None` if no dataset has it any
    /// more.
    ///
    /// # Errors
    /// If what leads to the block cannot be read.
    pub async fn pointer(&self, block: &DamagedBlock) -> Result<Option<BlockPtr>> {
        let place = &block.place;
        if place.objset == 0 {
            return pointer(self.pool.mos(), &self.pool.uberblock().rootbp, place).await;
        }
        let birth = block.birth.unwrap_or(0);
        let has_it = |of: &&Dataset| !of.phys().is_snapshot() || of.phys().creation_txg >= birth;
        for dataset in self.line.iter().filter(has_it) {
            let found = pointer_in(dataset, place).await?;
            let is_it = |found: &BlockPtr| birth == 0 || is_born_in(found, birth);
            if let Some(found) = found.filter(is_it) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// The datasets that have a damaged block.
#[derive(Debug, Default)]
struct Holders {
    /// Dataset objects.
    found: Vec<u64>,
    /// Whether a dataset that may have the block could not be read.
    is_incomplete: bool,
}

impl Holders {
    /// Searches the head that an entry of the error log names, its snapshots and their clones. If
    /// the head is a clone that shares the block with its origin, searches the origin's head too.
    ///
    /// # Errors
    /// Interruptions only.
    async fn find(pool: &Arc<Pool>, place: &Bookmark, birth: u64) -> Result<Self> {
        let mut holders = Self::default();
        let mut pending = holders.heads_of(pool, place.objset, birth).await?;
        let mut seen = BTreeSet::new();
        while let Some(head) = pending.pop() {
            if !seen.insert(head.object()) {
                continue;
            }
            let snapshots = holders.readable(head.snapshots().await)?.unwrap_or_default();
            // A snapshot has no blocks that are younger than itself.
            let snapshots = snapshots.into_iter().filter(|old| old.phys().creation_txg >= birth);
            for dataset in std::iter::once(head).chain(snapshots) {
                let found = holders.readable(pointer_in(&dataset, place).await)?.flatten();
                if found.is_none_or(|found| !is_born_in(&found, birth)) {
                    continue;
                }
                holders.found.push(dataset.object());
                pending.extend(holders.clones_of(&dataset).await?);
            }
        }
        Ok(holders)
    }

    /// Returns the value; notes an error, unless it is an interruption.
    fn readable<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        let value = mos::unless_interrupted(result)?.ok();
        self.is_incomplete |= value.is_none();
        Ok(value)
    }

    /// Returns the head of a dataset, preceded by the heads of its origins, as far as the origins
    /// may have a block with this birth.
    async fn heads_of(
        &mut self,
        pool: &Arc<Pool>,
        dataset: u64,
        birth: u64,
    ) -> Result<Vec<Dataset>> {
        let mut heads = Vec::new();
        let mut next = self.readable(pool.dataset_by_object(dataset).await)?;
        // Each origin is older than the one before it, unless the pool is damaged.
        let mut last_txg = u64::MAX;
        while let Some(dataset) = next.take() {
            let Some(head) = self.readable(dataset.head().await)? else { break };
            let origin = self.readable(head.origin().await)?.flatten();
            heads.push(head);
            next = origin.filter(|origin| (birth..last_txg).contains(&origin.phys().creation_txg));
            last_txg = next.as_ref().map_or(0, |origin| origin.phys().creation_txg);
        }
        heads.reverse();
        Ok(heads)
    }

    /// Returns the heads of the clones of a snapshot.
    async fn clones_of(&mut self, snapshot: &Dataset) -> Result<Vec<Dataset>> {
        let (pool, zap) = (snapshot.pool(), snapshot.phys().next_clones_obj);
        let mut heads = Vec::new();
        if zap == 0 {
            return Ok(heads);
        }
        let clones = self.readable(mos::entries(pool.mos(), zap).await)?.unwrap_or_default();
        for object in clones.into_iter().filter_map(|(_, value)| value.first()) {
            heads.extend(self.readable(head_beside(pool, object).await)?);
        }
        Ok(heads)
    }
}

/// Whether a block has the birth of an entry: the physical one, or, in entries that OpenZFS before
/// 2.4 wrote, the logical one. They differ in deduplicated and cloned blocks.
fn is_born_in(block: &BlockPtr, birth: u64) -> bool {
    !block.is_hole() && (block.physical_birth() == birth || block.birth() == birth)
}

/// Returns the head of the dir that a dataset belongs to.
async fn head_beside(pool: &Arc<Pool>, dataset: u64) -> Result<Dataset> {
    let dir = load_phys(pool.mos(), dataset).await?.dir_obj;
    let head = Dir::load(pool.mos(), dir, "").await?.phys.head_dataset_obj;
    pool.dataset_by_object(head).await
}

/// Returns the pointer to the block at `place` of a dataset; `None` if there is none.
async fn pointer_in(dataset: &Dataset, place: &Bookmark) -> Result<Option<BlockPtr>> {
    let root = dataset.phys().bp;
    if place.level < 0 {
        return Ok((!root.is_hole()).then_some(root));
    }
    pointer(&*dataset.open_without_key().await?, &root, place).await
}

/// Returns the pointer to the block at `place` of an object set, whose own block is at `root`.
async fn pointer(objset: &ObjSet, root: &BlockPtr, place: &Bookmark) -> Result<Option<BlockPtr>> {
    let Ok(level) = u8::try_from(place.level) else { return Ok(Some(*root)) };
    if place.object == 0 {
        return objset.meta_dnode().block_pointer(level, place.blkid).await;
    }
    match mos::optional(objset.dnode(place.object).await)? {
        Some(dnode) => dnode.block_pointer(level, place.blkid).await,
        None => Ok(None),
    }
}
