use cenote_dmu::live::{Owned, Owner, OwnerProbe};
use cenote_ondisk::dnode::{DnodeFlags, DnodePhys};
use cenote_ondisk::sa::{Registry, SaBuffer};

use super::*;

fn attributes(names: &[(ZplAttr, u64)]) -> Attributes {
    let mut attributes = Attributes::default();
    for (attr, value) in names {
        attributes.number(*attr, *value);
    }
    attributes
}

fn dnode(bonus_type: ObjectType, bonus: Vec<u8>) -> DnodePhys {
    DnodePhys {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        indblkshift: 17,
        nlevels: 1,
        bonus_type,
        checksum: 0,
        compress: 0,
        flags: DnodeFlags::empty(),
        data_block_sectors: 1,
        bonus_len: bonus.len() as u16,
        extra_slots: 0,
        maxblkid: 0,
        used: 0,
        reserved: [0; 35],
        blkptrs: Vec::new(),
        bonus_area: bonus,
        spill: None,
    }
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
    let mut dnode = dnode(ObjectType::SA, attributes.encode(2));
    let probe = FsOwners { counts_objects: true, counts_projects: true };
    let owner = Owner { uid: 1000, gid: 100, project: 77 };
    assert_eq!(probe.owner(&dnode, None), Owned::By(owner));
    dnode.bonus_type = ObjectType::NONE;
    assert_eq!(probe.owner(&dnode, None), Owned::No);
}
