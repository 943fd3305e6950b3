//! Files and volumes, with a position for `Read`, `Write` and `Seek`.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use cenote_fs::mount::errno;
use cenote_rt::OwnRuntime;

use super::{Dataset, Snapshot, forward};
use crate::{Error, Metadata};

/// An open file with a position: see [`crate::File`].
#[derive(Debug)]
pub struct File {
    // Dropped before the runtime: the last handle closes the pool.
    inner: crate::File,
    runtime: Arc<OwnRuntime>,
    position: u64,
}

impl File {
    pub(super) fn over(inner: crate::File, runtime: Arc<OwnRuntime>) -> Self {
        Self { inner, runtime, position: 0 }
    }

    forward! {
        read_at(into: &mut [u8], offset: u64) -> usize;
        write_at(bytes: &[u8], offset: u64) -> usize;
        write_all_at(bytes: &[u8], offset: u64) -> ();
        metadata() -> Metadata;
        set_len(size: u64) -> ();
        sync_all() -> ();
    }
}

impl Read for File {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.read_at(into, self.position).map_err(to_io)?;
        self.position += len as u64;
        Ok(len)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = self.inner.write(bytes, self.position);
        let written = self.runtime.block_on(write).and_then(|written| written);
        let (len, end) = written.map_err(to_io)?;
        self.position = end;
        Ok(len)
    }

    /// Does nothing: writes are visible immediately. [`sync_all`](File::sync_all) makes them
    /// durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let end = match to {
            SeekFrom::End(_) => self.metadata().map_err(to_io)?.len(),
            _ => 0,
        };
        self.position = target(to, self.position, end)?;
        Ok(self.position)
    }
}

/// An open volume with a position: see [`crate::Volume`].
#[derive(Debug)]
pub struct Volume {
    // Dropped before the runtime: the last handle closes the pool.
    inner: crate::Volume,
    runtime: Arc<OwnRuntime>,
    position: u64,
}

impl Volume {
    pub(super) fn over(inner: crate::Volume, runtime: Arc<OwnRuntime>) -> Self {
        Self { inner, runtime, position: 0 }
    }

    /// Returns the full name of the dataset or snapshot.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns its size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no volume is empty")]
    pub fn len(&self) -> u64 {
        self.inner.len()
    }

    /// Returns the bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.inner.block_size()
    }

    /// Returns the dataset, for its properties.
    #[must_use]
    pub fn dataset(&self) -> Dataset {
        Dataset::over(self.inner.dataset(), Arc::clone(&self.runtime))
    }

    forward! {
        read_at(into: &mut [u8], offset: u64) -> usize;
        write_at(bytes: &[u8], offset: u64) -> ();
        flush() -> ();
        discard(offset: u64, len: u64) -> ();
        set_len(size: u64) -> ();
        snapshot(name: &str) -> Snapshot;
    }
}

impl Read for Volume {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.read_at(into, self.position).map_err(to_io)?;
        self.position += len as u64;
        Ok(len)
    }
}

impl Write for Volume {
    /// Writes the bytes that fit before the end of the volume: 0 bytes at its end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len().saturating_sub(self.position)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(left)];
        self.write_at(bytes, self.position).map_err(to_io)?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    /// Makes all previous writes durable.
    fn flush(&mut self) -> io::Result<()> {
        Volume::flush(self).map_err(to_io)
    }
}

impl Seek for Volume {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = target(to, self.position, self.len())?;
        Ok(self.position)
    }
}

/// Returns the position that a seek leads to.
fn target(to: SeekFrom, position: u64, end: u64) -> io::Result<u64> {
    let target = match to {
        SeekFrom::Start(offset) => Some(offset),
        SeekFrom::Current(delta) => position.checked_add_signed(delta),
        SeekFrom::End(delta) => end.checked_add_signed(delta),
    };
    target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek before byte 0"))
}

/// Converts an error to the kind that a system call would return.
fn to_io(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(errno::of(&error)).kind();
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seek_stays_within_64_bits() {
        assert_eq!(target(SeekFrom::Current(-3), 5, 0).unwrap(), 2);
        assert_eq!(target(SeekFrom::End(1), 5, 9).unwrap(), 10);
        for to in [SeekFrom::Current(-6), SeekFrom::End(-10)] {
            assert_eq!(target(to, 5, 9).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        assert!(target(SeekFrom::Current(1), u64::MAX, 0).is_err());
    }
}
