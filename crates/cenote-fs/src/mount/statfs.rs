//! How full a file system is, as OpenZFS tells it.

use cenote_ondisk::dnode::OBJECT_MAX;
use cenote_rt::Result;

use super::Mount;

/// Bytes of a dnode: a file takes no less.
const DNODE: u64 = 512;

/// How full a file system is (`statvfs`). Blocks are of `block_size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The record size, which counts as the size of blocks and of fragments.
    pub block_size: u64,
    /// Blocks that it has and may have.
    pub blocks: u64,
    /// Blocks that it may still have; all of them are for everybody.
    pub free_blocks: u64,
    /// Nodes that it has and may have.
    pub files: u64,
    /// Nodes that it may still have.
    pub free_files: u64,
    /// Identity of the file system.
    pub fsid: u64,
    /// Longest name.
    pub name_max: u32,
}

impl Mount {
    /// How full the file system is, by the last txg that is on disk: quotas, reservations and the
    /// pool's own end decide together.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub async fn space(&self) -> Result<Space> {
        let settings = self.facts.settings();
        let space = self.engine.head_space(&self.head).await?;
        let block_size = settings.record_size;
        let referenced = space.referenced.next_multiple_of(block_size);
        let free_objects = OBJECT_MAX.saturating_sub(space.objects);
        let free_files = free_objects.min(space.available / DNODE);
        Ok(Space {
            block_size,
            blocks: referenced.saturating_add(space.available) / block_size,
            free_blocks: space.available / block_size,
            files: free_files + space.objects,
            free_files,
            fsid: space.fsid,
            name_max: if settings.has_long_names { 1023 } else { 255 },
        })
    }
}
