//! Iterates over all objects of a set, in order.
//!
//! The meta-dnode's blocks are streamed, so that the next ones are read while one is processed, and
//! whole holes are skipped. Interior slots of a large dnode are skipped. A block of dnodes that
//! cannot be read, or an invalid dnode, is one error; the walk continues behind it (spec 02 §10.2).

use std::ops::Range;
use std::sync::Arc;

use cenote_ondisk::dnode::{self, DNODE_SLOT_LEN, DnodePhys};
use cenote_rt::{Buf, Error, Result};

use crate::dnode::Dnode;
use crate::objset::Set;
use crate::stream::BlockStream;

/// An iterator over the allocated objects of a set.
pub struct Dnodes {
    set: Arc<Set>,
    stream: BlockStream,
    objects: Range<u64>,
    block: Buf,
    /// Object number of the block's first slot.
    first: u64,
    slot: usize,
}

impl Dnodes {
    pub(crate) fn new(set: Arc<Set>, meta: &Arc<Dnode>, objects: Range<u64>) -> Self {
        let slot_len = DNODE_SLOT_LEN as u64;
        let block_size = meta.geometry().block_size;
        // From the start of the block, since only from there interior slots can be recognized.
        let start = objects.start.saturating_mul(slot_len) / block_size * block_size;
        let stream = meta.stream(start..objects.end.saturating_mul(slot_len));
        Self { set, stream, objects, block: Buf::empty(), first: 0, slot: 0 }
    }

    /// The next object; `None` behind the last.
    pub async fn next(&mut self) -> Option<Result<Arc<Dnode>>> {
        loop {
            while let Some((slot, bytes)) = self.next_slot() {
                let object = self.first + slot as u64;
                if object == 0 || object < self.objects.start {
                    continue;
                }
                if object >= self.objects.end {
                    return None;
                }
                let (id, set) = (self.set.id, Arc::clone(&self.set));
                match DnodePhys::decode(&bytes) {
                    Ok(Some(phys)) => return Some(Ok(Arc::new(Dnode::new(set, object, phys)))),
                    Ok(None) => {}
                    Err(error) => return Some(Err(Error::corrupt(error).in_object(id, object))),
                }
            }
            match self.stream.next().await? {
                Ok(extent) => {
                    self.first = extent.offset / DNODE_SLOT_LEN as u64;
                    self.slot = 0;
                    self.block = extent.data.unwrap_or_else(Buf::empty);
                }
                Err(lost) => {
                    self.block = Buf::empty();
                    return Some(Err(lost.into()));
                }
            }
        }
    }

    /// The next allocated dnode of the block, with its slot and its bytes.
    fn next_slot(&mut self) -> Option<(usize, Buf)> {
        let start = self.slot * DNODE_SLOT_LEN;
        let rest = self.block.get(start..)?;
        let (skipped, bytes) = dnode::slots(rest).next()?;
        let slot = self.slot + skipped;
        let (start, len) = (slot * DNODE_SLOT_LEN, bytes.len());
        self.slot = slot + len / DNODE_SLOT_LEN;
        self.block.slice(start..start + len).map(|bytes| (slot, bytes))
    }
}
