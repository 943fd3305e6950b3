//! Checksums, compression, encryption and parity as pure functions on slices.
