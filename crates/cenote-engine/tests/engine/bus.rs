//! Devices that are pulled out together: they lose what they had not flushed, and can be put back.
//! Or they hang together: what they are asked to write is done late.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cenote_device::{Device, DeviceInfo, Image, ImageDevice};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Notify, Result};

/// What devices hang on: pulled out after a number of writes and flushes, or at a certain flush.
#[derive(Debug)]
pub(crate) struct Bus {
    left: AtomicI64,
    is_out: AtomicBool,
    /// Writes that were begun.
    writes: AtomicU64,
    trap: Mutex<Trap>,
    is_hung: AtomicBool,
    goes_on: Notify,
}

/// What happens at a flush.
#[derive(Debug, Default)]
enum Trap {
    #[default]
    None,
    /// Out, if something was written there before.
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
    /// One that stays in.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            left: AtomicI64::new(i64::MAX),
            is_out: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            trap: Mutex::default(),
            is_hung: AtomicBool::new(false),
            goes_on: Notify::new(),
        })
    }

    /// Writes so far.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Pulls the devices out at the first flush after a write that begins in that range.
    pub(crate) fn pull_out_at_flush_after(&self, after: Range<u64>) {
        *self.trap.lock().unwrap() = Trap::Out { after, is_set: false };
    }

    /// From the next flush on nothing is answered.
    pub(crate) fn hang_at_flush(&self) {
        *self.trap.lock().unwrap() = Trap::Hang;
    }

    /// What was not answered is done now.
    pub(crate) fn go_on(&self) {
        self.is_hung.store(false, Ordering::SeqCst);
        self.goes_on.notify_waiters();
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

    /// A write begins there.
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
        Box::pin(async { Err(Error::new(Kind::Unsupported, "no discard")) })
    }
}
