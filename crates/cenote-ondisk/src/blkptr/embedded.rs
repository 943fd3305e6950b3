//! Embedded block pointers, which contain their block's data (spec 02 §1.6).
//!
//! The property word keeps its place but counts sizes in bytes, and up to 112 bytes of payload are
//! spread over the fourteen words that are neither the property word (6) nor the logical birth
//! (10), least significant byte first on every machine.
//!
//! ```text
//!   63 62 61 60  56 55    48 47    40 39 38    32 31    25 24               0
//!  +--+--+--+------+--------+--------+--+--------+--------+------------------+
//!  |B |0 |0 | lvl  |  type  | etype  |1 |  comp  |psize-1 |     lsize-1      |
//!  +--+--+--+------+--------+--------+--+--------+--------+------------------+
//! ```

use crate::bits::Bits;
use crate::blkptr::{BLOCK_SIZE_MAX, BlockPtr, CorruptBlockPtr};

const LSIZE_BYTES: Bits<0, 25> = Bits;
const PSIZE_BYTES: Bits<25, 7> = Bits;

/// Most bytes that a pointer can embed.
pub const EMBEDDED_MAX: usize = 112;

/// The embedded type of a pointer with the E bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EmbeddedType {
    /// Compressed (or plain) data.
    Data,
    /// Never stored.
    Reserved,
    /// A block that was left out of a redacted stream; reading it is an error.
    Redacted,
}

/// The payload of an embedded pointer, still compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedPayload {
    bytes: [u8; EMBEDDED_MAX],
    len: usize,
}

impl EmbeddedPayload {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

impl AsRef<[u8]> for EmbeddedPayload {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl BlockPtr {
    /// The embedded type of an E pointer; `None` without the E bit or for an unknown number.
    #[must_use]
    pub const fn embedded_type(&self) -> Option<EmbeddedType> {
        match self.embedded_type_id() {
            Some(0) => Some(EmbeddedType::Data),
            Some(1) => Some(EmbeddedType::Reserved),
            Some(2) => Some(EmbeddedType::Redacted),
            _ => None,
        }
    }

    /// The number of the embedded type of an E pointer, known or not.
    #[must_use]
    pub const fn embedded_type_id(&self) -> Option<u8> {
        if self.is_embedded() { Some(self.checksum_id()) } else { None }
    }

    /// Logical size of an E pointer in bytes, whatever its type.
    #[must_use]
    pub const fn embedded_lsize(&self) -> u64 {
        LSIZE_BYTES.get(self.property()) + 1
    }

    /// Payload bytes of an E pointer, at least 1.
    #[must_use]
    pub const fn embedded_psize(&self) -> u64 {
        PSIZE_BYTES.get(self.property()) + 1
    }

    /// The payload; `None` if the pointer is not embedded data, or claims more than fits.
    #[must_use]
    pub fn embedded_payload(&self) -> Option<EmbeddedPayload> {
        let len = self.embedded_psize() as usize;
        if !self.is_embedded_data() || len > EMBEDDED_MAX {
            return None;
        }
        let mut bytes = [0; EMBEDDED_MAX];
        let (chunks, _none) = bytes.as_chunks_mut::<8>();
        let carriers =
            self.words().iter().enumerate().filter(|(index, _)| !matches!(index, 6 | 10));
        for (chunk, (_, word)) in chunks.iter_mut().zip(carriers) {
            *chunk = word.to_le_bytes();
        }
        Some(EmbeddedPayload { bytes, len })
    }

    pub(super) fn validate_embedded(&self) -> Result<(), CorruptBlockPtr> {
        match self.embedded_type() {
            None => Err(CorruptBlockPtr::EmbeddedType(self.checksum_id())),
            Some(_) if self.embedded_lsize() > BLOCK_SIZE_MAX => {
                Err(CorruptBlockPtr::LogicalSize(self.embedded_lsize()))
            }
            Some(_) if self.embedded_psize() > EMBEDDED_MAX as u64 => {
                Err(CorruptBlockPtr::EmbeddedSize(self.embedded_psize()))
            }
            Some(_) => Ok(()),
        }
    }
}

/// The size fields of a property word; `None` if the sizes do not fit.
pub(super) fn sizes(lsize: u64, psize: u64) -> Option<u64> {
    if psize > EMBEDDED_MAX as u64 {
        return None;
    }
    PSIZE_BYTES.with(LSIZE_BYTES.with(0, lsize.checked_sub(1)?)?, psize.checked_sub(1)?)
}
