//! Calls in hot spares for devices that fail (spec 06 §9.3), as ZED's retire agent does.
//!
//! `cenote_spares_auto` 0 leaves that to the administrator, as OpenZFS does while no ZED runs.
//!
//! The pool is held only while its events are handled, so that it can be closed meanwhile.

use std::sync::{Arc, Weak};

use cenote_rt::{Error, tunables};
use cenote_vdev::VdevState;

use crate::{Engine, Event, PoolEvent};

/// A hot spare that was called in, or not.
#[derive(Debug)]
pub enum SpareReport {
    /// A spare stands in for a leaf.
    CalledIn {
        /// Guid of the leaf.
        leaf: u64,
        /// Guid of the spare.
        spare: u64,
    },
    /// The spare is in its place, and its resilver was not started.
    NotFilled(Error),
    /// A leaf failed, and no spare could be called in.
    NotCalledIn {
        /// Guid of the leaf.
        leaf: u64,
        /// Why.
        cause: Error,
    },
}

/// Follows the events of a pool until it is closed, and calls in hot spares for the leaves that
/// fail. `report` gets the name of the pool and what was done.
pub async fn call_in_spares(
    engine: Weak<Engine>,
    report: impl Fn(&str, SpareReport) + Send + Sync,
) {
    let Some(events) = engine.upgrade().map(|engine| Arc::clone(engine.health().events())) else {
        return;
    };
    let mut last = 0;
    // Devices may have failed before.
    call_in_for_all(&engine, &report).await;
    loop {
        // Before reading, so that later events wake this task.
        let told = events.told();
        for noted in events.after(last) {
            last = noted.eid;
            match noted.event {
                Event::Pool(PoolEvent::Exported | PoolEvent::Destroyed) => return,
                Event::State { leaf, state, .. } if state != VdevState::Healthy => {
                    call_in(&engine, leaf, &report).await;
                }
                _ => {}
            }
        }
        if engine.strong_count() == 0 {
            return;
        }
        told.await;
    }
}

async fn call_in_for_all(
    engine: &Weak<Engine>,
    report: &(impl Fn(&str, SpareReport) + Send + Sync),
) {
    let leaves: Vec<_> = match engine.upgrade() {
        Some(engine) => engine.tree().leaves().map(|(_, leaf)| leaf.guid()).collect(),
        None => return,
    };
    for leaf in leaves {
        call_in(engine, leaf, report).await;
    }
}

async fn call_in(
    engine: &Weak<Engine>,
    leaf: u64,
    report: &(impl Fn(&str, SpareReport) + Send + Sync),
) {
    if tunables::SPARES_AUTO.get() == 0 {
        return;
    }
    let Some(engine) = engine.upgrade() else { return };
    let pool = engine.name();
    match engine.leaves().call_in_spare(leaf).await {
        Ok(None) => {}
        Ok(Some(spare)) => {
            report(&pool, SpareReport::CalledIn { leaf, spare });
            if let Err(error) = engine.scans().resume().await {
                report(&pool, SpareReport::NotFilled(error));
            }
        }
        Err(cause) => report(&pool, SpareReport::NotCalledIn { leaf, cause }),
    }
}
