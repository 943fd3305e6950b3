//! Geometry of a rotating disk: cylinders, zones, angles and seeks.
//!
//! ```text
//!   offset -> x, part of the capacity -> y, part of the stroke, 0 outermost
//!             y -> rate (falls linearly), revolutions before the byte: their fraction is its angle
//! ```
//!
//! The capacity of a cylinder is proportional to its rate, so that x follows from y by integration,
//! and the number of revolutions before a byte is proportional to y. Skew is ideal: a sequential
//! reader never waits for the next track.
//!
//! Distances are in parts of the full stroke: seek(d) = a + b sqrt(d) + c d. The coefficients
//! follow from three figures of a data sheet, because E[sqrt d] = 8/15 and E[d] = 1/3 for random
//! pairs.
//!
//! Sources: spec 09 §2.1, §1.7 (rule S5).

use super::super::rate_of_mb;
use super::RotatingParams;

/// Distance within which a stretched disk seeks as an unstretched one.
const UNSTRETCHED_BYTES: u64 = 1 << 20;

/// Place of a byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Place {
    pub(super) offset: u64,
    /// Cylinder, 0 outermost to 1.
    pub(super) cylinder: f64,
    /// Bytes per nanosecond on its track.
    pub(super) rate: f64,
    /// Number of its track: whole revolutions from the first byte.
    track: u64,
    /// Angle on its track, 0 to 1.
    pub(super) angle: f64,
}

/// The fraction of a number, 0 to 1. Small numbers only; the system's `floor` takes longer.
pub(super) fn fraction(x: f64) -> f64 {
    let part = x - (x as i64) as f64;
    if part < 0.0 { part + 1.0 } else { part }
}

/// What places and seeks are computed from. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Geometry {
    seek: [f64; 3],
    outer: f64,
    inner: f64,
    capacity: f64,
    stretch: f64,
    /// Revolutions over the whole stroke.
    tracks: f64,
    pub(super) revolution_ns: f64,
    rpm: u64,
}

impl Geometry {
    pub(super) fn new(params: &RotatingParams) -> Self {
        let [track, mean, full] = params.seek_ms.map(|ms| ms * 1e6);
        let linear = ((mean - track) - (full - track) / 3.0) * 5.0;
        let [outer, inner] = params.rate_mb.map(rate_of_mb);
        let revolution_ns = 60e9 / params.rpm as f64;
        let stretch = params.stretch as f64;
        let capacity = params.capacity as f64;
        Self {
            seek: [track, linear, full - track - linear],
            outer,
            inner,
            capacity,
            stretch,
            tracks: capacity / stretch / (f64::midpoint(outer, inner) * revolution_ns),
            revolution_ns,
            rpm: params.rpm,
        }
    }

    /// Coefficients a, b, c of the seek curve.
    #[cfg(test)]
    pub(super) fn curve(&self) -> [f64; 3] {
        self.seek
    }

    /// Place of a byte; beyond the capacity it is the innermost one.
    pub(super) fn place(&self, offset: u64) -> Place {
        let x = (offset as f64 * self.stretch / self.capacity).min(1.0);
        let (outer, fall) = (self.outer, self.outer - self.inner);
        let squared = outer * outer - x * fall * (outer + self.inner);
        let cylinder = if fall == 0.0 { x } else { (outer - squared.sqrt()) / fall };
        let revolutions = cylinder * self.tracks;
        Place {
            offset,
            cylinder,
            rate: outer - fall * cylinder,
            track: revolutions as u64,
            angle: fraction(revolutions),
        }
    }

    /// Time of a seek over `distance` parts of the full stroke.
    pub(super) fn seek_over(&self, distance: f64) -> f64 {
        let [track, root, linear] = self.seek;
        if distance <= 0.0 { 0.0 } else { track + root * distance.sqrt() + linear * distance }
    }

    /// Time of a seek, or of the switch to another head.
    pub(super) fn seek(&self, from: &Place, to: &Place) -> f64 {
        let bytes = from.offset.abs_diff(to.offset);
        if bytes as f64 <= to.rate * self.revolution_ns {
            return if from.track == to.track { 0.0 } else { self.seek[0] };
        }
        let distance = (from.cylinder - to.cylinder).abs();
        self.seek_over(if bytes < UNSTRETCHED_BYTES { distance / self.stretch } else { distance })
    }

    /// Part of a revolution that the disk has made at `now_ns`. A minute is a whole number of
    /// revolutions, so that nothing is rounded before the division.
    pub(super) fn phase(&self, now_ns: u64) -> f64 {
        const MINUTE: u64 = 60_000_000_000;
        (now_ns % MINUTE * self.rpm % MINUTE) as f64 / MINUTE as f64
    }
}
