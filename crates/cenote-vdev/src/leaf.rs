//! Leaves: the end of every path through the tree, one device each.
//!
//! A leaf adds the 4 MiB of labels and boot area to an offset, counts what it does, and knows
//! which txgs it may lack. A distributed spare is a leaf too, with no device of its own: the tree
//! sends its I/O on to a child of its dRAID (spec 06 §2, §6.6).
//!
//! A write that returned is not durable yet. The leaf keeps such writes ([`Unflushed`]); if the
//! flush that should make them durable fails, all of their txgs may be lacking, until a later
//! flush has written them again.
//!
//! A leaf can be taken out of service, and come back on the same device or another
//! ([`crate::service`]). What was under way then may end much later: it counts for nothing, or is
//! done again where the leaf is now ([`Unflushed::turn`]).
//!
//! Concurrency: the device, the dirty time log and the unflushed writes have a lock each, none is
//! held across I/O or while another is taken. Writes are held off while earlier ones are written
//! again, which else could come last at the same place.
//! Durability: a write is entered as unflushed when it has returned, before the caller learns of
//! it, so a flush that begins after that covers it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use cenote_device::{Device, Revocable};
use cenote_ondisk::label;
use cenote_rt::{AsyncMutex, Buf, Error, Kind, OwnedSemaphorePermit, Result, Semaphore};

use crate::IoClass;
use crate::dtl::TxgRanges;
pub(crate) use crate::queue::{Content, WritePart as Part};
use crate::queue::{InFlight, Load, Queue, QueueStats};
use crate::unflushed::{Flight, Landing, Unflushed};

/// Byte of a device at which its data area starts.
pub const DATA_START: u64 = 4 << 20;

/// A leaf of a tree: its index in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId(pub(crate) usize);

/// What a leaf has done since the tree was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeafStats {
    /// Reads that ended.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Blocks of which this leaf gave wrong bytes.
    pub checksum_errors: u64,
    /// Writes that ended.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Parts of blocks that were wrong and were written again.
    pub repairs: u64,
    /// Bytes of them.
    pub repaired_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    in_flight: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    write_errors: AtomicU64,
    flushes: AtomicU64,
    repairs: AtomicU64,
    repaired_bytes: AtomicU64,
}

/// What a leaf may lack.
#[derive(Debug, Default)]
struct Dtl {
    missing: TxgRanges,
    scrub: TxgRanges,
    /// Whether `missing` was told, or is only what failed since.
    is_known: bool,
    is_changed: bool,
    /// Of `missing`, what is there only since a flush failed: the writes are kept.
    unproven: TxgRanges,
}

/// Writes that a leaf has under way at most.
const WRITES_MAX: u32 = 1 << 20;

/// How a leaf is reached: by one device, and what waits for that one waits for no other.
#[derive(Debug)]
pub(crate) struct Access {
    /// The device, which everybody above gets only this handle of: taken back when the tree is
    /// closed.
    handle: Arc<Revocable>,
    /// What is written, or given back, goes through it. Reads go past what waits there.
    queue: Queue,
    /// One flush at a time.
    flushing: AsyncMutex<()>,
    /// Each write has one of them while it is under way; all are had by whoever writes again what
    /// was written before.
    gate: Arc<Semaphore>,
}

/// The devices of a leaf.
#[derive(Debug, Default)]
struct Devices {
    /// The one that it is on, if there is one.
    current: Option<Arc<Access>>,
    /// Those that are being tried, to take its place.
    candidates: Vec<Arc<Access>>,
    /// The tree was closed: no device is taken any more.
    is_closed: bool,
}

/// Whether a leaf can be asked for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// It should have it.
    Fresh,
    /// It may have something older at that place.
    Stale,
    /// It cannot be read.
    Absent,
}

/// One leaf.
#[derive(Debug)]
pub struct Leaf {
    pub(crate) guid: u64,
    pub(crate) path: String,
    /// Bytes of data that its device must have room for; 0 where the config does not say.
    pub(crate) least_asize: u64,
    /// Changed when a device comes back, and when the tree is closed; held for a copy.
    devices: RwLock<Devices>,
    load: Arc<Load>,
    /// Whether its state lets data be read from it.
    is_readable: AtomicBool,
    /// Treat all of its data as stale until its dirty time log is set.
    pub(crate) is_doubtful: bool,
    /// Whether it is read only because nothing was to be left out: always as a last resort.
    pub(crate) is_excluded: bool,
    /// Whether its state, and the tree, let data be written to it.
    is_writable: AtomicBool,
    /// Whether an I/O failed since somebody looked.
    has_failed: AtomicBool,
    /// It is about to be taken out of service: writes that end now do not count what it took.
    is_leaving: AtomicBool,
    dtl: RwLock<Dtl>,
    unflushed: Mutex<Unflushed>,
    counters: Counters,
}

impl Leaf {
    pub(crate) fn new(
        guid: u64,
        path: String,
        device: Option<Arc<dyn Device>>,
        load: &Arc<Load>,
    ) -> Self {
        Self {
            guid,
            path,
            least_asize: 0,
            devices: RwLock::new(Devices {
                current: device.map(|device| Access::new(device, load)),
                ..Devices::default()
            }),
            load: Arc::clone(load),
            is_readable: AtomicBool::new(true),
            is_doubtful: false,
            is_excluded: false,
            is_writable: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            dtl: RwLock::default(),
            unflushed: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Its guid.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Path of its device; as the config has it if there is none.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether a device of `size` bytes has room for all that may lie on this leaf. On a shorter
    /// one the labels at the end would be written over data.
    pub(crate) fn fits(&self, size: u64) -> bool {
        label::leaf_asize(size) >= self.least_asize.max(1)
    }

    /// Its device, if there is one.
    pub fn device(&self) -> Option<Arc<dyn Device>> {
        self.access().map(|access| Arc::clone(access.queue.device()))
    }

    fn access(&self) -> Option<Arc<Access>> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).current.clone()
    }

    fn devices(&self) -> RwLockWriteGuard<'_, Devices> {
        self.devices.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has a device.
    pub(crate) fn has_device(&self) -> bool {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).current.is_some()
    }

    /// A device that may become this leaf's: closed with the tree already while it is tried.
    ///
    /// # Errors
    /// `Kind::Closed` once the tree was closed.
    pub(crate) fn try_device(&self, device: Arc<dyn Device>) -> Result<Arc<Access>> {
        let access = Access::new(device, &self.load);
        let mut devices = self.devices();
        if devices.is_closed {
            return Err(closed());
        }
        devices.candidates.push(Arc::clone(&access));
        Ok(access)
    }

    /// Ends the trial of a device. If it `is_accepted`, the leaf is on it from now on, and it gets
    /// again what the old one may not have made durable.
    ///
    /// # Errors
    /// `Kind::Closed` if the tree was closed meanwhile.
    pub(crate) fn end_trial(&self, access: &Arc<Access>, is_accepted: bool) -> Result<()> {
        {
            let mut devices = self.devices();
            devices.candidates.retain(|candidate| !Arc::ptr_eq(candidate, access));
            if devices.is_closed {
                return Err(closed());
            }
            if !is_accepted {
                return Ok(());
            }
            devices.current = Some(Arc::clone(access));
        }
        // In this order: whoever sees the new turn sees the new device.
        self.unflushed().moved();
        Ok(())
    }

    /// I/Os that its device has in flight, and those that it has answered.
    pub(crate) fn activity(&self) -> (usize, u64) {
        self.access().map_or((0, 0), |access| access.handle.activity())
    }

    /// Takes all its devices back, for [`Tree::close`](crate::Tree::close): no I/O begins on them
    /// any more.
    pub(crate) fn revoke(&self) -> Vec<Arc<Revocable>> {
        let mut devices = self.devices();
        devices.is_closed = true;
        let all = devices.candidates.iter().chain(&devices.current);
        all.map(|access| Arc::clone(&access.handle)).collect()
    }

    /// How often it left service or got another device. What was written before that, and is no
    /// block, may be gone, whatever a flush says that comes after.
    pub fn turn(&self) -> u64 {
        self.unflushed().turn()
    }

    fn unflushed(&self) -> MutexGuard<'_, Unflushed> {
        self.unflushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has done.
    pub fn stats(&self) -> LeafStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LeafStats {
            reads: get(&self.counters.reads),
            bytes: get(&self.counters.bytes),
            read_errors: get(&self.counters.read_errors),
            checksum_errors: get(&self.counters.checksum_errors),
            writes: get(&self.counters.writes),
            write_bytes: get(&self.counters.write_bytes),
            write_errors: get(&self.counters.write_errors),
            flushes: get(&self.counters.flushes),
            repairs: get(&self.counters.repairs),
            repaired_bytes: get(&self.counters.repaired_bytes),
        }
    }

    /// What its queue has done.
    pub fn queue_stats(&self) -> Option<QueueStats> {
        self.queue().map(|queue| queue.stats())
    }

    /// Its queue, if it has a device.
    pub fn queue(&self) -> Option<Queue> {
        self.access().map(|access| access.queue.clone())
    }

    /// Reads and writes under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.counters.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn count_checksum_error(&self) {
        self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_repair(&self, len: u64) {
        self.counters.repairs.fetch_add(1, Ordering::Relaxed);
        self.counters.repaired_bytes.fetch_add(len, Ordering::Relaxed);
    }

    /// Whether it is written to.
    pub fn is_writable(&self) -> bool {
        self.is_writable.load(Ordering::Acquire)
    }

    /// Whether its state lets data be read from it.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_readable.load(Ordering::Acquire)
    }

    /// Says what its state lets be done with it.
    pub(crate) fn set_service(&self, is_readable: bool, is_writable: bool) {
        self.is_readable.store(is_readable, Ordering::Release);
        self.is_writable.store(is_writable, Ordering::Release);
    }

    /// Says that it is about to be taken out of service, or stays after all.
    pub(crate) fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::SeqCst);
    }

    /// Whether what was written to it can still be counted on: it is in service, and stays.
    pub(crate) fn stays_in_service(&self) -> bool {
        self.is_writable() && !self.is_leaving.load(Ordering::SeqCst)
    }

    /// Whether an I/O failed since this was asked last.
    pub(crate) fn take_failed(&self) -> bool {
        self.has_failed.swap(false, Ordering::AcqRel)
    }

    /// Whether an I/O failed since somebody looked into it.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    pub(crate) fn mark_failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Begins to count errors anew.
    pub(crate) fn clear_errors(&self) {
        for counter in [
            &self.counters.read_errors,
            &self.counters.write_errors,
            &self.counters.checksum_errors,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// The txgs that it may lack, as far as that is known.
    pub fn dtl(&self) -> Option<TxgRanges> {
        let dtl = self.dtl.read().unwrap_or_else(PoisonError::into_inner);
        (dtl.is_known || !dtl.missing.is_empty()).then(|| dtl.missing.clone())
    }

    /// The txgs that a scan found it to lack and could not repair.
    pub fn scrub_dtl(&self) -> TxgRanges {
        self.dtl.read().unwrap_or_else(PoisonError::into_inner).scrub.clone()
    }

    /// Sets the stored log. What failed since the leaf was opened stays in it.
    pub(crate) fn set_dtl(&self, ranges: TxgRanges) {
        let mut dtl = self.dtl.write().unwrap_or_else(PoisonError::into_inner);
        dtl.missing = if dtl.is_changed { dtl.missing.union(&ranges) } else { ranges };
        dtl.is_known = true;
    }

    /// Adds a txg to the log.
    pub(crate) fn note_missing_txg(&self, txg: u64) {
        // Nearly always it is there: an absent leaf misses every block of the txg.
        let is_there = {
            let dtl = self.dtl.read().unwrap_or_else(PoisonError::into_inner);
            dtl.missing.contains(txg) && !dtl.unproven.contains(txg)
        };
        if !is_there {
            self.note_missing(&TxgRanges::of(txg));
        }
    }

    /// Adds txgs to the log.
    pub(crate) fn note_missing(&self, txgs: &TxgRanges) {
        let mut dtl = self.dtl.write().unwrap_or_else(PoisonError::into_inner);
        // Something of them is lacking whatever a flush brings back.
        dtl.unproven = dtl.unproven.subtract(txgs);
        dtl.add(txgs);
    }

    /// Adds txgs whose writes returned, are kept, and may be lost.
    fn note_unproven(&self, txgs: &TxgRanges) {
        let mut dtl = self.dtl.write().unwrap_or_else(PoisonError::into_inner);
        let new = txgs.subtract(&dtl.missing);
        dtl.unproven = dtl.unproven.union(&new);
        dtl.add(txgs);
    }

    /// What was kept is durable now.
    fn prove(&self) {
        let mut dtl = self.dtl.write().unwrap_or_else(PoisonError::into_inner);
        if !dtl.unproven.is_empty() {
            let unproven = std::mem::take(&mut dtl.unproven);
            dtl.missing = dtl.missing.subtract(&unproven);
            dtl.is_changed = true;
        }
    }

    /// Gives up what was written and not flushed, also what a flush is busy with: the log has it.
    pub(crate) fn forget_unflushed(&self) {
        let txgs = self.unflushed().forget();
        self.note_missing(&txgs);
    }

    /// Adds a txg that a scan could not repair.
    pub(crate) fn note_unrepaired(&self, txg: u64) {
        let mut dtl = self.dtl.write().unwrap_or_else(PoisonError::into_inner);
        dtl.scrub.insert(txg);
        dtl.is_changed |= !dtl.missing.contains(txg);
        dtl.missing.insert(txg);
    }

    /// A scan has repaired all born before `scan_txg` but what it noted (spec 06 §8).
    pub(crate) fn excise(&self, scan_txg: u64) {
        let mut dtl = self.dtl.write().unwrap_or_else(PoisonError::into_inner);
        let kept = dtl.missing.subtract(&TxgRanges::new([(0, scan_txg)]));
        let missing = kept.union(&std::mem::take(&mut dtl.scrub));
        dtl.is_changed |= missing != dtl.missing;
        dtl.missing = missing;
        dtl.unproven = TxgRanges::default();
        dtl.is_known = true;
    }

    /// Whether the log changed since it was taken last.
    pub(crate) fn has_changed_dtl(&self) -> bool {
        self.dtl.read().unwrap_or_else(PoisonError::into_inner).is_changed
    }

    /// The whole log, if it changed since the last time.
    pub(crate) fn take_changed_dtl(&self) -> Option<TxgRanges> {
        let mut dtl = self.dtl.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut dtl.is_changed).then(|| dtl.missing.clone())
    }

    /// Whether it can be asked for a block of that physical birth.
    pub(crate) fn freshness(&self, birth: u64) -> Freshness {
        if !self.is_readable() {
            return Freshness::Absent;
        }
        let dtl = self.dtl.read().unwrap_or_else(PoisonError::into_inner);
        let may_lack = dtl.missing.contains(birth) || (!dtl.is_known && self.is_doubtful);
        if may_lack || self.is_excluded { Freshness::Stale } else { Freshness::Fresh }
    }

    fn no_device(&self, offset: u64) -> Error {
        Error::new(Kind::Io, NoDevice { guid: self.guid }).on_device(&self.path, offset)
    }

    /// Writes `parts`, which are in ascending order and do not overlap, as part of `txg` (`None`:
    /// outside of any, like labels).
    pub(crate) async fn write(
        &self,
        parts: Vec<Part>,
        txg: Option<u64>,
        class: IoClass,
    ) -> Result<()> {
        let begun = self.begin(&parts, txg).await?;
        let result = begun.queue().write(class, &parts).await;
        self.finish(begun, parts, txg, class, result).await
    }

    /// Begins a write, or says why there can be none: whoever begins it submits it to the queue,
    /// waits for it, and [finishes](Self::finish) it.
    pub(crate) async fn begin(&self, parts: &[Part], txg: Option<u64>) -> Result<Begun<'_>> {
        // Before the device is looked up: if that changes meanwhile, the write may be on the old.
        let (turn, is_full) = {
            let unflushed = self.unflushed();
            (unflushed.turn(), txg.is_some() && unflushed.is_full())
        };
        let access = self.access().filter(|_| self.is_writable());
        let Some(access) = access else {
            return Err(self.no_device(parts.first().map_or(0, |part| part.offset)));
        };
        if is_full {
            self.count_write_error();
            return Err(Error::new(Kind::Io, NeverFlushes { guid: self.guid }));
        }
        let under_way = InFlight::start(&self.counters.in_flight);
        // Not while earlier writes are written again: one of them could come last at the same
        // place.
        let admitted = access.admit(1).await;
        Ok(Begun { access, turn, _admitted: admitted, _under_way: under_way })
    }

    /// Notes what became of a write. One that failed is tried once more, since what it costs to
    /// give up a leaf is a resilver.
    pub(crate) async fn finish(
        &self,
        begun: Begun<'_>,
        parts: Vec<Part>,
        txg: Option<u64>,
        class: IoClass,
        mut result: Result<()>,
    ) -> Result<()> {
        if result.as_ref().is_err_and(|error| error.kind() == Kind::Io) {
            result = begun.queue().write(class, &parts).await;
        }
        let len: u64 = parts.iter().filter(|part| !part.is_pad()).map(Part::len).sum();
        let is_much = {
            let mut unflushed = self.unflushed();
            match &result {
                Ok(()) => unflushed.note(begun.turn, txg, parts),
                Err(_) => unflushed.note_failed(txg),
            }
            unflushed.is_much()
        };
        // Only now: whoever writes again what was written before has this one among it.
        drop(begun);
        if !self.is_writable() {
            // It left service meanwhile, maybe before the write was noted: nobody flushes it.
            self.forget_unflushed();
        }
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        match &result {
            Ok(()) => {
                self.counters.write_bytes.fetch_add(len, Ordering::Relaxed);
            }
            // It says nothing of the device.
            Err(error) if error.kind() == Kind::Closed => {}
            Err(_) => self.count_write_error(),
        }
        if is_much {
            // Whoever comes later finds it done. A failure is in the log, and what was to be
            // flushed is tried again by the next flush.
            drop(self.flush_if(Unflushed::is_much).await);
        }
        result.map_err(|error| error.with_at(|at| at.vdev = Some(self.guid)))
    }

    fn count_write_error(&self) {
        self.mark_failed();
        self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes durable what was written since the last flush. On an error, tells the txgs that may
    /// be lost, which are in its log already.
    pub(crate) async fn flush(&self) -> std::result::Result<(), (TxgRanges, Error)> {
        self.flush_if(|_| true).await
    }

    /// The same, unless it is not due any more when its turn has come.
    async fn flush_if(
        &self,
        is_due: impl Fn(&Unflushed) -> bool + Send,
    ) -> std::result::Result<(), (TxgRanges, Error)> {
        loop {
            // Out of service it is not touched: its log has what it was given.
            let access = self.access().filter(|_| self.is_writable());
            let Some(access) = access else { return Ok(()) };
            // One at a time: what another flush has begun with is durable only when that has
            // returned.
            let _turn = access.flushing.lock().await;
            let is_suspect = self.unflushed().is_suspect();
            // Before it is taken what is to be written again: whatever is later at the same place
            // must be among it, or come after it.
            let held_off = if is_suspect { Some(access.admit(WRITES_MAX).await) } else { None };
            let flight = {
                let mut unflushed = self.unflushed();
                if !self.is_on(&access) || (unflushed.is_suspect() && held_off.is_none()) {
                    // It got another device meanwhile, or a write failed just now.
                    continue;
                }
                if !is_due(&unflushed) {
                    return Ok(());
                }
                unflushed.begin()
            };
            let Some(flight) = flight else { return Ok(()) };
            let result = access.make_durable(&flight).await;
            let landing = self.unflushed().land(&flight, result.is_ok());
            match (landing, result) {
                (Landing::Durable, _) => {
                    self.counters.flushes.fetch_add(1, Ordering::Relaxed);
                    if flight.is_suspect {
                        self.prove();
                    }
                    return Ok(());
                }
                (Landing::Failed(txgs), Err(error)) => {
                    if error.kind() != Kind::Closed {
                        self.count_write_error();
                    }
                    self.note_unproven(&txgs);
                    return Err((txgs, error.with_at(|at| at.vdev = Some(self.guid))));
                }
                _ => {}
            }
        }
    }

    /// Whether that is the device that it is on.
    fn is_on(&self, access: &Arc<Access>) -> bool {
        self.access().is_some_and(|now| Arc::ptr_eq(&now, access))
    }

    /// Reads from its device; `offset` counts from the device's start.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Buf> {
        let Some(access) = self.access() else {
            return Err(self.no_device(offset));
        };
        let _under_way = InFlight::start(&self.counters.in_flight);
        let result = access.queue.read_now(offset, len).await;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(buf) => {
                self.counters.bytes.fetch_add(len as u64, Ordering::Relaxed);
                Ok(buf)
            }
            Err(error) => {
                if error.kind() != Kind::Closed {
                    self.mark_failed();
                    self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                }
                Err(error.with_at(|at| at.vdev = Some(self.guid)))
            }
        }
    }
}

impl Access {
    fn new(device: Arc<dyn Device>, load: &Arc<Load>) -> Arc<Self> {
        let handle = Revocable::new(device);
        let queue = Queue::new(Arc::<Revocable>::clone(&handle), Arc::clone(load));
        let gate = Arc::new(Semaphore::new(WRITES_MAX as usize));
        Arc::new(Self { handle, queue, flushing: AsyncMutex::new(()), gate })
    }

    /// The device.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.handle
    }

    /// Lets so many in; in the order in which they come.
    async fn admit(&self, count: u32) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        Arc::clone(&self.gate).acquire_many_owned(count).await.ok()
    }

    /// Flushes; before that what is to be written again, one after the other, since later writes
    /// may be over earlier ones.
    async fn make_durable(&self, flight: &Flight) -> Result<()> {
        for parts in &flight.writes {
            self.queue.write(IoClass::AsyncWrite, parts).await?;
        }
        self.queue.device().flush().await
    }
}

impl Dtl {
    fn add(&mut self, txgs: &TxgRanges) {
        let missing = self.missing.union(txgs);
        if missing != self.missing {
            self.missing = missing;
            self.is_changed = true;
        }
    }
}

/// I/O to a leaf that has no device, or is not to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("vdev {guid} has no device")]
pub struct NoDevice {
    /// Guid of the leaf.
    pub guid: u64,
}

/// The error of I/O to a tree that was closed.
pub(crate) fn closed() -> Error {
    Error::new(Kind::Closed, TreeClosed)
}

/// I/O to a pool that was closed: exported, destroyed, or given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pool was closed")]
pub struct TreeClosed;

/// A write to a leaf whose flushes fail, and that has too much to be flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("vdev {guid} makes nothing durable")]
pub struct NeverFlushes {
    /// Guid of the leaf.
    pub guid: u64,
}

/// A write that a leaf lets happen, until it is finished.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    access: Arc<Access>,
    /// The leaf's turn when it began.
    turn: u64,
    _admitted: Option<OwnedSemaphorePermit>,
    _under_way: InFlight<'a>,
}

impl Begun<'_> {
    /// Where it is to be submitted.
    pub(crate) fn queue(&self) -> &Queue {
        &self.access.queue
    }
}

#[cfg(test)]
mod tests;
