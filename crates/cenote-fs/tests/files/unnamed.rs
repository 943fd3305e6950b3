//! Nodes without names: they are not logged, and they are freed.

use cenote_dmu::zap::edit as zap;
use cenote_engine::ApplyOptions;
use cenote_fs::edit::xattr::Existing;
use cenote_fs::edit::{self, NewKind, NewNode, Op, SetAttributes, Target};
use cenote_fs::mount::{Allocate, WriteOptions, errno};
use cenote_fs::{Mount, Time};
use cenote_ondisk::object_type::ObjectType;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::block_on;

use crate::attributes::{number, set};
use crate::fixture::{Fixture, root};

/// Returns a pool whose log is in use, and the txg before which nothing was changed.
async fn logged() -> (Fixture, u64) {
    // Large enough that nothing has to be synced in between.
    let fixture = Fixture::of(&PoolBuilder::file_system().with_size(512 << 20)).await;
    let first = fixture.file(fixture.mount.root(), "first", b"x").await.unwrap();
    fixture.mount.fsync(first.object).await.unwrap();
    fixture.engine.sync().await.unwrap();
    let txg = fixture.engine.uberblock().txg;
    (fixture, txg)
}

#[test]
fn changes_of_unlinked_files_are_not_logged() {
    block_on(2, async {
        let (fixture, _) = logged().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let mut handles = Vec::new();
        // Setting a property takes a sync: the checked operations come last.
        for xattr in [2, 1] {
            set(&fixture, "xattr", xattr).await;
            for has_some in [false, true] {
                let name = format!("gone{xattr}{has_some}");
                let gone = fixture.file(top, &name, b"x").await.unwrap().object;
                let put = async |name: &[u8]| {
                    mount.set_xattr(&root(), gone, name, b"value", Existing::Any).await.unwrap();
                };
                if has_some {
                    put(b"user.before").await;
                }
                handles.push(mount.hold(gone).await.unwrap());
                mount.unlink(&root(), top, name.as_bytes()).await.unwrap();
                put(b"user.after").await;
                put(b"user.taken").await;
                mount.remove_xattr(&root(), gone, b"user.taken").await.unwrap();
                let aces = mount.acl(&root(), gone).await.unwrap();
                mount.set_acl(&root(), gone, &aces).await.unwrap();
                assert_eq!(mount.xattr(&root(), gone, b"user.after").await.unwrap(), b"value");
            }
        }
        let last = fixture.file(top, "last", b"what is behind").await.unwrap().object;
        mount.fsync(last).await.unwrap();
        let images = pools::images_of(&fixture.devices);
        let (engine, mount, _) = crate::logs::after_crash(images).await;
        let found = mount.walk(&root(), b"last").await.unwrap();
        assert_eq!(found.size, 14);
        drop((engine, mount));
        drop(handles);
        fixture.mount.reap().await.unwrap();
        fixture.judge("unnamed", &["-dddd"]).await;
    })
    .unwrap();
}

#[test]
fn fsync_of_unlinked_files_needs_no_sync() {
    block_on(2, async {
        let (fixture, txg) = logged().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let new = NewNode::new(NewKind::Regular, 0o600);
        let (_unnamed, told) = mount.create_unnamed(&root(), top, &new).await.unwrap();
        mount.write(&root(), told.object, 0, b"x", WriteOptions::default()).await.unwrap();
        let file = fixture.file(top, "file", b"content").await.unwrap().object;
        mount.allocate(&root(), file, 4096, 4096, Allocate::PunchHole).await.unwrap();
        let before = mount.attributes(file).await.unwrap();
        mount.sync().await.unwrap();
        assert_eq!(fixture.engine.uberblock().txg, txg);
        let images = pools::images_of(&fixture.devices);
        let (engine, mount, _) = crate::logs::after_crash(images).await;
        let after = mount.attributes(file).await.unwrap();
        assert_eq!((after.mtime, after.size), (before.mtime, before.size));
        drop((engine, mount));
    })
    .unwrap();
}

#[test]
fn damaged_unlinked_files_do_not_fail_other_operations() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let gone = fixture.file(top, "gone", b"x").await.unwrap().object;
        let handle = mount.hold(gone).await.unwrap();
        mount.unlink(&root(), top, b"gone").await.unwrap();
        let set_bonus = async |kind| {
            let change = fixture
                .engine
                .apply(mount.head(), ApplyOptions::new(), |tx| tx.set_bonus_type(gone, kind));
            change.await.unwrap();
        };
        set_bonus(ObjectType::DSL_DATASET).await;
        drop(handle);
        fixture.file(top, "file", b"").await.unwrap();
        assert!(mount.lookup(&root(), top, b"file").await.is_ok());
        // The node is still queued, and `reap` returns the error.
        mount.reap().await.unwrap_err();
        let other = fixture.file(top, "other", b"x").await.unwrap().object;
        std::mem::forget(mount.hold(other).await.unwrap());
        mount.unlink(&root(), top, b"other").await.unwrap();
        let fixture = fixture.reopen().await;
        let mount = &fixture.mount;
        let found = number(mount.attributes(other).await).map(|_| ());
        assert_eq!(found, Err(errno::ENOENT), "what is not damaged is freed");
        mount.reap().await.unwrap_err();
        let mended = fixture
            .engine
            .apply(mount.head(), ApplyOptions::new(), |tx| tx.set_bonus_type(gone, ObjectType::SA));
        mended.await.unwrap();
        mount.reap().await.unwrap();
        let found = number(mount.attributes(gone).await).map(|_| ());
        assert_eq!(found, Err(errno::ENOENT));
        fixture.judge("damaged", &["-dddd"]).await;
    })
    .unwrap();
}

/// A file without a name may be opened between its removal and its being freed.
#[test]
fn unlinked_files_opened_late_are_freed_by_the_last_close() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let file = fixture.file(top, "file", b"x").await.unwrap().object;
        let value = vec![1; 40_000];
        mount.set_xattr(&root(), file, b"user.x", &value, Existing::Any).await.unwrap();
        let apply = async |change: &dyn Fn(&mut Op<'_, '_>) -> cenote_dmu::TxResult<()>| {
            let options = ApplyOptions::new().logged();
            let done = fixture.engine.apply(mount.head(), options, |tx| {
                let mut op = Op::new(tx, mount.facts(), None, Time::default());
                change(&mut op)?;
                Ok(((), op.finish(Some(mount.head().log()))?))
            });
            done.await.unwrap();
        };
        apply(&|op| {
            let removed = edit::remove(op, top, b"file", Target::File)?;
            assert!(removed.is_unlinked);
            Ok(())
        })
        .await;
        let handle = mount.hold(file).await.unwrap();
        apply(&|op| {
            assert_eq!(edit::reap(op, file)?, edit::Reaped::default());
            Ok(())
        })
        .await;
        let late = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        mount.set_attributes(&root(), file, &late).await.unwrap();
        drop(handle);
        mount.reap().await.unwrap();
        let found = number(mount.attributes(file).await).map(|_| ());
        assert_eq!(found, Err(errno::ENOENT));
        let set = mount.facts().unlinked;
        let left = mount.head().live().inspect(|tx| zap::len(tx, set)).await.unwrap();
        assert_eq!(left, 0);
    })
    .unwrap();
}

#[test]
fn unlink_of_the_last_name_updates_ctime() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let file = fixture.file(top, "file", b"x").await.unwrap();
        let _handle = mount.hold(file.object).await.unwrap();
        mount.unlink(&root(), top, b"file").await.unwrap();
        let told = mount.attributes(file.object).await.unwrap();
        assert_eq!((told.links, told.mtime), (0, file.mtime));
        assert!(told.ctime > file.ctime);
    })
    .unwrap();
}

/// A file system that is unmounted while in use and mounted again has two mounts: nodes held by the
/// first are not freed by the second, and their numbers are not reused.
#[test]
fn nodes_held_by_another_mount_are_not_freed() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (first, top) = (&fixture.mount, fixture.mount.root());
        let options = WriteOptions::default();
        let before = fixture.file(top, "before", b"unlinked before").await.unwrap().object;
        let after = fixture.file(top, "after", b"unlinked after").await.unwrap().object;
        let handles = [first.hold(before).await.unwrap(), first.hold(after).await.unwrap()];
        first.unlink(&root(), top, b"before").await.unwrap();
        fixture.engine.sync().await.unwrap();
        let second = Mount::open(&fixture.engine, "tank").await.unwrap();
        second.unlink(&root(), top, b"after").await.unwrap();
        for _ in 0..2 {
            // A node with an attribute layout that the first mount does not know.
            let made = NewNode::new(NewKind::Symlink(b"target"), 0o777);
            let link = second.create(&root(), top, b"link", &made).await.unwrap().object;
            assert_eq!(first.read_link(link).await.unwrap(), b"target");
            second.unlink(&root(), top, b"link").await.unwrap();
            fixture.engine.sync().await.unwrap();
        }
        for (object, wanted) in [(before, &b"UNLINKED before"[..]), (after, b"UNLINKED after")] {
            first.write(&root(), object, 0, b"UNLINKED", options).await.unwrap();
            assert_eq!(fixture.read_all(object).await.unwrap(), wanted);
        }
        drop(handles);
        second.reap().await.unwrap();
        first.reap().await.unwrap();
        for object in [before, after] {
            assert_eq!(errno::of(&first.attributes(object).await.unwrap_err()), errno::ENOENT);
        }
        drop(second);
        fixture.judge("twice", &[]).await;
    })
    .unwrap();
}
