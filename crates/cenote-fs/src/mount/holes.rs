//! Data and holes of files.

use cenote_rt::{Error, Kind, Result};

use super::Mount;
use crate::error::FsError;

/// Maximum runs of blocks per lookup.
const RUNS_AT_ONCE: usize = 64;

/// The kind of range to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Data (`SEEK_DATA`).
    Data,
    /// A hole; the end of the file counts as one (`SEEK_HOLE`).
    Hole,
}

impl Mount {
    /// Returns the first byte at or after `offset` in data or a hole, in units of blocks.
    ///
    /// # Errors
    /// [`FsError::NoSuchPlace`] if there is none before the end of the file.
    pub async fn seek(&self, object: u64, offset: u64, what: Seek) -> Result<u64> {
        let mut at = offset;
        loop {
            let found = self
                .inspect(None, |op| {
                    let inode = op.inode(object)?;
                    inode.check_data()?;
                    let size = inode.size();
                    let block = op.tx.dnode(object)?.data_block_size();
                    let mut at = at;
                    for _ in 0..RUNS_AT_ONCE {
                        if at >= size {
                            return Ok(Err((at, size)));
                        }
                        let left = size.div_ceil(block) - at / block;
                        let run = op.tx.run(object, at / block, left)?;
                        if run.is_data == (what == Seek::Data) {
                            return Ok(Ok(at));
                        }
                        at = (at / block).saturating_add(run.count).saturating_mul(block);
                    }
                    Ok(Err((at, size)))
                })
                .await?;
            match found {
                Ok(at) => return Ok(at),
                Err((next, size)) if next < size => at = next,
                Err((_, size)) if what == Seek::Hole && offset < size => return Ok(size),
                Err(_) => return Err(Error::new(Kind::Invalid, FsError::NoSuchPlace)),
            }
        }
    }
}
