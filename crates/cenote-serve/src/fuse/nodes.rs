//! The nodes that the kernel knows.
//!
//! Each answer that gives the kernel a node counts; it forgets with the same counts. As long as it
//! knows a node we hold it, so that a file that lost its last name while somebody has it open is
//! freed when the kernel forgets it, and its number is nobody else's before.
//!
//! After a rollback a node that is not there any more with its generation is *stale*: every request
//! for it fails, until the kernel has forgotten it or is given another node of that number.
//!
//! Each node also counts its open handles through which it can be mapped shared and writable, which
//! takes reading and writing. The kernel releases such a handle after the last mapping of it is
//! gone and the dirty pages are written back: without one there are no dirty pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_fs::mount::Handle;
use cenote_rt::FixedMap;

/// Nodes that the kernel knows, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// Held for a look-up.
    table: Mutex<FixedMap<u64, Node>>,
    /// How often the content was replaced. From the first time on nodes may be stale, or known by
    /// what they were.
    epoch: AtomicU64,
}

#[derive(Debug)]
struct Node {
    /// None: it is stale.
    handle: Option<Handle>,
    /// Txg that it was made in.
    generation: u64,
    /// The epoch in which a stale node became this one. Handles of earlier epochs are of that one.
    since: u64,
    /// The kernel may have pages of it from before a rollback.
    has_old_pages: bool,
    /// The kernel may believe in the length that it had before a rollback. It cannot be made to ask
    /// for the length before it appends, so that stays so.
    has_old_size: bool,
    /// How often the kernel was given it.
    lookups: u64,
    /// Open handles through which it can be mapped shared and writable.
    mappable: u64,
}

impl Nodes {
    fn table(&self) -> MutexGuard<'_, FixedMap<u64, Node>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a node once more; false if the kernel does not know it, or knows a stale node by that
    /// number.
    pub(super) fn again(&self, object: u64) -> bool {
        let mut table = self.table();
        let node = table.get_mut(&object).filter(|node| node.handle.is_some());
        node.map(|node| node.lookups += 1).is_some()
    }

    /// Counts a node that is held now. A stale node of that number is this one from now on.
    pub(super) fn add(&self, handle: Handle, generation: u64) {
        let mut table = self.table();
        let new = Node {
            handle: None,
            generation,
            since: 0,
            has_old_pages: false,
            has_old_size: false,
            lookups: 0,
            mappable: 0,
        };
        let node = table.entry(handle.object()).or_insert(new);
        if node.handle.is_none() {
            (node.handle, node.generation) = (Some(handle), generation);
            if node.lookups > 0 {
                // The kernel knows a stale node by that number.
                node.since = self.epoch();
            }
        }
        node.lookups += 1;
    }

    /// How often the content was replaced.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether a node is another one than the number stood for in an epoch.
    pub(super) fn is_newer(&self, object: u64, epoch: u64) -> bool {
        self.is_after_rollback(object, |node| epoch < node.since)
    }

    /// Whether a rollback has taken a node away.
    pub(super) fn is_stale(&self, object: u64) -> bool {
        self.is_after_rollback(object, |node| node.handle.is_none())
    }

    /// Whether the kernel may still write pages of a node back that are from before a rollback.
    pub(super) fn has_old_pages(&self, object: u64) -> bool {
        self.is_after_rollback(object, |node| node.has_old_pages)
    }

    /// Whether the kernel may go by the length that a node had before a rollback.
    pub(super) fn has_old_size(&self, object: u64) -> bool {
        self.is_after_rollback(object, |node| node.has_old_size)
    }

    fn is_after_rollback(&self, object: u64, is_so: impl FnOnce(&Node) -> bool) -> bool {
        self.epoch() > 0 && self.table().get(&object).is_some_and(is_so)
    }

    /// The nodes that the kernel knows, with their generations.
    pub(super) fn known(&self) -> FixedMap<u64, u64> {
        self.table().iter().map(|(object, node)| (*object, node.generation)).collect()
    }

    /// Holds nodes of a new content in place of those of the old one. Nodes that are not among them
    /// are stale. Returns the handles of the old content.
    pub(super) fn replace(&self, mut handles: FixedMap<u64, Handle>) -> Vec<Handle> {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let mut old = Vec::new();
        for (object, node) in self.table().iter_mut() {
            old.extend(std::mem::replace(&mut node.handle, handles.remove(object)));
            (node.has_old_pages, node.has_old_size) = (true, true);
        }
        old.extend(handles.into_values());
        old
    }

    /// The kernel has dropped the pages of a node that were from before a rollback.
    pub(super) fn dropped_pages(&self, object: u64) {
        if let Some(node) = self.table().get_mut(&object) {
            node.has_old_pages = false;
        }
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
