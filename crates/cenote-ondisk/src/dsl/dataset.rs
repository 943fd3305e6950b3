//! A DSL dataset: a head or a snapshot, as kept in a 320-byte bonus buffer (spec 04 §3).
//!
//! ```text
//!     0 |  16 words: dir, chain, snapshot names, times, deadlist, sums, guids, flags
//!   128 |  block pointer of the object set (all zero if never written)
//!   256 |  next_clones, props, userrefs, 5 words of zero
//! ```

use super::CorruptDsl;
use crate::blkptr::BlockPtr;
use crate::words;
use bitflags::bitflags;

/// Bytes of the structure.
pub const DATASET_PHYS_LEN: usize = 320;

bitflags! {
    /// Flags of a dataset; unknown bits are kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct DatasetFlags: u64 {
        /// A receive is in progress, or a destroy on old pools.
        const INCONSISTENT = 1;
        /// Promote is refused.
        const NOPROMOTE = 1 << 1;
        /// The head's unique bytes are exact.
        const UNIQUE_ACCURATE = 1 << 2;
        /// To be destroyed when the last hold or clone is gone.
        const DEFER_DESTROY = 1 << 3;
        /// Snapshot and bookmark names match case-insensitively.
        const CI_DATASET = 1 << 16;
        const _ = !0;
    }
}

/// A DSL dataset (`dsl_dataset_phys_t`), spec 04 §3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetPhys {
    /// Owning dir.
    pub dir_obj: u64,
    /// Previous snapshot or origin.
    pub prev_snap_obj: u64,
    /// Creation txg of that snapshot.
    pub prev_snap_txg: u64,
    /// Snapshot: next one of its own line, or the head. Head: 0.
    pub next_snap_obj: u64,
    /// Head: ZAP of snapshot names. Snapshot: 0.
    pub snapnames_zapobj: u64,
    /// Snapshot: 1 + clone branches. Head: 0.
    pub num_children: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// Txg of creation.
    pub creation_txg: u64,
    /// Deadlist: block pointers that the previous snapshot has and this one does not.
    pub deadlist_obj: u64,
    /// Allocated size of everything reachable.
    pub referenced_bytes: u64,
    /// Physical size of the same.
    pub compressed_bytes: u64,
    /// Logical size of the same.
    pub uncompressed_bytes: u64,
    /// Bytes that destroying it would free.
    pub unique_bytes: u64,
    /// 56-bit id for `statfs`.
    pub fsid_guid: u64,
    /// Random id, never changes.
    pub guid: u64,
    /// State and kind.
    pub flags: DatasetFlags,
    /// Block pointer of the object set.
    pub bp: BlockPtr,
    /// Snapshot: ZAP of the first dataset of every clone branch.
    pub next_clones_obj: u64,
    /// Snapshot: ZAP of its own properties. Head: 0.
    pub props_obj: u64,
    /// Snapshot: ZAP of holds.
    pub userrefs_obj: u64,
    /// Zero; kept as found.
    pub pad: [u64; 5],
}

impl DatasetPhys {
    /// Decodes the bonus buffer of a dataset.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptDsl> {
        let short = CorruptDsl::DatasetLength { len: bonus.len() };
        let w: [u64; 40] = words::exact(bonus).ok_or(short)?;
        let bp = words::array_at::<128>(bonus, 128).ok_or(short)?;
        Ok(Self {
            dir_obj: w[0],
            prev_snap_obj: w[1],
            prev_snap_txg: w[2],
            next_snap_obj: w[3],
            snapnames_zapobj: w[4],
            num_children: w[5],
            creation_time: w[6],
            creation_txg: w[7],
            deadlist_obj: w[8],
            referenced_bytes: w[9],
            compressed_bytes: w[10],
            uncompressed_bytes: w[11],
            unique_bytes: w[12],
            fsid_guid: w[13],
            guid: w[14],
            flags: DatasetFlags::from_bits_retain(w[15]),
            bp: BlockPtr::from_bytes(&bp),
            next_clones_obj: w[32],
            props_obj: w[33],
            userrefs_obj: w[34],
            pad: [w[35], w[36], w[37], w[38], w[39]],
        })
    }

    /// The bonus buffer of this dataset.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = words::to_bytes(&[
            self.dir_obj,
            self.prev_snap_obj,
            self.prev_snap_txg,
            self.next_snap_obj,
            self.snapnames_zapobj,
            self.num_children,
            self.creation_time,
            self.creation_txg,
            self.deadlist_obj,
            self.referenced_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.unique_bytes,
            self.fsid_guid,
            self.guid,
            self.flags.bits(),
        ]);
        bytes.extend_from_slice(&self.bp.to_bytes());
        bytes.extend(words::to_bytes(&[self.next_clones_obj, self.props_obj, self.userrefs_obj]));
        bytes.extend(words::to_bytes(&self.pad));
        bytes
    }

    /// Whether this is a snapshot; a head has `num_children` 0.
    #[must_use]
    pub const fn is_snapshot(&self) -> bool {
        self.num_children != 0
    }

    /// Whether a receive is incomplete.
    #[must_use]
    pub const fn is_inconsistent(&self) -> bool {
        self.flags.contains(DatasetFlags::INCONSISTENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dataset 94 of spec 04 §27.
    #[test]
    fn a_real_snapshot() {
        let mut bonus = [0; DATASET_PHYS_LEN];
        for (offset, value) in [
            (0, 0x4a_u64),
            (8, 0x30),
            (16, 1),
            (24, 0x92),
            (40, 2),
            (48, 0x6b00_fcb2),
            (56, 0x18),
            (64, 0x4f),
            (72, 2_025_984),
            (80, 1_924_096),
            (88, 4_676_608),
            (96, 494_592),
            (104, 0x0074_6551_43c7_5991),
            (112, 0xdd5b_2965_21e1_9189),
            (120, 4),
            (128, 1),
            (136, 0x1998),
            (144, 1),
            (152, 0x82c7),
            (176, 0x800b_070f_0000_0007),
            (208, 0x12),
            (216, 0x37a),
            (256, 0x9d),
        ] {
            bonus[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        let snap = DatasetPhys::decode(&bonus).unwrap();
        assert!(snap.is_snapshot() && !snap.is_inconsistent());
        assert_eq!((snap.dir_obj, snap.prev_snap_obj, snap.next_snap_obj), (74, 48, 146));
        assert_eq!((snap.creation_txg, snap.deadlist_obj, snap.next_clones_obj), (24, 79, 157));
        assert_eq!(snap.flags, DatasetFlags::UNIQUE_ACCURATE);
        assert_eq!(snap.encode(), bonus);
        assert!(DatasetPhys::decode(&bonus[..319]).is_err());
    }
}
