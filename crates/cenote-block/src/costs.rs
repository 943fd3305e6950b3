//! Charges the work on blocks to the processors of a simulation ([`cenote_rt::charge`]).

use cenote_codec::checksum::ChecksumAlgorithm;
use cenote_codec::compress::{Compression, ZstdLevel};
use cenote_codec::crypto::{Mode, Suite};
use cenote_rt::{Op, charge};

/// The level of gzip that the table of costs is for.
const GZIP_LEVEL: u64 = 6;
/// The level of Zstandard that the table of costs is for.
const ZSTD_LEVEL: u64 = 3;

/// Charges a checksum.
pub(crate) fn charge_checksum(algorithm: ChecksumAlgorithm, len: usize) {
    let op = match algorithm {
        ChecksumAlgorithm::Off | ChecksumAlgorithm::NoParity => return,
        ChecksumAlgorithm::Fletcher2
        | ChecksumAlgorithm::Fletcher4
        | ChecksumAlgorithm::Zilog
        | ChecksumAlgorithm::Zilog2 => Op::Fletcher,
        ChecksumAlgorithm::Label
        | ChecksumAlgorithm::GangHeader
        | ChecksumAlgorithm::Sha256
        | ChecksumAlgorithm::Sha512 => Op::Sha,
        ChecksumAlgorithm::Skein => Op::Skein,
        ChecksumAlgorithm::EdonR => Op::EdonR,
        ChecksumAlgorithm::Blake3 => Op::Blake3,
    };
    charge(op, len as u64);
}

/// Charges the compression of `len` bytes. Other levels than those of the table count as
/// proportionally more or fewer bytes.
pub(crate) fn charge_compress(function: Compression, level: ZstdLevel, len: usize) {
    let len = len as u64;
    match function {
        Compression::Off => {}
        Compression::Lz4 | Compression::Lzjb | Compression::Zle => charge(Op::Lz4Compress, len),
        Compression::Gzip(level) => {
            charge(Op::GzipCompress, len * (2 + u64::from(level)) / (2 + GZIP_LEVEL));
        }
        Compression::Zstd => {
            let level = u64::from(level.level().max(1).unsigned_abs());
            charge(Op::ZstdCompress, len * level / ZSTD_LEVEL);
        }
    }
}

/// Charges the decompression to `len` bytes.
pub fn charge_expand(function: Compression, len: usize) {
    let op = match function {
        Compression::Off => Op::Copy,
        Compression::Lz4 | Compression::Lzjb | Compression::Zle => Op::Lz4Expand,
        Compression::Gzip(_) => Op::GzipExpand,
        Compression::Zstd => Op::ZstdExpand,
    };
    charge(op, len as u64);
}

/// Charges the encryption or decryption of `len` bytes.
pub(crate) fn charge_cipher(suite: Suite, len: usize) {
    let op = match suite.mode() {
        Mode::Gcm => Op::AesGcm,
        Mode::Ccm => Op::AesCcm,
    };
    charge(op, len as u64);
}
