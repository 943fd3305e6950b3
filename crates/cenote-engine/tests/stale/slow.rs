//! Devices in memory with slow reads.
//!
//! Most reads return immediately. Some wait before they read the device, some after that, for so
//! long that other tasks commit txgs meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, Image, ImageDevice};
use cenote_rt::{BoxFuture, Buf, BufMut, Result, Rng, sleep};

/// Unit of all pauses.
const STEP: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct SlowDevice {
    inner: ImageDevice,
    rng: Mutex<Rng>,
    is_slow: AtomicBool,
    /// Number of long reads.
    pub(crate) long: AtomicU64,
    is_exported: AtomicBool,
    /// Number of requests while the pool was exported.
    pub(crate) unexpected: AtomicU64,
}

impl SlowDevice {
    /// Returns device number `index`, of zeros; fast until [`set_slow`](Self::set_slow).
    pub(crate) fn new(index: usize, size: u64, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            inner: ImageDevice::new(format!("d{index}.img"), Image::zeroed(size)),
            rng: Mutex::new(Rng::seeded(seed << 8 | index as u64)),
            is_slow: AtomicBool::new(false),
            long: AtomicU64::new(0),
            is_exported: AtomicBool::new(false),
            unexpected: AtomicU64::new(0),
        })
    }

    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }

    /// Between an export and the next import there must be no request.
    pub(crate) fn set_exported(&self, is_exported: bool) {
        self.is_exported.store(is_exported, Ordering::Relaxed);
    }

    fn note_request(&self) {
        if self.is_exported.load(Ordering::Relaxed) {
            self.unexpected.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn image(&self) -> Image {
        self.inner.image()
    }

    /// Returns the steps to wait before and after reading.
    fn steps(&self) -> (u64, u64) {
        if !self.is_slow.load(Ordering::Relaxed) {
            return (0, 0);
        }
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = match rng.below(100) {
            0..90 => return (0, 0),
            90..98 => rng.below(20),
            _ => {
                self.long.fetch_add(1, Ordering::Relaxed);
                rng.below(6000)
            }
        };
        if rng.below(2) == 0 { (steps, 0) } else { (0, steps) }
    }
}

/// Lets other tasks run for this many steps.
pub(crate) async fn wait(steps: u64) {
    sleep(STEP * steps as u32).await;
}

impl Device for SlowDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            self.note_request();
            let (before, after) = self.steps();
            wait(before).await;
            let read = self.inner.read(offset, buf).await;
            wait(after).await;
            read
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        self.note_request();
        self.inner.write(offset, parts)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.note_request();
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        self.note_request();
        self.inner.discard(offset, len)
    }
}
