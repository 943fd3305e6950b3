//! Continues a pool that is suspended because a file system of the host below its devices was full.
//!
//! A pool on sparse files needs space of the host. A device whose host is full is in order, so when
//! the host has space again, the daemon does what `zpool clear` does. A pool that is suspended for
//! another reason waits for the command.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_engine::{Engine, Event, PoolEvent, Suspended};
use rustix::fs::statvfs;

use super::log;

/// The system's text for a full file system, in the cause of a device's error.
const FULL: &str = "No space left on device";
/// Space that each file system must have again.
const FREE_MIN: u64 = 16 << 20;
/// Interval at which it is looked up.
const INTERVAL: Duration = Duration::from_secs(2);

/// Watches a pool until it is closed.
pub(super) async fn follow(engine: Weak<Engine>) {
    // Whether a device has failed because its host is full, since errors were cleared last.
    let (mut last, mut was_full) = (0, false);
    loop {
        cenote_rt::sleep(INTERVAL).await;
        let Some(engine) = engine.upgrade() else { return };
        if engine.tree().is_closed() {
            return;
        }
        for noted in engine.health().events().after(last) {
            last = noted.eid;
            match &noted.event {
                Event::Bad { cause, .. } if cause.contains(FULL) => was_full = true,
                Event::Pool(PoolEvent::Cleared) => was_full = false,
                _ => {}
            }
        }
        let is_suspended = matches!(engine.health().suspended(), Some(Suspended::Io(_)));
        if !is_suspended || !was_full || !has_space(&engine).await {
            continue;
        }
        match engine.leaves().clear(None).await {
            Ok(()) => log::info!(pool = %engine.name(), "pool continued, the host has space"),
            Err(error) => {
                log::debug!(pool = %engine.name(), cause = %error, "pool not continued");
            }
        }
    }
}

/// Whether every file system with a device of the pool has space.
async fn has_space(engine: &Arc<Engine>) -> bool {
    let tree = Arc::clone(engine.tree());
    let paths: Vec<_> = tree.leaves().map(|(_, leaf)| PathBuf::from(leaf.path())).collect();
    // A path may lead to a device that does not answer.
    let looked = cenote_rt::blocking(move || {
        paths
            .iter()
            .filter_map(|path| statvfs(path).ok())
            .all(|found| found.f_bavail.saturating_mul(found.f_frsize) >= FREE_MIN)
    });
    looked.await.unwrap_or(false)
}
