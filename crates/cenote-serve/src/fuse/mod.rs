//! File systems mounted through FUSE.
//!
//! ```text
//!   kernel ──> service (threads) ──> wire ──> adapter ──> Vfs ──> cenote_fs::Mount
//! ```
//!
//! **Visibility.** As root a file system is mounted for all users (`allow_other`), like other file
//! systems. Without root it is only visible to its owner, mounted by `fusermount3`; to others only
//! if requested, which `/etc/fuse.conf` must allow, and always without devices and set-id programs.
//! The kernel checks permissions by modes and POSIX ACLs (`default_permissions`).
//!
//! **Writes go through.** The kernel could cache written pages and times and send them later
//! (writeback cache). That is off by default: with it, a full pool or quota is reported at `close`
//! or never, sizes and times are the kernel's instead of the file system's, each small file costs
//! one more message, holes cannot be reported, and a user who may write a file but does not own it
//! cannot `touch` it. Its advantage is many small writes to the same pages.
//!
//! **At several places** a file system is one for the kernel, as with the kernel module: the first
//! mount is bound to the other places ([`FuseMount::also_at`]), with one cache of pages and names.
//! Two separate mounts would each cache pages of files that are written through the other. For the
//! same reason a file system that is mounted again, while programs use it after it was unmounted,
//! gets its earlier connection ([`FuseMount::mount_again`], invariant MOUNT-1 of [`served`]).
//!
//! Data written to a file before an `fsync` returned survives any crash; other data is on disk some
//! seconds later (`zfs_txg_timeout`). `sync` of all file systems does not reach a FUSE file system:
//! the kernel does not pass it on.

mod adapter;
mod connection;
mod convert;
mod flags;
mod gate;
pub mod helper;
mod nodes;
mod place;
mod queues;
mod rollback;
mod served;
mod service;
mod snapshots;
mod table;
mod vfs;
mod walk;
#[expect(clippy::trivially_copy_pass_by_ref, reason = "a request is lent, whatever its size")]
mod wire;

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_fs::Mount;
use cenote_fs::mount::AccessTimes;
use cenote_rt::{Error, Kind, Result, stages};

use crate::stop::Stop;
use adapter::Adapter;
use connection::Connection;
use helper::Operation;
use helper::guard::{self, Watched};
use served::Served;
use service::{ServeError, Service};
use vfs::Vfs;
use wire::{INodeNo, Notifier};

pub use rollback::Suspension;
pub use table::MountTable;

/// Time limit for flushing the kernel's dirty pages before a mount is aborted.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// Time limit for the end of a connection that the kernel has closed.
const ENDING_MAX: Duration = Duration::from_secs(5);

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// There is no such directory.
    #[error("cannot mount at '{}': {error}", at.display())]
    Place {
        /// The path.
        at: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The mount point cannot be created.
    #[error("cannot make '{}': {error}", at.display())]
    Create {
        /// The path.
        at: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A symbolic link in the path may be another user's.
    #[error(
        "a symbolic link in '{}' belongs to another user, or lies where another user can write",
        at.display()
    )]
    Link {
        /// The whole path.
        at: PathBuf,
    },
    /// The mount point is not empty.
    #[error("'{}' is not empty", at.display())]
    NotEmpty {
        /// The path.
        at: PathBuf,
    },
    /// The path worker was not started, or did not answer in time.
    #[error("no work was done on '{}': {error}", at.display())]
    Worker {
        /// The path.
        at: PathBuf,
        /// The system's error; a timeout if something at the path does not answer.
        error: std::io::Error,
    },
    /// A cenote file system is mounted there.
    #[error("'{}' is mounted already", at.display())]
    Mounted {
        /// The path.
        at: PathBuf,
    },
    /// Another file system is mounted over it.
    #[error("'{}' is hidden by another file system", at.display())]
    Hidden {
        /// The path.
        at: PathBuf,
    },
    /// The kernel has no FUSE.
    #[error("cannot open '/dev/fuse': {error}; file systems are mounted with FUSE of the kernel")]
    Device {
        /// The system's error.
        error: std::io::Error,
    },
    /// The program that mounts for users other than root is not installed.
    #[error("only root mounts without 'fusermount3', which is not installed (package fuse3)")]
    NoHelper,
    /// `fusermount3` has a limit for the file systems of all users.
    #[error(
        "cannot mount at '{}': too many FUSE file systems are mounted; the limit is mount_max in \
         /etc/fuse.conf, 1000 unless set",
        at.display()
    )]
    TooMany {
        /// The path.
        at: PathBuf,
    },
    /// The kernel offered io_uring, and refused it.
    #[error("cannot mount at '{}': io_uring: {error}", at.display())]
    Ring {
        /// The path.
        at: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The kernel, or `fusermount3`, refused.
    #[error("cannot mount at '{}': {error}", at.display())]
    Refused {
        /// The path.
        at: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file system is in use, or not mounted.
    #[error("cannot unmount '{}': {error}", at.display())]
    Unmount {
        /// The path.
        at: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// Unknown option.
    #[error("unknown mount option '{0}'")]
    Option(String),
    /// The kernel cannot be given a number for this object of a snapshot.
    #[error("object {object} of snapshot {snapshot} has too large a number")]
    Number {
        /// Object set of the snapshot.
        snapshot: u64,
        /// The object.
        object: u64,
    },
    /// A request sets flags that no node has.
    #[error("flags {0:#x}, which no node has")]
    Flags(u32),
    /// A request sets flags that OpenZFS's file servers do not have.
    #[error("flags {0:#x}, which file servers do not set")]
    DosFlags(u64),
    /// A request has fewer bytes than its parts need.
    #[error("a request with too few bytes")]
    Short,
    /// The file system has a live connection (MOUNT-1).
    #[error("mountpoint or dataset is busy")]
    Served,
    /// With writeback, cached times arrive with root's credentials.
    #[error("'writeback' needs 'allow_other'")]
    Writeback,
}

/// Mount options. `None` means the default of the file system or the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are options")]
pub struct MountOptions {
    /// Read-only.
    pub is_read_only: bool,
    /// For all users; `None`: only as root.
    pub allow_other: Option<bool>,
    /// Set-id bits are ignored.
    pub nosuid: bool,
    /// Device nodes are not devices.
    pub nodev: bool,
    /// No program can be executed.
    pub noexec: bool,
    /// The kernel caches writes.
    pub is_writeback: bool,
    /// Access time settings.
    pub access_times: AccessTimes,
    /// Extended attributes are off, whatever the property says.
    pub has_no_xattrs: bool,
}

impl MountOptions {
    /// Parses the words of `mount -o`.
    ///
    /// # Errors
    /// [`FuseError::Option`]
    pub fn parse(text: &str) -> Result<Self, FuseError> {
        Self::default().with(text)
    }

    /// Returns these options with the per-mount-point options of `others`.
    #[must_use]
    pub fn with_place_options(self, others: &Self) -> Self {
        let Self { is_read_only, nosuid, nodev, noexec, .. } = *others;
        Self { is_read_only, nosuid, nodev, noexec, ..self }
    }

    /// Returns the options that the kernel permits this process: without root, set-id bits and
    /// devices are off.
    #[must_use]
    pub fn permitted(self) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { nosuid: self.nosuid || !is_root, nodev: self.nodev || !is_root, ..self }
    }

    /// Returns these options changed by the words of `mount -o`; the last word about an option
    /// counts.
    ///
    /// # Errors
    /// [`FuseError::Option`]
    pub fn with(self, text: &str) -> Result<Self, FuseError> {
        let mut options = self;
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word {
                "ro" => options.is_read_only = true,
                "rw" => options.is_read_only = false,
                "allow_other" => options.allow_other = Some(true),
                "noallow_other" => options.allow_other = Some(false),
                "nosuid" | "nosetuid" => options.nosuid = true,
                "suid" | "setuid" => options.nosuid = false,
                "nodev" | "nodevices" => options.nodev = true,
                "dev" | "devices" => options.nodev = false,
                "noexec" => options.noexec = true,
                "exec" => options.noexec = false,
                "atime" => options.access_times.has_atime = Some(true),
                "noatime" => options.access_times.has_atime = Some(false),
                "relatime" => options.access_times.is_relatime = Some(true),
                "norelatime" => options.access_times.is_relatime = Some(false),
                "xattr" => options.has_no_xattrs = false,
                "noxattr" => options.has_no_xattrs = true,
                "writeback" => options.is_writeback = true,
                "nowriteback" => options.is_writeback = false,
                "defaults" => {
                    options.is_read_only = false;
                    (options.nosuid, options.nodev, options.noexec) = (false, false, false);
                }
                other => return Err(FuseError::Option(other.to_owned())),
            }
        }
        Ok(options)
    }
}

/// Variants of unmounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Fails if it is in use.
    Plain,
    /// Hides it at once; present users can continue.
    Detach,
    /// Hides it at once, and aborts requests of present users, where that is permitted.
    Force,
}

/// How requests of the kernel come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// They are read from `/dev/fuse`.
    Device,
    /// Through io_uring.
    Ring,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Device => "/dev/fuse",
            Self::Ring => "io_uring",
        })
    }
}

/// A mounted file system. Dropping this does not unmount it.
#[derive(Debug)]
pub struct FuseMount {
    at: PathBuf,
    vfs: Arc<Vfs>,
    ended: Arc<Stop>,
    /// The kernel's device number of the mount.
    device: Vec<u8>,
    /// The server's end of the connection.
    channel: Arc<OwnedFd>,
    watched: Watched,
    transport: Transport,
    /// `snapdir` at the kernel's last listing of the root.
    snapdir: AtomicU64,
    /// The kernel refuses changes at every place, whatever the options of the place.
    is_read_only: bool,
    /// The kernel caches writes.
    is_writeback: bool,
}

impl FuseMount {
    /// Mounts a file system. A dead cenote mount at the same place is detached first; anything else
    /// there is hidden.
    ///
    /// # Errors
    /// [`FuseError::Served`] if the file system has a live connection; a [`FuseError`].
    pub async fn start(mount: Arc<Mount>, at: &Path, options: &MountOptions) -> Result<Self> {
        let started = Self::start_by(Arc::clone(&mount), at, options, Transport::Ring).await;
        match started {
            Err(error) if matches!(error.cause(), Some(FuseError::Ring { .. })) => {
                Self::start_by(mount, at, options, Transport::Device).await
            }
            started => started,
        }
    }

    /// Mounts a file system by this transport, or without a ring where the system has none.
    async fn start_by(
        mount: Arc<Mount>,
        at: &Path,
        options: &MountOptions,
        transport: Transport,
    ) -> Result<Self> {
        let refused = |error| refused(at, error);
        // Invariant MOUNT-1: from before the connection is made until it has ended.
        let served = Served::claim(&mount)?;
        // Everything that a mount needs exists before the mount: no mount is left without a server.
        let prepared = || {
            helper::prepare()?;
            guard::prepare()?;
            Service::get()
        };
        let service = cenote_rt::blocking(prepared).await?.map_err(refused)?;
        stages::reach("mount-prepared");
        let (at, _) = resolve(at).await?;
        let is_for_all = is_for_all(options)?;
        let (source, given) = (mount.name().to_owned(), given(&mount, options));
        let ended = Arc::new(Stop::default());
        let mut connection = Connection::make(&at, &source, &given, is_for_all).await?;
        let (device, unattached) = (connection.number.clone(), connection.take_mount());
        let is_attached = unattached.is_none();
        stages::reach("mount-connected");
        let watched = match guard::watch(&connection.channel, &device) {
            Ok(watched) => watched,
            Err(error) => {
                connection::withdraw(&device, &at, is_attached).await;
                return Err(refused(error));
            }
        };
        let started = async {
            stages::reach("mount-guarded");
            let ended = Arc::clone(&ended);
            let (by, end) = ((service, transport), (served, watched.clone(), ended));
            let started = Self::serve(by, mount, &at, options, connection, end).await?;
            stages::reach("mount-served");
            connection::raise_read_ahead(&started.device);
            Connection::attach(unattached, &at).await?;
            stages::reach("mount-attached");
            Ok(started)
        };
        let started = started.await;
        if started.is_err() {
            connection::withdraw(&device, &at, is_attached).await;
            guard::forget(&watched);
            // Otherwise the next attempt to mount it would find a live connection.
            cenote_rt::until(ENDING_MAX, ended.requested()).await;
        }
        started
    }

    /// Answers the requests of a connection from now on. `ended` is requested when it has ended.
    async fn serve(
        (service, transport): (Arc<Service>, Transport),
        mount: Arc<Mount>,
        at: &Path,
        options: &MountOptions,
        connection: Connection,
        (served, watched, ended): (Served, Watched, Arc<Stop>),
    ) -> Result<Self> {
        let is_read_only = given(&mount, options).is_read_only;
        let snapdir = AtomicU64::new(mount.facts().settings().snapdir);
        let vfs = Arc::new(Vfs::new(mount));
        vfs.set(options);
        let adapter = Adapter::new(Arc::clone(&vfs), Arc::clone(&service), options.is_writeback);
        let device = connection.number;
        let channel = Arc::new(connection.channel);
        // Not set anywhere else.
        let _ = vfs.notifier.set(Notifier::new(Arc::clone(&channel)));
        let (tell, told) = (Arc::clone(&ended), watched.clone());
        let at_end = Box::new(move || {
            guard::forget(&told);
            drop(served);
            tell.request();
        });
        let served = Arc::clone(&channel);
        let serve = move || {
            let may_ring = transport == Transport::Ring;
            let prepared = may_ring.then(|| queues::prepare(&served)).flatten();
            service.serve(served, adapter, prepared, at_end)
        };
        let transport = cenote_rt::blocking(serve).await?.map_err(|error| match error {
            ServeError::Ring(error) => {
                Error::new(Kind::Io, FuseError::Ring { at: at.to_owned(), error })
            }
            ServeError::Io(error) => refused(at, error),
        })?;
        let (at, is_writeback) = (at.to_owned(), options.is_writeback);
        Ok(Self {
            at,
            vfs,
            ended,
            device,
            channel,
            watched,
            transport,
            snapdir,
            is_read_only,
            is_writeback,
        })
    }

    /// Returns the first mount point.
    #[must_use]
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Returns how the kernel's requests come.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns the file system; another one after a rollback.
    #[must_use]
    pub fn mount(&self) -> Arc<Mount> {
        self.vfs.mount()
    }

    /// Returns the mount points in a table that was read while this existed, each with its position
    /// there; empty if the mount is detached but in use, or if the connection has ended.
    #[must_use]
    pub fn places(&self, table: &MountTable) -> Vec<(usize, PathBuf)> {
        let mut places = table.places(&self.device);
        // The kernel gives the number of an ended connection to the next one, which may be that of
        // another program. What is open now has had its number since the table was read. To ask
        // whether the last request is answered would not do: a device may never answer it.
        if !places.is_empty() && (self.has_ended() || !connection::is_open(&self.channel)) {
            places.clear();
        }
        places
    }

    /// Also mounts a mounted file system at another place, and returns that path without links.
    /// Only root can.
    ///
    /// # Errors
    /// `Kind::Permission`; `Kind::Busy` if other mounts hide it at all its places; a [`FuseError`].
    pub async fn also_at(&self, at: &Path, options: &MountOptions) -> Result<PathBuf> {
        let places = self.places(&MountTable::read()?);
        let mut fields = vec![self.device.clone(), connection::flags(options)];
        fields.extend(places.iter().map(|(_, place)| place.as_os_str().as_bytes().to_vec()));
        let (answer, _) = helper::work(Operation::Bind, at, fields, None).await?;
        Ok(helper::path_of(&answer, 0))
    }

    /// Mounts a file system that is mounted nowhere in this mount namespace, but whose connection
    /// lives, through that connection (MOUNT-1). Returns the path without links, or `None` if the
    /// connection has ended: the file system can then be mounted with a new one.
    ///
    /// Only root can do this, and only with kernels from 5.14 on, which give a mount of the file
    /// system to the owner of a connection's descriptor (`fuse_get_tree`).
    ///
    /// # Errors
    /// [`FuseError::Served`], `Kind::Busy`, if the connection lives and cannot be mounted again, or
    /// only read-only; a [`FuseError`].
    pub async fn mount_again(&self, at: &Path, options: &MountOptions) -> Result<Option<PathBuf>> {
        let busy = || Error::new(Kind::Busy, FuseError::Served);
        let options = options.clone().permitted();
        let is_wider = self.is_read_only && !options.is_read_only;
        if is_wider || !connection::is_open(&self.channel) {
            return self.is_ending().await.then_some(None).ok_or_else(busy);
        }
        let (at, _) = resolve(at).await?;
        let (channel, name) = (Arc::clone(&self.channel), self.mount().name().to_owned());
        // The kernel may wait for requests to this server: not on this thread.
        let made = cenote_rt::blocking(move || connection::again(&channel, &name, &options));
        let Ok(mount) = made.await? else {
            return self.is_ending().await.then_some(None).ok_or_else(busy);
        };
        stages::reach("mount-made-again");
        Connection::attach(Some(mount), &at).await?;
        Ok(Some(at))
    }

    /// Waits for the end of a connection that the kernel has closed. Returns false if the kernel
    /// has not closed it, or if its last request is not answered in time.
    async fn is_ending(&self) -> bool {
        let is_open = connection::is_open(&self.channel);
        !is_open && cenote_rt::until(ENDING_MAX, self.ended()).await.is_some()
    }

    /// Applies changed properties.
    ///
    /// # Errors
    /// The errors of [`Mount::refresh`].
    pub async fn refresh(&self) -> Result<()> {
        self.mount().refresh().await?;
        let snapdir = self.mount().facts().settings().snapdir;
        if self.snapdir.swap(snapdir, Ordering::Relaxed) != snapdir {
            self.forget_root().await?;
        }
        Ok(())
    }

    /// Whether it is unmounted everywhere, and the last request is answered.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.is_requested()
    }

    /// Whether a mount of it is in a table that was read after its connection had ended: somebody
    /// has aborted that, by a forced unmount or through the kernel's control files.
    #[must_use]
    pub fn is_dead_in(&self, table: &MountTable) -> bool {
        table.places(&self.device).iter().any(|(_, place)| *place == self.at)
    }

    /// Waits until it is unmounted, by any program, and the last request is answered.
    pub async fn ended(&self) {
        self.ended.requested().await;
    }

    /// Unmounts it at a place. A detached mount continues until its last user has gone: see
    /// [`ended`](Self::ended).
    ///
    /// # Errors
    /// `Kind::Busy` if it is in use, and not to be detached, or if another mount hides it there.
    pub async fn unmount(&self, at: &Path, how: Unmount) -> Result<()> {
        let first = if how == Unmount::Detach { Unmount::Detach } else { Unmount::Plain };
        let is_hidden = |error: &Error| matches!(error.cause(), Some(FuseError::Hidden { .. }));
        match connection::unmount(at, &self.device, first).await {
            Err(error)
                if how == Unmount::Force && error.kind() == Kind::Busy && !is_hidden(&error) => {}
            done => return done,
        }
        // Stores to shared mappings are written back first.
        let flushed = helper::work(Operation::Flush, at, Vec::new(), None);
        cenote_rt::until(FLUSH_MAX, flushed).await;
        // Without the kernel's control files a forced unmount aborts it.
        let how = if self.cut_off().await { Unmount::Detach } else { Unmount::Force };
        connection::unmount(at, &self.device, how).await
    }

    /// Aborts the connection: every request fails, including those that would never be answered. A
    /// dead mount stays in its place until it is unmounted. Does nothing if it has ended. Returns
    /// false, without doing anything, if the kernel's control files are not accessible.
    pub async fn cut_off(&self) -> bool {
        let watched = self.watched.clone();
        cenote_rt::blocking(move || watched.abort()).await.unwrap_or(false)
    }

    /// Closes snapshots that were visited below `.zfs` and are not in use now, before one of them
    /// is destroyed.
    pub fn close_unused_snapshots(&self) {
        self.vfs.snapshots.close_unused();
    }

    /// Returns the number of snapshots that are open after visits below `.zfs`.
    #[must_use]
    pub fn open_snapshots(&self) -> usize {
        self.vfs.snapshots.count()
    }

    /// Changes mount options: set-id bits, devices and execution at this place, in the kernel;
    /// read-only and those of [`set`](Self::set) at all places.
    ///
    /// # Errors
    /// `Kind::Permission` if not root; `Kind::Busy` if a file is open for writing that would become
    /// read-only, or if another mount hides it there.
    pub async fn remount(&self, at: &Path, options: &MountOptions) -> Result<()> {
        let fields = vec![self.device.clone(), connection::flags(options)];
        helper::work(Operation::Remount, at, fields, None).await?;
        self.set(options);
        Ok(())
    }

    /// Changes mount options that the kernel does not know: access times, and whether there are
    /// extended attributes.
    pub fn set(&self, options: &MountOptions) {
        self.vfs.set(options);
    }

    /// Makes the kernel list the root again.
    async fn forget_root(&self) -> Result<()> {
        let vfs = Arc::clone(&self.vfs);
        // The kernel may write pages back before it drops them, and wait for this server: not on
        // this thread.
        cenote_rt::blocking(move || vfs.tell(INodeNo::ROOT.0, 0)).await
    }
}

/// Whether mounts of this process can be aborted from outside if it dies while it waits for one of
/// them. If not, such a process may never end.
///
/// # Errors
/// Why `/sys/fs/fuse/connections` cannot be used.
pub async fn can_be_ended() -> Result<()> {
    cenote_rt::blocking(guard::can_abort).await?.map_err(|error| Error::new(Kind::Io, error))
}

/// Detaches a dead mount at a place. Returns true if a live cenote mount is there.
///
/// # Errors
/// A [`FuseError`]; `Kind::NotFound` if there is no such place.
pub async fn detach_dead(at: &Path) -> Result<bool> {
    Ok(resolve(at).await?.1)
}

/// Creates the folder of a mount point, and its parents. A dead mount there is detached. Returns
/// the path without links.
///
/// # Errors
/// [`FuseError::Create`]; [`FuseError::Link`]; [`FuseError::NotEmpty`] if it `must_be_empty` and is
/// not; others of [`FuseError`].
pub async fn make_room(at: &Path, must_be_empty: bool) -> Result<PathBuf> {
    let flag = u8::from(must_be_empty).to_string().into_bytes();
    let (answer, _) = helper::work(Operation::MakeRoom, at, vec![flag], None).await?;
    Ok(helper::path_of(&answer, 0))
}

/// Removes the folder of a mount point if it is empty.
///
/// # Errors
/// [`FuseError::Worker`]
pub async fn remove_folder(at: &Path) -> Result<()> {
    helper::work(Operation::RemoveFolder, at, Vec::new(), None).await.map(drop)
}

/// Resolves a mount point, and detaches a dead mount there. Returns the path, and whether a live
/// cenote mount is there.
async fn resolve(at: &Path) -> Result<(PathBuf, bool)> {
    let (answer, _) = helper::work(Operation::Clear, at, Vec::new(), None).await?;
    Ok((helper::path_of(&answer, 0), answer.get(1).is_some_and(|word| word == b"1")))
}

fn refused(at: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied => Kind::Permission,
        std::io::ErrorKind::NotFound => Kind::NotFound,
        _ => Kind::Io,
    };
    Error::new(kind, FuseError::Refused { at: at.to_owned(), error })
}

/// Returns the options for the kernel.
fn given(mount: &Mount, options: &MountOptions) -> MountOptions {
    let is_read_only = options.is_read_only || mount.is_read_only();
    MountOptions { is_read_only, ..options.clone() }.permitted()
}

/// Whether all users may use the mount.
fn is_for_all(options: &MountOptions) -> Result<bool> {
    let is_root = rustix::process::geteuid().is_root();
    let allow_other = options.allow_other.unwrap_or(is_root);
    if options.is_writeback && !allow_other {
        return Err(Error::new(Kind::Invalid, FuseError::Writeback));
    }
    Ok(allow_other)
}

/// Decodes one message of a kernel for a file system that does nothing, and writes the answer to
/// `channel`: for the fuzz target of the wire.
#[doc(hidden)]
pub fn take_apart(channel: &Arc<std::os::fd::OwnedFd>, message: &[u8]) {
    wire::take_apart(channel, message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_are_parsed() {
        let options = MountOptions::parse("ro,nosuid,,allow_other,writeback").expect("known");
        assert!(options.is_read_only && options.nosuid && options.is_writeback);
        assert_eq!((options.allow_other, options.noexec), (Some(true), false));
        let options = options.with("noatime,relatime,atime").expect("known");
        let wanted = AccessTimes { has_atime: Some(true), is_relatime: Some(true) };
        assert_eq!(options.access_times, wanted);
        let unknown = MountOptions::parse("rw,zoned").expect_err("unknown");
        assert_eq!(unknown.to_string(), "unknown mount option 'zoned'");
    }
}
