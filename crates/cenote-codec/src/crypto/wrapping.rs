//! The wrapped keys of a dataset and the AEAD around them (spec 08 §2, §4).
//!
//!     master key (16, 24 or 32) || HMAC key (64)  --AES-256, mode of the suite-->  two fields
//!     authenticated too: guid || suite || version, little-endian (version 0: only the guid)
//!
//! The tag is the only test of a key: a wrong one cannot be detected otherwise.

use zeroize::Zeroizing;

use super::{
    Cipher, CryptError, HMAC_KEY_BYTES, IV_BYTES, KEY_VERSION_CURRENT, KeyError, MAC_BYTES,
    MASTER_KEY_MAX_BYTES, Suite, WrappingKey,
};

/// The contents of a DSL crypto key object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrappedKeys {
    /// `DSL_CRYPTO_SUITE`.
    pub suite: u64,
    /// `DSL_CRYPTO_GUID`: id of the master key.
    pub guid: u64,
    /// `DSL_CRYPTO_VERSION`; 0 when it is absent.
    pub version: u64,
    /// `DSL_CRYPTO_IV`.
    pub iv: [u8; IV_BYTES],
    /// `DSL_CRYPTO_MAC`.
    pub mac: [u8; MAC_BYTES],
    /// `DSL_CRYPTO_MASTER_KEY_1`; zero beyond the suite's length.
    pub master_key: [u8; MASTER_KEY_MAX_BYTES],
    /// `DSL_CRYPTO_HMAC_KEY_1`.
    pub hmac_key: [u8; HMAC_KEY_BYTES],
}

/// The unwrapped keys.
pub(super) struct PlainKeys {
    pub(super) master_key: Zeroizing<Vec<u8>>,
    pub(super) hmac_key: Zeroizing<[u8; HMAC_KEY_BYTES]>,
}

impl WrappedKeys {
    /// The suite, or an error if it is unknown.
    pub fn suite(&self) -> Result<Suite, KeyError> {
        Suite::from_value(self.suite).ok_or(KeyError::UnknownSuite(self.suite))
    }

    pub(super) fn unwrap(&self, key: &WrappingKey) -> Result<PlainKeys, KeyError> {
        let suite = self.suite()?;
        let aad = aad(self.guid, suite, self.version)?;
        let (stored, _) = self.master_key.split_at(suite.key_bytes());
        let mut message = Zeroizing::new([stored, &self.hmac_key].concat());
        wrapping_cipher(suite, key)?
            .decrypt(&self.iv, &aad, &mut message, &self.mac)
            .map_err(|_| KeyError::WrongKey)?;
        let (master_key, rest) = message.split_at(suite.key_bytes());
        let hmac_key = rest.try_into().map_err(|_| KeyError::WrongKey)?;
        Ok(PlainKeys {
            master_key: Zeroizing::new(master_key.to_vec()),
            hmac_key: Zeroizing::new(hmac_key),
        })
    }

    /// Wraps keys; `iv` must be fresh each time.
    pub(super) fn wrap(
        keys: &PlainKeys,
        (suite, guid, version): (Suite, u64, u64),
        key: &WrappingKey,
        iv: [u8; IV_BYTES],
    ) -> Result<WrappedKeys, KeyError> {
        let aad = aad(guid, suite, version)?;
        let mut message = Zeroizing::new([&keys.master_key[..], &keys.hmac_key[..]].concat());
        let mac = wrapping_cipher(suite, key)?
            .encrypt(&iv, &aad, &mut message)
            .map_err(|_| KeyError::WrongKey)?;
        let mut master_key = [0; MASTER_KEY_MAX_BYTES];
        let mut hmac_key = [0; HMAC_KEY_BYTES];
        let (head, tail) = message.split_at(keys.master_key.len());
        for (to, from) in master_key.iter_mut().zip(head) {
            *to = *from;
        }
        for (to, from) in hmac_key.iter_mut().zip(tail) {
            *to = *from;
        }
        Ok(WrappedKeys { suite: suite.value(), guid, version, iv, mac, master_key, hmac_key })
    }
}

/// A wrapping key has 32 bytes, and so has every key of a wrapping suite.
fn wrapping_cipher(suite: Suite, key: &WrappingKey) -> Result<Cipher, KeyError> {
    Cipher::new(suite.wrapping(), key.bytes()).map_err(|_: CryptError| KeyError::WrongKey)
}

fn aad(guid: u64, suite: Suite, version: u64) -> Result<Vec<u8>, KeyError> {
    match version {
        0 => Ok(guid.to_le_bytes().to_vec()),
        KEY_VERSION_CURRENT => {
            Ok([guid, suite.value(), version].map(u64::to_le_bytes).as_flattened().to_vec())
        }
        other => Err(KeyError::UnknownVersion(other)),
    }
}
