//! Possible contents of devices after a crash at any point of a recorded log.
//!
//!     durable[device]   everything covered by a flush, in order
//!     pending           writes that began and are not covered: each sector may be on disk
//!
//! A replay walks the log once, forwards, and keeps both. At each point it builds contents for a
//! choice: which sectors of which pending writes have reached the medium. The caller makes the
//! choice: all, none, all but one, a seeded subset, a seeded tear. A sector is written entirely or
//! not at all, as devices guarantee; writes are not ordered against one another.
//!
//! Guarantees
//! * P1  Pending writes that overlap are applied in the order in which they began. A pending write
//!   may overwrite one that began later and is covered: then it had not returned while the other
//!   was in flight, and the program left their order open.

use crate::image::Image;
use crate::recorder::{Event, Log};

/// Smallest unit of a write that is written entirely or not at all.
pub const TEAR_GRAIN: u64 = 512;

/// A write or discard that is not covered by a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Index of its event in the log.
    pub event: usize,
    /// Number of the device.
    pub device: usize,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Index of the event that records its completion, if it has returned.
    pub done: Option<usize>,
}

impl Pending {
    /// Number of sectors of [`TEAR_GRAIN`] bytes that it overlaps.
    pub fn sectors(&self) -> u64 {
        (self.offset + self.len).div_ceil(TEAR_GRAIN) - self.offset / TEAR_GRAIN
    }
}

/// A position in a log.
#[derive(Debug, Clone)]
pub struct Replay<'a> {
    log: &'a Log,
    at: usize,
    durable: Vec<Image>,
    pending: Vec<Pending>,
}

impl<'a> Replay<'a> {
    /// A replay before the first event.
    pub fn new(log: &'a Log) -> Self {
        Self { log, at: 0, durable: log.bases.clone(), pending: Vec::new() }
    }

    /// Number of events before the position.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The last mark before the position.
    pub fn mark(&self) -> Option<u64> {
        self.log.events[..self.at].iter().rev().find_map(|event| match event {
            Event::Mark(mark) => Some(*mark),
            _ => None,
        })
    }

    /// The uncertain writes, in the order in which they began.
    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// Advances to position `events`, or to the end of the log. Never goes back.
    pub fn advance(&mut self, events: usize) {
        while self.at < events.min(self.log.events.len()) {
            self.take(self.at);
            self.at += 1;
        }
    }

    /// Advances to just before the next flush, and with the next call to just after it. Returns
    /// false at the end of the log.
    pub fn next_boundary(&mut self) -> bool {
        let events = &self.log.events;
        let is_flush = |index: usize| matches!(events.get(index), Some(Event::Flush { .. }));
        if self.at >= events.len() {
            return false;
        }
        let mut target = self.at + 1;
        while target < events.len() && !is_flush(target) && !is_flush(target - 1) {
            target += 1;
        }
        self.advance(target);
        true
    }

    fn take(&mut self, event: usize) {
        match &self.log.events[event] {
            Event::Write { device, offset, parts } => {
                let len = parts.iter().map(|part| part.len() as u64).sum();
                self.begin(event, *device, *offset, len);
            }
            Event::Discard { device, offset, len } => self.begin(event, *device, *offset, *len),
            Event::Done { of } => {
                let found = self.pending.iter_mut().rev().find(|pending| pending.event == *of);
                if let Some(pending) = found {
                    pending.done = Some(event);
                }
            }
            Event::Flush { device, since } => self.cover(*device, *since),
            Event::Grown { device, size } => self.durable[*device].grow(*size),
            Event::Mark(_) => {}
        }
    }

    fn begin(&mut self, event: usize, device: usize, offset: u64, len: u64) {
        self.pending.push(Pending { event, device, offset, len, done: None });
    }

    /// Makes the writes durable that a flush of `device` that began at `since` covers.
    fn cover(&mut self, device: usize, since: usize) {
        let is_covered = |pending: &mut Pending| {
            pending.device == device && pending.done.is_some_and(|done| done < since)
        };
        let covered: Vec<Pending> = self.pending.extract_if(.., is_covered).collect();
        for write in covered {
            self.apply(&write, None, device);
        }
    }

    /// Applies the sectors of `write` selected by `keep` to the durable contents.
    fn apply(&mut self, write: &Pending, keep: Option<&mut dyn FnMut(u64) -> bool>, device: usize) {
        put(self.log, write, keep, &mut self.durable[device]);
    }

    /// The contents of all devices, by number, if exactly those sectors of pending writes have
    /// reached the medium for which `keep(write, sector)` returns true; `write` is an index into
    /// [`pending`](Self::pending), `sector` counts from the write's first sector.
    pub fn images(&self, mut keep: impl FnMut(usize, u64) -> bool) -> Vec<Image> {
        let mut images = self.durable.clone();
        for (index, write) in self.pending.iter().enumerate() {
            let mut keep = |sector| keep(index, sector);
            put(self.log, write, Some(&mut keep), &mut images[write.device]);
        }
        images
    }
}

/// Writes the sectors of `write` selected by `keep` (`None`: all) to `image`.
fn put(
    log: &Log,
    write: &Pending,
    mut keep: Option<&mut dyn FnMut(u64) -> bool>,
    image: &mut Image,
) {
    let zeros;
    let (offset, parts): (u64, Vec<&[u8]>) = match &log.events[write.event] {
        Event::Write { offset, parts, .. } => (*offset, parts.iter().map(|part| &**part).collect()),
        Event::Discard { offset, len, .. } => {
            zeros = vec![0; *len as usize];
            (*offset, vec![&zeros])
        }
        _ => return,
    };
    let Some(keep) = &mut keep else {
        let mut at = offset;
        for part in parts {
            image.write_at(at, part);
            at += part.len() as u64;
        }
        return;
    };
    // Parts need not end at sector boundaries; `keep` is called once per sector.
    let (mut at, mut verdict) = (offset, (u64::MAX, false));
    for mut part in parts {
        while !part.is_empty() {
            let room = TEAR_GRAIN - at % TEAR_GRAIN;
            let (piece, rest) = part.split_at(part.len().min(room as usize));
            let sector = at / TEAR_GRAIN - offset / TEAR_GRAIN;
            if verdict.0 != sector {
                verdict = (sector, keep(sector));
            }
            if verdict.1 {
                image.write_at(at, piece);
            }
            at += piece.len() as u64;
            part = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cenote_rt::Buf;

    use super::*;
    use crate::{Device, ImageDevice, Recorder};

    fn run<T>(work: impl Future<Output = cenote_rt::Result<T>>) -> T {
        cenote_rt::block_on(1, work).expect("runtime").expect("no error")
    }

    fn sector(byte: u8) -> Vec<Buf> {
        vec![Buf::from(vec![byte; 200]), Buf::from(vec![byte; 312])]
    }

    fn byte(image: &Image, sector: u64) -> u8 {
        let mut bytes = [0; 512];
        image.read_at(sector * 512, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is whole");
        bytes[0]
    }

    fn two_devices() -> (Arc<Recorder>, [Arc<dyn Device>; 2]) {
        let recorder = Recorder::new();
        let image = Image::zeroed(1 << 20);
        let devices = ["a", "b"].map(|name| {
            recorder.wrap(Arc::new(ImageDevice::new(name, image.clone())), image.clone())
        });
        (recorder, devices)
    }

    #[test]
    fn only_flushed_writes_are_certain() {
        let (recorder, [a, b]) = two_devices();
        run(a.write(0, sector(1)));
        run(b.write(0, sector(2)));
        run(a.flush());
        recorder.mark(7);
        run(a.write(0, sector(3)));
        run(a.write(512, vec![Buf::from(vec![4; 1024])]));
        let log = recorder.log();
        let mut replay = Replay::new(&log);
        replay.advance(4);
        assert_eq!((replay.pending().len(), replay.mark()), (2, None));
        replay.advance(5);
        assert_eq!(replay.pending().len(), 1, "the flush of one device says nothing of another");
        replay.advance(usize::MAX);
        assert_eq!((replay.pending().len(), replay.mark()), (3, Some(7)));
        let none = replay.images(|_, _| false);
        assert_eq!((byte(&none[0], 0), byte(&none[0], 1), byte(&none[1], 0)), (1, 0, 0));
        let all = replay.images(|_, _| true);
        assert_eq!((byte(&all[0], 0), byte(&all[0], 1), byte(&all[1], 0)), (3, 4, 2));
        let torn = replay.images(|write, sector| write == 2 && sector == 1);
        assert_eq!([0, 1, 2].map(|sector| byte(&torn[0], sector)), [1, 0, 4]);
        assert_eq!(replay.pending()[2].sectors(), 2);
    }

    #[test]
    fn a_write_that_returns_during_a_flush_stays_uncertain() {
        let write = |byte| Event::Write { device: 0, offset: 0, parts: sector(byte) };
        let log = Log {
            bases: vec![Image::zeroed(4096)],
            events: vec![
                write(1),
                Event::Done { of: 0 },
                write(2),
                Event::Done { of: 2 },
                // It began before the second write returned.
                Event::Flush { device: 0, since: 3 },
            ],
        };
        let mut replay = Replay::new(&log);
        replay.advance(5);
        assert_eq!(replay.pending().len(), 1);
        assert_eq!(byte(&replay.images(|_, _| false)[0], 0), 1);
    }

    #[test]
    fn devices_become_longer() {
        let recorder = Recorder::new();
        let inner = ImageDevice::new("a", Image::zeroed(2 << 20));
        let device = recorder.wrap(Arc::new(inner), Image::zeroed(1 << 20));
        assert!(run(device.grown()).is_none());
        assert!(
            cenote_rt::block_on(1, device.write(1 << 20, sector(1))).expect("runtime").is_err()
        );
        recorder.grow(0, 2 << 20);
        assert_eq!((run(device.current_size()), device.info().size), (2 << 20, 1 << 20));
        let longer = run(device.grown()).expect("it has grown");
        run(longer.write(1 << 20, sector(1)));
        assert!(run(longer.grown()).is_none());
        let log = recorder.log();
        let mut replay = Replay::new(&log);
        assert_eq!(replay.images(|_, _| true)[0].size(), 1 << 20);
        replay.advance(usize::MAX);
        let images = replay.images(|_, _| true);
        assert_eq!((images[0].size(), byte(&images[0], 2048)), (2 << 20, 1));
    }

    #[test]
    fn boundaries_are_before_and_after_each_flush() {
        let (recorder, [a, _]) = two_devices();
        for value in 0..3 {
            run(a.write(0, sector(value)));
            run(a.flush());
        }
        let log = recorder.log();
        let mut replay = Replay::new(&log);
        let mut stops = Vec::new();
        while replay.next_boundary() {
            stops.push(replay.position());
        }
        assert_eq!(stops, [2, 3, 5, 6, 8, 9]);
        let (other, [a, _]) = two_devices();
        for value in 0..3 {
            run(a.write(0, sector(value)));
            run(a.flush());
        }
        assert_eq!(other.log().hash(), log.hash());
        run(a.flush());
        assert_ne!(other.log().hash(), log.hash());
    }
}
