//! The error type of the layers above the decoders: kind, location, cause.
//!
//! `Kind` is small and stable, and the only part that control flow matches. `At` is the location,
//! filled in by the layers that know it: the device adds path and offset, the vdev the guid, the
//! DMU the object, the pool the dataset. The cause is the typed error of the layer that found it,
//! so that its text identifies the place in the source. Errno and OpenZFS's wording are created in
//! one place, at the edge.

use std::fmt;

/// Kind of an error, by what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A device did not answer, or is missing.
    Io,
    /// No copy of the bytes matches its checksum.
    Checksum,
    /// The bytes match their checksum, but are invalid.
    Corrupt,
    /// A feature, version or format that this program does not support.
    Unsupported,
    /// The requested thing does not exist.
    NotFound,
    /// The data is encrypted and its key is not loaded.
    KeyUnavailable,
    /// The given key is wrong.
    WrongKey,
    /// The given name or number is invalid.
    Invalid,
    /// The pool is in use by another host or process.
    Busy,
    /// The caller may not do this.
    Permission,
    /// The pool is open for reading only.
    ReadOnly,
    /// A limit of memory or time was reached.
    Limit,
    /// It already exists.
    Exists,
    /// There is no space left.
    NoSpace,
    /// A quota is exceeded.
    Quota,
    /// Blocks of the committed state that was being read were reused; read again from a fresh view.
    Overtaken,
    /// An invariant is broken: the pool must not be written any more.
    Invariant,
    /// The pool was closed: not an error of its devices.
    Closed,
}

impl Kind {
    /// Whether a reader lost its pool, or the state that it read. Such an error says nothing about
    /// the data: it ends readers that otherwise report errors and continue.
    #[must_use]
    pub const fn is_interruption(self) -> bool {
        matches!(self, Self::Overtaken | Self::Closed)
    }
}

/// Location of an error. Every layer fills in the fields that it knows and that are still empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct At {
    /// Path of the device.
    pub device: Option<String>,
    /// Guid of the vdev.
    pub vdev: Option<u64>,
    /// Byte offset on the device, or in the vdev when no device is named.
    pub offset: Option<u64>,
    /// Object set (dataset object number; 0 is the MOS).
    pub objset: Option<u64>,
    /// Object number.
    pub object: Option<u64>,
    /// Level and number of the block in its object.
    pub block: Option<(u8, u64)>,
    /// Dataset name.
    pub dataset: Option<String>,
    /// Transaction group.
    pub txg: Option<u64>,
}

/// An error with its kind, location and cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    at: At,
    cause: Box<dyn std::error::Error + Send + Sync>,
}

/// The result of everything above the decoders.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns an error of `kind` with a typed cause, or a text where a type would not say more.
    pub fn new(kind: Kind, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Box::new(Inner { kind, at: At::default(), cause: cause.into() }))
    }

    /// Returns the error of invalid bytes.
    pub fn corrupt(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(Kind::Corrupt, cause)
    }

    /// Returns the error of something that does not exist.
    pub fn not_found(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(Kind::NotFound, cause)
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns the location.
    #[must_use]
    pub fn at(&self) -> &At {
        &self.0.at
    }

    /// Returns the typed cause, if it is a `T`.
    #[must_use]
    pub fn cause<T: std::error::Error + 'static>(&self) -> Option<&T> {
        self.0.cause.downcast_ref()
    }

    /// Changes the location.
    #[must_use]
    pub fn with_at(mut self, fill: impl FnOnce(&mut At)) -> Self {
        fill(&mut self.0.at);
        self
    }

    /// Adds the device and the byte offset on it.
    #[must_use]
    pub fn on_device(self, path: &str, offset: u64) -> Self {
        self.with_at(|at| {
            at.device.get_or_insert_with(|| path.to_owned());
            at.offset.get_or_insert(offset);
        })
    }

    /// Adds the object set and the object.
    #[must_use]
    pub fn in_object(self, objset: u64, object: u64) -> Self {
        self.with_at(|at| {
            at.objset.get_or_insert(objset);
            at.object.get_or_insert(object);
        })
    }

    /// Adds the level and number of the block.
    #[must_use]
    pub fn in_block(self, level: u8, block: u64) -> Self {
        self.with_at(|at| {
            at.block.get_or_insert((level, block));
        })
    }

    /// Adds the dataset's name.
    #[must_use]
    pub fn in_dataset(self, name: &str) -> Self {
        self.with_at(|at| {
            at.dataset.get_or_insert_with(|| name.to_owned());
        })
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            let result = write!(f, "{separator}{text}");
            separator = ", ";
            result
        };
        if let Some(dataset) = &self.dataset {
            part(f, format_args!("dataset {dataset}"))?;
        } else if let Some(objset) = self.objset {
            part(f, format_args!("object set {objset}"))?;
        }
        if let Some(object) = self.object {
            part(f, format_args!("object {object}"))?;
        }
        if let Some((level, block)) = self.block {
            part(f, format_args!("level {level} block {block}"))?;
        }
        if let Some(txg) = self.txg {
            part(f, format_args!("txg {txg}"))?;
        }
        if let Some(device) = &self.device {
            part(f, format_args!("device {device}"))?;
        } else if let Some(vdev) = self.vdev {
            part(f, format_args!("vdev {vdev}"))?;
        }
        if let Some(offset) = self.offset {
            part(f, format_args!("offset {offset:#x}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.at == At::default() {
            write!(f, "{}", self.0.cause)
        } else {
            write!(f, "{}: {}", self.0.at, self.0.cause)
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_location_wins_and_all_are_shown() {
        let error = Error::new(Kind::Checksum, "no copy matches")
            .on_device("/dev/a", 0x400000)
            .on_device("/dev/b", 1)
            .in_block(0, 7)
            .in_object(54, 12)
            .in_dataset("p/a");
        assert_eq!(
            error.to_string(),
            "dataset p/a, object 12, level 0 block 7, device /dev/a, offset 0x400000: \
             no copy matches"
        );
    }
}
