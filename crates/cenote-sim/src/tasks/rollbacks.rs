//! Rollbacks of mounted file systems.
//!
//! A file system that is rolled back has one task, so that no operation runs on the mount
//! meanwhile, as a rollback demands.

use std::sync::Arc;

use cenote_rt::Result;

use super::files::Held;
use super::{Ended, FULL, Outcome, Running, dataset};
use crate::look;
use crate::model::Rollback;
use crate::model::files::Found;

/// Rolls a file system back to its latest snapshot, and mounts it again.
pub(super) async fn perform(running: &Running, file_system: usize, held: &mut Held) -> Ended {
    {
        let mut model = running.history.model();
        let home = &mut model.file_systems[file_system];
        if home.snapshots.is_empty() {
            return Ok(Outcome::Refused);
        }
        home.rollback = Rollback::Begun;
    }
    held.clear();
    let mount = running.mount(file_system);
    mount.release_ownership();
    let name = dataset(file_system);
    let latest = match running.engine.datasets().rollback(&name, None).await {
        Ok(latest) => latest,
        Err(error) => {
            mount.take_ownership();
            let ended = running.judge(&error, &FULL)?;
            if ended == Outcome::Refused {
                running.history.model().file_systems[file_system].rollback = Rollback::None;
            }
            return Ok(ended);
        }
    };
    running.acknowledge();
    drop(mount);
    let found = match again(running, file_system).await {
        Ok(found) => found,
        Err(error) => return running.judge(&error, &[]),
    };
    let mut model = running.history.model();
    let home = &mut model.file_systems[file_system];
    let (_, snapshot) = latest.split_once('@').unwrap_or_default();
    home.rollback = Rollback::None;
    home.rolled_back(snapshot, &found).map_err(|what| format!("{latest}: {what}"))?;
    Ok(Outcome::Done)
}

/// Mounts the file system again, and reads its files.
async fn again(running: &Running, file_system: usize) -> Result<Found> {
    let before = running.mount(file_system);
    let mount = before.reopen().await?;
    mount.drain().await;
    let (_, found) = look::in_mount(&mount, 0).await?;
    *running.slot(file_system) = Arc::clone(&mount);
    Ok(found)
}
