//! Tests with checksum verification switched off.
//!
//! Damage then gives wrong bytes, which proves that the tests that forbid wrong bytes do read the
//! damaged blocks. And garbage reaches the structures in objects, which must end in errors: no
//! panic, no loop. Runs in a process of its own, because the switch is global.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cenote_device::{Device, MemoryDevice};
use cenote_dmu::{Bpobj, Deadlist, Dnode, ObjSet, SpaceMap, Zap, read_nvlist};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::spacemap::Geometry;
use cenote_rt::tunables::VERIFY_CHECKSUMS;
use cenote_rt::{Result, Rng};
use cenote_testkit::unpack;

use crate::pool::Pool;

/// Variable of the process that runs only this test.
const ALONE: &str = "CENOTE_TEST_ALONE";
/// Name of the test.
const TEST: &str = "unverified::damage_passes_without_verification_and_ends_in_errors";

#[test]
fn damage_passes_without_verification_and_ends_in_errors() {
    if std::env::var_os(ALONE).is_none() {
        let said = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        // Without a test of that name the process would run none, and succeed.
        assert!(said.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gang");
    let disk = |name: &str| {
        let bytes = unpack::decompress(&folder.join(format!("{name}.zst")));
        Arc::new(MemoryDevice::new(name, bytes))
    };
    let disks = [disk("d0"), disk("d1")];
    let devices: Vec<Arc<dyn Device>> =
        disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
    cenote_rt::block_on(2, async {
        let pool = Pool::over(&devices).await;
        wrong_bytes_come_through(&pool, &disks).await;
        VERIFY_CHECKSUMS.set(0).unwrap();
        garbage_ends_in_errors(&pool, &disks).await;
    })
    .unwrap();
}

/// Flips a bit in the first block of each object: an error while checksums are verified, wrong
/// bytes otherwise.
async fn wrong_bytes_come_through(pool: &Pool, disks: &[Arc<MemoryDevice>]) {
    let mut wrong = 0;
    for set in pool.sets().await.into_values() {
        let mut objects = set.dnodes(0);
        while let Some(dnode) = objects.next().await {
            let dnode = dnode.unwrap();
            let Some(bp) = dnode.block_pointer(0, 0).await.unwrap() else { continue };
            if bp.is_embedded() || bp.is_gang() {
                continue;
            }
            let right = dnode.read_block(0, 0).await.unwrap().unwrap().to_vec();
            flip(pool, disks, &bp, 0, bp.psize() * 8 / 3);
            pool.store.clear_cache();
            if let Ok(block) = dnode.read_block(0, 0).await {
                assert!(block.unwrap()[..] == right[..], "verified and still wrong");
            }
            VERIFY_CHECKSUMS.set(0).unwrap();
            pool.store.clear_cache();
            // Compressed bytes may also fail to decompress.
            let read = dnode.read_block(0, 0).await;
            VERIFY_CHECKSUMS.set(1).unwrap();
            wrong += u64::from(read.is_ok_and(|block| block.unwrap()[..] != right[..]));
            flip(pool, disks, &bp, 0, bp.psize() * 8 / 3);
            pool.store.clear_cache();
        }
    }
    assert!(wrong > 2, "{wrong} wrong blocks");
}

/// Flips bits in blocks of the MOS, which are not detected, and reads every structure in it.
async fn garbage_ends_in_errors(pool: &Pool, disks: &[Arc<MemoryDevice>]) {
    let mut pointers = Vec::new();
    let mut objects = pool.mos.dnodes(0);
    while let Some(dnode) = objects.next().await {
        let dnode = dnode.unwrap();
        for blkid in 0..dnode.block_count().min(8) {
            pointers.extend(dnode.block_pointer(0, blkid).await.unwrap());
        }
    }
    let meta = pool.mos.meta_dnode();
    for blkid in 0..meta.block_count() {
        pointers.extend(meta.block_pointer(0, blkid).await.unwrap());
    }
    pointers.retain(|bp| bp.dva_count() > 0);
    let mut rng = Rng::seeded(11);
    let mut errors = 0;
    for _ in 0..400 {
        let bp = &pointers[rng.below(pointers.len() as u64) as usize];
        let bits: Vec<u64> = (0..=rng.below(4)).map(|_| rng.below(bp.psize() * 8)).collect();
        // Without verification the first copy is the one that is read.
        for bit in &bits {
            flip(pool, disks, bp, 0, *bit);
        }
        pool.store.clear_cache();
        errors += read_everything(pool).await;
        for bit in &bits {
            flip(pool, disks, bp, 0, *bit);
        }
    }
    assert!(errors > 100, "{errors} errors");
}

/// Reads all structures of the MOS and counts the errors.
async fn read_everything(pool: &Pool) -> u64 {
    let mut errors = 0;
    let mut objects = pool.mos.dnodes(0);
    while let Some(dnode) = objects.next().await {
        let Ok(dnode) = dnode else {
            errors += 1;
            continue;
        };
        errors += u64::from(read_object(&pool.mos, &dnode).await.is_err());
    }
    errors
}

async fn read_object(mos: &Arc<ObjSet>, dnode: &Arc<Dnode>) -> Result<()> {
    let object = dnode.object();
    match dnode.phys().object_type {
        ObjectType::SPACE_MAP => {
            let map = SpaceMap::open(mos, object).await?;
            let geometry = Geometry { start: 0, size: u64::MAX, shift: 9 };
            map.for_each(geometry, |_| Ok(())).await?;
        }
        ObjectType::BPOBJ => Bpobj::open(mos, object).await?.for_each(|_| Ok(())).await?,
        ObjectType::DEADLIST => Deadlist::open(mos, object).await?.for_each(|_| Ok(())).await?,
        ObjectType::PACKED_NVLIST => drop(read_nvlist(mos, object).await?),
        kind if kind.is_zap() => {
            let zap = Zap::of(Arc::clone(dnode)).await?;
            let mut entries = zap.entries();
            let mut first_error = None;
            // A walk continues behind damage, and must end.
            for step in 0.. {
                assert!(step < 100_000, "object {object}: endless walk");
                match entries.next().await {
                    Ok(None) => break,
                    Ok(Some(entry)) => {
                        drop(zap.lookup_words(entry.key.words().unwrap_or(&[1])).await);
                    }
                    Err(error) => first_error = Some(error),
                }
            }
            zap.stats().await?;
            first_error.map_or(Ok(()), Err)?;
        }
        _ => {
            let mut stream = dnode.stream(0..dnode.geometry().byte_count().min(1 << 20));
            while let Some(extent) = stream.next().await {
                extent?;
            }
            dnode.next_hole(0).await?;
        }
    }
    Ok(())
}

/// Flips a bit of one copy of a block.
fn flip(pool: &Pool, disks: &[Arc<MemoryDevice>], bp: &BlockPtr, copy: usize, bit: u64) {
    let range = pool.store.leaf_ranges(bp)[copy];
    let path = pool.store.tree().leaf(range.leaf).path();
    let disk = disks.iter().find(|disk| disk.info().path == path).unwrap();
    let bit = range.offset * 8 + bit % (range.len * 8);
    disk.edit(|bytes| bytes[(bit / 8) as usize] ^= 1 << (bit % 8));
}
