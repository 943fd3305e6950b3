//! The rounds of an expansion.
//!
//! Each round copies up to the limit that the committed progress permits, or for a while, and
//! records its progress in a txg. Each recorded part permits a further one that is larger by the
//! old width, so an expansion of any size takes some ten txgs at its beginning, and then one
//! every few seconds.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_dmu::zap::edit as zap;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::uberblock::ReflowState as ScratchState;
use cenote_ondisk::vdev_zap::RAIDZ_EXPAND_COPIED;
use cenote_rt::{Error, Kind, Result, monotonic, tunables};
use cenote_vdev::{LeafId, ReflowError, copy_limit, layout};

use super::{expanding, word_of};
use crate::background::Background;
use crate::{Engine, EngineError, ScrubOptions, invariant_error};

/// Time after which progress is recorded.
const ROUND_TIME: Duration = Duration::from_secs(5);
/// Pause before another attempt, while a child is not whole.
const RETRY: Duration = Duration::from_millis(500);
/// Bytes of each child that are copied at a time.
const COLUMN_MAX: u64 = 1 << 20;
/// Free space that is skipped; less is copied with what surrounds it, unless that failed before.
const GAP_MIN: u64 = 256 << 10;
/// Free ranges that are asked for at a time.
const RANGES_MAX: usize = 1024;

/// How an expansion continues.
enum Step {
    More,
    /// After a pause.
    Wait,
    End,
}

/// Runs the expansion of a pool until its end.
pub(super) fn start(engine: Weak<Engine>, runner: Arc<Background>) {
    cenote_rt::spawn_background(async move {
        let cut = Error::new(Kind::Closed, EngineError::Closed);
        runner.run(run(&engine, &runner), cut).await;
    });
}

async fn run(engine: &Weak<Engine>, runner: &Background) -> Result<()> {
    let mut is_first = true;
    loop {
        // Held for a round only, so that closing the pool does not wait for the end.
        let Some(held) = engine.upgrade() else { return Ok(()) };
        if runner.is_stopped() {
            return Ok(());
        }
        held.check_stopped()?;
        let next = if std::mem::take(&mut is_first) {
            held.load_copied().await.map(|()| Step::More)
        } else {
            step(&held, runner).await
        };
        match next {
            Ok(Step::More) => continue,
            Ok(Step::End) => return Ok(()),
            Err(error) if error.kind() == Kind::Invariant => {
                held.fail(&error.to_string());
                return Err(error);
            }
            // The pool is suspended, or a device fails.
            Ok(Step::Wait) | Err(_) => {}
        }
        drop(held);
        runner.rest(RETRY).await;
    }
}

impl Engine {
    /// Loads the number of bytes that earlier runs have copied.
    async fn load_copied(&self) -> Result<()> {
        let Some(object) = self.with_config(|config| expanding(&config.root)?.top.zap_top) else {
            return Ok(());
        };
        let copied = self.mos.inspect(|tx| zap::lookup_u64(tx, object, RAIDZ_EXPAND_COPIED));
        self.leaf.reflow.copied.store(copied.await?.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }
}

async fn step(engine: &Arc<Engine>, runner: &Background) -> Result<Step> {
    engine.until_running().await?;
    let task = &engine.leaf.reflow;
    let Some(top) = engine.with_config(|config| expanding(&config.root).cloned()) else {
        return Ok(Step::End);
    };
    let most = tunables::RAIDZ_EXPAND_MAX_REFLOW_BYTES.get();
    if most != 0 && task.copied.load(Ordering::Relaxed) >= most {
        return Ok(Step::Wait);
    }
    let Ok(children) = engine.tree.expansion().children(top.id) else {
        task.is_waiting.store(true, Ordering::Relaxed);
        return Ok(Step::Wait);
    };
    // A sector of free space that cannot be read is never repaired.
    let is_exact = task.is_waiting.load(Ordering::Relaxed);
    let end = layout::min_asize(&top);
    let offset = engine.tree.expansion().progress().offset;
    let is_done = if offset == 0 {
        engine.leaves().move_first_rows(top.id).await?
    } else if offset >= end {
        finish(engine, &top).await?;
        return Ok(Step::End);
    } else {
        let gap_min = if is_exact { 1 } else { GAP_MIN };
        let round = Round { engine, runner, top: &top, children, end, gap_min };
        round.run().await?
    };
    task.is_waiting.store(!is_done, Ordering::Relaxed);
    Ok(if is_done { Step::More } else { Step::Wait })
}

/// Ends an expansion whose copies are all recorded.
async fn finish(engine: &Arc<Engine>, top: &VdevConfig) -> Result<()> {
    engine.leaves().finish_expansion(top.id).await?;
    if let Some(child) = top.children.first() {
        engine.leaves().expand(Some(child.guid)).await?;
    }
    // What had to stop for the expansion.
    engine.leaves().resume_work().await?;
    if tunables::SCRUB_AFTER_EXPAND.get() != 0 && engine.scans().in_progress().await?.is_none() {
        engine.scans().scrub(ScrubOptions::default()).await?;
    }
    Ok(())
}

/// A round of copies.
struct Round<'a> {
    engine: &'a Arc<Engine>,
    runner: &'a Background,
    top: &'a VdevConfig,
    children: Vec<(LeafId, u64)>,
    /// The end of the last metaslab.
    end: u64,
    /// Free space that is skipped.
    gap_min: u64,
}

impl Round<'_> {
    /// Copies for a while, and records it. Returns false if that failed: what was copied since the
    /// last recorded progress is to be copied again.
    async fn run(&self) -> Result<bool> {
        let (tree, begun) = (&self.engine.tree, monotonic());
        let (ashift, old_width) = (self.top.top.ashift as u32, self.children.len() as u64 - 1);
        let offset = tree.expansion().progress().offset;
        let limit = copy_limit(offset, ashift, old_width).min(self.end);
        if limit <= offset {
            return Err(invariant_error(format!("an expansion cannot go on from byte {offset}")));
        }
        let (mut copied, mut result) = (0, Ok(()));
        let copied_before = self.engine.leaf.reflow.copied.load(Ordering::Relaxed);
        let most = tunables::RAIDZ_EXPAND_MAX_REFLOW_BYTES.get();
        while tree.expansion().progress().next < limit && !self.runner.is_stopped() {
            let is_enough = most != 0 && copied_before + copied >= most;
            if is_enough || monotonic().saturating_sub(begun) >= ROUND_TIME {
                break;
            }
            match self.copy_some(limit).await {
                Ok(bytes) => copied += bytes,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            self.engine.leaf.reflow.copied.store(copied_before + copied, Ordering::Relaxed);
        }
        let to = tree.expansion().progress().next;
        let is_done = match result {
            Ok(()) if to == offset => return Ok(true),
            Ok(()) => self.record(to, copied_before + copied).await?,
            Err(error) if error.kind() == Kind::Invariant => return Err(error),
            Err(_) => false,
        };
        if !is_done {
            tree.expansion().retry();
            self.engine.leaf.reflow.copied.store(copied_before, Ordering::Relaxed);
        }
        Ok(is_done)
    }

    /// Copies the next allocated sectors before `limit`, or skips free space. Returns the number
    /// of allocated bytes that were copied.
    async fn copy_some(&self, limit: u64) -> Result<u64> {
        let (engine, tree) = (self.engine, &self.engine.tree);
        let next = tree.expansion().progress().next;
        let shift = self.top.top.metaslab_shift.min(63);
        let (vdev, metaslab) = (self.top.id, next >> shift);
        let end = limit.min((metaslab + 1) << shift);
        // Free space stays free until `next` has passed over it.
        let paused = engine.alloc.pause(vdev, metaslab).await?;
        let Some(paused) = paused else {
            return Err(invariant_error(format!("vdev {vdev} has no metaslab {metaslab}")));
        };
        let most = COLUMN_MAX * (self.children.len() as u64 - 1);
        let most = most.min(tunables::RAIDZ_EXPAND_MAX_COPY_BYTES.get());
        let (mut to, mut free_bytes) = (end.min(next + most), 0);
        for free in paused.free(next, RANGES_MAX).iter() {
            let free_end = free.end.min(end);
            if free.start >= to {
                break;
            }
            let is_gap = free_end - free.start >= self.gap_min || free_end == end;
            if free.start <= next && is_gap {
                tree.expansion().skip_to(free_end);
                return Ok(0);
            }
            if is_gap {
                to = free.start;
                break;
            }
            free_bytes += free_end.min(to) - free.start.max(next);
        }
        // Whole sectors; metaslabs and ranges consist of such.
        let sector = 1 << self.top.top.ashift.min(16);
        to = (to / sector * sector).max(next + sector);
        let held = tree.expansion().hold(vdev, next..to, false).await?;
        if held.children().is_ok_and(|now| now == self.children) {
            tree.expansion().copy(vdev, next..to, engine.uberblock().txg + 1).await?;
        }
        if held.children()? != self.children {
            return Err(Error::new(Kind::Busy, ReflowError::NotWhole(vdev)));
        }
        held.note_copied();
        drop(paused);
        Ok((to - next).saturating_sub(free_bytes))
    }

    /// Records that everything before `to` was copied. Returns false if the uberblock does not say
    /// so, because a child failed.
    async fn record(&self, to: u64, copied: u64) -> Result<bool> {
        let (vdev, children) = (self.top.id, self.children.clone());
        let (object, next) = (self.top.top.zap_top, self.engine.leaf.reflow.next());
        let change = move |tx: &mut cenote_dmu::Tx<'_>, _: &crate::dsl::Context| {
            if let Some(object) = object {
                zap::update(tx, object, RAIDZ_EXPAND_COPIED, copied)?;
            }
            let word = word_of(to, ScratchState::InvalidSyncedReflow);
            next.set(word, Some((vdev, children.clone())));
            Ok(())
        };
        self.engine.run(change).await?;
        Ok(self.engine.tree.expansion().progress().offset == to)
    }
}
