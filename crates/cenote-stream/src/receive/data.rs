//! Contents of objects: WRITE, WRITE_EMBEDDED, SPILL, FREE (spec 07 B9.4).

use cenote_block::SentForm;
use cenote_codec::compress::Compression;
use cenote_dmu::{Tx, TxResult};
use cenote_engine::Charge;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::stream::{Embedded, Range, Spill, Write};
use cenote_rt::{Buf, Result};

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
    /// Returns the maximum that a write of `len` bytes writes.
    pub(super) fn charge(self, len: u64) -> Charge {
        // One more: a write may begin and end within blocks.
        let blocks = len.div_ceil(self.block_size.max(1)).saturating_add(1);
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
        let shape = self.shape(object).await?;
        let (expanded, form, endian) = match record.compression {
            0 => (stored, None, self.endian),
            // A block of a type to be swapped is not sent compressed.
            compression => {
                let len = record.logical_len as usize;
                let place = (object, offset);
                let (expanded, form) = payload::expand(place, stored, compression, len).await?;
                // A form that needs a feature which the stream does not name may not be allowed
                // here: then the block is compressed as the dataset says.
                let is_allowed = form.compression != Compression::Zstd || self.rules.has_zstd;
                (expanded, Some(form).filter(|_| is_allowed), Endian::Little)
            }
        };
        let data = payload::block(expanded, 0, shape.kind, endian);
        self.change(shape.charge(data.len() as u64), Some(point), |tx| {
            put(tx, object, offset, &data, form.as_ref())?;
            Ok(((), true))
        })
        .await
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
        self.change(shape.charge(data.len() as u64), Some(point), |tx| {
            put(tx, object, offset, &data, form.as_ref())?;
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

/// Writes bytes; a whole block without copying it, and in the form in which it was sent.
fn put(
    tx: &mut Tx<'_>,
    object: u64,
    offset: u64,
    data: &Buf,
    form: Option<&SentForm>,
) -> TxResult<()> {
    let dnode = tx.find(object)?.ok_or(ReceiveError::NoObject { object })?;
    let size = dnode.data_block_size();
    if data.len() as u64 == size && offset.is_multiple_of(size) {
        let (blkid, data) = (offset / size, data.clone());
        return match form {
            Some(form) => tx.write_sent_block(object, blkid, data, form.clone()),
            None => tx.write_block(object, blkid, data),
        };
    }
    tx.write(object, offset, data)
}
