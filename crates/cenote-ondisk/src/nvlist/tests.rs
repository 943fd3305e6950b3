use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let (pairs, _) = digits.as_chunks::<2>();
    pairs
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

const LITTLE: Encoding = Encoding::Native(Endian::Little);
const BIG: Encoding = Encoding::Native(Endian::Big);

/// Test vector B of spec 01 §3.3: the label of a hot spare.
#[test]
fn spare_label() {
    let bytes = hex("01 01 00 00 00 00 00 00 00 00 00 01 00 00 00 24
        00 00 00 20 00 00 00 07 76 65 72 73 69 6f 6e 00
        00 00 00 08 00 00 00 01 00 00 00 00 00 00 13 88
        00 00 00 24 00 00 00 20 00 00 00 05 73 74 61 74
        65 00 00 00 00 00 00 08 00 00 00 01 00 00 00 00
        00 00 00 03 00 00 00 20 00 00 00 20 00 00 00 04
        67 75 69 64 00 00 00 08 00 00 00 01 01 23 45 67
        89 ab cd ef 00 00 00 28 00 00 00 28 00 00 00 04
        70 61 74 68 00 00 00 09 00 00 00 01 00 00 00 09
        2f 64 65 76 2f 73 64 7a 31 00 00 00 00 00 00 00
        00 00 00 00");
    let (list, used) = NvList::decode_prefix(&bytes).unwrap();
    assert_eq!(used, 164);
    assert_eq!(list.flags, UNIQUE_NAME);
    assert_eq!((list.u64("version"), list.u64("state")), (Some(5000), Some(3)));
    assert_eq!(list.u64("guid"), Some(0x0123456789abcdef));
    assert_eq!(list.str("path"), Some("/dev/sdz1"));
    assert_eq!(list.encode(Encoding::Xdr), bytes);
    for (offset, expected) in [
        (0, CorruptNvList::Encoding { encoding: 2 }),
        (7, CorruptNvList::Version { version: 2, at: 4 }),
        (0x13, CorruptNvList::PairSize { found: 2, expected: 32, at: 12 }),
        (0x23, CorruptNvList::Count { code: 2, count: 1, at: 12 }),
    ] {
        let mut bad = bytes.clone();
        bad[offset] = 2;
        if offset != 0x23 {
            assert_eq!(NvList::decode(&bad), Err(expected));
        }
    }
    for len in 0..bytes.len() {
        assert!(NvList::decode(&bytes[..len]).is_err(), "{len}");
    }
}

/// Test vector C of spec 01 §3.3: `{a: {x}, c: [{id: 0}, {id: 1}]}`.
#[test]
fn nested_lists() {
    let inner = NvList::from_iter([("x", NvValue::Boolean)]);
    let ids = [0_u64, 1].map(|id| NvList::from_iter([("id", id)])).to_vec();
    let list = NvList::from_iter([("a", NvValue::List(inner)), ("c", ids.into())]);
    let bytes = list.encode(Encoding::Xdr);
    assert_eq!(bytes.len(), 204);
    assert_eq!(bytes[12..20], hex("00000040 00000030"));
    let second = 12 + 0x40;
    assert_eq!(bytes[second..second + 8], hex("00000078 00000058"));
    assert_eq!(NvList::decode(&bytes), Ok(list.clone()));
    assert_eq!(list.list("a").unwrap().bool("x"), Some(true));
    assert_eq!(list.list_array("c").unwrap()[1].u64("id"), Some(1));
    for encoding in [LITTLE, BIG] {
        assert_eq!(NvList::decode(&list.encode(encoding)), Ok(list.clone()));
    }
}

/// A list with pairs of most types, packed by `libnvpair` of OpenZFS 2.3.2 in both encodings.
#[test]
fn native_bytes_of_openzfs() {
    let bytes = hex(include_str!("native.hex"));
    let (list, used) = NvList::decode_prefix(&bytes).unwrap();
    assert_eq!(used, bytes.len());
    assert_eq!(list.encode(LITTLE), bytes);
    let xdr = hex(include_str!("xdr.hex"));
    let ours = list.encode(Encoding::Xdr);
    assert_eq!(ours.len(), xdr.len());
    let mut without_sign = 0;
    for (ours, theirs) in ours.chunks(4).zip(xdr.chunks(4)) {
        // The library extends short numbers with their sign.
        match (ours, theirs) {
            ([0, 0, 0, low], [0xff, 0xff, 0xff, same]) if low == same => without_sign += 1,
            ([0, 0, ours @ ..], [0xff, 0xff, theirs @ ..]) if ours == theirs => without_sign += 1,
            _ => assert_eq!(ours, theirs),
        }
    }
    assert!(without_sign > 0);
    assert_eq!(NvList::decode(&ours).as_ref(), Ok(&list));
    assert_eq!(NvList::decode(&xdr), Ok(list));
}

/// The Linux kernel module reads a character or a short number only from a word that is not greater
/// than its type's maximum.
#[test]
fn short_numbers_have_no_sign_in_xdr() {
    let values: [(NvValue, u32); 7] = [
        (NvValue::Byte(0xbe), 0xbe),
        (NvValue::Uint8(0xbe), 0xbe),
        (NvValue::Int8(-2), 0xfe),
        (NvValue::Int16(-2), 0xfffe),
        (NvValue::Uint8Array(vec![0xbe]), 0xbe),
        (NvValue::Int8Array(vec![-2]), 0xfe),
        (NvValue::Int16Array(vec![-2]), 0xfffe),
    ];
    for (value, word) in values {
        let bytes = NvList::from_iter([("a", value.clone())]).encode(Encoding::Xdr);
        assert!(bytes.windows(4).any(|bytes| bytes == word.to_be_bytes()), "{value:?}");
        assert!(!bytes.windows(2).any(|bytes| bytes == [0xff, 0xff]), "{value:?}");
    }
}

#[test]
fn depth_is_bounded() {
    let mut list = NvList::new();
    for _ in 0..DEPTH_MAX {
        list = NvList::from_iter([("n", list)]);
    }
    for encoding in [Encoding::Xdr, LITTLE] {
        let bytes = list.encode(encoding);
        assert!(matches!(NvList::decode(&bytes), Err(CorruptNvList::Depth { .. })));
        let inner = list.list("n").unwrap();
        assert_eq!(NvList::decode(&inner.encode(encoding)).as_ref(), Ok(inner));
    }
}

#[test]
fn counts_are_checked_against_the_input() {
    for code in [10_u8, 11, 15, 16, 17, 20, 24] {
        let mut bytes = hex("01010000 00000000 00000001 00000018 00000028 00000001 61000000");
        bytes.extend([0, 0, 0, code, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert!(NvList::decode(&bytes).is_err());
    }
}

#[test]
fn getters_check_types() {
    let mut list = NvList::new();
    list.insert("u", 7_u64);
    list.insert("u", 8_u64);
    list.insert("s", "text");
    assert_eq!(list.len(), 2);
    assert_eq!((list.u64("u"), list.u64("s"), list.str("u")), (Some(8), None, None));
    assert!(list.contains("s") && !list.contains("t"));
    assert_eq!(NvString::from("a\0b"), "a");
}

fn text() -> impl Strategy<Value = NvString> {
    proptest::collection::vec(1..=255_u8, 1..12)
        .prop_map(|bytes| NvString::from_bytes(&bytes).unwrap())
}

fn value() -> impl Strategy<Value = NvValue> {
    fn some<T: std::fmt::Debug + Clone + Arbitrary>() -> impl Strategy<Value = Vec<T>> {
        proptest::collection::vec(any::<T>(), 0..5)
    }
    let scalar = prop_oneof![
        Just(NvValue::Boolean),
        any::<u8>().prop_map(NvValue::Byte),
        any::<i16>().prop_map(NvValue::Int16),
        any::<u16>().prop_map(NvValue::Uint16),
        any::<i32>().prop_map(NvValue::Int32),
        any::<u32>().prop_map(NvValue::Uint32),
        any::<i64>().prop_map(NvValue::Int64),
        any::<u64>().prop_map(NvValue::Uint64),
        any::<i64>().prop_map(NvValue::Hrtime),
        any::<bool>().prop_map(NvValue::BooleanValue),
        any::<i8>().prop_map(NvValue::Int8),
        any::<u8>().prop_map(NvValue::Uint8),
        (-1e9..1e9).prop_map(NvValue::Double),
        text().prop_map(NvValue::String),
    ];
    let array = prop_oneof![
        some().prop_map(NvValue::ByteArray),
        some().prop_map(NvValue::Int16Array),
        some().prop_map(NvValue::Uint16Array),
        some().prop_map(NvValue::Int32Array),
        some().prop_map(NvValue::Uint32Array),
        some().prop_map(NvValue::Int64Array),
        some().prop_map(NvValue::Uint64Array),
        some().prop_map(NvValue::BooleanArray),
        some().prop_map(NvValue::Int8Array),
        some().prop_map(NvValue::Uint8Array),
        proptest::collection::vec(text(), 0..4).prop_map(NvValue::StringArray),
    ];
    prop_oneof![scalar, array].prop_recursive(3, 24, 4, |inner| {
        let list = proptest::collection::vec((text(), inner), 0..4)
            .prop_map(|pairs| NvList {
                flags: 0,
                pairs: pairs.into_iter().map(|(name, value)| NvPair { name, value }).collect(),
            })
            .boxed();
        prop_oneof![
            list.clone().prop_map(NvValue::List),
            proptest::collection::vec(list, 0..3).prop_map(NvValue::ListArray),
        ]
    })
}

proptest! {
    #[test]
    fn encoded_lists_round_trip(name in text(), value in value()) {
        let list = NvList { flags: 2, pairs: vec![NvPair { name, value }] };
        for encoding in [Encoding::Xdr, LITTLE, BIG] {
            let bytes = list.encode(encoding);
            prop_assert_eq!(NvList::decode_prefix(&bytes), Ok((list.clone(), bytes.len())));
        }
    }

    #[test]
    fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..3_u8) {
        if let Some(header) = bytes.first_chunk_mut::<12>() {
            *header = [0; 12];
            header[..2].copy_from_slice(&[kind / 2, kind % 2]);
        }
        let _ = NvList::decode(&bytes);
    }

    #[test]
    fn damaged_lists(name in text(), value in value(), at: prop::sample::Index, byte: u8) {
        let list = NvList { flags: 2, pairs: vec![NvPair { name, value }] };
        for encoding in [Encoding::Xdr, LITTLE, BIG] {
            let mut bytes = list.encode(encoding);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = NvList::decode(&bytes);
        }
    }
}
