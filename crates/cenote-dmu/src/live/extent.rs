//! Finds data and holes of an object without reading its data.
//!
//! A block is data if a layer has written it, or if the committed tree points at one. Only indirect
//! blocks are read; for holes, only the highest one.

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::DnodePhys;

use super::layer::ObjectLayer;
use super::stop::TxResult;
use super::tx::Tx;
use super::view::{View, geometry_of};

/// Adjacent blocks that are all data or all holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRun {
    /// Whether they are data.
    pub is_data: bool,
    /// Number of blocks.
    pub count: u64,
}

/// State of a block in a layer.
enum LayerState {
    /// Data, or a hole.
    This(bool),
    /// Not changed: the layers below decide.
    Nothing,
}

impl Tx<'_> {
    /// Returns the run that begins with block `blkid`, of at most `max` blocks (at least one). It
    /// may be shorter than possible. Beyond the end there are only holes.
    pub fn run(&self, object: u64, blkid: u64, max: u64) -> TxResult<BlockRun> {
        let head = self.dnode(object)?;
        let max = max.max(1);
        if blkid > head.maxblkid {
            return Ok(BlockRun { is_data: false, count: max });
        }
        self.view().run(object, blkid, max.min(head.maxblkid - blkid + 1))
    }
}

impl View<'_> {
    fn run(&self, object: u64, blkid: u64, max: u64) -> TxResult<BlockRun> {
        let mut end = blkid.saturating_add(max);
        for layer in self.layers() {
            let Some(changes) = layer.objects.get(&object) else { continue };
            if let LayerState::This(is_data) = state_in_layer(changes, blkid, &mut end) {
                return Ok(BlockRun { is_data, count: end - blkid });
            }
        }
        let Some(phys) = self.base_dnode(object)? else {
            return Ok(BlockRun { is_data: false, count: end - blkid });
        };
        self.base_run(object, &phys, blkid, end)
    }

    pub(super) fn base_run(
        &self,
        object: u64,
        phys: &DnodePhys,
        blkid: u64,
        end: u64,
    ) -> TxResult<BlockRun> {
        let tree = geometry_of(phys);
        let run = |is_data, end: u64| Ok(BlockRun { is_data, count: end - blkid });
        if blkid > tree.max_block {
            return run(false, end);
        }
        let end = end.min(tree.max_block.saturating_add(1));
        let top = tree.levels.saturating_sub(1);
        let root = tree.ancestor(blkid, 0, top) as usize;
        let mut pointer = phys.blkptrs.get(root).copied().unwrap_or(BlockPtr::HOLE);
        for level in (1..=top).rev() {
            let number = tree.ancestor(blkid, 0, level);
            let behind = end.min((number + 1).saturating_mul(tree.span(level)));
            // A hole covers all blocks below it.
            if pointer.is_hole() {
                return run(false, behind);
            }
            let block = self.fetch_checked(&pointer, object, &tree, level, number)?;
            let child = |number| self.child(object, &block, tree.index_in_parent(number));
            pointer = child(tree.ancestor(blkid, 0, level - 1))?;
            if level == 1 {
                // Its neighbours are in the same indirect block.
                let is_data = !pointer.is_hole();
                let is_same = |at: &u64| child(*at).is_ok_and(|next| next.is_hole() != is_data);
                let count = (blkid + 1..behind).take_while(is_same).count();
                return run(is_data, blkid + 1 + count as u64);
            }
        }
        run(!pointer.is_hole(), blkid + 1)
    }
}

/// The state of `blkid` in a layer; `end` is lowered to where the state may change.
fn state_in_layer(changes: &ObjectLayer, blkid: u64, end: &mut u64) -> LayerState {
    let mut written = changes.blocks.range(blkid..);
    match written.next() {
        Some((first, _)) if *first == blkid => {
            let next = (blkid + 1..*end).zip(written.map(|(number, _)| *number));
            let count = next.take_while(|(expected, found)| expected == found).count();
            *end = (*end).min(blkid + 1 + count as u64);
            return LayerState::This(true);
        }
        Some((first, _)) => *end = (*end).min(*first),
        None => {}
    }
    if changes.is_fresh {
        return LayerState::This(false);
    }
    if let Some(freed) = changes.frees.find(blkid) {
        *end = (*end).min(freed.end);
        return LayerState::This(false);
    }
    if let Some(freed) = changes.frees.iter_from(blkid).next() {
        *end = (*end).min(freed.start.max(blkid + 1));
    }
    LayerState::Nothing
}
