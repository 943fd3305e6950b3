//! The root block of an object set: the meta-dnode, and the set's own data.
//!
//! ```text
//!      0  meta-dnode (512)              704  type    712  flags
//!    512  ZIL header (192)              720  portable MAC    752  local MAC (32 each)
//!   ------------------------------------------------------------------- 1024, version 1
//!   1024  user-used dnode               1536  group-used dnode
//!   ------------------------------------------------------------------- 2048, version 2
//!   2048  project-used dnode            2560  zero
//!   ------------------------------------------------------------------- 4096, version 3
//! ```
//!
//! Old pools have shorter blocks; missing parts are zero. The three accounting objects have the
//! numbers -1, -2, -3 and are stored here only. The ZIL header is returned as bytes
//! ([`crate::zil`]).
//!
//! Sources: spec 02 §10.1; spec 08 §11 for the MACs.

use bitflags::bitflags;

use crate::dnode::{CorruptDnode, DNODE_SLOT_LEN, DnodePhys};
use crate::words;

/// Bytes of a version 1 block, the shortest.
pub const OBJSET_V1_LEN: usize = 1024;
/// Bytes of a version 2 block.
pub const OBJSET_V2_LEN: usize = 2048;
/// Bytes of a version 3 block.
pub const OBJSET_V3_LEN: usize = 4096;
/// Bytes of the ZIL header.
pub const ZIL_HEADER_LEN: usize = 192;
/// Number of the object that holds space and objects by user.
pub const USERUSED_OBJECT: u64 = u64::MAX;
/// Number of the object that holds space and objects by group.
pub const GROUPUSED_OBJECT: u64 = u64::MAX - 1;
/// Number of the object that holds space and objects by project.
pub const PROJECTUSED_OBJECT: u64 = u64::MAX - 2;

const ZIL_HEADER_AT: usize = 512;
const TYPE_AT: usize = 704;
const FLAGS_AT: usize = 712;
const PORTABLE_MAC_AT: usize = 720;
const LOCAL_MAC_AT: usize = 752;
const USERUSED_AT: usize = 1024;
const GROUPUSED_AT: usize = 1536;
const PROJECTUSED_AT: usize = 2048;

/// Type of an object set (`os_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjSetType {
    /// Not set.
    None,
    /// The MOS.
    Meta,
    /// A file system.
    Zfs,
    /// A volume.
    Zvol,
    /// Used by test programs.
    Other,
}

impl ObjSetType {
    /// The type with this number.
    #[must_use]
    pub const fn from_id(id: u64) -> Option<Self> {
        Some(match id {
            0 => Self::None,
            1 => Self::Meta,
            2 => Self::Zfs,
            3 => Self::Zvol,
            4 => Self::Other,
            _ => return None,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn id(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Meta => 1,
            Self::Zfs => 2,
            Self::Zvol => 3,
            Self::Other => 4,
        }
    }

    /// The name in zdb's line of a dataset.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Meta => "META",
            Self::Zfs => "ZPL",
            Self::Zvol => "ZVOL",
            Self::Other => "OTHER",
        }
    }
}

bitflags! {
    /// Which accounting is complete; unknown bits are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ObjSetFlags: u64 {
        /// Space by user and group is complete.
        const USERACCOUNTING_COMPLETE = 1 << 0;
        /// Objects by user and group are complete.
        const USEROBJACCOUNTING_COMPLETE = 1 << 1;
        /// Space and objects by project are complete.
        const PROJECTQUOTA_COMPLETE = 1 << 2;
        const _ = !0;
    }
}

/// Why the root block of an object set is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptObjSet {
    /// The block is too small.
    #[error("object set: block of {len} bytes, expected at least 1024")]
    Length {
        /// Bytes found.
        len: usize,
    },
    /// The type is unknown.
    #[error("object set: type {0} is unknown")]
    Type(u64),
    /// There is no meta-dnode.
    #[error("object set: meta-dnode is free")]
    NoMetaDnode,
    /// One of the dnodes is invalid.
    #[error("object set: dnode of object {object:#x}: {cause}")]
    Dnode {
        /// Its number: 0 or one of the accounting objects.
        object: u64,
        /// The dnode's error.
        #[source]
        cause: CorruptDnode,
    },
}

/// The root block of an object set (`objset_phys_t`), checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjSetPhys {
    /// The meta-dnode, whose data are all dnodes.
    pub meta_dnode: DnodePhys,
    /// Header of the intent log.
    pub zil_header: [u8; ZIL_HEADER_LEN],
    /// Type of the set.
    pub kind: ObjSetType,
    /// Which accounting is complete.
    pub flags: ObjSetFlags,
    /// HMAC over the data of a raw send; zero unless encrypted.
    pub portable_mac: [u8; 32],
    /// HMAC over the accounting objects; zero unless encrypted.
    pub local_mac: [u8; 32],
    /// Object -1, if created.
    pub userused_dnode: Option<DnodePhys>,
    /// Object -2, if created.
    pub groupused_dnode: Option<DnodePhys>,
    /// Object -3, if created.
    pub projectused_dnode: Option<DnodePhys>,
    /// Bytes of the block.
    pub len: usize,
}

impl ObjSetPhys {
    /// Decodes a block (little-endian).
    pub fn decode(block: &[u8]) -> Result<Self, CorruptObjSet> {
        let short = CorruptObjSet::Length { len: block.len() };
        if block.len() < OBJSET_V1_LEN {
            return Err(short);
        }
        let type_id = words::u64_at(block, TYPE_AT).ok_or(short)?;
        Ok(Self {
            meta_dnode: dnode_at(block, 0, 0)?.ok_or(CorruptObjSet::NoMetaDnode)?,
            zil_header: words::array_at(block, ZIL_HEADER_AT).ok_or(short)?,
            kind: ObjSetType::from_id(type_id).ok_or(CorruptObjSet::Type(type_id))?,
            flags: ObjSetFlags::from_bits_retain(words::u64_at(block, FLAGS_AT).ok_or(short)?),
            portable_mac: words::array_at(block, PORTABLE_MAC_AT).ok_or(short)?,
            local_mac: words::array_at(block, LOCAL_MAC_AT).ok_or(short)?,
            userused_dnode: dnode_at(block, USERUSED_AT, USERUSED_OBJECT)?,
            groupused_dnode: dnode_at(block, GROUPUSED_AT, GROUPUSED_OBJECT)?,
            projectused_dnode: dnode_at(block, PROJECTUSED_AT, PROJECTUSED_OBJECT)?,
            len: block.len(),
        })
    }

    /// The block, little-endian; its length is the version's (1024, 2048 or 4096).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut block = self.meta_dnode.encode();
        block.extend(self.zil_header);
        block.extend(words::to_bytes(&[self.kind.id(), self.flags.bits()]));
        block.extend(self.portable_mac);
        block.extend(self.local_mac);
        let accounting = [
            (USERUSED_AT, &self.userused_dnode),
            (GROUPUSED_AT, &self.groupused_dnode),
            (PROJECTUSED_AT, &self.projectused_dnode),
        ];
        for (offset, dnode) in accounting {
            if let Some(dnode) = dnode {
                block.resize(offset, 0);
                block.extend(dnode.encode());
            }
        }
        block.resize(self.len, 0);
        block
    }

    /// The dnode of a special object: 0, -1, -2, -3.
    #[must_use]
    pub const fn special_dnode(&self, object: u64) -> Option<&DnodePhys> {
        match object {
            0 => Some(&self.meta_dnode),
            USERUSED_OBJECT => self.userused_dnode.as_ref(),
            GROUPUSED_OBJECT => self.groupused_dnode.as_ref(),
            PROJECTUSED_OBJECT => self.projectused_dnode.as_ref(),
            _ => None,
        }
    }
}

/// The dnode in one slot of the block; `None` if free or beyond the end.
fn dnode_at(block: &[u8], offset: usize, object: u64) -> Result<Option<DnodePhys>, CorruptObjSet> {
    match words::array_at::<DNODE_SLOT_LEN>(block, offset) {
        None => Ok(None),
        Some(slot) => {
            DnodePhys::decode(&slot).map_err(|cause| CorruptObjSet::Dnode { object, cause })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn meta_dnode() -> [u8; 512] {
        let mut bytes = [0; 512];
        bytes[..12].copy_from_slice(&[0x0a, 0x11, 6, 3, 0, 0, 0, 1, 0x20, 0, 0, 0]);
        bytes
    }

    #[test]
    fn three_lengths() {
        for len in [OBJSET_V1_LEN, OBJSET_V2_LEN, OBJSET_V3_LEN] {
            let mut block = vec![0; len];
            for offset in [0, 1024, 2048] {
                if let Some(slot) = block.get_mut(offset..offset + 512) {
                    slot.copy_from_slice(&meta_dnode());
                }
            }
            block[TYPE_AT] = 2;
            block[FLAGS_AT] = 7;
            block[ZIL_HEADER_AT] = 9;
            let objset = ObjSetPhys::decode(&block).unwrap();
            assert_eq!((objset.kind, objset.meta_dnode.nlevels), (ObjSetType::Zfs, 6));
            assert_eq!(objset.userused_dnode.is_some(), len >= OBJSET_V2_LEN);
            assert_eq!(objset.projectused_dnode.is_some(), len >= OBJSET_V3_LEN);
            assert_eq!(objset.flags, ObjSetFlags::from_bits_retain(7));
            assert_eq!(objset.encode(), block);
        }
    }

    #[test]
    fn refusals() {
        let mut block = vec![0; 1024];
        assert_eq!(ObjSetPhys::decode(&block), Err(CorruptObjSet::NoMetaDnode));
        block[..512].copy_from_slice(&meta_dnode());
        block[TYPE_AT] = 5;
        assert_eq!(ObjSetPhys::decode(&block), Err(CorruptObjSet::Type(5)));
        assert!(ObjSetPhys::decode(&block[..1023]).is_err());
        block[2] = 99;
        let cause = CorruptDnode::Levels(99);
        assert_eq!(ObjSetPhys::decode(&block), Err(CorruptObjSet::Dnode { object: 0, cause }));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..4200)) {
            let _ = ObjSetPhys::decode(&bytes);
        }
    }
}
