//! The pool's history: a ring of records in one object (spec 04 §23, 01 §13).
//!
//! ```text
//!   physical   0 …… create_len ………………………………………… phys_max_off
//!                   |  ring: logical offsets only grow  |
//!   record     length u64 (always little-endian) | nvlist, native encoding
//! ```
//!
//! The creation part at the start is never overwritten. A logical offset maps to `create_len +
//! (logical - create_len) mod (phys_max_off - create_len)`; records and even the length word may
//! wrap. The reader of the object passes the two ranges of [`HistoryPhys::live`] in one piece;
//! [`records`] splits it.

use crate::words;
use std::ops::Range;

/// Bytes of the header.
pub const HISTORY_PHYS_LEN: usize = 40;

/// Keys of records.
pub mod key {
    /// Command line.
    pub const COMMAND: &str = "history command";
    /// Uid of the user.
    pub const WHO: &str = "history who";
    /// Zone.
    pub const ZONE: &str = "history zone";
    /// Host.
    pub const HOSTNAME: &str = "history hostname";
    /// Seconds since 1970.
    pub const TIME: &str = "history time";
    /// Txg of an internal event.
    pub const TXG: &str = "history txg";
    /// Text of an internal event.
    pub const INTERNAL_STR: &str = "history internal str";
    /// Name of an internal event.
    pub const INTERNAL_NAME: &str = "internal_name";
    /// Number of an internal event, pool versions below 5000.
    pub const INTERNAL_EVENT: &str = "history internal event";
    /// Dataset of an internal event.
    pub const DSNAME: &str = "dsname";
    /// Its object.
    pub const DSID: &str = "dsid";
    /// Name of an ioctl.
    pub const IOCTL: &str = "ioctl";
    /// Its input.
    pub const INPUT: &str = "in_nvl";
    /// Its output.
    pub const OUTPUT: &str = "out_nvl";
    /// Length of the output, if it was too large to log.
    pub const OUTPUT_SIZE: &str = "out_size";
    /// Its result.
    pub const ERRNO: &str = "errno";
    /// Duration in nanoseconds.
    pub const ELAPSED_NS: &str = "elapsed_ns";
}

/// Why a history is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptHistory {
    /// The bonus is too short.
    #[error("history: bonus of {len} bytes, expected 40")]
    Length {
        /// Bytes found.
        len: usize,
    },
    /// The offsets contradict one another.
    #[error("history: records {bof}..{eof}, ring {create_len}..{phys_max_off}")]
    Offsets {
        /// First live byte.
        bof: u64,
        /// Past the last.
        eof: u64,
        /// End of the creation part.
        create_len: u64,
        /// End of the ring.
        phys_max_off: u64,
    },
    /// A record is incomplete.
    #[error("history: record of {len} bytes at {offset}, {left} bytes left")]
    Record {
        /// Offset in the given bytes.
        offset: usize,
        /// Length according to its first word.
        len: u64,
        /// Bytes behind that word.
        left: usize,
    },
}

/// Header (`spa_history_phys_t`), in the bonus of the object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HistoryPhys {
    /// Bytes of the creation part.
    pub create_len: u64,
    /// End of the ring.
    pub phys_max_off: u64,
    /// First live logical byte.
    pub bof: u64,
    /// Past the last.
    pub eof: u64,
    /// Records overwritten.
    pub records_lost: u64,
}

impl HistoryPhys {
    /// Decodes the bonus buffer.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptHistory> {
        let [create_len, phys_max_off, bof, eof, records_lost] =
            words::exact(bonus).ok_or(CorruptHistory::Length { len: bonus.len() })?;
        let ring = phys_max_off.checked_sub(create_len);
        let live = eof.checked_sub(bof);
        match (ring, live) {
            (Some(ring), Some(live)) if bof >= create_len && live <= ring => {
                Ok(Self { create_len, phys_max_off, bof, eof, records_lost })
            }
            _ => Err(CorruptHistory::Offsets { bof, eof, create_len, phys_max_off }),
        }
    }

    /// The bonus buffer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words::to_bytes(&[
            self.create_len,
            self.phys_max_off,
            self.bof,
            self.eof,
            self.records_lost,
        ])
    }

    /// Offset in the object of a logical offset of the ring.
    #[must_use]
    pub const fn physical(&self, logical: u64) -> u64 {
        let Some(in_ring) = logical.checked_sub(self.create_len) else { return logical };
        let ring = self.phys_max_off.saturating_sub(self.create_len);
        match in_ring.checked_rem(ring) {
            Some(rest) => self.create_len.saturating_add(rest),
            None => self.create_len,
        }
    }

    /// The ranges of the object that hold the live part of the ring, in order; the second is empty
    /// unless it wraps. The creation part is `0..create_len` before both.
    #[must_use]
    pub const fn live(&self) -> [Range<u64>; 2] {
        let len = self.eof.saturating_sub(self.bof);
        let start = self.physical(self.bof);
        let end = start.saturating_add(len);
        if end <= self.phys_max_off {
            return [start..end, 0..0];
        }
        let wrapped = end.saturating_sub(self.phys_max_off);
        [start..self.phys_max_off, self.create_len..self.create_len.saturating_add(wrapped)]
    }
}

/// Splits bytes into records, each a packed nvlist. Ends after an error.
pub fn records(bytes: &[u8]) -> Records<'_> {
    Records { bytes, offset: 0 }
}

/// Iterator over the records of a history.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<&'a [u8], CorruptHistory>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.offset..).filter(|rest| !rest.is_empty())?;
        let body = rest.get(8..).unwrap_or(&[]);
        let len = words::u64_at(rest, 0).unwrap_or(0);
        let record = usize::try_from(len).ok().and_then(|len| body.get(..len));
        let Some(record) = record.filter(|_| rest.len() >= 8) else {
            let offset = self.offset;
            self.offset = self.bytes.len();
            return Some(Err(CorruptHistory::Record { offset, len, left: body.len() }));
        };
        self.offset = self.offset.saturating_add(8).saturating_add(record.len());
        Some(Ok(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Spec 04 §23.
    #[test]
    fn a_real_header_and_a_ring() {
        let words_ = [12_664, 150_994, 12_664, 26_376, 0];
        let phys = HistoryPhys::decode(&words::to_bytes(&words_)).unwrap();
        assert_eq!(phys.live(), [12_664..26_376, 0..0]);
        assert_eq!(phys.encode(), words::to_bytes(&words_));
        let ring =
            HistoryPhys { create_len: 10, phys_max_off: 30, bof: 45, eof: 60, records_lost: 1 };
        assert_eq!(ring.live(), [25..30, 10..20]);
        for (create_len, max, bof, eof) in
            [(20, 10, 20, 20), (0, 10, 5, 4), (0, 10, 0, 11), (5, 10, 4, 5)]
        {
            let bytes = words::to_bytes(&[create_len, max, bof, eof, 0]);
            assert!(HistoryPhys::decode(&bytes).is_err(), "{create_len} {max} {bof} {eof}");
        }
    }

    #[test]
    fn record_framing() {
        let mut bytes = words::to_bytes(&[3]);
        bytes.extend(b"abc");
        bytes.extend(words::to_bytes(&[0, 9]));
        bytes.extend(b"de");
        let got: Vec<_> = records(&bytes).collect();
        assert_eq!(
            got,
            [
                Ok(&b"abc"[..]),
                Ok(&b""[..]),
                Err(CorruptHistory::Record { offset: 19, len: 9, left: 2 }),
            ]
        );
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, fields: [u64; 5]) {
            let _ = records(&bytes).count();
            if let Ok(phys) = HistoryPhys::decode(&words::to_bytes(&fields)) {
                let [first, second] = phys.live();
                let total = u128::from(first.end - first.start) + u128::from(second.end - second.start);
                prop_assert_eq!(total, u128::from(phys.eof - phys.bof));
            }
        }
    }
}
