//! Timing and the table.

use std::time::{Duration, Instant};

/// Runs per result. The fastest counts: slower runs were disturbed by other work.
const RUNS: usize = 25;

/// Shortest time that a run takes.
const RUN: Duration = Duration::from_millis(2);

/// Prints one line per measurement whose name contains the filter.
pub(crate) struct Report {
    filter: Option<String>,
}

impl Report {
    pub(crate) fn new(filter: Option<String>) -> Self {
        Self { filter }
    }

    /// Prints the heading of the lines that follow.
    #[expect(clippy::unused_self, reason = "belongs to the table like the lines do")]
    pub(crate) fn title(&self, name: &str, first: &str, second: &str) {
        println!("\n{name:<36}{first:>10}{second:>10}");
    }

    /// Prints one result.
    pub(crate) fn single(&self, name: &str, bytes: usize, work: impl FnMut()) {
        if self.wants(name) {
            println!("{name:<36}{:>10.2}", speed(bytes, work));
        }
    }

    /// Prints two results side by side.
    pub(crate) fn pair(&self, name: &str, bytes: usize, first: impl FnMut(), second: impl FnMut()) {
        if self.wants(name) {
            let (first, second) = (speed(bytes, first), speed(bytes, second));
            println!("{name:<36}{first:>10.2}{second:>10.2}");
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter))
    }
}

/// Best GB/s of `work`, which processes `bytes` each time.
fn speed(bytes: usize, mut work: impl FnMut()) -> f64 {
    work();
    let mut times = 1u32;
    while times < 1 << 24 && run(times, &mut work) < RUN {
        times *= 2;
    }
    let fastest = (0..RUNS).map(|_| run(times, &mut work)).min().unwrap_or(RUN);
    f64::from(times) * bytes as f64 / fastest.as_nanos() as f64
}

#[expect(clippy::disallowed_methods, reason = "measures this machine, not the engine")]
fn run(times: u32, work: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        work();
    }
    start.elapsed()
}
