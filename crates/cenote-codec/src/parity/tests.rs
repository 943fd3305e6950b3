use proptest::prelude::*;

use super::*;

/// Parity straight from the definition, spec 06 §4.4.
fn by_definition(k: usize, data: &[Vec<u8>]) -> Vec<u8> {
    let longest = data.iter().map(Vec::len).max().unwrap_or(0);
    let sum = |at: usize| {
        data.iter().enumerate().fold(0, |sum, (j, column)| {
            let byte = column.get(at).copied().unwrap_or(0);
            sum ^ gf::mul(gf::exp2(k * (data.len() - 1 - j)), byte)
        })
    };
    (0..longest).map(sum).collect()
}

fn slices(data: &[Vec<u8>]) -> Vec<&[u8]> {
    data.iter().map(Vec::as_slice).collect()
}

fn generated(count: usize, data: &[Vec<u8>], scalar: bool) -> Vec<Vec<u8>> {
    let longest = data.iter().map(Vec::len).max().unwrap_or(0);
    let mut parity = vec![vec![0xa5; longest]; count];
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    if scalar {
        generate_scalar(&mut out, &slices(data));
    } else {
        generate(&mut out, &slices(data));
    }
    parity
}

#[test]
fn vectors_of_the_spec() {
    let parity = generated(3, &[vec![1], vec![2], vec![3]], false);
    assert_eq!(parity, [[0x00], [0x03], [0x1b]]);
    let parity = generated(3, &[vec![7; 512]], false);
    assert_eq!(parity, vec![vec![7; 512]; 3], "one data column is its own parity");
}

/// Columns of a row as RAID-Z lays it out: leading ones a sector longer, or wilder.
fn any_row() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let lengths = prop_oneof![
        (1usize..20, 0usize..12, 0usize..20).prop_map(|(n, sectors, big)| {
            (0..n).map(|j| 512 * (sectors + usize::from(j < big))).collect::<Vec<_>>()
        }),
        proptest::collection::vec(0usize..9000, 1..8),
    ];
    (lengths, any::<u64>()).prop_map(|(lengths, seed)| {
        let mut state = seed | 1;
        let mut byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        lengths.into_iter().map(|len| (0..len).map(|_| byte()).collect()).collect()
    })
}

proptest! {
    #[test]
    fn generation_follows_the_definition(data in any_row(), count in 1usize..=3) {
        let parity = generated(count, &data, false);
        prop_assert_eq!(&parity, &generated(count, &data, true));
        for (k, column) in parity.iter().enumerate() {
            prop_assert_eq!(column, &by_definition(k, &data), "parity {}", k);
        }
        let some: Vec<_> = parity.iter().map(|column| Some(column.as_slice())).collect();
        prop_assert_eq!(mismatch(&some, &slices(&data)), [false; 3]);
    }

    #[test]
    fn a_changed_byte_is_a_mismatch(data in any_row(), which in 0usize..3, at in any::<prop::sample::Index>()) {
        let mut parity = generated(3, &data, false);
        prop_assume!(!parity[which].is_empty());
        let at = at.index(parity[which].len());
        parity[which][at] ^= 0x10;
        let some: Vec<_> = parity.iter().map(|column| Some(column.as_slice())).collect();
        prop_assert_eq!(mismatch(&some, &slices(&data)), std::array::from_fn(|k| k == which));
    }

    #[test]
    fn any_three_columns_come_back(
        data in any_row(),
        count in 1usize..=3,
        dead in proptest::collection::vec(any::<prop::sample::Index>(), 0..=3),
        scalar: bool,
    ) {
        let parity = generated(count, &data, scalar);
        let dead: std::collections::BTreeSet<_> =
            dead.iter().take(count).map(|index| index.index(count + data.len())).collect();
        let survivors: Vec<_> =
            (0..count).map(|k| (!dead.contains(&k)).then_some(parity[k].as_slice())).collect();
        let mut holes: Vec<Vec<u8>> = data.iter().map(|column| vec![0x5a; column.len()]).collect();
        let mut columns: Vec<Column<'_>> = Vec::new();
        for (j, (column, hole)) in data.iter().zip(&mut holes).enumerate() {
            columns.push(if dead.contains(&(count + j)) {
                Column::Missing(hole)
            } else {
                Column::Present(column)
            });
        }
        let result = if scalar {
            reconstruct_scalar(&survivors, &mut columns)
        } else {
            reconstruct(&survivors, &mut columns)
        };
        prop_assert_eq!(result, Ok(()));
        for (column, expected) in columns.iter().zip(&data) {
            prop_assert_eq!(column.bytes(), expected.as_slice());
        }
    }
}

#[test]
fn refusals_name_their_cause() {
    let data = [vec![1; 1024], vec![2; 512]];
    let parity = generated(1, &data, false);
    let (mut a, mut b) = (vec![0; 1024], vec![0; 512]);

    let mut both = [Column::Missing(&mut a), Column::Missing(&mut b)];
    let refused = reconstruct(&[Some(&parity[0])], &mut both);
    assert_eq!(refused, Err(ReconstructError::TooManyMissing { missing: 2, available: 1 }));

    let mut one = [Column::Present(&data[0]), Column::Missing(&mut b)];
    let refused = reconstruct(&[Some(&parity[0][..512])], &mut one);
    let length = ReconstructError::ParityLength { parity: 0, len: 512, expected: 1024 };
    assert_eq!(refused, Err(length));

    let mut lying = data[0].clone();
    lying[700] ^= 1;
    let mut one = [Column::Present(&lying), Column::Missing(&mut b)];
    let refused = reconstruct(&[Some(&parity[0])], &mut one);
    assert_eq!(refused, Err(ReconstructError::Tail { column: 1 }));

    let mut wide: Vec<_> = (0..256).map(|_| Column::Present(&data[1])).collect();
    wide[0] = Column::Missing(&mut b);
    let refused = reconstruct(&[Some(&parity[0])], &mut wide);
    assert_eq!(refused, Err(ReconstructError::Width { data: 256, parity: 1 }));
}
