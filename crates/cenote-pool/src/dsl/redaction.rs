//! Redaction lists of bookmarks, for reading (spec 08 §29).

use std::sync::Arc;

use cenote_dmu::{Dnode, ObjSet, array};
use cenote_ondisk::redaction::{self, REDACTION_ENTRY_LEN, RedactionEntry, RedactionPhys};
use cenote_rt::{Error, Kind, Result};

use super::{Bookmark, DslError};
use crate::mos;

/// Most bytes of a list that is read whole.
const LIST_MAX: u64 = 64 << 20;

/// The list of a redaction bookmark: what a redacted stream leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactionList {
    /// Guids of the redaction snapshots.
    pub guids: Vec<u64>,
    /// Runs of blocks, in order: no block is in two of them.
    pub entries: Vec<RedactionEntry>,
}

/// Reads the header of the list in `object`, and returns it with the object.
///
/// # Errors
/// `Kind::Corrupt` if it is no redaction list.
pub async fn redaction_header(
    mos: &Arc<ObjSet>,
    object: u64,
) -> Result<(Arc<Dnode>, RedactionPhys)> {
    let dnode = mos.dnode(object).await?;
    // A header that is too long for the bonus buffer is in the spill block.
    let header = match dnode.spill().await? {
        Some(spill) => RedactionPhys::decode(&spill),
        None => RedactionPhys::decode(dnode.bonus()?),
    };
    Ok((dnode, header.map_err(mos::corrupt(object))?))
}

impl Bookmark {
    /// Returns the guids of the snapshots of its redaction list, `None` if it has no list.
    pub async fn redaction_snapshots(&self, mos: &Arc<ObjSet>) -> Result<Option<Vec<u64>>> {
        match self.phys.redaction_obj {
            0 => Ok(None),
            object => Ok(Some(redaction_header(mos, object).await?.1.guids)),
        }
    }

    /// Reads its redaction list, `None` if it has no list.
    ///
    /// # Errors
    /// `Kind::Invalid` if the list is not complete; `Kind::Limit` if it is longer than 64 MiB;
    /// `Kind::Corrupt` if its entries are not in order.
    pub async fn redaction_list(&self, mos: &Arc<ObjSet>) -> Result<Option<RedactionList>> {
        let object = self.phys.redaction_obj;
        if object == 0 {
            return Ok(None);
        }
        let (dnode, header) = redaction_header(mos, object).await?;
        if !header.is_complete() {
            let cause = DslError::IncompleteRedaction(self.name.clone());
            return Err(Error::new(Kind::Invalid, cause));
        }
        let len = header.num_entries.saturating_mul(REDACTION_ENTRY_LEN as u64);
        let bytes = array::read_bytes(&dnode, len, LIST_MAX).await?;
        let entries: Vec<_> = redaction::entries(&bytes).collect();
        let follow = |(before, after): (&RedactionEntry, &RedactionEntry)| {
            (before.object, before.end()) <= (after.object, Some(after.blkid))
        };
        let is_valid = |entry: &RedactionEntry| entry.end().is_some() && entry.block_size != 0;
        let is_ordered = entries.iter().zip(entries.iter().skip(1)).all(follow);
        if !is_ordered || !entries.iter().all(is_valid) {
            return Err(mos::corrupt(object)(DslError::RedactionOrder));
        }
        Ok(Some(RedactionList { guids: header.guids, entries }))
    }
}
