//! What of an object is data and what is hole, without reading data.
//!
//! A block has data if any layer has written it, or if the committed tree points at one. All that
//! has to be read are indirect blocks, of holes only the highest.

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::DnodePhys;

use super::layer::ObjectLayer;
use super::step::TxResult;
use super::tx::Tx;
use super::view::{View, geometry_of};

/// Neighbouring blocks that are all data or all hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Whether they are data.
    pub is_data: bool,
    /// How many blocks.
    pub count: u64,
}

/// What a layer says of a block.
enum Said {
    /// It is data, or a hole.
    This(bool),
    /// Nothing: what is below counts.
    Nothing,
}

impl Tx<'_> {
    /// The run that begins with block `blkid`, of at most `max` blocks (at least one). It may be
    /// shorter than it could be. Behind the end all is hole.
    pub fn run(&self, object: u64, blkid: u64, max: u64) -> TxResult<Run> {
        let head = self.dnode(object)?;
        let max = max.max(1);
        if blkid > head.maxblkid {
            return Ok(Run { is_data: false, count: max });
        }
        self.view().run(object, blkid, max.min(head.maxblkid - blkid + 1))
    }
}

impl View<'_> {
    fn run(&self, object: u64, blkid: u64, max: u64) -> TxResult<Run> {
        let mut end = blkid.saturating_add(max);
        for layer in self.layers() {
            let Some(changes) = layer.objects.get(&object) else { continue };
            if let Said::This(is_data) = said(changes, blkid, &mut end) {
                return Ok(Run { is_data, count: end - blkid });
            }
        }
        let Some(phys) = self.base_dnode(object)? else {
            return Ok(Run { is_data: false, count: end - blkid });
        };
        self.base_run(object, &phys, blkid, end)
    }

    fn base_run(&self, object: u64, phys: &DnodePhys, blkid: u64, end: u64) -> TxResult<Run> {
        let tree = geometry_of(phys);
        let run = |is_data, end: u64| Ok(Run { is_data, count: end - blkid });
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
            // A hole stands for all below it.
            if pointer.is_hole() {
                return run(false, behind);
            }
            let block = self.fetch_checked(&pointer, object, &tree, level, number)?;
            let child = |number| self.child(object, &block, tree.index_in_parent(number));
            pointer = child(tree.ancestor(blkid, 0, level - 1))?;
            if level == 1 {
                // Its neighbours stand in the same indirect block.
                let is_data = !pointer.is_hole();
                let is_same = |at: &u64| child(*at).is_ok_and(|next| next.is_hole() != is_data);
                let count = (blkid + 1..behind).take_while(is_same).count();
                return run(is_data, blkid + 1 + count as u64);
            }
        }
        run(!pointer.is_hole(), blkid + 1)
    }
}

/// What a layer says of `blkid`; `end` is lowered to where it may say something else.
fn said(changes: &ObjectLayer, blkid: u64, end: &mut u64) -> Said {
    let mut written = changes.blocks.range(blkid..);
    match written.next() {
        Some((first, _)) if *first == blkid => {
            let next = (blkid + 1..*end).zip(written.map(|(number, _)| *number));
            let count = next.take_while(|(expected, found)| expected == found).count();
            *end = (*end).min(blkid + 1 + count as u64);
            return Said::This(true);
        }
        Some((first, _)) => *end = (*end).min(*first),
        None => {}
    }
    if changes.is_fresh {
        return Said::This(false);
    }
    if let Some(freed) = changes.frees.find(blkid) {
        *end = (*end).min(freed.end);
        return Said::This(false);
    }
    if let Some(freed) = changes.frees.iter_from(blkid).next() {
        *end = (*end).min(freed.start.max(blkid + 1));
    }
    Said::Nothing
}
