//! Searches for seeded mistakes: histories are run in an engine with a mistake until one fails.
//!
//! ```text
//!   mistake, first seed ──search──> history, history, ... ──> failure, processor time until then
//!                          `── as many searches at a time as there are processors
//! ```
//!
//! Plans are drawn from seeds, as for an engine without mistakes. A history counts only if it
//! does not fail without the mistake. A mistake is found if each of its searches ends with a
//! failure within the limit. The searches of a mistake begin with seeds that are far apart, so
//! that they run other histories.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cenote_rt::seeded::Bug;

use crate::batch::on_all_processors;
use crate::history;
use crate::plan::draw;

/// Distance between the first seeds of the searches for a mistake.
const SEEDS: u64 = 1_000_000;
/// Longest description of a failure in a table.
const TEXT_MAX: usize = 100;

/// How mistakes are searched for.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// The first seed.
    pub base: u64,
    /// Number of searches for each mistake.
    pub searches: u64,
    /// Processor time of a search.
    pub limit: Duration,
}

impl Default for Extent {
    fn default() -> Self {
        Self { base: 1, searches: 5, limit: Duration::from_mins(10) }
    }
}

/// Result of a search.
#[derive(Debug, Clone)]
struct Search {
    histories: u64,
    /// Processor time of these histories.
    time: Duration,
    /// The seed of the history that failed, and how it failed.
    failure: Option<(u64, String)>,
}

/// Results of all searches for a mistake.
#[derive(Debug, Clone)]
pub struct Row {
    bug: Bug,
    searches: Vec<Search>,
}

/// Mistakes for which histories need more than seconds, or that they do not find. They are searched
/// for when they are named.
const RARE: [Bug; 18] = [
    // Space that was freed two txgs ago is only needed by an import that goes back to then.
    Bug::NoDeferral,
    Bug::NoFlushBeforeUberblock,
    Bug::NoFlushAfterLabels,
    Bug::OddLabelsFirst,
    Bug::UberblockFirst,
    Bug::OneCreatorPerTxg,
    Bug::NewerDataInLog,
    Bug::LateDtlNotRecorded,
    Bug::FailedAggregateForgotten,
    Bug::ReuseUnnoticed,
    Bug::StaleMapInstalled,
    Bug::GateDroppedEarly,
    Bug::OpenSnapshotDestroyed,
    Bug::DeferredDestroyForgotten,
    Bug::LastWaiterForgotten,
    Bug::LinkedFileForgotten,
    Bug::ExchangeLoggedAsRename,
    Bug::FoundCommitIncomplete,
];

/// Mistakes that change what a history does.
fn known() -> Vec<Bug> {
    let mut known = Bug::OF_POOLS.to_vec();
    known.extend(Bug::OF_LOGS);
    known.extend(Bug::OF_READERS);
    known.extend(Bug::OF_CLOSING);
    known.extend(Bug::OF_CREATORS);
    known.extend(Bug::OF_IMPORTS);
    known.extend(Bug::OF_SPARES);
    known.push(Bug::NewerDataInLog);
    known.extend(Bug::OF_HISTORIES);
    known
}

/// Mistakes that histories of whole pools find.
#[must_use]
pub fn all() -> Vec<Bug> {
    known().into_iter().filter(|bug| !RARE.contains(bug)).collect()
}

/// Returns the mistake with this name, also one that is rarely found.
#[must_use]
pub fn named(name: &str) -> Option<Bug> {
    known().into_iter().find(|bug| format!("{bug:?}") == name)
}

/// Searches for mistakes, on all processors. Calls `found` with the results for each mistake, in
/// the order of `bugs`. Returns whether all of them were found.
pub fn search(bugs: &[Bug], extent: Extent, mut found: impl FnMut(&Row) + Send) -> bool {
    let jobs: Vec<_> = (0..bugs.len())
        .flat_map(|bug| (0..extent.searches).map(move |number| (bug, number)))
        .collect();
    let next = AtomicUsize::new(0);
    let is_found = AtomicBool::new(true);
    let mut done = BTreeMap::new();
    let mut first = 0;
    let mut take = |bug: usize, number: u64, search: Search| {
        done.insert((bug, number), search);
        while first < bugs.len() {
            let searches = done.range((first, 0)..(first + 1, 0)).map(|(_, search)| search.clone());
            let row = Row { bug: bugs[first], searches: searches.collect() };
            if (row.searches.len() as u64) < extent.searches {
                return;
            }
            if !row.is_found() {
                is_found.store(false, Ordering::Relaxed);
            }
            found(&row);
            first += 1;
        }
    };
    let take = Mutex::new(&mut take);
    on_all_processors(|| {
        while let Some((bug, number)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = search_one(bugs[*bug], extent.base + number * SEEDS, extent.limit);
            let mut take = take.lock().unwrap_or_else(PoisonError::into_inner);
            take(*bug, *number, result);
        }
    });
    is_found.load(Ordering::Relaxed)
}

/// Runs histories from a seed on, until one fails or the limit is reached.
fn search_one(bug: Bug, base: u64, limit: Duration) -> Search {
    let mut search = Search { histories: 0, time: Duration::ZERO, failure: None };
    for seed in base.. {
        let (plan, begin) = (draw::draw(seed), processor_time());
        let report = history::run(&plan, Some(bug));
        search.histories += 1;
        search.time += processor_time().saturating_sub(begin);
        // A history that fails without the mistake, too, shows nothing about it.
        let is_of_bug = |_: &String| history::run(&plan, None).failure.is_none();
        search.failure = report.failure.filter(is_of_bug).map(|what| (seed, what));
        if search.failure.is_some() || search.time >= limit {
            break;
        }
    }
    search
}

/// Returns the processor time of this thread: the first number of its `schedstat`, in nanoseconds.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
    number.map_or_else(cenote_rt::monotonic, Duration::from_nanos)
}

impl Row {
    /// Whether all searches ended with a failure.
    #[must_use]
    pub fn is_found(&self) -> bool {
        self.searches.iter().all(|search| search.failure.is_some())
    }

    /// Median of the processor times.
    #[must_use]
    pub fn median(&self) -> Duration {
        let mut times: Vec<_> = self.searches.iter().map(|search| search.time).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    /// The failure that took the median time, or how many searches ended without one.
    fn failure(&self) -> String {
        let missed = self.searches.iter().filter(|search| search.failure.is_none()).count();
        if missed > 0 {
            return format!("NOT FOUND by {missed} of {}", self.searches.len());
        }
        let median = self.median();
        let failure = self.searches.iter().find(|search| search.time == median);
        let (seed, what) = failure.and_then(|search| search.failure.clone()).unwrap_or_default();
        let line: String = what.lines().next().unwrap_or_default().chars().take(TEXT_MAX).collect();
        format!("{line} (seed {seed})")
    }
}

impl fmt::Display for Row {
    /// Median of the processor seconds, each of them, numbers of histories, and the failure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |text: &dyn Fn(&Search) -> String| {
            self.searches.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        let seconds = each(&|search| format!("{:.1}", search.time.as_secs_f64()));
        let histories = each(&|search| search.histories.to_string());
        let (name, median) = (format!("{:?}", self.bug), self.median().as_secs_f64());
        write!(f, "| {name} | {median:.1} | {seconds} | {histories} | {} |", self.failure())
    }
}
