//! What histories did: numbers of operations, faults, ends of lives and checks.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Numbers of what happened.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Histories.
    pub histories: u64,
    /// Lives of the process.
    pub lives: u64,
    /// Simulated time.
    pub time: Duration,
    /// Commands of disks.
    pub commands: u64,
    /// Hash of all commands of disks, their bytes and times; of several histories the sum.
    pub hash: u128,
    /// Operations by name: done, and refused or without an object.
    pub operations: BTreeMap<&'static str, (u64, u64)>,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Ends of lives by name.
    pub ends: BTreeMap<&'static str, u64>,
    /// Checks by name.
    pub checks: BTreeMap<&'static str, u64>,
    /// Histories by layout.
    pub layouts: BTreeMap<&'static str, u64>,
    /// Disks by model.
    pub disks: BTreeMap<String, u64>,
    /// What power cuts and resets did to writes that were not durable.
    pub cut_writes: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Counts an operation.
    pub fn operation(&mut self, name: &'static str, is_done: bool) {
        let (done, other) = self.operations.entry(name).or_default();
        *(if is_done { done } else { other }) += 1;
    }

    /// Counts a check.
    pub fn check(&mut self, name: &'static str) {
        *self.checks.entry(name).or_default() += 1;
    }

    /// Adds the numbers of another tally.
    pub fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.lives += other.lives;
        self.time += other.time;
        self.commands += other.commands;
        self.hash = self.hash.wrapping_add(other.hash);
        for (name, (done, left)) in &other.operations {
            let own = self.operations.entry(name).or_default();
            *own = (own.0 + done, own.1 + left);
        }
        let maps = [
            (&mut self.faults, &other.faults),
            (&mut self.ends, &other.ends),
            (&mut self.checks, &other.checks),
            (&mut self.layouts, &other.layouts),
            (&mut self.cut_writes, &other.cut_writes),
        ];
        for (model, count) in &other.disks {
            *self.disks.entry(model.clone()).or_default() += count;
        }
        for (own, other) in maps {
            for (name, count) in other {
                *own.entry(name).or_default() += count;
            }
        }
    }
}

fn list(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    counts: &BTreeMap<impl fmt::Display, u64>,
) -> fmt::Result {
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    writeln!(f, "{what}: {}", counts.join(", "))
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations: u64 = self.operations.values().map(|(done, _)| done).sum();
        writeln!(
            f,
            "{} histories, {} lives, {} operations, {} disk commands, {:.0} simulated seconds",
            self.histories,
            self.lives,
            operations,
            self.commands,
            self.time.as_secs_f64()
        )?;
        list(f, "layouts", &self.layouts)?;
        list(f, "disks", &self.disks)?;
        let done: Vec<_> =
            self.operations.iter().map(|(name, (done, _))| format!("{done} {name}")).collect();
        writeln!(f, "operations: {}", done.join(", "))?;
        let refused = self.operations.iter().filter(|(_, (_, other))| *other > 0);
        let refused: Vec<_> = refused.map(|(name, (_, other))| format!("{other} {name}")).collect();
        writeln!(f, "refused or without an object: {}", refused.join(", "))?;
        list(f, "faults", &self.faults)?;
        list(f, "ends of lives", &self.ends)?;
        list(f, "writes at power cuts and resets", &self.cut_writes)?;
        list(f, "checks", &self.checks)?;
        writeln!(f, "hash of the commands: {:032x}", self.hash)
    }
}
