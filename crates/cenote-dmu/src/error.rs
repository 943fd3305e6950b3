//! Errors of objects, apart from those of their blocks.

/// Why an object or its tree is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DmuError {
    /// The object number is out of range.
    #[error("object number {object} is out of range")]
    ObjectNumber {
        /// The number.
        object: u64,
    },
    /// The dnode is free.
    #[error("no object {object}")]
    NoObject {
        /// The number.
        object: u64,
    },
    /// The slot is in the interior of a larger dnode.
    #[error("no object {object}: its slot is in the interior of a larger dnode")]
    Interior {
        /// The number.
        object: u64,
    },
    /// A pointer has another level than its place requires.
    #[error("block pointer of level {found}, expected {expected}")]
    Level {
        /// Level in the pointer.
        found: u8,
        /// Level of the place.
        expected: u8,
    },
    /// A pointer has another size than its place requires.
    #[error("block pointer of {found} bytes, expected {expected}")]
    BlockSize {
        /// Logical size in the pointer.
        found: u64,
        /// Size according to the dnode.
        expected: u64,
    },
    /// An indirect block is too short for its index.
    #[error("index {index} in an indirect block of {len} bytes")]
    Index {
        /// The index.
        index: usize,
        /// Length of the block in bytes.
        len: usize,
    },
    /// The object set has no root block.
    #[error("object set has no block")]
    NoRoot,
    /// The pointer does not lead to an object set.
    #[error("block pointer of type {found:#x} and level {level}, expected an object set")]
    NotAnObjSet {
        /// Type in the pointer.
        found: u8,
        /// Level in the pointer.
        level: u8,
    },
    /// The object does not have the type that the caller expects.
    #[error("object type {found:#x}, expected {expected}")]
    ObjectType {
        /// Type found.
        found: u8,
        /// Description of the expected type.
        expected: &'static str,
    },
    /// An object is larger than any object of its kind.
    #[error("object of {len} bytes, at most {max} are read")]
    TooLong {
        /// Bytes claimed.
        len: u64,
        /// Largest accepted size.
        max: u64,
    },
    /// A structure claims more bytes than its object has.
    #[error("{claimed} bytes in an object of {object_size}")]
    Short {
        /// Bytes claimed.
        claimed: u64,
        /// Size of the object in bytes.
        object_size: u64,
    },
    /// A bpobj contains itself.
    #[error("bpobj {object} is reached twice")]
    Cycle {
        /// The object.
        object: u64,
    },
    /// A key that should be a hexadecimal number is not one, or its value is not a single integer.
    #[error("zap: key is not a number")]
    NumberKey,
    /// A bpobj of a pool before version 26 cannot have sub-lists.
    #[error("bpobj: header of {len} bytes has no room for sub-lists")]
    FlatBpobj {
        /// Bytes of the header.
        len: usize,
    },
    /// The shared empty bpobj was released more often than it was acquired.
    #[error("bpobj: the shared empty bpobj was released more often than it was acquired")]
    EmptyBpobjCount,
    /// The deadlist has the format of pools before version 26.
    #[error("deadlist: old format without keys")]
    OldDeadlist,
    /// No key of a deadlist is low enough for a birth, or the key does not exist.
    #[error("deadlist: no key for txg {txg}")]
    DeadlistRange {
        /// The birth or key.
        txg: u64,
    },
    /// The entry is not the first one of the bptree's queue.
    #[error("bptree: entry {index} is not the first of {begin}..{end}")]
    BptreeIndex {
        /// The entry.
        index: u64,
        /// First in the queue.
        begin: u64,
        /// Past the last.
        end: u64,
    },
    /// A range is outside of the space map or not a multiple of its unit.
    #[error("space map: range {start:#x}..{end:#x} does not fit units of 2^{shift}")]
    Range {
        /// First byte.
        start: u64,
        /// Past the last.
        end: u64,
        /// Log2 of the unit.
        shift: u8,
    },
    /// A record is larger than the history's ring.
    #[error("history: record of {len} bytes, the ring has {ring}")]
    HistoryRecord {
        /// Bytes of the record.
        len: usize,
        /// Bytes of the ring.
        ring: u64,
    },
}
