//! The space of volumes: reservations, and behaviour in a full pool.

use std::time::Duration;

use cenote_fs::{NewVolume, WritableVolume};
use cenote_ondisk::zap::Value;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{BufMut, Kind, Result, Rng, block_on, simulate};

/// Writes noise over a volume, block by block.
async fn fill(volume: &WritableVolume, salt: u64) -> Result<()> {
    let mut rng = Rng::seeded(salt);
    for offset in (0..volume.size()).step_by(256 << 10) {
        let mut bytes = BufMut::zeroed((volume.size() - offset).min(256 << 10) as usize);
        rng.fill(&mut bytes);
        volume.write(offset, vec![bytes.freeze()], false).await?;
    }
    Ok(())
}

/// A volume with its full reservation can be overwritten entirely, however full the pool is. A
/// sparse volume gets an error, and is usable again after a discard.
#[test]
fn refreservation_guarantees_the_space_of_a_volume() {
    block_on(2, async {
        let (engine, devices) = PoolBuilder::file_system().create_in_memory().await;
        let kept = NewVolume::new("tank/kept", 12 << 20).create(&engine).await.unwrap();
        let sparse = NewVolume::new("tank/sparse", 256 << 20).sparse();
        let sparse = sparse.create(&engine).await.unwrap();
        let error = fill(&sparse, 1).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace);
        assert_eq!(sparse.write_zeroes(0, 4096, false, false).await.map_err(|e| e.kind()), Ok(()));
        fill(&kept, 2).await.unwrap();
        engine.sync().await.unwrap();
        let error = fill(&sparse, 3).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace);
        sparse.discard(0, sparse.size()).await.unwrap();
        for _ in 0..4 {
            engine.sync().await.unwrap();
        }
        let mut bytes = BufMut::zeroed(1 << 20);
        Rng::seeded(4).fill(&mut bytes);
        let bytes = bytes.freeze();
        sparse.write(5 << 20, vec![bytes.clone()], true).await.unwrap();
        assert!(*sparse.read(5 << 20, 1 << 20).await.unwrap() == *bytes);
        engine.export().await.unwrap();
        pools::judge_devices(&devices, "full", &[]);
    })
    .unwrap();
}

/// Changes in memory stay within their limit without a sync task, and writers are not delayed.
#[test]
fn zfs_dirty_data_max_bounds_memory() {
    simulate(1, async {
        let (engine, _devices) =
            PoolBuilder::file_system().with_size(1 << 30).create_in_memory().await;
        let volume = NewVolume::new("tank/v", 32 << 20).sparse();
        let volume = volume.with("compression", Value::U64(2)).create(&engine).await.unwrap();
        cenote_rt::tunables::DIRTY_DATA_MAX.set(8 << 20).unwrap();
        let (txg, start) = (engine.open_txg(), cenote_rt::monotonic());
        for round in 0..2 {
            fill(&volume, round).await.unwrap();
            assert!(engine.dirty_bytes() <= 9 << 20, "{}", engine.dirty_bytes());
        }
        let txgs = engine.open_txg() - txg;
        assert!(txgs >= 6, "{txgs}");
        let time = cenote_rt::monotonic().saturating_sub(start);
        assert!(time < Duration::from_millis(1), "{time:?}");
    })
    .unwrap();
}
