//! The state of a pool on this host that is not stored in the pool but shown in its properties.
//!
//! The process that imports a pool records its `altroot`, its `cachefile`, the mounted file systems
//! with their mount options, and whether it is suspended. Views of the pool show these as the
//! properties `altroot`, `cachefile` and `mounted`, and as values with source `temporary`.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};

use crate::status::Reason;

/// Returns why a pool that is open for writing is suspended.
pub trait SuspensionProbe: std::fmt::Debug + Send + Sync {
    /// Returns the reason as the pool's status shows it, or `None` while the pool is running.
    fn reason(&self) -> Option<Reason>;
}

/// State of a pool on this host.
#[derive(Debug)]
pub struct Presence(
    // Held for single reads and updates.
    Mutex<State>,
);

#[derive(Debug, Default)]
struct State {
    is_writable: bool,
    is_past: bool,
    has_current_formats: bool,
    altroot: Option<String>,
    cache_file: Option<String>,
    /// Set if the pool is open for writing.
    suspension: Option<Arc<dyn SuspensionProbe>>,
    /// Mount options, by dataset object.
    mounts: BTreeMap<u64, Vec<(&'static str, u64)>>,
    /// Finished bytes of running work, by leaf.
    leaf_work: BTreeMap<(u64, LeafWorkKind), u64>,
}

impl Default for Presence {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::Presence))
    }
}

impl Presence {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Marks the pool as open for writing.
    pub fn set_writable(&self) {
        self.lock().is_writable = true;
    }

    /// Records that the pool was opened at a given txg: it may have been written since.
    pub fn set_past(&self) {
        self.lock().is_past = true;
    }

    /// Whether the pool was opened at a given txg.
    #[must_use]
    pub fn is_past(&self) -> bool {
        self.lock().is_past
    }

    /// Records that no encrypted dataset has a format that errata are about.
    pub(crate) fn set_current_formats(&self) {
        self.lock().has_current_formats = true;
    }

    /// Whether a search has found no encrypted dataset with a format that errata are about.
    pub(crate) fn has_current_formats(&self) -> bool {
        self.lock().has_current_formats
    }

    /// Whether the pool is open for writing.
    pub fn is_writable(&self) -> bool {
        self.lock().is_writable
    }

    /// Sets the probe for suspension.
    pub fn set_suspension_probe(&self, probe: Arc<dyn SuspensionProbe>) {
        self.lock().suspension = Some(probe);
    }

    /// Returns why the pool is suspended, or `None` if it is not.
    pub fn suspended(&self) -> Option<Reason> {
        let probe = self.lock().suspension.clone()?;
        probe.reason()
    }

    /// Sets the property `altroot`.
    pub fn set_altroot(&self, folder: Option<&str>) {
        self.lock().altroot = folder.map(str::to_owned);
    }

    /// Returns the property `altroot`.
    pub fn altroot(&self) -> Option<String> {
        self.lock().altroot.clone()
    }

    /// Sets the property `cachefile`; `None` is the default file.
    pub fn set_cache_file(&self, file: Option<&str>) {
        self.lock().cache_file = file.map(str::to_owned);
    }

    /// Returns the property `cachefile`; `None` is the default file.
    pub fn cache_file(&self) -> Option<String> {
        self.lock().cache_file.clone()
    }

    /// Records the finished bytes of all running work on leaves.
    pub fn set_leaf_work(&self, running: BTreeMap<(u64, LeafWorkKind), u64>) {
        self.lock().leaf_work = running;
    }

    /// Returns the finished bytes of running work on the leaf with this guid, which are stored from
    /// time to time only.
    pub(crate) fn leaf_work(&self, leaf: u64, kind: LeafWorkKind) -> Option<u64> {
        self.lock().leaf_work.get(&(leaf, kind)).copied()
    }

    /// Records that a dataset is mounted, with the property values of its mount options.
    pub fn mounted(&self, dataset: u64, options: Vec<(&'static str, u64)>) {
        self.lock().mounts.insert(dataset, options);
    }

    /// Records that a dataset is not mounted.
    pub fn unmounted(&self, dataset: u64) {
        self.lock().mounts.remove(&dataset);
    }

    /// Whether a dataset is mounted.
    pub fn is_mounted(&self, dataset: u64) -> bool {
        self.lock().mounts.contains_key(&dataset)
    }

    /// Returns the value that a mount option gives a property of a dataset.
    pub fn option(&self, dataset: u64, property: &str) -> Option<u64> {
        let state = self.lock();
        let mut options = state.mounts.get(&dataset)?.iter();
        options.find(|(name, _)| *name == property).map(|(_, value)| *value)
    }

    /// Drops the mount options that override the given (dataset object, property) pairs, after the
    /// properties were set.
    pub fn drop_temporary(&self, set: &[(u64, &str)]) {
        let mut state = self.lock();
        for (dataset, property) in set {
            if let Some(options) = state.mounts.get_mut(dataset) {
                options.retain(|(name, _)| name != property);
            }
        }
    }

    /// Returns a path with the `altroot` before it.
    pub(crate) fn below_altroot(&self, path: String) -> String {
        match (self.altroot(), path.as_str()) {
            (None, _) => path,
            (Some(root), "/") => root,
            (Some(root), _) => format!("{}{path}", root.trim_end_matches('/')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn altroot_and_temporary_properties_are_recorded() {
        let presence = Presence::default();
        assert_eq!(presence.below_altroot("/t".into()), "/t");
        presence.set_altroot(Some("/mnt/"));
        assert_eq!(presence.below_altroot("/t".into()), "/mnt/t");
        assert_eq!(presence.below_altroot("/".into()), "/mnt/");
        presence.mounted(7, vec![("readonly", 1)]);
        assert!(presence.is_mounted(7) && !presence.is_mounted(8));
        assert_eq!(presence.option(7, "readonly"), Some(1));
        assert_eq!(presence.option(7, "atime"), None);
        presence.drop_temporary(&[(7, "atime"), (8, "readonly")]);
        assert_eq!(presence.option(7, "readonly"), Some(1));
        presence.drop_temporary(&[(7, "readonly")]);
        assert_eq!(presence.option(7, "readonly"), None);
        assert!(presence.is_mounted(7));
        presence.unmounted(7);
        assert!(!presence.is_mounted(7));
    }
}
