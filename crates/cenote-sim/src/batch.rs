//! Runs many histories, and reports failures.

use std::path::Path;
use std::time::Duration;

use crate::plan::{Plan, draw, print};
use crate::tally::Tally;
use crate::{history, shrink};

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
    what: String,
}

/// Runs the histories of the seeds from `base` on, until one fails.
pub fn run(base: u64, extent: Extent) -> (Tally, Option<Failure>) {
    let begin = cenote_rt::monotonic();
    let mut tally = Tally::default();
    let mut seed = base;
    loop {
        let is_over = match extent {
            Extent::Count(count) => seed - base >= count,
            Extent::Time(time) => cenote_rt::monotonic().saturating_sub(begin) >= time,
        };
        if is_over {
            return (tally, None);
        }
        let (of_one, failure) = run_plan(draw::draw(seed));
        tally.add(&of_one);
        if failure.is_some() {
            return (tally, failure);
        }
        seed += 1;
    }
}

/// Runs the history of a seed.
pub fn run_seed(seed: u64) -> (Tally, Option<Failure>) {
    run_plan(draw::draw(seed))
}

/// Runs the history of a plan in a file.
///
/// # Errors
/// Why the file is no plan.
pub fn run_file(path: &Path) -> Result<(Tally, Option<Failure>), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    Ok(run_plan(Plan::from_json(&text)?))
}

fn run_plan(plan: Plan) -> (Tally, Option<Failure>) {
    let report = history::run(&plan);
    (report.tally, report.failure.map(|what| Failure { plan, what }))
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
        let (plan, again) = shrink::shrink(&self.plan, &self.what);
        let path = std::env::temp_dir().join(format!("cenote-sim-{}.json", plan.seed));
        let stored = match std::fs::write(&path, plan.to_json()) {
            Ok(()) => format!("the shortened history is {}", path.display()),
            Err(error) => format!("{}: {error}", path.display()),
        };
        format!("{}\nshortened:\n{}{again}\n{stored}\n", self.text(), print::text(&plan))
    }
}
