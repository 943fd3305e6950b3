//! Disks in memory with a volatile write cache, seeded latencies and faults.
//!
//! ```text
//!   write ──wait──> now + unflushed ──wait──> returns
//!   flush ──wait──> medium = medium + what had returned when the flush began
//!   power cut       now = medium + any sectors of unflushed writes
//! ```
//!
//! All disks of a history belong to one [`Machine`], which counts their commands. Events of the
//! history are bound to these counts: a fault, or the end of a life, happens just before the n-th
//! command, so that it hits any step of a commit.
//!
//! A killed process leaves its writes to the disks: those that a disk did not have yet are written
//! or not, by the seed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, Image, TEAR_GRAIN};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Notify, Result, Rng, sleep};
use cenote_testkit::cuts::keep;
use cenote_vdev::DATA_START;
use serde::{Deserialize, Serialize};

/// Recent writes that a fault can hit.
const RECENT: usize = 256;
/// Bytes that a fault changes or makes unreadable at most.
const DAMAGE_MAX: u64 = 64 << 10;

/// A fault of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// Sectors that were written recently cannot be read until they are written again.
    Latent,
    /// Sectors that were written recently have other bytes.
    Rot,
    /// The next writes are acknowledged and not done.
    LostWrites(u32),
    /// The next writes go to another place.
    MisdirectedWrites(u32),
    /// Of the next writes only the first sectors are written, and acknowledged.
    TornWrites(u32),
    /// The next flushes return without an effect.
    LyingFlushes(u32),
    /// The next writes fail.
    FailingWrites(u32),
    /// The next flushes fail.
    FailingFlushes(u32),
    /// The next commands fail.
    Outage(u32),
    /// The disk loses its write cache, and the next commands fail.
    Reset(u32),
    /// The next commands take long.
    Slow(u32),
}

impl Fault {
    /// Returns its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Latent => "latent sector errors",
            Self::Rot => "silent corruption",
            Self::LostWrites(_) => "lost writes",
            Self::MisdirectedWrites(_) => "misdirected writes",
            Self::TornWrites(_) => "torn writes",
            Self::LyingFlushes(_) => "lying flushes",
            Self::FailingWrites(_) => "failing writes",
            Self::FailingFlushes(_) => "failing flushes",
            Self::Outage(_) => "outages",
            Self::Reset(_) => "resets",
            Self::Slow(_) => "stalls",
        }
    }

    /// Whether the disk loses nothing and reports no error.
    pub(crate) const fn is_harmless(self) -> bool {
        matches!(self, Self::Slow(_))
    }
}

/// An event of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A disk gets a fault.
    Fault(usize, Fault),
    /// The life of the process ends, while the disks continue.
    End,
    /// The power of all disks is cut, which ends the life of the process.
    PowerCut,
}

/// The machine: its disks and their common events.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The disks, by number.
    pub(crate) disks: Vec<Arc<Disk>>,
    state: Mutex<MachineState>,
    ended: Notify,
}

#[derive(Debug)]
struct MachineState {
    /// Commands of this life.
    commands: u64,
    /// Events of this life, the next one last.
    events: Vec<(u64, Event)>,
    /// What ended the life.
    end: Option<Event>,
    /// Faults that happened, by number of the disk.
    faults: Vec<(usize, Fault)>,
    rng: Rng,
}

/// A disk.
#[derive(Debug)]
pub(crate) struct Disk {
    info: DeviceInfo,
    machine: Weak<Machine>,
    state: Mutex<DiskState>,
}

#[derive(Debug)]
struct DiskState {
    /// Contents as they are read.
    now: Image,
    /// Contents after a power cut, without the unflushed writes.
    medium: Image,
    unflushed: Vec<Unflushed>,
    recent: VecDeque<Range<u64>>,
    rng: Rng,
    has_power: bool,
    counters: Counters,
    unreadable: Vec<Range<u64>>,
}

/// A write that no flush has covered.
#[derive(Debug)]
struct Unflushed {
    number: u64,
    offset: u64,
    bytes: Vec<u8>,
    has_returned: bool,
}

/// Numbers of commands that a fault still hits, and the number of the last write.
#[derive(Debug, Default)]
struct Counters {
    lost: u32,
    misdirected: u32,
    torn: u32,
    lying: u32,
    failing_writes: u32,
    failing_flushes: u32,
    outage: u32,
    slow: u32,
    writes: u64,
}

/// Counts down. Returns whether there was something left.
const fn take(count: &mut u32) -> bool {
    let is_left = *count > 0;
    *count = count.saturating_sub(1);
    is_left
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// Returns a machine with disks of these sizes.
    pub(crate) fn new(sizes: &[u64], seed: u64) -> Arc<Self> {
        let mut rng = Rng::seeded(seed ^ 0xd15c);
        Arc::new_cyclic(|machine| {
            let disk = |(number, size): (usize, &u64)| {
                Arc::new(Disk::new(number, *size, rng.next_u64(), Weak::clone(machine)))
            };
            let disks = sizes.iter().enumerate().map(disk).collect();
            let state = MachineState {
                commands: 0,
                events: Vec::new(),
                end: None,
                faults: Vec::new(),
                rng: rng.clone(),
            };
            Self { disks, state: Mutex::new(state), ended: Notify::new() }
        })
    }

    /// Returns the disks as a pool takes them.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect()
    }

    /// Begins a life with these events, each before a command of that number.
    pub(crate) fn begin(&self, mut events: Vec<(u64, Event)>) {
        events.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let mut state = locked(&self.state);
        (state.commands, state.events, state.end) = (0, events, None);
        for disk in &self.disks {
            let mut state = locked(&disk.state);
            state.has_power = true;
            // The writes of an earlier process are done by now.
            state.unflushed.iter_mut().for_each(|write| write.has_returned = true);
        }
    }

    /// Waits for an event that ends the life.
    pub(crate) async fn until_ended(&self) -> Event {
        loop {
            let ended = self.ended.notified();
            if let Some(end) = locked(&self.state).end {
                return end;
            }
            ended.await;
        }
    }

    /// Number of commands in this life.
    pub(crate) fn commands(&self) -> u64 {
        locked(&self.state).commands
    }

    /// Takes the list of faults that happened.
    pub(crate) fn take_faults(&self) -> Vec<(usize, Fault)> {
        std::mem::take(&mut locked(&self.state).faults)
    }

    /// Ends all faults that only affect future commands.
    pub(crate) fn mend(&self) {
        for disk in &self.disks {
            let mut state = locked(&disk.state);
            state.counters = Counters { writes: state.counters.writes, ..Counters::default() };
        }
    }

    /// Ends all faults, and makes all sectors readable.
    pub(crate) fn repair(&self) {
        self.mend();
        for disk in &self.disks {
            locked(&disk.state).unreadable.clear();
        }
    }

    /// Cuts the power of all disks: nothing is answered from now on, and unflushed writes are lost
    /// in part.
    pub(crate) fn cut_power(&self) {
        for disk in &self.disks {
            let mut state = locked(&disk.state);
            state.has_power = false;
            state.lose_cache();
        }
    }

    /// Returns the contents of all disks.
    pub(crate) fn images(&self) -> Vec<Image> {
        self.disks.iter().map(|disk| disk.image()).collect()
    }

    /// Counts a command, and lets the events before it happen.
    fn count(&self) {
        loop {
            let event = {
                let mut state = locked(&self.state);
                let commands = state.commands;
                let Some((_, event)) = state.events.pop_if(|(at, _)| *at <= commands) else {
                    state.commands += 1;
                    return;
                };
                event
            };
            self.happen(event);
        }
    }

    fn happen(&self, event: Event) {
        match event {
            Event::Fault(number, fault) => {
                if let Some(disk) = self.disks.get(number) {
                    locked(&disk.state).suffer(fault);
                    locked(&self.state).faults.push((number, fault));
                }
            }
            Event::End | Event::PowerCut => {
                if event == Event::PowerCut {
                    self.cut_power();
                }
                locked(&self.state).end.get_or_insert(event);
                self.ended.notify_waiters();
            }
        }
    }

    /// Whether a write that a killed process had begun reaches its disk.
    fn toss(&self) -> bool {
        locked(&self.state).rng.below(2) == 0
    }
}

impl DiskState {
    fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::Latent => {
                if let Some(range) = self.victim() {
                    self.unreadable.push(range);
                }
            }
            Fault::Rot => {
                if let Some(range) = self.victim() {
                    let mut bytes = vec![0; (range.end - range.start) as usize];
                    self.now.read_at(range.start, &mut bytes);
                    for byte in &mut bytes {
                        *byte ^= (self.rng.next_u64() as u8) | 1;
                    }
                    self.now.write_at(range.start, &bytes);
                    self.medium.write_at(range.start, &bytes);
                }
            }
            Fault::LostWrites(count) => self.counters.lost += count,
            Fault::MisdirectedWrites(count) => self.counters.misdirected += count,
            Fault::TornWrites(count) => self.counters.torn += count,
            Fault::LyingFlushes(count) => self.counters.lying += count,
            Fault::FailingWrites(count) => self.counters.failing_writes += count,
            Fault::FailingFlushes(count) => self.counters.failing_flushes += count,
            Fault::Outage(count) => self.counters.outage += count,
            Fault::Reset(count) => {
                self.lose_cache();
                self.counters.outage += count;
            }
            Fault::Slow(count) => self.counters.slow += count,
        }
    }

    /// Returns a part of a recent write.
    fn victim(&mut self) -> Option<Range<u64>> {
        let index = self.rng.below(self.recent.len() as u64) as usize;
        let range = self.recent.get(index)?.clone();
        let sectors = (range.end - range.start) / TEAR_GRAIN;
        let first = self.rng.below(sectors);
        let count = 1 + self.rng.below((sectors - first).min(DAMAGE_MAX / TEAR_GRAIN));
        let start = range.start + first * TEAR_GRAIN;
        Some(start..start + count * TEAR_GRAIN)
    }

    /// Loses unflushed writes: none, all, or parts.
    fn lose_cache(&mut self) {
        let (sample, salt) = (self.rng.below(4) as usize, self.rng.next_u64());
        let unflushed = std::mem::take(&mut self.unflushed);
        for (index, write) in unflushed.iter().enumerate() {
            for (sector, bytes) in (0..).zip(write.bytes.chunks(TEAR_GRAIN as usize)) {
                if keep(sample, salt, index, sector) {
                    self.medium.write_at(write.offset + sector * TEAR_GRAIN, bytes);
                }
            }
        }
        self.now = self.medium.clone();
    }

    /// Applies a write to the contents. Returns its number.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> u64 {
        let mut bytes = bytes;
        let mut offset = offset;
        self.counters.writes += 1;
        let number = self.counters.writes;
        if take(&mut self.counters.lost) {
            return number;
        }
        if take(&mut self.counters.torn) {
            let sectors = bytes.len() as u64 / TEAR_GRAIN;
            let kept = (self.rng.below(sectors.max(1)) * TEAR_GRAIN) as usize;
            bytes = bytes.get(..kept).unwrap_or(bytes);
        }
        if offset >= DATA_START && take(&mut self.counters.misdirected) {
            let end = self.now.size() - (512 << 10) - bytes.len() as u64;
            offset = (DATA_START + self.rng.below(end - DATA_START)) & !(TEAR_GRAIN - 1);
        }
        let range = offset..offset + bytes.len() as u64;
        self.heal(&range);
        self.now.write_at(offset, bytes);
        self.unflushed.push(Unflushed {
            number,
            offset,
            bytes: bytes.to_vec(),
            has_returned: false,
        });
        if offset >= DATA_START && range.end - range.start >= TEAR_GRAIN {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(range);
        }
        number
    }

    /// Writing makes sectors readable.
    fn heal(&mut self, written: &Range<u64>) {
        let before = std::mem::take(&mut self.unreadable);
        for range in before {
            if range.end <= written.start || range.start >= written.end {
                self.unreadable.push(range);
                continue;
            }
            if range.start < written.start {
                self.unreadable.push(range.start..written.start);
            }
            if range.end > written.end {
                self.unreadable.push(written.end..range.end);
            }
        }
    }

    /// Numbers of the writes that a flush that begins now covers.
    fn returned(&self) -> Vec<u64> {
        self.unflushed.iter().filter(|write| write.has_returned).map(|write| write.number).collect()
    }

    fn make_durable(&mut self, numbers: &[u64]) {
        for write in self.unflushed.extract_if(.., |write| numbers.contains(&write.number)) {
            self.medium.write_at(write.offset, &write.bytes);
        }
    }

    /// Microseconds that a command takes, before and after it takes effect.
    fn latency(&mut self) -> (u64, u64) {
        let whole = match self.rng.below(100) {
            _ if take(&mut self.counters.slow) => 1_000_000 + self.rng.below(20_000_000),
            0..60 => 20,
            60..95 => 20 + self.rng.below(200),
            _ => self.rng.below(12_000),
        };
        let before = self.rng.below(whole + 1);
        (before, whole - before)
    }
}

/// A write that its caller waits for. When the process is killed, it is done or not.
struct InFlight<'a> {
    disk: &'a Disk,
    offset: u64,
    bytes: Vec<u8>,
    is_done: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let Some(machine) = self.disk.machine.upgrade() else { return };
        if machine.toss() {
            let mut state = locked(&self.disk.state);
            if state.has_power {
                state.write(self.offset, &self.bytes);
            }
        }
    }
}

/// An error of a modelled disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("modelled disk: {0}")]
struct DiskError(&'static str);

impl Disk {
    fn new(number: usize, size: u64, seed: u64, machine: Weak<Machine>) -> Self {
        let info = DeviceInfo {
            path: format!("d{number}"),
            size,
            logical_ashift: 9,
            physical_ashift: 9,
            is_block_device: false,
            is_rotational: false,
        };
        let state = DiskState {
            now: Image::zeroed(size),
            medium: Image::zeroed(size),
            unflushed: Vec::new(),
            recent: VecDeque::new(),
            rng: Rng::seeded(seed),
            has_power: true,
            counters: Counters::default(),
            unreadable: Vec::new(),
        };
        Self { info, machine, state: Mutex::new(state) }
    }

    /// Returns the contents.
    pub(crate) fn image(&self) -> Image {
        locked(&self.state).now.clone()
    }

    fn fail<T>(&self, offset: u64, cause: &'static str) -> Result<T> {
        Err(Error::new(Kind::Io, DiskError(cause)).on_device(&self.info.path, offset))
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.info.size => Ok(()),
            _ => self.fail(offset, "beyond the end"),
        }
    }

    /// Waits this number of microseconds; for ever without power.
    async fn wait(&self, micros: u64) {
        sleep(Duration::from_micros(micros)).await;
        if !locked(&self.state).has_power {
            std::future::pending::<()>().await;
        }
    }

    /// Begins a command. Returns the microseconds to wait after it took effect.
    async fn begin(&self, offset: u64) -> Result<u64> {
        if let Some(machine) = self.machine.upgrade() {
            machine.count();
        }
        let (before, after) = locked(&self.state).latency();
        self.wait(before).await;
        if take(&mut locked(&self.state).counters.outage) {
            return self.fail(offset, "no answer");
        }
        Ok(after)
    }
}

impl Device for Disk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            self.check(offset, buf.len())?;
            let after = self.begin(offset).await?;
            let end = offset + buf.len() as u64;
            let is_bad = {
                let state = locked(&self.state);
                state.now.read_at(offset, &mut buf);
                state.unreadable.iter().any(|range| range.start < end && range.end > offset)
            };
            self.wait(after).await;
            if is_bad { self.fail(offset, "unreadable sectors") } else { Ok(buf) }
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let bytes = parts.iter().map(|part| &part[..]).collect::<Vec<_>>().concat();
            self.check(offset, bytes.len())?;
            let mut write = InFlight { disk: self, offset, bytes, is_done: false };
            let begun = self.begin(offset).await;
            let is_refused =
                begun.is_err() || take(&mut locked(&self.state).counters.failing_writes);
            if is_refused {
                write.is_done = true;
                return self.fail(offset, "write error");
            }
            let number = locked(&self.state).write(offset, &write.bytes);
            write.is_done = true;
            self.wait(begun?).await;
            let mut state = locked(&self.state);
            if let Some(own) = state.unflushed.iter_mut().rev().find(|own| own.number == number) {
                own.has_returned = true;
            }
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let covered = locked(&self.state).returned();
            let after = self.begin(0).await?;
            if take(&mut locked(&self.state).counters.failing_flushes) {
                return self.fail(0, "flush error");
            }
            self.wait(after).await;
            let mut state = locked(&self.state);
            if !take(&mut state.counters.lying) {
                state.make_durable(&covered);
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check(offset, len as usize)?;
            let after = self.begin(offset).await?;
            {
                // Nothing relies on the order of a discard and a flush.
                let mut state = locked(&self.state);
                state.heal(&(offset..offset + len));
                state.now.clear(offset, len);
                state.medium.clear(offset, len);
            }
            self.wait(after).await;
            Ok(())
        })
    }
}
