//! Bookmarks: the creation txg and guid of a snapshot, kept after its destruction as a source of
//! incremental sends (spec 04 §15).

use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::dsl::{BookmarkPhys, key};
use cenote_ondisk::redaction::RedactionPhys;
use cenote_rt::Result;

use crate::mos;

/// A bookmark of a file system or volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bookmark {
    /// Full name, `pool/fs#name`.
    pub name: String,
    /// The stored bookmark.
    pub phys: BookmarkPhys,
}

impl Bookmark {
    /// Returns the part after the `#`.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.rsplit_once('#').map_or(&self.name, |(_, short)| short)
    }

    /// Returns the guids of the snapshots of its redaction list, `None` if it has no list.
    pub async fn redaction_snapshots(&self, mos: &Arc<ObjSet>) -> Result<Option<Vec<u64>>> {
        let object = self.phys.redaction_obj;
        if object == 0 {
            return Ok(None);
        }
        // The header is in the spill block if it is too long for the bonus buffer.
        let dnode = mos.dnode(object).await?;
        let list = match dnode.spill().await? {
            Some(spill) => RedactionPhys::decode(&spill),
            None => RedactionPhys::decode(dnode.bonus()?),
        };
        Ok(Some(list.map_err(mos::corrupt(object))?.guids))
    }
}

/// Returns all bookmarks of the head in `object`, by creation txg and then name.
pub(crate) async fn all(mos: &Arc<ObjSet>, object: u64, dataset: &str) -> Result<Vec<Bookmark>> {
    let Some(zap) = mos::extra(mos, object, key::BOOKMARKS).await?.and_then(|value| value.first())
    else {
        return Ok(Vec::new());
    };
    let mut bookmarks = Vec::new();
    for (short, value) in mos::entries(mos, zap).await? {
        let phys = BookmarkPhys::decode(&value.words()).map_err(mos::corrupt(zap))?;
        bookmarks.push(Bookmark { name: format!("{dataset}#{short}"), phys });
    }
    bookmarks.sort_by(|a, b| (a.phys.creation_txg, &a.name).cmp(&(b.phys.creation_txg, &b.name)));
    Ok(bookmarks)
}
