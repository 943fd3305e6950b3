//! Causes: keys that cannot be had, and blocks that cannot be believed.

/// Why there is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The tag of the wrapped keys does not match. A damaged key object looks the same.
    #[error("incorrect key")]
    WrongKey,
    /// Nothing was given.
    #[error("key is empty")]
    Empty,
    /// A raw key is exactly 32 bytes.
    #[error("raw key of {len} bytes, expected 32")]
    RawLength {
        /// Bytes given.
        len: usize,
    },
    /// A hex key is exactly 64 digits.
    #[error("hex key of {len} characters, expected 64")]
    HexLength {
        /// Characters in its first line.
        len: usize,
    },
    /// A character of a hex key is no digit.
    #[error("hex key: character {position} is not a hexadecimal digit")]
    HexDigit {
        /// Where, from 0.
        position: usize,
    },
    /// A passphrase being set is outside 8..=512 bytes.
    #[error("passphrase of {len} bytes, expected 8 to 512")]
    PassphraseLength {
        /// Bytes given.
        len: usize,
    },
    /// A passphrase needs iterations, and at least 100000 when it is being set.
    #[error("{iterations} PBKDF2 iterations, expected {least} to 4294967295")]
    Iterations {
        /// Iterations found.
        iterations: u64,
        /// Fewest allowed here.
        least: u64,
    },
    /// Raw and hex keys have no PBKDF2 parameters.
    #[error("PBKDF2 salt {salt:#x} and {iterations} iterations with a key that is no passphrase")]
    UnexpectedPbkdf2 {
        /// Salt found.
        salt: u64,
        /// Iterations found.
        iterations: u64,
    },
    /// A key format of other software.
    #[error("unknown key format {0}")]
    UnknownFormat(u64),
    /// A cipher of other software.
    #[error("unknown encryption suite {0}")]
    UnknownSuite(u64),
    /// A version of the key object of other software.
    #[error("unknown key version {0}")]
    UnknownVersion(u64),
}

/// Why a block of an encrypted object set is refused, or cannot be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CryptError {
    /// The AEAD tag does not match the ciphertext and what is authenticated with it.
    #[error("authentication tag does not match")]
    Tag,
    /// The HMAC of a plain block does not match.
    #[error("MAC of an authenticated block does not match")]
    AuthenticatedMac,
    /// The hash of an indirect block's pointers does not match.
    #[error("MAC of an indirect block does not match")]
    IndirectMac,
    /// The object set's portable MAC does not match.
    #[error("portable MAC of the object set does not match")]
    PortableMac,
    /// The object set's local MAC does not match.
    #[error("local MAC of the object set does not match")]
    LocalMac,
    /// A key does not have the length of its suite.
    #[error("cipher key of {len} bytes, expected {want}")]
    CipherKey {
        /// Bytes given.
        len: usize,
        /// Bytes of the suite's key.
        want: usize,
    },
    /// The message is longer than the mode can seal.
    #[error("message of {len} bytes is longer than the cipher allows")]
    TooLong {
        /// Bytes given.
        len: usize,
    },
    /// A block is not a whole number of its units.
    #[error("block of {len} bytes is not made of units of {unit} bytes")]
    BlockLength {
        /// Bytes given.
        len: usize,
        /// Bytes of a unit.
        unit: usize,
    },
    /// A dnode leaves its block.
    #[error("dnode at {offset} has {slots} slots and leaves its block")]
    DnodeSlots {
        /// Its place in the block.
        offset: usize,
        /// Slots that it claims.
        slots: usize,
    },
    /// The block pointers of a dnode leave it.
    #[error("dnode at {offset}: {nblkptr} block pointers do not fit")]
    DnodePointers {
        /// Its place in the block.
        offset: usize,
        /// Pointers that it claims.
        nblkptr: u8,
    },
    /// The object set is shorter than its first version.
    #[error("object set of {len} bytes")]
    ObjsetLength {
        /// Bytes given.
        len: usize,
    },
    /// A log block is too short for its head, or its `nused` leaves the block.
    #[error("log block of {len} bytes uses {used}")]
    LogUsed {
        /// Bytes used, as stored.
        used: u64,
        /// Bytes of the block.
        len: usize,
    },
    /// A log record is shorter than its type, or leaves the used part.
    #[error("log record at {offset}: length {reclen}, {left} bytes left")]
    LogRecord {
        /// Its place in the block.
        offset: usize,
        /// Its length, as stored.
        reclen: u64,
        /// Bytes up to the end of the used part.
        left: usize,
    },
}
