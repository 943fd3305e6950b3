//! Errors of file systems, files and volumes.

use cenote_ondisk::master_node::VERSION_MAX;
use cenote_ondisk::nvlist::CorruptNvList;
use cenote_ondisk::posix_acl::CorruptPosixAcl;

/// The causes of errors of this layer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FsError {
    /// The dataset is a volume, or of an unknown type.
    #[error("dataset is not a file system")]
    NotAFilesystem,
    /// The dataset is a file system.
    #[error("dataset is not a volume")]
    NotAVolume,
    /// The file system has an unsupported version.
    #[error("file system version {found}, at most {VERSION_MAX} is supported")]
    Version {
        /// The version found.
        found: u64,
    },
    /// The master node lacks a mandatory entry.
    #[error("master node has no entry '{name}'")]
    MissingEntry {
        /// The entry.
        name: &'static str,
    },
    /// An object lacks the attributes of a file.
    #[error("bonus type {found} holds no file attributes")]
    BonusType {
        /// The type found.
        found: u8,
    },
    /// A path component does not exist.
    #[error("No such file or directory")]
    NoEntry,
    /// A path continues after a node that is not a directory.
    #[error("Not a directory")]
    NotADirectory,
    /// A directory has no data.
    #[error("Is a directory")]
    IsADirectory,
    /// Devices, FIFOs and sockets have no data; only symbolic links have a target.
    #[error("Invalid argument")]
    WrongKind,
    /// The file system accepts only names in UTF-8.
    #[error("Invalid or incomplete multibyte or wide character")]
    NotUtf8,
    /// Symbolic links form a loop, or exceed the limit.
    #[error("Too many levels of symbolic links")]
    TooManyLinks,
    /// Parent attributes form a loop that does not reach the root.
    #[error("the chain of parents does not end")]
    ParentLoop,
    /// An absolute symbolic link: its target depends on the machine where it was created.
    #[error("symbolic link leads out of the file system, to '{target}'")]
    AbsoluteLink {
        /// Its target.
        target: String,
    },
    /// A directory entry with an invalid name.
    #[error("directory entry '{name}' cannot be a name")]
    EntryName {
        /// The name, as far as it is text.
        name: String,
    },
    /// A directory entry without an object number, or whose value is not an integer.
    #[error("directory entry '{name}' has no object")]
    EntryValue {
        /// The name, as far as it is text.
        name: String,
    },
    /// The target of a symbolic link is too long.
    #[error("symbolic link of {len} bytes")]
    LinkLength {
        /// Its length.
        len: u64,
    },
    /// The list of extended attributes cannot be decoded.
    #[error("extended attributes: {0}")]
    XattrList(#[from] CorruptNvList),
    /// An extended attribute in the list is not a byte array.
    #[error("extended attribute '{name}' has a value of type {type_code}")]
    XattrType {
        /// Its name, as far as it is text.
        name: String,
        /// The type of its value.
        type_code: u32,
    },
    /// The value of an extended attribute is too long to be read into memory.
    #[error("extended attribute of {len} bytes, at most {max} are read")]
    XattrLength {
        /// Its length.
        len: u64,
        /// The bound.
        max: u64,
    },
    /// An ACL in an object of its own is too long to be read into memory.
    #[error("ACL of {len} bytes, at most {max} are read")]
    AclLength {
        /// Its length.
        len: u64,
        /// The bound.
        max: u64,
    },
    /// An invalid volume size: zero, not a multiple of the block size, or larger than an object can
    /// be.
    #[error("volume of {size} bytes in blocks of {block_size}")]
    VolumeSize {
        /// Size found or requested.
        size: u64,
        /// Block size.
        block_size: u64,
    },
    /// An invalid volume block size.
    #[error("volume block size of {block_size}")]
    VolumeBlockSize {
        /// Block size requested.
        block_size: u64,
    },
    /// A range reaches beyond the end of the volume.
    #[error("{len} bytes at {offset} of a volume of {size}")]
    BehindEnd {
        /// First byte of the range.
        offset: u64,
        /// Length of the range.
        len: u64,
        /// Size of the volume.
        size: u64,
    },
    /// Permissions do not allow it.
    #[error("Permission denied")]
    AccessDenied,
    /// Only the owner or a privileged user may do that; or a flag of the node forbids it.
    #[error("Operation not permitted")]
    NotPermitted,
    /// A user, group or project has reached its quota.
    #[error("Disk quota exceeded")]
    OverQuota,
    /// A name exists already.
    #[error("File exists")]
    Exists,
    /// A directory has entries.
    #[error("Directory not empty")]
    NotEmpty,
    /// A name is too long.
    #[error("File name too long")]
    NameTooLong,
    /// A node would be moved or linked into a directory of another project.
    #[error("Invalid cross-device link")]
    CrossProject,
    /// The value of an extended attribute is too long.
    #[error("Argument list too long")]
    XattrTooLong,
    /// An intent log has a record that cannot be replayed.
    #[error("intent log has {what}, which cannot be replayed")]
    Unreplayable {
        /// The unsupported part.
        what: &'static str,
    },
    /// An invalid name of an extended attribute.
    #[error("Numerical result out of range")]
    XattrName,
    /// An extended attribute does not exist.
    #[error("No data available")]
    NoXattr,
    /// The file system or the node does not support such extended attributes.
    #[error("Operation not supported")]
    XattrsOff,
    /// An invalid ACL.
    #[error("Invalid argument")]
    BadAcl,
    /// An invalid POSIX ACL.
    #[error(transparent)]
    PosixAcl(#[from] CorruptPosixAcl),
    /// The file system has an older version, which cenote only reads.
    #[error("file systems of version {found} are read only here")]
    OldVersion {
        /// The version found.
        found: u64,
    },
    /// The inode has the form of file systems before version 5, which cenote only reads.
    #[error("the file has attributes in an old form, which is read only here")]
    LegacyNode,
    /// The dataset is read only (`readonly=on`), or the file system is.
    #[error("Read-only file system")]
    ReadOnly,
    /// A path continues in a snapshot, which is a file system of its own.
    #[error("Invalid cross-device link: the path goes on in a snapshot")]
    InSnapshot,
    /// The table of attribute layouts is full.
    #[error("all layouts of attributes are in use")]
    LayoutCount,
    /// Attributes fit neither into the inode nor into its spill block.
    #[error("attributes of {len} bytes")]
    AttributesTooLong {
        /// Their length.
        len: usize,
    },
    /// A range is to be allocated that is larger than the free space.
    #[error("the range of {len} bytes is larger than what is free")]
    NoRoom {
        /// Length of the range.
        len: u64,
    },
    /// The file would be too large.
    #[error("File too large")]
    FileTooLarge,
    /// A file has the maximum number of links.
    #[error("Too many links")]
    TooManyHardLinks,
    /// A directory would be moved below itself.
    #[error("Invalid argument: a directory cannot be moved into itself")]
    IntoItself,
    /// The pool does not support project ids.
    #[error("Operation not supported: no project ids")]
    NoProjects,
    /// There is no data or hole after the offset (`SEEK_DATA`, `SEEK_HOLE`).
    #[error("No such device or address")]
    NoSuchPlace,
    /// The inode of the handle was freed.
    #[error("Stale file handle")]
    Stale,
    /// The intent log has records that cannot be replayed.
    #[error("the intent log of the file system could not be replayed")]
    Unreplayed,
}
