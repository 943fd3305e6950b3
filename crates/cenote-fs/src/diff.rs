//! Differences between two states of a file system.
//!
//! ```text
//!   blocks of dnodes that differ ──> objects in them ──> node before, node after ──> Change
//! ```
//!
//! The trees of both meta-dnodes are compared from the top. Unchanged parts share their blocks, so
//! two equal pointers exclude everything below them: the work is proportional to the changes, and
//! memory holds one block of dnodes and one range of blocks per level. Objects are visited in the
//! order of their numbers.
//!
//! An object with the same generation in both states is the same node; one with another generation
//! was removed, and its number reused. A node has changed if its ctime has. Nodes without a name
//! that are still open count as removed.
//!
//! Sources: spec 02 §10 (blocks of dnodes), spec 03 §8 (attributes).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::Dnode;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::znode::Time;
use cenote_rt::{Kind, Result};

use crate::{FileKind, FileSystem, Node};

/// A node in one of the two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// Its path from the root of the file system. `None` for a file with several links that is no
    /// longer in its recorded directory.
    pub path: Option<Vec<u8>>,
    /// Its object.
    pub object: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Its time of change.
    pub ctime: Time,
    links: u64,
    gen_: u64,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The node exists only in the earlier state.
    Removed(NodeState),
    /// The node exists only in the later state.
    Added(NodeState),
    /// Contents or attributes differ.
    Modified(NodeState),
    /// The link count changed by this number; the node is shown under its earlier, or else its
    /// later name.
    Linked(NodeState, i64),
    /// The path differs.
    Renamed(NodeState, NodeState),
}

/// An iterator over the differences between two states.
pub struct Diff {
    before: Arc<FileSystem>,
    after: Arc<FileSystem>,
    /// Ranges of meta-dnode blocks still to be compared, with their levels: one per level of the
    /// walk, the lowest last.
    todo: Vec<(u8, Range<u64>)>,
    found: VecDeque<Change>,
}

impl Diff {
    /// Returns the differences between `before` and a later state of the same file system or a
    /// clone of it.
    #[must_use]
    pub fn new(before: &Arc<FileSystem>, after: &Arc<FileSystem>) -> Self {
        let metas = [before.objset.meta_dnode(), after.objset.meta_dnode()];
        let [a, b] = metas.map(|meta| meta.geometry());
        let has_same_shape = a.block_size == b.block_size && a.entry_shift() == b.entry_shift();
        // Blocks of different sizes cannot be compared: all of them count as different.
        let top = if has_same_shape { a.levels.max(b.levels).saturating_sub(1) } else { 0 };
        let count = metas.iter().map(|meta| meta.block_count()).max().unwrap_or(0);
        let last = count.saturating_sub(1) >> shift(a.entry_shift(), top);
        let todo = vec![(top, 0..last.saturating_add(1))];
        let (before, after) = (Arc::clone(before), Arc::clone(after));
        Self { before, after, todo, found: VecDeque::new() }
    }

    /// Returns the next difference; `None` after the last.
    ///
    /// # Errors
    /// Errors of reading either state.
    pub async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            if let Some(change) = self.found.pop_front() {
                return Ok(Some(change));
            }
            let Some((level, blkids)) = self.todo.last_mut() else { return Ok(None) };
            let level = *level;
            match blkids.next() {
                Some(blkid) => self.compare(level, blkid).await?,
                None => drop(self.todo.pop()),
            }
        }
    }

    async fn compare(&mut self, level: u8, blkid: u64) -> Result<()> {
        let (before, after) = (self.before.objset.meta_dnode(), self.after.objset.meta_dnode());
        let reach = |meta: &Dnode| level < meta.geometry().levels;
        if reach(before) && reach(after) {
            let a = before.block_pointer(level, blkid).await?;
            if a == after.block_pointer(level, blkid).await? {
                return Ok(());
            }
        }
        if level > 0 {
            let entries = 1_u64 << after.geometry().entry_shift();
            let first = blkid.saturating_mul(entries);
            self.todo.push((level - 1, first..first.saturating_add(entries)));
            return Ok(());
        }
        let slots = self.after.objset.slots_per_block();
        let start = blkid.saturating_mul(slots);
        self.compare_objects(start..start.saturating_add(slots)).await
    }

    async fn compare_objects(&mut self, objects: Range<u64>) -> Result<()> {
        let mut nodes: BTreeMap<u64, [Option<NodeState>; 2]> = BTreeMap::new();
        for (side, fs) in [&self.before, &self.after].into_iter().enumerate() {
            let mut dnodes = fs.objset.dnodes_in(objects.clone());
            while let Some(dnode) = dnodes.next().await {
                let dnode = dnode?;
                if let Some(seen) = fs.seen(&dnode).await? {
                    let both = nodes.entry(dnode.object()).or_default();
                    if let Some(place) = both.get_mut(side) {
                        *place = Some(seen);
                    }
                }
            }
        }
        for (_, [before, after]) in nodes {
            self.note(before, after).await?;
        }
        Ok(())
    }

    async fn note(&mut self, before: Option<NodeState>, after: Option<NodeState>) -> Result<()> {
        match (before, after) {
            (Some(old), Some(new)) if old.gen_ == new.gen_ => {
                if old.ctime != new.ctime {
                    let (old, new) =
                        (self.before.placed(old).await?, self.after.placed(new).await?);
                    self.found.push_back(changed(old, new));
                }
            }
            (before, after) => {
                if let Some(old) = before {
                    self.found.push_back(Change::Removed(self.before.placed(old).await?));
                }
                if let Some(new) = after {
                    self.found.push_back(Change::Added(self.after.placed(new).await?));
                }
            }
        }
        Ok(())
    }
}

/// Returns the difference between two states of a node.
fn changed(old: NodeState, new: NodeState) -> Change {
    let by = new.links.cast_signed().wrapping_sub(old.links.cast_signed());
    // Links of a directory are its subdirectories, which are reported themselves.
    if by != 0 && new.kind != FileKind::Directory {
        return Change::Linked(if by > 0 { old } else { new }, by);
    }
    if old.path == new.path { Change::Modified(new) } else { Change::Renamed(old, new) }
}

fn shift(entry_shift: u32, level: u8) -> u32 {
    entry_shift.saturating_mul(level.into()).min(u64::BITS - 1)
}

impl FileSystem {
    /// Returns the node in an object, without its path; `None` if the object is not a node, or has
    /// no name.
    async fn seen(self: &Arc<Self>, dnode: &Dnode) -> Result<Option<NodeState>> {
        let is_node = matches!(
            dnode.phys().object_type,
            ObjectType::PLAIN_FILE_CONTENTS | ObjectType::DIRECTORY_CONTENTS
        );
        if !is_node || Some(dnode.object()) == self.shares() {
            return Ok(None);
        }
        let node: Node = self.node(dnode.object()).await?;
        let attributes = node.attributes();
        Ok((attributes.links > 0).then(|| NodeState {
            path: None,
            object: node.object(),
            kind: node.kind(),
            ctime: attributes.ctime,
            links: attributes.links,
            gen_: attributes.gen_,
        }))
    }

    async fn placed(self: &Arc<Self>, seen: NodeState) -> Result<NodeState> {
        let path = match self.path_of(seen.object).await {
            // A directory above it has lost its last name.
            Err(error) if error.kind() == Kind::NotFound => None,
            path => path?,
        };
        Ok(NodeState { path, ..seen })
    }
}
