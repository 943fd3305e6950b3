//! Devices that are removed together: they lose unflushed writes, and can be put back. Or they hang
//! together: their writes are done later.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, Image, ImageDevice};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Notify, Result};

/// The bus of several devices: they are removed after a number of writes and flushes, or at a
/// certain flush.
#[derive(Debug)]
pub(crate) struct Bus {
    left: AtomicI64,
    is_out: AtomicBool,
    /// Number of started writes.
    writes: AtomicU64,
    /// Number of requested discards.
    discards: AtomicU64,
    trap: Mutex<Trap>,
    is_hung: AtomicBool,
    goes_on: Notify,
}

/// Effect of a flush.
#[derive(Debug, Default)]
enum Trap {
    #[default]
    None,
    /// The devices are removed, if this range was written before.
    Out { after: Range<u64>, is_set: bool },
    /// The bus hangs.
    Hang,
}

/// A device on a bus.
#[derive(Debug)]
pub(crate) struct Pluggable {
    bus: Arc<Bus>,
    info: DeviceInfo,
    contents: Mutex<Contents>,
}

#[derive(Debug)]
struct Contents {
    now: Image,
    durable: Image,
}

impl Bus {
    /// Returns a bus whose devices stay.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            left: AtomicI64::new(i64::MAX),
            is_out: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            trap: Mutex::default(),
            is_hung: AtomicBool::new(false),
            goes_on: Notify::new(),
        })
    }

    /// Returns the number of writes.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Removes the devices at the first flush after a write in this range.
    pub(crate) fn pull_out_at_flush_after(&self, after: Range<u64>) {
        *self.trap.lock().unwrap() = Trap::Out { after, is_set: false };
    }

    /// From the next flush on nothing is answered.
    pub(crate) fn hang_at_flush(&self) {
        *self.trap.lock().unwrap() = Trap::Hang;
    }

    /// Returns the number of requested discards.
    pub(crate) fn discards(&self) -> u64 {
        self.discards.load(Ordering::SeqCst)
    }

    /// Waits until the bus hangs.
    pub(crate) async fn until_hung(&self) {
        for _ in 0..1_000_000 {
            if self.is_hung.load(Ordering::SeqCst) {
                return;
            }
            cenote_rt::sleep(Duration::from_micros(1)).await;
        }
        panic!("no flush reaches the devices");
    }

    /// Answers all hanging requests.
    pub(crate) fn go_on(&self) {
        self.is_hung.store(false, Ordering::SeqCst);
        self.goes_on.notify_waiters();
    }

    /// Removes the devices after this number of writes and flushes.
    pub(crate) fn pull_out_after(&self, count: i64) {
        self.left.store(count, Ordering::SeqCst);
    }

    /// Whether they are removed.
    pub(crate) fn is_out(&self) -> bool {
        self.is_out.load(Ordering::SeqCst)
    }

    /// Puts them back, with their contents as of the last flush.
    pub(crate) fn put_back(&self, devices: &[Arc<Pluggable>]) {
        for device in devices.iter().filter(|device| std::ptr::eq(Arc::as_ptr(&device.bus), self)) {
            let mut contents = device.contents.lock().unwrap();
            contents.now = contents.durable.clone();
        }
        self.left.store(i64::MAX, Ordering::SeqCst);
        self.is_out.store(false, Ordering::SeqCst);
    }

    /// Counts a write or flush.
    fn pass(&self) -> Result<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.is_out.store(true, Ordering::SeqCst);
        }
        self.check()
    }

    /// A write at this offset begins.
    async fn write(&self, offset: u64) -> Result<()> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        if let Trap::Out { after, is_set } = &mut *self.trap.lock().unwrap() {
            *is_set |= after.contains(&offset);
        }
        self.answer().await;
        self.pass()
    }

    async fn flush(&self) -> Result<()> {
        {
            let mut trap = self.trap.lock().unwrap();
            match &*trap {
                Trap::Out { is_set: true, .. } => self.left.store(0, Ordering::SeqCst),
                Trap::Hang => self.is_hung.store(true, Ordering::SeqCst),
                _ => {}
            }
            if !matches!(&*trap, Trap::Out { is_set: false, .. }) {
                *trap = Trap::None;
            }
        }
        self.answer().await;
        self.pass()
    }

    async fn answer(&self) {
        loop {
            let goes_on = self.goes_on.notified();
            if !self.is_hung.load(Ordering::SeqCst) {
                return;
            }
            goes_on.await;
        }
    }

    fn check(&self) -> Result<()> {
        if self.is_out() { Err(Error::new(Kind::Io, "the device is out")) } else { Ok(()) }
    }
}

impl Pluggable {
    /// An empty device.
    pub(crate) fn new(bus: &Arc<Bus>, path: &str, size: u64) -> Arc<Self> {
        let now = Image::zeroed(size);
        let info = ImageDevice::new(path, now.clone()).info().clone();
        let contents = Mutex::new(Contents { durable: now.clone(), now });
        Arc::new(Self { bus: Arc::clone(bus), info, contents })
    }

    /// Returns its contents.
    pub(crate) fn image(&self) -> Image {
        self.contents.lock().unwrap().now.clone()
    }
}

impl Device for Pluggable {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            self.bus.check()?;
            self.contents.lock().unwrap().now.read_at(offset, &mut buf);
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.bus.write(offset).await?;
            let mut contents = self.contents.lock().unwrap();
            let mut at = offset;
            for part in parts {
                contents.now.write_at(at, &part);
                at += part.len() as u64;
            }
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.bus.flush().await?;
            let mut contents = self.contents.lock().unwrap();
            contents.durable = contents.now.clone();
            Ok(())
        })
    }

    fn discard(&self, _: u64, _: u64) -> BoxFuture<'_, Result<()>> {
        self.bus.discards.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Err(Error::new(Kind::Unsupported, "no discard")) })
    }
}
