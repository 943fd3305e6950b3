//! Leaf vdevs, one device each.
//!
//! A leaf adds the 4 MiB of labels and boot area to an offset, counts its I/O, and keeps its dirty
//! time log. A distributed spare is a leaf without a device of its own: the tree redirects its I/O
//! to a child of its dRAID (spec 06 §2, §6.6).
//!
//! A write that has returned is not durable yet. The leaf buffers such writes ([`Unflushed`]); if
//! the flush that should make them durable fails, all of their txgs may be missing until a later
//! flush has written them again.
//!
//! A leaf can be taken out of service, and can return on the same device or another one
//! ([`crate::service`]). I/O that was in flush then may end much later: its result is ignored, or
//! it is written again to the new device ([`Unflushed::generation`]).
//!
//! Invariants
//! * D1  The txgs of a failed flush are in the dirty time log until a later flush succeeds.
//! * D2  A txg that the leaf lacks leaves the log at the end of a scan only if the leaf lacked it
//!   when the scan began, was in service since, and no write or flush of that txg failed meanwhile.
//!
//! Concurrency: the device, the dirty time log and the unflushed writes have a lock each; none is
//! held across I/O or while another one is taken. New writes are held off while buffered writes are
//! written again, because the old bytes could otherwise overwrite the new ones.
//! Durability: a write is recorded as unflushed when it has returned and before the caller learns
//! of it, so a flush that begins afterwards covers it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_device::{Device, Revocable};
use cenote_ondisk::label;
use cenote_rt::lock::{AsyncMutex, Mutex, MutexGuard, Rank, RwLock, WriteGuard, branch};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, Error, Kind, OwnedSemaphorePermit, Result, Semaphore, ensure, tunables};

use crate::IoClass;
use crate::dtl::TxgRanges;
use crate::fault::{Injector, IoKind, LeafWatch, Symptom};
pub(crate) use crate::queue::{Content, WritePart as Part};
use crate::queue::{InFlight, Load, Queue, QueueStats};
use crate::size::LeafSizes;
use crate::unflushed::{FlushInProgress, FlushResult, Unflushed};

/// Byte of a device at which its data area starts.
pub const DATA_START: u64 = 4 << 20;

/// Index of a leaf in its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId(pub(crate) usize);

/// I/O counters of a leaf since the tree was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeafStats {
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Blocks of which this leaf returned wrong bytes.
    pub checksum_errors: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Failed writes and flushes.
    pub write_errors: u64,
    /// Successful flushes.
    pub flushes: u64,
    /// Parts of blocks that were repaired.
    pub repairs: u64,
    /// Bytes repaired.
    pub repaired_bytes: u64,
    /// I/Os that took longer than `zio_slow_io_ms`.
    pub slow_ios: u64,
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

/// The dirty time log of a leaf.
#[derive(Debug, Default)]
struct Dtl {
    missing: TxgRanges,
    /// Subset of `missing` that a scan does not repair: what went missing since it began, and what
    /// the leaf lacked while it was out of service (D2).
    scrub: TxgRanges,
    /// Whether the stored log was loaded; until then `missing` has only failures since the opening.
    is_known: bool,
    is_changed: bool,
    /// Subset of `missing` caused by failed flushes only; these writes are still buffered.
    unflushed_txgs: TxgRanges,
}

/// Most writes in flush on a leaf.
const WRITES_MAX: u32 = 1 << 20;

/// Time between two looks at whether a device is idle.
const IDLE_POLL: Duration = Duration::from_millis(5);

/// DeviceAccess to one device of a leaf; requests to this device wait for no other device.
#[derive(Debug)]
pub(crate) struct DeviceAccess {
    /// The device. Upper layers get only this handle, which is revoked when the tree is closed.
    handle: Arc<Revocable>,
    /// Queue for reads, writes and discards of data, with the injected faults.
    queue: Queue,
    watch: Arc<LeafWatch>,
    /// Held during a flush: one flush at a time.
    flushing: AsyncMutex<()>,
    /// Each write in flush holds one permit; a task that writes buffered writes again takes all of
    /// them.
    write_permits: Arc<Semaphore>,
}

/// The devices of a leaf.
#[derive(Debug, Default)]
struct Devices {
    /// The device in use, if any.
    current: Option<Arc<DeviceAccess>>,
    /// Devices being probed, which may become the current one.
    candidates: Vec<Arc<DeviceAccess>>,
    /// Devices used before the current one, for as long as an I/O is in flight on them. Closing the
    /// tree cuts off the caller of an I/O that hangs there.
    former: Vec<Weak<Revocable>>,
    /// The tree was closed: no device is accepted any more.
    is_closed: bool,
}

impl Devices {
    /// Returns the devices before the current one that an I/O is in flight on.
    fn former(&self) -> Vec<Arc<Revocable>> {
        self.former.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Whether a block can be read from a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// The leaf should have the block.
    Fresh,
    /// The leaf may have older data at this offset.
    Stale,
    /// The leaf cannot be read.
    Absent,
}

/// A leaf vdev.
#[derive(Debug)]
pub struct Leaf {
    /// Changes when the leaf takes the place of its parent ([`crate::reshape`]).
    guid: AtomicU64,
    pub(crate) path: String,
    /// Whether it left the tree, for good.
    is_retired: AtomicBool,
    pub(crate) sizes: LeafSizes,
    /// Written when a device returns and when the tree is closed; held only to copy the `Arc`.
    devices: RwLock<Devices>,
    /// Slow I/O, error rates and injected faults; the load of the pool.
    pub(crate) watch: Arc<LeafWatch>,
    /// Whether its state allows reads.
    is_readable: AtomicBool,
    /// Treat all data as stale until the dirty time log is loaded.
    pub(crate) is_stale_until_dtl_loaded: bool,
    /// Whether it is read only because the caller asked for excluded leaves, as a last resort.
    pub(crate) is_excluded: bool,
    /// Whether its state and the tree allow writes.
    is_writable: AtomicBool,
    /// Whether an I/O failed since the flag was last cleared.
    has_failed: AtomicBool,
    /// Whether it is about to leave service: a write that ends now must not count on this leaf's
    /// copy.
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
        let unflushed =
            device.as_ref().map_or_else(Unflushed::default, |_| Unflushed::of_opened_device());
        let size = device.as_ref().map_or(0, |device| device.info().size);
        let watch = LeafWatch::new(guid, load);
        let current = device.map(|device| DeviceAccess::new(device, &watch));
        Self {
            guid: AtomicU64::new(guid),
            is_retired: AtomicBool::new(false),
            path,
            sizes: LeafSizes::of_device(size),
            devices: RwLock::new(Rank::LeafDevices, Devices { current, ..Devices::default() }),
            watch,
            is_readable: AtomicBool::new(true),
            is_stale_until_dtl_loaded: false,
            is_excluded: false,
            is_writable: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            dtl: RwLock::with_default(Rank::Dtl),
            unflushed: Mutex::new(Rank::Unflushed, unflushed),
            counters: Counters::default(),
        }
    }

    /// Its guid.
    pub fn guid(&self) -> u64 {
        self.guid.load(Ordering::Relaxed)
    }

    pub(crate) fn set_guid(&self, guid: u64) {
        self.guid.store(guid, Ordering::Relaxed);
        self.watch.set_guid(guid);
    }

    /// Whether it left the tree.
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// It left the tree: nothing begins on it any more, and its log means nothing.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.set_service(false, false);
        self.drop_unflushed();
    }

    /// Path of its device; the path in the config if there is no device.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether a device of `size` bytes has room for all data of this leaf. On a shorter device the
    /// labels at the end would overwrite data.
    pub(crate) fn fits(&self, size: u64) -> bool {
        label::leaf_asize(size) >= self.sizes.least_asize.load(Ordering::Relaxed).max(1)
    }

    /// Its device, if there is one; without the faults that are injected into the leaf.
    pub fn device(&self) -> Option<Arc<dyn Device>> {
        self.access().map(|access| Arc::<Revocable>::clone(&access.handle) as Arc<dyn Device>)
    }

    fn access(&self) -> Option<Arc<DeviceAccess>> {
        if self.is_retired() {
            return None;
        }
        self.devices.read().current.clone()
    }

    /// Takes the device of a leaf that left the tree, once no I/O is in flight there any more. A
    /// device that is not idle in `timeout` is cut off instead, and its callers get an error.
    pub(crate) async fn take_device(&self, timeout: Duration) -> Option<Arc<dyn Device>> {
        let access = self.devices().current.take()?;
        let mut left = timeout;
        // Each I/O that began before the leaf was retired holds the access.
        while Arc::strong_count(&access) > 1 {
            if left.is_zero() {
                access.handle.close(Duration::ZERO).await;
                self.devices().former.push(Arc::downgrade(&access.handle));
                return None;
            }
            let pause = left.min(IDLE_POLL);
            cenote_rt::sleep(pause).await;
            left -= pause;
        }
        Some(Arc::<Revocable>::clone(&access.handle))
    }

    fn devices(&self) -> WriteGuard<'_, Devices> {
        self.devices.write()
    }

    /// Whether the leaf has a device.
    pub(crate) fn has_device(&self) -> bool {
        self.devices.read().current.is_some()
    }

    /// Adds a device as a candidate, so that closing the tree revokes it while it is being probed.
    ///
    /// # Errors
    /// `Kind::Closed` once the tree was closed.
    pub(crate) fn try_device(&self, device: Arc<dyn Device>) -> Result<Arc<DeviceAccess>> {
        let access = DeviceAccess::new(device, &self.watch);
        let mut devices = self.devices();
        // Checks T2.
        if devices.is_closed {
            return Err(closed());
        }
        devices.candidates.push(Arc::clone(&access));
        Ok(access)
    }

    /// Ends the probe of a candidate. If it `is_accepted`, it becomes the leaf's device, and all
    /// writes that the old device may not have made durable are written to it again.
    ///
    /// # Errors
    /// `Kind::Closed` if the tree was closed concurrently.
    pub(crate) fn end_trial(&self, access: &Arc<DeviceAccess>, is_accepted: bool) -> Result<()> {
        {
            let mut devices = self.devices();
            let before = devices.candidates.len();
            devices.candidates.retain(|candidate| !Arc::ptr_eq(candidate, access));
            let after = devices.candidates.len();
            ensure!("T3", after + 1 == before, "{after} of {before} devices are still on trial");
            // Checks T2.
            if devices.is_closed {
                return Err(closed());
            }
            if !is_accepted {
                return Ok(());
            }
            devices.former.retain(|handle| handle.strong_count() > 0);
            if let Some(before) = devices.current.replace(Arc::clone(access)) {
                devices.former.push(Arc::downgrade(&before.handle));
            }
        }
        // In this order: a caller that sees the new generation must see the new device.
        self.unflushed().device_changed();
        Ok(())
    }

    /// Number of I/Os in flight on its device and on those before it, and number of I/Os answered.
    pub(crate) fn activity(&self) -> (usize, u64) {
        let (current, former) = {
            let devices = self.devices.read();
            let current = devices.current.as_ref().map(|access| Arc::clone(&access.handle));
            (current, devices.former())
        };
        let each = current.iter().chain(&former).map(|handle| handle.activity());
        each.fold((0, 0), |all, one| (all.0 + one.0, all.1.wrapping_add(one.1)))
    }

    /// Revokes all of its devices, for [`Tree::close`](crate::Tree::close): no I/O begins on them
    /// any more.
    pub(crate) fn revoke(&self) -> Vec<Arc<Revocable>> {
        let mut devices = self.devices();
        devices.is_closed = true;
        let all = devices.candidates.iter().chain(&devices.current);
        let mut handles: Vec<_> = all.map(|access| Arc::clone(&access.handle)).collect();
        handles.extend(devices.former());
        handles
    }

    /// Counts how often the leaf left service or got another device. Bytes written before such a
    /// change that belong to no block may be lost, even if a later flush succeeds.
    pub fn generation(&self) -> u64 {
        self.unflushed().generation()
    }

    fn unflushed(&self) -> MutexGuard<'_, Unflushed> {
        self.unflushed.lock()
    }

    /// I/O counters.
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
            slow_ios: self.watch.slow_ios(),
        }
    }

    /// Statistics of its queue.
    pub fn queue_stats(&self) -> Option<QueueStats> {
        self.queue().map(|queue| queue.stats())
    }

    /// Its queue, if it has a device.
    pub fn queue(&self) -> Option<Queue> {
        self.access().map(|access| access.queue.clone())
    }

    /// Longest read of an extent by a scan.
    pub fn scan_extent_max(&self) -> u64 {
        let queue = self.queue();
        queue.map_or(tunables::AGGREGATION_LIMIT.get(), |queue| queue.scan_extent_max())
    }

    /// Reads and writes in flush.
    pub(crate) fn in_flight(&self) -> u64 {
        self.counters.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a wrong part of a block. What a scrub or resilver finds does not count for the error
    /// rate, so that a device does not leave service while it is being repaired.
    /// Returns the number of checksum errors, with this one.
    pub(crate) fn count_checksum_error(&self, offset: u64, class: IoClass) -> u64 {
        let before = self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
        if !matches!(class, IoClass::Scrub | IoClass::Rebuild) || is_on(Bug::ScrubErrorsDiagnosed) {
            self.watch.diagnosis.record(Symptom::Checksum, Some(offset));
        }
        before + 1
    }

    pub(crate) fn count_repair(&self, len: u64) {
        self.counters.repairs.fetch_add(1, Ordering::Relaxed);
        self.counters.repaired_bytes.fetch_add(len, Ordering::Relaxed);
    }

    /// Whether the leaf is written.
    pub fn is_writable(&self) -> bool {
        self.is_writable.load(Ordering::Acquire)
    }

    /// Whether its state allows reads.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_readable.load(Ordering::Acquire)
    }

    /// Sets which I/O its state allows.
    pub(crate) fn set_service(&self, is_readable: bool, is_writable: bool) {
        self.is_readable.store(is_readable, Ordering::Release);
        self.is_writable.store(is_writable, Ordering::SeqCst);
        if !is_writable {
            // D2. After the flag, which the begin of a scan reads under this lock.
            let mut dtl = self.dtl.write();
            dtl.scrub = dtl.missing.clone();
        }
    }

    /// Marks the leaf as about to leave service, or clears the mark.
    pub(crate) fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::SeqCst);
    }

    /// Whether its copies can be counted on: it is in service and not about to leave.
    pub(crate) fn stays_in_service(&self) -> bool {
        self.is_writable() && !self.is_leaving.load(Ordering::SeqCst)
    }

    /// Whether an I/O failed since the last call; clears the flag.
    pub(crate) fn take_failed(&self) -> bool {
        self.has_failed.swap(false, Ordering::AcqRel)
    }

    /// Whether an I/O failed since the last [`take_failed`](Self::take_failed).
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    pub(crate) fn mark_failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Resets the error counters to 0.
    pub(crate) fn clear_errors(&self) {
        for counter in [
            &self.counters.read_errors,
            &self.counters.write_errors,
            &self.counters.checksum_errors,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        self.watch.clear();
    }

    /// The missing txgs, or `None` if the log was not loaded and no write failed.
    pub fn dtl(&self) -> Option<TxgRanges> {
        let dtl = self.dtl.read();
        (dtl.is_known || !dtl.missing.is_empty()).then(|| dtl.missing.clone())
    }

    /// Checks that a range lies between the labels (W3 of [`crate::write`]).
    pub(crate) fn check_data_area(&self, offset: u64, len: u64) -> Result<()> {
        let Some(device) = self.device() else { return Ok(()) };
        let (size, end) = (label::leaf_asize(device.info().size), offset.saturating_add(len));
        ensure!(
            "W3",
            offset >= DATA_START && end <= DATA_START.saturating_add(size),
            "{len} bytes at {offset:#x} of leaf {}, which has {size} between its labels",
            self.guid()
        );
        Ok(())
    }

    /// Whether it is in service, and lacks blocks of this birth.
    pub fn is_missing(&self, birth: u64) -> bool {
        self.is_writable() && self.freshness(birth) == Freshness::Stale
    }

    /// Whether it is in service and has every block, as far as is known.
    pub fn is_whole(&self) -> bool {
        let dtl = self.dtl.read();
        let may_be_stale = self.is_excluded || self.is_stale_until_dtl_loaded && !dtl.is_known;
        self.is_writable() && dtl.missing.is_empty() && !may_be_stale
    }

    /// Whether the dirty time log contains `txg`.
    pub(crate) fn lacks(&self, txg: u64) -> bool {
        self.dtl.read().missing.contains(txg)
    }

    /// The missing txgs that a running scan does not repair on this leaf.
    pub fn scrub_dtl(&self) -> TxgRanges {
        self.dtl.read().scrub.clone()
    }

    /// Sets the log as stored on disk. Failures since the leaf was opened stay in it.
    pub(crate) fn set_dtl(&self, ranges: TxgRanges) {
        let mut dtl = self.dtl.write();
        dtl.missing = if dtl.is_changed { dtl.missing.union(&ranges) } else { ranges };
        dtl.is_known = true;
    }

    /// Adds a txg to the log.
    pub fn note_missing_txg(&self, txg: u64) {
        // The txg is nearly always in the log already: an absent leaf misses every block of the
        // txg.
        let is_there = {
            let dtl = self.dtl.read();
            let is_noted = dtl.missing.contains(txg) && dtl.scrub.contains(txg);
            is_noted && !dtl.unflushed_txgs.contains(txg)
        };
        if !is_there {
            self.note_missing(&TxgRanges::of(txg));
        }
    }

    /// Adds txgs to the log.
    pub fn note_missing(&self, txgs: &TxgRanges) {
        let mut dtl = self.dtl.write();
        // A later flush does not make these writes complete.
        dtl.unflushed_txgs = dtl.unflushed_txgs.subtract(txgs);
        dtl.add(txgs);
    }

    /// Adds txgs whose buffered writes may be lost because a flush failed.
    fn note_failed_flush(&self, txgs: &TxgRanges) {
        let mut dtl = self.dtl.write();
        let new = txgs.subtract(&dtl.missing);
        dtl.unflushed_txgs = dtl.unflushed_txgs.union(&new);
        dtl.add(txgs);
    }

    /// The buffered writes are durable: removes their txgs from the log.
    fn clear_failed_flushes(&self) {
        let mut dtl = self.dtl.write();
        if !dtl.unflushed_txgs.is_empty() {
            let unflushed_txgs = std::mem::take(&mut dtl.unflushed_txgs);
            let forgotten = unflushed_txgs.subtract(&dtl.missing);
            // Checks D1.
            assert!(forgotten.is_empty(), "txgs {forgotten:?} are not in the dirty time log");
            dtl.missing = dtl.missing.subtract(&unflushed_txgs);
            dtl.scrub = dtl.scrub.subtract(&unflushed_txgs);
            dtl.is_changed = true;
        }
    }

    /// Drops all unflushed writes, including those a running flush covers, and logs their txgs.
    pub(crate) fn drop_unflushed(&self) {
        let txgs = self.unflushed().drop_all();
        self.note_missing(&txgs);
    }

    /// A scan begins, which writes to this leaf what it lacks of blocks born after `min` and before
    /// `max`, if it is in service. [`end_scan`](Self::end_scan) does not take other txgs, or what
    /// goes missing from now on, for repaired.
    pub fn begin_scan(&self, min: u64, max: u64) {
        let mut dtl = self.dtl.write();
        dtl.scrub = dtl.missing.clone();
        self.watch.set_filled(!dtl.missing.is_empty());
        if self.is_writable.load(Ordering::SeqCst) {
            let covered = TxgRanges::new([(min.saturating_add(1), max)]);
            dtl.scrub = dtl.scrub.subtract(&covered);
        }
    }

    /// A scan has written every block that was born before `scan_txg` to the leaves that lacked it,
    /// and the devices have flushed: removes these txgs from the log, except those that the scan
    /// may not have repaired (D2, spec 06 §8).
    pub fn end_scan(&self, scan_txg: u64) {
        let mut dtl = self.dtl.write();
        self.watch.set_filled(false);
        // A log that could not be read may have more.
        let is_unknown = self.is_stale_until_dtl_loaded && !dtl.is_known;
        if is_unknown
            || self.watch.injections.keeps_dtl()
            || !self.is_writable.load(Ordering::SeqCst)
        {
            return;
        }
        let mut scrub = std::mem::take(&mut dtl.scrub);
        if is_on(Bug::ScanForgetsFailures) {
            scrub = TxgRanges::default();
        }
        let unknown = scrub.subtract(&dtl.missing);
        // Checks D2.
        assert!(unknown.is_empty(), "txgs {unknown:?} are not in the dirty time log");
        let kept = dtl.missing.subtract(&TxgRanges::new([(0, scan_txg)]));
        dtl.shrink(kept.union(&scrub));
    }

    /// A rebuild has written everything that was allocated before `txg` to this leaf, and the
    /// device has flushed: removes these txgs from the log, if no write to it failed since
    /// [`begin_scan`](Self::begin_scan). A failed write may have been of any txg: then the log
    /// keeps them all.
    pub fn end_rebuild(&self, txg: u64) {
        let mut dtl = self.dtl.write();
        let has_failed = !dtl.scrub.is_empty() && !is_on(Bug::RebuildForgetsFailures);
        let is_unknown = self.is_stale_until_dtl_loaded && !dtl.is_known;
        if has_failed || is_unknown || !self.is_writable.load(Ordering::SeqCst) {
            return;
        }
        let kept = dtl.missing.subtract(&TxgRanges::new([(0, txg)]));
        dtl.shrink(kept);
    }

    /// Removes all txgs before `txg` from the log: nothing that is needed was born in them.
    pub(crate) fn excise(&self, txg: u64) {
        let mut dtl = self.dtl.write();
        let before = TxgRanges::new([(0, txg)]);
        dtl.scrub = dtl.scrub.subtract(&before);
        let kept = dtl.missing.subtract(&before);
        dtl.shrink(kept);
    }

    /// Whether the log changed since [`take_changed_dtl`](Self::take_changed_dtl).
    pub(crate) fn has_changed_dtl(&self) -> bool {
        self.dtl.read().is_changed
    }

    /// Returns the whole log if it changed since the last call.
    pub(crate) fn take_changed_dtl(&self) -> Option<TxgRanges> {
        let mut dtl = self.dtl.write();
        std::mem::take(&mut dtl.is_changed).then(|| dtl.missing.clone())
    }

    /// Whether a block of physical birth `birth` can be read from this leaf.
    pub(crate) fn freshness(&self, birth: u64) -> Freshness {
        if !self.is_readable() {
            return Freshness::Absent;
        }
        let dtl = self.dtl.read();
        let is_stale = self.is_stale_until_dtl_loaded && !is_on(Bug::FreshBeforeDtl);
        let may_be_missing = dtl.missing.contains(birth) || (!dtl.is_known && is_stale);
        if may_be_missing || self.is_excluded { Freshness::Stale } else { Freshness::Fresh }
    }

    fn no_device(&self, offset: u64) -> Error {
        Error::new(Kind::Io, NoDevice { guid: self.guid() }).on_device(&self.path, offset)
    }

    /// Writes `parts`, which are in ascending order and do not overlap, as part of `txg`; `None`
    /// for writes outside of any txg, such as labels.
    pub(crate) async fn write(
        &self,
        parts: Vec<Part>,
        txg: Option<u64>,
        class: IoClass,
    ) -> Result<()> {
        let admitted = self.begin_write(&parts, txg).await?;
        let result = admitted.queue().write(class, &parts).await;
        let (result, is_flush_due) = self.finish_write(admitted, parts, txg, class, result).await;
        if is_flush_due {
            self.flush_if_due().await;
        }
        result
    }

    /// Begins a write, or returns why it is refused. The caller submits the write to the queue,
    /// waits for it, and calls [`finish_write`](Self::finish_write).
    pub(crate) async fn begin_write(
        &self,
        parts: &[Part],
        txg: Option<u64>,
    ) -> Result<AdmittedWrite<'_>> {
        // Read before the device: if the device changes in between, the write may go to the old
        // one.
        let (generation, is_full) = {
            let unflushed = self.unflushed();
            (unflushed.generation(), txg.is_some() && unflushed.is_full())
        };
        let access = self.access().filter(|_| self.is_writable());
        let first = parts.first().map_or(DATA_START, |part| part.offset);
        let Some(access) = access else {
            return Err(self.no_device(parts.first().map_or(0, |part| part.offset)));
        };
        ensure!(
            "W3",
            txg.is_none() || first >= DATA_START,
            "a block at {first:#x} would overwrite labels"
        );
        if is_full {
            let error = Error::new(Kind::Io, NeverFlushes { guid: self.guid() });
            self.count_write_error((IoKind::Write, first, 0), &error);
            return Err(error);
        }
        let in_flight = InFlight::start(&self.counters.in_flight);
        // Waits while buffered writes are written again: an old one could overwrite this one.
        let permit = access.take_permits(1).await;
        Ok(AdmittedWrite { access, generation, _permit: permit, _in_flight: in_flight })
    }

    /// Records the result of a write. A failed write is tried once more, because losing a leaf
    /// costs a resilver. Also returns whether the caller must call
    /// [`flush_if_due`](Self::flush_if_due), as soon as it holds no write to any leaf.
    pub(crate) async fn finish_write(
        &self,
        admitted: AdmittedWrite<'_>,
        parts: Vec<Part>,
        txg: Option<u64>,
        class: IoClass,
        mut result: Result<()>,
    ) -> (Result<()>, bool) {
        if result.as_ref().is_err_and(|error| error.kind() == Kind::Io) {
            result = admitted.queue().write(class, &parts).await;
        }
        let len: u64 = parts.iter().filter(|part| !part.is_pad()).map(Part::len).sum();
        let offset = parts.first().map_or(0, |part| part.offset);
        let is_flush_due = {
            let mut unflushed = self.unflushed();
            match &result {
                Ok(()) => unflushed.record_write(admitted.generation, txg, parts),
                Err(_) => unflushed.record_failed_write(txg),
            }
            unflushed.is_flush_due()
        };
        // Only now: a task that writes buffered writes again must find this one among them.
        drop(admitted);
        if !self.is_writable() {
            // The leaf left service, maybe before the write was recorded: no flush will cover it.
            self.drop_unflushed();
        }
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        match &result {
            Ok(()) => {
                self.counters.write_bytes.fetch_add(len, Ordering::Relaxed);
            }
            // A closed pool is not an error of the device.
            Err(error) if error.kind() == Kind::Closed => {}
            Err(error) => self.count_write_error((IoKind::Write, offset, len), error),
        }
        (result.map_err(|error| error.with_at(|at| at.vdev = Some(self.guid()))), is_flush_due)
    }

    /// Flushes if a flush is due ([`Unflushed::is_flush_due`]). The flush of a leaf that failed
    /// waits for the writes in flight on it: a caller that holds a write to another leaf would keep
    /// the flush of that leaf waiting, and two such callers each other.
    pub(crate) async fn flush_if_due(&self) {
        // Concurrent callers skip the flush once this one is done; they may be writes of one task.
        // A failure is in the log, and the next flush tries again.
        drop(branch(self.flush_if(Unflushed::is_flush_due)).await);
    }

    fn count_write_error(&self, (kind, offset, len): (IoKind, u64, u64), error: &Error) {
        self.mark_failed();
        if self.watch.failed(kind, offset, len, error) {
            self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes durable all writes since the last flush. An error carries the txgs that may be lost,
    /// which are in the dirty time log already.
    pub(crate) async fn flush(&self) -> std::result::Result<(), (TxgRanges, Error)> {
        self.flush_if(|_| true).await
    }

    /// Like [`flush`](Self::flush), but does nothing if `is_due` is false once earlier flushes
    /// ended.
    async fn flush_if(
        &self,
        is_due: impl Fn(&Unflushed) -> bool + Send,
    ) -> std::result::Result<(), (TxgRanges, Error)> {
        loop {
            // A leaf out of service is not flushed: its log has the txgs of its unflushed writes.
            let access = self.access().filter(|_| self.is_writable());
            let Some(access) = access else { return Ok(()) };
            // One flush at a time: writes that another flush covers are durable only when it has
            // returned.
            let _one_flush = access.flushing.lock().await;
            let is_suspect = self.unflushed().is_suspect();
            // Held off before the buffered writes are collected: a later write at the same offset
            // must be among them, or come after them.
            let held_off =
                if is_suspect { Some(access.take_permits(WRITES_MAX).await) } else { None };
            let flush = {
                let mut unflushed = self.unflushed();
                if !self.is_current_device(&access)
                    || (unflushed.is_suspect() && held_off.is_none())
                {
                    // The device changed, or a write failed just now.
                    continue;
                }
                if !is_due(&unflushed) {
                    return Ok(());
                }
                unflushed.begin_flush()
            };
            let Some(flush) = flush else { return Ok(()) };
            let result = access.rewrite_and_flush(&flush).await;
            let outcome = self.unflushed().finish_flush(&flush, result.is_ok());
            match (outcome, result) {
                (FlushResult::Durable, _) => {
                    self.counters.flushes.fetch_add(1, Ordering::Relaxed);
                    if flush.is_suspect {
                        self.clear_failed_flushes();
                    }
                    return Ok(());
                }
                (FlushResult::Failed(txgs), Err(error)) => {
                    if error.kind() != Kind::Closed {
                        self.count_write_error((IoKind::Flush, 0, 0), &error);
                    }
                    self.note_failed_flush(&txgs);
                    return Err((txgs, error.with_at(|at| at.vdev = Some(self.guid()))));
                }
                _ => {}
            }
        }
    }

    /// Whether `access` is the device in use.
    fn is_current_device(&self, access: &Arc<DeviceAccess>) -> bool {
        self.access().is_some_and(|now| Arc::ptr_eq(&now, access))
    }

    /// Reads from its device; `offset` counts from the start of the device.
    pub(crate) async fn read(&self, offset: u64, len: usize, class: IoClass) -> Result<Buf> {
        let Some(access) = self.access() else {
            return Err(self.no_device(offset));
        };
        let _in_flight = InFlight::start(&self.counters.in_flight);
        let result = access.queue.read_directly(offset, len, class).await;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(buf) => {
                self.counters.bytes.fetch_add(len as u64, Ordering::Relaxed);
                Ok(buf)
            }
            Err(error) => {
                if error.kind() != Kind::Closed {
                    self.mark_failed();
                    if self.watch.failed(IoKind::Read, offset, len as u64, &error) {
                        self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(error.with_at(|at| at.vdev = Some(self.guid())))
            }
        }
    }

    /// Like [`read`](Self::read), but an error is neither returned nor counted.
    pub(crate) async fn read_extent(&self, offset: u64, len: usize, class: IoClass) -> Option<Buf> {
        let access = self.access()?;
        let _in_flight = InFlight::start(&self.counters.in_flight);
        access.queue.read_directly(offset, len, class).await.ok()
    }
}

impl DeviceAccess {
    fn new(device: Arc<dyn Device>, watch: &Arc<LeafWatch>) -> Arc<Self> {
        let handle = Revocable::new(device);
        let injector = Injector::new(Arc::clone(&handle), Arc::clone(&watch.injections));
        let queue = Queue::watched(injector, Arc::clone(watch));
        let write_permits = Arc::new(Semaphore::new(WRITES_MAX as usize));
        Arc::new(Self {
            handle,
            queue,
            watch: Arc::clone(watch),
            flushing: AsyncMutex::new(Rank::LeafFlush, ()),
            write_permits,
        })
    }

    /// The device.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.handle
    }

    /// Takes `count` write permits, in the order of the calls.
    async fn take_permits(&self, count: u32) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.write_permits).acquire_many_owned(count).await.ok()
    }

    /// Flushes the device. First writes the buffered writes again if necessary.
    async fn rewrite_and_flush(&self, flush: &FlushInProgress) -> Result<()> {
        for parts in &flush.writes {
            self.queue.write(IoClass::AsyncWrite, parts).await?;
        }
        let _running = self.watch.begin_flush();
        self.queue.device().flush().await
    }
}

impl Dtl {
    fn add(&mut self, txgs: &TxgRanges) {
        self.scrub = self.scrub.union(txgs);
        let missing = self.missing.union(txgs);
        if missing != self.missing {
            self.missing = missing;
            self.is_changed = true;
        }
    }

    /// Replaces the log by a subset.
    fn shrink(&mut self, missing: TxgRanges) {
        self.is_changed |= missing != self.missing;
        self.unflushed_txgs = self.unflushed_txgs.intersection(&missing);
        self.missing = missing;
        self.is_known = true;
    }
}

/// I/O to a leaf that has no device, or that must not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("vdev {guid} has no device")]
pub struct NoDevice {
    /// Guid of the leaf.
    pub guid: u64,
}

/// Returns the error for I/O to a closed tree.
pub(crate) fn closed() -> Error {
    Error::new(Kind::Closed, TreeClosed)
}

/// I/O to a pool that was closed: exported, destroyed, or closed by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pool was closed")]
pub struct TreeClosed;

/// A write to a leaf whose flushes fail and whose buffer of unflushed writes is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("vdev {guid}: flushes fail, and its buffer of unflushed writes is full")]
pub struct NeverFlushes {
    /// Guid of the leaf.
    pub guid: u64,
}

/// A write that was admitted, until it is finished.
#[derive(Debug)]
pub(crate) struct AdmittedWrite<'a> {
    access: Arc<DeviceAccess>,
    /// Generation of the leaf when the write began.
    generation: u64,
    _permit: Option<OwnedSemaphorePermit>,
    _in_flight: InFlight<'a>,
}

impl AdmittedWrite<'_> {
    /// The queue to which the write is submitted.
    pub(crate) fn queue(&self) -> &Queue {
        &self.access.queue
    }
}

#[cfg(test)]
mod tests;
