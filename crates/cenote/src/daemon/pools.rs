//! The pools that the daemon has.
//!
//! What it had is remembered in a cache file, OpenZFS's, in the folder of its state: written
//! before a command that imports or creates a pool ends, so that a daemon that is killed after that
//! finds the pool again. A pool that cannot be opened when it starts stays in the file.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fmt::{Display, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use cenote_cli::cache_file::{self, Cached};
use cenote_cli::{Aside, CommandResult, Exit, Host, MountWish, Taken};
use cenote_pool::engine::{Engine, EventLog};
use cenote_pool::import::{self, Candidate};
use cenote_pool::{OpenOptions, ScanOptions};
use cenote_rt::BoxFuture;
use cenote_serve::fuse::MountTable;
use cenote_serve::nbd::Exports;

use super::exports::Volumes;
use super::log::{self, Level};
use super::mounts::Mounts;
use super::place::Place;
use super::watch::Watch;

/// Pools that left whose events are kept.
const GONE_MAX: usize = 16;

/// The pools, and what is shown of them.
pub(super) struct Pools {
    place: Place,
    /// Their volumes, and who has them open.
    exports: Arc<Exports>,
    // Held for a look, never across an await.
    open: Mutex<BTreeMap<String, Held>>,
    /// What others watch it by.
    watch: OnceLock<Watch>,
    /// What happened to pools that left. Held for a look.
    gone: Mutex<VecDeque<Arc<EventLog>>>,
}

/// A pool.
#[derive(Clone)]
struct Held {
    engine: Arc<Engine>,
    mounts: Arc<Mounts>,
    /// Where it is remembered.
    remembered: Option<PathBuf>,
    /// Its volumes are not offered to anybody any more.
    is_leaving: Arc<AtomicBool>,
}

impl std::fmt::Debug for Pools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pools").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Pools {
    /// Opens what was open.
    pub(super) async fn open(place: &Place) -> Arc<Self> {
        let pools = Arc::new_cyclic(|pools| Self {
            place: place.clone(),
            exports: Exports::new(Arc::new(Volumes(Weak::clone(pools)))),
            open: Mutex::default(),
            watch: OnceLock::new(),
            gone: Mutex::default(),
        });
        let file = place.pools();
        if !file.exists() {
            return pools;
        }
        match cache_file::read(&file) {
            Ok(known) => pools.open_known(known).await,
            Err(exit) => log::log(
                Level::Error,
                "cache file not read",
                &[("path", &file.display()), ("cause", &exit.message())],
            ),
        }
        pools
    }

    /// Opens the pools of a cache file. Devices may be files in what another of them mounts: what
    /// is not found at first is looked for again as long as some are.
    async fn open_known(&self, known: Cached) {
        let options = ScanOptions { paths: known.paths };
        let mut left = known.guids;
        while !left.is_empty() {
            let scan = import::scan(&options).await;
            let found = scan.map(|scan| scan.candidates).unwrap_or_default();
            let candidate = |guid: u64| found.iter().find(|candidate| candidate.guid() == guid);
            let (there, absent): (Vec<u64>, Vec<u64>) =
                left.into_iter().partition(|guid| candidate(*guid).is_some());
            for candidate in there.iter().filter_map(|guid| candidate(*guid)) {
                self.open_again(candidate).await;
            }
            left = absent;
            if there.is_empty() {
                break;
            }
        }
        for guid in left {
            log::warn("pool not found", &[("guid", &guid)]);
        }
    }

    /// Lets others watch.
    pub(super) fn show(self: &Arc<Self>) {
        self.watch.get_or_init(|| Watch::start(&self.place, self));
    }

    fn keep_events(&self, engine: &Engine) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if gone.len() >= GONE_MAX {
            gone.pop_front();
        }
        gone.push_back(Arc::clone(engine.events()));
    }

    async fn open_again(&self, candidate: &Candidate) {
        let options = OpenOptions { host: Some(import::Host::current()), ..OpenOptions::default() };
        let opened = async {
            let engine = Engine::open(candidate, &options).await?;
            cenote_cli::prepare(&engine).await?;
            Ok::<_, Exit>(engine)
        };
        match opened.await {
            Ok(engine) => {
                let how = Taken { cache_file: Some(self.place.pools()), ..Taken::default() };
                if let Err(exit) = self.hold(engine, how).await {
                    let fields: &[(&str, &dyn Display)] =
                        &[("pool", &candidate.name()), ("cause", &exit.message())];
                    log::warn("pool not in order", fields);
                }
            }
            Err(exit) => log::warn(
                "pool not opened",
                &[("pool", &candidate.name()), ("cause", &exit.message())],
            ),
        }
    }

    /// Leaves every pool as it is: they stay imported, and come back with the daemon.
    pub(super) async fn close(&self) {
        if let Some(watch) = self.watch.get() {
            watch.stop();
        }
        let mut open: Vec<_> = std::mem::take(&mut *self.lock()).into_iter().collect();
        while !open.is_empty() {
            // One whose devices are in what another mounts goes before that.
            let is_last = |(index, (_, held)): (usize, &(String, Held))| {
                let others = open.iter().enumerate().filter(move |(other, _)| *other != index);
                others.map(|(_, (_, other))| other).all(|other| !other.is_within(held))
            };
            let next = open.iter().enumerate().position(is_last).unwrap_or(0);
            let (name, held) = open.remove(next);
            held.mounts.leave().await;
            if let Err(error) = held.engine.rest().await {
                log::warn("pool not left in order", &[("pool", &name), ("cause", &error)]);
            }
        }
    }

    /// The volumes.
    pub(super) fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    /// What there is, for people: pools, what is mounted, what is exported, and memory.
    pub(super) fn report(&self) -> String {
        let (process, memory) = (std::process::id(), resident() >> 10);
        let mut text = format!("running (process {process}, {memory} MiB of memory)\n");
        for engine in self.pools() {
            let state = match (engine.suspended(), engine.is_read_only()) {
                (Some(_), _) => "suspended",
                (None, true) => "read-only",
                (None, false) => "open",
            };
            let _ = writeln!(text, "pool    {}  {state}", engine.name());
        }
        let held: Vec<Held> = self.lock().values().cloned().collect();
        for held in held {
            match held.mounts.open_snapshots() {
                0 => {}
                count => {
                    let name = held.engine.name();
                    let _ = writeln!(text, "snaps   {name}  {count} kept open below .zfs");
                }
            }
        }
        for (dataset, at) in self.mounts() {
            let _ = writeln!(text, "mount   {dataset}  {}", at.display());
        }
        let exports = cenote_rt::block_on(0, async {
            let names = self.exports.names().await.unwrap_or_default();
            let mut used = Vec::new();
            for engine in self.pools() {
                used.extend(self.exports.in_use(engine.guid()).await);
            }
            (names, used)
        });
        let (names, used) = exports.unwrap_or_default();
        for name in names {
            let count = used.iter().filter(|used| **used == name).count();
            let _ = writeln!(text, "export  {name}  {count} in use");
        }
        text
    }

    /// Takes down what others have unmounted.
    pub(super) fn notice(&self) {
        let Ok(table) = MountTable::read() else { return };
        let held: Vec<Held> = self.lock().values().cloned().collect();
        for held in held {
            held.mounts.notice(&table);
        }
    }

    /// The pools whose volumes are offered.
    pub(super) fn offering(&self) -> Vec<Arc<Engine>> {
        let open = self.lock();
        let offering = open.values().filter(|held| !held.is_leaving.load(Ordering::Acquire));
        offering.map(|held| Arc::clone(&held.engine)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, name: &str) -> Result<Held, Exit> {
        let found = self.lock().get(name).cloned();
        found.ok_or_else(|| Exit::failed(format!("cannot open '{name}': no such pool")))
    }

    /// The pool of a dataset.
    fn of_dataset(&self, dataset: &str) -> Result<Held, Exit> {
        self.held(dataset.split(['/', '@']).next().unwrap_or_default())
    }

    async fn hold(&self, engine: Arc<Engine>, how: Taken) -> CommandResult {
        let name = engine.name();
        if !engine.is_read_only() {
            engine.keep();
            engine.resume_leaf_work().await?;
        }
        let presence = engine.presence();
        presence.set_altroot(how.altroot.as_deref().and_then(Path::to_str));
        let remembered = self.memory_of(&engine, how.cache_file);
        drop(cenote_rt::spawn(log::follow(Arc::clone(engine.events()))));
        let mounts = Arc::new(Mounts::new(&engine));
        let is_leaving = Arc::default();
        let held = Held { engine, mounts: Arc::clone(&mounts), remembered, is_leaving };
        held.note()?;
        self.lock().insert(name, held);
        if how.is_unmounted { Ok(()) } else { mounts.mount_all().await }
    }

    /// The file in which a pool is remembered, which its properties tell.
    fn memory_of(&self, engine: &Engine, wanted: Option<PathBuf>) -> Option<PathBuf> {
        let presence = engine.presence();
        let is_elsewhere = presence.altroot().is_some();
        let is_default = wanted.as_ref().is_none_or(|file| *file == self.place.pools());
        let remembered = match wanted {
            // As OpenZFS has it: what is there for reading, or elsewhere, is not remembered.
            _ if engine.is_read_only() => None,
            Some(file) => Some(file).filter(|file| !file.as_os_str().is_empty()),
            None if is_elsewhere => None,
            None => Some(self.place.pools()),
        };
        let told = remembered.as_deref().and_then(Path::to_str).unwrap_or("none");
        presence.set_cache_file((!is_default || is_elsewhere).then_some(told));
        remembered
    }

    async fn let_go(&self, name: &str, deed: &str, is_forced: bool) -> CommandResult {
        let held = self.held(name)?;
        // Before the look at who has volumes: nobody comes after it.
        held.is_leaving.store(true, Ordering::Release);
        let is_used = !self.exports.in_use(held.engine.guid()).await.is_empty();
        let left = if is_used {
            Err(Exit::cannot(deed, name, "pool is busy"))
        } else {
            held.mounts.unmount_all(is_forced).await
        };
        if left.is_err() {
            held.is_leaving.store(false, Ordering::Release);
            return left;
        }
        // Kept as long as others: that it was exported is still to come.
        self.keep_events(&held.engine);
        self.lock().remove(name);
        match &held.remembered {
            Some(file) => Ok(cache_file::remove(file, name)?),
            None => Ok(()),
        }
    }
}

impl Held {
    /// Whether a device of it is a file in what the other pool has mounted.
    fn is_within(&self, other: &Self) -> bool {
        let Ok(table) = MountTable::read() else { return false };
        let places = other.mounts.list(&table);
        let root = self.engine.vdev_config();
        let mut paths = root.leaves().filter_map(|leaf| leaf.leaf.path.as_ref());
        paths.any(|path| {
            let path = Path::new(OsStr::from_bytes(path.as_bytes()));
            places.iter().any(|(_, _, at)| path.starts_with(at))
        })
    }

    /// Has the file in which it is remembered say how it is now.
    fn note(&self) -> CommandResult {
        if let Some(file) = &self.remembered {
            let (name, list) = self.engine.config_list();
            cache_file::write(file, &name, list)?;
        }
        Ok(())
    }
}

impl Host for Pools {
    fn pools(&self) -> Vec<Arc<Engine>> {
        self.lock().values().map(|held| Arc::clone(&held.engine)).collect()
    }

    fn take(&self, engine: Arc<Engine>, how: Taken) -> BoxFuture<'_, CommandResult> {
        Box::pin(self.hold(engine, how))
    }

    fn remember<'a>(
        &'a self,
        pool: &'a str,
        file: Option<PathBuf>,
    ) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move {
            let held = self.held(pool)?;
            let now = Held { remembered: self.memory_of(&held.engine, file), ..held.clone() };
            now.note()?;
            self.lock().insert(pool.to_owned(), now.clone());
            match held.remembered.filter(|file| Some(file) != now.remembered.as_ref()) {
                Some(file) => Ok(cache_file::remove(&file, pool)?),
                None => Ok(()),
            }
        })
    }

    fn release<'a>(
        &'a self,
        pool: &'a str,
        deed: &'a str,
        is_forced: bool,
    ) -> BoxFuture<'a, CommandResult> {
        Box::pin(self.let_go(pool, deed, is_forced))
    }

    fn follow<'a>(&'a self, pool: &'a str, is_quiet: bool) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move {
            let held = self.held(pool)?;
            if let Err(exit) = held.note() {
                // What was done is done.
                log::warn(
                    "pool not remembered as it is",
                    &[("pool", &pool), ("cause", &exit.message())],
                );
            }
            held.mounts.follow(is_quiet).await
        })
    }

    fn mount<'a>(&'a self, dataset: &'a str, wish: &'a MountWish) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move { self.of_dataset(dataset)?.mounts.mount(dataset, wish).await })
    }

    fn mount_all<'a>(&'a self, pool: &'a str) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move { self.held(pool)?.mounts.mount_all().await })
    }

    fn unmount<'a>(
        &'a self,
        dataset: &'a str,
        place: Option<&'a Path>,
        is_forced: bool,
    ) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move {
            self.of_dataset(dataset)?.mounts.unmount(dataset, place, is_forced).await
        })
    }

    fn let_go_of_snapshots(&self, pool: &str) {
        if let Ok(held) = self.held(pool) {
            held.mounts.let_go_of_snapshots();
        }
    }

    fn set_aside<'a>(
        &'a self,
        datasets: &'a [String],
        is_forced: bool,
    ) -> BoxFuture<'a, Result<Vec<Aside>, Exit>> {
        Box::pin(async move {
            let Some(first) = datasets.first() else { return Ok(Vec::new()) };
            self.of_dataset(first)?.mounts.set_aside(datasets, is_forced).await
        })
    }

    fn bring_back<'a>(&'a self, pool: &'a str, aside: Vec<Aside>) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move { self.held(pool)?.mounts.bring_back(&aside).await })
    }

    fn mounts(&self) -> Vec<(String, PathBuf)> {
        let Ok(table) = MountTable::read() else { return Vec::new() };
        let held: Vec<Held> = self.lock().values().cloned().collect();
        let mut mounts: Vec<_> = held.iter().flat_map(|held| held.mounts.list(&table)).collect();
        mounts.sort();
        mounts.into_iter().map(|(_, dataset, at)| (dataset, at)).collect()
    }

    fn events(&self) -> Vec<Arc<EventLog>> {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let open = self.pools().into_iter().map(|engine| Arc::clone(engine.events()));
        gone.into_iter().chain(open).collect()
    }

    fn tuned(&self) {
        self.pools().iter().for_each(|engine| engine.retune());
        if let Some(watch) = self.watch.get() {
            watch.tuned();
        }
    }
}

/// KiB of memory that this process has.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
