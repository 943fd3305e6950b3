//! State of a modelled disk, behind one lock: contents, the model, commands in flight.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use cenote_rt::{Buf, BufMut, Error, Kind};

use super::clock::Clock;
use super::contents::Contents;
use super::faults::{DiskFault, Faults};
use super::{NoPower, OpCount};
use crate::model::{Command, Completion, DiskModel, Op};
use crate::pattern::SECTOR;
use crate::{InjectedFault, UnreadableSector, WriteFault};

const SECTOR_BYTES: u64 = SECTOR as u64;

/// Why a command fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    Injected { offset: u64, len: u64 },
    Unreadable { sector: u64 },
    NoPower,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Injected { offset, len } => {
                Self::new(Kind::Io, InjectedFault { offset, len: len as usize })
            }
            Failure::Unreadable { sector } => Self::new(Kind::Io, UnreadableSector { sector }),
            Failure::NoPower => Self::new(Kind::Io, NoPower),
        }
    }
}

/// Whether the disk takes commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Working,
    Dead,
    Unpowered,
}

/// A request, with the bytes that it moves.
#[derive(Debug)]
pub(super) enum Request<'a> {
    Read(u64, &'a mut BufMut),
    Write(u64, &'a [Buf]),
    Flush,
    Discard(u64, u64),
}

impl Request<'_> {
    fn command(&self, id: u64) -> Command {
        let (op, offset, len) = match self {
            Self::Read(offset, buf) => (Op::Read, *offset, buf.len() as u64),
            Self::Write(offset, parts) => {
                (Op::Write, *offset, parts.iter().map(|part| part.len() as u64).sum())
            }
            Self::Flush => (Op::Flush, 0, 0),
            Self::Discard(offset, len) => (Op::Discard, *offset, *len),
        };
        Command { id, op, offset, len }
    }
}

/// What the completion of a command does to the contents.
#[derive(Debug, Clone, Copy)]
enum Effect {
    None,
    /// The write with this number has completed.
    Written(u64),
    /// What had completed at this stamp is durable.
    Durable(u64),
}

/// A command whose caller has not got the result yet.
#[derive(Debug)]
struct Flight {
    effect: Effect,
    /// The result that it will have.
    verdict: Result<(), Failure>,
    is_complete: bool,
    is_abandoned: bool,
    waker: Option<Waker>,
}

/// The task that sleeps until the next event.
#[derive(Debug, Default)]
struct Timer {
    /// When it wakes; `None` if there is none.
    at_ns: Option<u64>,
    /// Number of the task; earlier ones end when they wake.
    generation: u64,
}

/// Everything that changes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) clock: Clock,
    pub(super) model: Box<dyn DiskModel>,
    pub(super) contents: Contents,
    pub(super) faults: Faults,
    pub(super) status: Status,
    /// Bytes that can be addressed.
    pub(super) size: u64,
    pub(super) counts: [OpCount; 4],
    /// Wakers to be called when the lock is free.
    pub(super) wakers: Vec<Waker>,
    pub(super) idle: Vec<Waker>,
    flights: BTreeMap<u64, Flight>,
    /// Commands in the model.
    in_flight: usize,
    next_id: u64,
    timer: Timer,
    completions: Vec<Completion>,
}

impl State {
    pub(super) fn new(size: u64, model: Box<dyn DiskModel>) -> Self {
        Self {
            clock: Clock::new(),
            model,
            contents: Contents::default(),
            faults: Faults::new(),
            status: Status::Working,
            size,
            counts: [OpCount::default(); 4],
            wakers: Vec::new(),
            idle: Vec::new(),
            flights: BTreeMap::new(),
            in_flight: 0,
            next_id: 0,
            timer: Timer::default(),
            completions: Vec::new(),
        }
    }

    /// Lets time pass until `now_ns`, and completes commands.
    pub(super) fn advance(&mut self, now_ns: u64) {
        let model_ns = self.clock.at(now_ns);
        let mut completions = std::mem::take(&mut self.completions);
        self.model.advance(model_ns, &mut completions);
        for completion in completions.drain(..) {
            self.complete(completion.id);
        }
        self.completions = completions;
    }

    /// Gives a command its result.
    fn complete(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.is_complete = true;
        self.wakers.extend(flight.waker.take());
        let (effect, verdict) = (flight.effect, flight.verdict);
        if flight.is_abandoned {
            self.flights.remove(&id);
        }
        match effect {
            Effect::Written(admitted) => self.contents.complete(admitted),
            Effect::Durable(began) if verdict.is_ok() => self.contents.harden(began),
            Effect::Durable(_) | Effect::None => {}
        }
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.wakers.append(&mut self.idle);
        }
    }

    /// Fails every command in flight, and makes the model forget them.
    pub(super) fn fail_all(&mut self, failure: Failure) {
        self.model.reset();
        let open = self.flights.iter_mut().filter(|(_, flight)| !flight.is_complete);
        let ids: Vec<u64> = open
            .map(|(id, flight)| {
                flight.verdict = Err(failure);
                *id
            })
            .collect();
        for id in ids {
            self.complete(id);
        }
    }

    /// Whether no command is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Wakes every caller: each then makes sure that a timer is set.
    pub(super) fn wake_all(&mut self) {
        self.wakers.extend(self.flights.values_mut().filter_map(|flight| flight.waker.take()));
    }

    /// Begins a request, and returns its number. The caller has checked its range.
    pub(super) fn begin(&mut self, mut request: Request<'_>, now_ns: u64) -> Result<u64, Failure> {
        self.next_id += 1;
        let command = request.command(self.next_id);
        let Command { id, op, offset, len } = command;
        let failure = match self.status {
            Status::Working if !self.faults.command_fails() => None,
            Status::Working | Status::Dead => Some(Failure::Injected { offset, len }),
            Status::Unpowered => Some(Failure::NoPower),
        };
        if let Some(failure) = failure {
            self.faults.note(DiskFault::Refused, offset, len);
            return Err(failure);
        }
        let count = &mut self.counts[op as usize];
        (count.commands, count.bytes) = (count.commands + 1, count.bytes + len);
        let (effect, verdict) = self.carry_out(&mut request, &command);
        let waker = None;
        let flight = Flight { effect, verdict, is_complete: false, is_abandoned: false, waker };
        self.flights.insert(id, flight);
        self.in_flight += 1;
        self.model.admit(self.clock.at(now_ns), command);
        Ok(id)
    }

    /// Moves the bytes of a request, and decides its result.
    fn carry_out(
        &mut self,
        request: &mut Request<'_>,
        command: &Command,
    ) -> (Effect, Result<(), Failure>) {
        let Command { offset, len, .. } = *command;
        let began = self.contents.next_stamp();
        match request {
            Request::Read(_, buf) => (Effect::None, self.read(offset, buf)),
            Request::Write(_, parts) => self.write(offset, len, parts),
            Request::Flush if self.faults.flush_fails() => {
                self.faults.note(DiskFault::FlushError, 0, 0);
                (Effect::None, Err(Failure::Injected { offset, len }))
            }
            Request::Flush if self.faults.flush_lies() => {
                self.faults.note(DiskFault::LyingFlush, 0, 0);
                (Effect::None, Ok(()))
            }
            Request::Flush => (Effect::Durable(began), Ok(())),
            Request::Discard(..) => {
                let discarded = self.contents.discard(offset / SECTOR_BYTES, len / SECTOR_BYTES);
                (Effect::Written(discarded), Ok(()))
            }
        }
    }

    fn read(&mut self, offset: u64, buf: &mut BufMut) -> Result<(), Failure> {
        let len = buf.len() as u64;
        if self.faults.read_fails() {
            self.faults.note(DiskFault::ReadError, offset, len);
            return Err(Failure::Injected { offset, len });
        }
        self.contents.extents().read_bytes(offset, buf).map_err(|sector| {
            self.faults.note(DiskFault::UnreadableSector, sector * SECTOR_BYTES, SECTOR_BYTES);
            Failure::Unreadable { sector }
        })
    }

    fn write(&mut self, offset: u64, len: u64, parts: &[Buf]) -> (Effect, Result<(), Failure>) {
        let sectors = len / SECTOR_BYTES;
        let fault = self.faults.of_write();
        let written = match fault {
            None => self.contents.write(offset / SECTOR_BYTES, sectors, parts),
            Some(WriteFault::Eio) => {
                self.faults.note(DiskFault::WriteError, offset, len);
                return (Effect::None, Err(Failure::Injected { offset, len }));
            }
            Some(WriteFault::Lost) => {
                self.faults.note(DiskFault::LostWrite, offset, len);
                return (Effect::None, Ok(()));
            }
            Some(WriteFault::Torn) => {
                let kept = self.faults.below(sectors.max(1));
                self.faults.note(
                    DiskFault::TornWrite,
                    offset + kept * SECTOR_BYTES,
                    len - kept * SECTOR_BYTES,
                );
                let mut whole = crate::device::joined(parts);
                whole.truncate((kept * SECTOR_BYTES) as usize);
                self.contents.write(offset / SECTOR_BYTES, kept, &[whole.freeze()])
            }
            Some(WriteFault::Misdirected(target)) => {
                let fits = |target: &u64| {
                    target.is_multiple_of(SECTOR_BYTES) && target.saturating_add(len) <= self.size
                };
                let target = target.filter(fits);
                let target = target.unwrap_or_else(|| self.other_place(offset, len));
                self.faults.note(DiskFault::MisdirectedWrite, target, len);
                self.contents.write(target / SECTOR_BYTES, sectors, parts)
            }
        };
        if sectors > 0 {
            self.faults.note_write(offset..offset + len);
        }
        if fault.is_none() && sectors > 0 {
            self.damage_written(offset / SECTOR_BYTES, sectors);
        }
        (Effect::Written(written), Ok(()))
    }

    /// A place for a misdirected write, other than its own if there is one.
    fn other_place(&mut self, offset: u64, len: u64) -> u64 {
        let places = (self.size - len) / SECTOR_BYTES;
        let place = self.faults.below(places.max(1));
        (place + u64::from(place >= offset / SECTOR_BYTES && places > 0)) * SECTOR_BYTES
    }

    /// Makes a sector of a write unreadable, or changes one of its bits, if that is due.
    fn damage_written(&mut self, start: u64, sectors: u64) {
        if self.faults.leaves_latent_error() {
            let sector = start + self.faults.below(sectors);
            self.damage(sector * SECTOR_BYTES, SECTOR_BYTES);
        }
        if self.faults.flips_bit() {
            let bit = self.faults.below(sectors * SECTOR_BYTES * 8);
            self.flip(start * SECTOR_BYTES + bit / 8, (bit % 8) as u8);
        }
    }

    /// Makes the sectors of a range unreadable until they are written again.
    pub(super) fn damage(&mut self, offset: u64, len: u64) {
        let (start, end) = (offset / SECTOR_BYTES, (offset + len).div_ceil(SECTOR_BYTES));
        self.contents.edit().damage(start, end);
        self.faults.note(DiskFault::LatentError, offset, len);
    }

    /// Changes a bit on the medium; does nothing in an unreadable sector.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        let sector = offset / SECTOR_BYTES;
        let mut bytes = [0; SECTOR];
        if self.contents.extents().read(sector, &mut bytes).is_ok() {
            bytes[(offset % SECTOR_BYTES) as usize] ^= 1 << (bit % 8);
            self.contents.edit().write(sector, &bytes);
            self.faults.note(DiskFault::BitFlip, offset, 1);
        }
    }

    /// Returns the result of a command that has completed, or stores the waker of its caller.
    pub(super) fn poll(&mut self, id: u64, waker: &Waker) -> Option<Result<(), Failure>> {
        let flight = self.flights.get_mut(&id)?;
        if flight.is_complete {
            let verdict = flight.verdict;
            self.flights.remove(&id);
            return Some(verdict);
        }
        if !flight.waker.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
            flight.waker = Some(waker.clone());
        }
        None
    }

    /// Forgets the caller of a command.
    pub(super) fn abandon(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        if flight.is_complete {
            self.flights.remove(&id);
        } else {
            (flight.is_abandoned, flight.waker) = (true, None);
        }
    }

    /// When the next event is due, in the engine's time.
    fn next_ns(&self) -> Option<u64> {
        self.model.next_event().and_then(|model_ns| self.clock.engine(model_ns))
    }

    /// Returns the number and the sleep of a timer that has to be started, if none wakes in time.
    pub(super) fn arm(&mut self, now_ns: u64) -> Option<(u64, Duration)> {
        let next_ns = self.next_ns()?;
        if self.timer.at_ns.is_some_and(|at_ns| at_ns <= next_ns) {
            return None;
        }
        self.timer.generation += 1;
        self.timer.at_ns = Some(next_ns);
        Some((self.timer.generation, Duration::from_nanos(next_ns.saturating_sub(now_ns))))
    }

    /// Ends a timer that wakes no more. Returns whether it was to wake.
    pub(super) fn disarm(&mut self, generation: u64) -> bool {
        self.timer.generation == generation && self.timer.at_ns.take().is_some()
    }

    /// Does the work of a timer that woke. Returns its next sleep, or `None` if it ends.
    pub(super) fn tick(&mut self, generation: u64, now_ns: u64) -> Option<Duration> {
        if self.timer.generation != generation {
            return None;
        }
        self.advance(now_ns);
        self.timer.at_ns = self.next_ns();
        self.timer.at_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)))
    }
}
