//! Views: the committed state is read while the pool is written.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_pool::{Pool, leaks};
use cenote_rt::block_on;

use crate::memory::{BLOCK, Budget, MemoryPool};

const BLOCKS: u64 = 300;

/// Returns the salt of every block of the view.
async fn salts(view: &Arc<Pool>) -> Vec<u64> {
    let objset = view.dataset("tank/a").await.unwrap().open().await.unwrap();
    let dnode = objset.dnode(5).await.unwrap();
    let mut salts = Vec::new();
    for block in 0..BLOCKS {
        let bytes = dnode.read_at(block * BLOCK, 8).await.unwrap();
        salts.push(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
    }
    salts
}

fn deferred(engine: &Engine) -> u64 {
    engine.allocator().vdev_figures().iter().map(|vdev| vdev.space.deferred).sum()
}

#[test]
fn view_is_unchanged_by_later_txgs() {
    let budget = Budget::take();
    block_on(1, async {
        let pool = MemoryPool::new().await;
        let engine = &pool.engine;
        pool.create("tank/a").await;
        for block in 0..BLOCKS {
            pool.write("tank/a", 5, block, block * 5 + 3).await;
        }
        engine.sync().await.unwrap();
        let view = engine.view().await.unwrap();
        assert_eq!(view.txg(), engine.uberblock().txg);
        assert!(Arc::ptr_eq(&view, &engine.view().await.unwrap()), "of the same txg");

        // Everything is overwritten, and each of many txgs frees the blocks of an earlier one.
        for round in 1..6 {
            for block in 0..BLOCKS {
                pool.write("tank/a", 5, block, block * 5 + 3 + round * 5000).await;
            }
            engine.sync().await.unwrap();
            engine.sync().await.unwrap();
        }
        assert!(deferred(engine) > 5 * BLOCKS * BLOCK, "{}", deferred(engine));
        let expected: Vec<_> = (0..BLOCKS).map(|block| block * 5 + 3).collect();
        assert_eq!(salts(&view).await, expected);
        let report = leaks::check(&view).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.lines());
        let newest = engine.view().await.unwrap();
        assert!(newest.txg() > view.txg());
        assert_eq!(salts(&newest).await[1], 5 + 3 + 25_000);
        drop(newest);

        // Without the view, held space is free two txgs later.
        drop(view);
        for _ in 0..4 {
            pool.write("tank/a", 5, 0, 0).await;
            engine.sync().await.unwrap();
        }
        assert!(deferred(engine) < BLOCKS * BLOCK, "{}", deferred(engine));
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}
