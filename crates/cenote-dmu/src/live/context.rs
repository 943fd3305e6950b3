//! Interface of syncing an object set to the layers above.
//!
//! Each call upwards is a small trait: accounting of blocks ([`BlockSink`], the dataset), write
//! policies ([`PolicySource`], the dataset's properties), owners of objects ([`OwnerProbe`], the
//! file system).

use cenote_block::WritePolicy;
use cenote_block::policy::BlockSpec;
use cenote_ondisk::blkptr::{BlockPtr, SMALL_BLOCK_MAX};
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::objset::ObjSetFlags;
use cenote_rt::{Error, Result};

/// Parameters of one sync pass over one object set.
#[derive(Clone, Copy)]
pub struct SyncContext<'a> {
    /// The syncing txg.
    pub txg: u64,
    /// Its pass, from 1.
    pub pass: u64,
    /// Receives every block that is born or killed.
    pub sink: &'a dyn BlockSink,
    /// Provides the write policies.
    pub policy: &'a dyn PolicySource,
    /// Finds owners of objects, if space and objects are accounted by owner.
    pub probe: Option<&'a dyn OwnerProbe>,
}

/// Receives the births and deaths of blocks of all levels, including spill and root blocks. A
/// replaced block is killed before its replacement is born; blocks that are rewritten in place or
/// kept unchanged are not reported, and neither are holes (spec 04 §9.2).
pub trait BlockSink: Send + Sync {
    /// A block was written in the syncing txg. It may be embedded.
    fn born(&self, block: &BlockPtr);
    /// The object set no longer refers to this block.
    fn killed(&self, block: &BlockPtr);
    /// An unreadable indirect block was freed, and the blocks below it stay allocated. The default
    /// implementation does nothing.
    fn leaked(&self, _cause: &Error) {}
}

/// Provides write policies for the blocks of a set.
pub trait PolicySource: Send + Sync {
    /// The policy for such a block; an error if the object's own settings are invalid.
    fn policy(&self, block: &BlockSpec) -> Result<WritePolicy>;

    /// Whether holes get births (feature `hole_birth`).
    fn has_hole_births(&self) -> bool {
        true
    }

    /// Size of the root block: 4096, 2048 without project quotas, 1024 before version 15.
    fn root_len(&self) -> usize {
        4096
    }
}

/// The owner of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Project.
    pub project: u64,
}

/// Result of an [`OwnerProbe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owned {
    /// The object has no owner.
    No,
    /// The object is accounted to this owner.
    By(Owner),
    /// The owner is stored in the spill block.
    InSpill,
}

/// A step of counting anew what each owner has ([`Tx::recount`](crate::Tx::recount)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recount {
    /// Objects that are written from now on are no longer accounted, and lose their marks.
    Forget,
    /// Nothing is accounted to anybody; objects that are written from now on are.
    Begin,
    /// Every object is accounted.
    End,
}

/// Finds the owner of an object in its bonus or spill block (spec 02 §13).
pub trait OwnerProbe: Send + Sync {
    /// Returns the owner; `spill` is given on the second call, if the first returned `InSpill` and
    /// the block exists.
    fn owner(&self, dnode: &DnodePhys, spill: Option<&[u8]>) -> Owned;

    /// Whether objects are counted in addition to space (feature `userobj_accounting`).
    fn counts_objects(&self) -> bool {
        true
    }

    /// Whether space is accounted by project (feature `project_quota`).
    fn counts_projects(&self) -> bool {
        true
    }
}

/// Properties of written blocks and dnodes that activate dataset features (spec 02 §12.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a feature of its own")]
pub struct Facts {
    /// A block larger than 128 KiB.
    pub has_large_block: bool,
    /// A dnode with more than one slot.
    pub has_large_dnode: bool,
    /// A block compressed with zstd.
    pub has_zstd: bool,
    /// A name of more than 255 bytes.
    pub has_long_name: bool,
    /// Checksum functions of blocks, one bit per function.
    pub checksums: u32,
}

impl Facts {
    /// The union of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            has_large_block: self.has_large_block || other.has_large_block,
            has_large_dnode: self.has_large_dnode || other.has_large_dnode,
            has_zstd: self.has_zstd || other.has_zstd,
            has_long_name: self.has_long_name || other.has_long_name,
            checksums: self.checksums | other.checksums,
        }
    }

    /// Whether a block was written with this checksum function.
    #[must_use]
    pub const fn has_checksum(&self, function: ChecksumType) -> bool {
        self.checksums & 1 << function.id() != 0
    }

    /// The properties of a block.
    pub(super) fn of_block(block: &BlockPtr) -> Self {
        let checksum = match block.checksum_type() {
            Some(checksum) => 1 << checksum.id(),
            None => 0,
        };
        Self {
            has_large_block: block.lsize() > SMALL_BLOCK_MAX,
            has_large_dnode: false,
            has_zstd: block.compression() == Some(CompressionType::Zstd),
            has_long_name: false,
            checksums: checksum,
        }
    }
}

/// Result of a sync pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synced {
    /// The pointer to the root block.
    pub root: BlockPtr,
    /// Whether anything was written.
    pub is_changed: bool,
    /// Properties of the written blocks and dnodes.
    pub facts: Facts,
    /// The set's flags, which tell how it is accounted.
    pub flags: ObjSetFlags,
}
