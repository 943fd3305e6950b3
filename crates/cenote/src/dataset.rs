//! Datasets by name: properties, snapshots, children.

use cenote_engine::{Engine, NewDataset, NewEncryption, PropertyChange};
use cenote_fs::format::NewFileSystem;
use cenote_fs::volume;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_pool::Dataset as Committed;
use cenote_pool::props::text::{self, Moment, Setting, is_stored};
use cenote_pool::props::{PropRow, PropValue};
use cenote_rt::{Error, Kind, Result};

use crate::error::Refusal;
use crate::options::{self, DatasetOptions};
use crate::pool::{Pool, no_property};
use crate::snapshot::Snapshot;

pub use cenote_pool::DatasetKind;

/// A file system or volume, by name. Reads return the last committed state.
#[derive(Debug, Clone)]
pub struct Dataset {
    pool: Pool,
    name: String,
}

impl Dataset {
    pub(crate) async fn find(pool: &Pool, name: &str) -> Result<Self> {
        if name.contains(['@', '#']) {
            return Err(Error::new(Kind::Invalid, Refusal::NotADataset).in_dataset(name));
        }
        pool.read(async |view| view.dataset(name).await.map(drop)).await?;
        Ok(Self::named(pool, name.to_owned()))
    }

    pub(crate) fn named(pool: &Pool, name: String) -> Self {
        Self { pool: pool.clone(), name }
    }

    /// Returns the full name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether it is a file system or a volume.
    ///
    /// # Errors
    /// Errors of reading the pool.
    pub async fn kind(&self) -> Result<DatasetKind> {
        self.pool.read(async |view| view.dataset(&self.name).await?.kind().await).await
    }

    /// Returns a property as `zfs get -p` prints it: `used`, `compressratio`, `recordsize`,
    /// `org.example:note`, ...
    ///
    /// # Errors
    /// `Kind::NotFound` if the dataset has no such property.
    pub async fn property(&self, name: &str) -> Result<String> {
        property(&self.pool, &self.name, name).await
    }

    /// Sets a property, as `zfs set` does.
    ///
    /// # Errors
    /// `Kind::Invalid` if there is no such property, or it cannot have this value.
    pub async fn set_property(&self, name: &str, value: &str) -> Result<()> {
        self.pool.check_open()?;
        let kind = if self.kind().await? == DatasetKind::Volume { 'v' } else { 'f' };
        let wanted = [(name.to_owned(), value.to_owned())];
        let parsed = options::parse(&wanted, kind, Moment::Later)?;
        if name == "volsize" {
            let size = parsed.first().and_then(|(_, value)| value.single()).unwrap_or(0);
            return self.pool.volume(&self.name).await?.set_len(size).await;
        }
        let mut settings = parsed;
        for (name, value) in &mut settings {
            if name == "refreservation" && value.single() == Some(text::AUTO) {
                *value = Value::U64(self.whole_reservation().await?);
            }
        }
        set_all(&self.pool.0.engine, &self.name, settings).await
    }

    /// Returns the space that the volume can occupy at most.
    async fn whole_reservation(&self) -> Result<u64> {
        let mut numbers = [0; 3];
        for (number, name) in numbers.iter_mut().zip(["volsize", "volblocksize", "copies"]) {
            let value = self.property(name).await?;
            *number = value.parse().map_err(|error| Error::new(Kind::Corrupt, error))?;
        }
        let [size, block_size, copies] = numbers;
        let tops = self.pool.0.engine.admin().vdev_config().children;
        Ok(volume::reservation(size, block_size, copies, &tops))
    }

    /// Removes the local value of a property, as `zfs inherit` does.
    ///
    /// # Errors
    /// `Kind::Invalid` if it cannot be inherited.
    pub async fn inherit_property(&self, name: &str) -> Result<()> {
        self.pool.check_open()?;
        let changes = vec![(name.to_owned(), PropertyChange::Inherit)];
        self.pool.0.engine.properties().change(&self.name, changes).await
    }

    /// Takes a snapshot: `snapshot("monday")` is `NAME@monday`.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::Invalid` for a name that no snapshot can have.
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot> {
        let name = format!("{}@{name}", self.name);
        let mut taken = self.pool.take_snapshots(&[&name]).await?;
        Ok(taken.pop().unwrap_or_else(|| Snapshot::named(&self.pool, name)))
    }

    /// Returns the snapshots, oldest first.
    ///
    /// # Errors
    /// Errors of reading the pool.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let found = self.names(async |dataset| dataset.snapshots().await).await?;
        Ok(found.into_iter().map(|name| Snapshot::named(&self.pool, name)).collect())
    }

    /// Returns the child datasets, in name order.
    ///
    /// # Errors
    /// Errors of reading the pool.
    pub async fn children(&self) -> Result<Vec<Self>> {
        let found = self.names(async |dataset| dataset.children().await).await?;
        Ok(found.into_iter().map(|name| Self::named(&self.pool, name)).collect())
    }

    async fn names(
        &self,
        mut list: impl AsyncFnMut(&Committed) -> Result<Vec<Committed>>,
    ) -> Result<Vec<String>> {
        self.pool
            .read(async |view| {
                let found = list(&view.dataset(&self.name).await?).await?;
                Ok(found.iter().map(|dataset| dataset.name().to_owned()).collect())
            })
            .await
    }

    /// Renames the dataset, with its descendants.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::Invalid` for another pool's name.
    pub async fn rename(self, name: &str) -> Result<Self> {
        self.pool.check_open()?;
        self.pool.0.engine.datasets().rename(&self.name, name).await?;
        Ok(Self { name: name.to_owned(), ..self })
    }

    /// Makes a clone independent of its origin by exchanging their roles.
    ///
    /// # Errors
    /// `Kind::Invalid` if it is no clone.
    pub async fn promote(&self) -> Result<()> {
        self.pool.check_open()?;
        self.pool.0.engine.datasets().promote(&self.name).await
    }

    /// Destroys the dataset. Its space becomes free in the background.
    ///
    /// # Errors
    /// `Kind::Busy` if it is open, or has snapshots or descendants.
    pub async fn destroy(self) -> Result<()> {
        self.pool.check_open()?;
        self.pool.0.engine.datasets().destroy(&self.name).await
    }
}

/// Sets properties in one txg.
pub(crate) async fn set_all(engine: &Engine, name: &str, settings: Vec<Setting>) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let set = |(name, value)| (name, PropertyChange::Set(value));
    engine.properties().change(name, settings.into_iter().map(set).collect()).await
}

/// Returns a property of a dataset or snapshot.
pub(crate) async fn property(pool: &Pool, dataset: &str, name: &str) -> Result<String> {
    let row: Option<PropRow> =
        pool.read(async |view| view.dataset(dataset).await?.props().await?.get(name).await).await?;
    match row {
        Some(row) if row.value != PropValue::Absent => Ok(row.literal()),
        _ => Err(no_property(name).in_dataset(dataset)),
    }
}

/// Creates a file system.
pub(crate) async fn create(pool: &Pool, name: &str, options: &DatasetOptions) -> Result<()> {
    pool.check_open()?;
    let properties = options::parse(&options.properties, 'f', Moment::Creation)?;
    let inherited = name_settings(pool, name).await?;
    let all: Vec<_> = properties.iter().chain(&inherited).cloned().collect();
    let root = NewFileSystem {
        has_projects: pool.0.engine.admin().has_feature("project_quota").await?,
        uid: options.owner.0.into(),
        gid: options.owner.1.into(),
        ..NewFileSystem::of_properties(&all)
    };
    let new = NewDataset {
        name: name.to_owned(),
        kind: ObjSetType::Zfs,
        props: properties.iter().filter(|(name, _)| is_stored(name)).cloned().collect(),
        encryption: NewEncryption::Inherited,
        fill: Box::new(move |tx| root.fill(tx)),
    };
    pool.0.engine.datasets().create(new).await.map(drop)
}

/// Returns the parent's settings for file names, which a new file system takes over.
async fn name_settings(pool: &Pool, name: &str) -> Result<Vec<Setting>> {
    let Some((parent, _)) = name.rsplit_once('/') else { return Ok(Vec::new()) };
    pool.read(async |view| {
        let parent = view.dataset(parent).await?;
        if parent.is_encrypted().await? {
            return Err(Error::new(Kind::Unsupported, Refusal::Encryption).in_dataset(name));
        }
        parent.props().await?.name_settings().await
    })
    .await
}
