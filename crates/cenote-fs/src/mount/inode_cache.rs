//! Cache of the inode fields that reads need.
//!
//! Decoding the attributes in a bonus costs more than finding a cached block. A dnode in memory is
//! never changed while it is shared, so the same dnode has the same attributes.

use std::sync::Arc;

use cenote_dmu::TxResult;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::Time;
use cenote_rt::FixedMap;
use cenote_rt::lock::{Mutex, Rank};

use super::lock;
use crate::edit::{Inode, Op};

/// Number of cached inodes.
const INODES_MAX: usize = 1024;

/// Cached fields of a regular file's inode.
#[derive(Debug, Clone)]
pub(super) struct CachedInode {
    pub(super) dnode: Arc<DnodePhys>,
    pub(super) size: u64,
    pub(super) times: Times,
}

/// Times of the last read and of the last change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) read: Time,
    /// The later of mtime and ctime.
    pub(super) changed: Time,
}

impl Times {
    pub(super) fn of(inode: &Inode) -> Self {
        let changed = inode.time(ZplAttr::Mtime).max(inode.time(ZplAttr::Ctime));
        Self { read: inode.time(ZplAttr::Atime), changed }
    }
}

/// Cached inodes. LOCK: held for a lookup, under the object set's lock.
#[derive(Debug)]
pub(super) struct InodeCache(Mutex<FixedMap<u64, CachedInode>>);

impl Default for InodeCache {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::FsInodes))
    }
}

impl InodeCache {
    /// Returns a file's fields as the transaction sees them; refuses nodes that are not regular
    /// files.
    pub(super) fn get(&self, op: &mut Op<'_, '_>, object: u64) -> TxResult<CachedInode> {
        let dnode = op.tx.dnode(object)?;
        let kept =
            lock(&self.0).get(&object).filter(|kept| Arc::ptr_eq(&kept.dnode, &dnode)).cloned();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let inode = op.inode(object)?;
        inode.check_data()?;
        let inode = CachedInode { dnode, size: inode.size(), times: Times::of(&inode) };
        let mut inodes = lock(&self.0);
        if inodes.len() >= INODES_MAX {
            inodes.clear();
        }
        inodes.insert(object, inode.clone());
        Ok(inode)
    }
}
