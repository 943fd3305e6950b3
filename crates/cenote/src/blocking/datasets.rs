//! Datasets and snapshots.

use std::sync::Arc;

use cenote_rt::OwnRuntime;

use super::{FileSystem, Volume, forward, forward_owned};
use crate::{DatasetKind, DatasetOptions};

/// A file system or volume, by its name: see [`crate::Dataset`].
#[derive(Debug, Clone)]
pub struct Dataset {
    inner: crate::Dataset,
    runtime: Arc<OwnRuntime>,
}

impl Dataset {
    pub(super) fn over(inner: crate::Dataset, runtime: Arc<OwnRuntime>) -> Self {
        Self { inner, runtime }
    }

    /// Returns the full name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    forward! {
        kind() -> DatasetKind;
        property(name: &str) -> String;
        set_property(name: &str, value: &str) -> ();
        inherit_property(name: &str) -> ();
        snapshot(name: &str) -> Snapshot;
        snapshots() -> Vec<Snapshot>;
        children() -> Vec<Dataset>;
        promote() -> ();
    }

    forward_owned! {
        rename(name: &str) -> Dataset;
        destroy() -> ();
    }
}

/// A snapshot, by its name: see [`crate::Snapshot`].
#[derive(Debug, Clone)]
pub struct Snapshot {
    inner: crate::Snapshot,
    runtime: Arc<OwnRuntime>,
}

impl Snapshot {
    pub(super) fn over(inner: crate::Snapshot, runtime: Arc<OwnRuntime>) -> Self {
        Self { inner, runtime }
    }

    /// Returns the full name: `tank/home@monday`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    forward! {
        file_system() -> FileSystem;
        volume() -> Volume;
        property(name: &str) -> String;
        clone_to(name: &str) -> Dataset;
        clone_with(name: &str, options: &DatasetOptions) -> Dataset;
        rollback() -> ();
    }

    forward_owned! {
        destroy() -> ();
    }
}
