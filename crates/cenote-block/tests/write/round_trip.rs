//! Every compression with every checksum, sizes, contents, sector sizes and layouts.

use cenote_block::policy::{BlockSpec, CompressionSetting, DatasetPolicy, PoolPolicy, WritePolicy};
use cenote_block::{ReadContext, WriteContext, WriteMethod};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, Rng};

use crate::bench::{Bench, Shape, TXG, Top, wait};

pub(crate) fn policy(compression: u64, checksum: ChecksumType) -> WritePolicy {
    let compression = CompressionSetting::from_property(compression).expect("a valid number");
    let dataset = DatasetPolicy { compression, checksum, ..DatasetPolicy::DEFAULT };
    let block = BlockSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 0);
    WritePolicy::of(&PoolPolicy::FULL, &dataset, &block).expect("valid")
}

pub(crate) fn context() -> WriteContext {
    WriteContext::new(TXG, 1, Bookmark { objset: 54, object: 2, level: 0, blkid: 0 })
}

/// Contents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Zero,
    /// Compresses to almost nothing.
    Sparse,
    Text,
    Random,
    /// Compresses by less than an eighth.
    MostlyRandom,
}

pub(crate) const CONTENTS: [Content; 5] =
    [Content::Zero, Content::Sparse, Content::Text, Content::Random, Content::MostlyRandom];

pub(crate) fn block(content: Content, size: usize, seed: u64) -> Buf {
    let mut bytes = vec![0; size];
    let mut rng = Rng::seeded(seed);
    match content {
        Content::Zero => {}
        Content::Sparse => bytes[size / 2..size / 2 + 4].copy_from_slice(&[1, 2, 3, seed as u8]),
        Content::Text => {
            let mut at = 0;
            while at < size {
                let word = format!("word {} of line {}, ", rng.below(40), at / 80);
                let len = word.len().min(size - at);
                bytes[at..at + len].copy_from_slice(&word.as_bytes()[..len]);
                at += len;
            }
        }
        Content::Random => rng.fill(&mut bytes),
        Content::MostlyRandom => rng.fill(&mut bytes[size / 20..]),
    }
    Buf::from(bytes)
}

const COMPRESSIONS: [u64; 25] = [
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    16 | 1 << 7,
    16 | 3 << 7,
    16 | 9 << 7,
    16 | 19 << 7,
    16 | 103 << 7,
    16 | 112 << 7,
    16 | 113 << 7,
    16 | 122 << 7,
    16 | 123 << 7,
];

const CHECKSUMS: [ChecksumType; 10] = [
    ChecksumType::On,
    ChecksumType::Off,
    ChecksumType::Fletcher2,
    ChecksumType::Fletcher4,
    ChecksumType::Sha256,
    ChecksumType::NoParity,
    ChecksumType::Sha512,
    ChecksumType::Skein,
    ChecksumType::EdonR,
    ChecksumType::Blake3,
];

/// Writes a block, reads it from memory, then from the devices; checks the pointer.
async fn there_and_back(bench: &Bench, policy: &WritePolicy, content: Content, size: usize) {
    let what = format!("{:?} {content:?} {size} {policy:?}", bench.shape);
    let data = block(content, size, size as u64);
    let written = bench.store.write(data.clone(), policy, None, &context()).await;
    let written = written.unwrap_or_else(|error| panic!("{what}: {error}"));
    let bp = written.bp;
    assert_eq!(bp.validate(), Ok(()), "{what}");
    match written.method {
        WriteMethod::Hole => assert!(content == Content::Zero && bp.is_hole(), "{what}"),
        WriteMethod::Embedded => {
            assert!(content != Content::Zero && bp.is_embedded_data(), "{what}");
        }
        WriteMethod::New => {
            let unit = 1 << bench.shape.ashift;
            assert!(bp.psize() == bp.lsize() || bp.psize().is_multiple_of(unit), "{what}");
            assert_eq!((bp.birth(), bp.fill(), bp.lsize()), (TXG, 1, size as u64), "{what}");
            assert_eq!(bp.dva_count(), usize::from(policy.copies), "{what}");
            for dva in bp.dvas() {
                let asize = bench.tree().asize_for(dva.vdev.into(), bp.psize(), TXG);
                assert_eq!(Some(dva.asize), asize, "{what}");
            }
            assert!(
                bench
                    .store
                    .scrub(&bp, &cenote_block::Grounds::Allocated)
                    .await
                    .expect("it is there")
                    .is_clean(),
                "{what}"
            );
        }
        how => panic!("{how:?}: {what}"),
    }
    if bp.is_hole() {
        return;
    }
    let cached = bench.store.read(&bp, &ReadContext::default()).await.expect("written");
    assert!(cached[..] == data[..], "{what}");
    let stored = bench.read_stored(&bp).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(stored[..] == data[..], "{what}");
    if written.method == WriteMethod::New {
        bench.store.free(&bp, TXG).await.expect("allocated");
    }
}

#[test]
fn every_compression_with_every_checksum() {
    let bench = Bench::new(Shape::new(Top::Single, 9));
    wait(async {
        for compression in COMPRESSIONS {
            for checksum in CHECKSUMS {
                let policy = policy(compression, checksum);
                for content in CONTENTS {
                    there_and_back(&bench, &policy, content, 4608).await;
                }
            }
            for content in CONTENTS {
                let policy = policy(compression, ChecksumType::Sha256);
                there_and_back(&bench, &policy, content, 128 << 10).await;
            }
        }
    });
    assert_eq!(bench.taken(), 0, "all of it was freed");
}

#[test]
fn every_layout_sector_and_size() {
    let tops = [
        Top::Single,
        Top::Mirror(2),
        Top::Mirror(3),
        Top::RaidZ { width: 3, nparity: 1 },
        Top::RaidZ { width: 5, nparity: 1 },
        Top::RaidZ { width: 6, nparity: 2 },
        Top::RaidZ { width: 7, nparity: 3 },
    ];
    let sizes = [512, 1024, 1536, 4096, 4608, 7168, 16 << 10, 130_560, 128 << 10, 1 << 20];
    for top in tops {
        for (ashift, size) in [9, 12].into_iter().flat_map(|a| sizes.map(|size| (a, size))) {
            // Freed space cannot be reused in the same txg: each size has its own pool.
            let bench = Bench::new(Shape { metaslabs: 6, ..Shape::new(top, ashift) });
            wait(async {
                for content in CONTENTS {
                    for copies in [1, 3] {
                        let lz4 = policy(1, ChecksumType::Fletcher4);
                        let lz4 = WritePolicy { copies, ..lz4 };
                        there_and_back(&bench, &lz4, content, size).await;
                        let stored = WritePolicy { may_embed: false, ..lz4 };
                        there_and_back(&bench, &stored, content, size).await;
                    }
                    let raw = policy(2, ChecksumType::Blake3);
                    there_and_back(&bench, &raw, content, size).await;
                }
            });
            assert_eq!(bench.taken(), 0, "{top:?} {ashift} {size}: all of it was freed");
        }
    }
}
