//! Pools: creates, opens, imports and closes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_engine::admin::PoolSetting;
use cenote_engine::create::{CreateSpec, PoolLayout, plan_pool};
use cenote_engine::{Engine, NewEncryption};
use cenote_fs::NewVolume;
use cenote_fs::format::{FsOwners, NewFileSystem};
use cenote_ondisk::feature::Feature;
use cenote_pool::features;
use cenote_pool::import::{Host, ScanOptions, scan};
use cenote_pool::props::text::{Moment, Setting, is_stored};
use cenote_pool::{Candidate, OpenOptions, Pool as View};
use cenote_rt::{Error, Kind, OwnRuntime, Result, Runtime};

use crate::dataset::{self, Dataset};
use crate::error::Refusal;
use crate::file_system::FileSystem;
use crate::layout::{Devices, Layout};
use crate::options::{self, DatasetOptions, PoolOptions, VolumeOptions};
use crate::snapshot::Snapshot;
use crate::volume::Volume;

/// Maximum attempts to read a committed state whose blocks are reused meanwhile.
const VIEWS_MAX: u32 = 16;

/// An open pool.
///
/// A cheap handle; the [crate's page](crate) says when the pool is closed.
#[derive(Debug, Clone)]
pub struct Pool(pub(crate) Arc<Inner>);

/// Shared by all handles of one pool: the last one closes it.
pub(crate) struct Inner {
    pub(crate) engine: Arc<Engine>,
    closer: Closer,
    is_closed: AtomicBool,
}

/// How the pool is closed when the last handle is dropped.
#[derive(Clone)]
pub(crate) enum Closer {
    /// In a task of the program's runtime, in the background.
    Task(Runtime),
    /// On the runtime of the blocking form, which waits.
    Wait(Arc<OwnRuntime>),
}

impl Pool {
    /// Creates a pool. Existing data on the devices is lost.
    ///
    /// # Errors
    /// `Kind::Invalid` for an invalid name, layout or property; `Kind::Busy` if a device belongs to
    /// another pool; errors of the devices.
    pub async fn create(name: &str, layout: Layout) -> Result<Self> {
        Self::create_with(name, layout, &PoolOptions::new()).await
    }

    /// Like [`create`](Self::create), with options.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    pub async fn create_with(name: &str, layout: Layout, options: &PoolOptions) -> Result<Self> {
        Self::create_on(Closer::Task(Runtime::here()), name, layout, options).await
    }

    pub(crate) async fn create_on(
        closer: Closer,
        name: &str,
        layout: Layout,
        options: &PoolOptions,
    ) -> Result<Self> {
        cenote_pool::dsl::check_pool_name(name)
            .map_err(|error| Error::new(Kind::Invalid, error).in_dataset(name))?;
        let properties = options::parse(&options.properties, 'f', Moment::Creation)?;
        let devices = layout.open(options.is_forced).await?;
        let features: Vec<_> = features::identity().collect();
        let engine =
            Engine::create(new_pool(name, &devices, (features, &properties), options)?).await?;
        let pool = Self::over(closer, engine);
        let set_up = async {
            if let Some(ashift) = options.ashift {
                pool.0.engine.admin().set(vec![PoolSetting::Property("ashift", ashift)]).await?;
            }
            let stored = properties.into_iter().filter(|(name, _)| is_stored(name)).collect();
            dataset::set_all(&pool.0.engine, name, stored).await
        };
        if let Err(error) = set_up.await {
            // A pool without its requested properties is not returned.
            pool.0.is_closed.store(true, Ordering::Release);
            pool.0.engine.destroy().await?;
            return Err(error);
        }
        Ok(pool)
    }

    /// Opens the pool on these devices. Each path is a device, or a directory whose devices are
    /// searched. Intent logs are replayed first.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no pool; `Kind::Invalid` if there are several (see
    /// [`import`](Self::import)); `Kind::Busy` if another program or host uses the pool;
    /// `Kind::Unsupported` for unsupported features.
    pub async fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self> {
        Self::open_with(paths, &PoolOptions::new()).await
    }

    /// Like [`open`](Self::open), with options.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn open_with<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        options: &PoolOptions,
    ) -> Result<Self> {
        Self::found_on(Closer::Task(Runtime::here()), None, to_paths(paths), options).await
    }

    /// Opens the pool with this name, or with this guid in decimal, whose devices are in these
    /// directories.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn import<P: AsRef<Path>>(
        name: &str,
        folders: impl IntoIterator<Item = P>,
    ) -> Result<Self> {
        Self::import_with(name, folders, &PoolOptions::new()).await
    }

    /// Like [`import`](Self::import), with options.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn import_with<P: AsRef<Path>>(
        name: &str,
        folders: impl IntoIterator<Item = P>,
        options: &PoolOptions,
    ) -> Result<Self> {
        Self::found_on(Closer::Task(Runtime::here()), Some(name), to_paths(folders), options).await
    }

    pub(crate) async fn found_on(
        closer: Closer,
        name: Option<&str>,
        paths: Vec<PathBuf>,
        options: &PoolOptions,
    ) -> Result<Self> {
        let scan = scan(&ScanOptions { paths }).await?;
        let candidate = match (name, &scan.candidates[..]) {
            (Some(name), _) => scan.find(name).map_err(Error::not_found)?,
            (None, [only]) => only,
            (None, []) => {
                return Err(match scan.failures.into_iter().next() {
                    Some((_, error)) => error,
                    None => Error::not_found(Refusal::NoPool),
                });
            }
            (None, _) => return Err(Error::new(Kind::Invalid, Refusal::SeveralPools)),
        };
        let engine = open_engine(candidate, options).await?;
        let pool = Self::over(closer, engine);
        cenote_fs::prepare(&pool.0.engine).await?;
        Ok(pool)
    }

    fn over(closer: Closer, engine: Arc<Engine>) -> Self {
        if !engine.is_read_only() {
            // Starts syncing in the background.
            engine.start_sync_task();
        }
        Self(Arc::new(Inner { engine, closer, is_closed: AtomicBool::new(false) }))
    }

    /// Returns the pool's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.engine.name()
    }

    /// Returns the pool's guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.0.engine.guid()
    }

    /// Returns a property of the pool as `zpool get -p` prints it: `size`, `free`, `health`,
    /// `fragmentation`, ...
    ///
    /// # Errors
    /// `Kind::NotFound` if pools have no such property; errors of reading it.
    pub async fn property(&self, name: &str) -> Result<String> {
        self.read(async |view| {
            let row = view.props().await?.get(name);
            row.map(|row| row.literal()).ok_or_else(|| no_property(name))
        })
        .await
    }

    /// Opens a file system by its full name: `tank` or `tank/home`, or a snapshot of one,
    /// `tank/home@monday`, which is read-only.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` if it is a volume.
    pub async fn file_system(&self, name: &str) -> Result<FileSystem> {
        FileSystem::open(self, name).await
    }

    /// Creates a file system, and opens it.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::NotFound` if its parent does not exist; `Kind::Invalid` for an
    /// invalid name or property; `Kind::NoSpace`, `Kind::Quota`.
    pub async fn create_file_system(&self, name: &str) -> Result<FileSystem> {
        self.create_file_system_with(name, &DatasetOptions::new()).await
    }

    /// Like [`create_file_system`](Self::create_file_system), with options.
    ///
    /// # Errors
    /// The errors of [`create_file_system`](Self::create_file_system).
    pub async fn create_file_system_with(
        &self,
        name: &str,
        options: &DatasetOptions,
    ) -> Result<FileSystem> {
        dataset::create(self, name, options).await?;
        self.file_system(name).await
    }

    /// Opens a volume by its full name, or a snapshot of one, which is read-only.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` if it is no volume.
    pub async fn volume(&self, name: &str) -> Result<Volume> {
        Volume::open(self, name).await
    }

    /// Creates a volume of `size` bytes whose space is reserved, and opens it.
    ///
    /// # Errors
    /// `Kind::Invalid` if the size is no multiple of the block size; else the errors of
    /// [`create_file_system`](Self::create_file_system).
    pub async fn create_volume(&self, name: &str, size: u64) -> Result<Volume> {
        self.create_volume_with(name, size, &VolumeOptions::new()).await
    }

    /// Like [`create_volume`](Self::create_volume), with options.
    ///
    /// # Errors
    /// The errors of [`create_volume`](Self::create_volume).
    pub async fn create_volume_with(
        &self,
        name: &str,
        size: u64,
        options: &VolumeOptions,
    ) -> Result<Volume> {
        self.check_open()?;
        let mut new = NewVolume::new(name, size);
        new.block_size = options.block_size;
        new.is_sparse = options.is_sparse;
        new.props = options::parse(&options.properties, 'v', Moment::Creation)?;
        new.create(&self.0.engine).await?;
        self.volume(name).await
    }

    /// Returns the dataset with this name: file system or volume.
    ///
    /// # Errors
    /// `Kind::NotFound`.
    pub async fn dataset(&self, name: &str) -> Result<Dataset> {
        Dataset::find(self, name).await
    }

    /// Returns all file systems and volumes: each before its children, children in name order.
    ///
    /// # Errors
    /// Errors of reading the pool.
    pub async fn datasets(&self) -> Result<Vec<Dataset>> {
        let names = self
            .read(async |view| {
                let found = view.datasets().await?;
                Ok(found.iter().map(|dataset| dataset.name().to_owned()).collect::<Vec<_>>())
            })
            .await?;
        Ok(names.into_iter().map(|name| Dataset::named(self, name)).collect())
    }

    /// Returns the snapshot with this name: `tank/home@monday`.
    ///
    /// # Errors
    /// `Kind::NotFound`.
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot> {
        Snapshot::find(self, name).await
    }

    /// Takes snapshots of several datasets in one txg: all of them, or none.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::NotFound` if a dataset does not exist.
    pub async fn take_snapshots(&self, names: &[&str]) -> Result<Vec<Snapshot>> {
        self.check_open()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.0.engine.snapshots().create(names.clone()).await?;
        Ok(names.into_iter().map(|name| Snapshot::named(self, name)).collect())
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.0.engine.sync().await.map(drop)
    }

    /// Closes the pool for all handles: writes all changes, marks the pool as exported, and unlocks
    /// its devices. Other handles then fail with `Kind::Closed`.
    ///
    /// # Errors
    /// Errors of the devices. A pool whose devices fail stays open, except with
    /// [`close_by_force`](Self::close_by_force).
    pub async fn close(self) -> Result<()> {
        if self.0.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.0.engine.export().await?;
        self.0.is_closed.store(true, Ordering::Release);
        Ok(())
    }

    /// Closes the pool within seconds, even if its devices hang or fail. The devices are left as
    /// after a crash: changes since the last sync are lost, unless they were made durable.
    pub async fn close_by_force(self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.engine.close_by_force().await;
    }

    /// Destroys the pool, and unlocks its devices.
    ///
    /// # Errors
    /// The errors of [`close`](Self::close).
    pub async fn destroy(self) -> Result<()> {
        self.check_open()?;
        self.0.engine.destroy().await?;
        self.0.is_closed.store(true, Ordering::Release);
        Ok(())
    }

    /// Refuses operations on a pool that was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.0.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(Kind::Closed, Refusal::PoolClosed));
        }
        Ok(())
    }

    /// Reads the last committed state. If its blocks are reused before `read` has finished, calls
    /// `read` again with a newer state.
    pub(crate) async fn read<T>(
        &self,
        mut read: impl AsyncFnMut(&Arc<View>) -> Result<T>,
    ) -> Result<T> {
        self.check_open()?;
        let mut attempts = 1;
        loop {
            let view = self.0.engine.view().await?;
            match read(&view).await {
                Err(error) if error.kind() == Kind::Overtaken && attempts < VIEWS_MAX => {
                    attempts += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.engine.name()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_closed.load(Ordering::Acquire) {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let close = async move {
            if engine.export().await.is_err() {
                // The pool has no handles any more, so its devices must not stay locked.
                engine.close_by_force().await;
            }
        };
        match &self.closer {
            Closer::Task(runtime) => runtime.begin(close),
            Closer::Wait(runtime) => runtime.finish(close),
        }
    }
}

/// Returns the error for a property that does not exist.
pub(crate) fn no_property(name: &str) -> Error {
    Error::not_found(Refusal::NoProperty(name.to_owned()))
}

pub(crate) fn to_paths<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Vec<PathBuf> {
    paths.into_iter().map(|path| path.as_ref().to_owned()).collect()
}

fn new_pool(
    name: &str,
    devices: &Devices,
    (features, properties): (Vec<&'static Feature>, &[Setting]),
    options: &PoolOptions,
) -> Result<CreateSpec> {
    let wanted = PoolLayout { ashift: options.ashift, ..devices.layout.clone() };
    let (vdevs, opened) = plan_pool(&wanted, &devices.opened)?;
    let root = NewFileSystem::of_properties(properties);
    let host = Host::current();
    Ok(CreateSpec {
        name: name.to_owned(),
        vdevs,
        devices: opened,
        features,
        comment: options.comment.clone(),
        compatibility: None,
        host: (host.hostid != 0).then_some((host.hostid, host.hostname)),
        encryption: NewEncryption::Off,
        fill_root: Box::new(move |tx| root.fill(tx)),
        probe: Some(Arc::new(FsOwners { counts_objects: true, counts_projects: true })),
    })
}

async fn open_engine(candidate: &Candidate, options: &PoolOptions) -> Result<Arc<Engine>> {
    let open = OpenOptions {
        host: Some(Host::current()),
        force: options.is_forced,
        ..OpenOptions::default()
    };
    if options.is_read_only {
        // Opening for reading needs no check of the host.
        let open = OpenOptions { host: None, ..open };
        return Engine::open_read_only(candidate, &open).await;
    }
    Engine::open(candidate, &open).await
}
