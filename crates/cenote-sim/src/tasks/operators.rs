//! Operations on the pool and its devices.

use cenote_engine::{ScrubOptions, Stop, TrimOptions};
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_rt::{Kind, Result, tunables};

use super::{Ended, FULL, Outcome, Running, rest};
use crate::plan::Op;

/// Microseconds for which a disk is initialized.
const INITIALIZE_MICROS: u32 = 20_000;

pub(super) async fn perform(running: &Running, op: Op) -> Ended {
    let engine = &running.engine;
    match op {
        Op::Sync => match engine.sync().await {
            Ok(txg) => {
                running.history.model().acknowledge(txg);
                Ok(Outcome::Done)
            }
            Err(error) => running.judge(&error, &[]),
        },
        Op::DropCache => {
            engine.store().clear_cache();
            Ok(Outcome::Done)
        }
        Op::LimitCache { mib } => match tunables::BLOCK_CACHE_BYTES.set(u64::from(mib) << 20) {
            Ok(()) => {
                engine.retune();
                Ok(Outcome::Done)
            }
            Err(error) => Err(error.to_string()),
        },
        Op::Offline { disk } => match victim(running, disk) {
            None => Ok(Outcome::Refused),
            Some((_, leaf)) => {
                let done = engine.leaves().offline(leaf, disk % 2 == 0).await;
                settle(running, done, &[Kind::Busy])
            }
        },
        Op::Online { disk } => match victim(running, disk) {
            None => Ok(Outcome::Refused),
            Some((number, leaf)) => {
                let device = running.history.machine.devices().get(number).cloned();
                let done = engine.leaves().online(leaf, device).await;
                // The disk may be failing, or have lost its labels.
                settle(running, done, &[Kind::Io, Kind::Invalid, Kind::Busy])
            }
        },
        Op::Clear => settle(running, engine.leaves().clear(None).await, &[]),
        Op::Checkpoint => {
            let allowed = [FULL[0], FULL[1], Kind::Exists, Kind::Busy];
            settle(running, engine.space().take_checkpoint().await, &allowed)
        }
        Op::DiscardCheckpoint => {
            let allowed = [Kind::NotFound, Kind::Busy];
            settle(running, engine.space().discard_checkpoint().await, &allowed)
        }
        Op::Trim => {
            let leaves = engine.leaves().data_guids();
            let done = engine.leaves().start_trim(&leaves, TrimOptions::default()).await;
            settle(running, done, &[Kind::Busy, Kind::ReadOnly])
        }
        Op::Initialize { disk } => initialize(running, disk).await,
        Op::Scrub => {
            let done = engine.scans().scrub(ScrubOptions::default()).await;
            settle(running, done, &[Kind::Busy])
        }
        Op::Resilver => settle(running, engine.scans().resume().await, &[]),
        Op::PauseScrub => {
            settle(running, engine.scans().pause().await, &[Kind::Busy, Kind::NotFound])
        }
        Op::StopScan => settle(running, engine.scans().stop().await, &[Kind::NotFound]),
        _ => Ok(Outcome::Refused),
    }
}

fn settle(running: &Running, done: Result<()>, allowed: &[Kind]) -> Ended {
    match done {
        Ok(()) => {
            running.acknowledge();
            Ok(Outcome::Done)
        }
        Err(error) => running.judge(&error, allowed),
    }
}

/// Returns a disk that may leave service, with the guid of its leaf.
fn victim(running: &Running, number: u32) -> Option<(usize, u64)> {
    let victims = &running.history.plan.layout.victims;
    let disk = *victims.get(number as usize % victims.len().max(1))?;
    let leaf = running.engine.admin().vdev_config().leaves().nth(disk)?.guid;
    Some((disk, leaf))
}

/// Initializes a disk for a moment.
async fn initialize(running: &Running, disk: u32) -> Ended {
    let leaves = running.engine.leaves().data_guids();
    let Some(leaf) = leaves.get(disk as usize % leaves.len().max(1)).copied() else {
        return Ok(Outcome::Refused);
    };
    let allowed = [Kind::Busy, Kind::ReadOnly, Kind::NotFound];
    if let Err(error) = running.engine.leaves().start_initialize(&[leaf]).await {
        return running.judge(&error, &allowed);
    }
    rest(INITIALIZE_MICROS).await;
    let stopped =
        running.engine.leaves().stop_work(&[leaf], LeafWorkKind::Initialize, Stop::Suspend).await;
    settle(running, stopped, &allowed)
}
