//! One scrub repairs what redundancy allows on every layout, counts it exactly and changes nothing
//! else; beyond redundancy it lists the lost blocks (spec 06 §4.6, §9).
//!
//! Each test damages chosen parts of blocks: a side of a mirror, a column, a copy, or a side of a
//! segment of a moved block.

use std::collections::BTreeSet;

use cenote_device::{Device, Image};
use cenote_engine::Engine;
use cenote_engine::create::Redundancy;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::scan::{ScanFunc, ScanPhys, ScanState};
use cenote_ondisk::zap::Value;
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{Buf, Result, simulate, tunables};
use cenote_vdev::LeafRange;
use cenote_vdev::create::VdevClass;

use crate::draids::{Draid, ONE, TWO, homes, real_leaves};
use crate::rebuilds::NoScrub;
use crate::reflows::Pause;
use crate::removals::{Batches, mirrors, pool_of};
use crate::scans::{BLOCKS, Fixture, fails};

const SECTOR: u64 = 512;

/// Bytes of a block on one leaf.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Number of the block in the list of blocks.
    block: usize,
    /// Index of the DVA, and the number of DVAs of the block.
    dva: (usize, usize),
    /// Top-level vdev of the DVA.
    vdev: u64,
    /// Number among the parts of the DVA, and how many those are.
    number: (usize, usize),
    /// Index of the device.
    device: usize,
    /// Index of the device whose part a distributed spare has in this place.
    stands_in_for: Option<usize>,
    range: LeafRange,
    /// Physical birth of the block.
    birth: u64,
    /// Columns in it: more than one on an expanded RAID-Z.
    columns: u64,
}

impl Part {
    /// Whether its number is one of `bad` successive ones. Which they are depends on the block, so
    /// that every number is one of them for some block.
    fn is_among(&self, bad: usize) -> bool {
        let (number, count) = self.number;
        (number + self.block) % count < bad
    }

    /// Every byte, or one: both kinds occur for each number.
    fn everything_or_one_byte(&self) -> Spoil {
        match (self.block / 2 + self.number.0) % 2 {
            0 => Spoil::All,
            _ => Spoil::Byte((self.number.0 as u64 * SECTOR + 7) % self.range.len),
        }
    }
}

/// Damage of a part.
#[derive(Debug, Clone, Copy)]
enum Spoil {
    /// Each byte is changed.
    All,
    /// The byte at this offset is changed.
    Byte(u64),
}

/// Collects the blocks of a walk.
struct Blocks(Vec<(BlockPtr, Bookmark)>);

impl Visitor for Blocks {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        if !bp.is_embedded() && bp.object_type() != ObjectType::INTENT_LOG {
            assert!(!bp.is_gang(), "{place:?} is a gang block");
            self.0.push((*bp, *place));
        }
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        panic!("{damage:?}");
    }
}

/// Checksum errors, repaired parts and repaired bytes of each device.
type Counts = Vec<(u64, u64, u64)>;

impl Fixture {
    async fn all_blocks(&self) -> Vec<(BlockPtr, Bookmark)> {
        let view = self.engine.view().await.unwrap();
        let mut blocks = Blocks(Vec::new());
        traverse::pool(&view, traverse::Options::default(), &mut blocks).await.unwrap();
        blocks.0
    }

    /// Where the parts of the blocks are. Leaves that are out of service have none.
    fn parts_of(&self, blocks: &[(BlockPtr, Bookmark)]) -> Vec<Part> {
        let (tree, guids) = (self.engine.tree(), real_leaves(&self.engine));
        let device = |range: &LeafRange| {
            let guid = tree.leaf(range.leaf).guid();
            guids.iter().position(|leaf| *leaf == guid).unwrap()
        };
        let widened = widened_at(&self.engine);
        let mut parts = Vec::new();
        for (block, (bp, _)) in blocks.iter().enumerate() {
            let (dvas, birth) = (bp.dvas().count(), bp.physical_birth());
            for (index, dva) in bp.dvas().enumerate() {
                let present = tree.leaf_ranges(dva, bp.psize(), birth);
                let mut absent = None;
                let mut number = 0;
                for range in tree.layout_ranges(dva, bp.psize(), birth) {
                    if !present.contains(&range) {
                        absent = Some(device(&range));
                        continue;
                    }
                    parts.push(Part {
                        block,
                        dva: (index, dvas),
                        vdev: dva.vdev.into(),
                        number: (number, present.len()),
                        device: device(&range),
                        stands_in_for: absent.take(),
                        range,
                        birth,
                        columns: if birth < widened { range.len / SECTOR } else { 1 },
                    });
                    number += 1;
                }
            }
        }
        parts
    }

    fn counts(&self) -> Counts {
        let (tree, guids) = (self.engine.tree(), real_leaves(&self.engine));
        let stats = guids.iter().map(|guid| tree.leaf(tree.leaf_of(*guid).unwrap()).stats());
        stats.map(|stats| (stats.checksum_errors, stats.repairs, stats.repaired_bytes)).collect()
    }
}

/// A pool before and after damage.
struct Trial<'a> {
    pool: &'a Fixture,
    /// The blocks that were still there after a scrub.
    blocks: Vec<(BlockPtr, Bookmark)>,
    parts: Vec<Part>,
    before: Vec<Image>,
    counts: Counts,
}

impl<'a> Trial<'a> {
    /// Scrubs the pool, which must be whole, to find the blocks that stay.
    async fn new(pool: &'a Fixture) -> Self {
        pool.settle().await;
        let mut blocks = pool.all_blocks().await;
        let scrub = pool.scrub().await;
        assert_eq!((scrub.processed, scrub.errors), (0, 0), "before any damage: {scrub:?}");
        let after: BTreeSet<_> = pool.all_blocks().await.iter().map(|(bp, _)| key(bp)).collect();
        blocks.retain(|(bp, _)| after.contains(&key(bp)));
        let parts = pool.parts_of(&blocks);
        let (before, counts) = (pools::images_of(&pool.devices), pool.counts());
        Self { pool, blocks, parts, before, counts }
    }

    /// Number of a block of a file.
    async fn find(&self, name: &str, block: u64) -> usize {
        let (_, bp) = self.pool.block_of(name, block).await;
        self.blocks.iter().position(|(other, _)| key(other) == key(&bp)).unwrap()
    }

    /// Damages the parts that `choose` returns damage for. Returns them, and the number of columns
    /// that are bad in each.
    async fn damage(&self, choose: impl Fn(&Part) -> Option<Spoil>) -> Vec<(Part, u64)> {
        let mut damaged = Vec::new();
        for part in self.parts.iter().filter(|part| stays(&self.blocks[part.block].0)) {
            let Some(spoil) = choose(part) else { continue };
            let mut bytes = bytes_of(&self.before[part.device], &part.range);
            let columns = match spoil {
                Spoil::All => {
                    for byte in &mut bytes {
                        *byte ^= 0x5a;
                    }
                    part.columns
                }
                Spoil::Byte(at) => {
                    bytes[at as usize] ^= 1;
                    1
                }
            };
            let device = &self.pool.devices[part.device];
            device.write(part.range.offset, vec![Buf::from(bytes)]).await.unwrap();
            damaged.push((*part, columns));
        }
        damaged
    }

    /// Checks that every block that stayed is as before, but for the parts of block `lost`.
    async fn assert_unchanged(&self, lost: Option<usize>) {
        let after: BTreeSet<_> =
            self.pool.all_blocks().await.iter().map(|(bp, _)| key(bp)).collect();
        let images = pools::images_of(&self.pool.devices);
        for part in self.parts.iter().filter(|part| Some(part.block) != lost) {
            let (bp, place) = &self.blocks[part.block];
            if !after.contains(&key(bp)) {
                assert!(!stays(bp), "{place:?} was freed: {:?}", bp.object_type());
                continue;
            }
            let was = bytes_of(&self.before[part.device], &part.range);
            assert!(bytes_of(&images[part.device], &part.range) == was, "{place:?}: {part:?}");
        }
    }

    /// Checks the counters: of each device, as many errors and repairs as it had bad columns. Of a
    /// lost block every column counts as an error, and none is repaired.
    fn assert_counted(&self, damaged: &[(Part, u64)], lost: Option<usize>, scrub: &ScanPhys) {
        let mut want = self.counts.clone();
        // The walk repairs what it reads itself, and a scan does not count those bytes.
        let (mut written, mut by_sweep) = (0, 0);
        for (part, columns) in damaged.iter().filter(|(part, _)| Some(part.block) != lost) {
            let bytes = part.range.len / part.columns * columns;
            let (errors, repairs, repaired) = &mut want[part.device];
            (*errors, *repairs, *repaired) =
                (*errors + columns, *repairs + columns, *repaired + bytes);
            written += bytes;
            by_sweep += if is_data(&self.blocks[part.block].1) { bytes } else { 0 };
        }
        for part in self.parts.iter().filter(|part| Some(part.block) == lost) {
            want[part.device].0 += part.columns;
        }
        assert_eq!(self.pool.counts(), want);
        let processed = scrub.processed;
        assert!((by_sweep..=written).contains(&processed), "{scrub:?}");
    }

    /// A second scrub finds nothing but the lost block.
    async fn assert_nothing_left(&self, lost: Option<usize>) {
        let mut want = self.pool.counts();
        let scrub = self.pool.scrub().await;
        let is_lost = u64::from(lost.is_some());
        assert_eq!((scrub.processed, scrub.errors), (0, is_lost), "the second: {scrub:?}");
        for part in self.parts.iter().filter(|part| Some(part.block) == lost) {
            want[part.device].0 += part.columns;
        }
        assert_eq!(self.pool.counts(), want);
        self.assert_unchanged(lost).await;
    }
}

fn bytes_of(image: &Image, range: &LeafRange) -> Vec<u8> {
    let mut bytes = vec![0; range.len as usize];
    image.read_at(range.offset, &mut bytes);
    bytes
}

/// The first txg with blocks of the present width of a RAID-Z.
fn widened_at(engine: &Engine) -> u64 {
    let tops = engine.admin().vdev_config().children;
    let last = |top: &VdevConfig| match &top.kind {
        VdevKind::RaidZ(raidz) => raidz.expand_txgs.last().copied(),
        _ => None,
    };
    tops.iter().filter_map(last).max().unwrap_or(0)
}

/// Whether a scrub leaves a block in place. The blocks of space maps and of what is known about
/// metaslabs may be freed in any txg.
fn stays(bp: &BlockPtr) -> bool {
    ![ObjectType::SPACE_MAP, ObjectType::UINT64_METADATA].contains(&bp.object_type())
}

/// Whether a block has data of a file.
fn is_data(place: &Bookmark) -> bool {
    place.objset != traverse::MOS && place.object != 0 && place.level == 0
}

/// Identifies a block: its first address and its birth.
fn key(bp: &BlockPtr) -> (u32, u64, u64) {
    let dva = bp.dvas().next().unwrap();
    (dva.vdev, dva.offset, bp.physical_birth())
}

/// Damages parts, and checks that one scrub repairs them and changes nothing else. Returns them.
async fn is_repaired(pool: &Fixture, choose: impl Fn(&Part) -> Option<Spoil>) -> Vec<Part> {
    let trial = Trial::new(pool).await;
    let damaged = trial.damage(choose).await;
    assert!(damaged.len() > 20, "{} damaged parts", damaged.len());
    let scrub = pool.scrub().await;
    assert_eq!((scrub.func, scrub.state), (ScanFunc::Scrub, ScanState::Finished));
    assert_eq!(scrub.errors, 0, "{scrub:?}");
    trial.assert_unchanged(None).await;
    trial.assert_counted(&damaged, None, &scrub);
    trial.assert_nothing_left(None).await;
    damaged.into_iter().map(|(part, _)| part).collect()
}

/// Damages a block beyond redundancy, and others as far as redundancy allows: after a scrub exactly
/// that block is listed, and the others are repaired. Then its parts are restored.
async fn is_listed(
    pool: &Fixture,
    (name, block): (&str, u64),
    one_too_many: impl Fn(&Part) -> bool,
    others: impl Fn(&Part) -> bool,
) {
    let trial = Trial::new(pool).await;
    let lost = trial.find(name, block).await;
    let damaged = trial.damage(|part| {
        let is_bad = if part.block == lost { one_too_many(part) } else { others(part) };
        is_bad.then_some(Spoil::Byte(part.number.0 as u64 * SECTOR % part.range.len))
    });
    let damaged = damaged.await;
    assert!(damaged.len() > 20, "{} damaged parts", damaged.len());
    let scrub = pool.scrub().await;
    assert_eq!((scrub.state, scrub.errors), (ScanState::Finished, 1), "{scrub:?}");
    trial.assert_unchanged(Some(lost)).await;
    trial.assert_counted(&damaged, Some(lost), &scrub);
    let log = || async {
        pool.engine.sync().await.unwrap();
        let log = pool.engine.view().await.unwrap().error_log().await.unwrap();
        log.into_iter().map(|entry| entry.place).collect::<Vec<_>>()
    };
    assert_eq!(log().await, [trial.blocks[lost].1]);
    trial.assert_nothing_left(Some(lost)).await;
    for part in trial.parts.iter().filter(|part| part.block == lost) {
        let bytes = bytes_of(&trial.before[part.device], &part.range);
        let device = &pool.devices[part.device];
        device.write(part.range.offset, vec![Buf::from(bytes)]).await.unwrap();
    }
    trial.assert_nothing_left(None).await;
    assert_eq!(log().await, []);
}

impl Fixture {
    /// Writes blocks of a second file of a dataset.
    async fn write_second_file(&self, name: &str) {
        let head = self.engine.head(name).await.unwrap();
        let object = pools::new_object(&self.engine, &head).await.unwrap();
        for block in 0..BLOCKS {
            pools::write(&self.engine, &head, object, block, 77).await.unwrap();
        }
        self.engine.sync().await.unwrap();
    }

    async fn finish_clean(self) {
        let summary = self.finish().await;
        assert!(summary.is_clean(), "{summary:?}");
    }
}

/// Returns a choice of whole parts, or of single bytes of them.
fn of(is_bad: impl Fn(&Part) -> bool) -> impl Fn(&Part) -> Option<Spoil> {
    move |part| is_bad(part).then(|| part.everything_or_one_byte())
}

/// As many columns of each block are bad as there is parity, first one byte in a row of its own in
/// each, then all of some.
async fn columns_are_repaired((layout, count, parity): (&str, usize, usize)) {
    let pool = Fixture::new(layout, count).await;
    let rows = |part: &Part| {
        let row = (part.number.0 + part.block) as u64;
        part.is_among(parity).then_some(Spoil::Byte((row * SECTOR + 100) % part.range.len))
    };
    is_repaired(&pool, rows).await;
    is_repaired(&pool, of(|part| part.is_among(parity))).await;
    pool.finish_clean().await;
}

#[test]
fn as_many_columns_as_parity_are_repaired() {
    for layout in [("raidz1", 3, 1), ("raidz2", 5, 2), ("raidz3", 6, 3)] {
        simulate(1, columns_are_repaired(layout)).unwrap();
    }
}

/// Blocks written before, during and after an expansion have as many bad columns as there is
/// parity, on children that depend on the block, and then on the same children.
async fn expanded_vdev_is_repaired((layout, count, parity): (&str, usize, usize)) {
    let pause = Pause::after(3 << 20);
    let mut pool = Fixture::full(layout, count).await;
    let begin = pool.engine.open_txg();
    pool.begin_expansion().await;
    pool.until_paused().await;
    pool.write("tank/a", 0..20, 30).await;
    drop(pause);
    pool.end_expansion().await;
    pool.write("tank/b", 0..20, 40).await;
    let (width, end) = (count + 1, widened_at(&pool.engine));
    for step in [1, 0] {
        let is_bad = |part: &Part| (part.device + step * part.block) % width < parity;
        let damaged = is_repaired(&pool, of(is_bad)).await;
        for births in [0..begin, begin..end, end..u64::MAX] {
            let count = damaged.iter().filter(|part| births.contains(&part.birth)).count();
            assert!(count > 20, "{layout}: {count} parts of txgs {births:?}");
        }
    }
    pool.finish_clean().await;
}

#[test]
fn expanded_vdevs_are_repaired() {
    for layout in [("raidz2", 4, 2), ("raidz3", 5, 3)] {
        simulate(1, expanded_vdev_is_repaired(layout)).unwrap();
    }
}

/// Distributed spares stand in for some leaves, and others are out of service without one: what is
/// left of the parity repairs bad columns, those on the spares too.
async fn draid_is_repaired((layout, count, parity): Draid, spared: usize, gone: usize) {
    let _unrepaired = NoScrub::new();
    let pool = Fixture::new(layout, count).await;
    let (at, guids) = (homes(&pool).await, real_leaves(&pool.engine));
    for (number, device) in at[..spared + gone].iter().enumerate() {
        pool.engine.leaves().fault(guids[*device], false).await.unwrap();
        if number < spared {
            let spare = pool.engine.leaves().call_in_spare(guids[*device]).await.unwrap();
            assert!(spare.is_some());
        }
        pool.write("tank/a", 0..6, 80 + number as u64).await;
        pool.resilver().await;
    }
    let damaged = is_repaired(&pool, of(|part| part.is_among(parity - gone))).await;
    for device in &at[..spared] {
        let on_spare = damaged.iter().filter(|part| part.stands_in_for == Some(*device)).count();
        assert!(on_spare > 5, "{layout}: {on_spare} bad parts on the spare of leaf {device}");
    }
    let copy = pools::devices(pools::images_of(&pool.devices));
    let engine = pools::open(as_devices(&copy)).await.unwrap();
    engine.export().await.unwrap();
    pools::judge_devices(&copy, layout, &[]);
    for device in &at[..spared + gone] {
        pool.engine.leaves().online(guids[*device], None).await.unwrap();
        pool.resilver().await;
    }
    pool.finish_clean().await;
}

#[test]
fn draids_with_spares_in_use_are_repaired() {
    for (layout, spared, gone) in [(ONE, 1, 0), (TWO, 1, 0), (TWO, 2, 0), (TWO, 1, 1)] {
        simulate(1, draid_is_repaired(layout, spared, gone)).unwrap();
    }
}

/// A pool whose datasets have these properties, with files and a snapshot.
async fn filled(builder: PoolBuilder, properties: &[(&str, u64)]) -> Fixture {
    let (engine, devices) = builder.with_size(96 << 20).create_in_memory().await;
    let pool = Fixture { devices, engine };
    for name in ["tank/a", "tank/b"] {
        pool.engine.datasets().create(pools::dataset(name)).await.unwrap();
        for (property, value) in properties {
            pool.engine.properties().set(name, property, Value::U64(*value)).await.unwrap();
        }
        pool.write(name, 0..BLOCKS, 1).await;
    }
    pool.snap("tank/a@1").await;
    pool.write("tank/a", 4..12, 2).await;
    pool.write_second_file("tank/b").await;
    pool
}

/// Some copies of each block are bad.
async fn copies_are_repaired(disks: usize, copies: u64) {
    let pool = filled(PoolBuilder::disks(disks), &[("copies", copies)]).await;
    is_repaired(&pool, of(|part| part.dva.0 == 0)).await;
    is_repaired(&pool, of(|part| part.dva.0 == 1)).await;
    // All but one.
    is_repaired(&pool, of(|part| part.dva.0 != part.block % part.dva.1)).await;
    pool.finish_clean().await;
}

#[test]
fn copies_on_disks_are_repaired() {
    for (disks, copies) in [(1, 2), (1, 3), (2, 2), (2, 3)] {
        simulate(1, copies_are_repaired(disks, copies)).unwrap();
    }
}

/// The order in which a scrub reads changes nothing of what it repairs.
#[test]
fn scrubs_in_every_order_repair() {
    for (legacy, strategy) in [(1, 0), (0, 1), (0, 2)] {
        simulate(1, async move {
            tunables::SCAN_LEGACY.set(legacy).unwrap();
            tunables::SCAN_ISSUE_STRATEGY.set(strategy).unwrap();
            copies_are_repaired(2, 2).await;
        })
        .unwrap();
    }
}

/// A mirror of two disks, and one for metadata and for small blocks.
fn with_special_mirror() -> PoolBuilder {
    let classes = [VdevClass::Normal, VdevClass::Special];
    PoolBuilder::new(classes.map(|class| (Redundancy::Mirror, class, 2)).to_vec())
}

#[test]
fn special_mirrors_are_repaired() {
    simulate(1, async {
        let pool = filled(with_special_mirror(), &[]).await;
        let damaged = is_repaired(&pool, of(|part| part.device == 2)).await;
        assert!(damaged.iter().all(|part| part.vdev == 1));
        let damaged = is_repaired(&pool, of(|part| part.is_among(1))).await;
        for device in 0..4 {
            let count = damaged.iter().filter(|part| part.device == device).count();
            assert!(count > 10, "{count} bad parts on device {device}");
        }
        pool.finish_clean().await;
    })
    .unwrap();
}

/// Two of three sides are bad, each in another half of the block.
#[test]
fn halves_of_two_sides_are_repaired() {
    simulate(1, async {
        let pool = Fixture::new("mirror", 3).await;
        let damaged = is_repaired(&pool, |part| {
            let quarter = part.range.len / 4;
            match (part.number.0 + part.block) % 3 {
                0 => None,
                1 => Some(Spoil::Byte(quarter)),
                _ => Some(Spoil::Byte(3 * quarter)),
            }
        });
        damaged.await;
        pool.finish_clean().await;
    })
    .unwrap();
}

/// A pool of mirrors from which one was removed in small segments, so that its blocks are split.
async fn with_moved_blocks() -> Fixture {
    let _small = Batches::of(64 << 10);
    let mut pool = pool_of(&mirrors(3)).await;
    pool.remove(1).await;
    pool.devices.drain(2..4);
    pool.write_second_file("tank/b").await;
    pool
}

/// Whether the part belongs to a block that was split into several segments.
fn is_split(part: &Part) -> bool {
    part.vdev == 1 && part.number.1 >= 4
}

/// Whether the part is on a side that alternates from segment to segment. The parts of a segment
/// are its two sides.
fn is_on_alternating_side(part: &Part) -> bool {
    let (segment, side) = (part.number.0 / 2, part.number.0 % 2);
    (segment + side) % 2 == 0
}

#[test]
fn moved_blocks_are_repaired() {
    simulate(1, async {
        let pool = with_moved_blocks().await;
        for is_bad in [|part: &Part| part.number.0.is_multiple_of(2), is_on_alternating_side] {
            let damaged = is_repaired(&pool, of(is_bad)).await;
            let split = damaged.iter().filter(|part| is_split(part)).count();
            let moved = damaged.iter().filter(|part| part.vdev == 1).count();
            assert!(split > 20 && moved > split, "{moved} moved parts, {split} of split blocks");
        }
        pool.finish_clean().await;
    })
    .unwrap();
}

/// Of one block of a RAID-Z one more column is bad than there is parity.
async fn lost_columns_are_listed() {
    let pool = Fixture::new("raidz2", 5).await;
    pool.write_second_file("tank/b").await;
    is_listed(&pool, ("tank/b", 5), |part| part.is_among(3), |part| part.is_among(2)).await;
    pool.finish_clean().await;
}

/// Of one block both copies are bad.
async fn lost_copies_are_listed() {
    for disks in [1, 2] {
        let pool = filled(PoolBuilder::disks(disks), &[("copies", 2)]).await;
        is_listed(&pool, ("tank/b", 7), |_| true, |part| part.dva.0 == 0).await;
        pool.finish_clean().await;
    }
}

/// Of one block both sides of the special mirror are bad.
async fn lost_special_blocks_are_listed() {
    let pool = filled(with_special_mirror(), &[("special_small_blocks", 128 << 10)]).await;
    is_listed(&pool, ("tank/b", 3), |part| part.vdev == 1, |part| part.is_among(1)).await;
    pool.finish_clean().await;
}

/// Of one split block both sides of a segment are bad.
async fn lost_segments_are_listed() {
    let pool = with_moved_blocks().await;
    let mut split = None;
    for block in 0..BLOCKS {
        let (_, bp) = pool.block_of("tank/b", block).await;
        let parts = pool.parts_of(&[(bp, Bookmark::default())]);
        if parts.iter().all(is_split) {
            split = Some(block);
        }
    }
    let block = split.unwrap();
    let both = |part: &Part| part.number.0 < 2;
    is_listed(&pool, ("tank/b", block), both, is_on_alternating_side).await;
    pool.finish_clean().await;
}

#[test]
fn lost_blocks_are_listed_and_others_repaired() {
    simulate(1, lost_columns_are_listed()).unwrap();
    simulate(1, lost_copies_are_listed()).unwrap();
    simulate(1, lost_special_blocks_are_listed()).unwrap();
    simulate(1, lost_segments_are_listed()).unwrap();
}

#[test]
fn mistakes_are_found() {
    let raidz = ("raidz1", 3, 1);
    let bugs = [Bug::OneCopyMended, Bug::RepairToWrongLeaf, Bug::LostBlocksForgotten];
    let found = |bug| match bug {
        Bug::OneCopyMended => fails(bug, copies_are_repaired(1, 2)),
        Bug::LostBlocksForgotten => fails(bug, lost_segments_are_listed()),
        _ => fails(bug, columns_are_repaired(raidz)),
    };
    let unfound: Vec<_> = bugs.into_iter().filter(|bug| !found(*bug)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
