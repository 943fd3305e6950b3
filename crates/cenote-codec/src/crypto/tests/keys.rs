//! From user keys to block keys: spec 08 §3-§5 and the worked example of §18.

use super::super::derived::Derived;
use super::*;

fn load(format: KeyFormat, material: &[u8]) -> Result<WrappingKey, KeyError> {
    WrappingKey::from_material(format, material, Pbkdf2::default(), Purpose::Load)
}

#[test]
fn passphrase_gives_the_wrapping_key_of_the_example() {
    let want = "7b2d01af73e5238f474c6ffd800f2f47003d99da267445c25cb7816b5fdf2343";
    assert_eq!(passphrase_key().bytes().to_vec(), hex(want));
}

/// One newline ends the passphrase; a carriage return belongs to it; a NUL ends it too.
#[test]
fn only_the_first_line_of_a_passphrase_counts() {
    let derive = |material: &[u8]| {
        let pbkdf2 = Pbkdf2 { salt: 1, iterations: 2 };
        let format = KeyFormat::Passphrase;
        let key = WrappingKey::from_material(format, material, pbkdf2, Purpose::Load).unwrap();
        *key.bytes()
    };
    let want = derive(b"secret");
    for same in [&b"secret\n"[..], b"secret\nmore", b"secret\n\n", b"secret\0more\n"] {
        assert_eq!(derive(same), want, "{same:?}");
    }
    for other in [&b"secret\r\n"[..], b"secret \n", b"\n", b"\nsecret"] {
        assert_ne!(derive(other), want, "{other:?}");
    }
}

#[test]
fn passphrases_are_limited_when_set_and_not_when_loaded() {
    let rows = [(7, true), (8, false), (512, false), (513, true)];
    for (len, is_refused) in rows {
        let material = vec![b'x'; len];
        let attempt = |purpose, iterations| {
            let pbkdf2 = Pbkdf2 { salt: 1, iterations };
            WrappingKey::from_material(KeyFormat::Passphrase, &material, pbkdf2, purpose).err()
        };
        assert_eq!(attempt(Purpose::Load, 1), None, "{len}");
        let want = is_refused.then_some(KeyError::PassphraseLength { len });
        assert_eq!(attempt(Purpose::Set, 100_000), want);
    }
    for (purpose, iterations, least) in
        [(Purpose::Load, 0, 1), (Purpose::Load, 1 << 32, 1), (Purpose::Set, 99_999, 100_000)]
    {
        let pbkdf2 = Pbkdf2 { salt: 1, iterations };
        let format = KeyFormat::Passphrase;
        let found = WrappingKey::from_material(format, b"long enough", pbkdf2, purpose).err();
        assert_eq!(found, Some(KeyError::Iterations { iterations, least }));
    }
}

#[test]
fn hex_keys() {
    let digits = "00112233445566778899aabbccddeeFF".repeat(2);
    let want = hex_key();
    for material in [digits.clone(), digits.to_uppercase(), format!("{digits}\n")] {
        let key = load(KeyFormat::Hex, material.as_bytes()).unwrap();
        assert_eq!(key.bytes(), want.bytes(), "{material:?}");
    }
    let refused = |text: &str| load(KeyFormat::Hex, text.as_bytes()).unwrap_err();
    assert_eq!(refused(&digits[1..]), KeyError::HexLength { len: 63 });
    assert_eq!(refused(&format!("{digits}\r\n")), KeyError::HexLength { len: 65 });
    assert_eq!(refused(&format!("x{}", &digits[1..])), KeyError::HexDigit { position: 0 });
    assert_eq!(refused(&format!("{}g", &digits[1..])), KeyError::HexDigit { position: 63 });
    assert_eq!(refused("\n"), KeyError::HexLength { len: 0 });
    assert_eq!(refused(""), KeyError::Empty);
}

/// A raw key may contain any bytes, so nothing is cut off.
#[test]
fn raw_keys_are_exactly_32_bytes() {
    let bytes: [u8; 32] = std::array::from_fn(|i| i as u8 + 1);
    assert_eq!(load(KeyFormat::Raw, &bytes).unwrap().bytes(), &bytes);
    assert_eq!(load(KeyFormat::Raw, &[b'\n'; 32]).unwrap().bytes(), &[b'\n'; 32]);
    for len in [1, 31, 33] {
        let found = load(KeyFormat::Raw, &vec![b'\n'; len]).unwrap_err();
        assert_eq!(found, KeyError::RawLength { len });
    }
}

#[test]
fn only_passphrases_have_pbkdf2_parameters() {
    for (salt, iterations) in [(1, 0), (0, 1), (1, 1)] {
        for format in [KeyFormat::Raw, KeyFormat::Hex] {
            let pbkdf2 = Pbkdf2 { salt, iterations };
            let found = WrappingKey::from_material(format, &[0; 32], pbkdf2, Purpose::Load);
            assert_eq!(found.unwrap_err(), KeyError::UnexpectedPbkdf2 { salt, iterations });
        }
    }
}

#[test]
fn numbers_and_names() {
    for value in 0..20 {
        let suite = Suite::from_value(value);
        assert_eq!(suite.is_some(), (3..=8).contains(&value));
        assert!(suite.is_none_or(|suite| suite.value() == value));
        let format = KeyFormat::from_value(value);
        assert_eq!(format.is_ok(), (1..=3).contains(&value));
        assert!(format.is_err() || format.is_ok_and(|format| format.value() == value));
    }
}

#[test]
fn unwrapping_the_examples() {
    let gcm = gcm_wrapped().unwrap(&passphrase_key()).unwrap();
    assert_eq!(
        gcm.master_key.to_vec(),
        hex("3d10c59f7f6306574566a71a842b42ad6f2273d572f5a56ce49c4e1439ce49f2")
    );
    let hmac = "0711d7b70c676be4fcb953d0ae6128e6a7e59610ee71e1520fffe76f44b26d5d \
                6d35c42538bf15bdf4bfcd4519fe1934162c86af3bfe5842544118ff1d49c3a9";
    assert_eq!(gcm.hmac_key.to_vec(), hex(hmac));

    let ccm = ccm_wrapped().unwrap(&hex_key()).unwrap();
    assert_eq!(ccm.master_key.to_vec(), hex("43e88a8bf1a837a8114454c56e72613c570df9d5c52e3375"));
    let hmac = "b20dc5411496e9b23c7192e8ad3f1930981d3fa247bfbe1506c589aa402b762e \
                6488e3b6ad69bd0d91cd9071538fb5058660fb51af052d985b98c5223562d2de";
    assert_eq!(ccm.hmac_key.to_vec(), hex(hmac));
}

/// Any change of the bytes covered by the tag gives "wrong key".
#[test]
fn a_wrong_key_or_a_changed_key_object_does_not_unwrap() {
    let key = passphrase_key();
    let good = gcm_wrapped();
    let refuse = |wrapped: WrappedKeys, key: &WrappingKey| {
        assert_eq!(BlockKeys::unwrap(key, &wrapped).unwrap_err(), KeyError::WrongKey);
    };
    refuse(good, &hex_key());
    refuse(good, &WrappingKey::from_bytes([0; 32]));
    refuse(WrappedKeys { guid: good.guid ^ 1, ..good }, &key);
    refuse(WrappedKeys { version: 0, ..good }, &key);
    for suite in [3, 4, 5, 6, 7] {
        refuse(WrappedKeys { suite, ..good }, &key);
    }
    let (mut iv, mut mac) = (good.iv, good.mac);
    iv[11] ^= 0x80;
    mac[0] ^= 1;
    refuse(WrappedKeys { iv, ..good }, &key);
    refuse(WrappedKeys { mac, ..good }, &key);
    for at in 0..32 {
        let mut master_key = good.master_key;
        master_key[at] ^= 1;
        refuse(WrappedKeys { master_key, ..good }, &key);
    }
    for at in 0..64 {
        let mut hmac_key = good.hmac_key;
        hmac_key[at] ^= 1;
        refuse(WrappedKeys { hmac_key, ..good }, &key);
    }
    for suite in [0, 1, 2, 9, u64::MAX] {
        let found = BlockKeys::unwrap(&key, &WrappedKeys { suite, ..good }).unwrap_err();
        assert_eq!(found, KeyError::UnknownSuite(suite));
    }
    let found = BlockKeys::unwrap(&key, &WrappedKeys { version: 2, ..good }).unwrap_err();
    assert_eq!(found, KeyError::UnknownVersion(2));
}

/// Wrapping with the stored IV gives the stored bytes; with another key, keys for that one.
#[test]
fn wrapping_is_the_inverse() {
    for (wrapped, key) in [(gcm_wrapped(), passphrase_key()), (ccm_wrapped(), hex_key())] {
        let keys = BlockKeys::unwrap(&key, &wrapped).unwrap();
        assert_eq!(keys.wrap(&key, wrapped.iv).unwrap(), wrapped);
        let again = keys.wrap(&ztest_key(), [7; 12]).unwrap();
        assert!(BlockKeys::unwrap(&ztest_key(), &again).is_ok());
        assert_eq!(BlockKeys::unwrap(&key, &again).unwrap_err(), KeyError::WrongKey);
    }
    let version_0 = gcm_wrapped();
    let plain = version_0.unwrap(&passphrase_key()).unwrap();
    let fields = (Suite::Aes128Gcm, 5, 0);
    let plain = super::super::wrapping::PlainKeys {
        master_key: zeroize::Zeroizing::new(plain.master_key[..16].to_vec()),
        hmac_key: plain.hmac_key.clone(),
    };
    let wrapped = WrappedKeys::wrap(&plain, fields, &hex_key(), [1; 12]).unwrap();
    assert_eq!(BlockKeys::unwrap(&hex_key(), &wrapped).unwrap().version(), 0);
    assert_eq!(wrapped.master_key[16..], [0; 16]);
}

#[test]
fn block_keys_of_the_examples() {
    for (suite, master, salt, want) in [
        (
            Suite::Aes256Gcm,
            "3d10c59f7f6306574566a71a842b42ad6f2273d572f5a56ce49c4e1439ce49f2",
            "eada93cfaf6d6fd8",
            "86fcd4e085921c5f59d585686dab24c32312ae4c8aa037eb406e654dbdf3fb85",
        ),
        (
            Suite::Aes256Gcm,
            "51c9c7deddf3d18831ae5db4de7bc4a41a30b9b71a362856d8db1331ab99a4d5",
            "cb75eb9cec71e6fd",
            "f41d7ea66cbfda26f3242c8291d8a6da3231b23ebd5a38c1f0b1173eb0982e6b",
        ),
    ] {
        let derived = Derived::new(suite, &hex(master));
        assert_eq!(derived.key(hex_array(salt)).to_vec(), hex(want));
    }
}

/// More salts than are cached: each still gets its own key.
#[test]
fn forgotten_block_keys_are_derived_again() {
    let keys = child_keys();
    let seal = |salt: u64| {
        let mut data = vec![0x55; 64];
        let mac = keys.encrypt_block(BlockKind::Data, salt.to_le_bytes(), &[0; 12], &mut data);
        (data, mac.unwrap())
    };
    let first: Vec<_> = (0..200).map(seal).collect();
    for salt in (0..200).rev() {
        let (mut data, mac) = first[salt as usize].clone();
        assert_eq!(seal(salt), first[salt as usize], "salt {salt}");
        let seal = Seal { salt: salt.to_le_bytes(), iv: [0; 12], mac };
        keys.decrypt_block(BlockKind::Data, &seal, &mut data).unwrap();
        assert_eq!(data, [0x55; 64]);
    }
}

#[test]
fn secrets_do_not_show() {
    let keys = BlockKeys::unwrap(&passphrase_key(), &gcm_wrapped()).unwrap();
    let shown = format!("{keys:?} {:?}", passphrase_key());
    assert_eq!(
        shown,
        "BlockKeys { suite: Aes256Gcm, guid: 0x56626956f878c5e8, .. } WrappingKey(..)"
    );
}
