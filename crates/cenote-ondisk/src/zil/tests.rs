use super::record::{records, unswap};
use super::*;
use proptest::prelude::*;

/// Builds a record from words and trailing bytes.
fn record(kind: u64, seq: u64, body: &[u64], tail: &[u8]) -> Vec<u8> {
    let len = (32 + body.len() * 8 + tail.len()).next_multiple_of(8);
    let mut bytes = words::to_bytes(&[kind, len as u64, 27, seq]);
    bytes.extend(words::to_bytes(body));
    bytes.extend(tail);
    bytes.resize(len, 0);
    bytes
}

/// First block pointer and first block of the chain of spec 07 A19.
fn real() -> (BlockPtr, Vec<u8>) {
    let id = [0xcb50_1279_661d_c017, 0x915b_dc42_3289_53ae, 0x8e];
    let mut first = [0; 16];
    first[..2].copy_from_slice(&[0x1_0000_0008, 0xd0]);
    first[6] = 0x8009_0902_0007_0007;
    first[10] = 0x1b;
    first[12..].copy_from_slice(&[id[0], id[1], id[2], 1]);
    let mut next = first;
    next[..2].copy_from_slice(&[0x1_0000_00a8, 0xd8]);
    next[6] = 0x8009_0902_00a7_00a7;
    next[10] = 0x1c;
    next[15] = 2;
    let mut block = words::to_bytes(&[0]);
    block.extend(words::to_bytes(&next));
    block.extend(words::to_bytes(&[4096, ZIL_TRAILER_MAGIC, 1, 2, 3, 4]));
    let new = |object, mode| [34, object, mode, 0, 0, 27, 0x6b00_ff64, 0x2243_7f4a, 0];
    block.extend(record(2, 1, &new(129, 0o40755), b"new\0"));
    let file = [129, 130, 0o100_640, 0, 0, 27, 0x6b00_ff64, 0x2243_7f4a, 0];
    block.extend(record(1, 2, &file, b"f0\0"));
    let mut write = vec![130, 0, 3384, 0];
    write.extend([0; 16]);
    block.extend(record(9, 3, &write, &[7; 3384]));
    block.extend(record(5, 4, &[129], b"f2\0"));
    block.resize(4096, 0);
    block[136..144].copy_from_slice(&4032_u64.to_le_bytes());
    (BlockPtr::from_words(first), block)
}

#[test]
fn header_states() {
    let (bp, _) = real();
    let mut bytes = words::to_bytes(&[0, 0]);
    bytes.extend(bp.to_bytes());
    bytes.extend(words::to_bytes(&[0; 6]));
    let header = ZilHeader::decode(&bytes).unwrap();
    assert!(!header.is_claimed());
    assert_eq!(header.limits(), (u64::MAX, u64::MAX));
    assert_eq!(header.encode(), bytes);
    let claimed = ZilHeader { claim_txg: 500, claim_blk_seq: 21, claim_lr_seq: 7, ..header };
    assert_eq!(claimed.limits(), (21, u64::MAX));
    let claimed = ZilHeader { flags: ZilFlags::CLAIM_LR_SEQ_VALID, ..claimed };
    assert_eq!(claimed.limits(), (21, 7));
    assert!(ZilHeader::decode(&bytes[1..]).is_err());
}

#[test]
fn a_chain_block_and_its_records() {
    let (bp, block) = real();
    let log = LogBlock::decode(&block, &bp).unwrap();
    assert_eq!((block_seq(&log.next), log.used), (2, 4032));
    let all: Vec<Record<'_>> = records(log.records).map(Result::unwrap).collect();
    assert_eq!(all.iter().map(|r| r.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(all[0].bytes.len(), 112);
    let Body::Create { parent, new, name, .. } = Body::decode(&all[0], all[0].bytes).unwrap()
    else {
        panic!("mkdir");
    };
    assert_eq!((parent, new.object, new.slots, new.mode, name), (34, 129, 1, 0o40755, &b"new"[..]));
    let Body::Write { object, data, .. } = Body::decode(&all[2], all[2].bytes).unwrap() else {
        panic!("write");
    };
    assert_eq!((object, data.map(<[u8]>::len)), (130, Some(3384)));
    assert_eq!(Body::decode(&all[3], all[3].bytes), Ok(Body::Remove { parent: 129, name: b"f2" }));
}

#[test]
fn a_block_of_the_other_byte_order_gives_the_same() {
    let (bp, block) = real();
    // Written big-endian and swapped as u64: fields are unchanged, bytes are reversed in groups.
    let mut foreign = block.clone();
    for group in foreign[184 + 104..184 + 112].chunks_mut(8) {
        group.reverse();
    }
    let log = LogBlock::decode(&foreign, &bp).unwrap();
    let first = records(log.records).next().unwrap().unwrap();
    let written = unswap(first.bytes);
    let Body::Create { name, new, .. } = Body::decode(&first, &written).unwrap() else {
        panic!("mkdir");
    };
    assert_eq!((name, new.object), (&b"new"[..], 129));
}

#[test]
fn the_end_of_a_log_has_a_cause() {
    let (bp, block) = real();
    let rows: &[(usize, u8, CorruptZil)] = &[
        (144, 0, CorruptZil::Magic { found: ZIL_TRAILER_MAGIC & !0xff }),
        (137, 0x20, CorruptZil::Used { used: 0x20c0, len: 4096 }),
        (8 + 120, 3, CorruptZil::Successor { found: 3, expected: 2 }),
        (8 + 96, 0, CorruptZil::Successor { found: 2, expected: 2 }),
    ];
    for (at, byte, want) in rows {
        let mut block = block.clone();
        block[*at] = *byte;
        assert_eq!(LogBlock::decode(&block, &bp), Err(*want), "byte {at}");
    }
    let mut block = block;
    block[184 + 8] = 24;
    let log = LogBlock::decode(&block, &bp).unwrap();
    assert!(matches!(
        records(log.records).next(),
        Some(Err(CorruptZil::RecordLength { offset: 0, len: 24, .. }))
    ));
}

#[test]
fn a_full_block_keeps_its_chain_at_the_end() {
    let (bp, block) = real();
    let mut words_ = *bp.words();
    words_[6] = 0x8009_0502_0007_0007;
    let bp = BlockPtr::from_words(words_);
    let records_len = 4096 - 184;
    let mut full = block[184..].to_vec();
    full.extend(&block[..184]);
    full[records_len + 136..records_len + 144].copy_from_slice(&112_u64.to_le_bytes());
    let log = LogBlock::decode(&full, &bp).unwrap();
    assert_eq!(records(log.records).count(), 1);
}

#[test]
fn bodies() {
    let bp = [0_u64; 16];
    let mut indirect = vec![2, 1000, 8, 0];
    indirect.extend(bp);
    let mut clone = vec![5, 0, 131_072, 131_072, 1];
    clone.extend(bp);
    let new = NewObjectFields([34, 131, 0o120_777, 1 << 32, 2 << 32, 9, 1, 2, 3]);
    let rows: Vec<(Vec<u8>, &str)> = vec![
        (record(9, 1, &indirect, b""), "data: None"),
        (record(20, 1, &indirect, b""), "data: None"),
        (record(4, 1, &new.0, b"dom\0dom2\0soft\0new/f4\0"), "target: Some([110, 101, 119"),
        (record(8, 1, &[129, 34], b"f1\0renamed\0"), "whiteout: None"),
        (record(23, 1, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], b"a\0b\0"), "whiteout: Some"),
        (record(7, 1, &[34, 131], b"hard\0"), "object: 131"),
        (record(10, 1, &[2, 3, 4], b""), "Truncate"),
        (record(11, 1, &[2, 1, 0, 0, 0, 0, 0, 0, 0, 0], b""), "Setattr"),
        (record(21, 1, &[2, 3], b"user.x\0abc"), "value: [97, 98, 99]"),
        (record(13, 1, &[2, 1, 0, 0, 8, 0], &[0, 0, 0, 0x10, 1, 0, 0, 0]), "mask: 1"),
        (record(14, 1, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], b"n\0"), "CreateAcl"),
        (record(24, 1, &clone, b""), "CloneRange"),
        (record(99, 1, &[], b""), "Unknown"),
    ];
    for (bytes, want) in rows {
        let parsed = records(&bytes).next().unwrap().unwrap();
        let body = format!("{:?}", Body::decode(&parsed, &bytes).unwrap());
        assert!(body.contains(want), "{want}: {body}");
        // Every shorter record is refused or decodes to a different body, without panic.
        for len in (32..bytes.len()).step_by(8) {
            let mut short = bytes[..len].to_vec();
            short[8..16].copy_from_slice(&(len as u64).to_le_bytes());
            let parsed = records(&short).next().unwrap().unwrap();
            let _ = Body::decode(&parsed, &short);
        }
    }
}

struct NewObjectFields([u64; 9]);

#[test]
fn attributes_of_a_create() {
    let mut xvattr = vec![3, 0, 0, 0];
    xvattr.resize(72, 9);
    xvattr.extend(b"named\0");
    let bytes = record(1 << 63 | 15, 1, &[34, 131, 0o100_644, 0, 0, 9, 1, 2, 3], &xvattr);
    let parsed = records(&bytes).next().unwrap().unwrap();
    assert!(parsed.is_case_insensitive);
    let Body::Create { name, xvattr, .. } = Body::decode(&parsed, &bytes).unwrap() else {
        panic!("create");
    };
    assert_eq!(
        (name, xvattr.map(|attrs| attrs.requested.bits())),
        (&b"named"[..], Some(0x0909_0909))
    );
}

proptest! {
    #[test]
    fn random_blocks_never_panic(
        at in 0_usize..4096,
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        raw: Vec<u8>,
        kind in 0_u64..26,
    ) {
        let (bp, mut block) = real();
        for (slot, byte) in block.iter_mut().skip(at).zip(&bytes) {
            *slot = *byte;
        }
        if let Ok(log) = LogBlock::decode(&block, &bp) {
            for record in records(log.records).flatten() {
                let _ = Body::decode(&record, record.bytes);
                let _ = Body::decode(&record, &unswap(record.bytes));
            }
        }
        let record = Record { kind_number: kind, is_case_insensitive: false, txg: 0, seq: 0, bytes: &raw };
        let _ = Body::decode(&record, &raw);
        let _ = LogBlock::decode(&raw, &bp);
        let _ = ZilHeader::decode(&raw);
    }
}
