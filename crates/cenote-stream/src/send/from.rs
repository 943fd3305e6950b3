//! The source of an increment: an earlier snapshot, or a bookmark of one (spec 07 B5.4).

use std::sync::Arc;

use cenote_ondisk::dsl::key;
use cenote_ondisk::redaction::RedactionEntry;
use cenote_pool::{Bookmark, Dataset, RedactionList};
use cenote_rt::Result;

use super::SendError;

/// The source of an increment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct From {
    /// Guid of the snapshot.
    pub guid: u64,
    /// Txg in which it was taken: blocks born later are sent.
    pub txg: u64,
    /// Identifies the set of IVs of an encrypted snapshot.
    pub ivset_guid: Option<u64>,
    /// Whether the snapshot is in another dataset: the origin of a clone.
    pub is_clone: bool,
    /// Guids of the snapshots that a redacted source is redacted for.
    pub redaction: Option<Vec<u64>>,
    /// The blocks of a redaction bookmark, which a receiver of its redacted stream does not have.
    pub restored: Arc<[RedactionEntry]>,
}

impl From {
    /// Returns a snapshot as the source of an increment to `target`.
    ///
    /// # Errors
    /// [`SendError::NotEarlier`] if it is not an earlier state of the dataset or of its origins;
    /// errors of reading the pool.
    pub async fn snapshot(source: &Dataset, target: &Dataset) -> Result<Self> {
        if !is_earlier(source, target).await? {
            return Err(SendError::NotEarlier.into());
        }
        Ok(Self {
            guid: source.phys().guid,
            txg: source.phys().creation_txg,
            ivset_guid: source.extra(key::IVSET_GUID).await?,
            is_clone: source.dir().object != target.dir().object,
            redaction: source.redaction_snapshots().await?,
            restored: [].into(),
        })
    }

    /// Returns a bookmark as the source of an increment to `target`. The head that has the bookmark
    /// is `head`.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot); those of reading the bookmark's redaction list.
    pub async fn bookmark(source: &Bookmark, head: &Dataset, target: &Dataset) -> Result<Self> {
        let phys = &source.phys;
        let list = source.redaction_list(target.pool().mos()).await?;
        // What a redacted stream of the target left out is an increment, too.
        let is_of_target = list.is_some() && phys.guid == target.phys().guid;
        if !is_of_target && !is_ancestor(head, phys.creation_txg, target).await? {
            return Err(SendError::NotEarlier.into());
        }
        let (redaction, restored) = match list {
            Some(RedactionList { guids, entries }) => (Some(guids), entries.into()),
            None => (None, [].into()),
        };
        Ok(Self {
            guid: phys.guid,
            txg: phys.creation_txg,
            ivset_guid: Some(phys.ivset_guid).filter(|guid| *guid != 0),
            is_clone: head.dir().object != target.dir().object,
            redaction,
            restored,
        })
    }
}

/// Whether `source` is an earlier snapshot of the dataset of `target`, or of the origins that it
/// was cloned from.
async fn is_earlier(source: &Dataset, target: &Dataset) -> Result<bool> {
    if !source.is_snapshot() {
        return Ok(false);
    }
    is_ancestor(&source.head().await?, source.phys().creation_txg, target).await
}

/// Whether the state of `head` at `txg` is an ancestor of `target`.
async fn is_ancestor(head: &Dataset, txg: u64, target: &Dataset) -> Result<bool> {
    let mut at = target.clone();
    loop {
        let is_before = !at.is_snapshot() || txg < at.phys().creation_txg;
        // An origin is itself an ancestor of its clones.
        let is_origin = at.object() != target.object() && txg == at.phys().creation_txg;
        if at.dir().object == head.dir().object {
            return Ok(is_before || is_origin);
        }
        match at.head().await?.origin().await? {
            Some(origin) => at = origin,
            None => return Ok(false),
        }
    }
}
