//! Leaves with too many errors, slow and hanging I/O: states, configs and events, in virtual time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use cenote_device::ImageDevice;
use cenote_engine::{
    Attach, Engine, Event, FaultEffect, FaultSpec, Faults, Head, IoKind, ScrubOptions, StateCause,
    Symptom,
};
use cenote_ondisk::scan::ScanFunc;
use cenote_ondisk::zap::Value;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices, judge_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{World, monotonic, simulate, sleep, tunables};
use cenote_vdev::{LeafStats, VdevAux, VdevState};

use crate::shapes::{leaf_on, new_device};

const BLOCKS: u64 = 24;

/// A pool with one file.
struct Fixture {
    engine: Arc<Engine>,
    devices: Vec<Arc<ImageDevice>>,
    head: Arc<Head>,
    object: u64,
}

impl Fixture {
    async fn new(layout: &str, count: usize) -> Self {
        let builder = PoolBuilder::of(layout, count).with_size(96 << 20);
        let (engine, devices) = builder.create_in_memory().await;
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let object = pools::new_object(&engine, &head).await.unwrap();
        let pool = Self { engine, devices, head, object };
        pool.write(1).await;
        pool
    }

    /// Writes all blocks, and syncs.
    async fn write(&self, salt: u64) {
        for block in 0..BLOCKS {
            pools::write(&self.engine, &self.head, self.object, block, salt).await.unwrap();
        }
        self.engine.sync().await.unwrap();
    }

    /// Reads all blocks from the devices.
    async fn read(&self) {
        self.engine.store().set_cache_capacity(0);
        for block in 0..BLOCKS {
            let object = self.object;
            let read = self.head.live().inspect(move |tx| tx.read(object, block << 17, 64 << 10));
            read.await.unwrap();
        }
        self.engine.retune();
    }

    fn guid(&self, index: usize) -> u64 {
        self.engine.admin().vdev_config().leaves().nth(index).unwrap().guid
    }

    fn inject(&self, index: usize, kind: Option<IoKind>, effect: FaultEffect) {
        let spec = FaultSpec { kind, effect, frequency_ppm: 0 };
        Faults::of(self.engine.tree()).inject(self.guid(index), spec).unwrap();
    }

    fn cancel_all(&self) {
        for injection in Faults::of(self.engine.tree()).injections() {
            assert!(Faults::of(self.engine.tree()).cancel(injection.id));
        }
    }

    fn status(&self, index: usize) -> (VdevState, VdevAux) {
        let vdev = self.engine.tree().vdev(self.guid(index)).unwrap();
        (vdev.state(), vdev.aux())
    }

    /// Returns whether the config has the leaf as faulted, as degraded, and why.
    fn recorded(&self, index: usize) -> (bool, bool, Option<&'static str>) {
        let config = self.engine.admin().vdev_config();
        let leaf = &config.leaves().nth(index).unwrap().leaf;
        let cause = leaf.aux_state.as_deref().map(|cause| match cause {
            "err_exceeded" => "err_exceeded",
            _ => "another",
        });
        (leaf.faulted, leaf.degraded, cause)
    }

    fn stats(&self, index: usize) -> LeafStats {
        let id = self.engine.tree().leaf_of(self.guid(index)).unwrap();
        self.engine.tree().leaf(id).stats()
    }

    fn events(&self) -> Vec<Event> {
        let events = self.engine.health().events().after(0);
        events.into_iter().map(|noted| noted.event).collect()
    }

    fn has_diagnosis(&self, index: usize, state: VdevState, symptom: Symptom) -> bool {
        let cause = StateCause::Diagnosis(symptom);
        let (guid, because) = (self.guid(index), cause);
        self.events().iter().any(|event| {
            matches!(event, Event::State { leaf, state: now, cause, .. }
                if (*leaf, *now, *cause) == (guid, state, because))
        })
    }

    async fn finish(self) {
        let Self { engine, devices, head, .. } = self;
        drop(head);
        engine.export().await.unwrap();
        let pool = pools::open_read_only(as_devices(&devices)).await.unwrap();
        pools::assert_no_leaks(&pool).await;
        drop(pool);
        judge_devices(&devices, "after faults", &[]);
    }
}

const WELL: (VdevState, VdevAux) = (VdevState::Healthy, VdevAux::None);
const DEGRADED: (VdevState, VdevAux) = (VdevState::Degraded, VdevAux::ErrExceeded);
const FAULTED: (VdevState, VdevAux) = (VdevState::Faulted, VdevAux::ErrExceeded);

const ERR_EXCEEDED: Option<&str> = Some("err_exceeded");

#[test]
fn failed_ios_fault_a_leaf_until_it_is_cleared() {
    let done = simulate(1, async {
        for (layout, count) in [("mirror", 2), ("raidz2", 4)] {
            let pool = Fixture::new(layout, count).await;
            pool.inject(0, Some(IoKind::Write), FaultEffect::Fail);
            pool.write(2).await;
            pool.engine.sync().await.unwrap();
            assert_eq!(pool.status(0), FAULTED, "{layout}");
            assert_eq!(pool.recorded(0), (true, false, ERR_EXCEEDED));
            assert!(pool.has_diagnosis(0, VdevState::Faulted, Symptom::Io));
            assert_eq!(pool.engine.tree().root().state(), VdevState::Degraded);
            let errors = pool.stats(0).write_errors;
            assert!(errors >= 10, "{errors}");
            // It gets no I/O any more.
            pool.write(3).await;
            assert_eq!(pool.stats(0).write_errors, errors);
            pool.cancel_all();
            pool.engine.leaves().clear(None).await.unwrap();
            assert_eq!((pool.status(0), pool.recorded(0)), (WELL, (false, false, None)));
            assert_eq!(pool.stats(0).write_errors, 0);
            pool.engine.scans().resume().await.unwrap();
            pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
            pool.read().await;
            assert_eq!(pool.stats(0).checksum_errors, 0);
            pool.finish().await;
        }
    });
    done.unwrap();
}

/// A scrub that finds wrong bytes leaves the state of the leaf alone; other reads do not.
async fn wrong_bytes() {
    let pool = Fixture::new("raidz1", 3).await;
    pool.inject(1, Some(IoKind::Read), FaultEffect::Corrupt);
    let (guid, value) = (pool.guid(1), Some(Value::U64(3)));
    pool.engine.admin().set_vdev_property(guid, "checksum_n", value).await.unwrap();
    // A scrub reads many blocks at a time, so one scrub meets few wrong bits.
    for _ in 0..40 {
        pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
        pool.engine.scans().wait(ScanFunc::Scrub).await.unwrap();
    }
    assert!(pool.stats(1).checksum_errors >= 10, "{}", pool.stats(1).checksum_errors);
    pool.engine.sync().await.unwrap();
    assert_eq!(pool.status(1), WELL);
    pool.read().await;
    pool.engine.sync().await.unwrap();
    assert_eq!(pool.status(1), DEGRADED);
    assert_eq!(pool.recorded(1), (false, true, ERR_EXCEEDED));
    assert!(pool.has_diagnosis(1, VdevState::Degraded, Symptom::Checksum));
    pool.cancel_all();
    // The leaf is still written.
    pool.write(2).await;
    assert_eq!(pool.stats(1).write_errors, 0);
    pool.engine.leaves().clear(Some(pool.guid(1))).await.unwrap();
    assert_eq!((pool.status(1), pool.recorded(1)), (WELL, (false, false, None)));
    pool.finish().await;
}

/// Faulting a leaf that has the only copy of some data only degrades it.
async fn last_replica() {
    let pool = Fixture::new("mirror", 2).await;
    pool.engine.leaves().offline(pool.guid(1), false).await.unwrap();
    pool.write(2).await;
    let state = pool.engine.leaves().set_failing(pool.guid(0), true).await.unwrap();
    assert_eq!(state, VdevState::Degraded);
    assert_eq!((pool.status(0), pool.recorded(0)), (DEGRADED, (false, true, ERR_EXCEEDED)));
    pool.write(3).await;
    pool.read().await;
    pool.engine.leaves().online(pool.guid(1), None).await.unwrap();
    pool.engine.scans().resume().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    let state = pool.engine.leaves().set_failing(pool.guid(0), true).await.unwrap();
    assert_eq!(state, VdevState::Faulted);
    pool.read().await;
    pool.engine.leaves().clear(None).await.unwrap();
    assert_eq!(pool.status(0), WELL);
    pool.finish().await;
}

/// Returns the states of leaves that are faulted one after the other.
async fn states_after_faults(parity: usize, is_replacing: bool) -> Vec<VdevState> {
    let pool = Fixture::new(&format!("raidz{parity}"), 6).await;
    if is_replacing {
        let new = leaf_on(&new_device());
        pool.engine.leaves().attach(pool.guid(5), new, Attach::Replace).await.unwrap();
    }
    for index in 0..4 {
        pool.engine.leaves().fault(pool.guid(index), false).await.unwrap();
    }
    pool.read().await;
    for index in 0..4 {
        let (state, record) = (pool.status(index).0, pool.recorded(index));
        let is_faulted = state == VdevState::Faulted;
        assert_eq!((record.0, record.1), (is_faulted, !is_faulted));
    }
    (0..4).map(|index| pool.status(index).0).collect()
}

/// As the kernel module of OpenZFS 2.3.2 was seen to do it: leaves are faulted as long as the
/// parity can stand it, and others are degraded. A child that is being replaced counts as a fault.
#[test]
fn a_replacement_counts_as_a_fault_below_raidz() {
    let tunables = vec![(&tunables::SCAN_SUSPEND_PROGRESS, 1)];
    simulate(World { tunables, ..World::new(1) }, async {
        for parity in 1..=3 {
            for (is_replacing, count) in [(false, parity), (true, parity - 1)] {
                let mut want = [VdevState::Degraded; 4];
                want[..count].fill(VdevState::Faulted);
                let found = states_after_faults(parity, is_replacing).await;
                assert_eq!(found, want, "parity {parity}, replacing: {is_replacing}");
            }
        }
    })
    .unwrap();
}

/// A diagnosis that is switched off is made up for when it is switched on.
#[test]
fn cenote_diagnosis_auto_leaves_states_alone() {
    let tunables = vec![(&tunables::DIAGNOSIS_AUTO, 0)];
    simulate(World { tunables, ..World::new(1) }, async {
        let pool = Fixture::new("mirror", 2).await;
        pool.inject(1, Some(IoKind::Write), FaultEffect::Fail);
        for salt in 2..5 {
            pool.write(salt).await;
        }
        assert!(pool.stats(1).write_errors > 20);
        assert_eq!(pool.status(1), WELL);
        tunables::DIAGNOSIS_AUTO.set(1).unwrap();
        pool.write(5).await;
        assert_eq!(pool.status(1), FAULTED);
        pool.finish().await;
    })
    .unwrap();
}

/// Returns the seconds that a scrub of a leaf takes of which each read takes a tenth of a second.
async fn scrub_of_a_slow_leaf(limit: u64) -> f64 {
    tunables::SCAN_VDEV_LIMIT.set(limit).unwrap();
    let pool = Fixture::new("disk", 1).await;
    let latency = Duration::from_millis(100);
    pool.inject(0, Some(IoKind::Read), FaultEffect::Delay { latency, lanes: 64 });
    let begun = monotonic();
    pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
    pool.engine.scans().wait(ScanFunc::Scrub).await.unwrap();
    let took = monotonic().saturating_sub(begun);
    pool.cancel_all();
    pool.finish().await;
    took.as_secs_f64()
}

#[test]
fn zfs_scan_vdev_limit_bounds_what_is_in_flight() {
    simulate(1, async {
        let usual = scrub_of_a_slow_leaf(16 << 20).await;
        let limited = scrub_of_a_slow_leaf(64 << 10).await;
        // One block after the other.
        assert!(limited > 0.1 * BLOCKS as f64 && usual < limited / 2.0, "{usual} s, {limited} s");
    })
    .unwrap();
}

#[test]
fn wrong_bytes_degrade_a_leaf() {
    simulate(1, wrong_bytes()).unwrap();
}

#[test]
fn the_last_replica_is_not_faulted() {
    simulate(1, last_replica()).unwrap();
}

#[test]
fn every_seeded_bug_of_diagnosis_is_found() {
    let fails = |bug, work: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let world = World { bug: Some(bug), ..World::new(1) };
        let run = || simulate(world, work).unwrap();
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    assert!(fails(Bug::ScrubErrorsDiagnosed, Box::pin(wrong_bytes())));
    assert!(fails(Bug::LastReplicaFaulted, Box::pin(last_replica())));
    // `ErrorsNeverAge` is found by the unit tests of the vdev layer.
    assert_eq!(Bug::OF_DIAGNOSIS.len(), 3);
}

/// Thresholds of a top-level vdev hold for its leaves, survive an export, and `none` is the
/// default again; slow I/Os matter only if both of their thresholds are set.
#[test]
fn properties_of_vdevs_set_error_rates() {
    let done = simulate(1, async {
        let pool = Fixture::new("mirror", 2).await;
        let top = pool.engine.admin().vdev_config().children[0].guid;
        let rates = |pool: &Fixture, index| {
            let id = pool.engine.tree().leaf_of(pool.guid(index)).unwrap();
            let rates = pool.engine.tree().leaf(id).error_rates();
            let slow = rates.slow_io.map(|rate| (rate.count, rate.seconds));
            (rates.io.count, rates.io.seconds, rates.checksum.count, slow)
        };
        assert_eq!(rates(&pool, 0), (10, 600, 10, None));
        let set = async |pool: &Fixture, guid, name: &str, number| {
            let value = Some(Value::U64(number));
            pool.engine.admin().set_vdev_property(guid, name, value).await.unwrap();
        };
        set(&pool, top, "io_n", 3).await;
        set(&pool, top, "slow_io_n", 7).await;
        set(&pool, pool.guid(1), "io_n", 4).await;
        set(&pool, pool.guid(1), "slow_io_t", 20).await;
        assert_eq!(rates(&pool, 0), (3, 600, 10, None));
        assert_eq!(rates(&pool, 1), (4, 600, 10, Some((7, 20))));
        let (devices, guid) = (pool.devices.clone(), pool.engine.guid());
        let (head, object) = (Arc::clone(&pool.head), pool.object);
        pool.finish().await;
        drop(head);
        let options = cenote_pool::OpenOptions::default();
        let engine = Engine::open_devices(as_devices(&devices), guid, &options).await.unwrap();
        let head = engine.head("tank/a").await.unwrap();
        let pool = Fixture { engine, devices, head, object };
        assert_eq!(rates(&pool, 1), (4, 600, 10, Some((7, 20))));
        set(&pool, pool.guid(1), "io_n", u64::MAX).await;
        assert_eq!(rates(&pool, 1), (3, 600, 10, Some((7, 20))));
        pool.engine.admin().set_vdev_property(top, "io_n", None).await.unwrap();
        assert_eq!(rates(&pool, 1).0, 10);
        let unknown = pool.engine.admin().set_vdev_property(1, "io_n", None).await;
        assert_eq!(unknown.unwrap_err().kind(), cenote_rt::Kind::NotFound);
        pool.finish().await;
    });
    done.unwrap();
}

#[test]
fn zfs_deadman_enabled_reports_ios_that_hang() {
    for (enabled, mode) in [(1, 0), (0, 0), (1, 2)] {
        let tunables =
            vec![(&tunables::DEADMAN_ENABLED, enabled), (&tunables::DEADMAN_FAILMODE, mode)];
        let done = simulate(World { tunables, ..World::new(1) }, async {
            let pool = Fixture::new("mirror", 2).await;
            let (guid, slow) = (pool.guid(1), Value::U64(2));
            for name in ["slow_io_n", "slow_io_t"] {
                let value = Some(if name == "slow_io_t" { Value::U64(600) } else { slow.clone() });
                pool.engine.admin().set_vdev_property(guid, name, value).await.unwrap();
            }
            pool.engine.start_sync_task();
            let latency = Duration::from_secs(500);
            pool.inject(1, Some(IoKind::Write), FaultEffect::Delay { latency, lanes: 1000 });
            for block in 0..BLOCKS {
                pools::write(&pool.engine, &pool.head, pool.object, block, 2).await.unwrap();
            }
            sleep(Duration::from_secs(450)).await;
            let hung = pool.events().into_iter().find_map(|event| match event {
                Event::Hung { io, age } => Some((io.leaf, io.kind, age.as_secs() >= 300)),
                _ => None,
            });
            assert_eq!(hung, (enabled == 1).then_some((guid, IoKind::Write, true)));
            assert_eq!(pool.engine.health().suspended().is_some(), mode == 2);
            pool.cancel_all();
            sleep(Duration::from_secs(2)).await;
            pool.engine.leaves().clear(None).await.unwrap();
            pool.engine.sync().await.unwrap();
            let is_slow = |event: &Event| {
                matches!(event, Event::Slow { io, took }
                if io.leaf == guid && took.as_secs() >= 400)
            };
            assert!(pool.events().iter().any(is_slow));
            pool.finish().await;
        });
        done.unwrap();
    }
}

/// With a threshold for slow I/Os a slow leaf is degraded.
#[test]
fn slow_ios_degrade_a_leaf() {
    let tunables = vec![(&tunables::SLOW_IO_MS, 100)];
    let done = simulate(World { tunables, ..World::new(1) }, async {
        let pool = Fixture::new("mirror", 2).await;
        let latency = Duration::from_millis(200);
        let delay = FaultEffect::Delay { latency, lanes: 1 };
        pool.inject(1, Some(IoKind::Write), delay);
        pool.write(2).await;
        assert_eq!(pool.status(1), WELL);
        let slow = pool.stats(1).slow_ios;
        assert!(slow > 0);
        for (name, value) in [("slow_io_n", 2), ("slow_io_t", 60)] {
            let (guid, value) = (pool.guid(1), Some(Value::U64(value)));
            pool.engine.admin().set_vdev_property(guid, name, value).await.unwrap();
        }
        pool.write(3).await;
        pool.engine.sync().await.unwrap();
        assert_eq!(pool.status(1), DEGRADED);
        assert!(pool.has_diagnosis(1, VdevState::Degraded, Symptom::SlowIo));
        pool.cancel_all();
        pool.engine.leaves().clear(None).await.unwrap();
        assert_eq!((pool.status(1), pool.stats(1).slow_ios), (WELL, 0));
        pool.finish().await;
    });
    done.unwrap();
}
