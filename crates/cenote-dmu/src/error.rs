//! What is wrong with objects beside their blocks.

/// Every way in which an object or its tree makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DmuError {
    /// No object can have this number.
    #[error("object number {object} cannot be")]
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
    /// The slot is inside of a larger dnode.
    #[error("no object {object}: its slot is inside of a larger dnode")]
    Interior {
        /// The number.
        object: u64,
    },
    /// A pointer's level is not that of its place.
    #[error("block pointer of level {found}, expected {expected}")]
    Level {
        /// Level in the pointer.
        found: u8,
        /// Level of the place.
        expected: u8,
    },
    /// A pointer's size is not that of its place.
    #[error("block pointer of {found} bytes, expected {expected}")]
    BlockSize {
        /// Logical size in the pointer.
        found: u64,
        /// What the dnode says.
        expected: u64,
    },
    /// An indirect block is too short for its index.
    #[error("index {index} in an indirect block of {len} bytes")]
    Index {
        /// The index.
        index: usize,
        /// Bytes of the block.
        len: usize,
    },
    /// The object set has no root block.
    #[error("object set has no block")]
    NoRoot,
    /// A pointer to something else than an object set.
    #[error("block pointer of type {found:#x} and level {level}, expected an object set")]
    NotAnObjSet {
        /// Type in the pointer.
        found: u8,
        /// Level in the pointer.
        level: u8,
    },
    /// The object has another type than its user expects.
    #[error("object type {found:#x}, expected {expected}")]
    ObjectType {
        /// Type found.
        found: u8,
        /// What was expected, in words.
        expected: &'static str,
    },
    /// An object is larger than anything of its kind.
    #[error("object of {len} bytes, at most {max} are read")]
    TooLong {
        /// Bytes claimed.
        len: u64,
        /// The bound.
        max: u64,
    },
    /// A structure names more bytes than its object has.
    #[error("{claimed} bytes in an object of {object_size}")]
    Short {
        /// Bytes claimed.
        claimed: u64,
        /// Bytes there are.
        object_size: u64,
    },
    /// A list of lists contains itself.
    #[error("bpobj {object} is reached twice")]
    Cycle {
        /// The object.
        object: u64,
    },
    /// A key that should be a number in hex is none, or its value is not one integer.
    #[error("zap: key is not a number")]
    NumberKey,
    /// A bpobj of a pool before version 26 cannot have sub-lists.
    #[error("bpobj: header of {len} bytes has no room for sub-lists")]
    FlatBpobj {
        /// Bytes of the header.
        len: usize,
    },
    /// The shared empty bpobj has fewer users than places that name it.
    #[error("bpobj: the shared empty one is given back more often than it was taken")]
    EmptyBpobjCount,
    /// The deadlist has the form of pools before version 26.
    #[error("deadlist: one bpobj without keys")]
    OldDeadlist,
    /// No key of a deadlist is low enough for a birth, or the key is not there.
    #[error("deadlist: no key for txg {txg}")]
    DeadlistRange {
        /// The birth or key.
        txg: u64,
    },
    /// An entry of a bptree is not in its queue.
    #[error("bptree: entry {index} is not the first of {begin}..{end}")]
    BptreeIndex {
        /// The entry.
        index: u64,
        /// First in the queue.
        begin: u64,
        /// Past the last.
        end: u64,
    },
    /// A range does not lie in the space map or is not of whole units.
    #[error("space map: range {start:#x}..{end:#x} does not fit units of 2^{shift}")]
    Range {
        /// First byte.
        start: u64,
        /// Past the last.
        end: u64,
        /// Log2 of the unit.
        shift: u8,
    },
    /// A record is larger than the history.
    #[error("history: record of {len} bytes, the ring has {ring}")]
    HistoryRecord {
        /// Bytes of the record.
        len: usize,
        /// Bytes of the ring.
        ring: u64,
    },
    /// A key of a deadlist is not a txg.
    #[error("deadlist: key is not a txg")]
    DeadlistKey,
}
