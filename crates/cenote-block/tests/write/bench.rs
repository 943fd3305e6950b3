//! A pool's lower layers in memory: devices, vdevs, an allocator over empty space, a block store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use cenote_block::alloc::{
    Class, MetaslabSpec, MetaslabStore, Options, SpaceAllocator, StoredSpace, VdevSpec,
};
use cenote_block::{BlockStore, CacheConfig, ReadContext, Reporter};
use cenote_device::{Device, FaultyDevice, MemoryDevice};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::config::{RaidZ, VdevConfig, VdevKind as ConfigKind};
use cenote_ranges::RangeSet;
use cenote_rt::{BoxFuture, Buf, Error, Result, tunables};
use cenote_vdev::{BadChild, BuildOptions, IoClass, Tree};

pub(crate) const TXG: u64 = 20;
const DATA_START: u64 = 4 << 20;

/// Layout of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Top {
    Single,
    Mirror(u64),
    RaidZ { width: u64, nparity: u64 },
}

/// Layout of the whole bench.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub top: Top,
    pub tops: u64,
    pub ashift: u64,
    /// Log2 of the size of a metaslab.
    pub metaslab_shift: u32,
    pub metaslabs: u64,
}

impl Shape {
    pub(crate) fn new(top: Top, ashift: u64) -> Self {
        Self { top, tops: 1, ashift, metaslab_shift: 23, metaslabs: 3 }
    }
}

/// A store in which every metaslab is empty.
struct EmptySpace(Shape);

impl MetaslabStore for EmptySpace {
    fn load(&self, _vdev: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>> {
        Box::pin(async move {
            let mut free = RangeSet::new();
            let start = metaslab << self.0.metaslab_shift;
            free.add(start..start + (1 << self.0.metaslab_shift));
            Ok(StoredSpace { free, txg: TXG - 1 })
        })
    }
}

/// Records the reports of damage.
#[derive(Default)]
pub(crate) struct Notes {
    pub lost: Mutex<Vec<(Bookmark, String)>>,
    pub found_bad: Mutex<Vec<(usize, usize)>>,
}

impl Reporter for Notes {
    fn unrecoverable(&self, place: &Bookmark, _bp: &BlockPtr, error: &Error) {
        self.lost.lock().unwrap().push((*place, error.to_string()));
    }

    fn found_bad(&self, bad: &[BadChild], _: IoClass, repaired: usize) {
        self.found_bad.lock().unwrap().push((bad.len(), repaired));
    }
}

/// Tunables are process-wide: a test with forced ganging waits until no other bench exists.
static CALM: RwLock<()> = RwLock::new(());

pub(crate) struct Bench {
    _calm: Option<RwLockReadGuard<'static, ()>>,
    pub shape: Shape,
    pub memory: BTreeMap<u64, Arc<MemoryDevice>>,
    /// Devices in memory, by guid of the leaf.
    pub devices: BTreeMap<u64, Arc<FaultyDevice>>,
    pub store: Arc<BlockStore>,
    pub space: Arc<SpaceAllocator>,
    pub notes: Arc<Notes>,
}

impl Bench {
    pub(crate) fn new(shape: Shape) -> Self {
        Self::with_faults(shape, |_, device| device)
    }

    /// `wrap` gets each device with the guid of its leaf: 100 on, by top and child.
    pub(crate) fn with_faults(
        shape: Shape,
        wrap: impl Fn(u64, FaultyDevice) -> FaultyDevice,
    ) -> Self {
        let calm = CALM.read().unwrap_or_else(PoisonError::into_inner);
        Self::build(shape, wrap, Some(calm))
    }

    /// A bench for use inside of [`forced`].
    pub(crate) fn forced(shape: Shape) -> Self {
        Self::build(shape, |_, device| device, None)
    }

    fn build(
        shape: Shape,
        wrap: impl Fn(u64, FaultyDevice) -> FaultyDevice,
        calm: Option<RwLockReadGuard<'static, ()>>,
    ) -> Self {
        let config = config(shape);
        let len = DATA_START * 2 + (shape.metaslabs << shape.metaslab_shift);
        let leaves = config.leaves().map(|leaf| leaf.guid);
        let memory: BTreeMap<u64, Arc<MemoryDevice>> = leaves
            .map(|guid| {
                let device = MemoryDevice::new(format!("d{guid}"), vec![0; len as usize]);
                (guid, Arc::new(device))
            })
            .collect();
        let devices: BTreeMap<u64, Arc<FaultyDevice>> = memory
            .iter()
            .map(|(&guid, memory)| {
                let device = FaultyDevice::new(Arc::clone(memory) as _, guid);
                (guid, Arc::new(wrap(guid, device)))
            })
            .collect();
        let open = |leaf: &VdevConfig| {
            devices.get(&leaf.guid).map(|device| Arc::clone(device) as Arc<dyn Device>)
        };
        let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
        let tree = Tree::build(&config, open, &options).expect("root");
        let space = allocator(shape, &tree);
        let store = BlockStore::new(tree, CacheConfig { capacity_bytes: 32 << 20 });
        store.set_salt(&[7; 32]);
        assert!(store.set_allocator(Arc::clone(&space)));
        let notes = Arc::new(Notes::default());
        assert!(store.set_reporter(Arc::clone(&notes) as _));
        Self { _calm: calm, shape, memory, devices, store, space, notes }
    }

    pub(crate) fn tree(&self) -> &Arc<Tree> {
        self.store.tree()
    }

    /// Allocated bytes, of all top-level vdevs, in the changes that the txg has to record: takes
    /// the changes.
    pub(crate) fn taken(&self) -> u64 {
        let changes = self.space.take_changes(TXG).expect("consistent");
        let sums = changes.iter().map(|change| change.allocs.bytes() - change.frees.bytes());
        sums.sum()
    }

    /// Reads the block from the devices, not from the cache.
    pub(crate) async fn read_stored(&self, bp: &BlockPtr) -> Result<Buf> {
        self.store.clear_cache();
        let place = Bookmark { objset: 54, object: 3, level: 0, blkid: 9 };
        let grounds = &cenote_block::Grounds::Allocated;
        self.store.read(bp, &ReadContext { place, grounds, ..ReadContext::default() }).await
    }

    /// Inverts `len` bytes of a device's data area.
    pub(crate) fn damage(&self, leaf: u64, offset: u64, len: usize) {
        let start = (DATA_START + offset) as usize;
        self.memory[&leaf]
            .edit(|bytes| bytes[start..start + len].iter_mut().for_each(|byte| *byte ^= 0xff));
    }
}

fn config(shape: Shape) -> VdevConfig {
    let vdev =
        |kind, id, guid, children| VdevConfig { kind, guid, children, ..VdevConfig::missing(id) };
    let tops = (0..shape.tops).map(|id| {
        let first = 100 + 20 * id;
        let leaves = |count| (0..count).map(|id| vdev(ConfigKind::File, id, first + id, vec![]));
        let mut top = match shape.top {
            Top::Single => vdev(ConfigKind::File, id, first, vec![]),
            Top::Mirror(count) => vdev(ConfigKind::Mirror, id, 2 + id, leaves(count).collect()),
            Top::RaidZ { width, nparity } => {
                let kind = RaidZ { nparity, expanding: false, expand_txgs: Vec::new() };
                vdev(ConfigKind::RaidZ(kind), id, 2 + id, leaves(width).collect())
            }
        };
        top.top.ashift = shape.ashift;
        top
    });
    VdevConfig::root(1, tops.collect())
}

fn allocator(shape: Shape, tree: &Arc<Tree>) -> Arc<SpaceAllocator> {
    let store = Arc::new(EmptySpace(shape));
    let geometry = Arc::clone(tree) as _;
    let options =
        Options { store, geometry, txg: TXG - 1, has_logs: false, allocators: 1, seed: 1 };
    let space = SpaceAllocator::new(options);
    let (width, nparity) = match shape.top {
        Top::RaidZ { width, nparity } => (width, nparity),
        _ => (1, 0),
    };
    for id in 0..shape.tops {
        let size = 1 << shape.metaslab_shift;
        let slabs = (0..shape.metaslabs).map(|n| MetaslabSpec::empty(n * size, size));
        let spec = VdevSpec {
            id,
            class: Class::Normal,
            ashift: shape.ashift as u8,
            metaslab_shift: shape.metaslab_shift,
            align: 1 << shape.ashift,
            width,
            nparity,
            deflate_ratio: tree.deflate_ratio(id).expect("there"),
            min_alloc: 1 << shape.ashift,
            is_allocating: true,
        };
        space.add_vdev(spec, slabs.collect(), None).expect("fresh");
    }
    space
}

pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    cenote_rt::block_on(1, future).expect("runtime")
}

/// Runs `test` while every block of at least `size` bytes is ganged.
pub(crate) fn forced<T>(size: u64, test: impl FnOnce() -> T) -> T {
    let _guard = CALM.write().unwrap_or_else(PoisonError::into_inner);
    let set = |size, percent| {
        tunables::FORCE_GANGING.set(size).expect("in range");
        tunables::FORCE_GANGING_PCT.set(percent).expect("in range");
    };
    set(size, 100);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
    set(tunables::FORCE_GANGING.default, tunables::FORCE_GANGING_PCT.default);
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
