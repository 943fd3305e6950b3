//! A disk with a model's timing, sparse contents, a volatile write cache and faults.
//!
//! ```text
//!   Device::write --> contents (visible) --> model --> timer --> caller
//!                        |  durable after a flush that began after the completion
//!                        v
//!                     cut_power: each write that is not durable is kept, lost or torn
//! ```
//!
//! Bytes move when a command is admitted; the future resolves when the model says so, on the clock
//! of `cenote-rt`. A task per disk sleeps until the model's next event while commands are in
//! flight, and completes them in the model's order. It ends when the disk is idle or its process
//! is killed, and is started again by the next command, so that a disk can be used by several
//! processes and in one simulation after another.
//!
//! Faults are switched on by methods, and happen by a seed of their own or on demand. They act on
//! the medium (unreadable sectors, changed bits), on commands (errors, lost, torn and misdirected
//! writes), on flushes, and on the whole disk (dead, stalled, slow, without power, shorter, old).
//! Every one is counted. Faults that depend only on the place, for any device, are those of
//! [`FaultyDevice`](crate::FaultyDevice).
//!
//! Guarantees
//! * C1  After a power cut, every write that completed before a successful flush began is intact,
//!   unless the flush lied.
//! * C2  What a power cut leaves depends only on the commands, their times, and the generator that
//!   is passed.
//!
//! Sources: spec 09 §1.4.

mod clock;
mod contents;
mod faults;
mod state;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result, Rng};

pub use contents::PowerCut;
pub use faults::{DiskFault, FaultRates, InjectedEvent};

use crate::device::check_range;
use crate::extents::Extents;
use crate::model::{DiskModel, ModelStats, Op};
use crate::pattern::SECTOR;
use crate::simulated::check_sectors;
use crate::{Device, DeviceInfo, Image, NoDiscard, OutOfRange, SimulatedUse, WriteFault};
use state::{Failure, Request, State, Status};

/// A command to a disk without power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device has no power")]
pub struct NoPower;

/// Commands of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpCount {
    /// Number of commands.
    pub commands: u64,
    /// Sum of their lengths.
    pub bytes: u64,
}

/// Figures of a modelled disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskStats {
    counts: [OpCount; 4],
    faults: [u64; DiskFault::COUNT],
    /// Figures of the model.
    pub model: ModelStats,
    /// Memory in use.
    pub used: SimulatedUse,
}

impl DiskStats {
    /// Commands of a kind that were admitted.
    #[must_use]
    pub fn of(&self, op: Op) -> OpCount {
        self.counts[op as usize]
    }

    /// Number of faults of a kind that happened.
    #[must_use]
    pub fn faults(&self, fault: DiskFault) -> u64 {
        self.faults[fault as usize]
    }
}

/// Contents of a disk at some time.
#[derive(Debug, Clone)]
pub struct DiskSnapshot(Extents);

/// A disk with a model's timing.
#[derive(Debug)]
pub struct ModelDisk {
    info: DeviceInfo,
    takes_discard: bool,
    /// Sectors that are written entirely or not at all.
    grain: u64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared(Mutex<State>);

/// The engine's time.
fn now_ns() -> u64 {
    u64::try_from(cenote_rt::monotonic().as_nanos()).unwrap_or(u64::MAX)
}

impl Shared {
    /// Lets time pass until now, runs `work`, and wakes the callers of completed commands.
    fn with<T>(&self, work: impl FnOnce(&mut State, u64) -> T) -> T {
        let now_ns = now_ns();
        let mut state = self.0.lock();
        state.advance(now_ns);
        let result = work(&mut state, now_ns);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        result
    }

    /// Starts a timer.
    fn start_timer(self: &Arc<Self>, generation: u64, mut sleep: Duration) {
        // Made before the task: its process may be killed before it runs.
        let timer = TimerGuard { shared: Arc::clone(self), generation };
        drop(cenote_rt::spawn_background(async move {
            let timer = timer;
            loop {
                cenote_rt::sleep(sleep).await;
                let now_ns = now_ns();
                let mut state = timer.shared.0.lock();
                let next = state.tick(generation, now_ns);
                let wakers = std::mem::take(&mut state.wakers);
                drop(state);
                wakers.into_iter().for_each(std::task::Waker::wake);
                let Some(next) = next else { break };
                sleep = next;
            }
        }));
    }
}

/// Notes that a timer is gone, also when its process is killed before it wakes.
struct TimerGuard {
    shared: Arc<Shared>,
    generation: u64,
}

impl Drop for TimerGuard {
    fn drop(&mut self) {
        let mut state = self.shared.0.lock();
        if state.disarm(self.generation) {
            // Tasks of other processes may wait for commands: they start the next timer.
            state.wake_all();
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

/// Waits for a command.
struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    id: u64,
}

impl Future for Waiting<'_> {
    type Output = Result<(), Failure>;

    fn poll(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.0.lock();
        if let Some(result) = state.poll(self.id, context.waker()) {
            return Poll::Ready(result);
        }
        let timer = state.arm(now_ns());
        drop(state);
        if let Some((generation, sleep)) = timer {
            self.shared.start_timer(generation, sleep);
        }
        Poll::Pending
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.0.lock().abandon(self.id);
    }
}

impl ModelDisk {
    /// Returns a disk of `size` zero bytes under the name `path`, with sectors of 512 bytes.
    pub fn new(path: impl Into<String>, size: u64, model: Box<dyn DiskModel>) -> Arc<Self> {
        Self::with_sector(path, size, model, SECTOR as u64)
    }

    /// Like [`new`](Self::new), with physical sectors of `sector` bytes, 512 or 4096: the smallest
    /// unit that a power cut leaves whole.
    pub fn with_sector(
        path: impl Into<String>,
        size: u64,
        model: Box<dyn DiskModel>,
        sector: u64,
    ) -> Arc<Self> {
        let mut info = DeviceInfo::of_memory(path, size);
        info.is_rotational = model.is_rotational();
        info.physical_ashift = sector.trailing_zeros() as u8;
        Arc::new(Self {
            info,
            takes_discard: model.takes_discard(),
            grain: (sector / SECTOR as u64).max(1),
            shared: Arc::new(Shared(Mutex::new(Rank::ModelDisk, State::new(size, model)))),
        })
    }

    /// Changes the state, outside of any request.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.shared.with(|state, _| change(state))
    }

    /// Figures so far.
    pub fn stats(&self) -> DiskStats {
        self.change(|state| DiskStats {
            counts: state.counts,
            faults: state.faults.counts(),
            model: state.model.stats(),
            used: SimulatedUse {
                extents: state.contents.extents().len(),
                raw_bytes: state.contents.extents().raw_bytes(),
            },
        })
    }

    /// Returns the faults that happened since the last call, and forgets them.
    pub fn take_injected(&self) -> Vec<InjectedEvent> {
        self.change(|state| state.faults.take_events())
    }

    /// Cuts the power. Every write that is not durable, completed or in flight, is kept, lost, or
    /// torn at sectors, as `rng` decides. Commands in flight fail, and so does every command until
    /// [`restore_power`](Self::restore_power).
    pub fn cut_power(&self, rng: &mut Rng) -> PowerCut {
        let grain = self.grain;
        self.change(|state| {
            let outcome = state.contents.cut(rng, grain);
            state.status = Status::Unpowered;
            state.fail_all(Failure::NoPower);
            state.faults.note(DiskFault::PowerCut, 0, 0);
            outcome
        })
    }

    /// Ends a power cut.
    pub fn restore_power(&self) {
        self.change(|state| state.status = Status::Working);
    }

    /// Cuts the power for a moment: what [`cut_power`](Self::cut_power) does to writes and commands
    /// in flight, and then the disk works again.
    pub fn reset(&self, rng: &mut Rng) -> PowerCut {
        let outcome = self.cut_power(rng);
        self.restore_power();
        outcome
    }

    /// Makes the next `count` commands fail.
    pub fn fail_next_commands(&self, count: u64) {
        self.change(|state| state.faults.failing_commands = count);
    }

    /// Makes the next `count` flushes fail.
    pub fn fail_next_flushes(&self, count: u64) {
        self.change(|state| state.faults.failing_flushes = count);
    }

    /// Returns the ranges of bytes that were written last, at most 256, in their order.
    pub fn recent_writes(&self) -> Vec<Range<u64>> {
        self.change(|state| state.faults.recent())
    }

    /// Makes every command fail from now on, also those in flight, or ends that.
    pub fn set_dead(&self, is_dead: bool) {
        self.change(|state| match (is_dead, state.status) {
            (true, Status::Working) => {
                state.status = Status::Dead;
                state.fail_all(Failure::Injected { offset: 0, len: 0 });
            }
            (false, Status::Dead) => state.status = Status::Working,
            _ => {}
        });
    }

    /// Makes flushes report success and do nothing, or makes them work again.
    pub fn lie_about_flush(&self, lies: bool) {
        self.change(|state| state.faults.flushes_lie = lies);
    }

    /// Makes the next `count` flushes report success and do nothing.
    pub fn lie_about_next_flushes(&self, count: u64) {
        self.change(|state| state.faults.lying_flushes = count);
    }

    /// Stops answering: for `duration`, or until [`resume`](Self::resume). Commands are still
    /// taken.
    pub fn stall(&self, duration: Option<Duration>) {
        let duration_ns =
            duration.map(|length| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
        self.change(|state| {
            state.clock.stop(duration_ns);
            state.faults.note(DiskFault::Stall, 0, 0);
            state.wake_all();
        });
    }

    /// Ends a stall.
    pub fn resume(&self) {
        self.change(|state| {
            state.clock.resume();
            state.wake_all();
        });
    }

    /// Makes the disk `factor` times as slow as its model; 1 is the model's speed.
    pub fn slow_down(&self, factor: u64) {
        self.change(|state| {
            state.clock.slow(factor);
            state.wake_all();
        });
    }

    /// Sets frequencies of faults, which happen by `seed` from now on.
    pub fn set_fault_rates(&self, seed: u64, rates: FaultRates) {
        self.change(|state| state.faults.set_rates(seed, rates));
    }

    /// Gives the next write a fault; with several calls, the writes after it.
    pub fn fail_next_write(&self, fault: WriteFault) {
        self.change(|state| state.faults.add_write_fault(fault));
    }

    /// Makes the sectors of a range of bytes unreadable until they are written again.
    pub fn damage(&self, range: Range<u64>) {
        let end = range.end.min(self.info.size);
        self.change(|state| state.damage(range.start, end.saturating_sub(range.start)));
    }

    /// Ends all faults that affect commands to come, a stall, and slowness. Damaged sectors stay.
    pub fn end_faults(&self) {
        self.change(|state| {
            state.faults.end();
            state.clock.slow(1);
            state.clock.resume();
            state.wake_all();
        });
    }

    /// Makes unreadable sectors readable again: they contain zeros. Returns whether there were any.
    pub fn replace_damaged(&self) -> bool {
        self.change(|state| state.contents.edit().replace_damaged())
    }

    /// Changes a bit on the medium.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        self.change(|state| state.flip(offset, bit));
    }

    /// Changes `count` bits of stored data in a range of bytes, and returns their offsets. There
    /// are none if nothing is stored there.
    pub fn flip_bits(&self, range: Range<u64>, count: u64, rng: &mut Rng) -> Vec<u64> {
        let sector = SECTOR as u64;
        let (start, end) = (range.start.div_ceil(sector), range.end / sector);
        self.change(|state| {
            let mut flipped = Vec::new();
            for _ in 0..count {
                let extents = state.contents.extents();
                let index = rng.below(extents.stored(start, end));
                let Some(found) = extents.nth_stored(start, end, index) else { break };
                let offset = found * sector + rng.below(sector);
                state.flip(offset, rng.below(8) as u8);
                flipped.push(offset);
            }
            flipped
        })
    }

    /// Returns the present contents.
    pub fn snapshot(&self) -> DiskSnapshot {
        self.change(|state| DiskSnapshot(state.contents.extents().clone()))
    }

    /// Returns the present contents as an image. Unreadable sectors are zeros in it.
    pub fn image(&self) -> Image {
        self.change(|state| {
            let mut image = Image::zeroed(state.size);
            let extents = state.contents.extents();
            let mut bytes = Vec::new();
            for (start, end) in extents.pieces(0, state.size / SECTOR as u64) {
                bytes.resize((end - start) as usize * SECTOR, 0);
                if extents.read(start, &mut bytes).is_ok() {
                    image.write_at(start * SECTOR as u64, &bytes);
                }
            }
            image
        })
    }

    /// Replaces the contents, as if an old copy of the disk came back; they are durable.
    pub fn restore(&self, snapshot: &DiskSnapshot) {
        self.change(|state| state.contents.restore(snapshot.0.clone()));
    }

    /// Changes the size of the disk while it is in use: I/O beyond `size` bytes fails. This handle
    /// reaches no further than when it was made, see [`Device::grown`]; the model is one for the
    /// largest size.
    pub fn set_size(&self, size: u64) {
        self.change(|state| state.size = size);
    }

    /// Returns a handle of the disk with its present size.
    pub fn reopened(&self) -> Self {
        let info = DeviceInfo { size: self.change(|state| state.size), ..self.info.clone() };
        Self { info, shared: Arc::clone(&self.shared), ..*self }
    }

    /// Begins a request, and waits for it.
    async fn run(&self, offset: u64, len: u64, request: Request<'_>) -> Result<()> {
        let begun = self.shared.with(|state, now_ns| {
            let size = state.size;
            if offset.saturating_add(len) > size {
                let cause = OutOfRange { offset, len: len as usize, size };
                return Err(Error::new(Kind::Io, cause));
            }
            state.begin(request, now_ns).map_err(Error::from)
        });
        let path = &self.info.path;
        let id = begun.map_err(|error| error.on_device(path, offset))?;
        let waiting = Waiting { shared: &self.shared, id };
        waiting.await.map_err(|failure| Error::from(failure).on_device(path, offset))
    }
}

impl Device for ModelDisk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async {
            self.change(|state| match state.status {
                Status::Working => Ok(state.size),
                Status::Dead => Err(Failure::Injected { offset: 0, len: 0 }),
                Status::Unpowered => Err(Failure::NoPower),
            })
            .map_err(|failure| Error::from(failure).on_device(&self.info.path, 0))
        })
    }

    fn grown(&self) -> BoxFuture<'_, Result<Option<Arc<dyn Device>>>> {
        Box::pin(async {
            let is_longer = self.current_size().await? > self.info.size;
            Ok(is_longer.then(|| Arc::new(self.reopened()) as _))
        })
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            check_range(&self.info, offset, buf.len())?;
            self.run(offset, buf.len() as u64, Request::Read(offset, &mut buf)).await?;
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let len = parts.iter().map(|part| part.len() as u64).sum();
            check_sectors(&self.info, offset, len)?;
            self.run(offset, len, Request::Write(offset, &parts)).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.run(0, 0, Request::Flush))
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if !self.takes_discard {
                let error = Error::new(Kind::Unsupported, NoDiscard);
                return Err(error.on_device(&self.info.path, offset));
            }
            check_sectors(&self.info, offset, len)?;
            self.run(offset, len, Request::Discard(offset, len)).await
        })
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::poll_fn(move |context| {
            let mut timer = None;
            let is_idle = self.shared.with(|state, now_ns| {
                if !state.is_idle() {
                    state.idle.push(context.waker().clone());
                    timer = state.arm(now_ns);
                }
                state.is_idle()
            });
            if let Some((generation, sleep)) = timer {
                self.shared.start_timer(generation, sleep);
            }
            if is_idle { Poll::Ready(()) } else { Poll::Pending }
        }))
    }
}
