//! What work costs: a table of processor times, which the worlds of experiments share.
//!
//! The work of a world is really done, on the thread of the world, and its time is taken from the
//! table: a run never depends on the speed of the machine that it runs on. The values are those of
//! one core of 2026; a world has a speed relative to it. They are frozen, because every published
//! figure depends on them: [`Costs::hash`] tells tables apart.

use super::state::{State, with};

/// Declares the operations with their values in the frozen table.
macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = ($fixed_ns:literal, $per_kib_ns:literal),)*) => {
        /// An operation that takes time of a processor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Op {
            $($(#[$doc])* $name,)*
        }

        /// The frozen table, by operation.
        const FROZEN: &[Cost] =
            &[$(Cost { fixed_ns: $fixed_ns, per_kib_ns: $per_kib_ns }),*];
    };
}

ops! {
    /// A written block: object set and queue. Its checksum, its allocation and so on are extra.
    WriteBlock = (10_000, 0),
    /// A block found in the cache.
    ReadCached = (800, 0),
    /// A block that is not in the cache.
    ReadMissed = (6_000, 0),
    /// A copy of user data.
    Copy = (100, 100),
    /// Space allocated or freed.
    Space = (300, 0),
    /// Issue and completion of one device command.
    Command = (4_000, 0),
    /// Checksums of the Fletcher family.
    Fletcher = (100, 38),
    /// SHA-256 and SHA-512/256.
    Sha = (300, 640),
    /// BLAKE3.
    Blake3 = (300, 280),
    /// Skein.
    Skein = (300, 2_090),
    /// Edon-R.
    EdonR = (300, 760),
    /// Compression with LZ4, per byte of input. LZJB and ZLE count as LZ4.
    Lz4Compress = (1_000, 1_460),
    /// Decompression of LZ4, per byte of output.
    Lz4Expand = (500, 400),
    /// Compression with Zstandard, level 3.
    ZstdCompress = (5_000, 2_770),
    /// Decompression of Zstandard.
    ZstdExpand = (3_000, 730),
    /// Compression with gzip, level 6.
    GzipCompress = (10_000, 11_500),
    /// Decompression of gzip.
    GzipExpand = (3_000, 1_000),
    /// AES in GCM.
    AesGcm = (1_000, 340),
    /// AES in CCM.
    AesCcm = (1_000, 1_460),
    /// Single parity, per byte of data.
    ParityP = (200, 17),
    /// Double parity, per byte of data.
    ParityPq = (200, 43),
    /// Triple parity, per byte of data.
    ParityPqr = (200, 68),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    fixed_ns: u64,
    per_kib_ns: u64,
}

/// A table of processor times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costs(Vec<Cost>);

impl Costs {
    /// Returns the frozen table.
    #[must_use]
    pub fn frozen() -> Self {
        Self(FROZEN.to_vec())
    }

    /// Returns the time of an operation on this number of bytes, in nanoseconds.
    #[must_use]
    pub fn ns(&self, op: Op, bytes: u64) -> u64 {
        let cost = self.0[op as usize];
        cost.fixed_ns + bytes.saturating_mul(cost.per_kib_ns) / 1024
    }

    /// Returns a hash of the table, for reports.
    #[must_use]
    pub fn hash(&self) -> u32 {
        // FNV-1a.
        let words = self.0.iter().flat_map(|cost| [cost.fixed_ns, cost.per_kib_ns]);
        let bytes = words.flat_map(u64::to_le_bytes);
        bytes
            .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }
}

/// Adds the processor time of `op` on this number of bytes to the debt of the current task, which
/// pays at its next await. Outside of simulations with costs nothing is charged.
#[inline]
pub fn charge(op: Op, bytes: u64) {
    if super::is_used() {
        with(|state| state.charge(op, bytes));
    }
}

/// Gives the work of this task, and of the tasks that it starts from now on, precedence on the
/// processors of a simulation.
#[inline]
pub fn take_precedence() {
    if super::is_used() {
        with(State::take_precedence);
    }
}
