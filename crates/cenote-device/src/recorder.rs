//! A log of everything that several devices are asked to write.
//!
//!     device 0 ---W0-----------W2----F[W0]------->        log: W0 W1 D0 W2 D1 F0(since 4) ...
//!     device 1 ------W1-------------------------->
//!
//! A crash may happen between any two events. What a device then holds is uncertain in exactly
//! the writes that no flush covers, so the log keeps what decides that: where a write began (from
//! there on it may be on the medium), where it ended, and for a flush where it began and ended. A
//! flush covers the writes of its device that had ended when it began, from when it has ended
//! itself: whoever counts on less or more than that has a bug, and this is the order that finds
//! it. [`Replay`](crate::Replay) makes contents of devices from the log.

use std::sync::{Arc, Mutex, PoisonError};

use cenote_rt::{BoxFuture, Buf, BufMut, Result};

use crate::image::Image;
use crate::{Device, DeviceInfo};

/// Something that a recorder has seen. Devices are numbered in the order of
/// [`Recorder::wrap`].
#[derive(Debug, Clone)]
pub enum Event {
    /// A write begins.
    Write {
        /// Number of the device.
        device: usize,
        /// First byte.
        offset: u64,
        /// What is written, in order.
        parts: Vec<Buf>,
    },
    /// A range loses its content (here: becomes zeros), as a write of zeros might.
    Discard {
        /// Number of the device.
        device: usize,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The write or discard at index `of` of the log has returned, without error.
    Done {
        /// Index of its event.
        of: usize,
    },
    /// A flush has returned, without error.
    Flush {
        /// Number of the device.
        device: usize,
        /// Length of the log when it began: it covers what was done by then.
        since: usize,
    },
    /// Something that the program under test says of itself, as "this write has returned".
    Mark(u64),
}

/// What was recorded.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// What the devices held when they were wrapped, by number.
    pub bases: Vec<Image>,
    /// What happened, in order.
    pub events: Vec<Event>,
}

impl Log {
    /// A hash of all writes, discards and flushes in their order: equal runs have equal hashes.
    pub fn hash(&self) -> u64 {
        use std::hash::Hasher as _;
        let mut hasher = HashState::default();
        for event in &self.events {
            match event {
                Event::Write { device, offset, parts } => {
                    hasher.write_u64(*device as u64);
                    hasher.write_u64(*offset);
                    for part in parts {
                        hasher.write(part);
                    }
                }
                Event::Discard { device, offset, len } => {
                    for word in [*device as u64, *offset, *len] {
                        hasher.write_u64(word);
                    }
                }
                Event::Flush { device, .. } => hasher.write_u64(!(*device as u64)),
                Event::Done { .. } | Event::Mark(_) => {}
            }
        }
        hasher.finish()
    }
}

/// FNV-1a on words: enough to tell two logs apart, and the same everywhere.
#[derive(Default)]
struct HashState(u64);

impl std::hash::Hasher for HashState {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x0100_0000_01b3);
    }
}

/// The recorder of several devices. Its lock is held while an event is noted, never across I/O.
#[derive(Debug, Default)]
pub struct Recorder {
    log: Mutex<Log>,
}

impl Recorder {
    /// A recorder without devices.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// `inner`, whose writes are recorded from here on; `base` is what it holds now.
    pub fn wrap(self: &Arc<Self>, inner: Arc<dyn Device>, base: Image) -> Arc<dyn Device> {
        let device = self.with(|log| {
            log.bases.push(base);
            log.bases.len() - 1
        });
        Arc::new(RecordedDevice { inner, device, recorder: Arc::clone(self) })
    }

    /// Puts a mark of the program under test into the log.
    pub fn mark(&self, mark: u64) {
        self.note(Event::Mark(mark));
    }

    /// Events so far.
    pub fn len(&self) -> usize {
        self.with(|log| log.events.len())
    }

    /// Whether nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was recorded so far. Bytes are shared, not copied.
    pub fn log(&self) -> Log {
        self.with(|log| log.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Log) -> T) -> T {
        work(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes an event and gives its index.
    fn note(&self, event: Event) -> usize {
        self.with(|log| {
            log.events.push(event);
            log.events.len() - 1
        })
    }
}

#[derive(Debug)]
struct RecordedDevice {
    inner: Arc<dyn Device>,
    device: usize,
    recorder: Arc<Recorder>,
}

impl Device for RecordedDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let event = Event::Write { device: self.device, offset, parts: parts.clone() };
            let of = self.recorder.note(event);
            self.inner.write(offset, parts).await?;
            self.recorder.note(Event::Done { of });
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let since = self.recorder.len();
            self.inner.flush().await?;
            self.recorder.note(Event::Flush { device: self.device, since });
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let of = self.recorder.note(Event::Discard { device: self.device, offset, len });
            self.inner.discard(offset, len).await?;
            self.recorder.note(Event::Done { of });
            Ok(())
        })
    }
}
