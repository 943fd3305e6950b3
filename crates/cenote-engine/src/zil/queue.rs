//! Records of operations that are not on disk, by txg, until they are committed or the txg is
//! synced (spec 07 A9).
//!
//! ```text
//!   record ──> txg ── sync list, in order              ┐ commit of an object: all sync records
//!                  `─ async lists by object, in order  ┘ and those of it ──> ready ──> writer
//! ```
//!
//! Records keep the order in which the operations were applied, also across lists.
//!
//! Invariants
//! * Q1  Records are written in the order of their operations.
//! * Q2  A ticket is done only after it was given out.

use std::collections::BTreeMap;

use cenote_rt::seeded::{Bug, is_on};

use crate::zil::kept::Unfetched;
use crate::zil::record::LogRecord;

/// A record with its position in the order of operations.
#[derive(Debug)]
pub(super) struct Queued {
    order: u64,
    pub(super) txg: u64,
    pub(super) record: LogRecord,
}

#[derive(Debug, Default)]
struct Lists {
    sync: Vec<Queued>,
    by_object: BTreeMap<u64, Vec<Queued>>,
}

/// The records of a head.
#[derive(Debug, Default)]
pub(super) struct Queue {
    txgs: BTreeMap<u64, Lists>,
    order: u64,
    /// Records of waiting commits.
    ready: Vec<Queued>,
    /// Numbers of the last requested commit, and of the last durable one.
    tickets: u64,
    done: u64,
    /// A writer took records and did not finish.
    is_lossy: bool,
    /// The last txg on disk.
    committed: u64,
    memory: usize,
    /// Data of records that is still in the objects.
    pub(super) unfetched: Unfetched,
}

impl Queue {
    /// Adds a record of `txg`, unless that txg is already on disk. Returns false if the operation
    /// replaced data of an earlier record without keeping it.
    pub(super) fn push(&mut self, txg: u64, record: LogRecord) -> bool {
        if txg <= self.committed {
            return true;
        }
        let is_kept = record.later().is_none_or(|later| self.unfetched.add(txg, later));
        self.order += 1;
        self.memory += record.memory();
        let queued = Queued { order: self.order, txg, record };
        let lists = self.txgs.entry(txg).or_default();
        if queued.record.is_sync {
            pin(std::slice::from_ref(&queued));
            lists.sync.push(queued);
        } else {
            lists.by_object.entry(queued.record.object).or_default().push(queued);
        }
        is_kept
    }

    /// Moves the records of a commit of `object` (of everything, if `None`) to the writer's list.
    /// Returns the ticket to wait for, `None` if all of them are durable.
    pub(super) fn pull(&mut self, object: Option<u64>) -> Option<u64> {
        let before = self.ready.len();
        for lists in self.txgs.values_mut() {
            self.ready.append(&mut lists.sync);
            if let Some(object) = object {
                self.ready.extend(lists.by_object.remove(&object).into_iter().flatten());
            } else {
                let all = std::mem::take(&mut lists.by_object);
                self.ready.extend(all.into_values().flatten());
            }
        }
        if self.ready.len() > before {
            pin(&self.ready[before..]);
            self.ready.sort_unstable_by_key(|queued| queued.order);
            self.tickets += 1;
        }
        // Other commits may include the records of this one.
        let waits = self.ready.len() > before || !is_on(Bug::RecordsOfOthersDurable);
        (waits && self.tickets > self.done).then_some(self.tickets)
    }

    /// Includes the records of an object in every commit: it was opened with `O_SYNC`, or its data
    /// must be durable before its new name.
    pub(super) fn make_sync(&mut self, object: u64) {
        for lists in self.txgs.values_mut() {
            let moved = lists.by_object.remove(&object).unwrap_or_default();
            pin(&moved);
            lists.sync.extend(moved);
            lists.sync.sort_unstable_by_key(|queued| queued.order);
        }
    }

    /// Drops the records of an object without names.
    pub(super) fn forget(&mut self, object: u64) {
        for lists in self.txgs.values_mut() {
            lists.by_object.remove(&object);
        }
    }

    /// Drops everything that no commit waits for.
    pub(super) fn drop_queued(&mut self) {
        self.txgs.clear();
        self.memory = 0;
        self.unfetched.sweep();
    }

    pub(super) fn is_done(&self, ticket: u64) -> bool {
        self.done >= ticket
    }

    /// Takes the records to write, and returns the ticket that they complete; `None` if an earlier
    /// writer lost its records, so that a sync is needed.
    pub(super) fn take(&mut self) -> (Option<Vec<Queued>>, u64) {
        let records = std::mem::take(&mut self.ready);
        // Checks Q1.
        assert!(records.is_sorted_by_key(|queued| queued.order), "log records are out of order");
        let lost = std::mem::replace(&mut self.is_lossy, true);
        ((!lost).then_some(records), self.tickets)
    }

    /// Marks everything up to `ticket` as durable.
    pub(super) fn finish(&mut self, ticket: u64) {
        // Checks Q2.
        assert!(ticket <= self.tickets, "ticket {ticket} of {} is done", self.tickets);
        self.is_lossy = false;
        self.done = self.done.max(ticket);
    }

    /// Drops the records of `txg`, which is on disk.
    pub(super) fn committed(&mut self, txg: u64) {
        self.committed = self.committed.max(txg);
        self.unfetched.committed(txg);
        self.txgs = self.txgs.split_off(&(txg + 1));
        self.ready.retain(|queued| queued.txg > txg);
        let lists = self.txgs.values();
        let left =
            lists.flat_map(|lists| lists.sync.iter().chain(lists.by_object.values().flatten()));
        self.memory = left.map(|queued| queued.record.memory()).sum();
    }

    pub(super) fn last_committed(&self) -> u64 {
        self.committed
    }

    /// Returns the approximate memory of records, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }
}

/// Pins the data of records for a commit, even if their objects are freed.
fn pin(records: &[Queued]) {
    for later in records.iter().filter_map(|queued| queued.record.later()) {
        later.pin();
    }
}
