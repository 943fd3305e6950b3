//! The open exports of clients: volumes, and snapshots of volumes.
//!
//! A client names an export; [`Offers`] map the name to a dataset. All clients of a volume share
//! one open, so a flush on one connection covers all; a volume without clients can be destroyed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_fs::{FsError, Volume, VolumeExtent, WritableVolume};
use cenote_rt::lock::{AsyncMutex, Rank};
use cenote_rt::{Buf, Error, Kind, Result, tunables};

use super::offers::Offers;

/// Maximum extents of an answer about a snapshot.
const EXTENTS_MAX: usize = 1024;

/// The available exports, and the open ones.
#[derive(Debug)]
pub struct Exports {
    offers: Arc<dyn Offers>,
    /// LOCK: held while an export is looked up and opened. A caller that first withdraws an offer
    /// and then looks here finds every client that still got it.
    open: AsyncMutex<Vec<Weak<Export>>>,
}

impl Exports {
    /// Returns the exports of an offer.
    #[must_use]
    pub fn new(offers: Arc<dyn Offers>) -> Arc<Self> {
        Arc::new(Self { offers, open: AsyncMutex::new(Rank::NbdExports, Vec::new()) })
    }

    /// Returns the available exports, by name, as of the last synced txg.
    ///
    /// # Errors
    /// Errors of reading the pool.
    pub async fn names(&self) -> Result<Vec<String>> {
        self.offers.names().await
    }

    /// Whether an export of a pool is open.
    pub async fn is_in_use(&self, pool: u64) -> bool {
        self.live().await.iter().any(|export| export.pool == pool)
    }

    /// Returns the open exports of a pool, each as often as it is open, by the present names of
    /// their volumes. Names that cannot be read in time are those of when the export was opened.
    pub async fn in_use(&self, pool: u64) -> Vec<String> {
        let mut names = Vec::new();
        for export in self.live().await.iter().filter(|export| export.pool == pool) {
            let time = Duration::from_millis(tunables::SUSPENDED_READ_MS.get());
            let now = cenote_rt::until(time, Box::pin(export.name_now())).await;
            names.push(now.unwrap_or_else(|| export.name.clone()));
        }
        names
    }

    /// Opens the export that a client names. The empty name is the only volume, if there is just
    /// one.
    ///
    /// # Errors
    /// `Kind::NotFound` if it does not exist; errors of opening it.
    pub(super) async fn open(&self, name: &str) -> Result<Arc<Export>> {
        let mut open = self.open.lock().await;
        let offer = self.offers.find(name).await?;
        let contents = if offer.engine.is_read_only() {
            // The blocks that a view references are never overwritten.
            let dataset = offer.engine.view().await?.dataset(&offer.name).await?;
            Contents::Snapshot(Volume::open(&dataset).await?)
        } else if offer.name.contains('@') {
            Contents::Snapshot(Volume::open_snapshot(&offer.engine, &offer.name).await?)
        } else {
            Contents::Volume(WritableVolume::open(&offer.engine, &offer.name).await?)
        };
        let is_read_only = offer.is_read_only || matches!(contents, Contents::Snapshot(_));
        let (pool, name) = (offer.engine.guid(), offer.name);
        let export = Arc::new(Export { pool, name, contents, is_read_only });
        open.retain(|export| export.strong_count() > 0);
        open.push(Arc::downgrade(&export));
        Ok(export)
    }

    async fn live(&self) -> Vec<Arc<Export>> {
        self.open.lock().await.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes durable all data that clients have written to open volumes. All volumes are flushed
    /// concurrently: one that fails, or whose devices hang, does not block the others.
    ///
    /// # Errors
    /// The cause names every volume that failed; the kind is that of the first failure.
    pub(super) async fn flush(&self) -> Result<()> {
        let start = |export: Arc<Export>| {
            let name = export.name.clone();
            (name, cenote_rt::spawn(async move { export.flush().await }))
        };
        let flushes: Vec<_> = self.live().await.into_iter().map(start).collect();
        let mut failed = Vec::new();
        for (name, flush) in flushes {
            // A panic was already printed by the task.
            let flushed = flush.await;
            let flushed =
                flushed.unwrap_or_else(|panic| Err(Error::new(Kind::Io, panic.to_string())));
            if let Err(error) = flushed {
                failed.push((name, error));
            }
        }
        match failed.first() {
            Some((_, first)) => Err(Error::new(first.kind(), NotFlushed(failed))),
            None => Ok(()),
        }
    }
}

/// Volumes that could not be flushed, with their errors.
#[derive(Debug)]
struct NotFlushed(Vec<(String, Error)>);

impl std::fmt::Display for NotFlushed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (volume, error)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}volume '{volume}' is not flushed: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NotFlushed {}

/// An open export.
#[derive(Debug)]
pub(super) struct Export {
    /// Guid of its pool.
    pool: u64,
    name: String,
    contents: Contents,
    is_read_only: bool,
}

#[derive(Debug)]
enum Contents {
    Volume(Arc<WritableVolume>),
    Snapshot(Volume),
}

impl Export {
    /// Returns the present name of the volume, which may have been renamed.
    async fn name_now(&self) -> String {
        let name = match &self.contents {
            Contents::Volume(volume) => volume.name().await.ok(),
            Contents::Snapshot(_) => None,
        };
        name.unwrap_or_else(|| self.name.clone())
    }

    /// Returns the dataset.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the present size in bytes.
    pub(super) fn size(&self) -> u64 {
        match &self.contents {
            Contents::Volume(volume) => volume.size(),
            Contents::Snapshot(volume) => volume.size(),
        }
    }

    pub(super) fn block_size(&self) -> u64 {
        match &self.contents {
            Contents::Volume(volume) => volume.block_size(),
            Contents::Snapshot(volume) => volume.block_size(),
        }
    }

    /// Returns the volume, if it is writable.
    fn writable(&self) -> Result<&WritableVolume> {
        match &self.contents {
            Contents::Volume(volume) if !self.is_read_only => Ok(volume),
            _ => Err(Error::new(Kind::ReadOnly, FsError::ReadOnly)),
        }
    }

    pub(super) async fn read(&self, offset: u64, len: usize) -> Result<Buf> {
        match &self.contents {
            Contents::Volume(volume) => volume.read(offset, len).await,
            Contents::Snapshot(volume) => volume.read_at(offset, len).await,
        }
    }

    pub(super) async fn write(&self, offset: u64, bufs: Vec<Buf>, is_fua: bool) -> Result<()> {
        self.writable()?.write(offset, bufs, is_fua).await
    }

    pub(super) async fn trim(&self, offset: u64, len: u64, is_fua: bool) -> Result<()> {
        let volume = self.writable()?;
        volume.discard(offset, len).await?;
        if is_fua { volume.flush().await } else { Ok(()) }
    }

    pub(super) async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        no_hole: bool,
        is_fua: bool,
    ) -> Result<()> {
        self.writable()?.write_zeroes(offset, len, no_hole, is_fua).await
    }

    /// Makes all earlier writes durable, those of other clients included.
    pub(super) async fn flush(&self) -> Result<()> {
        match &self.contents {
            Contents::Volume(volume) => volume.flush().await,
            Contents::Snapshot(_) => Ok(()),
        }
    }

    /// Returns data and holes of a range; the answer may end early.
    pub(super) async fn status(&self, offset: u64, len: u64) -> Result<Vec<VolumeExtent>> {
        let volume = match &self.contents {
            Contents::Volume(volume) => return volume.block_status(offset, len).await,
            Contents::Snapshot(volume) => volume,
        };
        let end = offset.saturating_add(len);
        let (mut at, mut extents) = (offset, Vec::new());
        while at < end && extents.len() < EXTENTS_MAX {
            let data = volume.dnode().next_data(at).await?.unwrap_or(end).min(end);
            if data > at {
                extents.push(VolumeExtent { offset: at, len: data - at, is_hole: true });
                at = data;
                continue;
            }
            let hole = volume.dnode().next_hole(at).await?.unwrap_or(end).clamp(at + 1, end);
            extents.push(VolumeExtent { offset: at, len: hole - at, is_hole: false });
            at = hole;
        }
        Ok(extents)
    }
}
