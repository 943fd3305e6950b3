//! The log of a volume: records with data, and records that point at it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cenote_block::alloc::Class;
use cenote_dmu::{Tx, TxResult};
use cenote_engine::zil::{Operation, Replayer, VolumeReplayer};
use cenote_fs::{NewVolume, Volume, WritableVolume};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_ondisk::zil::{Body, ZilHeader};
use cenote_oracle::Libzpool;
use cenote_poolkit::records::{CrashedPool, RecordLines};
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{Buf, BufMut, Rng, block_on};
use cenote_testkit::manifest::sha256;

const BLOCK: u64 = 16 << 10;
const SIZE: u64 = 4 << 20;

/// Replays, and counts records with data in the log and records that point at data.
#[derive(Default)]
struct Notes {
    inside: Mutex<usize>,
    pointed_at: Mutex<BTreeMap<u64, BlockPtr>>,
}

impl Replayer for Notes {
    fn replay(&self, tx: &mut Tx<'_>, operation: &Operation<'_>) -> TxResult<()> {
        VolumeReplayer.replay(tx, operation)?;
        match &operation.body {
            Body::Write { offset, bp, data: None, .. } => {
                self.pointed_at.lock().unwrap().insert(offset / BLOCK, *bp);
            }
            _ => *self.inside.lock().unwrap() += 1,
        }
        Ok(())
    }
}

fn noise(seed: u64, len: usize) -> Buf {
    let mut bytes = BufMut::zeroed(len);
    Rng::seeded(seed).fill(&mut bytes);
    bytes.freeze()
}

/// Performs small and large durable writes, and returns the volume's contents.
async fn write(volume: &WritableVolume) -> Vec<u8> {
    // The first sync creates the log.
    volume.write(0, vec![noise(0, 512)], true).await.unwrap();
    volume.engine().sync().await.unwrap();
    write_again(volume).await
}

/// Like [`write`], for a volume that already has a log.
async fn write_again(volume: &WritableVolume) -> Vec<u8> {
    let mut model = vec![0; SIZE as usize];
    for round in 0..6_u64 {
        let writes = [
            (round * 8 * BLOCK, 4096),
            (round * 8 * BLOCK + BLOCK, 64 << 10),
            (round * 8 * BLOCK + 6 * BLOCK + 100, 5000),
        ];
        for (offset, len) in writes {
            let data = noise(offset, len);
            model[offset as usize..][..len].copy_from_slice(&data);
            volume.write(offset, vec![data], true).await.unwrap();
        }
    }
    model
}

#[test]
fn logbias_decides_where_large_writes_are_logged() {
    block_on(2, async {
        // (has a log device, logbias, (records with data, records that point at it)). Records of a
        // part of a block have the data.
        let cases =
            [(false, 0, (12, 24)), (true, 0, (18, 0)), (false, 1, (12, 24)), (true, 1, (12, 24))];
        for (has_slog, bias, expected) in cases {
            let builder = PoolBuilder::file_system().with_logs(has_slog.into());
            let (engine, devices) = builder.create_in_memory().await;
            let new = NewVolume::new("tank/v", SIZE).with_block_size(BLOCK).sparse();
            let volume = new.with("logbias", Value::U64(bias)).create(&engine).await.unwrap();
            let model = write(&volume).await;

            // The state after a crash.
            let left = pools::devices(pools::images_of(&devices));
            let name = format!("log-{has_slog}-{bias}");
            pools::judge_devices(&left, &name, &["-iiii"]);
            let after = pools::open(pools::as_devices(&left)).await.unwrap();
            let notes = Arc::new(Notes::default());
            after.intent_logs().set_replayer(ObjSetType::Zvol, Arc::<Notes>::clone(&notes));
            let replayed = after.intent_logs().replay_all().await.unwrap();
            assert!(replayed.len() == 1 && replayed[0].1.failure.is_none(), "{replayed:?}");
            let pointed_at = std::mem::take(&mut *notes.pointed_at.lock().unwrap());
            let inside = *notes.inside.lock().unwrap();
            // Long data may be split.
            assert!(inside >= expected.0 && (inside == 0) == (expected.0 == 0), "{name}: {inside}");
            assert_eq!(pointed_at.len(), expected.1, "{name}");
            let found = WritableVolume::open(&after, "tank/v").await.unwrap();
            assert!(*found.read(0, SIZE as usize).await.unwrap() == *model, "{name}");
            drop(found);
            after.export().await.unwrap();
            assert_eq!(pools::check_space(pools::images_of(&left)).await, Ok(()), "{name}");
            pools::judge_devices(&left, &name, &[]);

            // Without a crash the sync uses the blocks as they are.
            drop(volume);
            engine.export().await.unwrap();
            let pool = pools::open_copy(&devices).await.unwrap();
            let volume = Volume::open(&pool.dataset("tank/v").await.unwrap()).await.unwrap();
            assert!(*volume.read_at(0, SIZE as usize).await.unwrap() == *model, "{name}");
            for (block, bp) in &pointed_at {
                let found = volume.dnode().block_pointer(0, *block).await.unwrap().unwrap();
                assert_eq!(found.dva(0), bp.dva(0), "{name}, block {block}");
            }
            assert_eq!(pools::check_space(pools::images_of(&devices)).await, Ok(()), "{name}");
        }
    })
    .unwrap();
}

/// Writes changes that are in no txg yet: data in records, blocks that are pointed at, text that
/// fits into a block pointer, zeros, a write of many log blocks, freed ranges.
async fn write_everything(volume: &WritableVolume) -> Vec<u8> {
    let mut model = write_again(volume).await;
    let mib = 1 << 20;
    let writes = [
        (mib, noise(1, 600_000)),
        (2 * mib, Buf::from(vec![7; 4 * BLOCK as usize])),
        (3 * mib, noise(2, 4 * BLOCK as usize)),
        (3 * mib + 100, Buf::from(vec![0; 4 * BLOCK as usize])),
    ];
    for (offset, data) in writes {
        model[offset as usize..][..data.len()].copy_from_slice(&data);
        volume.write(offset, vec![data], true).await.unwrap();
    }
    for (offset, len) in [(mib + 3 * BLOCK, 2 * BLOCK), (0, BLOCK)] {
        model[offset as usize..][..len as usize].fill(0);
        volume.discard(offset, len).await.unwrap();
        volume.flush().await.unwrap();
    }
    model
}

/// OpenZFS claims the logs of volumes after a crash, reads the same records as cenote, and replays
/// them.
#[test]
fn openzfs_replays_the_logs_of_volumes() {
    let Some(theirs) = cenote_oracle::libzpool() else { return };
    block_on(2, async {
        replayed_by(&theirs, false).await;
        replayed_by(&theirs, true).await;
    })
    .unwrap();
}

async fn replayed_by(theirs: &Libzpool, has_slog: bool) {
    let names = ["tank/latency", "tank/throughput"];
    let (engine, devices) =
        PoolBuilder::file_system().with_logs(has_slog.into()).create_in_memory().await;
    let mut volumes = Vec::new();
    for (bias, name) in names.into_iter().enumerate() {
        let new = NewVolume::new(name, SIZE).with_block_size(BLOCK).sparse();
        let volume = new.with("logbias", Value::U64(bias as u64)).create(&engine).await.unwrap();
        volume.write(0, vec![noise(0, 512)], true).await.unwrap();
        volumes.push(volume);
    }
    engine.sync().await.unwrap();
    let txg = engine.uberblock().txg;
    let models = [write_everything(&volumes[0]).await, write_everything(&volumes[1]).await];
    assert_eq!(engine.uberblock().txg, txg, "all of it is in the logs only");
    let images = pools::images_of(&devices);

    let left = pools::devices(images.clone());
    let after = pools::open(pools::as_devices(&left)).await.unwrap();
    let mut ours = Vec::new();
    for name in names {
        let head = after.head(name).await.unwrap();
        let blocks = ZilHeader::decode(&head.live().zil_header()).unwrap().claim_blk_seq;
        assert!(blocks > 20, "{blocks}");
        let told = RecordLines::new(VolumeReplayer);
        let replayed = after.intent_logs().replay(&head, &told).await.unwrap().unwrap();
        assert!(replayed.failure.is_none(), "{replayed:?}");
        ours.push(told.lines());
    }
    let left = CrashedPool::of(&images, &format!("replayed-{has_slog}"));
    assert_eq!(left.replay(theirs, &names), ours);
    // Where the data was.
    let places = ["inside", "block", "embedded", "hole"];
    let has = |lines: &[String], place: &str| lines.iter().any(|line| line.contains(place));
    assert_eq!(places.map(|place| has(&ours[0], place)), [true, !has_slog, !has_slog, !has_slog]);
    assert_eq!(places.map(|place| has(&ours[1], place)), [true; 4]);

    let pool = left.judge().await;
    let size = SIZE.to_string();
    let said = theirs.pool("tank", left.path(), &[&["hash", &size], &names[..]].concat());
    for (name, model) in names.into_iter().zip(&models) {
        let volume = Volume::open(&pool.dataset(name).await.unwrap()).await.unwrap();
        assert!(*volume.read_at(0, SIZE as usize).await.unwrap() == **model, "{name}");
        assert!(said.stdout.contains(&format!("{name} {}\n", sha256(model))), "{said}");
    }
}

/// Blocks that were written early for the log are freed with their records, or when they are
/// overwritten.
#[test]
fn indirect_log_writes_are_freed_when_unused() {
    block_on(2, async {
        let (engine, devices) = PoolBuilder::file_system().create_in_memory().await;
        let make = async |name: &str| {
            let new = NewVolume::new(name, SIZE).with_block_size(BLOCK).sparse();
            new.with("logbias", Value::U64(1)).create(&engine).await.unwrap()
        };
        let (a, b, c) = (make("tank/a").await, make("tank/b").await, make("tank/c").await);
        for volume in [&a, &b, &c] {
            write(volume).await;
        }
        engine.snapshots().create(vec!["tank/b@s".into()]).await.unwrap();
        for round in 0..3 {
            for volume in [&a, &b, &c] {
                // Each write overwrites the previous one, in one txg.
                volume.write(0, vec![noise(round, 200_000)], true).await.unwrap();
                volume.discard(BLOCK, 2 * BLOCK).await.unwrap();
                volume.flush().await.unwrap();
            }
        }
        a.resize(BLOCK * 4).await.unwrap();
        a.write(0, vec![noise(9, 64 << 10)], true).await.unwrap();
        drop((b, c));
        engine.datasets().rollback("tank/b", None).await.unwrap();
        engine.datasets().destroy("tank/c").await.unwrap();
        for _ in 0..4 {
            engine.sync().await.unwrap();
        }
        assert_eq!(pools::check_space(pools::images_of(&devices)).await, Ok(()));
        let b = WritableVolume::open(&engine, "tank/b").await.unwrap();
        let model = write(&b).await;
        assert!(*b.read(0, SIZE as usize).await.unwrap() == *model);
        engine.export().await.unwrap();
        assert_eq!(pools::check_space(pools::images_of(&devices)).await, Ok(()));
        pools::judge_devices(&devices, "early", &[]);
    })
    .unwrap();
}

/// Log blocks are allocated on a log device, else in the embedded log metaslab, else anywhere.
#[test]
fn log_blocks_come_from_slog_or_embedded_log_class() {
    block_on(2, async {
        let small = PoolBuilder::file_system();
        let cases = [
            (small.clone(), Class::Normal),
            // Only a vdev of 64 metaslabs reserves one for the log.
            (small.clone().with_size(40 << 30), Class::EmbeddedLog),
            (small.with_logs(1), Class::Log),
        ];
        for (builder, expected) in cases {
            let (engine, devices) = builder.create_in_memory().await;
            let volume = NewVolume::new("tank/v", SIZE).sparse().create(&engine).await.unwrap();
            write(&volume).await;
            engine.sync().await.unwrap();
            for class in [Class::EmbeddedLog, Class::Log] {
                let taken = engine.allocator().class_figures(class).deflated_allocated;
                assert_eq!(taken > 0, class == expected, "{expected:?}: {taken} of {class:?}");
            }
            drop(volume);
            engine.export().await.unwrap();
            if expected != Class::EmbeddedLog {
                assert_eq!(pools::check_space(pools::images_of(&devices)).await, Ok(()));
            }
        }
    })
    .unwrap();
}

/// With `sync=always` the first write after opening is durable like any other.
#[test]
fn sync_always_applies_to_the_first_write() {
    block_on(2, async {
        let (engine, devices) = PoolBuilder::file_system().create_in_memory().await;
        let new = NewVolume::new("tank/v", SIZE).with_block_size(BLOCK).sparse();
        drop(new.with("sync", Value::U64(1)).create(&engine).await.unwrap());
        engine.export().await.unwrap();
        drop(engine);
        let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
        let volume = WritableVolume::open(&engine, "tank/v").await.unwrap();
        volume.write(0, vec![noise(1, 4096)], false).await.unwrap();
        let left = pools::devices(pools::images_of(&devices));
        let after = pools::open(pools::as_devices(&left)).await.unwrap();
        let found = WritableVolume::open(&after, "tank/v").await.unwrap();
        assert!(*found.read(0, 4096).await.unwrap() == *noise(1, 4096));
    })
    .unwrap();
}
