//! What is mounted of a pool.
//!
//! Where a file system is mounted is a matter of its properties: `mountpoint`, `canmount`. A change
//! of a pool (creation, renaming, setting, rollback) is followed: file systems that are new are
//! mounted, what is mounted elsewhere than it should be moves, what has gone is unmounted. What
//! somebody unmounted stays unmounted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_cli::io::words;
use cenote_cli::{Aside, CommandResult, Exit, MountWish};
use cenote_fs::Mount;
use cenote_pool::engine::Engine;
use cenote_pool::props::{PropValue, Source, dataset_property};
use cenote_pool::{Dataset, DatasetKind};
use cenote_rt::{AsyncMutex, Kind};
use cenote_serve::fuse::{self, FuseMount, MountOptions, Unmount};

use super::log;

/// `canmount`: mounted with all others.
const CANMOUNT_OFF: u64 = 0;
const CANMOUNT_ON: u64 = 1;

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
    /// What properties said when they were looked at last.
    wanted: Wanted,
    /// Options in force: those of properties, and what the mount was given beside them.
    options: MountOptions,
}

/// A file system as its properties have it.
#[derive(Clone)]
struct Wanted {
    object: u64,
    dataset: String,
    /// None for `none` and `legacy`.
    place: Option<PathBuf>,
    mountpoint: String,
    /// Nobody has chosen the place for it.
    is_by_default: bool,
    canmount: u64,
    /// Its key is not loaded.
    is_locked: bool,
    /// It may hide what is in its place.
    is_overlay: bool,
    /// `atime` and `relatime`.
    noting: [u64; 2],
    options: MountOptions,
}

impl Mounts {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), changing: AsyncMutex::new(()), state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes snapshots that were looked at below `.zfs` of what is mounted.
    pub(super) fn let_go_of_snapshots(&self) {
        for mounted in self.state().mounted.values() {
            mounted.fuse.let_go_of_snapshots();
        }
    }

    /// How many snapshots are open because they were looked at below `.zfs`.
    pub(super) fn open_snapshots(&self) -> usize {
        self.state().mounted.values().map(|mounted| mounted.fuse.open_snapshots()).sum()
    }

    /// Takes down what others have unmounted. `devices` are all that are mounted.
    pub(super) fn notice(&self, devices: &BTreeSet<Vec<u8>>) {
        let mut gone = Vec::new();
        self.state().mounted.retain(|object, mounted| {
            let is_there = mounted.fuse.is_among(devices);
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

    /// What is mounted, by dataset, and where.
    pub(super) fn list(&self) -> Vec<(String, PathBuf)> {
        let state = self.state();
        let mounted = state.mounted.values();
        let mut list: Vec<_> = mounted
            .map(|mounted| (mounted.wanted.dataset.clone(), mounted.fuse.at().to_owned()))
            .collect();
        list.sort();
        list
    }

    /// The dataset that is meant by its name or by where it is mounted.
    pub(super) fn find(&self, what: &str) -> Option<String> {
        let list = self.list();
        let found = list.into_iter().find(|(name, at)| name == what || at == Path::new(what));
        found.map(|(name, _)| name)
    }

    /// Mounts everything that wants to be.
    pub(super) async fn mount_all(&self) -> CommandResult {
        let _changing = self.changing.lock().await;
        let wanted = self.wanted().await?;
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
    pub(super) async fn mount(&self, dataset: &str, wish: &MountWish) -> CommandResult {
        let _changing = self.changing.lock().await;
        let cannot = |why: &str| Exit::failed(format!("cannot mount '{dataset}': {why}"));
        let view = self.engine.view().await?;
        let mut wanted = match view.dataset(dataset).await {
            Ok(found) if found.kind().await? == DatasetKind::Filesystem => {
                self.wish(&found).await?
            }
            _ => {
                return Err(Exit::failed(format!(
                    "cannot open '{dataset}': dataset does not exist"
                )));
            }
        };
        let mounted = self.state().mounted.get(&wanted.object).cloned();
        match (&mounted, wish.is_again) {
            (Some(_), false) => return Err(cannot("filesystem already mounted")),
            (None, true) => return Err(cannot("filesystem is not mounted")),
            _ => {}
        }
        match (wanted.mountpoint.as_str(), &wish.place) {
            (_, Some(_)) => wanted.place.clone_from(&wish.place),
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
        wanted.is_overlay |= wish.is_overlay;
        let options = wanted.options.clone().with(&wish.options);
        let mut options = options.map_err(|error| cannot(&error.to_string()))?;
        let is_root = rustix::process::geteuid().is_root();
        (options.nosuid, options.nodev) = (options.nosuid || !is_root, options.nodev || !is_root);
        options.is_read_only |= self.engine.is_read_only();
        match mounted {
            Some(mounted) => self.give(&mounted, &wanted, options).await,
            None => self.start(&wanted, &options).await,
        }
    }

    /// Unmounts one file system.
    pub(super) async fn unmount(&self, dataset: &str, is_forced: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        let found = {
            let state = self.state();
            let mut all = state.mounted.iter();
            all.find(|(_, mounted)| mounted.wanted.dataset == dataset).map(|(object, _)| *object)
        };
        match found {
            Some(object) => self.end(object, is_forced).await,
            None => Err(Exit::failed(format!("cannot unmount '{dataset}': not currently mounted"))),
        }
    }

    /// Unmounts those of the file systems that are mounted: all of them, or none.
    pub(super) async fn set_aside(
        &self,
        datasets: &[String],
        is_forced: bool,
    ) -> Result<Vec<Aside>, Exit> {
        let _changing = self.changing.lock().await;
        let mut aside = Vec::new();
        for object in self.deepest_first() {
            let found = self.state().mounted.get(&object).map(Mounted::aside);
            let Some((dataset, before)) = found else { continue };
            if !datasets.contains(&dataset) {
                continue;
            }
            if let Err(exit) = self.end(object, is_forced).await {
                let back = self.back(&aside).await.err();
                let failures: Vec<Exit> = std::iter::once(exit).chain(back).collect();
                return first(&failures).map(|()| aside);
            }
            aside.push(before);
        }
        Ok(aside)
    }

    /// Mounts again what was set aside, where its properties say now.
    pub(super) async fn bring_back(&self, aside: &[Aside]) -> CommandResult {
        let _changing = self.changing.lock().await;
        self.back(aside).await
    }

    async fn back(&self, aside: &[Aside]) -> CommandResult {
        let mut failures = Vec::new();
        // Each before those below it.
        for mut now in self.wanted().await? {
            let Some(before) = aside.iter().find(|before| before.object == now.object) else {
                continue;
            };
            self.state().knows(&now);
            let is_mounted = self.state().mounted.contains_key(&now.object);
            if is_mounted || now.canmount == CANMOUNT_OFF || now.is_locked {
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

    /// Unmounts everything, the deepest first, and takes folders away that nobody has chosen.
    pub(super) async fn unmount_all(&self, is_forced: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        let mut places = Vec::new();
        for object in self.deepest_first() {
            let mounted = self.state().mounted.get(&object).cloned();
            self.end(object, is_forced).await?;
            places.extend(mounted.filter(|it| it.wanted.is_by_default));
        }
        for mounted in places {
            // What is not empty was somebody's before.
            let _ = std::fs::remove_dir(mounted.fuse.at());
        }
        Ok(())
    }

    /// Unmounts everything, whoever uses it: the process ends.
    pub(super) async fn leave(&self) {
        let _changing = self.changing.lock().await;
        for object in self.deepest_first() {
            if let Err(exit) = self.end(object, true).await {
                log::warn("not unmounted", &[("cause", &exit.message())]);
            }
        }
    }

    /// Brings what is mounted to what the properties say now. If `is_quiet` it stays as it is, for
    /// as long as they say this.
    pub(super) async fn follow(&self, is_quiet: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        let wanted = self.wanted().await?;
        let mut failures = Vec::new();
        let mut again = BTreeSet::new();
        for object in self.deepest_first() {
            let Some(mounted) = self.state().mounted.get(&object).cloned() else { continue };
            let now = wanted.iter().find(|wanted| wanted.object == object);
            // What was rolled back or destroyed answers nobody any more.
            let is_gone = now.is_none() || mounted.fuse.mount().head().is_gone();
            if let Some(now) = now.filter(|_| !is_gone) {
                let refreshed = mounted.fuse.refresh().await;
                failures.extend(refreshed.err().map(Exit::from));
                if is_quiet {
                    self.note(now);
                    continue;
                }
                if mounted.wanted.stays(now) {
                    failures.extend(self.adjust(&mounted, now).await.err());
                    continue;
                }
            }
            failures.extend(self.end(object, is_gone).await.err());
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
        let given = &mut options.access_times;
        for (index, given) in [&mut given.has_atime, &mut given.is_relatime].into_iter().enumerate()
        {
            if mounted.wanted.noting.get(index) != now.noting.get(index) {
                *given = None;
            }
        }
        if *before == now.options && options == mounted.options {
            self.note(now);
            return Ok(());
        }
        // What was set goes before what the mount was given; the rest stays.
        let changed = |before: bool, now: bool, option: &mut bool| {
            if before != now {
                *option = now;
            }
        };
        changed(before.is_read_only, now.options.is_read_only, &mut options.is_read_only);
        changed(before.nosuid, now.options.nosuid, &mut options.nosuid);
        changed(before.nodev, now.options.nodev, &mut options.nodev);
        changed(before.noexec, now.options.noexec, &mut options.noexec);
        self.give(mounted, now, options).await
    }

    /// Gives a mount other options.
    async fn give(&self, mounted: &Mounted, now: &Wanted, options: MountOptions) -> CommandResult {
        let dataset = &now.dataset;
        if mounted.fuse.mount().is_opened_read_only() && !options.is_read_only {
            // It cannot write: it is mounted again, if nobody uses it.
            self.end(now.object, false).await?;
            return self.start(now, &options).await;
        }
        let (access_times, has_no_xattrs) = (options.access_times, options.has_no_xattrs);
        let before = mounted.options.clone();
        let is_kernels = MountOptions { access_times, has_no_xattrs, ..before } != options;
        let given = if is_kernels {
            mounted.fuse.remount(&options).await
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
            Err(error) if error.kind() == Kind::Permission => {
                self.end(now.object, false).await?;
                self.start(now, &options).await
            }
            Err(error) if error.kind() == Kind::Busy => Err(Exit::failed(format!(
                "cannot remount '{dataset}': mountpoint or dataset is busy"
            ))),
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

    async fn start(&self, wanted: &Wanted, options: &MountOptions) -> CommandResult {
        let Some(place) = &wanted.place else { return Ok(()) };
        let dataset = &wanted.dataset;
        let cannot = |why: String| Exit::failed(format!("cannot mount '{dataset}': {why}"));
        let not_there =
            |why: &str| Exit::failed(format!("cannot mount '{}': {why}", place.display()));
        // What a daemon that was killed left there answers nobody.
        match fuse::detach_dead(place).await {
            Err(error) if error.kind() != Kind::NotFound => return Err(cannot(error.to_string())),
            _ => {}
        }
        std::fs::create_dir_all(place).map_err(|error| {
            not_there(&format!("failed to create mountpoint: {}", words(&error)))
        })?;
        let is_empty = || std::fs::read_dir(place).is_ok_and(|mut found| found.next().is_none());
        if !wanted.is_overlay && !is_empty() {
            return Err(not_there("directory is not empty"));
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
        let fuse = FuseMount::start(mount, place, options).await;
        let fuse = Arc::new(fuse.map_err(|error| cannot(error.to_string()))?);
        self.tell(wanted.object, options);
        log::info("mounted", &[("dataset", dataset), ("at", &fuse.at().display())]);
        let mounted = Mounted { fuse, wanted: wanted.clone(), options: options.clone() };
        self.state().mounted.insert(wanted.object, mounted);
        Ok(())
    }

    async fn end(&self, object: u64, is_forced: bool) -> CommandResult {
        let Some(mounted) = self.state().mounted.get(&object).cloned() else { return Ok(()) };
        let how = if is_forced { Unmount::Force } else { Unmount::Plain };
        if let Err(error) = mounted.fuse.unmount(how).await {
            let at = mounted.fuse.at().display();
            let why = match error.kind() {
                Kind::Busy => "pool or dataset is busy".to_owned(),
                _ => error.to_string(),
            };
            return Err(Exit::failed(format!("cannot unmount '{at}': {why}")));
        }
        // Its last request may take its time; without root so may its last user.
        cenote_rt::until(PATIENCE, mounted.fuse.ended()).await;
        self.state().mounted.remove(&object);
        let (dataset, at) = (&mounted.wanted.dataset, mounted.fuse.at().display());
        log::info("unmounted", &[("dataset", dataset), ("at", &at), ("forced", &is_forced)]);
        self.engine.presence().unmounted(object);
        Ok(())
    }

    fn deepest_first(&self) -> Vec<u64> {
        let state = self.state();
        let mut objects: Vec<_> = state
            .mounted
            .iter()
            .map(|(object, mounted)| (mounted.fuse.at().to_owned(), *object))
            .collect();
        objects.sort();
        objects.into_iter().rev().map(|(_, object)| object).collect()
    }

    /// All file systems, in the order in which they are mounted: each before what has its place in
    /// it.
    async fn wanted(&self) -> Result<Vec<Wanted>, Exit> {
        let view = self.engine.view().await?;
        let mut wanted = Vec::new();
        let mut left = vec![view.root_dataset().await?];
        while let Some(dataset) = left.pop() {
            let mut children = dataset.children().await?;
            children.reverse();
            left.append(&mut children);
            if dataset.kind().await? == DatasetKind::Filesystem {
                wanted.push(self.wish(&dataset).await?);
            }
        }
        wanted.sort_by(|one, other| one.place.cmp(&other.place));
        Ok(wanted)
    }

    async fn wish(&self, dataset: &Dataset) -> Result<Wanted, Exit> {
        let props = dataset.props().await?;
        let mut numbers = [0; 8];
        let names =
            ["canmount", "overlay", "readonly", "setuid", "devices", "exec", "atime", "relatime"];
        for (number, name) in numbers.iter_mut().zip(names) {
            // What is set, not what a mount option makes of it.
            let property = dataset_property(name);
            let value = property.map(|property| props.chain().native(property).0);
            if let Some(PropValue::Number(value)) = value {
                *number = value;
            }
        }
        let [canmount, overlay, readonly, setuid, devices, exec, noting @ ..] = numbers;
        let row = props.get("mountpoint").await?;
        let is_by_default = row
            .as_ref()
            .is_some_and(|row| matches!(row.source, Source::Default | Source::Inherited(_)));
        let mountpoint = match row.map(|row| row.value) {
            Some(PropValue::Text(text)) => text,
            _ => "none".to_owned(),
        };
        let place = mountpoint.starts_with('/').then(|| PathBuf::from(&mountpoint));
        let is_locked = match dataset.key_info().await? {
            Some(key) => !dataset.pool().keys().is_loaded(key.object),
            None => false,
        };
        let is_root = rustix::process::geteuid().is_root();
        Ok(Wanted {
            object: dataset.object(),
            dataset: dataset.name().to_owned(),
            place,
            mountpoint,
            is_by_default,
            canmount,
            is_overlay: overlay == 1,
            noting,
            is_locked,
            options: MountOptions {
                is_read_only: readonly == 1 || self.engine.is_read_only(),
                nosuid: setuid == 0 || !is_root,
                nodev: devices == 0 || !is_root,
                noexec: exec == 0,
                ..MountOptions::default()
            },
        })
    }
}

impl Mounted {
    /// Its dataset, and what it takes to have it again.
    fn aside(&self) -> (String, Aside) {
        let aside = Aside {
            object: self.wanted.object,
            mountpoint: self.wanted.mountpoint.clone(),
            place: self.fuse.at().to_owned(),
            options: self.options.clone(),
        };
        (self.wanted.dataset.clone(), aside)
    }
}

impl Wanted {
    /// Whether what was mounted so stays where it is. A name moves nothing that properties do not
    /// mount.
    fn stays(&self, now: &Self) -> bool {
        let is_elsewhere = self.mountpoint != now.mountpoint
            || self.mountpoint.starts_with('/') && self.dataset != now.dataset;
        !is_elsewhere && now.canmount != CANMOUNT_OFF
    }
}

fn first(failures: &[Exit]) -> CommandResult {
    let texts: Vec<String> = failures.iter().map(Exit::message).collect();
    if texts.is_empty() { Ok(()) } else { Err(Exit::failed(texts.join("\n"))) }
}
