//! State of scrub, resilver and error scrub, as kept in the pool directory (spec 04 §21, 06 §14).
//!
//! The value is an array of 24 u64 (error scrub: 9). Old releases wrote fewer words for the same
//! state, and a few wrote 25, which is a known corruption (errata 2094): it is reported, not read.

use crate::bookmark::Bookmark;
use bitflags::bitflags;

/// Pool directory: state of the scan.
pub const SCAN: &str = "scan";
/// Pool directory: state of the error scrub.
pub const ERROR_SCRUB: &str = "error_scrub";
/// Pool directory: largest txg of the last completed scrub.
pub const LAST_SCRUBBED_TXG: &str = "last_scrubbed_txg";
/// Words of the scan state.
pub const SCAN_WORDS: usize = 24;
/// Words of the error scrub state.
pub const ERROR_SCRUB_WORDS: usize = 9;

/// A scan state has more words than any release wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("scan state: {count} words, expected at most {expected}")]
pub struct CorruptScan {
    /// Words found.
    pub count: usize,
    /// Words of the structure.
    pub expected: usize,
}

/// The kind of scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanFunc {
    /// Nothing.
    None,
    /// Reads all blocks.
    Scrub,
    /// Repairs blocks that devices missed.
    Resilver,
    /// Reads the blocks in the error log.
    ErrorScrub,
    /// Of newer software.
    Unknown(u64),
}

impl ScanFunc {
    /// From a stored word.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Scrub,
            2 => Self::Resilver,
            3 => Self::ErrorScrub,
            other => Self::Unknown(other),
        }
    }

    /// The stored word.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Scrub => 1,
            Self::Resilver => 2,
            Self::ErrorScrub => 3,
            Self::Unknown(other) => other,
        }
    }
}

/// The state of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanState {
    /// Never started.
    None,
    /// Running.
    Scanning,
    /// Ended.
    Finished,
    /// Canceled.
    Canceled,
    /// Error scrub running.
    ErrorScrubbing,
    /// Of newer software.
    Unknown(u64),
}

impl ScanState {
    /// From a stored word.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Scanning,
            2 => Self::Finished,
            3 => Self::Canceled,
            4 => Self::ErrorScrubbing,
            other => Self::Unknown(other),
        }
    }

    /// The stored word.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Scanning => 1,
            Self::Finished => 2,
            Self::Canceled => 3,
            Self::ErrorScrubbing => 4,
            Self::Unknown(other) => other,
        }
    }
}

bitflags! {
    /// Flags of a scan.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct ScanFlags: u64 {
        /// The dataset in progress must be visited again.
        const VISIT_DS_AGAIN = 1;
        /// Paused.
        const PAUSED = 2;
        /// Development releases.
        const THOROUGH = 4;
        const _ = !0;
    }
}

/// State of a scan (`dsl_scan_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanPhys {
    /// What it does.
    pub func: ScanFunc,
    /// How far it is.
    pub state: ScanState,
    /// ZAP dataset → min txg, 0 when idle.
    pub queue_obj: u64,
    /// Blocks born after this (exclusive).
    pub min_txg: u64,
    /// Blocks physically born up to this.
    pub max_txg: u64,
    /// Like `min_txg`, for the dataset in progress.
    pub cur_min_txg: u64,
    /// Like `max_txg`, for the dataset in progress.
    pub cur_max_txg: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Bytes allocated at the start.
    pub to_examine: u64,
    /// Bytes whose blocks were visited.
    pub examined: u64,
    /// Bytes not read after all.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Errors.
    pub errors: u64,
    /// Dedup classes up to this are walked in the table.
    pub ddt_class_max: u64,
    /// Position in the dedup tables: class, type, checksum, cursor.
    pub ddt_bookmark: [u64; 4],
    /// Position in the trees; objset 2^64-1: nothing is left.
    pub bookmark: Bookmark,
    /// Flags.
    pub flags: ScanFlags,
}

fn padded<const N: usize>(words: &[u64]) -> Result<[u64; N], CorruptScan> {
    if words.len() > N {
        return Err(CorruptScan { count: words.len(), expected: N });
    }
    let mut padded = [0; N];
    for (slot, word) in padded.iter_mut().zip(words) {
        *slot = *word;
    }
    Ok(padded)
}

impl ScanPhys {
    /// Decodes the words of the ZAP value.
    pub fn decode(words: &[u64]) -> Result<Self, CorruptScan> {
        Ok(Self::from_words(&padded(words)?))
    }

    /// From the words of the ZAP value.
    #[must_use]
    pub fn from_words(w: &[u64; SCAN_WORDS]) -> Self {
        Self {
            func: ScanFunc::from_word(w[0]),
            state: ScanState::from_word(w[1]),
            queue_obj: w[2],
            min_txg: w[3],
            max_txg: w[4],
            cur_min_txg: w[5],
            cur_max_txg: w[6],
            start_time: w[7],
            end_time: w[8],
            to_examine: w[9],
            examined: w[10],
            skipped: w[11],
            processed: w[12],
            errors: w[13],
            ddt_class_max: w[14],
            ddt_bookmark: [w[15], w[16], w[17], w[18]],
            bookmark: Bookmark::from_words([w[19], w[20], w[21], w[22]]),
            flags: ScanFlags::from_bits_retain(w[23]),
        }
    }

    /// The words of the ZAP value.
    #[must_use]
    pub fn encode(&self) -> [u64; SCAN_WORDS] {
        let [d0, d1, d2, d3] = self.ddt_bookmark;
        let [b0, b1, b2, b3] = self.bookmark.to_words();
        [
            self.func.to_word(),
            self.state.to_word(),
            self.queue_obj,
            self.min_txg,
            self.max_txg,
            self.cur_min_txg,
            self.cur_max_txg,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.skipped,
            self.processed,
            self.errors,
            self.ddt_class_max,
            d0,
            d1,
            d2,
            d3,
            b0,
            b1,
            b2,
            b3,
            self.flags.bits(),
        ]
    }
}

/// State of an error scrub (`dsl_errorscrub_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorScrubPhys {
    /// What it does.
    pub func: ScanFunc,
    /// How far it is.
    pub state: ScanState,
    /// Serialized cursor in the error log.
    pub cursor: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Entries at the start.
    pub to_examine: u64,
    /// Entries done.
    pub examined: u64,
    /// Errors that remain.
    pub errors: u64,
    /// 1 = paused.
    pub paused_flags: u64,
}

impl ErrorScrubPhys {
    /// Decodes the words of the ZAP value.
    pub fn decode(words: &[u64]) -> Result<Self, CorruptScan> {
        let w: [u64; ERROR_SCRUB_WORDS] = padded(words)?;
        Ok(Self {
            func: ScanFunc::from_word(w[0]),
            state: ScanState::from_word(w[1]),
            cursor: w[2],
            start_time: w[3],
            end_time: w[4],
            to_examine: w[5],
            examined: w[6],
            errors: w[7],
            paused_flags: w[8],
        })
    }

    /// The words of the ZAP value.
    #[must_use]
    pub const fn encode(&self) -> [u64; ERROR_SCRUB_WORDS] {
        [
            self.func.to_word(),
            self.state.to_word(),
            self.cursor,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.errors,
            self.paused_flags,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A finished scrub, spec 04 §21.
    #[test]
    fn a_real_state() {
        let mut words = [0; 24];
        words[..12].copy_from_slice(&[1, 2, 0, 0, 40, 1, 40, 7, 9, 8_122_368, 8_122_368, 101_376]);
        words[14..16].copy_from_slice(&[1, 3]);
        words[19] = u64::MAX;
        let scan = ScanPhys::decode(&words).unwrap();
        assert_eq!((scan.func, scan.state), (ScanFunc::Scrub, ScanState::Finished));
        assert_eq!((scan.max_txg, scan.skipped, scan.ddt_class_max), (40, 101_376, 1));
        assert_eq!(scan.bookmark.objset, u64::MAX);
        assert_eq!(scan.encode(), words);
        assert_eq!(ScanPhys::decode(&words[..3]).unwrap().max_txg, 0);
        let long = [0; 25];
        assert_eq!(ScanPhys::decode(&long), Err(CorruptScan { count: 25, expected: 24 }));
        let error_scrub = ErrorScrubPhys::decode(&[3, 4, 1, 2, 3, 4, 5, 6, 1]).unwrap();
        assert_eq!(error_scrub.state, ScanState::ErrorScrubbing);
        assert_eq!(error_scrub.encode(), [3, 4, 1, 2, 3, 4, 5, 6, 1]);
    }
}
