//! What syncing an object set needs from above, and what it tells.
//!
//! Each arrow upwards is a small trait: who accounts for blocks ([`BlockSink`], the dataset), how
//! blocks are to be written ([`PolicySource`], its properties), who owns an object ([`OwnerProbe`],
//! the file system).

use cenote_block::WritePolicy;
use cenote_block::policy::BlockSpec;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::objset::ObjSetFlags;
use cenote_rt::Result;

/// Largest block without feature `large_blocks`.
const SMALL_BLOCK_MAX: u64 = 128 << 10;

/// One pass of syncing one object set.
#[derive(Clone, Copy)]
pub struct SyncContext<'a> {
    /// The syncing txg.
    pub txg: u64,
    /// Its pass, from 1.
    pub pass: u64,
    /// Is told of every block that comes and goes.
    pub sink: &'a dyn BlockSink,
    /// Says how blocks are written.
    pub policy: &'a dyn PolicySource,
    /// Says who owns objects, where space and objects are accounted by owner.
    pub probe: Option<&'a dyn OwnerProbe>,
}

/// Is told of blocks of any level, spill blocks and root blocks. A block replaced by another is
/// killed before the other is born; one that was rewritten in place or kept as it was is not
/// mentioned, and holes never are (spec 04 §9.2).
pub trait BlockSink: Send + Sync {
    /// A block was written in the syncing txg. It may be embedded.
    fn born(&self, block: &BlockPtr);
    /// The set does not point at this block any more.
    fn killed(&self, block: &BlockPtr);
}

/// How the blocks of a set are written.
pub trait PolicySource: Send + Sync {
    /// The policy for blocks of that kind; an error if the object's own settings mean nothing.
    fn policy(&self, block: &BlockSpec) -> Result<WritePolicy>;

    /// Whether holes get births (feature `hole_birth`).
    fn has_hole_births(&self) -> bool {
        true
    }

    /// Bytes of the root block: 4096, 2048 without project quotas, 1024 before version 15.
    fn root_len(&self) -> usize {
        4096
    }
}

/// Who owns an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Project.
    pub project: u64,
}

/// What an [`OwnerProbe`] makes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owned {
    /// Nobody owns it.
    No,
    /// It is accounted to these.
    By(Owner),
    /// The spill block tells.
    InSpill,
}

/// Finds the owner of an object in its bonus or its spill block (spec 02 §13).
pub trait OwnerProbe: Send + Sync {
    /// The owner; `spill` is given when it was asked for and is there.
    fn owner(&self, dnode: &DnodePhys, spill: Option<&[u8]>) -> Owned;

    /// Whether objects are counted beside space (feature `userobj_accounting`).
    fn counts_objects(&self) -> bool {
        true
    }

    /// Whether projects are accounted for (feature `project_quota`).
    fn counts_projects(&self) -> bool {
        true
    }
}

/// What the blocks and dnodes that were written have that the dataset's features must tell (spec 02
/// §12.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a feature of its own")]
pub struct Facts {
    /// A block above 128 KiB.
    pub has_large_block: bool,
    /// A dnode of more than one slot.
    pub has_large_dnode: bool,
    /// A block compressed with zstd.
    pub has_zstd: bool,
    /// A name of more than 255 bytes.
    pub has_long_name: bool,
    /// Checksum functions of blocks, one bit for each number.
    pub checksums: u32,
}

impl Facts {
    /// Both together.
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

    /// Whether a block was written with checksum function `id`.
    #[must_use]
    pub const fn has_checksum(&self, id: u8) -> bool {
        id < 32 && self.checksums & 1 << id != 0
    }

    /// Those of a block.
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

/// What a pass of syncing gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synced {
    /// The pointer to the root block.
    pub root: BlockPtr,
    /// Whether anything was written.
    pub is_changed: bool,
    /// What was written.
    pub facts: Facts,
    /// What is accounted for in the set.
    pub flags: ObjSetFlags,
}
