//! The six cipher suites and their numbers on disk (spec 08 §1).

/// Mode of operation of AES.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Counter with CBC-MAC (RFC 3610). A 12-byte IV leaves three bytes for the length.
    Ccm,
    /// Galois/counter mode (NIST SP 800-38D).
    Gcm,
}

/// A cipher suite, as stored in the key object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Suite {
    /// AES-128 in CCM.
    Aes128Ccm = 3,
    /// AES-192 in CCM.
    Aes192Ccm = 4,
    /// AES-256 in CCM.
    Aes256Ccm = 5,
    /// AES-128 in GCM.
    Aes128Gcm = 6,
    /// AES-192 in GCM.
    Aes192Gcm = 7,
    /// AES-256 in GCM: what `encryption=on` means.
    Aes256Gcm = 8,
}

impl Suite {
    /// Every suite, by number.
    pub const ALL: [Suite; 6] = [
        Suite::Aes128Ccm,
        Suite::Aes192Ccm,
        Suite::Aes256Ccm,
        Suite::Aes128Gcm,
        Suite::Aes192Gcm,
        Suite::Aes256Gcm,
    ];

    /// The suite with a stored number; `inherit`, `on` and `off` are never stored.
    pub fn from_value(value: u64) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| suite.value() == value)
    }

    /// Its number on disk.
    pub const fn value(self) -> u64 {
        self as u64
    }

    /// Its name as a property value.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128Ccm => "aes-128-ccm",
            Suite::Aes192Ccm => "aes-192-ccm",
            Suite::Aes256Ccm => "aes-256-ccm",
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes192Gcm => "aes-192-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// Bytes of the master key and of each block key.
    pub const fn key_bytes(self) -> usize {
        match self {
            Suite::Aes128Ccm | Suite::Aes128Gcm => 16,
            Suite::Aes192Ccm | Suite::Aes192Gcm => 24,
            Suite::Aes256Ccm | Suite::Aes256Gcm => 32,
        }
    }

    /// Its mode.
    pub const fn mode(self) -> Mode {
        match self {
            Suite::Aes128Ccm | Suite::Aes192Ccm | Suite::Aes256Ccm => Mode::Ccm,
            Suite::Aes128Gcm | Suite::Aes192Gcm | Suite::Aes256Gcm => Mode::Gcm,
        }
    }

    /// The suite that wraps this one's keys: the same mode, always with a key of 32 bytes.
    #[must_use]
    pub const fn wrapping(self) -> Suite {
        match self.mode() {
            Mode::Ccm => Suite::Aes256Ccm,
            Mode::Gcm => Suite::Aes256Gcm,
        }
    }
}
