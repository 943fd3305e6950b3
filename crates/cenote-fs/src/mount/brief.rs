//! What reading a file needs of its inode, kept while the inode stays as it is.
//!
//! Taking attributes out of a bonus costs more than finding a cached block. A dnode in memory is
//! never changed while somebody shares it, so one that is still the same has the same attributes.

use std::sync::{Arc, Mutex};

use cenote_dmu::TxResult;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::Time;
use cenote_rt::FixedMap;

use super::lock;
use crate::edit::{Inode, Op};

/// Inodes that are kept.
const BRIEFS_MAX: usize = 1024;

/// A regular file, in brief.
#[derive(Debug, Clone)]
pub(super) struct Brief {
    pub(super) dnode: Arc<DnodePhys>,
    pub(super) size: u64,
    pub(super) times: Times,
}

/// When an inode was read and changed last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) read: Time,
    /// Its content or its state.
    pub(super) changed: Time,
}

impl Times {
    pub(super) fn of(inode: &Inode) -> Self {
        let changed = inode.time(ZplAttr::Mtime).max(inode.time(ZplAttr::Ctime));
        Self { read: inode.time(ZplAttr::Atime), changed }
    }
}

/// Inodes in brief. Held for a look, under the object set's lock.
#[derive(Debug, Default)]
pub(super) struct Briefs(Mutex<FixedMap<u64, Brief>>);

impl Briefs {
    /// A file as the transaction sees it; refused if it is no regular file.
    pub(super) fn get(&self, op: &mut Op<'_, '_>, object: u64) -> TxResult<Brief> {
        let dnode = op.tx.dnode(object)?;
        let kept =
            lock(&self.0).get(&object).filter(|kept| Arc::ptr_eq(&kept.dnode, &dnode)).cloned();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let inode = op.inode(object)?;
        inode.check_data()?;
        let brief = Brief { dnode, size: inode.size(), times: Times::of(&inode) };
        let mut briefs = lock(&self.0);
        if briefs.len() >= BRIEFS_MAX {
            briefs.clear();
        }
        briefs.insert(object, brief.clone());
        Ok(brief)
    }
}
