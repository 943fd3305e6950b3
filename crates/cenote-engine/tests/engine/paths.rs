//! Leaves that come back when their path leads to another file, or to none.

use std::path::Path;

use cenote_engine::{Engine, EngineError};
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, TestPool, judge};
use cenote_rt::{Kind, block_on};
use cenote_testkit::golden::PrivateFolder;
use cenote_vdev::VdevState;

const BLOCKS: u64 = 24;

fn mirror() -> PoolBuilder {
    PoolBuilder::of("mirror", 2).with_ashift(9).with_size(128 << 20)
}

fn leaf(engine: &Engine, index: usize) -> u64 {
    engine.admin().vdev_config().leaves().nth(index).unwrap().guid
}

fn state(engine: &Engine, leaf: u64) -> VdevState {
    engine.tree().vdev(leaf).unwrap().state()
}

/// Imports the pool with the second device only, and reads its file.
async fn check_second(dir: &Path, object: u64) {
    let second = dir.join("second");
    std::fs::create_dir(&second).unwrap();
    std::fs::copy(dir.join("d1.img"), second.join("d1.img")).unwrap();
    let found = scan(&ScanOptions { paths: vec![second.join("d1.img")] }).await.unwrap();
    let engine = Engine::open(found.find("tank").unwrap(), &OpenOptions::default()).await.unwrap();
    let head = engine.head("tank/a").await.unwrap();
    for block in 0..BLOCKS {
        let read = head.live().inspect(|tx| tx.read(object, block << 17, 128 << 10)).await;
        let read = read.unwrap_or_else(|error| panic!("block {block}: {error}"));
        let mut bytes = vec![0; 64 << 10];
        cenote_rt::Rng::seeded(block << 32 | 2).fill(&mut bytes);
        assert!(read[..64 << 10] == bytes[..], "block {block}");
    }
    engine.export().await.unwrap();
    std::fs::remove_dir_all(second).unwrap();
}

/// The file of an offline leaf is replaced by a copy: the leaf comes back on the copy, and what is
/// written afterwards is there.
#[test]
fn online_opens_the_file_at_the_path() {
    let dir = PrivateFolder::create("paths");
    let pool = TestPool::new(dir.path(), mirror());
    block_on(2, async {
        let engine = pool.create().await.unwrap();
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let object = pools::new_object(&engine, &head).await.unwrap();
        engine.sync().await.unwrap();
        let leaf = leaf(&engine, 1);
        engine.leaves().offline(leaf, false).await.unwrap();
        let (path, copy) = (dir.path().join("d1.img"), dir.path().join("copy"));
        std::fs::copy(&path, &copy).unwrap();
        std::fs::rename(&copy, &path).unwrap();
        engine.leaves().online(leaf, None).await.unwrap();
        assert_eq!(state(&engine, leaf), VdevState::Healthy);
        for block in 0..BLOCKS {
            pools::write(&engine, &head, object, block, 2).await.unwrap();
        }
        engine.sync().await.unwrap();
        engine.export().await.unwrap();
        drop(engine);
        check_second(dir.path(), object).await;
    })
    .unwrap();
    judge(dir.path(), "tank");
}

/// Nothing is at the path, or another pool's device: the leaf stays offline. The device that it had
/// comes back without being opened again.
#[test]
fn online_refuses_a_path_without_the_leaf() {
    let dir = PrivateFolder::create("paths");
    let pool = TestPool::new(dir.path(), mirror());
    block_on(2, async {
        let engine = pool.create().await.unwrap();
        let leaf = leaf(&engine, 1);
        engine.leaves().offline(leaf, false).await.unwrap();
        let (path, away) = (dir.path().join("d1.img"), dir.path().join("away"));
        std::fs::rename(&path, &away).unwrap();
        let error = engine.leaves().online(leaf, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Io);
        assert!(matches!(error.cause(), Some(EngineError::NotAtPath { .. })), "{error}");
        cenote_device::create_file(&path, 128 << 20).unwrap();
        let error = engine.leaves().online(leaf, None).await.unwrap_err();
        assert_eq!(error.cause(), Some(&EngineError::WrongDevice(leaf)), "{error}");
        assert_eq!(state(&engine, leaf), VdevState::Offline);
        assert!(engine.admin().vdev_config().find(leaf).unwrap().leaf.offline);
        std::fs::rename(&away, &path).unwrap();
        engine.leaves().online(leaf, None).await.unwrap();
        assert_eq!(state(&engine, leaf), VdevState::Healthy);
        engine.export().await.unwrap();
    })
    .unwrap();
    judge(dir.path(), "tank");
}
