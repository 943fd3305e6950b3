//! Snapshots below `.zfs/snapshot`, served by the mount of their file system.
//!
//! The nodes of a snapshot have their original object numbers, which nodes of the file system may
//! have as well. The kernel gets other numbers for them, so that programs do not take a file and
//! its copy in a snapshot for two names of one node:
//!
//! ```text
//!   62            40               0
//!   | 1 | snapshot |    object     |   the snapshot by the number of its dataset
//! ```
//!
//! The root of a snapshot is an entry of the control directory, and has a number of that directory
//! ([`control`](cenote_fs::mount::control)).
//!
//! The contents of a snapshot never change: the kernel may cache them for long, and nodes need no
//! holds. If the number of a snapshot is reused for another one, nodes of the two, including roots,
//! differ in generation, which is the txg of the contents: the kernel then drops the names below
//! the old root.
//!
//! The most recently used snapshots are kept open. An open snapshot cannot be destroyed: before
//! destroying, unused ones are closed ([`Snapshots::close_unused`]).

use std::sync::Arc;

use cenote_fs::access::{Capabilities, Credentials};
use cenote_fs::mount::{Attributes, DirEntry, ReadDirPage, Seek, control};
use cenote_fs::{FileKind, FileSystem, FsError, Mount, Node};
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Buf, Error, Kind, Result};

use super::FuseError;

/// Maximum number of snapshots kept open.
const OPEN_MAX: usize = 64;
/// Marks numbers of nodes in snapshots. (The highest bit is not used: some programs treat such
/// numbers as negative.)
const MARK: u64 = 1 << 62;
const OBJECT_BITS: u32 = 40;
const OBJECT_MASK: u64 = (1 << OBJECT_BITS) - 1;
const SNAPSHOT_MAX: u64 = (1 << (62 - OBJECT_BITS)) - 1;
/// Namespace of extended attributes that only administrators see.
const TRUSTED: &[u8] = b"trusted.";
/// Cookies of `.` and `..`; entries follow.
const DOTS: [(&[u8], u64); 2] = [(b".", 1), (b"..", 2)];

/// A node in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the snapshot's dataset.
    snapshot: u64,
    /// The object; `None` for the root of the snapshot.
    object: Option<u64>,
}

impl Place {
    /// Returns the snapshot node with that number; `None` if it is not a node in a snapshot.
    pub(super) fn of(number: u64) -> Option<Self> {
        if number & MARK != 0 {
            let snapshot = (number & !MARK) >> OBJECT_BITS;
            return Some(Self { snapshot, object: Some(number & OBJECT_MASK) });
        }
        control::snapshot_of_root(number).map(|snapshot| Self { snapshot, object: None })
    }
}

/// Whether a number belongs to a node in a snapshot, except roots.
pub(super) const fn is_inside(number: u64) -> bool {
    number & MARK != 0
}

/// Returns the number of an object of a snapshot.
fn number(fs: &FileSystem, object: u64) -> Result<u64> {
    let snapshot = fs.objset().id();
    if object == fs.root_object() {
        return Ok(fs.inode(object));
    }
    if snapshot > SNAPSHOT_MAX || object > OBJECT_MASK {
        return Err(Error::new(Kind::Unsupported, FuseError::Number { snapshot, object }));
    }
    Ok(MARK | snapshot << OBJECT_BITS | object)
}

fn attributes_of(node: &Node) -> Result<Attributes> {
    let fs = node.filesystem();
    let object = number(fs, node.object())?;
    let generation = fs.objset().root().birth();
    Ok(Attributes { object, generation, ..Attributes::of_node(node) })
}

/// The open snapshots of one file system.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// By number, the most recently used at the end. LOCK: held for a lookup, never across an
    /// await.
    open: Mutex<Vec<(u64, Arc<FileSystem>)>>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { open: Mutex::with_default(Rank::FuseSnapshots) }
    }
}

impl Snapshots {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Arc<FileSystem>)>> {
        self.open.lock()
    }

    /// Closes snapshots that are not in use.
    pub(super) fn close_unused(&self) {
        // Dropped without the lock.
        let open = std::mem::take(&mut *self.lock());
        drop(open);
    }

    /// Returns the number of open snapshots.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    async fn open(&self, mount: &Mount, snapshot: u64) -> Result<Arc<FileSystem>> {
        if let Some(found) = self.again(snapshot) {
            return Ok(found);
        }
        let all = mount.engine().snapshots().of_head(mount.head()).await?;
        let stale = || Error::not_found(FsError::Stale);
        let (name, _) =
            all.into_iter().find(|(_, number)| *number == snapshot).ok_or_else(stale)?;
        let opened = mount.open_snapshot(name.as_bytes()).await?;
        if opened.objset().id() != snapshot {
            return Err(stale());
        }
        let mut open = self.lock();
        open.push((snapshot, Arc::clone(&opened)));
        let oldest = (open.len() > OPEN_MAX).then(|| open.remove(0));
        drop((open, oldest));
        Ok(opened)
    }

    fn again(&self, snapshot: u64) -> Option<Arc<FileSystem>> {
        let mut open = self.lock();
        let at = open.iter().position(|(number, _)| *number == snapshot)?;
        let last = open.len() - 1;
        open.get_mut(at..)?.rotate_left(1);
        open.get(last).map(|(_, fs)| Arc::clone(fs))
    }

    async fn node(&self, mount: &Mount, place: Place) -> Result<Node> {
        let fs = self.open(mount, place.snapshot).await?;
        fs.node(place.object.unwrap_or(fs.root_object())).await
    }

    pub(super) async fn lookup(
        &self,
        mount: &Mount,
        dir: Place,
        name: &[u8],
    ) -> Result<Attributes> {
        let found = self.node(mount, dir).await?.lookup(name).await?;
        attributes_of(&found)
    }

    pub(super) async fn attributes(&self, mount: &Mount, place: Place) -> Result<Attributes> {
        attributes_of(&self.node(mount, place).await?)
    }

    pub(super) async fn target(&self, mount: &Mount, place: Place) -> Result<Vec<u8>> {
        self.node(mount, place).await?.target().await
    }

    pub(super) async fn read(
        &self,
        mount: &Mount,
        place: Place,
        offset: u64,
        len: usize,
    ) -> Result<Buf> {
        self.node(mount, place).await?.read_at(offset, len).await
    }

    pub(super) async fn seek(
        &self,
        mount: &Mount,
        place: Place,
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        let node = self.node(mount, place).await?;
        let found = match what {
            Seek::Data => node.next_data(offset).await?,
            Seek::Hole => node.next_hole(offset).await?,
        };
        found.ok_or_else(|| Error::new(Kind::Invalid, FsError::NoSuchPlace))
    }

    pub(super) async fn xattr(&self, mount: &Mount, place: Place, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.node(mount, place).await?.xattr(name).await?;
        found.map(|value| value.to_vec()).ok_or_else(|| Error::not_found(FsError::NoXattr))
    }

    pub(super) async fn xattrs(
        &self,
        mount: &Mount,
        place: Place,
        cred: &Credentials,
    ) -> Result<Vec<Vec<u8>>> {
        let sees_all = cred.can(Capabilities::SYS_ADMIN);
        let names = self.node(mount, place).await?.xattr_names().await?;
        let names = names.into_iter().map(|found| found.name);
        Ok(names.filter(|name| sees_all || !name.starts_with(TRUSTED)).collect())
    }

    /// Returns at most `max` entries from a cookie on.
    pub(super) async fn read_dir(
        &self,
        mount: &Mount,
        place: Place,
        cookie: u64,
        max: usize,
    ) -> Result<ReadDirPage> {
        let node = self.node(mount, place).await?;
        let fs = node.filesystem();
        let mut page = ReadDirPage::default();
        let last = DOTS[1].1;
        for (name, at) in DOTS.iter().filter(|(_, at)| *at > cookie) {
            let object = match (at, place.object) {
                (1, _) => number(fs, node.object())?,
                (_, None) => control::SNAPSHOTS,
                (_, Some(_)) => number(fs, node.attributes().parent)?,
            };
            let kind = Some(FileKind::Directory);
            page.entries.push(DirEntry { name: name.to_vec(), object, kind, cookie: *at });
        }
        let mut entries = node.entries_from(if cookie <= last { 0 } else { cookie }).await?;
        while page.entries.len() < max {
            let Some(entry) = entries.next().await? else {
                page.is_end = true;
                break;
            };
            let (name, kind, cookie) = (entry.name, entry.kind, entries.cookie());
            let object = number(fs, entry.object)?;
            page.entries.push(DirEntry { name, object, kind, cookie });
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_nodes_have_numbers_of_their_own() {
        let number = MARK | 77 << OBJECT_BITS | 0xc;
        assert!(is_inside(number));
        assert_eq!(Place::of(number), Some(Place { snapshot: 77, object: Some(12) }));
        for live in [1, 34, 1 << 40, control::CONTROL, control::SNAPSHOTS, control::SHARES] {
            assert_eq!(Place::of(live), None);
            assert!(!is_inside(live));
        }
    }
}
