//! Volumes: block devices in a pool.

use std::sync::Arc;

use cenote_fs::WritableVolume;
use cenote_rt::{Buf, Error, Kind, Result};

use crate::dataset::Dataset;
use crate::error::Refusal;
use crate::pool::Pool;
use crate::snapshot::Snapshot;

/// Maximum bytes of one read from a volume, so that callers do not determine the memory.
const READ_MAX: usize = 4 << 20;

/// An open volume, or a snapshot of one, which is read-only.
#[derive(Debug, Clone)]
pub struct Volume {
    // Dropped before the pool: the last handle of a pool closes it.
    content: Content,
    pool: Pool,
    name: String,
}

#[derive(Debug, Clone)]
enum Content {
    Live(Arc<WritableVolume>),
    Snapshot(cenote_fs::Volume),
}

impl Volume {
    pub(crate) async fn open(pool: &Pool, name: &str) -> Result<Self> {
        pool.check_open()?;
        let engine = &pool.0.engine;
        let content = if name.contains('@') {
            Content::Snapshot(cenote_fs::Volume::open_snapshot(engine, name).await?)
        } else if engine.is_read_only() {
            let volume = pool
                .read(async |view| cenote_fs::Volume::open(&view.dataset(name).await?).await)
                .await?;
            Content::Snapshot(volume)
        } else {
            Content::Live(WritableVolume::open(engine, name).await?)
        };
        Ok(Self { content, pool: pool.clone(), name: name.to_owned() })
    }

    /// Returns the full name of the dataset or snapshot.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no volume is empty")]
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Live(volume) => volume.size(),
            Content::Snapshot(volume) => volume.size(),
        }
    }

    /// Returns the block size (`volblocksize`): aligned writes of whole blocks are fastest.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        match &self.content {
            Content::Live(volume) => volume.block_size(),
            Content::Snapshot(volume) => volume.block_size(),
        }
    }

    /// Reads bytes at `offset` and returns how many: fewer than requested at the end of the volume,
    /// or for more than 4 MiB.
    ///
    /// # Errors
    /// `Kind::Checksum` if no copy is correct; errors of the devices.
    pub async fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = into.len().min(left).min(READ_MAX);
        let bytes = match &self.content {
            Content::Live(volume) => volume.read(offset, len).await?,
            Content::Snapshot(volume) => volume.read_at(offset, len).await?,
        };
        let len = bytes.len().min(len);
        into[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    }

    /// Writes all bytes at `offset`.
    ///
    /// # Errors
    /// `Kind::Invalid` if they extend past the end: nothing is written; `Kind::NoSpace`;
    /// `Kind::ReadOnly` for a snapshot.
    pub async fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.live()?.write(offset, vec![Buf::from(bytes.to_vec())], false).await
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn flush(&self) -> Result<()> {
        match &self.content {
            Content::Live(volume) => volume.flush().await,
            Content::Snapshot(_) => Ok(()),
        }
    }

    /// Frees the space of the whole blocks in a range, which then read as zeros.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    pub async fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.live()?.discard(offset, len).await
    }

    /// Changes the size (`volsize`).
    ///
    /// # Errors
    /// `Kind::Invalid` if it is no multiple of the block size.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        self.live()?.resize(size).await
    }

    /// Takes a snapshot: `snapshot("monday")` is `NAME@monday`.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::ReadOnly` for a snapshot.
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot> {
        self.live()?;
        self.dataset().snapshot(name).await
    }

    /// Returns the dataset, for its properties.
    #[must_use]
    pub fn dataset(&self) -> Dataset {
        let name = self.name.split('@').next().unwrap_or(&self.name);
        Dataset::named(&self.pool, name.to_owned())
    }

    fn live(&self) -> Result<&Arc<WritableVolume>> {
        self.pool.check_open()?;
        match &self.content {
            Content::Live(volume) => Ok(volume),
            Content::Snapshot(_) => Err(Error::new(Kind::ReadOnly, Refusal::ReadOnlyVolume)),
        }
    }
}
