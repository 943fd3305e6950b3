//! Events of the daemon's log: panics, and events of pools.
//!
//! Other modules write events with the macros that this module re-exports, as in
//! `log::warn!(pool = %name, cause = %error, "pool not opened")`. [`super::lines`] writes events as
//! lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_engine::{Event, EventLog, PoolEvent};
use cenote_pool::status::{VdevAux, VdevState, state_name};
pub(super) use cenote_rt::trace::{debug, error, info, warn};

/// Interval of reading the events of a pool.
const PAUSE: Duration = Duration::from_secs(1);
/// Minimum interval of an event that [`Rarely`] limits.
const RARELY: Duration = Duration::from_mins(1);
/// Maximum number of damage events that are logged one by one in an interval.
const DAMAGE_MAX: usize = 20;

/// Limits an event that any user can cause: it is logged once in a while, with the number of
/// occurrences that were not logged.
#[derive(Debug)]
pub(super) struct Rarely {
    /// Milliseconds of the monotonic clock from which the next occurrence is logged.
    next: AtomicU64,
    skipped: AtomicU64,
}

impl Rarely {
    pub(super) const fn new() -> Self {
        Self { next: AtomicU64::new(0), skipped: AtomicU64::new(0) }
    }

    /// Returns the number of occurrences since the last one that was logged, or `None` if this one
    /// is not to be logged.
    pub(super) fn pass(&self) -> Option<u64> {
        self.pass_at(cenote_rt::monotonic())
    }

    fn pass_at(&self, now: Duration) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Acquire);
        let after = millis(now.saturating_add(RARELY));
        let is_first = millis(now) >= next
            && self.next.compare_exchange(next, after, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if is_first {
            return Some(self.skipped.swap(0, Ordering::AcqRel));
        }
        self.skipped.fetch_add(1, Ordering::AcqRel);
        None
    }
}

/// Logs panics as events.
pub(super) fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let cause = panic.payload_as_str().unwrap_or("unknown");
        let place = panic.location().map_or_else(String::new, ToString::to_string);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        error!(cause = %cause, place = %place, thread = %thread, "panic");
    }));
}

/// Logs the events of a pool, until it is closed.
pub(super) async fn follow(events: Arc<EventLog>) {
    let mut last = 0;
    loop {
        // Before reading, so that later events wake this task.
        let told = events.told();
        let (mut damaged, mut has_left) = (0, false);
        for noted in events.after(last) {
            last = noted.eid;
            has_left |=
                matches!(noted.event, Event::Pool(PoolEvent::Exported | PoolEvent::Destroyed));
            let is_damage = |event: &Event| {
                matches!(event, Event::Bad { .. } | Event::Lost { .. } | Event::Slow { .. })
            };
            if is_damage(&noted.event) {
                damaged += 1;
                if damaged > DAMAGE_MAX {
                    continue;
                }
            }
            tell(&events.pool, &noted.event);
        }
        if let Some(more) = damaged.checked_sub(DAMAGE_MAX).filter(|more| *more > 0) {
            warn!(pool = %events.pool, count = %more, "more of the same");
        }
        if has_left {
            return;
        }
        told.await;
        cenote_rt::sleep(PAUSE).await;
    }
}

fn tell(pool: &str, event: &Event) {
    match event {
        Event::Pool(PoolEvent::Configured) => debug!(pool = %pool, "config written"),
        Event::History(note) => debug!(pool = %pool, name = %note.name, "history written"),
        Event::Pool(action) => {
            let event = match action {
                PoolEvent::ScrubStarted => "scrub started",
                PoolEvent::ScrubFinished => "scrub finished",
                PoolEvent::ScrubPaused => "scrub paused",
                PoolEvent::ScrubResumed => "scrub resumed",
                PoolEvent::ScrubAborted => "scrub cancelled",
                PoolEvent::ErrorScrubStarted => "error scrub started",
                PoolEvent::ErrorScrubFinished => "error scrub finished",
                PoolEvent::ErrorScrubPaused => "error scrub paused",
                PoolEvent::ErrorScrubResumed => "error scrub resumed",
                PoolEvent::ErrorScrubAborted => "error scrub cancelled",
                PoolEvent::ResilverStarted => "resilver started",
                PoolEvent::ResilverFinished => "resilver finished",
                PoolEvent::ResilverAborted => "resilver cancelled",
                PoolEvent::RebuildStarted => "sequential rebuild started",
                PoolEvent::RebuildFinished => "sequential rebuild finished",
                PoolEvent::RebuildAborted => "sequential rebuild cancelled",
                PoolEvent::Attached(_) => "device attached",
                PoolEvent::SpareUsed(_) => "spare called in",
                PoolEvent::Onlined(_) => "device brought online",
                PoolEvent::Detached(_) => "device detached",
                PoolEvent::VdevsAdded => "vdevs added",
                PoolEvent::LogRemoved(_) => "log device removed",
                PoolEvent::Removed(_) => "vdev removed",
                PoolEvent::Created => "pool created",
                PoolEvent::Imported => "pool imported",
                PoolEvent::Exported => "pool exported",
                PoolEvent::Destroyed => "pool destroyed",
                PoolEvent::Reguided => "pool has another guid",
                PoolEvent::Cleared | PoolEvent::Configured => "errors cleared",
            };
            info!(pool = %pool, "{event}");
        }
        Event::AuxRemoved { device, path, .. } => {
            let path = path.as_deref().unwrap_or("-");
            info!(pool = %pool, device = %device, path = %path, "spare or cache device removed");
        }
        Event::Suspended(cause) => error!(pool = %pool, cause = %cause, "pool suspended"),
        Event::State { leaf, state, .. } => {
            let name = state_name(*state, VdevAux::None);
            if *state == VdevState::Healthy {
                info!(pool = %pool, device = %leaf, state = %name, "device state");
            } else {
                warn!(pool = %pool, device = %leaf, state = %name, "device state");
            }
        }
        Event::Slow { io, took } => {
            let (device, offset, ms) = (io.leaf, io.offset, took.as_millis());
            warn!(pool = %pool, device = %device, offset = %offset, ms = %ms, "slow I/O");
        }
        Event::Hung { io, age } => {
            let (device, offset, ms) = (io.leaf, io.offset, age.as_millis());
            error!(pool = %pool, device = %device, offset = %offset, ms = %ms, "I/O hangs");
        }
        Event::Bad { io, cause, is_repaired, .. } => warn!(
            pool = %pool,
            device = %io.leaf,
            offset = %io.offset,
            cause = %cause,
            repaired = %is_repaired,
            "device error"
        ),
        Event::Lost { place, cause } => error!(
            pool = %pool,
            objset = %place.objset,
            object = %place.object,
            level = %place.level,
            blkid = %place.blkid,
            cause = %cause,
            "block lost"
        ),
        Event::Trim { leaf, event: action } => {
            let action = format!("{action:?}").to_lowercase();
            info!(pool = %pool, device = %leaf, action = %action, "trim");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_events_are_logged_once_in_a_while() {
        let rarely = Rarely::new();
        let at = |millis: u64| rarely.pass_at(Duration::from_millis(millis));
        assert_eq!(
            [at(5), at(6), at(60_000), at(60_005), at(60_006)],
            [Some(0), None, None, Some(2), None]
        );
        assert_eq!(at(500_000), Some(1));
    }
}
