//! Checksums, compression, encryption and parity as pure functions on slices.

pub mod checksum;
pub mod compress;
pub mod crypto;
pub mod edonr;
pub mod fletcher;
pub mod parity;
pub mod skein;
