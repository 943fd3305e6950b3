//! The error logs: blocks that could not be read (spec 04 §22, spec 08 §36).
//!
//! There are two: errors of the last finished scan and since, and errors of the running scan. With
//! `head_errlog` an entry names the head dataset and the block's birth txg, from which the
//! snapshots and clones that share the block are found; otherwise it names just the object set.

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
    /// Physical birth, if known.
    pub birth: Option<u64>,
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
    /// the damaged block; sorted, without duplicates. A destroyed dataset is listed by number.
    pub async fn damaged_objects(self: &Arc<Self>) -> Result<Vec<DamagedObject>> {
        let mut objects = BTreeSet::new();
        for block in self.error_log().await? {
            let Bookmark { objset, object, .. } = block.place;
            match block.birth {
                Some(birth) if objset != 0 => {
                    let before = objects.len();
                    let head = self.dataset_by_object(objset).await;
                    if let Ok(head) = mos::unless_interrupted(head)? {
                        expand(&head, &block, birth, &mut objects).await?;
                    }
                    if objects.len() == before {
                        // No dataset holds the block any more, but the log still names it.
                        objects.insert(DamagedObject { objset, object });
                    }
                }
                _ => {
                    objects.insert(DamagedObject { objset, object });
                }
            }
        }
        Ok(objects.into_iter().collect())
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
            let is_it = |found: &BlockPtr| birth == 0 || found.physical_birth() == birth;
            if let Some(found) = found.filter(is_it) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Adds the head, its snapshots and their clones, if they hold the same block.
async fn expand(
    head: &Dataset,
    block: &DamagedBlock,
    birth: u64,
    objects: &mut BTreeSet<DamagedObject>,
) -> Result<()> {
    let mut pending = vec![head.clone()];
    let mut seen = BTreeSet::new();
    while let Some(head) = pending.pop() {
        if !seen.insert(head.object()) {
            continue;
        }
        let mut line = head.snapshots().await?;
        line.push(head);
        for dataset in line {
            if !holds(&dataset, &block.place, birth).await {
                continue;
            }
            let (objset, object) = (dataset.object(), block.place.object);
            objects.insert(DamagedObject { objset, object });
            pending.extend(clones(&dataset).await?);
        }
    }
    Ok(())
}

/// Whether a dataset has a block with this physical birth at `place`.
async fn holds(dataset: &Dataset, place: &Bookmark, birth: u64) -> bool {
    let found = pointer_in(dataset, place).await;
    found.is_ok_and(|found| found.is_some_and(|found| found.physical_birth() == birth))
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

/// Returns the heads of the clones of a snapshot.
async fn clones(snapshot: &Dataset) -> Result<Vec<Dataset>> {
    let zap = snapshot.phys().next_clones_obj;
    let mut heads = Vec::new();
    if zap == 0 {
        return Ok(heads);
    }
    let pool = snapshot.pool();
    for (_, value) in mos::entries(pool.mos(), zap).await? {
        let Some(object) = value.first() else { continue };
        let dir = load_phys(pool.mos(), object).await?.dir_obj;
        let head = Dir::load(pool.mos(), dir, "").await?.phys.head_dataset_obj;
        heads.push(pool.dataset_by_object(head).await?);
    }
    Ok(heads)
}
