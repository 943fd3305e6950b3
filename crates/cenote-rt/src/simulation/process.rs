//! Processes of a simulation: groups of tasks that can be killed at any moment.
//!
//! A task belongs to the process of the code that starts it. The future of the simulation belongs
//! to the first process; a test runs a pool in another process, kills it, and continues in the
//! first. Several processes can run side by side, for example as two hosts with one pool.

use std::future::Future;

use super::executor;
use super::state::{ProcessState, with};
use crate::task::{JoinHandle, spawn};

/// A process of the current simulation.
///
/// # Panics
/// Its functions panic outside of its simulation.
#[derive(Debug, Clone)]
pub struct Process {
    simulation: u64,
    index: usize,
}

/// Makes code on this thread a part of the process before it again.
struct Left(usize);

impl Drop for Left {
    fn drop(&mut self) {
        with(|state| state.current = self.0);
    }
}

impl Process {
    /// Adds a process with the tunables, the bug and the clock of the current one. Its name is for
    /// reports.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let added = with(|state| (state.id, state.add_process(name)));
        let (simulation, index) = added.expect("processes are parts of a simulation");
        Self { simulation, index }
    }

    fn look<T>(&self, look: impl FnOnce(&mut ProcessState) -> T) -> T {
        let looked = with(|state| {
            assert!(state.id == self.simulation, "a process of another simulation");
            look(state.process_at(self.index))
        });
        looked.expect("processes are parts of a simulation")
    }

    /// Makes code on this thread a part of this process.
    fn enter(&self) -> Left {
        self.look(|_| ());
        let before = with(|state| std::mem::replace(&mut state.current, self.index));
        Left(before.expect("looked at"))
    }

    /// Starts a task of this process. A killed process starts none: the handle is cancelled.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let _left = self.enter();
        spawn(future)
    }

    /// Runs `work` as a part of this process, for example to set its tunables.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _left = self.enter();
        work()
    }

    /// Kills the process: drops all of its tasks at their present awaits. A task of the process
    /// that calls this is dropped at its next await.
    ///
    /// Destructors run. To keep them from changing devices, as after a real kill, the caller
    /// revokes the devices first.
    pub fn kill(&self) {
        self.look(|_| ());
        executor::kill(self.index);
    }

    /// Returns the number of its tasks that have not ended.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.look(|_| ());
        with(|state| state.task_count(self.index)).unwrap_or(0)
    }

    /// Sets the process's time of day to this number of seconds ahead of the simulation's. Its
    /// monotonic clock is that of the simulation.
    pub fn set_clock_offset(&self, seconds: i64) {
        self.look(|process| process.clock_offset_s = seconds);
    }
}
