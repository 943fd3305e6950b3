//! Tasks of a life: each performs its steps one after the other, while the others run.
//!
//! ```text
//!   step ──> effect on the model ──> operation ──> durable, done, refused, or interrupted
//! ```
//!
//! An operation may be refused for want of space. Every other error is a failure of the history,
//! unless the life is ending: then the operation is interrupted, its effect uncertain, and the
//! task ends.

mod datasets;
mod files;
mod lists;
mod operators;
mod readers;
mod rollbacks;
mod snapshots;
pub(crate) mod spares;
mod transfers;
mod volumes;

pub(crate) use readers::verify_pool;
pub(crate) use snapshots::dataset;
pub(crate) use volumes::volume_dataset;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_engine::Engine;
use cenote_fs::{Mount, WritableVolume};
use cenote_rt::{Error, JoinError, Kind, Notify, sleep, task_report, until};

use crate::disks::Machine;
use crate::model::Model;
use crate::model::files::{Id, Tree};
use crate::plan::{Op, Plan, Role, TaskPlan};
use crate::tally::Tally;

/// What lives of a history share.
#[derive(Debug)]
pub(crate) struct History {
    /// The plan.
    pub(crate) plan: Plan,
    /// The disks.
    pub(crate) machine: Arc<Machine>,
    model: Mutex<Model>,
    tally: Mutex<Tally>,
    failure: Mutex<Option<String>>,
    failed: Notify,
}

impl History {
    /// Returns a history that has not begun.
    pub(crate) fn new(plan: Plan) -> Arc<Self> {
        let machine = Machine::new(&plan.layout, plan.seed);
        Arc::new(Self {
            machine,
            model: Mutex::new(Model::new(&plan)),
            tally: Mutex::default(),
            failure: Mutex::default(),
            failed: Notify::new(),
            plan,
        })
    }

    /// Returns the model.
    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tally.
    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the history with a failure.
    pub(crate) fn fail(&self, what: String) {
        self.failure().get_or_insert(what);
        self.failed.notify_waiters();
    }

    /// Returns the failure, if there is one.
    pub(crate) fn failed(&self) -> Option<String> {
        self.failure().clone()
    }

    /// Waits for a failure.
    pub(crate) async fn until_failed(&self) {
        loop {
            let failed = self.failed.notified();
            if self.failed().is_some() {
                return;
            }
            failed.await;
        }
    }
}

/// The open pool of a life.
pub(crate) struct Running {
    /// The history.
    pub(crate) history: Arc<History>,
    /// The pool.
    pub(crate) engine: Arc<Engine>,
    /// File systems, by number; a rollback replaces one.
    mounts: Vec<Mutex<Arc<Mount>>>,
    /// Volumes, by number.
    pub(crate) volumes: Vec<Arc<WritableVolume>>,
    /// Disks that operators are adding to the pool: a device is opened for one of them only.
    claimed: Mutex<BTreeSet<usize>>,
    is_ending: AtomicBool,
}

/// A file or directory that an operation reads while its actor may change it.
struct Chosen {
    actor: usize,
    id: Id,
    object: u64,
    /// The first state that may be found.
    first: usize,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done.
    Done,
    /// It was refused, or there was nothing that it could be applied to.
    Refused,
    /// The life ended meanwhile.
    Interrupted,
}

/// How an operation ended, or how it failed.
type Ended = Result<Outcome, String>;

/// Simulated time within which every operation ends.
const OPERATION_TIME_MAX: Duration = Duration::from_hours(1);
/// Errors of a full pool.
const FULL: [Kind; 2] = [Kind::NoSpace, Kind::Quota];

impl Running {
    /// Returns an open pool.
    pub(crate) fn new(
        history: &Arc<History>,
        engine: Arc<Engine>,
        mounts: Vec<Arc<Mount>>,
        volumes: Vec<Arc<WritableVolume>>,
    ) -> Arc<Self> {
        let history = Arc::clone(history);
        let mounts = mounts.into_iter().map(Mutex::new).collect();
        Arc::new(Self {
            history,
            engine,
            mounts,
            volumes,
            claimed: Mutex::default(),
            is_ending: AtomicBool::new(false),
        })
    }

    fn slot(&self, file_system: usize) -> MutexGuard<'_, Arc<Mount>> {
        self.mounts[file_system].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a file system.
    fn mount(&self, file_system: usize) -> Arc<Mount> {
        Arc::clone(&self.slot(file_system))
    }

    fn claimed(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on errors are no failures.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Judges the error of an operation, with the kinds that are no failure.
    fn judge(&self, error: &Error, allowed: &[Kind]) -> Ended {
        let has_panicked = matches!(error.cause(), Some(JoinError::Panicked(_)));
        match error.kind() {
            Kind::Invariant => Err(format!("{error:?}")),
            _ if has_panicked => Err(format!("{error:?}")),
            kind if allowed.contains(&kind) => Ok(Outcome::Refused),
            _ if self.is_ending() => Ok(Outcome::Interrupted),
            _ => Err(format!("{error:?}")),
        }
    }

    /// Returns the node of an actor's newest tree that `choose` selects. There is none while it is
    /// being created: its number is not known.
    fn choose_node(
        &self,
        file_system: usize,
        actor: u32,
        choose: impl Fn(&Tree) -> Option<Id>,
    ) -> Option<Chosen> {
        let mut model = self.history.model();
        let now = model.tick();
        let actors = &model.file_systems[file_system].actors;
        let actor = actor as usize % actors.len();
        let states = &actors[actor].states;
        let id = choose(states.newest())?;
        let object = states.newest().node(id)?.object;
        (object != 0).then(|| Chosen { actor, id, object, first: states.ended_before(now) })
    }

    /// A commit of this txg was acknowledged.
    fn acknowledge(&self) {
        let txg = self.engine.uberblock().txg;
        self.history.model().acknowledge(txg);
    }
}

async fn rest(micros: u32) {
    if micros > 0 {
        sleep(Duration::from_micros(micros.into())).await;
    }
}

async fn perform(running: &Running, role: Role, op: Op, held: &mut files::Held) -> Ended {
    match role {
        Role::Files { file_system, actor } => {
            files::perform(running, (file_system, actor), op, held).await
        }
        Role::Home { file_system } => match op {
            Op::RollbackMount => rollbacks::perform(running, file_system, held).await,
            Op::Snapshot { .. } | Op::DestroySnapshot { .. } => {
                snapshots::perform(running, file_system, op).await
            }
            _ => files::perform(running, (file_system, 0), op, held).await,
        },
        Role::Volume { volume, actor } => volumes::perform(running, (volume, actor), op).await,
        Role::Datasets { tree } => datasets::perform(running, tree, op).await,
        Role::Snapshots { file_system } => snapshots::perform(running, file_system, op).await,
        Role::Reader => readers::perform(running, op).await,
        Role::Operator => operators::perform(running, op).await,
        Role::SpareAgent => Ok(Outcome::Refused),
    }
}

/// Performs the steps of a task.
pub(crate) async fn run(running: Arc<Running>, task: TaskPlan) {
    let mut held = files::Held::default();
    for step in task.steps {
        rest(step.pause).await;
        if running.is_ending() || running.history.failed().is_some() {
            return;
        }
        let performed = Box::pin(perform(&running, task.role, step.op, &mut held));
        let Some(ended) = until(OPERATION_TIME_MAX, performed).await else {
            let tasks = task_report().unwrap_or_default();
            let what = format!("{:?}, {:?} does not end:\n{tasks}", task.role, step.op);
            return running.history.fail(what);
        };
        match ended {
            Ok(Outcome::Interrupted) => return,
            Ok(outcome) => {
                let is_done = outcome == Outcome::Done;
                running.history.tally().operation(step.op.name(), is_done);
            }
            Err(what) => {
                running.history.fail(format!("{:?}, {:?}: {what}", task.role, step.op));
                return;
            }
        }
    }
}
