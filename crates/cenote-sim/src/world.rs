//! One life of a process, in a simulation.
//!
//! A life is a future that runs with all tasks that it starts, on one thread, in an order that the
//! seed determines. When the future returns, the process is gone: its tasks are dropped where they
//! are, like those of a killed process. Disks and models are outside, and live on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs a life that begins at the time `begin` since the start of the history. Returns its result,
/// or the message of its panic, and the time of its end.
pub(crate) fn live<T>(
    seed: u64,
    begin: Duration,
    life: impl Future<Output = T>,
) -> (Result<T, String>, Duration) {
    let timed = async {
        cenote_rt::sleep(begin).await;
        let done = life.await;
        (done, cenote_rt::monotonic())
    };
    match catch_unwind(AssertUnwindSafe(|| cenote_rt::simulate(seed, timed))) {
        Ok(Ok((done, end))) => (Ok(done), end),
        Ok(Err(error)) => (Err(format!("no simulation: {error}")), begin),
        Err(cause) => (Err(panic_message(&*cause)), begin),
    }
}

/// Returns the text of a panic.
pub(crate) fn panic_message(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().cloned();
    let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    format!("panic: {}", text.unwrap_or_else(|| "of unknown cause".to_owned()))
}
