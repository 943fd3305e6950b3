//! Frees inodes without a name: the unlinked set (spec 03 §9.3, §11.1).
//!
//! An inode is freed in one transaction with its entry in the unlinked set. Its extended attributes
//! are added to the set in that transaction: first their directory, whose members are then freed in
//! batches before the directory itself.

use cenote_dmu::TxResult;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::{DirEntry, PFlags};
use cenote_rt::Kind;

use super::Op;

/// Extended attributes that are freed in one transaction.
const MEMBERS_AT_ONCE: usize = 64;

/// Remaining work after a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Whether this object must be processed again.
    pub is_unfinished: bool,
    /// Another object that was added to the set.
    pub next: Option<u64>,
}

/// Frees an inode that is in the unlinked set, unless it has a name or is open.
///
/// # Errors
/// Errors of the transaction.
pub fn reap(op: &mut Op<'_, '_>, object: u64) -> TxResult<Reaped> {
    if !zap::contains_number(op.tx, op.facts.unlinked, object)? {
        return Ok(Reaped::default());
    }
    // The object is open: its last close will free it.
    if op.facts.openers.mark_unlinked(object) {
        return Ok(Reaped::default());
    }
    if op.tx.find(object)?.is_none() {
        // Damage from elsewhere: an entry without an object.
        op.remove_unlinked(object)?;
        return Ok(Reaped::default());
    }
    let inode = op.inode(object)?;
    if inode.links() != 0 {
        return Ok(Reaped::default());
    }
    if inode.is_directory() && inode.flags().contains(PFlags::XATTR) {
        let page = zap::entries_from(op.tx, object, 0, MEMBERS_AT_ONCE)?;
        let is_unfinished = page.entries.len() == MEMBERS_AT_ONCE;
        for entry in page.entries {
            let member = entry.value.first().map(DirEntry::decode);
            zap::remove(op.tx, object, &entry.key)?;
            if let Some(member) = member
                && op.tx.find(member.object)?.is_some()
            {
                op.free(member.object)?;
                op.forget(member.object);
            }
        }
        if is_unfinished {
            return Ok(Reaped { is_unfinished, next: None });
        }
    }
    let attributes = inode.xattr_dir();
    let mut next = None;
    if attributes != 0 && op.tx.find(attributes)?.is_some() {
        let mut hidden = op.inode(attributes)?;
        hidden.set_word(ZplAttr::Links, 0);
        op.store(&hidden)?;
        match op.add_unlinked(attributes) {
            Err(cenote_dmu::TxStop::Fail(error)) if error.kind() == Kind::Exists => {}
            other => other?,
        }
        next = Some(attributes);
    }
    op.remove_unlinked(object)?;
    op.free(object)?;
    // The number may be reused before the log is written.
    op.forget(object);
    Ok(Reaped { is_unfinished: false, next })
}
