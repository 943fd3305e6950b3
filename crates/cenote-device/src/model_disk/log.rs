//! A running hash of what devices do, for runs too long to record.
//!
//! The hash covers time, device, kind, place and bytes of each command when it is admitted, and
//! time and number of each completion. Two runs with one seed have the same hash, on any machine.

use cenote_rt::Buf;
use cenote_rt::lock::{Mutex, Rank};

use crate::model::Command;

const FACTORS: [u64; 2] = [0x0100_0000_01b3, 0x9e37_79b9_7f4a_7c15];

/// A hash over the commands of several devices.
#[derive(Debug)]
pub struct DeviceLog(Mutex<[u64; 3]>);

impl Default for DeviceLog {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::DeviceLog))
    }
}

impl DeviceLog {
    /// The hash so far, and the number of events in it.
    #[must_use]
    pub fn hash(&self) -> (u128, u64) {
        let [low, high, count] = *self.0.lock();
        (u128::from(high) << 64 | u128::from(low), count)
    }

    /// Adds an event.
    fn add(&self, words: &[u64]) {
        let mut state = self.0.lock();
        for word in words {
            mix(&mut state, *word);
        }
        state[2] += 1;
    }

    pub(super) fn admitted(&self, now_ns: u64, device: u64, command: &Command, parts: &[Buf]) {
        let Command { id, op, offset, len } = *command;
        let mut bytes = [0; 3];
        for part in parts {
            let (words, rest) = part.as_chunks::<8>();
            for word in words {
                mix(&mut bytes, u64::from_le_bytes(*word));
            }
            for byte in rest {
                mix(&mut bytes, u64::from(*byte));
            }
        }
        let [low, high, _] = bytes;
        self.add(&[now_ns, device, id, op as u64, offset, len, low, high]);
    }

    pub(super) fn completed(&self, now_ns: u64, device: u64, id: u64, is_ok: bool) {
        self.add(&[now_ns, device, id, u64::from(is_ok)]);
    }
}

fn mix(state: &mut [u64; 3], word: u64) {
    for (half, factor) in state.iter_mut().zip(FACTORS) {
        *half = (half.rotate_left(5) ^ word).wrapping_mul(factor);
    }
}
