//! How a closure over a [`Tx`](super::Tx) ends, and what it may ask for.

use cenote_block::Since;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::Error;

/// A block that must be read before the closure can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Its pointer.
    pub pointer: BlockPtr,
    /// Its place.
    pub place: Bookmark,
    /// When the pointer was looked up.
    pub since: Since,
}

/// Why a closure stopped.
#[derive(Debug)]
pub enum Step {
    /// It needs a block: run it again when that is there. Never to be swallowed by the closure.
    Need(Box<Missing>),
    /// It failed.
    Fail(Error),
}

impl Step {
    /// The error, if the closure failed.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        match self {
            Self::Need(_) => None,
            Self::Fail(error) => Some(error),
        }
    }
}

impl From<Error> for Step {
    fn from(error: Error) -> Self {
        Self::Fail(error)
    }
}

/// The result of everything that works on a [`Tx`](super::Tx).
pub type TxResult<T> = Result<T, Step>;

/// An object to be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectSpec {
    /// Number to claim; `None`: any free one.
    pub number: Option<u64>,
    /// Type.
    pub object_type: ObjectType,
    /// Bytes of a data block, rounded up to sectors; 0: 512.
    pub block_size: u64,
    /// Log2 of the bytes of an indirect block, 12 to 17; 0: 17.
    pub indirect_shift: u8,
    /// Type of the bonus.
    pub bonus_type: ObjectType,
    /// Bytes of the bonus, all zero at first.
    pub bonus_len: usize,
    /// Slots of 512 bytes that the dnode takes, 1 to 32; 0: 1.
    pub slots: usize,
}

impl ObjectSpec {
    /// An object of that type with blocks of that size, without a bonus.
    #[must_use]
    pub const fn new(object_type: ObjectType, block_size: u64) -> Self {
        Self {
            number: None,
            object_type,
            block_size,
            indirect_shift: 0,
            bonus_type: ObjectType::NONE,
            bonus_len: 0,
            slots: 1,
        }
    }

    /// The same with a bonus.
    #[must_use]
    pub const fn with_bonus(self, bonus_type: ObjectType, bonus_len: usize) -> Self {
        Self { bonus_type, bonus_len, ..self }
    }

    /// The same under a number of the caller's choice.
    #[must_use]
    pub const fn with_number(self, number: u64) -> Self {
        Self { number: Some(number), ..self }
    }
}
