//! Derives block keys from salts, and caches recent ones (spec 08 §5).
//!
//! All blocks written since one loading of the key share a salt, so a reader meets few salts; each
//! derivation costs two HMACs and a key schedule. Note the names: the block's "salt" is HKDF's
//! *info*, and HKDF's own salt is empty.
//!
//! Concurrency: a reader-writer lock around a short list, held for a scan of the list; two threads
//! may derive one key at the same time, which is harmless. No other lock is taken under this one,
//! so it needs no rank of `cenote_rt::lock`. After a panic under the lock, keys are no longer kept.

use std::sync::{Arc, RwLock};

use hkdf::Hkdf;
use sha2::Sha512;
use zeroize::Zeroizing;

use super::{Cipher, CryptError, MASTER_KEY_MAX_BYTES, SALT_BYTES, Suite};

/// Most block keys cached per master key. A key schedule with its tables is about 1 KiB.
const KEPT_MAX: usize = 64;

type Salt = [u8; SALT_BYTES];

/// Derives block keys from a master key.
pub(super) struct Derived {
    suite: Suite,
    /// The master key after HKDF's first step.
    extracted: Hkdf<Sha512>,
    kept: RwLock<Kept>,
}

/// A ring buffer: a new entry replaces the oldest one.
#[derive(Default)]
struct Kept {
    ciphers: Vec<(Salt, Arc<Cipher>)>,
    oldest: usize,
}

impl Derived {
    pub(super) fn new(suite: Suite, master_key: &[u8]) -> Derived {
        let extracted = Hkdf::new(None, master_key);
        Derived { suite, extracted, kept: RwLock::default() }
    }

    /// The cipher for blocks with this salt.
    pub(super) fn cipher(&self, salt: Salt) -> Result<Arc<Cipher>, CryptError> {
        let kept = self.kept.read().ok().and_then(|kept| kept.get(salt));
        if let Some(cipher) = kept {
            return Ok(cipher);
        }
        let key = self.key(salt);
        let (key, _) = key.split_at(self.suite.key_bytes());
        let cipher = Arc::new(Cipher::new(self.suite, key)?);
        if let Ok(mut kept) = self.kept.write() {
            kept.put(salt, cipher.clone());
        }
        Ok(cipher)
    }

    /// The block key, in the first bytes of the array.
    pub(super) fn key(&self, salt: Salt) -> Zeroizing<[u8; MASTER_KEY_MAX_BYTES]> {
        let mut key = Zeroizing::new([0; MASTER_KEY_MAX_BYTES]);
        // HKDF refuses more than 255 digests; a key is half of one.
        let _ = self.extracted.expand(&salt, &mut *key);
        key
    }
}

impl Kept {
    fn get(&self, salt: Salt) -> Option<Arc<Cipher>> {
        self.ciphers.iter().find(|(kept, _)| *kept == salt).map(|(_, cipher)| cipher.clone())
    }

    fn put(&mut self, salt: Salt, cipher: Arc<Cipher>) {
        if self.get(salt).is_some() {
            return;
        }
        if self.ciphers.len() < KEPT_MAX {
            self.ciphers.push((salt, cipher));
        } else if let Some(place) = self.ciphers.get_mut(self.oldest) {
            *place = (salt, cipher);
            self.oldest = (self.oldest + 1) % KEPT_MAX;
        }
    }
}
