//! Published test vectors of the algorithms.

use super::*;
use hkdf::Hkdf;
use pbkdf2::pbkdf2_hmac;
use sha1::Sha1;
use sha2::Sha512;

/// Test cases 4, 10 and 16 of "The Galois/Counter Mode of Operation" (McGrew, Viega).
#[test]
fn gcm() {
    let key = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
    let plain = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72 \
                 1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    let aad = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
    let iv = hex_array("cafebabefacedbaddecaf888");
    for (suite, cipher, mac) in [
        (
            Suite::Aes128Gcm,
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e \
             21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
            "5bc94fbc3221a5db94fae95ae7121a47",
        ),
        (
            Suite::Aes192Gcm,
            "3980ca0b3c00e841eb06fac4872a2757859e1ceaa6efd984628593b40ca1e19c \
             7d773d00c144c525ac619d18c84a3f4718e2448b2fe324d9ccda2710",
            "2519498e80f1478f37ba55bd6d27618c",
        ),
        (
            Suite::Aes256Gcm,
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa \
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
    ] {
        let key = &hex(key)[..suite.key_bytes()];
        let mut data = hex(plain);
        let found = encrypt(suite, key, &iv, &aad, &mut data).unwrap();
        assert_eq!((data.clone(), found.to_vec()), (hex(cipher), hex(mac)), "{}", suite.name());
        decrypt(suite, key, &iv, &aad, &mut data, &found).unwrap();
        assert_eq!(data, hex(plain));
    }
}

/// The key, nonce and texts of example 3 of NIST SP 800-38C, with tags of 16 bytes and longer
/// keys as OpenSSL computes them.
#[test]
fn ccm() {
    let iv = hex_array("101112131415161718191a1b");
    let aad: Vec<u8> = (0..20).collect();
    let plain: Vec<u8> = (0x20..0x38).collect();
    for (suite, cipher, mac) in [
        (
            Suite::Aes128Ccm,
            "e3b201a9f5b71a7a9b1ceaeccd97e70b6176aad9a4428aa5",
            "c87ae488918de93f17dd3e4934347f44",
        ),
        (
            Suite::Aes192Ccm,
            "8081316fd89624d62ce7637fb94995b6631c50d61586de01",
            "0ec10572fecd75e23ac36b5dd335eaca",
        ),
        (
            Suite::Aes256Ccm,
            "04f883aeb3bd0730eaf50bb6de4fa2212034e4e41b0e75e5",
            "9bba3f3a107f3239bd63902923f80371",
        ),
    ] {
        let key: Vec<u8> = (0x40..).take(suite.key_bytes()).collect();
        let mut data = plain.clone();
        let found = encrypt(suite, &key, &iv, &aad, &mut data).unwrap();
        assert_eq!((data.clone(), found.to_vec()), (hex(cipher), hex(mac)), "{}", suite.name());
        decrypt(suite, &key, &iv, &aad, &mut data, &found).unwrap();
        assert_eq!(data, plain);
    }
}

/// Additional data of 65280 bytes and more has a longer length field in CCM. From OpenSSL.
#[test]
fn ccm_with_long_additional_data() {
    let key: Vec<u8> = (0x40..0x50).collect();
    let iv = hex_array("101112131415161718191a1b");
    let aad: Vec<u8> = (0..70000).map(|i| (i % 251) as u8).collect();
    let mut data: Vec<u8> = (0x20..0x38).collect();
    let mac = encrypt(Suite::Aes128Ccm, &key, &iv, &aad, &mut data).unwrap();
    assert_eq!(mac, hex_array("0fe5b7275f345da7190bac599a5a8412"));
}

/// A dnode block without anything to encrypt is an empty message. From OpenSSL.
#[test]
fn empty_messages() {
    let key: Vec<u8> = (0x40..0x50).collect();
    let iv = hex_array("101112131415161718191a1b");
    for (suite, mac) in [
        (Suite::Aes128Ccm, "d0c506d30b6f028a7a5d9b378484867e"),
        (Suite::Aes128Gcm, "6f824477ae7a7dda0f931bbfeec09a4d"),
    ] {
        assert_eq!(encrypt(suite, &key, &iv, b"x", &mut []).unwrap(), hex_array(mac));
        decrypt(suite, &key, &iv, b"x", &mut [], &hex_array(mac)).unwrap();
    }
}

/// RFC 6070, cases 1, 2, 3 and 5.
#[test]
fn pbkdf2_hmac_sha1() {
    for (password, salt, rounds, want) in [
        ("password", "salt", 1, "0c60c80f961f0e71f3a9b524af6012062fe037a6"),
        ("password", "salt", 2, "ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957"),
        ("password", "salt", 4096, "4b007901b765489abead49d926f721d065a429c1"),
        (
            "passwordPASSWORDpassword",
            "saltSALTsaltSALTsaltSALTsaltSALTsalt",
            4096,
            "3d2eec4fe41c849b80c8d83662c0e44a8b291a964cf2f07038",
        ),
    ] {
        let want = hex(want);
        let mut found = vec![0; want.len()];
        pbkdf2_hmac::<Sha1>(password.as_bytes(), salt.as_bytes(), rounds, &mut found);
        assert_eq!(found, want, "{rounds} rounds of {password}");
    }
}

/// The inputs of RFC 5869 case 1 and 3 with SHA-512; case 3 has no salt, as block keys have none.
#[test]
fn hkdf_sha512() {
    let material = [0x0b; 22];
    let mut found = [0; 42];
    Hkdf::<Sha512>::new(Some(&hex("000102030405060708090a0b0c")), &material)
        .expand(&hex("f0f1f2f3f4f5f6f7f8f9"), &mut found)
        .unwrap();
    let with_salt = "832390086cda71fb47625bb5ceb168e4c8e26a1a16ed34d9fc7fe92c14815793 \
                     38da362cb8d9f925d7cb";
    assert_eq!(found.to_vec(), hex(with_salt));
    Hkdf::<Sha512>::new(None, &material).expand(b"", &mut found).unwrap();
    let without = "f5fa02b18298a72a8c23898a8703472c6eb179dc204c03425c970e3b164bf90f \
                   ff22d04836d0e2343bac";
    assert_eq!(found.to_vec(), hex(without));
}

#[test]
fn keys_of_another_length_are_refused() {
    for suite in Suite::ALL {
        for len in [0, 15, 16, 24, 32, 33] {
            let want = suite.key_bytes();
            let wrong = CryptError::CipherKey { len, want };
            let found = Cipher::new(suite, &vec![0; len]).err();
            assert_eq!(found, (len != want).then_some(wrong), "{}", suite.name());
        }
    }
}

/// Three bytes for the length leave no room for 16 MiB.
#[test]
fn ccm_refuses_messages_of_16_mib() {
    let mut data = vec![0; 1 << 24];
    let len = data.len();
    let found = encrypt(Suite::Aes128Ccm, &[0; 16], &[0; 12], &[], &mut data);
    assert_eq!(found, Err(CryptError::TooLong { len }));
}
