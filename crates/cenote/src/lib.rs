//! ZFS pools in your program: no kernel module, no daemon, no mount.
//!
//! ```
//! use cenote::blocking::Pool;
//! use cenote::Layout;
//!
//! # let folder = std::env::temp_dir().join(format!("cenote-doc-lib-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let (a, b) = (folder.join("a.img"), folder.join("b.img"));
//! let pool = Pool::create("tank", Layout::mirror([&a, &b]).file_size(128 << 20))?;
//! let files = pool.file_system("tank")?;
//! files.write("/greeting", b"hello")?;
//! let before = files.snapshot("before")?;
//! files.write("/greeting", b"good bye")?;
//! assert_eq!(before.file_system()?.read("/greeting")?, b"hello");
//! pool.close()?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!   Layout ──┐
//!            v
//!   Pool::create, open, import ──> Pool ──> FileSystem ──> File
//!                                   |  |──> Volume
//!                                   |  `──> Snapshot ──> FileSystem, Volume (read-only)
//!                                   `──> Dataset: properties, snapshots, children
//! ```
//!
//! The types of this module are asynchronous and run on tokio's multi-threaded runtime; those of
//! [`blocking`] have the same names and methods, and their own runtime. All of them are handles:
//! cheap to clone, and usable from many tasks or threads at once.
//!
//! A pool stays open until [`Pool::close`] is called or its last handle is dropped: files, file
//! systems, volumes and datasets are handles of their pool, too. Changes are written to the devices
//! every few seconds; [`File::sync_all`] and [`Volume::flush`] make them durable. A program that is
//! killed loses later changes, but never the pool's integrity.
//!
//! OpenZFS can import every pool that this library writes, and vice versa. Datasets are named as in
//! OpenZFS: `tank/home`, `tank/home@monday`. Properties take the same texts as `zfs set`.

pub mod blocking;
mod dataset;
mod error;
mod file;
mod file_system;
mod layout;
mod metadata;
mod options;
mod path;
mod pool;
mod snapshot;
mod volume;

pub use cenote_rt::{Error, Kind as ErrorKind};
pub use dataset::{Dataset, DatasetKind};
pub use error::Refusal;
pub use file::File;
pub use file_system::{DirEntry, FileSystem};
pub use layout::Layout;
pub use metadata::{FileType, Metadata};
pub use options::{DatasetOptions, OpenOptions, PoolOptions, VolumeOptions};
pub use pool::Pool;
pub use snapshot::Snapshot;
pub use volume::Volume;

/// Result of every operation of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;
