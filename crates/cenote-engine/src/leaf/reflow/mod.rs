//! Expansion of RAID-Z vdevs: the data of a vdev moves, so that it uses one more device (spec 06
//! §5).
//!
//! ```text
//!   zpool attach ── config with the new child, state "running": one txg
//!       ──> first rows: boot areas ──> uberblock ──> their places ──> uberblock   (first_rows)
//!       ──> rounds: copy what is allocated, up to a limit ──> txg with the progress   (run)
//!       ──> config with the new width, state "finished": one txg ──> larger vdev, scrub
//! ```
//!
//! How copies are ordered with other I/O is in `cenote_vdev::reflow`. This module decides what is
//! copied and when progress counts: the uberblock of a txg records it, after the flush of
//! that txg has made the copies durable.
//!
//! An expansion pauses while a child is away, is being replaced or lacks data: a copy from it could
//! be stale, and a resilver would not find blocks that move meanwhile. Copies that were not
//! recorded by then are repeated.
//!
//! Free space is skipped. The metaslab is paused while `next` passes over a gap, so that nothing is
//! allocated in it that would then be neither copied nor written twice.
//!
//! A crash loses the copies since the last txg, and nothing else: they lie where no data is that
//! the uberblock reaches. OpenZFS continues what was begun here, and the other way round.
//!
//! Invariants
//! * RF4  The uberblock records progress only if each child had the copies when they were flushed.
//! * RF5  First rows are overwritten only while an uberblock on disk says that the boot areas have
//!   them.

mod first_rows;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::uberblock::ReflowState as ScratchState;
use cenote_rt::lock::{AsyncMutex, AsyncMutexGuard, Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_vdev::{LeafId, Tree};

use crate::background::Background;
use crate::{Engine, Leaves};

/// The feature of vdevs that were expanded.
pub(crate) const FEATURE: &str = "raidz_expansion";

/// A reflow word for the next uberblock.
#[derive(Debug, Clone)]
struct NextWord {
    word: u64,
    /// The expanding vdev and its children with the generations of their service, all of which
    /// must still be whole.
    copied_to: Option<(u64, Vec<(LeafId, u64)>)>,
}

/// The reflow word for the uberblock of the syncing txg, if it is to change.
#[derive(Debug)]
pub(crate) struct NextReflow(Mutex<Option<NextWord>>);

impl NextReflow {
    /// Sets the word. With `copied_to` it counts only if these children are still whole when the
    /// txg is flushed (RF4).
    pub(crate) fn set(&self, word: u64, copied_to: Option<(u64, Vec<(LeafId, u64)>)>) {
        *self.0.lock() = Some(NextWord { word, copied_to });
    }

    /// Returns the word for the uberblock, `None` if it does not change.
    fn take(&self, tree: &Tree) -> Option<u64> {
        let next = self.0.lock().take()?;
        let is_whole = next.copied_to.is_none_or(|(vdev, children)| {
            tree.expansion().children(vdev).is_ok_and(|now| now == children)
        });
        // Checks RF4.
        if !is_whole && !is_on(Bug::ReflowIgnoresMissing) {
            return None;
        }
        Some(next.word)
    }
}

/// State of the expansion of a pool.
#[derive(Debug)]
pub(crate) struct ReflowTask {
    /// Held while an expansion is begun: one at a time.
    control: AsyncMutex<()>,
    // Held for a few instructions, never across I/O.
    runner: Mutex<Option<Arc<Background>>>,
    next: Arc<NextReflow>,
    /// Bytes copied, those of the present round included.
    copied: AtomicU64,
    /// The expansion cannot go on before a child is whole again.
    is_waiting: AtomicBool,
    /// Nothing runs, because the pool is being closed. Asked under the lock of `runner`.
    is_stopped: AtomicBool,
}

impl Default for ReflowTask {
    fn default() -> Self {
        Self {
            control: AsyncMutex::with_default(Rank::ReflowControl),
            runner: Mutex::with_default(Rank::ReflowRunner),
            next: Arc::new(NextReflow(Mutex::with_default(Rank::NextReflow))),
            copied: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        }
    }
}

impl ReflowTask {
    /// Waits until no other expansion is being begun.
    pub(super) async fn control(&self) -> AsyncMutexGuard<'_, ()> {
        self.control.lock().await
    }

    /// Returns where the word for the next uberblock is set.
    pub(super) fn next(&self) -> Arc<NextReflow> {
        Arc::clone(&self.next)
    }

    /// Returns the word for the uberblock that is about to be written.
    pub(crate) fn take_word(&self, tree: &Tree) -> Option<u64> {
        self.next.take(tree)
    }
}

/// The expansion in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReflowProgress {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes to copy in total: those that are allocated.
    pub to_copy: u64,
    /// Whether it cannot go on before a device is back and has everything.
    pub is_waiting: bool,
}

/// Returns the vdev that expands.
pub(crate) fn expanding(root: &VdevConfig) -> Option<&VdevConfig> {
    root.children.iter().find(|top| matches!(&top.kind, VdevKind::RaidZ(raidz) if raidz.expanding))
}

/// Encodes a reflow word (spec 06 §5.1).
pub(crate) fn word_of(offset: u64, state: ScratchState) -> u64 {
    let state = match state {
        ScratchState::NotInUse => 0,
        ScratchState::Valid => 1,
        ScratchState::InvalidSynced => 2,
        ScratchState::InvalidSyncedOnImport => 3,
        ScratchState::InvalidSyncedReflow => 4,
        ScratchState::Unknown(state) => u64::from(state),
    };
    state << 55 | offset >> 9
}

impl Leaves<'_> {
    /// Returns the expansion in progress, also if it does not run.
    pub fn reflow_progress(self) -> Option<ReflowProgress> {
        let vdev = self.engine.with_config(|config| expanding(&config.root).map(|top| top.id))?;
        let figures = self.engine.alloc.vdev_figures();
        let figures = figures.iter().find(|figures| figures.id == vdev);
        let task = &self.engine.leaf.reflow;
        Some(ReflowProgress {
            vdev,
            copied: task.copied.load(Ordering::Relaxed),
            to_copy: figures.map_or(0, |figures| figures.space.allocated),
            is_waiting: task.is_waiting.load(Ordering::Relaxed),
        })
    }

    /// Continues the expansion that is recorded, unless it runs already.
    pub fn resume_reflow(self) {
        let task = &self.engine.leaf.reflow;
        if self.engine.with_config(|config| expanding(&config.root).is_none()) {
            return;
        }
        let mut running = task.runner.lock();
        let is_running = running.as_ref().is_some_and(|runner| !runner.has_ended());
        if is_running || task.is_stopped.load(Ordering::Acquire) {
            return;
        }
        let runner = Arc::clone(running.insert(Arc::default()));
        run::start(std::sync::Weak::clone(&self.engine.me), runner);
    }

    /// Whether an expansion is being carried out: it copies, waits, or does what follows its end.
    pub fn is_reflow_running(self) -> bool {
        self.engine.leaf.reflow.runner.lock().as_ref().is_some_and(|runner| !runner.has_ended())
    }

    /// Waits until no expansion runs.
    pub async fn wait_for_reflow(self) {
        let runner = self.engine.leaf.reflow.runner.lock().clone();
        if let Some(runner) = runner {
            // Why it ended is told by the pool.
            drop(runner.wait().await);
        }
    }

    /// Stops copying, so that devices are not used any more. The next import continues.
    pub(crate) async fn suspend_reflow(self) {
        self.engine.leaf.reflow.is_stopped.store(true, Ordering::Release);
        let runner = self.engine.leaf.reflow.runner.lock().clone();
        if let Some(runner) = runner {
            runner.stop();
            drop(runner.wait().await);
        }
    }

    /// The pool stays open: undoes [`suspend_reflow`](Self::suspend_reflow).
    pub(crate) fn unsuspend_reflow(self) {
        self.engine.leaf.reflow.is_stopped.store(false, Ordering::Release);
        self.resume_reflow();
    }

    /// Whether the vdev of a leaf expands.
    pub(super) fn is_expanding(self, leaf: u64) -> bool {
        self.engine.with_config(|config| {
            expanding(&config.root).is_some_and(|top| top.find(leaf).is_some())
        })
    }
}

impl Engine {
    /// Whether a RAID-Z vdev expands.
    pub(crate) fn is_reflowing(&self) -> bool {
        self.with_config(|config| expanding(&config.root).is_some())
    }
}
