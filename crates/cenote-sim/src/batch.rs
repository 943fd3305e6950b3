//! Runs many histories, and reports failures.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_rt::seeded::Bug;

use crate::plan::{Plan, draw, print};
use crate::tally::Tally;
use crate::{history, shrink};

/// Real time after which a history counts as one that never ends; most take less than a second.
const ENDLESS: Duration = Duration::from_mins(10);
/// Time between two looks for such a history.
const LOOK: Duration = Duration::from_secs(5);

/// How many histories are run.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// This number.
    Count(u64),
    /// As many as begin within this time.
    Time(Duration),
}

/// A history that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    plan: Plan,
    bug: Option<Bug>,
    what: String,
}

/// Runs the histories of the seeds from `base` on, on all processors, until one fails.
pub fn run(base: u64, extent: Extent) -> (Tally, Option<Failure>) {
    let begin = cenote_rt::monotonic();
    let next = AtomicU64::new(base);
    let found: Mutex<(Tally, Option<Failure>)> = Mutex::default();
    let locked = || found.lock().unwrap_or_else(PoisonError::into_inner);
    let watch = Watch::start();
    on_all_processors(|| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_over = match extent {
                Extent::Count(count) => seed - base >= count,
                Extent::Time(time) => cenote_rt::monotonic().saturating_sub(begin) >= time,
            };
            if is_over || locked().1.is_some() {
                return;
            }
            watch.begins(seed);
            let (tally, failure) = run_plan(draw::draw(seed), None);
            watch.ends(seed);
            let mut found = locked();
            found.0.add(&tally);
            let is_first = |one: &Failure| {
                found.1.as_ref().is_none_or(|other| one.plan.seed < other.plan.seed)
            };
            if let Some(failure) = failure.filter(is_first) {
                found.1 = Some(failure);
            }
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The histories that run, each with its begin.
#[derive(Default)]
struct Watch(Mutex<BTreeMap<u64, Duration>>);

impl Watch {
    /// Returns a watch that ends the process, as a failure, when a history never ends: a thread
    /// that stands still in a history cannot be told to stop.
    fn start() -> Arc<Self> {
        let watch = Arc::new(Self::default());
        let watched = Arc::downgrade(&watch);
        std::thread::spawn(move || {
            while let Some(watch) = watched.upgrade() {
                if let Some(seed) = watch.endless(cenote_rt::monotonic()) {
                    let seconds = ENDLESS.as_secs();
                    println!("FAILED: seed {seed} has not ended after {seconds} seconds");
                    println!("seed {seed}; to repeat: ./x sim {seed}");
                    std::process::exit(1);
                }
                drop(watch);
                std::thread::park_timeout(LOOK);
            }
        });
        watch
    }

    fn begins(&self, seed: u64) {
        self.running().insert(seed, cenote_rt::monotonic());
    }

    fn ends(&self, seed: u64) {
        self.running().remove(&seed);
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<u64, Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the seed of a history that has been running for too long at the time `now`.
    fn endless(&self, now: Duration) -> Option<u64> {
        let running = self.running();
        let mut over = running.iter().filter(|(_, begin)| now.saturating_sub(**begin) > ENDLESS);
        over.next().map(|(seed, _)| *seed)
    }
}

/// Runs `work` on as many threads as there are processors, until all have ended.
pub(crate) fn on_all_processors(work: impl Fn() + Sync) {
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(&work);
        }
    });
}

/// Runs the history of a seed, in an engine with a mistake or without.
pub fn run_seed(seed: u64, bug: Option<Bug>) -> (Tally, Option<Failure>) {
    run_plan(draw::draw(seed), bug)
}

/// Runs the history of a plan in a file.
///
/// # Errors
/// Why the file is no plan.
pub fn run_file(path: &Path) -> Result<(Tally, Option<Failure>), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    Ok(run_plan(Plan::from_json(&text)?, None))
}

fn run_plan(plan: Plan, bug: Option<Bug>) -> (Tally, Option<Failure>) {
    let report = history::run(&plan, bug);
    (report.tally, report.failure.map(|what| Failure { plan, bug, what }))
}

/// Returns the plan of a seed as text.
pub fn plan_text(seed: u64) -> String {
    print::text(&draw::draw(seed))
}

/// Returns the plan of a seed in the form of a file.
pub fn plan_json(seed: u64) -> String {
    draw::draw(seed).to_json()
}

impl Failure {
    /// Describes the failure.
    pub fn text(&self) -> String {
        let seed = self.plan.seed;
        format!("{}\nseed {seed}; to repeat: ./x sim {seed}", self.what)
    }

    /// Describes the failure and the smallest history that shows it, which is stored in a file.
    pub fn shrunk(&self) -> String {
        let (plan, again) = shrink::shrink(&self.plan, self.bug, &self.what);
        let path = std::env::temp_dir().join(format!("cenote-sim-{}.json", plan.seed));
        let stored = match std::fs::write(&path, plan.to_json()) {
            Ok(()) => format!("the shortened history is {}", path.display()),
            Err(error) => format!("{}: {error}", path.display()),
        };
        format!("{}\nshortened:\n{}{again}\n{stored}\n", self.text(), print::text(&plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history that runs for too long is found, and one that has ended is not.
    #[test]
    fn endless_history_is_found() {
        let watch = Watch::default();
        watch.begins(7);
        watch.begins(9);
        watch.ends(7);
        let now = cenote_rt::monotonic();
        assert_eq!(watch.endless(now + ENDLESS / 2), None);
        assert_eq!(watch.endless(now + ENDLESS + LOOK), Some(9));
    }
}
