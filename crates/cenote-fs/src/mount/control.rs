//! The control directory `.zfs` in the root of a file system (spec 03 §15).
//!
//! ```text
//!   /.zfs               listed if snapdir=visible, only found if hidden, missing if disabled
//!   /.zfs/snapshot      has a directory for each snapshot
//!   /.zfs/snapshot/one  the root of another file system: Mount::open_snapshot
//!   /.zfs/shares        empty
//! ```
//!
//! None of this is stored. The directories have numbers beyond those of objects, and a snapshot's
//! root has a number derived from that of its dataset, so that [`Mount`]'s operations on names take
//! them like any other. Nodes in a snapshot have their original numbers, which may belong to other
//! nodes in this file system: front ends that show both distinguish them by file system.
//!
//! Creating, removing and renaming directories in `.zfs/snapshot` creates, destroys and renames
//! snapshots, if the tunable `zfs_admin_snapshot` allows it, for administrators and for users with
//! the permissions that the commands of `zfs` need.

use std::sync::Arc;

use cenote_ondisk::znode::{PFlags, Time};
use cenote_pool::dsl::deleg::Requester;
use cenote_rt::{Error, Kind, Result, tunables};

use super::{Attributes, DirEntry, Mount, ReadDirPage, SnapshotList};
use crate::access::{Capabilities, Credentials, accounts};
use crate::edit::{self, NewKind, NewNode, Rename, permit};
use crate::error::FsError;
use crate::filesystem::FileSystem;
use crate::node::FileKind;

/// Name of the control directory in the root.
pub const NAME: &[u8] = edit::CONTROL;
/// Number of `.zfs`.
pub const CONTROL: u64 = 0xffff_ffff_ffff;
/// Number of `.zfs/shares`.
pub const SHARES: u64 = 0xffff_ffff_fffe;
/// Number of `.zfs/snapshot`.
pub const SNAPSHOTS: u64 = 0xffff_ffff_fffd;
/// Roots of snapshots count down from here by the number of their dataset.
const ROOTS_END: u64 = 0xffff_ffff_fffc;
/// Larger numbers are never objects: no pool has that many datasets or files.
const OBJECTS_END: u64 = 0xff00_0000_0000;

/// `snapdir`
const VISIBLE: u64 = 1;
const DISABLED: u64 = 2;
const MODE: u32 = 0o777;
const BLOCK: u64 = 512;

/// A node in the control directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Virtual {
    Control,
    Shares,
    Snapshots,
    /// The root of a snapshot, with the number of its dataset.
    Root(u64),
}

impl Virtual {
    /// Returns the control node with that number; `None` if it is an object.
    pub(crate) fn of(number: u64) -> Option<Self> {
        match number {
            CONTROL => Some(Self::Control),
            SHARES => Some(Self::Shares),
            SNAPSHOTS => Some(Self::Snapshots),
            _ if number > OBJECTS_END => Some(Self::Root(ROOTS_END.saturating_sub(number))),
            _ => None,
        }
    }
}

/// Returns the number of the root of a snapshot.
pub(crate) const fn root_of(snapshot: u64) -> u64 {
    ROOTS_END.saturating_sub(snapshot)
}

/// Returns the snapshot, by the number of its dataset, whose root has that number.
#[must_use]
pub fn snapshot_of_root(number: u64) -> Option<u64> {
    match Virtual::of(number) {
        Some(Virtual::Root(snapshot)) => Some(snapshot),
        _ => None,
    }
}

/// Whether a number belongs to the control directory and not to an object.
#[must_use]
pub fn is_control(number: u64) -> bool {
    Virtual::of(number).is_some()
}

fn refuse<T>(kind: Kind, cause: FsError) -> Result<T> {
    Err(Error::new(kind, cause))
}

impl Mount {
    /// Opens a snapshot of this file system for reading. The snapshot cannot be destroyed while it,
    /// or a node of it, is open.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such snapshot.
    pub async fn open_snapshot(&self, name: &[u8]) -> Result<Arc<FileSystem>> {
        let name = snapshot_name(name)?;
        let dataset = self.engine.datasets().name_of(self.head.object()).await?;
        FileSystem::open_snapshot(&self.engine, &format!("{dataset}@{name}")).await
    }

    /// Whether the root lists `.zfs`.
    pub(super) fn shows_control(&self, dir: u64) -> bool {
        dir == self.root() && self.shared.facts.settings().snapdir == VISIBLE
    }

    /// Returns the node of a name in the control directory, or of the directory itself; `None` if
    /// the name is neither.
    pub(super) async fn control_lookup(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
    ) -> Result<Option<Attributes>> {
        let root = self.root();
        if parent == root && name == edit::CONTROL {
            self.inspect(Some(cred), |op| {
                let dir = op.directory(root)?;
                permit::search(op, &dir)
            })
            .await?;
            if self.shared.facts.settings().snapdir == DISABLED {
                return refuse(Kind::NotFound, FsError::NoEntry);
            }
            return self.control_attributes(Virtual::Control).await.map(Some);
        }
        let Some(place) = Virtual::of(parent) else { return Ok(None) };
        let found = match (place, name) {
            (_, b".") => place,
            (Virtual::Control, b"..") => return self.attributes(root).await.map(Some),
            (Virtual::Root(_), b"..") | (Virtual::Control, b"snapshot") => Virtual::Snapshots,
            (_, b"..") => Virtual::Control,
            (Virtual::Control, b"shares") => Virtual::Shares,
            (Virtual::Snapshots, name) => {
                let name = snapshot_name(name)?;
                Virtual::Root(self.engine.snapshots().find(&self.head, name).await?)
            }
            (Virtual::Root(_), _) => return refuse(Kind::Invalid, FsError::InSnapshot),
            _ => return refuse(Kind::NotFound, FsError::NoEntry),
        };
        self.control_attributes(found).await.map(Some)
    }

    /// Returns the attributes of a node in the control directory.
    pub(super) async fn control_attributes(&self, place: Virtual) -> Result<Attributes> {
        let (object, links, size, changed) = match place {
            Virtual::Control => (CONTROL, 1, 0, self.opened),
            Virtual::Shares => (SHARES, 2, 2, self.opened),
            Virtual::Snapshots => {
                let snapshots = self.engine.snapshots().of_head(&self.head).await?;
                let count = snapshots.len() as u64 + 2;
                (SNAPSHOTS, count, count, self.snapshots_changed(snapshots).await?)
            }
            Virtual::Root(number) => {
                let snapshots = self.engine.snapshots().of_head(&self.head).await?;
                let found = snapshots.into_iter().find(|(_, object)| *object == number);
                let Some((name, _)) = found else { return refuse(Kind::NotFound, FsError::Stale) };
                let snapshot = self.open_snapshot(name.as_bytes()).await?;
                // The number may have belonged to an earlier snapshot: clients that remember that
                // one must see that this one is a different node.
                let generation = snapshot.objset().root().birth();
                let root = Attributes::of_node(&snapshot.root().await?);
                return Ok(Attributes { generation, ..root });
            }
        };
        Ok(Attributes {
            object,
            generation: 0,
            kind: FileKind::Directory,
            mode: MODE,
            links,
            uid: 0,
            gid: 0,
            size,
            blocks: 0,
            is_pending: false,
            block_size: BLOCK,
            device: None,
            atime: self.opened,
            mtime: changed,
            ctime: changed,
            crtime: self.opened,
            flags: PFlags::empty(),
            project: None,
        })
    }

    /// Returns the time of the last change of the list of snapshots: the property
    /// `snapshots_changed`, 0 before the first one. A pool that does not store it is watched.
    async fn snapshots_changed(&self, now: SnapshotList) -> Result<Time> {
        let stored = self.engine.snapshots().changed(&self.head).await?;
        Ok(match stored {
            Some((seconds, nanoseconds)) => {
                Time { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanoseconds }
            }
            None => self.watched(now),
        })
    }

    /// Returns the time since which the list of snapshots is seen to be unchanged.
    fn watched(&self, now: SnapshotList) -> Time {
        let mut seen = super::lock(&self.snapshots_seen);
        match &mut *seen {
            Some((snapshots, at)) if *snapshots == now => *at,
            Some(changed) => {
                *changed = (now, super::now());
                changed.1
            }
            None => seen.insert((now, self.opened)).1,
        }
    }

    /// Returns entries of a directory in here, from a cookie on.
    pub(super) async fn control_list(
        &self,
        place: Virtual,
        cookie: u64,
        max: usize,
    ) -> Result<ReadDirPage> {
        let (object, parent) = match place {
            Virtual::Control => (CONTROL, self.root()),
            Virtual::Shares => (SHARES, CONTROL),
            Virtual::Snapshots => (SNAPSHOTS, CONTROL),
            Virtual::Root(_) => return refuse(Kind::Invalid, FsError::InSnapshot),
        };
        let mut all = vec![(b".".to_vec(), object, 1), (b"..".to_vec(), parent, 2)];
        match place {
            Virtual::Control => {
                all.push((b"snapshot".to_vec(), SNAPSHOTS, 3));
                all.push((b"shares".to_vec(), SHARES, 4));
            }
            Virtual::Snapshots => {
                // In the order of numbers: changes do not affect the positions of other snapshots.
                let snapshots = self.engine.snapshots().of_head(&self.head).await?;
                let entry = |(name, object): (String, u64)| {
                    (name.into_bytes(), root_of(object), object.saturating_add(2))
                };
                all.extend(snapshots.into_iter().map(entry));
            }
            Virtual::Shares | Virtual::Root(_) => {}
        }
        let mut rest = all.into_iter().filter(|(.., at)| *at > cookie).peekable();
        let entry = |(name, object, cookie)| {
            let kind = Some(FileKind::Directory);
            DirEntry { name, object, kind, cookie }
        };
        let entries = rest.by_ref().take(max).map(entry).collect();
        Ok(ReadDirPage { entries, is_end: rest.peek().is_none() })
    }

    /// Creates a snapshot (`mkdir` in `.zfs/snapshot`).
    pub(super) async fn control_create(
        &self,
        cred: &Credentials,
        place: Virtual,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Attributes> {
        if place != Virtual::Snapshots || new.kind != NewKind::Directory {
            return refuse(Kind::Permission, FsError::NotPermitted);
        }
        let requester = self.permitted(cred, &["snapshot"], &[]).await?;
        let name = snapshot_name(name)?;
        let dataset = self.engine.datasets().name_of(self.head.object()).await?;
        let snapshots = self.engine.snapshots().by(&requester);
        snapshots.create(vec![format!("{dataset}@{name}")]).await?;
        let made = self.engine.snapshots().find(&self.head, name).await?;
        self.control_attributes(Virtual::Root(made)).await
    }

    /// Destroys a snapshot (`rmdir` in `.zfs/snapshot`).
    pub(super) async fn control_remove(
        &self,
        cred: &Credentials,
        place: Virtual,
        name: &[u8],
    ) -> Result<()> {
        if place != Virtual::Snapshots {
            return refuse(Kind::Permission, FsError::NotPermitted);
        }
        self.permitted(cred, &[], &["destroy", "mount"]).await?;
        let name = snapshot_name(name)?;
        self.engine.snapshots().find(&self.head, name).await?;
        let dataset = self.engine.datasets().name_of(self.head.object()).await?;
        self.engine.snapshots().destroy(&format!("{dataset}@{name}")).await
    }

    /// Renames a snapshot.
    pub(super) async fn control_rename(
        &self,
        cred: &Credentials,
        request: &Rename<'_>,
    ) -> Result<()> {
        let ((from, old), (to, new)) = (request.from, request.to);
        if (from, to) != (SNAPSHOTS, SNAPSHOTS) {
            return refuse(Kind::Permission, FsError::NotPermitted);
        }
        self.permitted(cred, &["create", "mount"], &["rename", "mount"]).await?;
        let (old, new) = (snapshot_name(old)?, snapshot_name(new)?);
        self.engine.snapshots().find(&self.head, old).await?;
        if old == new {
            return Ok(());
        }
        let dataset = self.engine.datasets().name_of(self.head.object()).await?;
        self.engine.snapshots().rename(&dataset, old, new, false).await
    }

    /// Returns the user for whom snapshots are changed: an administrator, or a user with these
    /// permissions on the file system and on its snapshots.
    async fn permitted(
        &self,
        cred: &Credentials,
        of_head: &[&str],
        of_snapshots: &[&str],
    ) -> Result<Requester> {
        if self.is_read_only {
            return refuse(Kind::ReadOnly, FsError::ReadOnly);
        }
        if tunables::ADMIN_SNAPSHOT.get() == 0 {
            return refuse(Kind::Permission, FsError::AccessDenied);
        }
        if cred.can(Capabilities::SYS_ADMIN) {
            return Ok(Requester::ROOT);
        }
        let gids = accounts::groups_of(cred.uid, cred.gid);
        let requester = Requester { uid: cred.uid, gids, is_trusted: false };
        for (is_snapshot, permissions) in [(false, of_head), (true, of_snapshots)] {
            let datasets = self.engine.datasets();
            if !datasets.permits(&self.head, is_snapshot, &requester, permissions).await? {
                return refuse(Kind::Permission, FsError::NotPermitted);
            }
        }
        Ok(requester)
    }
}

/// Returns the part of a snapshot's name after the `@`.
fn snapshot_name(name: &[u8]) -> Result<&str> {
    match std::str::from_utf8(name) {
        Ok(name) if !name.is_empty() && !name.contains(['/', '@', '#', '%']) => Ok(name),
        _ => refuse(Kind::NotFound, FsError::NoEntry),
    }
}
