//! Finds the blocks that a redaction leaves out (spec 08 §29).
//!
//! ```text
//!   changes of clone 1   ├────┤   ├───────┤
//!   changes of clone 2      ├───────┤    ├──┤       walks over what was born after the snapshot
//!   in both                 ├─┤   ├─┤    ├┤
//!   objects of the snapshot  43  44  45 ...         their blocks in these ranges: the list
//! ```
//!
//! A block is left out if every redaction snapshot has another one, or none, in its place. Blocks
//! of metadata are never left out.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::{Dnode, Dnodes, ObjSet, SPILL_BLKID, Zap};
use cenote_engine::{Engine, OpError, RedactionPart};
use cenote_ondisk::master_node::{DELETE_QUEUE, MASTER_NODE_OBJ};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::redaction::{REDACTION_BLOCKS_MAX, RedactionEntry};
use cenote_pool::mos;
use cenote_rt::Result;

use super::walk::{Step, Walk};

/// Object and number of a block.
type Place = (u64, u64);

/// Entries that are stored in one txg.
const PART_ENTRIES: usize = 16 << 10;
/// The last block of any object.
const LAST: u64 = u64::MAX;

/// Blocks from a place to another, both included; of more than one object if they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: Place,
    last: Place,
}

/// Finds the entries of a redaction list.
pub struct Redaction {
    changes: Vec<Changes>,
    /// The snapshot's objects from the one on that was not looked at yet.
    objects: Dnodes,
    object: Option<Arc<Dnode>>,
    /// Blocks that every redaction snapshot has changed.
    run: Option<Run>,
    /// The entry that may still grow.
    pending: Option<RedactionEntry>,
}

impl Redaction {
    /// Redacts a snapshot that was taken in `txg` with respect to `snapshots`, which come from it.
    ///
    /// # Errors
    /// Errors of reading them.
    pub async fn new(source: &ObjSet, txg: u64, snapshots: &[Arc<ObjSet>]) -> Result<Self> {
        let mut changes = Vec::with_capacity(snapshots.len());
        for snapshot in snapshots {
            changes.push(Changes::new(snapshot, txg).await?);
        }
        let mut objects = source.dnodes(1);
        let object = objects.next().await.transpose()?;
        Ok(Self { changes, objects, object, run: None, pending: None })
    }

    /// Returns the next entry, `None` at the end.
    ///
    /// # Errors
    /// Errors of reading the snapshots.
    pub async fn next(&mut self) -> Result<Option<RedactionEntry>> {
        while let Some(entry) = self.next_part().await? {
            match &mut self.pending {
                Some(pending) if is_continued(pending, &entry) => {
                    pending.block_count += entry.block_count;
                }
                pending => {
                    if let Some(whole) = pending.replace(entry) {
                        return Ok(Some(whole));
                    }
                }
            }
        }
        Ok(self.pending.take())
    }

    /// Returns the next blocks of an object of the snapshot.
    async fn next_part(&mut self) -> Result<Option<RedactionEntry>> {
        loop {
            if self.run.is_none() {
                self.run = common(&mut self.changes).await?;
            }
            let (Some(Run { first, last }), Some(dnode)) = (self.run, &self.object) else {
                return Ok(None);
            };
            let object = dnode.object();
            if object > last.0 {
                self.run = None;
                continue;
            }
            let is_data = !dnode.phys().object_type.is_metadata();
            let start = if object == first.0 { first.1 } else { 0 };
            let max = dnode.geometry().max_block;
            let part = (object >= first.0 && is_data && start <= max).then(|| RedactionEntry {
                object,
                blkid: start,
                block_size: dnode.geometry().block_size as u32,
                block_count: if object == last.0 { last.1.min(max) } else { max } - start + 1,
            });
            if object == last.0 && last.1 != LAST {
                // The next run may be of the same object.
                self.run = None;
            } else {
                self.object = self.objects.next().await.transpose()?;
            }
            if part.is_some() {
                return Ok(part);
            }
        }
    }
}

fn is_continued(entry: &RedactionEntry, by: &RedactionEntry) -> bool {
    entry.object == by.object
        && entry.end() == Some(by.blkid)
        && entry.block_count.saturating_add(by.block_count) <= REDACTION_BLOCKS_MAX
}

/// Returns the next blocks that are in all changes.
async fn common(changes: &mut [Changes]) -> Result<Option<Run>> {
    loop {
        for one in &mut *changes {
            one.fill().await?;
        }
        let runs: Option<Vec<Run>> = changes.iter().map(|one| one.front).collect();
        let Some(runs) = runs else { return Ok(None) };
        let first = runs.iter().map(|run| run.first).max();
        let last = runs.iter().map(|run| run.last).min();
        let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
        for one in &mut *changes {
            one.front.take_if(|front| front.last == last);
        }
        if first <= last {
            return Ok(Some(Run { first, last }));
        }
    }
}

/// The blocks of a snapshot that differ from those of an earlier one.
struct Changes {
    walk: Walk,
    /// A step that was taken from the walk too early.
    held: Option<Step>,
    /// Objects that are open, but deleted: nothing of them is kept.
    unlinked: BTreeSet<u64>,
    /// The block behind those that the pointers of the present object can lead to. An object whose
    /// number was used before may have fewer than that one had.
    behind: Option<Place>,
    /// An object that was reported whole.
    whole: u64,
    front: Option<Run>,
}

impl Changes {
    async fn new(set: &Arc<ObjSet>, txg: u64) -> Result<Self> {
        let walk = Walk::new(set, txg, None).await?;
        let unlinked = unlinked(set).await?;
        Ok(Self { walk, held: None, unlinked, behind: None, whole: 0, front: None })
    }

    /// Makes the next changes the front, if there is none.
    async fn fill(&mut self) -> Result<()> {
        while self.front.is_none() {
            let step = match self.held.take() {
                None => self.walk.next().await?,
                held => held,
            };
            let is_same_object = matches!(step, Some(Step::Absent { .. } | Step::Block { .. }));
            if !is_same_object && let Some(first) = self.behind.take() {
                self.front = Some(Run { first, last: (first.0, LAST) });
                self.held = step;
                return Ok(());
            }
            let Some(step) = step else { return Ok(()) };
            self.front = self.run_of(&step);
        }
        Ok(())
    }

    fn run_of(&mut self, step: &Step) -> Option<Run> {
        match step {
            Step::FreeObjects { first, count } => {
                let last = first.saturating_add(count.checked_sub(1)?);
                Some(Run { first: (*first, 0), last: (last, LAST) })
            }
            Step::Object { dnode, .. } if self.unlinked.contains(&dnode.object()) => {
                self.whole = dnode.object();
                Some(Run { first: (self.whole, 0), last: (self.whole, LAST) })
            }
            Step::Object { dnode, .. } => {
                let span = dnode.geometry().span(dnode.geometry().levels.saturating_sub(1));
                let room = (dnode.phys().nblkptr() as u64).checked_mul(span);
                self.behind = room.map(|room| (dnode.object(), room));
                None
            }
            Step::Absent { dnode, blocks, .. } => {
                self.run_in(dnode, blocks.start, blocks.end.saturating_sub(1))
            }
            Step::Block { dnode, blkid, .. } => self.run_in(dnode, *blkid, *blkid),
            Step::ObjectRange { .. } | Step::Redacted { .. } => None,
        }
    }

    fn run_in(&self, dnode: &Dnode, first: u64, last: u64) -> Option<Run> {
        let object = dnode.object();
        let is_new = object != self.whole && first != SPILL_BLKID;
        is_new.then_some(Run { first: (object, first), last: (object, last) })
    }
}

/// Redacts the snapshot `source` with respect to `snapshots`: creates the bookmark `name` with the
/// list of the blocks that a redacted stream leaves out, or completes its unfinished list.
///
/// # Errors
/// The errors of [`cenote_engine::Bookmarks::begin_redaction`] and of `extend_redaction`; errors of
/// the pool. After most of them the bookmark exists, and its list is incomplete.
pub async fn redact(
    engine: &Arc<Engine>,
    name: &str,
    source: &str,
    snapshots: &[String],
) -> Result<()> {
    // They cannot be destroyed while they are open.
    let source_opened = engine.snapshots().open_decrypted(source).await?;
    let mut opened = Vec::with_capacity(snapshots.len());
    for snapshot in snapshots {
        opened.push(engine.snapshots().open_decrypted(snapshot).await?);
    }
    let begun = engine.bookmarks().begin_redaction(name, source, snapshots).await?;
    let sets: Vec<_> = opened.iter().map(|snapshot| Arc::clone(snapshot.contents())).collect();
    let all = std::iter::once(source_opened.contents()).chain(&sets).map(|set| set.id());
    if !all.eq(begun.objects) {
        // One of them was renamed, and another has its name.
        return Err(OpError::Busy.into());
    }
    let mut redaction = Redaction::new(source_opened.contents(), begun.txg, &sets).await?;
    let (mut before, mut is_last) = (0, false);
    while !is_last {
        let mut entries = Vec::new();
        while !is_last && entries.len() < PART_ENTRIES {
            match redaction.next().await? {
                Some(entry) => entries.push(entry),
                None => is_last = true,
            }
        }
        let count = entries.len() as u64;
        let part = RedactionPart { before, entries, is_last };
        engine.bookmarks().extend_redaction(name, begun.list, part).await?;
        before += count;
    }
    Ok(())
}

/// Returns the objects in the unlinked set, if it is one of a file system.
async fn unlinked(set: &Arc<ObjSet>) -> Result<BTreeSet<u64>> {
    let mut objects = BTreeSet::new();
    if set.kind() == ObjSetType::Zfs
        && let Some(object) = mos::u64(set, MASTER_NODE_OBJ, DELETE_QUEUE).await?
    {
        let mut entries = Zap::open(set, object).await?.entries();
        while let Some(entry) = entries.next().await? {
            objects.extend(entry.value.first());
        }
    }
    Ok(objects)
}
