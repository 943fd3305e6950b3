//! Deadlists and livelists: bpobjs keyed by the birth of their blocks.
//!
//! The object (type 50) is a ZAP whose keys are txgs in hex and whose values are bpobj objects; its
//! bonus (type 51) holds the sums. Sorted keys k0 < k1 < … divide time into half-open intervals:
//! entry ki holds block pointers with `ki < birth <= k(i+1)`. So a birth belongs to the greatest
//! key *strictly less* than it, and sums over a range include entries with `min <= key < max`.
//! Pools created before version 26 have one plain bpobj (type 5) instead (spec 04 §10).
//!
//! A livelist has the same format; bit 0 of each entry's fill word says whether the block was born
//! (ALLOC) or killed (FREE), and the bpobj's header counts ALLOC minus FREE (spec 04 §13).

use crate::blkptr::BlockPtr;
use crate::words;

/// Bytes of the bonus.
pub const DEADLIST_PHYS_LEN: usize = 320;

/// Index of the word of a block pointer with its fill count.
const FILL_WORD: usize = 11;
/// Bit of an entry's fill word in a livelist: the block was freed.
const LIVELIST_FREE: u64 = 1;

/// Whether an entry of a livelist says that its block was freed, and not allocated (spec 04 §13).
#[must_use]
pub fn is_livelist_free(entry: &BlockPtr) -> bool {
    entry.words().get(FILL_WORD).is_some_and(|word| word & LIVELIST_FREE != 0)
}

/// A deadlist's bonus is too short to hold its three sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("deadlist: bonus of {len} bytes, expected 320")]
pub struct CorruptDeadlist {
    /// Bytes found.
    pub len: usize,
}

/// Header of a deadlist (`dsl_deadlist_phys_t`): sums over its bpobjs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeadlistPhys {
    /// Allocated bytes.
    pub used: u64,
    /// Physical bytes.
    pub comp: u64,
    /// Logical bytes.
    pub uncomp: u64,
}

impl DeadlistPhys {
    /// Decodes the bonus buffer.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptDeadlist> {
        let [used, comp, uncomp] =
            words::exact(bonus).ok_or(CorruptDeadlist { len: bonus.len() })?;
        Ok(Self { used, comp, uncomp })
    }

    /// The bonus buffer, 37 words of zero behind the sums.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = words::to_bytes(&[self.used, self.comp, self.uncomp]);
        bytes.resize(DEADLIST_PHYS_LEN, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header() {
        let phys = DeadlistPhys { used: 71_680, comp: 35_840, uncomp: 35_840 };
        assert_eq!(phys.encode().len(), 320);
        assert_eq!(DeadlistPhys::decode(&phys.encode()), Ok(phys));
        assert!(DeadlistPhys::decode(&[0; 23]).is_err());
    }
}
