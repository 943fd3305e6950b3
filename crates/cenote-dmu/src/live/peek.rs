//! Data blocks without waiting for them one after the other.
//!
//! A closure that reads a range of a file would end at its first block that is not in memory, and
//! again at the next. Here it takes down instead where the blocks are, and they are read together
//! once it has ended. Meanwhile the tree may be replaced and the space of a block reused, which the
//! checksum tells: then the generation has changed, and the closure runs again.

use cenote_rt::{Buf, Result};
use futures_util::future::try_join_all;

use super::set::Live;
use super::step::{Missing, Step, TxResult};
use super::tx::Tx;

/// A data block, as far as it is there.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Nothing: zeros.
    Hole,
    /// Its bytes.
    Data(Buf),
    /// It is to be read.
    Stored(Box<Missing>),
}

impl Tx<'_> {
    /// Data block `blkid`, or where it is.
    pub fn peek(&self, object: u64, blkid: u64) -> TxResult<Piece> {
        match self.block(object, blkid) {
            Ok(Some(block)) => Ok(Piece::Data(block)),
            Ok(None) => Ok(Piece::Hole),
            Err(Step::Need(missing))
                if missing.place.object == object && missing.place.level == 0 =>
            {
                Ok(Piece::Stored(missing))
            }
            Err(step) => Err(step),
        }
    }
}

impl Live {
    /// Counts the commits: while it stays the same, so do the places of blocks.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Reads what is still to be read of some pieces, all at once.
    ///
    /// # Errors
    /// Those of reading. If the generation is another one than when the pieces were looked for,
    /// they are to be looked for again.
    pub async fn fetch_pieces(&self, pieces: Vec<Piece>) -> Result<Vec<Option<Buf>>> {
        let fetch = |piece| async {
            match piece {
                Piece::Hole => Ok(None),
                Piece::Data(block) => Ok(Some(block)),
                Piece::Stored(missing) => {
                    self.blocks.read(missing.pointer, missing.place).await.map(Some)
                }
            }
        };
        try_join_all(pieces.into_iter().map(fetch)).await
    }
}
