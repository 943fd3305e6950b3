//! The attributes of one object in a transaction.

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::acl::Ace;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::{FileAttributes, PFlags, Time};
use cenote_rt::{Error, Kind};

use super::refuse;
use super::sa::{Attrs, Schema};
use crate::error::FsError;
use crate::node::FileKind;

/// The bits of a mode that give the type.
pub(crate) const TYPE_MASK: u64 = 0o170_000;
/// The bits of a mode that chmod changes.
pub(crate) const PERMISSION_MASK: u64 = 0o7777;
/// Permission bits other than the access bits.
pub(crate) const SET_UID: u64 = 0o4000;
pub(crate) const SET_GID: u64 = 0o2000;
pub(crate) const STICKY: u64 = 0o1000;

/// An inode: an object and its attributes, which are changed and then stored
/// ([`Op::store`](super::Op::store)).
#[derive(Debug, Clone)]
pub struct Inode {
    /// The object.
    pub object: u64,
    /// Its attributes.
    pub attrs: Attrs,
    /// Attributes of an old file system's bonus buffer.
    legacy: Option<Box<FileAttributes>>,
}

impl Inode {
    /// Returns a new inode.
    pub(super) fn new(object: u64, attrs: Attrs) -> Self {
        Self { object, attrs, legacy: None }
    }

    /// Loads the inode of an object.
    pub(super) fn load(tx: &mut Tx<'_>, schema: &Schema, object: u64) -> TxResult<Self> {
        let dnode = tx.dnode(object)?;
        let corrupt = |error| Error::corrupt(error).in_object(tx.objset(), object);
        match dnode.bonus_type {
            ObjectType::SA => {
                let spill = if dnode.spill.is_some() { tx.spill(object)? } else { None };
                let attrs = Attrs::decode(dnode.bonus(), spill.as_deref(), schema);
                let attrs = attrs.map_err(corrupt)?;
                Ok(Self { object, attrs, legacy: None })
            }
            ObjectType::ZNODE => {
                let attributes = FileAttributes::from_znode(dnode.bonus()).map_err(corrupt)?;
                let attrs = of_legacy(&attributes);
                Ok(Self { object, attrs, legacy: Some(Box::new(attributes)) })
            }
            other => {
                let cause = FsError::BonusType { found: other.0 };
                Err(Error::corrupt(cause).in_object(tx.objset(), object).into())
            }
        }
    }

    /// Whether it cannot be changed, because it belongs to an old file system.
    #[must_use]
    pub fn is_legacy(&self) -> bool {
        self.legacy.is_some()
    }

    /// Returns all attributes.
    ///
    /// # Errors
    /// `Kind::Corrupt` if a mandatory attribute is missing.
    pub fn attributes(&self) -> TxResult<FileAttributes> {
        if let Some(attributes) = &self.legacy {
            return Ok((**attributes).clone());
        }
        self.attrs.attributes().map_err(|error| Error::corrupt(error).into())
    }

    /// Returns the first number of an attribute.
    #[must_use]
    pub fn word(&self, attr: ZplAttr) -> Option<u64> {
        self.attrs.word(attr)
    }

    /// Returns the bytes of an attribute.
    #[must_use]
    pub fn bytes(&self, attr: ZplAttr) -> Option<&[u8]> {
        self.attrs.bytes(attr)
    }

    /// Returns an attribute that is a time.
    #[must_use]
    pub fn time(&self, attr: ZplAttr) -> Time {
        self.attrs.time(attr).unwrap_or_default()
    }

    /// Sets an attribute to one number.
    pub fn set_word(&mut self, attr: ZplAttr, value: u64) {
        self.attrs.set_word(attr, value);
    }

    /// Sets an attribute to a time.
    pub fn set_time(&mut self, attr: ZplAttr, time: Time) {
        self.attrs.set_time(attr, time);
    }

    /// Sets an attribute to a value.
    pub fn set_bytes(&mut self, attr: ZplAttr, bytes: &[u8]) {
        self.attrs.set_bytes(attr, bytes);
    }

    /// Removes an attribute.
    pub fn remove(&mut self, attr: ZplAttr) {
        self.attrs.remove(attr);
    }

    /// Mode with type bits.
    #[must_use]
    pub fn mode(&self) -> u64 {
        self.word(ZplAttr::Mode).unwrap_or(0)
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        FileKind::from_bits(self.type_bits())
    }

    /// Its kind, as stored in directory entries.
    #[must_use]
    pub fn type_bits(&self) -> u8 {
        ((self.mode() & TYPE_MASK) >> 12) as u8
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Refuses nodes that are not regular files, which have no data.
    pub(crate) fn check_data(&self) -> TxResult<()> {
        match self.kind() {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(refuse(Kind::Invalid, FsError::IsADirectory)),
            _ => Err(refuse(Kind::Invalid, FsError::WrongKind)),
        }
    }

    /// Size in bytes; entries + 2 for a directory.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.word(ZplAttr::Size).unwrap_or(0)
    }

    /// Link count; 0 once it has no name.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.word(ZplAttr::Links).unwrap_or(0)
    }

    /// The directory that it was last linked into.
    #[must_use]
    pub fn parent(&self) -> u64 {
        self.word(ZplAttr::Parent).unwrap_or(0)
    }

    /// Txg of its creation.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.word(ZplAttr::Gen).unwrap_or(0)
    }

    /// Owner.
    #[must_use]
    pub fn uid(&self) -> u64 {
        self.word(ZplAttr::Uid).unwrap_or(0)
    }

    /// Group.
    #[must_use]
    pub fn gid(&self) -> u64 {
        self.word(ZplAttr::Gid).unwrap_or(0)
    }

    /// Project; `None` if the inode has no project attribute.
    #[must_use]
    pub fn project(&self) -> Option<u64> {
        self.word(ZplAttr::Projid).filter(|_| self.flags().contains(PFlags::PROJID))
    }

    /// Directory of its extended attributes; 0 if it has none.
    #[must_use]
    pub fn xattr_dir(&self) -> u64 {
        self.word(ZplAttr::Xattr).unwrap_or(0)
    }

    /// pflags.
    #[must_use]
    pub fn flags(&self) -> PFlags {
        PFlags::from_bits_retain(self.word(ZplAttr::Flags).unwrap_or(0))
    }

    /// Sets the pflags.
    pub fn set_flags(&mut self, flags: PFlags) {
        self.set_word(ZplAttr::Flags, flags.bits());
    }

    /// Replaces the ACL.
    pub fn set_acl(&mut self, aces: &[Ace]) {
        self.set_word(ZplAttr::DaclCount, aces.len() as u64);
        self.set_bytes(ZplAttr::DaclAces, &aces.iter().flat_map(Ace::encode).collect::<Vec<_>>());
    }

    /// Increments the change counter, if the file system has one (spec 03 §8.7).
    pub(super) fn count_change(&mut self, now: Time) {
        let least = (now.seconds.max(0) as u64 + 1) << 32;
        if let Some(count) = self.word(ZplAttr::Seq) {
            let next = if count == 0 { least } else { count.wrapping_add(1) };
            self.set_word(ZplAttr::Seq, next);
        }
    }
}

/// Converts the attributes of an old inode, as far as they are needed.
fn of_legacy(from: &FileAttributes) -> Attrs {
    let mut attrs = Attrs::default();
    let words = [
        (ZplAttr::Mode, from.mode),
        (ZplAttr::Size, from.size),
        (ZplAttr::Gen, from.gen_),
        (ZplAttr::Uid, from.uid.0),
        (ZplAttr::Gid, from.gid.0),
        (ZplAttr::Parent, from.parent),
        (ZplAttr::Flags, from.flags),
        (ZplAttr::Links, from.links),
        (ZplAttr::Xattr, from.xattr_obj),
    ];
    for (attr, word) in words {
        attrs.set_word(attr, word);
    }
    let times = [
        (ZplAttr::Atime, from.atime),
        (ZplAttr::Mtime, from.mtime),
        (ZplAttr::Ctime, from.ctime),
        (ZplAttr::Crtime, from.crtime),
    ];
    for (attr, time) in times {
        attrs.set_time(attr, time);
    }
    if let Some(rdev) = from.rdev {
        attrs.set_word(ZplAttr::Rdev, rdev);
    }
    if let Some(target) = &from.symlink {
        attrs.set_bytes(ZplAttr::Symlink, target);
    }
    attrs
}
