use super::*;
use crate::zap::hash::high_bits;
use crate::zap::{Cursor, Entry, Key, NormFlags, ZapFlags, ZapHash};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Checks every invariant of the editor, from the bytes alone.
fn check(block: &[u8], words: bool) -> BTreeMap<Key, Value> {
    let leaf = Leaf::decode(block, words).unwrap();
    let header = *leaf.header();
    let entries = leaf.entries().unwrap();
    assert_eq!(entries.len(), usize::from(header.entry_count));
    let used: usize = entries
        .iter()
        .map(|e| entry_cost(KeyRef::from(&e.key).stored_len(), e.value.stored().len()))
        .sum();
    assert_eq!(used + usize::from(header.free_count), usize::from(leaf.chunk_count()));
    let (mut at, mut free) = (header.free_list, 0);
    while at != CHAIN_END {
        let chunk = leaf.chunk(at, CHUNK_FREE).unwrap();
        assert_eq!(chunk[1..22], [0; 21]);
        at = link_of(chunk);
        free += 1;
    }
    assert_eq!(free, header.free_count);
    let slots = block.len() / 32;
    for slot in 0..slots {
        let chain: Vec<LeafEntry> = leaf.chain(slot).map(Result::unwrap).collect();
        assert!(chain.is_sorted_by_key(|entry| entry.cd));
        assert!(chain.iter().all(|entry| leaf.slot_of(entry.hash) == slot));
    }
    assert!(entries.is_sorted_by(|a, b| a.cursor() < b.cursor()), "cds differ");
    assert!(entries.iter().all(|entry| leaf.owns(entry.hash)));
    entries.into_iter().map(|Entry { key, value, .. }| (key, value)).collect()
}

#[test]
fn an_empty_leaf_equals_openzfs() {
    for shift in [9, 14, 15] {
        let block = format(shift, 2, 3, true);
        assert_eq!(block.len(), 1 << shift);
        assert!(check(&block, false).is_empty());
        let leaf = Leaf::decode(&block, false).unwrap();
        assert_eq!((leaf.header().prefix, leaf.header().prefix_len), (2, 3));
        assert_eq!((leaf.header().free_list, leaf.header().flags), (0, 1));
        assert_eq!(usize::from(leaf.header().free_count), chunk_count(shift));
    }
}

/// The leaf of spec 03 §17 is reproduced byte by byte.
#[test]
fn a_real_entry() {
    let mut block = format(14, 0, 0, false);
    let numbers = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19_u16];
    let bytes = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
    let value = Value::Array { integer_size: 2, bytes };
    let mut leaf = LeafMut::open(&mut block, false).unwrap();
    let hash = 0x9b7d_62f0_0000_0000;
    assert_eq!(leaf.insert(hash, None, &KeyRef::from("2"), &value), Ok(Some(0)));
    assert_eq!(block[48 + 620..48 + 622], [0, 0]);
    assert_eq!(
        block[1072..1072 + 24],
        [
            0xfc, 2, 0xff, 0xff, 1, 0, 2, 0, 2, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x62, 0x7d,
            0x9b
        ]
    );
    assert_eq!(block[1072 + 24..][..3], [0xfb, 0x32, 0]);
    assert_eq!(
        block[1072 + 48..][..24],
        [0xfb, 0, 5, 0, 6, 0, 4, 0, 12, 0, 13, 0, 7, 0, 11, 0, 0, 0, 1, 0, 2, 0, 3, 0]
    );
    assert_eq!(block[1072 + 72..][..10], [0xfb, 3, 0, 8, 0, 0x15, 0, 0x10, 0, 0x13]);
    assert_eq!(block[1072 + 94..1072 + 96], [0xff, 0xff]);
    check(&block, false);
}

#[test]
fn names_of_one_hash_get_the_lowest_free_cd() {
    let mut block = format(14, 0, 0, true);
    let mut leaf = LeafMut::open(&mut block, false).unwrap();
    for (cd, name) in ["x", "X", "xx"].into_iter().enumerate() {
        let got = leaf.insert(7 << 40, None, &KeyRef::from(name), &Value::U64(1)).unwrap();
        assert_eq!(got, Some(cd as u32));
    }
    let entry = leaf.view().unwrap().find(7 << 40, &KeyRef::from("X")).unwrap().unwrap();
    leaf.remove(&entry).unwrap();
    let got = leaf.insert(7 << 40, None, &KeyRef::from("Y"), &Value::U64(1)).unwrap();
    assert_eq!(got, Some(1));
    let chain: Vec<u32> =
        leaf.view().unwrap().with_hash(7 << 40).map(|entry| entry.unwrap().cd).collect();
    assert_eq!(chain, [0, 1, 2]);
    check(&block, false);
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::U64),
        (proptest::sample::select(vec![1_u8, 2, 4, 8]), 0_usize..20, any::<u8>()).prop_map(
            |(size, count, byte)| {
                let value = Value::Array {
                    integer_size: size,
                    bytes: vec![byte; usize::from(size) * count],
                };
                if size == 8 && count == 1 {
                    Value::U64(u64::from_be_bytes([byte; 8]))
                } else {
                    value
                }
            }
        ),
    ]
}

fn key(words: bool) -> impl Strategy<Value = Key> {
    if words {
        proptest::collection::vec(0_u64..4, 1..5).prop_map(Key::Words).boxed()
    } else {
        "[a-c]{1,3}|[a-z]{40,60}".prop_map(|name| Key::Name(name.into_bytes())).boxed()
    }
}

fn run(words: bool, shift: u32, ops: &[(Key, Option<Value>)]) {
    let flags = if words { ZapFlags::UINT64_KEY | ZapFlags::HASH64 } else { ZapFlags::empty() };
    let hashing = ZapHash { salt: 3, normflags: NormFlags::empty(), flags };
    let mut model = BTreeMap::new();
    let mut block = format(shift, 0, 0, false);
    for (key, value) in ops {
        let name = KeyRef::from(key);
        // Few different hashes, so that chains get long and names collide.
        let hash = hashing.key(&name) & 0xe001 << 48;
        let mut leaf = LeafMut::open(&mut block, words).unwrap();
        let found = leaf.view().unwrap().find(hash, &name).unwrap();
        assert_eq!(found.is_some(), model.contains_key(key));
        match (found, value) {
            (None, None) => {}
            (Some(entry), None) => {
                leaf.remove(&entry).unwrap();
                model.remove(key);
            }
            (Some(entry), Some(value)) => {
                if leaf.update(&entry, value).unwrap() {
                    model.insert(key.clone(), value.clone());
                }
            }
            (None, Some(value)) => {
                if leaf.insert(hash, None, &name, value).unwrap().is_some() {
                    model.insert(key.clone(), value.clone());
                }
            }
        }
        assert_eq!(check(&block, words), model);
    }
    let before = block.clone();
    let sibling = LeafMut::open(&mut block, words).unwrap().split().unwrap();
    let mut both = check(&block, words);
    let moved = check(&sibling, words);
    let in_order = |block: &[u8]| Leaf::decode(block, words).unwrap().entries().unwrap();
    let order: Vec<Cursor> =
        in_order(&block).iter().chain(&in_order(&sibling)).map(Entry::cursor).collect();
    let want: Vec<Cursor> = in_order(&before).iter().map(Entry::cursor).collect();
    assert_eq!(order, want, "cds are kept");
    assert!(in_order(&sibling).iter().all(|entry| high_bits(entry.hash, 1) == 1));
    both.extend(moved);
    assert_eq!(both, model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn leaf_equals_a_map(
        small: bool,
        (words, ops) in any::<bool>().prop_flat_map(|words| {
            let op = (key(words), proptest::option::weighted(0.7, value()));
            (Just(words), proptest::collection::vec(op, 0..120))
        }),
    ) {
        run(words, if small { 10 } else { 12 }, &ops);
    }

    #[test]
    fn damage_never_panics(
        seed in proptest::collection::vec(any::<u8>(), 64),
        damage in proptest::collection::vec((0_usize..1024, any::<u8>()), 1..20),
        words: bool,
    ) {
        let mut block = format(10, 0, 0, false);
        for (index, byte) in seed.iter().enumerate().take(12) {
            let mut leaf = LeafMut::open(&mut block, words).unwrap();
            let name = [*byte; 3];
            let number = [index as u64];
            let key = if words { KeyRef::Words(&number) } else { KeyRef::Name(&name) };
            let _ = leaf.insert(u64::from(*byte) << 56, None, &key, &Value::U64(1));
        }
        for (at, byte) in damage {
            block[at] = byte;
        }
        for byte in seed {
            let Ok(mut leaf) = LeafMut::open(&mut block, words) else { break };
            let hash = u64::from(byte) << 56;
            let name = [byte; 3];
            let found = leaf.view().unwrap().with_hash(hash).next();
            match (byte % 4, found) {
                (0, Some(Ok(entry))) => { let _ = leaf.remove(&entry); }
                (1, Some(Ok(entry))) => { let _ = leaf.update(&entry, &Value::bytes_of(&[1; 50])); }
                (2, _) => { let _ = leaf.split(); }
                _ => { let _ = leaf.insert(hash, None, &KeyRef::Name(&name), &Value::U64(2)); }
            }
        }
    }
}
