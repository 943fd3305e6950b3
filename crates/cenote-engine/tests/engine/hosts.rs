//! A pool with other hosts, and rewinding it for good.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Tx;
use cenote_engine::admin::PoolSetting;
use cenote_engine::zil::LogRecord;
use cenote_engine::{ApplyOptions, Engine, EngineError, Suspended};
use cenote_pool::import::{Host, scan_devices};
use cenote_pool::{OpenError, OpenOptions, Pool};
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::{block_on, simulate, sleep, tunables, until};

use crate::unplugged::{Fixture, judge};

/// An import by another host.
async fn take(fixture: &Fixture) -> cenote_rt::Result<()> {
    let host = Host { hostid: 8, hostname: "other".into() };
    let options = OpenOptions { host: Some(host), force: true, ..OpenOptions::default() };
    let scan = scan_devices(as_devices(&fixture.devices)).await;
    Pool::open(scan.find("tank").unwrap(), &options).await.map(drop)
}

#[test]
fn multihost_import_refuses_a_pool_in_use() {
    tunables::MULTIHOST_INTERVAL.set(100).unwrap();
    block_on(2, async {
        let fixture = Fixture::new("mirror", 2, 2).await;
        let engine = &fixture.engine;
        take(&fixture).await.expect("nobody says that it is in use");
        engine.admin().set(vec![PoolSetting::Property("multihost", 1)]).await.unwrap();
        sleep(Duration::from_millis(300)).await;
        let error = take(&fixture).await.unwrap_err();
        assert!(matches!(error.cause(), Some(OpenError::ActiveElsewhere)), "{error}");
        // Between two commands no process has it, but it stays in use.
        engine.detach_and_keep_active().await.unwrap();
        take(&fixture).await.expect("nothing is promised any more");
        let devices = as_devices(&fixture.devices);
        let engine = Engine::open_devices(devices, fixture.guid, &OpenOptions::default()).await;
        engine.unwrap().export().await.unwrap();
        judge(&fixture.devices);

        let options = OpenOptions {
            host: Some(Host { hostid: 0, hostname: String::new() }),
            force: true,
            ..OpenOptions::default()
        };
        let devices = as_devices(&fixture.devices);
        let error = Engine::open_devices(devices, fixture.guid, &options).await.unwrap_err();
        assert!(matches!(error.cause(), Some(OpenError::NoHostId)), "{error}");

        // Another import writes heartbeats, until its devices are gone for too long.
        let devices = as_devices(&fixture.devices);
        let options = OpenOptions::default();
        let engine = Engine::open_devices(devices, fixture.guid, &options).await.unwrap();
        assert!(take(&fixture).await.is_err());
        fixture.bus.pull_out_after(0);
        let suspended = engine.health().until_suspended().await;
        assert!(matches!(suspended, Suspended::Multihost(_)), "{suspended}");
        fixture.put_back();
        let error = engine.leaves().clear(None).await.unwrap_err();
        assert!(matches!(error.cause(), Some(EngineError::Suspended(_))), "{error}");
        engine.close_by_force().await;
    })
    .unwrap();
}

/// After a hang of all devices, another host may have imported the pool: late writes must not
/// commit.
#[test]
fn multihost_suspends_a_host_that_hung() {
    tunables::MULTIHOST_INTERVAL.set(100).unwrap();
    block_on(2, async {
        let fixture = Fixture::new("mirror", 2, 2).await;
        let engine = &fixture.engine;
        engine.admin().set(vec![PoolSetting::Property("multihost", 1)]).await.unwrap();
        let kept = engine.uberblock().txg;
        fixture.bus.hang_at_flush();
        let sync = {
            let engine = Arc::clone(engine);
            let comment = PoolSetting::Comment(Some("late".into()));
            cenote_rt::spawn(async move { engine.admin().set(vec![comment]).await })
        };
        let cause = until(Duration::from_secs(20), engine.health().until_suspended()).await;
        assert!(matches!(cause, Some(Suspended::Multihost(_))), "{cause:?}");
        fixture.bus.go_on();
        sleep(Duration::from_millis(500)).await;
        // A late heartbeat changes nothing.
        let error = engine.leaves().clear(None).await.unwrap_err();
        assert!(matches!(error.cause(), Some(EngineError::Suspended(_))), "{error}");
        assert!(!sync.is_finished());
        let scan = scan_devices(as_devices(&fixture.devices)).await;
        let newest = scan.find("tank").unwrap().uberblocks().iter().map(|found| found.txg).max();
        assert_eq!(newest, Some(kept), "written without heartbeats");
        engine.close_by_force().await;
        sync.await.unwrap().unwrap_err();
    })
    .unwrap();
}

#[test]
fn multihost_needs_a_hostid() {
    tunables::MULTIHOST_INTERVAL.set(100).unwrap();
    block_on(2, async {
        let fixture = Fixture::new("mirror", 2, 2).await;
        let engine = &fixture.engine;
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let object = pools::new_object(engine, &head).await.unwrap();
        // A log that the next import claims: its first commit is a sync.
        for round in 0..2 {
            let write = |tx: &mut Tx<'_>| {
                tx.write(object, 0, &[round; 4096])?;
                let record = LogRecord::write_later(object, 0, 4096);
                Ok(((), head.log().append(tx, vec![record])?))
            };
            engine.apply(&head, ApplyOptions::new().logged(), write).await.unwrap();
            engine.intent_logs().commit(&head, Some(object)).await.unwrap();
        }
        engine.admin().set(vec![PoolSetting::Property("multihost", 1)]).await.unwrap();
        engine.detach_and_keep_active().await.unwrap();
        let Fixture { bus, devices, guid, engine } = fixture;
        drop((engine, head));

        let nobody = Host { hostid: 0, hostname: String::new() };
        let options = OpenOptions { host: Some(nobody), force: true, ..OpenOptions::default() };
        let before = bus.writes();
        let error = Engine::open_devices(as_devices(&devices), guid, &options).await.unwrap_err();
        assert!(matches!(error.cause(), Some(OpenError::NoHostId)), "{error}");
        assert_eq!(bus.writes(), before);
    })
    .unwrap();
}

#[test]
fn import_f_rewinds_permanently() {
    simulate(1, async {
        let fixture = Fixture::new("disk", 1, 1).await;
        let engine = &fixture.engine;
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let object = pools::new_object(engine, &head).await.unwrap();
        pools::write(engine, &head, object, 0, 2).await.unwrap();
        let kept = engine.sync().await.unwrap();
        engine.datasets().create(pools::dataset("tank/b")).await.unwrap();
        let newest = engine.uberblock().txg;
        assert!(newest > kept);
        let Fixture { devices, guid, engine, .. } = fixture;
        drop((engine, head));

        let options = OpenOptions { txg: Some(kept), ..OpenOptions::default() };
        let engine = Engine::open_devices(as_devices(&devices), guid, &options).await.unwrap();
        assert!(engine.sync().await.unwrap() > newest, "what was given up stays so");
        assert!(engine.head("tank/b").await.is_err());
        let head = engine.head("tank/a").await.unwrap();
        pools::write(&engine, &head, object, 1, 2).await.unwrap();
        engine.datasets().create(pools::dataset("tank/c")).await.unwrap();
        engine.export().await.unwrap();
        drop((engine, head));

        let pool = pools::open_read_only(as_devices(&devices)).await.unwrap();
        assert!(pool.dataset("tank/c").await.is_ok() && pool.dataset("tank/b").await.is_err());
        pools::assert_no_leaks(&pool).await;
        judge(&devices);
    })
    .unwrap();
}
