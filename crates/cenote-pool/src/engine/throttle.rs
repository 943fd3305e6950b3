//! How fast changes are taken, and when they are written (spec 04 §19.1, §19.3).
//!
//! ```text
//!   dirty bytes  0 ......... 20 % ................................. 100 % of zfs_dirty_data_max
//!                wait        a sync is started                      writers wait for it
//! ```
//!
//! A pool with a keeper (`Engine::keep`) also syncs what is older than `zfs_txg_timeout`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_rt::{Result, tunables};

use super::{Engine, Head};

impl Engine {
    /// Bytes of changes in memory, over all heads.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    /// Keeps the pool going: syncs in the background, until the last user of the pool is gone.
    pub fn keep(self: &Arc<Self>) {
        self.is_kept.store(true, Ordering::Release);
        let (engine, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
        cenote_rt::spawn(async move {
            loop {
                let timeout = Duration::from_secs(tunables::TXG_TIMEOUT.get());
                cenote_rt::until(timeout, wake.notified()).await;
                if !tick(&engine).await {
                    break;
                }
            }
        });
    }

    /// Waits while there are too many changes in memory.
    pub(super) async fn admit(&self) -> Result<()> {
        let max = tunables::DIRTY_DATA_MAX.get();
        while self.dirty_bytes() >= max {
            self.sync().await?;
        }
        Ok(())
    }

    /// Counts what a change of `head` in `txg` added, and starts a sync if that is enough.
    pub(super) fn note_dirty(&self, head: &Head, txg: u64) {
        let now = head.live().dirty_bytes(txg);
        let before = head.dirty.swap(now, Ordering::AcqRel);
        let dirty = if now >= before {
            self.dirty.fetch_add(now - before, Ordering::AcqRel) + now - before
        } else {
            // The head's first change in a new txg.
            self.dirty.fetch_add(now, Ordering::AcqRel) + now
        };
        let max = tunables::DIRTY_DATA_MAX.get();
        self.tree.load().set_dirty(dirty, max);
        let percent = tunables::DIRTY_DATA_SYNC_PERCENT.get();
        if u128::from(dirty) * 100 >= u128::from(max) * u128::from(percent) {
            self.wake.notify_one();
        }
    }

    /// Counts again once a txg is committed: what is left belongs to the open one.
    pub(super) fn recount_dirty(&self) {
        let open = self.open_txg();
        let left = self.heads.all().iter().map(|head| head.live().dirty_bytes(open)).sum();
        self.dirty.store(left, Ordering::Release);
        self.tree.load().set_dirty(left, tunables::DIRTY_DATA_MAX.get());
    }
}

/// One round of the keeper. False when there is nothing to keep any more.
async fn tick(engine: &Weak<Engine>) -> bool {
    let Some(engine) = engine.upgrade() else { return false };
    if engine.dirty_bytes() == 0 {
        return engine.check_running().is_ok();
    }
    // A failure suspends the pool, and everybody who wants something of it hears why.
    engine.sync().await.is_ok()
}
