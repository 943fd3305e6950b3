//! Limits the bytes in flight to each allocation class (spec 05 §8.3).
//!
//! Space is allocated in the order of requests. If all of a txg's writes allocated at once, slow
//! and fast vdevs would get equal shares; with a limit, the vdev that completes first gets the next
//! share first. A writer takes a [`Reservation`] before it allocates and drops it when the write is
//! done. Log blocks, gang parts and other writes that must not wait take none.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_rt::Semaphore;
use cenote_rt::lock::{Mutex, Rank};

use super::SpaceAllocator;
use super::class::Class;

/// Bytes per permit.
const UNIT: u64 = 4096;

/// The limits, by class.
#[derive(Debug)]
pub(super) struct Throttle {
    /// LOCK: short, never across an await, with the allocator's lock held or not.
    limits: Mutex<BTreeMap<Class, ClassLimit>>,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { limits: Mutex::with_default(Rank::AllocatorLanes) }
    }
}

#[derive(Debug, Clone)]
struct ClassLimit {
    permits: Arc<Semaphore>,
    width: u32,
}

/// A share of the bytes in flight; returned when dropped.
#[derive(Debug, Default)]
pub struct Reservation(Vec<(Arc<Semaphore>, u32)>);

impl Drop for Reservation {
    fn drop(&mut self) {
        for (permits, count) in &self.0 {
            permits.add_permits(*count as usize);
        }
    }
}

impl Throttle {
    /// Raises the limit of a class for a new vdev that allows `bytes` in flight.
    pub(super) fn widen(&self, class: Class, bytes: u64) {
        let more = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX >> 4);
        let mut limits = self.limits.lock();
        let limit = limits
            .entry(class)
            .or_insert_with(|| ClassLimit { permits: Arc::new(Semaphore::new(0)), width: 0 });
        limit.width = limit.width.saturating_add(more);
        limit.permits.add_permits(more as usize);
    }

    /// The limit of a class, or of the first fallback class that has one.
    fn limit(&self, class: Class) -> Option<(Class, ClassLimit)> {
        let limits = self.limits.lock();
        let mut classes = std::iter::successors(Some(class), |class| class.fallback());
        classes.find_map(|class| Some((class, limits.get(&class)?.clone())))
    }
}

impl SpaceAllocator {
    /// Waits until the given bytes may be in flight to the vdevs of each class, or of its fallback
    /// classes if it has none.
    ///
    /// Limits are taken one after the other, in their order and each once, so that callers that
    /// take more than one cannot deadlock.
    pub async fn reserve(&self, wanted: impl IntoIterator<Item = (Class, u64)>) -> Reservation {
        let mut limits: BTreeMap<Class, (ClassLimit, u64)> = BTreeMap::new();
        for (class, bytes) in wanted {
            let Some((class, limit)) = self.throttle.limit(class) else { continue };
            let (_, permits) = limits.entry(class).or_insert((limit, 0));
            *permits = permits.saturating_add(bytes.div_ceil(UNIT));
        }
        let mut taken = Reservation::default();
        for (limit, count) in limits.into_values() {
            // A request for more than the whole limit waits until nothing else is in flight.
            let count = u32::try_from(count).unwrap_or(u32::MAX).min(limit.width);
            let Ok(permits) = limit.permits.acquire_many(count).await else { continue };
            permits.forget();
            taken.0.push((limit.permits, count));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::tests::plain_pool;
    use super::*;

    #[test]
    fn bytes_in_flight_per_class_are_limited() {
        let space = plain_pool();
        cenote_rt::block_on(1, async {
            // One vdev, four aliquots of 1 MiB.
            let all = space.reserve([(Class::Special, 100 << 20)]).await;
            let mut next = Box::pin(space.reserve([(Class::Normal, 4096)]));
            assert!((&mut next).now_or_never().is_none());
            drop(all);
            let one = next.await;
            let rest =
                space.reserve([(Class::Normal, 4096), (Class::Special, (4 << 20) - 8192)]).await;
            assert!(space.reserve([(Class::Normal, 1)]).now_or_never().is_none());
            drop((one, rest));
        })
        .unwrap();
    }
}
