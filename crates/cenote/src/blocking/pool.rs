//! Pools.

use std::path::Path;
use std::sync::Arc;

use cenote_rt::OwnRuntime;

use super::{Dataset, FileSystem, Snapshot, Volume, forward, forward_owned};
use crate::pool::{Closer, to_paths};
use crate::{DatasetOptions, Layout, PoolOptions, Result, VolumeOptions};

/// An open pool: see [`crate::Pool`].
#[derive(Debug, Clone)]
pub struct Pool {
    // Dropped before the runtime: the last handle closes the pool.
    inner: crate::Pool,
    runtime: Arc<OwnRuntime>,
}

impl Pool {
    pub(super) fn over(inner: crate::Pool, runtime: Arc<OwnRuntime>) -> Self {
        Self { inner, runtime }
    }

    /// Blocking form of [`crate::Pool::create`].
    ///
    /// # Errors
    /// The errors of [`crate::Pool::create`].
    pub fn create(name: &str, layout: Layout) -> Result<Self> {
        Self::create_with(name, layout, &PoolOptions::new())
    }

    /// Blocking form of [`crate::Pool::create_with`].
    ///
    /// # Errors
    /// The errors of [`crate::Pool::create_with`].
    pub fn create_with(name: &str, layout: Layout, options: &PoolOptions) -> Result<Self> {
        let (runtime, closer) = runtime()?;
        let made = crate::Pool::create_on(closer, name, layout, options);
        Ok(Self { inner: runtime.block_on(made)??, runtime })
    }

    /// Blocking form of [`crate::Pool::open`].
    ///
    /// # Errors
    /// The errors of [`crate::Pool::open`].
    pub fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self> {
        Self::open_with(paths, &PoolOptions::new())
    }

    /// Blocking form of [`crate::Pool::open_with`].
    ///
    /// # Errors
    /// The errors of [`crate::Pool::open_with`].
    pub fn open_with<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        options: &PoolOptions,
    ) -> Result<Self> {
        let (runtime, closer) = runtime()?;
        let opened = crate::Pool::found_on(closer, None, to_paths(paths), options);
        Ok(Self { inner: runtime.block_on(opened)??, runtime })
    }

    /// Blocking form of [`crate::Pool::import`].
    ///
    /// # Errors
    /// The errors of [`crate::Pool::import`].
    pub fn import<P: AsRef<Path>>(
        name: &str,
        folders: impl IntoIterator<Item = P>,
    ) -> Result<Self> {
        Self::import_with(name, folders, &PoolOptions::new())
    }

    /// Blocking form of [`crate::Pool::import_with`].
    ///
    /// # Errors
    /// The errors of [`crate::Pool::import_with`].
    pub fn import_with<P: AsRef<Path>>(
        name: &str,
        folders: impl IntoIterator<Item = P>,
        options: &PoolOptions,
    ) -> Result<Self> {
        let (runtime, closer) = runtime()?;
        let opened = crate::Pool::found_on(closer, Some(name), to_paths(folders), options);
        Ok(Self { inner: runtime.block_on(opened)??, runtime })
    }

    /// Returns the pool's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.inner.name()
    }

    /// Returns the pool's guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.inner.guid()
    }

    forward! {
        property(name: &str) -> String;
        file_system(name: &str) -> FileSystem;
        create_file_system(name: &str) -> FileSystem;
        create_file_system_with(name: &str, options: &DatasetOptions) -> FileSystem;
        volume(name: &str) -> Volume;
        create_volume(name: &str, size: u64) -> Volume;
        create_volume_with(name: &str, size: u64, options: &VolumeOptions) -> Volume;
        dataset(name: &str) -> Dataset;
        datasets() -> Vec<Dataset>;
        snapshot(name: &str) -> Snapshot;
        take_snapshots(names: &[&str]) -> Vec<Snapshot>;
        sync() -> ();
    }

    forward_owned! {
        close() -> ();
        destroy() -> ();
    }

    /// Blocking form of [`crate::Pool::close_by_force`].
    ///
    /// # Errors
    /// `Kind::Invalid` inside of asynchronous code.
    pub fn close_by_force(self) -> Result<()> {
        self.runtime.block_on(self.inner.close_by_force())
    }
}

/// Returns a runtime for one pool, and the closer that uses it.
fn runtime() -> Result<(Arc<OwnRuntime>, Closer)> {
    let runtime = Arc::new(OwnRuntime::new(0)?);
    let closer = Closer::Wait(Arc::clone(&runtime));
    Ok((runtime, closer))
}
