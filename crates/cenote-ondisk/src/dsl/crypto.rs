//! The DSL crypto key object: names of its ZAP entries (spec 08 §2). The codec crate interprets
//! their values.

/// Cipher suite, u64.
pub const SUITE: &str = "DSL_CRYPTO_SUITE";
/// Random id of the master key, u64.
pub const GUID: &str = "DSL_CRYPTO_GUID";
/// Key version, u64; absent = 0.
pub const VERSION: &str = "DSL_CRYPTO_VERSION";
/// DSL dir object of the encryption root, u64.
pub const ROOT_DDOBJ: &str = "DSL_CRYPTO_ROOT_DDOBJ";
/// Dirs that use the object, u64.
pub const REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
/// Wrapping IV, 12 bytes.
pub const IV: &str = "DSL_CRYPTO_IV";
/// Wrapping tag, 16 bytes.
pub const MAC: &str = "DSL_CRYPTO_MAC";
/// Wrapped master key, 32 bytes.
pub const MASTER_KEY: &str = "DSL_CRYPTO_MASTER_KEY_1";
/// Wrapped HMAC key, 64 bytes.
pub const HMAC_KEY: &str = "DSL_CRYPTO_HMAC_KEY_1";
/// Key format, u64: 1 raw, 2 hex, 3 passphrase.
pub const KEYFORMAT: &str = "keyformat";
/// Salt of a passphrase, u64.
pub const PBKDF2_SALT: &str = "pbkdf2salt";
/// Rounds of a passphrase, u64.
pub const PBKDF2_ITERS: &str = "pbkdf2iters";
