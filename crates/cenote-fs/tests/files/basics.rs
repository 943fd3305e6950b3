//! Basic operations, one of each.

use cenote_fs::FileKind;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode, SetAttributes};
use cenote_fs::mount::{Allocate, Seek, WriteOptions, encode_rdev, errno};
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::block_on;

use crate::attributes::set;
use crate::fixture::{Fixture, root};

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

#[test]
fn every_kind_of_node_survives_a_reopen() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let top = fixture.mount.root();
        let dir = fixture.dir(top, "dir").await.unwrap();
        assert_eq!((dir.kind, dir.mode, dir.links, dir.size), (FileKind::Directory, 0o755, 2, 2));
        let small = fixture.file(dir.object, "small", b"hello").await.unwrap();
        assert_eq!((small.size, small.block_size, small.links), (5, 512, 1));
        let large = pattern(700_000, 3);
        let file = fixture.file(dir.object, "large", &large).await.unwrap();
        assert_eq!((file.size, file.block_size), (700_000, 128 << 10));
        let kinds = [
            ("link", NewKind::Symlink(b"../somewhere/else")),
            ("fifo", NewKind::Fifo),
            ("socket", NewKind::Socket),
            ("char", NewKind::CharDevice(encode_rdev(1, 3))),
            ("block", NewKind::BlockDevice(encode_rdev(8, 17))),
        ];
        for (name, kind) in kinds {
            let new = NewNode::new(kind, 0o600);
            fixture.mount.create(&root(), dir.object, name.as_bytes(), &new).await.unwrap();
        }
        fixture.mount.link(&root(), small.object, top, b"other").await.unwrap();
        let fixture = fixture.reopen().await;
        let mount = &fixture.mount;
        let found = mount.walk(&root(), b"/dir").await.unwrap();
        assert_eq!((found.object, found.size, found.links), (dir.object, 9, 2));
        let found = mount.walk(&root(), b"/dir/large").await.unwrap();
        assert!(fixture.read_all(found.object).await.unwrap() == large);
        assert!(found.blocks > 700, "{}", found.blocks);
        let found = mount.walk(&root(), b"/other").await.unwrap();
        assert_eq!((found.object, found.links, found.size), (small.object, 2, 5));
        assert_eq!(fixture.read_all(found.object).await.unwrap(), b"hello");
        let found = mount.walk(&root(), b"/dir/link").await.unwrap();
        assert_eq!((found.kind, found.size), (FileKind::Symlink, 17));
        assert_eq!(mount.read_link(found.object).await.unwrap(), b"../somewhere/else");
        let found = mount.walk(&root(), b"/dir/block").await.unwrap();
        assert_eq!((found.kind, found.device), (FileKind::BlockDevice, Some((8, 17))));
        fixture.judge("basics", &["-dddd"]).await;
    })
    .unwrap();
}

#[test]
fn unlinked_files_live_as_long_as_they_are_open() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let file = fixture.file(top, "file", b"content").await.unwrap();
        let handle = mount.hold(file.object).await.unwrap();
        mount.unlink(&root(), top, b"file").await.unwrap();
        let error = mount.lookup(&root(), top, b"file").await.unwrap_err();
        assert_eq!(errno::of(&error), errno::ENOENT);
        assert_eq!(mount.attributes(file.object).await.unwrap().links, 0);
        mount.write(&root(), file.object, 7, b" more", WriteOptions::default()).await.unwrap();
        assert_eq!(fixture.read_all(file.object).await.unwrap(), b"content more");
        // It stays in the unlinked set without a mount, and the next mount frees it.
        std::mem::forget(handle);
        let fixture = fixture.reopen().await;
        let error = fixture.mount.attributes(file.object).await.unwrap_err();
        assert_eq!(errno::of(&error), errno::ENOENT);
        let file = fixture.file(top, "again", b"x").await.unwrap();
        let handle = fixture.mount.hold(file.object).await.unwrap();
        fixture.mount.unlink(&root(), top, b"again").await.unwrap();
        drop(handle);
        fixture.mount.reap().await.unwrap();
        assert!(fixture.mount.attributes(file.object).await.is_err());
        fixture.judge("unlinked", &["-ddddd"]).await;
    })
    .unwrap();
}

#[test]
fn rename_moves_replaces_and_exchanges() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let a = fixture.dir(top, "a").await.unwrap().object;
        let b = fixture.dir(top, "b").await.unwrap().object;
        let sub = fixture.dir(a, "sub").await.unwrap().object;
        let x = fixture.file(a, "x", b"x").await.unwrap().object;
        let y = fixture.file(b, "y", b"y").await.unwrap().object;
        let rename = async |from: (u64, &str), to: (u64, &str), mode| {
            let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
            let done = mount.rename(&root(), &Rename { from, to, mode }).await;
            done.map_err(|error| errno::of(&error))
        };
        let plain = RenameMode::Plain;
        assert_eq!(rename((a, "x"), (b, "y"), RenameMode::NoReplace).await, Err(errno::EEXIST));
        rename((a, "x"), (b, "y"), plain).await.unwrap();
        assert!(mount.attributes(y).await.is_err());
        assert_eq!(mount.walk(&root(), b"b/y").await.unwrap().object, x);
        assert_eq!(rename((top, "a"), (sub, "a"), plain).await, Err(errno::EINVAL));
        assert_eq!(rename((a, "sub"), (b, "y"), plain).await, Err(errno::ENOTDIR));
        assert_eq!(rename((b, "y"), (a, "sub"), plain).await, Err(errno::EISDIR));
        rename((a, "sub"), (b, "sub"), plain).await.unwrap();
        let links = async |object| mount.attributes(object).await.unwrap().links;
        assert_eq!((links(a).await, links(b).await), (2, 3));
        assert_eq!(mount.lookup(&root(), sub, b"..").await.unwrap().object, b);
        rename((top, "a"), (b, "y"), RenameMode::Exchange).await.unwrap();
        assert_eq!(mount.walk(&root(), b"b/y").await.unwrap().object, a);
        assert_eq!(mount.walk(&root(), b"a").await.unwrap().object, x);
        assert_eq!((links(top).await, links(b).await), (3, 4));
        rename((top, "a"), (top, "c"), RenameMode::Whiteout).await.unwrap();
        let whiteout = mount.walk(&root(), b"a").await.unwrap();
        assert_eq!((whiteout.kind, whiteout.device), (FileKind::CharDevice, Some((0, 0))));
        assert_eq!(rename((b, "sub"), (top, "b"), plain).await, Err(errno::ENOTEMPTY));
        let error = mount.rmdir(&root(), top, b"b").await.unwrap_err();
        assert_eq!(errno::of(&error), errno::ENOTEMPTY);
        mount.rmdir(&root(), b, b"sub").await.unwrap();
        mount.rmdir(&root(), b, b"y").await.unwrap();
        assert_eq!(links(b).await, 2);
        fixture.judge("renames", &["-ddddd"]).await;
    })
    .unwrap();
}

#[test]
fn files_grow_and_shrink() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let file = fixture.file(top, "file", b"").await.unwrap().object;
        let write = async |offset, bytes: &[u8]| {
            mount.write(&root(), file, offset, bytes, WriteOptions::default()).await.unwrap();
            mount.attributes(file).await.unwrap().block_size
        };
        assert_eq!(write(0, &[1; 513]).await, 1024);
        assert_eq!(write(20_000, &[2; 1203]).await, 21_504);
        assert_eq!(write(130_000, &[3; 10_000]).await, 128 << 10);
        assert_eq!(write(1 << 30, &[4; 100]).await, 128 << 10);
        fixture.engine.sync().await.unwrap();
        let seek = async |at, what| mount.seek(file, at, what).await.map_err(|e| errno::of(&e));
        assert_eq!(seek(0, Seek::Hole).await, Ok(256 << 10));
        assert_eq!(seek(256 << 10, Seek::Data).await, Ok(1 << 30));
        assert_eq!(seek(1 << 30, Seek::Hole).await, Ok((1 << 30) + 100));
        assert_eq!(seek((1 << 30) + 100, Seek::Hole).await, Err(errno::ENXIO));
        let mut bytes = [9; 4];
        assert_eq!(mount.read(file, 511, &mut bytes).await.unwrap(), 4);
        assert_eq!(bytes, [1, 1, 0, 0]);
        mount.allocate(&root(), file, 0, 131_072, Allocate::PunchHole).await.unwrap();
        assert_eq!(seek(0, Seek::Data).await, Ok(128 << 10));
        mount.allocate(&root(), file, 130_000, 10, Allocate::ZeroRange).await.unwrap();
        let size = SetAttributes { size: Some(139_000), ..SetAttributes::default() };
        mount.set_attributes(&root(), file, &size).await.unwrap();
        let size = SetAttributes { size: Some(150_000), ..SetAttributes::default() };
        let told = mount.set_attributes(&root(), file, &size).await.unwrap();
        assert_eq!(told.size, 150_000);
        let all = fixture.read_all(file).await.unwrap();
        assert!(all[..131_072].iter().all(|byte| *byte == 0));
        assert!(all[131_072..139_000].iter().all(|byte| *byte == 3));
        assert!(all[139_000..].iter().all(|byte| *byte == 0));
        let copy = fixture.file(top, "copy", b"").await.unwrap().object;
        let count = mount.copy_range(&root(), (file, 131_072), (copy, 5), 1 << 20).await.unwrap();
        assert_eq!(count, 150_000 - 131_072);
        assert!(fixture.read_all(copy).await.unwrap()[5..] == all[131_072..]);
        let overlap = mount.copy_range(&root(), (file, 0), (file, 5), 6).await.unwrap_err();
        assert_eq!(errno::of(&overlap), errno::EINVAL);
        let space = mount.space().await.unwrap();
        assert_eq!((space.block_size, space.name_max), (128 << 10, 255));
        assert!(space.free_blocks > 0 && space.free_blocks < space.blocks);
        assert!(space.files > space.free_files);
        let options = WriteOptions { is_append: true, is_sync: true, ..WriteOptions::default() };
        let facts = mount.write(&root(), file, 0, b"end", options).await.unwrap();
        assert_eq!((facts.offset, facts.len, facts.size), (150_000, 3, 150_003));
        fixture.judge("sizes", &["-dddd"]).await;
    })
    .unwrap();
}

/// Records of 512 bytes to 16 MiB, in dnodes of 512 bytes to 16K: OpenZFS confirms the sizes, and
/// the contents are right.
#[test]
fn recordsize_and_dnodesize_of_every_value() {
    // `recordsize`, `dnodesize` (1 is "auto"), and the resulting size of a dnode.
    const ROWS: [(u64, u64, u64); 7] = [
        (512, 0, 512),
        (1 << 10, 1, 1 << 10),
        (8 << 10, 1 << 10, 1 << 10),
        (128 << 10, 2 << 10, 2 << 10),
        (1 << 20, 4 << 10, 4 << 10),
        (4 << 20, 8 << 10, 8 << 10),
        (16 << 20, 16 << 10, 16 << 10),
    ];
    block_on(2, async {
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(1 << 30)).await;
        let top = fixture.mount.root();
        let mut files = Vec::new();
        for (record, dnode, inode) in ROWS {
            set(&fixture, "recordsize", record).await;
            set(&fixture, "dnodesize", dnode).await;
            // Properties are read at the next change.
            fixture.dir(top, &format!("dir-{record}")).await.unwrap();
            let bytes = pattern(record as usize + 700, inode as u8);
            let file = fixture.file(top, &format!("file-{record}"), &bytes).await.unwrap();
            assert_eq!(file.block_size, record);
            files.push((file.object, bytes, record, inode));
        }
        let fixture = fixture.reopen().await;
        for (object, bytes, record, _) in &files {
            assert!(fixture.read_all(*object).await.unwrap() == *bytes, "{record}");
        }
        let pool = pools::open_copy(&fixture.devices).await.unwrap();
        let (records, dnodes) = ("large_blocks", "large_dnode");
        assert!(pool.features().is_active(records) && pool.features().is_active(dnodes));
        let Some(said) = fixture.judge("sizes", &["-P", "-dddd"]).await else { return };
        for (object, _, record, inode) in files {
            let words = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let number = object.to_string();
            let mut rows = words.filter(|words| words.len() > 8 && words[0] == number);
            let sizes = [record, inode].map(|size| size.to_string());
            let is_there = rows.any(|words| words[3] == sizes[0] && words[5] == sizes[1]);
            assert!(is_there, "object {object}: {sizes:?}\n{said}");
        }
    })
    .unwrap();
}
