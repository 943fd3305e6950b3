//! A report from the field: a sparse image of a virtual machine, 16 GiB, that takes 8.42G in a
//! compressed dataset, was copied to volumes with lz4, leaving out its zero blocks. With blocks of
//! 4K the volume refers to 14.6G, with blocks of 128K to 8.42G; their reservations make them use
//! 17.0G and 16.0G.
//!
//! Here the image is scaled down by [`SCALE`]: 88 % of its 4K blocks are not zero, and these
//! compress 1.7:1 in records of 128K.

use std::sync::Arc;

use cenote_dmu::Dnode;
use cenote_fs::{NewVolume, Volume, WritableVolume};
use cenote_ondisk::blkptr::SECTOR_SIZE;
use cenote_ondisk::zap::Value;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{Buf, BufMut, Rng, block_on};

/// Factor by which everything is smaller than in the report.
const SCALE: u64 = 128;
const SIZE: u64 = (16 << 30) / SCALE;
const PAGE: usize = 4096;
/// Incompressible bytes of a page that is not zero.
const NOISE: usize = 2340;
const GIB: f64 = (1_u64 << 30) as f64;

/// Returns a page of the image; `None` if it is zero. Pages come in clusters, like files.
fn page(number: u64) -> Option<BufMut> {
    const CLUSTER: u64 = 100;
    let share = number % CLUSTER * 100 / CLUSTER;
    if share >= 88 {
        return None;
    }
    let mut bytes = BufMut::zeroed(PAGE);
    let mut rng = Rng::seeded(number);
    rng.fill(&mut bytes[..NOISE]);
    let text = b"what repeats ";
    for (at, byte) in bytes[NOISE..].iter_mut().enumerate() {
        *byte = text[at % text.len()];
    }
    Some(bytes)
}

async fn copy(volume: &WritableVolume) {
    const RUN: u64 = 128 << 10;
    for start in (0..SIZE).step_by(RUN as usize) {
        // Page by page, without those of zeros; adjacent pages are one request.
        let mut run: (u64, Vec<Buf>) = (start, Vec::new());
        for offset in (start..start + RUN).step_by(PAGE) {
            if let Some(bytes) = page(offset / PAGE as u64) {
                run.1.push(bytes.freeze());
                continue;
            }
            let (at, bufs) = std::mem::take(&mut run);
            volume.write(at, bufs, false).await.unwrap();
            run.0 = offset + PAGE as u64;
        }
        volume.write(run.0, run.1, false).await.unwrap();
    }
}

/// Sums over the blocks of one level.
#[derive(Debug, Default, Clone, Copy)]
struct Level {
    blocks: u64,
    logical: u64,
    physical: u64,
    allocated: u64,
}

async fn levels(dnode: &Arc<Dnode>) -> Vec<Level> {
    let geometry = dnode.geometry();
    let mut levels = vec![Level::default(); usize::from(geometry.levels)];
    for (level, sums) in (0..).zip(levels.iter_mut()) {
        for number in 0..=geometry.ancestor(geometry.max_block, 0, level) {
            let bp = dnode.block_pointer(level, number).await.unwrap();
            let Some(bp) = bp.filter(|bp| !bp.is_hole()) else { continue };
            sums.blocks += 1;
            sums.logical += bp.lsize();
            sums.physical += bp.psize();
            sums.allocated += bp.dvas().map(|dva| dva.asize).sum::<u64>();
        }
    }
    levels
}

#[test]
fn volblocksize_determines_the_space_of_an_image() {
    block_on(2, async {
        let builder = PoolBuilder::file_system().with_size(512 << 20);
        let (engine, devices) = builder.create_in_memory().await;
        // At the time of the report indirect blocks had 16K; now they have 128K.
        let volumes = [
            ("tank/fine", 4 << 10, 14, 14.6),
            ("tank/fine-now", 4 << 10, 17, 14.4),
            ("tank/coarse", 128 << 10, 14, 8.42),
        ];
        for (name, block_size, indirect_shift, _) in volumes {
            let new = NewVolume::new(name, SIZE).with_block_size(block_size).sparse();
            let new = NewVolume { indirect_shift, ..new }.with("compression", Value::U64(15));
            copy(&new.create(&engine).await.unwrap()).await;
        }
        engine.export().await.unwrap();
        drop(engine);
        let pool = pools::open_copy(&devices).await.unwrap();
        let mut referenced = Vec::new();
        for (name, .., reported) in volumes {
            let dataset = pool.dataset(name).await.unwrap();
            let volume = Volume::open(&dataset).await.unwrap();
            for (level, sums) in levels(volume.dnode()).await.iter().enumerate() {
                println!("{name} level {level}: {sums:?}");
            }
            let bytes = pools::number_property(&dataset, "referenced").await;
            assert!(bytes.is_multiple_of(SECTOR_SIZE));
            let scaled = (bytes * SCALE) as f64 / GIB;
            println!("{name}: REFER {bytes}, times {SCALE}: {scaled:.2}G, expected {reported}G");
            assert!((scaled / reported - 1.0).abs() < 0.01, "{name}: {scaled:.2}G");
            referenced.push(scaled);
            // The contents equal the image.
            for number in (0..SIZE / PAGE as u64).step_by(257) {
                let found = volume.read_at(number * PAGE as u64, PAGE).await.unwrap();
                let expected = page(number).unwrap_or_else(|| BufMut::zeroed(PAGE));
                assert!(*found == *expected, "{name}, page {number}");
            }
        }
        let ratio = referenced[2] / referenced[0];
        println!("{ratio:.4}, reported {:.4}", 8.42 / 14.6);
        assert!((ratio / (8.42 / 14.6) - 1.0).abs() < 0.01, "{ratio}");
    })
    .unwrap();
}
