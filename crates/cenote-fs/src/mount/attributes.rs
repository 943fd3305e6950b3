//! What is told of a node, and changing it.

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

/// Bytes that blocks are counted in.
const STAT_BLOCK: u64 = 512;

/// What is told of a node (`stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub object: u64,
    /// Txg that it was made in: with the number, what is never another node's.
    pub generation: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Names; 0 if it has lost the last.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes; entries + 2 of a directory.
    pub size: u64,
    /// Units of 512 bytes that it takes, as of the last txg that is on disk.
    pub blocks: u64,
    /// Changes of it are not on disk yet, and `blocks` is from before them.
    pub is_pending: bool,
    /// Bytes of a block.
    pub block_size: u64,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Last reading.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// When it was made.
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
    /// Those of a node that is only read, as in a snapshot.
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

/// Space that a file takes, with its dnode.
fn blocks(dnode: &DnodePhys) -> u64 {
    (dnode.used_bytes() + STAT_BLOCK / 2) / STAT_BLOCK + dnode.slots() as u64
}

impl Mount {
    /// What is told of a node.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is none.
    pub async fn attributes(&self, object: u64) -> Result<Attributes> {
        if let Some(place) = Virtual::of(object) {
            return self.control_attributes(place).await;
        }
        self.look(None, |op| {
            let inode = op.inode(object)?;
            Attributes::of(op, &inode)
        })
        .await
    }

    /// Changes what is told of a node, all that is named or nothing.
    ///
    /// # Errors
    /// Refusals of rights and quotas; `FsError::FileTooLarge`.
    pub async fn set_attributes(
        &self,
        cred: &Credentials,
        object: u64,
        wish: &SetAttributes,
    ) -> Result<Attributes> {
        let locks = wish.size.map(|size| (self.locks_of(object), size));
        // Nobody reads or writes what is cut off.
        let _guard = match &locks {
            Some((locks, _)) => Some(locks.exclusive(0..u64::MAX).await),
            None => None,
        };
        let frees = wish.size.is_some() && wish.uid.is_none() && wish.gid.is_none();
        let charge =
            if frees { Charge::free(ATTRIBUTES_COST) } else { Charge::write(ATTRIBUTES_COST) };
        self.change(charge, Some(cred), |op| {
            let inode = edit::set_attributes(op, object, wish)?;
            Attributes::of(op, &inode)
        })
        .await
    }
}
