use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc;

use super::*;
use crate::lock::Rank;
use crate::seeded::{self, is_on};
use crate::{
    Counter, JoinError, Notify, begin_blocking, blocking, monotonic, oneshot, sleep, spawn,
    tunables, until, yield_now,
};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

type Journal = Arc<crate::lock::Mutex<Vec<(u64, Duration)>>>;

fn journal() -> Journal {
    Arc::new(crate::lock::Mutex::with_default(Rank::Recorder))
}

fn stuck<T>(result: Result<T>) -> Stuck {
    let Err(error) = result else { panic!("it ended") };
    assert_eq!(error.kind(), Kind::Limit);
    error.cause::<Stuck>().expect("the cause").clone()
}

#[test]
fn simulation_is_determined_by_its_seed() {
    let run = |seed: u64| {
        let world = simulate(seed, async {
            let mut secret = vec![0; 20];
            crate::secret_bytes(&mut secret).unwrap();
            let before = crate::wall_clock();
            sleep(5 * SECOND).await;
            assert_eq!(blocking(|| 7).await.unwrap(), 7);
            (secret, before, monotonic())
        });
        world.unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
    assert_eq!((run(1).1, run(1).2), (EPOCH, 5 * SECOND));
    assert!(!is_here(), "it is left behind");
}

#[test]
fn tasks_sleep_concurrently_and_the_shortest_sleep_ends_first() {
    simulate(1, async {
        let journal = journal();
        let tasks: Vec<_> = [5, 3, 5, 1]
            .into_iter()
            .enumerate()
            .map(|(index, seconds)| {
                let journal = Arc::clone(&journal);
                spawn(async move {
                    sleep(SECOND * seconds).await;
                    journal.lock().push((index as u64, monotonic()));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let want = [(3, SECOND), (1, 3 * SECOND), (0, 5 * SECOND), (2, 5 * SECOND)];
        assert_eq!(*journal.lock(), want);
        assert_eq!(monotonic(), 5 * SECOND);
    })
    .unwrap();
}

#[test]
fn until_ends_with_the_future_or_the_time() {
    simulate(1, async {
        let late = async {
            sleep(3 * MS).await;
            7
        };
        assert_eq!(until(2 * MS, late).await, None);
        assert_eq!(monotonic(), 2 * MS);
        // At the same moment, and without any time, the future counts.
        assert_eq!(until(MS, sleep(MS)).await, Some(()));
        assert_eq!(until(Duration::ZERO, async { 7 }).await, Some(7));
        assert_eq!(monotonic(), 3 * MS);
        assert_eq!(until(Duration::MAX, sleep(MS)).await, Some(()));
        // The timer that did not end does not delay the end of the simulation.
        assert_eq!(until(SECOND * 3600, sleep(MS)).await, Some(()));
        assert_eq!(monotonic(), 5 * MS);
    })
    .unwrap();
}

#[test]
fn looking_at_the_clock_takes_no_time() {
    let end = simulate(1, async {
        for _ in 0..100 {
            assert_eq!((monotonic(), crate::wall_clock()), (Duration::ZERO, EPOCH));
            yield_now().await;
        }
        monotonic()
    });
    assert_eq!(end.unwrap(), Duration::ZERO);
}

#[test]
fn year_of_periodic_work_takes_seconds() {
    let rounds = simulate(1, async {
        let rounds = Arc::new(AtomicUsize::new(0));
        for period in [5, 60, 600] {
            let rounds = Arc::clone(&rounds);
            spawn(async move {
                let wake = Notify::new();
                loop {
                    assert!(until(SECOND * period, wake.notified()).await.is_none());
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        sleep(SECOND * 365 * 86400).await;
        rounds.load(Ordering::Relaxed)
    });
    assert_eq!(rounds.unwrap() / 100_000, 68);
}

#[test]
fn deadlock_is_reported_with_the_tasks() {
    let ended = simulate(7, async {
        let never = Arc::new(Notify::new());
        let waits = Arc::clone(&never);
        spawn(async move { waits.notified().await });
        sleep(SECOND).await;
        never.notified().await;
    });
    let Stuck::Deadlock { seed: 7, tasks } = stuck(ended) else { panic!("another cause") };
    assert!(tasks.starts_with("after 1.000000000 s, 1 tasks:\n  task 1 of simulation waits: "));
    assert!(tasks.contains("deadlock_is_reported_with_the_tasks"), "{tasks}");
    assert!(tasks.contains(file!()), "{tasks}");
    // A timer that never ends is none.
    let forever = simulate(7, sleep(Duration::MAX));
    assert!(matches!(stuck(forever), Stuck::Deadlock { .. }));
}

#[test]
fn livelock_is_reported() {
    let ended = simulate(World { polls_max: 10_000, ..World::new(7) }, async {
        spawn(async {
            loop {
                yield_now().await;
            }
        });
        sleep(SECOND).await;
    });
    assert!(matches!(stuck(ended), Stuck::Livelock { seed: 7, last: 1, .. }));
}

#[test]
fn poll_without_end_ends_the_program() {
    const VARIABLE: &str = "CENOTE_ENDLESS_POLL";
    if std::env::var_os(VARIABLE).is_some() {
        let world = World { poll_time_max: Some(SECOND), ..World::new(7) };
        let ended = simulate(world, async {
            // Work of many polls is allowed to take longer.
            for _ in 0..20_000_000 {
                yield_now().await;
            }
            drop(spawn(async {
                loop {
                    std::hint::spin_loop();
                }
            }));
            sleep(SECOND).await;
        });
        return ended.unwrap();
    }
    let name = "simulation::tests::poll_without_end_ends_the_program";
    let program = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(VARIABLE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&program.stderr);
    assert_eq!(program.status.code(), Some(101), "{text}");
    assert!(text.contains("a poll does not end, in the simulation of seed 7: "), "{text}");
    assert!(text.contains("poll_without_end"), "{text}");
}

#[test]
fn handles_detach_abort_and_report_panics() {
    simulate(1, async {
        let (sender, receiver) = oneshot::channel();
        drop(spawn(async move {
            sleep(SECOND).await;
            let _ = sender.send(7);
        }));
        assert_eq!(receiver.await, Ok(7));

        let dropped = Arc::new(());
        let held = Arc::clone(&dropped);
        let aborted = spawn(async move {
            sleep(SECOND).await;
            drop(held);
        });
        yield_now().await;
        aborted.abort();
        assert!(!aborted.is_finished());
        assert_eq!(aborted.await, Err(JoinError::Cancelled));
        assert_eq!(Arc::strong_count(&dropped), 1);

        let panics = spawn(async { panic!("number {}", 7) });
        assert_eq!(panics.await, Err(JoinError::Panicked("number 7".into())));
        let ends = spawn(sleep(MS));
        assert!(!ends.is_finished());
        sleep(MS * 2).await;
        assert!(ends.is_finished());
    })
    .unwrap();
}

#[test]
fn panic_of_a_task_that_nobody_waits_for_ends_the_simulation() {
    for is_kept in [false, true] {
        let run = || {
            simulate(1, async move {
                let panics = spawn(async { panic!("nobody waits") });
                let kept = is_kept.then_some(panics);
                sleep(SECOND).await;
                drop(kept);
                sleep(SECOND).await;
            })
        };
        let ended = std::panic::catch_unwind(run);
        assert_eq!(text_of(&*ended.unwrap_err()), "nobody waits");
        assert!(!is_here());
    }
}

#[test]
fn tasks_are_dropped_at_the_end() {
    struct Last(Arc<AtomicU64>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.store(monotonic().as_secs(), Ordering::Relaxed);
            // Nothing is started any more.
            assert!(spawn(async {}).is_finished());
        }
    }
    let end = Arc::new(AtomicU64::new(0));
    let last = Last(Arc::clone(&end));
    simulate(1, async move {
        spawn(async move {
            let _last = last;
            sleep(SECOND * 100).await;
        });
        sleep(SECOND * 3).await;
    })
    .unwrap();
    assert_eq!(end.load(Ordering::Relaxed), 3);
}

#[test]
fn blocking_work_runs_on_a_number_of_threads() {
    let world = World { blocking_threads: 2, ..World::new(1) };
    simulate(world, async {
        let count = Arc::new(AtomicUsize::new(0));
        let add = || {
            let count = Arc::clone(&count);
            move || count.fetch_add(1, Ordering::Relaxed)
        };
        // The work is done elsewhere and later, also if its future is dropped.
        drop(until(Duration::ZERO, blocking(add())).await);
        assert_eq!(count.load(Ordering::Relaxed), 0);
        let (begun, counted) = (add(), Arc::clone(&count));
        begin_blocking(move || {
            begun();
        });
        sleep(MS).await;
        assert_eq!(counted.load(Ordering::Relaxed), 2);
        assert_eq!(blocking(add()).await.unwrap(), 2);
        let panics = blocking(|| panic!("no"));
        assert_eq!(panics.await.unwrap_err().to_string(), "a task panicked: no");
    })
    .unwrap();
}

/// Returns the order in which tasks that wake each other run.
fn order(interleave: Option<u64>) -> Vec<u64> {
    let world = World { interleave, ..World::new(1) };
    let run = simulate(world, async {
        let journal = journal();
        let tasks: Vec<_> = (0..8)
            .map(|number| {
                let journal = Arc::clone(&journal);
                spawn(async move {
                    for _ in 0..4 {
                        journal.lock().push((number, monotonic()));
                        yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let steps = journal.lock().clone();
        steps.into_iter().map(|(number, _)| number).collect()
    });
    run.unwrap()
}

#[test]
fn interleave_chooses_among_ready_tasks() {
    let usual: Vec<u64> = (0..32).map(|step| step % 8).collect();
    assert_eq!(order(None), usual);
    let (one, two) = (order(Some(1)), order(Some(2)));
    assert_eq!(order(Some(1)), one);
    assert!(one != two && one != usual && two != usual);
    let mut sorted = one;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..32).map(|step| step / 4).collect::<Vec<u64>>());
}

#[test]
fn killed_process_ends_at_its_awaits_and_others_continue() {
    simulate(1, async {
        let (journal, dropped) = (journal(), Arc::new(()));
        let run = |process: &Process, number: u64| {
            let (journal, held) = (Arc::clone(&journal), Arc::clone(&dropped));
            process.spawn(async move {
                // A task of the process as well.
                spawn(async move {
                    loop {
                        sleep(SECOND).await;
                        journal.lock().push((number, monotonic()));
                    }
                });
                sleep(Duration::MAX).await;
                drop(held);
            })
        };
        let (first, other) = (Process::new("first"), Process::new("other"));
        let handle = run(&first, 1);
        run(&other, 2);
        sleep(SECOND * 3 / 2).await;
        assert_eq!((first.task_count(), other.task_count()), (2, 2));
        assert!(task_report().unwrap().contains("task 1 of first waits: "));
        assert_eq!(Arc::strong_count(&dropped), 3);
        first.kill();
        assert_eq!(Arc::strong_count(&dropped), 2);
        assert_eq!(first.task_count(), 0);
        assert_eq!(handle.await, Err(JoinError::Cancelled));
        assert_eq!(first.spawn(async {}).await, Err(JoinError::Cancelled));
        // Another one takes its place, in the same time.
        let next = Process::new("next");
        run(&next, 3);
        sleep(SECOND * 3 / 2).await;
        let half = SECOND / 2;
        let want = [(1, SECOND), (2, SECOND), (2, 2 * SECOND), (3, 2 * SECOND + half)];
        assert_eq!(*journal.lock(), want);
    })
    .unwrap();
}

#[test]
fn process_can_kill_itself() {
    simulate(1, async {
        let process = Process::new("one");
        let (killed, journal) = (process.clone(), journal());
        let notes = Arc::clone(&journal);
        let task = process.spawn(async move {
            killed.kill();
            notes.lock().push((1, monotonic()));
            sleep(SECOND).await;
            notes.lock().push((2, monotonic()));
        });
        assert_eq!(task.await, Err(JoinError::Cancelled));
        sleep(SECOND * 2).await;
        assert_eq!(*journal.lock(), [(1, Duration::ZERO)]);
    })
    .unwrap();
}

#[test]
fn settings_belong_to_a_process_of_a_world() {
    static EVENTS: Counter = Counter::new("events of a test");
    let slop = &tunables::SLOP_SHIFT;
    let world = World {
        processors: 7,
        tunables: vec![(slop, 6)],
        bug: cfg!(debug_assertions).then_some(Bug::NoDeferral),
        ..World::new(1)
    };
    let is_buggy = || is_on(Bug::NoDeferral);
    simulate(world.clone(), async move {
        assert_eq!((crate::processors(), slop.get()), (7, 6));
        assert_eq!(is_buggy(), cfg!(debug_assertions));
        let other = Process::new("other");
        other.within(|| slop.set(9).unwrap());
        other.within(|| seeded::set(None));
        other.set_clock_offset(-100);
        let figures = move || {
            let numbers = [EVENTS.next(), EVENTS.next()];
            (slop.get(), is_buggy(), numbers, crate::wall_clock())
        };
        let earlier = Duration::from_secs(EPOCH.as_secs() - 100);
        assert_eq!(figures(), (6, cfg!(debug_assertions), [1, 2], EPOCH));
        // Its tasks and their tasks have its settings.
        let found = other.spawn(async move { spawn(async move { figures() }).await.unwrap() });
        assert_eq!(found.await.unwrap(), (9, false, [1, 2], earlier));
        assert_eq!((slop.get(), EVENTS.next()), (6, 3));
    })
    .unwrap();
    assert!(!is_buggy() && slop.get() == slop.default);
    // The next world begins anew.
    simulate(1, async move { assert_eq!((slop.get(), EVENTS.next()), (slop.default, 1)) }).unwrap();
    let refused = World { tunables: vec![(slop, u64::MAX)], ..World::new(1) };
    assert_eq!(simulate(refused, async {}).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn worlds_of_several_threads_are_independent() {
    let run = |seed: u64| {
        let world = World { tunables: vec![(&tunables::SLOP_SHIFT, seed)], ..World::new(seed) };
        let run = simulate(world, async move {
            let mut secret = [0; 8];
            for _ in 0..1000 {
                sleep(MS).await;
                crate::secret_bytes(&mut secret).unwrap();
            }
            (secret, monotonic(), tunables::SLOP_SHIFT.get())
        });
        run.unwrap()
    };
    let alone = [run(1), run(2)];
    assert_ne!(alone[0], alone[1]);
    let together = std::thread::scope(|scope| {
        let threads = [1, 2].map(|seed| scope.spawn(move || run(seed)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(together, alone);
    assert_eq!(
        simulate(1, async { simulate(1, async {}) }).unwrap().unwrap_err().kind(),
        Kind::Invalid
    );
}

#[test]
fn wake_ups_from_other_threads_are_not_lost() {
    // The simulation does not wait for the thread, which only shows that its wake-up is harmless.
    let (sender, receiver) = mpsc::channel();
    simulate(1, async {
        let (done, mut ready) = oneshot::channel();
        let first = until(MS, &mut ready).await;
        assert!(first.is_none());
        std::thread::spawn(move || {
            let _ = done.send(7);
            let _ = sender.send(());
        });
        receiver.recv().unwrap();
        assert_eq!(ready.await, Ok(7));
    })
    .unwrap();
}
