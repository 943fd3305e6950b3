//! Replaces the contents of a mounted file system while it stays mounted: by those of a snapshot
//! (rollback), or of an increment that was received (OpenZFS: `zfs_suspend_fs`, `zfs_resume_fs`).
//!
//! ```text
//!   suspend   the gate is closed        current requests end, others wait
//!             names are compared        the head and the snapshot, in directories known to the
//!             kernel
//!             ownership is released     the engine rolls the dataset back, or refuses to
//!   resume    nodes are found again by number and generation; the others are stale
//!             the gate is opened        from here on all users see the new contents
//!             the kernel is notified    of each node and of each name that has changed
//!             the unlinked set is drained
//! ```
//!
//! **Pages.** The kernel is notified after the gate was opened: it waits for requests that hold
//! pages and directories, which must be answered. Until it has dropped the pages of a node it may
//! write back dirty ones, which were stored through shared mappings. They are pages of the old
//! contents: their writes succeed and change nothing. Stores to pages that the kernel has read
//! again count. A read of several pages during this time can return old pages beside new ones.
//!
//! **Names.** The kernel drops a name only if it is given the name, so names are compared. With the
//! name of a directory it drops everything below, mounts included; a directory that is the same
//! node with the same name keeps everything, also as a working directory.
//!
//! **Lengths.** A program that appends does so at the end that the kernel knows. Appending writes
//! to nodes that were known before a rollback are therefore redirected to the real end.
//!
//! If the process dies anywhere in here, the pool is in its state before the rollback or after it:
//! the rollback is one txg. The suspension ends when it is dropped; if the contents were replaced
//! and cannot be opened, every request fails from then on.
//!
//! Locks: only the gate is held while the gate is closed. The engine's syncs, which a rollback
//! waits for, never wait for a request of the kernel.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_engine::OpError;
use cenote_fs::mount::Handle;
use cenote_fs::{FileSystem, FsError, Mount};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, FixedMap, Result, tunables};

use super::FuseMount;
use super::vfs::{ROOT, Vfs};
use super::wire::INodeNo;

/// A mount whose requests are suspended. They continue when this is resumed or dropped.
#[derive(Debug)]
pub struct Suspension {
    vfs: Arc<Vfs>,
    /// Generation of the root: another dataset that reuses the number has another generation.
    root_generation: u64,
    /// Directories, and names in them that the kernel must drop after the rollback.
    names: Vec<(u64, Vec<u8>)>,
}

impl FuseMount {
    /// Suspends all requests, and allows the contents of the dataset to be replaced: by those of a
    /// snapshot, or of another dataset as it was committed.
    ///
    /// # Errors
    /// [`OpError::Busy`] if the mount is suspended already, or if current requests do not end in
    /// time; errors of opening the new contents. Requests are not suspended then.
    pub async fn suspend(&self, contents: &str) -> Result<Suspension> {
        let vfs = Arc::clone(&self.vfs);
        let mount = vfs.mount();
        if vfs.is_suspended.swap(true, Ordering::AcqRel) {
            return Err(OpError::Busy.into());
        }
        // From here on dropping it ends the suspension.
        let mut suspension =
            Suspension { vfs: Arc::clone(&vfs), root_generation: 0, names: Vec::new() };
        let timeout = Duration::from_millis(tunables::ROLLBACK_TIMEOUT_MS.get());
        vfs.gate.close(timeout).await?;
        let looked = cenote_rt::until(timeout, suspension.look(&mount, contents)).await;
        looked.unwrap_or_else(|| Err(OpError::Busy.into()))?;
        mount.release_ownership();
        Ok(suspension)
    }

    /// Whether requests are suspended, or the kernel is being notified of a rollback.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.vfs.is_suspended.load(Ordering::Acquire)
    }

    /// Whether the contents can be replaced while mounted. With `writeback` the kernel prefers its
    /// own lengths and times.
    #[must_use]
    pub fn can_be_suspended(&self) -> bool {
        !self.is_writeback
    }
}

impl Suspension {
    /// Records what is needed of the old contents.
    async fn look(&mut self, mount: &Mount, contents: &str) -> Result<()> {
        // No request reads them now.
        self.vfs.snapshots.close_unused();
        self.root_generation = mount.attributes(mount.root()).await?.generation;
        let target = if contents.contains('@') {
            FileSystem::open_snapshot(mount.engine(), contents).await?
        } else {
            FileSystem::open(&mount.engine().view().await?.dataset(contents).await?).await?
        };
        self.names = mount.differing_names(&target, &self.vfs.nodes.known()).await;
        Ok(())
    }

    /// Resumes the requests: with the new contents, if the rollback was done.
    ///
    /// # Errors
    /// Errors of opening the new contents. Every request fails from then on.
    pub async fn resume(self) -> Result<()> {
        let vfs = Arc::clone(&self.vfs);
        let before = vfs.mount();
        if !before.head().is_gone() {
            return Ok(());
        }
        let mount = before.reopen().await?;
        if mount.attributes(mount.root()).await?.generation != self.root_generation {
            return Err(Error::not_found(FsError::Stale));
        }
        let known = vfs.nodes.known();
        let mut numbers: Vec<(u64, u64)> = known.into_iter().collect();
        // In the order on disk.
        numbers.sort_unstable();
        let mut handles: FixedMap<u64, Handle> = FixedMap::default();
        for (object, generation) in numbers.iter().copied() {
            let generation = Some(generation).filter(|_| !is_on(Bug::AnyGeneration));
            // An unreadable node is given to the kernel again at its next lookup.
            if let Ok((_, handle)) = mount.hold_generation(object, generation).await {
                handles.insert(object, handle);
            }
        }
        let old = vfs.nodes.replace(handles);
        vfs.replace(Arc::clone(&mount));
        drop((old, before));
        vfs.gate.open();
        let telling = Arc::clone(&vfs);
        let told = cenote_rt::blocking(move || {
            let numbers = numbers.into_iter().map(|(object, _)| object).collect();
            self.tell(&telling, numbers);
        });
        told.await?;
        mount.drain().await;
        Ok(())
    }

    /// Makes the kernel drop what it cached before the rollback. Blocks while the kernel waits for
    /// requests that hold pages or directories.
    fn tell(self, vfs: &Vfs, objects: Vec<u64>) {
        let Some(notifier) = vfs.notifier.get() else { return };
        if is_on(Bug::KernelNotTold) {
            return;
        }
        for (directory, name) in &self.names {
            // Nothing to do for a name that it does not know.
            let _ = notifier.inval_entry(INodeNo(vfs.number(*directory)), name);
        }
        vfs.tell(ROOT, 0);
        for object in objects {
            vfs.tell(object, 0);
            vfs.nodes.dropped_pages(object);
        }
    }
}

impl Drop for Suspension {
    fn drop(&mut self) {
        let mount = self.vfs.mount();
        if !mount.head().is_gone() {
            mount.take_ownership();
        }
        self.vfs.is_suspended.store(false, Ordering::Release);
        self.vfs.gate.open();
    }
}
