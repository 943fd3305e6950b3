//! The attribute numbers and layouts of a file system (spec 03 §8.1, §8.2).
//!
//! REGISTRY: name → u64 with number (bits 0-15), swap class (16-23), length (24-39, 0 = variable).
//! LAYOUTS: decimal number → u16 attribute numbers in storage order. Numbers from 16 up differ
//! between file systems; the names below are fixed.

use std::collections::BTreeMap;

/// SA master node: ZAP of attributes.
pub const REGISTRY: &str = "REGISTRY";
/// SA master node: ZAP of layouts.
pub const LAYOUTS: &str = "LAYOUTS";

/// How an attribute is byteswapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// Array of u64.
    U64,
    /// Array of u32.
    U32,
    /// Array of u16.
    U16,
    /// Bytes.
    Bytes,
    /// ACL entries.
    Acl,
    /// A class of newer software.
    Unknown(u8),
}

impl Swap {
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::U64,
            1 => Self::U32,
            2 => Self::U16,
            3 => Self::Bytes,
            4 => Self::Acl,
            other => Self::Unknown(other),
        }
    }

    const fn to_bits(self) -> u8 {
        match self {
            Self::U64 => 0,
            Self::U32 => 1,
            Self::U16 => 2,
            Self::Bytes => 3,
            Self::Acl => 4,
            Self::Unknown(bits) => bits,
        }
    }
}

/// One entry of REGISTRY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttrInfo {
    /// Number in this file system.
    pub number: u16,
    /// Swap class.
    pub swap: Swap,
    /// Bytes, 0 = variable.
    pub len: u16,
}

impl AttrInfo {
    /// Decodes the value of an entry.
    #[must_use]
    pub const fn decode(value: u64) -> Self {
        Self {
            number: value as u16,
            swap: Swap::from_bits((value >> 16) as u8),
            len: (value >> 24) as u16,
        }
    }

    /// The value of an entry.
    #[must_use]
    pub const fn encode(&self) -> u64 {
        self.number as u64 | (self.swap.to_bits() as u64) << 16 | (self.len as u64) << 24
    }
}

macro_rules! zpl_attrs {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $len:literal, $swap:ident;)*) => {
        /// An attribute of the POSIX layer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ZplAttr { $($(#[$doc])* $name,)* }

        impl ZplAttr {
            /// All of them; the order is that of the numbers that current software gives them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Name in REGISTRY.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Number, class and length as current software registers them.
            #[must_use]
            pub const fn default_info(self) -> AttrInfo {
                match self {
                    $(Self::$name => AttrInfo { number: $number, swap: Swap::$swap, len: $len },)*
                }
            }
        }
    };
}

zpl_attrs! {
    /// Access time.
    Atime = 0, "ZPL_ATIME", 16, U64;
    /// Content change time.
    Mtime = 1, "ZPL_MTIME", 16, U64;
    /// State change time.
    Ctime = 2, "ZPL_CTIME", 16, U64;
    /// Birth time.
    Crtime = 3, "ZPL_CRTIME", 16, U64;
    /// Txg of creation.
    Gen = 4, "ZPL_GEN", 8, U64;
    /// Mode with type bits.
    Mode = 5, "ZPL_MODE", 8, U64;
    /// Size.
    Size = 6, "ZPL_SIZE", 8, U64;
    /// Object of a containing directory.
    Parent = 7, "ZPL_PARENT", 8, U64;
    /// Link count.
    Links = 8, "ZPL_LINKS", 8, U64;
    /// Object of the xattr directory.
    Xattr = 9, "ZPL_XATTR", 8, U64;
    /// Device number.
    Rdev = 10, "ZPL_RDEV", 8, U64;
    /// pflags.
    Flags = 11, "ZPL_FLAGS", 8, U64;
    /// Owner.
    Uid = 12, "ZPL_UID", 8, U64;
    /// Group.
    Gid = 13, "ZPL_GID", 8, U64;
    /// Legacy layout only.
    Pad = 14, "ZPL_PAD", 32, U64;
    /// Legacy layout only.
    ZnodeAcl = 15, "ZPL_ZNODE_ACL", 88, Bytes;
    /// Number of ACL entries.
    DaclCount = 16, "ZPL_DACL_COUNT", 8, U64;
    /// Target of a symbolic link.
    Symlink = 17, "ZPL_SYMLINK", 0, Bytes;
    /// Antivirus stamp.
    Scanstamp = 18, "ZPL_SCANSTAMP", 32, Bytes;
    /// ACL entries.
    DaclAces = 19, "ZPL_DACL_ACES", 0, Acl;
    /// Packed nvlist of xattrs.
    Dxattr = 20, "ZPL_DXATTR", 0, Bytes;
    /// Project id.
    Projid = 21, "ZPL_PROJID", 8, U64;
    /// Change counter of newest software.
    Seq = 22, "ZPL_SEQ", 8, U64;
}

/// Attributes whose numbers are the same in every file system.
const FIXED_COUNT: u16 = 16;

/// The attributes and layouts of one file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registry {
    attrs: BTreeMap<u16, AttrInfo>,
    names: BTreeMap<Vec<u8>, u16>,
    layouts: BTreeMap<u16, Vec<u16>>,
    /// `ZplAttr` → number, by the variant's position.
    zpl: Vec<Option<u16>>,
}

impl Registry {
    /// A registry with the sixteen fixed attributes and no layouts.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Self { zpl: vec![None; ZplAttr::ALL.len()], ..Self::default() };
        for attr in ZplAttr::ALL {
            let info = attr.default_info();
            if info.number < FIXED_COUNT {
                registry.add_attr(attr.name().as_bytes(), info.encode());
            }
        }
        registry
    }

    /// Adds an entry of REGISTRY.
    pub fn add_attr(&mut self, name: &[u8], value: u64) {
        let info = AttrInfo::decode(value);
        self.attrs.insert(info.number, info);
        self.names.insert(name.to_vec(), info.number);
        let known = ZplAttr::ALL.iter().position(|attr| attr.name().as_bytes() == name);
        if let Some(slot) = known.and_then(|index| self.zpl.get_mut(index)) {
            *slot = Some(info.number);
        }
    }

    /// Adds an entry of LAYOUTS. Returns false (and changes nothing) if the key is not a layout
    /// number or the layout is too long.
    pub fn add_layout(&mut self, key: &[u8], attrs: &[u64]) -> bool {
        let number = str::from_utf8(key).ok().and_then(|key| key.parse::<u16>().ok());
        let attrs = attrs.iter().map(|attr| u16::try_from(*attr)).collect::<Result<Vec<_>, _>>();
        match (number, attrs) {
            (Some(number), Ok(attrs)) if attrs.len() <= super::LAYOUT_LEN_MAX => {
                self.layouts.insert(number, attrs);
                true
            }
            _ => false,
        }
    }

    /// An attribute by number.
    #[must_use]
    pub fn attr(&self, number: u16) -> Option<&AttrInfo> {
        self.attrs.get(&number)
    }

    /// Number of an attribute of the POSIX layer in this file system.
    #[must_use]
    pub fn number(&self, attr: ZplAttr) -> Option<u16> {
        self.zpl.get(attr as usize).copied().flatten()
    }

    /// A layout by number.
    #[must_use]
    pub fn layout(&self, number: u16) -> Option<&[u16]> {
        self.layouts.get(&number).map(Vec::as_slice)
    }

    /// All layouts, by number.
    pub fn layouts(&self) -> impl Iterator<Item = (u16, &[u16])> {
        self.layouts.iter().map(|(number, attrs)| (*number, attrs.as_slice()))
    }

    /// All attributes: name and registered information.
    pub fn attrs(&self) -> impl Iterator<Item = (&[u8], &AttrInfo)> {
        self.names
            .iter()
            .filter_map(|(name, number)| self.attrs.get(number).map(|info| (name.as_slice(), info)))
    }
}
