//! Padding of RAID-Z writes with long records: illumos bug #8005, from recorded writes.
//!
//! ```text
//!   vdev   | r0 ............ pad | r1 ............ pad | r2 ............ pad | r3 ...
//!   looked at: every sector from here to ----------------------------------> here
//! ```
//!
//! Each device takes a while for a write, so that all writes of a file are queued together except
//! the first ones, which are ignored.
//!
//! The padding sectors, and those that the bug omitted, follow from the arithmetic of spec 06 §12,
//! not from the code under test; the affected layouts from the bug report.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, Event, Image, ImageDevice, Log, Recorder};
use cenote_dmu::live::ObjectSpec;
use cenote_engine::{ApplyOptions, Engine};
use cenote_ondisk::object_type::ObjectType;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{BoxFuture, Buf, BufMut, Result, Rng, World, simulate, sleep, tunables};
use cenote_testkit::rng::wants_all;

/// Size of a device.
const SIZE: u64 = 128 << 20;
/// Offset of a vdev's first byte on a device.
const DATA_START: u64 = 4 << 20;
/// The aggregation limit at that time, and of SSDs today.
const LIMIT: u64 = 128 << 10;
/// Record sizes.
const RECORDS: [u64; 4] = [128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Number of records of one size, and of those that find the queues empty.
const COUNT: u64 = 7;
const FIRST: usize = 2;
/// Steps of other tasks during a write.
const STEPS: usize = 200;
/// Maximum width in the report.
const WIDTH_MAX: u64 = 10;

/// A RAID-Z layout with a record size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    record: u64,
    ashift: u64,
    nparity: u64,
    width: u64,
}

impl Case {
    /// Returns the affected cases of the report.
    fn of_report() -> BTreeSet<Self> {
        let rows: [(u64, u64, [&[u64]; 3]); 6] = [
            (256 << 10, 9, [&[], &[4], &[]]),
            (256 << 10, 12, [&[], &[4], &[]]),
            (512 << 10, 9, [&[], &[4, 5, 6], &[]]),
            (512 << 10, 12, [&[4], &[4, 5, 6], &[]]),
            (1 << 20, 9, [&[4, 8], &[4, 8, 10], &[6, 8, 9, 10]]),
            (1 << 20, 12, [&[7, 8], &[4, 5, 10], &[6, 9, 10]]),
        ];
        let cases = rows.into_iter().flat_map(|(record, ashift, by_parity)| {
            (1..).zip(by_parity).flat_map(move |(nparity, widths)| {
                widths.iter().map(move |&width| Self { record, ashift, nparity, width })
            })
        });
        cases.collect()
    }

    /// Whether the report and arithmetic disagree, all for 512K: RAID-Z2 of 6 has four columns of
    /// exactly 128 KiB, and 1536 or 192 sectors in all, a multiple of three: there is no padding.
    /// RAID-Z3 of 6 has two or three padding sectors, after columns of 171 or 172 KiB.
    fn has_slip(&self) -> bool {
        self.record == 512 << 10 && self.width == 6 && self.nparity > 1
    }

    fn sectors(&self) -> u64 {
        self.record >> self.ashift
    }

    /// Returns the sectors without padding.
    fn total(&self) -> u64 {
        self.sectors() + self.nparity * self.sectors().div_ceil(self.width - self.nparity)
    }

    /// Returns the allocated sectors.
    fn allocated(&self) -> u64 {
        self.total().next_multiple_of(self.nparity + 1)
    }

    /// Whether the padding at this sector of the block was omitted: with the column before it, it
    /// is longer than the limit.
    fn is_left_out(&self, pad: u64) -> bool {
        let columns = self.width.min(self.total());
        let column = pad % columns;
        let sectors = (self.total() - column).div_ceil(columns);
        (sectors + 1) << self.ashift > LIMIT
    }
}

/// Adjacent blocks of a run, by their first sectors, and the recorded writes.
struct Written {
    case: Case,
    blocks: Vec<u64>,
    log: Log,
    since: usize,
}

impl Written {
    /// Returns the sectors of the vdev up to the last block that were not written.
    fn gaps(&self) -> BTreeSet<u64> {
        let Case { ashift, width, .. } = self.case;
        let (first, last) = (self.blocks[0], self.blocks[self.blocks.len() - 1]);
        let mut gaps: BTreeSet<u64> = (first..last).collect();
        for event in &self.log.events[self.since..] {
            let Event::Write { device, offset, parts } = event else { continue };
            let Some(offset) = offset.checked_sub(DATA_START) else { continue };
            let len: usize = parts.iter().map(|part| part.len()).sum();
            for row in offset >> ashift..(offset + len as u64) >> ashift {
                gaps.remove(&(row * width + *device as u64));
            }
        }
        gaps
    }

    /// Returns the gaps that were left when padding counted against the limit.
    fn expected(&self) -> BTreeSet<u64> {
        let pads = self.case.total()..self.case.allocated();
        let pads = pads.filter(|pad| self.case.is_left_out(*pad));
        let blocks = &self.blocks[..self.blocks.len() - 1];
        pads.flat_map(|pad| blocks.iter().map(move |block| block + pad)).collect()
    }
}

/// A device with slow writes.
#[derive(Debug)]
struct Slow(ImageDevice);

impl Device for Slow {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        self.0.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // Lets all other tasks run for a while.
            for _ in 0..STEPS {
                sleep(Duration::from_millis(1)).await;
            }
            self.0.write(offset, parts).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        self.0.discard(offset, len)
    }
}

/// Creates the pool, and writes a file of each record size.
async fn write(ashift: u64, nparity: u64, width: u64) -> Vec<Written> {
    let recorder = Recorder::new();
    let devices: Vec<Arc<dyn Device>> = (0..width)
        .map(|number| {
            let image = Image::zeroed(SIZE);
            let device = Slow(ImageDevice::new(format!("d{number}"), image.clone()));
            recorder.wrap(Arc::new(device), image)
        })
        .collect();
    let builder = PoolBuilder::of(&format!("raidz{nparity}"), devices.len());
    let engine = builder.with_ashift(ashift).with_seed(8005).create(devices).await.unwrap();
    engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    let mut written = Vec::new();
    for record in RECORDS {
        let since = recorder.len();
        let object = write_file(&engine, record).await;
        let case = Case { record, ashift, nparity, width };
        let blocks = side_by_side(case, &starts(&engine, object).await);
        // Each padding then falls on several leaves.
        assert!(blocks.len() > FIRST + 3, "{case:?}: {blocks:?}");
        let blocks = blocks[FIRST..].to_vec();
        written.push(Written { case, blocks, log: recorder.log(), since });
    }
    engine.export().await.unwrap();
    written
}

/// Writes and syncs a file of incompressible records.
async fn write_file(engine: &Engine, record: u64) -> u64 {
    let head = engine.head("tank/a").await.unwrap();
    let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, record);
    let (object, _) =
        engine.apply(&head, ApplyOptions::new(), |tx| tx.allocate(&spec)).await.unwrap();
    let mut bytes = vec![0; record as usize];
    Rng::seeded(record).fill(&mut bytes);
    for number in 0..COUNT {
        bytes[0] = number as u8;
        engine
            .apply(&head, ApplyOptions::new(), |tx| tx.write(object, number * record, &bytes))
            .await
            .unwrap();
    }
    engine.sync().await.unwrap();
    object
}

/// Returns the vdev offset of each record.
async fn starts(engine: &Arc<Engine>, object: u64) -> Vec<u64> {
    let view = engine.view().await.unwrap();
    let objset = view.dataset("tank/a").await.unwrap().open().await.unwrap();
    let dnode = objset.dnode(object).await.unwrap();
    let mut starts = Vec::new();
    for number in 0..COUNT {
        let pointer = dnode.block_pointer(0, number).await.unwrap().unwrap();
        starts.push(pointer.dvas().next().unwrap().offset);
    }
    starts.sort_unstable();
    starts
}

/// Returns the first sectors of the longest run of adjacent records.
fn side_by_side(case: Case, starts: &[u64]) -> Vec<u64> {
    let sectors: Vec<u64> = starts.iter().map(|start| start >> case.ashift).collect();
    let runs = sectors.chunk_by(|lower, upper| lower + case.allocated() == *upper);
    runs.max_by_key(|run| run.len()).unwrap().to_vec()
}

/// Returns a machine with this handling of optional writes. Leaves do one write at a time, so that
/// others are queued.
fn machine(is_limited: bool) -> World {
    let tunables = vec![
        (&tunables::OPTIONAL_IS_LIMITED, u64::from(is_limited)),
        (&tunables::ASYNC_WRITE_MIN_ACTIVE, 1),
        (&tunables::ASYNC_WRITE_MAX_ACTIVE, 1),
    ];
    World { tunables, ..World::new(8005) }
}

/// Returns all widths, or without the long form of the tests those that the report names for any
/// record size.
fn widths(ashift: u64, nparity: u64) -> Vec<u64> {
    let report = Case::of_report();
    let is_named = |width: &u64| {
        let is_it =
            |case: &Case| (case.ashift, case.nparity, case.width) == (ashift, nparity, *width);
        wants_all() || report.iter().any(is_it)
    };
    (nparity + 2..=WIDTH_MAX).filter(is_named).collect()
}

#[test]
fn raidz_padding_of_long_records_is_written() {
    let mut affected = BTreeSet::new();
    for is_limited in [false, true] {
        for (ashift, nparity) in [9, 12].into_iter().flat_map(|a| [1, 2, 3].map(|p| (a, p))) {
            for width in widths(ashift, nparity) {
                let work = write(ashift, nparity, width);
                for written in simulate(machine(is_limited), work).unwrap() {
                    let (case, gaps) = (written.case, written.gaps());
                    let expected = if is_limited { written.expected() } else { BTreeSet::new() };
                    assert_eq!(gaps, expected, "{case:?} limited: {is_limited}");
                    if !gaps.is_empty() {
                        affected.insert(case);
                    }
                }
            }
        }
    }
    let is_reported = |case: &&Case| !case.has_slip();
    let report = Case::of_report();
    let (found, said): (Vec<_>, Vec<_>) = (
        affected.iter().filter(is_reported).collect(),
        report.iter().filter(is_reported).collect(),
    );
    assert_eq!(found, said, "as in the report");
    // Where the report is wrong, the arithmetic is right.
    let slips: Vec<_> = affected.iter().filter(|case| case.has_slip()).collect();
    assert!(slips.len() == 2 && slips.iter().all(|case| case.nparity == 3), "{slips:?}");
}
