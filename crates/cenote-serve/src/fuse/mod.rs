//! File systems mounted through FUSE.
//!
//! ```text
//!   kernel ──> service (threads) ──> wire ──> adapter ──> Vfs ──> cenote_fs::Mount
//! ```
//!
//! **Who sees it.** As root a file system is mounted for everybody (`allow_other`), as others are.
//! Without root it is its owner's alone, mounted by `fusermount3`; for others too only if asked
//! for, which `/etc/fuse.conf` must allow, and always without devices and set-id programs. The
//! kernel decides by modes and POSIX ACLs who may do what (`default_permissions`).
//!
//! **Writes go through.** The kernel could keep written pages and times back and tell them later
//! (writeback cache). It is off unless asked for: with it a full pool or quota is told at `close`
//! or never, sizes and times are the kernel's and not ours, each small file costs one message more,
//! holes cannot be told, and who may write a file but does not own it cannot `touch` it. What it is
//! good for is many small writes to the same pages.
//!
//! **At several places** a file system is one for the kernel, as with the kernel module: the first
//! mount bound there ([`FuseMount::also_at`]), with one cache of pages and names. Two mounts of
//! their own would each keep pages of what is written through the other.
//!
//! What was written to a file before an `fsync` returned survives any crash; the rest is on disk
//! some seconds later (`zfs_txg_timeout`). `sync` of all file systems does not reach a FUSE file
//! system: the kernel keeps it to itself.

mod adapter;
mod connection;
mod convert;
mod flags;
mod gate;
pub mod helper;
mod nodes;
mod place;
mod rollback;
mod service;
mod snapshots;
mod table;
mod vfs;
mod walk;
#[expect(clippy::trivially_copy_pass_by_ref, reason = "a request is lent, whatever its size")]
mod wire;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_fs::Mount;
use cenote_fs::mount::AccessTimes;
use cenote_rt::{Error, Kind, Result, Runtime, stages};

use crate::stop::Stop;
use adapter::Adapter;
use connection::Connection;
use helper::{Operation, guard};
use service::Service;
use vfs::Vfs;
use wire::{INodeNo, Notifier};

pub use rollback::Suspension;
pub use table::MountTable;

/// How long a mount that is to be cut off has to take what the kernel has not written yet.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// Why a file system is not mounted, or not unmounted.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// There is no such directory.
    #[error("cannot mount at '{}': {error}", at.display())]
    Place {
        /// Where.
        at: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The folder to mount at cannot be made.
    #[error("cannot make '{}': {error}", at.display())]
    Create {
        /// Where.
        at: PathBuf,
        /// What the system says.
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
    /// The folder to mount at has something in it.
    #[error("'{}' is not empty", at.display())]
    NotEmpty {
        /// Where.
        at: PathBuf,
    },
    /// The process that does work on paths was not started, or did not answer in time.
    #[error("no work was done on '{}': {error}", at.display())]
    Worker {
        /// Where.
        at: PathBuf,
        /// What the system says; that it timed out if something at the path does not answer.
        error: std::io::Error,
    },
    /// A file system of ours is there.
    #[error("'{}' is mounted already", at.display())]
    Mounted {
        /// Where.
        at: PathBuf,
    },
    /// Something else is mounted over it.
    #[error("'{}' is hidden by another file system", at.display())]
    Hidden {
        /// Where.
        at: PathBuf,
    },
    /// The kernel, or `fusermount3`, refused.
    #[error("cannot mount at '{}': {error}", at.display())]
    Refused {
        /// Where.
        at: PathBuf,
        /// What they said.
        error: std::io::Error,
    },
    /// It is in use, or not there.
    #[error("cannot unmount '{}': {error}", at.display())]
    Unmount {
        /// Where.
        at: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// No such option.
    #[error("unknown mount option '{0}'")]
    Option(String),
    /// Times that the kernel keeps back come as root's.
    #[error("'writeback' needs 'allow_other'")]
    Writeback,
}

/// How to mount. What is none is as the file system or the kernel has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are options")]
pub struct MountOptions {
    /// Nothing may be changed.
    pub is_read_only: bool,
    /// For everybody; none: as root.
    pub allow_other: Option<bool>,
    /// Set-id bits count for nothing.
    pub nosuid: bool,
    /// Devices are but names.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// The kernel keeps written pages back.
    pub is_writeback: bool,
    /// Whether reading is noted.
    pub access_times: AccessTimes,
    /// There are no extended attributes, whatever the property says.
    pub has_no_xattrs: bool,
}

impl MountOptions {
    /// From the words of `mount -o`.
    ///
    /// # Errors
    /// [`FuseError::Option`]
    pub fn parse(text: &str) -> Result<Self, FuseError> {
        Self::default().with(text)
    }

    /// The same with those of others that are of a place, and not of the file system.
    #[must_use]
    pub fn with_those_of_places(self, others: &Self) -> Self {
        let Self { is_read_only, nosuid, nodev, noexec, .. } = *others;
        Self { is_read_only, nosuid, nodev, noexec, ..self }
    }

    /// The same as the kernel lets this process have them: who is not root gets neither set-id bits
    /// nor devices.
    #[must_use]
    pub fn permitted(self) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { nosuid: self.nosuid || !is_root, nodev: self.nodev || !is_root, ..self }
    }

    /// The same with what the words of `mount -o` say; the last word about something counts.
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

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Not while it is in use.
    Plain,
    /// Out of sight at once; who uses it still can.
    Detach,
    /// Out of sight at once; who uses it is cut off, where that is permitted.
    Force,
}

/// A file system that the kernel has mounted. It stays so when this is dropped.
#[derive(Debug)]
pub struct FuseMount {
    at: PathBuf,
    vfs: Arc<Vfs>,
    ended: Arc<Stop>,
    /// The kernel's number for it.
    device: Vec<u8>,
    /// `snapdir`, as the kernel has listed the root by it.
    snapdir: AtomicU64,
    /// The kernel keeps written pages back.
    is_writeback: bool,
}

impl FuseMount {
    /// Mounts a file system. A dead mount of ours at the same place is detached first; anything
    /// else there is hidden.
    ///
    /// # Errors
    /// A [`FuseError`].
    pub async fn start(mount: Arc<Mount>, at: &Path, options: &MountOptions) -> Result<Self> {
        let refused = |error| refused(at, error);
        // Whatever a mount needs exists before it is made: none is left without what serves it.
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
        let mut connection = Connection::make(&at, &source, &given, is_for_all).await?;
        let (device, unattached) = (connection.number.clone(), connection.take_mount());
        let is_attached = unattached.is_none();
        stages::reach("mount-connected");
        let started = async {
            guard::watch(&device).map_err(refused)?;
            stages::reach("mount-guarded");
            let started = Self::serve(&service, mount, &at, options, connection).await?;
            stages::reach("mount-served");
            connection::raise_read_ahead(&started.device);
            Connection::attach(unattached, &at).await?;
            stages::reach("mount-attached");
            Ok(started)
        };
        let started = started.await;
        if started.is_err() {
            connection::withdraw(&device, &at, is_attached).await;
        }
        started
    }

    /// Answers requests of a connection from here on.
    async fn serve(
        service: &Arc<Service>,
        mount: Arc<Mount>,
        at: &Path,
        options: &MountOptions,
        connection: Connection,
    ) -> Result<Self> {
        let snapdir = AtomicU64::new(mount.facts().settings().snapdir);
        let vfs = Arc::new(Vfs::new(mount));
        vfs.set(options);
        let adapter = Adapter::new(Arc::clone(&vfs), Runtime::here(), options.is_writeback);
        let (ended, device) = (Arc::new(Stop::default()), connection.number);
        let channel = Arc::new(connection.channel);
        // Nobody else sets it.
        let _ = vfs.notifier.set(Notifier::new(Arc::clone(&channel)));
        let (tell, number, service) = (Arc::clone(&ended), device.clone(), Arc::clone(service));
        let at_end = Box::new(move || {
            guard::forget(&number);
            tell.wish();
        });
        let served = cenote_rt::blocking(move || service.serve(channel, adapter, at_end));
        served.await?.map_err(|error| refused(at, error))?;
        let (at, is_writeback) = (at.to_owned(), options.is_writeback);
        Ok(Self { at, vfs, ended, device, snapdir, is_writeback })
    }

    /// Where it was mounted first.
    #[must_use]
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// The file system; another one after a rollback.
    #[must_use]
    pub fn mount(&self) -> Arc<Mount> {
        self.vfs.mount()
    }

    /// Where it is mounted now, each place with how much is mounted before it; nowhere, if it is in
    /// use only.
    #[must_use]
    pub fn places(&self, table: &MountTable) -> Vec<(usize, PathBuf)> {
        // The kernel may have given the number of one that has ended to another.
        if self.ended.is_wished() { Vec::new() } else { table.places(&self.device) }
    }

    /// Mounts what is mounted already at another place, too, and says where that is without links.
    /// Only root can.
    ///
    /// # Errors
    /// `Kind::Permission`; `Kind::Busy` if something else hides it everywhere; a [`FuseError`].
    pub async fn also_at(&self, at: &Path, options: &MountOptions) -> Result<PathBuf> {
        let places = self.places(&MountTable::read()?);
        let mut fields = vec![self.device.clone(), connection::flags(options)];
        fields.extend(places.iter().map(|(_, place)| place.as_os_str().as_bytes().to_vec()));
        let (answer, _) = helper::work(Operation::Bind, at, fields, None).await?;
        Ok(helper::path_of(&answer, 0))
    }

    /// Takes properties over that were changed.
    ///
    /// # Errors
    /// As [`Mount::refresh`].
    pub async fn refresh(&self) -> Result<()> {
        self.mount().refresh().await?;
        let snapdir = self.mount().facts().settings().snapdir;
        if self.snapdir.swap(snapdir, Ordering::Relaxed) != snapdir {
            self.forget_root().await?;
        }
        Ok(())
    }

    /// Waits until it is unmounted by whomever, and the last request is answered.
    pub async fn ended(&self) {
        self.ended.wished().await;
    }

    /// Unmounts it at a place. What was detached goes on until its last user has gone: see
    /// [`ended`](Self::ended).
    ///
    /// # Errors
    /// `Kind::Busy` if it is in use, and not to be detached, or if something else hides it there.
    pub async fn unmount(&self, at: &Path, how: Unmount) -> Result<()> {
        let first = if how == Unmount::Detach { Unmount::Detach } else { Unmount::Plain };
        let is_hidden = |error: &Error| matches!(error.cause(), Some(FuseError::Hidden { .. }));
        match connection::unmount(at, &self.device, first).await {
            Err(error)
                if how == Unmount::Force && error.kind() == Kind::Busy && !is_hidden(&error) => {}
            done => return done,
        }
        // What programs have written into memory that they share with files is still on its way.
        let flushed = helper::work(Operation::Flush, at, Vec::new(), None);
        cenote_rt::until(FLUSH_PATIENCE, flushed).await;
        // Without the kernel's control files unmounting with force is what aborts it.
        let how = if self.cut_off().await { Unmount::Detach } else { Unmount::Force };
        connection::unmount(at, &self.device, how).await
    }

    /// Ends the connection: every request fails, also those whose answers will never come. What is
    /// mounted stays in its place as a dead mount until it is unmounted. False where the kernel's
    /// control files cannot be reached: nothing is done then.
    pub async fn cut_off(&self) -> bool {
        let device = self.device.clone();
        cenote_rt::blocking(move || guard::abort_now(&device)).await.unwrap_or(false)
    }

    /// Closes snapshots that were looked at below `.zfs` and that nobody reads just now: for who is
    /// about to destroy one.
    pub fn close_unused_snapshots(&self) {
        self.vfs.snapshots.let_go();
    }

    /// How many snapshots are open because they were looked at below `.zfs`.
    #[must_use]
    pub fn open_snapshots(&self) -> usize {
        self.vfs.snapshots.count()
    }

    /// Gives the mount at a place other options: set-id bits, devices, execution, which the kernel
    /// keeps; and everywhere whether there is but reading, and those of [`set`](Self::set).
    ///
    /// # Errors
    /// `Kind::Permission` for who is not root; `Kind::Busy` if somebody has a file open for writing
    /// that could not be written any more.
    pub async fn remount(&self, at: &Path, options: &MountOptions) -> Result<()> {
        helper::work(Operation::Remount, at, vec![connection::flags(options)], None).await?;
        self.set(options);
        Ok(())
    }

    /// Gives the mount those other options that the kernel does not know of: whether reading is
    /// noted, and whether there are extended attributes.
    pub fn set(&self, options: &MountOptions) {
        self.vfs.set(options);
    }

    /// Has the kernel list the root again.
    async fn forget_root(&self) -> Result<()> {
        let vfs = Arc::clone(&self.vfs);
        // The kernel may write pages back before it drops them, and wait for us: not here.
        cenote_rt::blocking(move || vfs.tell(INodeNo::ROOT.0, 0)).await
    }
}

/// Whether mounts of this process can be ended from outside if it dies while it waits for one of
/// them. If not, for want of `/sys/fs/fuse/connections`, such a process may never end.
pub async fn can_be_ended() -> bool {
    cenote_rt::blocking(guard::can_abort).await.unwrap_or(false)
}

/// What a program that is gone left at a place is detached. True if there is a file system of ours
/// now that answers.
///
/// # Errors
/// A [`FuseError`]; `Kind::NotFound` if there is no such place.
pub async fn detach_dead(at: &Path) -> Result<bool> {
    Ok(resolve(at).await?.1)
}

/// Makes the folder of a mount point, and those above it. A dead mount there is detached. Returns
/// the path without links.
///
/// # Errors
/// [`FuseError::Create`]; [`FuseError::Link`]; [`FuseError::NotEmpty`] if it `must_be_empty` and is
/// not; others of [`FuseError`].
pub async fn make_room(at: &Path, must_be_empty: bool) -> Result<PathBuf> {
    let wish = u8::from(must_be_empty).to_string().into_bytes();
    let (answer, _) = helper::work(Operation::MakeRoom, at, vec![wish], None).await?;
    Ok(helper::path_of(&answer, 0))
}

/// Removes the folder of a mount point if there is nothing in it.
///
/// # Errors
/// [`FuseError::Worker`]
pub async fn remove_folder(at: &Path) -> Result<()> {
    helper::work(Operation::RemoveFolder, at, Vec::new(), None).await.map(drop)
}

/// Resolves a mount point, and detaches what is dead there. Returns the path, and whether a file
/// system of ours is there that answers.
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

/// The options that the kernel is given.
fn given(mount: &Mount, options: &MountOptions) -> MountOptions {
    let is_read_only = options.is_read_only || mount.is_read_only();
    MountOptions { is_read_only, ..options.clone() }.permitted()
}

/// Whether everybody may use the mount.
fn is_for_all(options: &MountOptions) -> Result<bool> {
    let is_root = rustix::process::geteuid().is_root();
    let allow_other = options.allow_other.unwrap_or(is_root);
    if options.is_writeback && !allow_other {
        return Err(Error::new(Kind::Invalid, FuseError::Writeback));
    }
    Ok(allow_other)
}

/// Takes one message of a kernel apart for a file system that does nothing, and writes the answer
/// to `channel`: for the fuzz target of the wire.
#[doc(hidden)]
pub fn take_apart(channel: &Arc<std::os::fd::OwnedFd>, message: &[u8]) {
    wire::take_apart(channel, message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_mount_are_understood() {
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
