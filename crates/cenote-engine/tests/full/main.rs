//! Full pools: writers get an error before anything is changed, the open txg always fits, and
//! freeing space works even on a full pool. Nothing leaks.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_device::ImageDevice;
use cenote_dmu::live::ObjectSpec;
use cenote_engine::{ApplyOptions, Charge, Engine, Head};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::props::PropValue;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::{Error, Kind, Rng, tunables};

/// Size of the device.
const SIZE: u64 = 64 << 20;
const MIB: u64 = 1 << 20;
/// More writes than any pool here accepts.
const WRITES_MAX: u64 = 100_000;

struct Fixture {
    devices: Vec<Arc<ImageDevice>>,
    engine: Arc<Engine>,
    head: Arc<Head>,
    rng: Rng,
}

impl Fixture {
    async fn new(seed: u64) -> Self {
        Self::of_size(SIZE, seed).await
    }

    async fn of_size(size: u64, seed: u64) -> Self {
        Self::of_shape(size, 9, seed).await
    }

    async fn of_shape(size: u64, ashift: u64, seed: u64) -> Self {
        let builder = PoolBuilder::disks(1).with_ashift(ashift).with_size(size);
        let (engine, devices) = builder.create_in_memory().await;
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        Self { devices, engine, head, rng: Rng::seeded(seed) }
    }

    async fn new_object(&self, block_size: u64) -> u64 {
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, block_size);
        let charge = Charge::free(16 << 10);
        let object = self
            .engine
            .apply(&self.head, ApplyOptions::charged(charge), |tx| tx.allocate(&spec))
            .await;
        object.unwrap().0
    }

    /// Writes one incompressible block.
    async fn write(&mut self, object: u64, offset: u64, len: u64) -> Result<(), Error> {
        let mut bytes = vec![0; len as usize];
        self.rng.fill(&mut bytes);
        let charge = Charge::write(len);
        let change = self.engine.apply(&self.head, ApplyOptions::charged(charge), |tx| {
            tx.write(object, offset, &bytes)
        });
        change.await.map(drop)
    }

    /// Writes blocks in order until the pool is full. Returns their number and the error.
    async fn fill(&mut self, object: u64, len: u64) -> (u64, Kind) {
        for block in 0..WRITES_MAX {
            if let Err(error) = self.write(object, block * len, len).await {
                // The pool is not suspended: it refused the write, and continues.
                self.engine.sync().await.unwrap();
                return (block, error.kind());
            }
            if block % 64 == 63 {
                self.engine.sync().await.unwrap();
            }
        }
        panic!("the pool takes anything");
    }

    /// Returns the metaslabs that hold data blocks of an object, and those that hold its indirect
    /// blocks.
    async fn metaslabs_of(&self, object: u64, blocks: u64) -> [BTreeSet<u64>; 2] {
        let size = self.engine.allocator().metaslab_figures(0)[0].size;
        let view = self.engine.view().await.unwrap();
        let objset = view.dataset("tank/a").await.unwrap().open().await.unwrap();
        let dnode = objset.dnode(object).await.unwrap();
        let mut found = [BTreeSet::new(), BTreeSet::new()];
        for (level, metaslabs) in (0..).zip(&mut found) {
            for number in 0..blocks {
                // Numbers beyond the last indirect block have no pointer.
                let Ok(Some(pointer)) = dnode.block_pointer(level, number).await else { continue };
                metaslabs.extend(pointer.dvas().map(|dva| dva.offset / size));
            }
        }
        found
    }

    async fn free(&self, object: u64, offset: u64, len: Option<u64>) {
        let charge = Charge::free(16 << 10);
        let change = self.engine.apply(&self.head, ApplyOptions::charged(charge), |tx| {
            tx.free_range(object, offset, len)
        });
        change.await.unwrap();
        self.settle().await;
    }

    /// Waits until freed space can be reused.
    async fn settle(&self) {
        for _ in 0..5 {
            self.engine.sync().await.unwrap();
        }
        while self.engine.space().has_pending_frees().await.unwrap() {
            self.engine.sync().await.unwrap();
        }
    }

    /// Exports the pool; cenote and OpenZFS check that its space is reachable.
    async fn finish(self) {
        self.engine.export().await.unwrap();
        let pool = pools::open_read_only(as_devices(&self.devices)).await.unwrap();
        pools::assert_no_leaks(&pool).await;
        pools::judge_images(&pools::images_of(&self.devices));
    }
}

fn simulate(work: impl Future<Output = ()>) {
    cenote_rt::simulate(1, work).unwrap();
}

#[test]
fn full_pool_refuses_writes_and_can_be_emptied() {
    for len in [128 << 10, 4 << 10] {
        simulate(async {
            let mut fixture = Fixture::new(len).await;
            let object = fixture.new_object(len).await;
            let (blocks, kind) = fixture.fill(object, len).await;
            println!("{blocks} blocks of {len}");
            assert_eq!(kind, Kind::NoSpace);
            assert!(blocks * len > SIZE / 4, "{blocks} blocks of {len} are few");
            // Overwriting a block needs as much space again.
            let again = fixture.write(object, 0, len).await;
            assert!(again.is_ok() || again.is_err_and(|error| error.kind() == Kind::NoSpace));
            fixture.engine.sync().await.unwrap();
            fixture.free(object, 0, Some(blocks / 2 * len)).await;
            fixture.write(object, 0, len).await.unwrap();
            let (more, kind) = fixture.fill(object, len).await;
            assert_eq!(kind, Kind::NoSpace);
            assert!(more > 0);
            fixture.finish().await;
        });
    }
}

#[test]
fn full_pool_permits_frees() {
    simulate(async {
        let mut fixture = Fixture::new(3).await;
        let (first, second) =
            (fixture.new_object(32 << 10).await, fixture.new_object(32 << 10).await);
        for block in 0..400 {
            fixture.write(first, block << 15, 32 << 10).await.unwrap();
        }
        fixture.engine.snapshots().create(vec!["tank/a@keeps".into()]).await.unwrap();
        let (blocks, kind) = fixture.fill(second, 32 << 10).await;
        assert_eq!(kind, Kind::NoSpace);
        // The snapshot keeps all blocks: nothing is freed, and nothing fails.
        fixture.free(first, 0, None).await;
        fixture.engine.snapshots().destroy("tank/a@keeps").await.unwrap();
        fixture.settle().await;
        let (more, kind) = fixture.fill(first, 32 << 10).await;
        assert_eq!(kind, Kind::NoSpace);
        assert!(more > 200, "only {more} of the 400 blocks that the snapshot had, after {blocks}");
        // A snapshot may be refused, a destroy not.
        let snapshot = fixture.engine.snapshots().create(vec!["tank/a@late".into()]).await;
        if snapshot.is_ok() {
            fixture.engine.snapshots().destroy("tank/a@late").await.unwrap();
        }
        fixture.engine.datasets().destroy("tank/a").await.unwrap();
        fixture.settle().await;
        fixture.head = fixture.engine.datasets().create(pools::dataset("tank/b")).await.unwrap();
        let object = fixture.new_object(32 << 10).await;
        let (all, _) = fixture.fill(object, 32 << 10).await;
        assert!(
            all >= blocks + 300,
            "{all} blocks fit into the emptied pool, {blocks} + 400 before"
        );
        fixture.finish().await;
    });
}

/// Without syncs except those for space.
#[test]
fn full_pool_can_be_overwritten_repeatedly() {
    for len in [128 << 10, 8 << 10, 512] {
        simulate(async {
            let mut fixture = Fixture::new(len).await;
            let object = fixture.new_object(len).await;
            // Three quarters of the usable space, then as much again at random places.
            let blocks = (9 * SIZE / 32 / len).min(4000);
            for block in 0..blocks {
                fixture.write(object, block * len, len).await.unwrap();
            }
            let mut written = 0;
            for _ in 0..blocks {
                let block = fixture.rng.below(blocks);
                match fixture.write(object, block * len, len).await {
                    Ok(()) => written += 1,
                    Err(error) => assert_eq!(error.kind(), Kind::NoSpace),
                }
            }
            let txgs = fixture.engine.open_txg();
            println!("{written} of {blocks} blocks of {len} written over, txg {txgs}");
            assert!(written > blocks / 2, "{written} of {blocks}");
            fixture.engine.sync().await.unwrap();
            fixture.finish().await;
        });
    }
}

#[test]
fn fragmented_pool_can_be_filled() {
    simulate(async {
        let mut fixture = Fixture::new(7).await;
        let (small, large) = (4 << 10, 128 << 10);
        let (first, second) = (fixture.new_object(small).await, fixture.new_object(large).await);
        let (blocks, kind) = fixture.fill(first, small).await;
        assert_eq!(kind, Kind::NoSpace);
        // Every second block is freed: no free range is longer.
        for from in (0..blocks).step_by(256) {
            let charge = Charge::free(16 << 10);
            let change = fixture.engine.apply(&fixture.head, ApplyOptions::charged(charge), |tx| {
                let range = (from..(from + 256).min(blocks)).step_by(2);
                for block in range {
                    tx.free_range(first, block * small, Some(small))?;
                }
                Ok(())
            });
            change.await.unwrap();
            fixture.engine.sync().await.unwrap();
        }
        fixture.settle().await;
        let mut written = 0;
        while let Ok(()) = fixture.write(second, written * large, large).await {
            written += 1;
        }
        println!("{written} blocks of {large} in pieces");
        assert!(written * large > blocks * small / 8, "{written} blocks");
        fixture.engine.sync().await.unwrap();
        fixture.finish().await;
    });
}

/// `cenote_allocator=2`: metadata keep to few metaslabs while data are overwritten in others, and the
/// pool can be filled to the end.
#[test]
fn metadata_is_apart_from_data_until_the_pool_is_full() {
    simulate(async {
        tunables::ALLOCATOR.set(2).unwrap();
        let (block, long) = (8 << 10, 128 << 10);
        let mut fixture = Fixture::of_size(512 << 20, 12).await;
        let object = fixture.new_object(block).await;
        let blocks = 100 * MIB / block;
        for number in 0..blocks {
            fixture.write(object, number * block, block).await.unwrap();
        }
        fixture.engine.sync().await.unwrap();
        for _ in 0..20 {
            for _ in 0..blocks / 10 {
                let number = fixture.rng.below(blocks);
                fixture.write(object, number * block, block).await.unwrap();
            }
            fixture.engine.sync().await.unwrap();
        }
        let [data, metadata] = fixture.metaslabs_of(object, blocks).await;
        println!("data in {data:?}, metadata in {metadata:?}");
        // One for each copy, and room to grow. A metaslab that becomes one for metadata may still
        // hold data.
        assert!(metadata.len() <= 3 && data.len() >= 8, "{data:?} {metadata:?}");
        assert!(!metadata.is_subset(&data), "{data:?} {metadata:?}");
        let second = fixture.new_object(long).await;
        let (more, kind) = fixture.fill(second, long).await;
        assert_eq!(kind, Kind::NoSpace);
        // As much as fits with the other policies: half of it, up to 128 MiB, is kept back.
        assert!(more * long > 200 * MIB, "{more} blocks");
        fixture.free(second, 0, None).await;
        fixture.finish().await;
    });
}

/// Without syncs except those for space, in a pool that is large compared with the remaining space.
#[test]
fn reservation_is_kept_from_other_datasets() {
    simulate(async {
        let (size, left, len) = (2 << 30, 8 * MIB, 128 << 10);
        let mut fixture = Fixture::of_size(size, 11).await;
        let other = fixture.engine.datasets().create(pools::dataset("tank/b")).await.unwrap();
        let view = fixture.engine.view().await.unwrap();
        let props = view.dataset("tank").await.unwrap().props().await.unwrap();
        let available = props.get("available").await.unwrap().unwrap().value;
        let PropValue::Number(available) = available else { panic!("{available:?}") };
        let reserved = Value::U64(available - left);
        fixture.engine.properties().set("tank/b", "reservation", reserved).await.unwrap();
        let object = fixture.new_object(len).await;
        let mut written = 0;
        let error = loop {
            match fixture.write(object, written, len).await {
                Ok(()) => written += len,
                Err(error) => break error,
            }
        };
        println!("{written} bytes written, {left} were left");
        assert_eq!(error.kind(), Kind::NoSpace);
        assert!((left * 3 / 4..left + size / 512).contains(&written), "{written}");
        // The owner of the reservation can use it.
        fixture.head = other;
        let object = fixture.new_object(len).await;
        for block in 0..2 * left / len {
            fixture.write(object, block * len, len).await.unwrap();
        }
        fixture.finish().await;
    });
}

#[test]
fn quota_and_refquota_end_writes_at_their_limits() {
    for property in ["quota", "refquota"] {
        simulate(async {
            let mut fixture = Fixture::new(5).await;
            let limit = Value::U64(16 * MIB);
            fixture.engine.properties().set("tank/a", property, limit).await.unwrap();
            let object = fixture.new_object(128 << 10).await;
            let (blocks, kind) = fixture.fill(object, 128 << 10).await;
            assert_eq!(kind, Kind::Quota, "{property}");
            // As in OpenZFS, the last txg may exceed it by the changes in flight.
            let bytes = blocks << 17;
            assert!((15 * MIB..=20 * MIB).contains(&bytes), "{property}: {bytes} bytes");
            assert_eq!(fixture.write(object, 0, 128 << 10).await.unwrap_err().kind(), Kind::Quota);
            fixture.free(object, 0, Some(8 * MIB)).await;
            fixture.write(object, 0, 128 << 10).await.unwrap();
            fixture.engine.properties().set("tank/a", property, Value::U64(0)).await.unwrap();
            assert_eq!(fixture.fill(object, 128 << 10).await.1, Kind::NoSpace, "{property}");
            fixture.finish().await;
        });
    }
}

/// Small records on large sectors: one write of many of them takes a large part of a small pool.
/// However the pool was filled, it can be emptied, and its settings can be changed.
#[test]
fn full_pool_of_any_geometry_can_be_emptied() {
    // A layout with which a pool once could not be emptied, and similar ones.
    let mut shapes = vec![(64, 16, 4), (64, 16, 128), (64, 12, 4), (128, 14, 8), (64, 9, 1)];
    if cenote_testkit::rng::wants_all() {
        for size in [64, 128, 512] {
            for ashift in 9..=16 {
                shapes.extend([1, 4, 16, 128, 1024].map(|record| (size, ashift, record)));
            }
        }
    }
    for (size, ashift, record) in shapes {
        // The time of a case grows with its size.
        for seed in 0..cenote_testkit::rng::cases(2, (6 * 64 / size).max(1)) {
            simulate(fill_and_empty(size << 20, ashift, record << 10, seed));
        }
    }
}

async fn fill_and_empty(size: u64, ashift: u64, record: u64, seed: u64) {
    let what = format!("{} MiB, ashift {ashift}, records of {record}, seed {seed}", size >> 20);
    let mut fixture = Fixture::of_shape(size, ashift, seed).await;
    let mut objects = Vec::new();
    let mut end = 0;
    // Large writes as long as they fit, then smaller ones; each is one change.
    for len in [MIB, 256 << 10, 64 << 10, record] {
        let len = len.max(record);
        for _ in 0..4 * size / len {
            if objects.is_empty() || fixture.rng.below(40) == 0 {
                let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, record);
                let charge = Charge::write(16 << 10);
                let made =
                    fixture.engine.apply(&fixture.head, ApplyOptions::charged(charge), |tx| {
                        tx.allocate(&spec)
                    });
                let Ok((object, _)) = made.await else { break };
                objects.push(object);
            }
            let object = objects[fixture.rng.below(objects.len() as u64) as usize];
            let mut bytes = vec![0; len as usize];
            fixture.rng.fill(&mut bytes);
            let charge = Charge::write(16 << 10).with_blocks(len / record, record);
            let written =
                fixture.engine.apply(&fixture.head, ApplyOptions::charged(charge), |tx| {
                    tx.write(object, end, &bytes)
                });
            match written.await {
                Ok(_) => end += len,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::NoSpace, "{what}: {error}");
                    break;
                }
            }
            if fixture.rng.below(10) == 0 {
                fixture.engine.sync().await.unwrap();
            }
        }
    }
    fixture.engine.sync().await.unwrap();
    fixture.settle().await;
    let set = fixture.engine.properties().set("tank/a", "atime", Value::words_of(&[0])).await;
    assert!(set.is_ok(), "{what}, {end} bytes: set: {:?}", set.err());
    for (number, object) in objects.into_iter().enumerate() {
        let charge = Charge::free(16 << 10);
        let freed = fixture.engine.apply(&fixture.head, ApplyOptions::charged(charge), |tx| {
            if number % 2 == 0 { tx.free(object) } else { tx.free_range(object, 0, None) }
        });
        let freed = freed.await;
        assert!(freed.is_ok(), "{what}, {end} bytes: free: {:?}", freed.err());
    }
    fixture.settle().await;
    let object = fixture.new_object(record).await;
    fixture.write(object, 0, record).await.unwrap();
    fixture.finish().await;
}
