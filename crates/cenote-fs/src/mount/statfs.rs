//! Space and node counts of a file system, as OpenZFS reports them.

use cenote_ondisk::dnode::OBJECT_MAX;
use cenote_rt::Result;

use super::Mount;
use crate::PFlags;
use crate::quota::{Holder, Resource};

/// Bytes of a dnode: the minimum size of a file.
const DNODE: u64 = 512;

/// Space and node counts of a file system (`statvfs`). Blocks have `block_size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The record size, reported as the size of blocks and of fragments.
    pub block_size: u64,
    /// Used and available blocks.
    pub blocks: u64,
    /// Available blocks; none are reserved for root.
    pub free_blocks: u64,
    /// Used and available nodes.
    pub files: u64,
    /// Available nodes.
    pub free_files: u64,
    /// Id of the file system.
    pub fsid: u64,
    /// Maximum length of a name.
    pub name_max: u32,
}

impl Mount {
    /// Returns the space of the file system as of the last synced txg, limited by quotas,
    /// reservations and the pool's capacity.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn space(&self) -> Result<Space> {
        let settings = self.shared.facts.settings();
        let space = self.engine.datasets().space_of(&self.head).await?;
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

    /// Returns the space for the node `object`: below a directory that passes its project on, the
    /// quotas of the project limit it.
    ///
    /// # Errors
    /// Errors of reading the MOS and the object.
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
