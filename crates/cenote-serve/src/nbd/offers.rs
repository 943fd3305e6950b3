//! Available exports: names, and the datasets that they refer to.
//!
//! The datasets are looked up for each request, so changes by other commands need no notification.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_fs::FsError;
use cenote_pool::DatasetKind;
use cenote_rt::{BoxFuture, Error, Result};

/// A provider of volumes for export.
pub trait Offers: Send + Sync + std::fmt::Debug {
    /// Returns the names of volumes and of their snapshots, in order.
    fn names(&self) -> BoxFuture<'_, Result<Vec<String>>>;

    /// Returns the dataset for a client's name; the empty name is the only volume, if there is just
    /// one. `Kind::NotFound` if there is none.
    fn find<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Offer>>;
}

/// A volume, or a snapshot of one, available to clients.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The pool.
    pub engine: Arc<Engine>,
    /// The dataset.
    pub name: String,
    /// Whether it is read-only.
    pub is_read_only: bool,
}

/// The volumes at and below a dataset of a pool, and all their snapshots.
#[derive(Debug)]
pub struct Subtree {
    engine: Arc<Engine>,
    root: String,
    is_read_only: bool,
}

impl Subtree {
    /// Returns the volumes below a pool or dataset.
    #[must_use]
    pub fn new(engine: Arc<Engine>, root: &str, is_read_only: bool) -> Arc<Self> {
        Arc::new(Self { engine, root: root.to_owned(), is_read_only })
    }

    /// Whether a name is at or below the root.
    fn has(&self, name: &str) -> bool {
        let below = name.strip_prefix(&self.root);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    }

    async fn all(&self) -> Result<Vec<String>> {
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

    /// Returns the dataset for a client's name.
    async fn resolve(&self, name: &str) -> Result<String> {
        if name.is_empty() {
            let names = self.all().await?;
            // The dataset itself has volumes below it.
            return match only(&names) {
                _ if names.contains(&self.root) => Ok(self.root.clone()),
                Some(only) => Ok(only.to_owned()),
                None => Err(Error::not_found(FsError::NotAVolume)),
            };
        }
        if self.has(name) { Ok(name.to_owned()) } else { Err(Error::not_found(FsError::NoEntry)) }
    }
}

/// Returns the only volume among some names, if there is just one.
#[must_use]
pub fn only(names: &[String]) -> Option<&str> {
    let mut volumes = names.iter().filter(|name| !name.contains('@'));
    match (volumes.next(), volumes.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

impl Offers for Subtree {
    fn names(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(self.all())
    }

    fn find<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Offer>> {
        Box::pin(async move {
            let name = self.resolve(name).await?;
            let engine = Arc::clone(&self.engine);
            Ok(Offer { engine, name, is_read_only: self.is_read_only })
        })
    }
}
