//! A pool's presence on this host: what is not stored in it and still counts among its properties.
//!
//! Whoever keeps a pool open notes here under which folder it mounts, where it is remembered, and
//! which of its file systems are mounted, and how, and whether it is suspended. Views of the
//! pool show it: `altroot`, `cachefile`, `mounted`, and values with the source `temporary`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::status::Reason;

/// Tells why a pool that is open for writing is suspended.
pub trait SuspensionProbe: std::fmt::Debug + Send + Sync {
    /// Returns the reason as the pool's status shows it, or `None` while the pool is running.
    fn reason(&self) -> Option<Reason>;
}

/// A pool's presence on this host.
#[derive(Debug, Default)]
pub struct Presence(
    // Held for a look.
    Mutex<State>,
);

#[derive(Debug, Default)]
struct State {
    is_writable: bool,
    altroot: Option<String>,
    cache_file: Option<String>,
    /// Of a pool that is open for writing.
    suspension: Option<Arc<dyn SuspensionProbe>>,
    /// Options in force, by number of the dataset.
    mounts: BTreeMap<u64, Vec<(&'static str, u64)>>,
}

impl Presence {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the pool is open for writing.
    pub fn set_writable(&self) {
        self.lock().is_writable = true;
    }

    /// Whether somebody has the pool open for writing.
    pub fn is_writable(&self) -> bool {
        self.lock().is_writable
    }

    /// Sets the probe that tells views whether the pool is suspended.
    pub fn set_suspension_probe(&self, probe: Arc<dyn SuspensionProbe>) {
        self.lock().suspension = Some(probe);
    }

    /// Returns why the pool is suspended, or `None` if it is not.
    pub fn suspended(&self) -> Option<Reason> {
        let probe = self.lock().suspension.clone()?;
        probe.reason()
    }

    /// Everything mounts below this folder (property `altroot`).
    pub fn set_altroot(&self, folder: Option<&str>) {
        self.lock().altroot = folder.map(str::to_owned);
    }

    /// The folder below which everything mounts.
    pub fn altroot(&self) -> Option<String> {
        self.lock().altroot.clone()
    }

    /// Where the pool is remembered (property `cachefile`), if that is not where all are.
    pub fn set_cache_file(&self, file: Option<&str>) {
        self.lock().cache_file = file.map(str::to_owned);
    }

    /// Where the pool is remembered, if that is not where all are.
    pub fn cache_file(&self) -> Option<String> {
        self.lock().cache_file.clone()
    }

    /// A dataset is mounted, with these values of properties.
    pub fn mounted(&self, dataset: u64, options: Vec<(&'static str, u64)>) {
        self.lock().mounts.insert(dataset, options);
    }

    /// A dataset is not mounted any more.
    pub fn unmounted(&self, dataset: u64) {
        self.lock().mounts.remove(&dataset);
    }

    /// Whether a dataset is mounted.
    pub fn is_mounted(&self, dataset: u64) -> bool {
        self.lock().mounts.contains_key(&dataset)
    }

    /// The value of a property that a mounted dataset has for the time being.
    pub fn option(&self, dataset: u64, property: &str) -> Option<u64> {
        let state = self.lock();
        let mut options = state.mounts.get(&dataset)?.iter();
        options.find(|(name, _)| *name == property).map(|(_, value)| *value)
    }

    /// Properties that were set, by number of the dataset, do not have other values any more that
    /// they had for the time being.
    pub fn set_again(&self, set: &[(u64, &str)]) {
        let mut state = self.lock();
        for (dataset, property) in set {
            if let Some(options) = state.mounts.get_mut(dataset) {
                options.retain(|(name, _)| name != property);
            }
        }
    }

    /// A path as it is below the folder.
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
    fn what_is_noted_is_found() {
        let presence = Presence::default();
        assert_eq!(presence.below_altroot("/t".into()), "/t");
        presence.set_altroot(Some("/mnt/"));
        assert_eq!(presence.below_altroot("/t".into()), "/mnt/t");
        assert_eq!(presence.below_altroot("/".into()), "/mnt/");
        presence.mounted(7, vec![("readonly", 1)]);
        assert!(presence.is_mounted(7) && !presence.is_mounted(8));
        assert_eq!(presence.option(7, "readonly"), Some(1));
        assert_eq!(presence.option(7, "atime"), None);
        presence.set_again(&[(7, "atime"), (8, "readonly")]);
        assert_eq!(presence.option(7, "readonly"), Some(1));
        presence.set_again(&[(7, "readonly")]);
        assert_eq!(presence.option(7, "readonly"), None);
        assert!(presence.is_mounted(7));
        presence.unmounted(7);
        assert!(!presence.is_mounted(7));
    }
}
