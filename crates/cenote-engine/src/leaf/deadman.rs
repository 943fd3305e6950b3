//! The deadman: reports I/Os of devices that hang (`zfs_deadman_*`).
//!
//! Every `zfs_deadman_checktime_ms` the oldest I/O of each leaf is examined. It hangs if it is
//! older than `zfs_deadman_ziotime_ms`, or, while a sync takes longer than
//! `zfs_deadman_synctime_ms`, older than that. Then an [`Event::Hung`](crate::Event::Hung) is
//! recorded, and another one when an I/O ends that took so long: of each leaf at most
//! `zfs_deadman_events_per_second`. An I/O in the kernel can be neither repeated nor cancelled, so
//! `zfs_deadman_failmode` 1 (continue) is the same as 0 (wait). With 2 (panic) the
//! pool is suspended, where OpenZFS's kernel module stops the machine.
//!
//! Source: the manual page zfs(4).

use std::sync::Arc;
use std::time::Duration;

use cenote_rt::{monotonic, tunables};
use cenote_vdev::Leaf;

use crate::{Engine, Leaves, Suspended};

/// Value of `zfs_deadman_failmode` with which the pool is suspended.
const PANIC: u64 = 2;

/// Starts the deadman of a pool, which ends when the pool is dropped.
pub(crate) fn start(engine: &Arc<Engine>) {
    let engine = Arc::downgrade(engine);
    cenote_rt::spawn_background(async move {
        loop {
            cenote_rt::sleep(Duration::from_millis(tunables::DEADMAN_CHECKTIME_MS.get())).await;
            let Some(engine) = engine.upgrade().filter(|engine| !engine.tree.is_closed()) else {
                return;
            };
            engine.leaves().report_hung();
        }
    });
}

impl Leaves<'_> {
    /// Reports the leaves with an I/O that hangs.
    pub(crate) fn report_hung(self) {
        if tunables::DEADMAN_ENABLED.get() == 0 {
            return;
        }
        let limit = self.io_time_max();
        let oldest = |(_, leaf)| {
            let leaf: &Leaf = leaf;
            leaf.oldest_io().map(|(io, age)| (leaf, io, age))
        };
        let leaves = self.engine.tree.leaves().filter_map(oldest);
        let hung: Vec<_> = leaves.filter(|(_, _, age)| *age > limit).collect();
        for (leaf, io, age) in &hung {
            leaf.report_hung(io, *age);
        }
        if let Some((_, io, age)) =
            hung.first().filter(|_| tunables::DEADMAN_FAILMODE.get() == PANIC)
        {
            let cause = format!("an I/O of vdev {} hangs for {} s", io.leaf, age.as_secs());
            self.engine.health.suspension.suspend(Suspended::Io(cause));
        }
    }

    /// Returns the age from which on an I/O hangs.
    fn io_time_max(self) -> Duration {
        let io = Duration::from_millis(tunables::DEADMAN_ZIOTIME_MS.get());
        let sync = Duration::from_millis(tunables::DEADMAN_SYNCTIME_MS.get());
        let since = self.engine.txgs.sync_since();
        let is_late = since.is_some_and(|since| monotonic().saturating_sub(since) > sync);
        if is_late { io.min(sync) } else { io }
    }
}
