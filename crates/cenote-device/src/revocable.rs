//! A device handle that can be revoked while others hold it.
//!
//! ```text
//!   tree, queues, views ──> Revocable ──> device
//!                          `─ revoked: no I/O reaches the device any more
//! ```
//!
//! Handles of a pool's devices are shared: by queues, by views, by tasks whose caller was dropped.
//! Dropping one of them releases nothing. So the vdev layer never hands out a device itself, but a
//! [`Revocable`] around it. Once that is revoked the device is dropped, and its lock released,
//! however many handles remain; they return [`DeviceClosed`].
//!
//! Invariants
//! * V1  No I/O begins after [`Revocable::revoke`] has returned: an I/O counts itself in while it
//!   holds the lock that `revoke` takes.
//! * V2  When [`Revocable::close`] returns true, no I/O is in flight, neither here nor in the
//!   kernel, and the device was dropped.
//!
//! Concurrency: the lock is held to copy a handle, never across I/O.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use cenote_rt::lock::{Rank, RwLock};
use cenote_rt::seeded::{self, Bug};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Notify, Result};

use crate::{Device, DeviceInfo};

/// I/O to a device that was closed; not an error of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device was closed")]
pub struct DeviceClosed;

/// A device that can be closed while other owners hold it.
#[derive(Debug)]
pub struct Revocable {
    info: DeviceInfo,
    /// `None` once it was revoked.
    device: RwLock<Option<Arc<dyn Device>>>,
    /// Number of I/Os in flight.
    in_flight: AtomicUsize,
    /// Number of I/Os that have returned.
    answered: AtomicU64,
    /// Whether callers with I/O in flight get an error that the device is closed.
    is_cut: AtomicBool,
    /// Notified when an I/O ends after the revocation.
    ended: Notify,
    /// Notified when `is_cut` is set.
    cut: Notify,
}

/// An I/O in flight, with its device.
struct OngoingIo<'a> {
    owner: &'a Revocable,
    device: Option<Arc<dyn Device>>,
}

impl OngoingIo<'_> {
    fn device(&self) -> Result<&Arc<dyn Device>> {
        self.device.as_ref().ok_or_else(|| self.owner.closed(0))
    }
}

impl Drop for OngoingIo<'_> {
    fn drop(&mut self) {
        // First: a task that waits for the count must find the device released.
        self.device = None;
        self.owner.answered.fetch_add(1, Ordering::Relaxed);
        let before = self.owner.in_flight.fetch_sub(1, Ordering::AcqRel);
        // Checks V2: every I/O is counted until it ends.
        assert!(before > 0, "an I/O of {} ended twice", self.owner.info.path);
        if self.owner.is_revoked() {
            self.owner.ended.notify_waiters();
        }
    }
}

impl Revocable {
    /// Wraps `device` until it is revoked.
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            info: device.info().clone(),
            device: RwLock::new(Rank::DeviceHandle, Some(device)),
            in_flight: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            ended: Notify::new(),
            cut: Notify::new(),
        })
    }

    /// Number of I/Os in flight, and of I/Os that have returned.
    pub fn activity(&self) -> (usize, u64) {
        (self.in_flight.load(Ordering::Acquire), self.answered.load(Ordering::Relaxed))
    }

    /// Whether it was revoked.
    pub fn is_revoked(&self) -> bool {
        self.device.read().is_none()
    }

    /// Refuses every I/O from now on (V1); returns the device, on the first call.
    pub fn revoke(&self) -> Option<Arc<dyn Device>> {
        if seeded::is_on(Bug::NoRevocation) {
            return None;
        }
        self.device.write().take()
    }

    /// Revokes the device and waits until no I/O is in flight. After `timeout`, callers of I/O in
    /// flight get an error, and false is returned: the device did not answer, its pending requests
    /// may still be carried out when it does, and its lock is released then.
    pub async fn close(&self, timeout: Duration) -> bool {
        let device = self.revoke();
        let ended = async {
            self.wait_until_idle().await;
            if let Some(device) = &device {
                device.settle().await;
            }
        };
        let is_quiet = cenote_rt::until(timeout, ended).await.is_some();
        let left = self.in_flight.load(Ordering::Acquire);
        // Checks V2.
        assert!(
            !is_quiet || left == 0 || !self.is_revoked(),
            "{left} I/Os of the closed {}",
            self.info.path
        );
        drop(device);
        if !is_quiet {
            self.is_cut.store(true, Ordering::Release);
            self.cut.notify_waiters();
        }
        is_quiet
    }

    /// Waits until every I/O that was begun has returned.
    async fn wait_until_idle(&self) {
        loop {
            // Registered before the check, so that no notification is missed.
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if !self.is_revoked() || self.in_flight.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }

    fn begin_io(&self, offset: u64) -> Result<OngoingIo<'_>> {
        let device = self.device.read();
        match &*device {
            Some(device) => {
                // Under the lock: V1.
                self.in_flight.fetch_add(1, Ordering::AcqRel);
                Ok(OngoingIo { owner: self, device: Some(Arc::clone(device)) })
            }
            // Checks V1.
            None => Err(self.closed(offset)),
        }
    }

    fn closed(&self, offset: u64) -> Error {
        Error::new(Kind::Closed, DeviceClosed).on_device(&self.info.path, offset)
    }

    /// Returns the result of `io`, or an error if its caller is cut off first.
    async fn unless_cut<T>(&self, offset: u64, mut io: BoxFuture<'_, Result<T>>) -> Result<T> {
        let mut cut = pin!(self.cut.notified());
        std::future::poll_fn(|context| {
            if let Poll::Ready(result) = io.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            // Registered before the check, so that no notification is missed.
            if cut.as_mut().poll(context).is_ready() || self.is_cut.load(Ordering::Acquire) {
                return Poll::Ready(Err(self.closed(offset)));
            }
            Poll::Pending
        })
        .await
    }
}

impl Device for Revocable {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let lent = self.begin_io(0)?;
            self.unless_cut(0, lent.device()?.current_size()).await
        })
    }

    fn grown(&self) -> BoxFuture<'_, Result<Option<Arc<dyn Device>>>> {
        Box::pin(async move {
            let lent = self.begin_io(0)?;
            self.unless_cut(0, lent.device()?.grown()).await
        })
    }

    fn is_at_its_path(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            // A closed device has no path.
            let Ok(lent) = self.begin_io(0) else { return true };
            match lent.device() {
                Ok(device) => device.is_at_its_path().await,
                Err(_) => true,
            }
        })
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            let lent = self.begin_io(offset)?;
            self.unless_cut(offset, lent.device()?.read(offset, buf)).await
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let lent = self.begin_io(offset)?;
            self.unless_cut(offset, lent.device()?.write(offset, parts)).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let lent = self.begin_io(0)?;
            self.unless_cut(0, lent.device()?.flush()).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let lent = self.begin_io(offset)?;
            self.unless_cut(offset, lent.device()?.discard(offset, len)).await
        })
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(lent) = self.begin_io(0)
                && let Ok(device) = lent.device()
            {
                device.settle().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use cenote_rt::{block_on, sleep, spawn};

    use super::*;
    use crate::MemoryDevice;

    /// A device that answers after a delay, or never.
    #[derive(Debug)]
    struct Slow(MemoryDevice, Option<Duration>);

    impl Device for Slow {
        fn info(&self) -> &DeviceInfo {
            self.0.info()
        }

        fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
            Box::pin(async move {
                match self.1 {
                    Some(pause) => sleep(pause).await,
                    None => std::future::pending().await,
                }
                self.0.read(offset, buf).await
            })
        }
    }

    fn slow(pause: Option<Duration>) -> (Arc<Slow>, Arc<Revocable>) {
        let device = Arc::new(Slow(MemoryDevice::new("slow", vec![7; 4096]), pause));
        (Arc::clone(&device), Revocable::new(device))
    }

    #[test]
    fn close_waits_for_io_in_flight() {
        block_on(1, async {
            let (device, handle) = slow(Some(Duration::from_millis(100)));
            let reader = Arc::clone(&handle);
            let read = spawn(async move { reader.read(0, BufMut::zeroed(512)).await });
            while handle.activity().0 == 0 {
                cenote_rt::yield_now().await;
            }
            assert!(handle.close(Duration::from_secs(5)).await);
            // V2: the test has the only handle.
            assert_eq!(Arc::strong_count(&device), 1);
            assert_eq!(read.await.expect("no panic").expect("in time")[0], 7);
            let error = handle.read(0, BufMut::zeroed(512)).await.expect_err("closed");
            assert_eq!((error.kind(), error.cause()), (Kind::Closed, Some(&DeviceClosed)));
            for refused in [
                handle.write(0, vec![Buf::from(vec![1; 512])]).await,
                handle.flush().await,
                handle.discard(0, 512).await,
            ] {
                assert_eq!(refused.expect_err("closed").kind(), Kind::Closed);
            }
            assert!(handle.close(Duration::ZERO).await, "once more");
        })
        .expect("runtime");
    }

    #[test]
    fn close_returns_although_the_device_hangs() {
        block_on(1, async {
            let (_, handle) = slow(None);
            let reader = Arc::clone(&handle);
            let read = spawn(async move { reader.read(0, BufMut::zeroed(512)).await });
            while handle.activity().0 == 0 {
                cenote_rt::yield_now().await;
            }
            assert!(!handle.close(Duration::from_millis(50)).await);
            let error = read.await.expect("no panic").expect_err("cut off");
            assert_eq!(error.kind(), Kind::Closed);
        })
        .expect("runtime");
    }
}
