//! Scrubs and resilvers that another program left running (spec 04 §21): the pool is opened for
//! writing, and datasets change only after the scan is cancelled, which is reported in all ways.
//! Dirty time logs stay.

use std::path::Path;

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_engine::{Engine, Event, Notice, PoolEvent};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::scan::{SCAN, ScanFunc, ScanPhys, ScanState};
use cenote_ondisk::zap::Value;
use cenote_pool::history::HistoryEvent;
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, TestPool};
use cenote_rt::{Result, block_on};
use cenote_testkit::golden::{PrivateFolder, golden};

use crate::memory::MemoryPool;

const SCAN_QUEUE: ObjectType = ObjectType(38);

/// Records a running scan.
fn begin(tx: &mut Tx<'_>, func: ScanFunc) -> TxResult<()> {
    let mut scan = ScanPhys::decode(&[0; 24]).unwrap();
    let spec = ObjectSpec::new(SCAN_QUEUE, 0);
    scan.queue_obj = zap::create(tx, &spec, zap::ZapOptions::default())?;
    (scan.func, scan.state) = (func, ScanState::Scanning);
    zap::update(tx, 1, SCAN, Value::words_of(&scan.encode()))
}

fn scan_of(pool: &Pool) -> ScanPhys {
    ScanPhys::decode(&pool.directory_value(SCAN).unwrap().words()).unwrap()
}

/// Whether the pool has reported that a scan was cancelled.
fn is_told(engine: &Engine) -> bool {
    let events = engine.health().events().after(0);
    events.iter().any(|noted| noted.event == Event::Pool(PoolEvent::ScanCancelled))
}

#[test]
fn scan_is_cancelled_by_dataset_changes() {
    block_on(2, async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        pool.engine.tamper(|tx| begin(tx, ScanFunc::Scrub)).await.unwrap();
        pool.create("tank/b").await;
        assert!(
            pool.engine.health().take_notices().is_empty(),
            "a new dataset is in no scan's way"
        );
        pool.snap("tank/a@s").await;
        let notices = pool.engine.health().take_notices();
        assert!(matches!(notices[..], [Notice::ScanCancelled { .. }]), "{notices:?}");
        let reader = pool.reader().await;
        let scan = scan_of(&reader);
        assert_eq!((scan.state, scan.queue_obj), (ScanState::Canceled, 0));
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
}

/// Returns the scan and the DTLs as shown by OpenZFS.
fn shown(folder: &Path, name: &str) -> Option<(String, Vec<String>)> {
    let said = cenote_oracle::zdb()?.pool(name, folder, &["-dddd"]);
    assert!(said.is_success(), "{said}");
    let lines = || said.stdout.lines().map(str::trim);
    let scan = lines().find_map(|line| line.strip_prefix("scan = ")).expect("a scan").to_owned();
    let outages = lines().filter(|line| line.starts_with("outage ")).map(str::to_owned);
    Some((scan, outages.collect()))
}

/// Opens the pool, changes datasets, and checks the scan.
async fn change(folder: &Path, name: &str) -> Result<()> {
    let scan = scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await?;
    let candidate = scan.find(name).expect("the pool is in its folder");
    let engine = Engine::open(candidate, &OpenOptions::default()).await?;
    engine.datasets().create(pools::dataset(&format!("{name}/new"))).await?;
    let view = engine.view().await?;
    let before = scan_of(&view);
    assert_eq!((before.func, before.state), (ScanFunc::Resilver, ScanState::Scanning));
    assert!(engine.health().take_notices().is_empty() && !is_told(&engine));
    engine.snapshots().create(vec![format!("{name}/new@s")]).await?;
    let notices = engine.health().take_notices();
    assert!(matches!(notices[..], [Notice::ScanCancelled { .. }]), "{notices:?}");
    assert!(is_told(&engine));
    // A later change does not repeat it.
    engine.snapshots().destroy(&format!("{name}/new@s")).await?;
    assert!(engine.health().take_notices().is_empty());
    let pool = engine.view().await?;
    assert_eq!(
        scan_of(&pool),
        ScanPhys {
            state: ScanState::Canceled,
            queue_obj: 0,
            end_time: scan_of(&pool).end_time,
            ..before
        }
    );
    let history = pool.history().await?;
    let is_scan = |event: &HistoryEvent| matches!(event, HistoryEvent::Internal { name, .. } if name == "scan cancelled");
    let told = history.records.iter().filter(|record| is_scan(&record.event));
    assert_eq!(told.count(), 1);
    engine.export().await
}

/// Checks a pool with a running resilver, before and after.
fn check(folder: &Path, name: &str) {
    let before = shown(folder, name);
    block_on(2, change(folder, name)).unwrap().unwrap();
    pools::judge(folder, name);
    let (Some((scan, outages)), Some((after, outages_after))) = (before, shown(folder, name))
    else {
        return;
    };
    assert!(scan.starts_with("2 1 ") && !scan.starts_with("2 1 0 "), "{scan}");
    assert!(after.starts_with("2 3 0 "), "{after}");
    assert!(!outages.is_empty());
    assert_eq!(outages_after, outages);
}

#[test]
fn dirty_time_logs_survive_a_cancelled_resilver() {
    let dir = PrivateFolder::create("pool");
    let pool =
        TestPool::new(dir.path(), PoolBuilder::of("mirror", 2).with_name("t").with_size(128 << 20));
    let lack = async {
        let engine = pool.create().await?;
        let head = engine.datasets().create(pools::dataset("t/a")).await?;
        let object = pools::new_object(&engine, &head).await?;
        let leaf = engine.admin().vdev_config().leaves().nth(1).unwrap().guid;
        engine.leaves().offline(leaf, true).await?;
        for block in 0..8 {
            pools::write(&engine, &head, object, block, 1).await?;
            engine.sync().await?;
        }
        engine.leaves().online(leaf, None).await?;
        engine.tamper(|tx| begin(tx, ScanFunc::Resilver)).await?;
        engine.export().await
    };
    block_on(2, lack).unwrap().unwrap();
    check(dir.path(), "t");
}

/// A pool that OpenZFS left while it replaced a device.
#[test]
fn resilver_of_openzfs_is_cancelled() {
    let Some(golden) = golden("g-scan") else { return };
    let copy = golden.private_copy();
    check(copy.path(), "g-scan");
}
