//! Devices that come while the pool is in use; free space that is discarded or filled.

use cenote_pool::engine::CheckpointError;
use cenote_rt::block_on;
use cenote_vdev::create::VdevClass;

use crate::memory::{Budget, MemoryPool};

/// Allocated bytes of each top-level vdev.
fn allocated(pool: &MemoryPool) -> Vec<u64> {
    let figures = pool.engine.allocator().vdev_figures();
    figures.iter().map(|vdev| vdev.space.allocated).collect()
}

#[test]
fn a_device_that_comes_is_used_at_once() {
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
        // As a crash leaves it, and then exported.
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

#[test]
fn a_rewind_leaves_behind_a_device_that_came_later() {
    let budget = Budget::take();
    block_on(1, async {
        let mut pool = MemoryPool::of_disks(2).await;
        pool.create("tank/a").await;
        for block in 0..50 {
            pool.write("tank/a", 5, block, block + 1).await;
        }
        pool.engine.take_checkpoint().await.unwrap();
        pool.add_disk(VdevClass::Normal).await;
        for block in 0..200 {
            pool.write("tank/a", 5, block, block + 1000).await;
        }
        pool.engine.sync().await.unwrap();
        assert!(allocated(&pool)[2] > 0);
        pool.check().await;
        let refused = pool.engine.reguid(7).await.unwrap_err();
        assert_eq!(refused.cause(), Some(&CheckpointError::Exists));
        pool.engine.export().await.unwrap();
        pool.rewind().await.unwrap();
        assert_eq!(pool.engine.tree().tops().count(), 2);
        for block in 0..50 {
            assert_eq!(pool.read("tank/a", 5, block).await, block + 1);
        }
        // The pool does not know it any more.
        pool.devices.pop();
        pool.auditor = crate::audit::Auditor::new();
        pool.write("tank/a", 5, 0, 0).await;
        pool.reopen().await;
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}
