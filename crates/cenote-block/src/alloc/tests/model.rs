//! Random sequences of allocations, frees, undone writes, syncs with concurrent allocations,
//! condenses, flushes, unloads and imports.
//!
//! The model records which ranges are allocated, for which request, and which were freed in which
//! txg. It checks every address that is allocated, and after each commit that maps and logs agree
//! with it. A step of a sequence is a seed: a failing sequence is shortened by leaving steps out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_ondisk::blkptr::Dva;
use cenote_ranges::RangeSet;
use cenote_rt::{Kind, Rng, yield_now};
use cenote_testkit::shrink::{play, steps};

use super::disk::{Disk, Store, TestLayout, TestVdev};
use crate::alloc::policy::{Dynamic, Historic, Policy, Separate};
use crate::alloc::{Class, MapFigures, Request, SpaceAllocator};

/// State of the model.
#[derive(Default)]
struct Model {
    /// Allocated ranges, from the moment of the allocation.
    live: Vec<RangeSet>,
    /// Blocks that can be freed, with their birth.
    blocks: Vec<(Vec<Dva>, u64)>,
    /// Freed ranges by txg; they must not be allocated for txgs below t+3.
    freed: BTreeMap<u64, Vec<(u64, Range<u64>)>>,
    refused: u64,
    given: u64,
}

fn range(dva: &Dva) -> Range<u64> {
    dva.offset..dva.offset + dva.asize
}

struct Run {
    vdevs: Vec<TestVdev>,
    has_logs: bool,
    /// Whether deferral is off.
    is_tight: bool,
    space: Arc<SpaceAllocator>,
    store: Arc<Store>,
    disk: Disk,
    model: RefCell<Model>,
    rng: RefCell<Rng>,
    seed: u64,
}

impl Run {
    fn new(seed: u64, vdevs: Vec<TestVdev>, has_logs: bool) -> Self {
        let disk = Disk { txg: 4, ..Disk::default() };
        let (space, store) = disk.import(&vdevs, has_logs, seed);
        let model = Model { live: vec![RangeSet::new(); vdevs.len()], ..Model::default() };
        let rng = RefCell::new(Rng::seeded(seed));
        let run = Self {
            vdevs,
            has_logs,
            is_tight: false,
            space,
            store,
            disk,
            model: RefCell::new(model),
            rng,
            seed,
        };
        run.choose_policy();
        run
    }

    fn choose_policy(&self) {
        let policy: Arc<dyn Policy> = match (self.seed + self.seed / 4) % 3 {
            0 => Arc::new(Dynamic),
            1 => Arc::new(Historic),
            _ => Arc::new(Separate),
        };
        self.space.set_policy(policy);
        // So little memory that metaslabs are loaded and unloaded all the time.
        self.space.set_memory(if self.seed.is_multiple_of(3) { 4096 } else { 1 << 30 });
    }

    fn dice(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    /// Checks addresses allocated for `txg` and adds them to the model.
    fn given(&self, dvas: &[Dva], request: &Request) {
        let mut model = self.model.borrow_mut();
        assert_eq!(dvas.len(), usize::from(request.copies));
        for dva in dvas {
            let (vdev, range) = (&self.vdevs[dva.vdev as usize], range(dva));
            assert_eq!(dva.asize, vdev.asize(request.psize));
            assert!(dva.offset.is_multiple_of(vdev.align()), "{dva:?}");
            let own = vdev.metaslab(dva.offset >> vdev.shift);
            assert!(own.start <= range.start && range.end <= own.end, "{dva:?}: {own:?}");
            model.live[dva.vdev as usize].try_add(range.clone()).unwrap();
            {
                let early = model.freed.range(request.txg.saturating_sub(2)..);
                for (txg, (_, other)) in early
                    .flat_map(|(txg, list)| list.iter().map(move |r| (txg, r)))
                    .filter(|(_, (id, _))| *id == u64::from(dva.vdev))
                {
                    assert!(
                        other.end <= range.start || range.end <= other.start,
                        "{dva:?} was freed in {txg}, given in {}",
                        request.txg
                    );
                }
            }
        }
        model.given += 1;
    }

    async fn allocate(&self, txg: u64) {
        let classes = [Class::Normal, Class::Normal, Class::Log, Class::Special, Class::Dedup];
        let psize = match self.dice(10) {
            0 => 131_072,
            1..4 => 512 * (1 + self.dice(64)),
            _ => 512 * (1 + self.dice(8)),
        };
        let request = Request {
            class: classes[self.dice(classes.len() as u64) as usize],
            psize,
            copies: 1 + self.dice(3) as u8,
            txg,
            stream: self.dice(4),
            near: (self.dice(8) == 0).then(|| self.dice(self.vdevs.len() as u64)),
            is_gang_part: self.dice(2) == 0,
            is_metadata: self.dice(3) == 0,
        };
        match self.space.allocate(&request).await {
            Ok(dvas) => {
                self.given(&dvas, &request);
                if self.dice(20) == 0 {
                    for dva in &dvas {
                        self.space.unallocate(dva, txg).unwrap();
                        let mut model = self.model.borrow_mut();
                        model.live[dva.vdev as usize].try_remove(range(dva)).unwrap();
                    }
                } else {
                    self.model.borrow_mut().blocks.push((dvas, txg));
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                self.model.borrow_mut().refused += 1;
            }
        }
    }

    /// Frees a block born before or in `txg`.
    fn free(&self, txg: u64) {
        let count = self.model.borrow().blocks.len() as u64;
        if count == 0 {
            return;
        }
        let index = self.dice(count) as usize;
        let mut model = self.model.borrow_mut();
        if model.blocks[index].1 > txg {
            return;
        }
        let (dvas, _) = model.blocks.swap_remove(index);
        for dva in dvas {
            self.space.free(&dva, txg).unwrap();
            // A second free is refused, and changes nothing.
            assert_eq!(self.space.free(&dva, txg).unwrap_err().kind(), Kind::Invariant);
            model.live[dva.vdev as usize].try_remove(range(&dva)).unwrap();
            model.freed.entry(txg).or_default().push((u64::from(dva.vdev), range(&dva)));
        }
    }

    fn record(&self, disk: &mut Disk, txg: u64) {
        for change in self.space.take_changes(txg).unwrap() {
            disk.record(&self.vdevs, &change, txg, self.has_logs);
        }
    }

    /// One sync, with concurrent allocations.
    async fn sync(&self, mut disk: Disk, txg: u64) -> Disk {
        let is_export = self.dice(30) == 0;
        self.space.start_flush(txg, is_export).unwrap();
        while let Some(flush) = self.space.next_flush().unwrap() {
            disk.flush(&self.vdevs, &flush, txg);
            disk.logs.entry(txg).or_default();
        }
        yield_now().await;
        for (vdev, metaslab) in self.space.changed(txg) {
            let figures =
                MapFigures { length: 1 << 20, block_size: 512, has_v2: true, must_upgrade: false };
            if self.dice(3) > 0 || !self.space.should_condense(vdev, metaslab, &figures) {
                continue;
            }
            if let Some(condense) = self.space.condense(vdev, metaslab, txg).unwrap() {
                disk.condense(&self.vdevs, (vdev, metaslab), &condense);
                if condense.unflushed_txg.is_some() {
                    disk.logs.entry(txg).or_default();
                }
            }
        }
        disk.drop_logs(self.space.oldest_unflushed(), txg);
        self.space.forget_logs_before(self.space.oldest_unflushed().unwrap_or(txg)).unwrap();
        for _pass in 0..3 {
            self.record(&mut disk, txg);
            yield_now().await;
            for _ in 0..self.dice(4) {
                self.free(txg);
                self.allocate(txg).await;
            }
        }
        self.record(&mut disk, txg);
        assert_eq!(self.space.changed(txg), []);
        if let Some(log) = disk.logs.get(&txg) {
            self.space.note_log(txg, 1 + log.len() as u64 / 8192);
        }
        disk.check_logs();
        disk.txg = txg;
        // The next commit's maps are published before or after the txg is ended.
        let is_first = self.dice(2) == 0;
        if is_first {
            *self.store.committed.lock().unwrap() = Arc::new(disk.clone());
            yield_now().await;
        }
        let slop = if self.is_tight { u64::MAX } else { 0 };
        let normal = self.space.class_figures(Class::Normal);
        if normal.space - normal.allocated <= slop {
            // Deferral is off, and ranges freed two txgs ago were deferred long enough.
            self.model.borrow_mut().freed.retain(|freed, _| *freed != txg && freed + 2 > txg);
        }
        self.space.sync_done(txg, slop).unwrap();
        if !is_first {
            yield_now().await;
            *self.store.committed.lock().unwrap() = Arc::new(disk.clone());
        }
        self.space.preload().await;
        disk
    }

    /// After a commit: checks that maps and logs, statistics and the model agree. `open` is not
    /// recorded yet.
    fn check(&self, txg: u64) {
        let model = self.model.borrow();
        let mut committed = model.live.clone();
        for (dvas, birth) in &model.blocks {
            for dva in dvas.iter().filter(|_| *birth > txg) {
                committed[dva.vdev as usize].try_remove(range(dva)).unwrap();
            }
        }
        let found = self.disk.allocated(&self.vdevs);
        assert_eq!(found, committed);
        for figures in self.space.vdev_figures() {
            let deferred = figures.space.deferred;
            let allocated = committed[figures.id as usize].bytes();
            assert_eq!(figures.space.allocated, allocated + deferred);
            let metaslabs = self.space.metaslab_figures(figures.id);
            assert_eq!(metaslabs.iter().map(|m| m.allocated).sum::<u64>(), allocated);
            assert_eq!(metaslabs.iter().map(|m| m.deferred).sum::<u64>(), deferred);
            assert!(metaslabs.iter().all(|metaslab| !metaslab.is_broken));
        }
        let state = self.space.lock();
        for metaslab in state.vdevs.values().flat_map(|vdev| &vdev.metaslabs) {
            metaslab.check_sums().unwrap();
        }
    }

    /// Drops uncommitted changes and starts again from the disk.
    fn import(&mut self) {
        (self.space, self.store) = self.disk.import(&self.vdevs, self.has_logs, self.seed);
        self.choose_policy();
        let txg = self.disk.txg;
        let mut model = self.model.borrow_mut();
        let (kept, lost) = std::mem::take(&mut model.blocks).into_iter().partition(|b| b.1 <= txg);
        model.blocks = kept;
        let lost: Vec<(Vec<Dva>, u64)> = lost;
        for (dvas, _) in lost {
            for dva in dvas {
                model.live[dva.vdev as usize].try_remove(range(&dva)).unwrap();
            }
        }
        // The blocks of older uberblocks are given up with them.
        model.freed.clear();
    }

    /// Runs steps, each of them a seed: an allocation, or a sync with its concurrent operations.
    async fn go(&mut self, steps: &[u64]) {
        for step in steps {
            self.rng = RefCell::new(Rng::seeded(*step));
            let txg = self.disk.txg + 1;
            if self.dice(13) > 0 {
                self.allocate(txg).await;
                continue;
            }
            let disk = self.disk.clone();
            let open = async {
                for ahead in [1, 1, 1, 2] {
                    for _ in 0..self.dice(6) {
                        self.allocate(txg + ahead).await;
                        yield_now().await;
                    }
                }
            };
            let (disk, ()) = futures_util::future::join(self.sync(disk, txg), open).await;
            self.disk = disk;
            self.check(txg);
            match self.dice(40) {
                0 => self.import(),
                1 => self.space.set_memory(self.dice(8192)),
                _ => {}
            }
        }
    }

    /// Like [`go`](Self::go) without imports: a refused allocation must fit nowhere. Returns the
    /// number of refusals.
    async fn go_full(&mut self, steps: &[u64]) -> u64 {
        let mut refusals = 0;
        for step in steps {
            self.rng = RefCell::new(Rng::seeded(*step));
            let txg = self.disk.txg + 1;
            match self.dice(150) {
                0 => {
                    self.disk = self.sync(self.disk.clone(), txg).await;
                    self.check(txg);
                }
                1..28 => self.free(txg),
                _ => {
                    let psize = 512 * (1 + self.dice(48));
                    let request = Request::data(psize, txg);
                    if let Ok(dvas) = self.space.allocate(&request).await {
                        self.given(&dvas, &request);
                        self.model.borrow_mut().blocks.push((dvas, txg));
                    } else {
                        refusals += 1;
                        assert!(!self.fits(psize, txg), "{psize} bytes fit");
                    }
                }
            }
        }
        refusals
    }
}

fn vdevs(seed: u64) -> Vec<TestVdev> {
    let plain = |class, shift, count| TestVdev::plain(class, shift, count);
    match seed % 4 {
        0 => vec![plain(Class::Normal, 18, 8)],
        1 => {
            vec![plain(Class::Normal, 18, 6), plain(Class::Normal, 19, 4), plain(Class::Log, 17, 2)]
        }
        2 => vec![
            TestVdev { ashift: 12, layout: TestLayout::Raidz(4, 1), ..plain(Class::Normal, 20, 3) },
            plain(Class::Special, 17, 4),
            TestVdev { layout: TestLayout::Draid(4, 2), ..plain(Class::Normal, 18, 5) },
        ],
        // Large enough for an embedded log.
        _ => vec![plain(Class::Normal, 16, 70), plain(Class::Dedup, 16, 3)],
    }
}

#[test]
fn random_sequences_agree_with_the_model() {
    let (given, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    for seed in 0..32 {
        play(steps(seed, 520), |steps| {
            let mut run = Run::new(seed, vdevs(seed), seed % 5 != 4);
            run.is_tight = seed % 7 == 6;
            cenote_rt::block_on(1, run.go(steps)).unwrap();
            given.fetch_add(run.model.borrow().given, Ordering::Relaxed);
            refused.fetch_add(run.model.borrow().refused, Ordering::Relaxed);
        });
    }
    let (given, refused) = (given.into_inner(), refused.into_inner());
    assert!(given > 10_000 && refused > 300, "{given} given, {refused} refused");
}

/// An allocation fails exactly when nothing fits anywhere.
#[test]
fn no_space_means_that_nothing_fits() {
    for seed in 0..6 {
        play(steps(seed, 3000), |steps| {
            let mut run = Run::new(seed, vdevs(seed % 3), true);
            let refusals = cenote_rt::block_on(1, run.go_full(steps)).unwrap();
            assert!(refusals > 20 || steps.len() < 3000, "{refusals}");
        });
    }
}

impl Run {
    /// Whether a copy of `psize` bytes fits into the normal class, according to the model.
    fn fits(&self, psize: u64, txg: u64) -> bool {
        let model = self.model.borrow();
        let vdevs = self.vdevs.iter().zip(0..).filter(|(vdev, _)| vdev.class == Class::Normal);
        for (vdev, id) in vdevs {
            let mut taken = model.live[id].clone();
            for (_, range) in model
                .freed
                .range(txg - 2..)
                .flat_map(|(_, list)| list)
                .filter(|(other, _)| *other == id as u64)
            {
                taken.add(range.clone());
            }
            for metaslab in 0..vdev.count {
                let mut free = RangeSet::from(vdev.metaslab(metaslab));
                free.subtract(&taken);
                if free.iter().any(|range| range.end - range.start >= vdev.asize(psize)) {
                    return true;
                }
            }
        }
        false
    }
}
