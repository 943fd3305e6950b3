//! Limits for clients that have not selected an export yet.
//!
//! Every client that can connect negotiates, even without a certificate. The whole negotiation
//! therefore has one deadline, which nothing that the client sends extends, and these clients have
//! a share of the connections of their own: while it is used up, a new client displaces the one
//! that has negotiated for the longest time. So clients that do not come to an end keep nobody out.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_rt::{Error, Kind, Result, monotonic};

use super::ClientError;
use crate::stop::Stop;

/// Maximum number of clients that negotiate.
pub(super) const NEGOTIATING_MAX: usize = 64;
/// Time limit for a negotiation.
const TIME_MAX: Duration = Duration::from_mins(1);

/// The clients that negotiate, the oldest first. Belongs to the task that accepts clients.
#[derive(Debug, Default)]
pub(super) struct Negotiations(VecDeque<Weak<Negotiation>>);

impl Negotiations {
    /// Begins a negotiation; displaces the oldest one if there are too many.
    pub(super) fn begin(&mut self) -> Arc<Negotiation> {
        self.0.retain(|negotiation| negotiation.strong_count() > 0);
        while self.0.len() >= NEGOTIATING_MAX {
            if let Some(oldest) = self.0.pop_front().and_then(|oldest| oldest.upgrade()) {
                oldest.displaced.request();
            }
        }
        let deadline = monotonic() + TIME_MAX;
        let negotiation = Arc::new(Negotiation { deadline, displaced: Stop::default() });
        self.0.push_back(Arc::downgrade(&negotiation));
        negotiation
    }
}

/// One negotiation, until it is dropped.
#[derive(Debug)]
pub(super) struct Negotiation {
    deadline: Duration,
    /// Another client takes its place.
    displaced: Stop,
}

impl Negotiation {
    /// Waits for something that depends on the client.
    ///
    /// # Errors
    /// `Kind::Limit` if the negotiation takes too long or is displaced; the errors of `work`.
    pub(super) async fn bound<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let over = || Err(Error::new(Kind::Limit, ClientError::Undecided));
        let left = self.deadline.saturating_sub(monotonic());
        // Work that is ready immediately would be done even without any time left.
        if left.is_zero() {
            return over();
        }
        let done = cenote_rt::until(left, self.displaced.or(work)).await.flatten();
        done.unwrap_or_else(over)
    }
}

#[cfg(test)]
mod tests {
    use cenote_rt::{simulate, sleep};

    use super::*;

    #[test]
    fn steps_do_not_extend_the_deadline() {
        simulate(1, async {
            let negotiation = Negotiations::default().begin();
            let (begin, mut steps) = (monotonic(), 0);
            let step = || async {
                sleep(Duration::from_secs(20)).await;
                Ok(())
            };
            while negotiation.bound(step()).await.is_ok() {
                steps += 1;
                assert!(steps < 10, "no end");
            }
            assert!(steps == 2 || steps == 3, "{steps}");
            let took = monotonic().saturating_sub(begin);
            assert!(took <= TIME_MAX + Duration::from_secs(1), "{took:?}");
        })
        .expect("runtime");
    }

    #[test]
    fn the_oldest_negotiation_is_displaced() {
        simulate(1, async {
            let mut all = Negotiations::default();
            let mut clients: Vec<_> = (0..NEGOTIATING_MAX).map(|_| all.begin()).collect();
            // One that has ended frees its place.
            clients.remove(1);
            clients.push(all.begin());
            let wait = || async {
                sleep(Duration::from_secs(1)).await;
                Ok(())
            };
            clients[0].bound(wait()).await.expect("not displaced");
            let newest = all.begin();
            clients[0].bound(wait()).await.expect_err("displaced");
            clients[1].bound(wait()).await.expect("not displaced");
            newest.bound(wait()).await.expect("not displaced");
        })
        .expect("runtime");
    }
}
