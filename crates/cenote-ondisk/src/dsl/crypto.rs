//! The DSL crypto key object: names of its ZAP entries, suites, key formats (spec 08 §1, §2).

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
/// [`KeyFormat`], u64.
pub const KEYFORMAT: &str = "keyformat";
/// Salt of a passphrase, u64.
pub const PBKDF2_SALT: &str = "pbkdf2salt";
/// Rounds of a passphrase, u64.
pub const PBKDF2_ITERS: &str = "pbkdf2iters";

/// Bytes of a wrapping key, of whatever suite.
pub const WRAPPING_KEY_LEN: usize = 32;
/// Bytes of the HMAC key.
pub const HMAC_KEY_LEN: usize = 64;
/// Stored bytes of a master key; the suite uses the first 16, 24 or 32.
pub const MASTER_KEY_MAX_LEN: usize = 32;

/// A cipher suite that can stand in a key object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// `aes-128-ccm`.
    Aes128Ccm = 3,
    /// `aes-192-ccm`.
    Aes192Ccm = 4,
    /// `aes-256-ccm`.
    Aes256Ccm = 5,
    /// `aes-128-gcm`.
    Aes128Gcm = 6,
    /// `aes-192-gcm`.
    Aes192Gcm = 7,
    /// `aes-256-gcm`.
    Aes256Gcm = 8,
}

impl Suite {
    /// The suite of a stored value; `inherit`, `on` and `off` are never stored.
    #[must_use]
    pub const fn from_value(value: u64) -> Option<Self> {
        Some(match value {
            3 => Self::Aes128Ccm,
            4 => Self::Aes192Ccm,
            5 => Self::Aes256Ccm,
            6 => Self::Aes128Gcm,
            7 => Self::Aes192Gcm,
            8 => Self::Aes256Gcm,
            _ => return None,
        })
    }

    /// Property value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Ccm => "aes-128-ccm",
            Self::Aes192Ccm => "aes-192-ccm",
            Self::Aes256Ccm => "aes-256-ccm",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes192Gcm => "aes-192-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// Bytes of the master key.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }

    /// Whether the mode is GCM (else CCM).
    #[must_use]
    pub const fn is_gcm(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm)
    }
}

/// How the user's key is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw = 1,
    /// 64 hexadecimal digits.
    Hex = 2,
    /// Text, stretched by PBKDF2.
    Passphrase = 3,
}

impl KeyFormat {
    /// The format of a stored value.
    #[must_use]
    pub const fn from_value(value: u64) -> Option<Self> {
        Some(match value {
            1 => Self::Raw,
            2 => Self::Hex,
            3 => Self::Passphrase,
            _ => return None,
        })
    }

    /// Property value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Hex => "hex",
            Self::Passphrase => "passphrase",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_round_trip() {
        for value in 0..10 {
            match Suite::from_value(value) {
                Some(suite) => assert_eq!(suite as u64, value),
                None => assert!(!(3..=8).contains(&value)),
            }
        }
        assert_eq!(Suite::Aes192Gcm.key_len(), 24);
        assert!(!Suite::Aes256Ccm.is_gcm());
    }
}
