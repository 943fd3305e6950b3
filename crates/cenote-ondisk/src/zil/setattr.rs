//! The mask of changed attributes in a log record (spec 07 A7.5).
//!
//! The mask is the host's own: Linux kernels write the bits of their VFS, FreeBSD and OpenZFS in
//! user space those of illumos. Nothing on disk says which. Linux never sets any of `0x200..0x8000`
//! and marks extended attributes with the highest of 32 bits, illumos's set has no bits 0, 4, 5 and
//! 6; if neither is conclusive, the record is assumed to be from Linux, the host of most pools.

use bitflags::bitflags;

bitflags! {
    /// Attributes that a record changes, independent of the host.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct SetMask: u32 {
        /// Mode.
        const MODE = 0x1;
        /// Owner.
        const UID = 0x2;
        /// Group.
        const GID = 0x4;
        /// Size.
        const SIZE = 0x8;
        /// Access time.
        const ATIME = 0x10;
        /// Content change time.
        const MTIME = 0x20;
        /// State change time.
        const CTIME = 0x40;
        /// The access time is an explicit one, not the present.
        const ATIME_SET = 0x80;
        /// The content change time is an explicit one, not the present.
        const MTIME_SET = 0x100;
        /// Optional attributes, in a block of their own.
        const XVATTR = 0x8000_0000;
    }
}

/// Bits that a Linux log never has.
const NEVER_LINUX: u64 = 0xfe00;
/// Bits that an illumos log never has: no type, and the times' places of Linux.
const NEVER_ILLUMOS: u64 = 0x8000_0071;
/// The mask of illumos: bit and meaning.
const ILLUMOS: [(u64, SetMask); 8] = [
    (0x2, SetMask::MODE),
    (0x4, SetMask::UID),
    (0x8, SetMask::GID),
    (0x80, SetMask::SIZE),
    (0x100, SetMask::ATIME),
    (0x200, SetMask::MTIME),
    (0x400, SetMask::CTIME),
    (0x1_0000, SetMask::XVATTR),
];

impl SetMask {
    /// The meaning of a stored mask.
    #[must_use]
    pub fn from_stored(mask: u64) -> Self {
        let is_illumos = mask & NEVER_LINUX != 0 || mask & 0x1_0000 != 0;
        if is_illumos && mask & NEVER_ILLUMOS == 0 {
            let meant = ILLUMOS.iter().filter(|(bit, _)| mask & bit != 0);
            return meant.fold(Self::empty(), |all, (_, meaning)| all | *meaning);
        }
        Self::from_bits_truncate(mask as u32)
    }

    /// The mask as a Linux kernel stores it.
    #[must_use]
    pub fn to_stored(self) -> u64 {
        self.bits().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_both_hosts() {
        let times = SetMask::ATIME | SetMask::MTIME;
        for (stored, want) in [
            // chmod and chown, utimes with explicit times, and flags, on Linux.
            (0x41, SetMask::MODE | SetMask::CTIME),
            (0x46, SetMask::UID | SetMask::GID | SetMask::CTIME),
            (0x1f0, times | SetMask::ATIME_SET | SetMask::MTIME_SET | SetMask::CTIME),
            (0x8000_0000, SetMask::XVATTR),
            (0x8, SetMask::SIZE),
            // These operations in user space.
            (0x302 & !0x2, times),
            (0x602, SetMask::MODE | SetMask::MTIME | SetMask::CTIME),
            (0x1_0002, SetMask::MODE | SetMask::XVATTR),
        ] {
            assert_eq!(SetMask::from_stored(stored), want, "{stored:#x}");
        }
        let all = SetMask::MODE | SetMask::SIZE | SetMask::XVATTR;
        assert_eq!(SetMask::from_stored(all.to_stored()), all);
    }
}
