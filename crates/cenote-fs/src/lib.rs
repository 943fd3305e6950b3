//! POSIX files and volumes on a dataset.
//!
//!     Dataset --FileSystem::open--> FileSystem --root, node, walk--> Node
//!                                   master node,                     attributes, entries, xattrs,
//!                                   registry, rules of names         ACL, data
//!     Dataset --Volume::open------> Volume: one range of bytes
//!
//! Everything that is read belongs to the pool's txg and never changes. A [`Node`] is a file,
//! directory or anything else with an inode; it holds its dnode and decoded attributes, and is
//! cheap to clone. Names and paths are bytes throughout. These types show what the kernel module
//! shows of a mounted file system: names of extended attributes with their namespace, device
//! numbers split into major and minor, holes as holes.
//!
//! Sources: spec 03 §8-§16.

pub mod access;
pub mod acl;
mod counted;
pub mod diff;
mod directory;
pub mod edit;
mod error;
mod filesystem;
pub mod format;
pub mod mount;
mod node;
pub mod quota;
pub mod range_lock;
mod recover;
mod replay;
mod stream;
pub mod volume;
mod walk;
mod xattr;

pub use cenote_dmu::{Extent, Lost};
pub use cenote_ondisk::acl::{Ace, Acl, Who};
pub use cenote_ondisk::znode::{FileAttributes, Fuid, PFlags, Time};
pub use counted::space_by_owner;
pub use directory::{Entry, ReadDir};
pub use error::FsError;
pub use filesystem::{CaseSensitivity, FileSystem, NameRules};
pub use mount::Mount;
pub use node::{FileKind, Node};
pub use recover::{prepare, recover};
pub use replay::{FsReplayer, replay};
pub use stream::FileStream;
pub use volume::{NewVolume, Volume, VolumeExtent, WritableVolume};
pub use walk::{Follow, components, resolve};
pub use xattr::{XattrName, XattrPlace};
