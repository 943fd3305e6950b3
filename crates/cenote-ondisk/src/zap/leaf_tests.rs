use super::*;
use proptest::prelude::*;

fn empty(block_shift: u32) -> Vec<u8> {
    let mut block = vec![0xff; 1 << block_shift];
    block[..HEADER_LEN].fill(0);
    block[7] = 0x80;
    block[24..28].copy_from_slice(&LEAF_MAGIC.to_le_bytes());
    block[34..36].copy_from_slice(&CHAIN_END.to_le_bytes());
    block
}

fn put(block: &mut [u8], block_shift: u32, chunk: usize, bytes: &[u8]) {
    let at = HEADER_LEN + (2 << (block_shift - 5)) + chunk * CHUNK_LEN;
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The leaf of spec 03 §17: layout "2" of a SA layouts ZAP.
fn real() -> Vec<u8> {
    let mut block = empty(14);
    block[28..37].copy_from_slice(&[0x76, 2, 2, 0, 0, 0, 8, 0, 0]);
    block[HEADER_LEN + 620..HEADER_LEN + 622].copy_from_slice(&[0, 0]);
    put(
        &mut block,
        14,
        0,
        &[
            0xfc, 2, 0xff, 0xff, 1, 0, 2, 0, 2, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x62, 0x7d,
            0x9b,
        ],
    );
    let mut key = [0; CHUNK_LEN];
    key[..2].copy_from_slice(&[0xfb, 0x32]);
    key[22..].fill(0xff);
    put(&mut block, 14, 1, &key);
    put(
        &mut block,
        14,
        2,
        &[0xfb, 0, 5, 0, 6, 0, 4, 0, 12, 0, 13, 0, 7, 0, 11, 0, 0, 0, 1, 0, 2, 0, 3, 0],
    );
    let mut tail = [0; CHUNK_LEN];
    tail[..10].copy_from_slice(&[0xfb, 3, 0, 8, 0, 0x15, 0, 0x10, 0, 0x13]);
    tail[22..].fill(0xff);
    put(&mut block, 14, 3, &tail);
    block
}

const HASH: u64 = 0x9b7d_62f0_0000_0000;

#[test]
fn a_real_leaf() {
    let block = real();
    let leaf = Leaf::decode(&block, false).unwrap();
    assert_eq!((leaf.header().free_count, leaf.header().entry_count), (630, 2));
    assert_eq!(leaf.slot_of(HASH), 310);
    let entry = leaf.get(HASH, b"2").unwrap().unwrap();
    assert_eq!(entry.value.words(), [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19]);
    assert_eq!(leaf.get(HASH, b"3"), Ok(None));
    assert_eq!(leaf.get(HASH ^ 1 << 40, b"2"), Ok(None));
    assert_eq!(leaf.entries().unwrap(), [entry]);
}

#[test]
fn geometry_by_block_size() {
    for (shift, chunks) in [(13, 318), (14, 638), (15, 1278)] {
        let block = empty(shift);
        assert_eq!(Leaf::decode(&block, false).unwrap().chunk_count(), chunks, "2^{shift}");
    }
    for len in [0, 48, 511, 1000, 1 << 25] {
        assert_eq!(
            Leaf::decode(&vec![0; len], false).map(|_| ()),
            Err(CorruptZap::BlockSize { len }),
        );
    }
}

/// Each row damages one byte of the real leaf.
#[test]
fn damage_is_an_error_with_its_cause() {
    let chunk0 = HEADER_LEN + 1024;
    let rows: &[(usize, u8, CorruptZap)] = &[
        (0, 1, CorruptZap::BlockType { found: BLOCK_LEAF | 1 }),
        (24, 0, CorruptZap::Magic { found: 0x02ab_1e00, expected: 0x02ab_1eaf }),
        (32, 49, CorruptZap::Prefix { prefix: 0, len: 49 }),
        (16, 1, CorruptZap::Prefix { prefix: 1, len: 0 }),
        (chunk0, 251, CorruptZap::ChunkType { chunk: 0, found: 251, expected: 252 }),
        (chunk0 + 1, 3, CorruptZap::IntegerSize { chunk: 0, size: 3 }),
        (chunk0 + 4, 0, CorruptZap::ChunkType { chunk: 0, found: 252, expected: 251 }),
        (chunk0 + 5, 9, CorruptZap::ChunkNumber { chunk: 0x901, count: 638 }),
        (chunk0 + 6, 0, CorruptZap::KeyEnd { chunk: 0, len: 0 }),
        (chunk0 + 6, 1, CorruptZap::KeyEnd { chunk: 0, len: 1 }),
        (chunk0 + 10, 30, CorruptZap::ArrayLength { len: 60, found: 42 }),
        (chunk0 + 11, 0xff, CorruptZap::Overlap { cost: 6221, count: 638 }),
    ];
    for (at, byte, want) in rows {
        let mut block = real();
        block[*at] = *byte;
        let got = Leaf::decode(&block, false).and_then(|leaf| leaf.entries());
        assert_eq!(got.unwrap_err(), *want, "byte {at}");
    }
}

#[test]
fn loops_end() {
    let chunk0 = HEADER_LEN + 1024;
    let mut block = real();
    block[chunk0 + 2..chunk0 + 4].fill(0);
    let leaf = Leaf::decode(&block, false).unwrap();
    assert_eq!(leaf.entries(), Err(CorruptZap::Loop { chunk: 0 }));
    assert!(leaf.get(HASH, b"3").is_err());
    // Every slot links to the same chain of one entry.
    let mut block = real();
    block[HEADER_LEN..HEADER_LEN + 1024].fill(0);
    let leaf = Leaf::decode(&block, false).unwrap();
    assert_eq!(leaf.entry_chunks().map(|entries| entries.len()), Ok(512));
    assert_eq!(leaf.entries(), Err(CorruptZap::Overlap { cost: 512 * 4, count: 638 }));
    // A value whose chunks form a cycle is read up to its length, and no further.
    let mut block = real();
    put(&mut block, 14, 3, &[0xfb]);
    block[chunk0 + 3 * 24 + 22..chunk0 + 3 * 24 + 24].copy_from_slice(&[2, 0]);
    block[chunk0 + 10] = 60;
    let entries = Leaf::decode(&block, false).unwrap().entries().unwrap();
    assert_eq!(entries[0].value.count(), 60);
}

#[test]
fn keys_of_words() {
    let mut block = real();
    let chunk0 = HEADER_LEN + 1024;
    block[chunk0 + 6] = 2;
    let leaf = Leaf::decode(&block, true).unwrap();
    assert!(matches!(leaf.entries(), Err(CorruptZap::ArrayLength { len: 16, .. }) | Ok(_)));
    let entry = leaf.entries().unwrap().remove(0);
    assert_eq!(entry.key, Key::Words(vec![0x3200_0000_0000_0000, 0]));
    assert!(leaf.get_words(HASH, &[0x3200_0000_0000_0000, 0]).unwrap().is_some());
}

proptest! {
    #[test]
    fn random_leaves_never_panic(
        seed in proptest::collection::vec(any::<u8>(), 256),
        at in 0_usize..4096,
        words: bool,
    ) {
        // A small leaf, so that random links hit chunks; most type bytes are made valid.
        let mut block = empty(9);
        for (i, byte) in block.iter_mut().enumerate().skip(HEADER_LEN) {
            *byte = seed[i % seed.len()] % 20;
        }
        for (chunk, byte) in seed.iter().enumerate().take(chunk_count(9)) {
            put(&mut block, 9, chunk, &[249 + byte % 5]);
        }
        let len = block.len();
        block[at % len] = seed[0];
        if let Ok(leaf) = Leaf::decode(&block, words) {
            let _ = leaf.entries();
            let _ = leaf.get(0, b"x");
        }
        let mut real = real();
        real[at % (HEADER_LEN + 1024 + 4 * CHUNK_LEN)] = seed[1];
        if let Ok(leaf) = Leaf::decode(&real, words) {
            let _ = leaf.entries();
        }
    }
}
