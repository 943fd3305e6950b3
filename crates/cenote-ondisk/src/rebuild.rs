//! State of a sequential rebuild, in the ZAP of a top-level vdev (spec 06 §9.2).

/// Number of words of a stored state.
pub const REBUILD_WORDS: usize = 12;

/// How far a rebuild is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildState {
    /// There was none.
    None,
    /// In progress.
    Active,
    /// Cancelled.
    Canceled,
    /// Completed.
    Complete,
    /// A number that is not known.
    Other(u64),
}

impl RebuildState {
    const fn from_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Active,
            2 => Self::Canceled,
            3 => Self::Complete,
            other => Self::Other(other),
        }
    }

    const fn to_word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Active => 1,
            Self::Canceled => 2,
            Self::Complete => 3,
            Self::Other(word) => word,
        }
    }
}

/// A stored state (`vdev_rebuild_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuildPhys {
    /// How far it is.
    pub state: RebuildState,
    /// What lies before this offset of the vdev is done.
    pub last_offset: u64,
    /// First txg that new devices lack.
    pub min_txg: u64,
    /// Txg after the last one that new devices lack.
    pub max_txg: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Milliseconds of work.
    pub scan_time_ms: u64,
    /// Bytes of allocated ranges that were found.
    pub bytes_scanned: u64,
    /// Bytes read.
    pub bytes_issued: u64,
    /// Bytes written.
    pub bytes_rebuilt: u64,
    /// Allocated bytes at the start.
    pub bytes_est: u64,
    /// Ranges that could not be read.
    pub errors: u64,
}

impl RebuildPhys {
    /// Decodes the words of the ZAP value; missing ones are 0.
    #[must_use]
    pub fn decode(words: &[u64]) -> Self {
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        Self {
            state: RebuildState::from_word(word(0)),
            last_offset: word(1),
            min_txg: word(2),
            max_txg: word(3),
            start_time: word(4),
            end_time: word(5),
            scan_time_ms: word(6),
            bytes_scanned: word(7),
            bytes_issued: word(8),
            bytes_rebuilt: word(9),
            bytes_est: word(10),
            errors: word(11),
        }
    }

    /// The words of the ZAP value.
    #[must_use]
    pub const fn encode(&self) -> [u64; REBUILD_WORDS] {
        [
            self.state.to_word(),
            self.last_offset,
            self.min_txg,
            self.max_txg,
            self.start_time,
            self.end_time,
            self.scan_time_ms,
            self.bytes_scanned,
            self.bytes_issued,
            self.bytes_rebuilt,
            self.bytes_est,
            self.errors,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let words = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let phys = RebuildPhys::decode(&words);
        assert_eq!((phys.state, phys.errors, phys.encode()), (RebuildState::Active, 12, words));
        let short = RebuildPhys::decode(&[9]);
        assert_eq!((short.state, short.errors), (RebuildState::Other(9), 0));
        assert_eq!(short.encode()[0], 9);
    }
}
