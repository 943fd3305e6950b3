//! Data blocks without waiting for them one after the other.
//!
//! A closure that reads a range of a file would end at its first block that is not in memory, and
//! again at the next. Here it takes down instead where the blocks are, and they are read together
//! once it has ended. Meanwhile the tree may be replaced and the space of a block reused: the store
//! tells that from damage, and the closure runs again.

use cenote_block::Since;
use cenote_rt::{Buf, Kind, Result};
use futures_util::future::try_join_all;

use super::set::{Live, REPLACED_MAX};
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

impl Piece {
    /// What is in memory.
    fn into_known(self) -> Option<Buf> {
        match self {
            Self::Data(block) => Some(block),
            Self::Hole | Self::Stored(_) => None,
        }
    }
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
    /// Data blocks, holes as none, from the pieces that `find` gives with something beside them:
    /// what is still to be read of them is read at once. `find` is asked again if the tree was
    /// replaced meanwhile.
    ///
    /// # Errors
    /// Those of `find`, and of reading.
    pub async fn gather<T, F>(&self, mut find: impl FnMut() -> F) -> Result<(Vec<Option<Buf>>, T)>
    where
        F: Future<Output = Result<(Vec<Piece>, T)>>,
    {
        let mut replaced = 0;
        loop {
            let (pieces, beside) = find().await?;
            if !pieces.iter().any(|piece| matches!(piece, Piece::Stored(_))) {
                return Ok((pieces.into_iter().map(Piece::into_known).collect(), beside));
            }
            match self.fetch(pieces, replaced > 0).await {
                Ok(blocks) => return Ok((blocks, beside)),
                // The space of a block may have been used for another.
                Err(error) if error.kind() == Kind::Overtaken && replaced < REPLACED_MAX => {
                    replaced += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn fetch(&self, pieces: Vec<Piece>, is_again: bool) -> Result<Vec<Option<Buf>>> {
        let fetch = |piece| async {
            match piece {
                Piece::Stored(missing) => {
                    let since = Since { is_again, ..missing.since };
                    self.blocks.read(Missing { since, ..*missing }).await.map(Some)
                }
                known => Ok(known.into_known()),
            }
        };
        try_join_all(pieces.into_iter().map(fetch)).await
    }
}
