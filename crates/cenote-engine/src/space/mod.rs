//! Space: space maps, the checkpoint, and freeing of destroyed datasets.

pub(crate) mod checkpoint;
mod destroy;
pub(crate) mod metaslabs;

use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::lock::{Mutex, Rank};

use crate::Engine;
use crate::txg::store::Maps;
use checkpoint::Checkpoint;

/// The state behind [`SpaceManager`].
pub(crate) struct SpaceState {
    /// Metaslab arrays of top-level vdevs, for loading metaslabs.
    pub(crate) maps: Arc<Maps>,
    /// Roots of unreadable dead trees. Held for a copy or a push.
    stalled: Mutex<Vec<BlockPtr>>,
    pub(crate) checkpoint: Checkpoint,
}

impl SpaceState {
    pub(crate) fn new(maps: Arc<Maps>) -> Self {
        Self {
            maps,
            stalled: Mutex::with_default(Rank::StalledTrees),
            checkpoint: Checkpoint::default(),
        }
    }
}

/// The checkpoint, and the space of destroyed datasets; made by [`Engine::space`].
#[derive(Debug, Clone, Copy)]
pub struct SpaceManager<'e> {
    pub(crate) engine: &'e Engine,
}

impl SpaceManager<'_> {
    /// Returns the slop space (spec 04 §17.1).
    pub(crate) fn slop(self) -> u64 {
        cenote_pool::accounting::deflate::slop(
            self.engine.alloc.normal_space(),
            self.engine.alloc.embedded_log_space(),
        )
    }
}
