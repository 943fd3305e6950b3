//! Blocks encoded into memory devices, damaged, and read back.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_codec::fletcher::fletcher4;
use cenote_codec::parity;
use cenote_device::Fault;
use cenote_ondisk::config::{RaidZ, VdevConfig, VdevKind as ConfigKind};
use cenote_rt::{Error, Kind, Rng};

use super::*;
use crate::bench::{
    BIRTH, Bench, DATA, draid, leaves, places, raidz, shapes, some_leaves, top, vdev, wait,
};
use crate::{DtlKind, TxgRanges, VdevState};

impl Bench {
    fn put(&self, leaf: LeafId, offset: i64, bytes: &[u8]) {
        let guid = self.tree.leaf(leaf).guid();
        let start = (offset + DATA_START as i64) as usize;
        self.devices[&guid]
            .edit(|device| device[start..start + bytes.len()].copy_from_slice(bytes));
    }

    /// Writes a block in OpenZFS's layout to the subtree of any vdev.
    fn write(&self, vdev: usize, offset: i64, data: &[u8]) {
        let node = &self.tree.vdevs[vdev];
        let read = block_read(&self.tree, data.len());
        let request = request(offset, data.len());
        match &node.layout {
            Layout::Leaf(leaf) => self.put(*leaf, offset, data),
            Layout::Mirror => {
                node.children.iter().for_each(|child| self.write(*child, offset, data));
            }
            Layout::DraidSpare(..) => {
                self.write(read.spare_target(vdev, offset).expect("spare"), offset, data);
            }
            Layout::Raidz(_) | Layout::Draid(_) => {
                let map = read.map(vdev, request).expect("map");
                for row in &map.rows {
                    let parts: Vec<&[u8]> = row.columns[map.nparity..]
                        .iter()
                        .map(|c| &data[c.data_start..c.data_start + c.data_len])
                        .collect();
                    let mut stored: Vec<Vec<u8>> =
                        row.columns.iter().map(|column| vec![0; column.len]).collect();
                    let (parity, rest) = stored.split_at_mut(map.nparity);
                    let mut parity: Vec<&mut [u8]> =
                        parity.iter_mut().map(Vec::as_mut_slice).collect();
                    parity::generate(&mut parity, &parts);
                    for (stored, part) in rest.iter_mut().zip(parts) {
                        stored[..part.len()].copy_from_slice(part);
                    }
                    for (column, stored) in row.columns.iter().zip(stored) {
                        self.write(node.children[column.child], column.offset, &stored);
                    }
                }
            }
            layout => panic!("{layout:?}"),
        }
    }

    /// Writes a random block at `offset` of the first top-level vdev; returns its bytes.
    fn block(&self, rng: &mut Rng, offset: u64, psize: u64) -> Vec<u8> {
        let mut data = vec![0; psize as usize];
        rng.fill(&mut data);
        let mut filled = data.clone();
        filled.resize(psize.next_multiple_of(1 << self.tree.vdevs[1].ashift) as usize, 0);
        self.write(1, offset as i64, &filled);
        data
    }
}

fn block_read(tree: &Tree, psize: usize) -> BlockRead<'_> {
    BlockRead {
        tree,
        reader: tree,
        psize,
        birth: BIRTH,
        reflow: crate::raidz::Reflow::default(),
        bad: Mutex::with_default(Rank::BadChildren),
    }
}

fn request(offset: i64, len: usize) -> ReadRequest<'static> {
    ReadRequest { offset, len, check: None, is_scrub: false, is_quiet: false, depth: 0 }
}

fn read(tree: &Tree, offset: u64, want: &[u8]) -> Result<Read> {
    let sum = fletcher4(want);
    let verify = move |data: &[u8]| fletcher4(data) == sum;
    wait(tree.read(Place { vdev: 0, offset }, want.len() as u64, BIRTH, &verify))
}

fn scrub(tree: &Tree, offset: u64, want: &[u8]) -> ScrubRead {
    let sum = fletcher4(want);
    let verify = move |data: &[u8]| fletcher4(data) == sum;
    wait(tree.scrub(Place { vdev: 0, offset }, want.len() as u64, BIRTH, &verify)).expect("address")
}

fn guids(bad: &[BadChild]) -> Vec<u64> {
    let mut guids: Vec<_> = bad.iter().map(|bad| bad.guid).collect();
    guids.sort_unstable();
    guids.dedup();
    guids
}

#[test]
fn whole_blocks_read_and_scrub_clean() {
    for (name, config, _) in shapes() {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(1));
        for (offset, psize) in places(&bench, &mut rng) {
            let data = bench.block(&mut rng, offset, psize);
            let got = read(&bench.tree, offset, &data).expect(name);
            assert!(
                got.data[..] == data[..] && got.bad.is_empty(),
                "{name} {psize}: {:?}",
                got.bad
            );
            let scrubbed = scrub(&bench.tree, offset, &data);
            assert!(scrubbed.bad.is_empty(), "{name} {psize}: {:?}", scrubbed.bad);
            assert!(scrubbed.good.is_some_and(|good| good[..] == data[..]), "{name} {psize}");
        }
    }
}

#[test]
fn up_to_parity_children_may_be_absent_fail_or_lie() {
    for (name, config, nparity) in shapes() {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(2));
        let width = bench.devices.len() as u64;
        for (offset, psize) in places(&bench, &mut rng) {
            let data = bench.block(&mut rng, offset, psize);
            for round in 0..12 {
                let victims = some_leaves(&mut rng, width, 1 + round % nparity);
                let (mut absent, mut faults, mut lying) = (vec![], vec![], vec![]);
                for victim in victims {
                    match rng.below(3) {
                        0 => absent.push(victim),
                        1 => faults.push((victim, DATA, Fault::Eio)),
                        _ => {
                            faults.push((victim, DATA, Fault::Lie));
                            lying.push(victim);
                        }
                    }
                }
                let what = format!("{name} {psize} at {offset:#x}: {absent:?} {faults:?}");
                let tree = bench.tree_with(&absent, &faults);
                let got = read(&tree, offset, &data).expect(&what);
                assert!(got.data[..] == data[..], "{what}");
                let faulty: Vec<u64> = faults.iter().map(|(guid, ..)| *guid).collect();
                assert!(guids(&got.bad).iter().all(|guid| faulty.contains(guid)), "{what}");
                let scrubbed = scrub(&tree, offset, &data);
                assert!(scrubbed.good.is_some_and(|good| good[..] == data[..]), "{what}");
                let touched: Vec<u64> = guids_touched(&tree, offset, psize);
                let mut want: Vec<u64> =
                    faulty.iter().copied().filter(|g| touched.contains(g)).collect();
                want.sort_unstable();
                assert_eq!(guids(&scrubbed.bad), want, "{what}");
            }
        }
    }
}

fn guids_touched(tree: &Tree, offset: u64, psize: u64) -> Vec<u64> {
    let ranges = tree.leaf_ranges(Place { vdev: 0, offset }, psize, BIRTH);
    ranges.iter().map(|range| tree.leaf(range.leaf).guid()).collect()
}

#[test]
fn losing_more_than_parity_is_an_error_and_never_wrong_bytes() {
    for (name, config, nparity) in shapes() {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(3));
        let data = bench.block(&mut rng, 0, 0x3600);
        let touched = guids_touched(&bench.tree, 0, 0x3600);
        let victims: Vec<u64> = touched.iter().copied().take(nparity + 1).collect();
        let faults = |fault| victims.iter().map(|guid| (*guid, DATA, fault)).collect::<Vec<_>>();
        let lying = bench.tree_with(&[], &faults(Fault::Lie));
        assert_eq!(read(&lying, 0, &data).expect_err(name).kind(), Kind::Checksum, "{name}");
        let scrubbed = scrub(&lying, 0, &data);
        assert!(scrubbed.good.is_none(), "{name}");
        let suspect = |bad: &BadChild| matches!(bad.cause, Cause::Suspect);
        assert!(scrubbed.bad.iter().all(suspect) && !scrubbed.bad.is_empty(), "{name}");
        let failing = bench.tree_with(&[], &faults(Fault::Eio));
        assert_eq!(read(&failing, 0, &data).expect_err(name).kind(), Kind::Io, "{name}");
        let absent = bench.tree_with(&victims, &[]);
        assert_eq!(absent.vdevs[1].state(), VdevState::CantOpen, "{name}");
        let error = read(&absent, 0, &data).expect_err(name);
        assert!(matches!(error.cause(), Some(ReadError::Absent { .. })), "{name}: {error}");
    }
}

#[test]
fn a_bad_child_is_reported_with_leaf_and_offset() {
    let (bench, mut rng) = (Bench::new(raidz(9, 3, 1)), Rng::seeded(4));
    // Spec 06 §21.2: parity on child 2 at 0xa5600, data on 1 at 0xa5600 and on 0 at 0xa5800.
    let data = bench.block(&mut rng, 0x1f0400, 0xe00);
    for (guid, offset, len) in [(102, 0xa5600, 0x800), (101, 0xa5600, 0x800), (100, 0xa5800, 0x600)]
    {
        let at = DATA_START + offset + 0x123;
        let tree = bench.tree_with(&[], &[(guid, (at, at + 1), Fault::Lie)]);
        let mut bad = scrub(&tree, 0x1f0400, &data).bad;
        let [bad] = &mut bad[..] else { panic!("{bad:?}") };
        assert_eq!((bad.guid, bad.offset, bad.len), (guid, DATA_START + offset, len));
        assert!(matches!(bad.cause, Cause::Checksum) && bad.path == format!("d{guid}"));
        // Only the caller knows whether the device is at fault (J3).
        assert_eq!(tree.leaf(bad.leaf).stats().checksum_errors, 0);
        tree.count_checksum_errors([&mut *bad], IoClass::SyncRead);
        assert_eq!(bad.errors, 1);
        assert_eq!(tree.leaf(bad.leaf).stats().checksum_errors, 1);
        // The pad sector behind the shorter column belongs to no block.
        let pad = DATA_START + 0xa5800 + 0x600;
        let tree = bench.tree_with(&[], &[(100, (pad, pad + 512), Fault::Lie)]);
        assert!(scrub(&tree, 0x1f0400, &data).bad.is_empty());
    }
}

#[test]
fn one_read_for_each_leaf_and_block() {
    for (name, config, _) in shapes() {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(5));
        let width = bench.devices.len() as u64;
        let data = bench.block(&mut rng, 0, 100 << 9);
        let reads =
            |tree: &Tree| tree.leaves().map(|(_, leaf)| leaf.stats().reads).collect::<Vec<_>>();
        scrub(&bench.tree, 0, &data);
        assert!(reads(&bench.tree).iter().all(|reads| *reads <= 1), "{name}");
        let ranges = bench.tree.leaf_ranges(Place { vdev: 0, offset: 0 }, data.len() as u64, BIRTH);
        assert_eq!(ranges.len() as u64, reads(&bench.tree).iter().sum::<u64>(), "{name}");
        assert!(ranges.len() as u64 <= width, "{name}");
    }
}

#[test]
fn mirror_reads_try_every_child_and_scrub_reports_each() {
    let config = top(vdev(ConfigKind::Mirror, 0, 2, leaves(3)), 12);
    let (bench, mut rng) = (Bench::new(config), Rng::seeded(6));
    let data = bench.block(&mut rng, 0x5000, 5000);
    let faults = [(100, DATA, Fault::Lie), (101, DATA, Fault::Eio)];
    let tree = bench.tree_with(&[], &faults);
    assert_eq!(read(&tree, 0x5000, &data).expect("one is good").data[..], data[..]);
    let scrubbed = scrub(&tree, 0x5000, &data);
    assert_eq!(guids(&scrubbed.bad), [100, 101]);
    assert!(scrubbed.bad.iter().all(|bad| (bad.offset, bad.len) == (DATA_START + 0x5000, 8192)));
    let tree = bench.tree_with(&[102], &faults);
    assert_eq!(read(&tree, 0x5000, &data).expect_err("none").kind(), Kind::Io);
    // Filler behind the block is not checked.
    let filler = DATA_START + 0x5000 + 5000;
    let tree = bench.tree_with(&[], &[(100, (filler, filler + 100), Fault::Lie)]);
    assert!(scrub(&tree, 0x5000, &data).bad.is_empty());
}

#[test]
fn stale_children_are_read_last_and_not_reported() {
    let configs = [top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 9), raidz(9, 4, 1)];
    for config in configs {
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(7));
        let data = bench.block(&mut rng, 0, 3 << 9);
        let stale = guids_touched(&bench.tree, 0, 3 << 9)[1];
        let tree = bench.tree_with(&[], &[(stale, DATA, Fault::Lie)]);
        assert!(tree.set_dtl(stale, TxgRanges::new([(BIRTH, BIRTH + 1)])));
        let got = read(&tree, 0, &data).expect("the others");
        assert!(got.bad.is_empty() && got.data[..] == data[..]);
        assert!(scrub(&tree, 0, &data).bad.is_empty());
        let (_, leaf) = tree.leaves().find(|(_, leaf)| leaf.guid() == stale).expect("leaf");
        assert_eq!(leaf.stats().reads, 0);
        // Where no other child is left it is read all the same.
        let absent: Vec<u64> =
            bench.devices.keys().copied().filter(|guid| *guid != stale).take(1).collect();
        let tree = bench.tree_with(&absent, &[]);
        tree.set_dtl(stale, TxgRanges::new([(0, u64::MAX)]));
        assert_eq!(read(&tree, 0, &data).expect("stale, but right").data[..], data[..]);
    }
}

/// A leaf with a dirty time log on disk may lack anything until that log is loaded: a mismatch is
/// no evidence against it.
#[test]
fn leaves_are_not_blamed_before_their_dtl_is_loaded() {
    let configs = [top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 9), raidz(9, 4, 1)];
    for mut config in configs {
        let leaf = &mut config.children[0].children[1];
        leaf.leaf.dtl_object = Some(77);
        let stale = leaf.guid;
        let (bench, mut rng) = (Bench::new(config), Rng::seeded(11));
        let data = bench.block(&mut rng, 0, 3 << 9);
        let tree = bench.tree_with(&[], &[(stale, DATA, Fault::Lie)]);
        assert!(read(&tree, 0, &data).expect("the others").bad.is_empty());
        assert!(scrub(&tree, 0, &data).bad.is_empty());
        let place = Place { vdev: 0, offset: 0 };
        let lies_on = |ranges: Vec<LeafRange>| {
            ranges.iter().any(|range| tree.leaf(range.leaf).guid() == stale)
        };
        assert!(!lies_on(tree.leaf_ranges(place, 3 << 9, BIRTH)));
        assert!(lies_on(tree.layout_ranges(place, 3 << 9, BIRTH)));
        assert!(tree.set_dtl(stale, TxgRanges::default()));
        let bad = scrub(&tree, 0, &data).bad;
        assert!(matches!(&bad[..], [bad] if bad.guid == stale), "{bad:?}");
        assert!(lies_on(tree.leaf_ranges(place, 3 << 9, BIRTH)));
    }
}

#[test]
fn replacing_below_raidz_has_two_copies_of_a_column() {
    let mut children = leaves(3);
    let pair = vec![
        vdev(ConfigKind::File, 0, 200, Vec::new()),
        vdev(ConfigKind::File, 1, 201, Vec::new()),
    ];
    children[1] = vdev(ConfigKind::Replacing, 1, 199, pair);
    let kind = RaidZ { nparity: 1, expanding: false, expand_txgs: Vec::new() };
    let config = top(vdev(ConfigKind::RaidZ(kind), 0, 2, children), 9);
    let (bench, mut rng) = (Bench::new(config), Rng::seeded(8));
    let data = bench.block(&mut rng, 0, 0x3000);
    // Another column is absent, and one of the two copies is wrong: the other copy saves the block.
    for liar in [200, 201] {
        let tree = bench.tree_with(&[100], &[(liar, DATA, Fault::Lie)]);
        let got = read(&tree, 0, &data).expect("the other copy");
        assert!(got.data[..] == data[..]);
        let scrubbed = scrub(&tree, 0, &data);
        assert_eq!(guids(&scrubbed.bad), [liar]);
        assert!(scrubbed.good.is_some());
    }
    // Each side of the replacing vdev stands in for the other.
    let missing = |absent: &[u64]| {
        let tree = bench.tree_with(absent, &[]);
        tree.set_dtl(201, TxgRanges::new([(5, 9)]));
        let missing = tree.missing_redundancy().into_iter();
        let missing = missing.map(|one| (tree.leaf(one.leaf).guid(), one.txgs, one.is_absent));
        missing.collect::<Vec<_>>()
    };
    let short = TxgRanges::new([(5, 9)]);
    assert_eq!(missing(&[]), []);
    assert_eq!(missing(&[200]), [(200, short.clone(), true), (201, short, false)]);
    assert_eq!(missing(&[100]), [(100, TxgRanges::all(), true)]);
    // With two columns unavailable nothing can be read now, and everything when they return.
    let tree = bench.tree_with(&[100, 102], &[]);
    tree.set_dtl(100, TxgRanges::new([(5, 9)]));
    tree.set_dtl(102, TxgRanges::new([(7, 12)]));
    assert_eq!(tree.dtl(2, DtlKind::Outage), Some(TxgRanges::all()));
    assert_eq!(tree.dtl(2, DtlKind::PermanentOutage), Some(TxgRanges::new([(7, 9)])));
}

#[test]
fn distributed_spares_hold_the_data_of_their_column() {
    let mut config = draid(9, 9, 2, 3, 1);
    let spare = vdev(ConfigKind::DraidSpare { top_guid: 2, spare_id: 0 }, 1, 300, Vec::new());
    let original = vdev(ConfigKind::File, 0, 104, Vec::new());
    config.children[0].children[4] = vdev(ConfigKind::Spare, 4, 301, vec![original, spare]);
    let (bench, mut rng) = (Bench::new(config), Rng::seeded(9));
    let data = bench.block(&mut rng, 0, 64 << 10);
    let gone = bench.tree_with(&[104], &[]);
    let got = read(&gone, 0, &data).expect("from the spare");
    assert!(got.data[..] == data[..] && got.bad.is_empty());
    assert!(scrub(&gone, 0, &data).bad.is_empty());
    assert_eq!(gone.vdevs[1].state(), VdevState::Degraded);
    assert_eq!(gone.vdev(300).expect("spare").state(), VdevState::Healthy);
}

#[test]
fn mirrors_of_raidz_nest() {
    let half = |id: u64| {
        let kind = RaidZ { nparity: 1, expanding: false, expand_txgs: Vec::new() };
        let mut children = leaves(3);
        for leaf in &mut children {
            leaf.guid += 100 * (id + 1);
        }
        vdev(ConfigKind::RaidZ(kind), id, 10 + id, children)
    };
    let config = top(vdev(ConfigKind::Mirror, 0, 2, vec![half(0), half(1)]), 9);
    let (bench, mut rng) = (Bench::new(config), Rng::seeded(10));
    let data = bench.block(&mut rng, 0, 0x3000);
    let faults = [(200, DATA, Fault::Lie), (201, DATA, Fault::Lie), (302, DATA, Fault::Lie)];
    let tree = bench.tree_with(&[], &faults);
    assert!(read(&tree, 0, &data).expect("the second half").data[..] == data[..]);
    let scrubbed = scrub(&tree, 0, &data);
    assert!(scrubbed.good.is_some() && guids(&scrubbed.bad).contains(&302));
}

/// A mapping with the entries `(source, len, vdev, target)`.
fn mapping(entries: &[(u64, u64, u64, u64)]) -> Arc<crate::IndirectMap> {
    let mut bytes = Vec::new();
    for &(source, len, vdev, target) in entries {
        for word in [source >> 9, vdev << 32 | len >> 9, target >> 9] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    Arc::new(crate::IndirectMap::decode(&bytes).expect("mapping"))
}

#[test]
fn removed_vdevs_are_read_through_their_mapping() {
    let mut mirror = vdev(ConfigKind::Mirror, 0, 2, leaves(2));
    mirror.top.ashift = 9;
    let mut gone = vdev(ConfigKind::Indirect, 1, 3, Vec::new());
    gone.top.ashift = 9;
    let mut gone_before = vdev(ConfigKind::Indirect, 2, 4, Vec::new());
    gone_before.top.ashift = 9;
    let bench = Bench::new(VdevConfig::root(1, vec![mirror, gone, gone_before]));
    let mut rng = Rng::seeded(11);
    let data = bench.block(&mut rng, 0x10000, 0x400);
    let tail = bench.block(&mut rng, 0x20000, 0x600);
    let whole = [&data[..], &tail[..]].concat();
    let maps = [
        (1, mapping(&[(0, 0x400, 0, 0x10000), (0x400, 0x1000, 0, 0x20000)])),
        (2, mapping(&[(0x5000, 0x200, 1, 0), (0x5200, 0x2000, 1, 0x200)])),
    ];
    let sum = fletcher4(&whole);
    let verify = move |data: &[u8]| fletcher4(data) == sum;
    let get = |tree: &Tree, vdev, offset| {
        wait(tree.read(Place { vdev, offset }, whole.len() as u64, BIRTH, &verify))
    };
    let unmapped = get(&bench.tree, 1, 0).expect_err("no mapping yet");
    assert!(matches!(unmapped.cause(), Some(ReadError::Unmapped { .. })), "{unmapped}");
    // Each copy of one segment is bad on another leaf.
    let [first, second] = [0x10000, 0x20000].map(|at| (DATA_START + at, DATA_START + at + 0x200));
    let tree = bench.tree_with(&[], &[(100, first, Fault::Lie), (101, second, Fault::Lie)]);
    for (vdev, map) in maps {
        tree.set_indirect(vdev, map);
    }
    for (vdev, offset) in [(1, 0), (2, 0x5000)] {
        assert!(get(&tree, vdev, offset).expect("a combination").data[..] == whole[..]);
        let place = Place { vdev, offset };
        let scrubbed =
            wait(tree.scrub(place, whole.len() as u64, BIRTH, &verify)).expect("address");
        assert_eq!(guids(&scrubbed.bad), [100, 101]);
        assert!(scrubbed.good.is_some());
        assert_eq!(tree.leaf_ranges(place, whole.len() as u64, BIRTH).len(), 4);
    }
    for (vdev, offset) in [(1, 0x1200), (2, 0), (2, 0x6e00)] {
        let error: Error = get(&tree, vdev, offset).expect_err("not mapped");
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
}

#[test]
fn a_cyclic_mapping_ends() {
    let mut gone = vdev(ConfigKind::Indirect, 0, 3, Vec::new());
    gone.top.ashift = 9;
    let bench = Bench::new(VdevConfig::root(1, vec![gone]));
    bench.tree.set_indirect(0, mapping(&[(0, 0x1000, 0, 0)]));
    assert_eq!(read(&bench.tree, 0, &[0; 512]).expect_err("round").kind(), Kind::Corrupt);
}

#[test]
fn impossible_addresses_are_refused() {
    let bench = Bench::new(raidz(12, 4, 2));
    for (vdev, offset, psize) in
        [(1, 0, 512), (0, 512, 512), (0, 1 << 60, 512), (0, 0, 0), (0, 0, 1 << 40)]
    {
        let result = wait(bench.tree.read(Place { vdev, offset }, psize, 0, &|_: &[u8]| true));
        assert_eq!(
            result.expect_err("impossible").kind(),
            Kind::Corrupt,
            "{vdev} {offset} {psize}"
        );
    }
    // In range of the vdev, but beyond the end of the devices.
    let result =
        wait(bench.tree.read(Place { vdev: 0, offset: 1 << 50 }, 512, 0, &|_: &[u8]| true));
    assert_eq!(result.expect_err("beyond").kind(), Kind::Io);
}

/// Returns the bytes of extents that were read before, and counts the reads it had to do itself.
struct Extents {
    tree: Arc<Tree>,
    whole: BTreeMap<LeafId, Buf>,
}

impl LeafReader for Extents {
    fn read_leaf(&self, leaf: LeafId, offset: u64, len: usize) -> BoxFuture<'_, Result<Buf>> {
        let start = offset as usize;
        match self.whole.get(&leaf).and_then(|buf| buf.slice(start..start + len)) {
            Some(part) => Box::pin(async { Ok(part) }),
            None => self.tree.read_leaf(leaf, offset, len),
        }
    }
}

#[test]
fn scrub_reads_blocks_from_extents() {
    let (bench, mut rng) = (Bench::new(raidz(9, 5, 2)), Rng::seeded(12));
    let data = bench.block(&mut rng, 0, 0x8000);
    let leaves: Vec<_> = bench.tree.leaves().map(|(id, _)| id).collect();
    let extent = |id| (id, wait(bench.tree.read_leaf(id, 0, 8 << 20)).expect("extent"));
    let whole = leaves.into_iter().map(extent).collect();
    let before = bench.tree.leaves().map(|(_, leaf)| leaf.stats().reads).sum::<u64>();
    let reader = Extents { tree: Arc::clone(&bench.tree), whole };
    let sum = fletcher4(&data);
    let verify = move |data: &[u8]| fletcher4(data) == sum;
    let place = Place { vdev: 0, offset: 0 };
    let scrubbed =
        wait(bench.tree.scrub_with(&reader, place, 0x8000, BIRTH, &verify)).expect("address");
    assert!(scrubbed.good.is_some() && scrubbed.bad.is_empty());
    assert_eq!(bench.tree.leaves().map(|(_, leaf)| leaf.stats().reads).sum::<u64>(), before);
}

#[test]
fn sizes_and_ratios() {
    let bench = Bench::new(raidz(9, 4, 1));
    // Spec 05 §6.2: 4-disk RAID-Z1, ashift 9.
    assert_eq!(bench.tree.deflate_ratio(0), Some(383));
    assert_eq!(bench.tree.asize_for(0, 2048, 0), Some(6 << 9));
    assert_eq!(bench.tree.asize_for(1, 2048, 0), None);
    let plain = Bench::new(top(leaves(1).remove(0), 12));
    assert_eq!(plain.tree.deflate_ratio(0), Some(512));
    assert_eq!(plain.tree.asize_for(0, 1, 0), Some(4096));
}

/// Old bytes on a leaf that lacks the block's txg are no damage while a leaf that may have the
/// block is unavailable: the read fails because devices are missing, and works when they return.
/// Only if no leaf is unavailable is the block lost.
#[test]
fn stale_bytes_are_no_damage_while_leaves_are_unavailable() {
    let mut all = shapes();
    all.push(("mirror of 2", top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 9), 1));
    let mut replacing = raidz(9, 3, 1);
    let old = replacing.children[0].children[0].clone();
    // The stale leaf comes first; the one being replaced is unavailable with another one.
    let new = VdevConfig { guid: 99, ..old.clone() };
    replacing.children[0].children[0] = vdev(ConfigKind::Replacing, 0, 50, vec![new, old]);
    all.push(("raidz1 of 3, replacing", replacing, 2));
    for (name, shape, tolerated) in all {
        let bench = Bench::new(shape);
        let mut block = vec![0; 128 << 10];
        Rng::seeded(5).fill(&mut block);
        bench.write(1, 0, &block);
        let place = Place { vdev: 0, offset: 0 };
        let ranges = bench.tree.leaf_ranges(place, block.len() as u64, BIRTH);
        let mut guids: Vec<u64> =
            ranges.iter().map(|range| bench.tree.leaf(range.leaf).guid()).collect();
        guids.sort_unstable();
        guids.dedup();
        let (stale, away) = (guids[0], &guids[1..=tolerated]);
        let read = |absent: &[u64], faults: &[(u64, crate::bench::Range, Fault)]| {
            let tree = bench.tree_with(absent, faults);
            tree.set_dtl(stale, TxgRanges::of(BIRTH));
            let verify = |data: &[u8]| data == block;
            wait(tree.read(place, block.len() as u64, BIRTH, &verify))
        };
        let lie = (stale, DATA, Fault::Lie);
        let with = |fault| -> Vec<_> {
            std::iter::once(lie).chain(away.iter().map(|guid| (*guid, DATA, fault))).collect()
        };
        assert!(read(&[], &[lie]).is_ok(), "{name}: only the stale one is wrong");
        let error = read(&[], &with(Fault::Eio)).expect_err("too few are fresh");
        assert_eq!(error.kind(), Kind::Io, "{name}: silent");
        let error = read(away, &[lie]).expect_err("too few are fresh");
        assert_eq!(error.kind(), Kind::Io, "{name}: absent");
        let error = read(&[], &with(Fault::Lie)).expect_err("too many are wrong");
        assert_eq!(error.kind(), Kind::Checksum, "{name}: nobody is away");
    }
}
