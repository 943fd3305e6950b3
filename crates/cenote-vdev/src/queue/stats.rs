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

/// Of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueStats {
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
            classes,
            directions: self.directions,
            written_pads: self.written_pads,
            dropped_pads: self.dropped_pads,
        }
    }
}
