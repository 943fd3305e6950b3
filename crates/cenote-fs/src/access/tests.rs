use cenote_ondisk::acl::{ACE_ALLOW, ACE_DENY};

use cenote_ondisk::acl::Ace;
use cenote_ondisk::znode::PFlags;

use super::rules::*;
use super::{Capabilities, Credentials, Want};
use crate::acl::posix::{Entry, PosixAcl, Tag};
use crate::acl::{Ids, flag, trivial};
use crate::error::FsError;

const OWNER: u32 = 1000;
const GROUP: u32 = 100;

fn node(mode: u64) -> Subject<'static> {
    let ids = Ids { uid: OWNER.into(), gid: GROUP.into() };
    Subject { mode, ids, flags: PFlags::ACL_TRIVIAL, aces: &[], posix: None }
}

fn user(uid: u32) -> Credentials {
    Credentials::user(uid, 5, vec![])
}

fn member(uid: u32) -> Credentials {
    Credentials::user(uid, 5, vec![GROUP])
}

#[test]
fn mode_bits_apply_by_class() {
    let file = node(0o100_640);
    let rows = [
        (user(OWNER), Want::READ | Want::WRITE, true),
        (user(OWNER), Want::EXECUTE, false),
        (member(7), Want::READ, true),
        (member(7), Want::WRITE, false),
        (user(7), Want::READ, false),
        (user(7), Want::READ_ATTRIBUTES | Want::READ_ACL, true),
        (Credentials::root(), Want::READ | Want::WRITE, true),
        // No execute bit is set, so not even root can execute it.
        (Credentials::root(), Want::EXECUTE, false),
    ];
    for (cred, wanted, is_allowed) in rows {
        let verdict = check(&file, &cred, wanted);
        assert_eq!(verdict.is_ok(), is_allowed, "{cred:?} {wanted:?}");
        if !is_allowed {
            assert_eq!(verdict, Err(FsError::AccessDenied));
        }
    }
    // The owner gets only the owner's bits, even if others have more.
    assert!(check(&node(0o100_077), &member(OWNER), Want::READ).is_err());
    assert!(check(&node(0o040_000), &Credentials::root(), Want::EXECUTE).is_ok());
    let mut searcher = user(7);
    searcher.capabilities = Capabilities::DAC_READ_SEARCH;
    assert!(check(&node(0o040_000), &searcher, Want::READ | Want::EXECUTE).is_ok());
    assert!(check(&node(0o040_000), &searcher, Want::WRITE).is_err());
}

#[test]
fn nontrivial_acls_decide_instead_of_the_mode() {
    let entry = |kind, id, mask: Want| Ace { kind, flags: 0, mask: mask.bits(), id, object: None };
    let mut aces = vec![
        entry(ACE_DENY, 7, Want::WRITE),
        entry(ACE_ALLOW, 7, Want::READ | Want::WRITE),
        entry(ACE_ALLOW, 8, Want::WRITE_ACL | Want::WRITE_OWNER),
    ];
    aces.extend(trivial(0o600, false));
    let file = Subject { aces: &aces, flags: PFlags::empty(), ..node(0o100_600) };
    assert!(check(&file, &user(7), Want::READ).is_ok());
    assert!(check(&file, &user(7), Want::WRITE).is_err());
    assert!(check(&file, &user(9), Want::READ).is_err());
    assert!(check(&file, &user(OWNER), Want::READ | Want::WRITE).is_ok());
    assert_eq!(may_set_acl(&file, &user(8)), Ok(()));
    assert_eq!(may_set_acl(&file, &user(9)), Err(FsError::NotPermitted));
    assert!(may_chown(&file, &user(8), Some(8), None).is_ok());
    assert!(may_chown(&file, &user(8), Some(9), None).is_err());
    // An inherit-only entry does not apply to the directory itself.
    let only = Ace { flags: flag::INHERIT_ONLY | flag::FILE_INHERIT, ..aces[1] };
    let only = [only];
    let dir = Subject { aces: &only, flags: PFlags::INHERIT_ACE, ..node(0o040_700) };
    assert!(check(&dir, &user(7), Want::READ).is_err());
}

#[test]
fn posix_acls_decide_instead_of_the_mode() {
    let rows =
        [(Tag::Owner, 6), (Tag::User(7), 6), (Tag::Group, 0), (Tag::Mask, 6), (Tag::Other, 0)];
    let acl = PosixAcl::of(rows.map(|(tag, rwx)| Entry { tag, rwx }).to_vec()).unwrap();
    let file = Subject { posix: Some(&acl), ..node(0o100_660) };
    assert!(check(&file, &user(7), Want::READ | Want::WRITE).is_ok());
    // The group bits of the mode are the mask of the POSIX ACL.
    assert!(check(&file, &member(8), Want::READ).is_err());
}

#[test]
fn immutable_and_append_only_flags_restrict_open() {
    // Writes, writes only at the end, truncates.
    let ways = [
        (false, false, false),
        (false, false, true),
        (true, false, false),
        (true, true, false),
        (true, true, true),
    ];
    let may_as = |cred: &Credentials, flag| {
        ways.map(|(writes, appends, truncates)| {
            may_open(flag, cred, OpenFor { writes, appends, truncates }).is_ok()
        })
    };
    let may = |flag| may_as(&user(OWNER), flag);
    assert_eq!(may(PFlags::ACL_TRIVIAL), [true; 5]);
    assert_eq!(may(PFlags::IMMUTABLE), [true, false, false, false, false]);
    assert_eq!(may(PFlags::READONLY), [true, false, false, false, false]);
    assert_eq!(may_as(&Credentials::root(), PFlags::READONLY), [true; 5]);
    assert_eq!(may_as(&Credentials::root(), PFlags::IMMUTABLE), may(PFlags::IMMUTABLE));
    assert_eq!(may(PFlags::APPENDONLY), [true, false, false, true, false]);
    assert_eq!(may(PFlags::AV_QUARANTINED), [false; 5]);
    let closed = may_open(
        PFlags::IMMUTABLE,
        &Credentials::root(),
        OpenFor { writes: true, appends: true, truncates: false },
    );
    assert_eq!(closed, Err(FsError::NotPermitted));
}

#[test]
fn immutable_and_append_only_flags_bind_root_too() {
    let root = Credentials::root();
    let with = |flag, mode| Subject { flags: PFlags::ACL_TRIVIAL | flag, ..node(mode) };
    let closed = with(PFlags::IMMUTABLE, 0o100_666);
    assert_eq!(check(&closed, &root, Want::WRITE), Err(FsError::NotPermitted));
    assert!(check(&closed, &root, Want::READ).is_ok());
    for verdict in [
        may_set_acl(&closed, &root),
        may_chown(&closed, &root, Some(1), None),
        may_set_times(&closed, &root, true),
        may_link(&closed),
        may_set_xattr(&closed, &root, b"user.x"),
        may_delete(&node(0o040_777), &closed, &root),
        may_set_flags(&closed, &root, PFlags::NODUMP),
        may_write_at(PFlags::IMMUTABLE, 10, 10),
        may_write_at(PFlags::APPENDONLY, 9, 10),
    ] {
        assert_eq!(verdict, Err(FsError::NotPermitted));
    }
    assert!(may_set_flags(&closed, &root, PFlags::IMMUTABLE | PFlags::NODUMP).is_ok());
    assert!(may_set_flags(&node(0o100_666), &user(OWNER), PFlags::IMMUTABLE).is_err());
    assert!(may_set_flags(&node(0o100_666), &user(OWNER), PFlags::NODUMP).is_ok());
    assert!(may_write_at(PFlags::APPENDONLY, 10, 10).is_ok());
    let appended = with(PFlags::APPENDONLY, 0o100_666);
    assert!(may_set_times(&appended, &root, true).is_ok());
    assert!(may_set_times(&appended, &root, false).is_err());
    // The DOS read-only flag protects files from users, but not directories.
    assert!(check(&with(PFlags::READONLY, 0o100_666), &root, Want::WRITE).is_ok());
    assert!(check(&with(PFlags::READONLY, 0o100_666), &user(OWNER), Want::WRITE).is_err());
    assert!(check(&with(PFlags::READONLY, 0o040_777), &root, Want::WRITE).is_ok());
}

#[test]
fn sticky_bit_restricts_deleting() {
    let dir = node(0o041_777);
    let other = Subject { ids: Ids { uid: 7, gid: 7 }, ..node(0o100_644) };
    assert!(may_delete(&dir, &other, &user(7)).is_ok());
    assert!(may_delete(&dir, &other, &user(OWNER)).is_ok());
    assert_eq!(may_delete(&dir, &other, &user(8)), Err(FsError::NotPermitted));
    assert!(may_delete(&dir, &other, &Credentials::root()).is_ok());
    assert_eq!(may_delete(&node(0o040_755), &other, &user(7)), Err(FsError::AccessDenied));
    assert!(may_add(&node(0o040_755), &user(7), false).is_err());
    assert!(may_add(&node(0o040_733), &user(7), true).is_ok());
}

#[test]
fn acl_entries_allow_and_deny_deleting() {
    let entry = |kind, id, mask: Want| Ace { kind, flags: 0, mask: mask.bits(), id, object: None };
    let closed = node(0o040_755);
    // An entry of the node itself allows or denies deleting it.
    let mut aces = vec![entry(ACE_ALLOW, 7, Want::DELETE), entry(ACE_DENY, 8, Want::DELETE)];
    aces.extend(trivial(0o644, false));
    let file = Subject { aces: &aces, flags: PFlags::empty(), ..node(0o100_644) };
    assert!(may_delete(&closed, &file, &user(7)).is_ok());
    assert!(may_delete(&closed, &file, &user(9)).is_err());
    assert!(may_delete(&node(0o040_777), &file, &user(9)).is_ok());
    assert_eq!(may_delete(&node(0o040_777), &file, &user(8)), Err(FsError::AccessDenied));
    // So does an entry of the directory.
    let mut of_dir =
        vec![entry(ACE_ALLOW, 9, Want::DELETE_CHILD), entry(ACE_DENY, 10, Want::DELETE_CHILD)];
    of_dir.extend(trivial(0o777, true));
    let dir = Subject { aces: &of_dir, flags: PFlags::empty(), ..node(0o040_777) };
    let plain = node(0o100_644);
    assert!(may_delete(&dir, &plain, &user(9)).is_ok());
    assert!(may_delete(&dir, &plain, &user(10)).is_err());
}

#[test]
fn chown_and_chmod_need_the_owner_or_a_privilege() {
    let file = node(0o106_755);
    assert!(may_chown(&file, &user(OWNER), Some(7), None).is_err());
    assert!(may_chown(&file, &member(OWNER), None, Some(GROUP.into())).is_ok());
    assert!(may_chown(&file, &user(OWNER), None, Some(77)).is_err());
    assert!(may_chown(&file, &user(OWNER), Some(OWNER.into()), None).is_ok());
    assert!(may_chown(&file, &user(7), None, None).is_err());
    assert!(may_chown(&file, &Credentials::root(), Some(7), Some(7)).is_ok());
    assert_eq!(mode_of_chmod(0o2755, GROUP.into(), &user(OWNER)), 0o755);
    assert_eq!(mode_of_chmod(0o2755, GROUP.into(), &member(OWNER)), 0o2755);
    assert_eq!(mode_of_chmod(0o2755, GROUP.into(), &Credentials::root()), 0o2755);
    assert_eq!(without_set_ids(0o106_745), 0o102_745);
    assert_eq!(mode_after_write(0o104_644, &user(7)), 0o104_644);
    assert_eq!(mode_after_write(0o106_755, &user(7)), 0o100_755);
    assert_eq!(mode_after_write(0o106_755, &Credentials::root()), 0o106_755);
    assert!(may_set_times(&node(0o100_666), &user(7), true).is_ok());
    assert_eq!(may_set_times(&node(0o100_666), &user(7), false), Err(FsError::NotPermitted));
}

#[test]
fn xattr_permissions_depend_on_the_namespace() {
    let file = node(0o100_644);
    let link = node(0o120_777);
    assert!(may_set_xattr(&file, &user(OWNER), b"user.x").is_ok());
    assert_eq!(may_set_xattr(&file, &user(7), b"user.x"), Err(FsError::AccessDenied));
    assert_eq!(may_set_xattr(&link, &user(OWNER), b"user.x"), Err(FsError::NotPermitted));
    assert_eq!(may_set_xattr(&file, &user(OWNER), b"trusted.x"), Err(FsError::NotPermitted));
    assert_eq!(may_set_xattr(&file, &user(OWNER), b"other.x"), Err(FsError::XattrsOff));
    assert!(may_set_xattr(&link, &Credentials::root(), b"security.x").is_ok());
    assert!(may_set_xattr(&file, &user(OWNER), b"system.posix_acl_access").is_ok());
    assert!(may_set_xattr(&file, &user(7), b"system.posix_acl_access").is_err());
    assert_eq!(may_get_xattr(&file, &user(7), b"trusted.x"), Err(FsError::NoXattr));
    assert!(may_get_xattr(&file, &user(7), b"user.x").is_ok());
    assert!(may_get_xattr(&node(0o100_600), &user(7), b"user.x").is_err());
    assert_eq!(may_set_xattr(&node(0o041_777), &user(7), b"user.x"), Err(FsError::NotPermitted));
}
