//! Adapts the mounts of a pool to changed properties after a command.
//!
//! ```text
//!   engine: names of changed datasets ──> Look (reads those) ──> mounts in that scope
//!             pending from before ────────^                        │ failed, suspended
//!                     ^────────────────────────────────────────────┘
//! ```
//!
//! The work is proportional to the number of changes: a pool with thousands of file systems is read
//! as a whole only when it is imported, and when everything is mounted (`zfs mount -a`). If a mount
//! cannot be adapted, this is tried again after each command; the failure is reported to the
//! command that changed its dataset.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cenote_cli::{CommandResult, Exit};
use cenote_engine::ChangedDatasets;
use cenote_rt::Kind;
use cenote_rt::lock::{Mutex, Rank};
use cenote_serve::fuse::{MountOptions, MountTable};

use super::log;
use super::mounts::{Mounted, Mounts, first};
use super::wanted::{CANMOUNT_OFF, CANMOUNT_ON, Look, Scope, Wanted};

/// State of adapting the mounts of a pool.
#[derive(Default)]
struct Following {
    /// Datasets to adapt.
    scope: ChangedDatasets,
    /// The datasets of `scope` that the current command changed.
    changed: ChangedDatasets,
    /// File systems that were unmounted to be mounted elsewhere, by number.
    again: BTreeSet<u64>,
    /// File systems that stay in their places for now, by number: they could not be unmounted.
    kept: BTreeSet<u64>,
    failures: Vec<Exit>,
    /// Datasets to adapt again later.
    pending: ChangedDatasets,
}

impl Following {
    /// Records the result for a mount. A failure is reported if the dataset changed just now, and
    /// logged if it was reported before.
    fn note(&mut self, dataset: &str, done: CommandResult) {
        let Err(exit) = done else { return };
        self.pending.insert(dataset);
        if self.changed.contains(dataset) {
            self.failures.push(exit);
        } else {
            log::debug!(dataset = %dataset, cause = %exit.message(), "mount not changed yet");
        }
    }
}

impl Mounts {
    /// Adapts the mounts of changed datasets to their properties. With `is_quiet` they stay as they
    /// are until the properties change again.
    pub(super) async fn follow(&self, is_quiet: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        let pending = self.state().pending.clone();
        let changed = Mutex::with_default(Rank::DaemonChanged);
        let scope = Scope::Changed { pending: &pending, changed: &changed };
        let looked = Look::at(&self.engine, scope).await;
        let changed = changed.into_inner();
        // If anything fails from here on, these datasets are processed again.
        self.state().pending.merge(changed.clone());
        let Look { wanted, read_count } = looked?;
        let mut scope = pending;
        scope.merge(changed.clone());
        let mut following = Following { scope, changed, ..Following::default() };
        let mounts_count = self.follow_mounted(&wanted, is_quiet, &mut following).await?;
        for wanted in &wanted {
            let is_called = self.state().knows(wanted);
            let is_again = following.again.contains(&wanted.object);
            let comes = (is_called && !is_quiet && wanted.canmount == CANMOUNT_ON)
                || (is_again && wanted.canmount != CANMOUNT_OFF);
            // Otherwise it would be mounted at both places.
            let comes = comes && !following.kept.contains(&wanted.object);
            let is_requested = is_again && wanted.is_redacted && wanted.place.is_some();
            if comes && (wanted.comes_by_itself() || is_requested) {
                following.failures.extend(self.start(wanted, &wanted.options).await.err());
            }
        }
        let objects: BTreeSet<u64> = wanted.iter().map(|wanted| wanted.object).collect();
        {
            let mut state = self.state();
            state.forget(|object, known| {
                !objects.contains(&object) && following.scope.contains(&known.dataset)
            });
            state.pending = following.pending;
        }
        self.remove_left_folders().await;
        let pool = self.engine.name();
        log::debug!(pool = %pool, datasets = %read_count, mounts = %mounts_count, "mounts followed");
        first(&following.failures)
    }

    /// Unmounts or changes the mounted datasets of the scope. Returns how many were examined.
    async fn follow_mounted(
        &self,
        wanted: &[Wanted],
        is_quiet: bool,
        following: &mut Following,
    ) -> Result<usize, Exit> {
        let by_object: BTreeMap<u64, &Wanted> =
            wanted.iter().map(|wanted| (wanted.object, wanted)).collect();
        let mut in_scope = BTreeSet::new();
        for (object, mounted) in &self.state().mounted {
            let is_in_scope =
                by_object.contains_key(object) || following.scope.contains(&mounted.wanted.dataset);
            in_scope.extend(is_in_scope.then_some(*object));
        }
        if in_scope.is_empty() {
            return Ok(0);
        }
        let table = MountTable::read()?;
        let mut unmounted = Vec::new();
        for (object, at) in self.latest_first(&table) {
            let mounted = self.mounted(object).filter(|_| in_scope.contains(&object));
            let Some(mounted) = mounted else { continue };
            let now = by_object.get(&object).copied();
            let now = now.filter(|now| now.guid == mounted.wanted.guid);
            let name = now.map_or(&mounted.wanted.dataset, |now| &now.dataset);
            if mounted.fuse.is_suspended() {
                // A rollback is running; the dataset is processed again afterwards.
                following.pending.insert(name);
                following.kept.insert(object);
                continue;
            }
            // A destroyed dataset, or one that could not be opened after a rollback, serves no
            // requests any more.
            let is_gone = now.is_none_or(|now| now.is_redacted && !mounted.wanted.is_redacted)
                || mounted.fuse.mount().head().is_gone();
            if let Some(now) = now.filter(|_| !is_gone) {
                if Some(&at) != mounted.at(&table).as_ref() {
                    continue;
                }
                let refreshed = mounted.fuse.refresh().await;
                following.note(name, refreshed.map_err(Exit::from));
                if is_quiet {
                    self.note(now);
                    continue;
                }
                if mounted.wanted.stays(now) || at != mounted.place {
                    following.note(name, self.adjust(&mounted, now).await);
                    continue;
                }
            }
            match self.detach_at(&mounted, &at, is_gone, &table).await {
                Ok(is_last_place) => {
                    unmounted.extend(is_last_place.then(|| mounted.clone()));
                    following.again.extend(now.map(|now| now.object));
                }
                Err(exit) => {
                    following.note(name, Err(exit));
                    following.kept.insert(object);
                }
            }
        }
        self.settle(&unmounted).await;
        Ok(in_scope.len())
    }

    /// Records the current properties without acting on them.
    fn note(&self, now: &Wanted) {
        if let Some(mounted) = self.state().mounted.get_mut(&now.object) {
            mounted.wanted = now.clone();
        }
    }

    /// Applies the options in the current properties to a mount.
    async fn adjust(&self, mounted: &Mounted, now: &Wanted) -> CommandResult {
        let (before, mut options) = (&mounted.wanted.options, mounted.options.clone());
        // A property that was just set overrides its mount option; the others stay.
        let presence = self.engine.presence();
        let is_set = |name| presence.option(now.object, name).is_none();
        let ([atime, relatime], given) = (mounted.wanted.noting, &mut options.access_times);
        let is_atime_same = atime == now.noting[0] && !is_set("atime");
        let is_relatime_same = relatime == now.noting[1] && !is_set("relatime");
        given.has_atime = given.has_atime.filter(|_| is_atime_same);
        given.is_relatime = given.is_relatime.filter(|_| is_relatime_same);
        options.has_no_xattrs &= !is_set("xattr");
        let follow = |name, before: bool, now: bool, option: &mut bool| {
            if before != now || is_set(name) {
                *option = now;
            }
        };
        let wanted = &now.options;
        follow("readonly", before.is_read_only, wanted.is_read_only, &mut options.is_read_only);
        follow("setuid", before.nosuid, wanted.nosuid, &mut options.nosuid);
        follow("devices", before.nodev, wanted.nodev, &mut options.nodev);
        follow("exec", before.noexec, wanted.noexec, &mut options.noexec);
        if mounted.wanted.has_posix_acls != now.has_posix_acls
            && self.renew(mounted, now, &options).await?
        {
            return Ok(());
        }
        if options == mounted.options {
            self.note(now);
            return Ok(());
        }
        self.give(mounted, now, options).await
    }

    /// Gives a mount other options.
    pub(super) async fn give(
        &self,
        mounted: &Mounted,
        now: &Wanted,
        options: MountOptions,
    ) -> CommandResult {
        let dataset = &now.dataset;
        let busy =
            || Exit::failed(format!("cannot remount '{dataset}': mountpoint or dataset is busy"));
        let table = MountTable::read()?;
        let Some(at) = mounted.at(&table) else { return Ok(()) };
        let is_elsewhere = mounted.fuse.places(&table).len() > 1;
        if mounted.fuse.mount().is_opened_read_only() && !options.is_read_only {
            if is_elsewhere {
                return Err(busy());
            }
            // The mount is read-only and cannot be changed: it is mounted again, unless it is in
            // use.
            return self.replace(mounted, &at, now, &options).await;
        }
        let (access_times, has_no_xattrs) = (options.access_times, options.has_no_xattrs);
        let before = mounted.options.clone();
        let is_kernels = MountOptions { access_times, has_no_xattrs, ..before } != options;
        let given = if is_kernels {
            mounted.fuse.remount(&at, &options).await
        } else {
            mounted.fuse.set(&options);
            Ok(())
        };
        match given {
            Ok(()) => {
                self.tell(now.object, &options);
                if let Some(mounted) = self.state().mounted.get_mut(&now.object) {
                    (mounted.wanted, mounted.options) = (now.clone(), options);
                }
                Ok(())
            }
            // Only root can change it; it is mounted again, unless it is in use.
            Err(error) if error.kind() == Kind::Permission && !is_elsewhere => {
                self.replace(mounted, &at, now, &options).await
            }
            Err(error) if error.kind() == Kind::Busy => Err(busy()),
            Err(error) => Err(Exit::failed(format!("cannot remount '{dataset}': {error}"))),
        }
    }

    /// Mounts a file system again, because its connection was told at its beginning who checks
    /// ACLs; returns false if it is in use, so that the change waits for the next mount.
    async fn renew(
        &self,
        mounted: &Mounted,
        now: &Wanted,
        options: &MountOptions,
    ) -> Result<bool, Exit> {
        let table = MountTable::read()?;
        let Some(at) = mounted.at(&table).filter(|_| mounted.fuse.places(&table).len() == 1) else {
            return Ok(false);
        };
        match self.replace(mounted, &at, now, options).await {
            Ok(()) => Ok(true),
            Err(_) if self.mounted(now.object).is_some() => Ok(false),
            Err(exit) => Err(exit),
        }
    }

    /// Mounts a file system again, with options that its connection does not permit, unless it is
    /// in use. If programs use it elsewhere, it keeps its connection, and its options.
    async fn replace(
        &self,
        mounted: &Mounted,
        at: &Path,
        now: &Wanted,
        options: &MountOptions,
    ) -> CommandResult {
        self.end_at(mounted, at, false, &MountTable::read()?).await?;
        let done = self.start(now, options).await;
        if done.is_err() && !self.state().mounted.contains_key(&now.object) {
            // Its own error would be the same one.
            let _ = self.start(now, &mounted.options).await;
        }
        done
    }

    /// Shows the mount options in the dataset's properties.
    pub(super) fn tell(&self, object: u64, options: &MountOptions) {
        let (given, has_no_xattrs) = (options.access_times, options.has_no_xattrs);
        let mut options = vec![
            ("readonly", u64::from(options.is_read_only)),
            ("setuid", u64::from(!options.nosuid)),
            ("devices", u64::from(!options.nodev)),
            ("exec", u64::from(!options.noexec)),
        ];
        options.extend(has_no_xattrs.then_some(("xattr", 0)));
        options.extend(given.has_atime.map(|is_on| ("atime", u64::from(is_on))));
        options.extend(given.is_relatime.map(|is_on| ("relatime", u64::from(is_on))));
        self.engine.presence().mounted(object, options);
    }
}
