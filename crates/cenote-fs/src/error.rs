//! Why a file system, a file or a volume cannot be had.

use cenote_ondisk::master_node::VERSION_MAX;
use cenote_ondisk::nvlist::CorruptNvList;

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
    /// The size in a volume's ZAP is more than its object can hold.
    #[error("volume of {size} bytes in blocks of {block_size}")]
    VolumeSize {
        /// Size found.
        size: u64,
        /// Block size.
        block_size: u64,
    },
}
