//! Reads during writes, copies into a full file system, and access times.

use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::{AccessTimes, WriteOptions};
use cenote_rt::{Rng, block_on};
use futures_util::future::join;

use crate::attributes::set;
use crate::fixture::{Fixture, root};

/// A read sees one state of the file, even if it is the first access to the file and a write
/// happens while it waits for the disk.
#[test]
fn reads_never_see_half_of_a_write() {
    block_on(2, async {
        const LEN: usize = 6 << 20;
        let fixture = Fixture::new().await;
        let top = fixture.mount.root();
        let mut files = Vec::new();
        for name in ["a", "b", "c"] {
            files.push(fixture.file(top, name, &vec![1; LEN]).await.unwrap().object);
        }
        // There are no locks on them now, and nothing is in memory.
        let fixture = fixture.reopen().await;
        let mount = &fixture.mount;
        for file in files {
            let mut bytes = vec![0; LEN];
            let (cred, new) = (root(), vec![2; LEN]);
            let write = mount.write(&cred, file, 0, &new, WriteOptions::default());
            let (read, written) = join(mount.read(file, 0, &mut bytes), write).await;
            assert_eq!((read.unwrap(), written.unwrap().len), (LEN, LEN as u64));
            let first = bytes[0];
            let other = bytes.iter().position(|byte| *byte != first);
            assert_eq!(other, None, "{first} up to there");
        }
    })
    .unwrap();
}

/// A copy returns the number of bytes copied, also if a write was cut short.
#[test]
fn copy_range_returns_the_copied_bytes() {
    block_on(2, async {
        const PLACE: u64 = 512 << 10;
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let mut bytes = vec![0; 5 << 20];
        Rng::seeded(5).fill(&mut bytes);
        let source = fixture.file(top, "source", &bytes).await.unwrap().object;
        fixture.engine.sync().await.unwrap();
        let used = mount.space().await.unwrap();
        let used = (used.blocks - used.free_blocks) * used.block_size;
        set(&fixture, "quota", used + (3 << 20)).await;
        let target = fixture.file(top, "target", b"").await.unwrap().object;
        let mut copied = 0;
        // The end is in the middle of one request.
        let mut last = Ok(0);
        for _ in 0..8 {
            let (from, to) = ((source, copied), (target, PLACE + copied));
            last = mount.copy_range(&root(), from, to, 5 << 20).await;
            match &last {
                Ok(count) => copied += count,
                Err(_) => break,
            }
        }
        last.unwrap_err();
        assert!(copied > 0 && copied < 5 << 20, "{copied}");
        assert_eq!(mount.attributes(target).await.unwrap().size, PLACE + copied);
        let found = fixture.read_all(target).await.unwrap();
        assert!(found[PLACE as usize..] == bytes[..copied as usize]);
    })
    .unwrap();
}

#[test]
fn atime_is_updated_by_readdir_and_readlink() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        set(&fixture, "relatime", 0).await;
        let new = NewNode::new(NewKind::Symlink(b"target"), 0o777);
        let link = mount.create(&root(), top, b"link", &new).await.unwrap();
        let dir = fixture.dir(top, "dir").await.unwrap();
        let read = async || {
            mount.read_link(link.object).await.unwrap();
            mount.read_dir(&root(), dir.object, 0, 10).await.unwrap();
            let link = mount.attributes(link.object).await.unwrap();
            let dir = mount.attributes(dir.object).await.unwrap();
            (link.atime, dir.atime)
        };
        let first = read().await;
        assert!(first.0 > link.atime && first.1 > dir.atime);
        let second = read().await;
        assert!(second.0 > first.0 && second.1 > first.1);
        set(&fixture, "atime", 0).await;
        // Properties are read at the next change.
        fixture.file(top, "file", b"").await.unwrap();
        assert_eq!(read().await, second);
        // A mount can override them.
        mount.set_access_times(AccessTimes { has_atime: Some(true), is_relatime: None });
        let third = read().await;
        assert!(third.0 > second.0 && third.1 > second.1);
        mount.set_access_times(AccessTimes { has_atime: Some(true), is_relatime: Some(true) });
        assert_eq!(read().await, third);
    })
    .unwrap();
}

/// With `relatime` the first read after each change updates the access time.
#[test]
fn relatime_updates_atime_once_after_each_change() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let mount = &fixture.mount;
        set(&fixture, "relatime", 1).await;
        let file = fixture.file(mount.root(), "file", b"bytes").await.unwrap();
        let read = async || {
            mount.read(file.object, 0, &mut [0; 5]).await.unwrap();
            mount.attributes(file.object).await.unwrap().atime
        };
        let first = read().await;
        assert!(first > file.atime);
        assert_eq!(read().await, first);
        mount.write(&root(), file.object, 0, b"other", WriteOptions::default()).await.unwrap();
        let second = read().await;
        assert!(second > first);
        assert_eq!(read().await, second);
    })
    .unwrap();
}
