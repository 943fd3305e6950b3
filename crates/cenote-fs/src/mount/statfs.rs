//! How full a file system is, as OpenZFS tells it.

use cenote_ondisk::dnode::OBJECT_MAX;
use cenote_rt::Result;

use super::Mount;
use crate::PFlags;
use crate::quota::{Holder, Resource};

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
        let settings = self.shared.facts.settings();
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

    /// The same as whoever stands at `object` has it: in what hands its project down, the limits of
    /// the project are all that there is.
    ///
    /// # Errors
    /// Those of reading the MOS and the object.
    pub async fn space_at(&self, object: u64) -> Result<Space> {
        let mut space = self.space().await?;
        let node = self.attributes(object).await?;
        let project = node.project.filter(|id| *id != 0);
        let Some(id) = project.filter(|_| node.flags.contains(PFlags::PROJINHERIT)) else {
            return Ok(space);
        };
        let project = Holder::Project(id.into());
        if let Some(limit) = self.quota(project, Resource::Space).await? {
            let left = limit.saturating_sub(self.used(project, Resource::Space).await?);
            space.blocks = limit / space.block_size;
            space.free_blocks = left / space.block_size;
        }
        if let Some(limit) = self.quota(project, Resource::Objects).await? {
            space.files = limit;
            space.free_files = limit.saturating_sub(self.used(project, Resource::Objects).await?);
        }
        Ok(space)
    }
}
