//! The contents of a volume equal what was written, at every block size.

use cenote_fs::{FsError, NewVolume, Volume, WritableVolume};
use cenote_ondisk::zap::Value;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{Buf, BufMut, Kind, Rng, block_on};
use futures_util::future::join;

use crate::model::{self, check_status, draw, read_all};

const SIZE: u64 = 2 << 20;
const OFF: u64 = 2;

#[test]
fn volblocksize_of_every_value_keeps_the_contents() {
    let block_sizes = [512, 4 << 10, 16 << 10, 128 << 10, 1 << 20];
    for (seed, block_size) in (1..).zip(block_sizes) {
        block_on(2, history(seed, block_size)).unwrap();
    }
}

async fn history(seed: u64, block_size: u64) {
    let (engine, devices) = PoolBuilder::file_system().create_in_memory().await;
    let new = NewVolume::new("tank/v", SIZE).with_block_size(block_size);
    let compression = if seed.is_multiple_of(2) { OFF } else { 15 };
    let new = new.with("compression", Value::U64(compression));
    let volume = new.create(&engine).await.unwrap();
    assert_eq!((volume.size(), volume.block_size()), (SIZE, block_size));
    let mut rng = Rng::seeded(seed);
    let mut model = vec![0; SIZE as usize];
    for round in 0..60 {
        let op = draw(&mut rng, SIZE);
        op.perform(&volume, &mut rng).await.unwrap();
        if let Some((offset, bytes)) = op.effect(block_size) {
            model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let (from, to) = (rng.below(SIZE), rng.below(SIZE));
        let (start, end) = (from.min(to), from.max(to));
        let found = volume.read(start, (end - start) as usize).await.unwrap();
        let expected = &model[start as usize..end as usize];
        assert!(*found == *expected, "{block_size}, round {round}: {op:?}");
        if round % 16 == 0 {
            check_status(&volume, &model).await;
        }
    }
    drop(volume);
    engine.export().await.unwrap();
    drop(engine);
    // As any reader sees it, and the next writer.
    let pool = pools::open_copy(&devices).await.unwrap();
    let volume = Volume::open(&pool.dataset("tank/v").await.unwrap()).await.unwrap();
    assert!(*volume.read_at(0, SIZE as usize).await.unwrap() == *model);
    let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
    let volume = WritableVolume::open(&engine, "tank/v").await.unwrap();
    assert!(read_all(&volume, &mut rng).await.unwrap() == model);
    check_status(&volume, &model).await;
    pools::judge_devices(&devices, &format!("bytes-{block_size}"), &[]);
}

fn bytes(len: usize, value: u8) -> Vec<Buf> {
    vec![Buf::from(vec![value; len])]
}

#[test]
fn discard_and_write_zeroes_make_holes() {
    block_on(2, async {
        let (engine, _devices) = PoolBuilder::file_system().create_in_memory().await;
        for (name, compression, are_holes) in [("tank/on", 15, true), ("tank/off", OFF, false)] {
            let new = NewVolume::new(name, 1 << 20).with_block_size(16 << 10);
            let new = new.with("compression", Value::U64(compression));
            let volume = new.create(&engine).await.unwrap();
            volume.write(0, bytes(128 << 10, 1), false).await.unwrap();
            engine.sync().await.unwrap();
            let holes = async || {
                let extents = volume.block_status(0, 256 << 10).await.unwrap();
                let holes = extents.iter().filter(|extent| extent.is_hole);
                holes.map(|hole| (hole.offset >> 10, hole.len >> 10)).collect::<Vec<_>>()
            };
            assert_eq!(holes().await, [(128, 128)], "{name}");
            // The partial blocks at the ends of a discard stay.
            volume.discard(1000, 40 << 10).await.unwrap();
            assert_eq!(holes().await, [(16, 16), (128, 128)], "{name}");
            assert!(volume.read(0, 16 << 10).await.unwrap().iter().all(|byte| *byte == 1));
            assert!(volume.read(16 << 10, 16 << 10).await.unwrap().iter().all(|b| *b == 0));
            assert!(volume.read(32 << 10, 16 << 10).await.unwrap().iter().all(|b| *b == 1));
            // Zeros that may be holes: whole blocks are freed, partial ones zeroed.
            volume.write_zeroes((48 << 10) + 1, 32 << 10, false, false).await.unwrap();
            assert_eq!(holes().await, [(16, 16), (64, 16), (128, 128)], "{name}");
            let edge = volume.read(48 << 10, 2).await.unwrap();
            assert_eq!(*edge, [1, 0], "{name}");
            assert_eq!(*volume.read(80 << 10, 2).await.unwrap(), [0, 1], "{name}");
            // Zeros that are written: compression decides whether they become holes.
            volume.write_zeroes(96 << 10, 16 << 10, true, false).await.unwrap();
            volume.write(160 << 10, bytes(16 << 10, 0), true).await.unwrap();
            engine.sync().await.unwrap();
            let expected: &[(u64, u64)] = if are_holes {
                &[(16, 16), (64, 16), (96, 16), (128, 128)]
            } else {
                &[(16, 16), (64, 16), (128, 32), (176, 80)]
            };
            assert_eq!(holes().await, expected, "{name}");
            volume.discard(0, 1 << 20).await.unwrap();
            assert_eq!(holes().await, [(0, 256)], "{name}");
        }
    })
    .unwrap();
}

#[test]
fn invalid_volumes_and_requests_are_refused() {
    block_on(2, async {
        let (engine, _devices) = PoolBuilder::file_system().create_in_memory().await;
        let refused = async |new: NewVolume| new.create(&engine).await.unwrap_err();
        let error = refused(NewVolume::new("tank/v", 12_345)).await;
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(matches!(error.cause(), Some(FsError::VolumeSize { .. })));
        let error = refused(NewVolume::new("tank/v", 1 << 20).with_block_size(3 << 10)).await;
        assert!(matches!(error.cause(), Some(FsError::VolumeBlockSize { .. })));
        assert_eq!(refused(NewVolume::new("tank/v", 1 << 40)).await.kind(), Kind::NoSpace);
        assert_eq!(refused(NewVolume::new("tank/a/v", 1 << 20)).await.kind(), Kind::NotFound);
        let error = WritableVolume::open(&engine, "tank").await.unwrap_err();
        assert_eq!(error.cause(), Some(&FsError::NotAVolume));

        let volume = NewVolume::new("tank/v", 1 << 20).create(&engine).await.unwrap();
        let behind = [((1 << 20) - 1, 2), (1 << 20, 1), (u64::MAX, 2)];
        for (offset, len) in behind {
            let error = volume.write(offset, bytes(len, 1), false).await.unwrap_err();
            assert!(matches!(error.cause(), Some(FsError::BehindEnd { .. })), "{error:?}");
            assert!(volume.read(offset, len).await.is_err());
            assert!(volume.discard(offset, len as u64).await.is_err());
            assert!(volume.write_zeroes(offset, len as u64, false, false).await.is_err());
            assert!(volume.block_status(offset, len as u64).await.is_err());
        }
        assert!(volume.read(1 << 20, 0).await.unwrap().is_empty());
        // An open volume cannot be destroyed.
        assert_eq!(engine.datasets().destroy("tank/v").await.unwrap_err().kind(), Kind::Busy);
        drop(volume);
        engine.datasets().destroy("tank/v").await.unwrap();
    })
    .unwrap();
}

/// Overlapping requests are serialized, even if they take several transactions.
#[test]
fn overlapping_requests_are_serialized() {
    block_on(2, async {
        let (engine, _devices) = PoolBuilder::file_system().create_in_memory().await;
        let volume = NewVolume::new("tank/v", 4 << 20).sparse().create(&engine).await.unwrap();
        let tasks: Vec<_> = (1..=4_u8)
            .map(|value| {
                let volume = volume.clone();
                cenote_rt::spawn(async move {
                    for _ in 0..3 {
                        volume.write(1000, bytes(3 << 20, value), false).await.unwrap();
                        let found = volume.read(1000, 3 << 20).await.unwrap();
                        assert!(found.iter().all(|byte| *byte == found[0]), "a mix");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn volume_snapshots_clones_and_rollback() {
    block_on(2, async {
        let (engine, devices) = PoolBuilder::file_system().create_in_memory().await;
        let volume = NewVolume::new("tank/v", 1 << 20).sparse().create(&engine).await.unwrap();
        let mut before = BufMut::zeroed(1 << 20);
        Rng::seeded(3).fill(&mut before);
        let before = before.freeze();
        volume.write(0, vec![before.clone()], true).await.unwrap();
        engine.snapshots().create(vec!["tank/v@s".into()]).await.unwrap();
        volume.write(100_000, bytes(50_000, 9), true).await.unwrap();
        let snapshot = Volume::open_snapshot(&engine, "tank/v@s").await.unwrap();
        assert_eq!(snapshot.size(), 1 << 20);
        assert!(*snapshot.read_at(0, 1 << 20).await.unwrap() == *before);
        assert!(Volume::open_snapshot(&engine, "tank/v@t").await.is_err());

        engine.datasets().clone_snapshot("tank/v@s", "tank/clone", Vec::new()).await.unwrap();
        let clone = WritableVolume::open(&engine, "tank/clone").await.unwrap();
        clone.write(0, bytes(20_000, 5), true).await.unwrap();
        let mut expected = before.to_vec();
        expected[..20_000].fill(5);
        let mut rng = Rng::seeded(4);
        assert!(read_all(&clone, &mut rng).await.unwrap() == expected);
        let mut expected = before.to_vec();
        expected[100_000..150_000].fill(9);
        assert!(read_all(&volume, &mut rng).await.unwrap() == expected);

        // A rollback needs exclusive use of the volume.
        assert_eq!(
            engine.datasets().rollback("tank/v", None).await.unwrap_err().kind(),
            Kind::Busy
        );
        assert_eq!(volume.name().await.unwrap(), "tank/v");
        drop(volume);
        engine.datasets().rollback("tank/v", None).await.unwrap();
        let volume = WritableVolume::open(&engine, "tank/v").await.unwrap();
        assert!(read_all(&volume, &mut rng).await.unwrap() == *before);
        volume.write(7, bytes(7, 7), true).await.unwrap();
        assert_eq!(*volume.read(6, 3).await.unwrap(), [before[6], 7, 7]);
        engine.export().await.unwrap();
        pools::judge_devices(&devices, "clones", &[]);
    })
    .unwrap();
}

#[test]
fn volsize_changes_with_refreservation() {
    block_on(2, async {
        let (engine, devices) = PoolBuilder::file_system().create_in_memory().await;
        let volume = NewVolume::new("tank/v", 1 << 20).create(&engine).await.unwrap();
        let mut rng = Rng::seeded(5);
        let mut model = vec![0; 1 << 20];
        rng.fill(&mut model);
        volume.write(0, vec![Buf::from(model.clone())], false).await.unwrap();
        for (size, kib) in [(64 << 10, 64), (2 << 20, 2048), (1 << 20, 1024), (4 << 20, 4096)] {
            volume.resize(size).await.unwrap();
            model.resize(size as usize, 0);
            assert_eq!(volume.size(), kib << 10);
            assert!(read_all(&volume, &mut rng).await.unwrap() == model, "{size}");
            model::check_status(&volume, &model).await;
            let expected = cenote_fs::volume::reservation(
                size,
                16 << 10,
                1,
                &engine.admin().vdev_config().children,
            );
            let reserved =
                engine.properties().own_number("tank/v", "refreservation").await.unwrap();
            assert_eq!(reserved, expected, "{size}");
            let op = model::Op::Write { offset: size - 5000, bytes: vec![3; 5000], is_fua: true };
            op.perform(&volume, &mut rng).await.unwrap();
            model[size as usize - 5000..].fill(3);
        }
        for size in [0, 100, 1 << 63] {
            assert_eq!(volume.resize(size).await.unwrap_err().kind(), Kind::Invalid);
        }
        // Not enough space: nothing has changed.
        let error = volume.resize(1 << 30).await.unwrap_err();
        assert_eq!((error.kind(), volume.size()), (Kind::NoSpace, 4 << 20));
        // A reservation that the user set is not changed.
        engine.properties().set("tank/v", "refreservation", Value::U64(1 << 20)).await.unwrap();
        volume.resize(2 << 20).await.unwrap();
        assert_eq!(
            engine.properties().own_number("tank/v", "refreservation").await.unwrap(),
            1 << 20
        );
        engine.export().await.unwrap();
        drop((engine, volume));
        let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
        let volume = WritableVolume::open(&engine, "tank/v").await.unwrap();
        model.truncate(2 << 20);
        assert!(read_all(&volume, &mut rng).await.unwrap() == model);
        engine.export().await.unwrap();
        pools::judge_devices(&devices, "sizes", &[]);
    })
    .unwrap();
}

/// Requests that wait for a resize see the new size.
#[test]
fn volsize_change_fails_waiting_requests_beyond_the_end() {
    block_on(2, async {
        let (engine, _devices) = PoolBuilder::file_system().create_in_memory().await;
        let volume = NewVolume::new("tank/v", SIZE).create(&engine).await.unwrap();
        let (half, len) = (SIZE / 2, 64 << 10);
        let behind = |error: cenote_rt::Error| {
            assert!(matches!(error.cause(), Some(FsError::BehindEnd { .. })), "{error}");
        };
        let refused = join(volume.resize(half), volume.write(half, bytes(len, 1), true)).await;
        behind(refused.1.unwrap_err());
        refused.0.unwrap();
        volume.resize(SIZE).await.unwrap();
        let refused = join(volume.resize(half), volume.read(half, len)).await;
        behind(refused.1.unwrap_err());
        volume.resize(SIZE).await.unwrap();
        let refused = join(volume.resize(half), volume.discard(half, len as u64)).await;
        behind(refused.1.unwrap_err());
        volume.resize(SIZE).await.unwrap();
        let zeros = volume.write_zeroes(half, len as u64, true, false);
        let refused = join(volume.resize(half), zeros).await;
        behind(refused.1.unwrap_err());
        // A request that waited for growth succeeds.
        let grown = join(volume.resize(SIZE), volume.read(half, len)).await;
        assert!(grown.1.unwrap().iter().all(|byte| *byte == 0));
    })
    .unwrap();
}
