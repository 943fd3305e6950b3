//! Optional attributes in a log record: the flags that have no bit in a mode (spec 07 A7.1).
//!
//! ```text
//!   0  mask size, u32 = 3   4  requested, u32[3]   16  values   24  birth time[2]
//!  40  scan stamp, 32 bytes; its first 8 hold the project id if that was requested instead
//! ```
//!
//! The requested attributes are in the first of the three words; the values are at the same bits.
//! Other mask sizes were never written but determine the length of the block. The u32 fields do not
//! survive a block's swap as u64, so the block is decoded from the bytes as they were written, in
//! their own byte order.

use crate::endian::Endian;
use crate::znode::PFlags;
use bitflags::bitflags;

/// Bytes of the block as written.
pub const XVATTR_LEN: usize = 72;
/// Words of the mask as written.
const MASK_SIZE: u32 = 3;
/// Bytes behind the mask.
const TAIL_LEN: usize = 56;
/// Value that old software stores for a requested `OPAQUE`.
const OPAQUE_MISTAKE: u64 = 0x80;

bitflags! {
    /// Optional attributes, as a request or as their values.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct XvMask: u32 {
        /// Birth time.
        const CRTIME = 0x1;
        /// Changed since the last archive.
        const ARCHIVE = 0x2;
        /// DOS system.
        const SYSTEM = 0x4;
        /// DOS read-only.
        const READONLY = 0x8;
        /// DOS hidden.
        const HIDDEN = 0x10;
        /// No unlink.
        const NOUNLINK = 0x20;
        /// No changes.
        const IMMUTABLE = 0x40;
        /// Writes at the end only.
        const APPENDONLY = 0x80;
        /// Not to be dumped.
        const NODUMP = 0x100;
        /// Opaque.
        const OPAQUE = 0x200;
        /// Quarantined by a scanner.
        const AV_QUARANTINED = 0x400;
        /// Changed since the last scan.
        const AV_MODIFIED = 0x800;
        /// Antivirus stamp.
        const SCANSTAMP = 0x1000;
        /// Reparse point.
        const REPARSE = 0x2000;
        /// Generation.
        const GEN = 0x4000;
        /// Offline.
        const OFFLINE = 0x8000;
        /// Sparse.
        const SPARSE = 0x1_0000;
        /// Children inherit the project id.
        const PROJINHERIT = 0x2_0000;
        /// Project id.
        const PROJID = 0x4_0000;
        const _ = !0;
    }
}

/// The attributes that are a bit of a node's flags, with that bit.
const XV_FLAGS: [(XvMask, PFlags); 15] = [
    (XvMask::ARCHIVE, PFlags::ARCHIVE),
    (XvMask::SYSTEM, PFlags::SYSTEM),
    (XvMask::READONLY, PFlags::READONLY),
    (XvMask::HIDDEN, PFlags::HIDDEN),
    (XvMask::NOUNLINK, PFlags::NOUNLINK),
    (XvMask::IMMUTABLE, PFlags::IMMUTABLE),
    (XvMask::APPENDONLY, PFlags::APPENDONLY),
    (XvMask::NODUMP, PFlags::NODUMP),
    (XvMask::OPAQUE, PFlags::OPAQUE),
    (XvMask::AV_QUARANTINED, PFlags::AV_QUARANTINED),
    (XvMask::AV_MODIFIED, PFlags::AV_MODIFIED),
    (XvMask::REPARSE, PFlags::REPARSE),
    (XvMask::OFFLINE, PFlags::OFFLINE),
    (XvMask::SPARSE, PFlags::SPARSE),
    (XvMask::PROJINHERIT, PFlags::PROJINHERIT),
];

/// The block (`lr_attr_t`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XvAttrs {
    /// The requested attributes.
    pub requested: XvMask,
    /// Values of the attributes that are flags.
    pub values: XvMask,
    /// Birth time, seconds and nanoseconds.
    pub crtime: [u64; 2],
    /// Antivirus stamp, or the project id.
    pub stamp: [u8; 32],
}

impl XvAttrs {
    /// A request to change flags of a node: each of `changed` gets its value in `flags`.
    #[must_use]
    pub fn of_flags(changed: PFlags, flags: PFlags) -> Self {
        let mut attrs = Self::default();
        for (bit, flag) in XV_FLAGS {
            if changed.contains(flag) {
                attrs.requested |= bit;
                attrs.values.set(bit, flags.contains(flag));
            }
        }
        attrs
    }

    /// Adds a project id to the request.
    #[must_use]
    pub fn with_project(mut self, project: u64) -> Self {
        self.requested |= XvMask::PROJID;
        for (slot, byte) in self.stamp.iter_mut().zip(project.to_le_bytes()) {
            *slot = byte;
        }
        self
    }

    /// The project id, if requested.
    #[must_use]
    pub fn project(&self) -> Option<u64> {
        let id = self.stamp.first_chunk().map(|id| u64::from_le_bytes(*id))?;
        self.requested.contains(XvMask::PROJID).then_some(id)
    }

    /// The antivirus stamp, if requested.
    #[must_use]
    pub fn scanstamp(&self) -> Option<[u8; 32]> {
        let is_stamp = self.requested.contains(XvMask::SCANSTAMP) && self.project().is_none();
        is_stamp.then_some(self.stamp)
    }

    /// The requested flags, and their values.
    #[must_use]
    pub fn flags(&self) -> (PFlags, PFlags) {
        let (mut changed, mut flags) = (PFlags::empty(), PFlags::empty());
        for (bit, flag) in XV_FLAGS {
            if self.requested.contains(bit) {
                changed |= flag;
                flags.set(flag, self.values.contains(bit));
            }
        }
        (changed, flags)
    }

    /// Decodes the block at the start of `written`; also returns its length.
    pub(super) fn decode(written: &[u8], order: Endian) -> Option<(Self, usize)> {
        let u32_at = |at: usize| Some(order.u32(*written.get(at..)?.first_chunk()?));
        let u64_at = |at: usize| Some(order.u64(*written.get(at..)?.first_chunk()?));
        let mask_size = u32_at(0).filter(|size| (1..=16).contains(size))?;
        let tail = 4 + 4 * mask_size as usize;
        let requested = XvMask::from_bits_retain(u32_at(4)?);
        let stored = u64_at(tail)?;
        let mut values = XvMask::from_bits_retain(stored as u32);
        // Old software uses a wrong bit here.
        if requested.contains(XvMask::OPAQUE)
            && !requested.contains(XvMask::APPENDONLY)
            && stored & OPAQUE_MISTAKE != 0
        {
            values |= XvMask::OPAQUE;
            values &= !XvMask::APPENDONLY;
        }
        let crtime = [u64_at(tail + 8)?, u64_at(tail + 16)?];
        let mut stamp = *written.get(tail + 24..)?.first_chunk::<32>()?;
        if requested.contains(XvMask::PROJID) {
            let id = u64_at(tail + 24)?;
            for (slot, byte) in stamp.iter_mut().zip(id.to_le_bytes()) {
                *slot = byte;
            }
        }
        Some((Self { requested, values, crtime, stamp }, tail + TAIL_LEN))
    }

    /// The 72 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(XVATTR_LEN);
        for word in [MASK_SIZE, self.requested.bits(), 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(u64::from(self.values.bits()).to_le_bytes());
        for word in self.crtime {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.stamp);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_project_and_its_inheritance() {
        let changed = PFlags::PROJINHERIT | PFlags::IMMUTABLE;
        let attrs = XvAttrs::of_flags(changed, PFlags::PROJINHERIT).with_project(77);
        let bytes = attrs.encode();
        assert_eq!(bytes.len(), XVATTR_LEN);
        let (again, len) = XvAttrs::decode(&bytes, Endian::Little).unwrap();
        assert_eq!((again, len), (attrs, XVATTR_LEN));
        assert_eq!(again.project(), Some(77));
        assert_eq!(again.flags(), (changed, PFlags::PROJINHERIT));
        assert_eq!(again.scanstamp(), None);
    }

    #[test]
    fn an_opaque_of_old_software() {
        let mut attrs = XvAttrs::of_flags(PFlags::OPAQUE, PFlags::empty());
        attrs.values = XvMask::from_bits_retain(0x80);
        let (found, _) = XvAttrs::decode(&attrs.encode(), Endian::Little).unwrap();
        assert_eq!(found.flags(), (PFlags::OPAQUE, PFlags::OPAQUE));
    }

    proptest! {
        #[test]
        fn both_orders_round_trip(requested: u32, values: u32, crtime: [u64; 2], stamp: [u8; 32]) {
            let requested = XvMask::from_bits_retain(requested) & !XvMask::OPAQUE;
            let values = XvMask::from_bits_retain(values);
            let attrs = XvAttrs { requested, values, crtime, stamp };
            let bytes = attrs.encode();
            prop_assert_eq!(XvAttrs::decode(&bytes, Endian::Little), Some((attrs, 72)));
            let mut foreign: Vec<u8> =
                bytes[..16].chunks(4).flat_map(|group| group.iter().rev().copied()).collect();
            foreign.extend(bytes[16..40].chunks(8).flat_map(|group| group.iter().rev().copied()));
            let id_len = if requested.contains(XvMask::PROJID) { 8 } else { 0 };
            foreign.extend(bytes[40..40 + id_len].iter().rev());
            foreign.extend(&bytes[40 + id_len..]);
            prop_assert_eq!(XvAttrs::decode(&foreign, Endian::Big), Some((attrs, 72)));
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, big: bool) {
            let order = if big { Endian::Big } else { Endian::Little };
            if let Some((_, len)) = XvAttrs::decode(&bytes, order) {
                prop_assert!(len <= bytes.len());
            }
        }
    }
}
