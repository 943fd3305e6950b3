//! Blocks written by OpenZFS, each kind in both byte orders if the order matters.

use super::super::pointer::Pointer;
use super::super::{dnodes, intent_log};
use super::*;

/// Spec 08 §18, and one file of each other key of the pool.
#[test]
fn data_blocks_of_three_suites() {
    let raw_wrapped = WrappedKeys {
        suite: 6,
        guid: 7869564616592239165,
        version: 1,
        iv: hex_array("5ec0ab4bd4cf1eb911829eeb"),
        mac: hex_array("599e99a62890860086ef39be36c1721c"),
        master_key: hex_array("62d8b25752623d87233eabb8bbb21aa500000000000000000000000000000000"),
        hmac_key: hex_array(
            "6de0dce64fb2f75449f84d11a2d6150cf68f774a2e1d6b6efbe4a36ae281e91a \
             d1bf88f7bcaa4cc95aac472262e0a5deace632c27517e8cc60110a8baf2557c6",
        ),
    };
    let raw_key = WrappingKey::from_bytes(hex_array(RAW_KEY));
    let rows: [(WrappingKey, WrappedKeys, [u64; 6], &[u8]); 3] = [
        (
            passphrase_key(),
            gcm_wrapped(),
            [
                0xd86f6dafcf93daea,
                0x1a18fb9b1c25723a,
                0xa013070200000000,
                0xac8d2ef800000001,
                0x0d2f666ae486d9c7,
                0xd08c3178ab053b18,
            ],
            include_bytes!("../fixtures/gcm-file.bin"),
        ),
        (
            hex_key(),
            ccm_wrapped(),
            [
                0xb4203d02b36dc0a3,
                0x64ca52c4c3c66392,
                0xa013070200000000,
                0x9c844ad400000001,
                0xbb83aa2ff7238d99,
                0xb0852b63d0f842c8,
            ],
            include_bytes!("../fixtures/ccm-file.bin"),
        ),
        (
            raw_key,
            raw_wrapped,
            [
                0xaaf631226fa9cb2e,
                0xd0ccf3d1682917ab,
                0xa013070200000000,
                0x7c66a32500000001,
                0x884dc4f2c1d86770,
                0x2f8ae3ac9947f844,
            ],
            include_bytes!("../fixtures/raw-file.bin"),
        ),
    ];
    for (key, wrapped, [w4, w5, w6, w11, w14, w15], stored) in rows {
        let keys = BlockKeys::unwrap(&key, &wrapped).unwrap();
        let words = [0, 0, 0, 0, w4, w5, w6, 0, 0, 0, 0, w11, 0, 0, w14, w15];
        let seal = Seal::from_words(&words);
        assert_eq!(BlockKind::of(19, ByteOrder::Little), BlockKind::Data);
        let mut data = stored.to_vec();
        keys.decrypt_block(BlockKind::Data, &seal, &mut data).unwrap();
        let used = data.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        assert!(used < 512, "suite {}: {used} bytes", wrapped.suite);
        if wrapped.suite == 8 {
            assert_eq!(data[..used], *b"u");
        }
        let mac = keys.encrypt_block(BlockKind::Data, seal.salt, &seal.iv, &mut data).unwrap();
        assert_eq!((data, mac), (stored.to_vec(), seal.mac));
    }
}

/// The key of dataset raw.
const RAW_KEY: &str = "23212f62696e2f626173680a232052756e7320696e73696465207a766d20284f";

/// Spec 08 §18: positions of the bytes of salt, IV and MAC.
#[test]
fn seal_from_a_pointer() {
    let mut words = [0; 16];
    words[4] = 0xd86f6dafcf93daea;
    words[5] = 0x1a18fb9b1c25723a;
    words[6] = 0xa013070200000000;
    words[11] = 0xac8d2ef800000001;
    words[14] = 0x0d2f666ae486d9c7;
    words[15] = 0xd08c3178ab053b18;
    let want = Seal {
        salt: hex_array("eada93cfaf6d6fd8"),
        iv: hex_array("3a72251c9bfb181af82e8dac"),
        mac: hex_array("c7d986e46a662f0d183b05ab78318cd0"),
    };
    assert_eq!(Seal::from_words(&words), want);
    // These bytes in a pointer to a big-endian block, in either byte order of the pointer.
    for word in [4, 5, 14, 15] {
        words[word] = words[word].swap_bytes();
    }
    words[6] &= !(1 << 63);
    words[11] = u64::from(0xac8d2ef8_u32.swap_bytes()) << 32 | 1;
    assert_eq!(Seal::from_words(&words), want);
}

/// Spec 08 §19.
#[test]
fn authenticated_blocks() {
    let mut property_zap = hex("030000000000008085842b12");
    property_zap.resize(64, 0);
    property_zap.extend(hex("0000000100000000000000000000 73697a65"));
    property_zap.resize(512, 0);
    let seal = Seal { mac: hex_array("fcb7ed45962cf821cf2fda6441ed3be2"), ..Seal::default() };
    vol_keys().decrypt_block(BlockKind::Authenticated, &seal, &mut property_zap).unwrap();

    let keys = BlockKeys::unwrap(&hex_key(), &ccm_wrapped()).unwrap();
    let mut master_node = include_bytes!("../fixtures/ccm-master-node.bin").to_vec();
    let mut words = [0; 16];
    words[6] = 0xa015070200000000;
    (words[14], words[15]) = (0x7e5b59b47df06b5c, 0xecd98112fdd7b367);
    assert_eq!(BlockKind::of(21, ByteOrder::Little), BlockKind::Authenticated);
    let kind = BlockKind::Authenticated;
    keys.decrypt_block(kind, &Seal::from_words(&words), &mut master_node).unwrap();
    for at in 0..512 {
        master_node[at] ^= 4;
        let found = keys.decrypt_block(kind, &Seal::from_words(&words), &mut master_node);
        assert_eq!(found, Err(CryptError::AuthenticatedMac), "byte {at}");
        master_node[at] ^= 4;
    }
}

/// Spec 08 §19: additional data, pieces, ciphertext and plaintext.
#[test]
fn dnode_block_of_the_example() {
    let (mut data, seal) = child_dnodes();
    let stored = data.clone();
    let pieces = dnodes::pieces(1, ByteOrder::Little, &data).unwrap();
    assert_eq!(pieces.aad.len(), 13632);
    let want = "7fb92351e3d1802867c51c61bfd3588376c185259ad06fa8c3b2c902e0c3be6f";
    assert_eq!(sha256(&pieces.aad), hex(want));
    let core = [hex("15110103000000000100"), vec![0; 54]].concat();
    assert_eq!(pieces.aad[64 + 448..][..64], core[..]);
    let record = hex("00000000020015a0 8926f311e17b9201206ea71793a5220c 0000000000000000");
    assert_eq!(pieces.aad[64 + 448 + 64..][..32], record[..]);
    let ranges = [(1216, 320), (1728, 320), (2240, 320), (2752, 192), (3264, 320), (3776, 320)];
    assert_eq!(pieces.sealed(), ranges.map(|(offset, len)| offset..offset + len));
    let gather = |data: &[u8]| {
        ranges.iter().flat_map(|(offset, len)| data[*offset..][..*len].to_vec()).collect::<Vec<_>>()
    };
    let want = "c4fd7ea304cd499b2cd6cd362cfa74c5a57a4e4aa8e69a4658c7da571398517a";
    assert_eq!(sha256(&gather(&data)), hex(want));

    let keys = child_keys();
    keys.decrypt_block(DNODES, &seal, &mut data).unwrap();
    let plain = gather(&data);
    assert_eq!(plain[..12], hex("5a502f0002041800a4810000")[..]);
    let want = "28f2f6980e2802eb45d91687d52cfce5a510aa14362d15eb3606ad60991e0a30";
    assert_eq!(sha256(&plain), hex(want));

    assert_eq!(keys.encrypt_block(DNODES, seal.salt, &seal.iv, &mut data), Ok(seal.mac));
    assert_eq!(data, stored);
}

/// These dnodes as a big-endian machine would have written them.
fn swapped_slot(slot: &mut [u8]) {
    if slot[0] == 0 {
        return;
    }
    let end = 64 + usize::from(slot[3]) * 128;
    let mut reverse = |start: usize, len: usize| slot[start..start + len].reverse();
    for (at, len) in [(8, 2), (10, 2), (16, 8), (24, 8)] {
        reverse(at, len);
    }
    (64..end).step_by(8).for_each(|at| reverse(at, 8));
    if slot[7] & 4 != 0 {
        (384..512).step_by(8).for_each(|at| slot[at..at + 8].reverse());
    }
}

/// A big-endian dnode block has the same pieces, the same records, and cores as stored; so its
/// additional data are as long, and the message decrypts to the encrypted bytes.
#[test]
fn big_endian_dnode_blocks() {
    let keys = child_keys();
    let (mut data, seal) = child_dnodes();
    keys.decrypt_block(DNODES, &seal, &mut data).unwrap();
    let little = dnodes::pieces(1, ByteOrder::Little, &data).unwrap();
    for slot in data.chunks_mut(512) {
        swapped_slot(slot);
    }
    let big = dnodes::pieces(1, ByteOrder::Big, &data).unwrap();
    assert_eq!(big.sealed(), little.sealed());
    assert_eq!(big.aad.len(), little.aad.len());
    // Records do not depend on the order; only the swapped fields of the cores do.
    let differing = big.aad.iter().zip(&little.aad).filter(|(b, l)| b != l).count();
    assert!((1..20 * 8).contains(&differing), "{differing}");

    let plain = data.clone();
    let kind = BlockKind::Dnodes(ByteOrder::Big);
    let mac = keys.encrypt_block(kind, seal.salt, &seal.iv, &mut data).unwrap();
    assert_ne!(mac, seal.mac);
    assert_ne!(data, plain);
    keys.decrypt_block(kind, &Seal { mac, ..seal }, &mut data).unwrap();
    assert_eq!(data, plain);
}

/// A large dnode: the interior slots are bonus, not dnodes.
#[test]
fn bonus_of_a_large_dnode() {
    let mut data = vec![0; 2048];
    data[512] = 19;
    data[512 + 3] = 1;
    data[512 + 4] = 44;
    data[512 + 10] = 8;
    data[512 + 12] = 2;
    data[512 + 192..].fill(19);
    let pieces = dnodes::pieces(1, ByteOrder::Little, &data).unwrap();
    assert_eq!(pieces.sealed(), std::slice::from_ref(&(512 + 192..2048)));
    assert_eq!(pieces.aad.len(), 512 + 64 + 32);
    // Without bytes in use nothing is sealed.
    data[512 + 10] = 0;
    let pieces = dnodes::pieces(1, ByteOrder::Little, &data).unwrap();
    assert_eq!((pieces.sealed().len(), pieces.aad.len()), (0, 512 + 64 + 32 + 1344));
}

/// Spec 08 §19: the only pointer of the top indirect block of gcm/vol.
fn vol_indirect(order: ByteOrder, is_target_little: bool) -> Vec<u8> {
    let mut data = vec![0; 131072];
    let mac = hex("a9c2d75db926e17b7ae581f80f43612f");
    // Property as stored: with checksum and compression, which the record leaves out.
    let property: u64 = 0x240a_070f_0003_00ff | u64::from(is_target_little) << 63;
    let word = |value: u64| order.bytes(value);
    data[..8].copy_from_slice(&word(1));
    data[48..56].copy_from_slice(&word(property));
    for (half, bytes) in mac.as_chunks::<8>().0.iter().enumerate() {
        let value =
            if is_target_little { u64::from_le_bytes(*bytes) } else { u64::from_be_bytes(*bytes) };
        data[112 + 8 * half..][..8].copy_from_slice(&word(value));
    }
    data
}

#[test]
fn indirect_blocks_in_every_order() {
    let mac = hex_array("463bfa1b34aefa7698c60403e82e9c9f");
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for is_target_little in [true, false] {
            let data = vol_indirect(order, is_target_little);
            let bytes = data.first_chunk().unwrap();
            let record = Pointer::decode(order, bytes).record(1);
            let want = hex("ff00000000000a24 a9c2d75db926e17b7ae581f80f43612f 0000000000000000");
            assert_eq!(record.as_bytes(), want, "{order:?} {is_target_little}");
            verify_indirect(order, &data, &mac).unwrap();
        }
    }
    let data = vol_indirect(ByteOrder::Little, true);
    assert_eq!(
        verify_indirect(ByteOrder::Big, &data, &mac),
        Err(CryptError::IndirectMac),
        "the order matters"
    );
    let old = indirect_mac(0, ByteOrder::Little, &data).unwrap();
    assert_ne!(old, mac);
    verify_indirect(ByteOrder::Little, &data, &old).unwrap();
    assert_eq!(
        verify_indirect(ByteOrder::Little, &data[1..], &mac),
        Err(CryptError::BlockLength { len: 131071, unit: 128 })
    );
}

/// Spec 08 §8: the authenticated bits of the property word.
#[test]
fn masks_of_the_property_word() {
    let mut words = [0; 16];
    words[0] = 1;
    let record = |words: [u64; 16], version| {
        let record = Pointer::from_words(words).record(version);
        (record.as_bytes().len(), u64::from_le_bytes(*record.as_bytes().first_chunk().unwrap()))
    };
    words[6] = 0xffff_ff7f_ffff_ffff;
    assert_eq!(record(words, 1), (32, 0x3fff_0000_0000_ffff), "level 31, all bits");
    words[6] = 0xe0ff_ff7f_ffff_ffff;
    assert_eq!(record(words, 1), (32, 0xa0ff_007f_ffff_ffff), "level 0");
    assert_eq!(record(words, 0), (24, 0xa0ff_007f_0000_ffff), "version 0");
    words[0] = 0;
    assert_eq!(record(words, 1), (32, 0), "hole");
    assert_eq!(record(words, 0), (24, 0xa0ff_007f_0000_ffff), "version 0 keeps holes");
    words[6] = 1 << 39;
    assert_ne!(record(words, 1).1, 0, "embedded data is no hole");
    // An object set has no MAC in its pointer, but a checksum in the same words.
    (words[6], words[14]) = (0xa00b_0702_0007_0007, 0x1234);
    assert_eq!(Pointer::from_words(words).record(1).as_bytes()[8..], [0; 24]);
}

#[test]
fn object_set_of_the_example() {
    let keys = child_keys();
    let data = child_objset();
    keys.verify_objset(ByteOrder::Little, &data).unwrap();
    let local = "e05308c2831ca5e225120303cd5eef733a0c895c7b03f363e8b10c3b1791736f";
    assert_eq!(keys.local_mac(ByteOrder::Little, &data).unwrap(), hex_array(local));
}

/// Both MACs are the same bytes on every machine.
#[test]
fn big_endian_object_set() {
    let mut data = child_objset();
    for offset in [0, 0x400, 0x600, 0x800] {
        swapped_slot(&mut data[offset..offset + 512]);
    }
    for word in [0x2c0, 0x2c8] {
        data[word..word + 8].reverse();
    }
    let keys = child_keys();
    keys.verify_objset(ByteOrder::Big, &data).unwrap();
    assert!(keys.verify_objset(ByteOrder::Little, &data).is_err());
}

/// Spec 08 §19: the volume has no accounting, so its local MAC is zero.
#[test]
fn object_set_of_a_volume() {
    let mut data = vec![0; 4096];
    data[..10].copy_from_slice(&hex("0a110603000000002000"));
    let pointer = vol_indirect(ByteOrder::Little, true);
    data[64..192].copy_from_slice(&pointer[..128]);
    // One level higher than the example's indirect block, whose MAC is that of the block itself.
    data[64 + 48 + 7] += 1;
    data[64 + 112..][..16].copy_from_slice(&hex("463bfa1b34aefa7698c60403e82e9c9f"));
    data[0x2c0] = 3;
    let portable = "432673233037e360a38612f646b981f93629c15f18d0e908472394f5a1e510df";
    data[0x2d0..0x2f0].copy_from_slice(&hex(portable));
    let keys = vol_keys();
    let order = ByteOrder::Little;
    assert_eq!(keys.portable_mac(order, &data).unwrap(), hex_array(portable));
    assert_eq!(keys.local_mac(order, &data).unwrap(), [0; 32]);
    keys.verify_objset(order, &data).unwrap();
    // An outdated local MAC is tolerated: there is nothing that it could authenticate.
    data[0x2f0] = 1;
    keys.verify_objset(order, &data).unwrap();
    // The first version of object sets ends before the accounting.
    keys.verify_objset(order, &data[..1024]).unwrap();
}

#[test]
fn log_blocks_of_three_suites() {
    let mut types = std::collections::BTreeSet::new();
    for Log { wrapped, seal, mut data } in logs() {
        let suite = wrapped.suite;
        let stored = data.clone();
        let keys = BlockKeys::unwrap(&ztest_key(), &wrapped).unwrap();
        let kind = BlockKind::of(9, ByteOrder::Little);
        keys.decrypt_block(kind, &seal, &mut data).unwrap();
        let word = |at: usize| u64::from_le_bytes(*data[at..].first_chunk().unwrap());
        let mut at = 184;
        while at < word(136) as usize {
            let record_type = word(at) & !(1 << 63);
            types.insert(record_type);
            // Object numbers of ztest are small; ciphertext would not be.
            assert!(word(at + 32) < 1 << 32, "suite {suite}: record at {at}: {:#x}", word(at + 32));
            at += word(at + 8) as usize;
        }
        assert_eq!(keys.encrypt_block(kind, seal.salt, &seal.iv, &mut data), Ok(seal.mac));
        assert_eq!(data, stored);
    }
    assert_eq!(types.into_iter().collect::<Vec<_>>(), [1, 9]);
}

/// The plaintext parts by type of record; the lengths are in the block's byte order.
#[test]
fn pieces_of_log_records() {
    let record = |order: ByteOrder, record_type: u64, reclen: usize| {
        let mut record = vec![0; reclen];
        record[..8].copy_from_slice(&order.bytes(record_type));
        record[8..16].copy_from_slice(&order.bytes(reclen as u64));
        record
    };
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let records = [
            record(order, 9, 192),
            record(order, 9, 200),
            record(order, 24, 328),
            record(order, 1, 120),
            record(order, 9 | 1 << 63, 80),
            record(order, 3, 32),
        ]
        .concat();
        let mut data = [vec![0; 184], records].concat();
        let used = data.len();
        data[136..144].copy_from_slice(&order.bytes(used as u64));
        data.resize(4096, 0);
        let pieces = intent_log::pieces(order, &data).unwrap();
        let want = [
            // A write without data, at 184, and one with 8 bytes, at 376.
            184 + 32..184 + 64,
            376 + 32..376 + 64,
            376 + 192..376 + 200,
            // A clone, a create, a write that folds case, and a record of its header only.
            576 + 32..576 + 64,
            904 + 32..904 + 120,
            1024 + 32..1024 + 80,
        ];
        assert_eq!(pieces.sealed(), want);
        assert_eq!(pieces.aad.len(), 144 + 6 * 32 + 128 + 128 + 264);
    }
}
