//! A node: an object with the attributes of a file of any kind.
//!
//! Attributes are in the bonus buffer and, if they do not fit, in the spill block. Objects of file
//! systems before version 5 have a legacy znode instead, recognized by the bonus type (spec 03 §8,
//! §14). Nothing else is read when a node is opened.

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::Dnode;
use cenote_ondisk::acl::Acl;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::znode::{FileAttributes, PFlags, decode_rdev};
use cenote_rt::{Buf, Error, Kind, Result};

use crate::error::FsError;
use crate::filesystem::FileSystem;
use crate::stream::FileStream;

/// Maximum length of a symbolic link's target; some systems allow more than Linux.
const LINK_LEN_MAX: u64 = 64 << 10;
/// Maximum size of an ACL in an object of its own.
const ACL_LEN_MAX: u64 = 1 << 20;
/// Size of the units in which `st_blocks` counts.
const STAT_BLOCK: u64 = 512;

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A named pipe.
    Fifo,
    /// A character device.
    CharDevice,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice,
    /// A regular file.
    Regular,
    /// A symbolic link.
    Symlink,
    /// A socket.
    Socket,
    /// Any other kind, with the upper four bits of the mode.
    Other(u8),
}

impl FileKind {
    /// Returns the kind for the upper four bits of a mode.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            other => Self::Other(other),
        }
    }
}

/// A file, directory, link or other inode.
#[derive(Debug, Clone)]
pub struct Node {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) dnode: Arc<Dnode>,
    attributes: Arc<FileAttributes>,
}

impl FileSystem {
    /// Returns the root directory.
    pub async fn root(self: &Arc<Self>) -> Result<Node> {
        self.node(self.root_object()).await
    }

    /// Returns the node in `object`.
    ///
    /// # Errors
    /// `Kind::NotFound` if the object is free; `Kind::Corrupt` if it lacks the attributes of a
    /// file.
    pub async fn node(self: &Arc<Self>, object: u64) -> Result<Node> {
        let dnode = self.objset.dnode(object).await?;
        let attributes = self.attributes(&dnode).await?;
        Ok(Node { fs: Arc::clone(self), dnode, attributes: Arc::new(attributes) })
    }

    async fn attributes(&self, dnode: &Dnode) -> Result<FileAttributes> {
        let bonus = dnode.bonus()?;
        let attributes = match dnode.phys().bonus_type {
            ObjectType::SA => {
                let spill = dnode.spill().await?;
                FileAttributes::from_sa(bonus, spill.as_deref(), &self.registry)
            }
            ObjectType::ZNODE => FileAttributes::from_znode(bonus),
            other => {
                let cause = FsError::BonusType { found: other.0 };
                return Err(dnode.locate(Error::corrupt(cause)));
            }
        };
        attributes.map_err(|error| dnode.locate(Error::corrupt(error)))
    }
}

impl Node {
    /// Returns the file system.
    pub fn filesystem(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Returns the object number.
    pub fn object(&self) -> u64 {
        self.dnode.object()
    }

    /// Returns the inode number for users.
    pub fn inode(&self) -> u64 {
        self.fs.inode(self.object())
    }

    /// Returns the object's dnode.
    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }

    /// Returns its attributes.
    pub fn attributes(&self) -> &FileAttributes {
        &self.attributes
    }

    /// Returns its kind.
    pub fn kind(&self) -> FileKind {
        FileKind::from_bits(self.attributes.file_type())
    }

    /// Whether it is the hidden directory of another node's extended attributes.
    pub fn is_xattr_directory(&self) -> bool {
        let flags = PFlags::from_bits_retain(self.attributes.flags);
        self.is_directory() && flags.contains(PFlags::XATTR)
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Size in bytes; entries + 2 for a directory.
    pub fn size(&self) -> u64 {
        self.attributes.size
    }

    /// Returns its space in the pool in units of 512 bytes.
    pub fn stat_blocks(&self) -> u64 {
        self.dnode.phys().used_bytes().div_ceil(STAT_BLOCK)
    }

    /// Returns major and minor number of a device.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.attributes.rdev.map(decode_rdev)
    }

    /// Returns the target of a symbolic link.
    pub async fn target(&self) -> Result<Vec<u8>> {
        if self.kind() != FileKind::Symlink {
            return Err(self.refuse(FsError::WrongKind));
        }
        if let Some(target) = &self.attributes.symlink {
            return Ok(target.clone());
        }
        // Legacy nodes keep a target that does not fit in the bonus as data.
        let len = self.size();
        if len > LINK_LEN_MAX {
            return Err(self.corrupt(FsError::LinkLength { len }));
        }
        Ok(self.dnode.read_at(0, len as usize).await?.to_vec())
    }

    /// Returns the NFSv4 ACL as stored.
    pub async fn acl(&self) -> Result<Acl> {
        let external = self.attributes.znode_acl.as_ref().filter(|acl| acl.external_obj != 0);
        let Some(container) = external else { return Ok(self.attributes.acl.clone()) };
        let dnode = self.fs.objset.dnode(container.external_obj).await?;
        let len = match container.version {
            0 => container.count.saturating_mul(12),
            _ => container.size.into(),
        };
        if len > ACL_LEN_MAX {
            return Err(self.corrupt(FsError::AclLength { len, max: ACL_LEN_MAX }));
        }
        let bytes = cenote_dmu::read_bytes(&dnode, len, ACL_LEN_MAX).await?;
        Ok(container.decode_external(&bytes, Endian::Little))
    }

    /// Reads up to `len` bytes from `offset` on: fewer at the end of the file. The caller limits
    /// `len`.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Buf> {
        self.check_data()?;
        let rest = self.size().saturating_sub(offset);
        let len = usize::try_from(rest).map_or(len, |rest| rest.min(len));
        if len == 0 {
            return Ok(Buf::empty());
        }
        let block = self.dnode.geometry().block_size;
        let blocks = offset / block..(offset + len as u64).div_ceil(block);
        self.fs.ahead.note_dnode(&self.dnode, blocks);
        self.dnode.read_at(offset, len).await
    }

    /// Returns a reader of the whole file that reads ahead and keeps holes.
    pub fn stream(&self) -> Result<FileStream> {
        self.stream_range(0..u64::MAX)
    }

    /// Returns a reader of a part of the file.
    pub fn stream_range(&self, bytes: Range<u64>) -> Result<FileStream> {
        self.check_data()?;
        Ok(FileStream::new(&self.dnode, bytes, self.size()))
    }

    /// Returns the first byte at or after `offset` in data; `None` if there is none (`SEEK_DATA`).
    pub async fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let size = self.size();
        if offset >= size {
            return Ok(None);
        }
        Ok(self.dnode.next_data(offset).await?.filter(|found| *found < size))
    }

    /// Returns the first byte at or after `offset` in a hole; the end of the file counts as one
    /// (`SEEK_HOLE`). `None` beyond the end.
    pub async fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        let size = self.size();
        if offset >= size {
            return Ok(None);
        }
        Ok(Some(self.dnode.next_hole(offset).await?.unwrap_or(offset).min(size)))
    }

    fn check_data(&self) -> Result<()> {
        match self.kind() {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(self.refuse(FsError::IsADirectory)),
            _ => Err(self.refuse(FsError::WrongKind)),
        }
    }

    pub(crate) fn refuse(&self, cause: FsError) -> Error {
        self.dnode.locate(Error::new(Kind::Invalid, cause))
    }

    pub(crate) fn corrupt(&self, cause: FsError) -> Error {
        self.dnode.locate(Error::corrupt(cause))
    }
}
