//! Handles of tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::simulation;

/// Waits for the end of a task and returns its result. A task detaches when its handle is dropped:
/// it runs on, because device I/O must end before its buffers are freed.
pub struct JoinHandle<T>(Inner<T>);

enum Inner<T> {
    Tokio(tokio::task::JoinHandle<T>),
    Simulated(simulation::Joined<T>),
}

/// Why a task has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// It panicked, with this message.
    #[error("a task panicked: {0}")]
    Panicked(String),
    /// It was aborted, or its runtime or its process has ended.
    #[error("a task was cancelled")]
    Cancelled,
}

impl<T> JoinHandle<T> {
    pub(crate) fn of_tokio(handle: tokio::task::JoinHandle<T>) -> Self {
        Self(Inner::Tokio(handle))
    }

    pub(crate) fn simulated(handle: simulation::Joined<T>) -> Self {
        Self(Inner::Simulated(handle))
    }

    /// Has the task dropped at its present await, or before it runs again.
    pub fn abort(&self) {
        match &self.0 {
            Inner::Tokio(handle) => handle.abort(),
            Inner::Simulated(handle) => handle.abort(),
        }
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Inner::Tokio(handle) => handle.is_finished(),
            Inner::Simulated(handle) => handle.is_finished(),
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            Inner::Tokio(handle) => {
                Pin::new(handle).poll(context).map(|result| result.map_err(JoinError::from))
            }
            Inner::Simulated(handle) => handle.poll_result(context),
        }
    }
}

impl From<tokio::task::JoinError> for JoinError {
    fn from(error: tokio::task::JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => Self::Panicked(simulation::text_of(&*panic)),
            Err(_) => Self::Cancelled,
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}
