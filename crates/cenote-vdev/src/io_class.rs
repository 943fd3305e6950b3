//! Classes of I/O, which decide how soon a leaf serves a request (spec 06 §11.1).

/// The classes of I/O, with OpenZFS's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoClass {
    /// A caller waits for the data.
    SyncRead,
    /// A caller waits for the write, such as an intent log write.
    SyncWrite,
    /// Prefetch.
    AsyncRead,
    /// Writes of a syncing transaction group.
    AsyncWrite,
    /// Scrub and healing resilver.
    Scrub,
    /// Device removal, and RAID-Z expansion.
    Removal,
    /// `zpool initialize`: writes to all free space.
    Initializing,
    /// TRIM.
    Trim,
    /// Sequential resilver.
    Rebuild,
}

impl IoClass {
    /// Every class, by number.
    pub const ALL: [Self; 9] = [
        Self::SyncRead,
        Self::SyncWrite,
        Self::AsyncRead,
        Self::AsyncWrite,
        Self::Scrub,
        Self::Removal,
        Self::Initializing,
        Self::Trim,
        Self::Rebuild,
    ];
}
