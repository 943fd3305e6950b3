//! Checksum tests for stored bytes, which the vdev layer calls while it reads.
//!
//! A block pointer names a checksum function, the byte order of the block and the expected words;
//! only two of the words if the block is encrypted. Checksums that are stored in the block itself
//! (log blocks, gang headers) have verifiers of their own (spec 02 §3).

use std::sync::Arc;

use cenote_codec::checksum::embedded::{self, Embedded};
use cenote_codec::checksum::{self, ChecksumAlgorithm, Salt};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::endian::Endian;
use cenote_vdev::Verify;

use crate::costs::charge_checksum;
use crate::error::BlockError;

/// Tests whether bytes are the contents of a block.
#[derive(Debug, Clone)]
pub(crate) struct Verifier(Verdict);

#[derive(Debug, Clone)]
enum Verdict {
    /// Accepts anything: verification is switched off.
    Any,
    Words {
        algorithm: ChecksumAlgorithm,
        expected: [u64; 4],
        is_swapped: bool,
        is_folded: bool,
        salt: Option<Arc<Salt>>,
    },
    Embedded {
        kind: Embedded,
        is_folded: bool,
    },
}

impl Verifier {
    /// The verifier for the `psize` stored bytes at `bp`.
    pub(crate) fn of(
        bp: &BlockPtr,
        salt: Option<&Arc<Salt>>,
        verifies: bool,
    ) -> Result<Self, BlockError> {
        if !verifies {
            return Ok(Self(Verdict::Any));
        }
        let unknown = BlockError::Checksum { checksum: bp.checksum_id() };
        let algorithm = ChecksumAlgorithm::from_id(bp.checksum_id()).ok_or(unknown)?;
        if algorithm.is_salted() && salt.is_none() {
            return Err(BlockError::NoSalt { checksum: bp.checksum_id() });
        }
        let is_folded = bp.has_short_checksum();
        let expected = bp.checksum();
        let kind = match algorithm {
            ChecksumAlgorithm::Zilog => Embedded::Zilog { pointer: expected },
            ChecksumAlgorithm::Zilog2 => Embedded::Zilog2 { pointer: expected },
            // These functions never occur in a block pointer.
            ChecksumAlgorithm::Label | ChecksumAlgorithm::GangHeader => {
                return Err(BlockError::Checksum { checksum: bp.checksum_id() });
            }
            _ => {
                let is_swapped = bp.endian() == Endian::Big;
                let salt = salt.cloned();
                let words = Verdict::Words { algorithm, expected, is_swapped, is_folded, salt };
                return Ok(Self(words));
            }
        };
        Ok(Self(Verdict::Embedded { kind, is_folded }))
    }

    /// The verifier for the gang header of `bp`, made of its first DVA whichever copy is read.
    pub(crate) fn gang_header(bp: &BlockPtr, verifies: bool) -> Self {
        match bp.dva(0) {
            Some(dva) if verifies => {
                let (vdev, offset) = (u64::from(dva.vdev), dva.offset);
                let kind = Embedded::GangHeader { vdev, offset, birth: bp.physical_birth() };
                Self(Verdict::Embedded { kind, is_folded: bp.has_short_checksum() })
            }
            _ => Self(Verdict::Any),
        }
    }
}

impl Verify for Verifier {
    fn verify(&self, data: &[u8]) -> bool {
        match &self.0 {
            Verdict::Any => true,
            Verdict::Words { algorithm, expected, is_swapped, is_folded, salt } => {
                charge_checksum(*algorithm, data.len());
                checksum::compute(*algorithm, data, *is_swapped, salt.as_deref())
                    .is_ok_and(|words| algorithm.matches(words, *expected, *is_folded))
            }
            Verdict::Embedded { kind, is_folded } => {
                let algorithm = match kind {
                    Embedded::Zilog { .. } | Embedded::Zilog2 { .. } => ChecksumAlgorithm::Zilog2,
                    _ => ChecksumAlgorithm::GangHeader,
                };
                charge_checksum(algorithm, data.len());
                embedded::verify(*kind, data, *is_folded).is_ok()
            }
        }
    }
}
