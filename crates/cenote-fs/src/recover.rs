//! What a crash left, done again when a pool is imported.

use std::sync::Arc;

use cenote_ondisk::objset::ObjSetType;
use cenote_pool::engine::Engine;
use cenote_pool::engine::zil::{Replayed, VolumeReplayer};
use cenote_rt::Result;

/// Replays the intent logs of all datasets of a pool that was just opened for writing. Gives what
/// came of each, by the dataset's number. Whoever opens a single dataset for writing does the same
/// for that one.
///
/// # Errors
/// Those of a sync; `Kind::Unsupported` if a log has operations that are not known here: it stays
/// as it is, and the dataset cannot be written.
pub async fn recover(engine: &Arc<Engine>) -> Result<Vec<(u64, Replayed)>> {
    engine.set_replayer(ObjSetType::Zvol, Arc::new(VolumeReplayer));
    engine.replay_logs().await
}
