//! Numbers that are unique within a process.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::simulation;

/// Counts from 1, for the whole process; in a simulation, for the simulated process.
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    last: AtomicU64,
}

impl Counter {
    /// Returns a counter. Its name is unique in the program.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, last: AtomicU64::new(0) }
    }

    /// Returns the next number.
    pub fn next(&self) -> u64 {
        let simulated = simulation::count(self.name);
        simulated.unwrap_or_else(|| self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
