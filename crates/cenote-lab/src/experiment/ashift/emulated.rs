//! A disk with sectors of 4096 bytes that takes commands of 512 (512e).
//!
//! ```text
//!   write of a part of a sector  ──> read of the whole sectors ──> write of the whole sectors
//!   other commands               ──> as they are
//! ```
//!
//! The head passes a sector when it reads it, and can write it a revolution later: the inner model
//! knows the angles, so that nothing has to be added here. Other commands may come between.

use std::collections::BTreeMap;

use cenote_device::model::{Command, Completion, DiskModel, ModelStats, Op};

/// Bytes of a sector.
const SECTOR: u64 = 4096;
/// Longest write whose sectors are read with one command.
const TOGETHER: u64 = 64 << 10;
/// Numbers of reads that the disk itself sends; those of its user are below.
const OWN: u64 = 1 << 63;

/// A model of a disk that reads a sector before it writes a part of it.
#[derive(Debug)]
pub(super) struct Emulated {
    inner: Box<dyn DiskModel>,
    /// Writes that begin when their reads are done.
    waiting: BTreeMap<u64, Waiting>,
    /// Numbers of the writes by those of their reads.
    write_of: BTreeMap<u64, u64>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    write: Command,
    /// Reads in progress.
    reads: usize,
}

impl Emulated {
    /// Returns a disk of 4096-byte sectors that is otherwise the inner one.
    #[must_use]
    pub(super) fn new(inner: Box<dyn DiskModel>) -> Self {
        Self { inner, waiting: BTreeMap::new(), write_of: BTreeMap::new(), next: OWN }
    }

    /// Begins a write after the last of its reads.
    fn end_read(&mut self, now_ns: u64, number: u64) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.reads -= 1;
            if waiting.reads == 0 {
                let write = waiting.write;
                self.waiting.remove(&number);
                self.inner.admit(now_ns, write);
            }
        }
    }
}

/// Returns the whole sectors of a range.
fn whole(command: Command) -> Command {
    let offset = command.offset / SECTOR * SECTOR;
    let end = (command.offset + command.len).div_ceil(SECTOR) * SECTOR;
    Command { offset, len: end - offset, ..command }
}

/// Returns the ranges to read before a write: its first and last sector, if they are partial. Those
/// of a short write are one range.
fn partial(command: Command, wide: Command) -> Vec<(u64, u64)> {
    let end = wide.offset + wide.len;
    let has_first = command.offset > wide.offset;
    let has_last = command.offset + command.len < end;
    match (has_first, has_last) {
        (true, true) if wide.len > TOGETHER => {
            vec![(wide.offset, SECTOR), (end - SECTOR, SECTOR)]
        }
        (true, true) => vec![(wide.offset, wide.len)],
        (true, false) => vec![(wide.offset, SECTOR)],
        _ => vec![(end - SECTOR, SECTOR)],
    }
}

impl DiskModel for Emulated {
    fn admit(&mut self, now_ns: u64, command: Command) {
        let wide = whole(command);
        if command.op != Op::Write || wide == command {
            self.inner.admit(now_ns, command);
            return;
        }
        let reads = partial(command, wide);
        let number = self.next + reads.len() as u64 - 1;
        self.waiting.insert(number, Waiting { write: wide, reads: reads.len() });
        for (offset, len) in reads {
            let id = self.next;
            self.next += 1;
            self.write_of.insert(id, number);
            self.inner.admit(now_ns, Command { id, op: Op::Read, offset, len });
        }
    }

    fn next_event(&self) -> Option<u64> {
        self.inner.next_event()
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<Completion>) {
        let mut some = Vec::new();
        while let Some(at) = self.inner.next_event().filter(|at| *at <= now_ns) {
            self.inner.advance(at, &mut some);
            for completion in some.drain(..) {
                match self.write_of.remove(&completion.id) {
                    Some(number) => self.end_read(at, number),
                    None => done.push(completion),
                }
            }
        }
        self.inner.advance(now_ns, &mut some);
        done.append(&mut some);
    }

    fn stats(&self) -> ModelStats {
        self.inner.stats()
    }

    fn reset(&mut self) {
        self.waiting.clear();
        self.write_of.clear();
        self.inner.reset();
    }

    fn is_rotational(&self) -> bool {
        self.inner.is_rotational()
    }

    fn takes_discard(&self) -> bool {
        self.inner.takes_discard()
    }
}

#[cfg(test)]
mod tests {
    use cenote_device::model::{Params, RotatingParams, table::HDD_7200};

    use super::*;

    /// Returns the mean time of writes at 4096 x n + `shift` with one command at a time.
    fn mean_ns(shift: u64) -> u64 {
        let params = RotatingParams { is_cache_on: false, ..HDD_7200 };
        let mut disk = Emulated::new(Params::Rotating(params).build(1 << 40, 1));
        let (mut now, mut done) = (0, Vec::new());
        for id in 0..200 {
            let offset = (id * 7_919 % 200) * (1 << 32) + shift;
            disk.admit(now, Command { id, op: Op::Write, offset, len: 8192 });
            while done.is_empty() {
                now = disk.next_event().unwrap();
                disk.advance(now, &mut done);
            }
            assert_eq!(done.pop().map(|completion| completion.id), Some(id));
        }
        now / 200
    }

    #[test]
    fn a_partial_sector_costs_a_revolution() {
        let (aligned, partial) = (mean_ns(0), mean_ns(512));
        let revolution_ns = 60_000_000_000 / 7_200;
        let more = partial - aligned;
        assert!((revolution_ns * 9 / 10..revolution_ns * 11 / 10).contains(&more), "{more}");
        assert_eq!(mean_ns(4096) / 1_000_000, aligned / 1_000_000);
    }
}
