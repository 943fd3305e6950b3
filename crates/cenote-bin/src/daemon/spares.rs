//! Calls in hot spares for devices that fail (spec 06 §9.3), as ZED's retire agent does.
//!
//! `cenote_spares_auto` 0 leaves that to the administrator, as OpenZFS does while no ZED runs.
//!
//! The pool is held only while its events are handled, so that it can be closed meanwhile.

use std::sync::{Arc, Weak};

use cenote_engine::{Engine, Event, PoolEvent};
use cenote_pool::status::VdevState;
use cenote_rt::tunables;

use super::log;

/// Follows the events of a pool until it is closed.
pub(super) async fn follow(engine: Weak<Engine>) {
    let Some(events) = engine.upgrade().map(|engine| Arc::clone(engine.health().events())) else {
        return;
    };
    let mut last = 0;
    // Devices may have failed while no daemon ran.
    call_in_for_all(&engine).await;
    loop {
        // Before reading, so that later events wake this task.
        let told = events.told();
        for noted in events.after(last) {
            last = noted.eid;
            match noted.event {
                Event::Pool(PoolEvent::Exported | PoolEvent::Destroyed) => return,
                Event::State { leaf, state, .. } if state != VdevState::Healthy => {
                    call_in(&engine, leaf).await;
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

async fn call_in_for_all(engine: &Weak<Engine>) {
    let leaves: Vec<_> = match engine.upgrade() {
        Some(engine) => engine.tree().leaves().map(|(_, leaf)| leaf.guid()).collect(),
        None => return,
    };
    for leaf in leaves {
        call_in(engine, leaf).await;
    }
}

async fn call_in(engine: &Weak<Engine>, leaf: u64) {
    if tunables::SPARES_AUTO.get() == 0 {
        return;
    }
    let Some(engine) = engine.upgrade() else { return };
    let pool = engine.name();
    match engine.leaves().call_in_spare(leaf).await {
        Ok(None) => {}
        Ok(Some(spare)) => {
            log::warn!(pool = %pool, device = %leaf, spare = %spare, "spare called in");
            if let Err(error) = engine.scans().resume().await {
                log::warn!(pool = %pool, cause = %error, "resilver not started");
            }
        }
        Err(error) => {
            log::warn!(pool = %pool, device = %leaf, cause = %error, "no spare called in");
        }
    }
}
