//! Log blocks of which a power cut kept a part.

use std::sync::Arc;

use cenote_device::{Device, ImageDevice};
use cenote_dmu::ObjSet;
use cenote_engine::zil::VolumeReplayer;
use cenote_ondisk::zil::ZilHeader;
use cenote_poolkit::pools;
use cenote_rt::{Buf, block_on};

use crate::layout::Layout;
use crate::model::Op;
use crate::{model, volume};

/// Returns the parts of the first block of the log of "tank/v", each with the number of its device.
async fn parts_of_log(devices: &[Arc<ImageDevice>]) -> Vec<(usize, u64, u64)> {
    let pool = pools::open_copy(devices).await.unwrap();
    let dataset = pool.dataset("tank/v").await.unwrap();
    let store = Arc::clone(pool.store());
    let set = ObjSet::open(store, &dataset.phys().bp, None, dataset.object()).await.unwrap();
    let header = ZilHeader::decode(&set.phys().zil_header).unwrap();
    let ranges = pool.store().leaf_ranges(&header.log);
    let part = |range: &cenote_vdev::LeafRange| {
        let path = pool.store().tree().leaf(range.leaf).path().to_owned();
        let number = devices.iter().position(|device| device.info().path == path).unwrap();
        (number, range.offset, range.len)
    };
    ranges.iter().map(part).collect()
}

/// A power cut keeps a log block on some leaves only. The import claims it, and then loses one of
/// those.
#[test]
fn claimed_log_blocks_have_their_redundancy() {
    for layout in [Layout::Mirror, Layout::Raidz1] {
        block_on(2, async {
            let (engine, devices) = layout.builder(7).create_in_memory().await;
            let volume = volume(&engine, "tank/v").await.unwrap();
            for number in 0..5 {
                let op = Op { first: number, count: 1, salt: Some(number + 1) };
                let place = volume.apply(&engine, op, false).await.unwrap();
                volume.commit(&engine, place).await.unwrap();
            }
            let before = model::read(&volume.head).await.unwrap();
            drop((engine, volume));
            let parts = parts_of_log(&devices).await;
            let (torn, offset, len) = parts[0];
            let other = parts.iter().map(|part| part.0).find(|number| *number != torn).unwrap();
            let zeros = vec![Buf::from(vec![0; len as usize])];
            devices[torn].write(offset, zeros).await.unwrap();

            let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
            for (_, leaf) in engine.tree().leaves() {
                let stats = leaf.stats();
                assert_eq!((stats.checksum_errors, stats.repairs), (0, 0), "{layout:?}");
            }
            drop(engine);
            let left: Vec<_> = (0..devices.len()).filter(|number| *number != other).collect();
            let left: Vec<_> = left.iter().map(|number| Arc::clone(&devices[*number])).collect();
            let engine = pools::open(pools::as_devices(&left)).await.unwrap();
            let head = engine.head("tank/v").await.unwrap();
            let replayed = engine.intent_logs().replay(&head, &VolumeReplayer).await.unwrap();
            let replayed = replayed.expect("there is a log");
            assert!(replayed.failure.is_none(), "{layout:?}: {replayed:?}");
            assert_eq!(model::read(&head).await.unwrap(), before, "{layout:?}");
            engine.export().await.unwrap();
        })
        .unwrap();
    }
}
