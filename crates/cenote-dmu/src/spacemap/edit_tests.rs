//! Space maps: the words of real pools, and random maps against range sets.

use std::ops::Range;

use cenote_ondisk::spacemap::{Decoder, Item, entry};
use cenote_ranges::RangeSet;
use cenote_rt::Rng;

use super::*;
use crate::objects::model::Model;

const ASHIFT9: Geometry = Geometry { start: 0, size: 1 << 40, shift: 9 };
const METASLAB: EntryFormat = EntryFormat { geometry: ASHIFT9, has_v2: true, vdev: None };

fn bytes_of(model: &mut Model, object: u64) -> Vec<u8> {
    let (length, _) = model.apply(|tx| length(tx, object)).unwrap();
    model.apply(|tx| tx.read(object, 0, length as usize)).unwrap()
}

/// A range, for arrays in which a single range literal would look like a mistake.
const fn at(start: u64, end: u64) -> Range<u64> {
    start..end
}

/// The complete map of spec 05 §2.10, appended txg by txg.
#[test]
fn the_words_of_a_real_map() {
    let mut model = Model::with_misses();
    let form = MapFormat { block_size: 16 << 10, has_histogram: true };
    let object = model.apply(|tx| create(tx, &form)).unwrap();
    let rows: [(u64, Action, &[Range<u64>]); 4] = [
        (6, Action::Alloc, &[0..0x6400, 0x6800..0x9c00]),
        (9, Action::Free, &[0x400..0x800, 0x1c00..0x3000, 0x5400..0x6400, 0x6800..0x9c00]),
        (122, Action::Free, &[at(0x1400, 0x1c00)]),
        (137, Action::Free, &[at(0x800, 0xc00)]),
    ];
    for (txg, action, ranges) in rows {
        let stamp = Stamp { txg, pass: 1 };
        model
            .apply(|tx| append(tx, object, &METASLAB, action, ranges.iter().cloned(), stamp))
            .unwrap();
    }
    let words = [
        0x8004_0000_0000_0006,
        0x31,
        0x34_0019,
        0x9004_0000_0000_0009,
        0x2_8001,
        0xe_8009,
        0x2a_8007,
        0x34_8019,
        0x9004_0000_0000_007a,
        0xa_8003,
        0x9004_0000_0000_0089,
        0x4_8001,
    ];
    assert_eq!(bytes_of(&mut model, object), words::to_bytes(&words));
    let phys = model.apply(|tx| header(tx, object)).unwrap();
    assert_eq!((phys.object, phys.length, phys.allocated), (object, 0x60, 0x3000));
    let dnode = model.apply(|tx| tx.dnode(object)).unwrap();
    assert_eq!((dnode.bonus_len, dnode.indblkshift), (320, 14));
}

#[test]
fn words_of_logs_and_other_users() {
    let stamp = Stamp { txg: 1, pass: 1 };
    let log = EntryFormat { geometry: Geometry::LOG, has_v2: true, vdev: Some(2) };
    let draid = Geometry { start: 0x200_0400, size: 1 << 25, shift: 9 };
    let obsolete = Geometry { start: 0, size: 1 << 30, shift: 0 };
    let rows: [(EntryFormat, Action, Range<u64>, &[u64]); 5] = [
        (
            log,
            Action::Free,
            0x997_3c00..0x999_2800,
            &[0xc000_0000_f500_0002, 0x8000_0000_0004_cb9e],
        ),
        (
            EntryFormat { vdev: Some(0), ..log },
            Action::Alloc,
            0x402_ea00..0x402_fe00,
            &[0xc000_0000_0900_0000, 0x2_0175],
        ),
        (
            EntryFormat { geometry: draid, ..METASLAB },
            Action::Alloc,
            0x200_0400..0x200_9400,
            &[0x47],
        ),
        (
            EntryFormat { geometry: obsolete, ..METASLAB },
            Action::Alloc,
            0xba00..0xca00,
            &[0xba00_0fff],
        ),
        // Without v2 a long run needs several words.
        (
            EntryFormat { has_v2: false, ..METASLAB },
            Action::Alloc,
            0..(1 << 24) + 512,
            &[0x7fff, 0x8000_0000],
        ),
    ];
    for (form, action, range, wanted) in rows {
        let mut model = Model::default();
        let map = MapFormat { block_size: 4096, has_histogram: false };
        let object = model.apply(|tx| create(tx, &map)).unwrap();
        model.apply(|tx| append(tx, object, &form, action, [range.clone()], stamp)).unwrap();
        assert_eq!(bytes_of(&mut model, object)[8..], words::to_bytes(wanted));
        assert_eq!(model.apply(|tx| tx.bonus(object)).unwrap().len(), 24);
    }
}

#[test]
fn empty_appends_write_nothing_and_bad_ranges_are_refused() {
    let mut model = Model::default();
    let form = MapFormat { block_size: 4096, has_histogram: true };
    let object = model.apply(|tx| create(tx, &form)).unwrap();
    let stamp = Stamp { txg: 1, pass: 1 };
    model.apply(|tx| append(tx, object, &METASLAB, Action::Alloc, [], stamp)).unwrap();
    assert_eq!(model.apply(|tx| length(tx, object)).unwrap(), (0, true));
    for range in [1..512, 0..(1 << 40) + 512, 512..512] {
        let refused =
            model.apply(|tx| append(tx, object, &METASLAB, Action::Alloc, [range.clone()], stamp));
        assert_eq!(refused.unwrap_err().kind(), Kind::Invariant);
    }
}

#[test]
fn truncation_and_upgrade() {
    let mut model = Model::default();
    let old = MapFormat { block_size: 4096, has_histogram: false };
    let object = model.apply(|tx| create(tx, &old)).unwrap();
    let stamp = Stamp { txg: 1, pass: 1 };
    model.apply(|tx| append(tx, object, &METASLAB, Action::Alloc, [at(0, 1024)], stamp)).unwrap();
    assert_eq!(model.apply(|tx| truncate(tx, object, &old)).unwrap(), object);
    assert_eq!(model.apply(|tx| length(tx, object)).unwrap(), (0, false));
    assert_eq!(model.block_numbers(object), [0_u64; 0]);
    let new = MapFormat { block_size: 4096, has_histogram: true };
    let moved = model.apply(|tx| truncate(tx, object, &new)).unwrap();
    assert_ne!(moved, object);
    let histogram = [7; HISTOGRAM_BUCKETS];
    model.apply(|tx| set_histogram(tx, moved, &histogram)).unwrap();
    assert_eq!(model.apply(|tx| header(tx, moved)).unwrap().histogram, Some(histogram));
    assert_eq!(model.apply(|tx| truncate(tx, moved, &new)).unwrap(), moved);
    let phys = model.apply(|tx| header(tx, moved)).unwrap();
    assert_eq!(phys.histogram, Some([0; HISTOGRAM_BUCKETS]));
    let larger = MapFormat { block_size: 16 << 10, ..new };
    assert_ne!(model.apply(|tx| truncate(tx, moved, &larger)).unwrap(), moved);
    assert_eq!(model.object_numbers().len(), 1);
}

/// A log of two-word entries over small blocks: pairs never span blocks, the sum is right, and a
/// reader returns the set.
#[test]
fn space_map_equals_a_range_set() {
    for (vdev, has_v2, seed) in [(Some(3), true, 1), (None, true, 2), (None, false, 3)] {
        let form = EntryFormat { geometry: Geometry { start: 4096, ..ASHIFT9 }, has_v2, vdev };
        let mut rng = Rng::seeded(seed);
        let mut model = Model::with_misses();
        let map = MapFormat { block_size: 512, has_histogram: true };
        let object = model.apply(|tx| create(tx, &map)).unwrap();
        let mut held = RangeSet::default();
        for txg in 1..200 {
            model.evict();
            let mut alloc = RangeSet::default();
            for _ in 0..rng.below(5) {
                let start = 4096 + rng.below(1 << 18) * 512;
                let end = start + (1 + rng.below(if txg % 9 == 0 { 1 << 17 } else { 99 })) * 512;
                alloc.add(start..end);
            }
            let alloc = alloc.difference(&held);
            held.union(&alloc);
            let stamp = Stamp { txg, pass: 2 };
            model
                .apply(|tx| append(tx, object, &form, Action::Alloc, alloc.iter(), stamp))
                .unwrap();
            let mut free = RangeSet::default();
            for range in held.iter().take(rng.below(4) as usize) {
                free.add(range.start..range.start + ((range.end - range.start) / 1024 + 1) * 512);
            }
            let free = free.intersection(&held);
            held.subtract(&free);
            model.apply(|tx| append(tx, object, &form, Action::Free, free.iter(), stamp)).unwrap();
        }
        let bytes = bytes_of(&mut model, object);
        let (mut decoder, mut read) = (Decoder::new(form.geometry), RangeSet::default());
        let mut paddings = 0;
        for data in bytes.chunks(512) {
            for item in decoder.block(data) {
                match item.unwrap() {
                    Item::Entry(entry) => {
                        let range = entry.offset..entry.offset + entry.size;
                        match entry.action {
                            Action::Alloc => read.try_add(range).unwrap(),
                            Action::Free => read.try_remove(range).unwrap(),
                        }
                        assert!(vdev.is_none() || entry.vdev == vdev);
                    }
                    Item::Padding => paddings += 1,
                    Item::Stamp(entry::Stamp { pass, .. }) => assert_eq!(pass, 2),
                }
            }
        }
        assert!(read.iter().eq(held.iter()));
        assert!(paddings > 0 || vdev.is_none());
        assert!(paddings == 0 || has_v2);
        let phys = model.apply(|tx| header(tx, object)).unwrap();
        assert_eq!(phys.allocated as u64, held.bytes());
    }
}

/// Taking entries from the end of a map returns the appended ones, and the header follows.
#[test]
fn space_map_entries_are_taken_from_the_end() {
    let mut model = Model::with_misses();
    let form = MapFormat { block_size: 4 << 10, has_histogram: true };
    let object = model.apply(|tx| create(tx, &form)).unwrap();
    let mut rng = Rng::seeded(7);
    let mut left = RangeSet::new();
    for txg in 1..40 {
        let start = txg << 20;
        let ranges: Vec<_> = (0..rng.below(60))
            .map(|index| start + index * 0x4000)
            .map(|from| from..from + 0x200 * (1 + rng.below(30)))
            .collect();
        for range in &ranges {
            left.try_add(range.clone()).unwrap();
        }
        let stamp = Stamp { txg, pass: 1 };
        let ranges = ranges.into_iter();
        model
            .apply(|tx| append(tx, object, &METASLAB, Action::Free, ranges.clone(), stamp))
            .unwrap();
    }
    let mut rounds = 0;
    while model.apply(|tx| length(tx, object)).unwrap().0 > 0 {
        let taken = model.apply(|tx| take_last(tx, object, &ASHIFT9, 4 << 10)).unwrap();
        for entry in taken {
            assert_eq!(entry.action, Action::Free);
            left.try_remove(entry.offset..entry.offset + entry.size).unwrap();
        }
        let phys = model.apply(|tx| header(tx, object)).unwrap();
        assert_eq!(phys.allocated, -(left.bytes() as i64));
        rounds += 1;
    }
    assert!(left.is_empty() && rounds > 1, "{rounds} rounds");
    assert!(model.apply(|tx| take_last(tx, object, &ASHIFT9, 1)).unwrap().is_empty());
}

#[test]
fn ranges_out_of_order_or_outside_of_the_map_are_found() {
    let mut model = Model::with_misses();
    let form = MapFormat { block_size: 16 << 10, has_histogram: false };
    let object = model.apply(|tx| create(tx, &form)).unwrap();
    let stamp = Stamp { txg: 5, pass: 1 };
    for ranges in [vec![0x800..0xc00, 0x400..0x600], vec![at(0x400, 0x401)], vec![at(0, 2 << 40)]] {
        let append = model.apply(|tx| {
            append(tx, object, &METASLAB, Action::Alloc, ranges.iter().cloned(), stamp)
        });
        assert_eq!(append.unwrap_err().kind(), Kind::Invariant, "{ranges:?}");
    }
}

#[test]
fn more_bytes_than_a_map_has_are_found() {
    let mut model = Model::with_misses();
    let object = model
        .apply(|tx| create(tx, &MapFormat { block_size: 16 << 10, has_histogram: true }))
        .unwrap();
    let geometry = Geometry { start: 0, size: 8192, shift: 9 };
    let form = EntryFormat { geometry, ..METASLAB };
    let stamp = Stamp { txg: 5, pass: 1 };
    let mut alloc = |form: EntryFormat| {
        model.apply(|tx| append(tx, object, &form, Action::Alloc, [at(0, 8192)], stamp))
    };
    alloc(form).unwrap();
    let error = alloc(form).unwrap_err();
    assert_eq!(error.cause::<cenote_rt::invariant::Broken>().unwrap().id, "S3");
    // A log covers more.
    alloc(EntryFormat { vdev: Some(0), ..form }).unwrap();
}
