//! Commands that change the pool beside a running sync, and beside each other: each takes effect
//! as a whole, or fails and leaves the pool as it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::ready;
use std::time::Duration;

use cenote_device::Device;
use cenote_engine::admin::PoolSetting;
use cenote_engine::{ApplyOptions, Engine, EngineError, LeafWorkError};
use cenote_ondisk::config::PoolState;
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_pool::OpenOptions;
use cenote_pool::import::Found;
use cenote_rt::seeded::Bug;
use cenote_rt::{BoxFuture, JoinHandle, Result, simulate, spawn};
use cenote_vdev::VdevState;

use crate::hooks::{at_stage, is_done};
use crate::pools::{self, as_devices};
use crate::scans::fails;
use crate::unplugged::Fixture;

/// Lets other tasks run until nothing more happens without the devices.
async fn settle() {
    for _ in 0..1000 {
        cenote_rt::sleep(Duration::from_micros(1)).await;
    }
}

fn comment(engine: &Arc<Engine>, text: &str) -> JoinHandle<Result<()>> {
    let (engine, comment) = (Arc::clone(engine), PoolSetting::Comment(Some(text.into())));
    spawn(async move { engine.admin().set(vec![comment]).await })
}

async fn close(engine: Arc<Engine>, state: PoolState) -> Result<()> {
    match state {
        PoolState::Destroyed => engine.destroy().await,
        _ => engine.export().await,
    }
}

/// Runs a future that makes no progress while `is_paused`: as if its thread got no processor.
async fn with_pauses<T>(is_paused: Arc<AtomicBool>, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut pause: Option<BoxFuture<'static, ()>> = None;
    std::future::poll_fn(|context| {
        while is_paused.load(Ordering::SeqCst) {
            let next = || Box::pin(cenote_rt::sleep(Duration::from_micros(1))) as BoxFuture<_>;
            ready!(pause.get_or_insert_with(next).as_mut().poll(context));
            pause = None;
        }
        future.as_mut().poll(context)
    })
    .await
}

/// Returns the state of the pool in the newest label of the first device.
async fn label_state(fixture: &Fixture) -> PoolState {
    let device = Arc::clone(&fixture.devices[0]) as Arc<dyn Device>;
    let found = Found::read(device).await.unwrap();
    let facts = found.configs.iter().filter_map(|config| Some(&config.member.as_ref()?.facts));
    facts.max_by_key(|facts| facts.txg).unwrap().state
}

/// Returns a mirror with changes in memory, and its only head and object. No sync of it changes
/// the config unless a command does.
async fn mirror() -> (Fixture, Arc<cenote_engine::Head>, u64) {
    let fixture = Fixture::new("mirror", 2, 2).await;
    let engine = &fixture.engine;
    let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    let object = pools::new_object(engine, &head).await.unwrap();
    for round in 0..4 {
        pools::write(engine, &head, object, round, round).await.unwrap();
        engine.sync().await.unwrap();
    }
    pools::write(engine, &head, object, 0, 9).await.unwrap();
    (fixture, head, object)
}

/// Begins to close the pool, and stops the close before its last sync while the sync of another
/// command flushes: between its last pass, which has written the config to the MOS, and its commit.
async fn close_beside_a_flush(
    fixture: &Fixture,
    state: PoolState,
) -> (JoinHandle<Result<()>>, JoinHandle<Result<()>>) {
    let (engine, bus) = (&fixture.engine, &fixture.bus);
    // The sync of the close flushes, and a command comes.
    at_stage("close-logs-frozen", {
        let bus = Arc::clone(bus);
        move || bus.hang_at_flush()
    });
    let is_paused = Arc::<AtomicBool>::default();
    let closing = spawn(with_pauses(Arc::clone(&is_paused), close(Arc::clone(engine), state)));
    bus.until_hung().await;
    is_paused.store(true, Ordering::SeqCst);
    let setting = comment(engine, "beside");
    settle().await;
    // The sync of the command follows immediately, and hangs at its first flush.
    at_stage("commit-uberblock", {
        let bus = Arc::clone(bus);
        move || bus.hang_at_flush()
    });
    bus.go_on();
    bus.until_hung().await;
    assert!(is_done());
    is_paused.store(false, Ordering::SeqCst);
    settle().await;
    (closing, setting)
}

#[test]
fn export_and_destroy_take_effect_beside_a_sync() {
    for state in [PoolState::Exported, PoolState::Destroyed] {
        simulate(1, async {
            let (fixture, ..) = mirror().await;
            let (closing, setting) = close_beside_a_flush(&fixture, state).await;
            fixture.bus.go_on();
            closing.await.unwrap().unwrap();
            setting.await.unwrap().unwrap();
            assert_eq!(label_state(&fixture).await, state);
        })
        .unwrap();
    }
}

/// Commands that change the config all the time, and a close among them.
#[test]
fn export_among_many_commands_takes_effect() {
    for seed in 0..cenote_testkit::rng::cases(6, 100) {
        simulate(seed, async {
            let (fixture, ..) = mirror().await;
            let engine = &fixture.engine;
            let setters: Vec<_> = (0..4)
                .map(|setter| {
                    let engine = Arc::clone(engine);
                    spawn(async move {
                        for round in 0.. {
                            let text = Some(format!("{setter} {round}"));
                            let set = engine.admin().set(vec![PoolSetting::Comment(text)]);
                            if let Err(error) = set.await {
                                return error;
                            }
                        }
                        unreachable!("endless");
                    })
                })
                .collect();
            for _ in 0..seed * 7 {
                cenote_rt::yield_now().await;
            }
            engine.export().await.unwrap();
            assert_eq!(label_state(&fixture).await, PoolState::Exported);
            for setter in setters {
                let error = setter.await.unwrap();
                let is_closed =
                    matches!(error.cause(), Some(EngineError::Closed | EngineError::Stopped(_)));
                assert!(is_closed, "{error}");
            }
        })
        .unwrap();
    }
}

/// The pool is suspended before the labels are marked: the export fails, and the pool stays active
/// after it is cleared.
#[test]
fn export_that_fails_leaves_the_pool_active() {
    simulate(1, async {
        let (fixture, head, object) = mirror().await;
        let engine = &fixture.engine;
        let (closing, setting) = close_beside_a_flush(&fixture, PoolState::Exported).await;
        fixture.bus.pull_out_after(0);
        fixture.bus.go_on();
        let error = closing.await.unwrap().unwrap_err();
        assert!(matches!(error.cause(), Some(EngineError::Suspended(_))), "{error}");
        fixture.put_back();
        engine.leaves().clear(None).await.unwrap();
        setting.await.unwrap().unwrap();
        pools::write(engine, &head, object, 1, 1).await.unwrap();
        engine.sync().await.unwrap();
        comment(engine, "later").await.unwrap().unwrap();
        assert_eq!(label_state(&fixture).await, PoolState::Active);
        engine.export().await.unwrap();
        assert_eq!(label_state(&fixture).await, PoolState::Exported);
    })
    .unwrap();
}

/// An export that fails because the pool is suspended does not end autotrim.
#[test]
fn autotrim_continues_after_a_failed_export() {
    simulate(1, async {
        let (fixture, head, object) = mirror().await;
        let engine = &fixture.engine;
        engine.admin().set(vec![PoolSetting::Property("autotrim", 1)]).await.unwrap();
        pools::write(engine, &head, object, 0, 5).await.unwrap();
        at_stage("close-logs-frozen", {
            let bus = Arc::clone(&fixture.bus);
            move || bus.pull_out_after(0)
        });
        let error = engine.export().await.unwrap_err();
        assert!(is_done() && matches!(error.cause(), Some(EngineError::Suspended(_))), "{error}");
        fixture.put_back();
        engine.leaves().clear(None).await.unwrap();
        let before = fixture.bus.discards();
        for round in 0..40 {
            for block in 0..8 {
                pools::write(engine, &head, object, block, round).await.unwrap();
            }
            engine.sync().await.unwrap();
            engine
                .apply(&head, ApplyOptions::new(), |tx| tx.free_range(object, 0, None))
                .await
                .unwrap();
            engine.sync().await.unwrap();
            settle().await;
        }
        assert!(fixture.bus.discards() > before, "nothing is trimmed");
        engine.export().await.unwrap();
    })
    .unwrap();
}

/// An `offline` that waits for a sync while an `online` of the same leaf begins: the tree and the
/// config agree afterwards.
#[test]
fn offline_beside_online_leaves_one_state() {
    for is_held in [false, true] {
        simulate(1, async {
            let (fixture, ..) = mirror().await;
            let engine = &fixture.engine;
            let leaf = engine.admin().vdev_config().leaves().next().unwrap().guid;
            engine.leaves().offline(leaf, false).await.unwrap();
            let own = Arc::clone(&fixture.devices[0]) as Arc<dyn Device>;
            // A sync is in flight, so that both commands wait for the next one.
            let running = {
                let engine = Arc::clone(engine);
                at_stage("commit-even-labels", {
                    let bus = Arc::clone(&fixture.bus);
                    move || bus.hang_at_flush()
                });
                comment(&engine, "held")
            };
            fixture.bus.until_hung().await;
            let offline = {
                let engine = Arc::clone(engine);
                spawn(async move { engine.leaves().offline(leaf, false).await })
            };
            settle().await;
            let online = {
                let engine = Arc::clone(engine);
                spawn(async move { engine.leaves().online(leaf, Some(own)).await })
            };
            if is_held {
                settle().await;
            }
            fixture.bus.go_on();
            for done in [running, offline, online] {
                done.await.unwrap().unwrap();
            }
            let is_offline = engine.tree().vdev(leaf).unwrap().state() == VdevState::Offline;
            let config = engine.admin().vdev_config();
            assert_eq!(config.find(leaf).unwrap().leaf.offline, is_offline, "held: {is_held}");
            engine.export().await.unwrap();
            let devices = as_devices(&fixture.devices);
            Engine::open_devices(devices, fixture.guid, &OpenOptions::default()).await.unwrap();
        })
        .unwrap();
    }
}

/// A leaf is detached by the sync in which an initialize of it was to begin: nothing is written to
/// the object that it had.
async fn work_on_a_detached_leaf() {
    let (fixture, ..) = mirror().await;
    let engine = &fixture.engine;
    let leaf = engine.leaves().data_guids()[1];
    // Both commands wait for the next sync, the detach first.
    fixture.bus.hang_at_flush();
    let setting = comment(engine, "before");
    fixture.bus.until_hung().await;
    let of_detach = Arc::clone(engine);
    let detaching = spawn(async move { of_detach.leaves().detach(leaf, None).await });
    settle().await;
    let of_work = Arc::clone(engine);
    let begun = spawn(async move { of_work.leaves().start_initialize(&[leaf]).await });
    settle().await;
    fixture.bus.go_on();
    setting.await.unwrap().unwrap();
    detaching.await.unwrap().unwrap();
    let gone = Some(LeafWorkError::NoDevice(leaf));
    assert_eq!(begun.await.unwrap().unwrap_err().cause().copied(), gone);
    let state = engine.leaves().work_state(leaf, LeafWorkKind::Initialize).await;
    assert_eq!(state.unwrap_err().cause().copied(), gone);
    engine.export().await.unwrap();
}

#[test]
fn work_does_not_begin_on_a_detached_leaf() {
    simulate(1, work_on_a_detached_leaf()).unwrap();
}

#[test]
fn mistakes_are_found() {
    let found = |bug| fails(bug, work_on_a_detached_leaf());
    assert!(Bug::OF_RACES.into_iter().all(found));
}
