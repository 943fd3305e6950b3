use proptest::prelude::*;

use super::*;

const ALL: [Compression; 6] = [
    Compression::Off,
    Compression::Lzjb,
    Compression::Gzip(6),
    Compression::Zle,
    Compression::Lz4,
    Compression::Zstd,
];

/// Bytes like those in files: words of a small vocabulary, runs, noise.
pub(crate) fn any_text() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (0usize..20).prop_map(|word| format!("word number {word}, ").into_bytes()),
        (1usize..300).prop_map(|len| vec![0; len]),
        (any::<u8>(), 1usize..90).prop_map(|(byte, len)| vec![byte; len]),
        proptest::collection::vec(any::<u8>(), 1..40),
    ];
    proptest::collection::vec(piece, 0..200).prop_map(|pieces| pieces.concat())
}

fn round_trip(compression: Compression, level: ZstdLevel, data: &[u8]) -> Vec<u8> {
    let mut stored = vec![0xee; data.len() + data.len() / 8 + 512];
    let len = compress(compression, level, data, &mut stored).expect("room enough");
    // The bytes behind the result are padding, as on disk.
    stored[len..].fill(0);
    let mut back = vec![0x77; data.len()];
    assert_eq!(decompress(compression, &stored, &mut back), Ok(()), "{compression:?} {level:?}");
    assert!(back == data, "{compression:?} {level:?}");
    stored.truncate(len);
    stored
}

proptest! {
    #[test]
    fn compressed_blocks_round_trip(data in any_text()) {
        for compression in ALL {
            round_trip(compression, ZstdLevel::default(), &data);
        }
    }

    #[test]
    fn decoders_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        expected in 0usize..5000,
    ) {
        for compression in ALL {
            let _ = decompress(compression, &bytes, &mut vec![0; expected]);
        }
        // Input with a valid header.
        let mut framed = (bytes.len() as u32).to_be_bytes().to_vec();
        framed.extend(&bytes);
        let _ = lz4::decompress(&framed, &mut vec![0; expected]);
        framed.splice(4..4, [3, 0, 0x28, 0xa5]);
        let _ = zstd::decompress(&framed, &mut vec![0; expected]);
    }

    /// A library's decoder accepts our LZ4 blocks.
    #[test]
    fn lz4_is_decoded_by_a_library(
        data in any_text(),
        damage in any::<Option<(prop::sample::Index, u8)>>(),
        room in 0usize..2000,
    ) {
        let mut stored = vec![0; data.len() + data.len() / 8 + 512];
        let len = lz4::compress(&data, &mut stored).expect("room enough");
        stored.truncate(len);
        if let Some((at, change)) = damage {
            let at = 4 + at.index(len - 4);
            stored[at] ^= change;
        }
        for len in [data.len(), room] {
            let (mut ours, mut theirs) = (vec![0; len], vec![0; len]);
            let said = lz4::decompress(&stored, &mut ours);
            let wanted = lz4_flex::block::decompress_into(&stored[4..], &mut theirs);
            prop_assert_eq!(said.is_ok(), matches!(wanted, Ok(made) if made == len), "{:?} {:?}", said, wanted);
            if said.is_ok() {
                prop_assert_eq!(ours, theirs);
            }
        }
    }

    #[test]
    fn damage_is_an_error_or_other_bytes(
        data in any_text(),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
        cut in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!data.is_empty());
        for compression in ALL {
            let mut stored = round_trip(compression, ZstdLevel::default(), &data);
            let mut out = vec![0; data.len()];
            let cut = cut.index(stored.len());
            let refused = decompress(compression, &stored[..cut], &mut out);
            prop_assert!(refused.is_err() || out == data, "{:?} cut to {}", compression, cut);
            let at = at.index(stored.len());
            stored[at] ^= change;
            let _ = decompress(compression, &stored, &mut out);
        }
    }

    #[test]
    fn wrong_sizes_are_refused(data in any_text(), change in 1usize..100) {
        prop_assume!(data.len() > change);
        for compression in ALL {
            let stored = round_trip(compression, ZstdLevel::default(), &data);
            let longer = decompress(compression, &stored, &mut vec![0; data.len() + change]);
            prop_assert!(longer.is_err(), "{:?} gave more", compression);
            let shorter = decompress(compression, &stored, &mut vec![0; data.len() - change]);
            if let Compression::Gzip(_) | Compression::Lz4 | Compression::Zstd = compression {
                prop_assert!(shorter.is_err(), "{:?} gave less", compression);
            }
        }
    }

    #[test]
    fn encoders_give_up_instead_of_overflowing(
        data in any_text(),
        room in any::<prop::sample::Index>(),
    ) {
        for compression in ALL {
            let full = round_trip(compression, ZstdLevel::default(), &data);
            let mut small = vec![0; room.index(full.len() + 1)];
            if let Some(len) = compress(compression, ZstdLevel::default(), &data, &mut small) {
                prop_assert!(len <= small.len());
            }
        }
    }
}

#[test]
fn every_level_round_trips() {
    let data: Vec<u8> = (0..40_000u32).flat_map(|i| (i / 7 % 251).to_le_bytes()).collect();
    for id in 0..=u8::MAX {
        if let Some(level) = ZstdLevel::from_id(id) {
            let stored = round_trip(Compression::Zstd, level, &data);
            assert_eq!(stored[4], id);
        }
    }
    for level in 1..=9 {
        round_trip(Compression::Gzip(level), ZstdLevel::default(), &data);
    }
}

#[test]
fn numbers_round_trip() {
    for id in 0..=u8::MAX {
        if let Some(compression) = Compression::from_id(id) {
            assert_eq!(compression.id(), id);
        } else {
            assert!(matches!(id, 0 | 1 | 4 | 17..), "{id}");
        }
    }
    let fast = [(103, -1), (112, -10), (113, -20), (121, -100), (122, -500), (123, -1000)];
    for (id, level) in fast {
        assert_eq!(ZstdLevel::from_id(id).map(ZstdLevel::level), Some(level));
    }
}

#[test]
fn both_layouts_of_the_zstd_level_are_read() {
    let data = [5; 1000];
    let mut stored = round_trip(Compression::Zstd, ZstdLevel::default(), &data);
    let mut back = [0; 1000];
    for word in [0x7a0028a5u32, 0x0028a503] {
        stored[4..8].copy_from_slice(&word.to_be_bytes());
        assert_eq!(zstd::decompress(&stored, &mut back), Ok(()), "{word:#x}");
        assert_eq!(back, data);
    }
    for word in [0x140028a5u32, 0x000028a5, 0x0028a500, 0x03ff28a5, 0] {
        stored[4..8].copy_from_slice(&word.to_be_bytes());
        assert_eq!(zstd::decompress(&stored, &mut back), Err(DecompressError::ZstdLevel { word }));
    }
}

#[test]
fn small_streams_by_hand() {
    let mut out = [0; 8];
    // Literals a b c, then three bytes from three back, then two more.
    let stream = [0b0001_1000, b'a', b'b', b'c', 0, 3, 0, 1];
    assert_eq!(lzjb::decompress(&stream, &mut out), Ok(()));
    assert_eq!(&out, b"abcabccc");
    let refused = lzjb::decompress(&[1, 0, 1], &mut out);
    assert_eq!(refused, Err(DecompressError::Distance { distance: 1, at: 0 }));
    let refused = lzjb::decompress(&[0, 1, 2], &mut out);
    assert_eq!(refused, Err(DecompressError::Truncated { produced: 2, expected: 8 }));

    assert_eq!(zle::decompress(&[1, 7, 8, 69], &mut out), Ok(()));
    assert_eq!(out, [7, 8, 0, 0, 0, 0, 0, 0]);
    let refused = zle::decompress(&[64 + 8], &mut out);
    assert_eq!(refused, Err(DecompressError::Long { expected: 8 }));

    let mut lz4_out = [0; 5];
    assert_eq!(lz4::decompress(&[0, 0, 0, 6, 0x50, 1, 2, 3, 4, 5, 9], &mut lz4_out), Ok(()));
    assert_eq!(lz4_out, [1, 2, 3, 4, 5]);
    let refused = lz4::decompress(&[0, 0, 0, 9, 0x50], &mut lz4_out);
    assert_eq!(refused, Err(DecompressError::Length { length: 9, available: 1 }));
}
