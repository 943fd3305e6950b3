//! The mounted file systems of a pool.
//!
//! The properties `mountpoint` and `canmount` determine where a file system is mounted. After a
//! change of the pool (create, rename, set), new file systems are mounted, those with another mount
//! point are moved, and destroyed ones are unmounted. File systems that a user unmounted stay
//! unmounted. A rollback keeps the mount ([`rollback`](super::rollback)).
//!
//! A file system can be mounted at several places: its own, which its properties or its first mount
//! determined, and others where it was mounted again. The kernel's mount table is authoritative.
//! Properties move only the mount in its own place.
//!
//! **After a command** only the changed datasets are read, which the engine lists
//! ([`Datasets::take_changes`]). If a mount cannot be adapted, this is tried again after each
//! command; the failure is reported to the command that changed its dataset.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_cli::{CommandResult, Exit, MountRequest, TemporarilyUnmounted};
use cenote_engine::{ChangedDatasets, Engine};
use cenote_fs::Mount;
use cenote_pool::DatasetKind;
use cenote_rt::lock::{AsyncMutex, Mutex, MutexGuard, Rank};
use cenote_rt::{Kind, stages};
use cenote_serve::fuse::{self, FuseMount, MountOptions, MountTable, Transport, Unmount};

use super::log;
use super::wanted::{CANMOUNT_OFF, CANMOUNT_ON, Look, Scope, Wanted};

/// Deadline for the last requests of unmounted file systems.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// The mounts of one pool.
pub(super) struct Mounts {
    pub(super) engine: Arc<Engine>,
    // Held for a whole change, across awaits: mounts and unmounts are serialized.
    pub(super) changing: AsyncMutex<()>,
    // Held for single reads and updates, never across an await.
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// By dataset number.
    pub(super) mounted: BTreeMap<u64, Mounted>,
    /// File systems that are mounted nowhere, but whose connections live
    /// ([`connections`](super::connections)).
    pub(super) detached: BTreeMap<u64, Mounted>,
    /// Number of changes of `mounted`.
    changes: u64,
    /// The daemon is stopping: nothing is mounted any more, since it would not be unmounted.
    pub(super) is_left: bool,
    /// File systems that existed before.
    pub(super) known: BTreeMap<u64, Known>,
    /// Folders of mount points that file systems have left, to be removed if they are empty.
    left_folders: Vec<PathBuf>,
    /// Datasets whose mounts are yet to be adapted to their properties.
    pub(super) pending: ChangedDatasets,
}

/// A file system that existed before.
pub(super) struct Known {
    guid: u64,
    pub(super) dataset: String,
    mountpoint: String,
    place: Option<PathBuf>,
    is_by_default: bool,
}

impl Known {
    /// The folder of its mount point, if no user has chosen it.
    fn folder(&self) -> Option<PathBuf> {
        self.place.clone().filter(|_| self.is_by_default)
    }
}

impl State {
    /// Records a file system. Returns whether to mount it: it is new, or its mount point was
    /// changed. One that was only renamed stays as it was.
    pub(super) fn knows(&mut self, wanted: &Wanted) -> bool {
        if let Some(detached) = self.detached.get_mut(&wanted.object)
            && detached.wanted.guid == wanted.guid
        {
            detached.wanted = wanted.clone();
        }
        let now = Known {
            guid: wanted.guid,
            dataset: wanted.dataset.clone(),
            mountpoint: wanted.mountpoint.clone(),
            place: wanted.place.clone(),
            is_by_default: wanted.is_by_default,
        };
        let place = now.place.clone();
        let before = self.known.insert(wanted.object, now);
        if let Some(before) = before.as_ref().filter(|before| before.place != place) {
            self.left_folders.extend(before.folder());
        }
        match before {
            Some(before) if before.guid == wanted.guid => {
                before.dataset == wanted.dataset && before.mountpoint != wanted.mountpoint
            }
            _ => true,
        }
    }

    /// Forgets file systems that do not exist any more.
    pub(super) fn forget(&mut self, is_gone: impl Fn(u64, &Known) -> bool) {
        let gone = self.known.extract_if(.., |object, known| is_gone(*object, known));
        self.left_folders.extend(gone.filter_map(|(_, known)| known.folder()));
    }

    /// Returns the folders that file systems have left since the last call, nested ones first.
    fn take_left_folders(&mut self) -> Vec<PathBuf> {
        let mut left = std::mem::take(&mut self.left_folders);
        if left.is_empty() {
            return left;
        }
        let places: BTreeSet<_> =
            self.known.values().filter_map(|known| known.place.as_ref()).collect();
        left.retain(|folder| !places.contains(folder));
        left.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
        left
    }
}

#[derive(Clone)]
pub(super) struct Mounted {
    pub(super) fuse: Arc<FuseMount>,
    /// Its own place.
    pub(super) place: PathBuf,
    /// The properties at the last look.
    pub(super) wanted: Wanted,
    /// Current options: those of properties, and those given for this mount.
    pub(super) options: MountOptions,
    /// The number of the change that mounted it, see [`Mounts::notice`].
    pub(super) change: u64,
}

impl Mounts {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        // Before the first mount, so that no later change is missed.
        engine.datasets().keep_changes();
        Self {
            engine: Arc::clone(engine),
            changing: AsyncMutex::new(Rank::DaemonMounts, ()),
            state: Mutex::with_default(Rank::DaemonMountTable),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the mounted datasets with their places, and how their requests come; each place has
    /// its position in the mount table.
    pub(super) fn list(&self, table: &MountTable) -> Vec<(usize, String, PathBuf, Transport)> {
        let state = self.state();
        let places = state.mounted.values().flat_map(|mounted| {
            let dataset = &mounted.wanted.dataset;
            let transport = mounted.fuse.transport();
            let places = mounted.fuse.places(table).into_iter();
            places.map(move |(order, at)| (order, dataset.clone(), at, transport))
        });
        places.collect()
    }

    /// Mounts everything whose properties say so.
    pub(super) async fn mount_all(&self) -> CommandResult {
        self.mount_all_with("").await
    }

    /// Like [`mount_all`](Self::mount_all), with mount options that override properties.
    pub(super) async fn mount_all_with(&self, given: &str) -> CommandResult {
        let _changing = self.changing.lock().await;
        let wanted = Look::at(&self.engine, Scope::All).await?.wanted;
        let mut failures = Vec::new();
        for wanted in &wanted {
            self.state().knows(wanted);
        }
        for wanted in wanted.iter().filter(|wanted| wanted.canmount == CANMOUNT_ON) {
            let is_mounted = self.state().mounted.contains_key(&wanted.object);
            if !is_mounted && wanted.comes_by_itself() {
                let options = wanted.options.clone().with(given);
                let mounted = match options {
                    Ok(options) => self.start(wanted, &options.permitted()).await,
                    Err(error) => {
                        let dataset = &wanted.dataset;
                        Err(Exit::NotMounted(format!("cannot mount '{dataset}': {error}")))
                    }
                };
                failures.extend(mounted.err());
            }
        }
        first(&failures)
    }

    /// Mounts one file system.
    pub(super) async fn mount(&self, dataset: &str, request: &MountRequest) -> CommandResult {
        let _changing = self.changing.lock().await;
        let cannot = |why: &str| Exit::failed(format!("cannot mount '{dataset}': {why}"));
        let view = self.engine.view().await?;
        let mut wanted = match view.dataset(dataset).await {
            Ok(found) if found.is_inconsistent() => {
                return Err(cannot(
                    "Contains partially-completed state from \"zfs receive -s\", which can be \
                     resumed with \"zfs send -t\"",
                ));
            }
            Ok(found) if found.kind().await? == DatasetKind::Filesystem => {
                Wanted::of(&self.engine, &found).await?
            }
            _ => {
                return Err(Exit::failed(format!(
                    "cannot open '{dataset}': dataset does not exist"
                )));
            }
        };
        let mounted = self.mounted(wanted.object);
        match (&mounted, request.is_remount) {
            (Some(_), false) if request.place.is_none() => {
                return Err(cannot("filesystem already mounted"));
            }
            (None, true) => return Err(cannot("filesystem is not mounted")),
            _ => {}
        }
        match (wanted.mountpoint.as_str(), &request.place) {
            (_, Some(_)) => wanted.place.clone_from(&request.place),
            _ if wanted.canmount == CANMOUNT_OFF => {
                return Err(cannot("'canmount' property is set to 'off'"));
            }
            ("legacy", _) => {
                return Err(cannot("legacy mountpoint\nuse mount(8) to mount this filesystem"));
            }
            ("none", _) => return Err(cannot("no mountpoint set")),
            _ => {}
        }
        if wanted.is_redacted && !request.is_forced && mounted.is_none() {
            return Err(cannot(
                "Dataset is not complete, was created by receiving a redacted zfs send stream.",
            ));
        }
        if wanted.is_zoned {
            return Err(cannot("dataset is exported to a local zone"));
        }
        if wanted.is_locked {
            return Err(cannot("encryption key not loaded"));
        }
        wanted.is_overlay |= request.is_overlay;
        let options = wanted.options.clone().with(&request.options);
        let mut options = options.map_err(|error| cannot(&error.to_string()))?.permitted();
        options.is_read_only |= self.engine.is_read_only();
        let Some(mounted) = mounted else { return self.start(&wanted, &options).await };
        let Some(place) = request.place.as_ref().filter(|_| !request.is_remount) else {
            return self.give(&mounted, &wanted, options).await;
        };
        let of_files = mounted.options.clone().with_place_options(&options);
        if of_files != options {
            return Err(cannot("it is mounted with other options already"));
        }
        wanted.make_room(place).await?;
        if !rustix::process::geteuid().is_root() {
            return Err(cannot("filesystem already mounted"));
        }
        match self.also_at(&mounted, place, &options).await? {
            Some(_) => Ok(()),
            // It was unmounted just now.
            None => self.start(&wanted, &options).await,
        }
    }

    /// Unmounts a file system: at the given place, or with its descendants, each in its own place
    /// or else where it was mounted first. Unmounts all of them, or none. Their changes are on the
    /// devices afterwards, unless the pool is suspended.
    pub(super) async fn unmount(
        &self,
        dataset: &str,
        place: Option<&Path>,
        is_forced: bool,
    ) -> CommandResult {
        let unmounted = self.unmount_now(dataset, place, is_forced).await?;
        // Without the lock: other mounts and unmounts do not wait for the devices.
        let written = self.engine.write_out(&unmounted).await;
        written.map_err(|error| {
            Exit::failed(format!("cannot write the changes of '{dataset}': {error}"))
        })
    }

    /// Does the work of [`unmount`](Self::unmount) except for writing. Returns the objects of the
    /// datasets.
    async fn unmount_now(
        &self,
        dataset: &str,
        place: Option<&Path>,
        is_forced: bool,
    ) -> Result<Vec<u64>, Exit> {
        let _changing = self.changing.lock().await;
        let table = MountTable::read()?;
        let found = {
            let state = self.state();
            state.mounted.values().find(|mounted| mounted.wanted.dataset == dataset).cloned()
        };
        let not_mounted =
            || Exit::failed(format!("cannot unmount '{dataset}': not currently mounted"));
        let mounted = found.ok_or_else(not_mounted)?;
        if let Some(place) = place {
            if !mounted.is_at(place, &table) {
                return Err(not_mounted());
            }
            self.end_at(&mounted, place, is_forced, &table).await?;
            return Ok(vec![mounted.wanted.object]);
        }
        if mounted.at(&table).is_none() {
            return Err(not_mounted());
        }
        let below = format!("{dataset}/");
        let is_meant = |mounted: &Mounted, at: &Path| {
            let name = &mounted.wanted.dataset;
            (name == dataset || name.starts_with(&below))
                && mounted.at(&table).as_deref() == Some(at)
        };
        let unmounted = self.end_those(is_meant, is_forced, &table).await?;
        Ok(unmounted.iter().map(|unmounted| unmounted.object).collect())
    }

    /// Unmounts the given mounts: all of them, or none.
    async fn end_those(
        &self,
        is_meant: impl Fn(&Mounted, &Path) -> bool,
        is_forced: bool,
        table: &MountTable,
    ) -> Result<Vec<TemporarilyUnmounted>, Exit> {
        let (mut unmounted, mut ended, mut failure) = (Vec::new(), Vec::new(), None);
        for (object, at) in self.latest_first(table) {
            let Some(mounted) = self.mounted(object).filter(|mounted| is_meant(mounted, &at))
            else {
                continue;
            };
            match self.detach_at(&mounted, &at, is_forced, table).await {
                Ok(is_last_place) => {
                    unmounted.push(mounted.unmounted());
                    ended.extend(is_last_place.then_some(mounted));
                }
                Err(exit) => {
                    failure = Some(exit);
                    break;
                }
            }
        }
        self.settle(&ended).await;
        let Some(exit) = failure else { return Ok(unmounted) };
        let back = self.back(&unmounted).await.err();
        let failures: Vec<Exit> = std::iter::once(exit).chain(back).collect();
        first(&failures).map(|()| unmounted)
    }

    /// Unmounts those of the file systems that are in their own places; with force, those at any
    /// place. Unmounts all of them, or none.
    pub(super) async fn unmount_temporarily(
        &self,
        datasets: &[String],
        is_forced: bool,
    ) -> Result<Vec<TemporarilyUnmounted>, Exit> {
        let _changing = self.changing.lock().await;
        let table = MountTable::read()?;
        let is_meant = |mounted: &Mounted, at: &Path| {
            datasets.contains(&mounted.wanted.dataset) && (is_forced || at == mounted.place)
        };
        self.end_those(is_meant, is_forced, &table).await
    }

    /// Mounts temporarily unmounted file systems again, where their properties now say.
    pub(super) async fn mount_again(&self, unmounted: &[TemporarilyUnmounted]) -> CommandResult {
        let _changing = self.changing.lock().await;
        self.back(unmounted).await
    }

    async fn back(&self, unmounted: &[TemporarilyUnmounted]) -> CommandResult {
        let mut failures = Vec::new();
        let table = MountTable::read()?;
        let datasets: Vec<_> = {
            let state = self.state();
            let name = |object| state.known.get(&object).map(|known| known.dataset.clone());
            unmounted.iter().map(|one| (one.object, name(one.object))).collect()
        };
        // Parents before children.
        for mut now in Look::at(&self.engine, Scope::Numbers(&datasets)).await?.wanted {
            let Some(before) = unmounted.iter().find(|before| before.object == now.object) else {
                continue;
            };
            self.state().knows(&now);
            let is_back = self
                .mounted(now.object)
                .is_some_and(|mounted| mounted.is_at(&mounted.place, &table));
            if is_back || now.canmount == CANMOUNT_OFF || now.is_locked {
                continue;
            }
            let mut options = now.options.clone();
            if now.place.is_none() && now.mountpoint == before.mountpoint {
                // Its place did not depend on properties.
                now.place = Some(before.place.clone());
                options = before.options.clone();
            }
            failures.extend(self.start(&now, &options).await.err());
        }
        first(&failures)
    }

    /// Unmounts everything, the latest mount first, and removes the directories of default mount
    /// points.
    pub(super) async fn unmount_all(&self, is_forced: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        let (mut folders, mut unmounted, mut failure) = (Vec::new(), Vec::new(), None);
        let table = MountTable::read()?;
        for (object, at) in self.latest_first(&table) {
            let Some(mounted) = self.mounted(object) else { continue };
            match self.detach_at(&mounted, &at, is_forced, &table).await {
                Ok(is_last_place) => {
                    let is_ours = mounted.wanted.is_by_default && at == mounted.place;
                    folders.extend(is_ours.then_some(at));
                    unmounted.extend(is_last_place.then_some(mounted));
                }
                Err(exit) => {
                    failure = Some(exit);
                    break;
                }
            }
        }
        self.settle(&unmounted).await;
        if let Some(exit) = failure {
            return Err(exit);
        }
        for folder in folders {
            let _ = fuse::remove_folder(&folder).await;
        }
        Ok(())
    }

    /// Removes the folders of mount points that file systems have left, as OpenZFS does: those that
    /// no user has chosen, and that are empty.
    pub(super) async fn remove_left_folders(&self) {
        let left = self.state().take_left_folders();
        for folder in left {
            // A folder in use stays.
            let _ = fuse::remove_folder(&folder).await;
        }
    }

    /// Unmounts everything by force, when the process ends.
    pub(super) async fn leave(&self) {
        let _changing = self.changing.lock().await;
        self.state().is_left = true;
        let Ok(table) = MountTable::read() else { return };
        let mut unmounted = Vec::new();
        for (object, at) in self.latest_first(&table) {
            let Some(mounted) = self.mounted(object) else { continue };
            match self.detach_at(&mounted, &at, true, &table).await {
                Ok(is_last_place) => unmounted.extend(is_last_place.then_some(mounted)),
                Err(exit) => log::warn!(cause = %exit.message(), "not unmounted"),
            }
        }
        self.settle(&unmounted).await;
        self.end_detached().await;
    }

    /// Ends the connections of all mounts and detaches them: the pool was closed by force, and
    /// requests that wait for its devices would block an unmount. May run concurrently with
    /// [`leave`](Self::leave), which unmounts the others.
    pub(super) async fn cut_off(&self) {
        let Ok(table) = MountTable::read() else { return };
        let places = |fuse: Arc<FuseMount>| (fuse.places(&table), fuse);
        for (places, fuse) in self.connections().into_iter().map(places) {
            // A mount whose connection has ended is removed from the list, so it must be detached
            // here.
            fuse.cut_off().await;
            for (_, at) in places {
                // It may have been unmounted meanwhile.
                let _ = fuse.unmount(&at, Unmount::Detach).await;
            }
        }
    }

    /// Mounts a file system in its own place. If that fails, the folder does not stay: files would
    /// be written to it, in another file system.
    pub(super) async fn start(&self, wanted: &Wanted, options: &MountOptions) -> CommandResult {
        let Some(place) = &wanted.place else { return Ok(()) };
        let started = self.start_at(wanted, place, options).await;
        if started.is_err() && wanted.is_by_default && self.mounted(wanted.object).is_none() {
            let _ = fuse::remove_folder(place).await;
        }
        started.map_err(|exit| match self.hint_about(wanted, place) {
            Some(hint) => Exit::NotMounted(format!("{}\n{hint}", exit.message())),
            None => exit,
        })
    }

    /// Explains why a user other than root cannot mount at a place inside of another mount, which
    /// `fusermount3` refuses, and what to do.
    fn hint_about(&self, wanted: &Wanted, place: &Path) -> Option<String> {
        if rustix::process::geteuid().is_root() {
            return None;
        }
        let state = self.state();
        let holds =
            |mounted: &&Mounted| place != mounted.place && place.starts_with(&mounted.place);
        let parent = state
            .mounted
            .values()
            .filter(holds)
            .max_by_key(|mounted| mounted.place.components().count())?;
        let below = place.strip_prefix(&parent.place).ok()?;
        let mut beside = parent.place.clone().into_os_string();
        for part in below {
            beside.push("-");
            beside.push(part);
        }
        Some(format!(
            "only root mounts inside of '{}'; choose a folder outside, for example with\n\
             'zfs set mountpoint={} {}'",
            parent.place.display(),
            Path::new(&beside).display(),
            wanted.dataset
        ))
    }

    async fn start_at(
        &self,
        wanted: &Wanted,
        place: &Path,
        options: &MountOptions,
    ) -> CommandResult {
        let dataset = &wanted.dataset;
        let cannot = |why: String| Exit::NotMounted(format!("cannot mount '{dataset}': {why}"));
        if self.state().is_left {
            return Err(cannot("the daemon is stopping".to_owned()));
        }
        wanted.make_room(place).await?;
        stages::reach("mount-room-made");
        // Invariant MOUNT-1.
        if let Some(mounted) = self.mount_connected(wanted, place, options).await? {
            self.insert(mounted);
            return Ok(());
        }
        // The property itself prevents changes, and may be changed soon.
        let is_fixed = options.is_read_only && !wanted.options.is_read_only;
        let opened = if is_fixed || self.engine.is_read_only() {
            Mount::open_read_only(&self.engine, dataset).await
        } else {
            match Mount::open(&self.engine, dataset).await {
                // A file system with unsupported features for writing, or with keys of the first
                // development format, can be mounted read-only.
                Err(error)
                    if options.is_read_only
                        && matches!(error.kind(), Kind::Unsupported | Kind::ReadOnly) =>
                {
                    Mount::open_read_only(&self.engine, dataset).await
                }
                opened => opened,
            }
        };
        let mount = opened.map_err(|error| match error.kind() {
            // It was unloaded since it was looked at.
            Kind::KeyUnavailable => cannot("encryption key not loaded".to_owned()),
            _ => cannot(error.to_string()),
        })?;
        stages::reach("mount-dataset-opened");
        let fuse = FuseMount::start(mount, place, options).await;
        let fuse = Arc::new(fuse.map_err(|error| cannot(error.to_string()))?);
        log::info!(dataset = %dataset, at = %fuse.at().display(), "mounted");
        let (place, wanted, options) = (fuse.at().to_owned(), wanted.clone(), options.clone());
        self.insert(Mounted { fuse, place, wanted, options, change: 0 });
        Ok(())
    }

    fn insert(&self, mut mounted: Mounted) {
        let object = mounted.wanted.object;
        let before = {
            let mut state = self.state();
            state.changes += 1;
            mounted.change = state.changes;
            // Under the lock of the state, see `Mounts::notice`.
            self.tell(object, &mounted.options);
            (state.mounted.insert(object, mounted), state.detached.remove(&object))
        };
        // Connections are dropped without the lock.
        drop(before);
    }

    pub(super) fn mounted(&self, object: u64) -> Option<Mounted> {
        self.state().mounted.get(&object).cloned()
    }

    /// Unmounts a file system at a place, and waits for its end if that was its last place.
    pub(super) async fn end_at(
        &self,
        mounted: &Mounted,
        at: &Path,
        is_forced: bool,
        table: &MountTable,
    ) -> CommandResult {
        if self.detach_at(mounted, at, is_forced, table).await? {
            self.settle(std::slice::from_ref(mounted)).await;
        }
        Ok(())
    }

    /// Unmounts a file system at a place. Returns true if that was its last place: the caller then
    /// passes it to [`settle`](Self::settle). The table is read again only for file systems at
    /// several places in `table`, so that unmounting thousands reads it once.
    pub(super) async fn detach_at(
        &self,
        mounted: &Mounted,
        at: &Path,
        is_forced: bool,
        table: &MountTable,
    ) -> Result<bool, Exit> {
        let is_elsewhere = mounted.fuse.places(table).len() > 1
            && mounted.fuse.places(&MountTable::read()?).len() > 1;
        // Force ends the connection, and so affects every place.
        let how = if is_forced { Unmount::Force } else { Unmount::Plain };
        if let Err(error) = mounted.fuse.unmount(at, how).await {
            let why = match error.kind() {
                Kind::Busy => "pool or dataset is busy".to_owned(),
                _ => error.to_string(),
            };
            return Err(Exit::failed(format!("cannot unmount '{}': {why}", at.display())));
        }
        let (dataset, at) = (&mounted.wanted.dataset, at.display());
        log::info!(dataset = %dataset, at = %at, forced = %is_forced, "unmounted");
        stages::reach("unmount-detached");
        Ok(!is_elsewhere)
    }

    /// Returns the dataset number and place of each mount, the latest first: it may hide earlier
    /// ones, and mounts inside of another were mounted after it.
    pub(super) fn latest_first(&self, table: &MountTable) -> Vec<(u64, PathBuf)> {
        let state = self.state();
        let places = state.mounted.iter().flat_map(|(object, mounted)| {
            let places = mounted.fuse.places(table).into_iter();
            places.map(|(order, at)| (order, *object, at))
        });
        let mut places: Vec<_> = places.collect();
        places.sort_unstable_by(|one, other| other.cmp(one));
        places.into_iter().map(|(_, object, at)| (object, at)).collect()
    }
}

impl Mounted {
    /// Returns the state that is needed to mount it again.
    fn unmounted(&self) -> TemporarilyUnmounted {
        TemporarilyUnmounted {
            object: self.wanted.object,
            mountpoint: self.wanted.mountpoint.clone(),
            place: self.place.clone(),
            options: self.options.clone(),
        }
    }

    fn is_at(&self, place: &Path, table: &MountTable) -> bool {
        self.fuse.places(table).iter().any(|(_, at)| at == place)
    }

    /// Returns its own place, or if it is not mounted there, the first place.
    pub(super) fn at(&self, table: &MountTable) -> Option<PathBuf> {
        let places = self.fuse.places(table);
        let own = places.iter().find(|(_, at)| *at == self.place);
        own.or(places.first()).map(|(_, at)| at.clone())
    }
}

pub(super) fn first(failures: &[Exit]) -> CommandResult {
    let texts: Vec<String> = failures.iter().map(Exit::message).collect();
    if texts.is_empty() {
        return Ok(());
    }
    let is_all = failures.iter().all(|exit| matches!(exit, Exit::NotMounted(_)));
    Err(if is_all { Exit::NotMounted(texts.join("\n")) } else { Exit::failed(texts.join("\n")) })
}
