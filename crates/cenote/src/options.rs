//! Options of operations, as builders; every option has a default.

use cenote_ondisk::zap::Value;
use cenote_pool::props::text::{self, Moment};
use cenote_rt::{Error, Kind, Result};

/// Options for creating, opening or importing a pool.
///
/// ```
/// let options = cenote::PoolOptions::new().ashift(12).property("compression", "zstd");
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default)]
pub struct PoolOptions {
    pub(crate) ashift: Option<u64>,
    pub(crate) is_read_only: bool,
    pub(crate) is_forced: bool,
    pub(crate) comment: Option<String>,
    pub(crate) properties: Vec<(String, String)>,
}

impl PoolOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sector size of new vdevs, as a power of two: 9 to 16. Default: that of the devices.
    #[must_use]
    pub fn ashift(mut self, ashift: u8) -> Self {
        self.ashift = Some(ashift.into());
        self
    }

    /// Opens the pool without writing to its devices or locking them. Changes that are only in
    /// intent logs are not visible.
    #[must_use]
    pub fn read_only(mut self, is_read_only: bool) -> Self {
        self.is_read_only = is_read_only;
        self
    }

    /// Takes over a pool that another host used last without exporting it, and devices with labels
    /// of other pools. Pools and devices that are open are still refused.
    #[must_use]
    pub fn force(mut self, is_forced: bool) -> Self {
        self.is_forced = is_forced;
        self
    }

    /// Comment of a new pool.
    #[must_use]
    pub fn comment(mut self, text: &str) -> Self {
        self.comment = Some(text.to_owned());
        self
    }

    /// Property of a new pool's root file system, which its descendants inherit.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// Options for creating a file system or a clone.
#[derive(Debug, Clone, Default)]
pub struct DatasetOptions {
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) owner: (u32, u32),
}

impl DatasetOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Property, as `zfs create -o name=value`.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// User and group of the root directory; root's by default.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }
}

/// Options for creating a volume.
#[derive(Debug, Clone, Default)]
pub struct VolumeOptions {
    pub(crate) block_size: Option<u64>,
    pub(crate) is_sparse: bool,
    pub(crate) properties: Vec<(String, String)>,
}

impl VolumeOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Block size (`volblocksize`) in bytes: a power of two. Default: depends on the vdevs.
    #[must_use]
    pub fn block_size(mut self, bytes: u64) -> Self {
        self.block_size = Some(bytes);
        self
    }

    /// Reserves no space: writes fail with [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) when
    /// the pool is full.
    #[must_use]
    pub fn sparse(mut self, is_sparse: bool) -> Self {
        self.is_sparse = is_sparse;
        self
    }

    /// Property, as `zfs create -V -o name=value`.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// Options for opening a file, with the meaning of [`std::fs::OpenOptions`].
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of open(2)")]
pub struct OpenOptions {
    pub(crate) is_read: bool,
    pub(crate) is_write: bool,
    pub(crate) is_append: bool,
    pub(crate) is_truncate: bool,
    pub(crate) is_create: bool,
    pub(crate) is_create_new: bool,
    pub(crate) mode: Option<u32>,
}

impl OpenOptions {
    /// Permits nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Permits reading.
    #[must_use]
    pub fn read(mut self, is_read: bool) -> Self {
        self.is_read = is_read;
        self
    }

    /// Permits writing.
    #[must_use]
    pub fn write(mut self, is_write: bool) -> Self {
        self.is_write = is_write;
        self
    }

    /// Appends every write to the end of the file.
    #[must_use]
    pub fn append(mut self, is_append: bool) -> Self {
        self.is_append = is_append;
        self
    }

    /// Truncates an existing file.
    #[must_use]
    pub fn truncate(mut self, is_truncate: bool) -> Self {
        self.is_truncate = is_truncate;
        self
    }

    /// Creates the file if it does not exist.
    #[must_use]
    pub fn create(mut self, is_create: bool) -> Self {
        self.is_create = is_create;
        self
    }

    /// Creates the file, and fails with [`ErrorKind::Exists`](crate::ErrorKind::Exists) if it
    /// exists.
    #[must_use]
    pub fn create_new(mut self, is_create_new: bool) -> Self {
        self.is_create_new = is_create_new;
        self
    }

    /// Permission bits of a file that is created: 0644 by default.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }
}

/// Parses properties of a dataset of `kind` (`f` file system, `v` volume, `s` snapshot).
pub(crate) fn parse(
    properties: &[(String, String)],
    kind: char,
    moment: Moment,
) -> Result<Vec<(String, Value)>> {
    let parse = |(name, value): &(String, String)| {
        text::parse(name, value, kind, moment).map_err(|why| Error::new(Kind::Invalid, why))
    };
    properties.iter().map(parse).collect()
}
