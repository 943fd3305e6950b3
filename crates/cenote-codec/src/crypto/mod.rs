//! Native encryption: from what the user knows to plain bytes, without I/O (spec 08 part A).
//!
//!     passphrase, hex, raw                                      key format, PBKDF2
//!            v
//!      WrappingKey --unwraps--> master key    --HKDF(salt)--> block key: AEAD of blocks
//!      (32 bytes)               HMAC key      --------------> HMAC of what stays plain
//!                               \___ BlockKeys ___/
//!
//! | Block | Stored as | Proved by | Here |
//! |---|---|---|---|
//! | level 0 of an encrypted type | ciphertext | tag in the pointer | [`BlockKind::Data`] |
//! | level 0 of another type | plain | HMAC in the pointer | [`BlockKind::Authenticated`] |
//! | dnodes | some bonus areas sealed | tag over the rest too | [`BlockKind::Dnodes`] |
//! | intent log | record bodies sealed | tag in the block | [`BlockKind::IntentLog`] |
//! | level > 0 | plain | hash of its pointers' MACs | [`verify_indirect`] |
//! | object set | plain | two HMACs inside | [`BlockKeys::verify_objset`] |
//!
//! So the proof of a block climbs from its pointer through the indirect blocks and dnodes to the
//! object set, which the HMAC key anchors.
//!
//! **Byte order.** Everything is sealed in the order in which it is stored, so blocks are opened
//! first and swapped afterwards. Only a few fields have to be understood on the way (the pointers
//! in dnodes, the lengths of log records); for them the caller passes the order of the block.
//! Salt, IV and MAC are bytes that lie in the words of a pointer in the order of the *block that
//! it points to*, which need not be that of the block it lies in: [`Seal::from_words`].
//!
//! This layer knows offsets of a few fields of foreign structures (dnode, object set, log block)
//! and keeps each as a constant in the file that needs it.
//!
//! Guarantees
//! * C1  A failed check never hands out plaintext as good: the data is wiped or untouched.
//! * C2  Secrets are wiped when dropped; comparison of MACs takes constant time.
//! * C3  No input panics, and no allocation is larger than twice the block.
//!
//! A wrong key shows when the master key is unwrapped ([`KeyError::WrongKey`]); a tag that does
//! not match under keys once unwrapped is damage or forgery ([`CryptError`]).

mod block_keys;
mod cipher;
mod derived;
mod dnodes;
mod error;
mod intent_log;
mod key_format;
mod objset;
mod pieces;
mod pointer;
mod suite;
mod wrapping;

pub use crate::checksum::embedded::ByteOrder;

pub use block_keys::{BlockKeys, BlockKind, Seal};
pub use cipher::{Cipher, decrypt, encrypt};
pub use error::{CryptError, KeyError};
pub use intent_log::intent_log_mac;
pub use key_format::{KeyFormat, Pbkdf2, Purpose, WrappingKey};
pub use pointer::{indirect_mac, is_encrypted_type, verify_indirect};
pub use suite::{Mode, Suite};
pub use wrapping::WrappedKeys;

/// Bytes that are wiped when they are dropped.
pub type SecretBytes<const N: usize> = zeroize::Zeroizing<[u8; N]>;

/// Bytes of a block's salt.
pub const SALT_BYTES: usize = 8;
/// Bytes of an IV, of blocks and of wrapped keys.
pub const IV_BYTES: usize = 12;
/// Bytes of an authentication tag and of the MACs in block pointers.
pub const MAC_BYTES: usize = 16;
/// Bytes of a wrapping key, whatever the suite.
pub const WRAPPING_KEY_BYTES: usize = 32;
/// Room for a wrapped master key; suites with shorter keys leave the tail zero.
pub const MASTER_KEY_MAX_BYTES: usize = 32;
/// Bytes of the HMAC key.
pub const HMAC_KEY_BYTES: usize = 64;
/// Bytes of each of the two MACs in an object set.
pub const OBJSET_MAC_BYTES: usize = 32;

/// What this release of OpenZFS writes; version 0 is the first development format.
pub const KEY_VERSION_CURRENT: u64 = 1;

#[cfg(test)]
mod tests;
