use super::super::record::{Record, records};
use super::super::{SetMask, XvMask};
use super::*;
use crate::acl::{ACE_ALLOW, Acl};
use crate::blkptr::BlockPtr;
use crate::znode::PFlags;
use proptest::prelude::*;

/// A record with a body and a header.
fn framed(kind: RecordKind, body: &[u8]) -> Vec<u8> {
    let len = (RECORD_HEADER_LEN + body.len()) as u64;
    let mut bytes = words::to_bytes(&[kind as u64, len, 27, 5]);
    bytes.extend_from_slice(body);
    bytes
}

fn decoded(bytes: &[u8]) -> Record<'_> {
    let mut all = records(bytes);
    let first = all.next().unwrap().unwrap();
    assert_eq!(all.next(), None);
    first
}

/// Encodes, frames and decodes, and expects the same body.
fn round(kind: RecordKind, body: &Body<'_>) -> Vec<u8> {
    let bytes = body.encode(kind).unwrap_or_else(|| panic!("{kind:?} of {body:?}"));
    assert!(bytes.len().is_multiple_of(8));
    let whole = framed(kind, &bytes);
    let record = decoded(&whole);
    assert_eq!(&Body::decode(&record, record.bytes).unwrap(), body, "{kind:?}");
    bytes
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1_u8..=255, 0..40)
}

fn object() -> impl Strategy<Value = NewObject> {
    (0_u64..1 << 48, 1_u16..=256, any::<[u64; 3]>(), any::<[u32; 2]>(), any::<u64>()).prop_map(
        |(object, slots, [mode, seconds, gen_], [uid, gid], rdev)| NewObject {
            object,
            slots,
            mode,
            uid: uid.into(),
            gid: gid.into(),
            gen_,
            crtime: [seconds, 7],
            rdev,
        },
    )
}

fn logged_acl() -> impl Strategy<Value = LoggedAcl> {
    let ace = (any::<bool>(), any::<u16>(), any::<u32>(), any::<u64>(), any::<[u8; 32]>());
    let ace = ace.prop_map(|(is_object, flags, mask, id, guids)| {
        let kind = if is_object { 5 } else { ACE_ALLOW };
        let size = Ace::size(kind, flags);
        let id = if size >= 16 { id } else { 0 };
        Ace { kind, flags, mask, id, object: (size == 48).then_some(guids) }
    });
    (prop::collection::vec(ace, 0..6), any::<u64>(), prop::collection::vec(any::<u64>(), 0..3))
        .prop_map(|(entries, flags, fuids)| LoggedAcl {
            acl: Acl { entries, is_truncated: false },
            flags,
            fuids,
            domain_count: 0,
        })
}

fn attrs() -> impl Strategy<Value = XvAttrs> {
    (any::<u64>(), any::<u64>(), any::<u64>())
        .prop_map(|(changed, flags, project)| {
            XvAttrs::of_flags(PFlags::from_bits_retain(changed), PFlags::from_bits_retain(flags))
                .with_project(project)
        })
        .prop_filter("a mistake of old software", |attrs| !attrs.requested.contains(XvMask::OPAQUE))
}

proptest! {
    #[test]
    fn creates(parent: u64, new in object(), name in name(), target in name(), xv in attrs()) {
        use RecordKind as K;
        let plain = Body::Create { parent, new, xvattr: None, name: &name, target: None };
        for kind in [K::Create, K::Mkdir, K::Mkxattr] {
            round(kind, &plain);
        }
        let body = Body::Create { parent, new, xvattr: Some(xv), name: &name, target: None };
        for kind in [K::CreateAttr, K::MkdirAttr] {
            round(kind, &body);
        }
        let new = NewObject { slots: 1, rdev: 0, ..new };
        let target = Some(&target[..]);
        round(K::Symlink, &Body::Create { parent, new, xvattr: None, name: &name, target });
        // A body that the type does not have.
        prop_assert_eq!(plain.encode(K::Symlink), None);
        prop_assert_eq!(plain.encode(K::CreateAttr), None);
        prop_assert_eq!(plain.encode(K::Remove), None);
    }

    #[test]
    fn acls(parent: u64, new in object(), name in name(), acl in logged_acl(), xv in attrs()) {
        use RecordKind as K;
        round(K::Acl, &Body::Acl { object: parent, acl: acl.clone() });
        for (kind, xvattr) in [
            (K::CreateAcl, None),
            (K::MkdirAcl, None),
            (K::CreateAclAttr, Some(xv)),
            (K::MkdirAclAttr, Some(xv)),
        ] {
            let acl = acl.clone();
            round(kind, &Body::CreateAcl { parent, new, xvattr, acl, name: &name });
        }
    }

    #[test]
    fn names(parent: u64, other: u64, source in name(), target in name(), new in object()) {
        use RecordKind as K;
        round(K::Remove, &Body::Remove { parent, name: &source });
        round(K::Rmdir, &Body::Remove { parent, name: &source });
        round(K::Link, &Body::Link { parent, object: other, name: &source });
        for (kind, whiteout) in
            [(K::Rename, None), (K::RenameExchange, None), (K::RenameWhiteout, Some(new))]
        {
            let (source_parent, target_parent) = (parent, other);
            let (source, target) = (&source[..], &target[..]);
            round(kind, &Body::Rename { source_parent, target_parent, source, target, whiteout });
        }
    }

    #[test]
    fn objects(object: u64, offset: u64, data in prop::collection::vec(any::<u8>(), 1..64),
               name in name(), mode: u64, xv in attrs()) {
        use RecordKind as K;
        let len = data.len() as u64;
        let bp = BlockPtr::from_bytes(&[0; 128]);
        round(K::Write, &Body::Write { object, offset, len, bp, data: Some(&data) });
        round(K::Write, &Body::Write { object, offset, len, bp, data: None });
        round(K::Write2, &Body::Write { object, offset, len, bp, data: None });
        round(K::Truncate, &Body::Truncate { object, offset, len });
        round(K::SetSaXattr, &Body::SetSaXattr { object, name: &name, value: &data });
        let (mask, size) = ((SetMask::MODE | SetMask::SIZE).to_stored(), offset);
        let (uid, gid, atime, mtime) = (1, 2, [3, 4], [5, 6]);
        let xvattr = None;
        round(K::Setattr, &Body::Setattr { object, mask, mode, uid, gid, size, atime, mtime, xvattr });
        let (mask, xvattr) = (SetMask::XVATTR.to_stored(), Some(xv));
        round(K::Setattr, &Body::Setattr { object, mask, mode, uid, gid, size, atime, mtime, xvattr });
        let bps = vec![bp; 3];
        round(K::CloneRange, &Body::CloneRange { object, offset, len, block_size: 512, bps });
    }

    /// A foreign block decodes to the same as the native one.
    #[test]
    fn swapped_blocks(parent: u64, new in object(), name in name(), xv in attrs()) {
        let body = Body::Create { parent, new, xvattr: Some(xv), name: &name, target: None };
        let native = framed(RecordKind::CreateAttr, &body.encode(RecordKind::CreateAttr).unwrap());
        // As a big-endian host writes it: words and the u32 fields of the block swapped.
        let mut written: Vec<u8> =
            native.chunks(8).flat_map(|word| word.iter().rev().copied()).collect();
        for at in [104, 112] {
            written[at..at + 8].copy_from_slice(&native[at..at + 8]);
            written[at..at + 4].reverse();
            written[at + 4..at + 8].reverse();
        }
        written[144 + 8..].copy_from_slice(&native[144 + 8..]);
        // As it arrives: swapped as words from end to end.
        let arrived: Vec<u8> =
            written.chunks(8).flat_map(|word| word.iter().rev().copied()).collect();
        let record = decoded(&arrived);
        let unswapped = super::super::record::unswap(record.bytes);
        prop_assert_eq!(&unswapped, &written);
        prop_assert_eq!(Body::decode(&record, &unswapped).unwrap(), body);
    }
}
