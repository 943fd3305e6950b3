//! The logs of blocks that could not be read (spec 04 §22, spec 08 §36).
//!
//! Two logs: errors since and of the last finished scan, and errors of the running one. With
//! `head_errlog` an entry names the head dataset and the txg the block was born in, so that the
//! snapshots and clones that share the block can be told; without, just the object set.

use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dsl::key;
use cenote_ondisk::errlog::{ERRLOG_LAST, ERRLOG_SCRUB, HeadEntry, parse_plain};
use cenote_rt::Result;

use crate::mos;

/// One damaged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedBlock {
    /// Its place; the object set is a dataset object, 0 the MOS.
    pub place: Bookmark,
    /// Physical birth; none if it is not known.
    pub birth: Option<u64>,
}

/// Entries of one log.
async fn read(mos: &Arc<ObjSet>, object: u64, by_head: bool) -> Result<Vec<DamagedBlock>> {
    let mut blocks = Vec::new();
    for (key, value) in mos::entries(mos, object).await? {
        if !by_head {
            blocks.extend(
                parse_plain(key.as_bytes()).map(|place| DamagedBlock { place, birth: None }),
            );
            continue;
        }
        let (Some(head), Some(sub)) = (key::to_number(key.as_bytes()), value.first()) else {
            continue;
        };
        for (key, _) in mos::entries(mos, sub).await? {
            let Some(entry) = HeadEntry::parse(key.as_bytes()) else { continue };
            let HeadEntry { object, level, blkid, birth } = entry;
            let place = Bookmark { objset: head, object, level, blkid };
            blocks.push(DamagedBlock { place, birth: (birth != 0).then_some(birth) });
        }
    }
    Ok(blocks)
}

/// All entries of both logs, sorted, each once.
pub(crate) async fn all(mos: &Arc<ObjSet>, by_head: bool) -> Result<Vec<DamagedBlock>> {
    let mut blocks = Vec::new();
    for log in [ERRLOG_LAST, ERRLOG_SCRUB] {
        if let Some(object @ 1..) = mos::u64(mos, mos::DIRECTORY, log).await? {
            blocks.extend(read(mos, object, by_head).await?);
        }
    }
    blocks.sort_unstable();
    blocks.dedup();
    Ok(blocks)
}
