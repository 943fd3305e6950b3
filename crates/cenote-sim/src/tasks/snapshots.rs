//! Snapshots of a file system that actors write meanwhile.

use cenote_rt::Kind;

use super::{Ended, FULL, Outcome, Running};
use crate::model::snapshots::HomeSnapshot;
use crate::plan::Op;

/// Snapshots of a file system at most.
const SNAPSHOTS_MAX: usize = 5;

/// Name of the dataset of a file system.
pub(crate) fn dataset(file_system: usize) -> String {
    format!("tank/f{file_system}")
}

pub(super) async fn perform(running: &Running, file_system: usize, op: Op) -> Ended {
    match op {
        Op::Snapshot { number, .. } => create(running, file_system, format!("s{number}")).await,
        Op::DestroySnapshot { snapshot, .. } => destroy(running, file_system, snapshot).await,
        _ => Ok(Outcome::Refused),
    }
}

async fn create(running: &Running, file_system: usize, name: String) -> Ended {
    {
        let mut model = running.history.model();
        let now = model.tick();
        let home = &mut model.file_systems[file_system];
        if home.snapshots.contains_key(&name) || home.snapshots.len() >= SNAPSHOTS_MAX {
            return Ok(Outcome::Refused);
        }
        let completed = home.actors.iter().map(|actor| actor.states.ended_before(now)).collect();
        home.snapshots.insert(name.clone(), HomeSnapshot::begun(completed));
    }
    let full = format!("{}@{name}", dataset(file_system));
    let done = running.engine.snapshots().create(vec![full]).await;
    let mut model = running.history.model();
    let home = &mut model.file_systems[file_system];
    match done {
        Ok(()) => {
            if let Some(snapshot) = home.snapshots.get_mut(&name) {
                snapshot.end(&home.actors);
                snapshot.is_uncertain = false;
            }
            drop(model);
            running.acknowledge();
            Ok(Outcome::Done)
        }
        Err(error) => {
            let ended = running.judge(&error, &FULL)?;
            if ended == Outcome::Refused {
                home.snapshots.remove(&name);
            }
            Ok(ended)
        }
    }
}

async fn destroy(running: &Running, file_system: usize, number: u32) -> Ended {
    let name = {
        let mut model = running.history.model();
        let home = &mut model.file_systems[file_system];
        let known: Vec<_> = home.snapshots.iter_mut().filter(|(_, one)| one.is_known()).collect();
        let count = known.len().max(1);
        let Some((name, snapshot)) = known.into_iter().nth(number as usize % count) else {
            return Ok(Outcome::Refused);
        };
        snapshot.is_uncertain = true;
        name.clone()
    };
    let full = format!("{}@{name}", dataset(file_system));
    let done = running.engine.snapshots().destroy(&full).await;
    let mut model = running.history.model();
    let home = &mut model.file_systems[file_system];
    match done {
        Ok(()) => {
            home.snapshots.remove(&name);
            drop(model);
            running.acknowledge();
            Ok(Outcome::Done)
        }
        Err(error) => {
            // A reader has it open.
            let ended = running.judge(&error, &[Kind::Busy, Kind::NoSpace, Kind::Quota])?;
            if ended == Outcome::Refused
                && let Some(snapshot) = home.snapshots.get_mut(&name)
            {
                snapshot.is_uncertain = false;
            }
            Ok(ended)
        }
    }
}
