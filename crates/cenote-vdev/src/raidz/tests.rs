use std::collections::BTreeSet;

use super::*;

fn raidz(ashift: u32, width: u64, nparity: u64) -> Raidz {
    Raidz { ashift, width, nparity, expand_txgs: Vec::new(), is_expanding: false }
}

fn places(map: &Map) -> Vec<(usize, i64, usize)> {
    map.columns().map(|(_, c)| (c.child, c.offset, c.len)).collect()
}

#[test]
fn worked_vectors() {
    // Spec 06 §21.2.
    let z1 = raidz(9, 3, 1);
    assert_eq!(z1.asize(0xe00, 0), 0x1800);
    let map = z1.map(0x1f0400, 0xe00, 0, Reflow::default());
    assert_eq!(places(&map), [(2, 0xa5600, 0x800), (1, 0xa5600, 0x800), (0, 0xa5800, 0x600)]);
    let z3 = raidz(9, 7, 3);
    assert_eq!(z3.asize(0xe00, 0), 16 * 512);
    let map = z3.map(0x20800, 0xe00, 0, Reflow::default());
    let tall = |child| (child, 0x4a00, 0x400);
    let want = [tall(1), tall(2), tall(3), tall(4), tall(5), tall(6), (0, 0x4c00, 0x200)];
    assert_eq!(places(&map), want);
    assert_eq!(raidz(12, 6, 2).asize(0x1000, 0), 0x3000);
}

#[test]
fn widths_follow_physical_birth() {
    let grown = Raidz { expand_txgs: vec![43], ..raidz(9, 4, 1) };
    assert_eq!([0, 42, 43, u64::MAX].map(|birth| grown.width_at(birth)), [3, 3, 4, 4]);
    let growing = Raidz { expand_txgs: vec![43], is_expanding: true, ..raidz(9, 5, 1) };
    assert_eq!([42, 43].map(|birth| growing.width_at(birth)), [3, 4]);
    assert!(grown.is_valid() && growing.is_valid());
    assert!(!Raidz { expand_txgs: vec![1, 2, 3], ..raidz(9, 4, 1) }.is_valid());
}

/// Checks Z1 and Z2, and that the columns fill exactly the sectors `b .. b + tot`.
fn check_map(raidz: &Raidz, offset: u64, psize: u64, birth: u64) {
    let what = format!("{raidz:?} offset {offset:#x} psize {psize:#x} birth {birth}");
    let map = raidz.map(offset, psize, birth, Reflow::default());
    let sector = 1_usize << raidz.ashift;
    let mut covered = vec![false; map.size / sector];
    let mut taken = BTreeSet::new();
    for row in &map.rows {
        let present = row.columns.iter().filter(|c| c.len > 0);
        let children: Vec<_> = present.map(|c| c.child).collect();
        assert_eq!(children.iter().collect::<BTreeSet<_>>().len(), children.len(), "{what}");
        for (index, column) in row.columns.iter().enumerate() {
            assert_eq!(column.data_len == 0, index < map.nparity || column.len == 0, "{what}");
            for at in (0..column.len).step_by(sector) {
                let row = (column.offset as u64 + at as u64) >> raidz.ashift;
                assert!(taken.insert(row * raidz.width + column.child as u64), "{what}");
            }
            for at in (0..column.data_len).step_by(sector) {
                let number = (column.data_start + at) / sector;
                assert!(!std::mem::replace(&mut covered[number], true), "{what}");
            }
        }
    }
    assert!(covered.iter().all(|covered| *covered), "{what}");
    let first = offset >> raidz.ashift;
    let want: BTreeSet<_> = (first..first + taken.len() as u64).collect();
    assert_eq!(taken, want, "{what}");
    assert!((taken.len() as u64) << raidz.ashift <= raidz.asize(psize, birth), "{what}");
}

#[test]
fn maps_cover_blocks_exactly() {
    for nparity in 1..=3 {
        for width in nparity + 1..nparity + 9 {
            for grown in 0..width - nparity {
                let expand_txgs = (0..grown).map(|i| 10 * (i + 1)).collect();
                let raidz = Raidz { expand_txgs, ..raidz(9, width, nparity) };
                for psize in (512..=40 * 512).step_by(512) {
                    for offset in [0, 0x400 * (nparity + 1), (1 << 20) + 0x600, (3 << 20) + 512] {
                        for birth in (5..).step_by(10).take(grown as usize + 1) {
                            check_map(&raidz, offset, psize, birth);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_running_expansion_has_three_places() {
    let growing = Raidz { is_expanding: true, ..raidz(12, 4, 1) };
    // 4 data sectors, old width 3: rows at sectors 6..9 and 9..12.
    let map = |reflow| places(&growing.map(6 << 12, 4 << 12, 5, reflow));
    let before = map(Reflow { offset: 6 << 12, ..Reflow::default() });
    assert_eq!(before[..3], [(0, 0x2000, 4096), (1, 0x2000, 4096), (2, 0x2000, 4096)]);
    let between = map(Reflow { offset: 9 << 12, ..Reflow::default() });
    assert_eq!(between[..3], [(2, 0x1000, 4096), (3, 0x1000, 4096), (0, 0x2000, 4096)]);
    assert_eq!(between[3..], before[3..]);
    let scratch = map(Reflow { offset: 12 << 12, next: 0, is_scratch_valid: true });
    assert_eq!(scratch[0], (2, 0x1000 - (7 << 19), 4096));
}

#[test]
fn reflow_words() {
    let moving = Reflow::from_word(0x0200000000007000);
    let offset = 14_680_064;
    assert_eq!(moving, Reflow { offset, next: offset, is_scratch_valid: false });
    assert!(Reflow::from_word(1 << 55 | 7).is_scratch_valid);
    assert_eq!(Reflow::from_word(0), Reflow::default());
}
