//! Checksums, compression, encryption and parity as pure functions on slices.
//!
//! * [`checksum`]: checksums of blocks, in the pointer or in the block; uses [`fletcher`],
//!   [`skein`], [`edonr`] and hashes from libraries.
//! * [`compress`]: the stored forms of a block.
//! * [`crypto`]: keys, and encryption of blocks.
//! * [`parity`]: RAID-Z columns.
//!
//! This crate knows no pointers, devices or pools: callers take a block's sizes, functions and byte
//! order from its pointer and pass them in. No function panics on bytes from a disk, waits, or
//! keeps any state except scratch contexts per thread.
//!
//! Vector code uses `fearless_simd`, which keeps `unsafe` out of this crate; the scalar form of
//! each kernel is kept as a reference for tests and measurements (`bench`).

pub mod checksum;
pub mod compress;
pub mod crypto;
pub mod edonr;
pub mod fletcher;
pub mod parity;
pub mod skein;
