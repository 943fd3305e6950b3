//! What is mounted of a pool.
//!
//! Where a file system is mounted is a matter of its properties: `mountpoint`, `canmount`. A change
//! of a pool (creation, renaming, setting) is followed: file systems that are new are mounted, what
//! is mounted elsewhere than it should be moves, what has gone is unmounted. What somebody
//! unmounted stays unmounted. What is rolled back stays mounted ([`rollback`](super::rollback)).
//!
//! A file system can be at several places: its own, where properties or whoever mounted it first
//! put it, and others where somebody mounted it again. Where it is now the kernel says. Properties
//! move what is in its own place and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_cli::{CommandResult, Exit, MountRequest, TemporarilyUnmounted};
use cenote_engine::Engine;
use cenote_fs::Mount;
use cenote_pool::DatasetKind;
use cenote_rt::{AsyncMutex, Kind, stages};
use cenote_serve::fuse::{self, FuseMount, MountOptions, MountTable, Unmount};

use super::log;
use super::wanted::{CANMOUNT_OFF, CANMOUNT_ON, Wanted};

/// How long an unmounted file system has until its last request is answered.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is mounted of one pool.
pub(super) struct Mounts {
    engine: Arc<Engine>,
    // Held for a whole change, across awaits: mounts and unmounts come one after the other.
    changing: AsyncMutex<()>,
    // Held for a look, never across an await.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By number of the dataset.
    mounted: BTreeMap<u64, Mounted>,
    /// The daemon stops: nothing is mounted any more, since nobody would unmount it.
    is_left: bool,
    /// File systems that were there before, with their names and mount points.
    known: BTreeMap<u64, (String, String)>,
}

impl State {
    /// Takes a file system down. Whether it is to be mounted: it is new, or somebody has given it
    /// another mount point. One that only has another name stays as it was.
    fn knows(&mut self, wanted: &Wanted) -> bool {
        let now = (wanted.dataset.clone(), wanted.mountpoint.clone());
        match self.known.insert(wanted.object, now) {
            Some((name, mountpoint)) => name == wanted.dataset && mountpoint != wanted.mountpoint,
            None => true,
        }
    }
}

#[derive(Clone)]
struct Mounted {
    fuse: Arc<FuseMount>,
    /// Its own place.
    place: PathBuf,
    /// What properties said when they were looked at last.
    wanted: Wanted,
    /// Options in force: those of properties, and what the mount was given beside them.
    options: MountOptions,
}

impl Mounts {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), changing: AsyncMutex::new(()), state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mount of a dataset.
    pub(super) fn fuse_of(&self, dataset: &str) -> Option<Arc<FuseMount>> {
        let state = self.state();
        let found = state.mounted.values().find(|mounted| mounted.wanted.dataset == dataset);
        found.map(|mounted| Arc::clone(&mounted.fuse))
    }

    /// Closes snapshots that were looked at below `.zfs` of what is mounted.
    pub(super) fn close_unused_snapshots(&self) {
        for mounted in self.state().mounted.values() {
            mounted.fuse.close_unused_snapshots();
        }
    }

    /// How many snapshots are open because they were looked at below `.zfs`.
    pub(super) fn open_snapshots(&self) -> usize {
        self.state().mounted.values().map(|mounted| mounted.fuse.open_snapshots()).sum()
    }

    /// Takes down what others have unmounted.
    pub(super) fn notice(&self, table: &MountTable) {
        let mut gone = Vec::new();
        self.state().mounted.retain(|object, mounted| {
            let is_there = !mounted.fuse.places(table).is_empty();
            if !is_there {
                gone.push((*object, mounted.wanted.dataset.clone()));
            }
            is_there
        });
        for (object, dataset) in gone {
            self.engine.presence().unmounted(object);
            log::info("unmounted by others", &[("dataset", &dataset)]);
        }
    }

    /// What is mounted, by dataset, and where: each place with how much was mounted before it.
    pub(super) fn list(&self, table: &MountTable) -> Vec<(usize, String, PathBuf)> {
        let state = self.state();
        let places = state.mounted.values().flat_map(|mounted| {
            let dataset = &mounted.wanted.dataset;
            let places = mounted.fuse.places(table).into_iter();
            places.map(move |(order, at)| (order, dataset.clone(), at))
        });
        places.collect()
    }

    /// Mounts everything that wants to be.
    pub(super) async fn mount_all(&self) -> CommandResult {
        let _changing = self.changing.lock().await;
        let wanted = Wanted::all(&self.engine).await?;
        let mut failures = Vec::new();
        for wanted in &wanted {
            self.state().knows(wanted);
        }
        for wanted in wanted.iter().filter(|wanted| wanted.canmount == CANMOUNT_ON) {
            let is_mounted = self.state().mounted.contains_key(&wanted.object);
            if !is_mounted && wanted.place.is_some() && !wanted.is_locked {
                failures.extend(self.start(wanted, &wanted.options).await.err());
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
        match self.also_at(&mounted, place, &options).await? {
            Some(_) => Ok(()),
            None => Err(cannot("filesystem already mounted")),
        }
    }

    /// Unmounts a file system: at that place, or with all that are mounted of those below it, each
    /// in its own place or else where it was mounted first; all of them, or none.
    pub(super) async fn unmount(
        &self,
        dataset: &str,
        place: Option<&Path>,
        is_forced: bool,
    ) -> CommandResult {
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
            return self.end_at(&mounted, place, is_forced, &table).await;
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
        self.end_those(is_meant, is_forced, &table).await.map(drop)
    }

    /// Unmounts what is meant of what is mounted where: all of it, or nothing.
    async fn end_those(
        &self,
        is_meant: impl Fn(&Mounted, &Path) -> bool,
        is_forced: bool,
        table: &MountTable,
    ) -> Result<Vec<TemporarilyUnmounted>, Exit> {
        let mut unmounted = Vec::new();
        for (object, at) in self.latest_first(table) {
            let Some(mounted) = self.mounted(object).filter(|mounted| is_meant(mounted, &at))
            else {
                continue;
            };
            if let Err(exit) = self.end_at(&mounted, &at, is_forced, table).await {
                let back = self.back(&unmounted).await.err();
                let failures: Vec<Exit> = std::iter::once(exit).chain(back).collect();
                return first(&failures).map(|()| unmounted);
            }
            unmounted.push(mounted.unmounted());
        }
        Ok(unmounted)
    }

    /// Unmounts those of the file systems that are in their own places, with force wherever they
    /// are: all of them, or none.
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

    /// Mounts again what was unmounted temporarily, where its properties say now.
    pub(super) async fn mount_again(&self, unmounted: &[TemporarilyUnmounted]) -> CommandResult {
        let _changing = self.changing.lock().await;
        self.back(unmounted).await
    }

    async fn back(&self, unmounted: &[TemporarilyUnmounted]) -> CommandResult {
        let mut failures = Vec::new();
        let table = MountTable::read()?;
        // Each before those below it.
        for mut now in Wanted::all(&self.engine).await? {
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
                // Where it is was never a matter of its properties.
                now.place = Some(before.place.clone());
                options = before.options.clone();
            }
            failures.extend(self.start(&now, &options).await.err());
        }
        first(&failures)
    }

    /// Unmounts everything, the latest first, and takes folders away that nobody has chosen.
    pub(super) async fn unmount_all(&self, is_forced: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        let mut folders = Vec::new();
        let table = MountTable::read()?;
        for (object, at) in self.latest_first(&table) {
            let Some(mounted) = self.mounted(object) else { continue };
            self.end_at(&mounted, &at, is_forced, &table).await?;
            folders.extend((mounted.wanted.is_by_default && at == mounted.place).then_some(at));
        }
        for folder in folders {
            let _ = fuse::remove_folder(&folder).await;
        }
        Ok(())
    }

    /// Unmounts everything, whoever uses it: the process ends.
    pub(super) async fn leave(&self) {
        let _changing = self.changing.lock().await;
        self.state().is_left = true;
        let Ok(table) = MountTable::read() else { return };
        for (object, at) in self.latest_first(&table) {
            let Some(mounted) = self.mounted(object) else { continue };
            if let Err(exit) = self.end_at(&mounted, &at, true, &table).await {
                log::warn("not unmounted", &[("cause", &exit.message())]);
            }
        }
    }

    /// Cuts off whoever uses the mounts, and detaches them: the pool was closed by force, and a
    /// request that waits for its devices would keep unmounting waiting. May run beside
    /// [`leave`](Self::leave), which unmounts what this has not.
    pub(super) async fn cut_off(&self) {
        let Ok(table) = MountTable::read() else { return };
        let places: Vec<_> = {
            let state = self.state();
            let places = |mounted: &Mounted| (mounted.clone(), mounted.fuse.places(&table));
            state.mounted.values().map(places).collect()
        };
        for (mounted, places) in places {
            // A mount whose connection has ended is not known any more: nobody else detaches it.
            mounted.fuse.cut_off().await;
            for (_, at) in places {
                // It may have been unmounted meanwhile.
                let _ = mounted.fuse.unmount(&at, Unmount::Detach).await;
            }
        }
    }

    /// Brings what is mounted to what the properties say now. If `is_quiet` it stays as it is, for
    /// as long as they say this.
    pub(super) async fn follow(&self, is_quiet: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        let wanted = Wanted::all(&self.engine).await?;
        let by_object: BTreeMap<u64, &Wanted> =
            wanted.iter().map(|wanted| (wanted.object, wanted)).collect();
        let mut failures = Vec::new();
        let mut again = BTreeSet::new();
        let table = MountTable::read()?;
        for (object, at) in self.latest_first(&table) {
            let Some(mounted) = self.mounted(object) else { continue };
            let now = by_object.get(&object).copied();
            if mounted.fuse.is_suspended() {
                // It is being rolled back, and looked at again after that.
                continue;
            }
            // What was destroyed, or could not be opened after a rollback, answers nobody any more.
            let is_gone = now.is_none() || mounted.fuse.mount().head().is_gone();
            if let Some(now) = now.filter(|_| !is_gone) {
                if Some(&at) != mounted.at(&table).as_ref() {
                    continue;
                }
                let refreshed = mounted.fuse.refresh().await;
                failures.extend(refreshed.err().map(Exit::from));
                if is_quiet {
                    self.note(now);
                    continue;
                }
                if mounted.wanted.stays(now) || at != mounted.place {
                    failures.extend(self.adjust(&mounted, now).await.err());
                    continue;
                }
            }
            failures.extend(self.end_at(&mounted, &at, is_gone, &table).await.err());
            again.insert(object);
        }
        for wanted in &wanted {
            let is_called = self.state().knows(wanted);
            let comes = (is_called && !is_quiet && wanted.canmount == CANMOUNT_ON)
                || (again.contains(&wanted.object) && wanted.canmount != CANMOUNT_OFF);
            if comes && wanted.place.is_some() && !wanted.is_locked {
                failures.extend(self.start(wanted, &wanted.options).await.err());
            }
        }
        first(&failures)
    }

    /// Takes down what properties say now, without acting by it.
    fn note(&self, now: &Wanted) {
        if let Some(mounted) = self.state().mounted.get_mut(&now.object) {
            mounted.wanted = now.clone();
        }
    }

    /// Gives a mount that stays the options that properties have now.
    async fn adjust(&self, mounted: &Mounted, now: &Wanted) -> CommandResult {
        let (before, mut options) = (&mounted.wanted.options, mounted.options.clone());
        // What was set goes before what the mount was given; the rest stays.
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
        if options == mounted.options {
            self.note(now);
            return Ok(());
        }
        self.give(mounted, now, options).await
    }

    /// Gives a mount other options.
    async fn give(&self, mounted: &Mounted, now: &Wanted, options: MountOptions) -> CommandResult {
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
            // It cannot write: it is mounted again, if nobody uses it.
            self.end_at(mounted, &at, false, &table).await?;
            return self.start(now, &options).await;
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
            // Who is not root cannot; it is mounted again, if nobody uses it.
            Err(error) if error.kind() == Kind::Permission && !is_elsewhere => {
                self.end_at(mounted, &at, false, &table).await?;
                self.start(now, &options).await
            }
            Err(error) if error.kind() == Kind::Busy => Err(busy()),
            Err(error) => Err(Exit::failed(format!("cannot remount '{dataset}': {error}"))),
        }
    }

    /// Has the properties show how something is mounted.
    fn tell(&self, object: u64, options: &MountOptions) {
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

    /// Mounts a file system in its own place.
    async fn start(&self, wanted: &Wanted, options: &MountOptions) -> CommandResult {
        let Some(place) = &wanted.place else { return Ok(()) };
        let dataset = &wanted.dataset;
        let cannot = |why: String| Exit::NotMounted(format!("cannot mount '{dataset}': {why}"));
        if self.state().is_left {
            return Err(cannot("the daemon is stopping".to_owned()));
        }
        wanted.make_room(place).await?;
        stages::reach("mount-room-made");
        // Somebody has it elsewhere, and keeps it.
        let before = self.mounted(wanted.object);
        let table = before.as_ref().map(|_| MountTable::read()).transpose()?;
        let is_there = |mounted: &Mounted| {
            table.as_ref().is_some_and(|table| !mounted.fuse.places(table).is_empty())
        };
        if let Some(mounted) = before.filter(is_there)
            && let Some(place) = self.also_at(&mounted, place, options).await?
        {
            mounted.fuse.set(options);
            self.insert(Mounted {
                place,
                wanted: wanted.clone(),
                options: options.clone(),
                ..mounted
            });
            return Ok(());
        }
        // The property keeps changes out by itself, and may be another soon.
        let is_fixed = options.is_read_only && !wanted.options.is_read_only;
        let opened = if is_fixed || self.engine.is_read_only() {
            Mount::open_read_only(&self.engine, dataset).await
        } else {
            match Mount::open(&self.engine, dataset).await {
                // What cannot be written can be read.
                Err(error) if options.is_read_only && error.kind() == Kind::Unsupported => {
                    Mount::open_read_only(&self.engine, dataset).await
                }
                opened => opened,
            }
        };
        let mount = opened.map_err(|error| cannot(error.to_string()))?;
        stages::reach("mount-dataset-opened");
        let fuse = FuseMount::start(mount, place, options).await;
        let fuse = Arc::new(fuse.map_err(|error| cannot(error.to_string()))?);
        log::info("mounted", &[("dataset", dataset), ("at", &fuse.at().display())]);
        let (place, wanted, options) = (fuse.at().to_owned(), wanted.clone(), options.clone());
        self.insert(Mounted { fuse, place, wanted, options });
        Ok(())
    }

    fn insert(&self, mounted: Mounted) {
        self.tell(mounted.wanted.object, &mounted.options);
        self.state().mounted.insert(mounted.wanted.object, mounted);
    }

    fn mounted(&self, object: u64) -> Option<Mounted> {
        self.state().mounted.get(&object).cloned()
    }

    /// Mounts what is mounted already at one more place, and says where that is without links;
    /// nowhere, if that takes root.
    async fn also_at(
        &self,
        mounted: &Mounted,
        place: &Path,
        options: &MountOptions,
    ) -> Result<Option<PathBuf>, Exit> {
        let dataset = &mounted.wanted.dataset;
        let cannot = |why: &str| Exit::NotMounted(format!("cannot mount '{dataset}': {why}"));
        if mounted.options.is_read_only && !options.is_read_only {
            return Err(cannot("mountpoint or dataset is busy"));
        }
        if self.state().is_left {
            return Err(cannot("the daemon is stopping"));
        }
        match mounted.fuse.also_at(place, options).await {
            Ok(at) => {
                log::info("mounted", &[("dataset", dataset), ("at", &at.display())]);
                Ok(Some(at))
            }
            Err(error) if error.kind() == Kind::Permission => Ok(None),
            Err(error) => Err(cannot(&error.to_string())),
        }
    }

    /// Unmounts a file system at a place. Where else it is, it goes on. The table is read again
    /// only for what was at several places in `table`: unmounting thousands reads it once.
    async fn end_at(
        &self,
        mounted: &Mounted,
        at: &Path,
        is_forced: bool,
        table: &MountTable,
    ) -> CommandResult {
        let is_elsewhere = mounted.fuse.places(table).len() > 1
            && mounted.fuse.places(&MountTable::read()?).len() > 1;
        // Whoever is cut off is so everywhere.
        let how = if is_forced { Unmount::Force } else { Unmount::Plain };
        if let Err(error) = mounted.fuse.unmount(at, how).await {
            let why = match error.kind() {
                Kind::Busy => "pool or dataset is busy".to_owned(),
                _ => error.to_string(),
            };
            return Err(Exit::failed(format!("cannot unmount '{}': {why}", at.display())));
        }
        let (dataset, at) = (&mounted.wanted.dataset, at.display());
        log::info("unmounted", &[("dataset", dataset), ("at", &at), ("forced", &is_forced)]);
        stages::reach("unmount-detached");
        if is_elsewhere {
            return Ok(());
        }
        // Its last request may take its time; without root so may its last user.
        cenote_rt::until(PATIENCE, mounted.fuse.ended()).await;
        self.state().mounted.remove(&mounted.wanted.object);
        self.engine.presence().unmounted(mounted.wanted.object);
        stages::reach("unmount-ended");
        Ok(())
    }

    /// What was mounted last comes first: it may hide what was there before, and what is within
    /// another was mounted after it. Each place with the number of the dataset.
    fn latest_first(&self, table: &MountTable) -> Vec<(u64, PathBuf)> {
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
    /// What it takes to have it again.
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

    /// Its own place, or if it is not there, where it was mounted first.
    fn at(&self, table: &MountTable) -> Option<PathBuf> {
        let places = self.fuse.places(table);
        let own = places.iter().find(|(_, at)| *at == self.place);
        own.or(places.first()).map(|(_, at)| at.clone())
    }
}

fn first(failures: &[Exit]) -> CommandResult {
    let texts: Vec<String> = failures.iter().map(Exit::message).collect();
    if texts.is_empty() {
        return Ok(());
    }
    let is_all = failures.iter().all(|exit| matches!(exit, Exit::NotMounted(_)));
    Err(if is_all { Exit::NotMounted(texts.join("\n")) } else { Exit::failed(texts.join("\n")) })
}
