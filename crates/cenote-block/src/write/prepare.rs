//! The CPU work on a block to be written: zero detection, compression, checksum.
//!
//! Pure functions. Compression must save an eighth of the block, or, if sectors are so large that
//! an eighth is none, the result must fit into a pointer (spec 02 §5.2).

use std::sync::Arc;

use cenote_codec::checksum::{self, ChecksumAlgorithm, Salt};
use cenote_codec::compress::{self, Compression, ZstdLevel};
use cenote_codec::crypto::Seal;
use cenote_ondisk::blkptr::{EMBEDDED_MAX, NewProtection, SECTOR_SIZE};
use cenote_rt::{Buf, BufMut, Error, Kind, Result};

use super::Units;
use super::seal::{Sealing, protection};
use crate::costs::{charge_checksum, charge_compress};
use crate::error::WriteError;
use crate::policy::CompressionPolicy;

/// A block and its write policy.
pub(super) struct Work {
    pub(super) data: Buf,
    pub(super) sent: Option<SentForm>,
    pub(super) compression: CompressionPolicy,
    pub(super) checksum: ChecksumAlgorithm,
    pub(super) salt: Option<Arc<Salt>>,
    pub(super) units: Units,
    pub(super) may_embed: bool,
    /// How the block is protected; `None` if its object set is not encrypted.
    pub(super) sealing: Option<Sealing>,
}

/// The form in which another pool stored a block. A block that is received in it keeps it, whatever
/// the compression of the dataset is (spec 07 B9.4).
#[derive(Debug, Clone)]
pub struct SentForm {
    /// Bytes that the caller has expanded to the contents of the block, unless they are encrypted.
    pub bytes: Buf,
    /// The function that compressed them.
    pub compression: Compression,
    /// Whether they were embedded in the pointer.
    pub is_embedded: bool,
    /// What protects the bytes, if the other pool has encrypted or authenticated them. Then they
    /// are stored as they are: their length is part of what is authenticated.
    pub seal: Option<Seal>,
}

/// The form in which a block is stored.
#[derive(Debug, Clone)]
pub enum Prepared {
    /// Not at all: it is all zeros.
    Zeros,
    /// Embedded in the pointer.
    Embedded {
        /// Compressed data, 112 bytes at most.
        payload: Vec<u8>,
        /// Number of the compression function.
        compression: u8,
    },
    /// At an address.
    Stored(Stored),
}

/// The bytes to be written to devices.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Compressed if that pays, padded with zeros.
    pub data: Buf,
    /// Number of the compression function.
    pub compression: u8,
    /// Checksum words; of a sealed block only the first two.
    pub checksum: [u64; 4],
    /// How the bytes are protected.
    pub protection: NewProtection,
}

/// Result of compressing a block.
enum Compressed {
    Embedded(Vec<u8>),
    Stored(Buf),
    /// Compression does not save enough.
    No,
}

impl Work {
    /// Estimates the time of the work, from measurements of a core that compresses LZ4 at 0.7 GB/s;
    /// deliberately coarse.
    pub(super) fn estimate_ns(&self) -> u64 {
        let compression = match self.compression {
            _ if self.sent.is_some() => 0,
            CompressionPolicy::Off => 0,
            CompressionPolicy::Empty | CompressionPolicy::With(Compression::Off, _) => 30,
            CompressionPolicy::With(function, level) => per_kib_ns(function, level),
        };
        let checksum = match self.checksum {
            ChecksumAlgorithm::Sha256 | ChecksumAlgorithm::Sha512 => 2_000,
            ChecksumAlgorithm::Skein | ChecksumAlgorithm::EdonR => 1_700,
            ChecksumAlgorithm::Blake3 => 500,
            _ => 50,
        };
        let cipher = if self.sealing.is_some() { 1_000 } else { 0 };
        (self.data.len() as u64).div_ceil(1024) * (compression + checksum + cipher)
    }

    /// Compresses, protects and checksums the block.
    pub(super) fn run(mut self) -> Result<Prepared> {
        if let Some(prepared) = self.sent.take().and_then(|sent| self.keep(sent)) {
            return prepared;
        }
        if self.compression != CompressionPolicy::Off && is_zero(&self.data) {
            return Ok(Prepared::Zeros);
        }
        let (data, compression) = match self.compression {
            CompressionPolicy::With(function, level) if function != Compression::Off => {
                match self.compress(function, level) {
                    Compressed::Embedded(payload) => {
                        return Ok(Prepared::Embedded { payload, compression: function.id() });
                    }
                    Compressed::Stored(data) => (data, function),
                    Compressed::No => (self.data.clone(), Compression::Off),
                }
            }
            _ => (self.data.clone(), Compression::Off),
        };
        self.stored(data, compression)
    }

    fn stored(&self, data: Buf, compression: Compression) -> Result<Prepared> {
        let (data, protection) = match &self.sealing {
            Some(sealing) => sealing.protect(&self.data, data)?,
            None => (data, NewProtection::None),
        };
        self.checksummed(data, compression, protection)
    }

    fn checksummed(
        &self,
        data: Buf,
        compression: Compression,
        protection: NewProtection,
    ) -> Result<Prepared> {
        charge_checksum(self.checksum, data.len());
        let mut checksum = checksum::compute(self.checksum, &data, false, self.salt.as_deref())
            .map_err(Error::corrupt)?;
        if matches!(protection, NewProtection::Sealed { .. }) {
            let [first, second] = self.checksum.fold(checksum);
            checksum = [first, second, 0, 0];
        }
        Ok(Prepared::Stored(Stored { data, compression: compression.id(), checksum, protection }))
    }

    /// Keeps the form in which the block was sent; `None` if it does not fit here.
    fn keep(&self, sent: SentForm) -> Option<Result<Prepared>> {
        let SentForm { bytes, compression, is_embedded, seal } = sent;
        if let Some(seal) = seal {
            let is_whole = bytes.len().is_multiple_of(SECTOR_SIZE as usize)
                && (1..=self.data.len()).contains(&bytes.len());
            // Checks W6.
            let cause = WriteError::Size { size: bytes.len() as u64 };
            return Some(if is_whole {
                self.checksummed(bytes, compression, protection(&seal))
            } else {
                Err(Error::new(Kind::Invalid, cause))
            });
        }
        if is_embedded {
            let fits = self.may_embed && bytes.len() <= EMBEDDED_MAX;
            let payload = fits.then(|| bytes.to_vec())?;
            return Some(Ok(Prepared::Embedded { payload, compression: compression.id() }));
        }
        let psize = self.units.round_up(bytes.len() as u64) as usize;
        if psize >= self.data.len() || compression == Compression::Off {
            return None;
        }
        let bytes = if psize == bytes.len() { bytes } else { padded(&bytes, psize) };
        Some(self.stored(bytes, compression))
    }

    fn compress(&self, function: Compression, level: ZstdLevel) -> Compressed {
        let lsize = self.data.len();
        let limit = self.limit(function);
        let mut packed = BufMut::for_filling(lsize);
        let room = packed.get_mut(..limit).unwrap_or_default();
        charge_compress(function, level, lsize);
        let len = match compress::compress(function, level, &self.data, room) {
            Some(len) if len < lsize => len,
            _ => return Compressed::No,
        };
        if len <= EMBEDDED_MAX && self.may_embed {
            return Compressed::Embedded(packed[..len].to_vec());
        }
        let psize = self.units.round_up(len as u64) as usize;
        if psize >= lsize {
            return Compressed::No;
        }
        packed[len..psize].fill(0);
        packed.truncate(psize);
        Compressed::Stored(packed.freeze())
    }

    /// Most bytes that the compressed block may have (spec 02 §5.2).
    fn limit(&self, function: Compression) -> usize {
        let lsize = self.data.len();
        let limit = lsize - lsize / 8;
        if function == Compression::Zle {
            return limit;
        }
        let aligned = limit - limit % self.units.gcd as usize;
        if (aligned as u64) < self.units.min { EMBEDDED_MAX.min(limit) } else { aligned }
    }
}

/// Returns the bytes with zeros up to `len`.
fn padded(bytes: &[u8], len: usize) -> Buf {
    let mut block = BufMut::zeroed(len);
    if let Some(start) = block.get_mut(..bytes.len()) {
        start.copy_from_slice(bytes);
    }
    block.freeze()
}

fn per_kib_ns(function: Compression, level: ZstdLevel) -> u64 {
    match function {
        Compression::Off => 0,
        Compression::Lz4 => 1_500,
        Compression::Zle => 2_000,
        Compression::Lzjb => 5_000,
        Compression::Gzip(level) => 10_000 + 5_000 * u64::from(level),
        Compression::Zstd => match level.level() {
            ..=0 => 2_000,
            level @ 1..=9 => 2_000 * level.unsigned_abs() as u64,
            level => 20_000 * level.unsigned_abs() as u64,
        },
    }
}

/// Whether all bytes are zero.
fn is_zero(data: &[u8]) -> bool {
    let (words, rest) = data.as_chunks::<64>();
    words.iter().all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|&byte| byte == 0)
}
