//! Why a change of an object set is refused, and what must never happen.

/// Refusals, and broken invariants of the write path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// A later txg changed the set already; try again in that one.
    #[error("txg {txg} is too late for a change: txg {newest} has some")]
    TxgPassed {
        /// Txg of the change.
        txg: u64,
        /// Newest txg with changes.
        newest: u64,
    },
    /// The number is taken, or was freed in this very txg.
    #[error("object {object} is in use")]
    Taken {
        /// The number.
        object: u64,
    },
    /// The dnode would cross the end of its block of dnodes.
    #[error("a dnode of {slots} slots does not fit at object {object}")]
    Slots {
        /// The number.
        object: u64,
        /// Slots asked for.
        slots: usize,
    },
    /// No object number is left.
    #[error("no object number is free")]
    NoNumber,
    /// The block size cannot be.
    #[error("block size {size} is not 512 bytes to 16 MiB")]
    BlockSize {
        /// Bytes asked for.
        size: u64,
    },
    /// The block size cannot change any more.
    #[error("the block size is fixed: the object has {blocks} blocks")]
    FixedBlockSize {
        /// Blocks that the object may have.
        blocks: u64,
    },
    /// The size of indirect blocks cannot be, or cannot change any more.
    #[error("indirect block shift {shift} cannot be set")]
    IndirectShift {
        /// Log2 of bytes asked for.
        shift: u8,
    },
    /// The bonus is too long.
    #[error("bonus of {len} bytes, there is room for {capacity}")]
    BonusLength {
        /// Bytes asked for.
        len: usize,
        /// Bytes there are.
        capacity: usize,
    },
    /// A spill block is 512 bytes to 128 KiB, whole sectors.
    #[error("spill block of {len} bytes")]
    SpillLength {
        /// Bytes asked for.
        len: usize,
    },
    /// A spill block of zeros would become a hole, and the object one with a spill pointer to
    /// nothing.
    #[error("spill block of zeros")]
    SpillZero,
    /// A whole block has another length.
    #[error("block of {len} bytes, expected {expected}")]
    BlockLength {
        /// Bytes given.
        len: usize,
        /// Bytes of the object's blocks.
        expected: u64,
    },
    /// A write or free beyond what an object can have.
    #[error("byte {offset} is beyond the largest object")]
    Offset {
        /// The byte.
        offset: u64,
    },
    /// The object type means nothing, or is none.
    #[error("object type {0:#x} is unknown")]
    ObjectType(u8),
    /// The set has no room for this: it is encrypted.
    #[error("encrypted object sets are not written")]
    Encrypted,
    /// The block that was asked for is needed again and again.
    #[error("a block was read and is still missing")]
    StillMissing,
    /// Invariant: a set is synced by one at a time, in the order of txgs.
    #[error("invariant V1: sync of txg {txg} while {found}")]
    SyncOrder {
        /// Txg of the call.
        txg: u64,
        /// What stands against it.
        found: &'static str,
    },
    /// Invariant: all space of a freed object is accounted for.
    #[error("invariant D1: object is charged {used} bytes, its blocks had {found}")]
    SpaceLeft {
        /// What the dnode says.
        used: u64,
        /// Sum over its blocks.
        found: u64,
    },
    /// Invariant: what is charged never goes below zero.
    #[error("invariant D2: object is charged {used} bytes, and {delta} come on top")]
    SpaceNegative {
        /// What the dnode says.
        used: u64,
        /// Change.
        delta: i64,
    },
    /// Invariant: a block written has the shape that was asked for.
    #[error("invariant D3: written pointer has level {level}, birth {birth}, {lsize} bytes")]
    WrittenShape {
        /// Level in the pointer.
        level: u8,
        /// Birth in the pointer.
        birth: u64,
        /// Logical size in the pointer.
        lsize: u64,
    },
    /// Invariant: a layer is applied to the tree it was made for.
    #[error("invariant D4: {0}")]
    Layer(&'static str),
}
