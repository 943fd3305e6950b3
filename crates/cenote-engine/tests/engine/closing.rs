//! Closed pools: remaining views, heads and engines access no device, the devices are unlocked
//! immediately, and a close by force ends whatever the devices do.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, FileDevice, OpenMode, create_file};
use cenote_engine::{Engine, EngineError, Head, Notice};
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, judge};
use cenote_rt::seeded::Bug;
use cenote_rt::{BoxFuture, Buf, BufMut, Kind, Notify, Result, block_on, spawn, tunables};
use cenote_testkit::bugs;
use cenote_testkit::golden::PrivateFolder;

use crate::unplugged::Fixture;

const SIZE: u64 = 64 << 20;
const BLOCKS: u64 = 16;

/// A file whose reads can be blocked.
#[derive(Debug)]
struct Holding {
    file: Arc<dyn Device>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    is_shut: AtomicBool,
    waiting: AtomicUsize,
    opened: Notify,
}

impl Gate {
    fn open(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
        self.opened.notify_waiters();
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let opened = self.opened.notified();
            if !self.is_shut.load(Ordering::SeqCst) {
                break;
            }
            opened.await;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until a read is blocked.
    async fn until_waiting(&self) {
        for _ in 0..10_000 {
            if self.waiting.load(Ordering::SeqCst) > 0 {
                return;
            }
            cenote_rt::sleep(Duration::from_millis(1)).await;
        }
        panic!("no read reaches the devices");
    }
}

impl Device for Holding {
    fn info(&self) -> &DeviceInfo {
        self.file.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            self.gate.pass().await;
            self.file.read(offset, buf).await
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        self.file.write(offset, parts)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.file.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        self.file.discard(offset, len)
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        self.file.settle()
    }
}

/// A mirror of two files, one dataset with one object, and a slow reader.
struct Shared {
    dir: PrivateFolder,
    gate: Arc<Gate>,
    engine: Arc<Engine>,
    head: Arc<Head>,
    object: u64,
}

impl Shared {
    async fn new() -> Self {
        let dir = PrivateFolder::create("pool");
        let gate = Arc::<Gate>::default();
        for path in paths(dir.path()) {
            create_file(path, SIZE).unwrap();
        }
        let devices = devices(dir.path(), &gate);
        let engine = PoolBuilder::of("mirror", 2).create(devices).await.unwrap();
        let guid = engine.guid();
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let object = pools::new_object(&engine, &head).await.unwrap();
        for block in 0..BLOCKS {
            pools::write(&engine, &head, object, block, 1).await.unwrap();
        }
        engine.export().await.unwrap();
        // With an empty cache.
        let (devices, options) = (self::devices(dir.path(), &gate), OpenOptions::default());
        let engine = Engine::open_devices(devices, guid, &options).await.unwrap();
        let head = engine.head("tank/a").await.unwrap();
        Self { dir, gate, engine, head, object }
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        paths(self.dir.path()).iter().map(|path| std::fs::read(path).unwrap()).collect()
    }

    /// Opens the pool like another program: its locks are those of other descriptors.
    async fn open_again(&self) -> Result<Arc<Engine>> {
        let found = scan(&ScanOptions { paths: paths(self.dir.path()).to_vec() }).await.unwrap();
        let candidate = found.find("tank").unwrap();
        let options = OpenOptions { destroyed_ok: true, ..OpenOptions::default() };
        Engine::open(candidate, &options).await
    }
}

/// Returns the devices, locked.
fn devices(dir: &Path, gate: &Arc<Gate>) -> Vec<Arc<dyn Device>> {
    let open = |path: &PathBuf| {
        let file = FileDevice::open(path, OpenMode::Exclusive).unwrap();
        Arc::new(Holding { file, gate: Arc::clone(gate) }) as Arc<dyn Device>
    };
    paths(dir).iter().map(open).collect()
}

fn paths(dir: &Path) -> [PathBuf; 2] {
    ["d0.img", "d1.img"].map(|name| dir.join(name))
}

async fn read(view: &Arc<Pool>, object: u64, block: u64) -> Result<()> {
    let objset = view.dataset("tank/a").await?.open().await?;
    objset.dnode(object).await?.read_at(block << 17, 4096).await.map(drop)
}

/// Closes a pool by `how` while a view is held, with a slow read through it in flight.
async fn closes_for_everybody(how: PoolEnd) {
    let shared = Shared::new().await;
    let Shared { engine, head, object, gate, .. } = &shared;
    let view = engine.view().await.unwrap();
    read(&view, *object, 0).await.unwrap();
    gate.is_shut.store(true, Ordering::SeqCst);
    let slow = {
        let (view, object) = (Arc::clone(&view), *object);
        spawn(async move { read(&view, object, BLOCKS - 1).await })
    };
    gate.until_waiting().await;
    // The commit of an export also reads: it is let through, and so is the read of the view, which
    // the export must wait for.
    let opener = {
        let gate = Arc::clone(gate);
        spawn(async move {
            cenote_rt::sleep(Duration::from_millis(50)).await;
            gate.open();
        })
    };
    match how {
        PoolEnd::Export => engine.export().await.unwrap(),
        PoolEnd::Destroy => engine.destroy().await.unwrap(),
        PoolEnd::Rest => engine.detach_and_keep_active().await.map(drop).unwrap(),
    }
    let after = shared.contents();
    // Immediately, and while everything of the old import still exists.
    let other = shared.open_again().await.unwrap_or_else(|error| panic!("{how:?}: {error}"));
    opener.await.unwrap();
    drop(slow.await.unwrap());
    for block in 1..BLOCKS - 1 {
        let error = read(&view, *object, block).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Closed, "{how:?}: {error}");
    }
    let error = pools::write(engine, head, *object, 0, 2).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Closed, "{how:?}: {error}");
    assert_eq!(error.cause(), Some(&EngineError::Closed));
    for (_, leaf) in engine.tree().leaves() {
        let stats = leaf.stats();
        let errors = [stats.read_errors, stats.write_errors, stats.checksum_errors];
        assert_eq!(errors, [0; 3], "{how:?}");
    }
    other.detach_and_keep_active().await.unwrap();
    if matches!(how, PoolEnd::Export) {
        assert_ne!(shared.contents(), after, "the other one has it");
    }
    let settled = shared.contents();
    let _ = read(&view, *object, 3).await;
    drop((view, other));
    assert_eq!(shared.contents(), settled, "{how:?}: written after it was closed");
    judge(shared.dir.path(), "tank");
}

#[derive(Debug, Clone, Copy)]
enum PoolEnd {
    Export,
    Destroy,
    Rest,
}

#[test]
fn export_closes_devices_despite_views() {
    bugs::switch_on(&Bug::OF_CLOSING);
    for how in [PoolEnd::Export, PoolEnd::Destroy, PoolEnd::Rest] {
        block_on(2, closes_for_everybody(how)).unwrap();
    }
}

/// Tests that the previous test finds a seeded bug.
#[test]
fn seeded_bug_missing_revocation_is_found() {
    bugs::check_found(
        &Bug::OF_CLOSING,
        "in use by another",
        |_| "closing::export_closes_devices_despite_views",
    );
}

/// Tasks that wait for a pool that is closed by force.
fn waiters(
    engine: &Arc<Engine>,
    head: &Arc<Head>,
    object: u64,
) -> Vec<(&'static str, cenote_rt::JoinHandle<Result<()>>)> {
    let clone = || (Arc::clone(engine), Arc::clone(head));
    let (writer, of_writer) = clone();
    let (committer, of_committer) = clone();
    let (administrator, exporter) = (Arc::clone(engine), Arc::clone(engine));
    let syncer = Arc::clone(engine);
    vec![
        ("write", spawn(async move { pools::write(&writer, &of_writer, object, 1, 9).await })),
        (
            "fsync",
            spawn(async move {
                committer.intent_logs().commit(&of_committer, Some(object)).await.map(drop)?;
                committer.sync().await.map(drop)
            }),
        ),
        (
            "create",
            spawn(async move {
                administrator.datasets().create(pools::dataset("tank/b")).await.map(drop)
            }),
        ),
        ("sync", spawn(async move { syncer.sync().await.map(drop) })),
        ("export", spawn(async move { exporter.export().await })),
    ]
}

/// Every waiting task soon gets an error.
async fn all_end(waiters: Vec<(&'static str, cenote_rt::JoinHandle<Result<()>>)>) {
    for (name, waiter) in waiters {
        let ended = cenote_rt::until(Duration::from_secs(20), waiter).await;
        let ended = ended.unwrap_or_else(|| panic!("{name} waits for ever")).unwrap();
        ended.expect_err(name);
    }
}

/// Removed devices, and hanging devices: the same results.
async fn is_given_up(hangs: bool) {
    let fixture = Fixture::new("mirror", 2, 2).await;
    let engine = &fixture.engine;
    let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    let object = pools::new_object(engine, &head).await.unwrap();
    pools::write(engine, &head, object, 0, 1).await.unwrap();
    let kept = engine.sync().await.unwrap();
    for block in 0..4 {
        pools::write(engine, &head, object, block, 2).await.unwrap();
    }
    let dirty = engine.dirty_bytes();
    if hangs {
        fixture.bus.hang_at_flush();
    } else {
        fixture.bus.pull_out_after(0);
    }
    let stuck = {
        let engine = Arc::clone(engine);
        spawn(async move { engine.sync().await })
    };
    if !hangs {
        engine.health().until_suspended().await;
        let error = engine.export().await.unwrap_err();
        assert!(matches!(error.cause(), Some(EngineError::Suspended(_))), "{error}");
        assert!(!engine.tree().is_closed());
    }
    engine.health().until_stuck().await;
    let mut waiters = waiters(engine, &head, object);
    if hangs {
        // A pool that is not suspended accepts changes into memory.
        waiters.retain(|(name, _)| *name != "write");
    }
    cenote_rt::sleep(Duration::from_millis(20)).await;
    let ended = engine.close_by_force().await;
    let lost = ended.unwritten.expect("changes were in memory");
    assert!(lost.first_txg == kept + 1 && lost.bytes >= dirty, "{lost:?}, {dirty}");
    assert_eq!(ended.silent.len(), if hangs { 2 } else { 0 }, "{:?}", ended.silent);
    assert!(engine.health().take_notices().contains(&Notice::NotWritten(lost)));
    stuck.await.unwrap().expect_err("given up");
    all_end(waiters).await;
    // Later requests are refused, and a second close changes nothing.
    assert!(engine.close_by_force().await.silent.is_empty());
    assert_eq!(engine.sync().await.unwrap_err().kind(), Kind::Closed);
    // It waits without keeping a thread busy.
    let again = cenote_rt::until(Duration::from_millis(50), engine.health().until_stuck());
    assert_eq!(again.await, None, "a closed pool is not stuck");

    if hangs {
        fixture.bus.go_on();
    }
    fixture.put_back();
    let Fixture { devices, guid, .. } = &fixture;
    let devices = pools::as_devices(devices);
    let engine = Engine::open_devices(devices, *guid, &OpenOptions::default()).await.unwrap();
    assert!(engine.uberblock().txg >= kept);
    engine.export().await.unwrap();
    crate::unplugged::judge(&fixture.devices);
}

#[test]
fn close_by_force_works_on_failing_and_hanging_devices() {
    tunables::CLOSE_TIMEOUT_MS.set(300).unwrap();
    tunables::CLOSE_STALL_MS.set(600).unwrap();
    for hangs in [false, true] {
        block_on(2, is_given_up(hangs)).unwrap();
    }
    block_on(2, is_given_up_while_others_answer()).unwrap();
}

/// One side of a mirror hangs in a read, and the other one continues to answer reads.
async fn is_given_up_while_others_answer() {
    let shared = Shared::new().await;
    let tree = Arc::clone(shared.engine.tree());
    let leaves: Vec<_> = tree.leaves().filter_map(|(_, leaf)| leaf.device()).collect();
    shared.gate.is_shut.store(true, Ordering::SeqCst);
    let hanging = Arc::clone(&leaves[0]);
    let stuck = spawn(async move { hanging.read(0, BufMut::zeroed(512)).await.map(drop) });
    shared.gate.until_waiting().await;
    let ended = Arc::new(AtomicBool::new(false));
    let answering = {
        let (device, ended) = (Arc::clone(&leaves[1]), Arc::clone(&ended));
        spawn(async move {
            let mut count = 0;
            while !ended.load(Ordering::SeqCst) {
                device.flush().await.unwrap();
                count += 1;
                cenote_rt::sleep(Duration::from_millis(5)).await;
            }
            count
        })
    };
    let found =
        cenote_rt::until(Duration::from_secs(20), shared.engine.health().until_stuck()).await;
    assert_eq!(found, Some(()), "a leaf that hangs is not noticed beside one that answers");
    ended.store(true, Ordering::SeqCst);
    assert!(answering.await.unwrap() > 0);
    assert_eq!(shared.engine.close_by_force().await.silent.len(), 1);
    stuck.await.unwrap().expect_err("cut off");
    shared.gate.open();
}
