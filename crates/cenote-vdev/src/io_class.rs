//! What an I/O is for, which decides how soon a leaf does it (spec 06 §11.1).

/// The classes of I/O, with OpenZFS's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoClass {
    /// Somebody waits for the bytes.
    SyncRead,
    /// Somebody waits for the write: intent logs.
    SyncWrite,
    /// Read ahead.
    AsyncRead,
    /// A transaction group on its way to disk.
    AsyncWrite,
    /// Scrub and healing resilver.
    Scrub,
    /// Removal of a device, and reflow.
    Removal,
    /// The first writing of all free space.
    Initializing,
    /// Discards.
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
