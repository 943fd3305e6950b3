//! File systems mounted through FUSE.
//!
//! ```text
//!   kernel ── several threads ──> adapter (the wire, `fuser`) ──> Vfs ──> cenote_fs::Mount
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
mod convert;
mod flags;
mod lookout;
mod nodes;
mod place;
mod snapshots;
mod vfs;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_fs::Mount;
use cenote_fs::mount::AccessTimes;
use cenote_rt::{Error, Kind, Result, Runtime};
use fuser::{Config, INodeNo, MountOption, Session, SessionACL};

use crate::stop::Stop;
use adapter::Adapter;
use lookout::Lookout;
use vfs::Vfs;

pub use place::MountTable;

/// Threads that take requests.
const THREADS: usize = 4;
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
    /// The kernel's number for it, if that is known.
    device: Option<Vec<u8>>,
    /// `snapdir`, as the kernel has listed the root by it.
    snapdir: AtomicU64,
}

impl FuseMount {
    /// Mounts a file system. A dead mount of ours at the same place is detached first; anything
    /// else there is hidden.
    ///
    /// # Errors
    /// A [`FuseError`].
    pub async fn start(mount: Arc<Mount>, at: &Path, options: &MountOptions) -> Result<Self> {
        let at = at.to_owned();
        let at = cenote_rt::blocking(move || {
            let at = place::resolve(&at)?;
            place::detach_dead(&at)?;
            Ok::<_, Error>(at)
        })
        .await??;
        let config = config(&mount, options)?;
        let (source, given) = (mount.name().to_owned(), given(&mount, options));
        let snapdir = AtomicU64::new(mount.facts().settings().snapdir);
        let vfs = Arc::new(Vfs::new(mount));
        vfs.set(options);
        let lookout = Arc::new(Lookout::new(THREADS));
        let (runtime, watcher) = (Runtime::here(), Arc::clone(&lookout));
        let adapter = Adapter::new(Arc::clone(&vfs), runtime, watcher, options.is_writeback);
        let path = at.clone();
        let ended = Arc::new(Stop::default());
        let (teller, tell) = (Arc::clone(&vfs), Arc::clone(&ended));
        let started = cenote_rt::blocking(move || {
            let is_for_all = config.acl == SessionACL::All;
            let session = match place::mount(&path, &source, &given, is_for_all) {
                Ok(device) => {
                    let session = Session::from_fd(adapter, device, config.acl, config);
                    // What nobody serves must not stay.
                    session.inspect_err(|_| drop(place::detach(&path, true)))?
                }
                // Who is not root has it mounted by a program that may.
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    Session::new(adapter, &path, &config)?
                }
                Err(error) => return Err(error),
            };
            lookout.watch(session.as_fd().try_clone_to_owned()?);
            let session = session.spawn()?;
            // Nobody else sets it.
            let _ = teller.notifier.set(session.notifier());
            std::thread::Builder::new().name("fuse".to_owned()).spawn(move || {
                // Why it ended is of no use to anybody: it is not mounted any more.
                let _ = session.join();
                tell.wish();
            })?;
            place::raise_read_ahead(&path);
            Ok::<_, std::io::Error>(())
        })
        .await?;
        started.map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::PermissionDenied => Kind::Permission,
                std::io::ErrorKind::NotFound => Kind::NotFound,
                _ => Kind::Io,
            };
            Error::new(kind, FuseError::Refused { at: at.clone(), error })
        })?;
        let device = place::device(&at);
        Ok(Self { at, vfs, ended, device, snapdir })
    }

    /// Where it was mounted first.
    #[must_use]
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// The file system.
    #[must_use]
    pub fn mount(&self) -> &Arc<Mount> {
        &self.vfs.mount
    }

    /// Where it is mounted now, each place with how much is mounted before it; nowhere, if it is in
    /// use only.
    #[must_use]
    pub fn places(&self, table: &MountTable) -> Vec<(usize, PathBuf)> {
        match &self.device {
            // The kernel may have given the number of one that has ended to another.
            _ if self.ended.is_wished() => Vec::new(),
            Some(device) => table.places(device),
            None => vec![(0, self.at.clone())],
        }
    }

    /// Mounts what is mounted already at another place, too, and says where that is without links.
    /// Only root can.
    ///
    /// # Errors
    /// `Kind::Permission`; `Kind::Busy` if something else hides it everywhere; a [`FuseError`].
    pub async fn also_at(&self, at: &Path, options: &MountOptions) -> Result<PathBuf> {
        let (at, options, device) = (at.to_owned(), options.clone(), self.device.clone());
        let places = self.places(&MountTable::read()?);
        cenote_rt::blocking(move || {
            let at = place::resolve(&at)?;
            let seen = places.iter().find(|(_, place)| place::device(place) == device);
            let hidden = || Error::new(Kind::Busy, FuseError::Hidden { at: at.clone() });
            let (_, from) = seen.ok_or_else(hidden)?;
            place::bind(from, &at, &options)?;
            Ok(at)
        })
        .await?
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
        let (place, device) = (at.to_owned(), self.device.clone());
        let unmounted = cenote_rt::blocking(move || {
            let seen = place::device(&place);
            if seen.is_some() && device.is_some() && seen != device {
                // The kernel would unmount that.
                return Err(Error::new(Kind::Busy, FuseError::Hidden { at: place }));
            }
            place::detach(&place, how == Unmount::Detach)
        });
        let is_hidden = |error: &Error| matches!(error.cause(), Some(FuseError::Hidden { .. }));
        match unmounted.await? {
            Err(error)
                if how == Unmount::Force && error.kind() == Kind::Busy && !is_hidden(&error) => {}
            done => return done,
        }
        // What programs have written into memory that they share with files is still on its way.
        let files = at.to_owned();
        let flushed = cenote_rt::blocking(move || place::flush(&files));
        cenote_rt::until(FLUSH_PATIENCE, flushed).await;
        let at = at.to_owned();
        cenote_rt::blocking(move || place::cut_off(&at)).await?
    }

    /// Closes snapshots that were looked at below `.zfs` and that nobody reads just now: for who is
    /// about to destroy one.
    pub fn let_go_of_snapshots(&self) {
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
        let (at, wanted) = (at.to_owned(), options.clone());
        cenote_rt::blocking(move || place::remount(&at, &wanted)).await??;
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

/// What a program that is gone left at a place is detached. True if there is a file system of ours
/// now that answers.
///
/// # Errors
/// A [`FuseError`]; `Kind::NotFound` if there is no such place.
pub async fn detach_dead(at: &Path) -> Result<bool> {
    let at = at.to_owned();
    cenote_rt::blocking(move || place::detach_dead(&place::resolve(&at)?)).await?
}

/// The options that the kernel is given.
fn given(mount: &Mount, options: &MountOptions) -> MountOptions {
    let is_read_only = options.is_read_only || mount.is_read_only();
    MountOptions { is_read_only, ..options.clone() }.permitted()
}

fn config(mount: &Mount, options: &MountOptions) -> Result<Config> {
    let is_root = rustix::process::geteuid().is_root();
    let allow_other = options.allow_other.unwrap_or(is_root);
    if options.is_writeback && !allow_other {
        return Err(Error::new(Kind::Invalid, FuseError::Writeback));
    }
    let given = given(mount, options);
    let choose = |is_off, off, on| if is_off { off } else { on };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(mount.name().to_owned()),
        // fuser gives the subtype to the kernel only in this form.
        MountOption::CUSTOM(format!("subtype={}", place::SUBTYPE)),
        MountOption::DefaultPermissions,
        choose(given.is_read_only, MountOption::RO, MountOption::RW),
        choose(given.nosuid, MountOption::NoSuid, MountOption::Suid),
        choose(given.nodev, MountOption::NoDev, MountOption::Dev),
        choose(given.noexec, MountOption::NoExec, MountOption::Exec),
    ];
    config.acl = if allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    Ok(config)
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
