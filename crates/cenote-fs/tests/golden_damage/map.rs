//! The block map of a pool: which bytes of which device belong to which object.
//!
//! Half of the damage is aimed: the block map returns a block of a given kind with all its copies
//! and parity. It also tells which objects a piece of damage touches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_block::BlockStore;
use cenote_dmu::{Dnode, ObjSet, SPILL_BLKID};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::Pool;
use cenote_rt::{BoxFuture, Result};

use crate::facts::Place;
use crate::observe::all_datasets;

/// Content of a block, by kinds of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Content {
    /// Other blocks of the MOS; root blocks of object sets.
    Mos,
    /// Block pointers.
    Indirect,
    /// Dnodes, or a ZAP.
    Directory,
    /// A space map.
    SpaceMap,
    /// User data.
    Data,
}

/// An extent on a device: its number, first byte, length.
pub(crate) type Stretch = (usize, u64, u64);

/// A block.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) content: Content,
    pub(crate) stretches: Vec<Stretch>,
    /// The objects that reference it, with its offset in each.
    owners: Vec<(Place, u64)>,
}

/// All blocks of a pool.
#[derive(Debug, Default)]
pub(crate) struct BlockMap {
    blocks: Vec<Placed>,
    /// By device and first byte: the block, and the byte after its last one.
    by_place: BTreeMap<(usize, u64), Vec<(u64, usize)>>,
    by_content: BTreeMap<Content, Vec<usize>>,
    longest: u64,
}

impl BlockMap {
    /// Walks every block of the pool, whose devices have the paths `paths`.
    pub(crate) async fn new(pool: &Arc<Pool>, paths: &[String]) -> Result<Self> {
        let mut walk =
            Walk { store: pool.store(), paths, map: Self::default(), seen: BTreeMap::new() };
        walk.objset(pool.mos()).await?;
        for dataset in all_datasets(pool).await? {
            let set = dataset.open().await?;
            walk.objset(&set).await?;
        }
        let mut map = walk.map;
        for (index, block) in map.blocks.iter().enumerate() {
            map.by_content.entry(block.content).or_default().push(index);
            for (device, offset, len) in &block.stretches {
                let at = map.by_place.entry((*device, *offset)).or_default();
                at.push((offset + len, index));
                map.longest = map.longest.max(*len);
            }
        }
        Ok(map)
    }

    /// Returns the blocks of a kind.
    pub(crate) fn of(&self, content: Content) -> Vec<&Placed> {
        let found = self.by_content.get(&content);
        found.into_iter().flatten().map(|index| &self.blocks[*index]).collect()
    }

    pub(crate) fn blocks(&self) -> &[Placed] {
        &self.blocks
    }

    /// Adds the objects with a block in a sector of a device, and its offset in them.
    pub(crate) fn owners_at(
        &self,
        device: usize,
        sector: u64,
        owners: &mut BTreeMap<Place, BTreeSet<u64>>,
    ) {
        let from = (device, sector.saturating_sub(self.longest));
        for (_, blocks) in self.by_place.range(from..(device, sector + 512)) {
            for (_, index) in blocks.iter().filter(|(end, _)| *end > sector) {
                for (place, offset) in &self.blocks[*index].owners {
                    owners.entry(*place).or_default().insert(*offset);
                }
            }
        }
    }
}

struct Walk<'a> {
    store: &'a Arc<BlockStore>,
    paths: &'a [String],
    map: BlockMap,
    /// By the first DVA and the birth.
    seen: BTreeMap<(u32, u64, u64), usize>,
}

impl Walk<'_> {
    async fn objset(&mut self, set: &Arc<ObjSet>) -> Result<()> {
        self.add(set.root(), (set.id(), 0), 0);
        self.object(set.meta_dnode()).await?;
        let special = [set.user_used(), set.group_used(), set.project_used()];
        for dnode in special.into_iter().flatten() {
            self.object(&dnode).await?;
        }
        let mut walk = set.dnodes(0);
        while let Some(dnode) = walk.next().await {
            self.object(&dnode?).await?;
        }
        Ok(())
    }

    async fn object(&mut self, dnode: &Arc<Dnode>) -> Result<()> {
        let place = (dnode.objset(), dnode.object());
        if let Some(spill) = dnode.phys().spill() {
            self.add(spill, place, SPILL_BLKID);
        }
        let top = dnode.geometry().levels.saturating_sub(1);
        for (index, pointer) in dnode.pointers().enumerate() {
            self.below(dnode, pointer, top, index as u64).await?;
        }
        Ok(())
    }

    fn below<'b>(
        &'b mut self,
        dnode: &'b Arc<Dnode>,
        pointer: BlockPtr,
        level: u8,
        blkid: u64,
    ) -> BoxFuture<'b, Result<()>> {
        Box::pin(async move {
            if pointer.is_hole() {
                return Ok(());
            }
            let tree = dnode.geometry();
            let first = blkid.saturating_mul(tree.span(level)).saturating_mul(tree.block_size);
            self.add(&pointer, (dnode.objset(), dnode.object()), first);
            if level == 0 {
                return Ok(());
            }
            let block = dnode.read_pointer(&pointer, level, blkid, false).await?;
            for (index, child) in BlockPtr::all_in(&block).enumerate() {
                let number = (blkid << tree.entry_shift()) + index as u64;
                self.below(dnode, child, level - 1, number).await?;
            }
            Ok(())
        })
    }

    fn add(&mut self, pointer: &BlockPtr, place: Place, offset: u64) {
        let Some(dva) = pointer.dva(0).filter(|_| !pointer.is_hole()) else { return };
        let key = (dva.vdev, dva.offset, pointer.physical_birth());
        if let Some(index) = self.seen.get(&key) {
            self.map.blocks[*index].owners.push((place, offset));
            return;
        }
        let number = |path: &str| self.paths.iter().position(|other| other == path);
        let stretches: Vec<Stretch> = self
            .store
            .leaf_ranges(pointer)
            .into_iter()
            .filter_map(|range| {
                let leaf = self.store.tree().leaf(range.leaf);
                Some((number(leaf.path())?, range.offset, range.len))
            })
            .collect();
        self.seen.insert(key, self.map.blocks.len());
        let content = content(pointer, place);
        self.map.blocks.push(Placed { content, stretches, owners: vec![(place, offset)] });
    }
}

fn content(pointer: &BlockPtr, (objset, _): Place) -> Content {
    let object_type = pointer.object_type();
    if object_type == ObjectType::SPACE_MAP {
        Content::SpaceMap
    } else if pointer.level() > 0 {
        Content::Indirect
    } else if object_type == ObjectType::DNODE || object_type.is_zap() {
        Content::Directory
    } else if objset == 0 || object_type == ObjectType::OBJSET {
        Content::Mos
    } else {
        Content::Data
    }
}
