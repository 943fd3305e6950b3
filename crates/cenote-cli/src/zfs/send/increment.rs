//! The source of an increment: named while a send is planned, opened when its turn has come.

use std::sync::Arc;

use cenote_pool::{Bookmark, Dataset, Pool};
use cenote_rt::{Error, Kind};
use cenote_stream::send::From;

use super::{cannot_send, failure};
use crate::io::Exit;
use crate::source::dataset_of;

/// The source of an increment, by name and guid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// None: the whole snapshot is sent.
    Nothing,
    /// A snapshot, or a bookmark if its name has a `#`.
    Named { name: String, guid: u64 },
    /// The origin of the clone.
    Origin { guid: u64 },
}

/// The source of an increment, opened.
#[derive(Debug)]
pub(super) enum Increment {
    Full,
    Snapshot(Dataset),
    /// With the head that has the bookmark.
    Bookmark(Dataset, Bookmark),
}

impl Source {
    /// Finds the guid of the snapshot or bookmark of this name.
    pub(super) async fn find(name: Option<&str>, target: &Dataset) -> Result<Self, Exit> {
        let Some(name) = name else { return Ok(Self::Nothing) };
        let found = open_named(target.pool(), name, target.name()).await?;
        Ok(Self::Named { name: name.to_owned(), guid: found.guid() })
    }

    /// The name of a snapshot or bookmark.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Named { name, .. } => Some(name),
            Self::Nothing | Self::Origin { .. } => None,
        }
    }

    /// Opens the source, which must still be the one that was planned.
    pub(super) async fn open(&self, target: &Dataset) -> Result<Increment, Exit> {
        let (opened, wanted) = match self {
            Self::Nothing => return Ok(Increment::Full),
            Self::Named { name, guid } => {
                (open_named(target.pool(), name, target.name()).await?, *guid)
            }
            Self::Origin { guid } => {
                let failed = |error: Error| failure(target.name(), &error);
                let head = target.head().await.map_err(failed)?;
                match head.origin().await.map_err(failed)? {
                    Some(origin) => (Increment::Snapshot(origin), *guid),
                    None => return Err(cannot_send(target.name(), "it is no clone any more")),
                }
            }
        };
        if opened.guid() == wanted {
            return Ok(opened);
        }
        let why = "the incremental source was replaced while it was sent";
        Err(cannot_send(target.name(), why))
    }
}

async fn open_named(pool: &Arc<Pool>, name: &str, target: &str) -> Result<Increment, Exit> {
    let Some((head, short)) = name.split_once('#') else {
        return Ok(Increment::Snapshot(dataset_of(pool, name).await?));
    };
    let head = dataset_of(pool, head).await?;
    match head.bookmark(short).await {
        Ok(bookmark) => Ok(Increment::Bookmark(head, bookmark)),
        Err(error) if error.kind() == Kind::NotFound => {
            Err(cannot_send(target, &format!("incremental source ({name}) does not exist")))
        }
        Err(error) => Err(error.into()),
    }
}

impl Increment {
    fn guid(&self) -> u64 {
        match self {
            Self::Full => 0,
            Self::Snapshot(from) => from.phys().guid,
            Self::Bookmark(_, from) => from.phys.guid,
        }
    }

    /// Returns what the sender needs of it.
    pub(super) async fn state(&self, target: &Dataset) -> Result<Option<From>, Error> {
        Ok(match self {
            Self::Full => None,
            Self::Snapshot(from) => Some(From::snapshot(from, target).await?),
            Self::Bookmark(head, from) => Some(From::bookmark(from, head, target).await?),
        })
    }
}
