use cenote_dmu::live::{Owned, Owner, OwnerProbe};
use cenote_ondisk::sa::{Registry, SaBuffer};

use super::*;

fn attributes(names: &[(ZplAttr, u64)]) -> Attributes {
    let mut attributes = Attributes::default();
    for (attr, value) in names {
        attributes.number(*attr, *value);
    }
    attributes
}

#[test]
fn packed_attributes_are_read_back() {
    let mut attributes = attributes(&[(ZplAttr::Mode, 0o40755), (ZplAttr::Size, 2)]);
    attributes.bytes(ZplAttr::DaclAces, &[7; 12]);
    attributes.bytes(ZplAttr::Symlink, b"there");
    let buffer = attributes.encode(2);
    assert_eq!(buffer.len(), attributes.bonus_len());
    assert_eq!(buffer.len(), 16 + 16 + 16 + 5);
    let mut registry = Registry::new();
    for attr in ZplAttr::ALL {
        registry.add_attr(attr.name().as_bytes(), attr.default_info().encode());
    }
    registry.add_layout(b"2", &[5, 6, 19, 17]);
    let decoded = SaBuffer::decode(&buffer, &registry).unwrap();
    let values: Vec<_> = decoded.attrs.iter().map(|attr| attr.bytes.len()).collect();
    assert_eq!(values, [8, 8, 12, 5]);
}

#[test]
fn owners_are_found_where_every_layout_has_them() {
    let first = [
        (ZplAttr::Mode, 1),
        (ZplAttr::Size, 2),
        (ZplAttr::Gen, 3),
        (ZplAttr::Uid, 1000),
        (ZplAttr::Gid, 100),
        (ZplAttr::Parent, 34),
        (ZplAttr::Flags, PFlags::PROJID.bits()),
    ];
    let mut attributes = attributes(&first);
    for time in [ZplAttr::Atime, ZplAttr::Mtime, ZplAttr::Ctime, ZplAttr::Crtime] {
        attributes.time(time, Time { seconds: 1, nanoseconds: 2 });
    }
    attributes.number(ZplAttr::Links, 1);
    attributes.number(ZplAttr::Projid, 77);
    let mut dnode = cenote_ondisk::dnode::DnodePhys {
        bonus_type: ObjectType::SA,
        ..cenote_ondisk::dnode::DnodePhys::default()
    };
    dnode.bonus = attributes.encode(2).into();
    let probe = FsOwners { counts_objects: true, counts_projects: true };
    let owner = Owner { uid: 1000, gid: 100, project: 77 };
    assert_eq!(probe.owner(&dnode, None), Owned::By(owner));
    dnode.bonus_type = ObjectType::NONE;
    assert_eq!(probe.owner(&dnode, None), Owned::No);
}
