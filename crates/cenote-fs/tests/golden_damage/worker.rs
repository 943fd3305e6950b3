//! Runs cases in a child process, with limits of memory and time.
//!
//! The test program starts itself again for one pool. The child prints on standard output which
//! case it starts and how it ended. If a child dies, its current case has failed, and another child
//! continues after it.

use std::fmt;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_rt::tunables;
use cenote_testkit::golden;
use cenote_testkit::{Golden, Limited};

use crate::case::{Outcome, Subject};

/// Address space of a child.
const MEMORY_BYTES: u64 = 1 << 30;
/// Seconds that one case may take.
const CASE_SECONDS: u64 = 20;
/// Seconds for reading a pool undamaged, in the slowest build.
const REFERENCE_SECONDS: u64 = 300;
/// Children that may die on one pool before it is abandoned.
const DEATHS_MAX: usize = 12;
/// The variable with the child's orders.
const ORDER: &str = "CENOTE_DAMAGE_ORDER";
/// Prefixes of the worst failures.
const FATAL: [&str; 3] = ["panicked", "died", "too slow"];

/// Cases to run.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) cases: Range<u64>,
    pub(crate) is_verified: bool,
}

/// Results of cases.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) right: u64,
    pub(crate) lost: u64,
    pub(crate) older: u64,
    pub(crate) closed: u64,
    pub(crate) unlabelled: u64,
    pub(crate) failures: Vec<String>,
}

/// Whether a failure is a panic, a death or a hang.
pub(crate) fn is_fatal(failure: &str) -> bool {
    let text = failure.split_once(": ").map_or(failure, |(_, text)| text);
    FATAL.iter().any(|word| text.starts_with(word))
}

impl Run {
    /// Runs the cases on one pool.
    pub(crate) fn of(&self, golden: &Golden) -> Report {
        // Before the children do it at the same time.
        let _ = golden.devices();
        let mut report = Report::default();
        let mut next = self.cases.start;
        let mut deaths = 0;
        while next < self.cases.end && deaths < DEATHS_MAX {
            let last = self.child(golden, next, &mut report);
            deaths += usize::from(last.is_some());
            next = last.map_or(self.cases.end, |case| case + 1);
        }
        report
    }

    /// Runs a child from case `from` on. Returns the case during which it died.
    fn child(&self, golden: &Golden, from: u64, report: &mut Report) -> Option<u64> {
        let Self { seed, cases, is_verified } = self;
        let order = format!("{} {seed} {from} {} {is_verified}", golden.name(), cases.end);
        let this = std::env::current_exe().expect("the test program");
        let seconds = REFERENCE_SECONDS + CASE_SECONDS * (cases.end - from);
        let ended = Limited::new(this, MEMORY_BYTES, seconds)
            .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
            .env(ORDER, order)
            // Each arena reserves address space, which counts towards the limit.
            .env("MALLOC_ARENA_MAX", "2")
            .env("RUST_BACKTRACE", "0")
            .run();
        let output = String::from_utf8_lossy(&ended.stdout).into_owned();
        let (mut at, mut has_begun) = (from, false);
        let mut is_done = false;
        for line in output.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "BEGIN" => (at, has_begun) = (rest.parse().expect("a case"), true),
                "FAIL" => report.failures.push(format!("{}:{at}: {rest}", golden.name())),
                "END" => report.count(rest),
                "DONE" => is_done = true,
                _ => {}
            }
        }
        if is_done {
            return None;
        }
        let tail: Vec<&str> = ended.stderr.lines().rev().take(12).collect();
        let tail = tail.into_iter().rev().collect::<Vec<_>>().join(" | ");
        let code = ended.code;
        report.failures.push(format!("{}:{at}: died ({code:?}): {tail}", golden.name()));
        // A failure on the undamaged pool would repeat.
        Some(if has_begun { at } else { cases.end })
    }
}

impl Report {
    fn count(&mut self, outcome: &str) {
        match outcome {
            "Right" => self.right += 1,
            "Lost" => self.lost += 1,
            "Older" => self.older += 1,
            "Closed" => self.closed += 1,
            "Unlabelled" => self.unlabelled += 1,
            _ => {}
        }
    }

    pub(crate) fn cases(&self) -> u64 {
        let failed: std::collections::BTreeSet<_> =
            self.failures.iter().map(|text| text.split(": ").next()).collect();
        let opened = self.right + self.lost + self.older;
        opened + self.closed + self.unlabelled + failed.len() as u64
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.right += other.right;
        self.lost += other.lost;
        self.older += other.older;
        self.closed += other.closed;
        self.unlabelled += other.unlabelled;
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { right, lost, older, closed, unlabelled, failures } = self;
        write!(f, "{} cases: {right} read in full, {lost} with losses, ", self.cases())?;
        write!(
            f,
            "{older} at an older txg, {closed} not opened, {unlabelled} without labels, {} failures",
            failures.len()
        )?;
        for failure in failures.iter().take(40) {
            write!(f, "\n  CENOTE_CASE={failure}")?;
        }
        Ok(())
    }
}

/// The main function of a child.
pub(crate) fn main() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let words: Vec<&str> = order.split(' ').collect();
    let &[name, seed, from, to, is_verified] = &words[..] else { panic!("order {order:?}") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (seed, cases) = (number(seed), number(from)..number(to));
    let golden = golden::find(name).expect("the pool");
    let subject = cenote_rt::block_on(2, Subject::new(&golden)).expect("runtime");
    let (blocks, placed) = subject.size();
    println!("{name}: {blocks} data blocks, {placed} places");
    if is_verified != "true" {
        tunables::VERIFY_CHECKSUMS.set(0).expect("a switch");
    }
    let panics = record_panics();
    let deadline = watch();
    for case in cases {
        println!("BEGIN {case}");
        deadline.store(now_ms() + CASE_SECONDS * 1000, Ordering::Relaxed);
        let future = AssertUnwindSafe(|| cenote_rt::block_on(2, subject.run(seed, case)));
        let result = std::panic::catch_unwind(future);
        deadline.store(u64::MAX, Ordering::Relaxed);
        let told =
            panics.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect::<Vec<_>>();
        let failures = match result {
            Ok(Ok(Ok(outcome))) if told.is_empty() => {
                println!("END {}", name_of(outcome));
                continue;
            }
            Ok(Ok(Err(failures))) => failures,
            Ok(Ok(Ok(_))) | Err(_) => Vec::new(),
            Ok(Err(error)) => vec![format!("no runtime: {error}")],
        };
        let damage = subject.damage(seed, case);
        let damage: Vec<_> =
            damage.iter().map(|(device, damage)| format!("d{device}: {damage}")).collect();
        for text in told.into_iter().map(|text| format!("panicked: {text}")).chain(failures) {
            println!("FAIL {} [{}]", text.replace('\n', " "), damage.join(", "));
        }
    }
    println!("DONE");
}

fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Right => "Right",
        Outcome::Lost => "Lost",
        Outcome::Older => "Older",
        Outcome::Closed => "Closed",
        Outcome::Unlabelled => "Unlabelled",
    }
}

/// Collects the panics of all threads; those of tasks are not reported elsewhere.
fn record_panics() -> Arc<Mutex<Vec<String>>> {
    let panics = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&panics);
    std::panic::set_hook(Box::new(move |info| {
        told.lock().unwrap_or_else(PoisonError::into_inner).push(info.to_string());
    }));
    panics
}

fn now_ms() -> u64 {
    cenote_rt::monotonic().as_millis() as u64
}

/// Ends the process after the deadline.
#[expect(clippy::disallowed_methods, reason = "must not depend on the runtime that it watches")]
fn watch() -> Arc<AtomicU64> {
    let deadline = Arc::new(AtomicU64::new(u64::MAX));
    let watched = Arc::clone(&deadline);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            if now_ms() > watched.load(Ordering::Relaxed) {
                println!("FAIL too slow: more than {CASE_SECONDS} s");
                std::process::exit(3);
            }
        }
    });
    deadline
}
