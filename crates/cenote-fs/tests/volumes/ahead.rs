//! Device reads caused by reading and writing volumes, as counted by the block store.

use std::sync::Arc;
use std::time::Duration;

use cenote_engine::Engine;
use cenote_fs::{NewVolume, Volume, WritableVolume};
use cenote_ondisk::zap::Value;
use cenote_poolkit::PoolBuilder;
use cenote_rt::{Buf, Rng, simulate, sleep};

const BLOCK: u64 = 8 << 10;
const BLOCKS: u64 = 2048;
const OFF: u64 = 2;

/// Returns the number of blocks read, after all reads have ended.
async fn reads(engine: &Engine) -> u64 {
    let count = || engine.store().stats().blocks_read;
    loop {
        let before = count();
        for _ in 0..50 {
            sleep(Duration::from_micros(1)).await;
        }
        if count() == before {
            return before;
        }
    }
}

async fn read(volume: &WritableVolume, offset: u64, len: u64) {
    assert_eq!(volume.read(offset, len as usize).await.unwrap().len() as u64, len);
}

/// Returns a volume of noise, on disk.
async fn noise(engine: &Arc<Engine>) -> Arc<WritableVolume> {
    let new = NewVolume::new("tank/v", BLOCK * BLOCKS).with_block_size(BLOCK);
    let new = new.with("compression", Value::U64(OFF));
    let volume = new.create(engine).await.unwrap();
    let mut bytes = vec![0; (BLOCK * BLOCKS) as usize];
    Rng::seeded(1).fill(&mut bytes);
    volume.write(0, vec![Buf::from(bytes)], false).await.unwrap();
    engine.sync().await.unwrap();
    volume
}

#[test]
fn prefetch_works_in_volume_snapshots() {
    simulate(1, async {
        // Enough space for the volume's reservation besides a snapshot.
        let builder = PoolBuilder::file_system().with_size(256 << 20);
        let (engine, _devices) = builder.create_in_memory().await;
        drop(noise(&engine).await);
        engine.snapshots().create(vec!["tank/v@s".into()]).await.unwrap();
        let snapshot = Volume::open_snapshot(&engine, "tank/v@s").await.unwrap();
        engine.store().clear_cache();
        let mut ahead = Vec::new();
        let first = reads(&engine).await;
        for offset in (0..BLOCK * BLOCKS).step_by(16 << 10) {
            let bytes = snapshot.read_at(offset, 16 << 10).await.unwrap();
            assert_eq!(bytes.len(), 16 << 10);
            let needed = first + offset / BLOCK + 2;
            ahead.push(reads(&engine).await.saturating_sub(needed));
        }
        let most = ahead.iter().max().unwrap();
        assert!((400..=1100).contains(most), "{most} blocks ahead at most");
        // In addition to indirect blocks.
        let all = reads(&engine).await - first;
        assert!((BLOCKS..BLOCKS + 8).contains(&all), "{all} blocks, each once");
        // Random reads are not read ahead.
        engine.store().clear_cache();
        snapshot.read_at(0, 512).await.unwrap();
        let (before, mut rng) = (reads(&engine).await, Rng::seeded(5));
        for _ in 0..100 {
            snapshot.read_at(rng.below(BLOCKS) * BLOCK, 512).await.unwrap();
        }
        let more = reads(&engine).await - before;
        assert!(more <= 140, "{more} blocks for 100");
    })
    .unwrap();
}

#[test]
fn prefetch_reads_sequential_volumes_ahead_and_partial_writes_read_their_edges() {
    simulate(1, async {
        let (engine, _devices) = PoolBuilder::file_system().create_in_memory().await;
        let volume = noise(&engine).await;
        engine.store().clear_cache();
        read(&volume, 0, 16 << 10).await;
        let (first, mut most) = (reads(&engine).await, 0);
        for offset in (16 << 10..BLOCK * BLOCKS).step_by(16 << 10) {
            read(&volume, offset, 16 << 10).await;
            let needed = first + offset / BLOCK;
            most = most.max(reads(&engine).await.saturating_sub(needed));
        }
        // One more indirect block than for the beginning.
        assert_eq!(reads(&engine).await, first + BLOCKS - 2 + 1, "each block once");
        assert!((400..=1100).contains(&most), "{most} blocks ahead at most");

        for (offset, len, expected) in [
            (BLOCK, 3 * BLOCK, 0),
            (100 * BLOCK + 512, 4 * BLOCK, 2),
            (200 * BLOCK, BLOCK + 512, 1),
            (300 * BLOCK + 512, 1024, 1),
        ] {
            engine.store().clear_cache();
            // The path to the blocks, and reads of the data set before the write.
            read(&volume, 900 * BLOCK, 1).await;
            let whole = Buf::from(vec![8; BLOCK as usize]);
            volume.write(901 * BLOCK, vec![whole], false).await.unwrap();
            let before = reads(&engine).await;
            let bytes = Buf::from(vec![9; len as usize]);
            volume.write(offset, vec![bytes], false).await.unwrap();
            assert_eq!(reads(&engine).await - before, expected, "{len} bytes at {offset}");
        }
    })
    .unwrap();
}
