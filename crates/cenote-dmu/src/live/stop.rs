//! Results of closures over a [`Tx`](super::Tx), and specifications of objects.

use cenote_block::Since;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::Error;
use cenote_rt::invariant::Broken;

/// A block that must be read before the closure can continue.
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
pub enum TxStop {
    /// It needs a block: run it again when the block is in memory. The closure must return this
    /// error.
    Need(Box<Missing>),
    /// It failed.
    Fail(Error),
}

impl TxStop {
    /// The error, if the closure failed.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        match self {
            Self::Need(_) => None,
            Self::Fail(error) => Some(error),
        }
    }
}

impl From<Error> for TxStop {
    fn from(error: Error) -> Self {
        Self::Fail(error)
    }
}

impl From<Broken> for TxStop {
    fn from(broken: Broken) -> Self {
        Self::Fail(broken.into())
    }
}

/// The result of all functions over a [`Tx`](super::Tx).
pub type TxResult<T> = Result<T, TxStop>;

/// An object to be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectSpec {
    /// Number to claim; `None` for any free one.
    pub number: Option<u64>,
    /// Type.
    pub object_type: ObjectType,
    /// Size of data blocks in bytes, rounded up to sectors; 0: 512.
    pub block_size: u64,
    /// Log2 of the size of indirect blocks, 12 to 17; 0: 17.
    pub indirect_shift: u8,
    /// Type of the bonus.
    pub bonus_type: ObjectType,
    /// Length of the bonus, which is zeroed.
    pub bonus_len: usize,
    /// Whether it leaves room for the pointer to a spill block.
    pub has_spill: bool,
    /// Number of dnode slots of 512 bytes, 1 to 32; 0: 1.
    pub slots: usize,
}

impl ObjectSpec {
    /// An object with this type and block size, without a bonus.
    #[must_use]
    pub const fn new(object_type: ObjectType, block_size: u64) -> Self {
        Self {
            number: None,
            object_type,
            block_size,
            indirect_shift: 0,
            bonus_type: ObjectType::NONE,
            bonus_len: 0,
            has_spill: false,
            slots: 1,
        }
    }

    /// The object with a bonus.
    #[must_use]
    pub const fn with_bonus(self, bonus_type: ObjectType, bonus_len: usize) -> Self {
        Self { bonus_type, bonus_len, ..self }
    }

    /// The object with room for the pointer to a spill block.
    #[must_use]
    pub const fn with_spill(self) -> Self {
        Self { has_spill: true, ..self }
    }

    /// The object with this number.
    #[must_use]
    pub const fn with_number(self, number: u64) -> Self {
        Self { number: Some(number), ..self }
    }
}
