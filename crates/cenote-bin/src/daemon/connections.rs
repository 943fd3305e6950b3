//! Connections of mounted file systems, and of those that programs use after they were unmounted.
//!
//! ```text
//!   start ──> mounted ──last place unmounted──> ended
//!                ^  │                             ^
//!                │  └── in use elsewhere ──> detached
//!                └───────── start ─────────────┘
//! ```
//!
//! Unmounting a file system does not end its connection while another mount namespace (a container)
//! has copies of the mount, or, after `umount -l`, while a process has files open. The file system
//! is then **detached**: mounted nowhere, but served. As with OpenZFS its dataset stays busy, and
//! mounting it again uses the same connection: invariant MOUNT-1 of `cenote_serve::fuse`, a dataset
//! has at most one live FUSE connection. Without root, and with kernels before 5.14, such a mount
//! is refused (`mountpoint or dataset is busy`). Connections of detached file systems are aborted
//! when the pool is closed, and when the process ends.
//!
//! Programs other than the daemon unmount file systems, too. Each command first compares the mounts
//! with the kernel's mount table ([`Mounts::notice`]). Mounts change concurrently, so the table is
//! read after the mounts were listed, and only a mount that was made before is removed: each has
//! the number of the change that made it ([`Mounted::change`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_cli::Exit;
use cenote_rt::Kind;
use cenote_rt::seeded::{Bug, is_on};
use cenote_serve::fuse::{FuseMount, MountOptions, MountTable};

use super::log;
use super::mounts::{Mounted, Mounts, State, TIMEOUT};
use super::wanted::Wanted;

/// Mounts by dataset number, each with the number of the change that made it, and whether its
/// connection has ended.
pub(super) type Listed = Vec<(u64, u64, bool)>;

impl State {
    /// Every file system with a connection.
    fn connected(&self) -> impl Iterator<Item = &Mounted> {
        self.mounted.values().chain(self.detached.values())
    }

    /// Makes a mounted file system a detached one; returns it, if its connection has ended.
    fn detach(&mut self, object: u64) -> Option<Mounted> {
        let mounted = self.mounted.remove(&object)?;
        if mounted.fuse.has_ended() {
            return Some(mounted);
        }
        self.detached.insert(object, mounted)
    }

    /// Removes a detached file system whose connection has ended.
    fn take_ended(&mut self, object: u64) -> Option<Mounted> {
        self.detached.get(&object).filter(|detached| detached.fuse.has_ended())?;
        self.detached.remove(&object)
    }
}

impl Mounts {
    /// Returns the connections of all file systems, mounted and detached ones.
    pub(super) fn connections(&self) -> Vec<Arc<FuseMount>> {
        self.state().connected().map(|mounted| Arc::clone(&mounted.fuse)).collect()
    }

    pub(super) fn fuse_of(&self, dataset: &str) -> Option<Arc<FuseMount>> {
        let state = self.state();
        let found = state.connected().find(|mounted| mounted.wanted.dataset == dataset);
        found.map(|mounted| Arc::clone(&mounted.fuse))
    }

    /// Closes unused snapshots below `.zfs`.
    pub(super) fn close_unused_snapshots(&self) {
        for fuse in self.connections() {
            fuse.close_unused_snapshots();
        }
    }

    /// Returns the number of open snapshots below `.zfs`.
    pub(super) fn open_snapshots(&self) -> usize {
        self.connections().iter().map(|fuse| fuse.open_snapshots()).sum()
    }

    /// Lists the mounts for [`notice`](Self::notice).
    pub(super) fn listed(&self) -> Listed {
        let state = self.state();
        let listed = |(object, mounted): (&u64, &Mounted)| {
            (*object, mounted.change, mounted.fuse.has_ended())
        };
        state.mounted.iter().map(listed).collect()
    }

    /// Detaches those of the listed file systems that were unmounted outside of the daemon, and
    /// forgets detached ones whose connections have ended. `table` must have been read after
    /// `listed`.
    pub(super) fn notice(&self, listed: &Listed, table: &MountTable) {
        let (mut gone, mut ended) = (Vec::new(), Vec::new());
        let is_changing = {
            let mut state = self.state();
            for (object, change, has_ended) in listed {
                let unmounted = state.mounted.get(object).filter(|mounted| {
                    mounted.change == *change && mounted.fuse.places(table).is_empty()
                });
                let Some(unmounted) = unmounted else { continue };
                let is_dead = *has_ended && unmounted.fuse.is_dead_in(table);
                gone.push((unmounted.wanted.dataset.clone(), is_dead));
                ended.extend(self.leave_place(&mut state, *object));
            }
            let objects: Vec<u64> = state.detached.keys().copied().collect();
            ended.extend(objects.into_iter().filter_map(|object| state.take_ended(object)));
            // LOCK state: a command that has unmounted one of them, and is about to remove it from
            // the list itself, cannot end before this.
            self.changing.is_locked()
        };
        for (dataset, is_dead) in gone.into_iter().filter(|_| !is_changing) {
            if is_dead {
                log::warn!(dataset = %dataset, "connection aborted");
            } else {
                log::info!(dataset = %dataset, "unmounted by others");
            }
        }
        // Connections are dropped without the lock.
        drop(ended);
    }

    /// Records that a file system is mounted nowhere. Returns it, if its connection has ended.
    fn leave_place(&self, state: &mut State, object: u64) -> Option<Mounted> {
        // Under the lock of the state: a concurrent mount shows its options after this.
        self.engine.presence().unmounted(object);
        state.detach(object)
    }

    /// Waits until unmounted file systems have answered their last requests. All of them share one
    /// deadline: a mount namespace with copies of thousands of mounts delays the daemon as long as
    /// one with a single copy. Those whose connections live are detached from then on.
    pub(super) async fn settle(&self, unmounted: &[Mounted]) {
        let all_ended = async {
            for mounted in unmounted {
                mounted.fuse.ended().await;
            }
        };
        let table = match cenote_rt::until(TIMEOUT, all_ended).await {
            Some(()) => None,
            None => MountTable::read().ok(),
        };
        for mounted in unmounted {
            let object = mounted.wanted.object;
            let place = table.as_ref().and_then(|table| mounted.at(table));
            let ended = {
                let mut state = self.state();
                // Another program may have mounted it elsewhere meanwhile, and a concurrent command
                // may have noticed that it is unmounted.
                let is_left = place.is_none() && state.mounted.contains_key(&object);
                let left = if is_left { self.leave_place(&mut state, object) } else { None };
                (left, state.take_ended(object))
            };
            drop(ended);
            cenote_rt::stages::reach("unmount-ended");
        }
    }

    /// Aborts the connections of detached file systems, and waits for their end: their pool is
    /// closed, or the process ends.
    pub(super) async fn end_detached(&self) {
        let detached: Vec<_> = {
            let state = self.state();
            state.detached.values().map(|detached| Arc::clone(&detached.fuse)).collect()
        };
        let mut aborted = Vec::new();
        for fuse in detached {
            if fuse.cut_off().await {
                aborted.push(fuse);
            }
        }
        let all_ended = async {
            for fuse in &aborted {
                fuse.ended().await;
            }
        };
        cenote_rt::until(TIMEOUT, all_ended).await;
        let ended: Vec<_> = {
            let mut state = self.state();
            let objects: Vec<u64> = state.detached.keys().copied().collect();
            objects.into_iter().filter_map(|object| state.take_ended(object)).collect()
        };
        drop(ended);
    }

    /// Mounts a file system at a place through its live connection (MOUNT-1), and returns it with
    /// that as its own place. Returns `None` if it has no live connection.
    pub(super) async fn mount_connected(
        &self,
        wanted: &Wanted,
        place: &Path,
        options: &MountOptions,
    ) -> Result<Option<Mounted>, Exit> {
        let found = {
            let state = self.state();
            let object = wanted.object;
            state.mounted.get(&object).or_else(|| state.detached.get(&object)).cloned()
        };
        let found = found.filter(|_| !is_on(Bug::SecondConnection));
        let Some(connected) = found else { return Ok(None) };
        if connected.wanted.guid != wanted.guid || connected.fuse.mount().head().is_gone() {
            // It serves no requests any more: its dataset was destroyed or rolled back.
            let is_aborted = connected.fuse.cut_off().await;
            let ended = cenote_rt::until(TIMEOUT, connected.fuse.ended()).await;
            if ended.is_none() {
                log::warn!(dataset = %wanted.dataset, aborted = %is_aborted, "not ended");
                return Err(busy(&wanted.dataset));
            }
            return Ok(None);
        }
        connected.fuse.refresh().await?;
        let Some(place) = self.also_at(&connected, place, options).await? else {
            return Ok(None);
        };
        connected.fuse.set(options);
        let (wanted, options) = (wanted.clone(), options.clone());
        Ok(Some(Mounted { place, wanted, options, ..connected }))
    }

    /// Mounts a file system that has a connection at a place, and returns that place with links
    /// resolved. Returns `None` if the connection has ended.
    pub(super) async fn also_at(
        &self,
        connected: &Mounted,
        place: &Path,
        options: &MountOptions,
    ) -> Result<Option<PathBuf>, Exit> {
        let dataset = &connected.wanted.dataset;
        let before = &connected.options;
        let is_same = before.allow_other == options.allow_other
            && before.is_writeback == options.is_writeback;
        if self.state().is_left {
            let why = format!("cannot mount '{dataset}': the daemon is stopping");
            return Err(Exit::NotMounted(why));
        }
        let fuse = &connected.fuse;
        let is_detached = fuse.places(&MountTable::read()?).is_empty();
        let is_wider = before.is_read_only && !options.is_read_only;
        let mounted = if !is_same || is_wider && !is_detached {
            return Err(busy(dataset));
        } else if is_detached {
            fuse.mount_again(place, options).await
        } else {
            fuse.also_at(place, options).await.map(Some)
        };
        match mounted {
            Ok(Some(at)) => {
                log::info!(dataset = %dataset, at = %at.display(), "mounted");
                Ok(Some(at))
            }
            Ok(None) => Ok(None),
            // Only root can mount it a second time.
            Err(error) if error.kind() == Kind::Permission => Err(busy(dataset)),
            Err(error) => Err(Exit::NotMounted(format!("cannot mount '{dataset}': {error}"))),
        }
    }
}

fn busy(dataset: &str) -> Exit {
    Exit::NotMounted(format!("cannot mount '{dataset}': mountpoint or dataset is busy"))
}
