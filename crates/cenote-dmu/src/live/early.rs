//! Writes blocks before their txg is synced, for intent log records that point at them
//! (`dmu_sync`).
//!
//! ```text
//!   block of the open txg's layer ── written ──> pointer, into the log ── sync: used as it is
//!                                                             `─ changed since: freed by the log
//! ```
//!
//! The caller keeps the txg from being synced until the write ends, and records every block that
//! was written. Blocks that the layer still has unchanged when its txg is closed become the
//! object's; the intent log frees the others, in the same txg.

use cenote_block::policy::BlockSpec;
use cenote_block::{Draft, IoClass, WriteContext, WriteMethod};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::{Buf, Result};

use super::context::PolicySource;
use super::layer::ObjectLayer;
use super::set::{Live, State};

/// A block that was written ahead of its txg's sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyBlock {
    /// Its pointer, which may also be a hole or embedded.
    pub bp: BlockPtr,
    /// Whether space was allocated for it: it must be freed in its txg, unless the sync uses it.
    pub is_new: bool,
}

impl Live {
    /// Writes a data block with its contents in the layer of `txg`; `None` if that layer does not
    /// have the block, or is closed.
    ///
    /// # Errors
    /// Errors of writing a block: no space stays allocated then.
    pub async fn write_early(
        &self,
        txg: u64,
        object: u64,
        blkid: u64,
        policy: &dyn PolicySource,
    ) -> Result<Option<EarlyBlock>> {
        let (data, spec) = {
            let mut state = self.lock();
            let Some(changes) = changes_of(&mut state, txg, object) else { return Ok(None) };
            if let Some(bp) = changes.early.get(&blkid) {
                return Ok(Some(EarlyBlock { bp: *bp, is_new: false }));
            }
            let (Some(head), Some(data)) = (changes.alive(), changes.blocks.get(&blkid)) else {
                return Ok(None);
            };
            let spec = BlockSpec {
                dnode_compression: head.compress,
                dnode_checksum: head.checksum,
                ..BlockSpec::new(head.object_type, 0)
            };
            (data.clone(), spec)
        };
        let policy = policy.policy(&spec)?;
        let place = Bookmark { objset: self.id, object, level: 0, blkid };
        // A caller waits for the write.
        let class = IoClass::SyncWrite;
        let context = WriteContext { class, ..WriteContext::new(txg, 1, place) };
        let (sent, old, keys) = (None, BlockPtr::HOLE, self.blocks.keys());
        let draft = Draft { data: data.clone(), policy, sent, old, keys, context };
        let written = self.blocks.write(&draft).await?;
        let is_new = written.method == WriteMethod::New;
        if is_new {
            let mut state = self.lock();
            if let Some(changes) = changes_of(&mut state, txg, object)
                && changes.blocks.get(&blkid).is_some_and(|now| is_same(now, &data))
                && !changes.early.contains_key(&blkid)
            {
                changes.early.insert(blkid, written.bp);
            }
        }
        // The replay of the record needs the length of the block.
        let hole = BlockPtr::punched(data.len() as u64, spec.object_type, 0, txg);
        let bp = hole.filter(|_| written.bp.is_hole()).unwrap_or(written.bp);
        Ok(Some(EarlyBlock { bp, is_new }))
    }

    /// The blocks written early that the sync of `txg`, which is closed, will use as they are.
    pub fn early(&self, txg: u64) -> Vec<BlockPtr> {
        let state = self.lock();
        let layers = state.layers.iter().filter(|entry| entry.txg == txg);
        let objects = layers.flat_map(|entry| entry.layer.objects.values());
        objects.flat_map(|changes| changes.early.values().copied()).collect()
    }
}

/// The changes of an object in the layer of `txg`, if that is open.
fn changes_of(state: &mut State, txg: u64, object: u64) -> Option<&mut ObjectLayer> {
    if txg <= state.closed {
        return None;
    }
    let entry = state.layers.iter_mut().rev().find(|entry| entry.is_open(txg))?;
    std::sync::Arc::get_mut(&mut entry.layer)?.objects.get_mut(&object)
}

/// Whether two buffers are the same one: an overwritten block has another buffer, even with equal
/// bytes.
fn is_same(a: &Buf, b: &Buf) -> bool {
    a.as_ptr() == b.as_ptr() && a.len() == b.len()
}
