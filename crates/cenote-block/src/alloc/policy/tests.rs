//! The choice of each policy, in rows.

use cenote_ranges::RangeSet;
use cenote_rt::Rng;

use super::*;

const MIB: u64 = 1 << 20;

fn pick(policy: &dyn Policy, ranges: &[Range<u64>], cursor: u64, size: u64) -> Option<u64> {
    let free: RangeSet = ranges.iter().cloned().collect();
    let mut free = FreeTree::new(free, policy.size_floor());
    let mut cursors = Cursors::new(0);
    *cursors.of(size) = cursor;
    let mut context = PickContext {
        free: &mut free,
        cursors: &mut cursors,
        start: 0,
        size: 16 * MIB,
        must_find: false,
    };
    policy.pick(&mut context, PickRequest { size, align: 512 })
}

#[test]
fn first_fit_from_the_cursor_while_much_is_free() {
    let segments = [0..MIB, 2 * MIB..4 * MIB];
    for policy in [&Dynamic as &dyn Policy, &Historic] {
        assert_eq!(pick(policy, &segments, 0, 4096), Some(0));
        assert_eq!(pick(policy, &segments, MIB / 2, 4096), Some(MIB / 2));
        assert_eq!(pick(policy, &segments, 3 * MIB, MIB), Some(3 * MIB));
    }
    // Behind the last fitting segment: best fit (dynamic), wrap around (2013).
    assert_eq!(pick(&Dynamic, &segments, 3 * MIB + 512, MIB), Some(0));
    assert_eq!(pick(&Historic, &segments, 3 * MIB + 512, MIB), Some(0));
}

#[test]
fn best_fit_when_nothing_large_is_left() {
    // Segments of 16 KiB and more are found by size; smaller ones only when nothing else is left.
    let segments = [0..65536, 131_072..131_072 + 16384, 262_144..262_144 + 8192];
    assert_eq!(pick(&Dynamic, &segments, 0, 8192), Some(131_072));
    assert_eq!(pick(&Historic, &segments, 0, 8192), Some(262_144));
    assert_eq!(pick(&Dynamic, &segments[2..], 0, 8192), Some(262_144));
    assert_eq!(pick(&Dynamic, &segments, 0, 131_072), None);
}

#[test]
fn starts_are_aligned_and_a_fit_is_always_found() {
    let mut rng = Rng::seeded(4);
    for _ in 0..2000 {
        let ranges: Vec<_> = (0..rng.below(30))
            .map(|_| {
                let start = rng.below(2048) * 512;
                start..start + (1 + rng.below(40)) * 512
            })
            .collect();
        let wanted = PickRequest { size: 1536 * (1 + rng.below(4)), align: 1536 };
        let free: RangeSet = ranges.into_iter().collect();
        let fits = free.iter().any(|segment| wanted.fit(&segment).is_some());
        for policy in [&Dynamic as &dyn Policy, &Historic, &Separate] {
            let mut tree = FreeTree::new(free.clone(), policy.size_floor());
            let mut cursors = Cursors::new(0);
            *cursors.of(wanted.size) = rng.below(2048) * 512;
            let mut context = PickContext {
                free: &mut tree,
                cursors: &mut cursors,
                start: 0,
                size: 2 * MIB,
                must_find: true,
            };
            let found = policy.pick(&mut context, wanted);
            assert_eq!(found.is_some(), fits, "{}", policy.name());
            if let Some(start) = found {
                assert!(start.is_multiple_of(1536) && free.contains(&(start..start + wanted.size)));
            }
        }
    }
}

#[test]
fn policies_weigh_and_close_metaslabs() {
    let mut info = MetaslabInfo {
        metaslab: 0,
        count: 10,
        free: MIB,
        deferred: 0,
        segments: Some(4),
        fragmentation: Some(50),
        by_segments: Some(Weight::of_segments(18, 2)),
    };
    assert_eq!(Dynamic.weigh(&info), Weight::of_segments(18, 2));
    assert_eq!(Historic.weigh(&info), Weight::of_space(2 * MIB));
    assert_eq!(Separate.weigh(&info), Weight::of_runs(MIB, 4));
    (info.by_segments, info.segments) = (None, None);
    info.metaslab = 5;
    assert_eq!(Dynamic.weigh(&info), Weight::of_space(MIB * 51 / 100));
    assert_eq!(Historic.weigh(&info), Weight::of_space(MIB * 3 / 2));
    assert_eq!(Separate.weigh(&info), Weight::of_space(MIB));
    info.deferred = MIB;
    assert_eq!(Historic.weigh(&info), Weight::of_space(MIB * 3));
    let (high, low) = (Weight::of_segments(20, 1), Weight::of_segments(18, 1));
    assert!(Dynamic.should_leave(high, low, MIB, MIB / 4));
    assert!(!Dynamic.should_leave(high, low, MIB, MIB - 512));
    assert!(!Dynamic.should_leave(high, Weight::of_segments(19, 1), MIB, MIB / 4));
    assert!(!Historic.should_leave(high, low, MIB, MIB / 4));
    // A worn metaslab of 2013: no run of 128K, or less than 4 percent free.
    let size = 16 * MIB;
    assert!(
        Historic.should_close(MIB / 16, MIB, size) && Historic.should_close(MIB / 4, MIB / 2, size)
    );
    assert!(!Historic.should_close(MIB / 4, MIB, size) && !Dynamic.should_close(512, 512, size));
    assert_eq!((Historic.copy_distance(256), Dynamic.copy_distance(256)), (32, 1));
}

#[test]
fn one_pass_by_address_never_goes_back() {
    let free: RangeSet =
        [0..65536, MIB..MIB + 8192, 2 * MIB..2 * MIB + 65536].into_iter().collect();
    let mut free = FreeTree::new(free, 0);
    let mut cursors = Cursors::new(0);
    let mut take = |free: &mut FreeTree, size, must_find| {
        let (start, cursors) = (0, &mut cursors);
        let mut context = PickContext { free, cursors, start, size: 16 * MIB, must_find };
        let found = Separate.pick(&mut context, PickRequest { size, align: 512 })?;
        free.try_remove(found..found + size).unwrap();
        Some(found)
    };
    assert_eq!(take(&mut free, 8192, false), Some(0));
    // A long block passes over the hole, and leaves it to short ones.
    assert_eq!(take(&mut free, 65536, false), Some(2 * MIB));
    free.try_add(0..8192).unwrap();
    for expected in (1..8).map(|block| block * 8192).chain([MIB]) {
        assert_eq!(take(&mut free, 8192, false), Some(expected));
    }
    // At the end it is closed; the next pass begins at its start.
    assert_eq!(take(&mut free, 8192, false), None);
    assert_eq!(take(&mut free, 8192, false), Some(0));
    free.try_add(0..8192).unwrap();
    // Nothing as long is free, wherever the cursor is: it stays.
    assert_eq!(take(&mut free, 16384, false), None);
    assert_eq!(take(&mut free, 4096, false), None);
    assert_eq!(take(&mut free, 4096, false), Some(0));
    assert_eq!(take(&mut free, 8192, false), None);
    free.try_add(8192..16384).unwrap();
    assert_eq!(take(&mut free, 8192, true), Some(4096));
}
