//! Writing several blocks that belong together.
//!
//! The CPU work on one small block is too short to be worth a change of thread, and that on a
//! hundred of them, one after the other, holds up everything else that their task does: it is done
//! for all of them as one piece. Then they are begun one right after the other, so that they lie
//! side by side, and their leaves see all of them before they issue the first, so that a hundred
//! small requests become a few long ones.

use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::{Buf, Result, poll_first};
use futures_util::future::join_all;

use super::prepare::{Prepared, Work};
use super::{Share, WriteContext, Written, placement, policy_now};
use crate::alloc::Reservation;
use crate::policy::WritePolicy;
use crate::store::BlockStore;

/// A block that is to be written.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Its bytes.
    pub data: Buf,
    /// How it is to be stored.
    pub policy: WritePolicy,
    /// The pointer that the new one will replace; a hole if there is none.
    pub old: BlockPtr,
    /// When and where.
    pub context: WriteContext,
}

impl BlockStore {
    /// Stores several blocks, as [`write`](Self::write) does each of them, and gives the outcomes
    /// in their order.
    pub async fn write_all(&self, drafts: &[Draft]) -> Vec<Result<Written>> {
        let prepared = self.prepare_all(drafts).await;
        let _share = self.share_of(drafts, &prepared).await;
        let writes = drafts
            .iter()
            .zip(prepared)
            .map(|(draft, prepared)| self.write_draft(draft, prepared, Share::Taken));
        // One batch after the other, or they would lie in one another.
        let turn = self.beginning().lock().await;
        let plug = self.tree().plug();
        poll_first(join_all(writes), || drop((plug, turn))).await
    }

    /// Works out what is to be stored of each. What cannot be prepared has none, and its write
    /// tells why.
    async fn prepare_all(&self, drafts: &[Draft]) -> Vec<Option<Prepared>> {
        let work = |draft: &Draft| self.work(&draft.data, &policy_now(draft)).ok();
        let works: Vec<_> = drafts.iter().map(work).collect();
        let estimate = works.iter().flatten().map(Work::estimate_ns).sum();
        let run = move || works.into_iter().map(|work| work?.run().ok()).collect();
        let prepared: Result<Vec<_>> = cenote_rt::cpu(estimate, run).await;
        prepared.unwrap_or_else(|_| vec![None; drafts.len()])
    }

    /// The share that all of them have, together, of what may be on its way.
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
