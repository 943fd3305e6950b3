//! Who has pools open between commands, and on whose behalf a command runs.
//!
//! A command that is run without a session opens its pools itself (`--embedded`) or finds none. In
//! a session the pools are those of a [`Host`], the daemon: they stay open, what they hold is
//! mounted, and a command only asks and changes them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cenote_engine::{Engine, EventLog};
use cenote_pool::dsl::deleg::Asker;
use cenote_rt::BoxFuture;
use cenote_serve::fuse::{MountOptions, Suspension};

use crate::accounts;
use crate::environment::Variables;
use crate::io::{CommandResult, Exit};

/// Who has pools open.
pub trait Host: Send + Sync {
    /// The pools, by name.
    fn pools(&self) -> Vec<Arc<Engine>>;

    /// Takes a pool that was created or imported, and shows what it holds.
    fn take(&self, engine: Arc<Engine>, how: Taken) -> BoxFuture<'_, CommandResult>;

    /// Looks at what has changed in a pool: what was mounted moves or goes, what is new comes. If
    /// `is_quiet`, nothing but what is gone for good moves, now or when somebody looks again.
    fn follow<'a>(&'a self, pool: &'a str, is_quiet: bool) -> BoxFuture<'a, CommandResult>;

    /// Mounts a file system where its properties say.
    fn mount<'a>(&'a self, dataset: &'a str, wish: &'a MountWish) -> BoxFuture<'a, CommandResult>;

    /// Mounts every file system of a pool that wants to be.
    fn mount_all<'a>(&'a self, pool: &'a str) -> BoxFuture<'a, CommandResult>;

    /// Unmounts a file system: at that place, or where its properties have mounted it, with those
    /// below it.
    fn unmount<'a>(
        &'a self,
        dataset: &'a str,
        place: Option<&'a Path>,
        is_forced: bool,
    ) -> BoxFuture<'a, CommandResult>;

    /// Closes snapshots of a pool that were looked at below `.zfs` and that nobody reads just now:
    /// what is open cannot be destroyed.
    fn let_go_of_snapshots(&self, pool: &str);

    /// Unmounts those of the file systems that are mounted, since they are about to change: all of
    /// them, or none. For [`bring_back`](Self::bring_back).
    fn set_aside<'a>(
        &'a self,
        datasets: &'a [String],
        is_forced: bool,
    ) -> BoxFuture<'a, Result<Vec<Aside>, Exit>>;

    /// Mounts again what was set aside, where its properties say now, if it is still there.
    fn bring_back<'a>(&'a self, pool: &'a str, aside: Vec<Aside>) -> BoxFuture<'a, CommandResult>;

    /// Holds up all requests to a file system, if it is mounted, since it is about to be rolled
    /// back to a snapshot. One that cannot be held up is unmounted, whoever uses it.
    fn suspend<'a>(
        &'a self,
        dataset: &'a str,
        snapshot: &'a str,
    ) -> BoxFuture<'a, Result<Suspended, Exit>>;

    /// Has the requests go on, with the content that there is now.
    fn resume<'a>(&'a self, pool: &'a str, suspended: Suspended) -> BoxFuture<'a, CommandResult>;

    /// Remembers a pool elsewhere from now on: as [`Taken::cache_file`].
    fn remember<'a>(&'a self, pool: &'a str, file: Option<PathBuf>)
    -> BoxFuture<'a, CommandResult>;

    /// Shows nothing of a pool any more, which the caller is about to close; `deed` is what for.
    /// The pool stays known until [`forget`](Self::forget) or [`keep`](Self::keep) is called.
    fn release<'a>(
        &'a self,
        pool: &'a str,
        deed: &'a str,
        is_forced: bool,
    ) -> BoxFuture<'a, CommandResult>;

    /// Forgets a pool that was released and is closed.
    fn forget<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, CommandResult>;

    /// Shows a pool again that was released and could not be closed.
    fn keep<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, CommandResult>;

    /// What is mounted, by dataset, and where, in the order in which that was done.
    fn mounts(&self) -> Vec<(String, PathBuf)>;

    /// Acts by tunables that a command has set, and shows them.
    fn tuned(&self);

    /// What happened to the pools, also to those that left not long ago.
    fn events(&self) -> Vec<Arc<EventLog>>;
}

/// How a pool comes to a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Mount points are below this folder, and nothing is remembered (`-R`).
    pub altroot: Option<PathBuf>,
    /// Where the pool is remembered instead (property `cachefile`); empty for nowhere.
    pub cache_file: Option<PathBuf>,
    /// Nothing is mounted (`-N`).
    pub is_unmounted: bool,
}

/// How a file system is to be mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountWish {
    /// Options of the mount, which go before properties (`-o`).
    pub options: String,
    /// It is mounted, and is to have these options from now on (`remount`).
    pub is_again: bool,
    /// A folder that is not empty is hidden, whatever `overlay` says (`-O`).
    pub is_overlay: bool,
    /// Where it is mounted, for whoever chooses that himself (`mount.zfs`); what is mounted already
    /// is so at this place, too.
    pub place: Option<PathBuf>,
}

/// A file system that was unmounted for a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aside {
    /// Number of the dataset.
    pub object: u64,
    /// `mountpoint`, as it was.
    pub mountpoint: String,
    /// Where it was.
    pub place: PathBuf,
    /// How it was mounted.
    pub options: MountOptions,
}

/// A file system that is about to be rolled back. Its requests go on when this is dropped, too.
#[derive(Debug, Default)]
pub struct Suspended {
    /// Its mount, whose requests wait; none if it is not mounted.
    pub mount: Option<Suspension>,
    /// What was unmounted instead.
    pub aside: Vec<Aside>,
}

/// A command in a session.
#[derive(Clone)]
pub struct Session {
    /// Who has the pools.
    pub host: Arc<dyn Host>,
    /// Who runs the command.
    pub caller: Caller,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Session {
    /// A pool by name, or by guid.
    pub(crate) fn pool(&self, name: &str) -> Result<Arc<Engine>, Exit> {
        let pools = self.host.pools();
        let by_name = pools.iter().find(|engine| engine.name() == name);
        let by_guid = || pools.iter().find(|engine| name.parse() == Ok(engine.guid()));
        let found = by_name.or_else(by_guid).map(Arc::clone);
        found.ok_or_else(|| Exit::failed(format!("cannot open '{name}': no such pool")))
    }
}

/// Who runs a command.
#[derive(Debug, Clone)]
pub struct Caller {
    uid: u32,
    gid: u32,
    folder: PathBuf,
    streams: Option<Arc<dyn CallerStreams>>,
    environment: Variables,
    /// Found out when it is asked for, once for a command.
    asker: Arc<OnceLock<Asker>>,
}

impl Caller {
    /// A user, in a working directory.
    #[must_use]
    pub fn new(uid: u32, gid: u32, folder: PathBuf) -> Self {
        let environment = Variables::new();
        Self { uid, gid, folder, streams: None, environment, asker: Arc::default() }
    }

    /// The same with variables of his environment.
    #[must_use]
    pub fn with_environment(self, environment: Variables) -> Self {
        Self { environment, ..self }
    }

    /// The variables of his environment that are known.
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

    /// His uid.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// His gid.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// His working directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Him, as one who asks for permissions: with the groups that the system has him in.
    pub(crate) fn asker(&self) -> &Asker {
        let (uid, gid) = (self.uid, self.gid);
        self.asker.get_or_init(|| Asker { uid, gids: accounts::groups(uid, gid) })
    }

    /// Whether he may change anything: the user whose daemon it is, and root.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// The standard streams of the caller's process, which is not this one.
///
/// What a command writes is kept until [`deliver`](Self::deliver): a caller that does not read
/// must not hold up a command that has borrowed a state of a pool (DESIGN 4b, rule 1).
pub trait CallerStreams: std::fmt::Debug + Send + Sync {
    /// Sends what the command has written since the last delivery. Blocks for as long as the caller
    /// is allowed not to read, so no view of a pool, lock or pin may be held.
    ///
    /// # Errors
    /// `BrokenPipe` if the caller is gone or did not read in time.
    fn deliver(&self) -> std::io::Result<()>;

    /// Drops what the command has written since the last delivery.
    fn discard(&self);

    /// Whether something was delivered already.
    fn has_delivered(&self) -> bool;

    /// Delivers, then has the caller's process read a key: one line from a terminal after this
    /// prompt, or standard input. Returns the key, and whether it was typed at a terminal.
    ///
    /// # Errors
    /// Those of the caller's process, and of a caller that is gone or does not answer in time.
    fn ask_key(&self, prompt: &str, is_raw: bool) -> std::io::Result<(Vec<u8>, bool)>;

    /// Whether the caller has stopped waiting for the command.
    fn is_gone(&self) -> bool;
}
