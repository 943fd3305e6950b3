//! The policy as a table: settings in, decision out.

use super::*;

fn of(dataset: DatasetPolicy, block: BlockSpec) -> WritePolicy {
    WritePolicy::of(&PoolPolicy::FULL, &dataset, &block).expect("valid numbers")
}

const FILE: ObjectType = ObjectType::PLAIN_FILE_CONTENTS;
const DIRECTORY: ObjectType = ObjectType::DIRECTORY_CONTENTS;

#[test]
fn copies_by_redundant_metadata() {
    use RedundantMetadata::{All, Most, None, Some};
    // Type, level, and the copies under all, most, some, none with copies=1.
    let rows = [
        (FILE, 0, [1, 1, 1, 1]),
        (FILE, 1, [2, 1, 1, 1]),
        (FILE, 2, [2, 2, 1, 1]),
        (ObjectType::DNODE, 0, [2, 2, 1, 1]),
        (ObjectType::DNODE, 1, [2, 2, 2, 1]),
        (ObjectType::OBJSET, 0, [2, 2, 2, 1]),
        (DIRECTORY, 0, [2, 2, 1, 1]),
        (ObjectType::SA, 0, [2, 2, 1, 1]),
        (ObjectType::MASTER_NODE, 0, [2, 2, 2, 1]),
        (ObjectType::ZVOL, 1, [2, 1, 1, 1]),
    ];
    for (object_type, level, expected) in rows {
        for (redundant_metadata, expected) in [All, Most, Some, None].into_iter().zip(expected) {
            let block = BlockSpec::new(object_type, level);
            let dataset = DatasetPolicy { redundant_metadata, ..DatasetPolicy::DEFAULT };
            let (found, gang) = copies(&dataset, &block);
            assert_eq!(found, expected, "{object_type} L{level} {redundant_metadata:?}");
            assert!(gang >= found);
            let three = copies(&DatasetPolicy { copies: 3, ..dataset }, &block);
            assert_eq!(three, (3, 3));
        }
    }
}

#[test]
fn the_mos_has_three_and_ciphertext_two() {
    for level in 0..3 {
        assert_eq!(of(DatasetPolicy::MOS, BlockSpec::new(ObjectType::DNODE, level)).copies, 3);
    }
    let encrypted = DatasetPolicy { is_encrypted: true, copies: 3, ..DatasetPolicy::DEFAULT };
    assert_eq!(copies(&encrypted, &BlockSpec::new(FILE, 0)), (2, 2));
    assert_eq!(copies(&encrypted, &BlockSpec::new(FILE, 1)), (2, 2));
    assert_eq!(copies(&encrypted, &BlockSpec::new(ObjectType::MASTER_NODE, 0)), (3, 3));
    assert_eq!(
        of(encrypted, BlockSpec::new(ObjectType::DNODE, 0)).compression,
        CompressionPolicy::Empty
    );
}

#[test]
fn compression_of_metadata_data_and_dnode() {
    let lz4 = CompressionPolicy::With(Compression::Lz4, ZstdLevel::default());
    let off = DatasetPolicy {
        compression: CompressionSetting::from_property(2).expect("off"),
        ..DatasetPolicy::DEFAULT
    };
    assert_eq!(of(off, BlockSpec::new(FILE, 0)).compression, CompressionPolicy::Off);
    assert_eq!(of(off, BlockSpec::new(FILE, 1)).compression, lz4);
    assert_eq!(of(off, BlockSpec::new(DIRECTORY, 0)).compression, lz4);
    let own = BlockSpec { dnode_compression: 6, ..BlockSpec::new(FILE, 0) };
    let gzip2 = CompressionPolicy::With(Compression::Gzip(2), ZstdLevel::default());
    assert_eq!(of(off, own).compression, gzip2);
    let spill = BlockSpec { is_spill: true, ..BlockSpec::new(FILE, 0) };
    assert_eq!(of(off, spill).compression, lz4);
    let dedup = DatasetPolicy { is_dedup: true, ..off };
    assert_eq!(of(dedup, BlockSpec::new(FILE, 0)).compression, CompressionPolicy::Empty);
    let bad = BlockSpec { dnode_compression: 17, ..BlockSpec::new(FILE, 0) };
    assert_eq!(WritePolicy::of(&PoolPolicy::FULL, &off, &bad), None);

    let zstd = CompressionSetting::from_property(16 | 103 << 7).expect("zstd-fast");
    assert_eq!(zstd.zstd_level.level(), -1);
    let zstd = CompressionSetting::from_property(16).expect("zstd");
    assert_eq!(zstd.zstd_level.level(), 3);
    assert_eq!(CompressionSetting::from_property(16 | 50 << 7), None);

    let old = PoolPolicy { has_lz4: false, ..PoolPolicy::FULL };
    let policy = WritePolicy::of(&old, &DatasetPolicy::DEFAULT, &BlockSpec::new(FILE, 0));
    let lzjb = CompressionPolicy::With(Compression::Lzjb, ZstdLevel::default());
    assert_eq!(policy.map(|policy| policy.compression), Some(lzjb));
}

#[test]
fn checksum_of_metadata_data_and_dnode() {
    let rows = [
        (ChecksumType::On, 0, ChecksumAlgorithm::Fletcher4, ChecksumAlgorithm::Fletcher4),
        (ChecksumType::Off, 0, ChecksumAlgorithm::Off, ChecksumAlgorithm::Fletcher4),
        (ChecksumType::Fletcher2, 0, ChecksumAlgorithm::Fletcher2, ChecksumAlgorithm::Fletcher4),
        (ChecksumType::Sha256, 0, ChecksumAlgorithm::Sha256, ChecksumAlgorithm::Sha256),
        (ChecksumType::EdonR, 0, ChecksumAlgorithm::EdonR, ChecksumAlgorithm::EdonR),
        (ChecksumType::Sha256, 14, ChecksumAlgorithm::Blake3, ChecksumAlgorithm::Sha256),
        (ChecksumType::Sha256, 1, ChecksumAlgorithm::Fletcher4, ChecksumAlgorithm::Sha256),
    ];
    for (checksum, dnode_checksum, data, metadata) in rows {
        let dataset = DatasetPolicy { checksum, ..DatasetPolicy::DEFAULT };
        let block = BlockSpec { dnode_checksum, ..BlockSpec::new(FILE, 0) };
        assert_eq!(of(dataset, block).checksum, data, "{checksum:?} {dnode_checksum}");
        let indirect = BlockSpec { level: 1, ..block };
        assert_eq!(of(dataset, indirect).checksum, metadata, "{checksum:?} {dnode_checksum}");
    }
    let label = DatasetPolicy { checksum: ChecksumType::Label, ..DatasetPolicy::DEFAULT };
    assert_eq!(WritePolicy::of(&PoolPolicy::FULL, &label, &BlockSpec::new(FILE, 0)), None);
}

#[test]
fn embedded_data_by_object_type() {
    let rows = [
        (FILE, 0, true),
        (FILE, 1, false),
        (ObjectType::DNODE, 0, false),
        (ObjectType::OBJSET, 0, false),
        (ObjectType::ZAP_OTHER, 0, true),
    ];
    for (object_type, level, expected) in rows {
        let block = BlockSpec::new(object_type, level);
        assert_eq!(of(DatasetPolicy::DEFAULT, block).may_embed, expected, "{object_type} L{level}");
        let encrypted = DatasetPolicy { is_encrypted: true, ..DatasetPolicy::DEFAULT };
        assert!(!of(encrypted, block).may_embed);
    }
}

/// The codec's functions and the format's numbers are two types in crates without a common one.
#[test]
fn checksum_types_and_algorithms_have_equal_numbers() {
    for kind in ChecksumType::ALL {
        let algorithm = ChecksumAlgorithm::from_id(kind.id());
        let is_property = matches!(kind, ChecksumType::Inherit | ChecksumType::On);
        let name = algorithm.map(|algorithm| format!("{algorithm:?}"));
        assert_eq!(name, (!is_property).then(|| format!("{kind:?}")));
    }
    assert_eq!(ChecksumAlgorithm::from_id(ChecksumType::ALL.len() as u8), None);
}
