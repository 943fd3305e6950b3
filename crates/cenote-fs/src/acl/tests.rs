use cenote_ondisk::acl::{ACE_ALLOW, ACE_DENY, Ace, Who};
use cenote_ondisk::znode::PFlags;

use super::*;
use crate::error::FsError;
use crate::node::FileKind;

const IDS: Ids = Ids { uid: 1000, gid: 100 };

fn masks(aces: &[Ace]) -> Vec<u32> {
    aces.iter().map(|ace| ace.mask).collect()
}

fn named(kind: u16, flags: u16, id: u64, mask: Want) -> Ace {
    Ace { kind, flags, mask: mask.bits(), id, object: None }
}

#[test]
fn trivial_acl_of_a_mode_is_that_of_openzfs() {
    assert_eq!(masks(&trivial(0o755, true)), [0x1e_01ff, 0x12_00a9, 0x12_00a9]);
    assert_eq!(masks(&trivial(0o644, false)), [0x1e_019f, 0x12_0089, 0x12_0089]);
    // Others have more than the group: the group's entry must deny it.
    let aces = trivial(0o604, false);
    let kinds: Vec<_> = aces.iter().map(|ace| (ace.kind, ace.flags, ace.mask)).collect();
    assert_eq!(kinds[..2], [(ACE_ALLOW, 0x1000, 1), (ACE_DENY, 0x2040, 1)]);
    let aces = trivial(0o077, true);
    assert_eq!((aces.len(), aces[0].kind, aces[0].mask), (4, ACE_DENY, 0x67));
}

#[test]
fn mode_and_trivial_acl_convert_both_ways() {
    for mode in 0..0o1000 {
        for is_directory in [false, true] {
            let aces = trivial(mode | 0o104_000, is_directory);
            assert!((3..=6).contains(&aces.len()) && is_trivial(&aces), "{mode:o}");
            let (found, is_denied) = mode_of(&aces, 0o104_000, IDS);
            assert_eq!(found, mode | 0o104_000);
            assert_eq!(is_denied, mode & 0o111 != 0o111, "{mode:o}");
            // Every user gets exactly the bits of its class.
            for (class, meant) in [(6, Who::Owner), (3, Who::Group), (0, Who::Everyone)] {
                let wanted = Want::READ | Want::WRITE | Want::EXECUTE;
                let is_meant = |who| {
                    who == Who::Everyone || who == meant || meant == Who::Owner && who == Who::Group
                };
                let verdict = evaluate(&aces, is_directory, wanted, is_meant);
                let rwx = mode >> class & 7;
                assert_eq!(verdict.allowed.contains(Want::READ), rwx & 4 != 0, "{mode:o} {class}");
                assert_eq!(verdict.allowed.contains(Want::WRITE), rwx & 2 != 0, "{mode:o} {class}");
                assert_eq!(
                    verdict.allowed.contains(Want::EXECUTE),
                    rwx & 1 != 0,
                    "{mode:o} {class}"
                );
            }
        }
    }
}

#[test]
fn flags_of_new_nodes_without_inheritance() {
    let parent = ParentAcl { flags: PFlags::ACL_TRIVIAL, aces: &[] };
    let rows = [
        (FileKind::Regular, 0o100_644, 0x4),
        (FileKind::Regular, 0o100_755, 0x104),
        (FileKind::Directory, 0o040_755, 0x144),
        (FileKind::Directory, 0o040_700, 0x44),
        (FileKind::Symlink, 0o120_777, 0x104),
    ];
    for (kind, mode, want) in rows {
        let new = NewNodeAcl { kind, mode, ids: IDS };
        let acl = for_new(Some(parent), &new, AclInherit::Restricted, AclMode::Discard);
        assert_eq!((acl.flags.bits(), acl.mode), (want, mode), "{mode:o}");
        assert_eq!(acl.aces, trivial(mode, kind == FileKind::Directory));
    }
}

fn parent() -> Vec<Ace> {
    let both = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
    let rights = Want::READ | Want::EXECUTE | Want::WRITE_ACL;
    vec![
        named(ACE_ALLOW, both, 7, rights),
        named(ACE_DENY, flag::FILE_INHERIT, 8, Want::WRITE),
        named(ACE_ALLOW, flag::DIRECTORY_INHERIT | flag::NO_PROPAGATE, 9, Want::READ),
        named(ACE_ALLOW, flag::OWNER | both, 0, Want::READ),
        named(ACE_ALLOW, flag::EVERYONE, 0, Want::READ),
    ]
}

fn inherited(kind: FileKind, mode: u64, inherit: AclInherit) -> NodeAcl {
    let aces = parent();
    let parent = ParentAcl { flags: PFlags::INHERIT_ACE, aces: &aces };
    for_new(Some(parent), &NewNodeAcl { kind, mode, ids: IDS }, inherit, AclMode::Discard)
}

#[test]
fn aclinherit_applies_to_files() {
    let mode = 0o100_640;
    let mode_only = trivial(mode, false);
    for inherit in [AclInherit::Discard, AclInherit::NoAllow] {
        let acl = inherited(FileKind::Regular, mode, inherit);
        let denied = usize::from(inherit == AclInherit::NoAllow);
        assert_eq!(acl.aces.len(), mode_only.len() + denied, "{inherit:?}");
        assert_eq!(acl.flags.contains(PFlags::ACL_TRIVIAL), denied == 0);
    }
    let acl = inherited(FileKind::Regular, mode, AclInherit::Restricted);
    // The entry for directories is left out, and so is the permission to change the ACL.
    assert_eq!(acl.aces.len(), 3 + mode_only.len());
    assert_eq!(acl.aces[0].flags, flag::INHERITED);
    assert_eq!(want(&acl.aces[0]), Want::READ | Want::EXECUTE);
    assert_eq!((acl.aces[1].id, acl.aces[1].kind), (8, ACE_DENY));
    assert!(!acl.flags.intersects(PFlags::ACL_TRIVIAL | PFlags::INHERIT_ACE));
    // Passed-through entries determine the mode.
    let acl = inherited(FileKind::Regular, mode, AclInherit::Passthrough);
    assert_eq!((acl.aces.len(), acl.mode), (3, 0o100_400));
    assert!(want(&acl.aces[0]).contains(Want::WRITE_ACL | Want::EXECUTE));
    let acl = inherited(FileKind::Regular, mode, AclInherit::PassthroughX);
    assert!(!want(&acl.aces[0]).contains(Want::EXECUTE));
    let acl = inherited(FileKind::Regular, 0o100_740, AclInherit::PassthroughX);
    assert!(want(&acl.aces[0]).contains(Want::EXECUTE));
    let acl = inherited(FileKind::Symlink, 0o120_777, AclInherit::Passthrough);
    assert_eq!(acl.aces, trivial(0o777, false));
}

#[test]
fn aclinherit_passes_entries_through_directories() {
    let acl = inherited(FileKind::Directory, 0o040_755, AclInherit::Restricted);
    let flags: Vec<u16> = acl.aces.iter().map(|ace| ace.flags).collect();
    let both = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT | flag::INHERITED;
    let want = [
        both,
        flag::FILE_INHERIT | flag::INHERIT_ONLY | flag::INHERITED,
        flag::INHERITED,
        both | flag::OWNER,
    ];
    assert_eq!(flags[..4], want);
    assert!(acl.flags.contains(PFlags::INHERIT_ACE | PFlags::ACL_AUTO_INHERIT));
    assert!(!acl.flags.contains(PFlags::ACL_TRIVIAL));
}

#[test]
fn aclmode_applies_to_chmod() {
    let aces = parent();
    let change =
        |flags, is_directory, policy| chmod(&aces, flags, 0o750, IDS, is_directory, policy);
    let flags = PFlags::INHERIT_ACE | PFlags::ACL_PROTECTED;
    let acl = change(flags, true, AclMode::Discard).unwrap();
    assert_eq!(acl.aces, trivial(0o750, true));
    assert_eq!(acl.flags, PFlags::ACL_PROTECTED | PFlags::ACL_TRIVIAL);
    let refused = change(flags, true, AclMode::Restricted);
    assert_eq!(refused, Err(FsError::NotPermitted));
    assert!(change(flags | PFlags::ACL_TRIVIAL, true, AclMode::Restricted).is_ok());
    // Entries of the mode are replaced, but inheritable ones stay as inherit-only entries.
    let acl = change(flags, true, AclMode::Passthrough).unwrap();
    let only = acl.aces.iter().find(|ace| ace.flags & flag::INHERIT_ONLY != 0).unwrap();
    assert_eq!(only.flags & flag::OWNER, flag::OWNER);
    assert_eq!(acl.aces.iter().filter(|ace| ace.who() == Who::Everyone).count(), 1);
    assert_eq!(acl.mode & 0o777, 0o750);
    let acl = change(flags, true, AclMode::GroupMask).unwrap();
    let trimmed = acl.aces.iter().find(|ace| ace.id == 7).unwrap();
    assert_eq!(want(trimmed), Want::READ | Want::EXECUTE);
    let acl = change(flags, false, AclMode::Passthrough).unwrap();
    assert_eq!(acl.aces.iter().filter(|ace| ace.who() == Who::Owner).count(), 1);
}

#[test]
fn named_entries_can_deny_execution() {
    let mut aces = vec![named(ACE_DENY, 0, 7, Want::EXECUTE)];
    aces.extend(trivial(0o755, false));
    assert_eq!(mode_of(&aces, 0o100_000, IDS), (0o100_755, true));
    assert!(!is_trivial(&aces));
    // A named entry with the owner's uid counts as the owner.
    aces[0].id = IDS.uid;
    assert_eq!(mode_of(&aces, 0o100_000, IDS), (0o100_655, true));
}
