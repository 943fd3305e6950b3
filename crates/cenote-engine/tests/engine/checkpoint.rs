//! The pool's checkpoint: held space, discarding, rewinding.

use cenote_engine::{CheckpointError, CheckpointState};
use cenote_rt::{block_on, tunables};

use crate::memory::{Budget, MemoryPool};

/// A dataset with some blocks, a snapshot of it, and a second one.
async fn filled() -> MemoryPool {
    let pool = MemoryPool::new().await;
    pool.create("tank/a").await;
    for block in 0..200 {
        pool.write("tank/a", 5, block, block + 1).await;
    }
    pool.snap("tank/a@before").await;
    pool.create("tank/b").await;
    pool.write("tank/b", 7, 0, 77).await;
    pool.engine.sync().await.unwrap();
    pool
}

/// Changes nearly everything that `filled` created.
async fn change(pool: &MemoryPool) {
    for block in 0..150 {
        pool.write("tank/a", 5, block, block + 1000).await;
    }
    pool.engine.sync().await.unwrap();
    pool.engine.snapshots().destroy("tank/a@before").await.unwrap();
    pool.engine.datasets().destroy("tank/b").await.unwrap();
    pool.create("tank/c").await;
    pool.write("tank/c", 5, 0, 9).await;
    pool.settle().await;
}

#[test]
fn checkpoint_holds_its_blocks_until_discarded() {
    let budget = Budget::take();
    block_on(1, async {
        let mut pool = filled().await;
        assert_eq!(pool.engine.space().checkpoint_state(), CheckpointState::None);
        pool.engine.space().take_checkpoint().await.unwrap();
        assert!(matches!(pool.engine.space().checkpoint_state(), CheckpointState::Kept(_)));
        let again = pool.engine.space().take_checkpoint().await.unwrap_err();
        assert_eq!(again.cause(), Some(&CheckpointError::Exists));
        let reguid = pool.engine.admin().reguid(1).await.unwrap_err();
        assert_eq!(reguid.cause(), Some(&CheckpointError::Exists));
        pool.check().await;
        pool.judge_as_it_is();

        change(&pool).await;
        pool.check().await;
        let held = pool.engine.space().checkpoint_bytes();
        assert!(held > 100 * 8192, "{held}");
        let reader = pool.reader().await;
        assert_eq!(reader.space().await.unwrap().checkpoint, Some(held));
        pool.judge_as_it_is();
        pool.judge_checkpoint();

        // Another import keeps it.
        pool.reopen().await;
        assert!(matches!(pool.engine.space().checkpoint_state(), CheckpointState::Kept(_)));
        // The export itself replaced blocks of the MOS.
        let held = pool.engine.space().checkpoint_bytes().max(held);
        assert_eq!(pool.reader().await.space().await.unwrap().checkpoint, Some(held));
        for block in 150..200 {
            pool.write("tank/a", 5, block, block + 1000).await;
        }
        pool.settle().await;
        assert!(pool.engine.space().checkpoint_bytes() > held);
        pool.check().await;

        // One block of the map in each txg; the pool is consistent after each of them.
        tunables::SPA_DISCARD_MEMORY_LIMIT.set(1).unwrap();
        let free = pool.free_bytes();
        pool.engine.space().discard_checkpoint().await.unwrap();
        pool.judge_as_it_is();
        for step in 0.. {
            if pool.engine.space().checkpoint_state() == CheckpointState::None {
                break;
            }
            assert!(step < 50);
            pool.engine.sync().await.unwrap();
            pool.check().await;
        }
        tunables::SPA_DISCARD_MEMORY_LIMIT.set(16 << 20).unwrap();
        assert_eq!(pool.engine.space().checkpoint_bytes(), 0);
        pool.settle().await;
        for _ in 0..4 {
            pool.write("tank/c", 5, 1, 3).await;
            pool.engine.sync().await.unwrap();
        }
        assert!(pool.free_bytes() > free + held / 2);
        let gone = pool.engine.space().discard_checkpoint().await.unwrap_err();
        assert_eq!(gone.cause(), Some(&CheckpointError::NotThere));
        pool.engine.space().take_checkpoint().await.unwrap();
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}

#[test]
fn checkpoint_discard_continues_after_import() {
    let budget = Budget::take();
    block_on(1, async {
        let mut pool = filled().await;
        pool.engine.space().take_checkpoint().await.unwrap();
        change(&pool).await;
        tunables::SPA_DISCARD_MEMORY_LIMIT.set(1).unwrap();
        pool.engine.space().discard_checkpoint().await.unwrap();
        tunables::SPA_DISCARD_MEMORY_LIMIT.set(16 << 20).unwrap();
        let was = pool.engine.space().checkpoint_state();
        pool.open_again().await;
        assert_eq!(pool.engine.space().checkpoint_state(), was);
        pool.engine.sync().await.unwrap();
        pool.engine.sync().await.unwrap();
        assert_eq!(pool.engine.space().checkpoint_state(), CheckpointState::None);
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}

#[test]
fn checkpoint_rewind() {
    let budget = Budget::take();
    block_on(1, async {
        let mut pool = filled().await;
        let none = pool.rewind().await.unwrap_err();
        assert_eq!(none.cause(), Some(&CheckpointError::NotThere));
        pool.open_again().await;
        pool.engine.space().take_checkpoint().await.unwrap();
        change(&pool).await;
        // Blocks written after the checkpoint must not overwrite it.
        for block in 0..2000 {
            pool.write("tank/c", 6, block, block + 5000).await;
        }
        pool.engine.sync().await.unwrap();
        let newest = pool.engine.uberblock().txg;
        pool.engine.export().await.unwrap();
        pool.rewind().await.unwrap();
        assert!(pool.engine.uberblock().txg > newest);
        assert_eq!(pool.engine.uberblock().checkpoint_txg, 0);
        assert_eq!(pool.engine.space().checkpoint_state(), CheckpointState::None);
        pool.auditor = cenote_poolkit::audit::Auditor::new();
        pool.check().await;
        for block in 0..200 {
            assert_eq!(pool.read("tank/a", 5, block).await, block + 1);
        }
        assert_eq!(pool.read("tank/b", 7, 0).await, 77);
        assert!(pool.engine.head("tank/c").await.is_err());
        pool.engine.snapshots().destroy("tank/a@before").await.unwrap();
        pool.write("tank/a", 5, 3, 3).await;
        pool.settle().await;
        pool.reopen().await;
        pool.auditor = cenote_poolkit::audit::Auditor::new();
        pool.check().await;
        pool.judge().await;
    })
    .unwrap();
    drop(budget);
}
