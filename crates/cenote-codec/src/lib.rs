//! Checksums, compression, encryption and parity as pure functions on slices.
//!
//! * [`checksum`]: what guards a block, in its pointer or in itself; by [`fletcher`], [`skein`],
//!   [`edonr`] and the hashes of libraries.
//! * [`compress`]: the stored forms of a block.
//! * [`crypto`]: keys, and blocks under them.
//! * [`parity`]: RAID-Z columns.
//!
//! Nothing here knows of pointers, devices or pools: callers take a block's sizes, functions and
//! byte order from its pointer and hand them in. No function panics on bytes from a disk, waits, or
//! keeps anything but scratch contexts per thread.
//!
//! Vector code comes from `fearless_simd`, which keeps `unsafe` out of this crate; the scalar form
//! of each kernel stays beside it as its test and its measure (`bench`).

pub mod checksum;
pub mod compress;
pub mod crypto;
pub mod edonr;
pub mod fletcher;
pub mod parity;
pub mod skein;
