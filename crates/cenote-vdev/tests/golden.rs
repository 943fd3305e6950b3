//! Reads every block of pools that OpenZFS wrote, through labels and tree alone.
//!
//! A small walker of its own finds the block pointers: from the best uberblock through object sets,
//! dnodes and indirect blocks. Each address of each pointer is read and scrubbed, and the checksum
//! decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_codec::checksum::{self, ChecksumAlgorithm};
use cenote_codec::compress::{Compression, decompress};
use cenote_device::{Device, Fault, FaultyDevice, FileDevice, OpenMode};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::dnode::{self, DnodePhys};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::objset::ObjSetPhys;
use cenote_rt::{BoxFuture, Buf, BufMut};
use cenote_vdev::labels::{self, DeviceLabels};
use cenote_vdev::{
    BadChild, BuildOptions, Cause, IndirectMap, IoClass, LeafRange, Place, Rewrite, Tree,
    TxgRanges, VdevState,
};

/// Number of the object type of dnodes, and of those of object sets.
const TYPE_DNODE: u8 = 10;
const TYPE_OBJSET: u8 = 11;
/// Number of the bonus type of datasets, and where its block pointer lies.
const TYPE_DSL_DATASET: u8 = 16;
const DATASET_BP_AT: usize = 128;
/// Number of the object type of indirect mappings and their births.
const TYPE_OTHER_NUMBERS: u8 = 0xc3;

struct OpenPool {
    tree: Arc<Tree>,
    /// Whether every block that was read is written back in place.
    is_rewritten: bool,
    rootbp: BlockPtr,
    /// File name of each leaf's path, by guid.
    names: BTreeMap<u64, String>,
}

/// Wraps the device of an image.
type Wrap<'a> = &'a dyn Fn(&str, Arc<dyn Device>) -> Arc<dyn Device>;

/// Opens a golden pool by its labels, as an importer would.
async fn open(name: &str, wrap: Wrap<'_>) -> Option<OpenPool> {
    let golden = cenote_testkit::golden(name)?;
    let mut devices: BTreeMap<u64, Arc<dyn Device>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut tops: BTreeMap<u64, (u64, VdevConfig)> = BTreeMap::new();
    let mut facts = None;
    let mut best = None;
    for path in golden.devices() {
        let file = path.file_name().expect("image").to_string_lossy().into_owned();
        let device = FileDevice::open(&path, OpenMode::ReadOnly).expect("golden image");
        let device = wrap(&file, device);
        let found: DeviceLabels = labels::read(&*device).await;
        assert_eq!(found.labels.len(), 4, "{}", path.display());
        // One image of g-degraded is blank.
        let Some(config) = found.best_config(u64::MAX) else { continue };
        assert_eq!(found.owners().len(), 1, "{}", path.display());
        let Some(member) = &config.member else { continue };
        names.insert(config.guid, file);
        devices.insert(config.guid, device);
        let id = member.vdev_tree.id;
        if tops.get(&id).is_none_or(|(txg, _)| *txg < config.txg) {
            tops.insert(id, (config.txg, member.vdev_tree.clone()));
        }
        facts = Some(member.facts.clone());
        let candidates = found.uberblocks().map(|found| (found.uberblock, ()));
        let candidates = best.into_iter().chain(candidates);
        best = cenote_ondisk::uberblock::best(candidates, u64::MAX);
    }
    let facts = facts.expect("a member");
    let slots = 0..facts.vdev_children.expect("feature-flag pool");
    let slot = |id| tops.remove(&id).map_or_else(|| VdevConfig::missing(id), |(_, top)| top);
    let mut tops: Vec<VdevConfig> = slots.map(slot).collect();
    if name == "g-removed" {
        // Only the MOS says which slot was removed; its sector size is that of the others.
        tops[1].kind = cenote_ondisk::config::VdevKind::Indirect;
        tops[1].top.ashift = tops[0].top.ashift;
    }
    let root = VdevConfig::root(facts.pool_guid, tops);
    let open = |leaf: &VdevConfig| devices.get(&leaf.guid).cloned();
    // The devices are open for reading only.
    let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
    let tree = Tree::build(&root, open, &options).expect("root");
    // Dirty time logs are in the MOS, which this test does not read: only leaves with a recorded
    // resilver may be stale.
    for leaf in root.leaves().filter(|leaf| leaf.leaf.dtl_object.is_some()) {
        if leaf.leaf.resilver_txg.is_none() && leaf.leaf.rebuild_txg.is_none() {
            tree.set_dtl(leaf.guid, TxgRanges::default());
        }
    }
    let (uberblock, ()) = best.expect("an uberblock");
    tree.expansion().set_progress(uberblock.raidz_reflow_info);
    Some(OpenPool { tree, is_rewritten: false, rootbp: uberblock.rootbp, names })
}

/// Totals of a walk.
#[derive(Default)]
struct Seen {
    copies: usize,
    births: BTreeSet<u64>,
    places: BTreeSet<(u32, u64)>,
    bad: Vec<BadChild>,
    removed_copies: usize,
}

impl OpenPool {
    /// Reads and scrubs every copy; returns the bytes as stored on disk.
    async fn copies(&self, bp: &BlockPtr, seen: &mut Seen) -> Option<Vec<u8>> {
        let algorithm = ChecksumAlgorithm::from_id(bp.checksum_id())?;
        if algorithm.is_salted() || algorithm.is_embedded() {
            return None;
        }
        let (want, swapped) = (bp.checksum(), bp.endian() == Endian::Big);
        let folded = bp.has_short_checksum();
        let verify = move |data: &[u8]| {
            let computed = checksum::compute(algorithm, data, swapped, None).expect("no salt");
            algorithm.matches(computed, want, folded)
        };
        let mut bytes = None;
        for dva in bp.dvas().filter(|dva| !dva.gang) {
            if !seen.places.insert((dva.vdev, dva.offset)) {
                continue;
            }
            let (psize, birth) = (bp.psize(), bp.physical_birth());
            let top = self.tree.top(u64::from(dva.vdev)).expect("top-level vdev");
            if top.kind() == cenote_vdev::VdevKind::Indirect {
                self.tree.indirect(u64::from(dva.vdev))?;
                seen.removed_copies += 1;
            } else {
                let asize = self.tree.asize_for(u64::from(dva.vdev), psize, birth);
                assert_eq!(asize, Some(dva.asize), "{bp:?}");
            }
            let read = self.tree.read(dva, psize, birth, &verify).await;
            let read = read.unwrap_or_else(|error| panic!("{dva:?} {bp:?}: {error}"));
            let scrub = self.tree.scrub(dva, psize, birth, &verify).await.expect("address");
            assert_eq!(scrub.good.as_deref(), Some(&read.data[..]), "{dva:?}");
            assert!(scrub.bad.len() >= read.bad.len(), "{dva:?}");
            seen.bad.extend(scrub.bad);
            if self.is_rewritten {
                self.rewrite(dva.into(), read.data.clone(), birth).await;
            }
            seen.births.insert(birth);
            seen.copies += 1;
            bytes = Some(read.data.to_vec());
        }
        bytes
    }

    /// Writes a block in place, and repairs it as if all of it were bad.
    async fn rewrite(&self, place: Place, data: Buf, birth: u64) {
        let top = self.tree.top(place.vdev).expect("top-level vdev");
        if top.kind() != cenote_vdev::VdevKind::Indirect {
            let written = self.tree.write(place, data.clone(), birth, IoClass::AsyncWrite).await;
            assert!(written.expect("writes").failed.is_empty());
        }
        let ranges = self.tree.leaf_ranges(place, data.len() as u64, birth);
        let bad: Vec<BadChild> = ranges
            .iter()
            .map(|range| {
                let leaf = self.tree.leaf(range.leaf);
                let (guid, path) = (leaf.guid(), leaf.path().to_owned());
                let &LeafRange { leaf, offset, len } = range;
                BadChild { leaf, guid, path, offset, len, cause: Cause::Checksum, errors: 0 }
            })
            .collect();
        let outcome =
            self.tree.repair(place, &data, birth, &bad, Rewrite::Repair).await.expect("an address");
        assert!(outcome.failed.is_empty());
        let sum = |ranges: &[LeafRange]| ranges.iter().map(|range| range.len).sum::<u64>();
        // Reads bridge small gaps, writes do not.
        assert!(sum(&outcome.repaired) > 0 && sum(&outcome.repaired) <= sum(&ranges));
    }

    /// Visits everything below `bp`.
    fn visit<'a>(
        &'a self,
        bp: &'a BlockPtr,
        seen: &'a mut Seen,
    ) -> std::pin::Pin<Box<dyn Future<Output = Option<Vec<u8>>> + 'a>> {
        Box::pin(async move {
            if bp.is_hole() {
                return None;
            }
            let stored = match bp.embedded_payload() {
                Some(payload) => payload.as_bytes().to_vec(),
                None => self.copies(bp, seen).await?,
            };
            if bp.is_encrypted() {
                return None;
            }
            let mut data =
                vec![0; if bp.is_embedded() { bp.embedded_lsize() } else { bp.lsize() } as usize];
            let compression = Compression::from_id(bp.compression_id()).expect("compression");
            decompress(compression, &stored, &mut data).expect("decompresses");
            if bp.level() > 0 {
                for child in BlockPtr::all_in(&data) {
                    self.visit(&child, seen).await;
                }
                return None;
            }
            match bp.object_type().0 {
                TYPE_OBJSET => {
                    let objset = ObjSetPhys::decode(&data).expect("object set");
                    for dnode in [Some(&objset.meta_dnode), objset.userused_dnode.as_ref()] {
                        self.dnode(dnode, seen).await;
                    }
                }
                TYPE_DNODE => {
                    for (_, bytes) in dnode::slots(&data) {
                        let dnode = DnodePhys::decode(bytes).expect("dnode");
                        self.dnode(dnode.as_ref(), seen).await;
                    }
                }
                _ => {}
            }
            Some(data)
        })
    }

    async fn dnode(&self, dnode: Option<&DnodePhys>, seen: &mut Seen) {
        let Some(dnode) = dnode else { return };
        for bp in dnode.blkptrs().iter().chain(dnode.spill()) {
            self.visit(bp, seen).await;
        }
        if dnode.bonus_type.0 == TYPE_DSL_DATASET {
            let bp = BlockPtr::at(dnode.bonus(), DATASET_BP_AT).expect("dataset");
            self.visit(&bp, seen).await;
        }
    }

    /// The mapping of a removed vdev: the one object whose bonus says so (spec 05 §11).
    async fn mapping(&self) -> IndirectMap {
        let meta = self.visit(&self.rootbp, &mut Seen::default()).await.expect("MOS");
        let meta = ObjSetPhys::decode(&meta).expect("object set").meta_dnode;
        let [meta] = meta.blkptrs() else {
            return self.mapping_in(meta.blkptrs()).await.expect("mapping");
        };
        self.mapping_in(std::slice::from_ref(meta)).await.expect("mapping")
    }

    async fn mapping_in(&self, blkptrs: &[BlockPtr]) -> Option<IndirectMap> {
        let mut todo = blkptrs.to_vec();
        while let Some(bp) = todo.pop() {
            if bp.is_hole() {
                continue;
            }
            let stored = self.copies(&bp, &mut Seen::default()).await?;
            let mut data = vec![0; bp.lsize() as usize];
            let compression = Compression::from_id(bp.compression_id()).expect("compression");
            decompress(compression, &stored, &mut data).expect("decompresses");
            if bp.level() > 0 {
                todo.extend(BlockPtr::all_in(&data));
                continue;
            }
            for (_, bytes) in dnode::slots(&data) {
                let Some(dnode) = DnodePhys::decode(bytes).expect("dnode") else { continue };
                let is_mapping = matches!(dnode.bonus().len(), 24 | 32)
                    && dnode.object_type.0 == TYPE_OTHER_NUMBERS;
                if is_mapping {
                    let count = cenote_ondisk::words::u64_at(dnode.bonus(), 16).expect("count");
                    let bp = dnode.blkptrs().first().expect("data");
                    let data = self.visit(bp, &mut Seen::default()).await.expect("one block");
                    return IndirectMap::decode(data.get(..count as usize * 24)?).ok();
                }
            }
        }
        None
    }

    async fn walk(&self) -> Seen {
        let mut seen = Seen::default();
        self.visit(&self.rootbp, &mut seen).await;
        seen
    }
}

/// Walks a pool; `None` if its images are not present.
fn walk(name: &str) -> Option<(OpenPool, Seen)> {
    walk_with(name, &|_, device| device)
}

fn walk_with(name: &str, wrap: Wrap<'_>) -> Option<(OpenPool, Seen)> {
    walk_and(name, wrap, false)
}

fn walk_and(name: &str, wrap: Wrap<'_>, is_rewritten: bool) -> Option<(OpenPool, Seen)> {
    cenote_rt::block_on(2, async {
        let pool = OpenPool { is_rewritten, ..open(name, wrap).await? };
        if name == "g-removed" {
            pool.tree.set_indirect(1, Arc::new(pool.mapping().await));
        }
        let seen = pool.walk().await;
        println!("{name}: {} copies of blocks, {} bad parts", seen.copies, seen.bad.len());
        Some((pool, seen))
    })
    .expect("runtime")
}

fn walk_clean(name: &str, copies_min: usize) -> Option<(OpenPool, Seen)> {
    let (pool, seen) = walk(name)?;
    assert!(seen.bad.is_empty(), "{name}: {:?}", &seen.bad[..seen.bad.len().min(3)]);
    assert!(seen.copies >= copies_min, "{name}: {} copies", seen.copies);
    assert_eq!(pool.tree.root().state(), VdevState::Healthy, "{name}");
    Some((pool, seen))
}

#[test]
fn stripes_and_mirrors_are_clean() {
    walk_clean("g-basic", 1000);
    walk_clean("g-classes", 300);
}

#[test]
fn raidz_is_clean() {
    for name in ["g-raidz1", "g-raidz2", "g-raidz3"] {
        walk_clean(name, 300);
    }
}

#[test]
fn draid_is_clean() {
    walk_clean("g-draid", 300);
}

#[test]
fn blocks_of_both_widths_of_an_expanded_raidz_are_clean() {
    let Some((pool, seen)) = walk_clean("g-expand", 300) else { return };
    let top = pool.tree.tops().next().expect("raidz");
    assert_eq!((pool.tree.children(top).count(), top.nparity()), (4, 1));
    let ratio = |birth| pool.tree.asize_for(0, 1 << 17, birth);
    let widths: BTreeSet<_> = seen.births.iter().map(|birth| ratio(*birth)).collect();
    assert_eq!(widths.len(), 2, "births on both sides of the expansion");
}

#[test]
fn a_removed_vdev_is_read_through_its_mapping() {
    let Some((_, seen)) = walk("g-removed") else { return };
    assert!(seen.bad.is_empty() && seen.removed_copies > 10, "{}", seen.removed_copies);
}

#[test]
fn a_degraded_pool_is_read_in_full() {
    let Some((pool, seen)) = walk("g-degraded") else { return };
    // The damage of d3 lies beside the remaining blocks; zdb -bccs counts no error either.
    assert!(seen.bad.is_empty(), "{:?}", &seen.bad[..seen.bad.len().min(3)]);
    assert_eq!(pool.tree.root().state(), VdevState::Degraded);
    let states: Vec<_> = pool.tree.tops().map(cenote_vdev::Vdev::state).collect();
    assert_eq!(states, [VdevState::Degraded; 2]);
    let leaf_states: BTreeSet<_> = pool.tree.vdevs().map(|vdev| vdev.state().to_string()).collect();
    let want = ["DEGRADED", "OFFLINE", "ONLINE", "UNAVAIL"].map(str::to_owned);
    assert_eq!(leaf_states, BTreeSet::from(want));
}

#[test]
fn damage_up_to_parity_is_repaired_and_named() {
    for (name, images) in [
        ("g-raidz1", &["d1.img"][..]),
        ("g-raidz2", &["d0.img", "d3.img"]),
        ("g-raidz3", &["d1.img", "d2.img", "d6.img"]),
        ("g-draid", &["d10.img", "d4.img"]),
        ("g-expand", &["d3.img"]),
        ("g-legacy", &["d0.img"]),
    ] {
        let Some((pool, seen)) = walk_with(name, &|file, device| {
            let lies =
                FaultyDevice::new(Arc::clone(&device), 5).with_range(4 << 20..90 << 20, Fault::Lie);
            if images.contains(&file) { Arc::new(lies) } else { device }
        }) else {
            continue;
        };
        let named: BTreeSet<_> = seen.bad.iter().map(|bad| &pool.names[&bad.guid][..]).collect();
        // The little data of the dRAID lies in one group, which does not use all children.
        let images: BTreeSet<_> = images.iter().copied().collect();
        let is_all = named == images || name == "g-draid";
        assert!(is_all && !named.is_empty() && named.is_subset(&images), "{name}: {named:?}");
        let is_checksum = |bad: &BadChild| matches!(bad.cause, Cause::Checksum);
        assert!(seen.bad.iter().all(is_checksum), "{name}");
    }
}

/// A device that compares each write with its present contents.
#[derive(Debug)]
struct Comparing {
    inner: Arc<dyn Device>,
    written: Arc<AtomicU64>,
}

impl Device for Comparing {
    fn info(&self) -> &cenote_device::DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, cenote_rt::Result<BufMut>> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, cenote_rt::Result<()>> {
        Box::pin(async move {
            let given: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
            let held = self.inner.read(offset, BufMut::zeroed(given.len())).await?;
            assert!(
                held[..] == given[..],
                "{}: {} bytes at {offset:#x}",
                self.info().path,
                given.len()
            );
            self.written.fetch_add(given.len() as u64, Ordering::Relaxed);
            Ok(())
        })
    }
}

#[test]
fn writing_every_block_again_changes_no_byte() {
    for name in [
        "g-basic",
        "g-codecs",
        "g-classes",
        "g-raidz1",
        "g-raidz2",
        "g-raidz3",
        "g-draid",
        "g-expand",
        "g-removed",
    ] {
        let written = Arc::new(AtomicU64::new(0));
        let wrap = |_: &str, inner: Arc<dyn Device>| {
            Arc::new(Comparing { inner, written: Arc::clone(&written) }) as Arc<dyn Device>
        };
        let Some((_, seen)) = walk_and(name, &wrap, true) else { continue };
        let bytes = written.load(Ordering::Relaxed);
        println!("{name}: {bytes} bytes written, as they were");
        assert!(seen.copies > 300 && bytes > 1 << 20, "{name}");
    }
}

#[test]
fn a_resilver_that_has_just_begun_hurts_nothing() {
    let Some((_, seen)) = walk("g-scan") else { return };
    assert!(seen.copies > 300, "{} copies", seen.copies);
    assert!(seen.bad.is_empty(), "{:?}", &seen.bad[..seen.bad.len().min(3)]);
}

#[test]
fn damaged_labels_are_judged_apart() {
    let Some(golden) = cenote_testkit::golden("g-raidz1") else { return };
    let path = golden.devices().swap_remove(0);
    let device = FileDevice::open(path, OpenMode::ReadOnly).expect("golden image");
    let read = |device: Arc<dyn Device>| {
        cenote_rt::block_on(1, async move { labels::read(&*device).await }).expect("runtime")
    };
    let whole = read(Arc::clone(&device));
    let best = whole.best_uberblock(u64::MAX).expect("uberblock");
    let count = whole.uberblocks().count();
    assert!(whole.labels.iter().all(|label| label.boot_env.is_some() && label.error.is_none()));
    assert!(
        whole
            .best_uberblock(best.uberblock.txg - 1)
            .is_some_and(|older| { older.uberblock.txg < best.uberblock.txg })
    );
    // Damage in the filler behind L0's list, an I/O error in L1's list, damage in L3's ring.
    let (l1, l3) = (0x40000, whole.labels[3].offset);
    let damaged = FaultyDevice::new(device, 3)
        .with_range(0x4000 + 0x1b000..0x4000 + 0x1b001, Fault::Lie)
        .with_range(l1 + 0x4000..l1 + 0x4200, Fault::Eio)
        .with_range(l3 + 0x20000..l3 + 0x40000, Fault::Eio);
    let damaged = read(Arc::new(damaged));
    let facts: Vec<_> = damaged
        .labels
        .iter()
        .map(|l| (l.config.is_ok(), l.config_trailer.is_ok(), l.error.is_some()))
        .collect();
    let good = (true, true, false);
    assert_eq!(facts, [(true, false, false), (false, false, true), good, (true, true, true)]);
    assert_eq!(damaged.uberblocks().count(), count / 4 * 3);
    assert_eq!(damaged.best_uberblock(u64::MAX).map(|found| found.uberblock), Some(best.uberblock));
    assert_eq!(damaged.owners(), whole.owners());
    let blank: Arc<dyn Device> =
        Arc::new(cenote_device::MemoryDevice::new("blank", vec![0; 2 << 20]));
    let blank = read(blank);
    assert!(blank.labels.len() == 4 && blank.first_config().is_none());
    let tiny: Arc<dyn Device> = Arc::new(cenote_device::MemoryDevice::new("tiny", vec![0; 1000]));
    assert!(read(tiny).labels.is_empty());
}
