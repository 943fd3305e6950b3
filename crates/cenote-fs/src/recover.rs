//! Recovery of file systems and volumes after a crash, when a pool is imported.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_engine::zil::{Replayed, VolumeReplayer};
use cenote_ondisk::objset::ObjSetType;
use cenote_rt::{Kind, Result};

use crate::format::FsOwners;

/// Replays the intent logs of all datasets of a pool that was just opened for writing. Returns the
/// results, by dataset number. Opening a single dataset for writing replays its log as well.
///
/// # Errors
/// Errors of a sync; `Kind::Unsupported` if a log has unknown records: it is kept, and the dataset
/// cannot be written.
pub async fn recover(engine: &Arc<Engine>) -> Result<Vec<(u64, Replayed)>> {
    engine.intent_logs().set_replayer(ObjSetType::Zvol, Arc::new(VolumeReplayer));
    let mut done = engine.intent_logs().replay_all().await?;
    for head in engine
        .intent_logs()
        .unreplayed()
        .into_iter()
        .filter(|head| head.live().kind() == ObjSetType::Zfs)
    {
        match crate::replay(engine, &head).await {
            Ok(replayed) => done.extend(replayed.map(|replayed| (head.object(), replayed))),
            // The log of a dataset that cenote cannot write is kept for other software.
            Err(error) if error.kind() == Kind::ReadOnly => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Prepares a pool that was opened for changes and stays open: space is accounted to the owners of
/// objects as the pool's features allow, and intent logs are replayed before any new change. A pool
/// that was opened for reading is left alone.
///
/// # Errors
/// Errors of reading the pool, and of [`recover`].
pub async fn prepare(engine: &Arc<Engine>) -> Result<()> {
    if engine.is_read_only() {
        return Ok(());
    }
    let counts_objects = engine.admin().has_feature("userobj_accounting").await?;
    let counts_projects = engine.admin().has_feature("project_quota").await?;
    engine.datasets().set_owner_probe(Arc::new(FsOwners { counts_objects, counts_projects }));
    recover(engine).await.map(drop)
}
