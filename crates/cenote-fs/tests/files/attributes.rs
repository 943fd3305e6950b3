//! Extended attributes, ACLs, permissions, projects and quotas of mounted file systems.

use cenote_dmu::Tx;
use cenote_fs::access::Credentials;
use cenote_fs::acl::Want;
use cenote_fs::acl::posix::{Entry, PosixAcl, Tag};
use cenote_fs::edit::xattr::Existing;
use cenote_fs::edit::{NewKind, NewNode, SetAttributes};
use cenote_fs::mount::{Allocate, Space, WriteOptions, errno};
use cenote_fs::quota::{self, Holder, Resource};
use cenote_fs::{Ace, PFlags, Who};
use cenote_ondisk::acl::{POSIX_ACCESS, POSIX_DEFAULT};
use cenote_ondisk::zap::Value;
use cenote_poolkit::pools;
use cenote_rt::{Result, block_on};

use crate::fixture::{Fixture, root};

pub(crate) fn user(uid: u32) -> Credentials {
    Credentials::user(uid, uid, vec![])
}

pub(crate) fn number<T>(result: Result<T>) -> std::result::Result<T, i32> {
    result.map_err(|error| errno::of(&error))
}

pub(crate) async fn set(fixture: &Fixture, property: &str, value: u64) {
    fixture.engine.properties().set("tank", property, Value::U64(value)).await.unwrap();
}

/// The files with extended attributes belong to the owners of their file.
#[test]
fn extended_attributes_follow_owner_and_project() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        set(&fixture, "xattr", 1).await;
        let mount = &fixture.mount;
        let file = fixture.file(mount.root(), "file", b"content").await.unwrap().object;
        for name in [b"user.a", b"user.b", b"user.c"] {
            mount.set_xattr(&root(), file, name, b"value", Existing::Any).await.unwrap();
        }
        let others = SetAttributes {
            uid: Some(7),
            gid: Some(8),
            project: Some(9),
            ..SetAttributes::default()
        };
        mount.set_attributes(&root(), file, &others).await.unwrap();
        fixture.engine.sync().await.unwrap();
        for holder in [Holder::User(7), Holder::Group(8), Holder::Project(9)] {
            let used = |tx: &mut Tx<'_>| quota::used(tx, holder, Resource::Objects);
            // The file, the directory of its attributes, and three of them.
            assert_eq!(mount.head().live().inspect(used).await.unwrap(), 5, "{holder:?}");
        }
        fixture.judge("owners", &[]).await;
    })
    .unwrap();
}

#[test]
fn xattr_sa_and_dir_choose_the_place() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let file = fixture.file(fixture.mount.root(), "file", b"content").await.unwrap().object;
        let link = NewNode::new(NewKind::Symlink(b"file"), 0o777);
        let link = fixture.mount.create(&root(), fixture.mount.root(), b"link", &link).await;
        let link = link.unwrap().object;
        let put = async |fixture: &Fixture, name: &str, value: &[u8], existing| {
            let name = name.as_bytes();
            number(fixture.mount.set_xattr(&root(), file, name, value, existing).await)
        };
        let get = async |fixture: &Fixture, name: &str| {
            number(fixture.mount.xattr(&root(), file, name.as_bytes()).await)
        };
        let large = vec![7; 40 << 10];
        put(&fixture, "user.small", b"one", Existing::Any).await.unwrap();
        put(&fixture, "user.empty", b"", Existing::Missing).await.unwrap();
        put(&fixture, "trusted.large", &large, Existing::Any).await.unwrap();
        put(&fixture, "user.with/slash", &large, Existing::Any).await.unwrap();
        assert_eq!(put(&fixture, "user.small", b"", Existing::Missing).await, Err(errno::EEXIST));
        assert_eq!(put(&fixture, "user.other", b"", Existing::There).await, Err(errno::ENODATA));
        assert_eq!(
            put(&fixture, "user.x", &vec![0; 65_537], Existing::Any).await,
            Err(errno::E2BIG)
        );
        assert_eq!(put(&fixture, "nothing.x", b"", Existing::Any).await, Err(errno::EOPNOTSUPP));
        let long = format!("user.{}", "x".repeat(300));
        assert_eq!(put(&fixture, &long, b"", Existing::Any).await, Err(errno::ERANGE));
        fixture.mount.set_xattr(&root(), link, b"trusted.l", b"v", Existing::Any).await.unwrap();
        // An attribute that does not fit into the list goes to the directory.
        for index in 0..5 {
            let value = vec![index; 20_000];
            put(&fixture, &format!("user.many{index}"), &value, Existing::Any).await.unwrap();
        }
        let fixture = fixture.reopen().await;
        assert_eq!(get(&fixture, "user.small").await.as_deref(), Ok(&b"one"[..]));
        assert_eq!(get(&fixture, "user.empty").await.as_deref(), Ok(&b""[..]));
        assert_eq!(get(&fixture, "trusted.large").await.as_deref(), Ok(&large[..]));
        assert_eq!(get(&fixture, "user.with/slash").await.as_deref(), Ok(&large[..]));
        for index in 0..5 {
            let name = format!("user.many{index}");
            assert_eq!(get(&fixture, &name).await, Ok(vec![index; 20_000]), "{name}");
        }
        assert_eq!(get(&fixture, "user.none").await, Err(errno::ENODATA));
        let names = fixture.mount.xattrs(&root(), file).await.unwrap();
        assert_eq!(names.len(), 9, "{names:?}");
        let names = fixture.mount.xattrs(&user(1000), file).await.unwrap();
        assert_eq!(names.len(), 8, "others do not see what is trusted");
        // A value that becomes short moves into the list, and back.
        put(&fixture, "trusted.large", b"short", Existing::There).await.unwrap();
        assert_eq!(get(&fixture, "trusted.large").await.as_deref(), Ok(&b"short"[..]));
        set(&fixture, "xattr", 1).await;
        put(&fixture, "user.small", b"two", Existing::There).await.unwrap();
        assert_eq!(get(&fixture, "user.small").await.as_deref(), Ok(&b"two"[..]));
        for name in names {
            fixture.mount.remove_xattr(&root(), file, &name).await.unwrap();
        }
        let again = fixture.mount.remove_xattr(&root(), file, b"user.small").await;
        assert_eq!(number(again), Err(errno::ENODATA));
        let names = fixture.mount.xattrs(&root(), file).await.unwrap();
        assert_eq!(names, [b"trusted.large"]);
        put(&fixture, "user.last", b"in the directory", Existing::Any).await.unwrap();
        let printed = fixture.judge("xattrs", &["-ddddd"]).await;
        let Some(printed) = printed else { return };
        for wanted in ["trusted.large = short", "user.last", "trusted.l = v"] {
            assert!(printed.contains(wanted), "{wanted}: {printed}");
        }
        assert!(!printed.contains("leaked"), "{printed}");
    })
    .unwrap();
}

pub(crate) fn posix(entries: &[(Tag, u16)]) -> Vec<u8> {
    let entries = entries.iter().map(|(tag, rwx)| Entry { tag: *tag, rwx: *rwx }).collect();
    PosixAcl::of(entries).unwrap().encode()
}

#[test]
fn acltype_posix_acls_apply_and_are_inherited() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let (access, default) = (POSIX_ACCESS.as_bytes(), POSIX_DEFAULT.as_bytes());
        let file = fixture.file(top, "file", b"x").await.unwrap().object;
        let acl = posix(&[
            (Tag::Owner, 6),
            (Tag::User(7), 6),
            (Tag::Group, 4),
            (Tag::Mask, 6),
            (Tag::Other, 0),
        ]);
        let off = mount.set_xattr(&root(), file, access, &acl, Existing::Any).await;
        assert_eq!(number(off), Err(errno::EOPNOTSUPP));
        set(&fixture, "acltype", 1).await;
        mount.set_xattr(&root(), file, access, &acl, Existing::Any).await.unwrap();
        let told = mount.attributes(file).await.unwrap();
        assert_eq!(told.mode, 0o660);
        let may = async |uid, want| mount.access(&user(uid), file, want).await.is_ok();
        assert!(may(7, Want::READ | Want::WRITE).await && !may(8, Want::READ).await);
        // chmod changes the mask.
        let mode = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
        mount.set_attributes(&root(), file, &mode).await.unwrap();
        assert!(may(7, Want::READ).await && !may(7, Want::WRITE).await);
        // An ACL that only repeats the mode is not stored.
        let plain = PosixAcl::of_mode(0o604).encode();
        mount.set_xattr(&root(), file, access, &plain, Existing::Any).await.unwrap();
        assert_eq!(mount.attributes(file).await.unwrap().mode, 0o604);
        assert_eq!(number(mount.xattr(&root(), file, access).await), Err(errno::ENODATA));
        assert!(may(8, Want::READ).await);

        let dir = fixture.dir(top, "dir").await.unwrap().object;
        let refused = mount.set_xattr(&root(), file, default, &acl, Existing::Any).await;
        assert_eq!(number(refused), Err(errno::EACCES));
        let bad = mount.set_xattr(&root(), dir, default, b"1234567", Existing::Any).await;
        assert_eq!(number(bad), Err(errno::EINVAL));
        mount.set_xattr(&root(), dir, default, &acl, Existing::Any).await.unwrap();
        let new = NewNode { umask: 0o077, ..NewNode::new(NewKind::Regular, 0o644) };
        let made = mount.create(&root(), dir, b"made", &new).await.unwrap();
        assert_eq!(made.mode, 0o640, "the ACL stands in for the umask");
        let found = mount.xattr(&root(), made.object, access).await.unwrap();
        let found = PosixAcl::decode(&found).unwrap().unwrap();
        assert_eq!(found.entries()[1], Entry { tag: Tag::User(7), rwx: 6 });
        assert_eq!(found.mode(0), 0o640);
        let sub = fixture.dir(dir, "sub").await.unwrap();
        assert_eq!(mount.xattr(&root(), sub.object, default).await.unwrap(), acl);
        let made = mount.create(&root(), top, b"masked", &new).await.unwrap();
        assert_eq!(made.mode, 0o600);
        let printed = fixture.judge("posix", &["-dddd"]).await;
        assert!(printed.is_none_or(|printed| printed.contains("system.posix_acl_default")));
    })
    .unwrap();
}

#[test]
fn acltype_nfsv4_acls_apply_and_are_inherited() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let dir = fixture.dir(top, "dir").await.unwrap().object;
        let trivial = mount.acl(&root(), dir).await.unwrap();
        let masks: Vec<u32> = trivial.iter().map(|ace| ace.mask).collect();
        assert_eq!(masks, [0x1e_01ff, 0x12_00a9, 0x12_00a9]);
        let rights = (Want::READ | Want::WRITE | Want::EXECUTE).bits();
        let named = Ace { kind: 0, flags: 0x3, mask: rights, id: 7, object: None };
        let mut aces = vec![named];
        aces.extend(&trivial);
        mount.set_acl(&root(), dir, &aces).await.unwrap();
        let told = mount.attributes(dir).await.unwrap();
        assert_eq!(told.mode, 0o755);
        assert!(told.flags.contains(PFlags::INHERIT_ACE));
        assert!(!told.flags.contains(PFlags::ACL_TRIVIAL));
        // The named user may write, and nodes that it creates inherit the entry.
        let new = NewNode::new(NewKind::Regular, 0o600);
        let made = mount.create(&user(7), dir, b"made", &new).await.unwrap();
        let refused = mount.create(&user(8), dir, b"other", &new).await;
        assert_eq!(number(refused), Err(errno::EACCES));
        // The owner's entry determines the owner's mode bits.
        assert_eq!((made.uid, made.mode), (7, 0o700));
        let inherited = mount.acl(&root(), made.object).await.unwrap();
        assert_eq!((inherited[0].who(), inherited[0].flags), (Who::NamedUser(7), 0x80));
        // chmod discards the ACL, as aclmode=discard says.
        let mode = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let told = mount.set_attributes(&root(), dir, &mode).await.unwrap();
        assert!(told.flags.contains(PFlags::ACL_TRIVIAL));
        assert_eq!(mount.acl(&root(), dir).await.unwrap(), trivial);
        mount.set_acl(&root(), dir, &aces).await.unwrap();
        set(&fixture, "aclmode", 4).await;
        let refused = mount.set_attributes(&root(), dir, &mode).await;
        assert_eq!(number(refused), Err(errno::EPERM));
        set(&fixture, "aclmode", 3).await;
        mount.set_attributes(&root(), dir, &mode).await.unwrap();
        assert_eq!(mount.acl(&root(), dir).await.unwrap().len(), 4);
        let refused = mount.set_acl(&user(7), dir, &trivial).await;
        assert_eq!(number(refused), Err(errno::EPERM));
        fixture.judge("nfs4", &["-dddd"]).await;
    })
    .unwrap();
}

#[test]
fn permissions_set_ids_and_flags() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let new = NewNode::new(NewKind::Regular, 0o644);
        assert_eq!(number(mount.create(&user(7), top, b"x", &new).await), Err(errno::EACCES));
        let shared = NewNode::new(NewKind::Directory, 0o1777);
        let shared = mount.create(&root(), top, b"shared", &shared).await.unwrap().object;
        let mine = mount.create(&user(7), shared, b"mine", &new).await.unwrap();
        assert_eq!((mine.uid, mine.gid), (7, 7));
        assert_eq!(number(mount.unlink(&user(8), shared, b"mine").await), Err(errno::EPERM));
        let change = async |uid: u32, object, changes: SetAttributes| {
            let cred = if uid == 0 { root() } else { user(uid) };
            number(mount.set_attributes(&cred, object, &changes).await)
        };
        let changes = SetAttributes::default();
        let mode = SetAttributes { mode: Some(0o6755), ..changes };
        assert_eq!(change(8, mine.object, mode).await, Err(errno::EPERM));
        assert_eq!(change(7, mine.object, mode).await.unwrap().mode, 0o6755);
        // A write without privileges removes set-id bits.
        let options = WriteOptions::default();
        mount.write(&user(7), mine.object, 0, b"new", options).await.unwrap();
        assert_eq!(mount.attributes(mine.object).await.unwrap().mode, 0o755);
        let owner = SetAttributes { uid: Some(9), ..changes };
        assert_eq!(change(7, mine.object, owner).await, Err(errno::EPERM));
        assert_eq!(change(0, mine.object, owner).await.unwrap().uid, 9);
        let size = SetAttributes { size: Some(0), ..changes };
        assert_eq!(change(7, mine.object, size).await, Err(errno::EACCES));
        // A set-group-id directory passes its group on, and the bit itself to directories.
        let group = NewNode::new(NewKind::Directory, 0o2777);
        let group = mount.create(&root(), top, b"group", &group).await.unwrap().object;
        change(0, group, SetAttributes { gid: Some(50), ..changes }).await.unwrap();
        let node = mount.create(&user(7), group, b"file", &new).await.unwrap();
        assert_eq!((node.gid, node.mode), (50, 0o644));
        let sub = NewNode::new(NewKind::Directory, 0o755);
        let sub = mount.create(&user(7), group, b"sub", &sub).await.unwrap();
        assert_eq!((sub.gid, sub.mode), (50, 0o2755));
        // Flags bind root as well.
        let flags = |flags| SetAttributes { flags: Some(flags), ..changes };
        change(0, node.object, flags(PFlags::APPENDONLY)).await.unwrap();
        let write = mount.write(&root(), node.object, 0, b"abc", options).await;
        assert!(write.is_ok(), "at the end");
        let write = mount.write(&root(), node.object, 0, b"abc", options).await;
        assert_eq!(number(write).map(|_| ()), Err(errno::EPERM));
        assert_eq!(number(mount.unlink(&root(), group, b"file").await), Err(errno::EPERM));
        change(0, node.object, flags(PFlags::IMMUTABLE)).await.unwrap();
        let end = WriteOptions { is_append: true, ..options };
        let write = mount.write(&root(), node.object, 0, b"abc", end).await;
        assert_eq!(number(write).map(|_| ()), Err(errno::EPERM));
        assert_eq!(change(0, node.object, mode).await, Err(errno::EPERM));
        assert_eq!(number(mount.link(&root(), node.object, top, b"n").await), Err(errno::EPERM));
        assert_eq!(change(7, node.object, flags(PFlags::empty())).await, Err(errno::EPERM));
        change(0, node.object, flags(PFlags::empty())).await.unwrap();
        mount.unlink(&root(), group, b"file").await.unwrap();
        fixture.judge("rights", &["-dddd"]).await;
    })
    .unwrap();
}

#[test]
fn projectquota_userobjquota_and_groupquota_limit_writers() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let changes = SetAttributes::default();
        let dir = fixture.dir(top, "dir").await.unwrap().object;
        let project =
            SetAttributes { project: Some(42), flags: Some(PFlags::PROJINHERIT), ..changes };
        mount.set_attributes(&root(), dir, &project).await.unwrap();
        let inside = fixture.file(dir, "inside", &vec![1; 100_000]).await.unwrap();
        assert_eq!(inside.project, Some(42));
        assert!(inside.flags.contains(PFlags::PROJINHERIT));
        let outside = fixture.file(top, "outside", b"").await.unwrap();
        assert_eq!(outside.project, Some(0));
        let linked = mount.link(&root(), outside.object, dir, b"linked").await;
        assert_eq!(number(linked), Err(errno::EXDEV));
        fixture.engine.sync().await.unwrap();
        let used = mount.used(Holder::Project(42), Resource::Space).await.unwrap();
        assert!(used > 512 * 2 && used < 100_000, "{used}");
        assert_eq!(mount.used(Holder::Project(42), Resource::Objects).await.unwrap(), 2);
        // Object quota of a user.
        let shared = NewNode::new(NewKind::Directory, 0o777);
        let shared = mount.create(&root(), top, b"shared", &shared).await.unwrap().object;
        let holder = Holder::User(7);
        mount.set_quota(holder, Resource::Objects, 2).await.unwrap();
        let new = NewNode::new(NewKind::Regular, 0o644);
        let make = async |name: &str| {
            let made = number(mount.create(&user(7), shared, name.as_bytes(), &new).await);
            fixture.engine.sync().await.unwrap();
            made.map(|made| made.object)
        };
        make("a").await.unwrap();
        let b = make("b").await.unwrap();
        assert_eq!(make("c").await, Err(errno::EDQUOT));
        mount.unlink(&user(7), shared, b"a").await.unwrap();
        fixture.engine.sync().await.unwrap();
        make("c").await.unwrap();
        mount.set_quota(holder, Resource::Objects, 0).await.unwrap();
        assert_eq!(mount.quota(holder, Resource::Objects).await.unwrap(), None);
        // Space quota of a group, reached by writing and by being given a file.
        let holder = Holder::Group(7);
        mount.set_quota(holder, Resource::Space, 50_000).await.unwrap();
        let write = async |offset| {
            let mut bytes = vec![0; 60_000];
            cenote_rt::Rng::seeded(3).fill(&mut bytes);
            let options = WriteOptions::default();
            let done = mount.write(&user(7), b, offset, &bytes, options).await;
            fixture.engine.sync().await.unwrap();
            number(done).map(|_| ())
        };
        assert_eq!(write(0).await, Ok(()));
        assert_eq!(write(60_000).await, Err(errno::EDQUOT));
        let group = SetAttributes { gid: Some(7), ..changes };
        let given = mount.set_attributes(&root(), inside.object, &group).await;
        assert_eq!(number(given).map(|_| ()), Err(errno::EDQUOT));
        let size = SetAttributes { size: Some(0), ..changes };
        mount.set_attributes(&user(7), b, &size).await.unwrap();
        fixture.engine.sync().await.unwrap();
        assert_eq!(write(0).await, Ok(()));
        fixture.judge("quotas", &["-dddd"]).await;
    })
    .unwrap();
}

/// `df` shows used and available space in records; below a directory that passes its project on,
/// the quota of the project.
#[test]
fn statfs_shows_the_quota_of_the_dataset_or_project() {
    const RECORD: u64 = 64 << 10;
    const MIB: u64 = 1 << 20;
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, engine) = (&fixture.mount, &fixture.engine);
        let top = mount.root();
        set(&fixture, "recordsize", RECORD).await;
        let dir = fixture.dir(top, "dir").await.unwrap().object;
        let flags = Some(PFlags::PROJINHERIT);
        let changes = SetAttributes { project: Some(42), flags, ..SetAttributes::default() };
        mount.set_attributes(&root(), dir, &changes).await.unwrap();
        engine.sync().await.unwrap();
        let before = mount.space().await.unwrap();
        let mut noise = vec![0; 3 << 20];
        cenote_rt::Rng::seeded(5).fill(&mut noise);
        for (number, bytes) in noise.chunks(700_000).enumerate() {
            fixture.file(dir, &format!("file-{number}"), bytes).await.unwrap();
        }
        engine.sync().await.unwrap();
        let on_disk = async |property| {
            let pool = pools::open_copy(&fixture.devices).await.unwrap();
            pools::number_property(&pool.dataset("tank").await.unwrap(), property).await
        };
        let space = mount.space().await.unwrap();
        let (referenced, available) = (on_disk("referenced").await, on_disk("available").await);
        assert!(referenced > 3 * MIB, "{referenced}");
        let blocks = (referenced.next_multiple_of(RECORD) + available) / RECORD;
        let figures = (space.block_size, space.blocks, space.free_blocks);
        assert_eq!(figures, (RECORD, blocks, available / RECORD));
        // An inode takes 512 bytes: that many more fit, and five exist.
        assert_eq!(space.free_files, available / 512);
        let used = |space: &Space| space.files - space.free_files;
        assert_eq!(used(&space), used(&before) + 5);
        assert_eq!((space.fsid, space.name_max), (before.fsid, 255));
        set(&fixture, "refquota", 16 * MIB).await;
        let space = mount.space().await.unwrap();
        assert_eq!(space.blocks, 16 * MIB / RECORD);
        assert_eq!(space.free_blocks, (16 * MIB - on_disk("referenced").await) / RECORD);

        // Without a quota a project has the space of the dataset.
        let project = Holder::Project(42);
        assert_eq!(mount.space_at(dir).await.unwrap(), space);
        mount.set_quota(project, Resource::Space, 4 * MIB).await.unwrap();
        mount.set_quota(project, Resource::Objects, 7).await.unwrap();
        engine.sync().await.unwrap();
        let space = mount.space_at(dir).await.unwrap();
        let used = mount.used(project, Resource::Space).await.unwrap();
        assert!((3 * MIB..4 * MIB).contains(&used), "{used}");
        let figures = (space.blocks, space.free_blocks, space.files, space.free_files);
        assert_eq!(figures, (4 * MIB / RECORD, (4 * MIB - used) / RECORD, 7, 1));
        mount.set_quota(project, Resource::Space, 2 * MIB).await.unwrap();
        let space = mount.space_at(dir).await.unwrap();
        assert_eq!((space.blocks, space.free_blocks), (2 * MIB / RECORD, 0));
        assert_eq!(mount.space_at(top).await.unwrap(), mount.space().await.unwrap());
    })
    .unwrap();
}

#[test]
fn writes_and_chown_remove_set_ids_and_capabilities() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let (mount, top) = (&fixture.mount, fixture.mount.root());
        let capability = b"security.capability";
        let change = SetAttributes::default();
        let wishes = [
            SetAttributes { size: Some(3), ..change },
            SetAttributes { uid: Some(3), ..change },
            SetAttributes { gid: Some(3), ..change },
        ];
        // In the list, and in the directory.
        for xattr in [2, 1] {
            set(&fixture, "xattr", xattr).await;
            let name = format!("program{xattr}");
            let file = fixture.file(top, &name, b"code").await.unwrap().object;
            let arm = async || {
                let changes = SetAttributes { mode: Some(0o6755), ..change };
                mount.set_attributes(&root(), file, &changes).await.unwrap();
                mount.set_xattr(&root(), file, capability, b"cap", Existing::Any).await.unwrap();
            };
            let has = async || mount.xattr(&root(), file, capability).await.is_ok();
            let mode = async || mount.attributes(file).await.unwrap().mode;
            arm().await;
            let changes = SetAttributes { mode: Some(0o4755), ..change };
            mount.set_attributes(&root(), file, &changes).await.unwrap();
            assert!(has().await, "another mode is no other content");
            // A user who may set the bits keeps them; capabilities are removed by every write.
            arm().await;
            mount.write(&root(), file, 0, b"x", WriteOptions::default()).await.unwrap();
            assert_eq!((has().await, mode().await), (false, 0o6755));
            arm().await;
            mount.write(&user(9), file, 0, b"x", WriteOptions::default()).await.unwrap();
            assert_eq!((has().await, mode().await), (false, 0o755));
            arm().await;
            mount.allocate(&user(9), file, 0, 2, Allocate::PunchHole).await.unwrap();
            assert_eq!((has().await, mode().await), (false, 0o755));
            for changes in wishes {
                arm().await;
                mount.set_attributes(&root(), file, &changes).await.unwrap();
                let kept = if changes.size.is_some() { 0o6755 } else { 0o755 };
                assert_eq!((has().await, mode().await), (false, kept), "{changes:?}");
            }
        }
        // A crash after a write does not restore privileges.
        set(&fixture, "xattr", 2).await;
        let file = fixture.file(top, "logged", b"code").await.unwrap().object;
        let changes = SetAttributes { mode: Some(0o4755), ..change };
        mount.set_attributes(&root(), file, &changes).await.unwrap();
        mount.set_xattr(&root(), file, capability, b"cap", Existing::Any).await.unwrap();
        fixture.engine.sync().await.unwrap();
        mount.write(&user(9), file, 0, b"x", WriteOptions::default()).await.unwrap();
        mount.fsync(file).await.unwrap();
        let images = fixture.devices.iter().map(|device| device.image()).collect();
        let (engine, mount, _) = crate::logs::after_crash(images).await;
        assert_eq!(mount.attributes(file).await.unwrap().mode, 0o755);
        let found = mount.xattr(&root(), file, capability).await;
        assert_eq!(number(found), Err(errno::ENODATA));
        drop((mount, engine));
    })
    .unwrap();
}
