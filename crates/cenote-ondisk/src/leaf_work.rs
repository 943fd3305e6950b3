//! How far trim and initialize of a leaf have come: entries of the leaf's ZAP (spec 05 §9, 08 §35).
//!
//! All are u64. Absent entries say that it never ran; what is 0 is mostly absent as well.

use crate::vdev_zap::{
    INITIALIZE_ACTION_TIME, INITIALIZE_LAST_OFFSET, INITIALIZE_STATE, TRIM_ACTION_TIME,
    TRIM_LAST_OFFSET, TRIM_PARTIAL, TRIM_RATE, TRIM_SECURE, TRIM_STATE,
};

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafWorkKind {
    /// Discarding what is free.
    Trim,
    /// Filling what is free.
    Initialize,
}

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LeafWorkState {
    /// It never ran.
    #[default]
    None,
    /// It runs, or goes on when the pool is opened.
    Active,
    /// Given up.
    Canceled,
    /// Held until somebody lets it go on.
    Suspended,
    /// Done.
    Complete,
}

impl LeafWorkState {
    /// As stored.
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

    /// From what is stored; a number that nobody writes is none.
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

/// The names of the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafWorkKeys {
    /// State.
    pub state: &'static str,
    /// Bytes of the leaf's data area that are done.
    pub offset: &'static str,
    /// When it began, or ended; seconds since 1970.
    pub time: &'static str,
    /// Rate, partial, secure; trim only.
    pub settings: Option<[&'static str; 3]>,
}

impl LeafWorkKind {
    /// The names of its entries.
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

    /// The command that does it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trim => "trim",
            Self::Initialize => "initialize",
        }
    }
}

/// What is stored of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeafWork {
    /// How it stands.
    pub state: LeafWorkState,
    /// Bytes of the leaf's data area that are done.
    pub offset: u64,
    /// When it began, or ended; seconds since 1970.
    pub time: u64,
    /// Bytes in a second at most; 0 for as fast as it goes.
    pub rate: u64,
    /// Metaslabs that were never used are left out.
    pub is_partial: bool,
    /// What is discarded must not be readable any more.
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
