//! Protects blocks of encrypted object sets: the step between compression and checksum (spec 08
//! §5-§11).
//!
//! | Block | Stored as | Proved by | Needs keys |
//! |---|---|---|---|
//! | level 0 of an encrypted type | ciphertext | tag in the pointer | yes |
//! | level 0 of another type | plain | HMAC in the pointer | yes |
//! | level > 0 | plain | hash of the MACs below, in the pointer | no |
//! | root | plain | MACs in the block, which the caller sets | no |
//! | sent by another pool | as it was sent | what the sender says | no |
//!
//! Invariants
//! * W7  A block of an encrypted object set replaces only such blocks, and any other only others.
//! * W8  No two blocks are encrypted with the same salt and IV: each gets its own random IV, also
//!   when it is rewritten in place, or written again after a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_codec::crypto::{
    BlockKeys, BlockKind, ByteOrder, IV_BYTES, KEY_VERSION_CURRENT, SALT_BYTES, Seal, indirect_mac,
};
use cenote_ondisk::blkptr::NewProtection;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, Error, Kind, Result, secret_bytes};

use crate::costs::charge_cipher;
use crate::error::WriteError;

/// Blocks that are encrypted with one salt, at most: as in OpenZFS.
const SALT_USES_MAX: u64 = 400_000_000;

/// The keys of an object set that is written, and the salt in use. Each opening has a new one.
#[derive(Debug)]
pub struct SealKeys {
    keys: Arc<BlockKeys>,
    salt: AtomicU64,
    uses: AtomicU64,
}

impl SealKeys {
    /// Returns the keys with a new salt.
    ///
    /// # Errors
    /// Without random numbers.
    pub fn new(keys: Arc<BlockKeys>) -> Result<Arc<Self>> {
        let salt = AtomicU64::new(random_word()?);
        Ok(Arc::new(Self { keys, salt, uses: AtomicU64::new(0) }))
    }

    /// Refuses keys of the first development format, with which nobody writes any more.
    ///
    /// # Errors
    /// `Kind::ReadOnly`.
    pub fn check_version(&self) -> Result<()> {
        match self.keys.version() {
            KEY_VERSION_CURRENT => Ok(()),
            version => Err(Error::new(Kind::ReadOnly, WriteError::KeyVersion { version })),
        }
    }

    /// The keys.
    pub fn keys(&self) -> &Arc<BlockKeys> {
        &self.keys
    }

    /// Salt and IV of a block.
    pub(crate) fn fresh(&self) -> Result<([u8; SALT_BYTES], [u8; IV_BYTES])> {
        // Several writers may exchange the salt at once: each of the new ones is good.
        if self.uses.fetch_add(1, Ordering::Relaxed) >= SALT_USES_MAX {
            self.salt.store(random_word()?, Ordering::Relaxed);
            self.uses.store(0, Ordering::Relaxed);
        }
        let mut iv = [0; IV_BYTES];
        secret_bytes(&mut iv)?;
        Ok((self.salt.load(Ordering::Relaxed).to_le_bytes(), iv))
    }
}

fn random_word() -> Result<u64> {
    let mut bytes = [0; 8];
    secret_bytes(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A block of an encrypted object set that is to be protected.
#[derive(Debug)]
pub(super) struct Sealing {
    pub(super) object_type: ObjectType,
    pub(super) level: u8,
    pub(super) keys: Option<Arc<SealKeys>>,
}

impl Sealing {
    /// Whether the block cannot be protected without keys.
    pub(super) fn needs_keys(object_type: ObjectType, level: u8) -> bool {
        level == 0 && object_type != ObjectType::OBJSET
    }

    /// Protects the block with the contents `block`, of which `stored` are the compressed bytes.
    /// Returns the bytes to be stored.
    pub(super) fn protect(&self, block: &[u8], stored: Buf) -> Result<(Buf, NewProtection)> {
        let Self { object_type, level, keys } = self;
        let invalid = |error| Error::new(Kind::Invariant, WriteError::Sealing(error));
        if *level > 0 {
            let mac = indirect_mac(KEY_VERSION_CURRENT, ByteOrder::Little, block);
            let sealed = Seal { mac: mac.map_err(invalid)?, ..Seal::default() };
            return Ok((stored, protection(&sealed)));
        }
        if *object_type == ObjectType::OBJSET {
            return Ok((stored, NewProtection::Root));
        }
        let keys = keys.as_ref().ok_or_else(no_keys)?;
        keys.check_version()?;
        // Checks W8.
        let (salt, iv) = keys.fresh()?;
        charge_cipher(keys.keys.suite(), stored.len());
        let kind = BlockKind::of(object_type.0, ByteOrder::Little);
        let mut data = stored.into_mut();
        let mac = keys.keys.encrypt_block(kind, salt, &iv, &mut data).map_err(invalid)?;
        Ok((data.freeze(), protection(&Seal { salt, iv, mac })))
    }
}

/// The protection of a block that another pool has encrypted.
pub(super) fn protection(seal: &Seal) -> NewProtection {
    NewProtection::Sealed { salt: seal.salt, iv: seal.iv, mac: seal.mac }
}

pub(crate) fn no_keys() -> Error {
    Error::new(Kind::KeyUnavailable, WriteError::NoKeys)
}
