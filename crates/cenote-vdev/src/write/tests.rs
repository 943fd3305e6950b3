//! Blocks written, compared with a model of the format, and read back after losses.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_codec::fletcher::fletcher4;
use cenote_device::{Device, FaultyDevice, MemoryDevice, WriteFault};
use cenote_ondisk::config::{VdevConfig, VdevKind as ConfigKind};
use cenote_rt::Rng;

use super::*;
use crate::bench::{
    BIRTH, Bench, DATA, DEVICE_LEN, draid, leaves, places, raidz, shapes, some_leaves, top, vdev,
    wait,
};
use crate::raidz::{Raidz, Reflow};
use crate::{BuildOptions, DtlKind, Read, TxgRanges};

fn random(rng: &mut Rng, len: u64) -> Buf {
    let mut data = vec![0; len as usize];
    rng.fill(&mut data);
    Buf::from(data)
}

fn write(tree: &Tree, offset: u64, data: &Buf) -> Result<WriteOutcome> {
    let place = Place { vdev: 0, offset };
    wait(tree.write(place, data.clone(), BIRTH, IoClass::AsyncWrite))
}

fn read(tree: &Tree, offset: u64, want: &[u8]) -> Result<Read> {
    let sum = fletcher4(want);
    let verify = move |data: &[u8]| fletcher4(data) == sum;
    wait(tree.read(Place { vdev: 0, offset }, want.len() as u64, BIRTH, &verify))
}

fn scrub(tree: &Tree, offset: u64, want: &[u8]) -> Vec<BadChild> {
    let sum = fletcher4(want);
    let verify = move |data: &[u8]| fletcher4(data) == sum;
    let place = Place { vdev: 0, offset };
    let scrubbed = wait(tree.scrub(place, want.len() as u64, BIRTH, &verify)).expect("address");
    assert_eq!(scrubbed.good.as_deref(), Some(want));
    scrubbed.bad
}

/// Initial bytes of the devices; unwritten space keeps them.
const BEFORE: u8 = 0xa5;

/// Byte returned by a damaged device.
const DAMAGED: u8 = 0x3c;

/// Fills the devices with [`BEFORE`].
fn fill_with_marker(bench: &Bench) {
    for device in bench.devices.values() {
        device.edit(|bytes| bytes.fill(BEFORE));
    }
}

/// Multiplication in the field of parity, bit by bit (spec 06 §4.4).
fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = if a & 0x80 != 0 { (a << 1) ^ 0x1d } else { a << 1 };
        b >>= 1;
    }
    product
}

/// Contents of a RAID-Z after a block is written: sectors by child and sector on it. Follows the
/// text of spec 06 §4.1, §4.4, §5.3, sector by sector, without columns.
fn model(raidz: &Raidz, offset: u64, data: &[u8]) -> BTreeMap<(u64, u64), Vec<u8>> {
    let sector = 1_usize << raidz.ashift;
    let (width, logical, parity) = (raidz.width, raidz.width_at(BIRTH), raidz.nparity);
    let mut data = data.to_vec();
    data.resize(data.len().next_multiple_of(sector), 0);
    let sectors = (data.len() / sector) as u64;
    let total = sectors + parity * sectors.div_ceil(logical - parity);
    let columns = total.min(logical);
    // Sectors of a column: how often it occurs when all sectors are dealt one after the other.
    let height = |column: u64| (0..total).filter(|index| index % logical == column).count() as u64;
    let content = |row: u64, column: u64| -> Option<Vec<u8>> {
        if row >= height(column) {
            return None;
        }
        let before: u64 = (parity..column).map(height).sum();
        let start = (before + row) as usize * sector;
        Some(data[start..start + sector].to_vec())
    };
    let mut stored = BTreeMap::new();
    for index in 0..total {
        let (row, column) = (index / logical, index % logical);
        let bytes = if column >= parity {
            content(row, column).expect("dealt")
        } else {
            let mut sum = vec![0; sector];
            // Horner: the last column counts once, each one before it with one power more.
            let power = [1, 2, 4][column as usize];
            for other in parity..columns {
                let part = content(row, other).unwrap_or_else(|| vec![0; sector]);
                for (sum, byte) in sum.iter_mut().zip(part) {
                    *sum = times(*sum, power) ^ byte;
                }
            }
            sum
        };
        let swapped = match column {
            0 if parity == 1 && offset & (1 << 20) != 0 => 1,
            1 if parity == 1 && offset & (1 << 20) != 0 => 0,
            other => other,
        };
        let at = (offset >> raidz.ashift) + row * logical + swapped;
        stored.insert((at % width, at / width), bytes);
    }
    stored
}

#[test]
fn raidz_puts_every_byte_where_the_format_says() {
    for (name, config, _) in shapes() {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(21));
        let Layout::Raidz(raidz) = &bench.tree.vdevs[1].layout else { continue };
        let sector = 1_usize << raidz.ashift;
        for (offset, psize) in places(&bench, &mut rng).into_iter().chain([(1 << 20, 0x2200)]) {
            fill_with_marker(&bench);
            let data = random(&mut rng, psize);
            let outcome = write(&bench.tree, offset, &data).expect(name);
            assert!(outcome.failed.is_empty() && !outcome.is_degraded, "{name}");
            let model = model(raidz, offset, &data);
            let pads = raidz.pads(offset, psize, BIRTH);
            let untouched = vec![BEFORE; sector];
            for child in 0..raidz.width {
                bench.devices[&(100 + child)].edit(|bytes| {
                    for (at, found) in bytes[DATA_START as usize..].chunks(sector).enumerate() {
                        let is_pad = || pads.contains(&(child as usize, (at * sector) as i64));
                        let want = model.get(&(child, at as u64)).unwrap_or(&untouched);
                        assert!(
                            found == want || is_pad(),
                            "{name} {psize} at {offset:#x}: child {child}, sector {at}"
                        );
                    }
                });
            }
        }
    }
}

/// The written parts of a block must be exactly the ranges that a reader requests.
#[test]
fn written_blocks_read_and_scrub_clean_and_survive_losses() {
    for (name, config, nparity) in shapes() {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(22));
        fill_with_marker(&bench);
        let width = bench.devices.len() as u64;
        for (offset, psize) in places(&bench, &mut rng) {
            let data = random(&mut rng, psize);
            write(&bench.tree, offset, &data).expect(name);
            let bad = scrub(&bench.tree, offset, &data);
            assert!(bad.is_empty(), "{name} {psize}: {bad:?}");
            for round in 0..6 {
                let absent = some_leaves(&mut rng, width, 1 + round % nparity);
                let tree = bench.tree_with(&absent, &[]);
                let got = read(&tree, offset, &data).expect(name);
                assert!(got.data[..] == data[..], "{name} without {absent:?}");
            }
        }
    }
}

/// A tree some of whose leaves refuse writes, and some are absent.
fn failing(bench: &Bench, absent: &[u64], refusing: &[u64]) -> Arc<Tree> {
    let open = |leaf: &VdevConfig| {
        let device = bench.devices.get(&leaf.guid).filter(|_| !absent.contains(&leaf.guid))?;
        let device: Arc<dyn Device> = Arc::clone(device) as _;
        if refusing.contains(&leaf.guid) {
            let faulty = FaultyDevice::new(device, 1);
            return Some(Arc::new(faulty.with_write_range(DATA.0..DATA.1, WriteFault::Eio)) as _);
        }
        Some(device)
    };
    let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
    Tree::build(&bench.config, open, &options).expect("root")
}

fn dtl_guids(tree: &Tree) -> Vec<u64> {
    let changed = tree.changed_dtls();
    assert!(changed.iter().all(|(_, log)| *log == TxgRanges::of(BIRTH)));
    changed.into_iter().map(|(guid, _)| guid).collect()
}

#[test]
fn leaves_that_fail_a_write_are_reported_and_read_last() {
    let mirror = top(vdev(ConfigKind::Mirror, 0, 2, leaves(3)), 12);
    for (name, config, bears) in
        shapes().into_iter().chain([("mirror of 3", mirror, 2)]).collect::<Vec<_>>()
    {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(23));
        let width = bench.devices.len() as u64;
        fill_with_marker(&bench);
        for round in 0..12 {
            let (offset, psize) = (0, 100 << 12);
            let data = random(&mut rng, psize);
            let touched: Vec<u64> = bench
                .tree
                .leaf_ranges(Place { vdev: 0, offset }, psize, BIRTH)
                .iter()
                .map(|range| bench.tree.leaf(range.leaf).guid())
                .collect();
            let victims = some_leaves(&mut rng, width, 1 + round % bears);
            let (absent, refusing): (Vec<u64>, Vec<u64>) =
                victims.iter().partition(|_| rng.below(2) == 0);
            let tree = failing(&bench, &absent, &refusing);
            let outcome = write(&tree, offset, &data).expect(name);
            let mut want: Vec<u64> =
                victims.iter().copied().filter(|guid| touched.contains(guid)).collect();
            want.sort_unstable();
            assert_eq!(dtl_guids(&tree), want, "{name}");
            assert_eq!(outcome.is_degraded, !want.is_empty(), "{name}");
            let mut failed: Vec<u64> = outcome.failed.iter().map(|failed| failed.guid).collect();
            failed.sort_unstable();
            want.retain(|guid| refusing.contains(guid));
            assert_eq!(failed, want, "{name}");
            for failed in &outcome.failed {
                let stats = tree.leaf(failed.leaf).stats();
                assert_eq!((stats.write_errors, stats.write_bytes), (1, 0), "{name}");
            }
            // The failed leaves hold other bytes; none is reported for that.
            let got = read(&tree, offset, &data).expect(name);
            assert!(got.data[..] == data[..] && got.bad.is_empty(), "{name}: {:?}", got.bad);
            assert!(tree.dtl(2, DtlKind::Missing).is_some_and(|log| log.is_empty()), "{name}");
            let partial = tree.dtl(2, DtlKind::Partial).expect("there");
            assert_eq!(partial.contains(BIRTH), outcome.is_degraded, "{name}");
        }
    }
}

#[test]
fn a_block_that_cannot_be_read_back_is_an_error() {
    let mirror = top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 12);
    for (name, config, bears) in
        shapes().into_iter().chain([("mirror of 2", mirror, 1)]).collect::<Vec<_>>()
    {
        let bench = Bench::new(config);
        let data = random(&mut Rng::seeded(24), 100 << 12);
        let place = Place { vdev: 0, offset: 0 };
        let ranges = bench.tree.leaf_ranges(place, data.len() as u64, BIRTH);
        let touched = ranges.iter().map(|range| bench.tree.leaf(range.leaf).guid());
        let victims: Vec<u64> = touched.take(bears + 1).collect();
        let tree = failing(&bench, &victims[..1], &victims[1..]);
        let error = write(&tree, 0, &data).expect_err(name);
        assert_eq!(error.kind(), Kind::Io, "{name}");
        assert!(matches!(error.cause(), Some(WriteError::Lost { cause: Some(_), .. })), "{name}");
        assert!(tree.dtl(2, DtlKind::Missing).is_some_and(|log| !log.is_empty()), "{name}");
    }
}

#[test]
fn bad_parts_are_written_again_and_nothing_else() {
    for (name, config, nparity) in shapes() {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(25));
        let width = bench.devices.len() as u64;
        for (offset, psize) in places(&bench, &mut rng).into_iter().step_by(2) {
            let data = random(&mut rng, psize);
            write(&bench.tree, offset, &data).expect(name);
            let before: Vec<Vec<u8>> =
                bench.devices.values().map(|device| contents(device)).collect();
            let victims = some_leaves(&mut rng, width, nparity);
            for victim in &victims {
                bench.devices[victim].edit(|bytes| bytes.fill(DAMAGED));
            }
            let tree = bench.tree_with(&[], &[]);
            let place = Place { vdev: 0, offset };
            let sum = fletcher4(&data);
            let verify = move |data: &[u8]| fletcher4(data) == sum;
            let scrubbed = wait(tree.scrub(place, psize, BIRTH, &verify)).expect("address");
            let good = scrubbed.good.expect(name);
            let outcome = wait(tree.repair(place, &good, BIRTH, &scrubbed.bad, Rewrite::Repair))
                .expect("an address");
            assert!(outcome.failed.is_empty(), "{name}");
            assert!(scrub(&tree, offset, &data).is_empty(), "{name} {psize}");
            let bytes: u64 = outcome.repaired.iter().map(|range| range.len).sum();
            let counted: u64 = tree.leaves().map(|(_, leaf)| leaf.stats().repaired_bytes).sum();
            assert_eq!(bytes, counted, "{name}");
            for ((guid, device), before) in bench.devices.iter().zip(before) {
                let mut want = before.clone();
                if victims.contains(guid) {
                    want.fill(DAMAGED);
                }
                let own = |range: &&LeafRange| tree.leaf(range.leaf).guid() == *guid;
                for range in outcome.repaired.iter().filter(own) {
                    let range = range.offset as usize..(range.offset + range.len) as usize;
                    want[range.clone()].copy_from_slice(&before[range]);
                }
                device.edit(|bytes| {
                    assert!(bytes == want, "{name} {psize} at {offset:#x}: {guid}");
                    bytes.copy_from_slice(&before);
                });
            }
            assert!(tree.changed_dtls().is_empty(), "{name}");
        }
    }
}

fn contents(device: &MemoryDevice) -> Vec<u8> {
    let mut copy = Vec::new();
    device.edit(|bytes| copy = bytes.to_vec());
    copy
}

#[test]
fn impossible_addresses_are_refused() {
    let mut config = raidz(12, 4, 1);
    config.children.push(VdevConfig::hole(1));
    let mut removed = vdev(ConfigKind::Indirect, 2, 77, Vec::new());
    removed.top.ashift = 12;
    config.children.push(removed);
    config.children[0].top.asize = 100 << 20;
    let bench = Bench::new(config);
    let data = Buf::from(vec![0; 8192]);
    let try_at = |tree: &Tree, vdev, offset, data: &Buf| {
        let place = Place { vdev, offset };
        let error = wait(tree.write(place, data.clone(), BIRTH, IoClass::SyncWrite));
        let error = error.expect_err("refused");
        (error.kind(), error.cause::<WriteError>().expect("typed").clone())
    };
    let range = |offset, psize| WriteError::Range { vdev: 0, offset, psize, asize: 100 << 20 };
    let kind = |vdev, kind| WriteError::NotConcrete { vdev, kind };
    for (vdev, offset, psize, want) in [
        (9, 0, 8192, WriteError::NoSuchVdev(9)),
        (1, 0, 8192, kind(1, VdevKind::Hole)),
        (2, 0, 8192, kind(2, VdevKind::Indirect)),
        (0, 512, 8192, range(512, 8192)),
        (0, 0, 0, range(0, 0)),
        (0, (100 << 20) - 8192, 8192, range((100 << 20) - 8192, 8192)),
        (0, u64::MAX << 12, 8192, range(u64::MAX << 12, 8192)),
    ] {
        let data = Buf::from(vec![0; psize as usize]);
        assert_eq!(try_at(&bench.tree, vdev, offset, &data), (Kind::Invariant, want));
    }
    let reading = Tree::build(&bench.config, |_| None, &BuildOptions::default()).expect("root");
    assert_eq!(try_at(&reading, 0, 0, &data), (Kind::ReadOnly, WriteError::ReadOnly));
    assert_eq!(
        wait(reading.discard(Place { vdev: 0, offset: 0 }, 8192)).expect_err("no").kind(),
        Kind::ReadOnly
    );
    let growing =
        Raidz { ashift: 12, width: 4, nparity: 1, expand_txgs: Vec::new(), is_expanding: true };
    assert!(growing.pads(0, 8192, BIRTH).is_empty() && growing.child_ranges(0, 1 << 20).is_empty());
}

#[test]
fn raidz_expansion_writes_moving_rows_to_both_places() {
    // 4 data sectors and 2 of parity, old width 3: rows at sectors 6..9 and 9..12.
    let growing =
        Raidz { ashift: 12, width: 4, nparity: 1, expand_txgs: Vec::new(), is_expanding: true };
    let shadows = |reflow: u64| {
        let reflow = Reflow { offset: reflow << 12, ..Reflow::default() };
        let found = growing.shadows(6 << 12, 4 << 12, BIRTH, reflow);
        found.into_iter().map(|(id, child, at)| (id.row, id.column, child, at)).collect::<Vec<_>>()
    };
    assert!(shadows(6).is_empty() && shadows(9).is_empty() && shadows(12).is_empty());
    assert_eq!(shadows(8), [(0, 0, 2, 0x1000), (0, 1, 3, 0x1000)]);
    assert_eq!(shadows(10), [(1, 0, 1, 0x2000)]);
}

/// A device that records flushes, and can fail them.
#[derive(Debug)]
struct Flushed {
    inner: MemoryDevice,
    refuses: std::sync::atomic::AtomicBool,
    count: std::sync::atomic::AtomicU64,
    /// Number of times that a thread would have waited for it.
    waits: std::sync::atomic::AtomicU64,
}

impl Device for Flushed {
    fn info(&self) -> &cenote_device::DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> cenote_rt::BoxFuture<'_, Result<BufMut>> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> cenote_rt::BoxFuture<'_, Result<()>> {
        self.inner.write(offset, parts)
    }

    fn flush(&self) -> cenote_rt::BoxFuture<'_, Result<()>> {
        use std::sync::atomic::Ordering::Relaxed;
        let refuses = self.refuses.load(Relaxed);
        self.count.fetch_add(1, Relaxed);
        Box::pin(async move {
            self.waits.fetch_add(cenote_rt::take_inline_wait().into(), Relaxed);
            if refuses { Err(Error::new(Kind::Io, "the cache is on fire")) } else { Ok(()) }
        })
    }
}

#[test]
fn flush_covers_written_leaves_and_failures_enter_the_dtl() {
    use std::sync::atomic::Ordering::Relaxed;
    let mut config = top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 12);
    let mut single = vdev(ConfigKind::File, 1, 300, Vec::new());
    single.top.ashift = 12;
    config.children.push(single);
    let devices: BTreeMap<u64, Arc<Flushed>> = config
        .leaves()
        .map(|leaf| {
            let inner = MemoryDevice::new("mem", vec![0; DEVICE_LEN]);
            let (refuses, count, waits) = Default::default();
            (leaf.guid, Arc::new(Flushed { inner, refuses, count, waits }))
        })
        .collect();
    let open = |leaf: &VdevConfig| Some(Arc::clone(&devices[&leaf.guid]) as Arc<dyn Device>);
    let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
    let tree = Tree::build(&config, open, &options).expect("root");
    let counts = || devices.values().map(|d| d.count.load(Relaxed)).collect::<Vec<_>>();
    let put = |vdev, txg| {
        let place = Place { vdev, offset: 0 };
        wait(tree.write(place, Buf::from(vec![1; 4096]), txg, IoClass::SyncWrite)).expect("written")
    };
    // An earlier process may have left writes in the caches.
    assert!(wait(tree.flush()).expect("all well").failed.is_empty());
    assert_eq!(counts(), [1, 1, 1]);
    for device in devices.values() {
        device.count.store(0, Relaxed);
    }
    assert!(wait(tree.flush()).expect("nothing to do").failed.is_empty());
    put(0, 7);
    put(0, 8);
    wait(tree.flush()).expect("all well");
    wait(tree.flush()).expect("nothing to do");
    assert_eq!(counts(), [1, 1, 0]);
    devices[&101].refuses.store(true, Relaxed);
    put(0, 9);
    let outcome = wait(tree.flush()).expect("the other child has it");
    assert_eq!(outcome.failed.iter().map(|failed| failed.guid).collect::<Vec<_>>(), [101]);
    assert_eq!(tree.changed_dtls(), [(101, TxgRanges::of(9))]);
    assert_eq!(tree.changed_dtls(), []);
    // Only one leaf has txg 9 now.
    assert!(tree.is_dtl_required(100) && !tree.is_dtl_required(101) && tree.is_dtl_required(300));
    devices[&100].refuses.store(true, Relaxed);
    put(0, 10);
    let error = wait(tree.flush()).expect_err("both sides");
    assert_eq!(error.cause::<FlushError>().map(|error| (error.vdev, error.txg)), Some((0, 10)));
    assert_eq!(tree.dtl(2, DtlKind::Missing), Some(TxgRanges::of(10)));
    tree.leaves().for_each(|(_, leaf)| leaf.begin_scan(0, 12));
    tree.leaf(LeafId(1)).note_missing_txg(9);
    tree.leaves().for_each(|(_, leaf)| leaf.end_scan(12));
    assert_eq!(tree.dtl(101, DtlKind::Missing), Some(TxgRanges::of(9)));
    assert_eq!(tree.dtl(2, DtlKind::Missing), Some(TxgRanges::default()));
    assert_eq!(tree.dtl(2, DtlKind::Partial), Some(TxgRanges::of(9)));
}

#[test]
fn a_flush_waits_inline_only_if_it_is_the_only_one() {
    use std::sync::atomic::Ordering::Relaxed;
    for (count, waits) in [(1, 1), (2, 0)] {
        let mut config = top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 12);
        config.children[0].children.truncate(count);
        let flushed = || {
            let inner = MemoryDevice::new("mem", vec![0; DEVICE_LEN]);
            let (refuses, count, waits) = Default::default();
            Arc::new(Flushed { inner, refuses, count, waits })
        };
        let devices: Vec<_> = (0..count).map(|_| flushed()).collect();
        let open = |leaf: &VdevConfig| {
            Some(Arc::clone(&devices[leaf.guid as usize - 100]) as Arc<dyn Device>)
        };
        let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
        let tree = Arc::new(Tree::build(&config, open, &options).expect("root"));
        wait(async {
            let place = Place { vdev: 0, offset: 0 };
            let data = Buf::from(vec![1; 4096]);
            tree.write(place, data, 7, IoClass::SyncWrite).await.expect("written");
            let (done, is_done) = cenote_rt::oneshot::channel();
            cenote_rt::Runtime::here().begin_with_inline_waits(4, async move {
                let _ = done.send(tree.flush().await.is_ok());
            });
            assert_eq!(is_done.await, Ok(true));
        });
        let of_all = |value: fn(&Flushed) -> u64| devices.iter().map(|d| value(d)).sum::<u64>();
        let seen = (of_all(|d| d.count.load(Relaxed)), of_all(|d| d.waits.load(Relaxed)));
        assert_eq!(seen, (count as u64, waits));
    }
}

#[test]
fn ranges_translate_to_each_of_their_sectors_once() {
    let shapes = shapes().into_iter().map(|(name, config, _)| (name, config));
    let mirror = top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 12);
    for (name, config) in shapes.chain([("mirror", mirror)]) {
        let bench = Bench::new(config);
        let top = bench.tree.top(0).expect("there");
        let step = match &bench.tree.vdevs[1].layout {
            Layout::Draid(draid) => draid.stripe_bytes(),
            _ => 1 << top.ashift(),
        };
        let mut taken = std::collections::BTreeSet::new();
        // Neighbouring ranges share nothing, and together cover everything.
        let pieces = [0, 1, 4, 9, 30, 31, 200];
        for pair in pieces.windows(2) {
            let place = Place { vdev: 0, offset: pair[0] * step };
            for range in bench.tree.translate(place, (pair[1] - pair[0]) * step) {
                for at in (range.offset..range.offset + range.len).step_by(512) {
                    assert!(taken.insert((range.leaf, at)), "{name}: {at:#x}");
                }
            }
        }
        let whole = bench.tree.translate(Place { vdev: 0, offset: 0 }, 200 * step);
        let bytes: u64 = whole.iter().map(|range| range.len).sum();
        assert_eq!(bytes, taken.len() as u64 * 512, "{name}");
        let copies = if name == "mirror" { 2 } else { 1 };
        assert_eq!(bytes, 200 * step * copies, "{name}");
        // A block's own sectors lie within the translation of its space.
        let (offset, psize) = (9 * step, 0x3000);
        let asize = bench.tree.asize_for(0, psize, BIRTH).expect("there");
        let space = bench.tree.translate(Place { vdev: 0, offset }, asize);
        for part in bench.tree.leaf_ranges(Place { vdev: 0, offset }, psize, BIRTH) {
            let is_inside = |space: &LeafRange| {
                space.leaf == part.leaf
                    && space.offset <= part.offset
                    && part.offset + part.len <= space.offset + space.len
            };
            assert!(space.iter().any(is_inside), "{name}: {part:?} {space:?}");
        }
        fill_with_marker(&bench);
        wait(bench.tree.discard(Place { vdev: 0, offset }, asize)).expect(name);
        let zeros: usize = bench
            .devices
            .values()
            .map(|device| contents(device).chunks(512).filter(|sector| *sector == [0; 512]).count())
            .sum();
        assert_eq!(zeros as u64 * 512, asize * copies, "{name}");
    }
}

#[test]
fn a_distributed_spare_takes_writes_for_its_failed_leaf() {
    let mut config = draid(12, 9, 2, 3, 1);
    // All blocks are in the first group, and need these leaves.
    let plain = Bench::new(config.clone());
    let place = Place { vdev: 0, offset: 0 };
    let ranges = plain.tree.leaf_ranges(place, 0x3000, BIRTH);
    let needed: Vec<u64> = ranges.iter().map(|range| plain.tree.leaf(range.leaf).guid()).collect();
    let gone = needed[2];
    let id = gone - 100;
    let slot = &mut config.children[0].children[id as usize];
    let spare = ConfigKind::DraidSpare { top_guid: 2, spare_id: 0 };
    let both = vec![VdevConfig { id: 0, ..slot.clone() }, vdev(spare, 1, 555, Vec::new())];
    *slot = vdev(ConfigKind::Spare, id, 444, both);
    let bench = Bench::new(config);
    let mut rng = Rng::seeded(27);
    let tree = failing(&bench, &[gone], &[]);
    for (offset, psize) in places(&bench, &mut rng) {
        let data = random(&mut rng, psize);
        let outcome = write(&tree, offset, &data).expect("written");
        assert!(outcome.failed.is_empty() && outcome.is_degraded);
        // With the spare, two more leaves may be absent.
        let tree = bench.tree_with(&[gone, needed[0], needed[4]], &[]);
        let got = read(&tree, offset, &data).expect("two lost");
        assert!(got.data[..] == data[..], "{offset:#x} {psize}");
    }
    let log = tree.dtl(gone, DtlKind::Missing).expect("there");
    assert_eq!(log, TxgRanges::of(BIRTH));
    assert_eq!(tree.dtl(555, DtlKind::Missing), Some(TxgRanges::default()));
    assert_eq!(tree.dtl(444, DtlKind::Partial), Some(log));
    assert_eq!(tree.dtl(444, DtlKind::Missing), Some(TxgRanges::default()));
}

#[test]
fn ranges_outside_of_the_data_area_are_found() {
    let bench = Bench::new(top(vdev(ConfigKind::Mirror, 0, 10, leaves(2)), 9));
    let leaf = bench.tree.leaf_of(100).expect("a leaf");
    for (offset, len) in [(0, 4096), (DATA.0 - 512, 1024), ((16 << 20) - 4096, 4096)] {
        let error = wait(bench.tree.discard_leaf(leaf, offset, len)).unwrap_err();
        assert_eq!(error.kind(), Kind::Invariant, "{offset}");
        let data = Buf::from(vec![0; len as usize]);
        let error = wait(bench.tree.write_leaf(leaf, offset, data, IoClass::Initializing));
        assert_eq!(error.unwrap_err().kind(), Kind::Invariant, "{offset}");
    }
}

#[test]
fn maps_that_do_not_cover_their_block_are_found() {
    let raidz = Raidz { ashift: 9, width: 4, nparity: 1, expand_txgs: vec![], is_expanding: false };
    let map = raidz.map(0, 4096, BIRTH, Reflow { offset: 0, ..Reflow::default() });
    assert!(map.covers(4096) && map.rows.iter().all(crate::map::Row::has_distinct_children));
    let mut short = map.clone();
    short.rows[0].columns[2].data_len -= 512;
    let mut twice = map.clone();
    twice.rows[0].columns[2].child = twice.rows[0].columns[1].child;
    assert!(!short.covers(4096) && !map.covers(8192));
    assert!(!twice.rows[0].has_distinct_children());
}
