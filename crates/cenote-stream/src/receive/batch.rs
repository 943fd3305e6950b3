//! WRITE records: those of an object that come one after the other are written by one transaction,
//! in a task of its own, while the next ones are read.
//!
//! ```text
//!   record ──> Batch ──full, another object, another kind of record──> task: expand, transaction
//! ```
//!
//! One batch is written at a time, and one is collected. Any other record waits for both
//! ([`Receiver::settle`]). The resume point of the last record of a batch is noted in the
//! transaction of the batch.

use std::sync::Arc;

use cenote_block::SentForm;
use cenote_codec::compress::Compression;
use cenote_dmu::{Tx, TxResult};
use cenote_engine::{ApplyOptions, Engine, Head, ReceivePoint};
use cenote_rt::{Buf, Error, Kind, Result};

use super::data::Shape;
use super::{ReceiveError, Receiver, payload};

/// Bytes of a batch, from which on it is written.
const BYTES_MAX: u64 = 1 << 20;
/// Records of a batch, from which on it is written.
const PIECES_MAX: usize = 256;

/// Records of one object.
#[derive(Debug)]
pub(super) struct Batch {
    object: u64,
    shape: Shape,
    pieces: Vec<Piece>,
    /// Bytes of all records, expanded.
    len: u64,
    /// The resume point of the last one.
    point: ReceivePoint,
}

/// A record.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) offset: u64,
    /// Its bytes, expanded.
    pub(super) len: u64,
    pub(super) contents: Contents,
}

#[derive(Debug)]
pub(super) enum Contents {
    /// As it is written.
    Ready(Buf, Option<SentForm>),
    /// Compressed; it may be kept so with zstd only if the stream names that.
    Compressed { stored: Vec<u8>, compression: u8, has_zstd: bool },
}

impl Piece {
    async fn expand(self, object: u64) -> Result<Block> {
        let Self { offset, len, contents } = self;
        let (data, form) = match contents {
            Contents::Ready(data, form) => (data, form),
            Contents::Compressed { stored, compression, has_zstd } => {
                let place = (object, offset);
                let (bytes, form) =
                    payload::expand(place, stored, compression, len as usize).await?;
                // A form that needs a feature which the stream does not name may not be allowed
                // here: then the block is compressed as the dataset says.
                let is_allowed = form.compression != Compression::Zstd || has_zstd;
                (Buf::from(bytes), Some(form).filter(|_| is_allowed))
            }
        };
        Ok(Block { offset, data, form })
    }
}

/// A block to be written, and the form in which it was sent.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) data: Buf,
    pub(super) form: Option<SentForm>,
}

impl Block {
    /// Writes a whole block without copying it, and in the form in which it was sent.
    pub(super) fn put(&self, tx: &mut Tx<'_>, object: u64) -> TxResult<()> {
        let Self { offset, data, form } = self;
        let dnode = tx.find(object)?.ok_or(ReceiveError::NoObject { object })?;
        let size = dnode.data_block_size();
        if data.len() as u64 == size && offset.is_multiple_of(size) {
            let (blkid, data) = (offset / size, data.clone());
            return match form {
                Some(form) => tx.write_sent_block(object, blkid, data, form.clone()),
                None => tx.write_block(object, blkid, data),
            };
        }
        tx.write(object, *offset, data)
    }
}

impl Receiver {
    /// Returns the shape of an object.
    pub(super) async fn shape_of(&self, object: u64) -> Result<Shape> {
        match &self.batch {
            Some(batch) if batch.object == object => Ok(batch.shape),
            _ => self.shape(object).await,
        }
    }

    /// Adds a record to the batch, which is written when it is full.
    pub(super) async fn add(
        &mut self,
        (object, shape): (u64, Shape),
        piece: Piece,
        point: ReceivePoint,
    ) -> Result<()> {
        if self.batch.as_ref().is_some_and(|batch| batch.object != object) {
            self.launch().await?;
        }
        let new = || Batch { object, shape, pieces: Vec::new(), len: 0, point };
        let batch = self.batch.get_or_insert_with(new);
        batch.len = batch.len.saturating_add(piece.len);
        batch.pieces.push(piece);
        batch.point = point;
        if batch.len >= BYTES_MAX || batch.pieces.len() >= PIECES_MAX {
            self.launch().await?;
        }
        Ok(())
    }

    /// Waits until the records that were added are written.
    pub(super) async fn settle(&mut self) -> Result<()> {
        self.launch().await?;
        self.wait().await
    }

    /// Has the batch written, after the one before it.
    async fn launch(&mut self) -> Result<()> {
        self.wait().await?;
        if let Some(batch) = self.batch.take() {
            let (engine, head) = (Arc::clone(&self.engine), Arc::clone(self.reception.head()));
            self.in_flight = Some(cenote_rt::spawn(batch.write(engine, head)));
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<()> {
        let Some(task) = self.in_flight.take() else { return Ok(()) };
        let done = task.await.map_err(|error| Error::new(Kind::Io, error)).flatten();
        // What comes behind it must not be written.
        if done.is_err() {
            self.batch = None;
        }
        done
    }
}

impl Batch {
    async fn write(self, engine: Arc<Engine>, head: Arc<Head>) -> Result<()> {
        let Self { object, shape, point, .. } = self;
        let charge = shape.charge(self.pieces.iter().map(|piece| (piece.offset, piece.len)));
        let mut blocks = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces {
            blocks.push(piece.expand(object).await?);
        }
        let change = |tx: &mut Tx<'_>| {
            for block in &blocks {
                block.put(tx, object)?;
            }
            // The last step: nothing fails from here on.
            head.received().note(tx.txg(), point);
            Ok(())
        };
        engine.apply(&head, ApplyOptions::charged(charge), change).await?;
        Ok(())
    }
}
