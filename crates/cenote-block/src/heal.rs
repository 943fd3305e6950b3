//! What happens around a read that did not go well: repair what can be repaired, and tell whoever
//! keeps the books of what cannot.
//!
//!     read recovered, something on the way was bad -> the good bytes are written over it
//!     no copy is good                              -> the place in the tree goes to the reporter
//!
//! A repair writes the very bytes that the checksum covers to the very place that the pointer
//! names, so it changes nothing about the pool and needs no txg. It happens only on trees that may
//! be written. A leaf that cannot be repaired stays as it was; the read has succeeded all the same.
//!
//! Sources: spec 06 §3.2, §4.6; spec 08 §36 (what becomes of the reports).

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::{Buf, Error};
use cenote_vdev::BadChild;

use crate::error::CopyFailure;
use crate::store::BlockStore;

/// Hears of blocks that are lost, and of those that were repaired.
pub trait Reporter: Send + Sync {
    /// No copy of the block could be read: `error` has the places and causes
    /// ([`BlockError::AllCopiesBad`](crate::BlockError::AllCopiesBad)).
    fn unrecoverable(&self, place: &Bookmark, bp: &BlockPtr, error: &Error);

    /// These parts of the block were bad; `repaired` of them have been written anew.
    fn recovered(&self, bp: &BlockPtr, bad: &[BadChild], repaired: usize);
}

impl BlockStore {
    /// Writes the good bytes of a block (or gang header) over everything of it that was found bad:
    /// parts of the copy that was read, and copies before it.
    pub(crate) async fn heal(
        &self,
        bp: &BlockPtr,
        data: &Buf,
        good: (&Dva, Vec<BadChild>),
        lost: Vec<CopyFailure>,
    ) {
        let lost = lost.into_iter().filter_map(|copy| {
            let dva = bp.dva(usize::from(copy.dva))?;
            Some((dva, copy.bad))
        });
        let mut found = Vec::new();
        let mut repaired = 0;
        for (dva, bad) in std::iter::once((*good.0, good.1)).chain(lost) {
            if bad.is_empty() {
                continue;
            }
            if self.tree().is_writable() {
                let outcome = self.tree().repair(dva, data, bp.physical_birth(), &bad).await;
                repaired += outcome.map_or(0, |outcome| outcome.repaired.len());
            }
            found.extend(bad);
        }
        self.note_repaired(repaired as u64);
        if let Some(reporter) = self.reporter() {
            reporter.recovered(bp, &found, repaired);
        }
    }

    /// Tells the reporter of a block that is lost.
    pub(crate) fn report(&self, place: &Bookmark, bp: &BlockPtr, error: &Error) {
        let is_lost = matches!(error.cause(), Some(crate::BlockError::AllCopiesBad { .. }));
        if let (true, Some(reporter)) = (is_lost, self.reporter()) {
            reporter.unrecoverable(place, bp, error);
        }
    }
}
