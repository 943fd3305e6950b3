use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use cenote_device::{Fault, FaultyDevice, Image, ImageDevice, InjectedFault, WriteFault};
use cenote_rt::{BoxFuture, Rng, tunables};

use super::*;
use crate::raidz::{Raidz, Reflow};

fn limits() -> Limits {
    Limits {
        aggregation: 128 << 10,
        is_optional_limited: false,
        ..Limits::now(&Load::default(), false)
    }
}

fn request(direction: Direction, class: IoClass, offset: u64, len: u64) -> Request {
    Request { direction, class, offset, len, is_pad: false, has_caller: true }
}

fn write(offset: u64, len: u64) -> Request {
    request(Direction::Write, IoClass::AsyncWrite, offset, len)
}

fn pad(offset: u64, len: u64) -> Request {
    Request { is_pad: true, ..write(offset, len) }
}

/// An issue of one request of this class.
fn one_of(class: IoClass) -> Issue {
    Issue::of(request(Direction::Read, class, 0, 512))
}

/// Offset, length, and number of parts.
type Issued = (u64, u64, usize);

/// Returns all I/Os that the scheduler issues when each one ends at once.
fn drain(scheduler: &mut Scheduler, limits: &Limits) -> Vec<Issued> {
    let mut issued = Vec::new();
    loop {
        match scheduler.next(limits) {
            Next::Wait => return issued,
            Next::Drop(_) => {}
            Next::Issue(issue) => {
                scheduler.finish(&issue, limits);
                issued.push((issue.offset, issue.len, issue.parts.len()));
            }
        }
    }
}

#[test]
fn neighbours_are_aggregated_up_to_the_limit_and_over_read_gaps() {
    let sync = |offset, len| request(Direction::Read, IoClass::SyncRead, offset, len);
    let scrub = |offset, len| request(Direction::Read, IoClass::Scrub, offset, len);
    let k = 1 << 10;
    let rows: [(&[Request], &[Issued]); 10] = [
        (&[write(0, 64 * k), write(64 * k, 64 * k)], &[(0, 128 * k, 2)]),
        (&[write(0, 64 * k), write(64 * k, 65 * k)], &[(0, 64 * k, 1), (64 * k, 65 * k, 1)]),
        (&[write(4 * k, 4 * k), write(0, 4 * k)], &[(0, 8 * k, 2)]),
        (&[write(0, k), write(k + 512, k)], &[(0, k, 1), (k + 512, k, 1)]),
        (&[write(0, k), write(512, k)], &[(0, k, 1), (512, k, 1)]),
        (&[sync(0, 4 * k), sync(36 * k, 4 * k)], &[(0, 40 * k, 2)]),
        (&[sync(0, 4 * k), sync(36 * k + 1, 4 * k)], &[(0, 4 * k, 1), (36 * k + 1, 4 * k, 1)]),
        (
            &[sync(8 * k, 4 * k), sync(0, 8 * k), scrub(12 * k, k)],
            &[(0, 12 * k, 2), (12 * k, k, 1)],
        ),
        (&[write(0, k), sync(k, k)], &[(0, k, 1), (k, k, 1)]),
        (&[write(0, 256 * k)], &[(0, 256 * k, 1)]),
    ];
    for (row, (requests, want)) in rows.into_iter().enumerate() {
        let mut scheduler = Scheduler::default();
        for request in requests {
            scheduler.push(*request, 0);
        }
        assert_eq!(drain(&mut scheduler, &limits()), want, "row {row}");
    }
    let mut scheduler = Scheduler::default();
    scheduler.push(write(0, k), 0);
    scheduler.push(write(k, k), 0);
    let none = Limits { aggregation: 0, ..limits() };
    assert_eq!(drain(&mut scheduler, &none), [(0, k, 1), (k, k, 1)]);
}

#[test]
fn pads_only_join_writes() {
    let k = 1 << 10;
    let rows: [(&[Request], &[Issued]); 8] = [
        // Between two, trailing, leading, alone.
        (&[write(0, k), pad(k, 512), write(k + 512, k)], &[(0, 2 * k + 512, 3)]),
        (&[write(0, k), pad(k, 512)], &[(0, k, 1)]),
        (&[pad(0, 512), write(512, k)], &[(0, k + 512, 2)]),
        (&[pad(0, 512)], &[]),
        // Two pads in a row are one gap.
        (&[write(0, k), pad(k, k), pad(2 * k, k), write(3 * k, k)], &[(0, 4 * k, 4)]),
        // The limit is reached: the pad goes with the request before it if one follows.
        (
            &[write(0, 128 * k), pad(128 * k, k), write(129 * k, 128 * k)],
            &[(0, 129 * k, 2), (129 * k, 128 * k, 1)],
        ),
        (&[write(0, 128 * k), pad(128 * k, k)], &[(0, 128 * k, 1)]),
        // A pad longer than the longest gap that is bridged.
        (
            &[write(0, 128 * k), pad(128 * k, 8 * k), write(136 * k, 128 * k)],
            &[(0, 128 * k, 1), (136 * k, 128 * k, 1)],
        ),
    ];
    for (row, (requests, want)) in rows.into_iter().enumerate() {
        let mut scheduler = Scheduler::default();
        for request in requests {
            scheduler.push(*request, 0);
        }
        assert_eq!(drain(&mut scheduler, &limits()), want, "row {row}");
        assert_eq!(scheduler.queued(), [0; CLASSES], "row {row}");
    }
}

/// Counts the sectors that a stream of records leaves unwritten between its first and its last.
fn gaps(raidz: &Raidz, record: u64, limits: &Limits) -> usize {
    let mut scheduler: BTreeMap<usize, Scheduler> = BTreeMap::new();
    let sector = 1 << raidz.ashift;
    let mut at = 0;
    for _ in 0..40 {
        for (_, column) in raidz.map(at, record, 0, Reflow::default()).columns() {
            let write = write(column.offset as u64, column.len as u64);
            scheduler.entry(column.child).or_default().push(write, 0);
        }
        for (child, offset) in raidz.pads(at, record, 0) {
            scheduler.entry(child).or_default().push(pad(offset as u64, sector), 0);
        }
        at += raidz.asize(record, 0);
    }
    let mut gaps = 0;
    for scheduler in scheduler.values_mut() {
        let mut end = None;
        let mut issued = drain(scheduler, limits);
        issued.sort_unstable();
        for (offset, len, _) in issued {
            gaps += usize::from(end.is_some_and(|end| end != offset));
            end = Some(offset + len);
        }
    }
    gaps
}

#[test]
fn pads_of_long_records_leave_no_gap_as_they_did_before_8005() {
    // Widths named in the report, by record, ashift and parity (spec 06 §12).
    let affected = [
        (1 << 20, 9, [&[4, 8][..], &[4, 8, 10], &[6, 8, 9, 10]]),
        (1 << 20, 12, [&[7, 8], &[4, 5, 10], &[6, 9, 10]]),
        (512 << 10, 9, [&[], &[4, 5], &[6]]),
        (512 << 10, 12, [&[4], &[4, 5], &[6]]),
        (256 << 10, 9, [&[], &[4], &[]]),
        (256 << 10, 12, [&[], &[4], &[]]),
        (128 << 10, 9, [&[], &[], &[]]),
        (128 << 10, 12, [&[], &[], &[]]),
    ];
    let fixed = limits();
    let before = Limits { is_optional_limited: true, ..limits() };
    for (record, ashift, widths) in affected {
        for (nparity, widths) in (1..).zip(widths) {
            for width in nparity + 2..=12 {
                let expand_txgs = Vec::new();
                let raidz = Raidz { ashift, width, nparity, expand_txgs, is_expanding: false };
                let row = format!("{record} ashift {ashift} raidz{nparity} of {width}");
                assert_eq!(gaps(&raidz, record, &fixed), 0, "{row}");
                let has_gaps = gaps(&raidz, record, &before) > 0;
                assert_eq!(has_gaps, widths.contains(&width), "{row}, before");
            }
        }
    }
}

#[test]
fn io_classes_get_their_minimum_round_robin_and_then_more_by_rank() {
    use IoClass::{AsyncRead, AsyncWrite, SyncRead, Trim};
    let mut scheduler = Scheduler::default();
    for n in 0..20_u64 {
        for (class, direction) in [
            (IoClass::SyncRead, Direction::Read),
            (IoClass::AsyncRead, Direction::Read),
            (IoClass::AsyncWrite, Direction::Write),
            (IoClass::Trim, Direction::Discard),
        ] {
            // Far apart, so that nothing is aggregated.
            let offset = n << 30 | (class as u64) << 25;
            scheduler.push(request(direction, class, offset, 512), 0);
        }
    }
    let limits = limits();
    let mut next = || match scheduler.next(&limits) {
        Next::Issue(issue) => Some(issue.class),
        _ => None,
    };
    let order: Vec<_> = std::iter::from_fn(&mut next).collect();
    assert_eq!(order[..6], [AsyncRead, AsyncWrite, Trim, SyncRead, AsyncWrite, SyncRead]);
    let counts = [SyncRead, AsyncRead, AsyncWrite, Trim]
        .map(|class| order.iter().filter(|found| **found == class).count());
    assert_eq!(counts, [10, 3, 2, 2]);
    scheduler.finish(&one_of(AsyncWrite), &limits);
    assert!(matches!(scheduler.next(&limits), Next::Issue(issue) if issue.class == AsyncWrite));
    assert_eq!(scheduler.next(&limits), Next::Wait);
    let few = Limits { max_active: 17, ..limits.clone() };
    scheduler.finish(&one_of(SyncRead), &few);
    assert!(matches!(scheduler.next(&few), Next::Issue(_)));
    assert_eq!(scheduler.next(&few), Next::Wait);
}

#[test]
fn offsets_rise_within_a_slice_of_age() {
    let mut scheduler = Scheduler::default();
    let second = 1 << 30;
    // The last request comes a second later, and would be the nearest.
    for (offset, now) in [(50, 0), (10, 0), (30, 0), (35, second)] {
        scheduler.push(write(offset << 20, 512), now);
    }
    let one = Limits { max_active: 1, ..limits() };
    let mut order = Vec::new();
    while let Next::Issue(issue) = scheduler.next(&one) {
        order.push(issue.offset >> 20);
        scheduler.finish(&issue, &one);
        if order.len() == 2 {
            // Behind the head: served in the next round.
            scheduler.push(write(20 << 20, 512), 0);
        }
    }
    assert_eq!(order, [10, 30, 50, 20, 35]);
}

#[test]
fn scrub_is_limited_by_credit_while_the_leaf_is_busy() {
    let limits = limits();
    let mut scheduler = Scheduler::default();
    for n in 0..100_u64 {
        scheduler.push(request(Direction::Read, IoClass::Scrub, n << 30, 512), 0);
    }
    let issued = |scheduler: &mut Scheduler| {
        let mut count = 0;
        while let Next::Issue(_) = scheduler.next(&limits) {
            count += 1;
        }
        count
    };
    // An idle leaf: one by one, then three at once.
    for single in 0..5 {
        assert_eq!(issued(&mut scheduler), 1, "{single}");
        scheduler.finish(&one_of(IoClass::Scrub), &limits);
    }
    assert_eq!(issued(&mut scheduler), 3);
    (0..3).for_each(|_| scheduler.finish(&one_of(IoClass::Scrub), &limits));
    // A busy one: the credit of the first interactive I/O, then five for each that ends.
    for n in 0..10_u64 {
        scheduler.push(request(Direction::Read, IoClass::SyncRead, n << 30 | 1 << 29, 512), 0);
    }
    assert_eq!(issued(&mut scheduler), 11);
    scheduler.finish(&one_of(IoClass::Scrub), &limits);
    assert_eq!(issued(&mut scheduler), 0);
    scheduler.finish(&one_of(IoClass::SyncRead), &limits);
    for _ in 0..5 {
        assert_eq!(issued(&mut scheduler), 1);
        scheduler.finish(&one_of(IoClass::Scrub), &limits);
    }
    assert_eq!(issued(&mut scheduler), 0);
}

/// A random request; pads directly follow the request before, as those of RAID-Z do.
fn random_request(rng: &mut Rng, last: Option<Request>) -> Request {
    let sectors = 1 + rng.below(200);
    if let Some(last) = last.filter(|last| last.direction == Direction::Write)
        && rng.below(2) == 0
    {
        let is_pad = rng.below(2) == 0;
        let len = if is_pad { 512 } else { sectors * 512 };
        return Request { offset: last.end_of(), len, is_pad, ..last };
    }
    let (direction, class) = match rng.below(10) {
        0 => (Direction::Discard, IoClass::Trim),
        1 => (Direction::Write, IoClass::SyncWrite),
        2..5 => (Direction::Write, IoClass::AsyncWrite),
        5 => (Direction::Write, IoClass::Rebuild),
        6 => (Direction::Read, IoClass::Scrub),
        7 => (Direction::Read, IoClass::AsyncRead),
        _ => (Direction::Read, IoClass::SyncRead),
    };
    let has_caller = rng.below(4) > 0;
    let request = request(direction, class, rng.below(5000) * 512, sectors * 512);
    Request { has_caller, ..request }
}

impl Request {
    fn end_of(&self) -> u64 {
        self.offset + self.len
    }
}

fn check_issue(issue: &Issue, limits: &Limits) {
    let (first, last) = (issue.parts[0].1, issue.parts[issue.parts.len() - 1].1);
    assert_eq!((issue.offset, issue.offset + issue.len), (first.offset, last.end_of()));
    let gap = if issue.direction == Direction::Read { limits.read_gap } else { 0 };
    for pair in issue.parts.windows(2) {
        let (lower, upper) = (pair[0].1, pair[1].1);
        assert!(upper.offset >= lower.end_of() && upper.offset - lower.end_of() <= gap);
    }
    assert!(issue.parts.iter().all(|(_, part)| part.direction == issue.direction));
    let required = issue.parts.iter().rev().skip_while(|(_, part)| part.is_pad);
    let end = required.map(|(_, part)| part.end_of()).next().expect("something is required");
    assert!(issue.parts.len() == 1 || end - issue.offset <= limits.aggregation);
}

#[test]
fn every_request_is_issued_once_within_the_limits() {
    for seed in 0..60 {
        let mut rng = Rng::seeded(seed);
        let is_optional_limited = seed % 3 == 0;
        let limits = Limits { max_active: 1 + rng.below(40), is_optional_limited, ..limits() };
        let mut scheduler = Scheduler::default();
        let mut open: BTreeMap<u64, Request> = BTreeMap::new();
        let mut active: Vec<Issue> = Vec::new();
        let (mut last, mut now) = (None, 0);
        for step in 0..3000 {
            let is_draining = step > 2000;
            now += rng.below(1 << 28);
            if !is_draining && rng.below(3) > 0 {
                let request = random_request(&mut rng, last);
                last = Some(request);
                let mut queued = scheduler.clone();
                let id = queued.push(request, now);
                let is_next = match queued.next(&limits) {
                    Next::Issue(issue) => issue.parts.iter().any(|part| part.0 == id),
                    _ => false,
                };
                if request.direction == Direction::Read && scheduler.admit(&request, &limits) {
                    assert!(is_next, "seed {seed}: {request:?} is before others");
                    active.push(Issue::of(request));
                } else {
                    scheduler.push(request, now);
                    assert!(open.insert(id, request).is_none());
                }
            } else if !active.is_empty() {
                let issue = active.swap_remove(rng.below(active.len() as u64) as usize);
                scheduler.finish(&issue, &limits);
            }
            loop {
                match scheduler.next(&limits) {
                    Next::Wait => break,
                    Next::Drop(id) => assert!(open.remove(&id).expect("was queued").is_pad),
                    Next::Issue(issue) => {
                        check_issue(&issue, &limits);
                        for (id, request) in &issue.parts {
                            assert_eq!(open.remove(id), Some(*request), "seed {seed}");
                        }
                        let class = issue.class;
                        active.push(issue);
                        let count = active.iter().filter(|other| other.class == class).count();
                        assert!(count as u64 <= limits.max[class as usize]);
                        assert!(active.len() as u64 <= limits.max_active);
                    }
                }
            }
            assert_eq!(scheduler.queued().iter().sum::<u64>(), open.len() as u64);
            let waiting = open.values().filter(|request| request.is_ordinary()).count() as u64;
            let ordinary = waiting + active.iter().map(|issue| issue.ordinary).sum::<u64>();
            assert_eq!(scheduler.leaf_use(&limits).ordinary, ordinary, "seed {seed}");
        }
        assert!(open.is_empty() && active.is_empty(), "seed {seed}: nothing starves");
    }
}

/// A device that records the order of its writes and reads.
#[derive(Debug)]
struct Noting {
    inner: ImageDevice,
    notes: Mutex<Vec<(u64, u64)>>,
}

impl Noting {
    fn new() -> Arc<Self> {
        let inner = ImageDevice::new("noting", Image::zeroed(1 << 24));
        Arc::new(Self { inner, notes: Mutex::default() })
    }

    fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.notes.lock().expect("notes"))
    }
}

impl Device for Noting {
    fn info(&self) -> &cenote_device::DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        self.notes.lock().expect("notes").push((offset, buf.len() as u64));
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        self.notes.lock().expect("notes").push((offset, len));
        self.inner.write(offset, parts)
    }
}

fn bytes(byte: u8, len: usize) -> Buf {
    Buf::from(vec![byte; len])
}

#[test]
fn requests_submitted_together_are_aggregated() {
    let device = Noting::new();
    let queue = Queue::new(device.clone(), Arc::default());
    cenote_rt::block_on(1, async {
        let hold = queue.hold();
        let first = vec![WritePart::data(4096, bytes(1, 4096)), WritePart::pad(8192, 512)];
        let second = vec![WritePart::data(8704, bytes(2, 512)), WritePart::pad(9216, 512)];
        let writes = [first, second].map(|parts| queue.write(IoClass::AsyncWrite, &parts));
        assert_eq!(queue.stats().class(IoClass::AsyncWrite).queued, 4);
        drop(hold);
        for write in writes {
            write.await.expect("written");
        }
        assert_eq!(device.take(), [(4096, 5120)]);
        let reads = {
            let _hold = queue.hold();
            [(4096, 4096), (8192, 512), (8704, 512)]
                .map(|(offset, len)| queue.read(offset, len, IoClass::SyncRead))
        };
        let mut read = Vec::new();
        for part in reads {
            read.push(part.await.expect("read")[0]);
        }
        assert_eq!((read, device.take()), (vec![1, 0, 2], vec![(4096, 5120)]));
        queue.write(IoClass::SyncWrite, &[]).await.expect("nothing to do");
        queue.discard(4096, 512).await.expect_err("the device has none");
        queue.flush().await.expect("flushed");
    })
    .expect("runtime");
    let stats = queue.stats();
    assert_eq!((stats.written_pads, stats.dropped_pads), (1, 1));
    let writes = stats.direction(Direction::Write);
    assert_eq!((writes.operations, writes.bytes, writes.total.count()), (1, 5120, 3));
    let class = stats.class(IoClass::AsyncWrite);
    assert_eq!((class.queued, class.active, class.wait.count()), (0, 0, 3));
    assert_eq!((class.individual.sum(), class.aggregated.sum()), (4608, 5120));
}

/// A device whose reads take a millisecond.
#[derive(Debug)]
struct Slow(ImageDevice);

impl Device for Slow {
    fn info(&self) -> &cenote_device::DeviceInfo {
        self.0.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            cenote_rt::sleep(Duration::from_millis(1)).await;
            self.0.read(offset, buf).await
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        self.0.write(offset, parts)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        self.0.discard(offset, len)
    }
}

#[test]
fn direct_reads_are_limited_and_keep_their_place_until_the_device_answers() {
    let image = ImageDevice::new("slow", Image::zeroed(1 << 24));
    let queue = Queue::new(Arc::new(Slow(image)), Arc::default());
    let active = || {
        let class = *queue.stats().class(IoClass::SyncRead);
        (class.active, class.queued)
    };
    cenote_rt::simulate(1, async {
        let max = tunables::SYNC_READ_MAX_ACTIVE.get();
        let read = |n: u64| {
            let queue = queue.clone();
            let read = async move { queue.read_directly(n << 20, 512, IoClass::SyncRead).await };
            cenote_rt::spawn(read)
        };
        let mut first: Vec<_> = (0..max).map(read).collect();
        let second: Vec<_> = (max..max + 4).map(read).collect();
        cenote_rt::sleep(Duration::from_micros(1)).await;
        assert_eq!(active(), (max, 4));
        // Two callers stop waiting, but the device still reads for them.
        first.drain(..2).for_each(|read| read.abort());
        cenote_rt::sleep(Duration::from_micros(1)).await;
        assert_eq!(active(), (max, 4));
        for read in first.into_iter().chain(second) {
            read.await.expect("no panic").expect("read");
        }
        assert_eq!(active(), (0, 0));
        assert_eq!(cenote_rt::monotonic(), Duration::from_millis(2));
    })
    .expect("a runtime");
}

#[test]
fn an_error_in_an_aggregate_fails_only_its_part() {
    let image = Arc::new(ImageDevice::new("mem", Image::zeroed(1 << 20)));
    let faulty = FaultyDevice::new(image.clone(), 1)
        .with_write_range(4096..4097, WriteFault::Eio)
        .with_range(512..513, Fault::Eio);
    let queue = Queue::new(Arc::new(faulty), Arc::default());
    cenote_rt::block_on(1, async {
        let hold = queue.hold();
        let parts = [(0, 1), (4096, 2), (8192, 3)];
        let writes = parts.map(|(offset, byte)| {
            let part = WritePart::data(offset, bytes(byte, 4096));
            queue.write(IoClass::AsyncWrite, &[part])
        });
        let both =
            vec![WritePart::data(12288, bytes(4, 512)), WritePart::data(4096, bytes(4, 512))];
        let both = queue.write(IoClass::SyncWrite, &both);
        drop(hold);
        let mut outcomes = Vec::new();
        for write in writes {
            outcomes.push(write.await.map_err(|error| error.at().offset));
        }
        assert_eq!(outcomes, [Ok(()), Err(Some(4096)), Ok(())]);
        let error = both.await.expect_err("one of two");
        assert!(error.cause::<InjectedFault>().is_some(), "{error}");
        let hold = queue.hold();
        let reads = [0, 512, 1024].map(|offset| queue.read(offset, 512, IoClass::SyncRead));
        drop(hold);
        let mut outcomes = Vec::new();
        for read in reads {
            outcomes.push(read.await.is_ok());
        }
        assert_eq!(outcomes, [true, false, true]);
    })
    .expect("runtime");
}

#[test]
fn a_submitted_write_completes_even_if_its_future_is_dropped() {
    let image = Arc::new(ImageDevice::new("mem", Image::zeroed(1 << 24)));
    let queue = Queue::new(image.clone(), Arc::default());
    cenote_rt::block_on(2, async {
        for n in 0..1000_u64 {
            let part = WritePart::data(n * 8192, bytes(n as u8 | 1, 4096));
            let write = queue.write(IoClass::AsyncWrite, &[part]);
            let read = queue.read(n * 8192, 4096, IoClass::SyncRead);
            if n % 3 == 0 {
                drop((write, read));
            } else {
                write.await.expect("written");
                read.await.expect("read");
            }
        }
        // The last request is carried out last, or was aggregated with the one before it.
        let is_busy = |class| {
            let stats = queue.stats();
            stats.class(class).queued > 0 || stats.class(class).active > 0
        };
        while is_busy(IoClass::AsyncWrite) || is_busy(IoClass::SyncRead) {
            queue.flush().await.expect("flushed");
        }
    })
    .expect("runtime");
    let image = image.image();
    for n in 0..1000_u64 {
        let mut found = [0];
        image.read_at(n * 8192 + 4095, &mut found);
        assert_eq!(found[0], n as u8 | 1, "{n}");
    }
    assert_eq!(queue.stats().direction(Direction::Read).total.count(), 1000);
}

#[test]
fn a_dropped_queue_completes_its_requests() {
    let image = Arc::new(ImageDevice::new("mem", Image::zeroed(1 << 20)));
    cenote_rt::block_on(1, async {
        let queue = Queue::new(image.clone(), Arc::default());
        let part = WritePart::data(4096, bytes(7, 512));
        let write = queue.write(IoClass::AsyncWrite, &[part]);
        drop(queue);
        write.await.expect("written");
    })
    .expect("runtime");
    let mut found = [0];
    image.image().read_at(4607, &mut found);
    assert_eq!(found, [7]);
}

#[test]
fn a_plug_delays_async_writes_and_nothing_else() {
    let (device, load) = (Noting::new(), Arc::new(Load::default()));
    let queue = Queue::new(device.clone(), Arc::clone(&load));
    let other = Noting::new();
    let beside = Queue::new(other.clone(), Arc::clone(&load));
    let part = |n: u64| [WritePart::data(n * 4096, bytes(1, 4096))];
    cenote_rt::simulate(1, async {
        let plugs = [Plug::new(&load), Plug::new(&load)];
        let mut writes = vec![beside.write(IoClass::AsyncWrite, &part(0))];
        for n in 0..20 {
            writes.push(queue.write(IoClass::AsyncWrite, &part(n)));
            cenote_rt::yield_now().await;
        }
        queue.write(IoClass::SyncWrite, &part(100)).await.expect("written");
        queue.read(1 << 20, 512, IoClass::SyncRead).await.expect("read");
        assert_eq!(device.take(), [(100 * 4096, 4096), (1 << 20, 512)]);
        for plug in plugs {
            assert_eq!((device.take(), other.take()), (Vec::new(), Vec::new()));
            drop(plug);
        }
        for write in writes {
            write.await.expect("written");
        }
        assert_eq!((device.take(), other.take()), (vec![(0, 20 * 4096)], vec![(0, 4096)]));
        // Afterwards the queue works as before.
        queue.write(IoClass::AsyncWrite, &part(7)).await.expect("written");
        assert_eq!(device.take(), [(7 * 4096, 4096)]);
    })
    .expect("a runtime");
}

#[test]
fn plugs_of_many_threads_leave_nothing_behind() {
    let image = Arc::new(ImageDevice::new("mem", Image::zeroed(1 << 24)));
    let load = Arc::new(Load::default());
    let queue = Queue::new(image, Arc::clone(&load));
    cenote_rt::block_on(2, async {
        let writers = (0..4).map(|writer| {
            let (queue, load) = (queue.clone(), Arc::clone(&load));
            cenote_rt::spawn(async move {
                for n in 0..500 {
                    let plug = Plug::new(&load);
                    let writes = [0, 1, 2].map(|part| {
                        let at = (writer * 500 + n) * 3 + part;
                        let part = WritePart::data(at * 512, bytes(1, 512));
                        queue.write(IoClass::AsyncWrite, &[part])
                    });
                    drop(plug);
                    for write in writes {
                        write.await.expect("written");
                    }
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("no panic");
        }
    })
    .expect("a runtime");
    let class = *queue.stats().class(IoClass::AsyncWrite);
    assert_eq!((class.queued, class.active, class.wait.count()), (0, 0, 6000));
}

#[test]
#[should_panic(expected = "ended twice")]
fn an_io_that_ends_twice_is_found() {
    let mut scheduler = Scheduler::default();
    scheduler.push(write(0, 4096), 0);
    let limits = limits();
    let Next::Issue(issue) = scheduler.next(&limits) else { panic!("not issued") };
    scheduler.finish(&issue, &limits);
    scheduler.finish(&issue, &limits);
}

#[test]
fn a_write_without_all_of_its_bytes_is_found() {
    let device: Arc<dyn Device> = Arc::new(ImageDevice::new("a", Image::zeroed(1 << 20)));
    let part = vec![Buf::from(vec![1; 512])];
    let written = cenote_rt::block_on(
        1,
        transfer(&device, (Direction::Write, IoClass::SyncWrite), (0, 1024), part),
    );
    assert_eq!(written.unwrap().unwrap_err().kind(), Kind::Invariant);
}
