//! The nodes that the kernel knows.
//!
//! Each answer that gives the kernel a node counts; it forgets with the same counts. As long as it
//! knows a node we hold it, so that a file that lost its last name while somebody has it open is
//! freed when the kernel forgets it, and its number is nobody else's before.
//!
//! Each node also counts its open handles through which it can be mapped shared and writable, which
//! takes reading and writing. The kernel releases such a handle after the last mapping of it is
//! gone and the dirty pages are written back: without one there are no dirty pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_fs::mount::Handle;
use cenote_rt::FixedMap;

/// Nodes that the kernel knows, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// Held for a look-up.
    table: Mutex<FixedMap<u64, Node>>,
}

#[derive(Debug)]
struct Node {
    _handle: Handle,
    /// How often the kernel was given it.
    lookups: u64,
    /// Open handles through which it can be mapped shared and writable.
    mappable: u64,
}

impl Nodes {
    fn table(&self) -> MutexGuard<'_, FixedMap<u64, Node>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a node once more; false if the kernel does not know it.
    pub(super) fn again(&self, object: u64) -> bool {
        let mut table = self.table();
        let node = table.get_mut(&object);
        node.map(|node| node.lookups += 1).is_some()
    }

    /// Counts a node that is held now.
    pub(super) fn add(&self, handle: Handle) {
        let new = |handle| Node { _handle: handle, lookups: 0, mappable: 0 };
        let mut table = self.table();
        table.entry(handle.object()).or_insert_with(|| new(handle)).lookups += 1;
    }

    /// Counts one more handle that can be mapped; false if the kernel does not know the node.
    pub(super) fn open_mappable(&self, object: u64) -> bool {
        let mut table = self.table();
        let node = table.get_mut(&object);
        node.map(|node| node.mappable += 1).is_some()
    }

    /// A handle that can be mapped is released.
    pub(super) fn close_mappable(&self, object: u64) {
        if let Some(node) = self.table().get_mut(&object) {
            node.mappable = node.mappable.saturating_sub(1);
        }
    }

    /// Whether the kernel may hold dirty pages of a mapping of a node.
    pub(super) fn may_be_mapped(&self, object: u64) -> bool {
        self.table().get(&object).is_some_and(|node| node.mappable > 0)
    }

    /// The kernel forgets a node so many times. True if it does not know it any more.
    pub(super) fn forget(&self, object: u64, lookups: u64) -> bool {
        let mut table = self.table();
        let Some(node) = table.get_mut(&object) else { return false };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 {
            return false;
        }
        table.remove(&object);
        true
    }
}
