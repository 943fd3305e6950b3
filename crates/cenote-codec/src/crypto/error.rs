//! Errors of keys and of encrypted blocks.

/// Why a key cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The tag of the wrapped keys does not match. A damaged key object looks the same.
    #[error("incorrect key")]
    WrongKey,
    /// The key is empty.
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
    /// A character of a hex key is not a digit.
    #[error("hex key: character {position} is not a hexadecimal digit")]
    HexDigit {
        /// Position of the character, from 0.
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
        /// Fewest iterations allowed.
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
    /// An unknown key format.
    #[error("unknown key format {0}")]
    UnknownFormat(u64),
    /// An unknown cipher suite.
    #[error("unknown encryption suite {0}")]
    UnknownSuite(u64),
    /// An unknown version of the key object.
    #[error("unknown key version {0}")]
    UnknownVersion(u64),
}

/// Why a block of an encrypted object set is refused, or cannot be encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CryptError {
    /// The AEAD tag does not match the ciphertext and the authenticated data.
    #[error("authentication tag does not match")]
    Tag,
    /// The HMAC of an authenticated plaintext block does not match.
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
    /// The key has another length than the suite requires.
    #[error("cipher key of {len} bytes, expected {want}")]
    CipherKey {
        /// Bytes given.
        len: usize,
        /// Bytes of the suite's key.
        want: usize,
    },
    /// The message is longer than the mode can encrypt.
    #[error("message of {len} bytes is longer than the cipher allows")]
    TooLong {
        /// Bytes given.
        len: usize,
    },
    /// The block is not a whole number of its units.
    #[error("block of {len} bytes is not made of units of {unit} bytes")]
    BlockLength {
        /// Bytes given.
        len: usize,
        /// Bytes of a unit.
        unit: usize,
    },
    /// A dnode reaches beyond its block.
    #[error("dnode at {offset} has {slots} slots and reaches beyond its block")]
    DnodeSlots {
        /// Offset in the block.
        offset: usize,
        /// Number of slots according to the dnode.
        slots: usize,
    },
    /// The block pointers of a dnode do not fit into it.
    #[error("dnode at {offset}: {nblkptr} block pointers do not fit")]
    DnodePointers {
        /// Offset in the block.
        offset: usize,
        /// Number of pointers according to the dnode.
        nblkptr: u8,
    },
    /// The object set is shorter than the shortest version.
    #[error("object set of {len} bytes")]
    ObjsetLength {
        /// Bytes given.
        len: usize,
    },
    /// A log block is too short for its header, or its `nused` reaches beyond the block.
    #[error("log block of {len} bytes uses {used}")]
    LogUsed {
        /// Bytes used, as stored.
        used: u64,
        /// Bytes of the block.
        len: usize,
    },
    /// A log record is shorter than its type requires, or reaches beyond the used part.
    #[error("log record at {offset}: length {reclen}, {left} bytes left")]
    LogRecord {
        /// Offset in the block.
        offset: usize,
        /// Its length, as stored.
        reclen: u64,
        /// Bytes up to the end of the used part.
        left: usize,
    },
}
