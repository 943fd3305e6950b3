//! Leaves whose devices fail to flush, delay requests, or are replaced.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use cenote_device::{DeviceInfo, MemoryDevice};
use cenote_ondisk::config::VdevConfig;
use cenote_rt::{BoxFuture, BufMut, JoinHandle, Notify, World, simulate, tunables};

use super::*;
use crate::create::{self, CreateSpec, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};
use crate::tree::Place;
use crate::{BuildOptions, FlushOutcome, Tree, VdevAux, VdevState};

const SIZE: usize = 64 << 20;

/// A device that loses unflushed writes, fails flushes, or delays one request.
#[derive(Debug)]
struct Valve {
    now: MemoryDevice,
    durable: Mutex<Vec<u8>>,
    refuses: AtomicBool,
    writes: AtomicUsize,
    flushes: AtomicUsize,
    is_closed: AtomicBool,
    held: Notify,
    opened: Notify,
}

impl Valve {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            now: MemoryDevice::new("valve", vec![0; SIZE]),
            durable: Mutex::new(vec![0; SIZE]),
            refuses: AtomicBool::new(false),
            writes: AtomicUsize::new(0),
            flushes: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            held: Notify::new(),
            opened: Notify::new(),
        })
    }

    /// Delays the next write or flush.
    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Waits until a request is delayed.
    async fn until_held(&self) {
        self.held.notified().await;
    }

    /// Lets the delayed request continue.
    fn open(&self) {
        self.opened.notify_one();
    }

    async fn pass(&self) {
        if self.is_closed.swap(false, Ordering::SeqCst) {
            self.held.notify_one();
            self.opened.notified().await;
        }
    }

    fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Loses all unflushed writes, like a power cut.
    fn lose(&self) {
        let durable = self.durable.lock().expect("lock");
        self.now.edit(|bytes| bytes.copy_from_slice(&durable));
    }

    /// The value of every byte of a block.
    fn block(&self, offset: usize) -> u8 {
        let mut first = 0;
        self.now.edit(|bytes| {
            let block = &bytes[DATA_START as usize + offset..][..BLOCK];
            first = block[0];
            assert!(block.iter().all(|byte| *byte == first));
        });
        first
    }

    fn counts(&self) -> (usize, usize) {
        (self.writes.load(Ordering::SeqCst), self.flushes.load(Ordering::SeqCst))
    }
}

impl Device for Valve {
    fn info(&self) -> &DeviceInfo {
        self.now.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        self.now.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.writes.fetch_add(1, Ordering::SeqCst);
            self.pass().await;
            self.now.write(offset, parts).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.flushes.fetch_add(1, Ordering::SeqCst);
            self.pass().await;
            if self.refuses.load(Ordering::SeqCst) {
                return Err(Error::new(Kind::Io, "the cache is on fire"));
            }
            let mut durable = self.durable.lock().expect("lock");
            self.now.edit(|bytes| durable.copy_from_slice(bytes));
            Ok(())
        })
    }
}

/// Length of a block in bytes.
const BLOCK: usize = 64 << 10;

struct Fixture {
    tree: Arc<Tree>,
    valves: Vec<Arc<Valve>>,
    guids: Vec<u64>,
}

impl Fixture {
    fn new(redundancy: Redundancy, count: usize) -> Self {
        let valves: Vec<_> = (0..count).map(|_| Valve::new()).collect();
        let leaves = valves.iter().map(|valve| LeafSpec::of(valve.info())).collect();
        let top = TopSpec { redundancy, class: VdevClass::Normal, leaves };
        let spec = CreateSpec { tops: vec![top], ashift: Some(9), ..CreateSpec::default() };
        let root = create::pool(&spec, 4, &mut Guids::unguessable()).expect("spec").root;
        let guids: Vec<_> = root.leaves().map(|leaf| leaf.guid).collect();
        let open = |leaf: &VdevConfig| {
            let index = guids.iter().position(|guid| *guid == leaf.guid)?;
            Some(Arc::clone(&valves[index]) as Arc<dyn Device>)
        };
        let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
        let tree = Tree::build(&root, open, &options).expect("tree");
        Self { tree, valves, guids }
    }

    async fn write(&self, offset: usize, byte: u8, txg: u64) -> Result<()> {
        write(&self.tree, offset, byte, txg).await
    }

    fn begin_write(&self, offset: usize, byte: u8, txg: u64) -> JoinHandle<Result<()>> {
        let tree = Arc::clone(&self.tree);
        cenote_rt::spawn(async move { write(&tree, offset, byte, txg).await })
    }

    fn begin_flush(&self) -> JoinHandle<Result<FlushOutcome>> {
        let tree = Arc::clone(&self.tree);
        cenote_rt::spawn(async move { tree.flush().await })
    }

    fn leaf(&self, index: usize) -> &Leaf {
        let id = self.tree.leaf_of(self.guids[index]).expect("leaf");
        self.tree.leaf(id)
    }

    fn lacks(&self, index: usize, txg: u64) -> bool {
        self.leaf(index).dtl().is_some_and(|log| log.contains(txg))
    }

    fn take_out(&self, index: usize) {
        assert!(self.tree.take_out_of_service(
            self.guids[index],
            VdevState::Faulted,
            VdevAux::ErrExceeded
        ));
    }
}

async fn write(tree: &Tree, offset: usize, byte: u8, txg: u64) -> Result<()> {
    let place = Place { vdev: 0, offset: offset as u64 };
    tree.write(place, Buf::from(vec![byte; BLOCK]), txg, IoClass::AsyncWrite).await.map(drop)
}

/// Lets every runnable task run.
async fn settle() {
    for _ in 0..50 {
        cenote_rt::sleep(std::time::Duration::from_millis(1)).await;
    }
}

#[test]
fn probe_fails_on_a_leaf_that_cannot_flush() {
    simulate(1, async {
        let fixture = Fixture::new(Redundancy::Mirror, 2);
        let (tree, guid) = (&fixture.tree, fixture.guids[1]);
        let id = tree.leaf_of(guid).expect("leaf");
        assert_eq!(tree.probe(id).await, Ok(()));
        fixture.valves[1].refuse(true);
        assert_eq!(tree.probe(id).await, Err(VdevAux::ErrExceeded));
        fixture.take_out(1);
        tree.return_to_service(guid, None).await.expect_err("its flush fails");
        fixture.valves[1].refuse(false);
        tree.return_to_service(guid, None).await.expect("well again");
    })
    .expect("runtime");
}

/// A leaf moves to another device while a write hangs on the old one. The write is still counted
/// as in flight, and its caller gets an error when the tree is closed.
#[test]
fn an_io_that_hangs_on_a_former_device_ends_with_the_tree() {
    simulate(1, async {
        let fixture = Fixture::new(Redundancy::Single, 1);
        let (tree, old) = (&fixture.tree, Arc::clone(&fixture.valves[0]));
        old.close();
        let stuck = fixture.begin_write(0, 1, 5);
        old.until_held().await;
        let new = Valve::new();
        let content = old.now.snapshot();
        new.now.edit(|bytes| bytes.copy_from_slice(&content));
        let bringing = {
            let (tree, guid) = (Arc::clone(tree), fixture.guids[0]);
            let device = Arc::clone(&new) as Arc<dyn Device>;
            cenote_rt::spawn(async move { tree.return_to_service(guid, Some(device)).await })
        };
        settle().await;
        assert_eq!(new.counts().1.min(1), 1, "the leaf is on the new device");
        assert_eq!(tree.in_flight(), 1, "the write on the old device");
        let silent = tree.close(std::time::Duration::from_secs(1)).await;
        assert_eq!(silent, ["valve"]);
        let soon = std::time::Duration::from_mins(1);
        let ended = cenote_rt::until(soon, stuck).await.expect("it ends").expect("no panic");
        ended.expect_err("the device was closed");
        drop(cenote_rt::until(soon, bringing).await.expect("it ends"));
        old.open();
        settle().await;
        assert_eq!(tree.in_flight(), 0);
        assert_eq!(Arc::strong_count(&old), 2, "nobody else has the old device");
    })
    .expect("runtime");
}

/// The buffer of unflushed writes is bounded: a device that never flushes gets no more writes until
/// its flushes work again, and then has all of them.
#[test]
fn unflushed_writes_of_a_leaf_are_bounded() {
    let tunables = vec![(&tunables::UNFLUSHED_MAX, 1 << 20)];
    simulate(World { tunables, ..World::new(1) }, async {
        let fixture = Fixture::new(Redundancy::Single, 1);
        let valve = &fixture.valves[0];
        valve.refuse(true);
        let mut count = 0;
        while fixture.write(count * BLOCK, 7, 5).await.is_ok() {
            count += 1;
            assert!(count <= 20, "{count} blocks are kept");
        }
        assert!(count >= 16);
        valve.refuse(false);
        valve.lose();
        fixture.tree.return_to_service(fixture.guids[0], None).await.expect("well again");
        valve.lose();
        assert!((0..count).all(|block| valve.block(block * BLOCK) == 7));
        fixture.write(0, 8, 6).await.expect("well again");
        fixture.tree.flush().await.expect("well again");
        assert!(!fixture.lacks(0, 6));
    })
    .expect("runtime");
}

/// Many writers that cross the flush threshold together flush once.
#[test]
fn many_writers_share_one_threshold_flush() {
    let tunables = vec![(&tunables::UNFLUSHED_MAX, 1 << 20)];
    simulate(World { tunables, ..World::new(1) }, async {
        let fixture = Fixture::new(Redundancy::Single, 1);
        let writes: Vec<_> = (0..64).map(|n| fixture.begin_write(n * BLOCK, 7, 5)).collect();
        for write in writes {
            write.await.expect("no panic").expect("there");
        }
        let flushes = fixture.valves[0].counts().1;
        assert!((1..=4).contains(&flushes), "{flushes} flushes for 4 MiB");
    })
    .expect("runtime");
}

/// A block is overwritten in place while its old bytes are written again after a failed flush.
#[test]
fn rewriting_after_a_failed_flush_does_not_overwrite_newer_data() {
    simulate(1, async {
        let fixture = Fixture::new(Redundancy::Single, 1);
        let valve = &fixture.valves[0];
        fixture.write(0, 1, 5).await.expect("there");
        valve.refuse(true);
        fixture.tree.flush().await.expect_err("refused");
        valve.refuse(false);
        // The old block is being written again.
        valve.close();
        let flush = fixture.begin_flush();
        valve.until_held().await;
        let write = fixture.begin_write(0, 2, 5);
        settle().await;
        valve.open();
        flush.await.expect("no panic").expect("flushed");
        write.await.expect("no panic").expect("there");
        assert_eq!(valve.block(0), 2);
        fixture.tree.flush().await.expect("flushed");
        valve.lose();
        assert_eq!(valve.block(0), 2);
    })
    .expect("runtime");
}

#[test]
fn io_that_ends_after_its_leaf_left_service_is_in_the_dtl() {
    simulate(1, async {
        let fixture = Fixture::new(Redundancy::Mirror, 2);
        let valve = &fixture.valves[1];
        // A write.
        valve.close();
        let write = fixture.begin_write(0, 1, 5);
        valve.until_held().await;
        fixture.take_out(1);
        valve.open();
        write.await.expect("no panic").expect("one is enough");
        assert!(fixture.lacks(1, 5) && !fixture.lacks(0, 5));
        fixture.tree.return_to_service(fixture.guids[1], None).await.expect("there");

        // A flush that also fails.
        fixture.write(0, 2, 6).await.expect("there");
        valve.close();
        let flush = fixture.begin_flush();
        valve.until_held().await;
        fixture.take_out(1);
        assert!(fixture.lacks(1, 6));
        valve.refuse(true);
        valve.open();
        flush.await.expect("no panic").expect("one is enough");
        let counts = valve.counts();
        fixture.tree.flush().await.expect("one is enough");
        assert_eq!(valve.counts(), counts, "it is left alone");
        valve.refuse(false);
        fixture.tree.return_to_service(fixture.guids[1], None).await.expect("there");
        let (writes, _) = valve.counts();
        fixture.tree.flush().await.expect("there");
        assert_eq!(valve.counts().0, writes, "missing txgs are not written again");
        assert!(fixture.lacks(1, 6));
    })
    .expect("runtime");
}

#[test]
fn a_replaced_device_is_flushed_itself() {
    simulate(1, async {
        let fixture = Fixture::new(Redundancy::Single, 1);
        let (old, new) = (&fixture.valves[0], Valve::new());
        fixture.write(0, 1, 5).await.expect("there");
        old.close();
        let first = fixture.begin_flush();
        old.until_held().await;
        let second = fixture.begin_flush();
        settle().await;
        let generation = fixture.leaf(0).generation();
        let device = Arc::clone(&new) as Arc<dyn Device>;
        fixture.tree.return_to_service(fixture.guids[0], Some(device)).await.expect("it answers");
        assert_ne!(fixture.leaf(0).generation(), generation);
        fixture.write(BLOCK, 2, 6).await.expect("there");
        old.open();
        first.await.expect("no panic").expect("flushed");
        second.await.expect("no panic").expect("flushed");
        fixture.tree.flush().await.expect("flushed");
        new.lose();
        assert_eq!((new.block(0), new.block(BLOCK)), (1, 2));
        assert!(!fixture.lacks(0, 5) && !fixture.lacks(0, 6));
    })
    .expect("runtime");
}

/// A write that is on its way to the old device when the leaf gets another one has overwritten a
/// block that is written to the new one again: when it returns, the new device must have it too.
#[test]
fn a_write_to_a_replaced_device_returns_when_the_new_one_has_it() {
    simulate(1, async {
        let fixture = Fixture::new(Redundancy::Single, 1);
        let (old, new) = (&fixture.valves[0], Valve::new());
        fixture.write(0, 1, 5).await.expect("there");
        old.close();
        let write = fixture.begin_write(0, 2, 5);
        old.until_held().await;
        let device = Arc::clone(&new) as Arc<dyn Device>;
        fixture.tree.return_to_service(fixture.guids[0], Some(device)).await.expect("it answers");
        assert_eq!(new.block(0), 1);
        old.open();
        write.await.expect("no panic").expect("there");
        assert_eq!(new.block(0), 2);
    })
    .expect("runtime");
}

/// A block that was overwritten in place is not written again with its old bytes.
#[test]
fn rewriting_after_a_failed_flush_leaves_out_old_bytes() {
    simulate(1, async {
        let fixture = Fixture::new(Redundancy::Single, 1);
        let valve = &fixture.valves[0];
        fixture.write(0, 1, 5).await.expect("there");
        fixture.write(0, 2, 5).await.expect("there");
        valve.refuse(true);
        fixture.tree.flush().await.expect_err("refused");
        valve.refuse(false);
        valve.lose();
        let (writes, _) = valve.counts();
        fixture.tree.flush().await.expect("flushed");
        assert_eq!((valve.counts().0 - writes, valve.block(0)), (1, 2));
    })
    .expect("runtime");
}

/// The caller of a flush may drop its future: the writes that it was to cover are still unflushed.
#[test]
fn a_dropped_flush_makes_nothing_durable() {
    simulate(1, async {
        let fixture = Fixture::new(Redundancy::Single, 1);
        let valve = &fixture.valves[0];
        fixture.write(0, 1, 5).await.expect("there");
        valve.close();
        let flush = fixture.begin_flush();
        valve.until_held().await;
        flush.abort();
        drop(flush.await);
        fixture.tree.flush().await.expect("flushed");
        valve.lose();
        assert_eq!(valve.block(0), 1);
    })
    .expect("runtime");
}

#[test]
#[should_panic(expected = "are not in the dirty time log")]
fn dtl_without_the_txgs_of_a_failed_flush_is_found() {
    let leaf = Leaf::new(7, "d".into(), None, &Arc::default());
    leaf.note_failed_flush(&TxgRanges::of(5));
    leaf.dtl.write().missing = TxgRanges::default();
    leaf.clear_failed_flushes();
}
