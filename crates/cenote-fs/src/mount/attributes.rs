//! Attributes of nodes: reading and changing them.

use cenote_dmu::TxResult;
use cenote_engine::Charge;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::{PFlags, Time, decode_rdev};
use cenote_rt::Result;

use super::control::Virtual;
use super::{ATTRIBUTES_COST, Mount};
use crate::access::Credentials;
use crate::edit::{self, Inode, Op, PERMISSION_MASK, SetAttributes};
use crate::node::{FileKind, Node};

/// Size of the units in which `st_blocks` counts.
const STAT_BLOCK: u64 = 512;

/// Attributes of a node (`stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Object number.
    pub object: u64,
    /// Creation txg: together with the number, it identifies the node forever.
    pub generation: u64,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Number of links; 0 after the last name was removed.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes; entries + 2 of a directory.
    pub size: u64,
    /// Space in units of 512 bytes, as of the last synced txg.
    pub blocks: u64,
    /// Changes are not on disk yet, and `blocks` does not include them.
    pub is_pending: bool,
    /// Block size in bytes.
    pub block_size: u64,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Access time.
    pub atime: Time,
    /// Modification time of the contents.
    pub mtime: Time,
    /// Change time of contents or attributes.
    pub ctime: Time,
    /// Creation time.
    pub crtime: Time,
    /// pflags.
    pub flags: PFlags,
    /// Project.
    pub project: Option<u32>,
}

impl Attributes {
    pub(super) fn of(op: &Op<'_, '_>, inode: &Inode) -> TxResult<Self> {
        let dnode = op.tx.dnode(inode.object)?;
        Ok(Self {
            object: inode.object,
            generation: inode.generation(),
            kind: inode.kind(),
            mode: (inode.mode() & PERMISSION_MASK) as u32,
            links: inode.links(),
            uid: inode.uid() as u32,
            gid: inode.gid() as u32,
            size: inode.size(),
            blocks: blocks(&dnode),
            is_pending: op.tx.is_pending(inode.object),
            block_size: dnode.data_block_size(),
            device: inode.word(ZplAttr::Rdev).map(decode_rdev),
            atime: inode.time(ZplAttr::Atime),
            mtime: inode.time(ZplAttr::Mtime),
            ctime: inode.time(ZplAttr::Ctime),
            crtime: inode.time(ZplAttr::Crtime),
            flags: inode.flags(),
            project: inode.project().map(|project| project as u32),
        })
    }
}

impl Attributes {
    /// Returns the attributes of a read-only node, as in a snapshot.
    #[must_use]
    pub fn of_node(node: &Node) -> Self {
        let (from, dnode) = (node.attributes(), node.dnode().phys());
        let flags = PFlags::from_bits_retain(from.flags);
        let project = from.projid.filter(|_| flags.contains(PFlags::PROJID));
        Self {
            object: node.inode(),
            generation: from.gen_,
            kind: node.kind(),
            mode: (from.mode & PERMISSION_MASK) as u32,
            links: from.links,
            uid: from.uid.0 as u32,
            gid: from.gid.0 as u32,
            size: from.size,
            blocks: blocks(dnode),
            is_pending: false,
            block_size: dnode.data_block_size(),
            device: node.device(),
            atime: from.atime,
            mtime: from.mtime,
            ctime: from.ctime,
            crtime: from.crtime,
            flags,
            project: project.map(|project| project as u32),
        }
    }
}

/// Returns the space of a file, including its dnode.
fn blocks(dnode: &DnodePhys) -> u64 {
    (dnode.used_bytes() + STAT_BLOCK / 2) / STAT_BLOCK + dnode.slots() as u64
}

impl Mount {
    /// Returns the attributes of a node.
    ///
    /// # Errors
    /// `Kind::NotFound` if it does not exist.
    pub async fn attributes(&self, object: u64) -> Result<Attributes> {
        if let Some(place) = Virtual::of(object) {
            return self.control_attributes(place).await;
        }
        self.inspect(None, |op| {
            let inode = op.inode(object)?;
            Attributes::of(op, &inode)
        })
        .await
    }

    /// Changes all given attributes of a node, or none of them.
    ///
    /// # Errors
    /// Permission and quota errors; `FsError::FileTooLarge`.
    pub async fn set_attributes(
        &self,
        cred: &Credentials,
        object: u64,
        changes: &SetAttributes,
    ) -> Result<Attributes> {
        let locks = changes.size.map(|size| (self.locks_of(object), size));
        // No reads or writes of the truncated range may run concurrently.
        let _guard = match &locks {
            Some((locks, _)) => Some(locks.exclusive(0..u64::MAX).await),
            None => None,
        };
        let frees = changes.size.is_some() && changes.uid.is_none() && changes.gid.is_none();
        let charge =
            if frees { Charge::free(ATTRIBUTES_COST) } else { Charge::write(ATTRIBUTES_COST) };
        self.change(charge, Some(cred), |op| {
            let inode = edit::set_attributes(op, object, changes)?;
            Attributes::of(op, &inode)
        })
        .await
    }
}
