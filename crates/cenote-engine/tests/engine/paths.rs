//! Leaves that come back when their path leads to another file, or to none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_engine::admin::PoolSetting;
use cenote_engine::{Engine, EngineError, ScrubOptions, is_blank_at};
use cenote_ondisk::scan::{ScanFunc, ScanState};
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, TestPool, judge};
use cenote_rt::{Kind, block_on};
use cenote_testkit::golden::PrivateFolder;
use cenote_vdev::VdevState;

use crate::scans::scan_of;

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

async fn open_in(paths: Vec<PathBuf>) -> Arc<Engine> {
    let found = scan(&ScanOptions { paths }).await.unwrap();
    Engine::open(found.find("tank").unwrap(), &OpenOptions::default()).await.unwrap()
}

async fn write_all(engine: &Arc<Engine>, object: u64, salt: u64) {
    let head = engine.head("tank/a").await.unwrap();
    for block in 0..BLOCKS {
        pools::write(engine, &head, object, block, salt).await.unwrap();
    }
    engine.sync().await.unwrap();
}

/// Creates the pool with a file; returns its number.
async fn with_file(pool: &TestPool) -> (Arc<Engine>, u64) {
    let engine = pool.create().await.unwrap();
    let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    let object = pools::new_object(&engine, &head).await.unwrap();
    (engine, object)
}

/// Imports the pool with the second device only, and reads its file.
async fn check_second(dir: &Path, object: u64) {
    let second = dir.join("second");
    std::fs::create_dir(&second).unwrap();
    std::fs::copy(dir.join("d1.img"), second.join("d1.img")).unwrap();
    let engine = open_in(vec![second.join("d1.img")]).await;
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
        let (engine, object) = with_file(&pool).await;
        engine.sync().await.unwrap();
        let leaf = leaf(&engine, 1);
        engine.leaves().offline(leaf, false).await.unwrap();
        let (path, copy) = (dir.path().join("d1.img"), dir.path().join("copy"));
        std::fs::copy(&path, &copy).unwrap();
        std::fs::rename(&copy, &path).unwrap();
        engine.leaves().online(leaf, None).await.unwrap();
        assert_eq!(state(&engine, leaf), VdevState::Healthy);
        write_all(&engine, object, 2).await;
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

/// With `autoreplace` a blank file at the path of a leaf that is gone replaces it; one that has any
/// byte, one that is too small, and none do not, and nothing does without the property.
#[test]
fn autoreplace_takes_blank_devices() {
    let dir = PrivateFolder::create("paths");
    let pool = TestPool::new(dir.path(), mirror());
    block_on(2, async {
        let (engine, object) = with_file(&pool).await;
        let leaf = leaf(&engine, 1);
        let path = dir.path().join("d1.img");
        let wanted = [(leaf, path.to_str().unwrap().to_owned())];
        std::fs::remove_file(&path).unwrap();
        engine.leaves().reopen().await.unwrap();
        assert_eq!(state(&engine, leaf), VdevState::CantOpen);
        write_all(&engine, object, 2).await;
        let set = |value| engine.admin().set(vec![PoolSetting::Property("autoreplace", value)]);
        assert!(engine.leaves().to_replace().is_empty());
        set(1).await.unwrap();
        assert_eq!(engine.leaves().to_replace(), wanted);
        assert!(!engine.leaves().replace_by_blank(leaf, &wanted[0].1).await.unwrap(), "none");
        let make = |size: u64, mark: Option<u64>| {
            let _ = std::fs::remove_file(&path);
            cenote_device::create_file(&path, size).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            if let Some(at) = mark {
                std::os::unix::fs::FileExt::write_at(&file, b"x", at).unwrap();
            }
        };
        for mark in [0, 1080, (4 << 20) - 1, 64 << 20, (124 << 20) + 5, (128 << 20) - 1] {
            make(128 << 20, Some(mark));
            assert!(!engine.leaves().replace_by_blank(leaf, &wanted[0].1).await.unwrap(), "{mark}");
        }
        make(64 << 20, None);
        assert!(engine.leaves().replace_by_blank(leaf, &wanted[0].1).await.is_err());
        // The refused device is blank again.
        assert!(is_blank_at(&wanted[0].1).await.unwrap());
        assert_eq!(state(&engine, leaf), VdevState::CantOpen);
        make(128 << 20, None);
        set(0).await.unwrap();
        assert!(engine.leaves().to_replace().is_empty());
        // The next import has the property, too.
        set(1).await.unwrap();
        engine.export().await.unwrap();
        drop(engine);
        let engine = open_in(vec![dir.path().to_owned()]).await;
        assert_eq!(engine.leaves().to_replace(), wanted);
        assert!(engine.leaves().replace_by_blank(leaf, &wanted[0].1).await.unwrap());
        assert!(
            !engine.leaves().replace_by_blank(leaf, &wanted[0].1).await.unwrap(),
            "it is in use now"
        );
        engine.scans().resume().await.unwrap();
        engine.scans().wait(ScanFunc::Resilver).await.unwrap();
        engine.sync().await.unwrap();
        assert!(engine.leaves().to_replace().is_empty());
        let config = engine.admin().vdev_config();
        assert!(config.find(leaf).is_none() && config.leaves().count() == 2, "{config:?}");
        engine.export().await.unwrap();
        drop(engine);
        check_second(dir.path(), object).await;
    })
    .unwrap();
    judge(dir.path(), "tank");
}

/// Resilvers what leaves lack, and checks that nothing is wrong on any of them.
async fn make_whole(engine: &Arc<Engine>) {
    engine.scans().resume().await.unwrap();
    engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    engine.scans().scrub(ScrubOptions::default()).await.unwrap();
    engine.scans().wait(ScanFunc::Scrub).await.unwrap();
    let done = scan_of(&engine.view().await.unwrap());
    assert_eq!((done.state, done.errors, done.processed), (ScanState::Finished, 0, 0));
}

/// Creates a mirror in `dir` with a file of [`BLOCKS`] blocks; returns the number of the file.
async fn mirror_with_file(pool: &TestPool) -> u64 {
    let (engine, object) = with_file(pool).await;
    write_all(&engine, object, 1).await;
    engine.export().await.unwrap();
    object
}

/// Disks are known by their labels, not by their names.
#[test]
fn disks_may_swap_their_names() {
    let dir = PrivateFolder::create("paths");
    let pool = TestPool::new(dir.path(), mirror());
    block_on(2, async {
        let object = mirror_with_file(&pool).await;
        let [d0, d1, unnamed] = ["d0.img", "d1.img", "unnamed"].map(|name| dir.path().join(name));
        for (from, to) in [(&d0, &unnamed), (&d1, &d0), (&unnamed, &d1)] {
            std::fs::rename(from, to).unwrap();
        }
        let engine = open_in(vec![dir.path().to_owned()]).await;
        assert_eq!(engine.tree().root().state(), VdevState::Healthy);
        write_all(&engine, object, 2).await;
        make_whole(&engine).await;
        // The config has the new paths.
        let config = engine.admin().vdev_config();
        let paths: Vec<_> = config.leaves().filter_map(|leaf| leaf.leaf.path.clone()).collect();
        assert!(paths[0].as_bytes().ends_with(b"d1.img"), "{paths:?}");
        assert!(paths[1].as_bytes().ends_with(b"d0.img"), "{paths:?}");
        engine.export().await.unwrap();
        drop(engine);
        check_second(dir.path(), object).await;
    })
    .unwrap();
    judge(dir.path(), "tank");
}

/// Both sides of a mirror were written while they were apart: that with the newest txg counts, of
/// two equal ones the later one, and the other gets what it lacks.
#[test]
fn sides_that_lived_apart_are_told_apart() {
    for (first, second) in [(1, 5), (5, 1), (3, 3)] {
        let dir = PrivateFolder::create("paths");
        let pool = TestPool::new(dir.path(), mirror());
        block_on(2, async {
            let object = mirror_with_file(&pool).await;
            let paths = ["d0.img", "d1.img"].map(|name| dir.path().join(name));
            let mut txgs = Vec::new();
            for (path, times) in paths.iter().zip([first, second]) {
                let engine = open_in(vec![path.clone()]).await;
                // In the file of the side that is to win is what `check_second` wants.
                let salt = if (path == &paths[1]) == (second >= first) { 2 } else { 7 };
                for _ in 0..times {
                    write_all(&engine, object, salt).await;
                }
                engine.export().await.unwrap();
                txgs.push(engine.uberblock().txg);
                // The later one of two equal ones is that of a later second.
                cenote_rt::sleep(Duration::from_millis(1100)).await;
            }
            assert_eq!(txgs[0].cmp(&txgs[1]), first.cmp(&second), "{txgs:?}");
            let engine = open_in(vec![dir.path().to_owned()]).await;
            make_whole(&engine).await;
            engine.export().await.unwrap();
            drop(engine);
            check_second(dir.path(), object).await;
        })
        .unwrap();
        judge(dir.path(), "tank");
    }
}
