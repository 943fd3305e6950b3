//! Writes several blocks as a batch.
//!
//! The CPU work on one small block is too short for a change of thread, and the work on a hundred
//! of them in a row would hold up the other tasks of a thread: it is done for the whole batch in
//! one piece. Then the writes are submitted one right after the other, so that the blocks are
//! adjacent on disk, and the leaves see all of them before they issue the first, so that a hundred
//! small requests become a few long ones.

use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::{Buf, Result, poll_first};
use futures_util::future::join_all;

use super::prepare::{Prepared, SentForm, Work};
use super::seal::SealKeys;
use super::{ThrottleShare, WriteContext, Written, placement};
use crate::alloc::Reservation;
use crate::policy::WritePolicy;
use crate::store::BlockStore;

/// A block to be written.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The contents of the block.
    pub data: Buf,
    /// How it is stored.
    pub policy: WritePolicy,
    /// The form in which it is stored in spite of the policy, if it fits.
    pub sent: Option<SentForm>,
    /// The pointer that the new one replaces; a hole if there is none.
    pub old: BlockPtr,
    /// The keys of the object set, if it is encrypted and they are loaded.
    pub keys: Option<Arc<SealKeys>>,
    /// Txg, pass, place and class.
    pub context: WriteContext,
}

impl Draft {
    /// Whether another pool has encrypted the block.
    pub(super) fn is_sealed(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.seal.is_some())
    }
}

impl BlockStore {
    /// Writes several blocks, each like [`write`](Self::write), and returns the outcomes in the
    /// same order.
    pub async fn write_all(&self, drafts: &[Draft]) -> Vec<Result<Written>> {
        let prepared = self.prepare_all(drafts).await;
        let _share = self.share_of(drafts, &prepared).await;
        let writes = drafts
            .iter()
            .zip(prepared)
            .map(|(draft, prepared)| self.write_draft(draft, prepared, ThrottleShare::Reserved));
        // One batch after the other; otherwise their blocks would be interleaved on disk.
        let one_batch = self.batch_submission().lock().await;
        let plug = self.tree().plug();
        poll_first(join_all(writes), || drop((plug, one_batch))).await
    }

    /// Prepares the stored bytes of each block. A block that cannot be prepared has `None`, and its
    /// write returns the error.
    async fn prepare_all(&self, drafts: &[Draft]) -> Vec<Option<Prepared>> {
        let work = |draft: &Draft| self.work(draft).ok();
        let works: Vec<_> = drafts.iter().map(work).collect();
        let estimate = works.iter().flatten().map(Work::estimate_ns).sum();
        let run = move || works.into_iter().map(|work| work?.run().ok()).collect();
        let prepared: Result<Vec<_>> = cenote_rt::cpu(estimate, run).await;
        prepared.unwrap_or_else(|_| vec![None; drafts.len()])
    }

    /// Reserves the bytes in flight for the whole batch.
    async fn share_of(
        &self,
        drafts: &[Draft],
        prepared: &[Option<Prepared>],
    ) -> Option<Reservation> {
        let space = self.allocator()?;
        let stored = drafts.iter().zip(prepared).filter_map(|(draft, prepared)| match prepared {
            Some(Prepared::Stored(stored)) => {
                let psize = stored.data.len() as u64;
                let class = space.preferred_class(&placement(&draft.policy, psize));
                Some((class, psize.saturating_mul(u64::from(draft.policy.copies))))
            }
            _ => None,
        });
        Some(space.reserve(stored).await)
    }
}
