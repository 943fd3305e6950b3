//! Records which datasets changed, by txg, for a host that mounts them.
//!
//! ```text
//!   operation in the sync of txg t ──note(t, names)──> log ──take(up to the txg of a view)──> host
//! ```
//!
//! A host that shows the pool (mounts, exports) compares its state with the properties after each
//! command. Reading every dataset would make thousands of commands cost quadratic time, so the log
//! names the datasets that were created, destroyed, renamed, rolled back or got other properties,
//! each with its descendants.
//!
//! Guarantees
//! * CHG-1  An operation is recorded before its txg is committed, so a view of txg t contains
//!   exactly the recorded changes up to t, and a name that the view does not have was destroyed or
//!   renamed.
//! * CHG-2  An operation that does not name its datasets counts as a change of every dataset, which
//!   costs time, but never a mount.

use std::collections::{BTreeMap, BTreeSet};

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{self, Bug};

use crate::Datasets;

/// Names that are kept for the host; with more, the host reads every dataset.
const NAMES_MAX: usize = 4096;

/// A set of datasets, given by the roots of subtrees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedDatasets {
    /// Every dataset of the pool.
    All,
    /// The named datasets and their descendants.
    Below(BTreeSet<String>),
}

impl Default for ChangedDatasets {
    fn default() -> Self {
        Self::Below(BTreeSet::new())
    }
}

impl ChangedDatasets {
    /// Returns the named datasets and their descendants.
    pub(super) fn below(names: &[&str]) -> Self {
        Self::Below(names.iter().map(|name| (*name).to_owned()).collect())
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Below(names) if names.is_empty())
    }

    /// Whether a dataset is in the set.
    pub fn contains(&self, dataset: &str) -> bool {
        let Self::Below(names) = self else { return true };
        let ends = dataset.match_indices('/').map(|(end, _)| end).chain([dataset.len()]);
        ends.into_iter().any(|end| dataset.get(..end).is_some_and(|name| names.contains(name)))
    }

    /// Adds a dataset and its descendants.
    pub fn insert(&mut self, dataset: &str) {
        if let Self::Below(names) = self {
            names.insert(dataset.to_owned());
        }
    }

    /// Adds another set.
    pub fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::Below(names), Self::Below(others)) => names.extend(others),
            (this, Self::All) => *this = Self::All,
            (Self::All, Self::Below(_)) => {}
        }
    }

    /// Returns the roots of the subtrees, none of which is below another. `None` stands for the
    /// whole pool.
    pub fn roots(&self) -> Option<Vec<&str>> {
        let Self::Below(names) = self else { return None };
        let is_below_another = |name: &str| {
            name.match_indices('/').any(|(end, _)| names.contains(name.get(..end).unwrap_or(name)))
        };
        Some(names.iter().map(String::as_str).filter(|name| !is_below_another(name)).collect())
    }

    fn len(&self) -> usize {
        match self {
            Self::All => 0,
            Self::Below(names) => names.len(),
        }
    }
}

/// Changes not yet taken by the host, by txg.
#[derive(Debug)]
pub(crate) struct ChangeLog(
    // Held for single reads and updates, never across an await. `None` until a host uses it.
    Mutex<Option<BTreeMap<u64, ChangedDatasets>>>,
);

impl Default for ChangeLog {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::ChangedDatasets))
    }
}

impl ChangeLog {
    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<u64, ChangedDatasets>>> {
        self.0.lock()
    }

    /// Records the changes of an operation in a txg that is not committed yet (CHG-1).
    pub(crate) fn note(&self, txg: u64, changed: &ChangedDatasets) {
        let mut log = self.lock();
        let Some(log) = log.as_mut().filter(|_| !changed.is_empty()) else { return };
        // Only a rename names two datasets.
        if changed.len() == 2 && seeded::is_on(Bug::RenameNotNoted) {
            return;
        }
        let kept: usize = log.values().map(ChangedDatasets::len).sum();
        let is_full = kept + changed.len() > NAMES_MAX;
        let is_all = is_full || seeded::is_on(Bug::EverythingNoted);
        let changed = if is_all { ChangedDatasets::All } else { changed.clone() };
        log.entry(txg).or_default().merge(changed);
    }

    fn take(&self, txg: u64) -> ChangedDatasets {
        let mut log = self.lock();
        let mut taken = ChangedDatasets::default();
        if let Some(log) = log.as_mut() {
            let later = log.split_off(&(txg + 1));
            for changed in std::mem::replace(log, later).into_values() {
                taken.merge(changed);
            }
        }
        taken
    }
}

impl Datasets<'_> {
    /// Records changed datasets from now on, for [`take_changes`](Self::take_changes).
    pub fn keep_changes(self) {
        self.engine.views.changes.lock().get_or_insert_default();
    }

    /// Takes the datasets that changed up to a txg, which is that of a view, and were not taken
    /// before.
    pub fn take_changes(self, txg: u64) -> ChangedDatasets {
        self.engine.views.changes.take(txg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_datasets_include_descendants() {
        let mut set = ChangedDatasets::below(&["t/a", "t/a/b", "t/c"]);
        for (name, wanted) in
            [("t/a", true), ("t/a/x/y", true), ("t/ab", false), ("t", false), ("t/c", true)]
        {
            assert_eq!(set.contains(name), wanted, "{name}");
        }
        assert_eq!(set.roots(), Some(vec!["t/a", "t/c"]));
        set.insert("t");
        assert_eq!(set.roots(), Some(vec!["t"]));
        set.merge(ChangedDatasets::All);
        set.insert("t/z");
        assert!(set.contains("anything") && set.roots().is_none() && !set.is_empty());
    }

    #[test]
    fn changes_up_to_the_txg_of_a_view_are_taken_once() {
        let log = ChangeLog::default();
        log.note(4, &ChangedDatasets::All);
        assert!(log.take(9).is_empty(), "nobody followed the pool then");
        *log.lock() = Some(BTreeMap::new());
        log.note(5, &ChangedDatasets::below(&["t/a"]));
        log.note(6, &ChangedDatasets::below(&["t/b"]));
        log.note(7, &ChangedDatasets::default());
        assert_eq!(log.take(5), ChangedDatasets::below(&["t/a"]));
        assert_eq!(log.take(9), ChangedDatasets::below(&["t/b"]));
        assert!(log.take(9).is_empty());
        for number in 0..=NAMES_MAX {
            log.note(10, &ChangedDatasets::below(&[&format!("t/{number}")]));
        }
        assert_eq!(log.take(10), ChangedDatasets::All);
    }
}
