//! Calls in hot spares for devices that fail, and logs that.

use std::sync::Weak;

use cenote_engine::{Engine, SpareReport, call_in_spares};

use super::log;

/// Follows the events of a pool until it is closed.
pub(super) async fn follow(engine: Weak<Engine>) {
    call_in_spares(engine, note).await;
}

fn note(pool: &str, report: SpareReport) {
    match report {
        SpareReport::CalledIn { leaf, spare } => {
            log::warn!(pool = %pool, device = %leaf, spare = %spare, "spare called in");
        }
        SpareReport::NotFilled(error) => {
            log::warn!(pool = %pool, cause = %error, "resilver not started");
        }
        SpareReport::NotCalledIn { leaf, cause } => {
            log::warn!(pool = %pool, device = %leaf, cause = %cause, "no spare called in");
        }
    }
}
