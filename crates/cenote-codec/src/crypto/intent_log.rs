//! Encrypted log blocks: headers and pointers stay plaintext, record bodies are encrypted (spec 08
//! §12).
//!
//!     0      8           136     144       184                    used
//!     +------+-----------+-------+---------+----------+----------+-----
//!     | pad  | next bp   | used  | trailer | record   | record   | 0
//!     +------+-----------+-------+---------+----------+----------+-----
//!     |          clear           |  tag    | 32 clear, rest mostly sealed
//!
//! The log is claimed without keys, so everything that claiming needs stays plaintext: the chain,
//! the record headers, and the block pointers inside records. The tag cannot be stored in the
//! pointer to the block, which is written before the block is filled; it replaces the second half
//! of the embedded checksum, in the trailer, which is not covered.

use super::pieces::Pieces;
use super::{ByteOrder, CryptError, MAC_BYTES};

const USED: usize = 136;
const TRAILER: usize = 144;
const TAG: usize = 168;
/// Bytes of the head of the block.
const CHAIN_BYTES: usize = 184;

const RECORD_LENGTH: usize = 8;
/// Bytes of the header of a record.
const RECORD_HEADER_BYTES: usize = 32;

/// Record types are compared as a whole: the bit for case folding makes another type.
const TX_WRITE: u64 = 9;
const TX_CLONE_RANGE: u64 = 24;
/// Both have object, offset and length before their pointers.
const CLEAR_START: usize = 64;
/// End of the pointer in a write; data may follow.
const WRITE_CLEAR_END: usize = 192;

/// The tag of a log block; `None` if it is too short for one.
pub fn intent_log_mac(data: &[u8]) -> Option<[u8; MAC_BYTES]> {
    data.get(TAG..)?.first_chunk().copied()
}

/// Stores the tag in a log block that has just been encrypted.
pub(super) fn set_mac(data: &mut [u8], mac: &[u8; MAC_BYTES]) {
    if let Some(place) = data.get_mut(TAG..).and_then(|tail| tail.first_chunk_mut()) {
        *place = *mac;
    }
}

/// The map of a log block in its stored order.
pub(super) fn pieces(order: ByteOrder, data: &[u8]) -> Result<Pieces, CryptError> {
    let len = data.len();
    let used = word(order, data, USED).ok_or(CryptError::LogUsed { used: 0, len })?;
    let wrong = CryptError::LogUsed { used, len };
    let chain = data.get(..TRAILER).ok_or(wrong)?;
    let end = usize::try_from(used).map_err(|_| wrong)?;
    if end < CHAIN_BYTES {
        return Err(wrong);
    }
    let records = data.get(..end).ok_or(wrong)?;
    let mut pieces = Pieces::default();
    pieces.clear(chain);
    let mut offset = CHAIN_BYTES;
    while let Some(rest) = records.get(offset..).filter(|rest| !rest.is_empty()) {
        offset += add_record(&mut pieces, order, rest, offset)?;
    }
    Ok(pieces)
}

/// Adds the record at the start of `rest` and returns its length.
fn add_record(
    pieces: &mut Pieces,
    order: ByteOrder,
    rest: &[u8],
    offset: usize,
) -> Result<usize, CryptError> {
    let left = rest.len();
    let reclen = word(order, rest, RECORD_LENGTH).unwrap_or(0);
    let wrong = CryptError::LogRecord { offset, reclen, left };
    let len = usize::try_from(reclen).map_err(|_| wrong)?;
    let record = rest.get(..len).ok_or(wrong)?;
    let (header, _) = record.split_at_checked(RECORD_HEADER_BYTES).ok_or(wrong)?;
    let clear = match word(order, record, 0) {
        Some(TX_WRITE) => CLEAR_START..WRITE_CLEAR_END,
        Some(TX_CLONE_RANGE) => CLEAR_START..len,
        _ => len..len,
    };
    pieces.clear(header);
    pieces.seal(offset + RECORD_HEADER_BYTES..offset + clear.start);
    pieces.clear(record.get(clear.clone()).ok_or(wrong)?);
    pieces.seal(offset + clear.end..offset + len);
    Ok(len)
}

fn word(order: ByteOrder, data: &[u8], offset: usize) -> Option<u64> {
    data.get(offset..)?.first_chunk().map(|bytes| order.word(*bytes))
}
