//! Why a file system, a file or a volume cannot be had.

use cenote_ondisk::master_node::VERSION_MAX;
use cenote_ondisk::nvlist::CorruptNvList;
use cenote_ondisk::posix_acl::CorruptPosixAcl;

/// Every way in which this layer refuses.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FsError {
    /// The dataset is a volume, or nothing that we know.
    #[error("dataset is not a file system")]
    NotAFilesystem,
    /// The dataset is a file system.
    #[error("dataset is not a volume")]
    NotAVolume,
    /// Written by software of another time.
    #[error("file system version {found}, at most {VERSION_MAX} is supported")]
    Version {
        /// The version found.
        found: u64,
    },
    /// The master node lacks what every file system has.
    #[error("master node has no entry '{name}'")]
    MissingEntry {
        /// The entry.
        name: &'static str,
    },
    /// An object without a file's attributes.
    #[error("bonus type {found} holds no file attributes")]
    BonusType {
        /// The type found.
        found: u8,
    },
    /// A path component does not exist.
    #[error("No such file or directory")]
    NoEntry,
    /// A path goes on behind something that is no directory.
    #[error("Not a directory")]
    NotADirectory,
    /// Data is wanted of a directory.
    #[error("Is a directory")]
    IsADirectory,
    /// Data is wanted of a device, fifo or socket, or a target of what is no symbolic link.
    #[error("Invalid argument")]
    WrongKind,
    /// The file system takes names in UTF-8 only.
    #[error("Invalid or incomplete multibyte or wide character")]
    NotUtf8,
    /// Symbolic links lead in circles, or deeper than anybody follows them.
    #[error("Too many levels of symbolic links")]
    TooManyLinks,
    /// Following parents leads back to where it began, and not to the root.
    #[error("the chain of parents does not end")]
    ParentLoop,
    /// A symbolic link starts at the root of the machine it was made on.
    #[error("symbolic link leads out of the file system, to '{target}'")]
    AbsoluteLink {
        /// Its target.
        target: String,
    },
    /// A name in a directory that no file can have.
    #[error("directory entry '{name}' cannot be a name")]
    EntryName {
        /// The name, as far as it is text.
        name: String,
    },
    /// A directory entry that names no object, or has no integer.
    #[error("directory entry '{name}' has no object")]
    EntryValue {
        /// The name, as far as it is text.
        name: String,
    },
    /// The target of a symbolic link is longer than any.
    #[error("symbolic link of {len} bytes")]
    LinkLength {
        /// Its length.
        len: u64,
    },
    /// The list of extended attributes cannot be decoded.
    #[error("extended attributes: {0}")]
    XattrList(#[from] CorruptNvList),
    /// An extended attribute in the list is no byte array.
    #[error("extended attribute '{name}' has a value of type {type_code}")]
    XattrType {
        /// Its name, as far as it is text.
        name: String,
        /// The type of its value.
        type_code: u32,
    },
    /// The value of an extended attribute is longer than we hold in memory.
    #[error("extended attribute of {len} bytes, at most {max} are read")]
    XattrLength {
        /// Its length.
        len: u64,
        /// The bound.
        max: u64,
    },
    /// An ACL outside of its object is longer than we hold in memory.
    #[error("ACL of {len} bytes, at most {max} are read")]
    AclLength {
        /// Its length.
        len: u64,
        /// The bound.
        max: u64,
    },
    /// A volume has no such size: it is zero, no multiple of a block, or beyond what its object
    /// can hold.
    #[error("volume of {size} bytes in blocks of {block_size}")]
    VolumeSize {
        /// Size found or wanted.
        size: u64,
        /// Block size.
        block_size: u64,
    },
    /// No volume has blocks of that size.
    #[error("volume block size of {block_size}")]
    VolumeBlockSize {
        /// Block size wanted.
        block_size: u64,
    },
    /// A volume ends before.
    #[error("{len} bytes at {offset} of a volume of {size}")]
    BehindEnd {
        /// Where.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Size of the volume.
        size: u64,
    },
    /// Rights do not allow it.
    #[error("Permission denied")]
    AccessDenied,
    /// Only the owner, or somebody with a privilege, may do that; or a flag of the node forbids it.
    #[error("Operation not permitted")]
    NotPermitted,
    /// A user, group or project has used up what it may.
    #[error("Disk quota exceeded")]
    OverQuota,
    /// A name is there already.
    #[error("File exists")]
    Exists,
    /// A directory has entries.
    #[error("Directory not empty")]
    NotEmpty,
    /// A name is longer than names may be.
    #[error("File name too long")]
    NameTooLong,
    /// A node would get into a directory whose project it does not have.
    #[error("Invalid cross-device link")]
    CrossProject,
    /// The value of an extended attribute is longer than any may be.
    #[error("Argument list too long")]
    XattrTooLong,
    /// An intent log has an operation that cannot be done again here.
    #[error("intent log has {what}, which cannot be replayed")]
    Unreplayable {
        /// What it has.
        what: &'static str,
    },
    /// A name that no extended attribute can have.
    #[error("Numerical result out of range")]
    XattrName,
    /// An extended attribute is not there.
    #[error("No data available")]
    NoXattr,
    /// The file system or the node has no such extended attributes.
    #[error("Operation not supported")]
    XattrsOff,
    /// An ACL that no node can have.
    #[error("Invalid argument")]
    BadAcl,
    /// A POSIX ACL that is none.
    #[error(transparent)]
    PosixAcl(#[from] CorruptPosixAcl),
    /// The file system is of an older version, which is read only here.
    #[error("file systems of version {found} are read only here")]
    OldVersion {
        /// The version found.
        found: u64,
    },
    /// The inode has the form of file systems before version 5, which is read only here.
    #[error("the file has attributes in an old form, which is read only here")]
    LegacyNode,
    /// The dataset is read only (`readonly=on`), or the file system is.
    #[error("Read-only file system")]
    ReadOnly,
    /// A path goes on in a snapshot, which is a file system of its own.
    #[error("Invalid cross-device link: the path goes on in a snapshot")]
    InSnapshot,
    /// There is no room for one more layout of attributes.
    #[error("all layouts of attributes are in use")]
    LayoutCount,
    /// Attributes fit neither into the inode nor into its spill block.
    #[error("attributes of {len} bytes")]
    AttributesTooLong {
        /// Their length.
        len: usize,
    },
    /// A file cannot be that large.
    #[error("File too large")]
    FileTooLarge,
    /// A file has as many names as it can have.
    #[error("Too many links")]
    TooManyHardLinks,
    /// A directory would get below itself.
    #[error("Invalid argument: a directory cannot be moved into itself")]
    IntoItself,
    /// The pool has no project ids.
    #[error("Operation not supported: no project ids")]
    NoProjects,
    /// Nothing follows that is asked for (`SEEK_DATA`, `SEEK_HOLE`).
    #[error("No such device or address")]
    NoSuchPlace,
    /// The handle is of an inode that was freed.
    #[error("Stale file handle")]
    Stale,
    /// The intent log has operations that nobody here can do again.
    #[error("the intent log of the file system could not be replayed")]
    Unreplayed,
}
