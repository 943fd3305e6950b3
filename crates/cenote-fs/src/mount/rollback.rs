//! Replacing the content of a file system under its users (`zfs rollback`).
//!
//! ```text
//!   before     differing_names    what the snapshot has by other names than the head
//!              disown             the dataset may be rolled back
//!   rollback   the head is gone, another one has its place
//!   after      reopen             a mount of the new head
//!              hold_known         nodes that are there with the same generation
//!              drain              the unlinked set, but for nodes that are held
//! ```
//!
//! The caller sees to it that no operation runs on the mount from the first of these steps to the
//! last but one (OpenZFS: `zfs_suspend_fs`, `zfs_resume_fs`). What the old head has in memory, its
//! dirty data and the records of its intent log included, goes with the old head: it is not synced
//! any more, and its log is freed in the txg of the rollback.
//!
//! A node is the same node after a rollback if its number has the same generation. The unlinked set
//! is drained last, so that a file that had no name when the snapshot was taken lives on as long as
//! somebody has it open.

use std::sync::Arc;

use cenote_rt::{FixedMap, Result};

use super::control::is_control;
use super::{Attributes, Mount, lock};
use crate::edit;
use crate::filesystem::FileSystem;
use crate::node::FileKind;

/// Entries of a directory that are read at a time.
const ENTRIES: usize = 512;

impl Mount {
    /// Lets the dataset be rolled back, until [`own_again`](Self::own_again).
    pub fn disown(&self) {
        let ownership = lock(&self.ownership).take();
        drop(ownership);
    }

    /// Keeps the dataset from being destroyed and rolled back, as before [`disown`](Self::disown).
    pub fn own_again(&self) {
        lock(&self.ownership).get_or_insert_with(|| self.head.own());
    }

    /// Opens the file system again, whose head was replaced, with the same options. The unlinked
    /// set is left as it is, see [`drain`](Self::drain).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn reopen(&self) -> Result<Arc<Self>> {
        // It may have another name by now.
        let name = self.engine.dataset_name(self.head.object()).await?;
        let mount = Self::attach(&self.engine, &name, self.is_read_only).await;
        let mount = mount.map_err(|error| error.in_dataset(&name))?;
        mount.set_access_times(self.access_times());
        Ok(mount)
    }

    /// Returns the names in directories that stand for another node in a snapshot than they do now,
    /// or are only in one of the two, each with its directory. Of a directory that the snapshot
    /// does not have that is every name. The directories are those of `known`, nodes by number with
    /// their generations, and the root. What cannot be read counts as empty.
    pub async fn differing_names(
        &self,
        snapshot: &Arc<FileSystem>,
        known: &FixedMap<u64, u64>,
    ) -> Vec<(u64, Vec<u8>)> {
        let mut differing = Vec::new();
        let mut numbers: Vec<u64> = known.keys().copied().collect();
        // In the order in which they are stored.
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
            let listed = self.look(None, |op| edit::list(op, directory, cookie, ENTRIES)).await;
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
        // The rest of the snapshot's listing was removed since.
        differing.extend(then.into_keys().map(|name| (directory, name)));
    }
}

/// Whether a snapshot has a node.
async fn has(snapshot: &Arc<FileSystem>, object: u64, generation: u64) -> bool {
    let found = snapshot.node(object).await;
    found.is_ok_and(|node| Attributes::of_node(&node).generation == generation)
}

/// The names that a snapshot has in a directory; none of a directory that it does not have. Returns
/// none if the directory is the same there as it is now: each change of it sets its ctime.
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
