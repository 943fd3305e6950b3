//! File systems: names, directories and files.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_fs::access::{Credentials, OpenFor};
use cenote_fs::acl::Want;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode, SetAttributes};
use cenote_fs::mount::Attributes;
use cenote_fs::{FileKind, Follow, FsError, Mount, Node};
use cenote_rt::{Error, Kind, Result};

use crate::dataset::Dataset;
use crate::error::Refusal;
use crate::file::{Allows, File};
use crate::metadata::{FileType, Metadata};
use crate::options::OpenOptions;
use crate::path::{self, bytes, refuse};
use crate::pool::Pool;
use crate::snapshot::Snapshot;

/// Directory entries that are read at once.
const PAGE: usize = 1000;
/// Bytes that [`FileSystem::read`] reads at once.
const READ_CHUNK: u64 = 4 << 20;
/// Permission bits of new files and directories.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// An open file system, or a snapshot of one, which is read-only.
///
/// Operations have root's rights, or those of [`as_user`](Self::as_user).
#[derive(Debug, Clone)]
pub struct FileSystem {
    // Dropped before the pool: the last handle of a pool closes it.
    content: Content,
    pool: Pool,
    name: String,
    cred: Arc<Credentials>,
}

#[derive(Debug, Clone)]
enum Content {
    Live(Arc<Mount>),
    Snapshot(Arc<cenote_fs::FileSystem>),
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    name: OsString,
    file_type: Option<FileType>,
    inode: u64,
}

impl DirEntry {
    /// Returns the name.
    #[must_use]
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the type; file systems of ZPL version 1 do not store it in directories.
    #[must_use]
    pub fn file_type(&self) -> Option<FileType> {
        self.file_type
    }

    /// Returns the inode number.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

impl FileSystem {
    pub(crate) async fn open(pool: &Pool, name: &str) -> Result<Self> {
        pool.check_open()?;
        let engine = &pool.0.engine;
        let content = if name.contains('@') && !engine.is_read_only() {
            Content::Snapshot(cenote_fs::FileSystem::open_snapshot(engine, name).await?)
        } else if engine.is_read_only() {
            let opened = pool
                .read(async |view| cenote_fs::FileSystem::open(&view.dataset(name).await?).await);
            Content::Snapshot(opened.await?)
        } else {
            Content::Live(Mount::open(engine, name).await?)
        };
        let cred = Arc::new(Credentials::root());
        Ok(Self { content, pool: pool.clone(), name: name.to_owned(), cred })
    }

    /// Returns the full name of the dataset or snapshot.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same file system with the permissions of a user. Snapshots check no permissions:
    /// everything in them is readable.
    #[must_use]
    pub fn as_user(&self, uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self { cred: Arc::new(Credentials::user(uid, gid, groups)), ..self.clone() }
    }

    /// Returns the dataset, for its properties.
    #[must_use]
    pub fn dataset(&self) -> Dataset {
        let name = self.name.split('@').next().unwrap_or(&self.name);
        Dataset::named(&self.pool, name.to_owned())
    }

    /// Takes a snapshot: `snapshot("monday")` is `NAME@monday`.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::ReadOnly` for a snapshot.
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot> {
        self.live()?;
        self.dataset().snapshot(name).await
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Permission`; `Kind::Invalid` for a directory.
    pub async fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true)).await
    }

    /// Creates a file for writing, or truncates an existing one.
    ///
    /// # Errors
    /// The errors of [`open_with`](Self::open_with).
    pub async fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
        self.open_with(path, options).await
    }

    /// Opens a file.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Exists` with `create_new`; `Kind::Permission`; `Kind::Invalid` for
    /// a directory, or options that permit nothing; `Kind::ReadOnly`; `Kind::NoSpace`,
    /// `Kind::Quota`.
    pub async fn open_with(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let path = bytes(path.as_ref());
        let writes = options.is_write || options.is_append;
        let creates = options.is_create || options.is_create_new;
        if !writes && (creates || options.is_truncate || !options.is_read) {
            return Err(Error::new(Kind::Invalid, Refusal::Options));
        }
        let mount = match &self.content {
            Content::Live(mount) => mount,
            Content::Snapshot(_) if writes => return Err(read_only()),
            Content::Snapshot(_) => {
                let node = self.node(path, Follow::Yes).await?;
                if node.is_directory() {
                    return Err(refuse(FsError::IsADirectory));
                }
                return Ok(File::of_snapshot(&self.pool, node));
            }
        };
        self.pool.check_open()?;
        let (found, is_new) = self.find_or_create(mount, path, options).await?;
        let mut want = Want::empty();
        want.set(Want::READ, options.is_read);
        want.set(Want::WRITE, options.is_write);
        want.set(Want::APPEND, options.is_append && !options.is_write);
        // The creator of a file may use it regardless of its mode.
        let cred = if is_new { &Credentials::root() } else { &*self.cred };
        let handle = mount.open_node(cred, found.object, want).await?;
        let appends = options.is_append;
        let wanted = OpenFor { writes, appends, truncates: options.is_truncate };
        mount.check_open(cred, found.object, wanted).await?;
        let allows = Allows { reads: options.is_read, writes, appends };
        let file = File::live(&self.pool, (mount, &self.cred), handle, allows);
        if options.is_truncate && !is_new && found.size > 0 {
            file.set_len(0).await?;
        }
        Ok(file)
    }

    /// Finds a file, or creates it if the options say so; returns true if it is new.
    async fn find_or_create(
        &self,
        mount: &Arc<Mount>,
        path: &[u8],
        options: OpenOptions,
    ) -> Result<(Attributes, bool)> {
        loop {
            if !options.is_create_new {
                match cenote_fs::resolve(mount, &self.cred, path, Follow::Yes).await {
                    Err(error) if error.kind() == Kind::NotFound && options.is_create => {}
                    found => return Ok((found?, false)),
                }
            }
            let place = path::place(mount, &self.cred, path).await?;
            let new = NewNode::new(NewKind::Regular, options.mode.unwrap_or(FILE_MODE));
            match mount.create(&self.cred, place.parent, &place.name, &new).await {
                // Another task created it concurrently, or a symbolic link has no target.
                Err(error) if error.kind() == Kind::Exists && !options.is_create_new => {
                    let there = mount.lookup(&self.cred, place.parent, &place.name).await;
                    if there.is_ok_and(|there| there.kind == FileKind::Symlink) {
                        return Err(Error::not_found(FsError::NoEntry));
                    }
                }
                created => return Ok((created?, true)),
            }
        }
    }

    /// Reads a whole file into memory.
    ///
    /// # Errors
    /// The errors of [`open_file`](Self::open_file) and of reading.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open_file(path).await?;
        let mut bytes = Vec::new();
        loop {
            // A damaged size must not allocate memory: it grows with the bytes that are read.
            let start = bytes.len();
            let left = file.metadata().await?.len().saturating_sub(start as u64);
            bytes.resize(start + left.clamp(1, READ_CHUNK) as usize, 0);
            let len = file.read_at(&mut bytes[start..], start as u64).await?;
            bytes.truncate(start + len);
            if len == 0 {
                return Ok(bytes);
            }
        }
    }

    /// Writes a whole file and replaces its former content.
    ///
    /// # Errors
    /// The errors of [`create_file`](Self::create_file) and of writing.
    pub async fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(path).await?.write_all_at(bytes.as_ref(), 0).await
    }

    /// Returns the attributes of a file; symbolic links are followed.
    ///
    /// # Errors
    /// `Kind::NotFound`.
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.attributes(bytes(path.as_ref()), Follow::Yes).await.map(Metadata)
    }

    /// Like [`metadata`](Self::metadata), but does not follow a symbolic link.
    ///
    /// # Errors
    /// `Kind::NotFound`.
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.attributes(bytes(path.as_ref()), Follow::No).await.map(Metadata)
    }

    /// Returns whether the file exists.
    ///
    /// # Errors
    /// Errors of reading directories, except `Kind::NotFound`.
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the entries of a directory, without `.` and `..`. Entries created or removed
    /// concurrently may be missing or present.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` if it is no directory; `Kind::Permission`.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>> {
        let path = bytes(path.as_ref());
        let mut entries = Vec::new();
        let mut add = |name: Vec<u8>, kind: Option<FileKind>, inode: u64| {
            let file_type = kind.map(FileType::from);
            entries.push(DirEntry { name: OsString::from_vec(name), file_type, inode });
        };
        match &self.content {
            Content::Snapshot(_) => {
                let mut list = self.node(path, Follow::Yes).await?.entries().await?;
                while let Some(entry) = list.next().await? {
                    add(entry.name, entry.kind, entry.object);
                }
            }
            Content::Live(mount) => {
                let dir = self.attributes(path, Follow::Yes).await?.object;
                let mut cookie = 0;
                loop {
                    let page = mount.read_dir(&self.cred, dir, cookie, PAGE).await?;
                    let Some(last) = page.entries.last() else { break };
                    cookie = last.cookie;
                    let names = page.entries.into_iter();
                    for entry in names.filter(|entry| entry.name != b"." && entry.name != b"..") {
                        add(entry.name, entry.kind, entry.object);
                    }
                    if page.is_end {
                        break;
                    }
                }
            }
        }
        Ok(entries)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::NotFound` if the parent directory does not exist.
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create(bytes(path.as_ref()), NewNode::new(NewKind::Directory, DIRECTORY_MODE)).await
    }

    /// Creates a directory with all missing parents; an existing one is no error.
    ///
    /// # Errors
    /// `Kind::Invalid` if a component of the path is no directory.
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut above = PathBuf::new();
        for name in cenote_fs::components(bytes(path.as_ref())) {
            above.push(OsStr::from_bytes(&name));
            match self.create_dir(&above).await {
                Err(error) if error.kind() == Kind::Exists => {
                    if !self.metadata(&above).await?.is_dir() {
                        return Err(refuse(FsError::NotADirectory));
                    }
                }
                created => created?,
            }
        }
        Ok(())
    }

    /// Creates a symbolic link at `path`.
    ///
    /// # Errors
    /// The errors of [`create_dir`](Self::create_dir).
    pub async fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let new = NewNode::new(NewKind::Symlink(bytes(target.as_ref())), 0o777);
        self.create(bytes(path.as_ref()), new).await
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` if it is no symbolic link.
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = bytes(path.as_ref());
        let target = match &self.content {
            Content::Live(mount) => {
                mount.read_link(self.attributes(path, Follow::No).await?.object).await?
            }
            Content::Snapshot(_) => self.node(path, Follow::No).await?.target().await?,
        };
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// `Kind::Exists`; `Kind::Permission` for a directory.
    pub async fn hard_link(&self, path: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<()> {
        let mount = self.live()?;
        let file = self.attributes(bytes(path.as_ref()), Follow::No).await?;
        let place = path::place(mount, &self.cred, bytes(new.as_ref())).await?;
        mount.link(&self.cred, file.object, place.parent, &place.name).await.map(drop)
    }

    /// Renames a file or directory, and replaces an existing one.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` for a move of a directory into itself.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let mount = self.live()?;
        let from = path::place(mount, &self.cred, bytes(from.as_ref())).await?;
        let to = path::place(mount, &self.cred, bytes(to.as_ref())).await?;
        let changes = Rename {
            from: (from.parent, &from.name),
            to: (to.parent, &to.name),
            mode: RenameMode::Plain,
        };
        mount.rename(&self.cred, &changes).await
    }

    /// Removes a file, or any other node except a directory.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` for a directory.
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let mount = self.live()?;
        let place = path::place(mount, &self.cred, bytes(path.as_ref())).await?;
        mount.unlink(&self.cred, place.parent, &place.name).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Invalid` if it is no directory; `Kind::Exists` if it is not empty.
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let mount = self.live()?;
        let place = path::place(mount, &self.cred, bytes(path.as_ref())).await?;
        mount.rmdir(&self.cred, place.parent, &place.name).await
    }

    /// Changes the permission bits of a file.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Permission`.
    pub async fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let changes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.set_attributes(path.as_ref(), &changes).await
    }

    /// Changes owner and group of a file; symbolic links are followed.
    ///
    /// # Errors
    /// `Kind::NotFound`; `Kind::Permission`.
    pub async fn set_owner(&self, path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<()> {
        let changes = SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() };
        self.set_attributes(path.as_ref(), &changes).await
    }

    async fn set_attributes(&self, path: &Path, changes: &SetAttributes) -> Result<()> {
        let mount = self.live()?;
        let file = self.attributes(bytes(path), Follow::Yes).await?;
        mount.set_attributes(&self.cred, file.object, changes).await.map(drop)
    }

    async fn create(&self, path: &[u8], new: NewNode<'_>) -> Result<()> {
        let mount = self.live()?;
        let place = path::place(mount, &self.cred, path).await?;
        mount.create(&self.cred, place.parent, &place.name, &new).await.map(drop)
    }

    async fn attributes(&self, path: &[u8], follow: Follow) -> Result<Attributes> {
        self.pool.check_open()?;
        match &self.content {
            Content::Live(mount) => cenote_fs::resolve(mount, &self.cred, path, follow).await,
            Content::Snapshot(_) => Ok(Attributes::of_node(&self.node(path, follow).await?)),
        }
    }

    /// Finds a node of a snapshot.
    async fn node(&self, path: &[u8], follow: Follow) -> Result<Node> {
        self.pool.check_open()?;
        match &self.content {
            Content::Snapshot(snapshot) => snapshot.walk(path, follow).await,
            Content::Live(_) => Err(read_only()),
        }
    }

    fn live(&self) -> Result<&Arc<Mount>> {
        self.pool.check_open()?;
        match &self.content {
            Content::Live(mount) => Ok(mount),
            Content::Snapshot(_) => Err(read_only()),
        }
    }
}

fn read_only() -> Error {
    Error::new(Kind::ReadOnly, FsError::ReadOnly)
}
