//! A hash of everything that several devices are asked, and when.
//!
//! Two runs are equal if they send the same commands with the same bytes at the same times in the
//! same order, and get the answers at the same times. The hash of a run says so without keeping
//! anything: terabytes can be compared.
//!
//! ```text
//!   command   time, number of the device, kind, offset, length, hash of the bytes
//!   answer    time, number of the command, whether it failed
//! ```

use std::sync::Arc;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Buf, BufMut, Result};

use crate::{Device, DeviceInfo};

/// Kinds of commands.
const READ: u64 = 1;
const WRITE: u64 = 2;
const FLUSH: u64 = 3;
const DISCARD: u64 = 4;
/// An answer, as the kind of a command.
const ANSWER: u64 = 5;

/// A hash of 128 bits, the same on every machine: two chains with different multipliers.
#[derive(Debug, Clone, Copy)]
struct Hash(u64, u64);

impl Hash {
    const EMPTY: Self = Self(0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03);

    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last));
        self.add(bytes.len() as u64);
    }

    fn value(self) -> u128 {
        // The high bits of a product depend on all bits of its factors, the low ones do not.
        let mix = |half: u64| (half ^ half >> 32).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        u128::from(mix(self.0)) << 64 | u128::from(mix(self.1))
    }
}

#[derive(Debug)]
struct State {
    hash: Hash,
    devices: u64,
    commands: u64,
}

/// Hashes the commands of several devices.
#[derive(Debug)]
pub struct CommandHash {
    // Held for a few instructions, never across I/O.
    state: Mutex<State>,
}

impl CommandHash {
    /// Returns a hash of no commands.
    pub fn new() -> Arc<Self> {
        let state = State { hash: Hash::EMPTY, devices: 0, commands: 0 };
        Arc::new(Self { state: Mutex::new(Rank::CommandHash, state) })
    }

    /// Wraps `inner`, whose commands are hashed from now on. Devices are numbered in the order of
    /// these calls.
    pub fn wrap(self: &Arc<Self>, inner: Arc<dyn Device>) -> Arc<dyn Device> {
        let mut state = self.state.lock();
        let device = state.devices;
        state.devices += 1;
        drop(state);
        Arc::new(HashedDevice { inner, device, hash: Arc::clone(self) })
    }

    /// Returns the hash of the commands and answers so far.
    pub fn value(&self) -> u128 {
        self.state.lock().hash.value()
    }

    /// Returns the number of commands so far.
    pub fn commands(&self) -> u64 {
        self.state.lock().commands
    }

    /// Adds a command, and returns its number.
    fn begin(&self, device: u64, kind: u64, offset: u64, len: u64, parts: &[Buf]) -> u64 {
        let now = now_ns();
        let mut bytes = Hash::EMPTY;
        for part in parts {
            bytes.add_bytes(part);
        }
        let mut state = self.state.lock();
        for word in [now, device, kind, offset, len, bytes.0, bytes.1] {
            state.hash.add(word);
        }
        state.commands += 1;
        state.commands
    }

    /// Adds the answer of a command.
    fn end<T>(&self, number: u64, answer: Result<T>) -> Result<T> {
        let now = now_ns();
        let mut state = self.state.lock();
        for word in [now, ANSWER, number, u64::from(answer.is_err())] {
            state.hash.add(word);
        }
        answer
    }
}

fn now_ns() -> u64 {
    cenote_rt::monotonic().as_nanos() as u64
}

#[derive(Debug)]
struct HashedDevice {
    inner: Arc<dyn Device>,
    device: u64,
    hash: Arc<CommandHash>,
}

impl Device for HashedDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        self.inner.current_size()
    }

    fn grown(&self) -> BoxFuture<'_, Result<Option<Arc<dyn Device>>>> {
        Box::pin(async {
            let grown = self.inner.grown().await?;
            let wrap = |inner| -> Arc<dyn Device> {
                Arc::new(Self { inner, device: self.device, hash: Arc::clone(&self.hash) })
            };
            Ok(grown.map(wrap))
        })
    }

    fn is_at_its_path(&self) -> BoxFuture<'_, bool> {
        self.inner.is_at_its_path()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            let number = self.hash.begin(self.device, READ, offset, buf.len() as u64, &[]);
            let answer = self.inner.read(offset, buf).await;
            self.hash.end(number, answer)
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let len = parts.iter().map(|part| part.len() as u64).sum();
            let number = self.hash.begin(self.device, WRITE, offset, len, &parts);
            let answer = self.inner.write(offset, parts).await;
            self.hash.end(number, answer)
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let number = self.hash.begin(self.device, FLUSH, 0, 0, &[]);
            let answer = self.inner.flush().await;
            self.hash.end(number, answer)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let number = self.hash.begin(self.device, DISCARD, offset, len, &[]);
            let answer = self.inner.discard(offset, len).await;
            self.hash.end(number, answer)
        })
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        self.inner.settle()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::SimulatedDisk;

    /// Returns the hash of a run with some differences.
    fn run(byte: u8, offset: u64, pause: Duration, device: usize) -> (u128, u64) {
        let run = cenote_rt::simulate(1, async move {
            let hash = CommandHash::new();
            let disks = [1, 2].map(|_| hash.wrap(Arc::new(SimulatedDisk::new("sim", 1 << 20))));
            cenote_rt::sleep(pause).await;
            disks[device].write(offset, vec![Buf::from(vec![byte; 512])]).await.unwrap();
            disks[device].read(0, BufMut::zeroed(512)).await.unwrap();
            disks[0].flush().await.unwrap();
            assert!(disks[0].discard(1 << 30, 512).await.is_err());
            (hash.value(), hash.commands())
        });
        run.unwrap()
    }

    #[test]
    fn hash_depends_on_bytes_places_times_and_devices() {
        let none = Duration::ZERO;
        let hashes = [
            run(1, 0, none, 0),
            run(2, 0, none, 0),
            run(1, 512, none, 0),
            run(1, 0, Duration::from_nanos(1), 0),
            run(1, 0, none, 1),
        ];
        for (index, hash) in hashes.iter().enumerate() {
            assert_eq!(hash.1, 4);
            assert!(!hashes[..index].contains(hash), "run {index}");
        }
        assert_eq!(run(1, 0, none, 0), hashes[0]);
        // The value is the same on every machine and in every build.
        assert_eq!(format!("{:x}", hashes[0].0), "6d236e16e593c2ae055dcb3c45586034");
    }

    #[test]
    fn length_of_the_last_word_counts() {
        let hash = |bytes: &[u8]| {
            let mut hash = Hash::EMPTY;
            hash.add_bytes(bytes);
            hash.value()
        };
        assert_ne!(hash(&[1, 0]), hash(&[1]));
        assert_ne!(hash(&[]), hash(&[0; 8]));
    }
}
