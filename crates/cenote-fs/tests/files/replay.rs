//! Replay of logs of file systems, written by OpenZFS and by cenote.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_engine::Engine;
use cenote_engine::zil::{Operation, Replayer};
use cenote_fs::edit::Facts;
use cenote_fs::{FileKind, FileSystem, FsReplayer, Node, recover};
use cenote_ondisk::zil::Body;
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::frozen::restore_uberblock;
use cenote_rt::{Error, Kind, Result, block_on};
use cenote_testkit::manifest::{Entry, EntryKind, sha256};

/// Files that the manifest shows as they were in memory, although the last change was never synced:
/// one was truncated, one got a new mode, one a new owner.
const TRUNCATED: &str = "new/f3";
const NEW_MODE: (&str, u32) = ("new/f5", 0o640);
const NEW_OWNER: &str = "new/f6";

async fn open(paths: Vec<PathBuf>) -> Result<Arc<Engine>> {
    let scan = scan(&ScanOptions { paths }).await?;
    Engine::open(scan.find("g-zil").unwrap(), &OpenOptions::default()).await
}

/// Attributes of a file after a replay; times are those of the replay.
type Row = (EntryKind, u32, u32, u32, u64, u64, Option<u64>, Option<String>);

fn row(entry: &Entry) -> Row {
    let Entry { kind, mode, uid, gid, nlink, ino, size, sha256, .. } = entry.clone();
    (kind, mode, uid, gid, nlink, ino, size, sha256)
}

async fn row_of(node: &Node) -> Row {
    let file = node.attributes();
    let kind = match node.kind() {
        FileKind::Directory => EntryKind::Dir,
        FileKind::Regular => EntryKind::File,
        FileKind::Symlink => EntryKind::Symlink,
        other => panic!("{other:?}"),
    };
    let is_file = kind == EntryKind::File;
    let content = if is_file { Some(node.read_at(0, 1 << 30).await.unwrap()) } else { None };
    (
        kind,
        (file.mode & 0o7777) as u32,
        file.uid.rid(),
        file.gid.rid(),
        file.links,
        node.object(),
        is_file.then_some(file.size),
        content.map(|content| sha256(&content)),
    )
}

/// Returns every path of a file system.
async fn tree(fs: &Arc<FileSystem>) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    let mut open = vec![(".".to_owned(), fs.root().await.unwrap())];
    while let Some((path, node)) = open.pop() {
        rows.insert(path.clone(), row_of(&node).await);
        if !node.is_directory() {
            continue;
        }
        let mut entries = node.entries().await.unwrap();
        while let Some(entry) = entries.next().await.unwrap() {
            let name = String::from_utf8(entry.name).unwrap();
            let path = if path == "." { name } else { format!("{path}/{name}") };
            open.push((path, fs.node(entry.object).await.unwrap()));
        }
    }
    rows
}

async fn tree_on(paths: Vec<PathBuf>) -> BTreeMap<String, Row> {
    let scan = scan(&ScanOptions { paths }).await.unwrap();
    let pool = Pool::open(scan.find("g-zil").unwrap(), &OpenOptions::default()).await.unwrap();
    tree(&FileSystem::open(&pool.dataset("g-zil/a").await.unwrap()).await.unwrap()).await
}

/// Checks records during a replay, and stops after some.
struct Watched {
    inner: FsReplayer,
    left: AtomicU64,
}

impl Replayer for Watched {
    fn replay(&self, tx: &mut Tx<'_>, operation: &Operation<'_>) -> TxResult<()> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return Err(TxStop::Fail(Error::new(Kind::Unsupported, "no more")));
        }
        // Decoded records are encoded to the same bytes.
        let kind = operation.record.kind().unwrap();
        let again = operation.body.encode(kind);
        assert_eq!(again.as_deref(), operation.record.bytes.get(32..), "{kind:?}");
        if let Body::Setattr { mask, .. } = &operation.body {
            assert!(*mask < 1 << 9, "{mask:#x}");
        }
        self.inner.replay(tx, operation)?;
        self.left.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Replays at most `count` records. Returns true if that was all.
async fn replay_some(engine: &Arc<Engine>, count: u64) -> bool {
    let head = engine.head("g-zil/a").await.unwrap();
    let inner = FsReplayer::new(Facts::read(engine, &head).await.unwrap());
    let watched = Watched { inner, left: count.into() };
    match engine.intent_logs().replay(&head, &watched).await {
        Ok(replayed) => {
            let replayed = replayed.unwrap();
            assert!(replayed.failure.is_none(), "{replayed:?}");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), Kind::Unsupported, "{error:?}");
            false
        }
    }
}

#[test]
fn a_log_of_openzfs_is_replayed_to_its_manifest() {
    let Some(golden) = cenote_testkit::golden("g-zil") else { return };
    let mut wanted = BTreeMap::new();
    for entry in golden.manifest("a") {
        wanted.insert(entry.path.to_string(), row(&entry));
    }
    wanted.remove(TRUNCATED).unwrap();
    wanted.get_mut(NEW_MODE.0).unwrap().1 = NEW_MODE.1;
    let owned = wanted.get_mut(NEW_OWNER).unwrap();
    (owned.2, owned.3) = (0, 0);
    // At once, and a few records at a time with the pool opened again in between.
    for steps in [u64::MAX, 7] {
        let copy = golden.private_copy();
        block_on(2, async {
            restore_uberblock(copy.devices()).await.unwrap();
            loop {
                let engine = open(copy.devices()).await.unwrap();
                if replay_some(&engine, steps).await {
                    engine.export().await.unwrap();
                    break;
                }
                // As in a crash: changes that were not synced are lost.
                drop(engine);
            }
            let mut found = tree_on(copy.devices()).await;
            found.remove(TRUNCATED).unwrap();
            assert_eq!(found.len(), wanted.len());
            for (path, row) in &found {
                assert_eq!(Some(row), wanted.get(path), "{path}");
            }
            println!("{} of {} entries are as the manifest has them", found.len(), wanted.len());
        })
        .unwrap();
        let Some(zdb) = cenote_oracle::zdb() else { continue };
        let said = zdb.pool("g-zil", copy.path(), &["-ddddd"]);
        assert!(said.is_success(), "{said}");
        assert!(!said.to_string().contains("leaked"), "{said}");
    }
}

#[test]
fn recovering_a_pool_replays_its_file_systems() {
    let Some(golden) = cenote_testkit::golden("g-zil") else { return };
    let copy = golden.private_copy();
    block_on(2, async {
        restore_uberblock(copy.devices()).await.unwrap();
        let engine = open(copy.devices()).await.unwrap();
        let done = recover(&engine).await.unwrap();
        let head = engine.head("g-zil/a").await.unwrap();
        let (_, replayed) = done.iter().find(|(object, _)| *object == head.object()).unwrap();
        assert_eq!(replayed.applied + replayed.skipped, 69, "{replayed:?}");
        assert!(replayed.failure.is_none(), "{replayed:?}");
        assert!(recover(&engine).await.unwrap().is_empty());
        engine.export().await.unwrap();
    })
    .unwrap();
}
