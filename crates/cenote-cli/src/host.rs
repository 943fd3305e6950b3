//! The interface to the process that keeps pools open between commands, and the caller of a
//! command.
//!
//! A command that runs without a session opens its pools itself (`--embedded`) or finds none. In a
//! session the pools belong to a [`Host`], which is the daemon: they stay open, their file systems
//! are mounted, and a command only queries and changes them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cenote_engine::{Engine, EventLog};
use cenote_fs::access::accounts;
use cenote_ondisk::config::VdevConfig;
use cenote_pool::dsl::deleg::Requester;
use cenote_pool::status::PoolStatus;
use cenote_rt::BoxFuture;
use cenote_serve::fuse::{MountOptions, Suspension};

use crate::environment::Variables;
use crate::io::{CommandResult, Exit};
use crate::leaf_scripts;

/// A process that keeps pools open.
pub trait Host: Send + Sync {
    /// Returns the open pools, by name.
    fn pools(&self) -> Vec<Arc<Engine>>;

    /// Returns the recorded pools that could not be opened, by name.
    fn absent_pools(&self) -> Vec<Arc<AbsentPool>>;

    /// Opens recorded pools whose devices have appeared.
    fn look_for_absent_pools(&self) -> BoxFuture<'_, ()>;

    /// Forgets a recorded pool that could not be opened.
    fn forget_absent_pool<'a>(&'a self, pool: &'a AbsentPool) -> BoxFuture<'a, CommandResult>;

    /// Takes over a pool that was created or imported, mounts its file systems and offers its
    /// volumes.
    fn take(&self, engine: Arc<Engine>, how: Taken) -> BoxFuture<'_, CommandResult>;

    /// Updates the mounts after a change of a pool: mounts move, disappear or appear. If
    /// `is_quiet`, only mounts of destroyed file systems disappear; nothing else moves, now or at a
    /// later update.
    fn follow<'a>(&'a self, pool: &'a str, is_quiet: bool) -> BoxFuture<'a, CommandResult>;

    /// Mounts a file system at its mount point.
    fn mount<'a>(
        &'a self,
        dataset: &'a str,
        request: &'a MountRequest,
    ) -> BoxFuture<'a, CommandResult>;

    /// Mounts all file systems of a pool that are to be mounted.
    fn mount_all<'a>(&'a self, pool: &'a str) -> BoxFuture<'a, CommandResult>;

    /// Unmounts a file system, and those below it, from `place` or from its mount point.
    fn unmount<'a>(
        &'a self,
        dataset: &'a str,
        place: Option<&'a Path>,
        is_forced: bool,
    ) -> BoxFuture<'a, CommandResult>;

    /// Closes snapshots of a pool that were visited below `.zfs` and are not in use now: an open
    /// snapshot cannot be destroyed.
    fn close_unused_snapshots(&self, pool: &str);

    /// Unmounts the mounted ones among these file systems before a change: all of them, or none.
    /// [`mount_again`](Self::mount_again) mounts them afterwards.
    fn unmount_temporarily<'a>(
        &'a self,
        datasets: &'a [String],
        is_forced: bool,
    ) -> BoxFuture<'a, Result<Vec<TemporarilyUnmounted>, Exit>>;

    /// Mounts file systems again after [`unmount_temporarily`](Self::unmount_temporarily), at their
    /// present mount points, if they still exist.
    fn mount_again<'a>(
        &'a self,
        pool: &'a str,
        unmounted: Vec<TemporarilyUnmounted>,
    ) -> BoxFuture<'a, CommandResult>;

    /// Suspends all requests to a mounted file system before its contents are replaced by those of
    /// a snapshot or of another dataset; `action` is for messages. If the mount cannot be
    /// suspended, it is unmounted, even if it is in use.
    fn suspend<'a>(
        &'a self,
        dataset: &'a str,
        contents: &'a str,
        action: &'a str,
    ) -> BoxFuture<'a, Result<Suspended, Exit>>;

    /// Resumes the requests, which then see the present contents.
    fn resume<'a>(&'a self, pool: &'a str, suspended: Suspended) -> BoxFuture<'a, CommandResult>;

    /// Changes the cache file that the pool is recorded in, like [`Taken::cache_file`].
    fn remember<'a>(&'a self, pool: &'a str, file: Option<PathBuf>)
    -> BoxFuture<'a, CommandResult>;

    /// Unmounts a pool and withdraws its volumes before the caller closes it; `action` names the
    /// reason in messages. The pool stays known until [`forget`](Self::forget) or
    /// [`keep`](Self::keep) is called.
    fn release<'a>(
        &'a self,
        pool: &'a str,
        action: &'a str,
        is_forced: bool,
    ) -> BoxFuture<'a, CommandResult>;

    /// Forgets a pool that was released and closed.
    fn forget<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, CommandResult>;

    /// Mounts a pool again that was released but could not be closed.
    fn keep<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, CommandResult>;

    /// Returns the mounted datasets and their mount points, in mount order.
    fn mounts(&self) -> Vec<(String, PathBuf)>;

    /// Applies tunables that a command has set, and publishes their values.
    fn apply_tunables(&self);

    /// Returns the event logs of the pools, including those of recently closed pools.
    fn events(&self) -> Vec<Arc<EventLog>>;
}

/// A recorded pool that could not be opened.
#[derive(Debug)]
pub struct AbsentPool {
    /// Its state, and the reason.
    pub status: PoolStatus,
    /// Its vdevs.
    pub root: VdevConfig,
}

impl AbsentPool {
    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.status.facts.name
    }

    /// The pool's guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.status.facts.pool_guid
    }
}

/// Options of handing a pool over to a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Mount points are below this folder, and the pool is not recorded in a cache file (`-R`).
    pub altroot: Option<PathBuf>,
    /// Cache file instead of the default one (property `cachefile`); empty for none.
    pub cache_file: Option<PathBuf>,
    /// Nothing is mounted (`-N`).
    pub is_unmounted: bool,
    /// Options of the mounts of this import, which override properties (`-o` without a value).
    pub mount_options: String,
}

/// Options of mounting a file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountRequest {
    /// Mount options, which override properties (`-o`).
    pub options: String,
    /// The file system is mounted already, and gets these options from now on (`remount`).
    pub is_remount: bool,
    /// A folder that is not empty may be mounted over, whatever `overlay` says (`-O`).
    pub is_overlay: bool,
    /// A redacted file system may be mounted, although it lacks blocks (`-f`).
    pub is_forced: bool,
    /// Mount point, for callers that choose it themselves (`mount.zfs`). A file system that is
    /// already mounted is mounted at this place as well.
    pub place: Option<PathBuf>,
}

/// A file system that was unmounted for the duration of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemporarilyUnmounted {
    /// Object number of the dataset.
    pub object: u64,
    /// The property `mountpoint` before the command.
    pub mountpoint: String,
    /// Folder that it was mounted on.
    pub place: PathBuf,
    /// Its mount options.
    pub options: MountOptions,
}

/// A mounted file system whose requests are suspended for a rollback. Dropping it resumes them.
#[derive(Debug, Default)]
pub struct Suspended {
    /// The suspended mount; `None` if the file system is not mounted.
    pub mount: Option<Suspension>,
    /// File systems that were unmounted because they could not be suspended.
    pub unmounted: Vec<TemporarilyUnmounted>,
}

/// A command that runs in a process with open pools.
#[derive(Clone)]
pub struct Session {
    /// The process with the open pools.
    pub host: Arc<dyn Host>,
    /// The caller of the command.
    pub caller: Caller,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Session {
    /// Returns an open pool by name or guid.
    ///
    /// # Errors
    /// OpenZFS's message for a pool that is not open.
    pub fn pool(&self, name: &str) -> Result<Arc<Engine>, Exit> {
        let pools = self.host.pools();
        let by_name = pools.iter().find(|engine| engine.name() == name);
        let by_guid = || pools.iter().find(|engine| name.parse() == Ok(engine.guid()));
        let found = by_name.or_else(by_guid).map(Arc::clone);
        found.ok_or_else(|| {
            let is_absent = self.absent_pool(name).is_some();
            let why = if is_absent { "pool is unavailable" } else { "no such pool" };
            Exit::cannot("open", name, why)
        })
    }

    /// Returns a recorded pool that could not be opened, by name or guid.
    pub(crate) fn absent_pool(&self, name: &str) -> Option<Arc<AbsentPool>> {
        let is_named =
            |pool: &Arc<AbsentPool>| pool.name() == name || name.parse() == Ok(pool.guid());
        self.host.absent_pools().into_iter().find(is_named)
    }

    /// Whether the pool with this guid is open.
    pub(crate) fn has_guid(&self, guid: u64) -> bool {
        self.host.pools().iter().any(|engine| engine.guid() == guid)
    }

    /// Whether the name belongs to a pool, opened or not.
    pub(crate) fn has_pool(&self, name: &str) -> bool {
        self.pool(name).is_ok() || self.absent_pool(name).is_some()
    }
}

/// The pools that were open when a command began to read.
pub(crate) struct OpenPools(Vec<Arc<Engine>>);

impl OpenPools {
    /// Returns the pools that are open now.
    pub(crate) fn of(session: &Session) -> Self {
        let pools = session.host.pools().into_iter();
        Self(pools.filter(|engine| !engine.tree().is_closed()).collect())
    }

    /// Whether one of them is closed now: reading it may have failed, or shown values as absent.
    pub(crate) fn is_one_closed(&self) -> bool {
        self.0.iter().any(|engine| engine.tree().is_closed())
    }
}

/// The user and process that gave a command.
#[derive(Debug, Clone)]
pub struct Caller {
    uid: u32,
    gid: u32,
    folder: PathBuf,
    streams: Option<Arc<dyn CallerStreams>>,
    environment: Variables,
    /// Looked up on first use, once per command.
    requester: Arc<OnceLock<Requester>>,
}

impl Caller {
    /// Returns a caller with this user and working directory.
    #[must_use]
    pub fn new(uid: u32, gid: u32, folder: PathBuf) -> Self {
        let environment = Variables::new();
        Self { uid, gid, folder, streams: None, environment, requester: Arc::default() }
    }

    /// Returns this caller with variables of its environment.
    #[must_use]
    pub fn with_environment(self, environment: Variables) -> Self {
        Self { environment, ..self }
    }

    /// Returns the variables of the caller's environment that commands read.
    pub(crate) fn environment(&self) -> &Variables {
        &self.environment
    }

    /// Returns this caller with the standard streams of the caller's process.
    #[must_use]
    pub fn with_streams(self, streams: Arc<dyn CallerStreams>) -> Self {
        Self { streams: Some(streams), ..self }
    }

    /// The standard streams of the caller's process.
    pub(crate) fn streams(&self) -> Option<&Arc<dyn CallerStreams>> {
        self.streams.as_ref()
    }

    /// The caller's uid.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The caller's gid.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The caller's working directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the caller as a subject of permission checks: with all groups of this system that
    /// list the user.
    pub(crate) fn requester(&self) -> &Requester {
        let (uid, gid) = (self.uid, self.gid);
        self.requester.get_or_init(|| Requester {
            uid,
            gids: accounts::groups_of(uid, gid),
            is_trusted: self.is_trusted(),
        })
    }

    /// Whether the caller may change everything: the daemon's own user, and root.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// The standard streams of the caller's process, which is not this one.
///
/// What a command writes is kept until [`deliver`](Self::deliver): a caller that does not read
/// must not hold up a command that has borrowed a state of a pool (docs/design/rules.md, rule 1).
pub trait CallerStreams: std::fmt::Debug + Send + Sync {
    /// Sends what the command has written since the last delivery. Blocks for as long as the caller
    /// is allowed not to read, so no view of a pool, lock or pin may be held.
    ///
    /// # Errors
    /// `BrokenPipe` if the caller is gone or did not read in time.
    fn deliver(&self) -> std::io::Result<()>;

    /// Charges memory to the caller until the next [`deliver`](Self::deliver) or
    /// [`discard`](Self::discard), for rows that must be complete before the first is written.
    ///
    /// # Errors
    /// An error if the caller has used up its share (SHARE-4 in docs/design/rules.md).
    fn charge(&self, bytes: u64) -> std::io::Result<()>;

    /// Drops what the command has written since the last delivery.
    fn discard(&self);

    /// Whether some output was already delivered.
    fn has_delivered(&self) -> bool;

    /// Delivers, then has the caller's process read a key: one line from a terminal after this
    /// prompt, or standard input. Returns the key, and whether it was typed at a terminal.
    ///
    /// The errors of the caller's process; an error if the caller is gone or does not answer in
    /// time.
    fn ask_key(&self, prompt: &str, is_raw: bool) -> std::io::Result<(Vec<u8>, bool)>;

    /// Delivers, then has the caller's process read the key at this value of `keylocation`.
    ///
    /// # Errors
    /// The errors of the caller's process; an error if the caller is gone or does not answer in
    /// time.
    fn ask_key_at(&self, location: &str) -> std::io::Result<Vec<u8>>;

    /// Has the caller's process look for a file, and return its path without links, `.` and `..`.
    /// No view of a pool, lock or pin may be held. Nothing is delivered before: what was charged
    /// stays charged.
    ///
    /// # Errors
    /// The errors of the caller's process, in the system's words; an error if the caller is gone or
    /// does not answer in time.
    fn find_path(&self, path: &Path) -> std::io::Result<PathBuf>;

    /// Has the caller's process run scripts, see [`leaf_scripts`]. Returns the lines of each leaf.
    /// Blocks as long as the scripts run, so no view of a pool, lock or pin may be held. Nothing is
    /// delivered before: what was charged stays charged.
    ///
    /// # Errors
    /// The errors of the caller's process; an error if the caller is gone.
    fn run_scripts(&self, request: &leaf_scripts::Request) -> std::io::Result<Vec<Vec<String>>>;

    /// Delivers, then has the caller's process read its standard input. Returns what was there,
    /// nothing at its end. Blocks as long as no input comes, so no view of a pool, lock or pin may
    /// be held.
    ///
    /// # Errors
    /// The errors of the caller's process; an error if the caller is gone.
    fn read_input(&self) -> std::io::Result<Vec<u8>>;

    /// Whether the caller has stopped waiting for the command.
    fn is_gone(&self) -> bool;
}
