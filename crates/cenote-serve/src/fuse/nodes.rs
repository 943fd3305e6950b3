//! The nodes that the kernel references.
//!
//! Each answer with a node increments its lookup count; the kernel forgets it with the same counts.
//! A node is held while the kernel knows it, so that a file that lost its last name while it is
//! open is freed when the kernel forgets it, and its number is not reused before.
//!
//! After a rollback a node that no longer exists with its generation is *stale*: every request for
//! it fails, until the kernel has forgotten it or is given another node with that number.
//!
//! Each node also counts its open handles that permit shared writable mappings, which takes reading
//! and writing. The kernel releases such a handle after its last mapping is gone and the dirty
//! pages are written back: without such handles there are no dirty pages.

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_fs::mount::Handle;
use cenote_rt::FixedMap;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};

/// Nodes that the kernel knows, by number.
#[derive(Debug)]
pub(super) struct Nodes {
    /// LOCK: held for a lookup.
    table: Mutex<FixedMap<u64, Node>>,
    /// Number of rollbacks. After the first one, nodes may be stale, or have old pages and sizes in
    /// the kernel.
    epoch: AtomicU64,
}

#[derive(Debug)]
struct Node {
    /// `None` if it is stale.
    handle: Option<Handle>,
    /// Creation txg (generation).
    generation: u64,
    /// The epoch in which this node replaced a stale node. Handles of earlier epochs belong to that
    /// one.
    since: u64,
    /// The kernel may have pages of it from before a rollback.
    has_old_pages: bool,
    /// The kernel may have its length from before a rollback. It cannot be made to ask for the
    /// length before it appends, so this flag is permanent.
    has_old_size: bool,
    /// The kernel's lookup count.
    lookups: u64,
    /// Open handles that permit shared writable mappings.
    mappable: u64,
}

impl Default for Nodes {
    fn default() -> Self {
        Self { table: Mutex::with_default(Rank::FuseNodes), epoch: AtomicU64::new(0) }
    }
}

impl Nodes {
    fn table(&self) -> MutexGuard<'_, FixedMap<u64, Node>> {
        self.table.lock()
    }

    /// Counts a node once more; returns false if the kernel does not know it, or knows a stale node
    /// with that number.
    /// number.
    pub(super) fn again(&self, object: u64) -> bool {
        let mut table = self.table();
        let node = table.get_mut(&object).filter(|node| node.handle.is_some());
        node.map(|node| node.lookups += 1).is_some()
    }

    /// Counts a node that is now held. It replaces a stale node with that number.
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
                // The kernel knows a stale node with that number.
                node.since = self.epoch();
            }
        }
        node.lookups += 1;
    }

    /// Returns the number of rollbacks.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether the number belonged to another node in an earlier epoch.
    pub(super) fn is_newer(&self, object: u64, epoch: u64) -> bool {
        self.is_after_rollback(object, |node| epoch < node.since)
    }

    /// Whether a rollback has removed a node.
    pub(super) fn is_stale(&self, object: u64) -> bool {
        self.is_after_rollback(object, |node| node.handle.is_none())
    }

    /// Whether the kernel may write back pages of a node from before a rollback.
    pub(super) fn has_old_pages(&self, object: u64) -> bool {
        self.is_after_rollback(object, |node| node.has_old_pages)
    }

    /// Whether the kernel may use a node's length from before a rollback.
    pub(super) fn has_old_size(&self, object: u64) -> bool {
        self.is_after_rollback(object, |node| node.has_old_size)
    }

    fn is_after_rollback(&self, object: u64, is_so: impl FnOnce(&Node) -> bool) -> bool {
        self.epoch() > 0 && self.table().get(&object).is_some_and(is_so)
    }

    /// Returns the nodes that the kernel knows, with their generations.
    pub(super) fn known(&self) -> FixedMap<u64, u64> {
        self.table().iter().map(|(object, node)| (*object, node.generation)).collect()
    }

    /// Replaces the held nodes after a rollback. Nodes that are not in `handles` become stale.
    /// Returns the old handles.
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

    /// Records that the kernel has dropped a node's pages from before a rollback.
    pub(super) fn dropped_pages(&self, object: u64) {
        if let Some(node) = self.table().get_mut(&object) {
            node.has_old_pages = false;
        }
    }

    /// Counts a handle that permits mappings; returns false if the kernel does not know the node.
    pub(super) fn open_mappable(&self, object: u64) -> bool {
        let mut table = self.table();
        let node = table.get_mut(&object);
        node.map(|node| node.mappable += 1).is_some()
    }

    /// Releases a handle that permits mappings.
    pub(super) fn close_mappable(&self, object: u64) {
        if let Some(node) = self.table().get_mut(&object) {
            node.mappable = node.mappable.saturating_sub(1);
        }
    }

    /// Whether the kernel may have dirty pages of a mapping of a node.
    pub(super) fn may_be_mapped(&self, object: u64) -> bool {
        self.table().get(&object).is_some_and(|node| node.mappable > 0)
    }

    /// Decrements the lookup count. Returns true if the kernel does not know the node any more.
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
