//! File systems.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_rt::OwnRuntime;

use super::{Dataset, File, Snapshot, forward};
use crate::{DirEntry, Metadata, OpenOptions};

/// An open file system, or a snapshot of one: see [`crate::FileSystem`].
#[derive(Debug, Clone)]
pub struct FileSystem {
    // Dropped before the runtime: the last handle closes the pool.
    inner: crate::FileSystem,
    runtime: Arc<OwnRuntime>,
}

impl FileSystem {
    pub(super) fn over(inner: crate::FileSystem, runtime: Arc<OwnRuntime>) -> Self {
        Self { inner, runtime }
    }

    /// Returns the full name of the dataset or snapshot.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the same file system with the rights of a user.
    #[must_use]
    pub fn as_user(&self, uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self::over(self.inner.as_user(uid, gid, groups), Arc::clone(&self.runtime))
    }

    /// Returns the dataset, for its properties.
    #[must_use]
    pub fn dataset(&self) -> Dataset {
        Dataset::over(self.inner.dataset(), Arc::clone(&self.runtime))
    }

    forward! {
        snapshot(name: &str) -> Snapshot;
        open_file(path: impl AsRef<Path>) -> File;
        create_file(path: impl AsRef<Path>) -> File;
        open_with(path: impl AsRef<Path>, options: OpenOptions) -> File;
        read(path: impl AsRef<Path>) -> Vec<u8>;
        write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> ();
        metadata(path: impl AsRef<Path>) -> Metadata;
        symlink_metadata(path: impl AsRef<Path>) -> Metadata;
        exists(path: impl AsRef<Path>) -> bool;
        read_dir(path: impl AsRef<Path>) -> Vec<DirEntry>;
        create_dir(path: impl AsRef<Path>) -> ();
        create_dir_all(path: impl AsRef<Path>) -> ();
        symlink(target: impl AsRef<Path>, path: impl AsRef<Path>) -> ();
        read_link(path: impl AsRef<Path>) -> PathBuf;
        hard_link(path: impl AsRef<Path>, new: impl AsRef<Path>) -> ();
        rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> ();
        remove_file(path: impl AsRef<Path>) -> ();
        remove_dir(path: impl AsRef<Path>) -> ();
        set_mode(path: impl AsRef<Path>, mode: u32) -> ();
        set_owner(path: impl AsRef<Path>, uid: u32, gid: u32) -> ();
    }
}
