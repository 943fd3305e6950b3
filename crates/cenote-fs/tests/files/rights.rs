//! Permissions, where several rules apply.

use cenote_fs::access::{Capabilities, Credentials};
use cenote_fs::acl::Want;
use cenote_fs::acl::posix::{PosixAcl, Tag};
use cenote_fs::edit::xattr::Existing;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode, SetAttributes, SetTime};
use cenote_fs::mount::{WriteOptions, encode_rdev, errno};
use cenote_fs::{Ace, PFlags, Time};
use cenote_ondisk::acl::{POSIX_ACCESS, POSIX_DEFAULT};
use cenote_poolkit::pools;
use cenote_rt::block_on;

use crate::attributes::{number, posix, set, user};
use crate::fixture::{Fixture, root};

const CHANGE: SetAttributes = SetAttributes {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: None,
    mtime: None,
    flags: None,
    project: None,
    is_by_handle: false,
    is_write_back: false,
};

#[test]
fn posix_acls_can_deny_what_the_mode_grants() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        set(&fixture, "acltype", 1).await;
        let shut = posix(&[
            (Tag::Owner, 7),
            (Tag::User(8), 0),
            (Tag::Group, 5),
            (Tag::Mask, 5),
            (Tag::Other, 5),
        ]);
        for xattr in [2, 1] {
            set(&fixture, "xattr", xattr).await;
            let name = format!("dir{xattr}");
            let dir = fixture.dir(top, &name).await.unwrap().object;
            fixture.file(dir, "file", b"").await.unwrap();
            let access = POSIX_ACCESS.as_bytes();
            mount.set_xattr(&root(), dir, access, &shut, Existing::Any).await.unwrap();
            assert_eq!(mount.attributes(dir).await.unwrap().mode, 0o755);
            let found = mount.lookup(&user(9), dir, b"file").await;
            assert!(found.is_ok(), "whom it does not name");
            let found = mount.lookup(&user(8), dir, b"file").await;
            assert_eq!(number(found).map(|_| ()), Err(errno::EACCES));
            let path = format!("{name}/file");
            let found = mount.walk(&user(8), path.as_bytes()).await;
            assert_eq!(number(found).map(|_| ()), Err(errno::EACCES));
        }
    })
    .unwrap();
}

#[test]
fn tmpfile_gets_the_same_mode_as_a_named_file() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let new = NewNode { umask: 0o077, ..NewNode::new(NewKind::Regular, 0o666) };
        let (handle, made) = mount.create_unnamed(&root(), top, &new).await.unwrap();
        assert_eq!(made.mode, 0o600);
        drop(handle);
        set(&fixture, "acltype", 1).await;
        let dir = fixture.dir(top, "dir").await.unwrap().object;
        let acl = posix(&[
            (Tag::Owner, 6),
            (Tag::User(8), 6),
            (Tag::Group, 4),
            (Tag::Mask, 6),
            (Tag::Other, 0),
        ]);
        let default = POSIX_DEFAULT.as_bytes();
        mount.set_xattr(&root(), dir, default, &acl, Existing::Any).await.unwrap();
        let named = mount.create(&root(), dir, b"named", &new).await.unwrap();
        let (handle, made) = mount.create_unnamed(&root(), dir, &new).await.unwrap();
        assert_eq!((made.mode, named.mode), (0o660, 0o660));
        mount.link(&root(), made.object, dir, b"later").await.unwrap();
        drop(handle);
        let access = POSIX_ACCESS.as_bytes();
        let of_named = mount.xattr(&root(), named.object, access).await.unwrap();
        assert_eq!(mount.xattr(&root(), made.object, access).await.unwrap(), of_named);
        fixture.judge("unnamed-mode", &["-dddd"]).await;
    })
    .unwrap();
}

#[test]
fn mknod_of_devices_needs_a_privilege() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let all = SetAttributes { mode: Some(0o777), ..CHANGE };
        mount.set_attributes(&root(), top, &all).await.unwrap();
        let disk = NewKind::BlockDevice(encode_rdev(8, 0));
        let memory = NewKind::CharDevice(encode_rdev(1, 1));
        let maker = Credentials { capabilities: Capabilities::MKNOD, ..user(8) };
        for (name, kind) in [("disk", disk), ("memory", memory)] {
            let new = NewNode::new(kind, 0o666);
            let made = mount.create(&user(7), top, name.as_bytes(), &new).await;
            assert_eq!(number(made).map(|_| ()), Err(errno::EPERM));
            let made = mount.create_unnamed(&user(7), top, &new).await;
            assert_eq!(number(made).map(|_| ()), Err(errno::EPERM));
            mount.create(&maker, top, name.as_bytes(), &new).await.unwrap();
        }
        for (name, kind) in [("whiteout", NewKind::CharDevice(0)), ("fifo", NewKind::Fifo)] {
            let new = NewNode::new(kind, 0o600);
            mount.create(&user(7), top, name.as_bytes(), &new).await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn rename_needs_permission_on_both_directories() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let rename = async |cred: &Credentials, from: (u64, &[u8]), to: (u64, &[u8]), mode| {
            number(mount.rename(cred, &Rename { from, to, mode }).await)
        };
        // A user who may remove names, but not add any.
        let dir = fixture.dir(top, "dir").await.unwrap().object;
        fixture.file(dir, "a", b"").await.unwrap();
        let rights = Want::DELETE_CHILD | Want::EXECUTE | Want::READ;
        let trivial = mount.acl(&root(), dir).await.unwrap();
        let entry =
            |rights: Want| Ace { kind: 0, flags: 0, mask: rights.bits(), id: 7, object: None };
        let with = |rights| [vec![entry(rights)], trivial.clone()].concat();
        mount.set_acl(&root(), dir, &with(rights)).await.unwrap();
        let plain = RenameMode::Plain;
        let done = rename(&user(7), (dir, b"a"), (dir, b"b"), plain).await;
        assert_eq!(done, Err(errno::EACCES));
        mount.set_acl(&root(), dir, &with(rights | Want::WRITE)).await.unwrap();
        rename(&user(7), (dir, b"a"), (dir, b"b"), plain).await.unwrap();
        // A directory with a project accepts only nodes of that project, in both directions.
        let of = async |name, project| {
            let dir = fixture.dir(top, name).await.unwrap().object;
            let flags = Some(PFlags::PROJINHERIT);
            let changes = SetAttributes { project: Some(project), flags, ..CHANGE };
            mount.set_attributes(&root(), dir, &changes).await.unwrap();
            fixture.file(dir, "file", b"").await.unwrap();
            dir
        };
        let (one, two) = (of("one", 1).await, of("two", 2).await);
        fixture.file(top, "plain", b"").await.unwrap();
        let swap = RenameMode::Exchange;
        for (from, to) in [
            ((one, &b"file"[..]), (two, &b"file"[..])),
            ((one, b"file"), (top, b"plain")),
            ((top, b"plain"), (one, b"file")),
        ] {
            assert_eq!(rename(&root(), from, to, swap).await, Err(errno::EXDEV));
        }
        let inside = SetAttributes { project: Some(1), ..CHANGE };
        let plain = mount.walk(&root(), b"plain").await.unwrap().object;
        mount.set_attributes(&root(), plain, &inside).await.unwrap();
        rename(&root(), (one, b"file"), (top, b"plain"), swap).await.unwrap();
    })
    .unwrap();
}

#[test]
fn ftruncate_works_through_open_files() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let all = SetAttributes { mode: Some(0o777), ..CHANGE };
        mount.set_attributes(&root(), top, &all).await.unwrap();
        let new = NewNode::new(NewKind::Regular, 0o444);
        let file = mount.create(&user(7), top, b"file", &new).await.unwrap().object;
        let handle = mount.hold(file).await.unwrap();
        mount.write(&user(7), file, 0, b"content", WriteOptions::default()).await.unwrap();
        let change = async |changes: SetAttributes| {
            number(mount.set_attributes(&user(7), file, &changes).await).map(|told| told.size)
        };
        let cut = SetAttributes { size: Some(3), ..CHANGE };
        assert_eq!(change(cut).await, Err(errno::EACCES));
        let cut = SetAttributes { is_by_handle: true, mtime: Some(SetTime::Now), ..cut };
        assert_eq!(change(cut).await, Ok(3));
        // A user who does not own it may do that, but nothing else.
        let owner = SetAttributes { uid: Some(8), ..CHANGE };
        mount.set_attributes(&root(), file, &owner).await.unwrap();
        assert_eq!(change(SetAttributes { size: Some(2), ..cut }).await, Ok(2));
        let old = Some(SetTime::To(Time { seconds: 1, nanoseconds: 0 }));
        assert_eq!(change(SetAttributes { mtime: old, ..cut }).await, Err(errno::EPERM));
        let mode = Some(0o777);
        assert_eq!(change(SetAttributes { mode, ..cut }).await, Err(errno::EPERM));
        // Flags have precedence over open files.
        let flags = SetAttributes { flags: Some(PFlags::IMMUTABLE), ..CHANGE };
        mount.set_attributes(&root(), file, &flags).await.unwrap();
        assert_eq!(change(cut).await, Err(errno::EPERM));
        // The time of writes that a kernel cached before the flag was set is stored all the same,
        // whoever has the kernel write it back.
        let time = SetAttributes { mtime: old, ..CHANGE };
        assert_eq!(change(time).await, Err(errno::EPERM));
        assert_eq!(change(SetAttributes { is_write_back: true, ..time }).await, Ok(2));
        assert_eq!(mount.attributes(file).await.unwrap().mtime.seconds, 1);
        drop(handle);
    })
    .unwrap();
}

#[test]
fn set_group_id_is_for_members_of_the_group() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        set(&fixture, "acltype", 1).await;
        let foreign = SetAttributes { uid: Some(7), gid: Some(50), ..CHANGE };
        let ids = SetAttributes { mode: Some(0o2755), ..CHANGE };
        let member = Credentials::user(7, 7, vec![50]);
        let dir = fixture.dir(top, "dir").await.unwrap().object;
        let file = fixture.file(top, "file", b"").await.unwrap().object;
        for object in [dir, file] {
            mount.set_attributes(&root(), object, &foreign).await.unwrap();
            let told = mount.set_attributes(&user(7), object, &ids).await.unwrap();
            assert_eq!(told.mode, 0o755);
            let told = mount.set_attributes(&member, object, &ids).await.unwrap();
            assert_eq!(told.mode, 0o2755);
            // Setting an ACL has the same effect.
            let acl = PosixAcl::of_mode(0o711).encode();
            let access = POSIX_ACCESS.as_bytes();
            mount.set_xattr(&member, object, access, &acl, Existing::Any).await.unwrap();
            assert_eq!(mount.attributes(object).await.unwrap().mode, 0o2711);
            mount.set_xattr(&user(7), object, access, &acl, Existing::Any).await.unwrap();
            assert_eq!(mount.attributes(object).await.unwrap().mode, 0o711);
        }
    })
    .unwrap();
}

/// Where an ACL forbids changing the mode, the log record about removed set-id bits does not end
/// the replay, and the bits do not come back.
#[test]
fn replay_removes_set_ids_with_aclmode_restricted() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let file = fixture.file(top, "program", b"code").await.unwrap().object;
        let changes = SetAttributes { mode: Some(0o6777), ..CHANGE };
        mount.set_attributes(&root(), file, &changes).await.unwrap();
        let mask = (Want::READ | Want::EXECUTE).bits();
        let mut aces = mount.acl(&root(), file).await.unwrap();
        aces.insert(0, Ace { kind: 0, flags: 0, mask, id: 12, object: None });
        mount.set_acl(&root(), file, &aces).await.unwrap();
        set(&fixture, "aclmode", 4).await;
        assert_eq!(mount.attributes(file).await.unwrap().mode, 0o6777);
        fixture.engine.sync().await.unwrap();
        mount.write(&user(9), file, 0, b"x", WriteOptions::default()).await.unwrap();
        mount.fsync(file).await.unwrap();
        let wanted = mount.acl(&root(), file).await.unwrap();
        let images = pools::images_of(&fixture.devices);
        let (engine, mount, _) = crate::logs::after_crash(images).await;
        assert_eq!(mount.attributes(file).await.unwrap().mode, 0o777);
        assert_eq!(mount.acl(&root(), file).await.unwrap(), wanted);
        let mut bytes = [0; 4];
        mount.read(file, 0, &mut bytes).await.unwrap();
        assert_eq!(&bytes, b"xode");
        drop((engine, mount));
    })
    .unwrap();
}
