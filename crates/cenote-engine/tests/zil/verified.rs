//! `verify` beside writes of intent logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, ImageDevice};
use cenote_pool::verify::{self, Progress};
use cenote_poolkit::pools::{self, Silent};
use cenote_rt::{BoxFuture, Buf, BufMut, Result};
use cenote_vdev::LeafReader as _;

use crate::layout::Layout;
use crate::model::Op;
use crate::volume;

/// A device whose writes can be held back.
#[derive(Debug)]
struct Late {
    inner: Arc<ImageDevice>,
    is_held: AtomicBool,
    waiting: AtomicUsize,
}

impl Device for Late {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            while self.is_held.load(Ordering::Relaxed) {
                cenote_rt::sleep(Duration::from_millis(1)).await;
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.inner.write(offset, parts).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.flush()
    }
}

#[test]
fn verify_reports_no_log_block_that_one_side_of_a_mirror_lacks_yet() {
    cenote_rt::simulate(1, async {
        let builder = Layout::Mirror.builder(7);
        let late = |inner| {
            let (is_held, waiting) = (AtomicBool::new(false), AtomicUsize::new(0));
            Arc::new(Late { inner, is_held, waiting })
        };
        let devices: Vec<_> = builder.memory_devices().into_iter().map(late).collect();
        let engine = builder.create(pools::as_devices(&devices)).await.unwrap();
        let volume = volume(&engine, "tank/v").await.unwrap();
        let op = |number| Op { first: number, count: 1, salt: Some(number + 1) };
        // The first commit syncs, for the header.
        for number in 0..3 {
            let place = volume.apply(&engine, op(number), false).await.unwrap();
            volume.commit(&engine, place).await.unwrap();
        }
        // The next block of the log was allocated before this sync.
        engine.sync().await.unwrap();
        devices[1].is_held.store(true, Ordering::Relaxed);
        let place = volume.apply(&engine, op(3), false).await.unwrap();
        let commit = {
            let (engine, volume) = (Arc::clone(&engine), volume.clone());
            cenote_rt::spawn(async move { volume.commit(&engine, place).await })
        };
        while devices[1].waiting.load(Ordering::Relaxed) == 0 {
            cenote_rt::sleep(Duration::from_millis(1)).await;
        }
        let view = engine.view().await.unwrap();
        let progress = Arc::<Progress>::default();
        // On a busy leaf the reads of verify live on the ends of other I/Os.
        let others = {
            let tree = Arc::clone(engine.tree());
            cenote_rt::spawn(async move {
                loop {
                    let (leaf, _) = tree.leaves().nth(1).unwrap();
                    tree.read_leaf(leaf, 4 << 20, 512).await.unwrap();
                    cenote_rt::sleep(Duration::from_micros(10)).await;
                }
            })
        };
        let summary = verify::pool(&view, Arc::new(Silent), progress).await.unwrap();
        others.abort();
        assert!(summary.is_clean(), "{summary:?}");
        devices[1].is_held.store(false, Ordering::Relaxed);
        commit.await.unwrap().unwrap();
    })
    .unwrap();
}
