//! Flushing metaslabs: when changes in log space maps move to the metaslabs' own maps (spec 05
//! §4.4).
//!
//! ```text
//!   oldest U                                                     U = T
//!   (U, vdev, metaslab) (U, ...) (U, ...) ......................  |
//!   ─────────────────────────────────────────────────────────────>
//!   flushed first; a log is removed once no metaslab's U is at or before it
//! ```
//!
//! The number of metaslabs to flush in a txg follows from the growth of the logs: with the mean of
//! the last logs, it is computed when the limits on log blocks and on the number of logs would be
//! exceeded, and how many metaslabs must be flushed by then for the oldest logs to be gone.
//! Flushing more is always correct: it costs writes now and saves reads at the next import.
//!
//! This module only keeps state: the pool performs the writes that [`Flush`] describes.
//!
//! Invariants
//! * U1  The order contains each metaslab with a log entry exactly once, at its unflushed txg,
//!   which never decreases: a log before the first entry of the order is not needed any more.
//! * U2  `segments` is the sum over the metaslabs with changes that are only in the logs.
//! * U3  No log is forgotten that a metaslab still needs.

use std::collections::{BTreeMap, BTreeSet};

use cenote_ranges::RangeSet;
use cenote_rt::{ensure, tunables};

use super::error::Violation;
use super::metaslab::SEGMENT_BYTES;
use super::state::State;

/// A metaslab to flush: write its changes to its own map (allocations first), or condense it, and
/// write the syncing txg into the vdev's array of unflushed txgs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// Top-level vdev.
    pub vdev: u64,
    /// Metaslab.
    pub metaslab: u64,
    /// Whether there are changes to write to its map; otherwise only the array changes.
    pub is_dirty: bool,
    /// Allocations that are only in the logs.
    pub allocs: RangeSet,
    /// Frees that are only in the logs.
    pub frees: RangeSet,
    /// Allocated bytes, these changes included: those of its map after the flush.
    pub allocated: u64,
}

/// Progress of flushing in one txg.
#[derive(Debug, Clone, Copy)]
struct Round {
    txg: u64,
    left: u64,
    is_over: bool,
}

/// Order of flushing, and the logs.
#[derive(Debug, Default)]
pub(super) struct FlushState {
    /// (U, vdev, metaslab) of every metaslab that was ever logged; U is its unflushed txg.
    pub(super) order: BTreeSet<(u64, u64, u64)>,
    /// Number of blocks of each existing log, by txg.
    pub(super) logs: BTreeMap<u64, u64>,
    /// Number of segments of all unflushed changes.
    pub(super) segments: u64,
    round: Option<Round>,
}

impl FlushState {
    /// Changes the number of segments (U2).
    pub(super) fn change_segments(&mut self, delta: i64) -> Result<(), Violation> {
        let (before, now) = (self.segments, self.segments.checked_add_signed(delta));
        ensure!("U2", now.is_some(), "{before} unflushed segments change by {delta}");
        self.segments = now.unwrap_or_default();
        Ok(())
    }
}

impl State {
    /// Sets a metaslab's unflushed txg.
    pub(super) fn set_unflushed(
        &mut self,
        vdev: u64,
        id: usize,
        txg: u64,
    ) -> Result<(), Violation> {
        let Some(metaslab) = self.metaslab(vdev, id) else { return Ok(()) };
        let before = std::mem::replace(&mut metaslab.unflushed_txg, txg);
        let was_there = self.flush.order.remove(&(before, vdev, id as u64));
        let is_new = txg == 0 || self.flush.order.insert((txg, vdev, id as u64));
        ensure!(
            "U1",
            was_there == (before != 0) && is_new && (txg == 0 || txg >= before),
            "vdev {vdev} metaslab {id} moves from txg {before} to {txg}"
        );
        Ok(())
    }

    /// Forgets the logs before `txg`.
    pub(super) fn forget_logs_before(&mut self, txg: u64) -> Result<(), Violation> {
        let oldest = self.flush.order.first().map_or(u64::MAX, |(oldest, ..)| *oldest);
        ensure!(
            "U3",
            txg <= oldest,
            "logs before {txg} go, one metaslab needs those from {oldest}"
        );
        self.flush.logs = self.flush.logs.split_off(&txg);
        Ok(())
    }

    /// Begins flushing in `txg`.
    pub(super) fn start_flush(&mut self, txg: u64, is_export: bool) -> Result<(), Violation> {
        self.check_syncing("flush", txg)?;
        let left = match (self.has_logs, is_export) {
            (false, _) => 0,
            (true, true) => u64::MAX,
            (true, false) => self.flush_quota(),
        };
        self.flush.round = Some(Round { txg, left, is_over: false });
        Ok(())
    }

    /// Returns the next metaslab to flush.
    pub(super) fn next_flush(&mut self) -> Result<Option<Flush>, Violation> {
        // Checks A2.
        let Some(Round { txg, left, is_over }) = self.flush.round else {
            return Err(Violation::Order { what: "flush", txg: 0, committed: self.committed });
        };
        let oldest = self.flush.order.first().copied();
        let may_go_on = !is_over && (left > 0 || self.is_over_memory());
        let Some((_, vdev, number)) = oldest.filter(|(oldest, ..)| may_go_on && *oldest < txg)
        else {
            self.flush.round = Some(Round { txg, left, is_over: true });
            return Ok(None);
        };
        let id = number as usize;
        self.set_unflushed(vdev, id, txg)?;
        let Some(metaslab) = self.metaslab(vdev, id) else { return Ok(None) };
        let is_dirty = std::mem::take(&mut metaslab.is_dirty);
        let allocated = metaslab.allocated;
        let (mut allocs, mut frees) = (RangeSet::new(), RangeSet::new());
        if is_dirty {
            // The sets are kept until the commit: until then the map on disk lacks them.
            allocs.clone_from(&metaslab.unflushed.allocs);
            frees.clone_from(&metaslab.unflushed.frees);
            metaslab.map_pending = Some(txg);
            let segments = metaslab.unflushed.segments();
            self.mark(txg, vdev, id);
            self.flush.change_segments(-(segments as i64))?;
            self.flush.round = Some(Round { txg, left: left.saturating_sub(1), is_over });
        }
        Ok(Some(Flush { vdev, metaslab: number, is_dirty, allocs, frees, allocated }))
    }

    fn is_over_memory(&self) -> bool {
        let part = u128::from(self.memory_bytes)
            * u128::from(tunables::UNFLUSHED_MAX_MEM_PPM.get())
            / 1_000_000;
        let limit = tunables::UNFLUSHED_MAX_MEM_AMT.get().min(part as u64);
        self.has_logs && self.flush.segments.saturating_mul(SEGMENT_BYTES) > limit
    }

    /// Number of dirty metaslabs to flush in the next txg.
    fn flush_quota(&self) -> u64 {
        let mut dirty: BTreeMap<u64, u64> = BTreeMap::new();
        for (unflushed, vdev, id) in &self.flush.order {
            let metaslab = self.vdevs.get(vdev).and_then(|v| v.metaslabs.get(*id as usize));
            if metaslab.is_some_and(|metaslab| metaslab.is_dirty) {
                *dirty.entry(*unflushed).or_default() += 1;
            }
        }
        let total: u64 = dirty.values().sum();
        let limit = (total * tunables::UNFLUSHED_LOG_BLOCK_PCT.get() / 100)
            .max(tunables::UNFLUSHED_LOG_BLOCK_MIN.get())
            .min(tunables::UNFLUSHED_LOG_BLOCK_MAX.get());
        let quota = quota(&self.flush.logs, &dirty, limit, tunables::UNFLUSHED_LOG_TXG_MAX.get());
        quota.max(tunables::MIN_METASLABS_TO_FLUSH.get())
    }
}

/// Number of metaslabs to flush in each txg so that `logs` (blocks by txg), growing as before,
/// exceed neither limit; `dirty` metaslabs keep all logs from their unflushed txg on.
fn quota(
    logs: &BTreeMap<u64, u64>,
    dirty: &BTreeMap<u64, u64>,
    blocks_max: u64,
    logs_max: u64,
) -> u64 {
    let last = logs.values().rev().take(tunables::MAX_LOG_WALKING.get_usize());
    let (sum, count) = last.fold((0, 0), |(sum, count), blocks| (sum + blocks, count + 1));
    let incoming = if count == 0 { 1 } else { u64::div_ceil(sum, count).max(1) };
    let mut free_blocks = blocks_max.saturating_sub(logs.values().sum());
    let mut free_logs = logs_max.saturating_sub(logs.len() as u64);
    let (mut ahead, mut flushes, mut quota) = (0_u64, 0_u64, 0_u64);
    let mut rows = dirty.iter().peekable();
    while let Some((unflushed, count)) = rows.next() {
        // By then this row must be flushed.
        let txgs = (free_blocks / incoming).min(free_logs);
        ahead += txgs;
        free_blocks -= txgs * incoming;
        free_logs -= txgs;
        flushes += count;
        quota = quota.max(flushes.div_ceil(ahead.max(1)));
        let end = rows.peek().map_or(u64::MAX, |(next, _)| **next);
        for blocks in logs.range(*unflushed..end).map(|(_, blocks)| blocks) {
            free_blocks += blocks;
            free_logs += 1;
        }
    }
    quota
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas() {
        let logs = |blocks: &[u64]| (1..).zip(blocks.iter().copied()).collect::<BTreeMap<_, _>>();
        let even = |count: u64| (1..=count).map(|txg| (txg, 1)).collect::<BTreeMap<_, _>>();
        for (logs, dirty, blocks, txgs, want) in [
            // Nothing to flush.
            (logs(&[]), even(0), 1000, 1000, 0),
            // One block per txg, 90 until the limit, one metaslab for each log.
            (logs(&[1; 10]), even(10), 100, 1000, 1),
            // Ten metaslabs need the oldest log; five txgs until the limit.
            (logs(&[1; 5]), [(1, 10)].into(), 10, 1000, 2),
            // The limit is reached: flush the whole oldest row now.
            (logs(&[10; 10]), [(1, 7), (5, 100)].into(), 100, 1000, 27),
            // The limit on the number of logs applies.
            (logs(&[1; 10]), [(1, 30)].into(), 100_000, 20, 3),
        ] {
            assert_eq!(quota(&logs, &dirty, blocks, txgs), want, "{logs:?} {dirty:?}");
        }
    }

    /// Growth as predicted never exceeds the limits.
    #[test]
    fn the_quota_keeps_logs_within_their_bounds() {
        let (mut logs, mut dirty) = (BTreeMap::new(), BTreeMap::new());
        let mut most = 0;
        for txg in 1..2000_u64 {
            let mut left = quota(&logs, &dirty, 50, 40);
            while let Some(mut row) = dirty.first_entry() {
                let count: &mut u64 = row.get_mut();
                let now = left.min(*count);
                (*count, left) = (*count - now, left - now);
                if *count > 0 {
                    break;
                }
                row.remove();
            }
            let oldest = dirty.keys().next().copied().unwrap_or(txg);
            logs.retain(|other, _| *other >= oldest);
            logs.insert(txg, 1 + txg % 3);
            dirty.insert(txg, 5);
            most = most.max(logs.values().sum::<u64>());
        }
        assert!((30..=56).contains(&most), "{most}");
    }
}
