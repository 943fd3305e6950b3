//! Error rates, slow and hanging I/O of whole trees, in virtual time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Device, MemoryDevice};
use cenote_ondisk::config::VdevConfig;
use cenote_rt::seeded::Bug;
use cenote_rt::{Buf, Error, World, simulate, sleep, tunables};

use super::*;
use crate::create::{self, CreateSpec, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};
use crate::tree::Place;
use crate::{BuildOptions, IoClass};

const SIZE: usize = 64 << 20;

/// Remembers what it is told.
#[derive(Debug)]
struct Told(Mutex<Vec<(LeafIo, Option<Duration>)>>);

impl LeafObserver for Told {
    fn slow(&self, io: &LeafIo, took: Duration) {
        self.0.lock().push((*io, Some(took)));
    }

    fn hung(&self, io: &LeafIo, age: Duration) {
        self.0.lock().push((*io, Some(age)));
    }

    fn is_repeated(&self, _: &LeafIo) -> bool {
        false
    }

    fn failed(&self, io: &LeafIo, _: &Error) {
        self.0.lock().push((*io, None));
    }
}

struct Mirror {
    tree: Arc<Tree>,
    guids: Vec<u64>,
    told: Arc<Told>,
}

impl Mirror {
    fn new() -> Self {
        let memory: Vec<_> =
            (0..2).map(|n| Arc::new(MemoryDevice::new(format!("d{n}"), vec![0; SIZE]))).collect();
        let leaves = memory.iter().map(|device| LeafSpec::of(device.info())).collect();
        let top = TopSpec { redundancy: Redundancy::Mirror, class: VdevClass::Normal, leaves };
        let spec = CreateSpec { tops: vec![top], ashift: Some(9), ..CreateSpec::default() };
        let root = create::pool(&spec, 4, &mut Guids::unguessable()).expect("spec").root;
        let guids: Vec<_> = root.leaves().map(|leaf| leaf.guid).collect();
        let open = |leaf: &VdevConfig| {
            let index = guids.iter().position(|guid| *guid == leaf.guid)?;
            Some(Arc::<MemoryDevice>::clone(&memory[index]) as Arc<dyn Device>)
        };
        let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
        let tree = Tree::build(&root, open, &options).expect("tree");
        let told = Arc::new(Told(Mutex::with_default(Rank::Events)));
        Faults::of(&tree).observe(Arc::<Told>::clone(&told));
        Self { tree, guids, told }
    }

    /// Writes a block of its own.
    async fn write(&self, number: u64) {
        let place = Place { vdev: 0, offset: number * 4096 };
        let data = Buf::from(vec![7; 4096]);
        let written = self.tree.write(place, data, 5, IoClass::SyncWrite).await;
        written.expect("one side is enough");
    }

    fn inject(&self, leaf: usize, kind: IoKind, effect: FaultEffect) -> u64 {
        let spec = FaultSpec { kind: Some(kind), effect, frequency_ppm: 0 };
        self.faults().inject(self.guids[leaf], spec).expect("a leaf")
    }

    fn faults(&self) -> Faults<'_> {
        Faults::of(&self.tree)
    }

    fn leaf(&self, leaf: usize) -> &Leaf {
        self.tree.leaf(self.tree.leaf_of(self.guids[leaf]).expect("a leaf"))
    }
}

/// Nine errors, and nine more when the first are too old; then a tenth within the time.
async fn old_errors_do_not_count() {
    let mirror = Mirror::new();
    mirror.inject(1, IoKind::Write, FaultEffect::Fail);
    for number in 0..9 {
        mirror.write(number).await;
    }
    sleep(Duration::from_secs(601)).await;
    for number in 9..18 {
        mirror.write(number).await;
    }
    assert!(!mirror.faults().has_diagnoses());
    mirror.write(18).await;
    let due = mirror.faults().take_diagnoses();
    let id = mirror.tree.leaf_of(mirror.guids[1]).expect("a leaf");
    assert_eq!(due, [(id, Symptom::Io)]);
    assert!(!mirror.faults().has_diagnoses());
    assert_eq!(mirror.leaf(1).stats().write_errors, 19);
    // Events are limited, counters are not.
    let told = mirror.told.0.lock().len();
    assert!((1..=40).contains(&told), "{told}");
}

#[test]
fn old_errors_do_not_exceed_a_rate() {
    simulate(1, old_errors_do_not_count()).expect("simulated");
    let world = World { bug: Some(Bug::ErrorsNeverAge), ..World::new(1) };
    let run = || simulate(world, old_errors_do_not_count());
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "the bug is found");
}

/// When both sides fail, the cause is what they share.
#[test]
fn siblings_with_errors_are_not_blamed() {
    let done = simulate(1, async {
        let mirror = Mirror::new();
        let fault = mirror.inject(0, IoKind::Write, FaultEffect::Fail);
        mirror.write(100).await;
        mirror.faults().cancel(fault);
        mirror.inject(1, IoKind::Write, FaultEffect::Fail);
        for number in 0..10 {
            mirror.write(number).await;
        }
        assert!(mirror.faults().has_diagnoses());
        assert_eq!(mirror.faults().take_diagnoses(), []);
        // Later the other side is well.
        sleep(Duration::from_secs(601)).await;
        for number in 10..20 {
            mirror.write(number).await;
        }
        assert_eq!(mirror.faults().take_diagnoses().len(), 1);
    });
    done.expect("simulated");
}

/// When both sides fail again and again, one is blamed, and then the other one: not both at once.
#[test]
fn siblings_that_fail_together_are_blamed_one_by_one() {
    let done = simulate(1, async {
        let mirror = Mirror::new();
        let fail_both = async |from: u64| {
            for number in from..from + 10 {
                for leaf in 0..2 {
                    let fault = mirror.inject(leaf, IoKind::Write, FaultEffect::Fail);
                    mirror.write(number).await;
                    mirror.faults().cancel(fault);
                }
            }
            mirror.faults().take_diagnoses()
        };
        let id = |leaf: usize| mirror.tree.leaf_of(mirror.guids[leaf]).expect("a leaf");
        assert_eq!(fail_both(0).await, [(id(1), Symptom::Io)]);
        // Without the one that was blamed.
        mirror.leaf(1).watch.diagnosis.reset();
        for number in 20..30 {
            let fault = mirror.inject(0, IoKind::Write, FaultEffect::Fail);
            mirror.write(number).await;
            mirror.faults().cancel(fault);
        }
        assert_eq!(mirror.faults().take_diagnoses(), [(id(0), Symptom::Io)]);
    });
    done.expect("simulated");
}

#[test]
fn zio_slow_io_ms_counts_slow_ios() {
    let tunables = vec![(&tunables::SLOW_IO_MS, 100), (&tunables::SLOW_IO_EVENTS_PER_SECOND, 3)];
    let done = simulate(World { tunables, ..World::new(1) }, async {
        let mirror = Mirror::new();
        for (latency_ms, is_slow) in [(99, false), (150, true)] {
            let effect =
                FaultEffect::Delay { latency: Duration::from_millis(latency_ms), lanes: 100 };
            let fault = mirror.inject(1, IoKind::Write, effect);
            futures_util::future::join_all((0..10).map(|number| mirror.write(number))).await;
            mirror.faults().cancel(fault);
            let slow = mirror.leaf(1).stats().slow_ios;
            assert_eq!(slow > 0, is_slow, "{latency_ms}: {slow}");
        }
        assert_eq!(mirror.leaf(0).stats().slow_ios, 0);
        let told = mirror.told.0.lock();
        assert!((1..=3).contains(&told.len()), "{}", told.len());
        let (io, took) = told[0];
        assert_eq!((io.leaf, io.kind), (mirror.guids[1], IoKind::Write));
        assert!(took >= Some(Duration::from_millis(150)));
    });
    done.expect("simulated");
}

/// Also I/Os between two checks for those that hang are reported: each when it ends, as far as the
/// limit allows it.
#[test]
fn zfs_deadman_events_per_second_limits_reports_of_ios_that_hung() {
    for (latency_ms, per_second, most) in [(90, 100, 0), (150, 100, 20), (150, 1, 2)] {
        let tunables = vec![
            (&tunables::DEADMAN_ZIOTIME_MS, 100),
            (&tunables::DEADMAN_EVENTS_PER_SECOND, per_second),
        ];
        let done = simulate(World { tunables, ..World::new(1) }, async move {
            let mirror = Mirror::new();
            let latency = Duration::from_millis(latency_ms);
            mirror.inject(1, IoKind::Write, FaultEffect::Delay { latency, lanes: 1 });
            // One after the other, in 1.5 seconds.
            for number in 0..10 {
                mirror.write(number).await;
            }
            let told = mirror.told.0.lock().clone();
            assert!(told.len() <= most && (told.len() > most / 3 || most == 0), "{}", told.len());
            let is_late = |took: Option<Duration>| took.is_some_and(|took| took >= latency);
            assert!(told.iter().all(|(io, took)| io.leaf == mirror.guids[1] && is_late(*took)));
        });
        done.expect("simulated");
    }
}

#[test]
fn the_oldest_io_of_a_leaf_is_known() {
    let done = simulate(1, async {
        let mirror = Arc::new(Mirror::new());
        assert_eq!(mirror.leaf(1).oldest_io(), None);
        let effect = FaultEffect::Delay { latency: Duration::from_secs(400), lanes: 1 };
        mirror.inject(1, IoKind::Write, effect);
        let task = {
            let mirror = Arc::clone(&mirror);
            cenote_rt::spawn(async move { mirror.write(1).await })
        };
        sleep(Duration::from_secs(100)).await;
        let (io, age) = mirror.leaf(1).oldest_io().expect("it hangs");
        assert_eq!((io.kind, io.offset), (IoKind::Write, crate::DATA_START + 4096));
        assert!(age >= Duration::from_secs(99) && age < Duration::from_secs(101), "{age:?}");
        assert_eq!(mirror.leaf(0).oldest_io(), None);
        task.await.expect("ended");
        assert_eq!(mirror.leaf(1).oldest_io(), None);
    });
    done.expect("simulated");
}
