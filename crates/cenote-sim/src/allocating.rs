//! Vdevs that get new blocks or not: an import finds what was set last.

use std::collections::{BTreeMap, BTreeSet};

use cenote_ondisk::config::VdevConfig;

use crate::model::Verdict;

/// A top-level vdev: its number, and the object of its properties. Its guid changes when a single
/// disk gets another side, and another vdev may get the number of one that was removed.
type Key = (u64, Option<u64>);

fn key(top: &VdevConfig) -> Key {
    (top.id, top.top.zap_top)
}

/// Values of `allocating` that may be found, for vdevs for which it was ever set. All others get
/// new blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allocating(BTreeMap<Key, BTreeSet<bool>>);

/// A setting that begins. Settings of a life follow each other.
#[derive(Debug)]
pub(crate) struct Setting {
    key: Key,
    before: BTreeSet<bool>,
    value: bool,
}

impl Allocating {
    /// A setting begins.
    pub(crate) fn begin(&mut self, top: &VdevConfig, value: bool) -> Setting {
        let values = self.0.entry(key(top)).or_insert_with(|| BTreeSet::from([true]));
        let before = values.clone();
        values.insert(value);
        Setting { key: key(top), before, value }
    }

    /// A setting has ended, and is durable or was refused.
    pub(crate) fn end(&mut self, setting: Setting, is_done: bool) {
        let values = if is_done { BTreeSet::from([setting.value]) } else { setting.before };
        self.0.insert(setting.key, values);
    }

    /// Compares the vdevs of a pool that was imported; their values are certain from now on.
    pub(crate) fn compare(&mut self, root: &VdevConfig) -> Verdict {
        let mut found = BTreeMap::new();
        for top in root.children.iter().filter(|top| top.kind.is_concrete() && !top.top.is_log) {
            let known = self.0.get(&key(top)).cloned().unwrap_or_else(|| BTreeSet::from([true]));
            let is_on = !top.top.non_allocating;
            if top.top.removing {
                // It gets its value back when the removal is cancelled.
                found.insert(key(top), known);
                continue;
            }
            if !known.contains(&is_on) {
                return Err(format!(
                    "vdev {}: allocating is {is_on}, expected one of {known:?}",
                    top.id
                ));
            }
            found.insert(key(top), BTreeSet::from([is_on]));
        }
        self.0 = found;
        Ok(())
    }
}
