//! What a queue has done: what `zpool iostat` shows of a leaf.

use super::histogram::Histogram;
use super::schedule::{Direction, Issue, Request};
use super::{CLASSES, IoClass};

/// Of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Requests that wait.
    pub queued: u64,
    /// I/Os under way.
    pub active: u64,
    /// Bytes of each request. Pads are not counted.
    pub individual: Histogram,
    /// Bytes of each I/O that was made of several requests.
    pub aggregated: Histogram,
    /// Nanoseconds that each request waited.
    pub wait: Histogram,
    /// Nanoseconds that the device took for each I/O.
    pub service: Histogram,
}

/// Of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// I/Os that went to the device.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nanoseconds that the device took for each I/O.
    pub service: Histogram,
    /// Nanoseconds from submission to the end of each request.
    pub total: Histogram,
}

/// Of a queue, or of several together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Nanoseconds since it began to count.
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
    /// Of one class.
    pub fn class(&self, class: IoClass) -> &ClassStats {
        &self.classes[class as usize]
    }

    /// Of one direction.
    pub fn direction(&self, direction: Direction) -> &DirectionStats {
        &self.directions[direction as usize]
    }

    /// Adds what another queue has done, and has to do.
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

    /// What it has done since `earlier`, and has to do now. A queue that began anew meanwhile, as
    /// its device did, has done what it says.
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

    /// A read that went past the queue.
    pub(super) fn read_now(&mut self, len: u64, service_ns: u64) {
        let class = &mut self.classes[IoClass::SyncRead as usize];
        class.individual.add(len);
        class.service.add(service_ns);
        let direction = &mut self.directions[Direction::Read as usize];
        direction.operations += 1;
        direction.bytes += len;
        direction.service.add(service_ns);
        direction.total.add(service_ns);
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
