//! Files and sockets for monitoring and tuning the daemon without commands.
//!
//! ```text
//!   parameters/NAME           a tunable each, to be read and written
//!   metrics.sock              GET /metrics (Prometheus), /metrics.json; a page for browsers
//!   kstat/zfs/...             the same figures as a kernel module's files
//! ```
//!
//! All of it is in the daemon's state directory. Failures are logged, and do not affect the daemon
//! otherwise.

mod figures;
mod http;
mod kstats;
mod metrics;
mod page;
mod parameters;
mod shown;
mod top;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_cli::Host;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Notify, tunables};

use super::log;
use super::place::Place;
use super::pools::Pools;
use kstats::Kstats;
use parameters::Parameters;

/// All files and sockets.
#[derive(Debug)]
pub(super) struct Watch {
    parameters: Option<Arc<Parameters>>,
    kstats: Arc<Mutex<Option<Kstats>>>,
    /// Wakes the writer of kstats when tunables were set.
    tuned: Arc<Notify>,
    socket: PathBuf,
}

/// Logs a failure at a path.
fn told<T>(at: &Path, done: std::io::Result<T>) -> Option<T> {
    let failed = |error: &std::io::Error| {
        log::warn!(path = %at.display(), cause = %error, "not shown");
    };
    done.inspect_err(failed).ok()
}

impl Watch {
    /// Starts everything. To be called in a task.
    pub(super) fn start(place: &Place, pools: &Arc<Pools>) -> Self {
        let tuned = Arc::new(Notify::new());
        let (told_pools, told_tuned) = (Arc::downgrade(pools), Arc::clone(&tuned));
        let act = move || {
            told_tuned.notify_one();
            if let Some(pools) = told_pools.upgrade() {
                pools.pools().iter().for_each(|engine| engine.retune());
            }
        };
        let folder = parameters::place(&place.state);
        let parameters = told(&folder, Parameters::start(&folder, act));
        let folder = place.state.join("kstat");
        let kstats =
            Arc::new(Mutex::new(Rank::DaemonKstats, told(&folder, Kstats::create(&folder))));
        let writer = Writer {
            pools: Arc::downgrade(pools),
            kstats: Arc::clone(&kstats),
            tuned: Arc::clone(&tuned),
            folder,
        };
        drop(cenote_rt::spawn(writer.run()));
        let socket = place.state.join("metrics.sock");
        let page = page::page(pools, place.state.join("lab"));
        told(&socket, http::serve_unix(&socket, &page));
        if let Some(address) = std::env::var("CENOTE_METRICS_LISTEN").ok().filter(|a| !a.is_empty())
        {
            told(Path::new(&address), http::serve_tcp(&address, &page));
        }
        Self { parameters, kstats, tuned, socket }
    }

    /// Applies tunables whose files were written so far. To be called before a command runs.
    pub(super) fn settle(&self, pools: &Pools) {
        if self.parameters.as_ref().is_some_and(|files| files.settle().unwrap_or(false)) {
            self.tuned.notify_one();
            pools.pools().iter().for_each(|engine| engine.retune());
        }
    }

    /// Applies tunables that a command has set.
    pub(super) fn apply_tunables(&self) {
        self.tuned.notify_one();
        if let Some(parameters) = &self.parameters {
            parameters.show();
        }
    }

    /// Removes files that would be stale.
    pub(super) fn stop(&self) {
        if let Some(parameters) = &self.parameters {
            parameters.remove();
        }
        std::fs::remove_file(&self.socket).ok();
        let mut kstats = self.kstats.lock();
        if let Some(kstats) = kstats.take() {
            kstats.remove();
        }
    }
}

/// Writes kstats every few seconds, as long as the pools exist.
struct Writer {
    pools: Weak<Pools>,
    kstats: Arc<Mutex<Option<Kstats>>>,
    tuned: Arc<Notify>,
    folder: PathBuf,
}

impl Writer {
    async fn run(self) {
        loop {
            let Some(engines) = self.pools.upgrade().map(|pools| pools.pools()) else { return };
            let figures = figures::collect(&engines).await;
            // The pools are not held while waiting.
            drop(engines);
            if !self.write(&figures) {
                return;
            }
            let interval = Duration::from_secs(tunables::KSTAT_INTERVAL.get());
            // Sooner if the interval was shortened.
            cenote_rt::until(interval, self.tuned.notified()).await;
        }
    }

    /// Returns whether to continue.
    fn write(&self, figures: &[figures::PoolFigures]) -> bool {
        let mut kstats = self.kstats.lock();
        let Some(kstats) = &mut *kstats else { return false };
        told(&self.folder, kstats.write(figures));
        true
    }
}
