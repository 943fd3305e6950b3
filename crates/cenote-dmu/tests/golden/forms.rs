//! Compares the stored form of the golden pools' blocks under our write path with OpenZFS's:
//! embedded or not, compressed or not, size, bytes (by their checksum).
//!
//! The policy of compressed blocks is known. That of uncompressed blocks is known only for
//! metadata, which is always compressed if that saves space.

use std::collections::{BTreeMap, BTreeSet};

use cenote_block::policy::{BlockSpec, CompressionPolicy, DatasetPolicy, PoolPolicy, WritePolicy};
use cenote_block::{Prepared, ReadContext};
use cenote_codec::checksum::ChecksumAlgorithm;
use cenote_codec::compress::{Compression, ZstdLevel};
use cenote_ondisk::blkptr::{BlockPtr, Protection};
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::endian::Endian;

use crate::blocks::gather_set;
use crate::pool::Pool;
use crate::pools;

/// Forms in which our bytes equal OpenZFS's.
const EXACT: [&str; 6] =
    ["lz4", "embedded lz4", "lzjb", "embedded lzjb", "zle", "metadata left as it is"];
/// While it creates a pool with distributed spares, OpenZFS uses the sector size of the spares as
/// the smallest allocation, instead of a row of the dRAID as after an import.
const MADE_WITH_SPARES: &str = "g-draid";
/// A pool without the features for lz4 and embedded data.
const OLD: &str = "g-legacy";

/// Number of blocks examined, and of those that we would store identically.
type Tally = BTreeMap<String, [u64; 2]>;

#[test]
fn blocks_are_stored_as_openzfs_stores_them() {
    let mut all = Tally::new();
    for golden in pools().into_iter().filter(|golden| golden.name() != MADE_WITH_SPARES) {
        let features = PoolPolicy {
            has_embedded_data: golden.name() != OLD,
            has_lz4: golden.name() != OLD,
            has_hole_birth: true,
        };
        let tally = cenote_rt::block_on(2, async {
            let pool = Pool::open(&golden.devices()).await;
            let mut blocks = Vec::new();
            for set in pool.sets().await.into_values() {
                blocks.push(*set.root());
                gather_set(&set, &mut blocks).await;
            }
            tally(&pool, features, &blocks).await
        })
        .unwrap();
        for (form, [seen, equal]) in tally {
            if seen != equal {
                println!("{}: {form}: {equal} of {seen}", golden.name());
            }
            let row = all.entry(form).or_default();
            (row[0], row[1]) = (row[0] + seen, row[1] + equal);
        }
    }
    for (form, [seen, equal]) in &all {
        println!("{form}: {equal} of {seen} equal");
        if EXACT.contains(&&**form) {
            assert_eq!(equal, seen, "{form}");
        }
    }
}

async fn tally(pool: &Pool, features: PoolPolicy, blocks: &[BlockPtr]) -> Tally {
    let mut tally = Tally::new();
    let mut seen = BTreeSet::new();
    for bp in blocks {
        let Some((form, mut policy)) = form(bp, features) else { continue };
        if !seen.insert(bp.to_bytes()) {
            continue;
        }
        if bp.compression() == Some(CompressionType::Zstd) {
            // Behind the length in front, the level.
            let stored = pool.store.read_raw(bp, &cenote_block::Grounds::Offline).await.unwrap();
            let level = ZstdLevel::from_id(stored[4]).unwrap();
            policy.compression = CompressionPolicy::With(Compression::Zstd, level);
        }
        let Ok(data) = pool.store.read(bp, &ReadContext::default()).await else { continue };
        let is_equal = match pool.store.prepare(&data, &policy).await.unwrap() {
            Prepared::Zeros => false,
            Prepared::Embedded { payload, compression } => {
                let stored = bp.embedded_payload();
                compression == bp.compression_id()
                    && stored.is_some_and(|stored| stored.as_bytes() == payload)
            }
            Prepared::Stored(stored) => {
                !bp.is_embedded()
                    && stored.compression == bp.compression_id()
                    && stored.data.len() as u64 == bp.psize()
                    && (stored.checksum == bp.checksum() || is_library(bp))
            }
        };
        let row = tally.entry(form).or_default();
        (row[0], row[1]) = (row[0] + 1, row[1] + u64::from(is_equal));
    }
    tally
}

/// Compressed by libraries of other versions: only the size can be compared.
fn is_library(bp: &BlockPtr) -> bool {
    matches!(bp.compression(), Some(CompressionType::Zstd | CompressionType::Gzip(_)))
}

fn form(bp: &BlockPtr, features: PoolPolicy) -> Option<(String, WritePolicy)> {
    let is_ours = bp.endian() == Endian::Little && bp.protection() == Protection::Unencrypted;
    if bp.is_hole() || bp.is_redacted() || !is_ours {
        return None;
    }
    let (object_type, level) = (bp.object_type(), bp.level());
    let spec = BlockSpec::new(object_type, level);
    let policy = WritePolicy::of(&features, &DatasetPolicy::DEFAULT, &spec)?;
    let name = match bp.compression()? {
        CompressionType::Off if level > 0 || object_type.is_metadata() => "metadata left as it is",
        CompressionType::Off => return None,
        other => other.name(),
    };
    let function = match Compression::from_id(bp.compression_id())? {
        Compression::Off if features.has_lz4 => Compression::Lz4,
        Compression::Off => Compression::Lzjb,
        other => other,
    };
    let compression = CompressionPolicy::With(function, ZstdLevel::DEFAULT);
    let checksum = if bp.is_embedded() {
        ChecksumAlgorithm::Fletcher4
    } else {
        ChecksumAlgorithm::from_id(bp.checksum_id())?
    };
    let name = if bp.is_embedded() { format!("embedded {name}") } else { name.to_owned() };
    Some((name, WritePolicy { compression, checksum, ..policy }))
}
