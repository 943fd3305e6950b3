//! The machine of a history: modelled disks, and the events of each life.
//!
//! ```text
//!   pool ──command──> Counted ──delay──> CommandHash ──> ModelDisk
//!                        | n-th command of the life: events happen first
//!                        `── Machine: faults of disks, clock jumps, the end of the life
//! ```
//!
//! Events are bound to numbers of commands: a fault, or the end of a life, happens just before the
//! n-th command, so that it hits any step of a commit. Time, write caches, power cuts and faults
//! are those of [`ModelDisk`]. Each command is on its way to the disk for some time, so that
//! commands in flight overtake each other, and a write reaches some disks earlier than others.
//!
//! A killed process leaves its commands to the disks, which carry them out, except those that were
//! on their way. A power cut ends the process, too: what a command returns without power reaches
//! nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cenote_device::model::{Params, table};
use cenote_device::{
    CommandHash, Device, DeviceInfo, DiskSnapshot, FaultRates, Image, ModelDisk, OpenMode,
    PowerCut, TEAR_GRAIN, WriteFault,
};
use cenote_engine::DeviceSource;
use cenote_rt::{BoxFuture, Buf, BufMut, Notify, Process, Result, Rng};
use cenote_vdev::DATA_START;
use serde::{Deserialize, Serialize};

use crate::plan::Layout;

/// Bytes that a fault makes unreadable at most.
const DAMAGE_MAX: u64 = 64 << 10;
/// Bits that a fault changes at most.
const BITS_MAX: u64 = 64;
/// Seconds that a short stall takes, for each unit of its plan.
const STALL_UNIT: u64 = 3;
/// Bytes of the labels at the end of a disk.
const LABELS_AT_END: u64 = 512 << 10;
/// Bytes at the end of a disk that misdirected writes spare: labels, and the longest write.
const TAIL: u64 = LABELS_AT_END + (4 << 20);
/// Bytes by which a disk becomes longer at a time: at least a metaslab.
const MORE: u64 = 32 << 20;
/// Bytes by which it becomes longer at most.
const MORE_MAX: u64 = 2 * MORE;

/// A fault of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// Sectors that were written recently cannot be read until they are written again.
    Latent,
    /// Bits of sectors that were written recently change.
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
    /// The disk does not answer for some seconds: a few for each unit.
    Slow(u32),
    /// The disk does not answer for this number of seconds, and then goes on.
    Hang(u32),
    /// All commands take this many times as long as usual, until the life ends.
    Sluggish(u32),
    /// The disk fails all commands until the life ends, and is back in the next one with what it
    /// had: its contents at the failure, or those at the begin of the life.
    Gone {
        /// The contents are those at the begin of the life.
        is_old: bool,
    },
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
            Self::Hang(_) => "hangs",
            Self::Sluggish(_) => "slow disks",
            Self::Gone { is_old: false } => "disks that fail and come back stale",
            Self::Gone { is_old: true } => "disks that fail and come back with old contents",
        }
    }

    /// Whether the disk loses nothing and reports no error.
    pub(crate) const fn is_harmless(self) -> bool {
        matches!(self, Self::Slow(_) | Self::Hang(_) | Self::Sluggish(_))
    }

    /// Whether the disk reports everything that it loses.
    pub(crate) const fn is_reported(self) -> bool {
        self.is_harmless()
            || matches!(self, Self::Latent | Self::FailingWrites(_) | Self::FailingFlushes(_))
            || matches!(self, Self::Outage(_))
    }
}

/// An event of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A disk gets a fault.
    Fault(usize, Fault),
    /// The time of day jumps by this number of seconds.
    ClockJump(i64),
    /// The life of the process ends, while the disks continue.
    End,
    /// The power of all disks is cut, which ends the life of the process.
    PowerCut,
}

/// Numbers of what happened to the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Happened {
    /// Faults of disks, and clock jumps.
    pub(crate) faults: Vec<&'static str>,
    /// What power cuts and resets did to writes that were not durable.
    pub(crate) cut: PowerCut,
}

/// The machine: its disks and their common events.
#[derive(Debug)]
pub(crate) struct Machine {
    disks: Vec<Arc<ModelDisk>>,
    /// Handles of the disks, each with the size at the begin of the life or when it grew.
    devices: Mutex<Vec<Arc<dyn Device>>>,
    opened: Vec<Opened>,
    hash: Arc<CommandHash>,
    state: Mutex<MachineState>,
    ended: Notify,
}

#[derive(Debug)]
struct MachineState {
    /// Commands of this life.
    commands: u64,
    /// Events of this life, the next one last.
    events: Vec<(u64, Event)>,
    /// Writes of this life.
    writes: u64,
    /// Number of writes to labels before an event that depends on it.
    label_event: Option<(u64, Event)>,
    /// What ended the life.
    end: Option<Event>,
    happened: Happened,
    rng: Rng,
    has_power: bool,
    /// Disks that failed, with their contents when they come back, if these are old.
    gone: BTreeMap<usize, Option<DiskSnapshot>>,
    /// Disks of which damaged sectors were replaced by empty ones.
    replaced: BTreeSet<usize>,
    /// Contents at the begin of this life, of disks that may come back with them.
    old: BTreeMap<usize, DiskSnapshot>,
    /// Seconds that the time of day is ahead.
    clock_offset: i64,
    /// The process of this life.
    process: Option<Process>,
}

/// A disk whose commands the machine counts.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn Device>,
    machine: Weak<Machine>,
    opened: Opened,
}

/// All devices of a disk share it: its count tells how many there are.
type Opened = Arc<()>;

/// Returns the model of this name for a disk of this size.
fn model(name: &str, size: u64, seed: u64) -> Box<dyn cenote_device::model::DiskModel> {
    let mut params = table::find(name).unwrap_or(Params::Flash(table::NVME));
    if let Params::Rotating(rotating) = &mut params {
        // The disk seeks like one that is full.
        rotating.stretch = rotating.capacity / size;
    }
    params.build(size, seed)
}

impl Machine {
    /// Returns a machine with the disks of a layout.
    pub(crate) fn new(layout: &Layout, seed: u64) -> Arc<Self> {
        let mut rng = Rng::seeded(seed ^ 0xd15c);
        let size = layout.mib << 20;
        Arc::new_cyclic(|machine| {
            let hash = CommandHash::new();
            let mut hot_rng = Rng::seeded(seed ^ 0x5ba2e);
            let disks: Vec<_> = (0..layout.all_disks())
                .map(|number| {
                    // Of another generator, so that the other disks do not depend on hot spares.
                    let is_hot = layout.hot_spares().contains(&number);
                    let seed = if is_hot { hot_rng.next_u64() } else { rng.next_u64() };
                    let model = model(layout.model(number), size + MORE_MAX, seed);
                    ModelDisk::new(format!("d{number}"), size, model)
                })
                .collect();
            let opened: Vec<_> = disks.iter().map(|_| Opened::default()).collect();
            let devices = disks.iter().zip(&opened).map(|(disk, opened)| {
                let inner = hash.wrap(Arc::clone(disk) as Arc<dyn Device>);
                Counted::over(inner, Weak::clone(machine), opened)
            });
            let state = MachineState {
                commands: 0,
                events: Vec::new(),
                writes: 0,
                label_event: None,
                end: None,
                happened: Happened::default(),
                rng: rng.clone(),
                has_power: true,
                gone: BTreeMap::new(),
                replaced: BTreeSet::new(),
                old: BTreeMap::new(),
                clock_offset: 0,
                process: None,
            };
            let devices = Mutex::new(devices.collect());
            Self { disks, devices, opened, hash, state: Mutex::new(state), ended: Notify::new() }
        })
    }

    fn state(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the disks as a pool takes them.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.handles().clone()
    }

    fn handles(&self) -> MutexGuard<'_, Vec<Arc<dyn Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody has a handle of a disk. A device of a pool is open exclusively: while a
    /// disk that left the pool gets its last labels, nobody else can open it.
    pub(crate) fn is_open(&self, number: usize) -> bool {
        let is_shared = self.handles().get(number).is_some_and(|it| Arc::strong_count(it) > 1);
        // One is counted for the machine, and one for its handle.
        is_shared || self.opened.get(number).is_some_and(|it| Arc::strong_count(it) > 2)
    }

    /// Makes a disk longer, unless it is as long as any disk gets. Who has it open notices that
    /// when it asks.
    pub(crate) fn grow(self: &Arc<Self>, number: usize) -> bool {
        let Some(disk) = self.disks.get(number) else { return false };
        let size = disk.reopened().info().size + MORE;
        if size > disk.info().size + MORE_MAX {
            return false;
        }
        disk.set_size(size);
        let Some(new) = self.reopened(number) else { return false };
        self.handles()[number] = new;
        true
    }

    /// Returns another handle of a disk, with the size that it has now.
    fn reopened(self: &Arc<Self>, number: usize) -> Option<Arc<dyn Device>> {
        let inner = self.hash.wrap(Arc::new(self.disks.get(number)?.reopened()));
        Some(Counted::over(inner, Arc::downgrade(self), &self.opened[number]))
    }

    /// Returns the size of a disk.
    pub(crate) fn size(&self, number: usize) -> u64 {
        self.disks.get(number).map_or(0, |disk| disk.reopened().info().size)
    }

    /// Begins a life with these events, each before a command of that number. Every disk has power
    /// and works, also those that failed in the life before.
    pub(crate) fn begin(&self, mut events: Vec<(u64, Event)>) {
        events.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let mut state = self.state();
        for (number, disk) in self.disks.iter().enumerate() {
            disk.set_fault_rates(state.rng.next_u64(), FaultRates::default());
            if !state.has_power {
                disk.restore_power();
            }
            disk.slow_down(1);
            state.bring_back(number, disk);
        }
        state.old.clear();
        for (_, event) in &events {
            if let Event::Fault(number, Fault::Gone { is_old: true }) = event
                && let Some(disk) = self.disks.get(*number)
            {
                state.old.insert(*number, disk.snapshot());
            }
        }
        (state.commands, state.events, state.end, state.has_power) = (0, events, None, true);
        (state.writes, state.label_event) = (0, None);
    }

    /// Has an event happen before the write number `count` to the labels of any disks, which hits
    /// the steps of a commit more often than a number of commands.
    pub(crate) fn before_label_write(&self, count: u64, event: Event) {
        self.state().label_event = Some((count, event));
    }

    /// Makes a process the one of this life, with the machine's time of day.
    pub(crate) fn run(&self, process: &Process) {
        let mut state = self.state();
        process.set_clock_offset(state.clock_offset);
        state.process = Some(process.clone());
    }

    /// Sets the time of day ahead by a number of seconds, or back.
    pub(crate) fn jump(&self, seconds: i64) {
        let mut state = self.state();
        state.clock_offset += seconds;
        if let Some(process) = &state.process {
            process.set_clock_offset(state.clock_offset);
        }
    }

    /// Waits for an event that ends the life.
    pub(crate) async fn until_ended(&self) -> Event {
        loop {
            let ended = self.ended.notified();
            if let Some(end) = self.state().end {
                return end;
            }
            ended.await;
        }
    }

    /// Number of commands in this life.
    pub(crate) fn commands(&self) -> u64 {
        self.state().commands
    }

    /// Returns the hash of all commands, their bytes and times.
    pub(crate) fn hash(&self) -> u128 {
        self.hash.value()
    }

    /// Number of writes in this life.
    pub(crate) fn writes(&self) -> u64 {
        self.state().writes
    }

    /// Takes the list of what happened.
    pub(crate) fn take_happened(&self) -> Happened {
        std::mem::take(&mut self.state().happened)
    }

    /// Ends all faults that only affect commands to come.
    pub(crate) fn mend(&self) {
        for disk in &self.disks {
            disk.end_faults();
        }
    }

    /// Ends all faults, and makes all sectors readable.
    pub(crate) fn repair(&self) {
        self.mend();
        for (number, disk) in self.disks.iter().enumerate() {
            if disk.replace_damaged() {
                self.state().replaced.insert(number);
            }
        }
    }

    /// Whether a disk got sectors that are readable, and do not contain what was written.
    pub(crate) fn has_replaced(&self, disk: usize) -> bool {
        self.state().replaced.contains(&disk)
    }

    /// Ends all faults, also those that last until the end of the life.
    pub(crate) fn bring_back(&self) {
        self.repair();
        let mut state = self.state();
        for (number, disk) in self.disks.iter().enumerate() {
            state.bring_back(number, disk);
        }
    }

    /// Cuts the power of all disks: nothing is answered from now on, and writes that are not
    /// durable are lost in part.
    pub(crate) fn cut_power(&self) {
        let mut state = self.state();
        if !state.has_power {
            return;
        }
        state.has_power = false;
        for disk in &self.disks {
            let cut = disk.cut_power(&mut state.rng);
            state.happened.add(cut);
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
                let mut state = self.state();
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

    /// Counts a write; lets the event before it happen, if it goes to a label.
    fn count_write(&self, is_label: bool) {
        let event = {
            let mut state = self.state();
            state.writes += 1;
            let Some((left, event)) = state.label_event.as_mut().filter(|_| is_label) else {
                return;
            };
            *left = left.saturating_sub(1);
            (*left == 0).then_some(*event)
        };
        if let Some(event) = event {
            self.state().label_event = None;
            self.happen(event);
        }
    }

    fn happen(&self, event: Event) {
        match event {
            Event::Fault(number, fault) => {
                if let Some(disk) = self.disks.get(number) {
                    let mut state = self.state();
                    state.suffer(number, disk, fault);
                    state.happened.faults.push(fault.name());
                }
            }
            Event::ClockJump(seconds) => {
                self.jump(seconds);
                let name = if seconds < 0 { "clock jumps back" } else { "clock jumps ahead" };
                self.state().happened.faults.push(name);
            }
            Event::End | Event::PowerCut => {
                if event == Event::PowerCut {
                    self.cut_power();
                }
                self.state().end.get_or_insert(event);
                self.ended.notify_waiters();
            }
        }
    }
}

/// Opens disks of a machine by their paths.
#[derive(Debug)]
pub(crate) struct Disks(pub(crate) Weak<Machine>);

impl DeviceSource for Disks {
    fn open<'a>(&'a self, path: &'a str, mode: OpenMode) -> BoxFuture<'a, Option<Arc<dyn Device>>> {
        let number = path.strip_prefix('d').and_then(|number| number.parse().ok());
        let open = |number: usize| {
            let machine = self.0.upgrade()?;
            match mode {
                OpenMode::ReadOnly => machine.reopened(number),
                OpenMode::Exclusive if machine.is_open(number) => None,
                OpenMode::Exclusive => machine.handles().get(number).map(Arc::clone),
            }
        };
        let device = number.and_then(open);
        Box::pin(async { device })
    }
}

impl Happened {
    fn add(&mut self, cut: PowerCut) {
        self.cut.kept += cut.kept;
        self.cut.lost += cut.lost;
        self.cut.torn += cut.torn;
    }
}

impl MachineState {
    /// Has a disk work again, if it failed.
    fn bring_back(&mut self, number: usize, disk: &ModelDisk) {
        let Some(contents) = self.gone.remove(&number) else { return };
        disk.set_dead(false);
        if let Some(contents) = contents {
            disk.restore(&contents);
        }
    }

    fn suffer(&mut self, number: usize, disk: &ModelDisk, fault: Fault) {
        let next_writes = |count: u32, fault: WriteFault| {
            (0..count).for_each(|_| disk.fail_next_write(fault));
        };
        match fault {
            Fault::Latent => {
                if let Some(range) = self.recent(disk) {
                    disk.damage(range);
                }
            }
            Fault::Rot => {
                if let Some(range) = self.recent(disk) {
                    let bits = 1 + self.rng.below(BITS_MAX);
                    disk.flip_bits(range, bits, &mut self.rng);
                }
            }
            Fault::LostWrites(count) => next_writes(count, WriteFault::Lost),
            Fault::MisdirectedWrites(count) => {
                for _ in 0..count {
                    let sectors = (disk.info().size - TAIL - DATA_START) / TEAR_GRAIN;
                    let target = DATA_START + self.rng.below(sectors) * TEAR_GRAIN;
                    disk.fail_next_write(WriteFault::Misdirected(Some(target)));
                }
            }
            Fault::TornWrites(count) => next_writes(count, WriteFault::Torn),
            Fault::LyingFlushes(count) => disk.lie_about_next_flushes(count.into()),
            Fault::FailingWrites(count) => next_writes(count, WriteFault::Eio),
            Fault::FailingFlushes(count) => disk.fail_next_flushes(count.into()),
            Fault::Outage(count) => disk.fail_next_commands(count.into()),
            Fault::Reset(count) => {
                if self.has_power && !self.gone.contains_key(&number) {
                    let cut = disk.reset(&mut self.rng);
                    self.happened.add(cut);
                    disk.fail_next_commands(count.into());
                }
            }
            Fault::Slow(count) => {
                let most = u64::from(count) * STALL_UNIT * 1000;
                let millis = 1 + self.rng.below(most);
                disk.stall(Some(Duration::from_millis(millis)));
            }
            Fault::Hang(seconds) => disk.stall(Some(Duration::from_secs(seconds.into()))),
            Fault::Sluggish(factor) => disk.slow_down(factor.into()),
            Fault::Gone { is_old } => {
                disk.set_dead(true);
                let old = if is_old { self.old.get(&number).cloned() } else { None };
                self.gone.insert(number, old);
            }
        }
    }

    /// Returns the time until a command reaches its disk.
    fn delay(&mut self) -> Duration {
        let most = match self.rng.below(100) {
            0..60 => 20,
            60..95 => 200,
            _ => 12_000,
        };
        Duration::from_micros(self.rng.below(most))
    }

    /// Returns a part of a recent write to the data area.
    fn recent(&mut self, disk: &ModelDisk) -> Option<Range<u64>> {
        let mut recent = disk.recent_writes();
        recent.retain(|range| range.start >= DATA_START && range.end > range.start);
        let index = self.rng.below((recent.len() as u64).max(1)) as usize;
        let range = recent.get(index)?.clone();
        let sectors = (range.end - range.start) / TEAR_GRAIN;
        let first = self.rng.below(sectors);
        let count = 1 + self.rng.below((sectors - first).min(DAMAGE_MAX / TEAR_GRAIN));
        let start = range.start + first * TEAR_GRAIN;
        Some(start..start + count * TEAR_GRAIN)
    }
}

impl Counted {
    /// Returns a device whose commands the machine counts.
    fn over(inner: Arc<dyn Device>, machine: Weak<Machine>, opened: &Opened) -> Arc<dyn Device> {
        Arc::new(Self { inner, machine, opened: Arc::clone(opened) })
    }

    /// Counts a command, sends it, and waits for it. It has no end without power.
    async fn command<T>(&self, command: impl Future<Output = T>) -> T {
        let Some(machine) = self.machine.upgrade() else { return command.await };
        machine.count();
        let delay = machine.state().delay();
        cenote_rt::sleep(delay).await;
        if machine.state().has_power {
            let answer = command.await;
            if machine.state().has_power {
                return answer;
            }
        }
        std::future::pending().await
    }
}

impl Device for Counted {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        self.inner.current_size()
    }

    fn grown(&self) -> BoxFuture<'_, Result<Option<Arc<dyn Device>>>> {
        Box::pin(async {
            let grown = self.inner.grown().await?;
            let over = |inner| Self::over(inner, Weak::clone(&self.machine), &self.opened);
            Ok(grown.map(over))
        })
    }

    fn is_at_its_path(&self) -> BoxFuture<'_, bool> {
        self.inner.is_at_its_path()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(self.command(self.inner.read(offset, buf)))
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        let is_label = offset < DATA_START || offset >= self.info().size - LABELS_AT_END;
        Box::pin(async move {
            if let Some(machine) = self.machine.upgrade() {
                machine.count_write(is_label);
            }
            self.command(self.inner.write(offset, parts)).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.command(self.inner.flush()))
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.command(self.inner.discard(offset, len)))
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        self.inner.settle()
    }
}
