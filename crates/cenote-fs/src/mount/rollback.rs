//! Replaces the contents of a mounted file system (`zfs rollback`).
//!
//! ```text
//!   before     differing_names      names that differ between snapshot and head
//!              release_ownership    allows the rollback of the dataset
//!   rollback   the head is replaced by another one
//!   after      reopen               a mount of the new head
//!              hold_generation      nodes that exist with the same generation
//!              drain                the unlinked set, except nodes with a hold
//! ```
//!
//! The caller makes sure that no operation runs on the mount from the first of these steps to the
//! last but one (OpenZFS: `zfs_suspend_fs`, `zfs_resume_fs`). The state of the old head in memory,
//! including dirty data and records of its intent log, is dropped with it: it is not synced any
//! more, and its log is freed in the txg of the rollback.
//!
//! A node is the same node after a rollback if its number has the same generation. The unlinked set
//! is drained last, so that a file that had no name when the snapshot was taken lives as long as it
//! is open.

use std::sync::Arc;

use cenote_rt::{FixedMap, Result};

use super::control::is_control;
use super::{Attributes, Mount, lock};
use crate::edit;
use crate::filesystem::FileSystem;
use crate::node::FileKind;

/// Entries of a directory read at a time.
const ENTRIES: usize = 512;

impl Mount {
    /// Allows the dataset to be rolled back, until [`take_ownership`](Self::take_ownership).
    pub fn release_ownership(&self) {
        let ownership = lock(&self.ownership).take();
        drop(ownership);
    }

    /// Keeps the dataset from being destroyed and rolled back, after
    /// [`release_ownership`](Self::release_ownership).
    pub fn take_ownership(&self) {
        lock(&self.ownership).get_or_insert_with(|| self.head.own());
    }

    /// Opens the file system again after its head was replaced, with the same options. The unlinked
    /// set is left alone, see [`drain`](Self::drain).
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn reopen(&self) -> Result<Arc<Self>> {
        // The dataset may have been renamed.
        let name = self.engine.datasets().name_of(self.head.object()).await?;
        let mount = Self::attach(&self.engine, &name, self.is_read_only).await;
        let mount = mount.map_err(|error| error.in_dataset(&name))?;
        mount.set_access_times(self.access_times());
        Ok(mount)
    }

    /// Returns the names, each with its directory, that refer to different nodes in a snapshot and
    /// now, or exist only in one of the two; every name of a directory that the snapshot does not
    /// have. Only the root and the directories in `known` are compared, which has the generations
    /// of nodes by number. Unreadable directories count as empty.
    pub async fn differing_names(
        &self,
        snapshot: &Arc<FileSystem>,
        known: &FixedMap<u64, u64>,
    ) -> Vec<(u64, Vec<u8>)> {
        let mut differing = Vec::new();
        let mut numbers: Vec<u64> = known.keys().copied().collect();
        // In the order on disk.
        numbers.sort_unstable();
        for object in numbers.into_iter().filter(|object| *object != self.root()) {
            self.compare_directory(snapshot, object, known, &mut differing).await;
        }
        self.compare_directory(snapshot, self.root(), known, &mut differing).await;
        differing
    }

    async fn compare_directory(
        &self,
        snapshot: &Arc<FileSystem>,
        directory: u64,
        known: &FixedMap<u64, u64>,
        differing: &mut Vec<(u64, Vec<u8>)>,
    ) {
        let Ok(now) = self.attributes(directory).await else { return };
        if now.kind != FileKind::Directory || is_control(directory) {
            return;
        }
        let Some(mut then) = names_in(snapshot, &now).await else { return };
        let mut cookie = 0;
        loop {
            let listed = self.inspect(None, |op| edit::list(op, directory, cookie, ENTRIES)).await;
            let Ok(page) = listed else { break };
            for entry in page.entries {
                cookie = entry.cookie;
                let before = then.remove(&entry.name);
                let is_same = before == Some(entry.object)
                    && match known.get(&entry.object) {
                        Some(generation) => has(snapshot, entry.object, *generation).await,
                        None => true,
                    };
                if !is_same {
                    differing.push((directory, entry.name));
                }
            }
            if page.is_end {
                break;
            }
        }
        // The remaining names of the snapshot were removed since.
        differing.extend(then.into_keys().map(|name| (directory, name)));
    }
}

/// Whether a snapshot has a node.
async fn has(snapshot: &Arc<FileSystem>, object: u64, generation: u64) -> bool {
    let found = snapshot.node(object).await;
    found.is_ok_and(|node| Attributes::of_node(&node).generation == generation)
}

/// Returns the names in a snapshot's directory; an empty map for a directory that the snapshot does
/// not have. Returns `None` if the directory is unchanged: each change of it sets its ctime.
async fn names_in(snapshot: &Arc<FileSystem>, now: &Attributes) -> Option<FixedMap<Vec<u8>, u64>> {
    let mut names = FixedMap::default();
    let Ok(node) = snapshot.node(now.object).await else { return Some(names) };
    let then = Attributes::of_node(&node);
    if then.generation != now.generation {
        return Some(names);
    }
    let facts = |of: &Attributes| (of.ctime, of.mtime, of.size, of.links);
    if facts(&then) == facts(now) {
        return None;
    }
    let Ok(mut entries) = node.entries().await else { return Some(names) };
    while let Ok(Some(entry)) = entries.next().await {
        names.insert(entry.name, entry.object);
    }
    Some(names)
}
