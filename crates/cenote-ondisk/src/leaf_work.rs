//! Progress of trim and initialize of a leaf: entries of the leaf's ZAP (spec 05 §9, 08 §35).
//!
//! All are u64. Absent entries mean that it never ran; entries of value 0 are mostly absent as
//! well.

use crate::vdev_zap::{
    INITIALIZE_ACTION_TIME, INITIALIZE_LAST_OFFSET, INITIALIZE_STATE, TRIM_ACTION_TIME,
    TRIM_LAST_OFFSET, TRIM_PARTIAL, TRIM_RATE, TRIM_SECURE, TRIM_STATE,
};

/// Trim or initialize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafWorkKind {
    /// Discards free space.
    Trim,
    /// Writes to all free space.
    Initialize,
}

/// State of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LeafWorkState {
    /// It never ran.
    #[default]
    None,
    /// It runs, or resumes when the pool is opened.
    Active,
    /// Canceled.
    Canceled,
    /// Suspended until it is resumed.
    Suspended,
    /// Done.
    Complete,
}

impl LeafWorkState {
    /// The stored number.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Active => 1,
            Self::Canceled => 2,
            Self::Suspended => 3,
            Self::Complete => 4,
        }
    }

    /// Decodes the stored number; unknown numbers mean `None`.
    #[must_use]
    pub const fn of_number(number: u64) -> Self {
        match number {
            1 => Self::Active,
            2 => Self::Canceled,
            3 => Self::Suspended,
            4 => Self::Complete,
            _ => Self::None,
        }
    }
}

/// The names of the ZAP entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafWorkKeys {
    /// State.
    pub state: &'static str,
    /// Bytes of the leaf's data area that are done.
    pub offset: &'static str,
    /// Time of start or end, seconds since 1970.
    pub time: &'static str,
    /// Rate, partial, secure; trim only.
    pub settings: Option<[&'static str; 3]>,
}

impl LeafWorkKind {
    /// The names of the ZAP entries.
    #[must_use]
    pub const fn keys(self) -> LeafWorkKeys {
        match self {
            Self::Trim => LeafWorkKeys {
                state: TRIM_STATE,
                offset: TRIM_LAST_OFFSET,
                time: TRIM_ACTION_TIME,
                settings: Some([TRIM_RATE, TRIM_PARTIAL, TRIM_SECURE]),
            },
            Self::Initialize => LeafWorkKeys {
                state: INITIALIZE_STATE,
                offset: INITIALIZE_LAST_OFFSET,
                time: INITIALIZE_ACTION_TIME,
                settings: None,
            },
        }
    }

    /// The name of the command.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trim => "trim",
            Self::Initialize => "initialize",
        }
    }
}

/// The stored state of a trim or initialize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeafWork {
    /// State.
    pub state: LeafWorkState,
    /// Bytes of the leaf's data area that are done.
    pub offset: u64,
    /// Time of start or end, seconds since 1970.
    pub time: u64,
    /// Most bytes per second; 0 for no limit.
    pub rate: u64,
    /// Whether metaslabs that were never used are skipped.
    pub is_partial: bool,
    /// Whether discarded data must be erased.
    pub is_secure: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_of_the_format() {
        for number in 0..5 {
            assert_eq!(LeafWorkState::of_number(number).number(), number);
        }
        assert_eq!(LeafWorkState::of_number(5), LeafWorkState::None);
    }
}
