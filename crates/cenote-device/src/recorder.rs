//! Records all writes, discards and flushes of several devices.
//!
//!     device 0 ---W0-----------W2----F[W0]------->        log: W0 W1 D0 W2 D1 F0(since 4) ...
//!     device 1 ------W1-------------------------->
//!
//! A crash may happen between any two events. The contents of a device are then uncertain in
//! exactly the writes that no flush covers, so the log records what determines that: where a write
//! began (from there on it may be on the medium), where it ended, and where a flush began and
//! ended. A flush covers the writes of its device that had ended when it began, and takes effect
//! when it has ended itself: a program that relies on less or more than that has a bug, which this
//! ordering exposes. [`Replay`](crate::Replay) computes contents of devices from the log.

use std::sync::Arc;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Buf, BufMut, Result};

use crate::device::check_range;
use crate::image::Image;
use crate::{Device, DeviceInfo};

/// A recorded event. Devices are numbered in the order of [`Recorder::wrap`].
#[derive(Debug, Clone)]
pub enum Event {
    /// A write begins.
    Write {
        /// Number of the device.
        device: usize,
        /// First byte.
        offset: u64,
        /// The bytes, in order.
        parts: Vec<Buf>,
    },
    /// A discard of a range (recorded as zeros, like a write of zeros).
    Discard {
        /// Number of the device.
        device: usize,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The write or discard at index `of` of the log has returned successfully.
    Done {
        /// Index of its event.
        of: usize,
    },
    /// A flush has returned successfully.
    Flush {
        /// Number of the device.
        device: usize,
        /// Length of the log when it began: it covers the writes completed by then.
        since: usize,
    },
    /// The device has become longer.
    Grown {
        /// Number of the device.
        device: usize,
        /// Its size now.
        size: u64,
    },
    /// A mark by the program under test, such as "this write has returned".
    Mark(u64),
}

/// The recorded events.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// Initial contents of the devices, by number, with their initial sizes.
    pub bases: Vec<Image>,
    /// Events, in order.
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
                Event::Grown { device, size } => {
                    for word in [*device as u64, *size] {
                        hasher.write_u64(word);
                    }
                }
                Event::Done { .. } | Event::Mark(_) => {}
            }
        }
        hasher.finish()
    }
}

/// FNV-1a over words: enough to distinguish two logs, and the same on every machine.
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

/// Records several devices. Its lock is held to append an event, never across I/O.
#[derive(Debug)]
pub struct Recorder {
    log: Mutex<Log>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { log: Mutex::with_default(Rank::Recorder) }
    }
}

impl Recorder {
    /// Returns a recorder without devices.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Wraps `inner`, whose writes are recorded from now on; `base` are its present contents. The
    /// device is as long as `base`; if `inner` is longer, it can [grow](Self::grow).
    pub fn wrap(self: &Arc<Self>, inner: Arc<dyn Device>, base: Image) -> Arc<dyn Device> {
        let info = DeviceInfo { size: base.size(), ..inner.info().clone() };
        let device = self.with(|log| {
            log.bases.push(base);
            log.bases.len() - 1
        });
        Arc::new(RecordedDevice { info, inner, device, recorder: Arc::clone(self) })
    }

    /// Makes a device longer. Its handles keep their sizes, see [`Device::grown`].
    pub fn grow(&self, device: usize, size: u64) {
        self.note(Event::Grown { device, size });
    }

    /// Appends a mark of the program under test to the log.
    pub fn mark(&self, mark: u64) {
        self.note(Event::Mark(mark));
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.with(|log| log.events.len())
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The log so far. Bytes are shared, not copied.
    pub fn log(&self) -> Log {
        self.with(|log| log.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Log) -> T) -> T {
        work(&mut self.log.lock())
    }

    /// Appends an event and returns its index.
    fn note(&self, event: Event) -> usize {
        self.with(|log| {
            log.events.push(event);
            log.events.len() - 1
        })
    }
}

#[derive(Debug)]
struct RecordedDevice {
    info: DeviceInfo,
    inner: Arc<dyn Device>,
    device: usize,
    recorder: Arc<Recorder>,
}

impl RecordedDevice {
    /// Returns its size now.
    fn size(&self) -> u64 {
        let size_of = |event: &Event| match event {
            Event::Grown { device, size } if *device == self.device => Some(*size),
            _ => None,
        };
        let grown = self.recorder.with(|log| log.events.iter().rev().find_map(size_of));
        grown.unwrap_or(self.info.size).max(self.info.size)
    }
}

impl Device for RecordedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async { Ok(self.size()) })
    }

    fn grown(&self) -> BoxFuture<'_, Result<Option<Arc<dyn Device>>>> {
        Box::pin(async {
            let size = self.size();
            let longer = || Self {
                info: DeviceInfo { size, ..self.info.clone() },
                inner: Arc::clone(&self.inner),
                device: self.device,
                recorder: Arc::clone(&self.recorder),
            };
            Ok((size > self.info.size).then(|| Arc::new(longer()) as _))
        })
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            check_range(&self.info, offset, buf.len())?;
            self.inner.read(offset, buf).await
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_range(&self.info, offset, parts.iter().map(|part| part.len()).sum())?;
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
