//! The points up to which a head was received, by txg.
//!
//! A transaction that changes a received head notes its point as its last step, under the head's
//! lock; closing the txg takes that lock as well. So the sync of a txg finds the points of all of
//! its changes, and of no later one.

use std::collections::BTreeMap;

use cenote_rt::lock::{Mutex, Rank};

/// A point of a stream: what lies before it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceivePoint {
    /// Object number.
    pub object: u64,
    /// Offset in the object.
    pub offset: u64,
    /// Bytes of the stream, together with those of interrupted receives.
    pub bytes: u64,
}

impl ReceivePoint {
    /// The point of a receive that has begun.
    pub const START: Self = Self { object: 1, offset: 0, bytes: 0 };
}

/// The newest point of each txg that is not synced.
#[derive(Debug)]
pub struct ReceivePoints(
    // Held for a lookup. Taken under the lock of the head's object set, and no lock is taken
    // under it.
    Mutex<BTreeMap<u64, ReceivePoint>>,
);

impl Default for ReceivePoints {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::ReceivePoints))
    }
}

impl ReceivePoints {
    /// Notes the point after a change of `txg`. To be called as the last step of the transaction
    /// that makes the change.
    pub fn note(&self, txg: u64, point: ReceivePoint) {
        self.0.lock().insert(txg, point);
    }

    /// Removes the points of `txg` and earlier ones, and returns the newest.
    pub(crate) fn take(&self, txg: u64) -> Option<ReceivePoint> {
        let mut points = self.0.lock();
        let later = points.split_off(&(txg + 1));
        let synced = std::mem::replace(&mut *points, later);
        synced.into_values().next_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_takes_the_points_of_its_txg_and_no_later_ones() {
        let point = |object| ReceivePoint { object, offset: 0, bytes: object };
        let points = ReceivePoints::default();
        points.note(5, point(1));
        points.note(5, point(2));
        points.note(6, point(3));
        assert_eq!(points.take(5), Some(point(2)));
        assert_eq!(points.take(5), None);
        assert_eq!(points.take(7), Some(point(3)));
    }
}
