//! Checksums, compression, encryption and parity as pure functions on slices.

pub mod crypto;
pub mod edonr;
pub mod parity;
pub mod skein;
