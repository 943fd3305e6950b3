//! Whether what a state leads to is there, before a pool goes back to it.
//!
//! Space that was freed is used again some txgs later, so what an old uberblock leads to may have
//! been written over. A pool that goes back reads all metadata that can have been: that of the
//! last txgs, and all of it where nothing bounds how far back it goes. Contents of files may be
//! lost; who reads them is told (spec 01 §16.4).

use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Error, Result};

use super::Pool;
use super::choose::{Rewind, SAFE_TXGS};
use crate::traverse::{self, Damage, Flow, Options, Visitor};

/// Reads the metadata of a pool that `rewind` may have led to. The newest uberblock is of `newest`.
pub(super) async fn check(pool: &Arc<Pool>, rewind: Rewind, newest: u64) -> Result<()> {
    let min_txg = match rewind {
        Rewind::Never => return Ok(()),
        Rewind::Safe => newest.saturating_sub(SAFE_TXGS + 1),
        Rewind::Extreme => 0,
    };
    let mut reader = Reader { pool, lost: None };
    let options = Options { min_txg, ..Options::default() };
    traverse::pool(pool, options, &mut reader).await?;
    reader.lost.map_or(Ok(()), Err)
}

struct Reader<'a> {
    pool: &'a Arc<Pool>,
    /// The first that is not there.
    lost: Option<Error>,
}

impl Visitor for Reader<'_> {
    async fn block(&mut self, bp: &BlockPtr, _: &Bookmark) -> Result<Flow> {
        if self.lost.is_some() {
            return Ok(Flow::Stop);
        }
        let (level, object_type) = (bp.level(), bp.object_type());
        // What leads further down the walk reads itself; where a log ends only its reader knows.
        let is_read = level > 0
            || matches!(
                object_type,
                ObjectType::INTENT_LOG | ObjectType::DNODE | ObjectType::OBJSET
            );
        if !is_read && object_type.is_metadata() && !bp.is_embedded() {
            self.lost = self.pool.store().read_raw(bp, self.pool.grounds()).await.err();
        }
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        let is_log = |bp: &BlockPtr| bp.object_type() == ObjectType::INTENT_LOG;
        if !damage.bp.as_ref().is_some_and(is_log) {
            self.lost.get_or_insert(damage.error);
        }
    }
}
