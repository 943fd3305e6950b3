//! The throttle of OpenZFS before 2018: a delay before each block while the pool is in use.
//!
//! ```text
//!   block ──> gate, one at a time ── too many in flight? wait
//!                                 ── ordinary I/O lately? sleep some ticks ──> read
//! ```
//!
//! A pool counts as used until `zfs_scan_idle` ticks after its last ordinary I/O. A sleep ends on a
//! tick of the clock, so a used pool is scanned at exactly one block each `zfs_scrub_delay` ticks:
//! 25 blocks per second with the default, however fast its disks are and however little ordinary
//! I/O there is. An idle pool is limited by `zfs_top_maxinflight` blocks for each top-level vdev.
//!
//! In OpenZFS scans worked inside of transaction groups. After `zfs_scan_min_time_ms` a scan gave
//! way to the next one if there was much dirty data. Here scans are not part of a transaction
//! group: after that time a scan waits while there is so much dirty data, for `zfs_txg_timeout` at
//! most.
//!
//! Sources: spec 06 §16, spec 09 §4.2 (delay).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_rt::{sleep, tunables, until};

use super::{LOOK_NS, ScanKind, ScanThrottle, ScanWork, ThrottleModel};
use crate::queue::{Load, now_ns};

/// A tick of the clock: 100 of them are a second.
const TICK_NS: u64 = 10_000_000;
/// Time without a block after which the next one is the first of a scan.
const LEFT_NS: u64 = 1_000_000_000;
/// Percent of the limit of dirty data above which a scan gives way.
const DIRTY_PERCENT: u64 = 30;

/// The gate that blocks pass one at a time.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// When the last block passed.
    passed_ns: u64,
    /// Since when the scan works without having given way to a transaction group.
    slice_ns: u64,
}

/// A block that passed the gate, until it has been read.
#[derive(Debug)]
pub struct ScanSlot(Arc<Load>);

impl Drop for ScanSlot {
    fn drop(&mut self) {
        self.0.scan.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.0.scan.ended.notify_waiters();
    }
}

impl Load {
    /// Waits until the next block of a scan may be read, if delays hold scans back. `tops` is the
    /// number of top-level vdevs. Returns at once when `is_stopped` is set. The block counts as in
    /// flight until the slot is dropped.
    pub async fn pace(
        self: &Arc<Self>,
        kind: ScanKind,
        tops: u64,
        is_stopped: &AtomicBool,
    ) -> Option<ScanSlot> {
        let scan = &self.scan;
        let is_in_force =
            || scan.model() == Some(ThrottleModel::Delays) && !is_stopped.load(Ordering::Acquire);
        if !is_in_force() {
            return None;
        }
        let mut gate = scan.gate.lock().await;
        let begun_ns = now_ns();
        // The time since the last block passed is that of this one, unless the gate was left.
        let from_ns = gate.passed_ns.max(begun_ns.saturating_sub(TICK_NS));
        scan.add_work(ScanWork::Reading, from_ns, begun_ns);
        if gate.passed_ns == 0 || begun_ns.saturating_sub(gate.passed_ns) >= LEFT_NS {
            gate.slice_ns = begun_ns;
        }
        self.give_way(kind, &mut gate, &is_in_force).await;
        loop {
            let ended = pin!(scan.ended.notified());
            let most = tunables::TOP_MAXINFLIGHT.get().saturating_mul(tops.max(1));
            if scan.in_flight.load(Ordering::Acquire) < most || !is_in_force() {
                break;
            }
            let waited_ns = now_ns();
            until(Duration::from_nanos(LOOK_NS), ended).await;
            scan.add_work(ScanWork::Reading, waited_ns, now_ns());
        }
        if scan.is_used(now_ns()) {
            scan.delay(kind, &is_in_force).await;
        }
        gate.passed_ns = now_ns();
        scan.in_flight.fetch_add(1, Ordering::AcqRel);
        Some(ScanSlot(Arc::clone(self)))
    }

    /// Lets a transaction group go first, if the scan has worked long enough.
    async fn give_way(&self, kind: ScanKind, gate: &mut Gate, is_in_force: &impl Fn() -> bool) {
        let begun_ns = now_ns();
        let least = match kind {
            ScanKind::Scrub => &tunables::SCAN_MIN_TIME_MS,
            ScanKind::Resilver => &tunables::RESILVER_MIN_TIME_MS,
        };
        let worked_ns = begun_ns.saturating_sub(gate.slice_ns);
        if worked_ns < least.get().saturating_mul(1_000_000) || !self.is_dirty_above(DIRTY_PERCENT)
        {
            return;
        }
        while is_in_force() && self.is_dirty_above(DIRTY_PERCENT) {
            let waited_ns = now_ns().saturating_sub(begun_ns);
            if waited_ns >= tunables::TXG_TIMEOUT.get().saturating_mul(1_000_000_000) {
                break;
            }
            sleep(Duration::from_nanos(TICK_NS)).await;
        }
        gate.slice_ns = now_ns();
        self.scan.add_work(ScanWork::Held, begun_ns, gate.slice_ns);
    }
}

impl ScanThrottle {
    /// Whether there was ordinary I/O lately.
    fn is_used(&self, now_ns: u64) -> bool {
        let Some(last_ns) = self.ordinary_ns.load(Ordering::Relaxed).checked_sub(1) else {
            return false;
        };
        (now_ns / TICK_NS).saturating_sub(last_ns / TICK_NS) <= tunables::SCAN_IDLE.get()
    }

    /// Sleeps for the delay, which may be changed meanwhile.
    async fn delay(&self, kind: ScanKind, is_in_force: &impl Fn() -> bool) {
        let begun_ns = now_ns();
        while is_in_force() {
            let ticks = kind.tunable(ThrottleModel::Delays).get();
            let end_ns = (begun_ns / TICK_NS).saturating_add(ticks).saturating_mul(TICK_NS);
            let left_ns = end_ns.saturating_sub(now_ns());
            if ticks == 0 || left_ns == 0 {
                break;
            }
            let part_ns = left_ns.min(LOOK_NS);
            sleep(Duration::from_nanos(part_ns)).await;
            let now = now_ns();
            self.add_work(ScanWork::Held, now.saturating_sub(part_ns).max(begun_ns), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_rt::tunables::Tunable;
    use cenote_rt::{World, simulate, spawn};

    use super::*;

    /// Returns the milliseconds at which some blocks passed the gate, each of which is read for
    /// `read_ms`; ordinary I/O happens at the begin.
    fn passed(settings: &[(&'static Tunable, u64)], kind: ScanKind, read_ms: u64) -> Vec<u64> {
        let mut tunables = vec![(&tunables::SCAN_THROTTLE, ThrottleModel::Delays as u64)];
        tunables.extend(settings);
        let run = async move {
            let load = Arc::new(Load::default());
            load.set_dirty(40, 100);
            load.scan.note_ordinary(now_ns());
            let blocks: Vec<_> = (0..6)
                .map(|_| {
                    let load = Arc::clone(&load);
                    spawn(async move {
                        let slot = load.pace(kind, 2, &AtomicBool::new(false)).await;
                        let passed_ms = now_ns() / 1_000_000;
                        sleep(Duration::from_millis(read_ms)).await;
                        drop(slot);
                        passed_ms
                    })
                })
                .collect();
            let mut times = Vec::new();
            for block in blocks {
                times.push(block.await.expect("no panic"));
            }
            let begun = *times.first().expect("blocks");
            times.into_iter().map(|time| time - begun).collect()
        };
        simulate(World { tunables, ..World::new(1) }, run).expect("no error")
    }

    #[test]
    fn blocks_pass_the_gate_as_the_tunables_say() {
        use ScanKind::{Resilver, Scrub};
        let used = &[(&tunables::TXG_TIMEOUT, 1), (&tunables::SCAN_MIN_TIME_MS, 1 << 30)];
        let with = |more: &[(&'static Tunable, u64)]| [&used[..], more].concat();
        let idle = (&tunables::SCAN_IDLE, 0);
        let none = (&tunables::SCRUB_DELAY, 0);
        let two = (&tunables::TOP_MAXINFLIGHT, 1);
        // A delay of 4 ticks, and of 2.
        assert_eq!(passed(&with(&[]), Scrub, 5), [0, 40, 80, 120, 160, 200]);
        let resilver = with(&[(&tunables::RESILVER_MIN_TIME_MS, 1 << 30)]);
        assert_eq!(passed(&resilver, Resilver, 5), [0, 20, 40, 60, 80, 100]);
        let mut long = resilver;
        long.push((&tunables::RESILVER_DELAY, 10));
        assert_eq!(passed(&long, Resilver, 5), [0, 100, 200, 300, 400, 500]);
        // The pool is idle from the second tick on.
        let first = passed(&with(&[idle]), Scrub, 5);
        assert_eq!(first, [0, 0, 0, 0, 0, 0]);
        // Two in flight, one for each top-level vdev.
        assert_eq!(passed(&with(&[none, two]), Scrub, 7), [0, 0, 7, 7, 14, 14]);
        // Much dirty data: the scan gives way for a second at most.
        let short = with(&[none, two, (&tunables::SCAN_MIN_TIME_MS, 10)]);
        assert_eq!(passed(&short, Scrub, 12), [0, 0, 12, 1012, 1012, 1024]);
    }
}
