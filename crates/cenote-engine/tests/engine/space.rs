//! Adding devices while the pool is in use; trimming and initializing free space.

use std::time::Duration;

use cenote_block::alloc::SpaceAllocator;
use cenote_device::Image;
use cenote_engine::admin::PoolSetting;
use cenote_engine::{ApplyOptions, CheckpointError, EngineError, LeafWorkError, Stop, TrimOptions};
use cenote_ondisk::leaf_work::{LeafWorkKind, LeafWorkState};
use cenote_ondisk::zap::Value;
use cenote_rt::{World, block_on, simulate, tunables};
use cenote_vdev::create::VdevClass;

use crate::memory::{Budget, MemoryPool, need_object};
use crate::scans::Fixture;

/// Returns the allocated bytes of each top-level vdev.
fn allocated(pool: &MemoryPool) -> Vec<u64> {
    let figures = pool.engine.allocator().vdev_figures();
    figures.iter().map(|vdev| vdev.space.allocated).collect()
}

#[test]
fn add_uses_new_devices_immediately() {
    let budget = Budget::take();
    block_on(1, async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        for block in 0..300 {
            pool.write("tank/a", 5, block, block * 5 + 3).await;
        }
        pool.engine.sync().await.unwrap();
        let free = pool.free_bytes();
        for class in [VdevClass::Normal, VdevClass::Log, VdevClass::Special, VdevClass::Normal] {
            pool.add_disk(class).await;
            assert_eq!(pool.engine.tree().tops().count(), pool.devices.len());
            pool.check().await;
        }
        assert!(pool.free_bytes() > free + (300 << 20));
        for block in 0..600 {
            pool.write("tank/a", 6, block, block * 5 + 4).await;
            if block % 200 == 0 {
                pool.engine.sync().await.unwrap();
            }
        }
        pool.engine.sync().await.unwrap();
        pool.check().await;
        let used = allocated(&pool);
        assert!(used[1] > 1 << 20 && used[4] > 1 << 20 && used[3] > 0, "{used:?}");
        pool.judge_as_it_is();
        // After a crash, and after an export.
        pool.open_again().await;
        for block in 0..600 {
            assert_eq!(pool.read("tank/a", 6, block).await, block * 5 + 4);
        }
        pool.write("tank/a", 6, 0, 0).await;
        pool.reopen().await;
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}

/// Two commands add devices concurrently: the later one is refused, and the pool continues.
#[test]
fn add_of_concurrent_devices_refuses_the_later_one() {
    let budget = Budget::take();
    block_on(1, async {
        let mut pool = MemoryPool::new().await;
        let (one, other) = (pool.new_disk(VdevClass::Normal), pool.new_disk(VdevClass::Normal));
        pool.engine.admin().add_vdevs(one.1).await.unwrap();
        pool.devices.push(one.0);
        let error = pool.engine.admin().add_vdevs(other.1).await.unwrap_err();
        assert_eq!(error.cause(), Some(&EngineError::VdevsAdded));
        pool.add_disk(VdevClass::Normal).await;
        pool.create("tank/a").await;
        pool.write("tank/a", 5, 0, 7).await;
        pool.reopen().await;
        assert_eq!(pool.read("tank/a", 5, 0).await, 7);
        pool.check().await;
    })
    .unwrap();
    drop(budget);
}

/// After an export nothing is written, even by a later sync: the devices may belong to another
/// pool.
#[test]
fn export_stops_all_writes() {
    let budget = Budget::take();
    block_on(2, async {
        for round in 0..8 {
            let pool = MemoryPool::new().await;
            let head = pool.create("tank/a").await;
            let engine = std::sync::Arc::clone(&pool.engine);
            let busy = cenote_rt::spawn(async move {
                loop {
                    let changed = engine.apply(&head, ApplyOptions::new(), |tx| {
                        need_object(tx, 5)?;
                        tx.write(5, 0, &[round; 512])
                    });
                    if changed.await.is_err() || engine.sync().await.is_err() {
                        return;
                    }
                }
            });
            pool.engine.sync().await.unwrap();
            pool.engine.export().await.unwrap();
            let images = || pool.devices.iter().map(|device| device.image()).collect::<Vec<_>>();
            let before = images();
            busy.await.unwrap();
            for (before, after) in before.iter().zip(&images()) {
                assert!(same(before, after), "written after it was exported, round {round}");
            }
        }
    })
    .unwrap();
    drop(budget);
}

/// Whether two images of a device have the same labels: every commit writes one.
fn same(one: &Image, other: &Image) -> bool {
    let labels = |image: &Image| {
        let mut bytes = vec![0; 512 << 10];
        image.read_at(0, &mut bytes);
        bytes
    };
    labels(one) == labels(other)
}

#[test]
fn rewind_removes_devices_added_later() {
    let budget = Budget::take();
    block_on(1, async {
        let mut pool = MemoryPool::of_disks(2).await;
        pool.create("tank/a").await;
        for block in 0..50 {
            pool.write("tank/a", 5, block, block + 1).await;
        }
        pool.engine.space().take_checkpoint().await.unwrap();
        pool.add_disk(VdevClass::Normal).await;
        for block in 0..200 {
            pool.write("tank/a", 5, block, block + 1000).await;
        }
        pool.engine.sync().await.unwrap();
        assert!(allocated(&pool)[2] > 0);
        pool.check().await;
        let refused = pool.engine.admin().reguid(7).await.unwrap_err();
        assert_eq!(refused.cause(), Some(&CheckpointError::Exists));
        pool.engine.export().await.unwrap();
        pool.rewind().await.unwrap();
        assert_eq!(pool.engine.tree().tops().count(), 2);
        for block in 0..50 {
            assert_eq!(pool.read("tank/a", 5, block).await, block + 1);
        }
        // The rewound pool does not have it.
        pool.devices.pop();
        pool.auditor = cenote_poolkit::audit::Auditor::new();
        pool.write("tank/a", 5, 0, 0).await;
        pool.reopen().await;
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}

/// Offset of a device's data area.
const DATA_START: u64 = 4 << 20;

/// Returns the free ranges of a pool with one vdev, without concurrent allocations.
async fn free_ranges(space: &std::sync::Arc<SpaceAllocator>) -> Vec<std::ops::Range<u64>> {
    let mut ranges = Vec::new();
    for metaslab in space.metaslab_figures(0) {
        let paused = space.pause(0, metaslab.id).await.unwrap().unwrap();
        ranges.extend(paused.free(0, usize::MAX).iter());
    }
    ranges
}

/// Returns the word at `offset` of the data area.
fn word(image: &Image, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    image.read_at(DATA_START + offset, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Creates a pool in which much was written and freed, so that free space has old contents.
async fn used() -> MemoryPool {
    let pool = MemoryPool::new().await;
    pool.create("tank/a").await;
    for round in 0..3 {
        for block in 0..400 {
            pool.write("tank/a", 5, block, block * 5 + 3 + round * 10_000).await;
        }
        pool.engine.sync().await.unwrap();
    }
    pool.engine.space().take_checkpoint().await.unwrap();
    for block in 0..200 {
        pool.write("tank/a", 5, block * 2, block * 5 + 4).await;
    }
    pool.settle().await;
    pool
}

async fn check_contents(pool: &MemoryPool) {
    for block in 0..400 {
        let salt = if block % 2 == 0 { block / 2 * 5 + 4 } else { block * 5 + 20_003 };
        assert_eq!(pool.read("tank/a", 5, block).await, salt, "block {block}");
    }
}

/// With `zfs_trim_metaslab_skip` a trim ends with the last metaslab that was ever used.
#[test]
fn zfs_trim_metaslab_skip_passes_over_unused_metaslabs() {
    for skips in [0, 1] {
        let tunables = vec![(&tunables::TRIM_METASLAB_SKIP, skips)];
        let done = simulate(World { tunables, ..World::new(1) }, async move {
            let pool = Fixture::new("disk", 1).await;
            let (leaf, kind) = (pool.leaf(0), LeafWorkKind::Trim);
            pool.engine.leaves().start_trim(&[leaf], TrimOptions::default()).await.unwrap();
            pool.engine.leaves().wait_for_work(&[leaf], kind).await.unwrap();
            let done = pool.engine.leaves().work_state(leaf, kind).await.unwrap();
            let alloc = pool.engine.allocator();
            let all: Vec<_> = (0..).map_while(|id| alloc.metaslab_space(0, id)).collect();
            let last = all.iter().rposition(|metaslab| metaslab.has_map).expect("data");
            assert!(last + 1 < all.len(), "every metaslab is used");
            let end = all[last].start + all[last].size;
            assert_eq!(done.offset <= end, skips == 1, "{done:?}, {end}");
            assert!(pool.finish().await.is_clean());
        });
        done.unwrap();
    }
}

#[test]
fn trim_discards_exactly_the_free_space() {
    let budget = Budget::take();
    block_on(2, async {
        let mut pool = used().await;
        let leaf = pool.engine.leaves().data_guids()[0];
        let kind = LeafWorkKind::Trim;
        let none = pool.engine.leaves().stop_work(&[leaf], kind, Stop::Cancel).await.unwrap_err();
        assert_eq!(none.cause(), Some(&LeafWorkError::NotRunning(leaf, kind)));
        let unknown =
            pool.engine.leaves().start_trim(&[1], TrimOptions::default()).await.unwrap_err();
        assert_eq!(unknown.cause(), Some(&LeafWorkError::NoDevice(1)));

        // Slowly, during writes; then suspended, and resumed by another import.
        let slow = TrimOptions { rate: 16 << 20, ..TrimOptions::default() };
        pool.engine.leaves().start_trim(&[leaf], slow).await.unwrap();
        let again = pool.engine.leaves().start_trim(&[leaf], slow).await.unwrap_err();
        assert_eq!(again.cause(), Some(&LeafWorkError::Running(leaf, kind)));
        for block in 0..20 {
            pool.write("tank/a", 6, block, block * 5 + 3).await;
            pool.engine.sync().await.unwrap();
        }
        cenote_rt::sleep(Duration::from_millis(300)).await;
        pool.engine.leaves().stop_work(&[leaf], kind, Stop::Suspend).await.unwrap();
        let held = pool.engine.leaves().work_state(leaf, kind).await.unwrap();
        assert_eq!((held.state, held.rate), (LeafWorkState::Suspended, 16 << 20));
        assert!(held.offset > 0 && held.offset < 120 << 20, "{held:?}");
        pool.check().await;
        pool.reopen().await;
        pool.engine.leaves().resume_work().await.unwrap();
        let still = pool.engine.leaves().work_state(leaf, kind).await.unwrap();
        assert_eq!((still.state, still.offset), (LeafWorkState::Suspended, held.offset));
        let fast = TrimOptions { rate: 1 << 40, ..TrimOptions::default() };
        pool.engine.leaves().start_trim(&[leaf], fast).await.unwrap();
        pool.engine.leaves().wait_for_work(&[leaf], kind).await.unwrap();
        let done = pool.engine.leaves().work_state(leaf, kind).await.unwrap();
        assert_eq!((done.state, done.rate), (LeafWorkState::Complete, 1 << 40));
        assert!(done.offset > held.offset);

        // From the beginning, since the last one is complete.
        pool.engine.leaves().start_trim(&[leaf], TrimOptions::default()).await.unwrap();
        pool.engine.leaves().wait_for_work(&[leaf], kind).await.unwrap();
        check_contents(&pool).await;
        let held = pool.engine.space().checkpoint_bytes();
        assert!(held > 0);
        let (free, image) = (free_ranges(pool.engine.allocator()).await, pool.devices[0].image());
        let min = tunables::TRIM_EXTENT_BYTES_MIN.get();
        let mut trimmed = 0;
        // The records of the end allocated and freed these.
        let mut touched = 0;
        for range in free.iter().filter(|range| range.end - range.start >= min) {
            for offset in range.clone().step_by(512) {
                trimmed += 1;
                touched += u64::from(word(&image, offset) != 0);
            }
        }
        assert!(trimmed > 1000 && touched < 400, "{touched} of {trimmed}");
        pool.check().await;
        pool.judge_as_it_is();
        pool.judge_checkpoint();
        pool.engine.export().await.unwrap();
        pool.rewind().await.unwrap();
        for block in 0..400 {
            assert_eq!(pool.read("tank/a", 5, block).await, block * 5 + 20_003);
        }
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}

#[test]
fn initialize_fills_exactly_the_free_space() {
    let budget = Budget::take();
    block_on(2, async {
        let mut pool = used().await;
        let leaf = pool.engine.leaves().data_guids()[0];
        let kind = LeafWorkKind::Initialize;
        pool.engine.leaves().start_initialize(&[leaf]).await.unwrap();
        for block in 0..10 {
            pool.write("tank/a", 6, block, block * 5 + 3).await;
            pool.engine.sync().await.unwrap();
        }
        // Closed while it runs: it is resumed by the import.
        pool.reopen().await;
        let left = pool.engine.leaves().work_state(leaf, kind).await.unwrap();
        pool.engine.leaves().resume_work().await.unwrap();
        pool.engine.leaves().wait_for_work(&[leaf], kind).await.unwrap();
        let done = pool.engine.leaves().work_state(leaf, kind).await.unwrap();
        assert_eq!(done.state, LeafWorkState::Complete, "{left:?}");
        check_contents(&pool).await;
        let (free, image) = (free_ranges(pool.engine.allocator()).await, pool.devices[0].image());
        let (mut filled, mut other) = (0_u64, 0_u64);
        for offset in free.iter().flat_map(|range| range.clone().step_by(512)) {
            if word(&image, offset) == 0xdead_beef_dead_beee { filled += 1 } else { other += 1 }
        }
        assert!(filled > 200_000 && other < 2000, "{filled} {other}");
        pool.check().await;
        pool.engine.leaves().stop_work(&[leaf], kind, Stop::Forget).await.unwrap();
        let state = pool.engine.leaves().work_state(leaf, kind).await.unwrap().state;
        assert_eq!(state, LeafWorkState::None);
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}

#[test]
fn autotrim_discards_freed_space() {
    let budget = Budget::take();
    block_on(2, async {
        let mut pool = MemoryPool::new().await;
        tunables::TRIM_TXG_BATCH.set(2).unwrap();
        pool.engine.admin().set(vec![PoolSetting::Property("autotrim", 1)]).await.unwrap();
        pool.reopen().await;
        pool.create("tank/a").await;
        for round in 0..4 {
            for block in 0..300 {
                pool.write("tank/a", 5, block, block * 5 + 3 + round * 10_000).await;
            }
            pool.engine.sync().await.unwrap();
        }
        for block in 0..12 {
            pool.write("tank/a", 6, block, 3).await;
            pool.engine.sync().await.unwrap();
        }
        pool.engine.export().await.unwrap();
        tunables::TRIM_TXG_BATCH.set(32).unwrap();
        pool.open_again().await;
        let (free, image) = (free_ranges(pool.engine.allocator()).await, pool.devices[0].image());
        let offsets = free.iter().flat_map(|range| range.clone().step_by(512));
        let (left, all) = offsets.fold((0, 0), |(left, all), offset| {
            (left + u64::from(word(&image, offset) != 0), all + 1)
        });
        // Of 14 MB freed, only recent and small ranges are left.
        assert!(all > 100_000 && left < 12_000, "{left} of {all}");
        for block in 0..300 {
            assert_eq!(pool.read("tank/a", 5, block).await, block * 5 + 30_003);
        }
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}

#[test]
fn indirect_block_size_property_sets_the_size() {
    let budget = Budget::take();
    block_on(1, async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        pool.create("tank/a/b").await;
        let shift = async |pool: &MemoryPool, object| {
            pool.write("tank/a/b", object, 300, 8).await;
            let head = pool.engine.head("tank/a/b").await.unwrap();
            head.live().inspect(|tx| tx.dnode(object).map(|dnode| dnode.indblkshift)).await.unwrap()
        };
        assert_eq!(shift(&pool, 5).await, 17);
        for (object, text, want) in [(6, "16K", 14), (7, "5000", 17), (8, "65536", 16)] {
            let value = Value::text(text);
            let name = "cenote:indirect_block_size";
            pool.engine.properties().set("tank/a", name, value).await.unwrap();
            assert_eq!(shift(&pool, object).await, want, "{text}");
        }
        pool.reopen().await;
        assert_eq!(shift(&pool, 9).await, 16);
        assert_eq!(shift(&pool, 5).await, 17);
        pool.engine.sync().await.unwrap();
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}
