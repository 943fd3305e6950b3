//! Open files.

use std::sync::Arc;

use cenote_fs::access::Credentials;
use cenote_fs::edit::SetAttributes;
use cenote_fs::mount::{Attributes, Handle, WriteOptions};
use cenote_fs::{FsError, Mount, Node};
use cenote_rt::{Error, Kind, Result};

use crate::error::Refusal;
use crate::metadata::Metadata;
use crate::pool::Pool;

/// Maximum bytes of one read from a snapshot's file, so that callers do not determine the memory.
const READ_MAX: usize = 4 << 20;

/// An open file. Its content is kept while it is open, even if its name is removed.
///
/// Operations take an offset, so that many tasks can share a file; the blocking form also has a
/// position, and implements `Read`, `Write` and `Seek`.
#[derive(Debug, Clone)]
pub struct File {
    // Dropped before the pool: the last handle of a pool closes it.
    content: Content,
    pool: Pool,
    pub(crate) allows: Allows,
}

/// How a file was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allows {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) appends: bool,
}

#[derive(Debug, Clone)]
enum Content {
    Live(Arc<Live>),
    Snapshot(Node),
}

#[derive(Debug)]
struct Live {
    // Dropped before the mount, which frees unlinked files with their last handle.
    handle: Handle,
    mount: Arc<Mount>,
    cred: Arc<Credentials>,
}

impl File {
    pub(crate) fn live(
        pool: &Pool,
        (mount, cred): (&Arc<Mount>, &Arc<Credentials>),
        handle: Handle,
        allows: Allows,
    ) -> Self {
        let live = Live { handle, mount: Arc::clone(mount), cred: Arc::clone(cred) };
        Self { content: Content::Live(Arc::new(live)), pool: pool.clone(), allows }
    }

    pub(crate) fn of_snapshot(pool: &Pool, node: Node) -> Self {
        let allows = Allows { reads: true, writes: false, appends: false };
        Self { content: Content::Snapshot(node), pool: pool.clone(), allows }
    }

    /// Reads bytes at `offset` and returns how many: 0 at the end of the file.
    ///
    /// # Errors
    /// `Kind::Permission` if the file is not open for reading; `Kind::Checksum` if no copy of a
    /// block is correct; errors of the devices.
    pub async fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.pool.check_open()?;
        if !self.allows.reads {
            return Err(Error::new(Kind::Permission, Refusal::NotReadable));
        }
        match &self.content {
            Content::Live(live) => live.mount.read(live.handle.object(), offset, into).await,
            Content::Snapshot(node) => {
                let len = into.len().min(READ_MAX);
                let bytes = node.read_at(offset, len).await?;
                let len = bytes.len().min(len);
                into[..len].copy_from_slice(&bytes[..len]);
                Ok(len)
            }
        }
    }

    /// Writes bytes at `offset`, or at the end of a file opened for appending, and returns how
    /// many. A short write means that the pool or a quota is full: the next call fails.
    ///
    /// # Errors
    /// `Kind::Permission` if the file is not open for writing; `Kind::NoSpace`, `Kind::Quota`;
    /// `Kind::ReadOnly`.
    pub async fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        Ok(self.write(bytes, offset).await?.0)
    }

    /// Writes all bytes at `offset`.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    pub async fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            let (len, _) = self.write(bytes, offset).await?;
            bytes = bytes.get(len..).unwrap_or_default();
            offset += len as u64;
        }
        Ok(())
    }

    /// Writes bytes, and returns their number and the offset after them.
    pub(crate) async fn write(&self, bytes: &[u8], offset: u64) -> Result<(usize, u64)> {
        let live = self.live_for_writing()?;
        if bytes.is_empty() {
            return Ok((0, offset));
        }
        let options = WriteOptions { is_append: self.allows.appends, ..WriteOptions::default() };
        let object = live.handle.object();
        let written = live.mount.write(&live.cred, object, offset, bytes, options).await?;
        let len = usize::try_from(written.len).unwrap_or(bytes.len()).min(bytes.len());
        Ok((len, written.offset + len as u64))
    }

    /// Returns the attributes.
    ///
    /// # Errors
    /// Errors of reading them.
    pub async fn metadata(&self) -> Result<Metadata> {
        self.pool.check_open()?;
        Ok(Metadata(match &self.content {
            Content::Live(live) => live.mount.attributes(live.handle.object()).await?,
            Content::Snapshot(node) => Attributes::of_node(node),
        }))
    }

    /// Truncates the file, or extends it with zeros that occupy no space.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    pub async fn set_len(&self, size: u64) -> Result<()> {
        let live = self.live_for_writing()?;
        let wish = SetAttributes { size: Some(size), is_by_handle: true, ..Default::default() };
        live.mount.set_attributes(&live.cred, live.handle.object(), &wish).await.map(drop)
    }

    /// Makes all completed changes of the file durable.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn sync_all(&self) -> Result<()> {
        self.pool.check_open()?;
        match &self.content {
            Content::Live(live) => live.mount.fsync(live.handle.object()).await,
            Content::Snapshot(_) => Ok(()),
        }
    }

    fn live_for_writing(&self) -> Result<&Live> {
        self.pool.check_open()?;
        match &self.content {
            Content::Live(live) if self.allows.writes => Ok(live),
            Content::Live(_) => Err(Error::new(Kind::Permission, Refusal::NotWritable)),
            Content::Snapshot(_) => Err(Error::new(Kind::ReadOnly, FsError::ReadOnly)),
        }
    }
}
