//! Calls in hot spares for devices that fail, and lets new devices replace them in the same place
//! if the pool has the property `autoreplace`; logs both.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_engine::{Engine, SpareReport, call_in_spares, is_blank_at};
use cenote_rt::JoinHandle;

use super::log;

/// Interval at which new devices are looked for.
const INTERVAL: Duration = Duration::from_secs(2);
/// Longest time of a look at a device.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Looks, one after the other, in which a device must be blank: it may be in the making.
const LOOKS: u32 = 2;
/// Rounds without a look at a blank device that cannot be taken now.
const ROUNDS_OF_REST: u32 = 30;

/// Device, inode, size and times of a path. A device that is plugged in later has others.
type Identity = [i64; 8];

/// The device at the path of a leaf that is out of service.
#[derive(Debug, Default)]
struct Seen {
    identity: Option<Identity>,
    /// Looks in which it was blank.
    looks: u32,
    /// Rounds until the next look.
    rest: u32,
    /// No more looks are taken at it.
    is_settled: bool,
}

/// What a look found.
#[derive(Debug)]
enum Found {
    /// No device, or the one that was seen before and is settled.
    Nothing,
    /// Whether the device is blank.
    Device(Identity, Result<bool, String>),
}

/// Lets new devices replace those that are out of service, until the pool is closed.
pub(super) async fn replace(engine: Weak<Engine>) {
    let mut seen: BTreeMap<u64, Seen> = BTreeMap::new();
    // One look at a time: each that hangs has a thread.
    let mut hanging: Option<JoinHandle<Found>> = None;
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
            if hanging.as_ref().is_some_and(|look| !look.is_finished()) {
                break;
            }
            let seen = seen.entry(leaf).or_default();
            if seen.rest > 0 {
                seen.rest -= 1;
                continue;
            }
            let known = seen.identity.filter(|_| seen.is_settled);
            let mut look = cenote_rt::spawn_background(look(path.clone(), known));
            let Some(found) = cenote_rt::until(LOOK_MAX, &mut look).await else {
                log::warn!(pool = %pool, path = %path, "no answer to a look for a new device");
                hanging = Some(look);
                break;
            };
            if is_new_and_blank(&pool, leaf, found.unwrap_or(Found::Nothing), seen)
                && let Some(engine) = engine.upgrade()
            {
                replace_one(&engine, leaf, &path, seen).await;
            }
        }
    }
}

/// Looks at a path. `settled` is the device at which no more looks are taken.
async fn look(path: String, settled: Option<Identity>) -> Found {
    let Some(identity) = identity_of(&path).await else { return Found::Nothing };
    if settled == Some(identity) {
        return Found::Nothing;
    }
    Found::Device(identity, is_blank_at(&path).await.map_err(|error| error.to_string()))
}

async fn identity_of(path: &str) -> Option<Identity> {
    let path = path.to_owned();
    let found = cenote_rt::blocking(move || std::fs::metadata(path)).await.ok()?.ok()?;
    let numbers = [found.dev(), found.ino(), found.rdev(), found.size()].map(u64::cast_signed);
    let [dev, ino, rdev, size] = numbers;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    let [mtime, mtime_nsec, ctime, ctime_nsec] = times;
    Some([dev, ino, rdev, size, mtime, mtime_nsec, ctime, ctime_nsec])
}

/// Whether a blank device was found that is not in the making.
fn is_new_and_blank(pool: &str, leaf: u64, found: Found, seen: &mut Seen) -> bool {
    let Found::Device(identity, is_blank) = found else { return false };
    if seen.identity != Some(identity) {
        *seen = Seen { identity: Some(identity), ..Seen::default() };
    }
    let why = match is_blank {
        Ok(true) => {
            seen.looks += 1;
            return seen.looks >= LOOKS;
        }
        Ok(false) => "it is not blank".to_owned(),
        Err(error) => error,
    };
    settle(pool, leaf, &why, seen);
    false
}

fn settle(pool: &str, leaf: u64, cause: &str, seen: &mut Seen) {
    seen.is_settled = true;
    log::warn!(pool = %pool, device = %leaf, cause = %cause, "not replaced by the device at its path");
}

async fn replace_one(engine: &Arc<Engine>, leaf: u64, path: &str, seen: &mut Seen) {
    let pool = engine.name();
    match engine.leaves().replace_by_blank(leaf, path).await {
        // Something else goes on in the pool, or somebody else uses the device.
        Ok(false) => (seen.looks, seen.rest) = (0, ROUNDS_OF_REST),
        Ok(true) => {
            log::warn!(pool = %pool, device = %leaf, "replaced by a new device");
            if let Err(error) = engine.scans().resume().await {
                note(&pool, SpareReport::NotFilled(error));
            }
        }
        Err(error) => {
            settle(&pool, leaf, &error.to_string(), seen);
            // Its labels may have been written, and cleared again.
            seen.identity = identity_of(path).await;
        }
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
