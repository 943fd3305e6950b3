//! Signals that end the program in an orderly way.
//!
//! They are blocked in all threads, and one thread waits for them: so no system call is
//! interrupted, and the end can be awaited like any other event.

use std::sync::Arc;

use cenote_rt::{Error, Kind, Notify, Result};
use nix::sys::signal::{SigSet, Signal};

use crate::stop::first;

/// Signals that end the program.
#[derive(Debug)]
pub struct Signals {
    came: Arc<Notify>,
}

impl Signals {
    /// Catches SIGINT, SIGTERM and SIGHUP from here on. Must be called before other threads are
    /// started, because they inherit the signal mask.
    ///
    /// # Errors
    /// `Kind::Io`.
    pub fn block() -> Result<Self> {
        let failed = |error: nix::errno::Errno| Error::new(Kind::Io, std::io::Error::from(error));
        let signals: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().map_err(failed)?;
        let came = Arc::new(Notify::new());
        let told = Arc::clone(&came);
        let wait = move || {
            while signals.wait().is_ok() {
                told.notify_one();
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
        thread.map_err(|error| Error::new(Kind::Io, error))?;
        Ok(Self { came })
    }

    /// Waits for the next signal.
    pub async fn next(&self) {
        self.came.notified().await;
    }

    /// Returns the result of `work`, or `None` if a signal comes first.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        first(self.next(), work).await
    }
}
