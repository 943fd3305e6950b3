//! Working out what is to be stored of several blocks at once.
//!
//! The CPU work on one small block is too short to be worth a change of thread, and that on a
//! hundred of them, one after the other, holds up everything else that their task does. So whoever
//! has many blocks lets all of them be prepared as one piece of work, and then writes each with
//! what came of it.

use cenote_codec::checksum::ChecksumAlgorithm;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::{Buf, Result};

use super::prepare::{Prepared, Work};
use super::{WriteContext, compression_now};
use crate::policy::{CompressionPolicy, WritePolicy};
use crate::store::BlockStore;

/// A block that is to be written.
#[derive(Debug)]
pub struct Draft {
    /// Its bytes.
    pub data: Buf,
    /// How it is to be stored.
    pub policy: WritePolicy,
    /// The pointer that the new one will replace.
    pub old: BlockPtr,
    /// When and where.
    pub context: WriteContext,
}

/// The bytes of a block, perhaps with what is to be stored of them.
#[derive(Debug, Clone)]
pub struct Content {
    data: Buf,
    prepared: Option<(Recipe, Prepared)>,
}

/// What decides on the stored bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Recipe {
    compression: CompressionPolicy,
    checksum: ChecksumAlgorithm,
    may_embed: bool,
}

impl Recipe {
    fn of(policy: &WritePolicy) -> Self {
        let WritePolicy { compression, checksum, may_embed, .. } = *policy;
        Self { compression, checksum, may_embed }
    }
}

impl From<Buf> for Content {
    fn from(data: Buf) -> Self {
        Self { data, prepared: None }
    }
}

impl Content {
    /// The bytes.
    #[must_use]
    pub fn data(&self) -> &Buf {
        &self.data
    }

    /// The bytes, and what is to be stored of them if it was worked out for just this policy.
    pub(super) fn take(self, policy: &WritePolicy) -> (Buf, Option<Prepared>) {
        let prepared = self.prepared.filter(|(recipe, _)| *recipe == Recipe::of(policy));
        (self.data, prepared.map(|(_, prepared)| prepared))
    }
}

impl BlockStore {
    /// Works out what is to be stored of blocks, in one piece of CPU work. What cannot be prepared
    /// comes as it is, and its write tells why.
    pub async fn prepare_all(&self, drafts: Vec<Draft>) -> Result<Vec<Content>> {
        let (mut contents, mut works) = (Vec::with_capacity(drafts.len()), Vec::new());
        for Draft { data, policy, old, context } in drafts {
            let previous = Some(&old).filter(|bp| !bp.is_hole());
            let compression = compression_now(policy.compression, previous, &context);
            let policy = WritePolicy { compression, ..policy };
            works.push((Recipe::of(&policy), self.work(&data, &policy)));
            contents.push(Content::from(data));
        }
        let estimate = works.iter().flat_map(|(_, work)| work).map(Work::estimate_ns).sum();
        let run = |(recipe, work): (Recipe, Result<Work>)| Some((recipe, work.ok()?.run().ok()?));
        let prepared = move || works.into_iter().map(run).collect::<Vec<_>>();
        let prepared = cenote_rt::cpu(estimate, prepared).await?;
        for (content, prepared) in contents.iter_mut().zip(prepared) {
            content.prepared = prepared;
        }
        Ok(contents)
    }
}
