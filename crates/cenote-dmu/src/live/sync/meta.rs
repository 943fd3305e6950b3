//! Writes all changed objects, and the meta-dnode's tree with their dnodes.

use std::collections::BTreeMap;

use cenote_ondisk::dnode::{self, DNODE_SLOT_LEN, DnodePhys, Slot};
use cenote_ondisk::objset::PROJECTUSED_OBJECT;
use cenote_ranges::RangeSet;
use cenote_rt::{Buf, BufMut, Error, Result, ensure};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::tree::TreeChange;
use super::{Change, SyncPass, broken};
use crate::live::error::LiveError;
use crate::live::layer::{Layer, ObjectLayer};
use crate::objset::META_DNODE;

/// Most dnode blocks, and objects of each, that are processed concurrently.
const CONCURRENT_MAX: usize = 16;

/// The changed objects of a dnode block.
type Group<'a> = Vec<(u64, &'a ObjectLayer)>;

impl SyncPass<'_> {
    /// Writes every changed object; returns the meta-dnode, and the objects before and after.
    pub(super) async fn write_objects(
        &self,
        layer: &Layer,
        meta: &DnodePhys,
    ) -> Result<(DnodePhys, Vec<Change>)> {
        let slots = (meta.data_block_size() / DNODE_SLOT_LEN as u64).max(1);
        let (mut groups, mut count): (BTreeMap<u64, Group<'_>>, usize) = (BTreeMap::new(), 0);
        for (object, changes) in layer.objects.range(..PROJECTUSED_OBJECT) {
            groups.entry(object / slots).or_default().push((*object, changes));
            count += 1;
        }
        let (mut blocks, mut all) = (BTreeMap::new(), Vec::new());
        let mut groups = groups.into_iter();
        let mut work = FuturesUnordered::new();
        loop {
            while work.len() < CONCURRENT_MAX {
                let Some((blkid, group)) = groups.next() else { break };
                work.push(Box::pin(self.write_group(meta, blkid, group)));
            }
            let Some(result) = work.next().await else { break };
            let (blkid, block, changes) = result?;
            blocks.insert(blkid, block);
            all.extend(changes);
        }
        drop(work);
        let written = all.len();
        ensure!("D7", written == count, "{written} of {count} changed objects were written");
        // In the order of numbers, not of completion.
        all.sort_unstable_by_key(|change: &Change| change.object);
        let mut meta = meta.clone();
        let old_max = meta.maxblkid;
        if let Some((last, _)) = blocks.last_key_value() {
            meta.maxblkid = meta.maxblkid.max(*last);
        }
        let (frees, forms, early) = (&RangeSet::new(), &BTreeMap::new(), &BTreeMap::new());
        let (object, head, blocks) = (META_DNODE, &meta, &blocks);
        let (seals, levels) = (&layer.seals, meta.nlevels);
        let change =
            TreeChange { object, head, frees, blocks, forms, early, seals, levels, old_max };
        let written = self.write_tree(&change).await?;
        (meta.blkptrs, meta.nlevels) = (written.blkptrs, written.nlevels);
        self.charge(META_DNODE, &mut meta, written.charged)?;
        Ok((meta, all))
    }

    /// Writes the changed objects of one dnode block; returns the new block.
    async fn write_group(
        &self,
        meta: &DnodePhys,
        blkid: u64,
        group: Group<'_>,
    ) -> Result<(u64, Buf, Vec<Change>)> {
        let size = meta.data_block_size() as usize;
        let first = blkid * (size / DNODE_SLOT_LEN) as u64;
        let block = self.read_tree_block(META_DNODE, meta, blkid).await?;
        let mut block = block.map_or_else(|| BufMut::zeroed(size), Buf::into_mut);
        let mut objects = Vec::with_capacity(group.len());
        for (object, layer) in group {
            let before = self.dnode_in(&block, object, (object - first) as usize)?;
            objects.push((object, layer, before));
        }
        let mut objects = objects.into_iter();
        let mut changes = Vec::new();
        let mut work = FuturesUnordered::new();
        loop {
            while work.len() < CONCURRENT_MAX {
                let Some((object, layer, before)) = objects.next() else { break };
                work.push(Box::pin(self.write_object(object, layer, before)));
            }
            let Some(result) = work.next().await else { break };
            changes.push(result?);
        }
        drop(work);
        // First all slots of the old dnodes are cleared, so that the new dnodes find them free.
        for change in &changes {
            if let Some(before) = &change.before {
                let object = change.object;
                let is_inside = put(&mut block, object - first, &vec![0; before.len()]);
                ensure!("D6", is_inside, "object {object} crosses the end of its block");
            }
        }
        for change in &changes {
            let Some(after) = &change.after else { continue };
            let (object, slot) = (change.object, (change.object - first) as usize);
            let mut slots = slot..slot + after.slots();
            let is_free = slots.all(|slot| dnode::slot(&block, slot) == Slot::Free);
            ensure!("D6", is_free, "object {object} overlaps another dnode");
            // Checks D6.
            if !put(&mut block, change.object - first, &after.encode()) {
                let cause = LiveError::Layer("a dnode crosses the end of its block");
                return Err(broken(&self.place(change.object, 0, 0), cause));
            }
        }
        Ok((blkid, block.freeze(), changes))
    }

    fn dnode_in(&self, block: &[u8], object: u64, slot: usize) -> Result<Option<DnodePhys>> {
        if !matches!(dnode::slot(block, slot), Slot::Head { .. }) {
            return Ok(None);
        }
        let bytes = block.get(slot * DNODE_SLOT_LEN..).unwrap_or(&[]);
        DnodePhys::decode(bytes).map_err(|error| Error::corrupt(error).in_object(self.id, object))
    }
}

/// Puts bytes at a slot; returns whether they fit.
fn put(block: &mut [u8], slot: u64, bytes: &[u8]) -> bool {
    let start = slot as usize * DNODE_SLOT_LEN;
    match block.get_mut(start..start + bytes.len()) {
        Some(target) => {
            target.copy_from_slice(bytes);
            true
        }
        None => false,
    }
}
