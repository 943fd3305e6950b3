//! Pools created and written by the engine, checked by OpenZFS's tools.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

mod bus;
mod cached;
mod checkpoint;
mod closing;
mod condense;
mod creators;
mod damaged;
mod deferrals;
mod draids;
mod effective;
mod faults;
mod growth;
mod hooks;
mod hosts;
mod keys;
mod log_vdevs;
mod memory;
mod model;
mod ops;
mod pads;
mod paths;
mod races;
mod readers;
mod rebuilds;
mod reflows;
mod removals;
mod repairs;
mod scans;
mod shapes;
mod short;
mod space;
mod splits;
mod stale;
mod theirs;
mod throttles;
mod unplugged;
mod views;

use cenote_engine::ApplyOptions;
use cenote_poolkit::pools::{self, TestPool, judge};
use cenote_rt::block_on;
use cenote_testkit::golden::PrivateFolder;

#[test]
fn new_pools_pass_zdb() {
    for layout in pools::layouts() {
        let dir = PrivateFolder::create("pool");
        let pool = TestPool::new(dir.path(), layout);
        block_on(2, async {
            let engine = pool.create().await.unwrap();
            engine.export().await.unwrap();
        })
        .unwrap();
        judge(dir.path(), "tank");
    }
}

#[test]
fn data_snapshots_and_frees_pass_zdb() {
    for layout in pools::layouts() {
        let dir = PrivateFolder::create("pool");
        let pool = TestPool::new(dir.path(), layout);
        block_on(2, workload(&pool)).unwrap().unwrap();
        judge(dir.path(), "tank");
    }
}

/// Some of each operation, over several txgs and two imports.
async fn workload(pool: &TestPool) -> cenote_rt::Result<()> {
    let engine = pool.create().await?;
    let head = engine.datasets().create(pools::dataset("tank/a")).await?;
    let object = pools::new_object(&engine, &head).await?;
    for round in 0..4_u64 {
        for block in 0..40 {
            pools::write(&engine, &head, object, block * 7 + round, round).await?;
        }
        engine.sync().await?;
        engine.snapshots().create(vec![format!("tank/a@{round}"), format!("tank@{round}")]).await?;
    }
    engine
        .apply(&head, ApplyOptions::new(), |tx| tx.free_range(object, 0, Some(100 << 17)))
        .await?;
    engine.sync().await?;
    engine.snapshots().destroy("tank/a@1").await?;
    engine.snapshots().destroy("tank/a@0").await?;
    engine.snapshots().destroy("tank/a@3").await?;
    engine.export().await?;
    drop((engine, head));

    let engine = pool.open().await?;
    let head = engine.head("tank/a").await?;
    for block in 0..30 {
        pools::write(&engine, &head, object, block * 11, 99).await?;
    }
    engine.snapshots().create(vec!["tank/a@last".into()]).await?;
    engine.apply(&head, ApplyOptions::new(), |tx| tx.free(object)).await?;
    engine.sync().await?;
    engine.snapshots().destroy("tank/a@2").await?;
    engine.snapshots().destroy("tank/a@last").await?;
    engine.export().await
}
