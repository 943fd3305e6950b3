//! Records of the intent log (spec 07 A6, A7).
//!
//! ```text
//!   0  type (bit 63: the request was case-insensitive) | length | txg | sequence | body
//! ```
//!
//! Bodies are u64 fields, then names and data from an offset that is a multiple of 8. In a block
//! that was swapped as u64 the fields are right and those bytes are reversed in groups of eight:
//! [`unswap`] returns the record as it was written, and [`Body::decode`] takes fields from the one
//! and bytes from the other.

use super::CorruptZil;
use super::setattr::SetMask;
use super::xvattr::XvAttrs;
use crate::acl::Acl;
use crate::bits::Bits;
use crate::blkptr::BlockPtr;
use crate::endian::Endian;
use crate::words;

/// Bytes of a record's header.
pub const RECORD_HEADER_LEN: usize = 32;
/// Bytes of a write record without data; one of exactly this length is indirect.
pub const WRITE_BASE_LEN: usize = 192;
/// Bytes before the variable part of a create record with an ACL.
const CREATE_ACL_LEN: usize = 144;

const KIND: Bits<0, 63> = Bits;
const IS_CASE_INSENSITIVE: Bits<63, 1> = Bits;
pub(super) const OBJECT: Bits<0, 48> = Bits;
pub(super) const SLOTS_MINUS_1: Bits<56, 8> = Bits;

macro_rules! record_kinds {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// Type of a record.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the names are those of the operations")]
        pub enum RecordKind { $($name = $number,)* }

        impl RecordKind {
            /// All types, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// From a stored number, without the case bit.
            #[must_use]
            pub const fn from_number(number: u64) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Name as zdb prints it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

record_kinds! {
    Create = 1, "TX_CREATE";
    Mkdir = 2, "TX_MKDIR";
    Mkxattr = 3, "TX_MKXATTR";
    Symlink = 4, "TX_SYMLINK";
    Remove = 5, "TX_REMOVE";
    Rmdir = 6, "TX_RMDIR";
    Link = 7, "TX_LINK";
    Rename = 8, "TX_RENAME";
    Write = 9, "TX_WRITE";
    Truncate = 10, "TX_TRUNCATE";
    Setattr = 11, "TX_SETATTR";
    AclV0 = 12, "TX_ACL_V0";
    Acl = 13, "TX_ACL_ACL";
    CreateAcl = 14, "TX_CREATE_ACL";
    CreateAttr = 15, "TX_CREATE_ATTR";
    CreateAclAttr = 16, "TX_CREATE_ACL_ATTR";
    MkdirAcl = 17, "TX_MKDIR_ACL";
    MkdirAttr = 18, "TX_MKDIR_ATTR";
    MkdirAclAttr = 19, "TX_MKDIR_ACL_ATTR";
    Write2 = 20, "TX_WRITE2";
    SetSaXattr = 21, "TX_SETSAXATTR";
    RenameExchange = 22, "TX_RENAME_EXCHANGE";
    RenameWhiteout = 23, "TX_RENAME_WHITEOUT";
    CloneRange = 24, "TX_CLONE_RANGE";
}

/// One record, with its header decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Type number, without the case bit.
    pub kind_number: u64,
    /// The request was case-insensitive.
    pub is_case_insensitive: bool,
    /// Txg in which the operation was assigned.
    pub txg: u64,
    /// Sequence number, rising along the chain.
    pub seq: u64,
    /// The whole record.
    pub bytes: &'a [u8],
}

impl Record<'_> {
    /// Type, if known.
    #[must_use]
    pub const fn kind(&self) -> Option<RecordKind> {
        RecordKind::from_number(self.kind_number)
    }
}

/// The records of a block. Ends after an error.
pub fn records(bytes: &[u8]) -> Records<'_> {
    Records { bytes, offset: 0 }
}

/// Iterator over the records of a block.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, CorruptZil>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let rest = self.bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        let [txtype, len, txg, seq] = words::padded(rest);
        let bytes = usize::try_from(len)
            .ok()
            .filter(|len| *len >= RECORD_HEADER_LEN && len.is_multiple_of(8))
            .and_then(|len| rest.get(..len));
        let Some(bytes) = bytes else {
            self.offset = self.bytes.len();
            return Some(Err(CorruptZil::RecordLength { offset, len, left: rest.len() }));
        };
        self.offset = offset.saturating_add(bytes.len());
        Some(Ok(Record {
            kind_number: KIND.get(txtype),
            is_case_insensitive: IS_CASE_INSENSITIVE.is_set(txtype),
            txg,
            seq,
            bytes,
        }))
    }
}

impl Record<'_> {
    /// Whether the block pointers of the record, if it has any, cannot be read without keys in a
    /// log block at `block`: those of writes and clones are not encrypted (spec 08 §12).
    #[must_use]
    pub fn is_hidden(&self, block: &BlockPtr) -> bool {
        let is_clear = matches!(self.kind(), Some(RecordKind::Write | RecordKind::CloneRange));
        block.is_protected() && (!is_clear || self.is_case_insensitive)
    }
}

/// Returns a record of a block that was swapped as u64, as it was written.
#[must_use]
pub fn unswap(record: &[u8]) -> Vec<u8> {
    let (groups, tail) = record.as_chunks::<8>();
    let mut bytes: Vec<u8> = groups.iter().flat_map(|group| group.iter().rev().copied()).collect();
    bytes.extend_from_slice(tail);
    bytes
}

/// A new object, in create records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewObject {
    /// Object number.
    pub object: u64,
    /// Dnode slots.
    pub slots: u16,
    /// Mode with type bits.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Txg of creation.
    pub gen_: u64,
    /// Birth time, seconds and nanoseconds.
    pub crtime: [u64; 2],
    /// Device number.
    pub rdev: u64,
}

/// An ACL in a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedAcl {
    /// The entries, all of them.
    pub acl: Acl,
    /// Flags of the whole ACL.
    pub flags: u64,
    /// Ids of entries for users or groups of a domain.
    pub fuids: Vec<u64>,
    /// Number of domains, whose names are not kept: Linux has none.
    pub domain_count: u64,
}

impl LoggedAcl {
    /// `None` if entries are missing.
    fn complete(self) -> Option<Self> {
        (!self.acl.is_truncated).then_some(self)
    }
}

/// Content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// Create, mkdir, symlink, with or without attributes.
    Create {
        /// Directory (or owner of the xattr directory).
        parent: u64,
        /// The object.
        new: NewObject,
        /// Optional attributes of the `*_ATTR` types.
        xvattr: Option<XvAttrs>,
        /// Name, without NUL.
        name: &'a [u8],
        /// Target of a symlink.
        target: Option<&'a [u8]>,
    },
    /// Create with an ACL.
    CreateAcl {
        /// Directory.
        parent: u64,
        /// The object.
        new: NewObject,
        /// Optional attributes of the `*_ATTR` types.
        xvattr: Option<XvAttrs>,
        /// The ACL.
        acl: LoggedAcl,
        /// Name, without NUL.
        name: &'a [u8],
    },
    /// Remove, rmdir.
    Remove {
        /// Directory.
        parent: u64,
        /// Name.
        name: &'a [u8],
    },
    /// Hard link.
    Link {
        /// Directory.
        parent: u64,
        /// Object linked.
        object: u64,
        /// Name.
        name: &'a [u8],
    },
    /// Rename, exchange, whiteout.
    Rename {
        /// Source directory.
        source_parent: u64,
        /// Target directory.
        target_parent: u64,
        /// Source name.
        source: &'a [u8],
        /// Target name.
        target: &'a [u8],
        /// The whiteout left behind.
        whiteout: Option<NewObject>,
    },
    /// Write, write2.
    Write {
        /// Object.
        object: u64,
        /// File offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Block that holds the data of an indirect write.
        bp: BlockPtr,
        /// Data of an immediate write; `None` = indirect.
        data: Option<&'a [u8]>,
    },
    /// Truncate or punch a hole.
    Truncate {
        /// Object.
        object: u64,
        /// Offset.
        offset: u64,
        /// Bytes, 0 = to the end.
        len: u64,
    },
    /// Set attributes. The meaning of the mask depends on the host (spec 07 A7.5).
    Setattr {
        /// Object.
        object: u64,
        /// Mask of the changed attributes.
        mask: u64,
        /// Mode.
        mode: u64,
        /// Owner.
        uid: u64,
        /// Group.
        gid: u64,
        /// Size.
        size: u64,
        /// Access time.
        atime: [u64; 2],
        /// Content change time.
        mtime: [u64; 2],
        /// Optional attributes, if the mask has them.
        xvattr: Option<XvAttrs>,
    },
    /// Set or remove an xattr.
    SetSaXattr {
        /// Object.
        object: u64,
        /// Name.
        name: &'a [u8],
        /// Value; empty = remove.
        value: &'a [u8],
    },
    /// Set an ACL (either version).
    Acl {
        /// Object.
        object: u64,
        /// The ACL.
        acl: LoggedAcl,
    },
    /// Clone blocks.
    CloneRange {
        /// Object.
        object: u64,
        /// File offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of a file block.
        block_size: u64,
        /// The blocks.
        bps: Vec<BlockPtr>,
    },
    /// A type of newer software.
    Unknown,
}

impl<'a> Body<'a> {
    /// Decodes a record. `written` is the record as it was written: the same bytes, or [`unswap`]
    /// of them if its block was swapped.
    pub fn decode(record: &Record<'a>, written: &'a [u8]) -> Result<Self, CorruptZil> {
        let Some(kind) = record.kind() else { return Ok(Self::Unknown) };
        // No type number is a palindrome of eight bytes, so it shows whether the record was
        // swapped.
        let is_swapped = record.bytes.first_chunk::<8>() != written.first_chunk::<8>();
        let order = if is_swapped { Endian::Big } else { Endian::Little };
        let fields = Fields { words: record.bytes, bytes: written, order };
        fields.body(kind).ok_or(CorruptZil::RecordBody {
            seq: record.seq,
            kind: record.kind_number,
            len: record.bytes.len(),
        })
    }
}

struct Fields<'a> {
    words: &'a [u8],
    bytes: &'a [u8],
    /// Byte order of `bytes`.
    order: Endian,
}

impl<'a> Fields<'a> {
    fn word(&self, offset: usize) -> Option<u64> {
        words::u64_at(self.words, offset)
    }

    fn pair(&self, offset: usize) -> Option<[u64; 2]> {
        words::exact(self.words.get(offset..)?)
    }

    fn rest(&self, offset: usize) -> Option<&'a [u8]> {
        self.bytes.get(offset..)
    }

    fn body(&self, kind: RecordKind) -> Option<Body<'a>> {
        use RecordKind as K;
        Some(match kind {
            K::Create | K::Mkdir | K::Mkxattr | K::Symlink | K::CreateAttr | K::MkdirAttr => {
                return self.create(kind);
            }
            K::CreateAcl | K::CreateAclAttr | K::MkdirAcl | K::MkdirAclAttr => {
                return self.create_acl(kind);
            }
            K::Remove | K::Rmdir => {
                Body::Remove { parent: self.word(32)?, name: text(self.rest(40)?)?.0 }
            }
            K::Link => Body::Link {
                parent: self.word(32)?,
                object: self.word(40)?,
                name: text(self.rest(48)?)?.0,
            },
            K::Rename | K::RenameExchange | K::RenameWhiteout => return self.rename(kind),
            K::Write | K::Write2 => return self.write(kind),
            K::Truncate => Body::Truncate {
                object: self.word(32)?,
                offset: self.word(40)?,
                len: self.word(48)?,
            },
            K::Setattr => return self.setattr(),
            K::SetSaXattr => {
                let (name, rest) = text(self.rest(48)?)?;
                let value = rest.get(..usize::try_from(self.word(40)?).ok()?)?;
                Body::SetSaXattr { object: self.word(32)?, name, value }
            }
            K::AclV0 => {
                let acl = Acl::decode_v0(self.rest(48)?, self.word(40)?, self.order);
                let acl = LoggedAcl { acl, ..LoggedAcl::default() };
                Body::Acl { object: self.word(32)?, acl: acl.complete()? }
            }
            K::Acl => {
                let (acl, _) = self.acl(40, 80)?;
                Body::Acl { object: self.word(32)?, acl }
            }
            K::CloneRange => return self.clone_range(),
        })
    }

    fn create(&self, kind: RecordKind) -> Option<Body<'a>> {
        let mut new = self.new_object(40, 48)?;
        let mut rest = self.rest(104)?;
        let mut xvattr = None;
        if matches!(kind, RecordKind::CreateAttr | RecordKind::MkdirAttr) {
            let (block, len) = XvAttrs::decode(rest, self.order)?;
            (xvattr, rest) = (Some(block), rest.get(len..)?);
        }
        for _ in 0..domain_count(new.uid, new.gid) {
            rest = text(rest)?.1;
        }
        let (name, rest) = text(rest)?;
        let target = match kind {
            RecordKind::Symlink => {
                // These records have neither slots nor a device number.
                (new.slots, new.rdev) = (1, 0);
                Some(text(rest)?.0)
            }
            _ => None,
        };
        Some(Body::Create { parent: self.word(32)?, new, xvattr, name, target })
    }

    fn setattr(&self) -> Option<Body<'a>> {
        let mask = self.word(40)?;
        let has_extra = SetMask::from_stored(mask).contains(SetMask::XVATTR);
        let extra = if has_extra { self.rest(112)? } else { &[] };
        let xvattr = XvAttrs::decode(extra, self.order).map(|(attrs, _)| attrs);
        Some(Body::Setattr {
            object: self.word(32)?,
            mask,
            mode: self.word(48)?,
            uid: self.word(56)?,
            gid: self.word(64)?,
            size: self.word(72)?,
            atime: self.pair(80)?,
            mtime: self.pair(96)?,
            xvattr: if has_extra { Some(xvattr?) } else { None },
        })
    }

    fn create_acl(&self, kind: RecordKind) -> Option<Body<'a>> {
        let mut at = CREATE_ACL_LEN;
        let mut xvattr = None;
        if matches!(kind, RecordKind::CreateAclAttr | RecordKind::MkdirAclAttr) {
            let (block, len) = XvAttrs::decode(self.rest(at)?, self.order)?;
            (xvattr, at) = (Some(block), at.checked_add(len)?);
        }
        let (acl, rest) = self.acl(104, at)?;
        let name = text(rest)?.0;
        let (parent, new) = (self.word(32)?, self.new_object(40, 48)?);
        Some(Body::CreateAcl { parent, new, xvattr, acl, name })
    }

    /// An ACL whose five numbers are at `head` and whose entries are at `at`; also returns the
    /// bytes behind it.
    fn acl(&self, head: usize, at: usize) -> Option<(LoggedAcl, &'a [u8])> {
        let [ace_count, domain_count, fuid_count, len, flags] =
            words::exact(self.words.get(head..)?)?;
        let len = usize::try_from(len).ok()?;
        let entries = self.rest(at)?.get(..len)?;
        let acl = Acl::decode(entries, ace_count, self.order);
        let fuids_at = at.checked_add(len.checked_next_multiple_of(8)?)?;
        let fuids_len = usize::try_from(fuid_count).ok()?.checked_mul(8)?;
        let fuids = words::iter(self.words.get(fuids_at..)?.get(..fuids_len)?).collect();
        let mut rest = self.rest(fuids_at.checked_add(fuids_len)?)?;
        for _ in 0..domain_count {
            rest = text(rest)?.1;
        }
        let acl = LoggedAcl { acl, flags, fuids, domain_count };
        Some((acl.complete()?, rest))
    }

    fn new_object(&self, object_at: usize, mode_at: usize) -> Option<NewObject> {
        let object = self.word(object_at)?;
        let [mode, uid, gid, gen_, seconds, nanoseconds, rdev] =
            words::exact(self.words.get(mode_at..)?)?;
        Some(NewObject {
            object: OBJECT.get(object),
            slots: SLOTS_MINUS_1.get(object) as u16 + 1,
            mode,
            uid,
            gid,
            gen_,
            crtime: [seconds, nanoseconds],
            rdev,
        })
    }

    fn rename(&self, kind: RecordKind) -> Option<Body<'a>> {
        let (names_at, whiteout) = match kind {
            RecordKind::RenameWhiteout => (112, Some(self.new_object(48, 56)?)),
            _ => (48, None),
        };
        let (source, rest) = text(self.rest(names_at)?)?;
        let target = text(rest)?.0;
        let (source_parent, target_parent) = (self.word(32)?, self.word(40)?);
        Some(Body::Rename { source_parent, target_parent, source, target, whiteout })
    }

    fn write(&self, kind: RecordKind) -> Option<Body<'a>> {
        let len = self.word(48)?;
        let is_immediate = kind == RecordKind::Write && self.words.len() != WRITE_BASE_LEN;
        let data = if is_immediate {
            Some(self.rest(WRITE_BASE_LEN)?.get(..usize::try_from(len).ok()?)?)
        } else {
            None
        };
        let bp = BlockPtr::at(self.words, 64)?;
        Some(Body::Write { object: self.word(32)?, offset: self.word(40)?, len, bp, data })
    }

    fn clone_range(&self) -> Option<Body<'a>> {
        let count = usize::try_from(self.word(64)?).ok()?;
        let bps = self.words.get(72..)?.get(..count.checked_mul(128)?)?;
        Some(Body::CloneRange {
            object: self.word(32)?,
            offset: self.word(40)?,
            len: self.word(48)?,
            block_size: self.word(56)?,
            bps: BlockPtr::all_in(bps).collect(),
        })
    }
}

/// Number of domain strings before a name: one for each distinct domain of owner and group.
const fn domain_count(uid: u64, gid: u64) -> usize {
    match (uid >> 32, gid >> 32) {
        (0, 0) => 0,
        (user, group) if user == group || user == 0 || group == 0 => 1,
        _ => 2,
    }
}

/// Splits bytes behind a NUL; `None` if there is none.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let (text, rest) = bytes.split_at_checked(end)?;
    Some((text, rest.get(1..)?))
}
