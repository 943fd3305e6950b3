use super::registry::ZplAttr;
use super::*;
use crate::znode::FileAttributes;
use proptest::prelude::*;

/// REGISTRY as current software writes it, with the layouts of spec 03 §8.5.
pub(crate) fn registry() -> Registry {
    let mut registry = Registry::new();
    for attr in ZplAttr::ALL {
        registry.add_attr(attr.name().as_bytes(), attr.default_info().encode());
    }
    assert!(registry.add_layout(b"2", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19]));
    assert!(registry.add_layout(b"3", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19, 17]));
    assert!(registry.add_layout(b"4", &[20]));
    registry
}

/// Root directory of spec 03 §17; with `swap`, as a big-endian host would write it.
fn root(swap: bool) -> Vec<u8> {
    let word = |value: u64| if swap { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut bytes = if swap {
        vec![0x00, 0x2f, 0x50, 0x5a, 0x04, 0x02, 0x00, 0x18]
    } else {
        vec![0x5a, 0x50, 0x2f, 0x00, 0x02, 0x04, 0x18, 0x00]
    };
    for value in
        [0o40755, 3, 0x2d, 0, 0, 34, 0x840_8000_0144, 11, 12, 21, 22, 31, 32, 41, 42, 2, 0, 3]
    {
        bytes.extend(word(value));
    }
    for (kind, flags, mask) in
        [(0, 0x1000, 0x1e_01ff), (0, 0x2040, 0x12_00a9), (0, 0x4000, 0x12_00a9)]
    {
        let (kind, flags, mask): (u16, u16, u32) = (kind, flags, mask);
        if swap {
            bytes.extend([kind.to_be_bytes(), flags.to_be_bytes()].concat());
            bytes.extend(mask.to_be_bytes());
        } else {
            bytes.extend([kind.to_le_bytes(), flags.to_le_bytes()].concat());
            bytes.extend(mask.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn a_real_bonus_in_both_orders() {
    let registry = registry();
    for swap in [false, true] {
        let bonus = root(swap);
        assert_eq!(bonus.len(), 176);
        let header = SaHeader::decode(&bonus).unwrap().unwrap();
        assert_eq!((header.layout, header.size), (2, 8));
        let file = FileAttributes::from_sa(&bonus, None, &registry).unwrap();
        assert_eq!((file.mode, file.size, file.gen_, file.parent), (0o40755, 3, 0x2d, 34));
        assert_eq!((file.links, file.flags, file.projid), (2, 0x840_8000_0144, Some(0)));
        assert_eq!((file.atime.seconds, file.crtime.nanoseconds), (11, 42));
        let masks: Vec<u32> = file.acl.entries.iter().map(|ace| ace.mask).collect();
        assert_eq!(masks, [0x1e_01ff, 0x12_00a9, 0x12_00a9], "swapped {swap}");
        assert_eq!(file.acl.entries[1].flags, 0x2040);
    }
}

#[test]
fn two_variable_attributes_and_an_odd_end() {
    let mut bonus = root(false);
    bonus[4..6].copy_from_slice(&(3_u16 | 2 << 10).to_le_bytes());
    bonus.splice(8..8, [5, 0, 0, 0, 0, 0, 0, 0]);
    bonus.extend(b"to/it");
    assert_eq!(bonus.len(), 189);
    let file = FileAttributes::from_sa(&bonus, None, &registry()).unwrap();
    assert_eq!(file.symlink.as_deref(), Some(&b"to/it"[..]));
    assert_eq!(file.acl.entries.len(), 3);
}

#[test]
fn the_spill_buffer_adds_attributes() {
    let mut spill = vec![0x5a, 0x50, 0x2f, 0x00, 0x04, 0x04, 3, 0];
    spill.extend(b"xyz");
    let file = FileAttributes::from_sa(&root(false), Some(&spill), &registry()).unwrap();
    assert_eq!(file.dxattr.as_deref(), Some(&b"xyz"[..]));
}

#[test]
fn refusals() {
    let registry = registry();
    let rows: &[(usize, u8, CorruptSa)] = &[
        (0, 0x5b, CorruptSa::Magic { found: 0x002f_505b }),
        (4, 9, CorruptSa::UnknownLayout { number: 9 }),
        (5, 8, CorruptSa::HeaderSize { layout: 2, found: 16, expected: 8 }),
        (6, 26, CorruptSa::OutOfRange { number: 19, offset: 152, len: 26, buffer_len: 176 }),
        (5, 0, CorruptSa::Length { len: 176 }),
    ];
    for (at, byte, want) in rows {
        let mut bonus = root(false);
        bonus[*at] = *byte;
        let got = SaBuffer::decode(&bonus, &registry).map(|_| ());
        // A longer header shifts the attributes, so that the last one exceeds the buffer first.
        if *at == 5 && *byte == 8 {
            bonus.resize(200, 0);
            let got = SaBuffer::decode(&bonus, &registry).map(|_| ());
            assert_eq!(got, Err(*want));
            continue;
        }
        assert_eq!(got, Err(*want), "byte {at}");
    }
    assert_eq!(SaBuffer::decode(&[0; 320], &registry).unwrap().attrs, []);
    assert_eq!(
        FileAttributes::from_sa(&[0; 320], None, &registry).unwrap_err(),
        CorruptSa::Missing { name: "ZPL_MODE" },
    );
}

proptest! {
    #[test]
    fn random_buffers_never_panic(bytes: Vec<u8>, at in 0_usize..176, byte: u8, swap: bool) {
        let registry = registry();
        let _ = FileAttributes::from_sa(&bytes, Some(&bytes), &registry);
        let mut bonus = root(swap);
        bonus[at] = byte;
        let _ = FileAttributes::from_sa(&bonus, Some(&bonus), &registry);
        let _ = FileAttributes::from_znode(&bytes);
    }
}
