//! What is exported: volumes of a pool, and snapshots of volumes.
//!
//! A client names a dataset, `pool/volume` or `pool/volume@snapshot`. The first connection to it
//! opens it, all share it, the last closes it: so a flush on one connection counts for all, and a
//! volume that nobody uses can be destroyed. What there is is looked up when it is asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cenote_fs::{FsError, Volume, VolumeExtent, WritableVolume};
use cenote_pool::DatasetKind;
use cenote_pool::engine::Engine;
use cenote_rt::{AsyncMutex, Buf, Error, Kind, Result};

/// Extents of an answer about a snapshot.
const EXTENTS_MAX: usize = 1024;

/// What clients may connect to.
#[derive(Debug)]
pub struct Exports {
    engine: Arc<Engine>,
    root: String,
    is_read_only: bool,
    /// What somebody uses. Held while one is opened, so that nobody opens it twice.
    open: AsyncMutex<BTreeMap<String, Weak<Export>>>,
}

impl Exports {
    /// The volumes at and below a dataset of a pool.
    #[must_use]
    pub fn new(engine: Arc<Engine>, root: &str, is_read_only: bool) -> Arc<Self> {
        Arc::new(Self { engine, root: root.to_owned(), is_read_only, open: AsyncMutex::default() })
    }

    /// The volumes and their snapshots, by name, as of the last txg that is on disk.
    ///
    /// # Errors
    /// Those of reading the pool.
    pub async fn names(&self) -> Result<Vec<String>> {
        let view = self.engine.view().await?;
        let mut names = Vec::new();
        for dataset in view.datasets().await? {
            let name = dataset.name();
            if self.has(name) && dataset.kind().await? == DatasetKind::Volume {
                names.push(name.to_owned());
                let snapshots = dataset.snapshots().await?;
                names.extend(snapshots.iter().map(|snapshot| snapshot.name().to_owned()));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Whether a name is at or below the root.
    fn has(&self, name: &str) -> bool {
        let below = name.strip_prefix(&self.root);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    }

    /// The export that a client names. The empty name is the root, if that is a volume, or the
    /// only volume that there is.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is none; those of opening it.
    pub(super) async fn open(&self, name: &str) -> Result<Arc<Export>> {
        let name = self.resolve(name).await?;
        let mut open = self.open.lock().await;
        if let Some(export) = open.get(&name).and_then(Weak::upgrade) {
            return Ok(export);
        }
        open.retain(|_, export| export.strong_count() > 0);
        let contents = if name.contains('@') {
            Contents::Snapshot(Volume::open_snapshot(&self.engine, &name).await?)
        } else {
            Contents::Volume(WritableVolume::open(&self.engine, &name).await?)
        };
        let is_read_only = self.is_read_only || matches!(contents, Contents::Snapshot(_));
        let export = Arc::new(Export { name: name.clone(), contents, is_read_only });
        open.insert(name, Arc::downgrade(&export));
        Ok(export)
    }

    /// The dataset that a client means.
    async fn resolve(&self, name: &str) -> Result<String> {
        if name.is_empty() {
            let names = self.names().await?;
            let mut volumes = names.iter().filter(|name| !name.contains('@'));
            return match (names.contains(&self.root), volumes.next(), volumes.next()) {
                (true, ..) => Ok(self.root.clone()),
                (false, Some(only), None) => Ok(only.clone()),
                _ => Err(Error::not_found(FsError::NotAVolume)),
            };
        }
        if self.has(name) { Ok(name.to_owned()) } else { Err(Error::not_found(FsError::NoEntry)) }
    }

    /// Makes durable what clients have written to what is still open.
    ///
    /// # Errors
    /// Those of the pool.
    pub(super) async fn flush(&self) -> Result<()> {
        let open: Vec<_> = self.open.lock().await.values().filter_map(Weak::upgrade).collect();
        for export in open {
            export.flush().await?;
        }
        Ok(())
    }
}

/// Something that is exported and open.
#[derive(Debug)]
pub(super) struct Export {
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
    /// The dataset.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Bytes, as of now.
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

    /// The volume, if it can be changed.
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

    /// What was written by anybody is durable when this returns.
    pub(super) async fn flush(&self) -> Result<()> {
        match &self.contents {
            Contents::Volume(volume) => volume.flush().await,
            Contents::Snapshot(_) => Ok(()),
        }
    }

    /// Data and holes of a range; the answer may end early.
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
