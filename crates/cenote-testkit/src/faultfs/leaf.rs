//! One leaf of the fault layer: a sparse file, its faults, and its volatile write cache.
//!
//! Every write goes to the file at once, so that reads need no second source. A journal of the
//! writes since the last flush has the bytes that each replaced. For a power cut [`Leaf::cut`]
//! undoes all of them, newest first, and applies those again that the seed chooses, oldest first. A
//! flush empties the journal.
//!
//! A range that is discarded (`PUNCH_HOLE`) is durable at once. A device may do that, and so the
//! layer detects an engine that discards data that the last durable state still needs.
//!
//! Concurrency: one mutex per leaf, held across the I/O on the file. Requests of one leaf therefore
//! have an order, which the journal follows. Delays are slept before the mutex is taken.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::order::{Counts, Fault, FaultError, Op, PowerCut};
use crate::rng::Rng;
use crate::unpack;

/// A write is torn between sectors of this size.
const SECTOR: usize = 512;

/// A leaf and the state of its faults.
#[derive(Debug)]
pub(super) struct Leaf {
    /// The name in the mounted folder.
    pub(super) name: String,
    path: PathBuf,
    file: File,
    state: Mutex<State>,
    held: Mutex<Held>,
}

/// A request that is answered later.
pub(super) type Later = Box<dyn FnOnce() + Send>;

/// The requests of a leaf that hangs.
#[derive(Default)]
struct Held {
    is_hanging: bool,
    requests: Vec<Later>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} requests, hangs: {}", self.requests.len(), self.is_hanging)
    }
}

/// The faults and the journal of a leaf.
#[derive(Debug, Default)]
struct State {
    faults: Vec<Armed>,
    presence: Presence,
    /// Bytes from here on do not exist.
    end: Option<u64>,
    is_host_full: bool,
    lies_at_flush: bool,
    delay: Duration,
    unflushed: Vec<Unflushed>,
    counts: Counts,
}

/// Whether a leaf answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Presence {
    /// It answers.
    #[default]
    Present,
    /// It has a name, and every request fails.
    Gone,
    /// It has no name.
    Absent,
}

/// A fault that is in force.
#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// Requests that matched so far.
    matched: u64,
    ends: Option<Instant>,
}

/// A write in the volatile cache.
#[derive(Debug)]
struct Unflushed {
    offset: u64,
    data: Vec<u8>,
    /// The bytes that it replaced.
    before: Vec<u8>,
}

impl Leaf {
    /// Opens the file of a leaf, which exists.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = File::options().read(true).write(true).open(path)?;
        let (state, held) = Default::default();
        Ok(Self { name, path: path.to_path_buf(), file, state, held })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the mutex was held left at worst a superfluous journal entry.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as a request of this leaf is delayed.
    #[expect(clippy::disallowed_methods, reason = "the delay is real time, on a thread of ours")]
    pub(super) fn wait(&self) {
        let delay = self.state().delay;
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }

    /// Holds back requests from now on.
    pub(super) fn hang(&self) {
        self.held().is_hanging = true;
    }

    /// Carries out a request: at once, or when the leaf no longer hangs.
    pub(super) fn admit_or_hold(&self, request: Later) {
        let mut held = self.held();
        if held.is_hanging {
            held.requests.push(request);
            return;
        }
        drop(held);
        request();
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the leaf answers.
    pub(super) fn presence(&self) -> Presence {
        self.state().presence
    }

    /// Returns the size in bytes that the leaf shows.
    pub(super) fn size(&self) -> Result<u64, Errno> {
        let size = rustix::fs::fstat(&self.file)?.st_size as u64;
        Ok(self.state().end.map_or(size, |end| end.min(size)))
    }

    /// Reads up to `len` bytes; fewer at the end of the leaf.
    pub(super) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let size = self.size()?;
        let mut state = self.state();
        state.counts.reads += 1;
        state.admit(Op::Read, offset, len as u64)?;
        let len = len.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut bytes = vec![0; len];
        read_at(&self.file, &mut bytes, offset)?;
        Ok(bytes)
    }

    /// Writes bytes into the volatile cache.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let size = self.size()?;
        let mut state = self.state();
        state.counts.writes += 1;
        let len = data.len() as u64;
        if let Err(error) = state.admit(Op::Write, offset, len) {
            let torn = state.torn_sectors(offset, len);
            self.store(&mut state, offset, &data[..torn * SECTOR])?;
            return Err(error);
        }
        if offset + len > size {
            return Err(state.fail(Errno::IO));
        }
        if state.is_host_full && self.has_hole(offset, len)? {
            return Err(state.fail(Errno::NOSPC));
        }
        self.store(&mut state, offset, data)
    }

    /// Puts bytes into the file, and what they replace into the journal.
    fn store(&self, state: &mut State, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if data.is_empty() {
            return Ok(());
        }
        let mut before = vec![0; data.len()];
        read_at(&self.file, &mut before, offset)?;
        self.file.write_all_at(data, offset).map_err(|error| errno(&error))?;
        state.unflushed.push(Unflushed { offset, data: data.to_vec(), before });
        Ok(())
    }

    /// Returns whether part of a range has no space on the host yet.
    fn has_hole(&self, offset: u64, len: u64) -> Result<bool, Errno> {
        Ok(rustix::fs::seek(&self.file, SeekFrom::Hole(offset))? < offset + len)
    }

    /// Makes the writes so far durable, unless this flush fails or lies.
    pub(super) fn flush(&self) -> Result<(), Errno> {
        let mut state = self.state();
        state.counts.flushes += 1;
        state.admit(Op::Flush, 0, u64::MAX)?;
        if !state.lies_at_flush {
            state.unflushed.clear();
        }
        Ok(())
    }

    /// Gives back the space of a range.
    pub(super) fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let mut state = self.state();
        state.admit(Op::Write, offset, len)?;
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, mode, offset, len)
    }

    /// Adds a fault.
    #[expect(clippy::disallowed_methods, reason = "faults end in real time")]
    pub(super) fn inject(&self, fault: Fault) {
        let ends = fault.lasts.map(|time| Instant::now() + time);
        self.state().faults.push(Armed { fault, matched: 0, ends });
    }

    /// Changes whether the leaf answers.
    pub(super) fn set_presence(&self, presence: Presence) {
        self.state().presence = presence;
    }

    /// Makes writes fail that need space of the host.
    pub(super) fn fill_host(&self) {
        self.state().is_host_full = true;
    }

    /// Ends the leaf at `end`.
    pub(super) fn resize(&self, end: u64) {
        self.state().end = Some(end);
    }

    /// Delays every request.
    pub(super) fn delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Makes flushes lie.
    pub(super) fn lie_at_flush(&self) {
        self.state().lies_at_flush = true;
    }

    /// Removes every fault. The journal of unflushed writes stays.
    pub(super) fn heal(&self) {
        let mut state = self.state();
        let (unflushed, counts) = (std::mem::take(&mut state.unflushed), state.counts);
        *state = State { unflushed, counts, ..State::default() };
        drop(state);
        let held = std::mem::take(&mut *self.held());
        held.requests.into_iter().for_each(|request| request());
    }

    /// The number of requests so far.
    pub(super) fn counts(&self) -> Counts {
        let state = self.state();
        Counts { unflushed: state.unflushed.len() as u64, ..state.counts }
    }

    /// Copies the current bytes to a second file.
    pub(super) fn remember(&self) {
        let _state = self.state();
        unpack::copy_sparse(&self.path, &self.remembered());
    }

    /// Puts the remembered bytes into the leaf's file.
    pub(super) fn recall(&self) {
        let mut state = self.state();
        unpack::copy_sparse(&self.remembered(), &self.path);
        state.unflushed.clear();
    }

    fn remembered(&self) -> PathBuf {
        self.path.with_extension("remembered")
    }

    /// Undoes the unflushed writes that the seed does not keep.
    pub(super) fn cut(&self, cut: PowerCut, leaf: u64) -> Result<(), Errno> {
        let mut state = self.state();
        let mut unflushed = std::mem::take(&mut state.unflushed);
        let put = |offset, bytes: &[u8]| {
            self.file.write_all_at(bytes, offset).map_err(|error| errno(&error))
        };
        for write in unflushed.iter().rev() {
            put(write.offset, &write.before)?;
        }
        let mut rng = Rng::seeded(cut.seed.wrapping_add(leaf << 32));
        for write in unflushed.drain(..) {
            let (keeps, tears) = (rng.below(100), rng.below(100));
            let sectors = rng.below(write.data.len().div_ceil(SECTOR).max(1) as u64) as usize;
            if keeps < cut.kept_percent {
                let is_torn = tears < cut.torn_percent;
                let len = if is_torn { sectors * SECTOR } else { write.data.len() };
                put(write.offset, &write.data[..len])?;
            }
        }
        Ok(())
    }
}

impl State {
    /// Fails a request that a fault applies to.
    #[expect(clippy::disallowed_methods, reason = "faults end in real time")]
    fn admit(&mut self, op: Op, offset: u64, len: u64) -> Result<(), Errno> {
        if self.presence != Presence::Present {
            return Err(self.fail(Errno::NXIO));
        }
        if self.faults.iter().any(|armed| armed.ends.is_some()) {
            let now = Instant::now();
            self.faults.retain(|armed| armed.ends.is_none_or(|ends| now < ends));
        }
        let mut error = None;
        for armed in self.faults.iter_mut().filter(|armed| armed.fault.touches(op, offset, len)) {
            if armed.matched.is_multiple_of(armed.fault.every) {
                error = error.or(Some(armed.fault.error.errno()));
            }
            armed.matched += 1;
        }
        error.map_or(Ok(()), |error| Err(self.fail(error)))
    }

    /// Counts a failed request.
    fn fail(&mut self, error: Errno) -> Errno {
        self.counts.failed += 1;
        error
    }

    /// The number of sectors of a failed write that reach the medium.
    fn torn_sectors(&self, offset: u64, len: u64) -> usize {
        let is_torn = |armed: &Armed| armed.fault.is_torn;
        let mut faults = self.faults.iter().filter(|armed| is_torn(armed));
        if self.presence != Presence::Present
            || !faults.any(|armed| armed.fault.touches(Op::Write, offset, len))
        {
            return 0;
        }
        Rng::seeded(offset ^ len << 48).below((len / SECTOR as u64).max(1)) as usize
    }
}

impl Fault {
    fn touches(&self, op: Op, offset: u64, len: u64) -> bool {
        self.op == op
            && offset < self.range.end
            && offset.saturating_add(len.max(1)) > self.range.start
    }
}

impl FaultError {
    fn errno(self) -> Errno {
        match self {
            Self::Io => Errno::IO,
            Self::NoDevice => Errno::NXIO,
            Self::NoSpace => Errno::NOSPC,
        }
    }
}

/// Reads as much as there is; zeros behind the end.
fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let count = file.read_at(bytes, offset).map_err(|error| errno(&error))?;
        if count == 0 {
            return Ok(());
        }
        bytes = &mut bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
