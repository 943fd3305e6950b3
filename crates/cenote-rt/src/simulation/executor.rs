//! The executor of a simulation: one thread polls the tasks, and moves the clock when none can run.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::state::{Body, MAIN, Next, Payload, State, Wakeup, with};
use crate::task::{BoxFuture, JoinError, oneshot};
use crate::{Error, Kind, Result};

/// Runs the simulation of this thread until `main` ends.
pub(super) fn run<'a, T>(mut main: Pin<Box<dyn Future<Output = T> + 'a>>) -> Result<T> {
    let wakeup = with(|state| state.wakeup(MAIN)).expect("it was entered");
    wakeup.wake_by_ref();
    let waker = Waker::from(Arc::clone(&wakeup));
    loop {
        match with(State::next).expect("it was entered") {
            Next::Main => {
                wakeup.begin_poll();
                if let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&waker)) {
                    drop(main);
                    if let Some(panic) = with(|state| state.panic.take()).flatten() {
                        resume_unwind(panic);
                    }
                    return Ok(value);
                }
                with(State::settle);
            }
            Next::Poll(body) => poll(body),
            Next::Drop(body) => drop_body(body),
            Next::Wake(waker) => waker.wake(),
            Next::Again => {}
            Next::Panic(panic) => resume_unwind(panic),
            Next::Stuck(stuck) => return Err(Error::new(Kind::Limit, stuck)),
        }
    }
}

fn poll(mut body: Body) {
    let polled = body.future.as_mut().poll(&mut Context::from_waker(&body.waker));
    let ended = with(|state| state.end_poll(body, polled.is_ready())).flatten();
    if let Some(body) = ended {
        drop_body(body);
    }
}

/// Drops a task, whose destructors run as a part of its process.
fn drop_body(body: Body) {
    let before = with(|state| std::mem::replace(&mut state.current, body.process));
    let wakeup = Arc::clone(&body.wakeup);
    drop(body);
    wakeup.end();
    if let Some(before) = before {
        with(|state| state.current = before);
    }
}

/// Drops the tasks of a process at once, as if it had been killed.
pub(super) fn kill(process: usize) {
    let killed = with(|state| state.kill(Some(process))).unwrap_or_default();
    killed.into_iter().for_each(drop_body);
}

/// Drops all tasks of the simulation.
pub(super) fn drop_tasks() {
    let killed = with(|state| state.kill(None)).unwrap_or_default();
    killed.into_iter().for_each(drop_body);
}

/// The handle of a simulated task. The task detaches when it is dropped.
#[derive(Debug)]
pub(crate) struct Joined<T> {
    result: oneshot::Receiver<Result<T, Payload>>,
    /// `None` if the task was not started.
    wakeup: Option<Arc<Wakeup>>,
}

impl<T> Joined<T> {
    /// Polls for the end of the task.
    pub(crate) fn poll_result(&mut self, context: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        Pin::new(&mut self.result).poll(context).map(|result| match result {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => Err(JoinError::Panicked(text_of(&*panic))),
            Err(_) => Err(JoinError::Cancelled),
        })
    }

    /// Whether the task has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.wakeup.as_ref().is_none_or(|wakeup| wakeup.is_over())
    }

    /// Has the task dropped before it would be polled again.
    pub(crate) fn abort(&self) {
        if let Some(wakeup) = &self.wakeup {
            wakeup.abort();
        }
    }
}

impl<T> Drop for Joined<T> {
    fn drop(&mut self) {
        if let Ok(Err(panic)) = self.result.try_recv() {
            raise(panic);
        }
    }
}

/// Ends the simulation with this panic.
fn raise(panic: Payload) {
    // The panic before it is dropped here, without the state.
    drop(with(|state| state.panic.replace(panic)));
}

/// Starts a task.
pub(crate) fn spawn<T: Send + 'static>(
    mut future: BoxFuture<'static, T>,
    name: &'static str,
    place: &'static Location<'static>,
) -> Joined<T> {
    let (sender, result) = oneshot::channel();
    let (mut sender, mut outcome) = (Some(sender), None);
    let body = std::future::poll_fn(move |context| {
        if outcome.is_none() {
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
            outcome = match polled {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(value)) => Some(Ok(value)),
                Err(panic) => Some(Err(panic)),
            };
            // Its result is there when the work has taken its time.
            if with(State::owes) == Some(true) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        if let (Some(sender), Some(outcome)) = (sender.take(), outcome.take())
            && let Err(Err(panic)) = sender.send(outcome)
        {
            raise(panic);
        }
        Poll::Ready(())
    });
    let started = with(|state| state.start(Box::pin(body), name, place));
    // The future of a task that is not started is dropped here, and its handle is cancelled.
    let wakeup = started.and_then(std::result::Result::ok);
    Joined { result, wakeup }
}

/// Returns the message of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".to_owned())
}
