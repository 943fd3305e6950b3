//! Blocks that are written before their txg is synced, for an intent log that points at them.
//!
//! ```text
//!   block of the open txg's layer ── written ──> pointer, into the log ── sync: taken as it is
//!                                                              `─ changed since: the log's to free
//! ```
//!
//! Who asks for it keeps the txg from being synced until the answer is there, and knows of every
//! block that was written. Those that the layer still has when its txg is closed become the
//! object's; the others are nobody's but the log's, in the same txg.

use cenote_block::policy::BlockSpec;
use cenote_block::{Draft, How, IoClass, WriteContext};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::{Buf, Result};

use super::context::PolicySource;
use super::layer::ObjectLayer;
use super::set::{Live, State};

/// A block that was written ahead of its txg's sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Early {
    /// Its pointer: also a hole, or one that holds the bytes itself.
    pub bp: BlockPtr,
    /// Whether space was taken for it now: it must be freed in its txg, unless the sync takes it.
    pub is_new: bool,
}

impl Live {
    /// Writes a data block as the layer of `txg` has it; none if that layer does not have it, or
    /// takes no changes any more.
    ///
    /// # Errors
    /// Those of writing a block: nothing is taken then.
    pub async fn write_early(
        &self,
        txg: u64,
        object: u64,
        blkid: u64,
        policy: &dyn PolicySource,
    ) -> Result<Option<Early>> {
        let (data, spec) = {
            let mut state = self.lock();
            let Some(changes) = changes_of(&mut state, txg, object) else { return Ok(None) };
            if let Some(bp) = changes.early.get(&blkid) {
                return Ok(Some(Early { bp: *bp, is_new: false }));
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
        // Somebody waits for it.
        let class = IoClass::SyncWrite;
        let context = WriteContext { class, ..WriteContext::new(txg, 1, place) };
        let draft = Draft { data: data.clone(), policy, old: BlockPtr::HOLE, context };
        let written = self.blocks.write(&draft).await?;
        let is_new = written.how == How::New;
        if is_new {
            let mut state = self.lock();
            if let Some(changes) = changes_of(&mut state, txg, object)
                && changes.blocks.get(&blkid).is_some_and(|now| is_same(now, &data))
                && !changes.early.contains_key(&blkid)
            {
                changes.early.insert(blkid, written.bp);
            }
        }
        // Who replays the record must know how large the block is.
        let hole = BlockPtr::punched(data.len() as u64, spec.object_type, 0, txg);
        let bp = hole.filter(|_| written.bp.is_hole()).unwrap_or(written.bp);
        Ok(Some(Early { bp, is_new }))
    }

    /// The blocks that the sync of `txg`, which is closed, will take as they are.
    pub fn early(&self, txg: u64) -> Vec<BlockPtr> {
        let state = self.lock();
        let layers = state.layers.iter().filter(|entry| entry.txg == txg);
        let objects = layers.flat_map(|entry| entry.layer.objects.values());
        objects.flat_map(|changes| changes.early.values().copied()).collect()
    }
}

/// The changes of an object in the layer of `txg`, if that takes changes.
fn changes_of(state: &mut State, txg: u64, object: u64) -> Option<&mut ObjectLayer> {
    if txg <= state.closed {
        return None;
    }
    let entry = state.layers.iter_mut().rev().find(|entry| entry.is_open(txg))?;
    std::sync::Arc::get_mut(&mut entry.layer)?.objects.get_mut(&object)
}

/// Whether two buffers are one: what was written over is another, even if its bytes are the same.
fn is_same(a: &Buf, b: &Buf) -> bool {
    a.as_ptr() == b.as_ptr() && a.len() == b.len()
}
