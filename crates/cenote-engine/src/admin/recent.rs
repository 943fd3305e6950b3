//! Errors of devices that were seen a short time ago, of which further events say nothing new.
//!
//! An error is the same one if leaf, type, offset, length and class of the I/O are the same. Its
//! events are suppressed until it was not seen for `zfs_zevent_retain_expire_secs`. The number of
//! errors that are remembered is bounded by `zfs_zevent_retain_max`; the oldest one is forgotten
//! for a new one. 0 switches this off.
//!
//! Source: the manual page zfs(4).

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_rt::{monotonic, tunables};
use cenote_vdev::{IoClass, LeafIo};

/// What tells one error from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeenError {
    pub(super) io: LeafIo,
    /// Class of the read that found wrong bytes; `None` for an error that the device reported.
    pub(super) class: Option<IoClass>,
}

/// The errors, each with the time and the number of its last event.
#[derive(Debug, Default)]
pub(super) struct RecentErrors {
    last_seen: BTreeMap<SeenError, (Duration, u64)>,
    /// The errors in the order in which they were last seen, by number.
    by_age: BTreeMap<u64, SeenError>,
    next_number: u64,
}

impl RecentErrors {
    /// Records an error. Returns whether the same one was seen a short time ago.
    pub(super) fn is_repeated(&mut self, error: SeenError) -> bool {
        let most = tunables::ZEVENT_RETAIN_MAX.get_usize();
        if most == 0 {
            self.clear();
            return false;
        }
        let now = monotonic();
        let number = self.next_number;
        self.next_number += 1;
        let before = self.last_seen.insert(error, (now, number));
        self.by_age.insert(number, error);
        if let Some((_, number)) = before {
            self.by_age.remove(&number);
        }
        while self.last_seen.len() > most
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.last_seen.remove(&oldest);
        }
        let expiry = Duration::from_secs(tunables::ZEVENT_RETAIN_EXPIRE_SECS.get());
        before.is_some_and(|(time, _)| now.saturating_sub(time) <= expiry)
    }

    /// Forgets all errors.
    pub(super) fn clear(&mut self) {
        self.last_seen.clear();
        self.by_age.clear();
    }
}

#[cfg(test)]
mod tests {
    use cenote_rt::{World, simulate};
    use cenote_vdev::IoKind;

    use super::*;

    #[test]
    fn the_oldest_error_is_forgotten_for_a_new_one() {
        for (most, want) in [(0, [false; 4]), (2, [true, false, false, true])] {
            let tunables = vec![(&tunables::ZEVENT_RETAIN_MAX, most)];
            let done = simulate(World { tunables, ..World::new(1) }, async move {
                let mut recent = RecentErrors::default();
                let mut seen = |offset| {
                    let io = LeafIo { leaf: 1, kind: IoKind::Write, offset, len: 512 };
                    recent.is_repeated(SeenError { io, class: None })
                };
                assert!(!seen(1));
                let got = [seen(1), seen(2), seen(3), seen(3)];
                assert_eq!(got, want);
                // 1 was forgotten for 3, and 2 for 1.
                assert_eq!([seen(1), seen(2)], [false; 2]);
            });
            done.expect("simulated");
        }
    }
}
