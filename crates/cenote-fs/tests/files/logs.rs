//! Logs written by cenote are replayed after a crash, and OpenZFS reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::Image;
use cenote_engine::Engine;
use cenote_fs::access::Credentials;
use cenote_fs::acl::posix::Tag;
use cenote_fs::edit::xattr::Existing;
use cenote_fs::edit::{Facts, NewKind, NewNode, Rename, RenameMode, SetAttributes, SetTime};
use cenote_fs::mount::{Allocate, Attributes, WriteOptions, encode_rdev};
use cenote_fs::{Ace, FileKind, FsReplayer, Mount, PFlags, Time, recover};
use cenote_ondisk::acl::POSIX_DEFAULT;
use cenote_ondisk::zap::Value;
use cenote_poolkit::records::{CrashedPool, RecordLines};
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::seeded::Bug;
use cenote_rt::{Kind, Rng, block_on};
use cenote_testkit::bugs;
use cenote_testkit::manifest::sha256;

use crate::attributes::{posix, set};
use crate::fixture::{Fixture, root};

/// Attributes of a node after a replay, which sets some times.
#[derive(Debug, PartialEq)]
struct Row {
    told: Attributes,
    content: String,
    xattrs: BTreeMap<Vec<u8>, String>,
    aces: Vec<Ace>,
}

async fn row(mount: &Mount, object: u64) -> Row {
    let mut told = mount.attributes(object).await.unwrap();
    (told.mtime, told.ctime) = (Time::default(), Time::default());
    (told.blocks, told.is_pending) = (0, false);
    let content = match told.kind {
        FileKind::Regular => {
            let mut bytes = vec![0; told.size as usize];
            assert_eq!(mount.read(object, 0, &mut bytes).await.unwrap(), bytes.len());
            bytes
        }
        FileKind::Symlink => mount.read_link(object).await.unwrap(),
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for name in mount.xattrs(&root(), object).await.unwrap() {
        let value = mount.xattr(&root(), object, &name).await.unwrap();
        xattrs.insert(name, sha256(&value));
    }
    Row { told, content: sha256(&content), xattrs, aces: mount.acl(&root(), object).await.unwrap() }
}

/// Returns every path and its attributes.
async fn tree(mount: &Mount) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    let mut open = vec![(String::new(), mount.root())];
    while let Some((path, object)) = open.pop() {
        let row = row(mount, object).await;
        if row.told.kind == FileKind::Directory {
            let page = mount.read_dir(&root(), object, 0, 10_000).await.unwrap();
            assert!(page.is_end);
            for entry in page.entries.into_iter().skip(2) {
                let name = String::from_utf8(entry.name).unwrap();
                open.push((format!("{path}/{name}"), entry.object));
            }
        }
        rows.insert(path, row);
    }
    rows
}

/// Asserts that the tree equals `wanted`.
async fn check(mount: &Mount, wanted: &BTreeMap<String, Row>) {
    let found = tree(mount).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (path, row) in &found {
        assert_eq!(row, &wanted[path], "{path}");
    }
}

/// Opens the pool as a crash leaves it. Returns the number of replayed records.
pub(crate) async fn after_crash(images: Vec<Image>) -> (Arc<Engine>, Arc<Mount>, u64) {
    let devices = pools::devices(images);
    let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
    let done = recover(&engine).await.unwrap();
    let applied = done.iter().map(|(_, replayed)| {
        assert!(replayed.failure.is_none(), "{replayed:?}");
        replayed.applied
    });
    let applied = applied.sum();
    let mount = Mount::open(&engine, "tank").await.unwrap();
    (engine, mount, applied)
}

/// Performs one of every operation that is logged.
async fn everything(fixture: &Fixture) {
    let (mount, top) = (&fixture.mount, fixture.mount.root());
    let dir = fixture.dir(top, "dir").await.unwrap().object;
    let file = fixture.file(dir, "file", &vec![1; 70_000]).await.unwrap().object;
    let nodes = [
        ("link", NewKind::Symlink(b"dir/file")),
        ("fifo", NewKind::Fifo),
        ("char", NewKind::CharDevice(encode_rdev(1, 300))),
        ("socket", NewKind::Socket),
    ];
    for (name, kind) in nodes {
        let new = NewNode::new(kind, 0o640);
        mount.create(&root(), top, name.as_bytes(), &new).await.unwrap();
    }
    let changes = SetAttributes::default();
    let time = SetTime::To(Time { seconds: 1_000_000, nanoseconds: 7 });
    for changes in [
        SetAttributes { mode: Some(0o4711), ..changes },
        SetAttributes { uid: Some(12), gid: Some(34), ..changes },
        SetAttributes { size: Some(50_000), ..changes },
        SetAttributes { atime: Some(time), mtime: Some(time), ..changes },
        SetAttributes {
            project: Some(42),
            flags: Some(PFlags::NODUMP | PFlags::HIDDEN),
            ..changes
        },
    ] {
        mount.set_attributes(&root(), file, &changes).await.unwrap();
    }
    mount.allocate(&root(), file, 1000, 5000, Allocate::PunchHole).await.unwrap();
    let end = WriteOptions { is_append: true, ..WriteOptions::default() };
    mount.write(&root(), file, 0, b"the end", end).await.unwrap();
    for (name, value) in [(&b"user.a"[..], &b"one"[..]), (b"user.b", b"two")] {
        mount.set_xattr(&root(), file, name, value, Existing::Any).await.unwrap();
    }
    mount.remove_xattr(&root(), file, b"user.a").await.unwrap();
    let large = vec![9; 40_000];
    mount.set_xattr(&root(), file, b"user.large", &large, Existing::Any).await.unwrap();
    let mut aces = mount.acl(&root(), dir).await.unwrap();
    aces.insert(0, Ace { kind: 0, flags: 3, mask: 0x21, id: 77, object: None });
    mount.set_acl(&root(), dir, &aces).await.unwrap();
    fixture.file(dir, "inherits", b"").await.unwrap();
    mount.link(&root(), file, top, b"hard").await.unwrap();
    for name in ["a", "b", "c", "d", "gone", "left"] {
        fixture.file(top, name, name.as_bytes()).await.unwrap();
    }
    let rename = async |from: &str, to: &str, mode| {
        let (from, to) = ((top, from.as_bytes()), (top, to.as_bytes()));
        mount.rename(&root(), &Rename { from, to, mode }).await.unwrap();
    };
    rename("a", "b", RenameMode::Plain).await;
    rename("c", "d", RenameMode::Exchange).await;
    rename("left", "taken", RenameMode::Whiteout).await;
    mount.unlink(&root(), top, b"gone").await.unwrap();
    fixture.dir(top, "empty").await.unwrap();
    mount.rmdir(&root(), top, b"empty").await.unwrap();
}

/// Has OpenZFS claim the log, and compares the records that it reads with cenote's.
async fn read_by_openzfs(crashed: Vec<Image>) {
    let Some(theirs) = cenote_oracle::libzpool() else { return };
    let left = CrashedPool::of(&crashed, "log-read");
    let engine = pools::open(pools::as_devices(&pools::devices(crashed))).await.unwrap();
    let head = engine.head("tank").await.unwrap();
    let told = RecordLines::new(FsReplayer::new(Facts::read(&engine, &head).await.unwrap()));
    let replayed = engine.intent_logs().replay(&head, &told).await.unwrap().unwrap();
    assert!(replayed.failure.is_none(), "{replayed:?}");
    assert_eq!(left.replay(&theirs, &["tank"]), [told.lines()]);
    left.judge().await;
}

#[test]
fn every_logged_operation_is_replayed() {
    block_on(2, async {
        // Large enough that nothing has to be synced in between.
        let builder = PoolBuilder::file_system().with_size(512 << 20);
        let fixture = Fixture::of(&builder).await;
        for (property, value) in [("acltype", 1), ("atime", 0)] {
            fixture.engine.properties().set("tank", property, Value::U64(value)).await.unwrap();
        }
        // Starts the log's chain, which is used from now on.
        let first = fixture.file(fixture.mount.root(), "first", b"x").await.unwrap();
        fixture.mount.fsync(first.object).await.unwrap();
        fixture.engine.sync().await.unwrap();
        let before = fixture.engine.uberblock().txg;
        everything(&fixture).await;
        fixture.mount.sync().await.unwrap();
        let wanted = tree(&fixture.mount).await;
        assert_eq!(fixture.engine.uberblock().txg, before, "all of it is in the log only");
        let crashed = pools::images_of(&fixture.devices);
        let devices = pools::devices(crashed.clone());
        if let Some(said) = pools::judge_devices(&devices, "log", &["-iiii"]) {
            for kind in [
                "TX_CREATE",
                "TX_MKDIR",
                "TX_MKXATTR",
                "TX_SYMLINK",
                "TX_REMOVE",
                "TX_RMDIR",
                "TX_LINK",
                "TX_RENAME",
                "TX_WRITE",
                "TX_TRUNCATE",
                "TX_SETATTR",
                "TX_ACL",
                "TX_SETSAXATTR",
                "TX_RENAME_EXCHANGE",
                "TX_RENAME_WHITEOUT",
            ] {
                assert!(said.contains(kind), "{kind}: {said}");
            }
        }
        read_by_openzfs(crashed.clone()).await;
        // Twice, because a crash may interrupt a replay: replayed records are not replayed again.
        for _ in 0..2 {
            let (engine, mount, applied) = after_crash(crashed.clone()).await;
            assert!(applied > 30, "{applied}");
            check(&mount, &wanted).await;
            drop((engine, mount));
        }
    })
    .unwrap();
}

/// A chmod that removes set-id bits changes the ACL in a replay as it did before the crash, and a
/// write that removes them leaves the ACL alone.
#[test]
fn replay_of_removed_set_ids_keeps_the_acl() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let mode = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        let owner = SetAttributes { uid: Some(7), ..SetAttributes::default() };
        let mut files = Vec::new();
        for name in ["chmod", "write", "chown"] {
            let file = fixture.file(top, name, b"code").await.unwrap().object;
            mount.set_attributes(&root(), file, &mode(0o4755)).await.unwrap();
            let mut aces = mount.acl(&root(), file).await.unwrap();
            aces.insert(0, Ace { kind: 0, flags: 0, mask: 0x3, id: 77, object: None });
            mount.set_acl(&root(), file, &aces).await.unwrap();
            let told = mount.attributes(file).await.unwrap();
            assert_eq!((told.mode, aces.len()), (0o4755, 4), "{name}");
            files.push(file);
        }
        fixture.engine.sync().await.unwrap();
        mount.set_attributes(&root(), files[0], &mode(0o755)).await.unwrap();
        let somebody = Credentials::user(9, 9, vec![]);
        mount.write(&somebody, files[1], 0, b"x", WriteOptions::default()).await.unwrap();
        mount.set_attributes(&root(), files[2], &owner).await.unwrap();
        mount.sync().await.unwrap();
        let wanted = tree(mount).await;
        let lengths = ["/chmod", "/write", "/chown"].map(|path| wanted[path].aces.len());
        assert_eq!(lengths, [3, 4, 4]);
        let (engine, mount, _) = after_crash(pools::images_of(&fixture.devices)).await;
        check(&mount, &wanted).await;
        drop((engine, mount));
    })
    .unwrap();
}

/// Writes to a file after its last name was removed are not in the log: its number may be reused by
/// the time of a replay.
#[test]
fn files_without_names_are_not_in_the_log() {
    block_on(2, async {
        let builder = PoolBuilder::file_system().with_size(512 << 20);
        let fixture = Fixture::of(&builder).await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let first = fixture.file(top, "first", b"x").await.unwrap();
        mount.fsync(first.object).await.unwrap();
        fixture.engine.sync().await.unwrap();
        let options = WriteOptions::default();
        let gone = fixture.file(top, "gone", b"before").await.unwrap().object;
        let handle = mount.hold(gone).await.unwrap();
        mount.unlink(&root(), top, b"gone").await.unwrap();
        mount.write(&root(), gone, 0, b"after its last name was gone", options).await.unwrap();
        let mode = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
        mount.set_attributes(&root(), gone, &mode).await.unwrap();
        drop(handle);
        mount.reap().await.unwrap();
        // The number is free, and soon reused.
        for number in 0..40 {
            fixture.file(top, &format!("new{number}"), b"").await.unwrap();
        }
        let new = NewNode::new(NewKind::Regular, 0o644);
        let (unnamed, told) = mount.create_unnamed(&root(), top, &new).await.unwrap();
        mount.write(&root(), told.object, 0, b"named later", options).await.unwrap();
        mount.link(&root(), told.object, top, b"later").await.unwrap();
        drop(unnamed);
        let rename = Rename { from: (top, b"later"), to: (top, b"last"), mode: RenameMode::Plain };
        mount.rename(&root(), &rename).await.unwrap();
        mount.sync().await.unwrap();
        let wanted = tree(mount).await;
        let (engine, mount, _) = after_crash(pools::images_of(&fixture.devices)).await;
        let found = tree(&mount).await;
        assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
        for (path, row) in &found {
            assert_eq!(
                (&row.content, row.told.mode),
                (&wanted[path].content, wanted[path].told.mode)
            );
        }
        drop((engine, mount));
    })
    .unwrap();
}

/// An attribute in a file of its own is durable with its node, including its value.
#[test]
fn xattr_dir_values_are_durable_with_their_names() {
    block_on(2, async {
        // Large enough that nothing has to be synced in between.
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(512 << 20)).await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        for (property, value) in [("acltype", 1), ("xattr", 1)] {
            fixture.engine.properties().set("tank", property, Value::U64(value)).await.unwrap();
        }
        let dir = fixture.dir(top, "dir").await.unwrap().object;
        let acl = [(Tag::Owner, 7), (Tag::User(5), 7), (Tag::Group, 5), (Tag::Mask, 7)];
        let acl = posix(&[&acl[..], &[(Tag::Other, 0)]].concat());
        let default = POSIX_DEFAULT.as_bytes();
        mount.set_xattr(&root(), dir, default, &acl, Existing::Any).await.unwrap();
        let file = fixture.file(top, "file", b"x").await.unwrap().object;
        mount.set_xattr(&root(), file, b"user.old", b"old", Existing::Any).await.unwrap();
        mount.fsync(file).await.unwrap();
        fixture.engine.sync().await.unwrap();
        let before = fixture.engine.uberblock().txg;
        for (name, value) in [(&b"user.old"[..], vec![1; 9000]), (b"user.new", vec![2; 40])] {
            mount.set_xattr(&root(), file, name, &value, Existing::Any).await.unwrap();
        }
        // Inherited attributes are durable with the name.
        fixture.dir(dir, "inherits").await.unwrap();
        mount.fsync(file).await.unwrap();
        assert_eq!(fixture.engine.uberblock().txg, before, "all of it is in the log only");
        let wanted = tree(mount).await;
        let (engine, mount, _) = after_crash(pools::images_of(&fixture.devices)).await;
        check(&mount, &wanted).await;
        drop((engine, mount));
    })
    .unwrap();
}

/// An attribute whose new value is stored in another place has one of the two values after a crash.
#[test]
fn xattrs_that_change_places_survive_a_crash() {
    block_on(2, async {
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(512 << 20)).await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let name = b"user.moves";
        let file = fixture.file(top, "file", b"x").await.unwrap().object;
        let other = fixture.file(top, "other", b"x").await.unwrap().object;
        mount.fsync(other).await.unwrap();
        for (from, to) in [(1, 2), (2, 1)] {
            set(&fixture, "xattr", from).await;
            mount.set_xattr(&root(), file, name, b"old", Existing::Any).await.unwrap();
            set(&fixture, "xattr", to).await;
            fixture.engine.sync().await.unwrap();
            mount.set_xattr(&root(), file, name, b"new", Existing::Any).await.unwrap();
            mount.fsync(other).await.unwrap();
            let (engine, crashed, _) = after_crash(pools::images_of(&fixture.devices)).await;
            let found = crashed.xattr(&root(), file, name).await.unwrap();
            assert!([&b"old"[..], b"new"].contains(&&found[..]), "{found:?}");
            drop((engine, crashed));
        }
    })
    .unwrap();
}

/// Changes that were made with sync=disabled become durable when sync is enabled again.
#[test]
fn sync_disabled_changes_are_synced_later() {
    block_on(2, async {
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(512 << 20)).await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let file = fixture.file(top, "file", b"x").await.unwrap().object;
        mount.fsync(file).await.unwrap();
        set(&fixture, "sync", 2).await;
        // The log reads its property when it commits.
        mount.fsync(file).await.unwrap();
        let engine = Arc::clone(&fixture.engine);
        let allowed = cenote_rt::spawn(async move {
            engine.properties().set("tank", "sync", Value::U64(0)).await
        });
        let mut count = 0_u64;
        while !allowed.is_finished() {
            let word = (count + 1).to_le_bytes();
            let at = count * 8;
            mount.write(&root(), file, at, &word, WriteOptions::default()).await.unwrap();
            count += 1;
        }
        allowed.await.unwrap().unwrap();
        mount.fsync(file).await.unwrap();
        let (engine, mount, _) = after_crash(pools::images_of(&fixture.devices)).await;
        let mut found = vec![0; count as usize * 8];
        assert_eq!(mount.read(file, 0, &mut found).await.unwrap(), found.len());
        for (word, wanted) in found.chunks_exact(8).zip(1_u64..) {
            assert_eq!(word, wanted.to_le_bytes(), "of {count}");
        }
        drop((engine, mount));
    })
    .unwrap();
}

/// A block that is written and synced repeatedly takes its space in the pool once, and in the log
/// each time: the log leaves enough space for the txg that frees it.
#[test]
fn a_log_leaves_room_for_its_sync() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let mut rng = Rng::seeded(5);
        let mut noise = |len: usize| {
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            bytes
        };
        let options = WriteOptions::default();
        let again = fixture.file(top, "again", &noise(128 << 10)).await.unwrap().object;
        let rest = fixture.file(top, "rest", b"").await.unwrap().object;
        let mut end = 0;
        let full = loop {
            match mount.write(&root(), rest, end, &noise(256 << 10), options).await {
                Ok(written) => end += written.len,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), Kind::NoSpace);
        // Frees some space, so that something can be written at all.
        let size = Some(end - (4 << 20));
        let changes = SetAttributes { size, ..SetAttributes::default() };
        mount.set_attributes(&root(), rest, &changes).await.unwrap();
        for _ in 0..4 {
            fixture.engine.sync().await.unwrap();
        }
        for _ in 0..600 {
            mount.write(&root(), again, 0, &noise(128 << 10), options).await.unwrap();
            mount.fsync(again).await.unwrap();
        }
        fixture.engine.sync().await.unwrap();
        fixture.judge("log", &[]).await;
    })
    .unwrap();
}

/// A rename logs the data written to a file before it, and not the result of later changes:
/// truncating, freeing, or overwriting.
#[test]
fn renamed_files_have_what_was_written_before() {
    bugs::switch_on(&[Bug::NewerDataInLog]);
    block_on(2, async {
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(512 << 20)).await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let other = fixture.file(top, "other", b"x").await.unwrap().object;
        mount.fsync(other).await.unwrap();
        fixture.engine.sync().await.unwrap();
        let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
        for (number, what) in ["cut", "grown", "hole", "over", "linked"].into_iter().enumerate() {
            let file = fixture.file(top, &format!("old{number}"), b"0123456789").await.unwrap();
            let (old, new) = (format!("old{number}"), format!("new{number}"));
            let (from, to) = ((top, old.as_bytes()), (top, new.as_bytes()));
            let mode = RenameMode::Plain;
            mount.rename(&root(), &Rename { from, to, mode }).await.unwrap();
            let file = file.object;
            let none = WriteOptions::default();
            match what {
                "cut" => drop(mount.set_attributes(&root(), file, &size(0)).await.unwrap()),
                "grown" => {
                    mount.set_attributes(&root(), file, &size(4)).await.unwrap();
                    mount.set_attributes(&root(), file, &size(20)).await.unwrap();
                }
                "hole" => mount.allocate(&root(), file, 2, 5, Allocate::PunchHole).await.unwrap(),
                "over" => drop(mount.write(&root(), file, 5, b"over", none).await.unwrap()),
                _ => {
                    mount.link(&root(), file, top, b"kept").await.unwrap();
                    mount.write(&root(), file, 0, b"later", none).await.unwrap();
                }
            }
        }
        // Commits all names, and none of the later changes.
        mount.fsync(other).await.unwrap();
        let (engine, mount, _) = after_crash(pools::images_of(&fixture.devices)).await;
        for number in 0..5 {
            let name = format!("new{number}");
            let found = mount.lookup(&root(), mount.root(), name.as_bytes()).await.unwrap();
            let mut bytes = [0; 100];
            let count = mount.read(found.object, 0, &mut bytes).await.unwrap();
            assert_eq!(&bytes[..count], b"0123456789", "{name}");
        }
        drop((engine, mount));
    })
    .unwrap();
}

/// Tests the test above, in a process of its own: with the seeded bug it must fail.
#[test]
fn newer_data_in_the_log_is_found() {
    bugs::check_found(
        &[Bug::NewerDataInLog],
        "new0",
        |_| "logs::renamed_files_have_what_was_written_before",
    );
}

/// Changes beyond the data that the log keeps for its records are made durable by a sync.
#[test]
fn many_changes_of_one_place_are_durable() {
    block_on(2, async {
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(512 << 20)).await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let file = fixture.file(top, "file", b"x").await.unwrap().object;
        mount.fsync(file).await.unwrap();
        fixture.engine.sync().await.unwrap();
        let none = WriteOptions::default();
        for round in 0..50_u8 {
            let bytes = vec![round; 1 << 20];
            mount.write(&root(), file, 0, &bytes, none).await.unwrap();
        }
        mount.fsync(file).await.unwrap();
        let (engine, mount, _) = after_crash(pools::images_of(&fixture.devices)).await;
        let mut found = vec![0; 1 << 20];
        let count = mount.read(file, 0, &mut found).await.unwrap();
        assert!(count == 1 << 20 && found.iter().all(|byte| *byte == 49));
        drop((engine, mount));
    })
    .unwrap();
}
