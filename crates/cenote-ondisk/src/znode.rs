//! A file's attributes, from system attributes or from a legacy znode, as one struct.
//!
//! ```text
//!   legacy (bonus type 17, 264 bytes, spec 03 §14)
//!     0 atime mtime ctime crtime   64 gen mode size parent links xattr rdev flags uid gid zap
//!   152 pad[3]   176 ACL, 88 bytes   264 symlink target, or scan stamp
//! ```
//!
//! Both kinds coexist on an upgraded file system: the bonus type of each object decides. A legacy
//! bonus is swapped with its dnode block, its ACL by version ([`crate::acl`]).

use crate::acl::{Acl, ZNODE_ACL_LEN, ZnodeAcl};
use crate::endian::Endian;
use crate::sa::registry::ZplAttr;
use crate::sa::{Attr, CorruptSa, Registry, SaBuffer};
use crate::words;
use bitflags::bitflags;

/// Bytes of a legacy znode.
pub const ZNODE_PHYS_LEN: usize = 264;

bitflags! {
    /// pflags (spec 03 §10.2); unknown bits are kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct PFlags: u64 {
        /// An xattr directory or a file in one.
        const XATTR = 0x1;
        /// The directory's ACL has inheritable entries.
        const INHERIT_ACE = 0x2;
        /// The ACL is equivalent to the mode.
        const ACL_TRIVIAL = 0x4;
        /// Has object-type entries.
        const ACL_OBJ_ACE = 0x8;
        /// ACL-wide flag.
        const ACL_PROTECTED = 0x10;
        /// ACL-wide flag.
        const ACL_DEFAULTED = 0x20;
        /// ACL-wide flag.
        const ACL_AUTO_INHERIT = 0x40;
        /// Legacy: scan stamp at the end of the bonus.
        const BONUS_SCANSTAMP = 0x80;
        /// No entry denies execute.
        const NO_EXECS_DENIED = 0x100;
        /// DOS read-only.
        const READONLY = 1 << 32;
        /// DOS hidden.
        const HIDDEN = 1 << 33;
        /// DOS system.
        const SYSTEM = 1 << 34;
        /// Changed since the last archive.
        const ARCHIVE = 1 << 35;
        /// No changes.
        const IMMUTABLE = 1 << 36;
        /// No unlink.
        const NOUNLINK = 1 << 37;
        /// Writes at the end only.
        const APPENDONLY = 1 << 38;
        /// Not to be dumped.
        const NODUMP = 1 << 39;
        /// Opaque.
        const OPAQUE = 1 << 40;
        /// Quarantined by a scanner.
        const AV_QUARANTINED = 1 << 41;
        /// Changed since the last scan.
        const AV_MODIFIED = 1 << 42;
        /// Reparse point.
        const REPARSE = 1 << 43;
        /// Offline.
        const OFFLINE = 1 << 44;
        /// Sparse.
        const SPARSE = 1 << 45;
        /// Children inherit the project id.
        const PROJINHERIT = 1 << 46;
        /// The project id attribute exists.
        const PROJID = 1 << 47;
        const _ = !0;
    }
}

/// A point in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970; signed in practice.
    pub seconds: i64,
    /// Nanoseconds, as stored.
    pub nanoseconds: u64,
}

/// An owner: domain index and relative id (spec 03 §13.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fuid(pub u64);

impl Fuid {
    /// Index in the FUID table; 0 = a plain POSIX id.
    #[must_use]
    pub const fn domain(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Id within the domain.
    #[must_use]
    pub const fn rid(self) -> u32 {
        self.0 as u32
    }
}

/// Attributes of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileAttributes {
    /// Mode with type bits.
    pub mode: u64,
    /// Size.
    pub size: u64,
    /// Txg of creation.
    pub gen_: u64,
    /// Owner.
    pub uid: Fuid,
    /// Group.
    pub gid: Fuid,
    /// Object of a containing directory.
    pub parent: u64,
    /// pflags; see [`FileAttributes::pflags`].
    pub flags: u64,
    /// Access time.
    pub atime: Time,
    /// Content change time.
    pub mtime: Time,
    /// State change time.
    pub ctime: Time,
    /// Birth time.
    pub crtime: Time,
    /// Link count.
    pub links: u64,
    /// Device number as stored; see [`decode_rdev`].
    pub rdev: Option<u64>,
    /// Project id.
    pub projid: Option<u64>,
    /// Object of the xattr directory, 0 = none.
    pub xattr_obj: u64,
    /// Packed nvlist of xattrs.
    pub dxattr: Option<Vec<u8>>,
    /// Target of a symbolic link, if it is in the bonus or spill buffer.
    pub symlink: Option<Vec<u8>>,
    /// ACL, if it is inline.
    pub acl: Acl,
    /// Legacy ACL container, for entries in an external object.
    pub znode_acl: Option<ZnodeAcl>,
    /// Antivirus stamp.
    pub scanstamp: Option<[u8; 32]>,
    /// Change counter.
    pub seq: Option<u64>,
}

impl FileAttributes {
    /// Decodes the bonus (type 44) and spill buffers of an object.
    pub fn from_sa(
        bonus: &[u8],
        spill: Option<&[u8]>,
        registry: &Registry,
    ) -> Result<Self, CorruptSa> {
        let mut attrs = SaBuffer::decode(bonus, registry)?.attrs;
        if let Some(spill) = spill {
            attrs.extend(SaBuffer::decode(spill, registry)?.attrs);
        }
        let view = View { attrs: &attrs, registry };
        let acl = view.find(ZplAttr::DaclAces).map_or_else(Acl::default, |aces| {
            let count = view.optional(ZplAttr::DaclCount).unwrap_or(0);
            Acl::decode(aces.bytes, count, aces.order)
        });
        let bytes = |attr| view.find(attr).map(|attr| attr.bytes.to_vec());
        Ok(Self {
            mode: view.word(ZplAttr::Mode)?,
            size: view.word(ZplAttr::Size)?,
            gen_: view.word(ZplAttr::Gen)?,
            uid: Fuid(view.word(ZplAttr::Uid)?),
            gid: Fuid(view.word(ZplAttr::Gid)?),
            parent: view.word(ZplAttr::Parent)?,
            flags: view.word(ZplAttr::Flags)?,
            atime: view.time(ZplAttr::Atime)?,
            mtime: view.time(ZplAttr::Mtime)?,
            ctime: view.time(ZplAttr::Ctime)?,
            crtime: view.time(ZplAttr::Crtime)?,
            links: view.word(ZplAttr::Links)?,
            rdev: view.optional(ZplAttr::Rdev),
            projid: view.optional(ZplAttr::Projid),
            xattr_obj: view.optional(ZplAttr::Xattr).unwrap_or(0),
            dxattr: bytes(ZplAttr::Dxattr),
            symlink: bytes(ZplAttr::Symlink),
            acl,
            znode_acl: None,
            scanstamp: view.find(ZplAttr::Scanstamp).and_then(|a| a.bytes.first_chunk()).copied(),
            seq: view.optional(ZplAttr::Seq),
        })
    }

    /// Decodes the bonus (type 17) of an object.
    pub fn from_znode(bonus: &[u8]) -> Result<Self, CorruptSa> {
        let short = CorruptSa::ZnodeLength { len: bonus.len() };
        let w: [u64; 22] = words::exact(bonus).ok_or(short)?;
        let acl: [u8; ZNODE_ACL_LEN] = words::array_at(bonus, 176).ok_or(short)?;
        let tail = bonus.get(ZNODE_PHYS_LEN..).unwrap_or(&[]);
        let time = |seconds, nanoseconds| Time { seconds: seconds as i64, nanoseconds };
        let znode_acl = ZnodeAcl::decode(&acl, Endian::Little);
        let (mode, size, flags) = (w[9], w[10], w[15]);
        let target_len = usize::try_from(size).unwrap_or(usize::MAX);
        let is_link = mode & 0o170_000 == 0o120_000;
        let has_stamp = flags & PFlags::BONUS_SCANSTAMP.bits() != 0;
        Ok(Self {
            mode,
            size,
            gen_: w[8],
            uid: Fuid(w[16]),
            gid: Fuid(w[17]),
            parent: w[11],
            flags,
            atime: time(w[0], w[1]),
            mtime: time(w[2], w[3]),
            ctime: time(w[4], w[5]),
            crtime: time(w[6], w[7]),
            links: w[12],
            rdev: matches!(mode & 0o170_000, 0o020_000 | 0o060_000).then_some(w[14]),
            projid: None,
            xattr_obj: w[13],
            dxattr: None,
            symlink: if is_link { tail.get(..target_len).map(<[u8]>::to_vec) } else { None },
            acl: znode_acl.inline.clone(),
            znode_acl: Some(znode_acl),
            scanstamp: if has_stamp { tail.first_chunk().copied() } else { None },
            seq: None,
        })
    }

    /// The pflags, typed.
    #[must_use]
    pub const fn pflags(&self) -> PFlags {
        PFlags::from_bits_retain(self.flags)
    }

    /// File type, `mode >> 12`: 1 fifo, 2 char, 4 directory, 6 block, 8 regular, 10 symlink,
    /// 12 socket.
    #[must_use]
    pub const fn file_type(&self) -> u8 {
        (self.mode >> 12 & 0xf) as u8
    }
}

/// Looks attributes up by their role in this file system.
struct View<'v, 'a> {
    attrs: &'v [Attr<'a>],
    registry: &'v Registry,
}

impl<'a> View<'_, 'a> {
    fn find(&self, attr: ZplAttr) -> Option<Attr<'a>> {
        let number = self.registry.number(attr)?;
        self.attrs.iter().find(|found| found.number == number).copied()
    }

    fn optional(&self, attr: ZplAttr) -> Option<u64> {
        self.find(attr)?.word(0)
    }

    fn word(&self, attr: ZplAttr) -> Result<u64, CorruptSa> {
        self.optional(attr).ok_or(CorruptSa::Missing { name: attr.name() })
    }

    fn time(&self, attr: ZplAttr) -> Result<Time, CorruptSa> {
        let stored = self.find(attr).and_then(|found| Some((found.word(0)?, found.word(1)?)));
        let (seconds, nanoseconds) = stored.ok_or(CorruptSa::Missing { name: attr.name() })?;
        Ok(Time { seconds: seconds as i64, nanoseconds })
    }
}

/// Major and minor numbers of a stored device number. Linux stores `major << 20 | minor`, illumos
/// and FreeBSD `major << 32 | minor`; nothing on disk says which, so the high bits decide (spec 03
/// §10.4).
#[must_use]
pub const fn decode_rdev(rdev: u64) -> (u32, u32) {
    if rdev >> 32 != 0 {
        ((rdev >> 32) as u32, rdev as u32)
    } else {
        ((rdev >> 20) as u32, (rdev & 0xf_ffff) as u32)
    }
}

/// A directory entry's value: file type in the top 4 bits, object in the low 48.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry {
    /// `mode >> 12` of the object; 0 on version 1 file systems.
    pub file_type: u8,
    /// Object number.
    pub object: u64,
}

impl DirEntry {
    /// Decodes the first integer of an entry.
    #[must_use]
    pub const fn decode(value: u64) -> Self {
        Self { file_type: (value >> 60) as u8, object: value & ((1 << 48) - 1) }
    }

    /// The value to store.
    #[must_use]
    pub const fn encode(self) -> u64 {
        (self.file_type as u64) << 60 | self.object & ((1 << 48) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legacy_symlink() {
        let mut w = [0_u64; 33];
        for (word, value) in [
            (0, 100),
            (1, 5),
            (6, u64::MAX),
            (8, 7),
            (9, 0o120_777),
            (10, 4),
            (11, 3),
            (12, 1),
            (13, 99),
            (15, 4),
            (16, (1 << 32) + 1000),
            (17, 1001),
        ] {
            w[word] = value;
        }
        let mut bonus = words::to_bytes(&w);
        bonus.extend(b"etc/padding");
        let file = FileAttributes::from_znode(&bonus).unwrap();
        assert_eq!(file.symlink.as_deref(), Some(&b"etc/"[..]));
        assert_eq!((file.atime.seconds, file.crtime.seconds, file.gen_), (100, -1, 7));
        assert_eq!((file.uid.domain(), file.uid.rid(), file.gid), (1, 1000, Fuid(1001)));
        assert_eq!((file.parent, file.links, file.xattr_obj, file.file_type()), (3, 1, 99, 10));
        assert!(file.pflags().contains(PFlags::ACL_TRIVIAL));
        assert_eq!(
            FileAttributes::from_znode(&bonus[..263]),
            Err(CorruptSa::ZnodeLength { len: 263 })
        );
    }

    #[test]
    fn directory_entries_and_devices() {
        let entry = DirEntry::decode(0x8000_0000_0000_0002);
        assert_eq!((entry.file_type, entry.object), (8, 2));
        assert_eq!(entry.encode(), 0x8000_0000_0000_0002);
        assert_eq!(decode_rdev((8 << 20) + 17), (8, 17));
        assert_eq!(decode_rdev((8 << 32) + 17), (8, 17));
    }
}
