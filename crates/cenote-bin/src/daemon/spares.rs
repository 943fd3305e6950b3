//! Calls in hot spares for devices that fail, and lets new devices replace them in the same place
//! if the pool has the property `autoreplace`; logs both.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_engine::{Engine, SpareReport, call_in_spares, is_blank_at};

use super::log;

/// Interval at which new devices are looked for.
const INTERVAL: Duration = Duration::from_secs(2);
/// Longest time of a look at a device.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Looks, one after the other, in which a device must be blank: it may be in the making.
const LOOKS: u32 = 2;

/// The device at the path of a leaf that is out of service.
#[derive(Debug, Default)]
struct Seen {
    /// Device, inode, size and times of the path. A device that is plugged in later has others.
    identity: Option<[i64; 8]>,
    /// Looks in which it was blank.
    looks: u32,
    /// No more looks are taken at it.
    is_settled: bool,
}

/// Lets new devices replace those that are out of service, until the pool is closed.
pub(super) async fn replace(engine: Weak<Engine>) {
    let mut seen: BTreeMap<u64, Seen> = BTreeMap::new();
    loop {
        cenote_rt::sleep(INTERVAL).await;
        let Some(now) = engine.upgrade().filter(|engine| !engine.tree().is_closed()) else {
            return;
        };
        let (pool, wanted) = (now.name(), now.leaves().to_replace());
        // A device that hangs does not keep the pool.
        drop(now);
        seen.retain(|leaf, _| wanted.iter().any(|(wanted, _)| wanted == leaf));
        for (leaf, path) in wanted {
            let seen = seen.entry(leaf).or_default();
            if is_new_and_blank(&pool, leaf, &path, seen).await
                && let Some(engine) = engine.upgrade()
            {
                replace_one(&engine, leaf, &path, seen).await;
            }
        }
    }
}

/// Whether there is a blank device at a path, which is not in the making.
async fn is_new_and_blank(pool: &str, leaf: u64, path: &str, seen: &mut Seen) -> bool {
    let at = path.to_owned();
    let identity = cenote_rt::blocking(move || identity_of(&at).ok());
    let Some(identity) = cenote_rt::until(LOOK_MAX, identity).await else {
        seen.is_settled = true;
        return false;
    };
    let identity = identity.ok().flatten();
    if seen.identity != identity {
        *seen = Seen { identity, ..Seen::default() };
    }
    if seen.is_settled || identity.is_none() {
        return false;
    }
    let why = match cenote_rt::until(LOOK_MAX, is_blank_at(path)).await {
        Some(Ok(true)) => {
            seen.looks += 1;
            return seen.looks >= LOOKS;
        }
        Some(Ok(false)) => "it is not blank".to_owned(),
        Some(Err(error)) => error.to_string(),
        None => "it does not answer".to_owned(),
    };
    settle(pool, leaf, &why, seen);
    false
}

fn settle(pool: &str, leaf: u64, cause: &str, seen: &mut Seen) {
    seen.is_settled = true;
    log::warn!(pool = %pool, device = %leaf, cause = %cause, "not replaced by the device at its path");
}

fn identity_of(path: &str) -> std::io::Result<[i64; 8]> {
    let found = std::fs::metadata(path)?;
    let numbers = [found.dev(), found.ino(), found.rdev(), found.size()].map(u64::cast_signed);
    let [dev, ino, rdev, size] = numbers;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    let [mtime, mtime_nsec, ctime, ctime_nsec] = times;
    Ok([dev, ino, rdev, size, mtime, mtime_nsec, ctime, ctime_nsec])
}

async fn replace_one(engine: &Arc<Engine>, leaf: u64, path: &str, seen: &mut Seen) {
    let pool = engine.name();
    match engine.leaves().replace_by_blank(leaf, path).await {
        // Something else goes on in the pool.
        Ok(false) => {}
        Ok(true) => {
            log::warn!(pool = %pool, device = %leaf, "replaced by a new device");
            if let Err(error) = engine.scans().resume().await {
                note(&pool, SpareReport::NotFilled(error));
            }
        }
        Err(error) => settle(&pool, leaf, &error.to_string(), seen),
    }
}

/// Follows the events of a pool until it is closed.
pub(super) async fn follow(engine: Weak<Engine>) {
    call_in_spares(engine, note).await;
}

fn note(pool: &str, report: SpareReport) {
    match report {
        SpareReport::CalledIn { leaf, spare } => {
            log::warn!(pool = %pool, device = %leaf, spare = %spare, "spare called in");
        }
        SpareReport::NotFilled(error) => {
            log::warn!(pool = %pool, cause = %error, "resilver not started");
        }
        SpareReport::NotCalledIn { leaf, cause } => {
            log::warn!(pool = %pool, device = %leaf, cause = %cause, "no spare called in");
        }
    }
}
