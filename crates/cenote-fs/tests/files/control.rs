//! `.zfs`: snapshots as directories, and open snapshots, which cannot be destroyed.

use cenote_engine::GrantChange;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode};
use cenote_fs::mount::control::{CONTROL, SHARES, SNAPSHOTS};
use cenote_fs::mount::{Attributes, WriteOptions, errno};
use cenote_fs::{FileKind, Follow, Mount};
use cenote_ondisk::zap::Value;
use cenote_rt::{Result, block_on, tunables};

use crate::fixture::{Fixture, root};

const DIRECTORY: NewNode<'_> = NewNode::new(NewKind::Directory, 0o755);

fn number<T>(result: Result<T>) -> std::result::Result<T, i32> {
    result.map_err(|error| errno::of(&error))
}

async fn names(mount: &Mount, dir: u64, step: usize) -> Vec<(String, u64)> {
    let (mut cookie, mut found) = (0, Vec::new());
    loop {
        let page = mount.read_dir(&root(), dir, cookie, step).await.unwrap();
        let Some(last) = page.entries.last() else { return found };
        cookie = last.cookie;
        let name = |name: Vec<u8>| String::from_utf8(name).unwrap();
        found.extend(page.entries.into_iter().map(|entry| (name(entry.name), entry.object)));
        if page.is_end {
            return found;
        }
    }
}

async fn find(mount: &Mount, dir: u64, name: &str) -> std::result::Result<Attributes, i32> {
    number(mount.lookup(&root(), dir, name.as_bytes()).await)
}

fn named(found: &[(String, u64)]) -> Vec<&str> {
    found.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn snapdir_shows_snapshots_as_directories() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, engine) = (&fixture.mount, &fixture.engine);
        let top = mount.root();
        let file = fixture.file(top, "file", b"before").await.unwrap().object;
        for name in ["tank@one", "tank@two", "tank@three"] {
            engine.snapshots().create(vec![name.to_owned()]).await.unwrap();
        }
        mount.write(&root(), file, 0, b"AFTER!", WriteOptions::default()).await.unwrap();
        // Hidden: found but not listed.
        assert_eq!(named(&names(mount, top, 2).await), [".", "..", "file"]);
        let control = find(mount, top, ".zfs").await.unwrap();
        assert_eq!((control.object, control.kind), (CONTROL, FileKind::Directory));
        assert_eq!(control.mode, 0o777);
        engine.properties().set("tank", "snapdir", Value::U64(1)).await.unwrap();
        let new = NewNode::new(NewKind::Regular, 0o644);
        mount.create(&root(), top, b"other", &new).await.unwrap();
        for step in [1, 2, 3, 100] {
            let mut listed = names(mount, top, step).await;
            assert_eq!(listed[2], (".zfs".to_owned(), CONTROL), "{step}");
            listed.sort();
            assert_eq!(named(&listed), [".", "..", ".zfs", "file", "other"], "{step}");
            let listed = names(mount, CONTROL, step).await;
            assert_eq!(named(&listed), [".", "..", "snapshot", "shares"]);
            assert_eq!((listed[0].1, listed[1].1), (CONTROL, top));
            assert_eq!((listed[2].1, listed[3].1), (SNAPSHOTS, SHARES));
            let listed = names(mount, SNAPSHOTS, step).await;
            assert_eq!(named(&listed), [".", "..", "one", "two", "three"]);
            assert_eq!(named(&names(mount, SHARES, step).await), [".", ".."]);
        }
        assert_eq!(find(mount, CONTROL, "..").await.unwrap().object, top);
        assert_eq!(find(mount, CONTROL, "none").await, Err(errno::ENOENT));
        assert_eq!(find(mount, SNAPSHOTS, "none").await, Err(errno::ENOENT));
        let snapshots = find(mount, CONTROL, "snapshot").await.unwrap();
        assert_eq!((snapshots.links, snapshots.size), (5, 5));
        let changed = engine.snapshots().changed(mount.head()).await.unwrap().unwrap();
        let shown = (snapshots.mtime.seconds as u64, snapshots.mtime.nanoseconds);
        assert!(changed.0 > 0 && changed == shown && snapshots.ctime == snapshots.mtime);
        let one = mount.walk(&root(), b"/.zfs/snapshot/one").await.unwrap();
        assert_eq!((one.kind, one.mode, one.size), (FileKind::Directory, 0o755, 3));
        assert_eq!(mount.attributes(one.object).await.unwrap(), one);
        assert_eq!(find(mount, one.object, "..").await.unwrap().object, SNAPSHOTS);
        assert_eq!(find(mount, one.object, "file").await, Err(errno::EXDEV));

        let snapshot = mount.open_snapshot(b"one").await.unwrap();
        let node = snapshot.root().await.unwrap();
        assert_eq!(node.inode(), one.object);
        let node = snapshot.walk(b"file", Follow::Yes).await.unwrap();
        assert_eq!(node.inode(), file, "inodes of a snapshot are those that they always were");
        assert_eq!(&node.read_at(0, 100).await.unwrap()[..], b"before");

        // The control directory cannot be changed.
        let refused = number(mount.create(&root(), top, b".zfs", &DIRECTORY).await);
        assert_eq!(refused.map(drop), Err(errno::EEXIST));
        assert_eq!(number(mount.rmdir(&root(), top, b".zfs").await), Err(errno::EEXIST));
        assert_eq!(number(mount.link(&root(), file, top, b".zfs").await.map(drop)), Err(17));
        let changes = Rename { from: (top, b"file"), to: (top, b".zfs"), mode: RenameMode::Plain };
        assert_eq!(number(mount.rename(&root(), &changes).await), Err(errno::EEXIST));
        for dir in [CONTROL, SHARES, one.object] {
            let made = number(mount.create(&root(), dir, b"x", &DIRECTORY).await);
            assert_eq!(made.map(drop), Err(errno::EPERM), "{dir:x}");
            let changes = Rename { from: (top, b"file"), to: (dir, b"x"), mode: RenameMode::Plain };
            assert_eq!(number(mount.rename(&root(), &changes).await), Err(errno::EPERM));
            assert_eq!(number(mount.link(&root(), file, dir, b"x").await.map(drop)), Err(1));
        }
        assert_eq!(number(mount.xattrs(&root(), CONTROL).await), Err(errno::EOPNOTSUPP));
        let handle = mount.hold(CONTROL).await.unwrap();
        drop(handle);
        engine.properties().set("tank", "snapdir", Value::U64(2)).await.unwrap();
        mount.unlink(&root(), top, b"other").await.unwrap();
        assert_eq!(find(mount, top, ".zfs").await, Err(errno::ENOENT));
    })
    .unwrap();
}

#[test]
fn zfs_admin_snapshot_allows_mkdir_rename_and_rmdir() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let mount = &fixture.mount;
        fixture.file(mount.root(), "file", b"before").await.unwrap();
        let make = async |cred: &Credentials, name: &[u8]| {
            number(mount.create(cred, SNAPSHOTS, name, &DIRECTORY).await)
        };
        let (user, rename) = (Credentials::user(7, 7, vec![]), RenameMode::Plain);
        assert_eq!(make(&root(), b"one").await.map(drop), Err(errno::EACCES), "by default");
        tunables::ADMIN_SNAPSHOT.set(1).unwrap();
        assert_eq!(make(&user, b"one").await.map(drop), Err(errno::EPERM));
        let before = mount.attributes(SNAPSHOTS).await.unwrap().mtime;
        assert_eq!((before.seconds, before.nanoseconds), (0, 0), "before the first snapshot");
        let made = make(&root(), b"one").await.unwrap();
        assert_eq!((made.kind, made.size), (FileKind::Directory, 3));
        assert_eq!(make(&root(), b"one").await.map(drop), Err(errno::EEXIST));
        make(&root(), b"two").await.unwrap();
        let changes = |from: &'static [u8], to: &'static [u8]| Rename {
            from: (SNAPSHOTS, from),
            to: (SNAPSHOTS, to),
            mode: rename,
        };
        assert_eq!(number(mount.rename(&user, &changes(b"two", b"2")).await), Err(errno::EPERM));
        mount.rename(&root(), &changes(b"two", b"2")).await.unwrap();
        // Each change needs the permissions of the command.
        let allow = async |key: &str, permissions: &[&str]| {
            let names = permissions.iter().map(|name| (*name).to_owned()).collect();
            let grants = vec![GrantChange { key: key.to_owned(), names }];
            fixture.engine.datasets().allow("tank", grants).await.unwrap();
        };
        allow("ul$7", &["snapshot"]).await;
        make(&user, b"three").await.unwrap();
        assert_eq!(number(mount.rmdir(&user, SNAPSHOTS, b"three").await), Err(errno::EPERM));
        allow("ul$7", &["destroy", "mount"]).await;
        assert_eq!(number(mount.rmdir(&user, SNAPSHOTS, b"three").await), Err(errno::EPERM));
        allow("ud$7", &["rename", "mount"]).await;
        assert_eq!(number(mount.rename(&user, &changes(b"three", b"3")).await), Err(errno::EPERM));
        allow("ul$7", &["create"]).await;
        mount.rename(&user, &changes(b"three", b"3")).await.unwrap();
        allow("ud$7", &["destroy"]).await;
        mount.rmdir(&user, SNAPSHOTS, b"3").await.unwrap();
        let gone = number(mount.rename(&root(), &changes(b"two", b"2")).await);
        assert_eq!(gone, Err(errno::ENOENT));
        assert_eq!(named(&names(mount, SNAPSHOTS, 9).await), [".", "..", "one", "2"]);

        // An open snapshot stays, even with a deferred destroy.
        let snapshot = mount.open_snapshot(b"one").await.unwrap();
        let again = mount.open_snapshot(b"one").await.unwrap();
        drop(again);
        assert_eq!(number(mount.rmdir(&root(), SNAPSHOTS, b"one").await), Err(errno::EBUSY));
        let deferred =
            fixture.engine.snapshots().destroy_all(vec!["tank@one".to_owned()], true).await;
        assert_eq!(number(deferred), Err(errno::EBUSY));
        mount.unlink(&root(), mount.root(), b"file").await.unwrap();
        fixture.engine.sync().await.unwrap();
        let node = snapshot.walk(b"file", Follow::Yes).await.unwrap();
        drop(snapshot);
        assert_eq!(number(mount.rmdir(&root(), SNAPSHOTS, b"one").await), Err(errno::EBUSY));
        assert_eq!(&node.read_at(0, 100).await.unwrap()[..], b"before");
        drop(node);
        mount.rmdir(&root(), SNAPSHOTS, b"one").await.unwrap();
        assert_eq!(number(mount.rmdir(&root(), SNAPSHOTS, b"one").await), Err(errno::ENOENT));
        assert_eq!(named(&names(mount, SNAPSHOTS, 9).await), [".", "..", "2"]);
        tunables::ADMIN_SNAPSHOT.set(0).unwrap();
        fixture.judge("control", &[]).await;
    })
    .unwrap();
}
