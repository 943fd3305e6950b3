//! An array's LUN or the disk of a virtual machine: a device without a known mechanism.
//!
//! The device works on up to `depth` commands at once, each of which takes `fixed_ns` and then its
//! length at `rate_mb`. Throughput is that of one server which needs `fixed_ns / depth` and the
//! transfer for each command; a command alone needs the whole of `fixed_ns`. A write-back cache is
//! part of the figures.
//!
//! A write that begins up to `near_bytes` behind the end of the previous write costs `gap_ns` more:
//! the array reads, changes and writes back the stripe unit between them (spec 09 §2.4). Writes
//! follow each other in the order of arrival, which a queue above has sorted.
//!
//! Sources: spec 09 §2.3, §2.4.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Command, Completion, DiskModel, ModelStats, Op, rate_of_mb, whole_ns};

/// Figures of a LUN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LunParams {
    /// Commands at once.
    pub depth: u64,
    /// Time of each command besides its transfer.
    pub fixed_ns: u64,
    /// Rate of transfers, 10^6 bytes/s.
    pub rate_mb: f64,
    /// What a write just behind another one costs more.
    pub gap_ns: u64,
    /// Largest gap that costs.
    pub near_bytes: u64,
}

/// A LUN.
#[derive(Debug)]
pub struct Lun {
    params: LunParams,
    /// When the server has done everything admitted so far.
    free_ns: u64,
    /// When the last command completes.
    last_ns: u64,
    write_end: Option<u64>,
    replies: BinaryHeap<Reverse<(u64, u64)>>,
    stats: ModelStats,
}

impl Lun {
    /// Returns an idle LUN.
    #[must_use]
    pub fn new(params: LunParams) -> Self {
        Self {
            params,
            free_ns: 0,
            last_ns: 0,
            write_end: None,
            replies: BinaryHeap::new(),
            stats: ModelStats::default(),
        }
    }

    /// Returns what the command costs because of its distance from the write before it.
    fn gap_ns(&mut self, command: &Command) -> u64 {
        if command.op != Op::Write {
            return 0;
        }
        let before = self.write_end.replace(command.offset + command.len);
        let gap = before.and_then(|end| command.offset.checked_sub(end)).unwrap_or(0);
        if gap > 0 && gap <= self.params.near_bytes { self.params.gap_ns } else { 0 }
    }
}

impl DiskModel for Lun {
    fn admit(&mut self, now_ns: u64, command: Command) {
        let LunParams { depth, fixed_ns, rate_mb, .. } = self.params;
        let moves = matches!(command.op, Op::Read | Op::Write);
        let transfer_ns = if moves { command.len as f64 / rate_of_mb(rate_mb) } else { 0.0 };
        let extra_ns = self.gap_ns(&command) as f64;
        let mut at_ns = now_ns + fixed_ns + whole_ns(transfer_ns + extra_ns);
        if moves {
            let cost_ns = whole_ns(fixed_ns as f64 / depth as f64 + transfer_ns + extra_ns);
            self.free_ns = self.free_ns.max(now_ns) + cost_ns;
            self.stats.busy_ns += cost_ns;
            at_ns = at_ns.max(self.free_ns);
        }
        match command.op {
            Op::Write => self.stats.medium_bytes += command.len,
            Op::Flush => at_ns = at_ns.max(self.last_ns),
            Op::Read | Op::Discard => {}
        }
        self.last_ns = self.last_ns.max(at_ns);
        self.replies.push(Reverse((at_ns, command.id)));
    }

    fn next_event(&self) -> Option<u64> {
        self.replies.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<Completion>) {
        while let Some(Reverse((at_ns, id))) = self.replies.peek().copied()
            && at_ns <= now_ns
        {
            self.replies.pop();
            self.stats.completed += 1;
            done.push(Completion { id, at_ns });
        }
    }

    fn stats(&self) -> ModelStats {
        self.stats
    }

    fn reset(&mut self) {
        *self = Self { stats: self.stats, ..Self::new(self.params) };
    }
}
