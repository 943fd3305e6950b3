//! `verify` beside writes of intent logs, and scrubs of claimed ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, ImageDevice};
use cenote_engine::zil::VolumeReplayer;
use cenote_engine::{Engine, ScrubOptions};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::Pool;
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_pool::verify::{self, Progress};
use cenote_poolkit::pools::{self, Silent};
use cenote_rt::{BoxFuture, Buf, BufMut, Result};
use cenote_vdev::{LeafId, LeafRange, LeafReader as _};

use crate::layout::Layout;
use crate::model::Op;
use crate::{model, volume};

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

/// The places of the log blocks of a dataset on the first leaf, as far as they must be there.
struct LogBlocks {
    pool: Arc<Pool>,
    leaf: LeafId,
    written: Vec<LeafRange>,
}

impl LogBlocks {
    async fn of(engine: &Arc<Engine>, dataset: &str) -> Self {
        let pool = engine.view().await.unwrap();
        let set = pool.dataset(dataset).await.unwrap().open().await.unwrap();
        let txg = pool.txg();
        let leaf = engine.tree().leaves().next().unwrap().0;
        let mut found = Self { pool, leaf, written: Vec::new() };
        traverse::log(&set, txg, &mut found).await.unwrap();
        found
    }
}

impl Visitor for LogBlocks {
    async fn block(&mut self, bp: &BlockPtr, _: &Bookmark) -> Result<Flow> {
        if bp.object_type() == ObjectType::INTENT_LOG {
            let ranges = self.pool.store().leaf_ranges(bp);
            self.written.extend(ranges.iter().filter(|range| range.leaf == self.leaf));
        }
        Ok(Flow::Continue)
    }

    async fn unwritten(&mut self, _: &BlockPtr, _: &Bookmark) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        panic!("{damage:?}");
    }
}

/// A claimed log waits for its dataset to be mounted. A scrub repairs its blocks on one side of a
/// mirror, and leaves alone those of a log that is in use.
#[test]
fn scrub_repairs_claimed_logs() {
    cenote_rt::simulate(1, async {
        let (engine, devices) = Layout::Mirror.builder(7).create_in_memory().await;
        let volume = volume(&engine, "tank/v").await.unwrap();
        for number in 0..12 {
            let op = Op { first: number, count: 2, salt: Some(number + 1) };
            let place = volume.apply(&engine, op, false).await.unwrap();
            volume.commit(&engine, place).await.unwrap();
        }
        let contents = model::read(&volume.head).await.unwrap();
        let unclaimed = LogBlocks::of(&engine, "tank/v").await;
        assert!(unclaimed.written.is_empty());
        drop((unclaimed, volume, engine));
        // The process has died.
        let devices = pools::devices(pools::images_of(&devices));
        let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
        engine.sync().await.unwrap();
        let blocks = LogBlocks::of(&engine, "tank/v").await.written;
        assert!(blocks.len() > 5, "only {} blocks", blocks.len());
        let before = devices[0].image();
        for range in &blocks {
            let mut bytes = devices[0].read(range.offset, BufMut::zeroed(512)).await.unwrap();
            bytes[99] ^= 1;
            devices[0].write(range.offset, vec![bytes.freeze()]).await.unwrap();
        }
        engine.store().clear_cache();
        engine.scans().scrub(ScrubOptions::default()).await.unwrap();
        engine.scans().wait(ScanFunc::Scrub).await.unwrap();
        let errors = engine.tree().leaves().map(|(_, leaf)| leaf.stats().checksum_errors);
        assert_eq!(errors.collect::<Vec<_>>(), [blocks.len() as u64, 0]);
        let after = devices[0].image();
        for range in &blocks {
            let [was, is] = [&before, &after].map(|image| {
                let mut bytes = vec![0; range.len as usize];
                image.read_at(range.offset, &mut bytes);
                bytes
            });
            assert!(was == is, "{range:?}");
        }
        let head = engine.head("tank/v").await.unwrap();
        engine.intent_logs().replay(&head, &VolumeReplayer).await.unwrap().expect("a log");
        assert_eq!(model::read(&head).await.unwrap(), contents);
        engine.export().await.unwrap();
        pools::judge_devices(&devices, "after the replay", &[]);
    })
    .unwrap();
}
