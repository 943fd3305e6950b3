//! State of a simulation: clock, tasks, processes.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

use super::processors::{Debt, Processors};
use super::watchdog::Pulse;
use super::{World, is_used};
use crate::lock::{Mutex, Rank};
use crate::seeded::Bug;
use crate::task::BoxFuture;
use crate::{FixedMap, Rng, Semaphore, tunables};

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// Number of the future of the simulation itself; tasks have the numbers from 1.
pub(super) const MAIN: u64 = 0;
/// The process of that future.
const FIRST_PROCESS: usize = 0;
/// Tasks of a report that are listed.
const REPORT_MAX: usize = 200;

/// What a panic carries.
pub(crate) type Payload = Box<dyn Any + Send>;

/// Tasks cannot make progress.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// No task can run, and no timer is set. The text lists the tasks.
    #[error("deadlock in the simulation of seed {seed}:\n{tasks}")]
    Deadlock {
        /// Seed of the simulation.
        seed: u64,
        /// The tasks, a line each.
        tasks: String,
    },
    /// Tasks run without time passing.
    #[error("livelock in the simulation of seed {seed}, task {last} runs:\n{tasks}")]
    Livelock {
        /// Seed of the simulation.
        seed: u64,
        /// Number of the task that was to be polled next.
        last: u64,
        /// The tasks, a line each.
        tasks: String,
    },
}

/// Tasks that can run, in the order in which they were woken.
#[derive(Debug)]
pub(super) struct Ready(Mutex<VecDeque<u64>>);

impl Ready {
    /// Adds a task, which is not among them.
    fn push(&self, number: u64) {
        self.0.lock().push_back(number);
    }
}

/// Wakes a task, and tells its handle how it is.
#[derive(Debug)]
pub(crate) struct Wakeup {
    number: u64,
    ready: Arc<Ready>,
    /// Whether `ready` has the task.
    is_queued: AtomicBool,
    is_aborted: AtomicBool,
    is_over: AtomicBool,
}

impl Wakeup {
    /// From now on the task is woken again.
    pub(super) fn begin_poll(&self) {
        self.is_queued.store(false, Ordering::Release);
    }

    /// Has the task dropped before it would be polled again.
    pub(super) fn abort(self: &Arc<Self>) {
        self.is_aborted.store(true, Ordering::Release);
        self.wake_by_ref();
    }

    /// Whether the task is to be dropped.
    fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Notes that the task has ended.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Whether the task has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.ready.push(self.number);
        }
    }
}

/// The clock, and whom it wakes.
#[derive(Debug, Default)]
pub(super) struct Clock {
    pub(super) now_ns: u64,
    /// By deadline and number, in the order in which they end.
    pub(super) timers: BTreeMap<(u64, u64), Waker>,
    /// Number of timers that were ever set.
    pub(super) timers_set: u64,
}

/// The part of a task that is absent while the task is polled.
pub(super) struct Body {
    pub(super) number: u64,
    pub(super) process: usize,
    pub(super) future: BoxFuture<'static, ()>,
    pub(super) wakeup: Arc<Wakeup>,
    pub(super) waker: Waker,
}

/// A task.
pub(super) struct Task {
    process: usize,
    name: &'static str,
    place: &'static Location<'static>,
    body: Option<Body>,
    pub(super) debt: Debt,
}

#[derive(Default)]
pub(super) struct Tasks {
    pub(super) by_number: FixedMap<u64, Task>,
    /// The debt of the simulation's future.
    pub(super) main_debt: Debt,
    /// Number of tasks that were ever started.
    started: u64,
    /// The task that is polled.
    pub(super) running: u64,
    /// Polls since the clock moved.
    polls: u64,
    polls_max: u64,
    /// No task is started any more.
    is_ending: bool,
}

/// A group of tasks, as the processes of a host are.
#[derive(Debug)]
pub(super) struct ProcessState {
    pub(super) name: String,
    pub(super) is_alive: bool,
    /// By index.
    pub(super) tunables: Box<[u64]>,
    pub(super) bug: Option<Bug>,
    /// Seconds that its clock is ahead of the simulation's.
    pub(super) clock_offset_s: i64,
    pub(super) counters: FixedMap<&'static str, u64>,
}

pub(super) struct State {
    /// Number of the simulation in this program, for handles that outlive it.
    pub(super) id: u64,
    pub(super) seed: u64,
    pub(super) processors: usize,
    pub(super) clock: Clock,
    pub(super) rng: Rng,
    /// Chooses among tasks that can run.
    choice: Option<Rng>,
    ready: Arc<Ready>,
    pub(super) tasks: Tasks,
    pub(super) work: Processors,
    processes: Vec<ProcessState>,
    /// The process that code on this thread belongs to.
    pub(super) current: usize,
    pub(super) blocking: Arc<Semaphore>,
    /// A panic of a task that nobody waits for.
    pub(super) panic: Option<Payload>,
    pulse: Option<Arc<Pulse>>,
}

/// The executor's next step.
pub(super) enum Next {
    /// Poll the future of the simulation.
    Main,
    Poll(Body),
    /// Drop a task that was aborted.
    Drop(Body),
    /// A timer ended.
    Wake(Waker),
    /// Nothing: the woken task has ended.
    Again,
    Panic(Payload),
    Stuck(Stuck),
}

/// Looks at the state of this thread's simulation. `look` must not drop or wake anything of the
/// layers above, which would look as well.
pub(super) fn with<T>(look: impl FnOnce(&mut State) -> T) -> Option<T> {
    if !is_used() {
        return None;
    }
    STATE.try_with(|state| state.borrow_mut().as_mut().map(look)).ok().flatten()
}

/// Begins a simulation on this thread. Returns false if there is one.
pub(super) fn enter(world: &World) -> bool {
    STATE.with(|state| {
        let mut state = state.borrow_mut();
        let is_free = state.is_none();
        if is_free {
            *state = Some(State::new(world));
        }
        is_free
    })
}

/// Ends the simulation of this thread.
pub(super) fn leave() {
    let state = STATE.with(|state| state.borrow_mut().take());
    drop(state);
}

impl State {
    fn new(world: &World) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut tunables: Box<[u64]> =
            tunables::ALL.iter().map(|tunable| tunable.default).collect();
        for (tunable, value) in &world.tunables {
            tunables[tunable.index()] = *value;
        }
        let first = ProcessState {
            name: "simulation".into(),
            is_alive: true,
            tunables,
            bug: world.bug,
            clock_offset_s: 0,
            counters: FixedMap::default(),
        };
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            seed: world.seed,
            processors: world.processors.max(1),
            clock: Clock::default(),
            rng: Rng::seeded(world.seed),
            choice: world.interleave.map(Rng::seeded),
            ready: Arc::new(Ready(Mutex::with_default(Rank::SimulatedReady))),
            tasks: Tasks { polls_max: world.polls_max, ..Tasks::default() },
            work: Processors::new(world),
            processes: vec![first],
            current: FIRST_PROCESS,
            blocking: Arc::new(Semaphore::new(world.blocking_threads.max(1))),
            panic: None,
            pulse: None,
        }
    }

    pub(super) fn set_pulse(&mut self, pulse: Option<Arc<Pulse>>) {
        self.pulse = pulse;
    }

    pub(super) fn process(&self) -> &ProcessState {
        &self.processes[self.current]
    }

    pub(super) fn process_mut(&mut self) -> &mut ProcessState {
        &mut self.processes[self.current]
    }

    /// Returns the waker of the task with this number.
    pub(super) fn wakeup(&self, number: u64) -> Arc<Wakeup> {
        Arc::new(Wakeup {
            number,
            ready: Arc::clone(&self.ready),
            is_queued: AtomicBool::new(false),
            is_aborted: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    /// Adds a task to the current process. Returns the future if the process or the simulation has
    /// ended.
    pub(super) fn start(
        &mut self,
        future: BoxFuture<'static, ()>,
        name: &'static str,
        place: &'static Location<'static>,
    ) -> Result<Arc<Wakeup>, BoxFuture<'static, ()>> {
        let process = self.current;
        if self.tasks.is_ending || !self.processes[process].is_alive {
            return Err(future);
        }
        self.tasks.started += 1;
        let number = self.tasks.started;
        let wakeup = self.wakeup(number);
        let waker = Waker::from(Arc::clone(&wakeup));
        let body = Body { number, process, future, wakeup: Arc::clone(&wakeup), waker };
        let debt = self.tasks.debt_of_new();
        self.tasks.by_number.insert(number, Task { process, name, place, body: Some(body), debt });
        wakeup.wake_by_ref();
        Ok(wakeup)
    }

    /// Returns the executor's next step.
    pub(super) fn next(&mut self) -> Next {
        if let Some(panic) = self.panic.take() {
            return Next::Panic(panic);
        }
        let woken = {
            let mut ready = self.ready.0.lock();
            match &mut self.choice {
                Some(choice) => {
                    let index = choice.below(ready.len() as u64);
                    ready.swap_remove_back(index as usize)
                }
                None => ready.pop_front(),
            }
        };
        let Some(number) = woken else { return self.end_timer() };
        self.tasks.polls += 1;
        if self.tasks.polls > self.tasks.polls_max {
            let stuck = Stuck::Livelock { seed: self.seed, last: number, tasks: self.report() };
            return Next::Stuck(stuck);
        }
        if self.has_costs() && !self.is_aborted(number) && self.defers(number) {
            // Woken again it is looked at again: it may be aborted meanwhile.
            if let Some(wakeup) = self.wakeup_of(number) {
                wakeup.begin_poll();
            }
            return Next::Again;
        }
        self.tasks.running = number;
        if number == MAIN {
            self.current = FIRST_PROCESS;
            self.beat("the simulation's future", None);
            return Next::Main;
        }
        let Some(task) = self.tasks.by_number.get_mut(&number) else { return Next::Again };
        let Some(body) = task.body.take() else { return Next::Again };
        self.current = task.process;
        let (name, place) = (task.name, task.place);
        if body.wakeup.is_aborted() {
            self.tasks.by_number.remove(&number);
            return Next::Drop(body);
        }
        self.beat(name, Some(place));
        body.wakeup.begin_poll();
        Next::Poll(body)
    }

    fn beat(&self, name: &'static str, place: Option<&'static Location<'static>>) {
        if let Some(pulse) = &self.pulse {
            pulse.beat(name, place);
        }
    }

    /// The waker of a task that is not polled; `None` for the simulation's future.
    fn wakeup_of(&self, number: u64) -> Option<&Arc<Wakeup>> {
        let task = self.tasks.by_number.get(&number)?;
        task.body.as_ref().map(|body| &body.wakeup)
    }

    fn is_aborted(&self, number: u64) -> bool {
        self.wakeup_of(number).is_some_and(|wakeup| wakeup.is_aborted())
    }

    /// Wakes a task again whose wake-up was deferred.
    pub(super) fn wake(&self, number: u64) {
        match self.wakeup_of(number) {
            Some(wakeup) => wakeup.wake_by_ref(),
            None => self.ready.push(number),
        }
    }

    /// Moves the clock to the end of the earliest timer or work.
    fn end_timer(&mut self) -> Next {
        let timer = self.clock.timers.first_key_value().map(|(end, _)| *end);
        let work = self.work.next_end();
        let Some(next) = [timer, work].into_iter().flatten().min() else {
            return Next::Stuck(Stuck::Deadlock { seed: self.seed, tasks: self.report() });
        };
        if next.0 > self.clock.now_ns {
            self.clock.now_ns = next.0;
            self.tasks.polls = 0;
        }
        if work == Some(next) {
            self.end_work();
            return Next::Again;
        }
        self.clock.timers.pop_first().map_or(Next::Again, |(_, waker)| Next::Wake(waker))
    }

    /// Takes a task back after its poll. Returns it if it must be dropped: it has ended, or its
    /// process was killed meanwhile.
    pub(super) fn end_poll(&mut self, body: Body, is_over: bool) -> Option<Body> {
        let is_alive = self.processes[body.process].is_alive;
        if is_over || !is_alive {
            self.settle_last();
            self.tasks.by_number.remove(&body.number);
            return Some(body);
        }
        match self.tasks.by_number.get_mut(&body.number) {
            Some(task) => {
                task.body = Some(body);
                self.settle();
                None
            }
            None => Some(body),
        }
    }

    /// Adds a process with the settings of the current one.
    pub(super) fn add_process(&mut self, name: String) -> usize {
        let parent = self.process();
        let process = ProcessState {
            name,
            is_alive: true,
            tunables: parent.tunables.clone(),
            bug: parent.bug,
            clock_offset_s: parent.clock_offset_s,
            counters: FixedMap::default(),
        };
        self.processes.push(process);
        self.processes.len() - 1
    }

    pub(super) fn process_at(&mut self, index: usize) -> &mut ProcessState {
        &mut self.processes[index]
    }

    /// Takes the tasks of a process, which runs no more, in the order of their numbers; all tasks
    /// for `None`.
    pub(super) fn kill(&mut self, process: Option<usize>) -> Vec<Body> {
        match process {
            Some(process) => self.processes[process].is_alive = false,
            None => self.tasks.is_ending = true,
        }
        let is_of = |task: &Task| process.is_none_or(|process| task.process == process);
        let tasks = self.tasks.by_number.iter().filter(|(_, task)| is_of(task));
        let mut numbers: Vec<u64> = tasks.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        let bodies = numbers.into_iter().filter_map(|number| {
            let task = self.tasks.by_number.get_mut(&number)?;
            // The task that is polled ends with its poll.
            let body = task.body.take()?;
            self.tasks.by_number.remove(&number);
            Some(body)
        });
        bodies.collect()
    }

    /// Returns the number of tasks of a process.
    pub(super) fn task_count(&self, process: usize) -> usize {
        self.tasks.by_number.values().filter(|task| task.process == process).count()
    }

    pub(super) fn report(&self) -> String {
        let (seconds, ns) = (self.clock.now_ns / 1_000_000_000, self.clock.now_ns % 1_000_000_000);
        let mut text = format!("after {seconds}.{ns:09} s, {} tasks:", self.tasks.by_number.len());
        let mut tasks: Vec<_> = self.tasks.by_number.iter().collect();
        tasks.sort_unstable_by_key(|(number, _)| **number);
        for (number, task) in tasks.iter().take(REPORT_MAX) {
            let process = &self.processes[task.process].name;
            let is_ready =
                task.body.as_ref().is_none_or(|body| body.wakeup.is_queued.load(Ordering::Acquire));
            let condition = match is_ready {
                _ if task.debt.is_paying() => "computes",
                true => "runs",
                false => "waits",
            };
            let _ = write!(
                text,
                "\n  task {number} of {process} {condition}: {}, started at {}",
                task.name, task.place
            );
        }
        if tasks.len() > REPORT_MAX {
            let _ = write!(text, "\n  and {} more", tasks.len() - REPORT_MAX);
        }
        text
    }
}
