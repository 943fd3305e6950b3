use super::*;

fn schema() -> Schema {
    let mut registry = Registry::new();
    for attr in ZplAttr::ALL {
        registry.add_attr(attr.name().as_bytes(), attr.default_info().encode());
    }
    registry.add_layout(b"2", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19]);
    registry.add_layout(b"3", &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 17]);
    Schema::new(registry)
}

fn sample() -> Attrs {
    let mut attrs = Attrs::default();
    for (number, attr) in (100..).zip(FIRST) {
        match attr {
            ZplAttr::Atime | ZplAttr::Mtime | ZplAttr::Ctime | ZplAttr::Crtime => {
                attrs.set_time(attr, Time { seconds: -1, nanoseconds: number });
            }
            _ => attrs.set_word(attr, number),
        }
    }
    attrs.set_word(ZplAttr::DaclCount, 1);
    attrs.set_bytes(ZplAttr::DaclAces, &[0, 0, 0, 0x10, 1, 2, 3, 4]);
    attrs
}

#[test]
fn values_are_read_back_and_keep_their_places() {
    let mut attrs = sample();
    attrs.set_bytes(ZplAttr::Symlink, b"there");
    assert!(attrs.is_canonical());
    let buffer = attrs.encode(&attrs.slots, 3);
    assert_eq!(buffer.len(), attrs.bonus_len());
    // Two attributes of variable length, with an odd end.
    assert_eq!(buffer.len(), 16 + 128 + 8 + 8 + 5);
    let mut again = Attrs::decode(&buffer, None, &schema()).unwrap();
    assert_eq!(again.word(ZplAttr::Links), Some(111));
    assert_eq!(again.time(ZplAttr::Mtime).unwrap().seconds, -1);
    assert_eq!(again.bytes(ZplAttr::Symlink), Some(&b"there"[..]));
    assert_eq!(again.encode(&again.slots, 3), buffer);
    // Another size in the middle: the order stays.
    again.set_bytes(ZplAttr::DaclAces, &[7; 24]);
    again.set_word(ZplAttr::Size, 1);
    let order = |attrs: &Attrs| attrs.slots.iter().map(|slot| slot.id).collect::<Vec<_>>();
    assert_eq!(order(&again), order(&attrs));
    let buffer = again.encode(&again.slots, 3);
    let third = Attrs::decode(&buffer, None, &schema()).unwrap();
    assert_eq!(third.bytes(ZplAttr::DaclAces), Some(&[7; 24][..]));
    assert_eq!(third.word(ZplAttr::Size), Some(1));
}

#[test]
fn project_id_has_the_fixed_place_of_space_accounting() {
    let mut attrs = sample();
    attrs.set_bytes(ZplAttr::Symlink, b"x");
    attrs.set_word(ZplAttr::Projid, 77);
    let buffer = attrs.encode(&attrs.slots, 9);
    assert_eq!(buffer[16 + 128..][..8], 77_u64.to_le_bytes());
    attrs.remove(ZplAttr::Projid);
    assert_eq!(attrs.word(ZplAttr::Projid), None);
    assert_eq!(attrs.word(ZplAttr::DaclCount), Some(1));
}

#[test]
fn attributes_that_do_not_fit_go_to_the_spill_block() {
    let mut attrs = sample();
    let fixed = attrs.bonus_len();
    assert_eq!(fixed, 8 + 128 + 8 + 8);
    attrs.set_bytes(ZplAttr::Dxattr, &[1; 320 - 16 - 144]);
    assert_eq!((attrs.bonus_len(), attrs.split(320)), (320, 15));
    attrs.set_bytes(ZplAttr::Dxattr, &[1; 321 - 16 - 144]);
    // 192 bytes are left beside the pointer to the spill block.
    assert_eq!(attrs.split(320), 14);
    attrs.set_bytes(ZplAttr::DaclAces, &[1; 64]);
    assert_eq!(attrs.split(320), 13);
    assert_eq!(attrs.split(1024 - 192), 15);
}

#[test]
fn buffers_of_the_other_byte_order_are_swapped_as_a_whole() {
    let attrs = sample();
    let native = attrs.encode(&attrs.slots, 2);
    let mut foreign = Vec::new();
    foreign.extend(native[..4].iter().rev());
    foreign.extend(native[4..6].iter().rev());
    foreign.extend(native[6..8].iter().rev());
    foreign.extend(native[8..144].chunks(8).flat_map(|word| word.iter().rev()));
    foreign.extend([0, 0, 0x10, 0, 4, 3, 2, 1]);
    let turned = Attrs::decode(&foreign, None, &schema()).unwrap();
    assert_eq!(turned.encode(&turned.slots, 2), native);
}
