//! A DSL dir: one node of the dataset tree, as kept in a 256-byte bonus buffer.
//!
//! Word numbers below are byte offset / 8 in the table of spec 04 §2. A dir stores neither its own
//! name nor its children's: names are in the parent's child map, and the root's in the pool's
//! config.

use super::CorruptDsl;
use crate::words;

/// Bytes of the structure.
pub const DIR_PHYS_LEN: usize = 256;

/// `DirPhys::flags` bit: the words of [`SpaceUse`] are maintained.
pub const DIR_FLAG_USED_BREAKDOWN: u64 = 1;

/// Breakdown of a dir's used bytes (`dd_used_breakdown`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Referenced by the head and born after the origin.
    pub head: u64,
    /// Held by snapshots only.
    pub snap: u64,
    /// Sum of the children's used bytes.
    pub child: u64,
    /// The children's unfilled reservations.
    pub child_reserved: u64,
    /// Unfilled part of the head's refreservation.
    pub refreserved: u64,
}

/// A DSL dir (`dsl_dir_phys_t`), spec 04 §2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirPhys {
    /// Seconds since 1970; informational.
    pub creation_time: u64,
    /// Live dataset; 0 for `$MOS`, `$FREE`, `$LEAK`.
    pub head_dataset_obj: u64,
    /// Parent dir; 0 for the root only.
    pub parent_obj: u64,
    /// Snapshot that the head's chain branches from; 0 for special dirs.
    pub origin_obj: u64,
    /// ZAP name → dir.
    pub child_dir_zapobj: u64,
    /// Space charged to the subtree, with unused refreservation.
    pub used_bytes: u64,
    /// Physical sizes of the subtree.
    pub compressed_bytes: u64,
    /// Logical sizes of the subtree.
    pub uncompressed_bytes: u64,
    /// Mirrors the `quota` property; 0 = none.
    pub quota: u64,
    /// Mirrors the `reservation` property; 0 = none.
    pub reserved: u64,
    /// ZAP of local properties.
    pub props_zapobj: u64,
    /// ZAP of delegated permissions, 0 = none.
    pub deleg_zapobj: u64,
    /// [`DIR_FLAG_USED_BREAKDOWN`].
    pub flags: u64,
    /// Parts of `used_bytes`, valid with the flag.
    pub breakdown: SpaceUse,
    /// ZAP of clone heads whose origin is a snapshot of this dir; 0 until there is one.
    pub clones: u64,
    /// Zero; kept as found.
    pub pad: [u64; 13],
}

impl DirPhys {
    /// Decodes the bonus buffer of a dir.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptDsl> {
        let w: [u64; 32] = words::exact(bonus).ok_or(CorruptDsl::DirLength { len: bonus.len() })?;
        let [.., p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12] = w;
        Ok(Self {
            creation_time: w[0],
            head_dataset_obj: w[1],
            parent_obj: w[2],
            origin_obj: w[3],
            child_dir_zapobj: w[4],
            used_bytes: w[5],
            compressed_bytes: w[6],
            uncompressed_bytes: w[7],
            quota: w[8],
            reserved: w[9],
            props_zapobj: w[10],
            deleg_zapobj: w[11],
            flags: w[12],
            breakdown: SpaceUse {
                head: w[13],
                snap: w[14],
                child: w[15],
                child_reserved: w[16],
                refreserved: w[17],
            },
            clones: w[18],
            pad: [p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12],
        })
    }

    /// The bonus buffer of this dir.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let use_ = &self.breakdown;
        let mut bytes = words::to_bytes(&[
            self.creation_time,
            self.head_dataset_obj,
            self.parent_obj,
            self.origin_obj,
            self.child_dir_zapobj,
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.quota,
            self.reserved,
            self.props_zapobj,
            self.deleg_zapobj,
            self.flags,
            use_.head,
            use_.snap,
            use_.child,
            use_.child_reserved,
            use_.refreserved,
            self.clones,
        ]);
        bytes.extend(words::to_bytes(&self.pad));
        bytes
    }

    /// Whether [`DirPhys::breakdown`] is maintained.
    #[must_use]
    pub const fn has_breakdown(&self) -> bool {
        self.flags & DIR_FLAG_USED_BREAKDOWN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dir 74 of spec 04 §27, by (byte offset, value).
    #[test]
    fn a_real_dir() {
        let mut bonus = [0; DIR_PHYS_LEN];
        for (offset, value) in [
            (0, 0x6b00_fca8_u64),
            (8, 0x4d),
            (16, 0x20),
            (24, 0x30),
            (32, 0x4c),
            (40, 2_328_576),
            (48, 2_137_600),
            (56, 5_079_040),
            (80, 0x4b),
            (96, 1),
            (104, 1_762_304),
            (112, 566_272),
            (144, 158),
        ] {
            bonus[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        let dir = DirPhys::decode(&bonus).unwrap();
        assert_eq!((dir.head_dataset_obj, dir.parent_obj, dir.origin_obj), (77, 32, 48));
        assert_eq!((dir.props_zapobj, dir.child_dir_zapobj, dir.clones), (75, 76, 158));
        assert!(dir.has_breakdown());
        assert_eq!(dir.breakdown.head + dir.breakdown.snap, dir.used_bytes);
        assert_eq!(dir.encode(), bonus);
        assert_eq!(DirPhys::decode(&bonus[1..]), Err(CorruptDsl::DirLength { len: 255 }));
    }
}
