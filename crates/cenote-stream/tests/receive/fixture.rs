//! Pools that receive, and their contents as manifests have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::ImageDevice;
use cenote_engine::Engine;
use cenote_fs::{FileKind, FileSystem, Node, Volume};
use cenote_ondisk::stream::Record;
use cenote_pool::Pool;
use cenote_poolkit::audit::Auditor;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{Error, Kind, Result};
use cenote_stream::{Item, ReceiveOptions, Receiver, StreamReader};
use cenote_testkit::manifest::{Entry, EntryKind, RawPath, VolumeSum, sha256};

/// Most bytes of a file in a stream.
const FILE_MAX: usize = 1 << 30;

/// A pool in memory that receives.
pub(crate) struct Target {
    pub(crate) engine: Arc<Engine>,
    pub(crate) devices: Vec<Arc<ImageDevice>>,
}

/// Returns the options of a receive into `target`.
pub(crate) fn into(target: &str) -> ReceiveOptions {
    ReceiveOptions { target: target.into(), ..ReceiveOptions::default() }
}

/// Returns the substreams of a stream. Each ends with its END, unless the stream ends early.
pub(crate) fn substreams(stream: &[u8]) -> Vec<(Vec<Item>, Option<Error>)> {
    let mut found: Vec<(Vec<Item>, Option<Error>)> = Vec::new();
    for item in StreamReader::new(stream) {
        match item {
            Ok(item) if item.is_package => {}
            Ok(item) => {
                if matches!(item.record, Record::Begin(_)) {
                    found.push((Vec::new(), None));
                }
                found.last_mut().unwrap().0.push(item);
            }
            Err(error) => {
                let error = Error::new(Kind::Invalid, error);
                match found.last_mut() {
                    Some(last) => last.1 = Some(error),
                    None => found.push((Vec::new(), Some(error))),
                }
            }
        }
    }
    found
}

/// Receives the records of a substream. One that cannot be received whole is aborted.
pub(crate) async fn receive_items(
    engine: &Arc<Engine>,
    (items, end): (Vec<Item>, Option<Error>),
    options: ReceiveOptions,
) -> Result<()> {
    let endian = cenote_ondisk::endian::Endian::Little;
    let mut items = items.into_iter();
    let begin = items.next().ok_or_else(|| Error::new(Kind::Invalid, "no BEGIN"))?;
    let mut receiver = Receiver::begin(engine, &begin, endian, options).await?;
    let applied = async {
        for item in items {
            receiver.apply(item).await?;
        }
        end.map_or(Ok(()), Err)?;
        receiver.finish().await
    };
    match applied.await {
        Ok(()) => Ok(()),
        Err(error) => {
            receiver.abort().await?;
            Err(error)
        }
    }
}

impl Target {
    pub(crate) async fn new() -> Self {
        let builder = PoolBuilder::disks(1).with_size(160 << 20).with_file_system().with_seed(3);
        let (engine, devices) = builder.create_in_memory().await;
        Self { engine, devices }
    }

    /// Receives all substreams of a stream, one after the other.
    pub(crate) async fn receive(&self, stream: &[u8], options: &ReceiveOptions) -> Result<()> {
        for substream in substreams(stream) {
            receive_items(&self.engine, substream, options.clone()).await?;
        }
        Ok(())
    }

    /// Exports the pool, and has OpenZFS and cenote check it. Returns what was printed for
    /// `options`.
    pub(crate) async fn judge(self, what: &str, options: &[&str]) -> (Arc<Pool>, Option<String>) {
        self.engine.export().await.unwrap();
        let pool = pools::open_copy(&self.devices).await.unwrap();
        let differences = Auditor::new().audit(&pool).await.unwrap();
        assert!(differences.is_empty(), "{what}: {differences:?}");
        pools::assert_no_leaks(&pool).await;
        let printed = pools::judge_devices(&self.devices, what, options);
        (pool, printed)
    }
}

async fn entry_of(path: RawPath, node: &Node) -> Entry {
    let file = node.attributes();
    let kind = match node.kind() {
        FileKind::Fifo => EntryKind::Fifo,
        FileKind::CharDevice => EntryKind::Chr,
        FileKind::Directory => EntryKind::Dir,
        FileKind::BlockDevice => EntryKind::Blk,
        FileKind::Regular => EntryKind::File,
        FileKind::Symlink => EntryKind::Symlink,
        FileKind::Socket => EntryKind::Sock,
        other @ FileKind::Other(_) => panic!("{other:?}"),
    };
    let is_file = kind == EntryKind::File;
    let contents = if is_file { Some(node.read_at(0, FILE_MAX).await.unwrap()) } else { None };
    let is_link = kind == EntryKind::Symlink;
    let target = if is_link { Some(RawPath(node.target().await.unwrap())) } else { None };
    let mut xattrs = BTreeMap::new();
    if node.has_xattrs() {
        for found in node.xattr_names().await.unwrap() {
            let value = node.xattr(&found.name).await.unwrap().unwrap();
            xattrs.insert(String::from_utf8(found.name).unwrap(), sha256(&value));
        }
    }
    Entry {
        path,
        kind,
        mode: (file.mode & 0o7777) as u32,
        uid: file.uid.rid(),
        gid: file.gid.rid(),
        nlink: file.links,
        ino: node.inode(),
        mtime_ns: file.mtime.seconds * 1_000_000_000 + file.mtime.nanoseconds as i64,
        size: is_file.then_some(file.size),
        sha256: contents.map(|contents| sha256(&contents)),
        target,
        rdev: node.device(),
        xattrs,
        xattr_error: None,
    }
}

/// Returns the entries of a file system or snapshot.
pub(crate) async fn entries(pool: &Arc<Pool>, name: &str) -> Vec<Entry> {
    let fs = FileSystem::open(&pool.dataset(name).await.unwrap()).await.unwrap();
    let mut found = Vec::new();
    let mut open = vec![(b".".to_vec(), fs.root().await.unwrap())];
    while let Some((path, node)) = open.pop() {
        if node.is_directory() {
            let mut entries = node.entries().await.unwrap();
            while let Some(entry) = entries.next().await.unwrap() {
                let inner = match &path[..] {
                    b"." => entry.name,
                    path => [path, b"/", &entry.name].concat(),
                };
                open.push((inner, fs.node(entry.object).await.unwrap()));
            }
        }
        found.push(entry_of(RawPath(path), &node).await);
    }
    found
}

/// Removes what a manifest of a mounted snapshot has of the control directory instead.
pub(crate) fn without_root_number(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.iter_mut().filter(|entry| entry.path.0 == b".").for_each(|entry| entry.ino = 0);
    entries
}

/// Returns the size and the sum of a volume.
pub(crate) async fn volume_sum(pool: &Arc<Pool>, name: &str) -> VolumeSum {
    let volume = Volume::open(&pool.dataset(name).await.unwrap()).await.unwrap();
    let bytes = volume.read_at(0, volume.size() as usize).await.unwrap();
    VolumeSum { size: volume.size(), sha256: sha256(&bytes) }
}
