//! What a command sends: names and guids of snapshots, and where they are read.
//!
//! A plan is made of one view of the pool, and keeps nothing of it. Each snapshot is found again by
//! its name when its turn has come, and must still have its guid: a package takes as long as its
//! reader, and datasets may be renamed and destroyed meanwhile. That ends the stream with an error.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_pool::{Dataset, Pool, RedactionList};
use cenote_rt::Error;
use cenote_stream::send::{SendOptions, SendPlan};
use cenote_stream::{ResumePoint, ResumeToken};

use super::header::Header;
use super::increment;
use super::{cannot_send, failure};
use crate::io::Exit;
use crate::source::{READ_ATTEMPTS, Source, WHOLE_POOL_TIME, dataset_of};

/// Substreams that are planned with one view.
const AT_ONCE: usize = 64;

/// A substream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Full name of the snapshot, or of the head.
    pub(super) name: String,
    pub(super) guid: u64,
    pub(super) from: increment::Source,
    /// List of the blocks that are left out.
    pub(super) redaction: Option<Arc<RedactionList>>,
    /// Where it continues.
    pub(super) resume: Option<ResumePoint>,
    /// The state of the interrupted receive whose part is sent.
    pub(super) saved: Option<Arc<ResumeToken>>,
}

impl Part {
    pub(super) const fn new(name: String, guid: u64, from: increment::Source) -> Self {
        Self { name, guid, from, redaction: None, resume: None, saved: None }
    }

    /// Finds the snapshot in a pool, and plans its substream.
    async fn prepare(
        &self,
        pool: &Arc<Pool>,
        options: &SendOptions,
    ) -> Result<(Dataset, SendPlan), Exit> {
        let failed = |error: Error| failure(&self.name, &error);
        let target = dataset_of(pool, &self.name).await?;
        if let Some(saved) = &self.saved {
            let gone = || cannot_send(&self.name, "it has no partially received state any more");
            let part = target.saved_receive().await.map_err(failed)?.ok_or_else(gone)?;
            let mut from = self.from.open(&part).await?.state(&part).await.map_err(failed)?;
            if let Some(from) = &mut from {
                // A hidden child will be the dataset's own contents.
                from.is_clone &= part.object() == target.object();
            }
            let plan = SendPlan::saved(&part, from.as_ref(), saved).await.map_err(failed)?;
            return Ok((part, plan));
        }
        if target.phys().guid != self.guid {
            return Err(cannot_send(&self.name, "it was replaced while it was sent"));
        }
        let from = self.from.open(&target).await?.state(&target).await.map_err(failed)?;
        let redaction = self.redaction.as_deref();
        let plan = SendPlan::new(&target, from.as_ref(), redaction, options, self.resume).await;
        Ok((target, plan.map_err(failed)?))
    }
}

/// What a command sends.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) place: Place,
    pub(super) options: SendOptions,
    /// The header, if it is a package.
    pub(super) header: Option<Header>,
    /// The substreams, in order.
    pub(super) parts: Vec<Part>,
    /// Snapshots that must not be destroyed before the end.
    pub(super) held: Vec<String>,
}

/// Where snapshots are read.
#[derive(Debug)]
pub(super) enum Place {
    /// A pool that is open for writing or reading in this process.
    Engine(Arc<Engine>),
    /// One state of a pool.
    State(Arc<Pool>),
}

impl Place {
    /// Returns the place of a dataset.
    pub(super) fn of(source: &Source, dataset: &Dataset) -> Result<Self, Exit> {
        let pool = dataset.pool();
        Ok(match &source.session {
            Some(session) => Self::Engine(session.pool(pool.name())?),
            None => Self::State(Arc::clone(pool)),
        })
    }

    /// Whether nothing in the pool changes.
    pub(super) fn is_constant(&self) -> bool {
        match self {
            Self::Engine(engine) => engine.is_read_only(),
            Self::State(_) => true,
        }
    }

    /// Has what was written before in the views of the pool from now on.
    pub(super) async fn settle(&self) -> Result<(), Exit> {
        match self {
            Self::Engine(engine) if !engine.is_read_only() => Ok(engine.sync().await.map(drop)?),
            _ => Ok(()),
        }
    }

    /// Returns the state of the pool in which these parts are found. A head is read from it, too.
    async fn view(&self, parts: &[Part]) -> Result<Arc<Pool>, Exit> {
        let has_head = parts.iter().any(|part| !part.name.contains('@'));
        Ok(match self {
            Self::Engine(engine) if engine.is_read_only() || has_head => {
                engine.view_for(WHOLE_POOL_TIME).await?
            }
            Self::Engine(engine) => engine.view().await?,
            Self::State(pool) => Arc::clone(pool),
        })
    }

    /// Plans the substreams of the first parts, at least of one. A view takes longer to open than a
    /// snapshot to find, so that one view is used for several.
    ///
    /// A later part that cannot be planned is left for the next call: what comes before is sent.
    pub(super) async fn prepare(
        &self,
        parts: &[Part],
        options: &SendOptions,
    ) -> Result<Vec<Prepared>, Exit> {
        let mut prepared = Vec::new();
        let mut left = READ_ATTEMPTS;
        while prepared.is_empty() {
            left -= 1;
            let view = self.view(parts).await?;
            for part in parts.iter().take(AT_ONCE) {
                match part.prepare(&view, options).await {
                    Ok((target, send)) => prepared.push(self.prepared(target, send)),
                    // The pool needed the space of the view.
                    Err(Exit::Overtaken) if left > 0 => break,
                    Err(exit) if prepared.is_empty() => return Err(exit),
                    Err(_) => break,
                }
            }
        }
        Ok(prepared)
    }

    fn prepared(&self, target: Dataset, send: SendPlan) -> Prepared {
        let contents = match self {
            Self::Engine(engine) if target.is_snapshot() => {
                let root = Box::new(target.phys().bp);
                Contents::Snapshot { engine: Arc::clone(engine), root }
            }
            _ => Contents::State(target),
        };
        Prepared { send, contents }
    }
}

/// A planned substream.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) send: SendPlan,
    pub(super) contents: Contents,
}

/// What a substream is read from.
#[derive(Debug)]
pub(super) enum Contents {
    /// A snapshot of a pool that may change; with the root that it must still have when it is
    /// opened. No view is kept.
    Snapshot { engine: Arc<Engine>, root: Box<BlockPtr> },
    /// A dataset of a state that stays.
    State(Dataset),
}
