//! Resilvers that wait for the end of the one that runs (`resilver_defer`).
//!
//! ```text
//!   a leaf comes, or comes back, while a resilver runs for others
//!      little was done yet ── the resilver begins anew, with the leaf
//!      else ── the leaf is marked ── the resilver goes on to its end ── another one begins: marks
//!              gone            `zpool resilver`: it begins at once ──^
//! ```
//!
//! The marks are in the config of the leaves, and the feature counts 1 while there are any. The
//! dirty time logs say what a leaf lacks, and an import begins anew in any case; OpenZFS needs the
//! marks so that it does not take a marked leaf for whole when it continues the scan. So a mark is
//! in the same txg as a new leaf, and goes in the txg in which a resilver begins that covers it.
//!
//! Sources: spec 06 §9.1.

use std::sync::atomic::Ordering;

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::scan::{ScanFunc, ScanPhys};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Result, tunables};

use super::{Scans, Wanted, record};
use crate::dsl::{Effects, Env, features, history};
use crate::{Config, Scope};

/// The feature that counts whether there are marks.
const FEATURE: &str = "resilver_defer";

/// How far a scan is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// When it began.
    start_time: u64,
    /// Bytes that it has visited.
    examined: u64,
}

/// Whether what a leaf lacks waits for the end of the resilver in progress. `now` is how far it is.
pub(crate) fn is_to_wait(tx: &mut Tx<'_>, now: Progress) -> TxResult<bool> {
    let Some(phys) = record::scanning(tx)?.filter(|phys| phys.func == ScanFunc::Resilver) else {
        return Ok(false);
    };
    let is_possible =
        features::is_enabled(tx, FEATURE)? && tunables::RESILVER_DISABLE_DEFER.get() == 0;
    let live = if now.start_time == phys.start_time { now.examined } else { 0 };
    let percent = live.max(phys.examined).saturating_mul(100) / phys.to_examine.max(1);
    Ok(is_possible && percent >= tunables::RESILVER_DEFER_PERCENT.get())
}

/// Marks a leaf of the config. The caller has checked [`is_to_wait`].
pub(crate) fn mark(tx: &mut Tx<'_>, leaf: &mut VdevConfig) -> TxResult<()> {
    leaf.leaf.resilver_defer = true;
    if !features::is_active(tx, FEATURE)? {
        features::add(tx, FEATURE, 1)?;
    }
    Ok(())
}

/// A resilver begins that covers everything; `restarted` is the one in place of which it begins,
/// `is_early` if for a leaf that has just come. OpenZFS marks that leaf for a moment, and its
/// history shows a deferral.
pub(super) fn note_begun(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    restarted: Option<&ScanPhys>,
    is_early: bool,
) -> TxResult<()> {
    let is_deferred = features::is_active(tx, FEATURE)?;
    if let Some(phys) = restarted
        && (is_deferred || (is_early && features::is_enabled(tx, FEATURE)?))
    {
        note_start(tx, env, phys.errors)?;
    }
    if !is_deferred {
        return Ok(());
    }
    features::add(tx, FEATURE, -1)?;
    effects.takes_deferred = true;
    Ok(())
}

/// A resilver has ended: records that another one follows, if leaves wait for it.
pub(super) fn note_ended(tx: &mut Tx<'_>, env: &Env, phys: &ScanPhys) -> TxResult<()> {
    let follows = phys.func == ScanFunc::Resilver && features::is_active(tx, FEATURE)?;
    if follows { note_start(tx, env, phys.errors) } else { Ok(()) }
}

fn note_start(tx: &mut Tx<'_>, env: &Env, errors: u64) -> TxResult<()> {
    history::log_pool(tx, env, "starting deferred resilver", &format!("errors={errors}"))
}

/// Removes the marks from the config; in the txg in which a resilver begins that covers the leaves.
pub(crate) fn forget_marks(scope: &Scope<'_>) {
    scope.change_config(|config| {
        let mut todo = vec![&mut config.root];
        while let Some(vdev) = todo.pop() {
            vdev.leaf.resilver_defer = false;
            todo.extend(&mut vdev.children);
        }
        config.touch();
    });
}

impl Scans<'_> {
    /// How far the scan is that runs.
    pub(crate) fn progress(self) -> Progress {
        self.runner().map_or_else(Progress::default, |runner| Progress {
            start_time: runner.start_time(),
            examined: runner.pass().examined,
        })
    }

    /// Leaves in service that lack what the running resilver does not write, by guid.
    fn left_out(self) -> Vec<u64> {
        let leaves = self.engine.tree.leaves().filter(|(_, leaf)| leaf.is_writable());
        leaves
            .filter(|(_, leaf)| !leaf.scrub_dtl().is_empty())
            .map(|(_, leaf)| leaf.guid())
            .collect()
    }

    /// A leaf may have come while a resilver runs: lets the resilver begin anew, or another one
    /// follow. The caller holds the lock.
    pub(super) async fn take_in(self) -> Result<()> {
        let left_out = self.left_out();
        if left_out.is_empty() || is_on(Bug::DeferralForgotten) {
            return Ok(());
        }
        let now = self.progress();
        let mark_all = move |tx: &mut Tx<'_>, _: &_, config: &mut Config| {
            if !is_to_wait(tx, now)? {
                return Ok(false);
            }
            for guid in &left_out {
                if let Some(leaf) = config.root.find_mut(*guid)
                    && !leaf.leaf.resilver_defer
                {
                    mark(tx, leaf)?;
                    config.touch();
                }
            }
            Ok(true)
        };
        if !self.engine.admin().change(mark_all).await? {
            return self.begin(Wanted::EarlyRestart).await;
        }
        self.engine.leaf.scan.is_wanted.store(true, Ordering::Release);
        // It may have ended before it could see that.
        if !self.is_running(ScanFunc::Resilver) && self.takes_next() {
            return self.begin(Wanted::Resilver).await;
        }
        Ok(())
    }

    /// Nothing is to be resilvered: marks of leaves that have left the pool, or have lost nothing
    /// after all, do not keep the feature active.
    pub(super) async fn forget_deferral(self) -> Result<()> {
        if !self.engine.mos.inspect(|tx| features::is_active(tx, FEATURE)).await? {
            return Ok(());
        }
        self.operate(|tx, _, effects| {
            if features::is_active(tx, FEATURE)? && !record::is_running(tx)? {
                features::add(tx, FEATURE, -1)?;
                effects.takes_deferred = true;
            }
            Ok(())
        })
        .await
    }
}
