//! Each dataset operation by itself: its effects, its errors, and the sums afterwards.

use std::sync::Arc;
use std::time::Duration;

use cenote_engine::admin::PoolSetting;
use cenote_engine::{
    ApplyOptions, Charge, Event, GrantChange, NewDataset, Notice, OpError, PropertyChange,
};
use cenote_ondisk::feature::FEATURES;
use cenote_ondisk::zap::Value;
use cenote_pool::DamagedBlock;
use cenote_pool::dsl::deleg::Requester;
use cenote_rt::{Error, Kind, Result, block_on};

use crate::memory::{BLOCK, Budget, MemoryPool, content, filesystem, need_object};

const MIB: u64 = 1 << 20;

fn cause<T>(result: Result<T>) -> OpError {
    let error = result.err().expect("it is refused");
    *error.cause::<OpError>().unwrap_or_else(|| panic!("{error}"))
}

fn run(test: impl Future<Output = ()>) {
    block_on(2, test).unwrap();
}

/// `count` blocks of an object, all different.
async fn fill(pool: &MemoryPool, dataset: &str, object: u64, count: u64, salt: u64) {
    for block in 0..count {
        pool.write(dataset, object, block, salt * 1000 + block).await;
    }
}

#[test]
fn dataset_names_are_checked() {
    run(async {
        let pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        let create = |name: &str| pool.engine.datasets().create(filesystem(name));
        assert_eq!(cause(create("tank/a").await), OpError::Exists);
        assert_eq!(cause(create("tank").await), OpError::Exists);
        assert_eq!(cause(create("tank/b/c").await), OpError::NotFound);
        assert_eq!(cause(create("pond/b").await), OpError::OtherPool);
        assert_eq!(cause(create("tank/b%").await), OpError::Name);
        assert_eq!(cause(create("tank/$b").await), OpError::Name);
        assert_eq!(cause(create("tank/b*").await), OpError::Name);
        assert_eq!(cause(create("tank/b@c").await), OpError::Name);
        assert_eq!(cause(create(&format!("tank/{}", "x".repeat(251))).await), OpError::NameTooLong);
        let deep = format!("tank{}", "/d".repeat(50));
        assert_eq!(cause(create(&deep).await), OpError::NameTooLong);
        let volume =
            NewDataset { kind: cenote_ondisk::objset::ObjSetType::Zvol, ..filesystem("tank/vol") };
        pool.engine.datasets().create(volume).await.unwrap();
        assert_eq!(cause(create("tank/vol/x").await), OpError::WrongParent);
        assert_eq!(
            cause(pool.engine.snapshots().create(vec!["tank/x@s".into()]).await),
            OpError::NotFound
        );
        assert_eq!(cause(pool.engine.datasets().destroy("tank/$ORIGIN").await), OpError::NotFound);
        assert_eq!(cause(pool.engine.datasets().destroy("tank").await), OpError::IsPool);
    });
}

#[test]
fn snapshot_of_several_datasets_is_atomic() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        let wanted = vec!["tank/a@s".to_owned(), "tank/missing@s".to_owned()];
        let error = pool.engine.snapshots().create(wanted).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(error.at().dataset.as_deref(), Some("tank/missing@s"));
        pool.engine.snapshots().create(vec!["tank/a@s".into(), "tank@s".into()]).await.unwrap();
        pool.check().await;
    });
}

#[test]
fn destroy_frees_space_in_several_txgs() {
    let rate = Budget::take();
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        for object in 1..20 {
            fill(&pool, "tank/a", object, 40, object).await;
        }
        pool.snap("tank/a@s").await;
        fill(&pool, "tank/a", 3, 40, 77).await;
        assert_eq!(cause(pool.engine.datasets().destroy("tank/a").await), OpError::HasSnapshots);
        pool.engine.snapshots().destroy("tank/a@s").await.unwrap();
        pool.check().await;
        rate.set(37);
        let head = pool.engine.head("tank/a").await.unwrap();
        let owner = head.own();
        assert_eq!(cause(pool.engine.datasets().destroy("tank/a").await), OpError::Busy);
        drop(owner);
        pool.engine.datasets().destroy("tank/a").await.unwrap();
        assert!(head.is_gone());
        assert!(
            pool.engine.apply(&head, ApplyOptions::new(), |tx| need_object(tx, 1)).await.is_err()
        );
        let mut txgs = 0;
        while pool.engine.space().has_pending_frees().await.unwrap() {
            pool.check().await;
            pool.engine.sync().await.unwrap();
            txgs += 1;
            if txgs == 5 {
                // The rest is found again by the next import.
                pool.open_again().await;
            }
        }
        assert!(txgs > 15, "{txgs} txgs");
        pool.check().await;
        pool.judge().await;
    });
}

#[test]
fn destroy_without_async_destroy_frees_immediately() {
    run(async {
        let wanted = FEATURES.iter().filter(|feature| {
            cenote_pool::features::is_in_identity(feature) && feature.name != "async_destroy"
        });
        let mut pool = MemoryPool::with_features(wanted.collect()).await;
        pool.create("tank/a").await;
        fill(&pool, "tank/a", 1, 60, 1).await;
        pool.snap("tank/a@s").await;
        fill(&pool, "tank/a", 1, 30, 2).await;
        pool.engine.datasets().rollback("tank/a", None).await.unwrap();
        pool.check().await;
        pool.engine.snapshots().destroy("tank/a@s").await.unwrap();
        pool.engine.datasets().destroy("tank/a").await.unwrap();
        pool.settle().await;
        pool.check().await;
        pool.judge().await;
    });
}

#[test]
fn promote_clones_there_and_back() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        for round in 0..4 {
            fill(&pool, "tank/a", 1, 20 + round, round + 1).await;
            pool.snap(&format!("tank/a@{round}")).await;
        }
        fill(&pool, "tank/a", 2, 10, 9).await;
        let engine = std::sync::Arc::clone(&pool.engine);
        engine.datasets().clone_snapshot("tank/a@1", "tank/c", Vec::new()).await.unwrap();
        engine.datasets().clone_snapshot("tank/a@0", "tank/d", Vec::new()).await.unwrap();
        fill(&pool, "tank/c", 1, 15, 20).await;
        pool.snap("tank/c@x").await;
        fill(&pool, "tank/c", 1, 5, 21).await;
        engine.datasets().clone_snapshot("tank/c@x", "tank/e", Vec::new()).await.unwrap();
        fill(&pool, "tank/e", 1, 3, 22).await;
        engine.bookmarks().create(vec![("tank/a#0".into(), "tank/a@0".into())]).await.unwrap();
        pool.check().await;
        assert_eq!(cause(engine.datasets().promote("tank/a").await), OpError::NotAClone);
        assert_eq!(cause(engine.snapshots().destroy("tank/a@1").await), OpError::HasClones);
        engine.datasets().promote("tank/c").await.unwrap();
        pool.check().await;
        assert_eq!(pool.read("tank/a", 1, 0).await, 4000);
        assert_eq!(cause(engine.datasets().promote("tank/c").await), OpError::NotAClone);
        engine.datasets().promote("tank/e").await.unwrap();
        pool.check().await;
        engine.datasets().promote("tank/d").await.unwrap();
        pool.check().await;
        engine.datasets().promote("tank/a").await.unwrap();
        pool.check().await;
        assert_eq!(cause(engine.datasets().rename("tank/e", "tank/e/f").await), OpError::Cycle);
        pool.snap("tank/d@0x").await;
        engine.snapshots().rename("tank/d", "0x", "1", false).await.unwrap();
        pool.judge().await;
    });
}

#[test]
fn rollback_removes_later_changes() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        assert_eq!(
            cause(pool.engine.datasets().rollback("tank/a", None).await),
            OpError::NoSnapshot
        );
        fill(&pool, "tank/a", 1, 30, 1).await;
        pool.snap("tank/a@s").await;
        fill(&pool, "tank/a", 1, 10, 2).await;
        pool.snap("tank/a@t").await;
        fill(&pool, "tank/a", 1, 20, 3).await;
        fill(&pool, "tank/a", 2, 20, 4).await;
        pool.set("tank/a", "refreservation", 2 << 20).await.unwrap();
        let refused = pool.engine.datasets().rollback("tank/a", Some("tank/a@s")).await;
        assert_eq!(cause(refused), OpError::NotLatest);
        let latest = pool.engine.datasets().rollback("tank/a", Some("tank/a@t")).await.unwrap();
        assert_eq!(latest, "tank/a@t");
        pool.check().await;
        assert_eq!(pool.read("tank/a", 1, 0).await, 2000);
        assert_eq!(pool.read("tank/a", 1, 20).await, 1020);
        assert_eq!(pool.read("tank/a", 2, 0).await, 0);
        // The head continues from there.
        fill(&pool, "tank/a", 1, 5, 5).await;
        pool.engine.bookmarks().create(vec![("tank/a#t".into(), "tank/a@t".into())]).await.unwrap();
        pool.engine.snapshots().destroy("tank/a@t").await.unwrap();
        assert_eq!(
            cause(pool.engine.datasets().rollback("tank/a", None).await),
            OpError::NotLatest
        );
        pool.engine.bookmarks().destroy_all(vec!["tank/a#t".into()]).await.unwrap();
        pool.engine.datasets().rollback("tank/a", None).await.unwrap();
        assert_eq!(pool.read("tank/a", 1, 0).await, 1000);
        pool.settle().await;
        pool.check().await;
        pool.judge().await;
    });
}

#[test]
fn hold_defers_destroy() {
    run(async {
        let mut pool = MemoryPool::new().await;
        let engine = std::sync::Arc::clone(&pool.engine);
        pool.create("tank/a").await;
        fill(&pool, "tank/a", 1, 10, 1).await;
        pool.snap("tank/a@s").await;
        pool.snap("tank/a@t").await;
        let one = |tag: &str| vec![("tank/a@s".to_owned(), tag.to_owned())];
        engine.snapshots().hold(one("keep"), false).await.unwrap();
        assert_eq!(cause(engine.snapshots().hold(one("keep"), false).await), OpError::TagExists);
        engine.snapshots().hold(one("temp"), true).await.unwrap();
        assert_eq!(
            cause(engine.snapshots().hold(one(&"x".repeat(257)), false).await),
            OpError::TooLong
        );
        assert_eq!(cause(engine.snapshots().destroy("tank/a@s").await), OpError::Held);
        engine.snapshots().destroy_all(vec!["tank/a@s".into()], true).await.unwrap();
        pool.check().await;
        assert_eq!(cause(engine.snapshots().release(one("other")).await), OpError::NoTag);
        engine.snapshots().release(one("keep")).await.unwrap();
        engine.sync().await.unwrap();
        pool.check().await;
        drop(engine);
        // The temporary hold ends with the next import, and the snapshot with it.
        pool.reopen().await;
        assert_eq!(pool.engine.health().take_notices(), [Notice::HoldsReleased { count: 1 }]);
        assert!(pool.engine.snapshots().create(vec!["tank/a@s".into()]).await.is_ok());
        // A clone defers it as well.
        pool.engine.datasets().clone_snapshot("tank/a@s", "tank/c", Vec::new()).await.unwrap();
        pool.engine.snapshots().destroy_all(vec!["tank/a@s".into()], true).await.unwrap();
        pool.engine.datasets().destroy("tank/c").await.unwrap();
        pool.snap("tank/a@s").await;
        pool.check().await;
        pool.judge().await;
    });
}

#[test]
fn bookmark_outlives_its_snapshot() {
    run(async {
        let mut pool = MemoryPool::new().await;
        let engine = std::sync::Arc::clone(&pool.engine);
        pool.create("tank/a").await;
        for round in 0..6 {
            fill(&pool, "tank/a", 1, 20, round + 1).await;
            fill(&pool, "tank/a", round + 10, 4, round + 1).await;
            pool.snap(&format!("tank/a@{round}")).await;
            let mark = (format!("tank/a#{round}"), format!("tank/a@{round}"));
            engine.bookmarks().create(vec![mark]).await.unwrap();
        }
        pool.check().await;
        for round in [2, 3, 0, 5] {
            engine.snapshots().destroy(&format!("tank/a@{round}")).await.unwrap();
            pool.check().await;
        }
        fill(&pool, "tank/a", 1, 7, 50).await;
        fill(&pool, "tank/a", 15, 2, 51).await;
        engine.sync().await.unwrap();
        pool.check().await;
        pool.snap("tank/a@later").await;
        fill(&pool, "tank/a", 1, 20, 52).await;
        engine.sync().await.unwrap();
        pool.check().await;
        let copy = ("tank/a#copy".to_owned(), "tank/a#3".to_owned());
        engine.bookmarks().create(vec![copy.clone()]).await.unwrap();
        assert_eq!(cause(engine.bookmarks().create(vec![copy]).await), OpError::Exists);
        pool.create("tank/b").await;
        let foreign = vec![("tank/b#x".to_owned(), "tank/a@4".to_owned())];
        assert_eq!(cause(engine.bookmarks().create(foreign).await), OpError::NotAnAncestor);
        engine.datasets().clone_snapshot("tank/a@4", "tank/c", Vec::new()).await.unwrap();
        engine.bookmarks().create(vec![("tank/c#x".into(), "tank/a@1".into())]).await.unwrap();
        pool.check().await;
        for name in ["2", "3", "copy", "5"] {
            engine.bookmarks().destroy_all(vec![format!("tank/a#{name}")]).await.unwrap();
            pool.check().await;
        }
        engine.datasets().promote("tank/c").await.unwrap();
        pool.check().await;
        pool.judge().await;
    });
}

#[test]
fn reservation_and_quota_are_charged() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        pool.create("tank/a/b").await;
        pool.set("tank/a/b", "reservation", 8 * MIB).await.unwrap();
        pool.check().await;
        pool.set("tank/a/b", "refreservation", 4 * MIB).await.unwrap();
        pool.check().await;
        fill(&pool, "tank/a/b", 1, 40, 3).await;
        pool.snap("tank/a/b@s").await;
        pool.check().await;
        fill(&pool, "tank/a/b", 1, 40, 4).await;
        pool.engine.sync().await.unwrap();
        pool.check().await;
        assert_eq!(cause(pool.set("tank/a", "quota", 5 * MIB).await), OpError::NoSpace);
        pool.set("tank/a", "quota", 20 * MIB).await.unwrap();
        assert_eq!(cause(pool.set("tank/a/b", "reservation", 30 * MIB).await), OpError::NoSpace);
        assert_eq!(cause(pool.set("tank/a/b", "refquota", 100_000).await), OpError::NoSpace);
        pool.set("tank/a/b", "refquota", 6 * MIB).await.unwrap();
        assert_eq!(cause(pool.set("tank/a/b", "refreservation", 7 * MIB).await), OpError::NoSpace);
        pool.create("tank/x").await;
        pool.engine.datasets().rename("tank/a/b", "tank/x/b").await.unwrap();
        pool.check().await;
        pool.engine.datasets().rename("tank/x/b", "tank/a/b2").await.unwrap();
        pool.engine.properties().inherit("tank/a/b2", "reservation", false).await.unwrap();
        pool.check().await;
        pool.engine.snapshots().destroy("tank/a/b2@s").await.unwrap();
        pool.engine.datasets().destroy("tank/a/b2").await.unwrap();
        pool.settle().await;
        pool.check().await;
        pool.judge().await;
    });
}

#[test]
fn quota_stops_writes_but_not_frees() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        pool.set("tank/a", "quota", 4 << 20).await.unwrap();
        let head = pool.engine.head("tank/a").await.unwrap();
        let mut written = 0;
        let error = loop {
            let bytes = content(written * 5 + 3);
            let change =
                pool.engine.apply(&head, ApplyOptions::charged(Charge::write(BLOCK)), |tx| {
                    need_object(tx, 1)?;
                    tx.write(1, written * BLOCK, &bytes)
                });
            match change.await {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 1000);
        };
        assert_eq!(error.kind(), Kind::Quota);
        assert!(written * BLOCK > 3 << 20, "only {written} blocks fit");
        let free = |tx: &mut cenote_dmu::Tx<'_>| tx.free_range(1, 0, Some(100 * BLOCK));
        pool.engine.apply(&head, ApplyOptions::charged(Charge::free(512)), free).await.unwrap();
        pool.engine.sync().await.unwrap();
        let bytes = content(3);
        let again = |tx: &mut cenote_dmu::Tx<'_>| tx.write(1, 0, &bytes);
        pool.engine.apply(&head, ApplyOptions::charged(Charge::write(BLOCK)), again).await.unwrap();
        pool.engine.sync().await.unwrap();
        pool.check().await;
    });
}

#[test]
fn a_full_pool_can_be_emptied() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        let head = pool.engine.head("tank/a").await.unwrap();
        let bytes = [content(3), content(4), content(8), content(9)].concat();
        let mut written = 0_u64;
        let len = bytes.len() as u64;
        let error = loop {
            let change =
                pool.engine.apply(&head, ApplyOptions::charged(Charge::write(len)), |tx| {
                    need_object(tx, 1)?;
                    tx.write(1, written * len, &bytes)
                });
            match change.await {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), Kind::NoSpace);
        let refused = pool.engine.datasets().create(filesystem("tank/b")).await;
        assert_eq!(cause(refused), OpError::NoSpace);
        let free = |tx: &mut cenote_dmu::Tx<'_>| tx.free_range(1, 0, Some(len * written / 2));
        pool.engine.apply(&head, ApplyOptions::charged(Charge::free(512)), free).await.unwrap();
        for _ in 0..4 {
            pool.engine.sync().await.unwrap();
        }
        pool.create("tank/b").await;
        pool.check().await;
        pool.judge().await;
    });
}

#[test]
fn filesystem_limit_and_snapshot_limit_count_descendants() {
    run(async {
        let mut pool = MemoryPool::new().await;
        let engine = std::sync::Arc::clone(&pool.engine);
        let user = Requester { uid: 1000, gids: vec![7], is_trusted: false };
        let (datasets, snapshots) = (engine.datasets().by(&user), engine.snapshots().by(&user));
        for name in ["tank/a", "tank/a/b", "tank/a/b/c", "tank/z"] {
            pool.create(name).await;
        }
        pool.snap("tank/a/b@s").await;
        pool.set("tank/a", "filesystem_limit", 3).await.unwrap();
        pool.set("tank/a", "snapshot_limit", 2).await.unwrap();
        pool.check().await;
        pool.create("tank/a/d").await;
        let refused = datasets.create(filesystem("tank/a/e")).await;
        assert_eq!(cause(refused), OpError::Limit);
        pool.snap("tank/a@s").await;
        let refused = snapshots.create(vec!["tank/a/d@s".into()]).await;
        assert_eq!(cause(refused), OpError::Limit);
        assert_eq!(cause(datasets.rename("tank/z", "tank/a/z").await), OpError::Limit);
        datasets.rename("tank/a/b", "tank/z/b").await.unwrap();
        pool.check().await;
        datasets.rename("tank/z", "tank/a/z").await.unwrap_err();
        datasets.destroy("tank/a/d").await.unwrap();
        datasets.rename("tank/z", "tank/a/z").await.unwrap();
        pool.check().await;
        pool.judge().await;
    });
}

/// Limits bind no user who may change them (zfsprops(7)).
#[test]
fn filesystem_limit_and_snapshot_limit_bind_only_users_who_cannot_set_them() {
    run(async {
        let mut pool = MemoryPool::new().await;
        for name in ["tank/a", "tank/a/b"] {
            pool.create(name).await;
            for limit in ["filesystem_limit", "snapshot_limit"] {
                pool.set(name, limit, u64::from(name == "tank/a")).await.unwrap();
            }
        }
        let engine = std::sync::Arc::clone(&pool.engine);
        let user = |uid, gid| Requester { uid, gids: vec![gid], is_trusted: false };
        let grant =
            |key: &str, name: &str| GrantChange { key: key.into(), names: vec![name.into()] };
        let grants = vec![grant("ul$1000", "filesystem_limit"), grant("ul$1000", "snapshot_limit")];
        engine.datasets().allow("tank/a/b", grants).await.unwrap();
        let grants = vec![
            grant("s-$@limits", "filesystem_limit"),
            grant("s-$@limits", "snapshot_limit"),
            grant("Gl$8", "@limits"),
            grant("Gd$8", "@limits"),
        ];
        engine.datasets().allow("tank/a", grants).await.unwrap();
        // The first may set the limits of `tank/a/b` only, which are not the only ones.
        for (uid, gid, is_bound) in [(1000, 7, true), (1001, 7, true), (1001, 8, false)] {
            let user = user(uid, gid);
            let name = format!("tank/a/b/{uid}-{gid}");
            let made = engine.datasets().by(&user).create(filesystem(&name)).await;
            assert_eq!(made.is_err(), is_bound, "{name}");
            let name = format!("tank/a/b@{uid}-{gid}");
            if uid == 1000 {
                // Room for one snapshot below `tank/a`.
                engine.snapshots().by(&user).create(vec![name]).await.unwrap();
                continue;
            }
            let taken = engine.snapshots().by(&user).create(vec![name]).await;
            assert_eq!(taken.is_err(), is_bound, "{uid} {gid}");
        }
        engine.admin().set(vec![PoolSetting::Property("delegation", 0)]).await.unwrap();
        let user = user(1001, 8);
        let made = engine.datasets().by(&user).create(filesystem("tank/a/b/late")).await;
        assert_eq!(cause(made), OpError::Limit);
        // The superuser is never bound.
        pool.create("tank/a/b/of-root").await;
        pool.snap("tank/a/b@of-root").await;
        drop(engine);
        // zdb's search for leaked objects does not handle permission ZAPs (spec 04 §24).
        pool.check().await;
    });
}

#[test]
fn properties_apply_to_open_datasets() {
    run(async {
        let mut pool = MemoryPool::new().await;
        let engine = std::sync::Arc::clone(&pool.engine);
        pool.create("tank/a").await;
        pool.create("tank/a/b").await;
        let size = |name: &'static str| {
            let engine = std::sync::Arc::clone(&engine);
            async move {
                engine.sync().await.unwrap();
                let head = engine.head(name).await.unwrap();
                let space = head.live().inspect(|tx| Ok(tx.dnode(1)?.used)).await;
                space.unwrap()
            }
        };
        pool.write("tank/a/b", 1, 0, 1).await;
        let compressed = size("tank/a/b").await;
        pool.set("tank/a", "compression", 2).await.unwrap();
        pool.write("tank/a/b", 1, 0, 6).await;
        assert!(size("tank/a/b").await > compressed + 4096);
        pool.set("tank/a/b", "copies", 2).await.unwrap();
        pool.write("tank/a/b", 1, 0, 11).await;
        assert!(size("tank/a/b").await >= 2 * BLOCK);
        pool.set("tank/a", "compression", 16).await.unwrap();
        pool.set("tank/a/b", "checksum", 14).await.unwrap();
        pool.write("tank/a/b", 1, 0, 16).await;
        pool.snap("tank/a/b@s").await;
        pool.check().await;
        let set = |name: &'static str, value: u64| {
            engine.properties().set("tank/a", name, Value::U64(value))
        };
        assert_eq!(cause(set("compression", 99).await), OpError::Value);
        assert_eq!(cause(set("recordsize", 1000).await), OpError::Value);
        assert_eq!(cause(set("used", 1).await), OpError::ReadOnlyProperty);
        assert_eq!(cause(set("nonsense", 1).await), OpError::NoProperty);
        assert_eq!(cause(set("dedup", 1).await), OpError::Unsupported);
        let user = |name: &'static str, text: &'static str| {
            engine.properties().set("tank/a/b@s", name, Value::text(text))
        };
        user("org:x", "here").await.unwrap();
        assert_eq!(cause(user("Org:x", "here").await), OpError::Name);
        assert_eq!(cause(user("compression", "x").await), OpError::ReadOnlyProperty);
        pool.check().await;
        engine.properties().inherit("tank/a/b@s", "org:x", false).await.unwrap();
        // redundant_metadata=none is a value that is hidden from old software.
        set("redundant_metadata", 3).await.unwrap();
        let received = PropertyChange::Receive(Value::U64(3));
        engine.properties().change("tank/a/b", vec![("copies".into(), received)]).await.unwrap();
        engine.properties().inherit("tank/a/b", "copies", true).await.unwrap();
        drop(engine);
        pool.check().await;
        pool.judge().await;
    });
}

/// Features that become active when enabled apply from the next txg on, to open heads as well:
/// otherwise a hole without birth would count as an old one in a send.
#[test]
fn features_apply_from_the_txg_that_enables_them() {
    use cenote_engine::admin::PoolSetting;
    const NEW: [&str; 2] = ["hole_birth", "embedded_data"];
    run(async {
        let features = cenote_pool::features::identity();
        let features = features.filter(|feature| !NEW.contains(&feature.name));
        let mut pool = MemoryPool::with_features(features.collect()).await;
        pool.create("tank/a").await;
        fill(&pool, "tank/a", 1, 40, 1).await;
        // Compresses to almost nothing.
        pool.write("tank/a", 1, 50, 5).await;
        let punch = async |block: u64| {
            let head = pool.engine.head("tank/a").await.unwrap();
            let free = |tx: &mut cenote_dmu::Tx<'_>| tx.free_range(1, block * BLOCK, Some(BLOCK));
            pool.engine.apply(&head, ApplyOptions::new(), free).await.unwrap();
            pool.engine.sync().await.unwrap()
        };
        let pointer = async |block: u64| {
            let dataset = pool.reader().await.dataset("tank/a").await.unwrap();
            let dnode = dataset.open().await.unwrap().dnode(1).await.unwrap();
            dnode.stored_pointer(0, block).await.unwrap()
        };
        pool.engine.sync().await.unwrap();
        punch(3).await;
        let (hole, small) = (pointer(3).await, pointer(50).await);
        assert_eq!((hole.is_hole(), hole.birth()), (true, 0));
        assert!(!small.is_hole() && !small.is_embedded());
        let settings = FEATURES.iter().filter(|feature| NEW.contains(&feature.name));
        pool.engine.admin().set(settings.map(PoolSetting::Feature).collect()).await.unwrap();
        pool.write("tank/a", 1, 51, 10).await;
        let txg = punch(4).await;
        let hole = pointer(4).await;
        assert_eq!((hole.is_hole(), hole.birth()), (true, txg));
        assert!(pointer(51).await.is_embedded() && !pointer(50).await.is_embedded());
        pool.check().await;
        pool.judge().await;
    });
}

#[test]
fn error_log_entries_move_with_their_blocks() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        fill(&pool, "tank/a", 1, 4, 1).await;
        pool.snap("tank/a@s").await;
        fill(&pool, "tank/a", 2, 4, 1).await;
        pool.engine.datasets().clone_snapshot("tank/a@s", "tank/c", Vec::new()).await.unwrap();
        let reader = pool.reader().await;
        let number = async |name| reader.dataset(name).await.unwrap().object();
        let (head, clone) = (number("tank/a").await, number("tank/c").await);
        let taken = reader.dataset("tank/a@s").await.unwrap().phys().creation_txg;
        log_errors(&pool, head, &[taken, taken + 1]).await;
        pool.engine.datasets().promote("tank/c").await.unwrap();
        let mut found: Vec<_> = pool.reader().await.error_log().await.unwrap();
        found.sort_unstable_by_key(|block| block.birth);
        let found: Vec<_> = found.iter().map(|block| (block.place.objset, block.birth)).collect();
        assert_eq!(found, [(clone, Some(taken)), (head, Some(taken + 1))]);
        pool.engine.datasets().destroy("tank/a").await.unwrap();
        assert_eq!(pool.reader().await.error_log().await.unwrap().len(), 1);
        pool.check().await;
        pool.judge().await;
    });
}

/// Replaces the error log: block 3 of object 1 of a head, with these births.
async fn log_errors(pool: &MemoryPool, head: u64, births: &[u64]) {
    use cenote_dmu::zap::edit as zap;
    use cenote_ondisk::errlog::{ERRLOG_LAST, HeadEntry};
    let entry = |birth: &u64| HeadEntry { object: 1, level: 0, blkid: 3, birth: *birth }.format();
    let names: Vec<_> = births.iter().map(entry).collect();
    pool.engine
        .tamper(move |tx| {
            let new = |tx: &mut cenote_dmu::Tx<'_>| {
                let kind = cenote_ondisk::object_type::ObjectType::ERROR_LOG;
                let spec = cenote_dmu::live::ObjectSpec::new(kind, 0);
                zap::create(tx, &spec, zap::ZapOptions::default())
            };
            let (log, of_head) = (new(tx)?, new(tx)?);
            zap::update(tx, 1, ERRLOG_LAST, log)?;
            zap::insert(tx, log, &zap::hex_key(head), of_head)?;
            names.iter().try_for_each(|name| zap::insert(tx, of_head, name, Value::text("")))
        })
        .await
        .unwrap();
}

/// An entry of the error log is listed in the datasets that have the block: in the head, its
/// snapshots and clones, and, if the head is a clone, in its origin. It is listed in none of them
/// once the block is gone, and as it is in the log while that cannot be read.
#[test]
fn damaged_objects_are_those_that_have_the_block() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        fill(&pool, "tank/a", 1, 4, 1).await;
        pool.snap("tank/a@s").await;
        pool.engine.datasets().clone_snapshot("tank/a@s", "tank/c", Vec::new()).await.unwrap();
        let reader = pool.reader().await;
        let number = async |name| reader.dataset(name).await.unwrap().object();
        let (head, snapshot, clone) =
            (number("tank/a").await, number("tank/a@s").await, number("tank/c").await);
        let dnode = reader.dataset("tank/a").await.unwrap().open().await.unwrap();
        let bp = dnode.dnode(1).await.unwrap().block_pointer(0, 3).await.unwrap().unwrap();
        let birth = bp.physical_birth();
        let damaged = async |pool: &MemoryPool| {
            let reader = pool.reader().await;
            let objects = reader.damaged_objects().await.unwrap();
            assert!(objects.iter().all(|object| object.object == 1), "{objects:?}");
            objects.iter().map(|object| object.objset).collect::<Vec<_>>()
        };
        for named in [head, clone] {
            log_errors(&pool, named, &[birth]).await;
            let mut all = vec![head, snapshot, clone];
            all.sort_unstable();
            assert_eq!(damaged(&pool).await, all);
            log_errors(&pool, named, &[birth + 1000]).await;
            assert!(damaged(&pool).await.is_empty());
        }
        log_errors(&pool, head, &[birth, birth + 1000]).await;
        fill(&pool, "tank/a", 1, 4, 2).await;
        fill(&pool, "tank/c", 1, 4, 3).await;
        pool.engine.sync().await.unwrap();
        assert_eq!(damaged(&pool).await, [snapshot]);
        log_errors(&pool, clone, &[birth]).await;
        assert_eq!(damaged(&pool).await, [snapshot]);
        pool.engine.datasets().destroy("tank/c").await.unwrap();
        pool.engine.snapshots().destroy("tank/a@s").await.unwrap();
        log_errors(&pool, head, &[birth]).await;
        assert!(damaged(&pool).await.is_empty());

        let set = pool.reader().await.dataset("tank/a").await.unwrap().open().await.unwrap();
        let dnodes = set.meta_dnode().block_pointer(0, 0).await.unwrap().unwrap();
        pool.engine.export().await.unwrap();
        for dva in (0..3).filter_map(|copy| dnodes.dva(copy)) {
            pool.spoil(dva.offset + (4 << 20), 512).await;
        }
        pool.open_again().await;
        assert_eq!(damaged(&pool).await, [head]);
    });
}

/// A block without a correct copy is reported immediately, and is in the error log with the next
/// txg, in the format of the pool's features.
#[test]
fn error_log_lists_lost_blocks() {
    use cenote_ondisk::bookmark::Bookmark;
    run(async {
        for is_by_head in [true, false] {
            let features = cenote_pool::features::identity();
            let features = features.filter(|feature| is_by_head || feature.name != "head_errlog");
            let mut pool = MemoryPool::with_features(features.collect()).await;
            pool.create("tank/a").await;
            fill(&pool, "tank/a", 1, 4, 1).await;
            pool.engine.sync().await.unwrap();
            let dataset = pool.reader().await.dataset("tank/a").await.unwrap();
            let dnode = dataset.open().await.unwrap().dnode(1).await.unwrap();
            let bp = dnode.block_pointer(0, 3).await.unwrap().unwrap();
            let place = Bookmark { objset: dataset.object(), object: 1, level: 0, blkid: 3 };
            pool.engine.export().await.unwrap();
            pool.spoil(bp.dva(0).unwrap().offset + (4 << 20), 64).await;
            pool.open_again().await;
            let head = pool.engine.head("tank/a").await.unwrap();
            let read = head.live().inspect(|tx| tx.read(1, 3 * BLOCK, 8)).await;
            assert_eq!(read.unwrap_err().kind(), Kind::Checksum);
            let events = pool.engine.health().events().after(0);
            let is_told =
                |event: &Event| matches!(event, Event::Lost { place: lost, .. } if *lost == place);
            assert!(events.iter().any(|noted| is_told(&noted.event)), "{events:?}");
            assert_eq!(pool.reader().await.error_log().await.unwrap(), []);
            pool.engine.sync().await.unwrap();
            let birth = is_by_head.then(|| bp.physical_birth());
            for _ in 0..2 {
                let found = pool.reader().await.error_log().await.unwrap();
                assert_eq!(found, [DamagedBlock { place, birth }], "by head: {is_by_head}");
                pool.reopen().await;
            }
            pool.check().await;
        }
    });
}

#[test]
fn history_records_operations() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        pool.snap("tank/a@s").await;
        pool.engine.datasets().rename("tank/a", "tank/b").await.unwrap();
        let events = records_of(&pool).await;
        let of_creation = events.iter().position(|(_, dataset, _)| dataset.is_some()).unwrap();
        let (of_creation, of_datasets) = events.split_at(of_creation);
        let wanted = |event: &str, dataset: &str, text: &str| {
            (event.to_owned(), Some(dataset.to_owned()), text.to_owned())
        };
        assert_eq!(
            of_datasets,
            [
                wanted("create", "tank/a", " "),
                wanted("snapshot", "tank/a@s", " "),
                wanted("rename", "tank/a", "-> tank/b"),
            ]
        );
        let version = format!("; uts {}", cenote_rt::Uts::here());
        let is_version = |text: &str| {
            text.starts_with("pool version 5000; software version zfs-2.3.2-cenote-")
                && text.ends_with(&version)
        };
        assert!(of_creation[0].0 == "create" && is_version(&of_creation[0].2), "{of_creation:?}");
        let features = cenote_pool::features::identity();
        let features: Vec<_> =
            features.map(|feature| format!("feature@{}=enabled", feature.name)).collect();
        assert!(of_creation[1..].iter().all(|(name, ..)| name == "set"), "{of_creation:?}");
        let texts: Vec<_> = of_creation[1..].iter().map(|(_, _, text)| text.clone()).collect();
        assert_eq!(texts, features);

        // The opening is recorded once, with the first txg; an import if it is one.
        pool.reopen().await;
        assert_eq!(records_of(&pool).await, events, "nothing is written for it");
        pool.engine.admin().note_import();
        let guid = pool.engine.guid();
        pool.engine.admin().reguid(4711).await.unwrap();
        pool.engine.sync().await.unwrap();
        let all = records_of(&pool).await;
        let [open, import, reguid] = &all[events.len()..] else { panic!("{all:?}") };
        assert!(open.0 == "open" && is_version(&open.2), "{open:?}");
        assert!(import.0 == "import" && is_version(&import.2), "{import:?}");
        assert_eq!(*reguid, ("guid change".into(), None, format!("old={guid} new=4711")));
        pool.check().await;
    });
}

/// Returns name, dataset and text of the internal records of the history.
async fn records_of(pool: &MemoryPool) -> Vec<(String, Option<String>, String)> {
    let history = pool.reader().await.history().await.unwrap();
    assert_eq!(history.damage, None);
    let records = history.records.iter().filter_map(|record| match &record.event {
        cenote_pool::history::HistoryEvent::Internal { name, dataset, text, .. } => {
            Some((name.clone(), dataset.as_ref().map(|d| d.0.clone()), text.clone()))
        }
        _ => None,
    });
    records.collect()
}

/// A pool is opened and written without the records of its opening if its history is damaged.
#[test]
fn damaged_history_keeps_no_pool_from_being_opened() {
    run(async {
        let mut pool = MemoryPool::new().await;
        let object = pool.reader().await.directory_object("history").unwrap();
        pool.engine
            .tamper(move |tx| {
                // The ring would end before it begins.
                let mut bonus = vec![0; tx.bonus(object)?.len()];
                bonus[..8].fill(0xff);
                tx.set_bonus(object, &bonus)
            })
            .await
            .unwrap();
        pool.reopen().await;
        pool.engine.sync().await.unwrap();
        let txg = pool.engine.uberblock().txg;
        pool.engine.admin().set_host(Some((7, "host".into()))).await.unwrap();
        assert!(pool.engine.uberblock().txg > txg);
    });
}

#[test]
fn import_destroys_partially_received_datasets() {
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        fill(&pool, "tank/a", 1, 10, 1).await;
        pool.create("tank/b").await;
        let head = pool.engine.head("tank/a").await.unwrap().object();
        pool.engine
            .tamper(move |tx| {
                let mut bonus = tx.bonus(head)?;
                bonus[120] |= 1;
                tx.set_bonus(head, &bonus)
            })
            .await
            .unwrap();
        let refused: Result<()> = pool.engine.snapshots().create(vec!["tank/a@s".into()]).await;
        assert_eq!(cause(refused), OpError::Busy);
        pool.reopen().await;
        let names = vec!["tank/a".to_owned()];
        assert_eq!(pool.engine.health().take_notices(), [Notice::AbandonedDestroyed { names }]);
        let missing: Error = pool.engine.head("tank/a").await.unwrap_err();
        assert_eq!(missing.kind(), Kind::NotFound);
        pool.settle().await;
        pool.check().await;
        pool.judge().await;
    });
}

/// Tests the auditor: each kind of sum and set is falsified.
#[test]
fn auditor_finds_wrong_sums_and_sets() {
    use cenote_dmu::zap::edit as zap;
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        fill(&pool, "tank/a", 1, 20, 1).await;
        pool.snap("tank/a@s").await;
        fill(&pool, "tank/a", 1, 10, 2).await;
        pool.engine.datasets().clone_snapshot("tank/a@s", "tank/c", Vec::new()).await.unwrap();
        pool.engine.bookmarks().create(vec![("tank/a#s".into(), "tank/a@s".into())]).await.unwrap();
        pool.check().await;
        let reader = pool.reader().await;
        let head = reader.dataset("tank/a").await.unwrap();
        let snapshot = reader.dataset("tank/a@s").await.unwrap();
        let dir = head.dir().object;
        // Words of bonus buffers, by index (spec 04 §2, §3, §10.1).
        let words = [
            ("used of dir", dir, 5),
            ("sizes of dir", dir, 6),
            ("HEAD", dir, 13),
            ("SNAP", dir, 14),
            ("REFRSRV", dir, 17),
            ("I1", head.object(), 2),
            ("I2", snapshot.object(), 5),
            ("I5", head.object(), 9),
            ("unique", head.object(), 12),
            ("unique", snapshot.object(), 12),
            ("deadlist of", head.phys().deadlist_obj, 0),
        ];
        for (what, object, word) in words {
            let change = |delta: i64| {
                move |tx: &mut cenote_dmu::Tx<'_>| {
                    let mut bonus = tx.bonus(object)?;
                    let at = word * 8..word * 8 + 8;
                    let old = u64::from_le_bytes(bonus[at.clone()].try_into().unwrap());
                    bonus[at].copy_from_slice(&old.wrapping_add_signed(delta).to_le_bytes());
                    tx.set_bonus(object, &bonus)
                }
            };
            pool.engine.tamper(change(512)).await.unwrap();
            let found = pool.auditor.audit(&pool.reader().await).await.unwrap();
            assert!(found.iter().any(|text| text.contains(what)), "{what}: {found:?}");
            pool.engine.tamper(change(-512)).await.unwrap();
        }
        let clones = head.dir().phys.clones;
        let deadlist = head.phys().deadlist_obj;
        for (what, object) in [("I3", clones), ("keys of", deadlist)] {
            let entry = pool
                .engine
                .tamper(move |tx| {
                    let entry = zap::entries(tx, object)?.remove(0);
                    zap::take(tx, object, &entry.key)?;
                    Ok(entry)
                })
                .await
                .unwrap();
            let found = pool.auditor.audit(&pool.reader().await).await.unwrap();
            assert!(found.iter().any(|text| text.contains(what)), "{what}: {found:?}");
            let back = move |tx: &mut cenote_dmu::Tx<'_>| {
                zap::insert(tx, object, &entry.key, entry.value.clone())
            };
            pool.engine.tamper(back).await.unwrap();
        }
        pool.check().await;
    });
}

/// The place where a walk through a dead tree stops has the same meaning for OpenZFS: the blocks
/// from there on are still allocated.
#[test]
fn destroy_half_done_passes_zdb() {
    use cenote_dmu::live::ObjectSpec;
    use cenote_ondisk::object_type::ObjectType;
    let rate = Budget::take();
    run(async {
        for budget in [3, 20, 41, 67, 130, 155] {
            let mut pool = MemoryPool::new().await;
            pool.create("tank/a").await;
            let head = pool.engine.head("tank/a").await.unwrap();
            let mut bytes = vec![0; 200 * 512];
            cenote_rt::Rng::seeded(budget).fill(&mut bytes);
            pool.engine
                .apply(&head, ApplyOptions::new(), |tx| {
                    for object in [3, 4, 40, 41, 90] {
                        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 512);
                        // 32 pointers in an indirect block: three levels of them.
                        let spec = ObjectSpec { indirect_shift: 12, ..spec.with_number(object) };
                        let spec = spec.with_bonus(ObjectType::SA, 64);
                        tx.allocate(&spec)?;
                        tx.write(object, 0, &bytes[..object as usize * 512])?;
                        tx.write(object, 5000 * 512, &bytes[..512])?;
                        tx.set_spill(object, Some(&bytes[..512]))?;
                    }
                    Ok(())
                })
                .await
                .unwrap();
            pool.engine.sync().await.unwrap();
            pool.check().await;
            rate.set(budget);
            pool.engine.datasets().destroy("tank/a").await.unwrap();
            assert!(pool.engine.space().has_pending_frees().await.unwrap(), "budget {budget}");
            pool.judge_as_it_is();
            pool.check().await;
            while pool.engine.space().has_pending_frees().await.unwrap() {
                pool.engine.sync().await.unwrap();
            }
            rate.set(100_000);
            pool.check().await;
        }
    });
}

/// Blocks that an earlier txg freed may have been reused: a walk that resumes does not read them,
/// not even in advance, or their checksum errors would be counted against the disk.
#[test]
fn destroy_reads_no_freed_blocks_when_it_resumes() {
    use cenote_dmu::live::ObjectSpec;
    use cenote_ondisk::blkptr::BlockPtr;
    use cenote_ondisk::object_type::ObjectType;
    let rate = Budget::take();
    run(async {
        let mut pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        let head = pool.engine.head("tank/a").await.unwrap();
        let mut bytes = vec![0; 400 * 512];
        cenote_rt::Rng::seeded(1).fill(&mut bytes);
        pool.engine
            .apply(&head, ApplyOptions::new(), |tx| {
                // 32 pointers in an indirect block.
                let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 512);
                let spec = ObjectSpec { indirect_shift: 12, ..spec.with_number(3) };
                tx.allocate(&spec)?;
                tx.write(3, 0, &bytes)
            })
            .await
            .unwrap();
        pool.engine.sync().await.unwrap();
        drop(head);
        let reader = pool.reader().await;
        let set = reader.dataset("tank/a").await.unwrap().open().await.unwrap();
        let dnode = set.dnode(3).await.unwrap();
        let top = dnode.pointers().next().unwrap();
        let block = dnode.read_pointer(&top, 2, 0, false).await.unwrap();
        let indirect: Vec<_> = BlockPtr::all_in(&block).collect();
        drop((set, dnode, reader));
        rate.set(100);
        pool.engine.datasets().destroy("tank/a").await.unwrap();
        assert!(pool.engine.space().has_pending_frees().await.unwrap());
        // 100 blocks: more than three indirect blocks with their children.
        for dva in indirect[..3].iter().flat_map(BlockPtr::dvas) {
            pool.spoil(dva.offset + (4 << 20), 512).await;
        }
        pool.open_again().await;
        pool.settle().await;
        for (_, leaf) in pool.engine.tree().leaves() {
            assert_eq!(leaf.stats().checksum_errors, 0);
        }
        assert!(pool.engine.health().take_notices().is_empty());
        rate.set(100_000);
        pool.check().await;
    });
}

/// Unreadable blocks stay allocated and queued; all others are freed.
#[test]
fn destroy_keeps_a_damaged_tree_queued() {
    let _rate = Budget::take();
    run(async {
        let mut pool = MemoryPool::new().await;
        for name in ["tank/a", "tank/b"] {
            pool.create(name).await;
            for object in 1..6 {
                fill(&pool, name, object, 30, object).await;
            }
        }
        pool.engine.sync().await.unwrap();
        let reader = pool.reader().await;
        let set = reader.dataset("tank/a").await.unwrap().open().await.unwrap();
        let indirect = set.dnode(3).await.unwrap().pointers().next().unwrap();
        assert_eq!(indirect.level(), 1);
        drop((set, reader));
        pool.engine.export().await.unwrap();
        for copy in 0..2 {
            let dva = indirect.dva(copy).unwrap();
            pool.spoil(dva.offset + (4 << 20), 64).await;
        }
        pool.open_again().await;
        let free = pool.free_bytes();
        pool.engine.datasets().destroy("tank/a").await.unwrap();
        pool.engine.datasets().destroy("tank/b").await.unwrap();
        for _ in 0..5 {
            pool.engine.sync().await.unwrap();
        }
        let notices = pool.engine.health().take_notices();
        assert!(matches!(notices[..], [Notice::DeadTreeDamaged { .. }]), "{notices:?}");
        assert!(pool.engine.space().has_pending_frees().await.unwrap());
        let problems = pool.auditor.audit(&pool.reader().await).await.unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        let freed = pool.free_bytes() - free;
        assert!(freed > 7 * 30 * (BLOCK / 2), "{freed} bytes");
        // The next import tries again, and reports it again.
        pool.reopen().await;
        pool.engine.sync().await.unwrap();
        let notices = pool.engine.health().take_notices();
        assert_eq!(notices.len(), 1);
    });
}

/// A pool with a sync task commits after `zfs_txg_timeout` and not before.
#[test]
fn zfs_txg_timeout_commits_changes() {
    use cenote_rt::{monotonic, sleep, tunables::TXG_TIMEOUT};
    run(async {
        TXG_TIMEOUT.set(1).unwrap();
        let pool = MemoryPool::new().await;
        pool.create("tank/a").await;
        let start = monotonic();
        pool.engine.start_sync_task();
        pool.write("tank/a", 1, 0, 7).await;
        let txg = pool.engine.uberblock().txg;
        while pool.engine.uberblock().txg == txg {
            sleep(Duration::from_millis(5)).await;
        }
        let took = monotonic().saturating_sub(start);
        TXG_TIMEOUT.set(TXG_TIMEOUT.default).unwrap();
        assert!(took >= Duration::from_secs(1), "{took:?}");
        pool.judge().await;
    });
}

/// Setting a property costs as much as it changes: of thousands of open file systems only those
/// that inherit it are read. Likewise for finding their names.
#[test]
fn set_reads_only_descendants_of_the_dataset() {
    /// File systems that do not change.
    const OTHERS: usize = 40;
    run(async {
        let pool = MemoryPool::new().await;
        let engine = Arc::clone(&pool.engine);
        let mut others = Vec::new();
        for name in ["tank/a", "tank/a/b", "tank/c"] {
            engine.datasets().create(filesystem(name)).await.unwrap();
        }
        for number in 0..OTHERS {
            let name = format!("tank/c/f{number}");
            others.push(engine.datasets().create(filesystem(&name)).await.unwrap());
        }
        let [above, below] = [engine.head("tank/a").await, engine.head("tank/a/b").await];
        let (above, below) = (above.unwrap(), below.unwrap());
        let counts = || {
            let all = [&above, &below].into_iter().chain(&others);
            all.map(|head| head.settings_count()).collect::<Vec<_>>()
        };
        let changed = |before: &[u64]| -> Vec<usize> {
            let now = counts();
            (0..now.len()).filter(|index| now[*index] != before[*index]).collect()
        };
        for (dataset, wanted) in [("tank/a/b", vec![1]), ("tank/a", vec![0, 1])] {
            let before = counts();
            engine.properties().set(dataset, "recordsize", Value::U64(4096)).await.unwrap();
            assert_eq!(changed(&before), wanted, "{dataset}");
        }
        let before = counts();
        engine.datasets().rename("tank/a/b", "tank/b").await.unwrap();
        assert_eq!(changed(&before), [1], "rename");
        let before = counts();
        engine.properties().set("tank", "compression", Value::U64(2)).await.unwrap();
        assert_eq!(changed(&before).len(), OTHERS + 2, "all inherit it");

        // Blocks read to find the names of all open datasets: siblings are named together.
        let view = engine.view().await.unwrap();
        let lookups = || {
            let stats = engine.store().cache_stats();
            stats.hits + stats.misses
        };
        view.dataset_by_object(others[0].object()).await.unwrap();
        let before = lookups();
        view.dataset_by_object(above.object()).await.unwrap();
        let first = lookups() - before;
        let before = lookups();
        for head in &others {
            let name = view.dataset_by_object(head.object()).await.unwrap().name().to_owned();
            assert!(name.starts_with("tank/c/f"), "{name}");
        }
        let each = (lookups() - before) / OTHERS as u64;
        assert!(each < first, "{each} lookups for each sibling, {first} for the first dataset");
    });
}
