//! Finds the next allocated object of a set with its uncommitted changes.
//!
//! Holes of the committed meta-dnode are skipped without reading below them, so that a search
//! through an empty part of a set costs a few look-ups.

use cenote_ondisk::dnode::{self, DNODE_SLOTS_MAX, OBJECT_MAX};

use super::stop::TxResult;
use super::tx::Tx;
use crate::objset::META_DNODE;

/// Slots of a block of dnodes.
const SLOTS: u64 = DNODE_SLOTS_MAX as u64;

impl Tx<'_> {
    /// Returns the first allocated object with number `from` or a higher one, `None` if there is
    /// none. The accounting objects, which have no slots in the meta-dnode, are not found.
    pub fn next_object(&self, from: u64) -> TxResult<Option<u64>> {
        let mut from = from.max(1);
        while from < OBJECT_MAX {
            let committed = self.next_committed(from)?;
            // Objects that were allocated since the commit.
            let view = self.view();
            let changed = view.layers().filter_map(|layer| {
                let mut objects = layer.objects.range(from..OBJECT_MAX);
                objects.find(|(_, changes)| changes.alive().is_some()).map(|(object, _)| *object)
            });
            let Some(object) = changed.chain(committed).min() else { return Ok(None) };
            // A newer layer may have freed it.
            if self.find(object)?.is_some() {
                return Ok(Some(object));
            }
            from = object + 1;
        }
        Ok(None)
    }

    /// Returns the first object from `from` on that is allocated in the committed tree.
    fn next_committed(&self, from: u64) -> TxResult<Option<u64>> {
        let meta = &self.source.base.phys.meta_dnode;
        let (mut block, last) = (from / SLOTS, meta.maxblkid);
        while block <= last {
            let run = self.view().base_run(META_DNODE, meta, block, last.saturating_add(1))?;
            if !run.is_data {
                block = block.saturating_add(run.count.max(1));
                continue;
            }
            if let Some((bytes, _)) = self.view().meta_block(block * SLOTS)? {
                let heads = dnode::slots(&bytes).map(|(slot, _)| block * SLOTS + slot as u64);
                // Object 0 is the meta-dnode itself.
                if let Some(object) = heads.into_iter().find(|object| *object >= from.max(1)) {
                    return Ok(Some(object));
                }
            }
            block += 1;
        }
        Ok(None)
    }
}
