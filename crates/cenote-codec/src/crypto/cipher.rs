//! One AEAD cipher with its key schedule, in place, for any suite (spec 08 §1).
//!
//! After a mismatch the data never holds plaintext. GCM checks its tag before it decrypts; CCM can
//! only check afterwards, and then wipes the data.

use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use ccm::Ccm;
use ccm::aead::consts::{U12, U16};
use ccm::aead::{AeadInOut, KeyInit};

use super::{CryptError, IV_BYTES, MAC_BYTES, Mode, Suite};

/// Longest message of CCM when the IV leaves three bytes for its length.
const CCM_MAX_BYTES: usize = (1 << 24) - 1;

/// An expanded key.
pub struct Cipher {
    suite: Suite,
    keyed: Keyed,
}

/// Boxed, because key schedules and GHASH tables differ in size by an order of magnitude.
enum Keyed {
    Ccm128(Box<Ccm<Aes128, U16, U12>>),
    Ccm192(Box<Ccm<Aes192, U16, U12>>),
    Ccm256(Box<Ccm<Aes256, U16, U12>>),
    Gcm128(Box<AesGcm<Aes128, U12>>),
    Gcm192(Box<AesGcm<Aes192, U12>>),
    Gcm256(Box<AesGcm<Aes256, U12>>),
}

macro_rules! with_aead {
    ($keyed:expr, $aead:ident => $body:expr) => {
        match $keyed {
            Keyed::Ccm128($aead) => $body,
            Keyed::Ccm192($aead) => $body,
            Keyed::Ccm256($aead) => $body,
            Keyed::Gcm128($aead) => $body,
            Keyed::Gcm192($aead) => $body,
            Keyed::Gcm256($aead) => $body,
        }
    };
}

impl Cipher {
    /// Expands `key`, which must have the length of the suite's keys.
    pub fn new(suite: Suite, key: &[u8]) -> Result<Cipher, CryptError> {
        let keyed = match suite {
            Suite::Aes128Ccm => boxed(key).map(Keyed::Ccm128),
            Suite::Aes192Ccm => boxed(key).map(Keyed::Ccm192),
            Suite::Aes256Ccm => boxed(key).map(Keyed::Ccm256),
            Suite::Aes128Gcm => boxed(key).map(Keyed::Gcm128),
            Suite::Aes192Gcm => boxed(key).map(Keyed::Gcm192),
            Suite::Aes256Gcm => boxed(key).map(Keyed::Gcm256),
        };
        let wrong = CryptError::CipherKey { len: key.len(), want: suite.key_bytes() };
        Ok(Cipher { suite, keyed: keyed.ok_or(wrong)? })
    }

    /// Encrypts `data` in place and returns its tag. An IV must never be used twice with one key.
    pub fn encrypt(
        &self,
        iv: &[u8; IV_BYTES],
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; MAC_BYTES], CryptError> {
        self.check_length(data)?;
        let len = data.len();
        let sealed = with_aead!(&self.keyed, aead => {
            aead.encrypt_inout_detached(&(*iv).into(), aad, data.into())
        });
        sealed.map(Into::into).map_err(|_| CryptError::TooLong { len })
    }

    /// Decrypts `data` in place. After an error `data` holds ciphertext or zeros.
    pub fn decrypt(
        &self,
        iv: &[u8; IV_BYTES],
        aad: &[u8],
        data: &mut [u8],
        mac: &[u8; MAC_BYTES],
    ) -> Result<(), CryptError> {
        self.check_length(data)?;
        let opened = with_aead!(&self.keyed, aead => {
            aead.decrypt_inout_detached(&(*iv).into(), aad, data.into(), &(*mac).into())
        });
        opened.map_err(|_| CryptError::Tag)
    }

    /// Refuses data that is too long for CCM; GCM's limit of 64 GiB is beyond every block.
    fn check_length(&self, data: &[u8]) -> Result<(), CryptError> {
        if self.suite.mode() == Mode::Ccm && data.len() > CCM_MAX_BYTES {
            return Err(CryptError::TooLong { len: data.len() });
        }
        Ok(())
    }
}

fn boxed<C: KeyInit>(key: &[u8]) -> Option<Box<C>> {
    C::new_from_slice(key).ok().map(Box::new)
}

/// Encrypts `data` in place under a key that is used once; [`Cipher`] for more.
pub fn encrypt(
    suite: Suite,
    key: &[u8],
    iv: &[u8; IV_BYTES],
    aad: &[u8],
    data: &mut [u8],
) -> Result<[u8; MAC_BYTES], CryptError> {
    Cipher::new(suite, key)?.encrypt(iv, aad, data)
}

/// Decrypts `data` in place under a key that is used once; [`Cipher`] for more.
pub fn decrypt(
    suite: Suite,
    key: &[u8],
    iv: &[u8; IV_BYTES],
    aad: &[u8],
    data: &mut [u8],
    mac: &[u8; MAC_BYTES],
) -> Result<(), CryptError> {
    Cipher::new(suite, key)?.decrypt(iv, aad, data, mac)
}
