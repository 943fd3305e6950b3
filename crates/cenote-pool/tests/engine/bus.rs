//! Devices that are pulled out together: they lose what they had not flushed, and can be put back.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use cenote_device::{Device, DeviceInfo, Image, ImageDevice};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result};

/// What devices hang on: pulled out after a number of writes and flushes.
#[derive(Debug)]
pub(crate) struct Bus {
    left: AtomicI64,
    is_out: AtomicBool,
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
    /// One that stays in.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { left: AtomicI64::new(i64::MAX), is_out: AtomicBool::new(false) })
    }

    /// Pulls the devices out after so many writes and flushes.
    pub(crate) fn pull_out_after(&self, count: i64) {
        self.left.store(count, Ordering::SeqCst);
    }

    /// Whether they are out.
    pub(crate) fn is_out(&self) -> bool {
        self.is_out.load(Ordering::SeqCst)
    }

    /// Puts them back, as they are after their last flush.
    pub(crate) fn put_back(&self, devices: &[Arc<Pluggable>]) {
        for device in devices.iter().filter(|device| std::ptr::eq(Arc::as_ptr(&device.bus), self)) {
            let mut contents = device.contents.lock().unwrap();
            contents.now = contents.durable.clone();
        }
        self.left.store(i64::MAX, Ordering::SeqCst);
        self.is_out.store(false, Ordering::SeqCst);
    }

    /// Counts one more.
    fn pass(&self) -> Result<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.is_out.store(true, Ordering::SeqCst);
        }
        self.check()
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

    /// What it holds.
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
            self.bus.pass()?;
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
            self.bus.pass()?;
            let mut contents = self.contents.lock().unwrap();
            contents.durable = contents.now.clone();
            Ok(())
        })
    }

    fn discard(&self, _: u64, _: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Err(Error::new(Kind::Unsupported, "no discard")) })
    }
}
