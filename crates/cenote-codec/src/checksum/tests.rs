use proptest::prelude::*;

use super::embedded::{ByteOrder, Embedded, EmbeddedError, seal, verify};
use super::*;

/// Spec 02 §3.3: 512 bytes counting up, salt 00..1f.
#[test]
fn vectors_of_the_spec() {
    use ChecksumAlgorithm::*;
    let data: Vec<u8> = (0..512usize).map(|i| i as u8).collect();
    let salt = Salt::new(&std::array::from_fn(|i| i as u8));
    let expected = [
        (
            Fletcher2,
            [0xefcfaf8f6f4f2f00, 0xf0d0b09070503000, 0x4a38261401efdd00, 0xdac8b6a492806d80],
        ),
        (
            Fletcher4,
            [0x00000040c03fbf00, 0x00000da342e27500, 0x000214fa7f828a80, 0x003d9765c9f3c980],
        ),
        (Sha256, [0x110009dcee21620b, 0x166f3abfecb5eff7, 0xa873be729d1c2d53, 0x822e7acc5f34eb9b]),
        (Sha512, [0x6cf5b1411d91141d, 0x0ea8ddb86fa627f0, 0x991896779c0da9d7, 0x3bdc08f7e9f3faed]),
        (Skein, [0xdf06b17bad515284, 0xc1074e6c80f80357, 0x0564949cf231e28f, 0x3b30efa65148a406]),
        (EdonR, [0x86f009c293823406, 0x1787f335116ef352, 0x616de2d3955eb1e1, 0x0f0e3039494fa11f]),
        (Blake3, [0x68e5f03a15d32d73, 0x2e2d8e52a9e2d91f, 0xb6eb0668176e2d68, 0x95bf9be2259b6c22]),
        (Off, [0; 4]),
        (NoParity, [0; 4]),
    ];
    for (algorithm, words) in expected {
        assert_eq!(compute(algorithm, &data, false, Some(&salt)), Ok(words), "{algorithm:?}");
        let without = compute(algorithm, &data, false, None);
        if algorithm.is_salted() {
            assert_eq!(without, Err(SaltMissing { algorithm }));
        } else {
            assert_eq!(without, Ok(words));
        }
        let swapped = compute(algorithm, &data, true, Some(&salt)).expect("salt is there");
        match algorithm {
            Off | NoParity | Sha256 => assert_eq!(swapped, words),
            Fletcher2 | Fletcher4 => assert_ne!(swapped, words),
            _ => assert_eq!(swapped, words.map(u64::swap_bytes), "{algorithm:?}"),
        }
    }
}

#[test]
fn numbers_round_trip() {
    for id in 0..=u8::MAX {
        let found = ChecksumAlgorithm::from_id(id);
        assert_eq!(found.map(ChecksumAlgorithm::id), (2..=14).contains(&id).then_some(id));
    }
}

#[test]
fn folding_mixes_or_truncates() {
    let words = [1, 2, 4, 8];
    for id in 2..=14 {
        let algorithm = ChecksumAlgorithm::from_id(id).expect("a function");
        let truncated = matches!(id, 8 | 11 | 12 | 14);
        assert_eq!(algorithm.fold(words), if truncated { [1, 2] } else { [5, 10] });
        let stored = if truncated { [1, 2, 77, 78] } else { [5, 10, 77, 78] };
        assert!(algorithm.matches(words, stored, true));
        assert!(!algorithm.matches(words, stored, false));
    }
}

fn any_kind() -> impl Strategy<Value = Embedded> {
    prop_oneof![
        any::<u64>().prop_map(|offset| Embedded::Label { offset }),
        any::<[u64; 3]>()
            .prop_map(|[vdev, offset, birth]| { Embedded::GangHeader { vdev, offset, birth } }),
        any::<[u64; 4]>().prop_map(|pointer| Embedded::Zilog { pointer }),
        any::<[u64; 4]>().prop_map(|pointer| Embedded::Zilog2 { pointer }),
    ]
}

/// All four words of the sum over a block.
fn sum(kind: Embedded, block: &[u8]) -> [u64; 4] {
    let mut block = block.to_vec();
    seal(kind, &mut block, false).expect("room for a trailer");
    let at = if matches!(kind, Embedded::Zilog2 { .. }) { 152 } else { block.len() - 32 };
    let word = |i: usize| block[at + 8 * i..][..8].try_into().expect("eight bytes");
    std::array::from_fn(|i| u64::from_le_bytes(word(i)))
}

proptest! {
    #[test]
    fn sealed_blocks_verify_where_they_belong_only(
        kind in any_kind(),
        elsewhere in any_kind(),
        filler: u8,
        used in 184u64..8192,
        folded: bool,
        at in 0usize..4096,
    ) {
        let mut block = vec![filler; 8192];
        block[136..144].copy_from_slice(&used.to_le_bytes());
        seal(kind, &mut block, folded).expect("room for a trailer");
        prop_assert_eq!(verify(kind, &block, folded), Ok(ByteOrder::Little));
        if kind != elsewhere {
            prop_assert!(verify(elsewhere, &block, folded).is_err());
        }
        let before = block.clone();
        block[at] ^= 1;
        let is_log = matches!(kind, Embedded::Zilog2 { .. });
        let is_mac = is_log && folded && (168..184).contains(&at);
        let is_header = is_log && (136..184).contains(&at);
        // Folding misses only changes that leave its two words equal.
        let is_missed = folded && !is_header && {
            let [before, after] = [&before, &block].map(|block| kind.algorithm().fold(sum(kind, block)));
            before == after
        };
        prop_assert_eq!(verify(kind, &block, folded).is_ok(), is_mac || is_missed, "byte {}", at);
    }

    #[test]
    fn verify_never_panics(
        kind in any_kind(),
        mut block in proptest::collection::vec(any::<u8>(), 0..5000),
        magic: bool,
        swapped: bool,
    ) {
        let word = if swapped { embedded::MAGIC.to_be_bytes() } else { embedded::MAGIC.to_le_bytes() };
        let start = if matches!(kind, Embedded::Zilog2 { .. }) { 144 } else { block.len().saturating_sub(40) };
        if let Some(place) = block.get_mut(start..start + 8).filter(|_| magic) {
            place.copy_from_slice(&word);
        }
        prop_assert!(verify(kind, &block, false).is_err());
        let _ = seal(kind, &mut block, false);
    }
}

#[test]
fn the_magic_reveals_the_byte_order() {
    // fletcher4 over words: swapping every 32-bit word of a sealed little-endian block is not the
    // big-endian block, so build that one by its rule.
    let pointer = [1u64, 2, 3, 4];
    let mut block = vec![0; 4096];
    block[136..144].copy_from_slice(&192u64.to_be_bytes());
    block[144..152].copy_from_slice(&embedded::MAGIC.to_be_bytes());
    for (i, word) in pointer.iter().enumerate() {
        block[152 + 8 * i..160 + 8 * i].copy_from_slice(&word.to_be_bytes());
    }
    block[184..192].copy_from_slice(&[9; 8]);
    let sums = crate::fletcher::fletcher4_scalar(&block, true);
    for (i, word) in sums.iter().enumerate() {
        block[152 + 8 * i..160 + 8 * i].copy_from_slice(&word.to_be_bytes());
    }
    assert_eq!(verify(Embedded::Zilog2 { pointer }, &block, false), Ok(ByteOrder::Big));
    block[136] = 1;
    let refused = verify(Embedded::Zilog2 { pointer }, &block, false);
    assert_eq!(refused, Err(EmbeddedError::Used { used: 1 << 56 | 0xc0, len: 4096 }));
}

/// Spec 02 §6.1: a gang header from a real pool, with its three copies' pointers.
#[test]
fn gang_header_of_the_spec() {
    let words: [[u64; 16]; 2] = [
        [
            1,
            0x13992,
            1,
            0x4856,
            1,
            0x210d2 + 1,
            0x8000070200000000,
            0,
            0,
            0,
            0xb1,
            0,
            0x13f3b69806,
            0x5b1cc4f157e,
            0x10122c70e76ca,
            0x21a357fba81109,
        ],
        [
            1,
            0x13993,
            1,
            0x4857,
            1,
            0x210d4,
            0x8000070200000000,
            0,
            0,
            0,
            0xb1,
            0,
            0x1e0a7e1260,
            0x70b62f619ae,
            0x1266fbd4f1fb9,
            0x24f2ffec355e71,
        ],
    ];
    let mut block: Vec<u8> =
        words.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
    block.resize(512, 0);
    let kind = Embedded::GangHeader { vdev: 0, offset: 0x1398f * 512, birth: 0xb1 };
    seal(kind, &mut block, false).expect("room for a trailer");
    let stored: Vec<u64> =
        block[472..512].as_chunks::<8>().0.iter().map(|&bytes| u64::from_be_bytes(bytes)).collect();
    assert_eq!(
        stored,
        [
            0x117a0cb17ada1002,
            0x1edd3de21e90c642,
            0xccd9d910838ec9cb,
            0x4d5ad6fc1b01f261,
            0x6e17f2ef276e7e9b
        ]
    );
}
