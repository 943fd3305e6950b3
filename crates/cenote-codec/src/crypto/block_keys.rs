//! The keys of one dataset: decrypts and encrypts blocks (spec 08 §5-§12).
//!
//! A [`BlockKeys`] is created once per key object, shared by all readers, and wiped with the last
//! reference. It does no I/O and has no clock; salts and IVs for encryption come from the caller,
//! who must never use an IV twice under one salt.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha512;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::derived::Derived;
use super::objset::Objset;
use super::pieces::Pieces;
use super::pointer::{POINTER_WORDS, Pointer, truncated};
use super::wrapping::PlainKeys;
use super::{
    ByteOrder, CryptError, HMAC_KEY_BYTES, IV_BYTES, KEY_VERSION_CURRENT, KeyError, MAC_BYTES,
    OBJSET_MAC_BYTES, SALT_BYTES, Suite, WrappedKeys, WrappingKey, dnodes, intent_log,
    is_encrypted_type,
};

/// Object types whose blocks are only partly encrypted.
const INTENT_LOG_TYPE: u8 = 9;
const DNODE_TYPE: u8 = 10;

/// How a level-0 block is protected. Indirect blocks and object sets have their own functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// A block of an encrypted type: all bytes are ciphertext.
    Data,
    /// A block of a type that is never encrypted: plaintext with an HMAC.
    Authenticated,
    /// Dnodes, with the byte order of the stored block.
    Dnodes(ByteOrder),
    /// An intent log block, with the byte order of the stored block.
    IntentLog(ByteOrder),
}

impl BlockKind {
    /// The kind of a level-0 block by its object type; not for object sets.
    pub const fn of(object_type: u8, order: ByteOrder) -> BlockKind {
        match object_type {
            INTENT_LOG_TYPE => BlockKind::IntentLog(order),
            DNODE_TYPE => BlockKind::Dnodes(order),
            other if is_encrypted_type(other) => BlockKind::Data,
            _ => BlockKind::Authenticated,
        }
    }
}

/// Parameters from the block pointer that are needed to decrypt a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seal {
    /// Salt from which the block key is derived. Not used by authenticated blocks.
    pub salt: [u8; SALT_BYTES],
    /// Initialisation vector. Not used by authenticated blocks.
    pub iv: [u8; IV_BYTES],
    /// Tag or MAC. Log blocks store theirs inside: [`intent_log_mac`](super::intent_log_mac).
    pub mac: [u8; MAC_BYTES],
}

impl Seal {
    /// Extracts the parameters from the words of a pointer, decoded in the byte order of the block
    /// that contains it.
    pub fn from_words(words: &[u64; POINTER_WORDS]) -> Seal {
        let pointer = Pointer::from_words(*words);
        Seal { salt: pointer.salt(), iv: pointer.iv(), mac: pointer.mac() }
    }
}

/// The unwrapped keys of a dataset.
pub struct BlockKeys {
    suite: Suite,
    guid: u64,
    version: u64,
    plain: PlainKeys,
    hmac: Hmac<Sha512>,
    derived: Derived,
}

impl BlockKeys {
    /// Unwraps the keys of a key object; [`KeyError::WrongKey`] if `key` is not the one that
    /// wrapped them.
    pub fn unwrap(key: &WrappingKey, wrapped: &WrappedKeys) -> Result<BlockKeys, KeyError> {
        let plain = wrapped.unwrap(key)?;
        Ok(Self::with_plain(wrapped.suite()?, wrapped.guid, wrapped.version, plain))
    }

    /// Creates the keys of a new dataset from plain bytes.
    pub fn new(
        suite: Suite,
        guid: u64,
        master_key: &[u8],
        hmac_key: &[u8; HMAC_KEY_BYTES],
    ) -> Result<BlockKeys, CryptError> {
        if master_key.len() != suite.key_bytes() {
            let want = suite.key_bytes();
            return Err(CryptError::CipherKey { len: master_key.len(), want });
        }
        let plain = PlainKeys {
            master_key: Zeroizing::new(master_key.to_vec()),
            hmac_key: Zeroizing::new(*hmac_key),
        };
        Ok(Self::with_plain(suite, guid, KEY_VERSION_CURRENT, plain))
    }

    fn with_plain(suite: Suite, guid: u64, version: u64, plain: PlainKeys) -> BlockKeys {
        let derived = Derived::new(suite, &plain.master_key);
        // Shorter than a block of SHA-512, so it can be padded to one: the HMAC key is the same.
        let mut padded = Zeroizing::new([0; 128]);
        for (to, from) in padded.iter_mut().zip(plain.hmac_key.iter()) {
            *to = *from;
        }
        let hmac = Hmac::new((&*padded).into());
        BlockKeys { suite, guid, version, plain, hmac, derived }
    }

    /// Wraps the keys for storage; `iv` must be fresh each time.
    pub fn wrap(&self, key: &WrappingKey, iv: [u8; IV_BYTES]) -> Result<WrappedKeys, KeyError> {
        WrappedKeys::wrap(&self.plain, (self.suite, self.guid, self.version), key, iv)
    }

    /// The cipher suite.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Id of the master key.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Version of the key object: 0 or 1.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Decrypts a level-0 block in place, in its stored byte order. `data` are the bytes covered by
    /// the pointer's PSIZE, before decompression. After an error it holds no decrypted plaintext.
    pub fn decrypt_block(
        &self,
        kind: BlockKind,
        seal: &Seal,
        data: &mut [u8],
    ) -> Result<(), CryptError> {
        match self.pieces(kind, data)? {
            Protection::Hmac => {
                let is_equal = self.authenticated_mac(data).ct_eq(&seal.mac);
                if is_equal.into() { Ok(()) } else { Err(CryptError::AuthenticatedMac) }
            }
            Protection::Whole => {
                self.derived.cipher(seal.salt)?.decrypt(&seal.iv, &[], data, &seal.mac)
            }
            Protection::Pieces(pieces) => {
                let cipher = self.derived.cipher(seal.salt)?;
                pieces.decrypt(&cipher, &seal.iv, &seal.mac, data)
            }
        }
    }

    /// Encrypts a level-0 block in place and returns its MAC, which for a log block is also stored
    /// in the block. `salt` and `iv` are not used by authenticated blocks.
    pub fn encrypt_block(
        &self,
        kind: BlockKind,
        salt: [u8; SALT_BYTES],
        iv: &[u8; IV_BYTES],
        data: &mut [u8],
    ) -> Result<[u8; MAC_BYTES], CryptError> {
        let mac = match self.pieces(kind, data)? {
            Protection::Hmac => self.authenticated_mac(data),
            Protection::Whole => self.derived.cipher(salt)?.encrypt(iv, &[], data)?,
            Protection::Pieces(pieces) => pieces.encrypt(&*self.derived.cipher(salt)?, iv, data)?,
        };
        if matches!(kind, BlockKind::IntentLog(_)) {
            intent_log::set_mac(data, &mac);
        }
        Ok(mac)
    }

    /// Checks both MACs of an object set as stored.
    pub fn verify_objset(&self, order: ByteOrder, data: &[u8]) -> Result<(), CryptError> {
        self.objset(order, data).verify()
    }

    /// The portable MAC, which a raw send includes.
    pub fn portable_mac(
        &self,
        order: ByteOrder,
        data: &[u8],
    ) -> Result<[u8; OBJSET_MAC_BYTES], CryptError> {
        self.objset(order, data).portable_mac()
    }

    /// The local MAC over the accounting objects; all zero if there is nothing to protect.
    pub fn local_mac(
        &self,
        order: ByteOrder,
        data: &[u8],
    ) -> Result<[u8; OBJSET_MAC_BYTES], CryptError> {
        self.objset(order, data).local_mac()
    }

    fn objset<'a>(&'a self, order: ByteOrder, data: &'a [u8]) -> Objset<'a> {
        Objset { hmac: &self.hmac, version: self.version, order, data }
    }

    fn authenticated_mac(&self, data: &[u8]) -> [u8; MAC_BYTES] {
        truncated(&self.hmac.clone().chain_update(data).finalize().into_bytes())
    }

    fn pieces(&self, kind: BlockKind, data: &[u8]) -> Result<Protection, CryptError> {
        Ok(match kind {
            BlockKind::Data => Protection::Whole,
            BlockKind::Authenticated => Protection::Hmac,
            BlockKind::Dnodes(order) => {
                Protection::Pieces(dnodes::pieces(self.version, order, data)?)
            }
            BlockKind::IntentLog(order) => Protection::Pieces(intent_log::pieces(order, data)?),
        })
    }
}

/// How a block's bytes are protected.
enum Protection {
    Hmac,
    Whole,
    Pieces(Pieces),
}

/// Does not print secrets.
impl std::fmt::Debug for BlockKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let guid = format_args!("{:#x}", self.guid);
        f.debug_struct("BlockKeys")
            .field("suite", &self.suite)
            .field("guid", &guid)
            .finish_non_exhaustive()
    }
}
