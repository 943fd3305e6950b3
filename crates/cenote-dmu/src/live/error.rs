//! Refused changes of an object set, and broken invariants.

/// Why a change is refused, and broken invariants of the write path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// A later txg already changed the set; retry in that one.
    #[error("txg {txg} is too late for a change: txg {newest} has some")]
    TxgPassed {
        /// Txg of the change.
        txg: u64,
        /// Newest txg with changes.
        newest: u64,
    },
    /// Others kept changing the set while the parts of a change were run.
    #[error("txg {txg}: the set changed too often beside a change of many parts")]
    Restless {
        /// Txg of the change.
        txg: u64,
    },
    /// The number is allocated, or was freed in this txg.
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
        /// Slots requested.
        slots: usize,
    },
    /// All object numbers are allocated.
    #[error("no object number is free")]
    NoNumber,
    /// The block size is invalid.
    #[error("block size {size} is not 512 bytes to 16 MiB")]
    BlockSize {
        /// Bytes requested.
        size: u64,
    },
    /// The block size cannot change any more.
    #[error("the block size is fixed: the object has {blocks} blocks")]
    FixedBlockSize {
        /// Blocks that the object may have.
        blocks: u64,
    },
    /// The size of indirect blocks is invalid, or cannot change any more.
    #[error("indirect block shift {shift} cannot be set")]
    IndirectShift {
        /// Log2 of bytes asked for.
        shift: u8,
    },
    /// The bonus is too long.
    #[error("bonus of {len} bytes, there is room for {capacity}")]
    BonusLength {
        /// Bytes requested.
        len: usize,
        /// Bytes available.
        capacity: usize,
    },
    /// A spill block must be 512 bytes to 128 KiB, in whole sectors.
    #[error("spill block of {len} bytes")]
    SpillLength {
        /// Bytes requested.
        len: usize,
    },
    /// A spill block of zeros would become a hole, and the dnode would have a spill flag without a
    /// spill block.
    #[error("spill block of zeros")]
    SpillZero,
    /// The length of a whole block is wrong.
    #[error("block of {len} bytes, expected {expected}")]
    BlockLength {
        /// Bytes given.
        len: usize,
        /// Bytes of the object's blocks.
        expected: u64,
    },
    /// A write or free beyond the largest possible size of an object.
    #[error("byte {offset} is beyond the largest object")]
    Offset {
        /// The byte.
        offset: u64,
    },
    /// The object type is invalid.
    #[error("object type {0:#x} is unknown")]
    ObjectType(u8),
    /// The set is encrypted, and its keys are not loaded.
    #[error("the object set is encrypted, and its key is not loaded")]
    Locked,
    /// A changed block of dnodes was not encrypted by the sender of a stream.
    #[error("a block of dnodes is changed without the sender's tag for it")]
    Unsealed,
    /// The root of the set has another shape than at the sender of a stream.
    #[error("the meta-dnode has another shape than the sender's")]
    OtherRoot,
    /// A dnode cannot get so few levels.
    #[error("a tree of {present} levels cannot have {wanted}")]
    Levels {
        /// Levels that it has.
        present: u8,
        /// Levels requested.
        wanted: u8,
    },
    /// The block that was requested is still missing after it was read.
    #[error("a block was read and is still missing")]
    StillMissing,
    /// Invariant V1: one sync at a time, in the order of txgs.
    #[error("invariant V1: sync of txg {txg} while {found}")]
    SyncOrder {
        /// Txg of the call.
        txg: u64,
        /// The conflict.
        found: &'static str,
    },
    /// New contents of an encrypted set without keys, which another pool has not encrypted.
    #[error("object {object} of an encrypted dataset is changed without its key")]
    Keyless {
        /// The object.
        object: u64,
    },
    /// Invariant D1: all space of a freed object is accounted for.
    #[error("invariant D1: object is charged {used} bytes, its blocks had {found}")]
    SpaceLeft {
        /// Space according to the dnode.
        used: u64,
        /// Sum over its blocks.
        found: u64,
    },
    /// Invariant D2: an object's space never goes below zero.
    #[error("invariant D2: object is charged {used} bytes, and changes by {delta}")]
    SpaceNegative {
        /// Space according to the dnode.
        used: u64,
        /// The change.
        delta: i64,
    },
    /// Invariant D3: a written block has the requested shape.
    #[error("invariant D3: written pointer has level {level}, birth {birth}, {lsize} bytes")]
    WrittenShape {
        /// Level in the pointer.
        level: u8,
        /// Birth in the pointer.
        birth: u64,
        /// Logical size in the pointer.
        lsize: u64,
    },
    /// Invariant D4: a layer is applied to the tree for which it was made.
    #[error("invariant D4: {0}")]
    Layer(&'static str),
}
