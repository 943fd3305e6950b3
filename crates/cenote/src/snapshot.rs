//! Snapshots.

use cenote_pool::DatasetKind;
use cenote_pool::props::text::{AUTO, Moment, Setting, is_stored};
use cenote_rt::{Error, Kind, Result};

use crate::dataset::{self, Dataset};
use crate::error::Refusal;
use crate::file_system::FileSystem;
use crate::options::{self, DatasetOptions};
use crate::pool::Pool;
use crate::volume::Volume;

/// A snapshot, by name.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pool: Pool,
    name: String,
}

impl Snapshot {
    pub(crate) async fn find(pool: &Pool, name: &str) -> Result<Self> {
        if !name.contains('@') {
            return Err(Error::new(Kind::Invalid, Refusal::NotASnapshot).in_dataset(name));
        }
        pool.read(async |view| view.dataset(name).await.map(drop)).await?;
        Ok(Self::named(pool, name.to_owned()))
    }

    pub(crate) fn named(pool: &Pool, name: String) -> Self {
        Self { pool: pool.clone(), name }
    }

    /// Returns the full name: `tank/home@monday`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the snapshot of a file system for reading. An open snapshot cannot be destroyed.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` for the snapshot of a volume.
    pub async fn file_system(&self) -> Result<FileSystem> {
        self.pool.file_system(&self.name).await
    }

    /// Opens the snapshot of a volume for reading. An open snapshot cannot be destroyed.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` for the snapshot of a file system.
    pub async fn volume(&self) -> Result<Volume> {
        self.pool.volume(&self.name).await
    }

    /// Returns a property as `zfs get -p` prints it: `used`, `referenced`, `creation`, ...
    ///
    /// # Errors
    /// `Kind::NotFound` if snapshots have no such property.
    pub async fn property(&self, name: &str) -> Result<String> {
        dataset::property(&self.pool, &self.name, name).await
    }

    /// Creates a writable clone with this full name.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::NotFound` if the parent of `name` does not exist.
    pub async fn clone_to(&self, name: &str) -> Result<Dataset> {
        self.clone_with(name, &DatasetOptions::new()).await
    }

    /// Like [`clone_to`](Self::clone_to), with properties; the owner does not change.
    ///
    /// # Errors
    /// The errors of [`clone_to`](Self::clone_to); `Kind::Invalid` for properties that a clone has
    /// from its origin, such as `casesensitivity`, and for `volsize` and `refreservation=auto`,
    /// which are set on the clone.
    pub async fn clone_with(&self, name: &str, options: &DatasetOptions) -> Result<Dataset> {
        self.pool.check_open()?;
        let (origin, _) = self.name.split_once('@').unwrap_or((&self.name, ""));
        let origin = Dataset::named(&self.pool, origin.to_owned());
        let kind = if origin.kind().await? == DatasetKind::Volume { 'v' } else { 'f' };
        let properties = options::parse(&options.properties, kind, Moment::Later)?;
        let is_for_later = |(name, value): &&Setting| {
            !is_stored(name) || name == "refreservation" && value.single() == Some(AUTO)
        };
        if let Some((name, _)) = properties.iter().find(is_for_later) {
            let cause = Refusal::OfOrigin(name.clone());
            return Err(Error::new(Kind::Invalid, cause));
        }
        let engine = &self.pool.0.engine;
        engine.datasets().clone_snapshot(&self.name, name, properties).await?;
        Ok(Dataset::named(&self.pool, name.to_owned()))
    }

    /// Rolls the dataset back to this snapshot, which must be the newest one.
    ///
    /// # Errors
    /// `Kind::Busy` if the dataset is open; `Kind::Exists` if there are newer snapshots.
    pub async fn rollback(&self) -> Result<()> {
        self.pool.check_open()?;
        let (dataset, _) = self.name.split_once('@').unwrap_or((&self.name, ""));
        self.pool.0.engine.datasets().rollback(dataset, Some(&self.name)).await.map(drop)
    }

    /// Destroys the snapshot.
    ///
    /// # Errors
    /// `Kind::Busy` if it is open, held, or has clones.
    pub async fn destroy(self) -> Result<()> {
        self.pool.check_open()?;
        self.pool.0.engine.snapshots().destroy(&self.name).await
    }
}
