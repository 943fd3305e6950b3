//! The pool's config, as the next labels and the MOS will have it.

use cenote_ondisk::config::{PoolFacts, VdevConfig};

/// The config, and what is still to be told of it.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The pool.
    pub(crate) facts: PoolFacts,
    /// The name on disk, where the pool has another one for the time being.
    pub(crate) stored_name: Option<String>,
    /// Whether vdevs have objects for their properties.
    pub(crate) has_vdev_zaps: bool,
    /// The vdevs.
    pub(crate) root: VdevConfig,
    /// The MOS has an older one.
    pub(crate) is_unrecorded: bool,
    /// Labels have an older one.
    pub(crate) is_dirty: bool,
}

impl Config {
    /// The facts as they are on disk.
    pub(crate) fn stored(&self) -> PoolFacts {
        let mut facts = self.facts.clone();
        if let Some(name) = &self.stored_name {
            facts.name.clone_from(name);
        }
        facts
    }

    /// Notes that it was changed.
    pub(crate) fn touch(&mut self) {
        self.is_unrecorded = true;
        self.is_dirty = true;
    }

    pub(crate) fn take_unrecorded(&mut self) -> bool {
        std::mem::take(&mut self.is_unrecorded)
    }
}
