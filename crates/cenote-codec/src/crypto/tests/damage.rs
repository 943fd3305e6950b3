//! Changed bytes are refused, except those that a raw receive may change; no bytes cause a panic.

use super::super::{dnodes, intent_log};
use super::*;
use proptest::prelude::*;

/// Whether flipping one bit of the example's dnode block must be detected, determined independently
/// of the code: not covered are the space used, three flags, and of each pointer all but property
/// and MAC. `None` if the flip turns a hole into an address, which may have either result.
fn is_covered(block: &[u8], at: usize, bit: u8) -> Option<bool> {
    let within = at % 512;
    let dnode = &block[at - within..][..512];
    let pointers = 64..64 + 128 * usize::from(dnode[3]);
    let in_pointer = if pointers.contains(&within) {
        (within - 64) % 128
    } else if dnode[7] & 4 != 0 && within >= 384 {
        within - 384
    } else {
        return Some(!(within == 7 && bit != 4 || (24..32).contains(&within)));
    };
    let pointer = &block[at - in_pointer..][..128];
    let is_hole = pointer[..16].iter().all(|byte| *byte == 0);
    let level = pointer[55] & 0x1f;
    match in_pointer {
        0..16 if is_hole => None,
        // A hole's property does not count.
        48..56 if is_hole => Some(false),
        // The size and compression of an indirect block, any checksum, the dedup bit.
        50..53 if level > 0 => Some(false),
        53 => Some(false),
        55 => Some(bit != 0x40),
        48..56 | 112..128 => Some(true),
        _ => Some(false),
    }
}

#[test]
fn flipped_bits_in_a_dnode_block() {
    let keys = child_keys();
    let (data, seal) = child_dnodes();
    let mut refused = 0;
    for at in 0..9 * 512 {
        for bit in [1, 4, 0x40] {
            let mut changed = data.clone();
            changed[at] ^= bit;
            let found = keys.decrypt_block(DNODES, &seal, &mut changed);
            if let Some(is_covered) = is_covered(&data, at, bit) {
                assert_eq!(found.is_err(), is_covered, "byte {at} bit {bit:#x}");
                refused += usize::from(is_covered);
            }
        }
    }
    assert!(refused > 5000, "{refused}");
    for part in 0..3 {
        let mut seal = seal;
        match part {
            0 => seal.salt[7] ^= 1,
            1 => seal.iv[11] ^= 1,
            _ => seal.mac[15] ^= 1,
        }
        let mut copy = data.clone();
        assert_eq!(keys.decrypt_block(DNODES, &seal, &mut copy), Err(CryptError::Tag));
        assert_eq!(copy, data, "nothing is touched after a mismatch");
    }
}

/// The wrong dataset's keys, and damage to every part of a small block.
#[test]
fn flipped_bits_in_data() {
    let keys = BlockKeys::unwrap(&passphrase_key(), &gcm_wrapped()).unwrap();
    let stored = include_bytes!("../fixtures/gcm-file.bin");
    let seal = Seal {
        salt: hex_array("eada93cfaf6d6fd8"),
        iv: hex_array("3a72251c9bfb181af82e8dac"),
        mac: hex_array("c7d986e46a662f0d183b05ab78318cd0"),
    };
    let open = |keys: &BlockKeys, seal: &Seal, mut data: Vec<u8>| {
        keys.decrypt_block(BlockKind::Data, seal, &mut data)
    };
    open(&keys, &seal, stored.to_vec()).unwrap();
    assert_eq!(open(&child_keys(), &seal, stored.to_vec()), Err(CryptError::Tag));
    for at in 0..512 {
        let mut data = stored.to_vec();
        data[at] ^= 0x80;
        assert_eq!(open(&keys, &seal, data), Err(CryptError::Tag), "byte {at}");
    }
    for at in 0..36 {
        let mut bent = seal;
        match at {
            0..8 => bent.salt[at] ^= 1,
            8..20 => bent.iv[at - 8] ^= 1,
            _ => bent.mac[at - 20] ^= 1,
        }
        assert_eq!(open(&keys, &bent, stored.to_vec()), Err(CryptError::Tag), "seal {at}");
    }
    assert_eq!(open(&keys, &seal, stored[..511].to_vec()), Err(CryptError::Tag));
}

/// CCM decrypts before it can verify; its plaintext must not stay.
#[test]
fn a_refused_ccm_block_holds_no_plaintext() {
    let keys = BlockKeys::unwrap(&hex_key(), &ccm_wrapped()).unwrap();
    let mut data = vec![0x5a; 512];
    let mac = keys.encrypt_block(BlockKind::Data, [1; 8], &[2; 12], &mut data).unwrap();
    let seal = Seal { salt: [1; 8], iv: [2; 12], mac };
    data[511] ^= 1;
    assert_eq!(keys.decrypt_block(BlockKind::Data, &seal, &mut data), Err(CryptError::Tag));
    assert!(!data.windows(4).any(|window| window == [0x5a; 4]));
}

/// Every byte up to `nused` counts, except the trailer, which the checksum covers.
#[test]
fn flipped_bits_in_log_blocks() {
    for Log { wrapped, seal, data } in logs() {
        let keys = BlockKeys::unwrap(&ztest_key(), &wrapped).unwrap();
        let used = data.iter().rposition(|byte| *byte != 0).unwrap();
        for at in 0..used {
            let mut changed = data.clone();
            changed[at] ^= 1;
            let kind = BlockKind::IntentLog(ByteOrder::Little);
            let found = keys.decrypt_block(kind, &seal, &mut changed);
            assert_eq!(found.is_ok(), (144..184).contains(&at), "byte {at}: {found:?}");
        }
    }
}

/// The portable MAC covers type and metadnode, the local one flags and accounting.
#[test]
fn flipped_bits_in_an_object_set() {
    let keys = child_keys();
    let data = child_objset();
    let verdict = |at: usize| {
        let mut changed = data.clone();
        changed[at] ^= 1;
        keys.verify_objset(ByteOrder::Little, &changed)
    };
    for (at, want) in [
        (0, Err(CryptError::PortableMac)),
        (16, Err(CryptError::PortableMac)),
        (64 + 48, Err(CryptError::PortableMac)),
        (64 + 127, Err(CryptError::PortableMac)),
        (0x2c0, Err(CryptError::PortableMac)),
        (0x2d0, Err(CryptError::PortableMac)),
        (0x2ef, Err(CryptError::PortableMac)),
        (0x2c9, Err(CryptError::LocalMac)),
        (0x2f0, Err(CryptError::LocalMac)),
        (0x400, Err(CryptError::LocalMac)),
        (0x600 + 16, Err(CryptError::LocalMac)),
        (0x800 + 64 + 120, Err(CryptError::LocalMac)),
        // Space used, the log, and the address of a block are not covered.
        (24, Ok(())),
        (0x200, Ok(())),
        (64, Ok(())),
        (0x400 + 24, Ok(())),
        // Accounting becomes incomplete: there is nothing for the local MAC to authenticate.
        (0x2c8, Ok(())),
    ] {
        assert_eq!(verdict(at), want, "byte {at:#x}");
    }
    let wrong = vol_keys().verify_objset(ByteOrder::Little, &data);
    assert_eq!(wrong, Err(CryptError::PortableMac));
    for len in [0, 511, 1023] {
        let found = keys.verify_objset(ByteOrder::Little, &data[..len]);
        assert!(found.is_err(), "{len} bytes");
    }
}

#[test]
fn structures_beyond_their_block_are_refused() {
    let refused = |edit: &dyn Fn(&mut [u8])| {
        let mut data = vec![0; 1024];
        edit(&mut data);
        dnodes::pieces(1, ByteOrder::Little, &data).unwrap_err()
    };
    let slots = |data: &mut [u8]| data[512 + 12] = 1;
    assert_eq!(refused(&slots), CryptError::DnodeSlots { offset: 512, slots: 2 });
    let pointers = |data: &mut [u8]| data[3] = 4;
    assert_eq!(refused(&pointers), CryptError::DnodePointers { offset: 0, nblkptr: 4 });
    let spill = |data: &mut [u8]| (data[3], data[7]) = (3, 4);
    assert_eq!(refused(&spill), CryptError::DnodePointers { offset: 0, nblkptr: 3 });
    assert_eq!(
        dnodes::pieces(1, ByteOrder::Little, &[0; 513]).unwrap_err(),
        CryptError::BlockLength { len: 513, unit: 512 }
    );

    let log = |used: u64, reclen: u64| {
        let mut data = vec![0; 512];
        data[136..144].copy_from_slice(&used.to_le_bytes());
        data[184] = 9;
        data[192..200].copy_from_slice(&reclen.to_le_bytes());
        intent_log::pieces(ByteOrder::Little, &data).unwrap_err()
    };
    for used in [0, 183, 513, u64::MAX] {
        assert_eq!(log(used, 192), CryptError::LogUsed { used, len: 512 });
    }
    for reclen in [0, 31, 191, 300, u64::MAX] {
        let want = CryptError::LogRecord { offset: 184, reclen, left: 216 };
        assert_eq!(log(400, reclen), want);
    }
    assert!(intent_log_mac(&[0; 183]).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No bytes cause a panic, and encrypted blocks decrypt again.
    #[test]
    fn any_bytes(
        mut data in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..2100),
        is_little: bool,
        cut: bool,
    ) {
        if cut {
            let whole = data.len() / 512 * 512;
            data.truncate(whole);
        }
        let order = if is_little { ByteOrder::Little } else { ByteOrder::Big };
        let keys = child_keys();
        for kind in [
            BlockKind::Data,
            BlockKind::Authenticated,
            BlockKind::Dnodes(order),
            BlockKind::IntentLog(order),
        ] {
            let mut copy = data.clone();
            prop_assert!(keys.decrypt_block(kind, &Seal::default(), &mut copy).is_err());
            let mut copy = data.clone();
            if let Ok(mac) = keys.encrypt_block(kind, [3; 8], &[4; 12], &mut copy) {
                let seal = Seal { salt: [3; 8], iv: [4; 12], mac };
                prop_assert!(keys.decrypt_block(kind, &seal, &mut copy).is_ok());
                if matches!(kind, BlockKind::IntentLog(_)) {
                    copy[168..184].copy_from_slice(&data[168..184]);
                }
                prop_assert_eq!(&copy, &data);
            }
        }
        let _ = keys.verify_objset(order, &data);
        let _ = verify_indirect(order, &data, &[0; 16]);
    }
}
