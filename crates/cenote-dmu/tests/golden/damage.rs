//! A pool of gang blocks in memory, intact and damaged.
//!
//! The pool is in `tests/fixtures/gang`, made by OpenZFS's own engine: two disks without redundancy
//! except for the two or three copies of metadata, most blocks split into gang blocks.

use std::path::Path;
use std::sync::Arc;

use cenote_block::{BlockError, ReadContext};
use cenote_device::{Device, MemoryDevice};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::{Kind, Rng};
use cenote_testkit::unpack;

use crate::blocks::{compare_ways, gather_set};
use crate::pool::Pool;

/// The disks of the gang pool.
fn disks() -> Vec<Arc<MemoryDevice>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gang");
    let disk = |name: &str| {
        let bytes = unpack::decompress(&folder.join(format!("{name}.zst")));
        Arc::new(MemoryDevice::new(name, bytes))
    };
    vec![disk("d0"), disk("d1")]
}

async fn open(disks: &[Arc<MemoryDevice>]) -> (Pool, Vec<BlockPtr>) {
    let devices: Vec<Arc<dyn Device>> =
        disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
    let pool = Pool::over(&devices).await;
    let mut all = Vec::new();
    for set in pool.sets().await.into_values() {
        all.push(*set.root());
        gather_set(&set, &mut all).await;
    }
    all.retain(|bp| bp.dva_count() > 0);
    (pool, all)
}

#[test]
fn gang_blocks_are_read_and_scrubbed() {
    cenote_rt::block_on(2, async {
        let (pool, all) = open(&disks()).await;
        for bp in &all {
            let report = pool.store.scrub(bp, &cenote_block::Grounds::Offline).await.unwrap();
            assert!(report.is_clean(), "{}: {report:?}", bp.verbose());
            // A member is a block of its own: the sums of stored bytes agree.
            assert_eq!(
                pool.store.read_raw(bp, &cenote_block::Grounds::Offline).await.unwrap().len()
                    as u64,
                bp.psize()
            );
        }
        let gangs = all.iter().filter(|bp| bp.is_gang()).count();
        assert!(gangs >= 10, "{gangs} gang blocks");
        for set in pool.sets().await.into_values() {
            let mut objects = set.dnodes(0);
            while let Some(dnode) = objects.next().await {
                compare_ways(&dnode.unwrap()).await.unwrap();
            }
        }
    })
    .unwrap();
}

#[test]
fn damage_gives_the_right_bytes_or_names_every_copy() {
    let disks = disks();
    cenote_rt::block_on(2, async {
        let (pool, all) = open(&disks).await;
        let mut rng = Rng::seeded(7);
        let (mut survived, mut lost) = (0, 0);
        for _ in 0..600 {
            let bp = &all[rng.below(all.len() as u64) as usize];
            let context = ReadContext::default();
            pool.store.clear_cache();
            let right = pool.store.read(bp, &context).await.unwrap();
            pool.store.clear_cache();
            // Damages one bit of each chosen copy; for a gang block, of its header.
            let mask = rng.below(1 << bp.dva_count());
            let mut hits = Vec::new();
            for (index, range) in pool.store.leaf_ranges(bp).into_iter().enumerate() {
                if mask >> index & 1 == 1 {
                    let leaf = pool.store.tree().leaf(range.leaf).path().to_owned();
                    let bit = rng.below(range.len.min(bp.psize()) * 8);
                    flip(&disks, &leaf, range.offset * 8 + bit);
                    hits.push((leaf, range.offset, bit));
                }
            }
            let is_lost = hits.len() == bp.dva_count();
            match pool.store.read(bp, &context).await {
                Ok(bytes) => {
                    assert!(bytes[..] == right[..], "wrong bytes: {}", bp.verbose());
                    // A bit behind the pointers of a small gang header may damage nothing.
                    assert!(!is_lost, "a lost block was read: {}", bp.verbose());
                    survived += 1;
                }
                Err(error) => {
                    assert!(is_lost, "{error}");
                    assert_eq!(error.kind(), Kind::Checksum, "{error}");
                    let Some(BlockError::AllCopiesBad { copies }) = error.cause() else {
                        panic!("{error}")
                    };
                    for (copy, (leaf, offset, _)) in copies.iter().zip(&hits) {
                        assert_eq!((&copy.bad[0].path, copy.bad[0].offset), (leaf, *offset));
                        assert!(error.to_string().contains(leaf), "{error}");
                    }
                    lost += 1;
                }
            }
            let report = pool.store.scrub(bp, &cenote_block::Grounds::Offline).await.unwrap();
            assert_eq!(report.is_readable(), !is_lost);
            let named: Vec<_> =
                report.bad.iter().map(|bad| (&bad.child.path, bad.child.offset)).collect();
            let wanted: Vec<_> = hits.iter().map(|(leaf, offset, _)| (leaf, *offset)).collect();
            assert_eq!(named, wanted, "{}", bp.verbose());
            for (leaf, offset, bit) in &hits {
                flip(&disks, leaf, offset * 8 + bit);
            }
        }
        assert!(survived > 100 && lost > 100, "{survived} survived, {lost} lost");
        assert!(pool.store.stats().blocks_recovered > 50);
    })
    .unwrap();
}

fn flip(disks: &[Arc<MemoryDevice>], path: &str, bit: u64) {
    let disk = disks.iter().find(|disk| disk.info().path == path).unwrap();
    disk.edit(|bytes| bytes[(bit / 8) as usize] ^= 1 << (bit % 8));
}
