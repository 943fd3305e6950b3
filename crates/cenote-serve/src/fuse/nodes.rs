//! The nodes that the kernel knows.
//!
//! Each answer that gives the kernel a node counts; it forgets with the same counts. As long as it
//! knows a node we hold it, so that a file that lost its last name while somebody has it open is
//! freed when the kernel forgets it, and its number is nobody else's before.

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
        let new = |handle| Node { _handle: handle, lookups: 0 };
        let mut table = self.table();
        table.entry(handle.object()).or_insert_with(|| new(handle)).lookups += 1;
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
