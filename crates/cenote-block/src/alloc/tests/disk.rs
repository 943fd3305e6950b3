//! The on-disk state of a test pool: each metaslab's own map, logs, and the array of unflushed
//! txgs; once as the syncing txg has them, once as committed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cenote_ondisk::spacemap::Action;
use cenote_ranges::RangeSet;
use cenote_rt::{BoxFuture, Result, yield_now};

use crate::alloc::{
    Class, Condense, Flush, MetaslabChange, MetaslabSpec, MetaslabStore, Options, SpaceAllocator,
    SpaceGeometry, StoredSpace, VdevHealth, VdevSpec,
};

pub(super) type Key = (u64, u64);

/// One vdev of a test.
#[derive(Debug, Clone)]
pub(super) struct TestVdev {
    pub(super) class: Class,
    pub(super) ashift: u8,
    pub(super) shift: u32,
    pub(super) count: u64,
    pub(super) layout: TestLayout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TestLayout {
    Plain,
    /// Width and parity.
    Raidz(u64, u64),
    /// Data and parity.
    Draid(u64, u64),
}

impl TestVdev {
    pub(super) fn plain(class: Class, shift: u32, count: u64) -> Self {
        Self { class, ashift: 9, shift, count, layout: TestLayout::Plain }
    }

    /// Alignment of allocations.
    pub(super) fn align(&self) -> u64 {
        match self.layout {
            TestLayout::Draid(data, parity) => (data + parity) << self.ashift,
            _ => 1 << self.ashift,
        }
    }

    pub(super) fn asize(&self, psize: u64) -> u64 {
        let sector = 1_u64 << self.ashift;
        let sectors = psize.div_ceil(sector);
        sector
            * match self.layout {
                TestLayout::Plain => sectors,
                TestLayout::Raidz(width, parity) => {
                    let rows = sectors.div_ceil(width - parity);
                    (sectors + parity * rows).next_multiple_of(parity + 1)
                }
                TestLayout::Draid(data, parity) => sectors.div_ceil(data) * (data + parity),
            }
    }

    pub(super) fn metaslab(&self, id: u64) -> std::ops::Range<u64> {
        let (start, end) = (id << self.shift, (id + 1) << self.shift);
        let row = self.align();
        let start = start.next_multiple_of(row);
        start..start + (end - start) / row * row
    }
}

pub(super) struct Geometry(pub(super) Vec<TestVdev>);

impl SpaceGeometry for Geometry {
    fn asize_for(&self, vdev: u64, psize: u64, _: u64) -> Option<u64> {
        Some(self.0.get(vdev as usize)?.asize(psize))
    }

    fn health(&self, _: u64) -> VdevHealth {
        VdevHealth::Good
    }
}

/// A metaslab's own map, replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) free: RangeSet,
    pub(super) histogram: [u64; 32],
}

#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    pub(super) maps: BTreeMap<Key, Map>,
    pub(super) logs: BTreeMap<u64, Vec<(u64, Action, std::ops::Range<u64>)>>,
    pub(super) unflushed: BTreeMap<Key, u64>,
    pub(super) txg: u64,
}

/// The committed state, from which metaslabs are loaded.
pub(super) struct Store {
    pub(super) committed: Mutex<Arc<Disk>>,
    pub(super) vdevs: Vec<TestVdev>,
    pub(super) loads: Mutex<u64>,
}

impl MetaslabStore for Store {
    fn load(&self, vdev: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>> {
        let disk = self.committed.lock().unwrap().clone();
        let steps = {
            let mut loads = self.loads.lock().unwrap();
            *loads += 1;
            *loads % 5
        };
        Box::pin(async move {
            // The map is looked up first and read later, while txgs commit.
            for _ in 0..steps {
                yield_now().await;
            }
            let whole = self.vdevs[vdev as usize].metaslab(metaslab);
            let free = disk.maps.get(&(vdev, metaslab)).map(|map| map.free.clone());
            Ok(StoredSpace { free: free.unwrap_or_else(|| whole.into()), txg: disk.txg })
        })
    }
}

impl Disk {
    fn map(&mut self, vdevs: &[TestVdev], key: Key) -> &mut Map {
        self.maps.entry(key).or_insert_with(|| Map {
            free: vdevs[key.0 as usize].metaslab(key.1).into(),
            histogram: [0; 32],
        })
    }

    pub(super) fn flush(&mut self, vdevs: &[TestVdev], flush: &Flush, txg: u64) {
        let key = (flush.vdev, flush.metaslab);
        if flush.is_dirty {
            let map = self.map(vdevs, key);
            map.free.try_subtract(&flush.allocs).unwrap();
            map.free.try_union(&flush.frees).unwrap();
        }
        self.unflushed.insert(key, txg);
    }

    pub(super) fn condense(&mut self, vdevs: &[TestVdev], key: Key, condense: &Condense) {
        assert_eq!(condense.whole, vdevs[key.0 as usize].metaslab(key.1));
        self.map(vdevs, key).free = condense.free.clone();
        if let Some(txg) = condense.unflushed_txg {
            self.unflushed.insert(key, txg);
        }
    }

    pub(super) fn record(
        &mut self,
        vdevs: &[TestVdev],
        change: &MetaslabChange,
        txg: u64,
        has_logs: bool,
    ) {
        let key = (change.vdev, change.metaslab);
        let is_new = !self.maps.contains_key(&key);
        if !(change.allocs.is_empty() && change.frees.is_empty()) {
            assert_eq!(change.needs_map, is_new);
        }
        let map = self.map(vdevs, key);
        map.histogram = change.histogram;
        if has_logs {
            let log = self.logs.entry(txg).or_default();
            let both = [(Action::Alloc, &change.allocs), (Action::Free, &change.frees)];
            for (action, set) in both {
                log.extend(set.iter().map(|range| (change.vdev, action, range)));
            }
            if let Some(unflushed) = change.unflushed_txg {
                self.unflushed.insert(key, unflushed);
            }
        } else {
            assert_eq!(change.unflushed_txg, None);
            map.free.try_subtract(&change.allocs).unwrap();
            map.free.try_union(&change.frees).unwrap();
        }
    }

    /// Removes logs that are not needed, and checks that the needed ones exist (spec 05 §4.2).
    pub(super) fn drop_logs(&mut self, oldest: Option<u64>, txg: u64) {
        let least = self.unflushed.values().copied().filter(|txg| *txg != 0).min();
        assert_eq!(oldest, least);
        self.logs = self.logs.split_off(&oldest.unwrap_or(txg));
    }

    pub(super) fn check_logs(&self) {
        for (key, unflushed) in &self.unflushed {
            assert!(self.logs.contains_key(unflushed), "{key:?}: no log of txg {unflushed}");
        }
    }

    /// Allocated ranges of every vdev, from maps and logs.
    pub(super) fn allocated(&self, vdevs: &[TestVdev]) -> Vec<RangeSet> {
        let mut all: Vec<_> = vdevs
            .iter()
            .zip(0..)
            .map(|(vdev, id)| {
                let mut allocated = RangeSet::new();
                for metaslab in 0..vdev.count {
                    let Some(map) = self.maps.get(&(id, metaslab)) else { continue };
                    let mut own = RangeSet::from(vdev.metaslab(metaslab));
                    own.try_subtract(&map.free).unwrap();
                    allocated.try_union(&own).unwrap();
                }
                allocated
            })
            .collect();
        for (txg, log) in &self.logs {
            for (vdev, action, range) in log {
                let metaslab = range.start >> vdevs[*vdev as usize].shift;
                let unflushed = self.unflushed.get(&(*vdev, metaslab)).copied().unwrap_or(0);
                assert_ne!(unflushed, 0);
                if *txg < unflushed {
                    continue;
                }
                let set = &mut all[*vdev as usize];
                match action {
                    Action::Alloc => set.try_add(range.clone()).unwrap(),
                    Action::Free => set.try_remove(range.clone()).unwrap(),
                }
            }
        }
        all
    }

    /// Creates an allocator as at import.
    pub(super) fn import(
        &self,
        vdevs: &[TestVdev],
        has_logs: bool,
        seed: u64,
    ) -> (Arc<SpaceAllocator>, Arc<Store>) {
        let store = Arc::new(Store {
            committed: Mutex::new(Arc::new(self.clone())),
            vdevs: vdevs.to_vec(),
            loads: Mutex::new(0),
        });
        let space = SpaceAllocator::new(Options {
            store: store.clone(),
            geometry: Arc::new(Geometry(vdevs.to_vec())),
            txg: self.txg,
            has_logs,
            allocators: 1 + (seed % 3) as usize,
            seed,
        });
        for (id, vdev) in (0..).zip(vdevs) {
            let specs = (0..vdev.count).map(|number| self.spec(vdev, (id, number))).collect();
            space.add_vdev(vdev_spec(id, vdev), specs, None).unwrap();
        }
        for (txg, log) in &self.logs {
            space.note_log(*txg, 1 + log.len() as u64 / 8192);
            for (vdev, action, range) in log {
                let size = range.end - range.start;
                space.replay(*txg, *vdev, *action, range.start, size).unwrap();
            }
        }
        (space, store)
    }

    fn spec(&self, vdev: &TestVdev, key: Key) -> MetaslabSpec {
        let range = vdev.metaslab(key.1);
        let mut spec = MetaslabSpec::empty(range.start, range.end - range.start);
        if let Some(map) = self.maps.get(&key) {
            spec.has_map = true;
            spec.allocated = spec.size - map.free.bytes();
            spec.histogram = Some(map.histogram);
        }
        spec.unflushed_txg = self.unflushed.get(&key).copied().unwrap_or(0);
        spec
    }
}

pub(super) fn vdev_spec(id: u64, vdev: &TestVdev) -> VdevSpec {
    let (width, nparity) = match vdev.layout {
        TestLayout::Plain => (1, 0),
        TestLayout::Raidz(width, parity) => (width, parity),
        TestLayout::Draid(data, parity) => (data + parity, parity),
    };
    VdevSpec {
        id,
        class: vdev.class,
        ashift: vdev.ashift,
        metaslab_shift: vdev.shift,
        align: vdev.align(),
        width,
        nparity,
        deflate_ratio: 512,
        min_alloc: 1 << vdev.ashift,
        is_allocating: true,
    }
}
