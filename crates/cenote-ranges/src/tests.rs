//! Every operation, compared with a bitmap.

use super::*;

const SIZE: u64 = 200;

/// A small generator of random numbers; this crate has no dependencies.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }

    fn range(&mut self) -> Range<u64> {
        let start = self.below(SIZE - 1);
        start..start + 1 + self.below(SIZE - start - 1).min(12)
    }
}

fn bitmap(set: &RangeSet) -> Vec<bool> {
    let mut bits = vec![false; SIZE as usize];
    for range in set.iter() {
        bits[range.start as usize..range.end as usize].fill(true);
    }
    bits
}

fn check(set: &RangeSet, bits: &[bool]) {
    assert_eq!(bitmap(set), bits);
    assert!(set.iter().zip(set.iter().skip(1)).all(|(a, b)| a.end < b.start));
    assert_eq!(set.bytes(), bits.iter().filter(|bit| **bit).count() as u64);
    assert_eq!(set.histogram().iter().sum::<u64>(), set.len() as u64);
}

#[test]
fn single_ranges_agree_with_a_bitmap() {
    let mut dice = Dice(11);
    let mut set = RangeSet::default();
    let mut bits = vec![false; SIZE as usize];
    for _ in 0..20_000 {
        let range = dice.range();
        let part = range.start as usize..range.end as usize;
        let (all, none) =
            (bits[part.clone()].iter().all(|bit| *bit), bits[part.clone()].iter().all(|bit| !bit));
        assert_eq!(set.contains(&range), all);
        assert_eq!(set.overlap(&range).is_none(), none);
        let count = bits[part.clone()].iter().filter(|bit| **bit).count() as u64;
        assert_eq!(set.bytes_within(&range), count);
        assert_eq!(set.find(range.start).is_some(), bits[range.start as usize]);
        let before = set.clone();
        match dice.below(4) {
            0 => {
                assert_eq!(set.add(range), none);
                bits[part].fill(true);
            }
            1 => {
                assert_eq!(set.remove(range), all);
                bits[part].fill(false);
            }
            2 => match set.try_add(range.clone()) {
                Ok(()) => {
                    assert!(none);
                    bits[part].fill(true);
                }
                Err(RangeError::Overlap { other, .. }) => {
                    assert!(!none && other.start < range.end && range.start < other.end);
                    assert_eq!(set, before);
                }
                Err(error) => panic!("{error}"),
            },
            _ => match set.try_remove(range) {
                Ok(()) => {
                    assert!(all);
                    bits[part].fill(false);
                }
                Err(_) => assert!(!all && set == before),
            },
        }
        check(&set, &bits);
    }
}

#[test]
fn sets_agree_with_bitmaps() {
    let mut dice = Dice(5);
    for _ in 0..300 {
        let mut random = || (0..dice.below(20)).map(|_| dice.range()).collect::<RangeSet>();
        let (one, other) = (random(), random());
        let (a, b) = (bitmap(&one), bitmap(&other));
        let bits = |join: fn(bool, bool) -> bool| -> Vec<bool> {
            a.iter().zip(&b).map(|(a, b)| join(*a, *b)).collect()
        };
        let mut both = one.clone();
        both.union(&other);
        check(&both, &bits(|a, b| a || b));
        check(&one.intersection(&other), &bits(|a, b| a && b));
        check(&one.difference(&other), &bits(|a, b| a && !b));
        let mut strict = one.clone();
        assert_eq!(strict.try_union(&other).is_ok(), one.intersection(&other).is_empty());
        assert_eq!(both.try_subtract(&other), Ok(()));
        check(&both, &bits(|a, b| a && !b));
    }
}

#[test]
fn empty_ranges_and_neighbours() {
    let mut set = RangeSet::from(10..20);
    assert_eq!(set.try_add(5..5), Err(RangeError::Empty { range: 5..5 }));
    assert!(set.add(12..12) && set.remove(3..3));
    assert_eq!(set.overlap(&(12..12)), None);
    assert_eq!(set.within(&(30..30)).count(), 0);
    set.try_add(20..30).unwrap();
    set.try_add(5..10).unwrap();
    assert_eq!((set.len(), set.first()), (1, Some(5..30)));
    assert_eq!(set.ending_at(30), Some(5..30));
    assert_eq!(set.starting_at(5), Some(5..30));
    assert_eq!((set.ending_at(29), set.starting_at(6)), (None, None));
    set.try_remove(8..10).unwrap();
    assert_eq!(set.try_add(7..9).unwrap_err().to_string(), "[0x7, 0x9) overlaps [0x5, 0x8)");
    assert_eq!(
        set.try_remove(7..11).unwrap_err().to_string(),
        "[0x7, 0xb) is not entirely in the set"
    );
    assert_eq!((set.first(), set.last()), (Some(5..8), Some(10..30)));
}
