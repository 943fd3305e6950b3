//! Without verification of checksums damage gives wrong bytes: so the tests that forbid wrong bytes
//! do see the blocks that they damage. Alone in its process, because the switch is global.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[expect(dead_code, reason = "shared with the tests of golden pools, which use all of it")]
#[path = "golden/pool.rs"]
mod pool;

use std::path::Path;
use std::sync::Arc;

use cenote_device::{Device, MemoryDevice};
use cenote_rt::tunables::VERIFY_CHECKSUMS;
use cenote_testkit::unpack;

use pool::Pool;

#[test]
fn damage_passes_where_nothing_verifies() {
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
                let range = pool.store.leaf_ranges(&bp)[0];
                let path = pool.store.tree().leaf(range.leaf).path();
                let disk = disks.iter().find(|disk| disk.info().path == path).unwrap();
                let at = (range.offset + bp.psize() / 3) as usize;
                disk.edit(|bytes| bytes[at] ^= 1);
                pool.store.clear_cache();
                if let Ok(block) = dnode.read_block(0, 0).await {
                    assert!(
                        block.is_some_and(|block| block[..] == right[..]),
                        "verified and still wrong"
                    );
                }
                VERIFY_CHECKSUMS.set(0).unwrap();
                pool.store.clear_cache();
                // Compressed bytes may also fail to decompress.
                let read = dnode.read_block(0, 0).await;
                VERIFY_CHECKSUMS.set(1).unwrap();
                wrong += u64::from(
                    read.is_ok_and(|block| block.is_some_and(|block| block[..] != right[..])),
                );
                disk.edit(|bytes| bytes[at] ^= 1);
                pool.store.clear_cache();
            }
        }
        assert!(wrong > 2, "{wrong} wrong blocks");
    })
    .unwrap();
}
