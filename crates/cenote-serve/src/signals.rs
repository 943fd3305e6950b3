//! Signals that end the program in order.
//!
//! They are blocked in all threads and waited for by one: so nothing is interrupted, and whoever
//! waits for the end does so as for anything else.

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
    /// Catches SIGINT, SIGTERM and SIGHUP from here on. To be called before other threads are
    /// started: they take over what is blocked.
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

    /// Waits for the next.
    pub async fn next(&self) {
        self.came.notified().await;
    }

    /// What `work` gives, or nothing if a signal comes before that.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        first(self.next(), work).await
    }
}
