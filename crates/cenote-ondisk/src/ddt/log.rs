//! The two logs of an FDT table (spec 08 §24).
//!
//! Records never span blocks; the first zero word pads the rest of a block. A later record of a key
//! wins. Exactly one log is being flushed into the stores: in that log, keys up to the checkpoint
//! are done. The active log wins over the flushing one.

use super::{CorruptDdt, DDT_PHYS_FLAT_LEN, DdtClass, DdtKey, DdtLayout, DdtPhys};
use crate::bits::Bits;
use crate::endian::Endian;
use crate::words;
use bitflags::bitflags;

/// Bytes of a log's header.
pub const DDT_LOG_PHYS_LEN: usize = 64;
/// Bytes of a record with a flat phys.
pub const DDT_LOG_RECORD_LEN: usize = 8 + 40 + DDT_PHYS_FLAT_LEN;

const VERSION: Bits<0, 8> = Bits;
const FLAGS: Bits<8, 8> = Bits;
const KIND: Bits<0, 8> = Bits;
const LENGTH: Bits<8, 16> = Bits;
const STORE_TYPE: Bits<48, 8> = Bits;
const STORE_CLASS: Bits<56, 8> = Bits;

bitflags! {
    /// Flags of a log.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct LogFlags: u8 {
        /// Being flushed into the stores.
        const FLUSHING = 1;
        /// The checkpoint key is valid.
        const CHECKPOINT = 2;
        const _ = !0;
    }
}

/// Header of a log (`ddt_log_header_t`), in the bonus of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPhys {
    /// State.
    pub flags: LogFlags,
    /// Bytes of records, whole blocks.
    pub length: u64,
    /// Txg in which the log became active.
    pub first_txg: u64,
    /// Last key that was flushed.
    pub checkpoint: DdtKey,
}

impl LogPhys {
    /// Decodes the bonus buffer.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptDdt> {
        let [info, length, first_txg, a, b, c, d, prop] =
            words::exact(bonus).ok_or(CorruptDdt::LogHeader { len: bonus.len(), version: 0 })?;
        let version = VERSION.get(info) as u8;
        if version != 1 {
            return Err(CorruptDdt::LogHeader { len: bonus.len(), version });
        }
        Ok(Self {
            flags: LogFlags::from_bits_retain(FLAGS.get(info) as u8),
            length,
            first_txg,
            checkpoint: DdtKey { checksum: [a, b, c, d], prop },
        })
    }

    /// The bonus buffer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let info = 1 | u64::from(self.flags.bits()) << 8;
        let mut bytes = words::to_bytes(&[info, self.length, self.first_txg]);
        bytes.extend(words::to_bytes(&self.checkpoint.to_words()));
        bytes
    }
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Type number of the store that holds an older copy: 0 ZAP, 1 none.
    pub store_type: u8,
    /// Class of the store that holds an older copy; `None` = none.
    pub store_class: Option<DdtClass>,
    /// Key.
    pub key: DdtKey,
    /// Value; all zero for a pruned entry.
    pub phys: DdtPhys,
}

/// The records of one block of a log, little-endian. Ends at the padding or after an error.
pub fn records(block: &[u8]) -> Records<'_> {
    Records { block, offset: 0 }
}

/// Iterator over the records of a block.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    block: &'a [u8],
    offset: usize,
}

impl Iterator for Records<'_> {
    type Item = Result<LogRecord, CorruptDdt>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let rest = self.block.get(offset..)?;
        let info = words::u64_at(rest, 0)?;
        let kind = KIND.get(info) as u8;
        if kind == 0 {
            self.offset = self.block.len();
            return None;
        }
        let len = LENGTH.get(info) as usize;
        let record = rest.get(..len).filter(|_| kind == 1).and_then(|bytes| decode(info, bytes));
        self.offset = if record.is_some() { offset.saturating_add(len) } else { usize::MAX };
        Some(record.ok_or(CorruptDdt::LogRecord { offset, kind, len }))
    }
}

fn decode(info: u64, bytes: &[u8]) -> Option<LogRecord> {
    let key: [u64; 5] = words::exact(bytes.get(8..)?)?;
    let phys = bytes.get(48..DDT_LOG_RECORD_LEN)?;
    Some(LogRecord {
        store_type: STORE_TYPE.get(info) as u8,
        store_class: DdtClass::from_id(STORE_CLASS.get(info) as u8),
        key: DdtKey::from_words(&key).ok()?,
        phys: DdtPhys::decode(phys, DdtLayout::Flat, Endian::Little).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_of_records() {
        let mut record = vec![0x0301_0000_0000_7801];
        record.extend([1, 2, 3, 4, 0xff]);
        record.extend([0x73, 0x10, 0, 0, 0, 0, 2, 17, 99]);
        let mut block = words::to_bytes(&record);
        block.extend(block.clone());
        block.resize(512, 0);
        let got: Vec<_> = records(&block).map(Result::unwrap).collect();
        assert_eq!(got.len(), 2);
        assert_eq!((got[0].store_type, got[0].store_class), (1, None));
        assert_eq!((got[0].key.checksum, got[0].phys.refcount()), ([1, 2, 3, 4], 2));
        block[120] = 2;
        let want = CorruptDdt::LogRecord { offset: 120, kind: 2, len: 120 };
        assert_eq!(records(&block).last(), Some(Err(want)));
        block[120..123].copy_from_slice(&[1, 8, 0]);
        let want = CorruptDdt::LogRecord { offset: 120, kind: 1, len: 8 };
        assert_eq!(records(&block).last(), Some(Err(want)));
    }

    #[test]
    fn header() {
        let key = DdtKey { checksum: [5; 4], prop: 6 };
        let phys = LogPhys {
            flags: LogFlags::FLUSHING | LogFlags::CHECKPOINT,
            length: 131_072,
            first_txg: 16,
            checkpoint: key,
        };
        assert_eq!(LogPhys::decode(&phys.encode()), Ok(phys));
        assert!(LogPhys::decode(&[0; 64]).is_err());
    }

    proptest! {
        #[test]
        fn random_blocks_never_panic(words_ in proptest::collection::vec(any::<u64>(), 0..64), len: u8) {
            let mut bytes = words::to_bytes(&words_);
            if let Some(head) = bytes.first_chunk_mut::<3>() {
                *head = [1, len, 0];
            }
            prop_assert!(records(&bytes).count() <= 64);
            let _ = LogPhys::decode(&bytes);
        }
    }
}
