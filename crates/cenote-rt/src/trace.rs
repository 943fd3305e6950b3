//! Spans and events of the process's work, for a listener such as the daemon's log.
//!
//! ```text
//!   request   kind, pool, object   a command, or a request of the kernel (FUSE) or an NBD client
//!   import    pool                 opening a pool
//!   txg       pool, txg            one sync: passes, labels, uberblock; has no parent
//!     pass    pass                 one pass of the sync
//!   scan      pool, purpose        reading all blocks of a pool
//! ```
//!
//! Spans and events go to the listener of the process ([`listen`]), which the program sets. Without
//! a listener, or if its filter excludes the span, creating a span costs one load of a level: no
//! field is computed and nothing is allocated. The field `pool` distinguishes the pools of one
//! process.
//!
//! A span covers a future ([`Span::run`]) and the tasks that the future starts ([`crate::spawn`],
//! [`crate::start`]), so that their events carry the fields of the span. The span ends when all of
//! them have ended. Tasks that run until the pool is closed are started with
//! [`crate::spawn_background`], and belong to no span.

use std::future::Future;

use tracing::Instrument;
use tracing::level_filters::LevelFilter;
pub use tracing::{debug, error, info, trace, warn};

use crate::task::BoxFuture;

/// Types for implementing a listener.
pub mod listen {
    pub use tracing::field::{Field, Visit};
    pub use tracing::span::{Attributes, Id, Record};
    pub use tracing::subscriber::set_global_default;
    pub use tracing::{Event, Level, Subscriber};
}

/// A unit of work with its fields. A span that no listener records is empty.
#[derive(Debug, Clone)]
pub struct Span(tracing::Span);

impl Span {
    /// Returns `work` as a part of this span.
    pub fn run<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        work.instrument(self.0)
    }

    /// Runs `work` as a part of this span, with the tasks that it starts.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.in_scope(work)
    }

    /// Returns true if no listener records the span.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// Returns the span of opening a pool.
#[must_use]
pub fn import(pool: &str) -> Span {
    Span(tracing::debug_span!(target: "cenote::import", "import", pool))
}

/// Returns the span of the sync of a txg. `pool` is called for the name only if a listener
/// records the span.
pub fn txg(pool: impl FnOnce() -> String, txg: u64) -> Span {
    Span(tracing::debug_span!(target: "cenote::txg", parent: None, "txg", pool = pool(), txg))
}

/// Returns the span of a pass of a sync.
#[must_use]
pub fn pass(pass: u32) -> Span {
    Span(tracing::trace_span!(target: "cenote::txg", "pass", pass))
}

/// Returns the span of reading all blocks of a pool, for example to verify them.
#[must_use]
pub fn scan(pool: &str, purpose: &'static str) -> Span {
    Span(tracing::debug_span!(target: "cenote::scan", "scan", pool, purpose))
}

/// Returns the span of a request: `kind` is the command or the operation. The functions are called
/// only if a listener records the span.
pub fn request<K: AsRef<str>>(
    kind: impl FnOnce() -> K,
    pool: impl FnOnce() -> Option<String>,
    object: impl FnOnce() -> Option<u64>,
) -> Span {
    Span(tracing::trace_span!(
        target: "cenote::request",
        "request",
        kind = kind().as_ref(),
        pool = pool(),
        object = object()
    ))
}

/// Returns `work` as a part of the current span.
pub(crate) fn inherit<T: 'static>(work: BoxFuture<'static, T>) -> BoxFuture<'static, T> {
    // All spans have this level or a more detailed one.
    if LevelFilter::current() < LevelFilter::DEBUG {
        return work;
    }
    let span = tracing::Span::current();
    if span.is_none() { work } else { Box::pin(work.instrument(span)) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn spans_are_empty_and_compute_nothing_without_a_listener() {
        let calls = Cell::new(0);
        let count = || calls.set(calls.get() + 1);
        let spans = [
            request(|| "read", || Some(format!("{:?}", count())), || Some(7)),
            txg(|| format!("{:?}", count()), 7),
            pass(1),
            import("tank"),
            scan("tank", "verify"),
        ];
        assert!(spans.iter().all(Span::is_empty));
        assert_eq!(calls.get(), 0);
        assert_eq!(spans[0].within(|| 7), 7);
    }
}
