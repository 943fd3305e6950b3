//! Tasks: changes of the MOS, which the next sync runs one after the other.

use std::sync::Arc;

use cenote_dmu::{Tx, TxResult};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Kind, Result};

use crate::Engine;
use crate::config::{Config, ConfigChanger};
use crate::dsl::Context;
use crate::dsl::history::PendingRecord;
use crate::error::{invariant_error, is_fatal};

/// The sync that runs a task.
pub(crate) struct Scope<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) context: Context,
}

impl Scope<'_> {
    /// Changes the config (C1).
    pub(crate) fn change_config<T>(&self, change: impl FnOnce(&mut Config) -> T) -> T {
        self.engine.config.change(ConfigChanger::of_sync(self), change)
    }

    /// Replaces the config by a changed copy of it (C1).
    ///
    /// # Errors
    /// `Kind::Invariant` if the config has changed since it was copied.
    pub(crate) fn replace_config(&self, changed: Config) -> Result<()> {
        self.engine.config.replace(ConfigChanger::of_sync(self), changed)
    }
}

/// An operation on the MOS in syncing context. A returned error is one of the pool; errors of the
/// request are sent to its caller.
pub(crate) trait Task: Send {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>>;

    /// Whether it may change more than the labels.
    fn may_change_objects(&self) -> bool {
        true
    }
}

/// Tasks of the next sync, or the reason why there is none.
#[derive(Debug, Default)]
pub(crate) struct TaskQueue {
    /// Tasks for the next sync, with their waiting callers.
    pub(crate) tasks: Vec<QueuedTask>,
    /// Records for the history that wait for tasks that may change objects.
    pub(crate) records: Vec<PendingRecord>,
    /// Why nothing is written any more.
    pub(crate) stopped: Option<String>,
}

pub(crate) struct QueuedTask {
    pub(crate) task: Box<dyn Task>,
}

impl std::fmt::Debug for QueuedTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueuedTask")
    }
}

/// A task that consists of one transaction on the MOS.
pub(crate) struct Change<F, T> {
    change: F,
    answer: Arc<Answer<T>>,
}

/// The result of a task.
pub(crate) struct Answer<T>(Mutex<Option<Result<T>>>);

impl<T> Answer<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Rank::TaskAnswer, None)))
    }

    pub(crate) fn put(&self, result: Result<T>) {
        *self.0.lock() = Some(result);
    }

    /// Like [`unless_refused`](Self::unless_refused), for a change that was made whole or not at
    /// all: whatever was damaged, the MOS is as it was.
    ///
    /// # Errors
    /// A broken invariant.
    pub(crate) fn unless_failed<V>(&self, change: Result<V>) -> Result<Option<V>> {
        match change {
            Ok(changed) => Ok(Some(changed)),
            Err(error) if error.kind() == Kind::Invariant => Err(error),
            Err(error) => {
                self.put(Err(error));
                Ok(None)
            }
        }
    }

    /// Returns the change that a task made. An error of the request is its answer, and leaves
    /// nothing to do.
    ///
    /// # Errors
    /// Errors of the pool.
    pub(crate) fn unless_refused<V>(&self, change: Result<V>) -> Result<Option<V>> {
        match change {
            Ok(changed) => Ok(Some(changed)),
            Err(error) if is_fatal(&error) => Err(error),
            Err(error) => {
                self.put(Err(error));
                Ok(None)
            }
        }
    }

    pub(crate) fn take(&self) -> Result<T> {
        let result = self.0.lock().take();
        // Checks T4.
        result.unwrap_or_else(|| Err(invariant_error("a task was not run".into())))
    }
}

impl<F, T> Change<F, T>
where
    F: FnMut(&mut Tx<'_>, &Context) -> TxResult<T> + Send + 'static,
    T: Send + 'static,
{
    pub(crate) fn with_answer(change: F) -> (Box<dyn Task>, Arc<Answer<T>>) {
        let answer = Answer::new();
        (Box::new(Self { change, answer: Arc::clone(&answer) }), answer)
    }
}

impl<F, T> Task for Change<F, T>
where
    F: FnMut(&mut Tx<'_>, &Context) -> TxResult<T> + Send,
    T: Send,
{
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let change = &mut self.change;
            let result = engine.mos_apply(context.txg, |tx| change(tx, context)).await;
            if let Some(value) = self.answer.unless_refused(result)? {
                self.answer.put(Ok(value));
            }
            Ok(())
        })
    }
}
