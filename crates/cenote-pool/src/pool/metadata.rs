//! Checks the metadata of a state before the pool is rewound to it.
//!
//! Freed space is reused some txgs later, so blocks of an old uberblock may be overwritten. A
//! rewind reads all metadata that can be affected: that of the last txgs, or all of it for an
//! extreme rewind. Contents of files may be lost, which reading them reports (spec 01 §16.4).

use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Error, Result};

use super::Pool;
use super::choose::{Rewind, SAFE_TXGS};
use crate::traverse::{self, Damage, Flow, Options, Visitor};

/// Reads the metadata of a pool opened with `rewind`; `newest` is the txg of the newest uberblock.
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
    /// The first unreadable block.
    lost: Option<Error>,
}

impl Visitor for Reader<'_> {
    async fn block(&mut self, bp: &BlockPtr, _: &Bookmark) -> Result<Flow> {
        if self.lost.is_some() {
            return Ok(Flow::Stop);
        }
        let (level, object_type) = (bp.level(), bp.object_type());
        // The walk itself reads higher levels. The end of an intent log looks like an unreadable
        // block.
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
