//! A volume: one object with the contents of a disk (spec 03 §16).
//!
//! ```text
//!   Volume           in a pool open for reading, or in a snapshot: its bytes do not change
//!   WritableVolume   of an engine: read, write, flush, discard, ..., with an intent log
//!   NewVolume        parameters of a new volume, with its reservation
//! ```

mod create;
mod geometry;
mod read;
mod writable;
mod write;

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::live::Prefetcher;
use cenote_dmu::{Dnode, ObjSet, Zap};
use cenote_engine::{Engine, OpenSnapshot};
use cenote_ondisk::master_node::{ZVOL_OBJ, ZVOL_SIZE, ZVOL_ZAP_OBJ};
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::Dataset;
use cenote_rt::{Buf, Error, Kind, Result};

use crate::error::FsError;
use crate::stream::FileStream;
pub use create::NewVolume;
pub use geometry::{DEFAULT_BLOCK_SIZE, default_block_size, reservation};
pub use read::VolumeExtent;
pub use writable::WritableVolume;

/// An open volume or a snapshot of one.
#[derive(Debug, Clone)]
pub struct Volume {
    name: Arc<str>,
    dnode: Arc<Dnode>,
    size: u64,
    /// State of reading ahead.
    ahead: Arc<Prefetcher>,
    /// Keeps the snapshot from being destroyed while the pool is open for writing.
    _hold: Option<Arc<OpenSnapshot>>,
}

impl Volume {
    /// Opens the volume of a dataset.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if it is encrypted and its key is not loaded; [`FsError::NotAVolume`]
    /// if it is not a volume.
    pub async fn open(dataset: &Dataset) -> Result<Self> {
        Self::of(&dataset.open().await?, dataset.name()).await
    }

    /// Opens a snapshot of a volume, `pool/volume@name`, of a pool that is open for writing. The
    /// snapshot cannot be destroyed while it is open.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn open_snapshot(engine: &Engine, name: &str) -> Result<Self> {
        let opened = engine.snapshots().open_decrypted(name).await;
        let opened = opened.map_err(|error| error.in_dataset(name))?;
        let volume = Self::of(opened.contents(), name).await?;
        Ok(Self { _hold: Some(Arc::new(opened)), ..volume })
    }

    async fn of(objset: &Arc<ObjSet>, name: &str) -> Result<Self> {
        let located = |error: Error| error.in_dataset(name);
        if objset.kind() != ObjSetType::Zvol {
            return Err(located(Error::new(Kind::Invalid, FsError::NotAVolume)));
        }
        let dnode = objset.dnode(ZVOL_OBJ).await.map_err(located)?;
        let facts = Zap::open(objset, ZVOL_ZAP_OBJ).await.map_err(located)?;
        let size = facts.require_u64(ZVOL_SIZE).await.map_err(located)?;
        if size > i64::MAX as u64 {
            let cause = FsError::VolumeSize { size, block_size: dnode.geometry().block_size };
            return Err(located(dnode.locate(Error::corrupt(cause))));
        }
        Ok(Self { name: name.into(), dnode, size, ahead: Arc::default(), _hold: None })
    }

    /// Returns the dataset's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size in bytes (`volsize`).
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the block size in bytes (`volblocksize`).
    pub fn block_size(&self) -> u64 {
        self.dnode.geometry().block_size
    }

    /// Returns the object with the data.
    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }

    /// Reads up to `len` bytes from `offset` on: fewer at the end. The caller limits `len`.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Buf> {
        let rest = self.size.saturating_sub(offset);
        let len = usize::try_from(rest).map_or(len, |rest| rest.min(len));
        if len == 0 {
            return Ok(Buf::empty());
        }
        let size = self.block_size();
        let blocks = offset / size..(offset + len as u64).div_ceil(size);
        self.ahead.note_dnode(&self.dnode, blocks);
        self.dnode.read_at(offset, len).await
    }

    /// Returns a reader of all bytes that reads ahead and keeps holes.
    pub fn stream(&self) -> FileStream {
        self.stream_range(0..u64::MAX)
    }

    /// Returns a reader of a range.
    pub fn stream_range(&self, bytes: Range<u64>) -> FileStream {
        FileStream::new(&self.dnode, bytes, self.size)
    }
}
