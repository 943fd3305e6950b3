//! A file system is rolled back under its users, who stay (OpenZFS: `zfs_suspend_fs`,
//! `zfs_resume_fs`).
//!
//! ```text
//!   suspend   the gate is closed    requests in hand end, others wait
//!             names are compared    the head and the snapshot, in the directories that are known
//!             the head is disowned  the engine rolls it back now, or refuses to
//!   resume    nodes are found again by number and generation; the others are stale
//!             the gate is opened    from here on everybody sees the new content
//!             the kernel is told    of each node and of each name that is another now
//!             the unlinked set is drained
//! ```
//!
//! **Pages.** The kernel is told after the gate was opened: it waits for requests that hold pages
//! and directories, which must be answered. Until it has dropped the pages of a node it may write
//! dirty ones back, which were stored through shared mappings. They are pages of the old content:
//! their writes succeed and change nothing. Stores to pages that the kernel has read again count.
//! A read of several pages while this goes on can find old pages beside new ones.
//!
//! **Names.** The kernel drops a name if it is told the name, so names are compared. It drops what
//! it knows below a directory together with its name, mounts included; a directory that is the same
//! node by the same name keeps everything, also for those who stand in it.
//!
//! **Lengths.** A program that appends does so behind the end that the kernel knows. Appending
//! writes to nodes that were known before a rollback therefore go behind the end that there is.
//!
//! A process that dies anywhere in here leaves the pool before the rollback or after it: that is
//! one txg. The suspension ends when it is dropped; if the content was replaced and cannot be
//! opened, every request fails from then on.
//!
//! Locks: none is held while the gate is closed but the gate itself. What a rollback waits for (the
//! engine's syncs) never waits for a request of the kernel.

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

/// A mount whose requests wait. They go on when this is resumed or dropped.
#[derive(Debug)]
pub struct Suspension {
    vfs: Arc<Vfs>,
    /// Generation of the root: another dataset that got the number has another one.
    root_generation: u64,
    /// Directories, and names in them that the kernel must not believe after the rollback.
    names: Vec<(u64, Vec<u8>)>,
}

impl FuseMount {
    /// Holds up all requests, and lets the dataset be rolled back to a snapshot.
    ///
    /// # Errors
    /// [`OpError::Busy`] if that is being done already, or if requests in hand do not end in time;
    /// those of opening the snapshot. Nothing is held up then.
    pub async fn suspend(&self, snapshot: &str) -> Result<Suspension> {
        let vfs = Arc::clone(&self.vfs);
        let mount = vfs.mount();
        if vfs.is_suspended.swap(true, Ordering::AcqRel) {
            return Err(OpError::Busy.into());
        }
        // From here on dropping it ends it.
        let mut suspension =
            Suspension { vfs: Arc::clone(&vfs), root_generation: 0, names: Vec::new() };
        let timeout = Duration::from_millis(tunables::ROLLBACK_TIMEOUT_MS.get());
        vfs.gate.close(timeout).await?;
        let looked = cenote_rt::until(timeout, suspension.look(&mount, snapshot)).await;
        looked.unwrap_or_else(|| Err(OpError::Busy.into()))?;
        mount.disown();
        Ok(suspension)
    }

    /// Whether requests are held up, or the kernel is being told of a rollback.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.vfs.is_suspended.load(Ordering::Acquire)
    }

    /// Whether the content can be replaced under the users. With `writeback` the kernel keeps
    /// lengths and times that it believes more than ours.
    #[must_use]
    pub fn can_be_suspended(&self) -> bool {
        !self.is_writeback
    }
}

impl Suspension {
    /// Takes down what has to be known of the old content.
    async fn look(&mut self, mount: &Mount, snapshot: &str) -> Result<()> {
        // Nobody reads them now.
        self.vfs.snapshots.let_go();
        self.root_generation = mount.attributes(mount.root()).await?.generation;
        let target = FileSystem::open_snapshot(mount.engine(), snapshot).await?;
        self.names = mount.differing_names(&target, &self.vfs.nodes.known()).await;
        Ok(())
    }

    /// Has the requests go on: with the new content, if there is one.
    ///
    /// # Errors
    /// Those of opening the new content. Every request fails from then on.
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
        // In the order in which they are stored.
        numbers.sort_unstable();
        let mut handles: FixedMap<u64, Handle> = FixedMap::default();
        for (object, generation) in numbers.iter().copied() {
            let generation = Some(generation).filter(|_| !is_on(Bug::AnyGeneration));
            // A node that cannot be read is given again when its name is looked up.
            if let Ok((_, handle)) = mount.hold_known(object, generation).await {
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

    /// Has the kernel drop what it knows from before the rollback. Blocks while it waits for
    /// requests that hold pages or directories.
    fn tell(self, vfs: &Vfs, objects: Vec<u64>) {
        let Some(notifier) = vfs.notifier.get() else { return };
        if is_on(Bug::KernelNotTold) {
            return;
        }
        for (directory, name) in &self.names {
            // A name that it does not know needs nothing.
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
            mount.own_again();
        }
        self.vfs.is_suspended.store(false, Ordering::Release);
        self.vfs.gate.open();
    }
}
