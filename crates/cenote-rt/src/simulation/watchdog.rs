//! Ends the program when a poll of a simulated task does not end.
//!
//! Only the processor time of the simulation's thread counts, so that a machine under load or a
//! stopped program is no reason.

use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use crate::lock::{Mutex, Rank};
use crate::{Error, Kind, Result};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Exit status of the program, that of a panic.
const STATUS: i32 = 101;

type Place = Option<&'static Location<'static>>;

/// The present poll of a simulation.
#[derive(Debug)]
pub(super) struct Pulse {
    polls: AtomicU64,
    task: Mutex<(&'static str, Place)>,
    has_ended: AtomicBool,
}

impl Pulse {
    /// Notes that the poll of another task begins.
    pub(super) fn beat(&self, name: &'static str, place: Place) {
        *self.task.lock() = (name, place);
        self.polls.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the watch when dropped.
#[derive(Debug)]
pub(super) struct Watch(Arc<Pulse>, Thread);

impl Watch {
    pub(super) fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.0)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Begins to watch the simulation of this thread.
pub(super) fn watch(seed: u64, max: Duration) -> Result<Watch> {
    let pulse = Arc::new(Pulse {
        polls: AtomicU64::new(0),
        task: Mutex::new(Rank::SimulatedPulse, ("no task", None)),
        has_ended: AtomicBool::new(false),
    });
    let failed = |error: std::io::Error| Error::new(Kind::Io, error);
    let figures = figures_of_thread().map_err(failed)?;
    let watched = Arc::clone(&pulse);
    let watching = move || {
        // The thread may have run other simulations before.
        let (mut last, mut since) = (0, time(&figures));
        while !watched.has_ended.load(Ordering::Acquire) {
            let (polls, now) = (watched.polls.load(Ordering::Relaxed), time(&figures));
            if polls != last {
                (last, since) = (polls, now);
            } else if now.saturating_sub(since) > max {
                let (name, place) = *watched.task.lock();
                let place = place.map_or_else(String::new, |place| format!(" from {place}"));
                eprintln!("a poll does not end, in the simulation of seed {seed}: {name}{place}");
                std::process::exit(STATUS);
            }
            std::thread::park_timeout(LOOK);
        }
    };
    let thread = std::thread::Builder::new().name("watchdog".into()).spawn(watching);
    Ok(Watch(pulse, thread.map_err(failed)?.thread().clone()))
}

/// Returns the kernel's file with the processor time of this thread.
fn figures_of_thread() -> std::io::Result<PathBuf> {
    let thread = std::fs::read_link("/proc/thread-self")?;
    Ok(PathBuf::from("/proc").join(thread).join("schedstat"))
}

/// Returns the processor time of the thread with this file.
fn time(figures: &std::path::Path) -> Duration {
    let text = std::fs::read_to_string(figures).unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}
