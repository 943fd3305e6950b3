use proptest::prelude::*;

use super::*;

/// A pointer of spec 02 §1.8, with some words replaced.
fn sample(changes: &[(usize, u64)]) -> BlockPtr {
    let mut words = ROOT;
    for (index, word) in changes {
        words[*index] = *word;
    }
    BlockPtr::from_words(words)
}

const ROOT: [u64; 16] = [
    1,
    0x12c75c,
    1,
    0x14bf5d,
    1,
    0x36db,
    PROPERTY,
    0,
    0,
    0,
    0x112,
    87,
    0x9faa09717,
    0x41a690a8468,
    0xdbf95d958062,
    0x1f481df99f0158,
];
const PROPERTY: u64 = 0x800b070f00000007;
const X: u64 = 1 << 61;

const fn of_type(kind: u64) -> u64 {
    PROPERTY & !(0xff << 48) | kind << 48
}

#[test]
fn a_real_root_pointer() {
    let bp = sample(&[]);
    assert_eq!(bp.validate(), Ok(()));
    let dva = Dva { vdev: 0, offset: 0x258eb800, asize: 512, gang: false };
    assert_eq!(bp.dva(0), Some(dva));
    assert_eq!(dva.to_words(), Some([1, 0x12c75c]));
    assert_eq!((bp.dva_count(), bp.asize_total()), (3, 1536));
    assert_eq!((bp.lsize(), bp.psize(), bp.level()), (4096, 512, 0));
    assert_eq!(bp.object_type(), ObjectType::OBJSET);
    assert_eq!(bp.checksum_type(), Some(ChecksumType::Fletcher4));
    assert_eq!(bp.compression(), Some(CompressionType::Lz4));
    assert_eq!((bp.birth(), bp.physical_birth(), bp.fill()), (274, 274, 87));
    assert_eq!(bp.endian(), Endian::Little);
    assert_eq!(BlockPtr::from_bytes(&bp.to_bytes()), bp);
    let mut reversed = bp.to_bytes();
    reversed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| word.reverse());
    assert_eq!(BlockPtr::from_bytes_in(&reversed, Endian::Big), bp);
    assert_eq!(sample(&[(6, 0x000b070f00000007)]).endian(), Endian::Big);
}

#[test]
fn kinds() {
    assert!(BlockPtr::HOLE.is_hole() && BlockPtr::HOLE.validate().is_ok());
    let embedded = sample(&[(0, 0x0100032118000000), (6, 0x800d008f360001ff), (10, 6)]);
    assert!(embedded.is_embedded_data() && !embedded.is_hole());
    assert_eq!((embedded.lsize(), embedded.psize(), embedded.dva_count()), (512, 0, 0));
    assert_eq!((embedded.fill(), embedded.physical_birth()), (1, 0));
    let payload = embedded.embedded_payload().unwrap();
    assert_eq!(payload.as_bytes().len(), 28);
    assert_eq!(payload.as_bytes()[..8], [0, 0, 0, 0x18, 0x21, 3, 0, 1]);
    let redacted = sample(&[(6, 0x13_02_80_00_01_ff_ff)]);
    assert!(redacted.is_redacted() && redacted.embedded_payload().is_none());
    assert_eq!((redacted.lsize(), redacted.embedded_lsize()), (0, 0x20000));
    let rewritten = sample(&[(7, 1 << 63), (9, 500)]);
    assert_eq!((rewritten.birth(), rewritten.allocation_birth()), (274, 500));
    assert_eq!(sample(&[(9, 500)]).allocation_birth(), 274);
}

#[test]
fn the_payload_skips_two_words() {
    let mut words: [u64; 16] = std::array::from_fn(|index| index as u64 * 0x0101_0101_0101_0101);
    words[6] = 1 << 39 | 2 << 32 | 0x6f << 25 | 0x6f;
    let payload = BlockPtr::from_words(words).embedded_payload().unwrap();
    let bytes = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15_u8];
    let expected: Vec<u8> = bytes.into_iter().flat_map(|byte| [byte; 8]).collect();
    assert_eq!(payload.as_bytes(), expected);
}

/// The pointer of a one-byte file in dataset gcm of a real pool (spec 08 §18).
#[test]
fn a_real_encrypted_pointer() {
    let bp = BlockPtr::from_words([
        0x0000000100000001,
        0x507,
        0,
        0,
        0xd86f6dafcf93daea,
        0x1a18fb9b1c25723a,
        0xa013070200000000,
        0,
        0,
        0,
        0x11,
        0xac8d2ef800000001,
        0x00027b61e2056774,
        0x005079a388e9f20f,
        0x0d2f666ae486d9c7,
        0xd08c3178ab053b18,
    ]);
    assert!(bp.is_encrypted() && bp.has_short_checksum());
    assert_eq!(bp.validate(), Ok(()));
    assert_eq!((bp.dva_count(), bp.fill(), bp.dva(0).unwrap().vdev), (1, 1, 1));
    assert_eq!(bp.salt(), [0xea, 0xda, 0x93, 0xcf, 0xaf, 0x6d, 0x6f, 0xd8]);
    let iv = [0x3a, 0x72, 0x25, 0x1c, 0x9b, 0xfb, 0x18, 0x1a, 0xf8, 0x2e, 0x8d, 0xac];
    assert_eq!(bp.iv(), iv);
    assert_eq!(bp.mac()[..8], [0xc7, 0xd9, 0x86, 0xe4, 0x6a, 0x66, 0x2f, 0x0d]);
    assert_eq!(bp.mac()[8..], [0x18, 0x3b, 0x05, 0xab, 0x78, 0x31, 0x8c, 0xd0]);
}

#[test]
fn protection_by_type_and_level() {
    let foreign = sample(&[(4, 0x0102_0304_0506_0708), (6, (of_type(19) | X) & !(1 << 63))]);
    assert_eq!(foreign.salt(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let rows = [
        (21, 0, Protection::Authenticated),
        (19, 1, Protection::IndirectMac),
        (10, 0, Protection::Encrypted),
    ];
    for (kind, level, protection) in rows {
        let bp = sample(&[(6, of_type(kind) | X | level << 56)]);
        assert_eq!(bp.protection(), protection, "type {kind} level {level}");
        assert_eq!(bp.is_encrypted(), protection == Protection::Encrypted);
    }
    assert!(!sample(&[(6, PROPERTY | X)]).has_short_checksum());
}

#[test]
fn refusals() {
    let rows = [
        (vec![(6, of_type(54))], CorruptBlockPtr::ObjectType(54)),
        (vec![(6, PROPERTY | 0x7f << 32)], CorruptBlockPtr::Compression(0x7f)),
        (vec![(6, PROPERTY | 0xff << 40)], CorruptBlockPtr::Checksum(0xff)),
        (vec![(6, PROPERTY | 0xffff)], CorruptBlockPtr::LogicalSize(0x200_0000)),
        (vec![(6, PROPERTY | 0xffff << 16)], CorruptBlockPtr::PhysicalSize(0x200_0000)),
        (vec![(6, 0x800d_038f_3600_01ff)], CorruptBlockPtr::EmbeddedType(3)),
        (vec![(6, 0x800d_008f_fe00_01ff)], CorruptBlockPtr::EmbeddedSize(128)),
        (vec![(0, 0)], CorruptBlockPtr::NoAddress),
        (vec![(3, u64::MAX >> 1)], CorruptBlockPtr::Offset { index: 1, sector: u64::MAX / 512 }),
    ];
    for (changes, expected) in rows {
        assert_eq!(sample(&changes).validate(), Err(expected));
    }
}

/// Output of `snprintf_blkptr` of OpenZFS 2.3.2 for the same words.
#[test]
fn verbose_form() {
    const TAIL: &str = "cksum=00000009faa09717:0000041a690a8468:0000dbf95d958062:001f481df99f0158";
    const THREE: &str = "DVA[0]=<0:258eb800:200> DVA[1]=<0:297eba00:200> DVA[2]=<0:6db600:200> ";
    let size = "triple size=1000L/200P birth=274L/274P fill=87";
    let line = |kind: &str| format!("{THREE}{kind} {size} {TAIL}");
    let rows: Vec<(Vec<(usize, u64)>, String)> = vec![
        (vec![], line("[L0 DMU objset] fletcher4 lz4 unencrypted LE contiguous unique")),
        (
            vec![(6, of_type(21) | X)],
            line("[L0 ZFS master node] fletcher4 lz4 authenticated LE contiguous unique"),
        ),
        (
            vec![(6, of_type(19) | X | 1 << 56)],
            line("[L1 ZFS plain file] fletcher4 lz4 indirect-MAC LE contiguous unique"),
        ),
        (
            vec![(6, of_type(0xc4) & !(1 << 63))],
            line("[L0 bswap metadata zap] fletcher4 lz4 unencrypted BE contiguous unique"),
        ),
        (
            vec![(6, of_type(0x83))],
            line("[L0 bswap data uint64] fletcher4 lz4 unencrypted LE contiguous unique"),
        ),
        (
            vec![(6, of_type(19) | X), (11, 0x1234567800000001)],
            format!(
                "DVA[0]=<0:258eb800:200> DVA[1]=<0:297eba00:200> salt=1 iv=36db:12345678 \
                 [L0 ZFS plain file] fletcher4 lz4 encrypted LE contiguous unique double \
                 size=1000L/200P birth=274L/274P fill=1 {TAIL}"
            ),
        ),
        (
            vec![
                (0, 3),
                (1, 1 << 63 | 5),
                (2, 3),
                (3, 1 << 63 | 6),
                (5, 1 << 63 | 7),
                (6, PROPERTY | 1 << 62),
            ],
            format!(
                "DVA[0]=<0:a00:600> DVA[1]=<0:c00:600> DVA[2]=<0:e00:200> [L0 DMU objset] \
                 fletcher4 lz4 unencrypted LE gang dedup {size} {TAIL}"
            ),
        ),
        (vec![(0, 0), (1, 0)], "HOLE [L0 DMU objset] size=1000L birth=274L".into()),
        (
            vec![(6, 0x800d008f360001ff), (10, 6)],
            "EMBEDDED [L0 DSL directory child map] et=0 lz4 size=200L/1cP birth=6L".into(),
        ),
        (
            vec![(6, 0x1302800001ffff)],
            "EMBEDDED [L0 ZFS plain file] et=2 inherit size=20000L/1P birth=274L".into(),
        ),
    ];
    for (changes, expected) in rows {
        assert_eq!(sample(&changes).verbose().to_string(), expected);
    }
    assert_eq!(BlockPtr::HOLE.verbose().to_string(), "HOLE [L0 unallocated] size=200L birth=0L");
}

#[test]
fn compact_form() {
    let bp = sample(&[]);
    let tail = "1000L/200P F=87 B=274/274 \
                cksum=00000009faa09717:0000041a690a8468:0000dbf95d958062:001f481df99f0158";
    assert_eq!(bp.compact(false).to_string(), format!("0:258eb800:200 {tail}"));
    let all = "0:258eb800:200 0:297eba00:200 0:6db600:200";
    assert_eq!(bp.compact(true).to_string(), format!("{all} {tail}"));
    assert_eq!(sample(&[(0, 0), (1, 0)]).compact(false).to_string(), "0:297eba00:200 1000L B=274");
    let embedded = sample(&[(6, 0x800d008f360001ff), (10, 4)]);
    assert_eq!(embedded.compact(true).to_string(), "EMBEDDED et=0 200L/1cP B=4");
}

proptest! {
    #[test]
    fn any_words_are_inert(words in proptest::array::uniform16(any::<u64>())) {
        let bp = BlockPtr::from_words(words);
        prop_assert_eq!(BlockPtr::from_bytes(&bp.to_bytes()), bp);
        let _ = (bp.validate(), bp.compact(true).to_string(), bp.verbose().to_string());
        let _ = (bp.embedded_payload(), bp.asize_total(), bp.salt(), bp.iv(), bp.mac());
        for dva in bp.dvas() {
            if dva.offset != u64::MAX {
                prop_assert_eq!(dva.to_words().map(Dva::from_words), Some(dva));
            }
        }
    }
}
