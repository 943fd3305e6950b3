//! Contents of objects: WRITE, WRITE_EMBEDDED, SPILL, FREE (spec 07 B9.4).

use cenote_block::SentForm;
use cenote_engine::Charge;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::stream::{Embedded, Range, Spill, Write};
use cenote_rt::{Buf, Result};

use super::batch::{Block, Contents, Piece};
use super::{DNODE_COST, ReceiveError, Receiver, objects, payload};

/// Bytes of block pointers and the levels above them that a block is charged.
const POINTER_COST: u64 = 256;

/// The shape of an object's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) block_size: u64,
    kind: ObjectType,
}

impl Shape {
    /// Returns the maximum that writes of so many bytes at these offsets write.
    pub(super) fn charge(self, writes: impl IntoIterator<Item = (u64, u64)>) -> Charge {
        let size = self.block_size.max(1);
        let count = |(offset, len): (u64, u64)| {
            // One more, if it may begin and end within blocks.
            let is_whole = offset.is_multiple_of(size) && len.is_multiple_of(size);
            len.div_ceil(size).saturating_add(u64::from(!is_whole))
        };
        let blocks = writes.into_iter().map(count).fold(0, u64::saturating_add);
        Charge::write(blocks.saturating_mul(POINTER_COST).saturating_add(DNODE_COST))
            .with_blocks(blocks, self.block_size)
    }
}

impl Receiver {
    /// Returns the shape of an object.
    pub(super) async fn shape(&self, object: u64) -> Result<Shape> {
        let found = self.head().live().inspect(|tx| tx.find(object)).await?;
        let dnode = found.ok_or(ReceiveError::NoObject { object })?;
        Ok(Shape { block_size: dnode.data_block_size(), kind: dnode.object_type })
    }

    pub(super) async fn write(
        &mut self,
        record: &Write,
        stored: Vec<u8>,
        bytes: u64,
    ) -> Result<()> {
        let (object, offset) = (record.object, record.offset);
        let point = self.point_at(object, offset, bytes)?;
        let shape = self.shape_of(object).await?;
        let contents = match record.compression {
            0 => Contents::Ready(payload::block(stored, 0, shape.kind, self.endian), None),
            // A block of a type to be swapped is not sent compressed.
            compression => {
                Contents::Compressed { stored, compression, has_zstd: self.rules.has_zstd }
            }
        };
        let piece = Piece { offset, len: record.logical_len, contents };
        self.add((object, shape), piece, point).await
    }

    pub(super) async fn write_embedded(
        &mut self,
        record: &Embedded,
        stored: &[u8],
        bytes: u64,
    ) -> Result<()> {
        let (object, offset) = (record.object, record.offset);
        if record.embedded_kind != 0 {
            let kind = record.embedded_kind;
            return Err(ReceiveError::EmbeddedKind { object, kind }.into());
        }
        let stored = stored.get(..record.physical_len as usize).unwrap_or(stored).to_vec();
        let len = record.logical_len as usize;
        let place = (object, offset);
        let (expanded, form) = payload::expand(place, stored, record.compression, len).await?;
        let form = SentForm { is_embedded: true, ..form };
        let shape = self.shape(object).await?;
        // Senders write an embedded spill block as if it were data (spec 07 B15, defect 1).
        if record.is_spill() {
            let block = payload::block(expanded, record.len as usize, ObjectType::SA, self.endian);
            return self.put_spill(object, block).await;
        }
        let point = self.point_at(object, offset, bytes)?;
        let data = payload::block(expanded, record.len as usize, shape.kind, self.endian);
        // The bytes of a block of words are in the order of the sender.
        let form = Some(form).filter(|_| self.endian == Endian::Little);
        let charge = shape.charge([(offset, data.len() as u64)]);
        let block = Block { offset, data, form };
        self.change(charge, Some(point), |tx| {
            block.put(tx, object)?;
            Ok(((), true))
        })
        .await
    }

    pub(super) async fn spill(&mut self, record: &Spill, stored: Vec<u8>) -> Result<()> {
        if self.keeps_spill(record) {
            return Ok(());
        }
        let block = payload::block(stored, 0, ObjectType::SA, self.endian);
        self.put_spill(record.object, block).await
    }

    async fn put_spill(&self, object: u64, block: Buf) -> Result<()> {
        let charge = Charge::write(DNODE_COST).with_blocks(1, block.len() as u64);
        self.change(charge, None, |tx| {
            objects::check_spill(tx, object)?;
            tx.set_spill(object, Some(&block))?;
            Ok(((), false))
        })
        .await
    }

    pub(super) async fn free(&self, record: &Range) -> Result<()> {
        let (object, offset) = (record.object, record.offset);
        let len = (record.len != Range::TO_THE_END).then_some(record.len);
        self.change(Charge::free(2 * DNODE_COST), None, |tx| {
            tx.find(object)?.ok_or(ReceiveError::NoObject { object })?;
            tx.free_range(object, offset, len)?;
            Ok(((), false))
        })
        .await
    }
}
