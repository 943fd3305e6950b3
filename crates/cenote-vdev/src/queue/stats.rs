//! Statistics of a queue, as `zpool iostat` shows them for a leaf.

use super::histogram::Histogram;
use super::schedule::{Direction, Issue, Request};
use super::{CLASSES, IoClass};

/// Statistics of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Queued requests.
    pub queued: u64,
    /// I/Os in flight.
    pub active: u64,
    /// Sizes of individual requests, in bytes. Pads are not counted.
    pub individual: Histogram,
    /// Sizes of aggregated I/Os, in bytes.
    pub aggregated: Histogram,
    /// Nanoseconds that each request spent in the queue.
    pub wait: Histogram,
    /// Nanoseconds that the device took for each I/O.
    pub service: Histogram,
}

/// Statistics of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// I/Os issued to the device.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nanoseconds that the device took for each I/O.
    pub service: Histogram,
    /// Nanoseconds from submission to completion of each request.
    pub total: Histogram,
}

/// Statistics of one queue, or of several added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Nanoseconds since counting began.
    pub age_ns: u64,
    /// By class.
    pub classes: [ClassStats; CLASSES],
    /// Reads, writes, discards.
    pub directions: [DirectionStats; 3],
    /// Pads that were written because they joined two writes.
    pub written_pads: u64,
    /// Pads that were left out.
    pub dropped_pads: u64,
}

impl QueueStats {
    /// Statistics of one class.
    pub fn class(&self, class: IoClass) -> &ClassStats {
        &self.classes[class as usize]
    }

    /// Statistics of one direction.
    pub fn direction(&self, direction: Direction) -> &DirectionStats {
        &self.directions[direction as usize]
    }

    /// Adds the statistics of another queue.
    pub fn merge(&mut self, other: &Self) {
        self.age_ns = self.age_ns.max(other.age_ns);
        for (class, more) in self.classes.iter_mut().zip(&other.classes) {
            class.queued += more.queued;
            class.active += more.active;
            class.individual.merge(&more.individual);
            class.aggregated.merge(&more.aggregated);
            class.wait.merge(&more.wait);
            class.service.merge(&more.service);
        }
        for (direction, more) in self.directions.iter_mut().zip(&other.directions) {
            direction.operations += more.operations;
            direction.bytes += more.bytes;
            direction.service.merge(&more.service);
            direction.total.merge(&more.total);
        }
        self.written_pads += other.written_pads;
        self.dropped_pads += other.dropped_pads;
    }

    /// The statistics since the snapshot `earlier`, with the present number of pending requests. If
    /// the queue was created anew after `earlier`, with its device, all of its statistics count.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        if self.age_ns < earlier.age_ns {
            return since;
        }
        since.age_ns = self.age_ns - earlier.age_ns;
        for (class, before) in since.classes.iter_mut().zip(&earlier.classes) {
            class.individual = class.individual.since(&before.individual);
            class.aggregated = class.aggregated.since(&before.aggregated);
            class.wait = class.wait.since(&before.wait);
            class.service = class.service.since(&before.service);
        }
        for (direction, before) in since.directions.iter_mut().zip(&earlier.directions) {
            direction.operations = direction.operations.saturating_sub(before.operations);
            direction.bytes = direction.bytes.saturating_sub(before.bytes);
            direction.service = direction.service.since(&before.service);
            direction.total = direction.total.since(&before.total);
        }
        since.written_pads = since.written_pads.saturating_sub(earlier.written_pads);
        since.dropped_pads = since.dropped_pads.saturating_sub(earlier.dropped_pads);
        since
    }
}

/// The counters of a queue.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    classes: [ClassStats; CLASSES],
    directions: [DirectionStats; 3],
    written_pads: u64,
    pub(super) dropped_pads: u64,
}

impl Recorded {
    pub(super) fn individual(&mut self, request: &Request) {
        if !request.is_pad {
            self.classes[request.class as usize].individual.add(request.len);
        }
    }

    pub(super) fn waited(&mut self, class: IoClass, wait_ns: u64) {
        self.classes[class as usize].wait.add(wait_ns);
    }

    pub(super) fn issued(&mut self, issue: &Issue) {
        if issue.parts.len() > 1 {
            self.classes[issue.class as usize].aggregated.add(issue.len);
        }
        self.written_pads += issue.parts.iter().filter(|(_, part)| part.is_pad).count() as u64;
    }

    pub(super) fn served(
        &mut self,
        issue: &Issue,
        service_ns: u64,
        total_ns: impl Iterator<Item = u64>,
    ) {
        self.classes[issue.class as usize].service.add(service_ns);
        let direction = &mut self.directions[issue.direction as usize];
        direction.operations += 1;
        direction.bytes += issue.len;
        direction.service.add(service_ns);
        total_ns.for_each(|total| direction.total.add(total));
    }

    pub(super) fn stats(&self, queued: [u64; CLASSES], active: [u64; CLASSES]) -> QueueStats {
        let mut classes = self.classes;
        for (class, (queued, active)) in classes.iter_mut().zip(queued.into_iter().zip(active)) {
            (class.queued, class.active) = (queued, active);
        }
        QueueStats {
            age_ns: 0,
            classes,
            directions: self.directions,
            written_pads: self.written_pads,
            dropped_pads: self.dropped_pads,
        }
    }
}
