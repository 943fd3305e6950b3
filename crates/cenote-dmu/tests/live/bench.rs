//! A pool's lower layers in memory: devices, vdevs, block store and allocator, and a sync loop like
//! that of a pool, for one object set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cenote_block::alloc::{
    Class, MetaslabSpec, MetaslabStore, Options, SpaceAllocator, StoredSpace, VdevSpec,
};
use cenote_block::policy::{BlockSpec, DatasetPolicy, PoolPolicy};
use cenote_block::{
    BlockStore, CacheConfig, Draft, Grounds, ReadContext, SealKeys, Since, WriteMethod,
    WritePolicy, Written,
};
use cenote_codec::crypto::{BlockKeys, Suite};
use cenote_device::{Device, MemoryDevice};
use cenote_dmu::live::Missing;
use cenote_dmu::live::{
    BlockSink, Blocks, Facts, Live, OwnerProbe, PolicySource, ReadBlocks, SyncContext, Synced,
};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::config::{RaidZ, VdevConfig, VdevKind};
use cenote_ranges::RangeSet;
use cenote_rt::{BoxFuture, Buf, Result, Rng};
use cenote_vdev::{BuildOptions, Tree};

const DEVICE_LEN: usize = 96 << 20;
const METASLAB_SHIFT: u32 = 22;

/// Free space by metaslab, in place of a pool's space maps.
#[derive(Default)]
struct Maps {
    committed: Mutex<(u64, BTreeMap<u64, RangeSet>)>,
    synced: Mutex<BTreeMap<u64, RangeSet>>,
}

impl MetaslabStore for Maps {
    fn load(&self, _vdev: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>> {
        let committed = self.committed.lock().unwrap();
        let stored = StoredSpace { free: committed.1[&metaslab].clone(), txg: committed.0 };
        Box::pin(async move { Ok(stored) })
    }
}

/// The store, with random cache misses and counts of write methods.
pub(crate) struct FlakyStore {
    store: Arc<BlockStore>,
    rng: Mutex<Rng>,
    misses_percent: AtomicU64,
    how: Mutex<BTreeMap<&'static str, u64>>,
    keys: Option<Arc<SealKeys>>,
}

impl ReadBlocks for FlakyStore {
    fn cached(&self, pointer: &BlockPtr, place: &Bookmark) -> Option<Buf> {
        let missed =
            self.rng.lock().unwrap().below(100) < self.misses_percent.load(Ordering::Relaxed);
        if missed { None } else { self.store.cached(pointer, &self.context(*place, &ANY)) }
    }

    fn read(&self, missing: Missing) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let grounds = Grounds::Live(missing.since);
            self.store.read(&missing.pointer, &self.context(missing.place, &grounds)).await
        })
    }
}

impl Blocks for FlakyStore {
    fn since(&self, is_retry: bool) -> Since {
        Blocks::since(&*self.store, is_retry)
    }

    fn keys(&self) -> Option<Arc<SealKeys>> {
        self.keys.clone()
    }

    fn write<'a>(&'a self, draft: &'a Draft) -> BoxFuture<'a, Result<Written>> {
        Box::pin(async move { self.count(Blocks::write(&*self.store, draft).await) })
    }

    fn write_all(&self, drafts: Arc<[Draft]>) -> BoxFuture<'_, Result<Vec<Result<Written>>>> {
        Box::pin(async move {
            let written = Blocks::write_all(&*self.store, drafts).await?;
            Ok(written.into_iter().map(|written| self.count(written)).collect())
        })
    }

    fn dsize(&self, pointer: &BlockPtr) -> u64 {
        Blocks::dsize(&*self.store, pointer)
    }
}

/// How a caller that does not wait obtained a pointer.
static ANY: Grounds = Grounds::Offline;

impl FlakyStore {
    fn context<'a>(&'a self, place: Bookmark, grounds: &'a Grounds) -> ReadContext<'a> {
        let keys = self.keys.as_ref().map(|keys| keys.keys());
        let is_encrypted = keys.is_some();
        ReadContext { place, keys, is_encrypted, grounds, ..ReadContext::default() }
    }

    fn count(&self, written: Result<Written>) -> Result<Written> {
        let how = match written.as_ref().map(|written| written.method) {
            Ok(WriteMethod::New) => "new",
            Ok(WriteMethod::InPlace) => "in place",
            Ok(WriteMethod::Kept) => "kept",
            Ok(WriteMethod::Hole) => "hole",
            Ok(WriteMethod::Embedded) => "embedded",
            Err(_) => return written,
        };
        *self.how.lock().unwrap().entry(how).or_default() += 1;
        written
    }
}

/// Identifies a block, whatever is written to it in place.
pub(crate) fn name_of(pointer: &BlockPtr) -> Vec<u64> {
    if pointer.is_embedded() {
        return pointer.words().to_vec();
    }
    let words = pointer.words();
    // Behind two addresses are salt and IV, which are others each time.
    let addresses = if pointer.is_encrypted() { 4 } else { 6 };
    [&words[..addresses], &words[10..11]].concat()
}

/// Records the blocks that are alive, and those to be freed.
#[derive(Default)]
pub(crate) struct Ledger {
    alive: Mutex<BTreeSet<Vec<u64>>>,
    killed: Mutex<Vec<BlockPtr>>,
}

impl BlockSink for Ledger {
    fn born(&self, block: &BlockPtr) {
        // Two embedded blocks may be equal.
        let is_new = self.alive.lock().unwrap().insert(name_of(block));
        assert!(is_new || block.is_embedded(), "born twice: {block:?}");
    }

    fn killed(&self, block: &BlockPtr) {
        let was_alive = self.alive.lock().unwrap().remove(&name_of(block));
        assert!(was_alive || block.is_embedded(), "killed without being alive: {block:?}");
        self.killed.lock().unwrap().push(*block);
    }
}

pub(crate) struct Policies(pub(crate) DatasetPolicy);

impl PolicySource for Policies {
    fn policy(&self, block: &BlockSpec) -> Result<WritePolicy> {
        Ok(WritePolicy::of(&PoolPolicy::FULL, &self.0, block).expect("known functions"))
    }
}

/// The layout of the one top-level vdev.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Layout {
    Single { ashift: u64 },
    RaidZ { ashift: u64, width: u64 },
}

pub(crate) struct Bench {
    pub(crate) store: Arc<BlockStore>,
    pub(crate) blocks: Arc<FlakyStore>,
    pub(crate) policies: Policies,
    pub(crate) ledger: Ledger,
    space: Arc<SpaceAllocator>,
    maps: Arc<Maps>,
    pub(crate) facts: Mutex<Facts>,
}

impl Bench {
    /// A set that is encrypted with these keys.
    pub(crate) fn encrypted(layout: Layout, seed: u64, suite: Suite) -> Self {
        let key = vec![seed as u8; suite.key_bytes()];
        let keys = BlockKeys::new(suite, seed, &key, &[9; 64]).unwrap();
        let mut bench = Self::with_keys(layout, seed, Some(SealKeys::new(Arc::new(keys)).unwrap()));
        bench.policies.0.is_encrypted = true;
        bench
    }

    pub(crate) fn new(layout: Layout, seed: u64) -> Self {
        Self::with_keys(layout, seed, None)
    }

    /// The keys of the set, if it is encrypted.
    pub(crate) fn keys(&self) -> Option<Arc<BlockKeys>> {
        self.blocks.keys.as_ref().map(|keys| Arc::clone(keys.keys()))
    }

    fn with_keys(layout: Layout, seed: u64, keys: Option<Arc<SealKeys>>) -> Self {
        let leaf =
            |id| VdevConfig { kind: VdevKind::File, guid: 100 + id, ..VdevConfig::missing(id) };
        let (mut top, ashift, width, nparity) = match layout {
            Layout::Single { ashift } => (leaf(0), ashift, 1, 0),
            Layout::RaidZ { ashift, width } => {
                let kind = RaidZ { nparity: 1, expanding: false, expand_txgs: Vec::new() };
                let children = (0..width).map(leaf).collect();
                let kind = VdevKind::RaidZ(kind);
                (VdevConfig { kind, guid: 2, children, ..VdevConfig::missing(0) }, ashift, width, 1)
            }
        };
        let asize = (DEVICE_LEN as u64 - (8 << 20)) * width;
        (top.top.ashift, top.top.asize) = (ashift, asize);
        let root = VdevConfig::root(1, vec![top]);
        let open = |leaf: &VdevConfig| {
            let device = MemoryDevice::new(format!("d{}", leaf.id), vec![0; DEVICE_LEN]);
            Some(Arc::new(device) as Arc<dyn Device>)
        };
        let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
        let tree = Tree::build(&root, open, &options).unwrap();
        let store = BlockStore::new(tree.clone(), CacheConfig { capacity_bytes: 32 << 20 });
        let maps = Arc::new(Maps::default());
        let space = SpaceAllocator::new(Options {
            store: maps.clone(),
            geometry: tree.clone(),
            txg: 3,
            has_logs: false,
            allocators: 1,
            seed,
        });
        let count = asize >> METASLAB_SHIFT;
        let span = |id: u64| id << METASLAB_SHIFT..(id + 1) << METASLAB_SHIFT;
        let metaslabs =
            (0..count).map(|id| MetaslabSpec::empty(span(id).start, 1 << METASLAB_SHIFT));
        for id in 0..count {
            let mut free = RangeSet::new();
            free.add(span(id));
            maps.synced.lock().unwrap().insert(id, free);
        }
        *maps.committed.lock().unwrap() = (3, maps.synced.lock().unwrap().clone());
        let spec = VdevSpec {
            id: 0,
            class: Class::Normal,
            ashift: ashift as u8,
            metaslab_shift: METASLAB_SHIFT,
            align: 1 << ashift,
            width,
            nparity,
            deflate_ratio: tree.deflate_ratio(0).unwrap(),
            min_alloc: 1 << ashift,
            is_allocating: true,
        };
        space.add_vdev(spec, metaslabs.collect(), None).unwrap();
        assert!(store.set_allocator(space.clone()));
        store.set_salt(&[7; 32]);
        let blocks = Arc::new(FlakyStore {
            store: store.clone(),
            rng: Mutex::new(Rng::seeded(seed)),
            misses_percent: AtomicU64::new(0),
            how: Mutex::default(),
            keys,
        });
        let policies = Policies(DatasetPolicy::DEFAULT);
        let ledger = Ledger::default();
        Self { store, blocks, policies, ledger, space, maps, facts: Mutex::default() }
    }

    pub(crate) fn blocks(&self) -> Arc<dyn Blocks> {
        self.blocks.clone()
    }

    /// Sets the percentage of cache look-ups that miss.
    pub(crate) fn set_misses(&self, percent: u64) {
        self.blocks.misses_percent.store(percent, Ordering::Relaxed);
    }

    pub(crate) fn how(&self, what: &str) -> u64 {
        self.blocks.how.lock().unwrap().get(what).copied().unwrap_or(0)
    }

    /// One pass: syncs the set, frees the killed blocks, records the allocator's changes.
    pub(crate) async fn pass(
        &self,
        live: &Live,
        txg: u64,
        pass: u64,
        probe: Option<&dyn OwnerProbe>,
    ) -> Synced {
        let (sink, policy) = (&self.ledger, &self.policies);
        let context = SyncContext { txg, pass, sink, policy, probe };
        let synced = live.sync(&context).await.unwrap();
        {
            let mut facts = self.facts.lock().unwrap();
            *facts = facts.and(synced.facts);
        }
        let killed: Vec<_> = std::mem::take(&mut *self.ledger.killed.lock().unwrap());
        for block in killed {
            self.store.free(&block, txg).await.unwrap();
        }
        self.record(txg);
        synced
    }

    fn record(&self, txg: u64) {
        let changes = self.space.take_changes(txg).unwrap();
        let mut maps = self.maps.synced.lock().unwrap();
        for change in changes {
            let free = maps.get_mut(&change.metaslab).unwrap();
            free.subtract(&change.allocs);
            free.union(&change.frees);
        }
    }

    /// Commits `txg`: its uberblock is on disk.
    pub(crate) fn commit(&self, live: &Live, txg: u64) {
        live.committed(txg).unwrap();
        *self.maps.committed.lock().unwrap() = (txg, self.maps.synced.lock().unwrap().clone());
        self.space.sync_done(txg, 0).unwrap();
    }

    /// A txg of one pass.
    pub(crate) async fn sync(&self, live: &Live, txg: u64) -> Synced {
        let synced = self.pass(live, txg, 1, None).await;
        self.commit(live, txg);
        synced
    }

    /// Compares the blocks of a walk, and the space they take, with the births and deaths.
    pub(crate) fn check_alive(&self, walked: &[BlockPtr], text: &str) {
        let names: BTreeSet<_> = walked.iter().map(name_of).collect();
        let mut alive = self.ledger.alive.lock().unwrap().clone();
        // Equal embedded blocks count as one; they take no space.
        let is_real = |name: &Vec<u64>| name.len() < 16;
        alive.retain(is_real);
        let names: BTreeSet<_> = names.into_iter().filter(is_real).collect();
        assert_eq!(alive, names, "{text}: blocks alive");
        let asize: u64 = walked.iter().map(BlockPtr::asize_total).sum();
        let maps = self.maps.synced.lock().unwrap();
        let free: u64 = maps.values().map(RangeSet::bytes).sum();
        assert_eq!(
            ((maps.len() as u64) << METASLAB_SHIFT) - free,
            asize,
            "{text}: allocated bytes"
        );
    }
}
