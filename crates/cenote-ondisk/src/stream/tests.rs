use super::*;
use proptest::prelude::*;

/// The BEGIN of spec 07 B16, vector 1.
fn begin() -> Begin {
    Begin {
        payload_len: 0,
        header: HeaderType::Substream,
        features: StreamFeatures::empty(),
        reserved: 0,
        creation_time: 0x6500_0000,
        objset_kind: 3,
        flags: BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK,
        to_guid: 0x1111_2222_3333_4444,
        from_guid: 0,
        to_name: b"p/v@s".to_vec(),
    }
}

fn limits(features: StreamFeatures) -> RecordLimits {
    RecordLimits { features, has_spill_flags: true, block_max: 16 << 20 }
}

fn object() -> Object {
    Object {
        object: 7,
        kind: 19,
        bonus_kind: 44,
        block_size: 131_072,
        bonus_len: 168,
        checksum: 0,
        compression: 0,
        slots: 1,
        flags: ObjectFlags::empty(),
        raw_bonus_len: 0,
        to_guid: 1,
        indirect_block_shift: 0,
        levels: 0,
        blkptr_count: 0,
        max_block: 0,
    }
}

fn write() -> Write {
    Write {
        object: 7,
        kind: 19,
        offset: 0,
        logical_len: 131_072,
        to_guid: 1,
        flags: WriteFlags::empty(),
        compression: 0,
        key: WriteKey::default(),
        compressed_len: 0,
        cipher: CipherParams::default(),
    }
}

/// Bytes 0 to 47 of the OBJECT of spec 07 B16, vector 2.
#[test]
fn the_object_of_a_volume_decodes() {
    let mut bytes = [0; RECORD_LEN];
    bytes[..48].copy_from_slice(&[
        1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0,
        0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x69, 0x3b, 0xab, 0xcb, 0xc2, 0x40, 0xb0, 4,
    ]);
    let record = Record::decode(&bytes, Endian::Little).unwrap();
    let Record::Object(object) = &record else { panic!("{record:?}") };
    assert_eq!((object.object, object.kind, object.block_size, object.slots), (1, 23, 16384, 1));
    assert_eq!(object.to_guid, 0x04b0_40c2_cbab_3b69);
    assert_eq!(record.encode(Endian::Little), bytes);
    assert_eq!(record.check(&limits(StreamFeatures::empty())), Ok(()));
}

#[test]
fn the_magic_tells_the_order() {
    let record = Record::Begin(Box::new(begin()));
    for endian in [Endian::Little, Endian::Big] {
        let bytes = record.encode(endian);
        assert_eq!(byte_order(&bytes), Ok(endian));
        assert_eq!(Record::decode(&bytes, endian).as_ref(), Ok(&record));
    }
    let magic = CorruptRecord::Magic { magic: 0 };
    assert_eq!(byte_order(&[0; RECORD_LEN]), Err(magic));
    assert_eq!(Record::decode(&[0; RECORD_LEN], Endian::Little), Err(magic));
    let kind = CorruptRecord::Kind { kind: 0x0b0b_0b0b };
    assert_eq!(Record::decode(&[11; RECORD_LEN], Endian::Big), Err(kind));
}

#[test]
fn payload_lengths() {
    let object = object();
    assert_eq!(Record::Object(Object { bonus_len: 163, ..object }).payload_len(), 168);
    assert_eq!(Record::Object(Object { raw_bonus_len: 320, ..object }).payload_len(), 320);
    let write = write();
    assert_eq!(Record::Write(write).payload_len(), 131_072);
    // In raw streams "off" is a compression (spec 07 B17, trap 2).
    let raw = Write { compression: 2, compressed_len: 4096, ..write };
    assert_eq!(Record::Write(raw).payload_len(), 4096);
}

/// One change of a valid record for each rule.
#[test]
fn invalid_fields_are_refused() {
    let none = limits(StreamFeatures::empty());
    let raw = limits(StreamFeatures::RAW | StreamFeatures::COMPRESSED);
    let object = object();
    let objects = [
        Object { object: 0, ..object },
        Object { object: 1 << 48, ..object },
        Object { kind: 0, ..object },
        Object { kind: 54, ..object },
        Object { kind: 0x113, ..object },
        Object { bonus_kind: 0, ..object },
        Object { bonus_kind: 17, bonus_len: 0, ..object },
        Object { block_size: 0, ..object },
        Object { block_size: 1000, ..object },
        Object { block_size: 131_072 + 512, ..object },
        Object { slots: 2, ..object },
        Object { slots: 33, ..object },
        Object { bonus_len: 321, ..object },
        Object { checksum: 15, ..object },
        Object { compression: 17, ..object },
        Object { flags: ObjectFlags::RAW_BYTESWAPPED, ..object },
        Object { levels: 1, ..object },
        Object { raw_bonus_len: 168, ..object },
    ];
    assert_eq!(Record::Object(object).check(&none), Ok(()));
    for object in objects {
        assert!(Record::Object(object).check(&none).is_err(), "{object:?}");
    }
    let raw_object =
        Object { raw_bonus_len: 320, levels: 1, blkptr_count: 1, max_block: 3, ..object };
    assert_eq!(Record::Object(raw_object).check(&raw), Ok(()));
    let raw_objects = [
        object,
        Object { levels: 13, ..raw_object },
        Object { blkptr_count: 3, ..raw_object },
        Object { indirect_block_shift: 11, ..raw_object },
        Object { raw_bonus_len: 321, ..raw_object },
        Object { raw_bonus_len: 160, ..raw_object },
    ];
    for object in raw_objects {
        assert!(Record::Object(object).check(&raw).is_err(), "{object:?}");
    }
    let write = write();
    let compressed = Write { compression: 15, compressed_len: 4096, ..write };
    let lz4 = limits(StreamFeatures::LZ4 | StreamFeatures::COMPRESSED);
    assert_eq!(Record::Write(Write { compression: 10, ..compressed }).check(&none), Ok(()));
    assert_eq!(Record::Write(write).check(&none), Ok(()));
    assert_eq!(Record::Write(compressed).check(&lz4), Ok(()));
    let writes = [
        (write, raw),
        (Write { compression: 17, ..compressed }, lz4),
        (Write { compressed_len: 0, ..compressed }, lz4),
        (Write { compressed_len: 131_073, ..compressed }, lz4),
        (Write { compressed_len: 1, ..write }, none),
        (Write { logical_len: 131_073, ..write }, none),
        (Write { logical_len: 511, ..write }, none),
        (Write { offset: u64::MAX - 511, ..write }, none),
        (Write { kind: 0, ..write }, none),
    ];
    for (write, limits) in writes {
        assert!(Record::Write(write).check(&limits).is_err(), "{write:?}");
    }
    let range = Range { object: 7, offset: 512, len: Range::TO_THE_END, to_guid: 1 };
    assert_eq!(Record::Free(range).check(&none), Ok(()));
    assert!(Record::Redact(range).check(&none).is_err());
    assert!(Record::Free(Range { len: u64::MAX - 1, ..range }).check(&none).is_err());
    let free = FreeObjects { first: 2, count: u64::MAX - 1, to_guid: 1 };
    assert!(Record::FreeObjects(free).check(&none).is_err());
}

/// A spill block that a sender of 2.3 took for data (spec 07 B15, defect 1).
#[test]
fn an_embedded_spill_is_known_by_its_offset() {
    let embedded = Embedded {
        object: 832,
        offset: 18_446_744_073_709_549_568,
        len: 1024,
        to_guid: 1,
        compression: 15,
        embedded_kind: 0,
        logical_len: 1024,
        physical_len: 60,
    };
    assert!(embedded.is_spill());
    let features = StreamFeatures::EMBED_DATA | StreamFeatures::LZ4;
    assert_eq!(Record::WriteEmbedded(embedded).check(&limits(features)), Ok(()));
    assert!(Record::WriteEmbedded(embedded).check(&limits(StreamFeatures::LZ4)).is_err());
    assert!(!Embedded { len: 512, ..embedded }.is_spill());
}

proptest! {
    /// What a record says is what its encoding says, in either order; the check never panics.
    #[test]
    fn any_record_survives_encoding(
        kind in 1u8..11,
        body in proptest::collection::vec(any::<u8>(), RECORD_LEN - 4),
        features in any::<u64>(),
    ) {
        let mut bytes = [0; RECORD_LEN];
        bytes[0] = kind;
        bytes[4..].copy_from_slice(&body);
        let record = Record::decode(&bytes, Endian::Little).unwrap();
        for endian in [Endian::Little, Endian::Big] {
            let encoded = record.encode(endian);
            let decoded = Record::decode(&encoded, endian);
            prop_assert_eq!(decoded.as_ref(), Ok(&record));
        }
        let _ = record.check(&limits(StreamFeatures::from_bits_retain(features)));
        let _ = record.payload_len();
    }
}
