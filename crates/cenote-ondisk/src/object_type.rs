//! DMU object types: the kind of contents of an object, a bonus buffer or a block.
//!
//! ```text
//!   0xxxxxxx   one of 54 numbered types, properties in a table
//!   1MExxSSS   new style: M metadata, E encrypted in encrypted object sets, S how to byteswap
//! ```
//!
//! The number is stored in the dnode, in each of its block pointers at every level, and, as the
//! bonus type, for the bonus buffer and the spill block. An object may have changed its type since
//! a block was written, so a pointer's type may differ from the dnode's (spec 02 §1.3, §8).

use crate::bits::Bits;

/// How a block's contents are converted to the other byte order (spec 02 §2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the structures")]
#[repr(u8)]
pub enum Byteswap {
    /// Bytes: not converted.
    Uint8 = 0,
    Uint16 = 1,
    Uint32 = 2,
    Uint64 = 3,
    Zap = 4,
    Dnode = 5,
    ObjSet = 6,
    /// The bonus buffer of files before system attributes.
    Znode = 7,
    /// ACL entries of version 0, of fixed size.
    OldAcl = 8,
    Acl = 9,
}

impl Byteswap {
    const ALL: [Self; 10] = [
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Zap,
        Self::Dnode,
        Self::ObjSet,
        Self::Znode,
        Self::OldAcl,
        Self::Acl,
    ];

    /// The name that zdb prints for new-style types.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Zap => "zap",
            Self::Dnode => "dnode",
            Self::ObjSet => "objset",
            Self::Znode => "znode",
            Self::OldAcl => "oldacl",
            Self::Acl => "acl",
        }
    }
}

const NEW_STYLE: Bits<7, 1> = Bits;
const NEW_METADATA: Bits<6, 1> = Bits;
const NEW_ENCRYPTED: Bits<5, 1> = Bits;
const NEW_BYTESWAP: Bits<0, 5> = Bits;

/// An object type's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectType(pub u8);

macro_rules! numbered {
    ($($number:literal $constant:ident $swap:ident $metadata:literal $encrypted:literal
       $name:literal)*) => {
        impl ObjectType {
            $(#[doc = concat!("\"", $name, "\".")] pub const $constant: Self = Self($number);)*
        }

        /// Name, byteswap, metadata, encrypted; by number.
        const NUMBERED: &[(&str, Byteswap, bool, bool)] =
            &[$(($name, Byteswap::$swap, $metadata == 1, $encrypted == 1)),*];

        const _: () = {
            let numbers: &[usize] = &[$($number),*];
            let (mut rest, mut index) = (numbers, 0);
            while let [number, behind @ ..] = rest {
                assert!(*number == index);
                (rest, index) = (behind, index + 1);
            }
        };
    };
}

// Number, constant, byteswap, metadata, encrypted, name as printed by OpenZFS.
numbered! {
    0 NONE Uint8 1 0 "unallocated"
    1 OBJECT_DIRECTORY Zap 1 0 "object directory"
    2 OBJECT_ARRAY Uint64 1 0 "object array"
    3 PACKED_NVLIST Uint8 1 0 "packed nvlist"
    4 PACKED_NVLIST_SIZE Uint64 1 0 "packed nvlist size"
    5 BPOBJ Uint64 1 0 "bpobj"
    6 BPOBJ_HDR Uint64 1 0 "bpobj header"
    7 SPACE_MAP_HEADER Uint64 1 0 "SPA space map header"
    8 SPACE_MAP Uint64 1 0 "SPA space map"
    9 INTENT_LOG Uint64 1 1 "ZIL intent log"
    10 DNODE Dnode 1 1 "DMU dnode"
    11 OBJSET ObjSet 1 0 "DMU objset"
    12 DSL_DIR Uint64 1 0 "DSL directory"
    13 DSL_DIR_CHILD_MAP Zap 1 0 "DSL directory child map"
    14 DSL_DS_SNAP_MAP Zap 1 0 "DSL dataset snap map"
    15 DSL_PROPS Zap 1 0 "DSL props"
    16 DSL_DATASET Uint64 1 0 "DSL dataset"
    17 ZNODE Znode 1 0 "ZFS znode"
    18 OLDACL OldAcl 1 1 "ZFS V0 ACL"
    19 PLAIN_FILE_CONTENTS Uint8 0 1 "ZFS plain file"
    20 DIRECTORY_CONTENTS Zap 1 1 "ZFS directory"
    21 MASTER_NODE Zap 1 0 "ZFS master node"
    22 UNLINKED_SET Zap 1 1 "ZFS delete queue"
    23 ZVOL Uint8 0 1 "zvol object"
    24 ZVOL_PROP Zap 1 0 "zvol prop"
    25 PLAIN_OTHER Uint8 0 1 "other uint8[]"
    26 UINT64_OTHER Uint64 0 1 "other uint64[]"
    27 ZAP_OTHER Zap 1 0 "other ZAP"
    28 ERROR_LOG Zap 1 0 "persistent error log"
    29 SPA_HISTORY Uint8 1 0 "SPA history"
    30 SPA_HISTORY_OFFSETS Uint64 1 0 "SPA history offsets"
    31 POOL_PROPS Zap 1 0 "Pool properties"
    32 DSL_PERMS Zap 1 0 "DSL permissions"
    33 ACL Acl 1 1 "ZFS ACL"
    34 SYSACL Uint8 1 1 "ZFS SYSACL"
    35 FUID Uint8 1 1 "FUID table"
    36 FUID_SIZE Uint64 1 0 "FUID table size"
    37 NEXT_CLONES Zap 1 0 "DSL dataset next clones"
    38 SCAN_QUEUE Zap 1 0 "scan work queue"
    39 USERGROUP_USED Zap 1 1 "ZFS user/group/project used"
    40 USERGROUP_QUOTA Zap 1 1 "ZFS user/group/project quota"
    41 USERREFS Zap 1 0 "snapshot refcount tags"
    42 DDT_ZAP Zap 1 0 "DDT ZAP algorithm"
    43 DDT_STATS Zap 1 0 "DDT statistics"
    44 SA Uint8 1 1 "System attributes"
    45 SA_MASTER_NODE Zap 1 1 "SA master node"
    46 SA_ATTR_REGISTRATION Zap 1 1 "SA attr registration"
    47 SA_ATTR_LAYOUTS Zap 1 1 "SA attr layouts"
    48 SCAN_XLATE Zap 1 0 "scan translations"
    49 DEDUP Uint8 0 1 "deduplicated block"
    50 DEADLIST Zap 1 0 "DSL deadlist map"
    51 DEADLIST_HDR Uint64 1 0 "DSL deadlist map hdr"
    52 DSL_CLONES Zap 1 0 "DSL dir clones"
    53 BPOBJ_SUBOBJ Uint64 1 0 "bpobj subobj"
}

impl ObjectType {
    /// Number of old-style types.
    pub const NUMBERED_COUNT: u8 = 54;
    /// New style: metadata, array of bytes.
    pub const UINT8_METADATA: Self = Self(0xc0);
    /// New style: metadata, array of u32.
    pub const UINT32_METADATA: Self = Self(0xc2);
    /// New style: metadata, array of u64.
    pub const UINT64_METADATA: Self = Self(0xc3);
    /// New style: metadata, a ZAP.
    pub const ZAP_METADATA: Self = Self(0xc4);

    /// Whether the number encodes its properties itself.
    #[must_use]
    pub const fn is_new_style(self) -> bool {
        NEW_STYLE.is_set(self.0 as u64)
    }

    /// Whether the number is a known type.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.entry().is_some()
    }

    /// How its contents are byteswapped; unknown types are left as bytes.
    #[must_use]
    pub fn byteswap(self) -> Byteswap {
        self.entry().map_or(Byteswap::Uint8, |entry| entry.1)
    }

    /// Whether it is metadata for checksum, compression and copies.
    #[must_use]
    pub fn is_metadata(self) -> bool {
        self.entry().is_some_and(|entry| entry.2)
    }

    /// Whether level-0 blocks are encrypted in an encrypted object set.
    #[must_use]
    pub fn is_encrypted(self) -> bool {
        self.entry().is_some_and(|entry| entry.3)
    }

    /// Whether the object is a ZAP.
    #[must_use]
    pub fn is_zap(self) -> bool {
        self.byteswap() == Byteswap::Zap
    }

    /// The name in zdb's list of objects.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().map_or("UNKNOWN", |entry| entry.0)
    }

    fn entry(self) -> Option<(&'static str, Byteswap, bool, bool)> {
        let bits = u64::from(self.0);
        if !NEW_STYLE.is_set(bits) {
            return NUMBERED.get(usize::from(self.0)).copied();
        }
        let swap = Byteswap::ALL.get(NEW_BYTESWAP.get(bits) as usize).copied()?;
        Some((swap.name(), swap, NEW_METADATA.is_set(bits), NEW_ENCRYPTED.is_set(bits)))
    }
}

impl std::fmt::Debug for ObjectType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.0, self.name())
    }
}

impl std::fmt::Display for ObjectType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_style_numbers_carry_their_properties() {
        let rows = [
            (0xc4, true, Byteswap::Zap, true, false),
            (0xc3, true, Byteswap::Uint64, true, false),
            (0xe4, true, Byteswap::Zap, true, true),
            (0x80, true, Byteswap::Uint8, false, false),
            (0xca, false, Byteswap::Uint8, false, false),
            (54, false, Byteswap::Uint8, false, false),
            (44, true, Byteswap::Uint8, true, true),
        ];
        for (number, valid, swap, metadata, encrypted) in rows {
            let kind = ObjectType(number);
            assert_eq!(
                (kind.is_valid(), kind.byteswap(), kind.is_metadata(), kind.is_encrypted()),
                (valid, swap, metadata, encrypted),
                "{number}"
            );
        }
        assert_eq!(ObjectType::ZAP_METADATA.name(), "zap");
        assert_eq!(ObjectType(99).name(), "UNKNOWN");
        assert_eq!(NUMBERED.len(), usize::from(ObjectType::NUMBERED_COUNT));
    }
}
