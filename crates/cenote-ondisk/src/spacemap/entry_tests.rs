use super::*;
use proptest::prelude::*;

fn decode(geometry: Geometry, words: &[u64]) -> Vec<Result<Item, CorruptSpaceMap>> {
    Decoder::new(geometry).block(&crate::words::to_bytes(words)).collect()
}

const fn entry(action: Action, offset: u64, end: u64, vdev: Option<u32>) -> Item {
    Item::Entry(Entry { action, offset, size: end - offset, vdev })
}

const ASHIFT9: Geometry = Geometry { start: 0, size: 1 << 40, shift: 9 };

/// Spec 05 §2.10.
#[test]
fn words_of_real_pools() {
    let obsolete = Geometry { start: 0, size: 1 << 30, shift: 0 };
    let draid = Geometry { start: 0x200_0400, size: 1 << 25, shift: 9 };
    let rows: &[(Geometry, &[u64], Item)] = &[
        (
            ASHIFT9,
            &[0x8004_0000_0000_0006],
            Item::Stamp(Stamp { action: Action::Alloc, pass: 1, txg: 6 }),
        ),
        (
            ASHIFT9,
            &[0x9004_0000_0000_0009],
            Item::Stamp(Stamp { action: Action::Free, pass: 1, txg: 9 }),
        ),
        (ASHIFT9, &[PADDING], Item::Padding),
        (ASHIFT9, &[0x31], entry(Action::Alloc, 0, 0x6400, None)),
        (ASHIFT9, &[0x34_0019], entry(Action::Alloc, 0x6800, 0x9c00, None)),
        (ASHIFT9, &[0x2_8001], entry(Action::Free, 0x400, 0x800, None)),
        (
            Geometry::LOG,
            &[0xc000_0000_f500_0002, 0x8000_0000_0004_cb9e],
            entry(Action::Free, 0x997_3c00, 0x999_2800, Some(2)),
        ),
        (
            Geometry::LOG,
            &[0xc000_0000_0900_0000, 0x2_0175],
            entry(Action::Alloc, 0x402_ea00, 0x402_fe00, Some(0)),
        ),
        (draid, &[0x47], entry(Action::Alloc, 0x200_0400, 0x200_9400, None)),
        (obsolete, &[0xba00_0fff], entry(Action::Alloc, 0xba00, 0xca00, None)),
    ];
    for (geometry, words, want) in rows {
        assert_eq!(decode(*geometry, words), [Ok(*want)], "words {words:x?}");
    }
}

/// The complete map of spec 05 §2.10: entries sum up to `smp_alloc`.
#[test]
fn a_real_map_sums_up() {
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
    let mut allocated = 0_i64;
    for item in decode(ASHIFT9, &words) {
        if let Item::Entry(entry) = item.unwrap() {
            let sign = if entry.action == Action::Alloc { 1 } else { -1 };
            allocated += sign * entry.size as i64;
        }
    }
    assert_eq!(allocated, 0x3000);
}

#[test]
fn refusals() {
    let small = Geometry { start: 0x1000, size: 0x1000, shift: 9 };
    for (words, want) in [
        (vec![0xc000_0000_0000_0000_u64], CorruptSpaceMap::Straddle { index: 0 }),
        (vec![PADDING, 7 << 16 | 1], CorruptSpaceMap::OutOfRange { index: 1, offset: 7, units: 2 }),
        (
            vec![3 << 62, u64::MAX >> 1],
            CorruptSpaceMap::OutOfRange { index: 0, offset: u64::MAX >> 1, units: 1 },
        ),
    ] {
        let items = decode(small, &words);
        assert_eq!(items.last(), Some(&Err(want)), "words {words:x?}");
    }
    assert_eq!(decode(small, &[7 << 16]), [Ok(entry(Action::Alloc, 0x1e00, 0x2000, None))]);
}

#[test]
fn a_pair_at_the_end_of_a_block_is_padded() {
    let mut writer = Writer::new(9, 32, 0);
    let range = Entry { action: Action::Free, offset: 0x200, size: 0x400, vdev: Some(3) };
    for _ in 0..3 {
        writer.stamp(Stamp { action: Action::Free, pass: 1, txg: 5 });
        writer.range(range, true);
    }
    let mut decoder = Decoder::new(Geometry::LOG);
    let mut seen = 0;
    for block in writer.words().chunks(4) {
        for item in decoder.block(&crate::words::to_bytes(block)) {
            if let Item::Entry(found) = item.unwrap() {
                assert_eq!(found, range);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 3);
    assert_eq!(decoder.index(), writer.words().len() as u64);
}

proptest! {
    #[test]
    fn random_words_never_panic(words: Vec<u64>, start: u64, size: u64, shift in 0_u8..=255) {
        let _ = decode(Geometry { start, size, shift }, &words);
    }

    #[test]
    fn encoded_entries_round_trip(
        rows in proptest::collection::vec(
            (any::<bool>(), 0_u64..1 << 50, 1_u64..1 << 20, proptest::option::of(0_u32..1 << 24)),
            0..50,
        ),
        two_word: bool,
    ) {
        let mut writer = Writer::new(0, 1 << 12, 0);
        let mut want = Vec::new();
        for (free, offset, size, vdev) in rows {
            let action = if free { Action::Free } else { Action::Alloc };
            let offset = if two_word { offset } else { offset & (ONE_WORD_OFFSET_END / 2 - 1) };
            writer.range(Entry { action, offset, size, vdev }, two_word);
            want.push((action, offset, size, vdev.filter(|_| two_word)));
        }
        let mut decoder = Decoder::new(Geometry::DTL);
        // The pieces of one range are joined again.
        let mut got: Vec<(Action, u64, u64, Option<u32>)> = Vec::new();
        let mut rest = want.iter();
        let mut left = 0;
        for block in writer.words().chunks(512) {
            for item in decoder.block(&crate::words::to_bytes(block)) {
                let Item::Entry(e) = item.unwrap() else { continue };
                if left == 0 {
                    left = rest.next().unwrap().2;
                    got.push((e.action, e.offset, 0, e.vdev));
                }
                let last = got.last_mut().unwrap();
                prop_assert_eq!(e.offset, last.1 + last.2);
                last.2 += e.size;
                last.3 = e.vdev;
                left -= e.size;
            }
        }
        for row in &mut want {
            let pair = two_word
                && (row.3.is_some() || row.2 > ONE_WORD_RUN_MAX || row.1 >= ONE_WORD_OFFSET_END);
            row.3 = pair.then(|| row.3.unwrap_or(0));
        }
        prop_assert_eq!(got, want);
    }
}
