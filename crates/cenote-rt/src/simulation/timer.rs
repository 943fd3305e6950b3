//! Timers of a simulation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::state::{State, with};

/// A moment that never comes: 584 years after the start.
const NEVER: u64 = u64::MAX;

/// Ends when the clock of the simulation reaches its deadline.
#[derive(Debug)]
struct Timer {
    /// The simulation that it belongs to; outside of it, it never ends.
    simulation: u64,
    deadline_ns: u64,
    /// Its number while it is set.
    number: Option<u64>,
}

impl Timer {
    /// Returns a timer that ends after this time.
    fn after(duration: Duration) -> Self {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(NEVER);
        let begin = with(|state| (state.id, state.clock.now_ns)).unwrap_or_default();
        Self { simulation: begin.0, deadline_ns: begin.1.saturating_add(ns), number: None }
    }

    /// Sets the timer, which wakes `waker`. Returns the waker that it replaces, or `Err` if the
    /// deadline has passed.
    fn set(&mut self, state: &mut State, waker: &Waker) -> Result<Option<Waker>, ()> {
        let clock = &mut state.clock;
        if state.id != self.simulation || self.deadline_ns == NEVER {
            return Ok(None);
        }
        if clock.now_ns >= self.deadline_ns {
            return Err(());
        }
        let number = *self.number.get_or_insert_with(|| {
            clock.timers_set += 1;
            clock.timers_set
        });
        let key = (self.deadline_ns, number);
        if clock.timers.get(&key).is_some_and(|before| before.will_wake(waker)) {
            return Ok(None);
        }
        Ok(clock.timers.insert(key, waker.clone()))
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        match with(|state| this.set(state, context.waker())) {
            Some(Err(())) => Poll::Ready(()),
            // The waker that was replaced is dropped without the state.
            Some(Ok(_)) | None => Poll::Pending,
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let key = (self.deadline_ns, number);
        let removed =
            with(
                |state| {
                    if state.id == self.simulation { state.clock.timers.remove(&key) } else { None }
                },
            );
        drop(removed);
    }
}

/// Waits.
pub(crate) async fn sleep(duration: Duration) {
    Timer::after(duration).await;
}

/// Waits for `future`, at most for `timeout`.
pub(crate) async fn until<T>(
    timeout: Duration,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut timer = Timer::after(timeout);
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        Pin::new(&mut timer).poll(context).map(|()| None)
    })
    .await
}
