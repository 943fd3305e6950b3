//! The imported pools of the daemon.
//!
//! They are recorded in an OpenZFS cache file in the daemon's state directory, before a command
//! that imports or creates a pool ends, so that a daemon that is killed later finds the pool again.
//! A pool that cannot be opened at the start stays in the file.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cenote_cli::cache_file;
use cenote_cli::{
    AbsentPool, CommandResult, Exit, Host, MountRequest, Suspended, Taken, TemporarilyUnmounted,
};
use cenote_engine::{Engine, EventLog, Notice};
use cenote_ondisk::config::PoolConfig;
use cenote_pool::import::{self, Candidate};
use cenote_pool::{OpenOptions, ScanOptions};
use cenote_rt::lock::{AsyncMutex, Mutex, MutexGuard, Rank};
use cenote_rt::{BoxFuture, Error, JoinHandle, stages};
use cenote_serve::fuse::{MountTable, Transport};
use cenote_serve::nbd::Exports;

use super::absent::{self, AbsentPools};
use super::exports::Volumes;
use super::mounts::Mounts;
use super::place::Place;
use super::record::Record;
use super::watch::Watch;
use super::zedlets::Zedlets;
use super::{host_space, log, spares};

/// How often, and after what pause, an export looks again whether clients of volumes are there.
const CLIENT_LEAVES_TRIES: u32 = 25;
const CLIENT_LEAVES_PAUSE: Duration = Duration::from_millis(20);

/// Maximum number of closed pools whose events are kept.
const GONE_MAX: usize = 16;

/// The imported pools.
pub(super) struct Pools {
    place: Place,
    /// Their volumes, and the clients of these.
    exports: Arc<Exports>,
    // Held for single reads and updates, never across an await.
    open: Mutex<BTreeMap<String, Held>>,
    /// Recorded pools that could not be opened.
    absent: AbsentPools,
    /// One attempt to open recorded pools at a time.
    opening: AsyncMutex<()>,
    /// The daemon is closing its pools and imports no other. Set and read under the lock of `open`.
    is_closing: AtomicBool,
    /// Scripts that run on events.
    zedlets: OnceLock<Arc<Zedlets>>,
    /// Metrics, events and tunables as files and sockets.
    watch: OnceLock<Watch>,
    /// Events of closed pools. Held for single reads and updates.
    gone: Mutex<VecDeque<Arc<EventLog>>>,
}

/// Recorded pools that are to be opened.
#[derive(Debug, Clone, Copy)]
pub(super) enum Which {
    /// All of them, when the daemon starts. Later, a pool that is not open and not known to be
    /// absent is one that a command is about to export.
    All,
    /// Pools that could not be opened before.
    Absent,
    /// Pools among them that it is time to try again.
    DueAbsent,
}

/// An imported pool.
#[derive(Clone)]
struct Held {
    engine: Arc<Engine>,
    mounts: Arc<Mounts>,
    record: Arc<Record>,
    /// Its volumes are no longer exported.
    is_leaving: Arc<AtomicBool>,
}

impl std::fmt::Debug for Pools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pools").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Pools {
    /// Opens the recorded pools.
    pub(super) async fn open(place: &Place) -> Arc<Self> {
        let pools = Arc::new_cyclic(|pools| Self {
            place: place.clone(),
            exports: Exports::new(Arc::new(Volumes(Weak::clone(pools)))),
            open: Mutex::with_default(Rank::DaemonPools),
            absent: AbsentPools::default(),
            opening: AsyncMutex::with_default(Rank::DaemonOpening),
            is_closing: AtomicBool::new(false),
            zedlets: OnceLock::new(),
            watch: OnceLock::new(),
            gone: Mutex::with_default(Rank::DaemonGone),
        });
        match Zedlets::start(place) {
            Ok(zedlets) => drop(pools.zedlets.set(Arc::new(zedlets))),
            Err(error) => log::warn!(cause = %error, "no zedlets"),
        }
        pools.open_recorded(Which::All).await;
        drop(cenote_rt::spawn_background(absent::look(Arc::downgrade(&pools))));
        pools
    }

    /// Opens recorded pools that are not open.
    pub(super) async fn open_recorded(&self, which: Which) {
        let _opening = self.opening.lock().await;
        let file = self.place.pools();
        if !file.exists() {
            return;
        }
        match cache_file::pools(&file) {
            Ok(recorded) => {
                for name in recorded.unread.iter().filter(|_| matches!(which, Which::All)) {
                    log::error!(pool = %name, "record of a pool not read");
                }
                self.open_known(recorded.pools, which).await;
            }
            Err(exit) => {
                log::error!(path = %file.display(), cause = %exit.message(), "cache file not read");
            }
        }
    }

    /// Opens pools of a cache file. Devices may be files in a file system of another of these
    /// pools: missing pools are searched again as long as that opens some.
    async fn open_known(&self, recorded: Vec<PoolConfig>, which: Which) {
        let is_candidate = |config: &PoolConfig| {
            let guid = config.facts.pool_guid;
            (matches!(which, Which::All) || self.absent.has(guid)) && !self.is_open(guid)
        };
        let mut left = Vec::new();
        for config in recorded.into_iter().filter(is_candidate) {
            let present = present_devices(&config).await;
            let guid = config.facts.pool_guid;
            if !matches!(which, Which::DueAbsent) || self.absent.is_due(guid, &present) {
                left.push((present, config));
            }
        }
        while !left.is_empty() {
            let paths = left.iter().flat_map(|(present, _)| present.iter().cloned()).collect();
            let scan = import::scan(&ScanOptions { paths }).await;
            let found = scan.map(|scan| scan.candidates).unwrap_or_default();
            let candidate = |guid: u64| found.iter().find(|candidate| candidate.guid() == guid);
            let (there, missing): (Vec<_>, Vec<_>) = left
                .into_iter()
                .partition(|(_, config)| candidate(config.facts.pool_guid).is_some());
            let has_opened = !there.is_empty();
            for (present, config) in there {
                if let Some(candidate) = candidate(config.facts.pool_guid) {
                    self.open_again(candidate, present).await;
                }
            }
            left = Vec::new();
            for (_, config) in missing {
                left.push((present_devices(&config).await, config));
            }
            if !has_opened {
                break;
            }
        }
        for (present, config) in left {
            let candidate = Candidate::recorded(config);
            if self.absent.add(&candidate, None, present) {
                log::warn!(pool = %candidate.name(), guid = %candidate.guid(), "pool not found");
            }
        }
    }

    /// Returns the mounted datasets with their places, in the order of the mount table, and how
    /// their requests come.
    fn mounted(&self) -> Vec<(String, PathBuf, Transport)> {
        let Ok(table) = MountTable::read() else { return Vec::new() };
        let held: Vec<Held> = self.lock().values().cloned().collect();
        let mut mounts: Vec<_> = held.iter().flat_map(|held| held.mounts.list(&table)).collect();
        mounts.sort();
        mounts.into_iter().map(|(_, dataset, at, transport)| (dataset, at, transport)).collect()
    }

    fn is_open(&self, guid: u64) -> bool {
        self.lock().values().any(|held| held.engine.guid() == guid)
    }

    fn is_recorded(&self, guid: u64) -> bool {
        cache_file::read(&self.place.pools()).is_ok_and(|known| known.guids.contains(&guid))
    }

    /// Returns the recorded pools that could not be opened.
    pub(super) fn absent(&self) -> Vec<Arc<AbsentPool>> {
        let mut absent = self.absent.all();
        // It may have been imported from other paths.
        absent.retain(|absent| {
            let is_open = self.is_open(absent.guid());
            if is_open {
                self.absent.remove(absent.guid());
            }
            !is_open
        });
        absent.sort_by(|a, b| a.name().cmp(b.name()));
        absent
    }

    /// Starts the files and sockets for monitoring.
    pub(super) fn show(self: &Arc<Self>) {
        self.watch.get_or_init(|| Watch::start(&self.place, self));
    }

    fn keep_events(&self, engine: &Engine) {
        let mut gone = self.gone.lock();
        if gone.len() >= GONE_MAX {
            gone.pop_front();
        }
        gone.push_back(Arc::clone(engine.health().events()));
    }

    /// Opens a recorded pool, unless an export or destroy of it has ended without removing it from
    /// the cache file, because the daemon died in between: then it is removed now. OpenZFS does not
    /// open such a pool either.
    async fn open_again(&self, candidate: &Candidate, present: BTreeSet<PathBuf>) {
        if self.is_open(candidate.guid()) {
            // A command has imported it since the labels were read.
            return;
        }
        if candidate.last_use().is_released {
            let (name, file) = (candidate.name(), self.place.pools());
            log::info!(pool = %name, "pool not opened, it was exported");
            if let Err(error) = cache_file::remove_pool(&file, candidate.guid()) {
                log::warn!(path = %file.display(), cause = %error, "cache file not written");
            }
            self.absent.remove(candidate.guid());
            return;
        }
        // A pool that was imported without its log device (`-m`) is opened without it again, unless
        // the device holds an intent log.
        let options = OpenOptions {
            host: Some(import::Host::current()),
            unneeded_log_ok: true,
            ..OpenOptions::default()
        };
        let opened = async {
            let engine = Engine::open(candidate, &options).await?;
            stages::reach("pool-opened-again");
            cenote_fs::prepare(&engine).await?;
            Ok::<_, Error>(engine)
        };
        match opened.await {
            // It was imported and exported by a command since the record was read.
            Ok(engine) if !self.is_recorded(candidate.guid()) => {
                self.absent.remove(candidate.guid());
                if let Err(error) = engine.export().await {
                    log::warn!(pool = %candidate.name(), cause = %error, "pool not exported");
                }
            }
            Ok(engine) => {
                self.absent.remove(candidate.guid());
                for guid in engine.leaves().unreadable_logs() {
                    log::warn!(pool = %candidate.name(), guid = %guid, "log device missing");
                }
                let how = Taken { cache_file: Some(self.place.pools()), ..Taken::default() };
                if let Err(exit) = self.hold(engine, how).await {
                    let (name, cause) = (candidate.name(), exit.message());
                    log::warn!(pool = %name, cause = %cause, "pool not in order");
                }
            }
            Err(error) => {
                if self.absent.add(candidate, Some(&error), present) {
                    log::warn!(pool = %candidate.name(), cause = %error, "pool not opened");
                }
            }
        }
    }

    /// Starts closing pools by force whose devices prevent a regular close, so that everything that
    /// waits for them ends. To be called when the process is to end, before anything is waited for.
    pub(super) fn end_what_is_stuck(&self) -> Vec<PoolGuard> {
        let guard = |held: Held| {
            let is_at_work = Arc::new(AtomicBool::new(false));
            let begun = Arc::clone(&is_at_work);
            let task = cenote_rt::spawn(async move {
                held.engine.health().until_stuck().await;
                begun.store(true, Ordering::Release);
                close_by_force(&held.engine).await;
                held.mounts.cut_off().await;
            });
            PoolGuard { task, is_at_work }
        };
        self.lock().values().cloned().map(guard).collect()
    }

    /// Closes every pool without exporting it: the next daemon opens them again. Returns false if
    /// some devices have unanswered requests: threads may wait for them forever.
    pub(super) async fn close(&self) -> bool {
        if let Some(watch) = self.watch.get() {
            watch.stop();
        }
        // They stay in the list: a concurrent export must find its pool there, to remove it from
        // the cache file before it reports success.
        let mut open: Vec<_> = {
            let open = self.lock();
            self.is_closing.store(true, Ordering::Release);
            open.iter().map(|(name, held)| (name.clone(), held.clone())).collect()
        };
        let mut is_quiet = true;
        while !open.is_empty() {
            // A pool with devices in a file system of another pool is closed before that.
            let is_last = |(index, (_, held)): (usize, &(String, Held))| {
                let others = open.iter().enumerate().filter(move |(other, _)| *other != index);
                others.map(|(_, (_, other))| other).all(|other| !other.is_within(held))
            };
            let next = open.iter().enumerate().position(is_last).unwrap_or(0);
            let (name, held) = open.remove(next);
            held.mounts.leave().await;
            stages::reach("pool-unmounted-at-end");
            if let Err(error) = held.engine.detach_and_keep_active().await {
                log::warn!(pool = %name, cause = %error, "pool not left in order");
                close_by_force(&held.engine).await;
            }
            stages::reach("pool-left-at-end");
            // Reported in any case, also if requests are still in flight.
            let is_silent = tell_of_silence(&held.engine);
            is_quiet &= !is_silent && held.engine.leaves().in_flight() == 0;
        }
        is_quiet
    }

    /// Returns the exported volumes.
    pub(super) fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    /// Returns a report for users: pools, mounts, exports, and memory.
    pub(super) fn report(&self) -> String {
        let (process, memory) = (std::process::id(), resident() >> 10);
        let mut text = format!("running (process {process}, {memory} MiB of memory)\n");
        for engine in self.pools() {
            let health = engine.health();
            let state = match (health.suspended(), health.stopped(), engine.is_read_only()) {
                (Some(_), ..) => "suspended",
                (None, Some(_), _) => "stopped",
                (None, None, true) => "read-only",
                (None, None, false) => "open",
            };
            let _ = writeln!(text, "pool    {}  {state}", engine.name());
        }
        for pool in self.absent() {
            let _ = writeln!(text, "pool    {}  unavailable", pool.name());
        }
        let file = self.place.pools();
        if file.exists() {
            match cache_file::pools(&file) {
                Ok(recorded) => {
                    for name in recorded.unread {
                        let _ = writeln!(text, "record  {name}  cannot be read");
                    }
                }
                Err(exit) => {
                    let (file, cause) = (file.display(), exit.message());
                    let _ = writeln!(text, "records {file}  cannot be read: {cause}");
                }
            }
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
        for (dataset, at, transport) in self.mounted() {
            let _ = writeln!(text, "mount   {dataset}  {}  {transport}", at.display());
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

    /// Takes note of what happened outside of the daemon before a command runs: files of tunables
    /// that were written, and file systems that were unmounted.
    pub(super) fn notice(&self) {
        if let Some(watch) = self.watch.get() {
            watch.settle(self);
        }
        let held: Vec<Held> = self.lock().values().cloned().collect();
        let listed: Vec<_> = held.iter().map(|held| held.mounts.listed()).collect();
        let Ok(table) = MountTable::read() else { return };
        for (held, listed) in held.iter().zip(&listed) {
            held.mounts.notice(listed, &table);
        }
    }

    /// Returns the pools whose volumes are exported.
    pub(super) fn offering(&self) -> Vec<Arc<Engine>> {
        let open = self.lock();
        let offering = open.values().filter(|held| !held.is_leaving.load(Ordering::Acquire));
        offering.map(|held| Arc::clone(&held.engine)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.open.lock()
    }

    fn held(&self, name: &str) -> Result<Held, Exit> {
        let found = self.lock().get(name).cloned();
        found.ok_or_else(|| Exit::failed(format!("cannot open '{name}': no such pool")))
    }

    /// Returns the pool of a dataset.
    fn of_dataset(&self, dataset: &str) -> Result<Held, Exit> {
        self.held(dataset.split(['/', '@']).next().unwrap_or_default())
    }

    async fn hold(&self, engine: Arc<Engine>, how: Taken) -> CommandResult {
        let name = engine.name();
        stages::reach("pool-taken");
        if !engine.is_read_only() {
            engine.start_sync_task();
            engine.leaves().resume_work().await?;
            engine.removals().resume().await;
            engine.leaves().resume_reflow();
            if let Err(error) = engine.scans().resume().await {
                log::warn!(pool = %engine.name(), cause = %error, "scan not continued");
            }
        }
        let presence = engine.presence();
        presence.set_altroot(how.altroot.as_deref().and_then(Path::to_str));
        let (file, shown) = self.cache_file_of(&engine, how.cache_file);
        presence.set_cache_file(shown.as_deref());
        drop(cenote_rt::spawn_background(log::follow(Arc::clone(engine.health().events()))));
        if !engine.is_read_only() {
            drop(cenote_rt::spawn_background(spares::follow(Arc::downgrade(&engine))));
            drop(cenote_rt::spawn_background(spares::replace(Arc::downgrade(&engine))));
            drop(cenote_rt::spawn_background(host_space::follow(Arc::downgrade(&engine))));
        }
        let mounts = Arc::new(Mounts::new(&engine));
        let (record, is_leaving) = (Arc::new(Record::new(file)), Arc::default());
        let held = Held { engine, mounts: Arc::clone(&mounts), record, is_leaving };
        // With a full disk the file keeps its old contents. If it does not name the pool, a killed
        // daemon would leave dead mounts behind that no later daemon knows.
        let noted = match held.record.begin(&held.engine, || self.list(&name, &held)) {
            Ok(noted) => noted,
            Err(why) => {
                held.engine.detach_and_keep_active().await?;
                return Err(Exit::cannot("import", &name, why));
            }
        };
        stages::reach("pool-remembered");
        // Only now: their commands find the pool.
        if let Some(zedlets) = self.zedlets.get() {
            zedlets.follow(&held.engine);
        }
        let is_mounted =
            !how.is_unmounted && (noted.is_ok() || held.record.is_written(&held.engine));
        let mounted =
            if is_mounted { mounts.mount_all_with(&how.mount_options).await } else { Ok(()) };
        noted.and(mounted)
    }

    /// Adds a pool to the list, unless the name is taken or the daemon is stopping.
    fn list(&self, name: &str, held: &Held) -> Result<(), &'static str> {
        let is_other =
            |absent: &Arc<AbsentPool>| absent.name() == name && absent.guid() != held.engine.guid();
        let has_absent = self.absent().iter().any(is_other);
        let mut open = self.lock();
        match open.entry(name.to_owned()) {
            _ if has_absent => Err("a pool with that name already exists"),
            _ if self.is_closing.load(Ordering::Acquire) => Err("the daemon is stopping"),
            Entry::Occupied(_) => Err("a pool with that name already exists"),
            Entry::Vacant(entry) => {
                entry.insert(held.clone());
                Ok(())
            }
        }
    }

    /// Returns the cache file in which a pool is to be recorded, and the property `cachefile`,
    /// which is `None` for the default file.
    fn cache_file_of(
        &self,
        engine: &Engine,
        wanted: Option<PathBuf>,
    ) -> (Option<PathBuf>, Option<String>) {
        let is_elsewhere = engine.presence().altroot().is_some();
        let is_default = wanted.as_ref().is_none_or(|file| *file == self.place.pools());
        let file = match wanted {
            // As in OpenZFS, read-only pools and those with an altroot are not recorded.
            _ if engine.is_read_only() => None,
            Some(file) => Some(file).filter(|file| !file.as_os_str().is_empty()),
            None if is_elsewhere => None,
            None => Some(self.place.pools()),
        };
        let shown = file.as_deref().and_then(Path::to_str).unwrap_or("none").to_owned();
        (file, (!is_default || is_elsewhere).then_some(shown))
    }

    /// Whether clients use volumes of a pool. One that has just disconnected is noticed a moment
    /// later.
    async fn has_clients(&self, pool: u64) -> bool {
        for _ in 0..CLIENT_LEAVES_TRIES {
            if !self.exports.is_in_use(pool).await {
                return false;
            }
            cenote_rt::sleep(CLIENT_LEAVES_PAUSE).await;
        }
        true
    }

    /// Unmounts all file systems of a pool that is about to be closed, and stops its exports.
    async fn withdraw(&self, name: &str, action: &str, is_forced: bool) -> CommandResult {
        let held = self.held(name)?;
        stages::reach("pool-withdrawn");
        // Before the check for clients of volumes: no client can connect after it.
        let was_leaving = held.is_leaving.swap(true, Ordering::AcqRel);
        if was_leaving && !is_forced {
            return Err(Exit::cannot(action, name, "pool is busy"));
        }
        let is_used = self.has_clients(held.engine.guid()).await;
        // Clients of a volume of a closed pool cannot use it any more.
        let left = if is_used && !held.engine.health().is_closed() {
            Err(Exit::cannot(action, name, "pool is busy"))
        } else {
            held.mounts.unmount_all(is_forced).await
        };
        if left.is_err() {
            held.is_leaving.store(was_leaving, Ordering::Release);
        }
        left
    }

    /// Returns the entry of the pool's name, if it is this pool.
    fn held_as(&self, engine: &Arc<Engine>) -> Option<Held> {
        let held = self.held(&engine.name()).ok()?;
        Arc::ptr_eq(&held.engine, engine).then_some(held)
    }

    /// Removes a closed pool from the list; pools stay in the list until they are closed.
    async fn drop_closed(&self, engine: &Arc<Engine>) -> CommandResult {
        let Some(held) = self.held_as(engine) else { return Ok(()) };
        stages::reach("pool-closed");
        // Mounts that remained after closing by force.
        held.mounts.leave().await;
        self.keep_events(&held.engine);
        held.record.end(engine, || {
            let (mut open, name) = (self.lock(), engine.name());
            if open.get(&name).is_some_and(|now| Arc::ptr_eq(&now.engine, engine)) {
                open.remove(&name);
            }
        })
    }

    /// Mounts and exports a pool again that was withdrawn but is still open.
    async fn show_again(&self, engine: &Arc<Engine>) -> CommandResult {
        let Some(held) = self.held_as(engine) else { return Ok(()) };
        // Another command may have closed it by force meanwhile, which removes it.
        if engine.health().is_closed() || !held.is_leaving.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        if engine.health().suspended().is_some() {
            // The pool is suspended: its file systems are mounted by a later command, after `zpool
            // clear`.
            return Ok(());
        }
        held.mounts.mount_all().await
    }
}

/// Returns the paths of a pool's devices that exist.
async fn present_devices(config: &PoolConfig) -> BTreeSet<PathBuf> {
    let paths = cache_file::Cached::of(&config.raw).paths;
    // A path may lead into a mount of this process, or to one that does not answer.
    let looked = cenote_rt::blocking(move || {
        paths.into_iter().filter(|path| path.exists()).collect::<BTreeSet<_>>()
    });
    looked.await.unwrap_or_default()
}

/// Waits for a pool that cannot be closed regularly, and closes it by force.
pub(super) struct PoolGuard {
    task: JoinHandle<()>,
    /// The pool is being closed by force.
    is_at_work: Arc<AtomicBool>,
}

impl PoolGuard {
    /// To be called when all pools are closed. Waits for a guard that has started, since only it
    /// detaches the mounts whose connections it has ended.
    pub(super) async fn end(self) {
        if self.is_at_work.load(Ordering::Acquire) {
            let _ = self.task.await;
        } else {
            self.task.abort();
        }
    }
}

/// Closes a pool by force, and logs which changes are lost.
async fn close_by_force(engine: &Engine) {
    let (name, ended) = (engine.name(), engine.close_by_force().await);
    if let Some(lost) = ended.unwritten {
        log::error!(
            pool = %name,
            first_txg = %lost.first_txg,
            last_txg = %lost.last_txg,
            bytes = %lost.bytes,
            "pool closed by force, changes not written"
        );
    } else {
        log::warn!(pool = %name, "pool closed by force, nothing lost");
    }
}

/// Logs the devices that did not answer when a pool was closed; returns whether there are any.
fn tell_of_silence(engine: &Engine) -> bool {
    let mut is_silent = false;
    for notice in engine.health().take_notices() {
        let Notice::SilentDevices { paths } = notice else { continue };
        is_silent = true;
        for path in paths {
            log::warn!(pool = %engine.name(), path = %path, "device does not answer");
        }
    }
    is_silent
}

impl Held {
    /// Whether one of its devices is a file in a mounted file system of the other pool.
    fn is_within(&self, other: &Self) -> bool {
        let Ok(table) = MountTable::read() else { return false };
        let places = other.mounts.list(&table);
        let root = self.engine.admin().vdev_config();
        let mut paths = root.leaves().filter_map(|leaf| leaf.leaf.path.as_ref());
        paths.any(|path| {
            let path = Path::new(OsStr::from_bytes(path.as_bytes()));
            places.iter().any(|(_, _, at, _)| path.starts_with(at))
        })
    }
}

impl Host for Pools {
    fn pools(&self) -> Vec<Arc<Engine>> {
        self.lock().values().map(|held| Arc::clone(&held.engine)).collect()
    }

    fn absent_pools(&self) -> Vec<Arc<AbsentPool>> {
        self.absent()
    }

    fn look_for_absent_pools(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.open_recorded(Which::Absent))
    }

    fn forget_absent_pool<'a>(&'a self, pool: &'a AbsentPool) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move {
            // It may have been opened since the command looked.
            let _opening = self.opening.lock().await;
            if self.is_open(pool.guid()) {
                return Err(Exit::cannot("export", pool.name(), "pool is busy"));
            }
            cache_file::remove_pool(&self.place.pools(), pool.guid())?;
            self.absent.remove(pool.guid());
            Ok(())
        })
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
            let (file, shown) = self.cache_file_of(&held.engine, file);
            held.record.change_file(&held.engine, file, shown.as_deref())
        })
    }

    fn release<'a>(
        &'a self,
        pool: &'a str,
        action: &'a str,
        is_forced: bool,
    ) -> BoxFuture<'a, CommandResult> {
        Box::pin(self.withdraw(pool, action, is_forced))
    }

    fn forget<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, CommandResult> {
        Box::pin(self.drop_closed(engine))
    }

    fn keep<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, CommandResult> {
        Box::pin(self.show_again(engine))
    }

    fn follow<'a>(&'a self, pool: &'a str, is_quiet: bool) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move {
            let held = self.held(pool)?;
            if let Err(exit) = held.record.update(&held.engine) {
                // The command itself has succeeded.
                log::warn!(pool = %pool, cause = %exit.message(), "pool not remembered as it is");
            }
            held.mounts.follow(is_quiet).await
        })
    }

    fn mount<'a>(
        &'a self,
        dataset: &'a str,
        request: &'a MountRequest,
    ) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move { self.of_dataset(dataset)?.mounts.mount(dataset, request).await })
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

    fn close_unused_snapshots(&self, pool: &str) {
        if let Ok(held) = self.held(pool) {
            held.mounts.close_unused_snapshots();
        }
    }

    fn unmount_temporarily<'a>(
        &'a self,
        datasets: &'a [String],
        is_forced: bool,
    ) -> BoxFuture<'a, Result<Vec<TemporarilyUnmounted>, Exit>> {
        Box::pin(async move {
            let Some(first) = datasets.first() else { return Ok(Vec::new()) };
            self.of_dataset(first)?.mounts.unmount_temporarily(datasets, is_forced).await
        })
    }

    fn mount_again<'a>(
        &'a self,
        pool: &'a str,
        unmounted: Vec<TemporarilyUnmounted>,
    ) -> BoxFuture<'a, CommandResult> {
        Box::pin(async move { self.held(pool)?.mounts.mount_again(&unmounted).await })
    }

    fn suspend<'a>(
        &'a self,
        dataset: &'a str,
        contents: &'a str,
        action: &'a str,
    ) -> BoxFuture<'a, Result<Suspended, Exit>> {
        Box::pin(async move {
            self.of_dataset(dataset)?.mounts.suspend(dataset, contents, action).await
        })
    }

    fn resume<'a>(&'a self, pool: &'a str, suspended: Suspended) -> BoxFuture<'a, CommandResult> {
        // Without the pool `suspended` is dropped, which resumes its requests.
        Box::pin(async move { self.held(pool)?.mounts.resume(suspended).await })
    }

    fn mounts(&self) -> Vec<(String, PathBuf)> {
        self.mounted().into_iter().map(|(dataset, at, _)| (dataset, at)).collect()
    }

    fn events(&self) -> Vec<Arc<EventLog>> {
        let gone = self.gone.lock().clone();
        let open = self.pools().into_iter().map(|engine| Arc::clone(engine.health().events()));
        gone.into_iter().chain(open).collect()
    }

    fn apply_tunables(&self) {
        self.pools().iter().for_each(|engine| engine.retune());
        if let Some(watch) = self.watch.get() {
            watch.apply_tunables();
        }
    }
}

/// Returns the resident memory of this process in KiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
