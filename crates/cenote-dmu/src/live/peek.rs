//! Reads several data blocks of an object in parallel.
//!
//! A closure that reads a range of a file would end at its first block that is not in memory, and
//! again at the next. Here it collects the pointers of the missing blocks instead, and they are
//! read together after it has ended. Meanwhile the tree may be replaced and the space of a block
//! reused: the store distinguishes that from damage, and the closure runs again.

use cenote_block::Since;
use cenote_rt::{Buf, Kind, Result};
use futures_util::future::try_join_all;

use super::set::{Live, REPLACED_MAX};
use super::stop::{Missing, TxResult, TxStop};
use super::tx::Tx;

/// A data block, as far as it is in memory.
#[derive(Debug, Clone)]
pub enum Piece {
    /// A hole: zeros.
    Hole,
    /// Its bytes.
    Data(Buf),
    /// Not in memory: must be read.
    Stored(Box<Missing>),
}

impl Piece {
    /// The contents, if they are known.
    fn into_known(self) -> Option<Buf> {
        match self {
            Self::Data(block) => Some(block),
            Self::Hole | Self::Stored(_) => None,
        }
    }
}

impl Tx<'_> {
    /// Returns data block `blkid`, or its pointer if it is not in memory.
    pub fn peek(&self, object: u64, blkid: u64) -> TxResult<Piece> {
        match self.block(object, blkid) {
            Ok(Some(block)) => Ok(Piece::Data(block)),
            Ok(None) => Ok(Piece::Hole),
            Err(TxStop::Need(missing))
                if missing.place.object == object && missing.place.level == 0 =>
            {
                Ok(Piece::Stored(missing))
            }
            Err(step) => Err(step),
        }
    }
}

impl Live {
    /// Returns data blocks, `None` for holes, together with another result of `find`. `find`
    /// returns the pieces; missing ones are read in parallel. `find` is called again if the tree
    /// was replaced meanwhile.
    ///
    /// # Errors
    /// Errors of `find`, and of reading.
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
                // The space of a block may have been reused.
                Err(error) if error.kind() == Kind::Overtaken && replaced < REPLACED_MAX => {
                    replaced += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn fetch(&self, pieces: Vec<Piece>, is_retry: bool) -> Result<Vec<Option<Buf>>> {
        let fetch = |piece| async {
            match piece {
                Piece::Stored(missing) => {
                    let since = Since { is_retry, ..missing.since };
                    self.blocks.read(Missing { since, ..*missing }).await.map(Some)
                }
                known => Ok(known.into_known()),
            }
        };
        try_join_all(pieces.into_iter().map(fetch)).await
    }
}
