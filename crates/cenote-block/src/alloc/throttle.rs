//! How much may be on its way to a class's vdevs at once (spec 05 §8.3).
//!
//! Space is given out in the order of requests. If all of a txg's writes asked at once, slow and
//! fast vdevs would get equal shares; with a bound, the vdev that is done first is there first for
//! the next share. A writer takes a [`Reservation`] before it allocates and drops it when the write
//! is done. Log blocks, gang parts and whatever else must not wait simply take none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_rt::Semaphore;

use super::SpaceAllocator;
use super::class::Class;

/// Bytes that a permit stands for.
const UNIT: u64 = 4096;

/// The bounds, by class.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// LOCK: taken for a look, never across an await, with the allocator's lock held or not.
    lanes: Mutex<BTreeMap<Class, Lane>>,
}

#[derive(Debug, Clone)]
struct Lane {
    permits: Arc<Semaphore>,
    width: u32,
}

/// A share of what may be under way; given back when dropped.
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
    /// A vdev has come that `bytes` may be under way to.
    pub(super) fn widen(&self, class: Class, bytes: u64) {
        let more = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX >> 4);
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes
            .entry(class)
            .or_insert_with(|| Lane { permits: Arc::new(Semaphore::new(0)), width: 0 });
        lane.width = lane.width.saturating_add(more);
        lane.permits.add_permits(more as usize);
    }

    /// The lane of a class, or of the first that it falls back to and that has one.
    fn lane(&self, class: Class) -> Option<(Class, Lane)> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut classes = std::iter::successors(Some(class), |class| class.fallback());
        classes.find_map(|class| Some((class, lanes.get(&class)?.clone())))
    }
}

impl SpaceAllocator {
    /// Waits until so many bytes more may be on their way to the vdevs of each class, and of those
    /// it falls back to if it has none.
    ///
    /// Lanes are taken one after the other, in their order and each once, so that of several who
    /// take more than one none waits for another that waits for it.
    pub async fn reserve(&self, wanted: impl IntoIterator<Item = (Class, u64)>) -> Reservation {
        let mut lanes: BTreeMap<Class, (Lane, u64)> = BTreeMap::new();
        for (class, bytes) in wanted {
            let Some((class, lane)) = self.throttle.lane(class) else { continue };
            let (_, permits) = lanes.entry(class).or_insert((lane, 0));
            *permits = permits.saturating_add(bytes.div_ceil(UNIT));
        }
        let mut taken = Reservation::default();
        for (lane, count) in lanes.into_values() {
            // More than everything goes alone.
            let count = u32::try_from(count).unwrap_or(u32::MAX).min(lane.width);
            let Ok(permits) = lane.permits.acquire_many(count).await else { continue };
            permits.forget();
            taken.0.push((lane.permits, count));
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
    fn a_bounded_number_of_bytes_is_under_way() {
        let space = plain_pool();
        cenote_rt::block_on(1, async {
            // One vdev, four turns of 1 MiB.
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
