//! Tests against blocks that OpenZFS wrote (`fixtures/`), and published vectors of the ciphers.

mod blocks;
mod damage;
mod keys;
mod vectors;

use super::*;

/// Bytes from hexadecimal text; spaces separate.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter(|c| *c != ' ').map(|c| c.to_digit(16).unwrap() as u8).collect();
    assert!(digits.len().is_multiple_of(2), "odd number of digits");
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn hex_array<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().unwrap()
}

fn sha256(data: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    sha2::Sha256::digest(data).to_vec()
}

/// A fixture with its zeros put back.
fn padded(stored: &[u8], len: usize) -> Vec<u8> {
    let mut data = stored.to_vec();
    assert!(data.len() <= len);
    data.resize(len, 0);
    data
}

/// The key that `ztest` uses for every encrypted dataset.
fn ztest_key() -> WrappingKey {
    WrappingKey::from_bytes(*b"abcdefghijklmnopqrstuvwxyz012345")
}

fn passphrase_key() -> WrappingKey {
    let pbkdf2 = Pbkdf2 { salt: 0xd7b9_811f_4774_1976, iterations: 100_000 };
    let material = b"correct horse battery\n";
    WrappingKey::from_material(KeyFormat::Passphrase, material, pbkdf2, Purpose::Set).unwrap()
}

fn hex_key() -> WrappingKey {
    let digits = "00112233445566778899aabbccddeeff".repeat(2);
    let none = Pbkdf2::default();
    WrappingKey::from_material(KeyFormat::Hex, digits.as_bytes(), none, Purpose::Load).unwrap()
}

/// Spec 08 §18: the key object of dataset gcm.
fn gcm_wrapped() -> WrappedKeys {
    WrappedKeys {
        suite: 8,
        guid: 0x5662_6956_f878_c5e8,
        version: 1,
        iv: hex_array("89667b252ebf97611c25a9fb"),
        mac: hex_array("35d61d978f4dc9c21d38e7ec70c53f87"),
        master_key: hex_array("a0676432756ad04292c72a702cbf25983954233f89398cbf3b86b0fabad51c9d"),
        hmac_key: hex_array(
            "e83f53a58b7fc23999b034251f38d98b2c02b85d0059fc852061a139a401803c \
             49cecade760019caabe619f990fad31edee055cda018c4d4c8073f3fcb98c0bc",
        ),
    }
}

/// Spec 08 §18: the key object of dataset ccm.
fn ccm_wrapped() -> WrappedKeys {
    WrappedKeys {
        suite: 4,
        guid: 0x3793_c89b_e478_28e3,
        version: 1,
        iv: hex_array("242e8a9ffa953b76de022fa4"),
        mac: hex_array("e4e57f26d73d1429840f4a6645d1bf12"),
        master_key: hex_array("cac30a8f5b449b59a92ce616b829d5de475721cf9e104d1c0000000000000000"),
        hmac_key: hex_array(
            "8e3ac03203d97d780d1bc57d54a151f0b1634329f64528789bf1e8143f81fda5 \
             d732335a3cb2511f112a43c733ff3962bb042c1f3b953b761c250e5ceb90d721",
        ),
    }
}

/// Spec 08 §19: the keys of dataset gcm/child.
fn child_keys() -> BlockKeys {
    let master = hex("51c9c7deddf3d18831ae5db4de7bc4a41a30b9b71a362856d8db1331ab99a4d5");
    let hmac = hex_array(
        "301aa7315a9749647bb656a5a58ca389e86ce2e32a313dfe28393eca2cb16838 \
         e915010ccc3c54c688a9f2f0284b724cea2b50d7711ae90386bc36245f7aee9f",
    );
    BlockKeys::new(Suite::Aes256Gcm, 0, &master, &hmac).unwrap()
}

/// Spec 08 §19: the HMAC key of dataset gcm/vol, under any master key.
fn vol_keys() -> BlockKeys {
    let hmac = hex_array(
        "d4890e72f3eabae3f0d25b81c4043c2a2115d395be3c8bffc9b1c2d893d3be3e \
         303fa5591277012d5698e8a13d2763c49105f655e62417c518931e3fb99edeb0",
    );
    BlockKeys::new(Suite::Aes256Gcm, 0, &[0; 32], &hmac).unwrap()
}

/// The dnode block of spec 08 §19 and its parameters.
fn child_dnodes() -> (Vec<u8>, Seal) {
    let data = padded(include_bytes!("../fixtures/gcm-child-dnodes.bin"), 16384);
    let seal = Seal {
        salt: hex_array("cb75eb9cec71e6fd"),
        iv: hex_array("e0045b91dbe616b99ceb9075"),
        mac: hex_array("83a362b0c8e120c05fd6460e2f89e4da"),
    };
    (data, seal)
}

fn child_objset() -> Vec<u8> {
    padded(include_bytes!("../fixtures/gcm-child-objset.bin"), 4096)
}

const DNODES: BlockKind = BlockKind::Dnodes(ByteOrder::Little);

/// One log block: its key object, the pointer to it, the block, and the lengths of its records.
struct Log {
    wrapped: WrappedKeys,
    seal: Seal,
    data: Vec<u8>,
}

fn logs() -> Vec<Log> {
    let rows: [(WrappedKeys, [u64; 3], &[u8]); 3] = [
        (
            WrappedKeys {
                suite: 4,
                guid: 9088919452784927047,
                version: 1,
                iv: hex_array("37c3fa1d38fe2cbcdc5c06cd"),
                mac: hex_array("fa8a979c2e70b44a11586c8113407dc5"),
                master_key: hex_array(
                    "913a7cb999099609b6870d5121fb7f02891352f22fa3c8b50000000000000000",
                ),
                hmac_key: hex_array(
                    "34138e14b7fac700f30e54cab73973e2c8276f54928bd517d3aaaab21406ca45 \
                     77ad52f217f0836399c2ab49e1794638e1550bc980ca093d4cb3f747de3669bf",
                ),
            },
            [0x27fb706d4bf0180a, 0x4fcf14d8fccafa86, 0xa782a96200000000],
            include_bytes!("../fixtures/log-ccm192.bin"),
        ),
        (
            WrappedKeys {
                suite: 5,
                guid: -4786019118014867_i64 as u64,
                version: 1,
                iv: hex_array("adc1d1b64c2aa9275736f563"),
                mac: hex_array("f90a6b397a81b06832ac1081798ca940"),
                master_key: hex_array(
                    "1cbecda3b40b31f1a56cb56ae6416ae539e2f40e1a5f73eeb8d083fdfcd28c12",
                ),
                hmac_key: hex_array(
                    "71b7a28ae72106af5e20ea86f8d1907979d629ee358935b5d070573d641e3a39 \
                     ad675f354097822fdc80da13538b2e472d7799c4b7eb1134499a522104d0a6c7",
                ),
            },
            [0xdb4a0da601bd2231, 0xdab47e04c8782ea3, 0x9aca846500000000],
            include_bytes!("../fixtures/log-ccm256.bin"),
        ),
        (
            WrappedKeys {
                suite: 8,
                guid: 222339216146796354,
                version: 1,
                iv: hex_array("72bc34513e42023328f31312"),
                mac: hex_array("1124827cae3a8fb13404d3d7096e354d"),
                master_key: hex_array(
                    "8081a6fddfeb6c013ad4aa32b382c213cc932f12a955288386c2575808498288",
                ),
                hmac_key: hex_array(
                    "70590ad56861fac1cd858955e9345646e83f298006ff9a4bd724a2f6d7125860 \
                     e682de3dad3398637220b1a2bfacd416aaf5b5fa32415408ec85503c411eb825",
                ),
            },
            [0x772b5bba19a1c437, 0x1d544490c4d6c4de, 0xe50e3cb700000000],
            include_bytes!("../fixtures/log-gcm256.bin"),
        ),
    ];
    rows.map(|(wrapped, [salt, iv, fill], stored)| {
        let data = padded(stored, 4096);
        let mut words = [0; 16];
        (words[4], words[5], words[11]) = (salt, iv, fill);
        words[6] = 0xa009090200070007;
        let mac = intent_log_mac(&data).unwrap();
        Log { wrapped, seal: Seal { mac, ..Seal::from_words(&words) }, data }
    })
    .into()
}
