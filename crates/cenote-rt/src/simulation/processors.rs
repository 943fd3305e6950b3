//! Processors of a simulation.
//!
//! Work is done when its task is polled, and takes its time afterwards:
//!
//! ```text
//!   poll: the work is done, and its cost is charged   -> debt of the task
//!   debt of 2 us or more at the end of a poll         -> the task queues for a processor
//!   a processor for that time                         -> the task can be polled again
//! ```
//!
//! There are two queues, each served in its order: the one of the sync, whose end everybody needs,
//! is first. What a poll started (commands to devices, timers, other tasks) begins before its work
//! has taken its time.
//!
//! At most as many tasks have a processor as there are processors, and none is idle while a task
//! queues.

use std::collections::{BTreeMap, VecDeque};

use super::World;
use super::costs::{Costs, Op};
use super::state::{MAIN, State};

/// Debt below which a task does not queue for a processor: time passes in fewer steps.
const DEBT_MIN_NS: u64 = 2_000;

/// What a task owes and does about it.
#[derive(Debug, Default)]
pub(super) struct Debt {
    ns: u64,
    /// Whether the task queues for a processor, or has one.
    is_paying: bool,
    /// Whether it was woken meanwhile.
    is_woken: bool,
    /// Whether its work is first.
    is_first: bool,
}

#[derive(Debug, Default)]
pub(super) struct Processors {
    /// `None`: work takes no time.
    costs: Option<Costs>,
    speed_percent: u64,
    idle: usize,
    /// Debt of the present poll.
    poll_ns: u64,
    /// Debt of tasks that have ended, which the next payment includes.
    left_ns: u64,
    /// Numbers of tasks, and their debts.
    first: VecDeque<(u64, u64)>,
    others: VecDeque<(u64, u64)>,
    /// Tasks that have a processor, by the end of their work and a number.
    busy: BTreeMap<(u64, u64), u64>,
}

impl Processors {
    pub(super) fn new(world: &World) -> Self {
        Self {
            costs: world.costs.clone(),
            speed_percent: u64::from(world.speed_percent.max(1)),
            idle: world.processors.max(1),
            ..Self::default()
        }
    }

    /// Returns the end of the work that ends first.
    pub(super) fn next_end(&self) -> Option<(u64, u64)> {
        self.busy.first_key_value().map(|(end, _)| *end)
    }
}

impl State {
    /// Whether work takes time.
    pub(super) fn has_costs(&self) -> bool {
        self.work.costs.is_some()
    }

    pub(super) fn charge(&mut self, op: Op, bytes: u64) {
        if let Some(costs) = &self.work.costs {
            self.work.poll_ns += costs.ns(op, bytes).saturating_mul(100) / self.work.speed_percent;
        }
    }

    /// Returns the debt of the present poll.
    pub(super) fn debt_of_poll(&self) -> u64 {
        self.work.poll_ns
    }

    /// Charges a time of the frozen table's processor.
    pub(super) fn charge_ns(&mut self, ns: u64) {
        if self.has_costs() {
            self.work.poll_ns += ns.saturating_mul(100) / self.work.speed_percent;
        }
    }

    pub(super) fn take_precedence(&mut self) {
        if let Some(debt) = self.tasks.debt_of_running() {
            debt.is_first = true;
        }
    }

    /// Whether the task that is polled must pay before it is polled again.
    pub(super) fn owes(&mut self) -> bool {
        let ns = self.tasks.debt_of_running().map_or(0, |debt| debt.ns);
        self.has_costs() && ns + self.work.poll_ns + self.work.left_ns >= DEBT_MIN_NS
    }

    /// Ends a poll: the task that was polled queues for a processor if it must pay.
    pub(super) fn settle(&mut self) {
        if !self.has_costs() {
            return;
        }
        let (owes, ns) = (self.owes(), std::mem::take(&mut self.work.poll_ns));
        let number = self.tasks.running;
        let Some(debt) = self.tasks.debt_of_running() else { return };
        debt.ns += ns;
        if !owes {
            return;
        }
        debt.is_paying = true;
        let (ns, is_first) = (std::mem::take(&mut debt.ns), debt.is_first);
        let ns = ns + std::mem::take(&mut self.work.left_ns);
        let queue = if is_first { &mut self.work.first } else { &mut self.work.others };
        queue.push_back((number, ns));
        self.start_work();
    }

    /// Ends the last poll of a task: what it still owes is paid with the next debt of another one.
    pub(super) fn settle_last(&mut self) {
        if !self.has_costs() {
            return;
        }
        let debt = self.tasks.debt_of_running().map_or(0, |debt| std::mem::take(&mut debt.ns));
        self.work.left_ns += debt + std::mem::take(&mut self.work.poll_ns);
    }

    /// Gives idle processors to tasks that queue.
    fn start_work(&mut self) {
        while self.work.idle > 0 {
            let first = self.work.first.pop_front();
            let Some((number, ns)) = first.or_else(|| self.work.others.pop_front()) else { return };
            // The task was killed.
            if self.tasks.debt_of(number).is_none() {
                continue;
            }
            self.work.idle -= 1;
            self.clock.timers_set += 1;
            let end = (self.clock.now_ns.saturating_add(ns), self.clock.timers_set);
            self.work.busy.insert(end, number);
        }
    }

    /// Ends the work that ends first.
    pub(super) fn end_work(&mut self) {
        let Some((_, number)) = self.work.busy.pop_first() else { return };
        self.work.idle += 1;
        if let Some(debt) = self.tasks.debt_of(number) {
            debt.is_paying = false;
            if std::mem::take(&mut debt.is_woken) {
                self.wake(number);
            }
        }
        self.start_work();
    }

    /// Whether a task that was woken must wait for the end of its work. It is polled then.
    pub(super) fn defers(&mut self, number: u64) -> bool {
        let Some(debt) = self.tasks.debt_of(number) else { return false };
        debt.is_woken |= debt.is_paying;
        debt.is_paying
    }
}

impl super::state::Tasks {
    /// Returns the debt of a task that the task that is polled starts.
    pub(super) fn debt_of_new(&mut self) -> Debt {
        let is_first = self.debt_of_running().is_some_and(|debt| debt.is_first);
        Debt { is_first, ..Debt::default() }
    }

    fn debt_of_running(&mut self) -> Option<&mut Debt> {
        self.debt_of(self.running)
    }

    fn debt_of(&mut self, number: u64) -> Option<&mut Debt> {
        if number == MAIN {
            return Some(&mut self.main_debt);
        }
        self.by_number.get_mut(&number).map(|task| &mut task.debt)
    }
}

impl Debt {
    /// Whether the task queues for a processor, or has one.
    pub(super) fn is_paying(&self) -> bool {
        self.is_paying
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::lock::{Mutex, Rank};
    use crate::{
        Process, blocking, charge, cpu, monotonic, simulate, sleep, spawn, take_precedence,
    };

    const MS: Duration = Duration::from_millis(1);
    const TEN_MS: u64 = 10_000_000;

    fn world(processors: usize) -> World {
        World { processors, costs: Some(Costs::frozen()), ..World::new(1) }
    }

    /// Returns when each of several tasks has done ten milliseconds of work.
    fn ends(world: World, tasks: usize) -> Vec<Duration> {
        let run = simulate(world, async move {
            let tasks: Vec<_> = (0..tasks)
                .map(|_| {
                    spawn(async {
                        cpu(TEN_MS, || ()).await.unwrap();
                        monotonic()
                    })
                })
                .collect();
            let mut ends = Vec::new();
            for task in tasks {
                ends.push(task.await.unwrap());
            }
            ends
        });
        run.unwrap()
    }

    #[test]
    fn processors_work_concurrently() {
        assert_eq!(ends(world(1), 2), [10 * MS, 20 * MS]);
        assert_eq!(ends(world(2), 2), [10 * MS, 10 * MS]);
        assert_eq!(ends(world(2), 3), [10 * MS, 10 * MS, 20 * MS]);
        let slow = World { speed_percent: 25, ..world(1) };
        assert_eq!(ends(slow, 1), [40 * MS]);
        assert_eq!(ends(World::new(1), 2), [Duration::ZERO; 2], "without costs");
    }

    #[test]
    fn work_of_the_sync_is_first() {
        let run = simulate(world(1), async {
            let order = Arc::new(Mutex::<Vec<&str>>::with_default(Rank::Recorder));
            let work = |name: &'static str, is_first: bool| {
                let order = Arc::clone(&order);
                spawn(async move {
                    if is_first {
                        take_precedence();
                    }
                    // Its tasks have its precedence.
                    let nested = spawn(async { cpu(TEN_MS, || ()).await.unwrap() });
                    nested.await.unwrap();
                    order.lock().push(name);
                })
            };
            let tasks = [("a", false), ("b", false), ("sync", true), ("c", false)]
                .map(|(name, is_first)| work(name, is_first));
            for task in tasks {
                task.await.unwrap();
            }
            order.lock().clone()
        });
        // The first task has its processor before the sync begins.
        assert_eq!(run.unwrap(), ["a", "sync", "b", "c"]);
    }

    #[test]
    fn small_debts_are_paid_together() {
        simulate(world(1), async {
            // 800 ns each.
            charge(Op::ReadCached, 0);
            charge(Op::ReadCached, 0);
            sleep(MS).await;
            assert_eq!(monotonic(), MS);
            charge(Op::ReadCached, 0);
            sleep(Duration::ZERO).await;
            assert_eq!(monotonic(), MS, "it did not wait");
            crate::yield_now().await;
            assert_eq!(monotonic(), MS + Duration::from_nanos(2_400));
            // A task that has ended leaves its debt to the next payment.
            let small = spawn(async { charge(Op::ReadCached, 0) });
            small.await.unwrap();
            assert_eq!(monotonic(), MS + Duration::from_nanos(2_400));
            cpu(10_000, || ()).await.unwrap();
            assert_eq!(monotonic(), MS + Duration::from_nanos(13_200));
        })
        .unwrap();
    }

    #[test]
    fn results_are_there_when_the_work_has_taken_its_time() {
        simulate(world(1), async {
            let copy = Duration::from_nanos(Costs::frozen().ns(Op::Copy, 1 << 20));
            assert_eq!(copy, Duration::from_nanos(100 + 1024 * 100));
            blocking(|| charge(Op::Copy, 1 << 20)).await.unwrap();
            assert_eq!(monotonic(), copy);
            spawn(async { charge(Op::Copy, 1 << 20) }).await.unwrap();
            assert_eq!(monotonic(), 2 * copy);
            // Charges of the work replace the estimate.
            cpu(7, || charge(Op::Copy, 1 << 20)).await.unwrap();
            assert_eq!(monotonic(), 3 * copy);
        })
        .unwrap();
    }

    #[test]
    fn killed_tasks_do_not_keep_processors() {
        simulate(world(1), async {
            let victim = Process::new("victim");
            for _ in 0..10 {
                drop(victim.spawn(async { cpu(TEN_MS, || ()).await }));
            }
            let aborted = spawn(async { cpu(TEN_MS, || ()).await });
            sleep(MS).await;
            victim.kill();
            aborted.abort();
            cpu(TEN_MS, || ()).await.unwrap();
            // The work that had begun, and its own.
            assert_eq!(monotonic(), 20 * MS);
            assert!(aborted.await.is_err());
        })
        .unwrap();
    }

    #[test]
    fn the_table_is_frozen() {
        // Published figures name this hash.
        assert_eq!(format!("{:08x}", Costs::frozen().hash()), "24ceb50c");
        assert_eq!(Costs::frozen().ns(Op::WriteBlock, 1 << 30), 10_000);
        assert_eq!(Costs::frozen().ns(Op::Fletcher, 128 << 10), 100 + 128 * 38);
    }
}
