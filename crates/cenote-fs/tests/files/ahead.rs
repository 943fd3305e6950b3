//! Device reads caused by reading and writing files, as counted by the block store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_fs::mount::WriteOptions;
use cenote_fs::{FileSystem, Follow, Node};
use cenote_poolkit::PoolBuilder;
use cenote_rt::{Rng, World, simulate, sleep, tunables};

use crate::fixture::{Fixture, root};

/// Small records, so that indirect blocks matter: one points at 1024 records.
const RECORD: u64 = 4096;
const RECORDS: u64 = 4096;
/// Blocks above those of the file: four indirect blocks and the one above them.
const ABOVE: u64 = 5;

pub(crate) struct File {
    pub(crate) fixture: Fixture,
    pub(crate) object: u64,
    /// Number of times that the cache was cleared.
    times: std::cell::Cell<u64>,
}

impl File {
    /// Creates a pool on a disk, with a file of noise.
    async fn new(record: u64, records: u64) -> Self {
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(256 << 20)).await;
        let mut bytes = vec![0; (record * records) as usize];
        Rng::seeded(1).fill(&mut bytes);
        Self::of(fixture, record, &bytes).await
    }

    pub(crate) async fn of(fixture: Fixture, record: u64, bytes: &[u8]) -> Self {
        fixture.engine.properties().set("tank", "recordsize", record.into()).await.unwrap();
        fixture.engine.properties().set("tank", "atime", 0.into()).await.unwrap();
        let object = fixture.file(fixture.mount.root(), "file", bytes).await.unwrap().object;
        fixture.engine.sync().await.unwrap();
        Self { fixture, object, times: std::cell::Cell::default() }
    }

    /// Clears the cache, except for the path to the file.
    pub(crate) async fn cool(&self) {
        // The cached part of a committed tree is dropped with it.
        self.times.set(self.times.get() + 1);
        let (top, name) = (self.fixture.mount.root(), format!("cold {}", self.times.get()));
        self.fixture.file(top, &name, b"").await.unwrap();
        self.fixture.engine.sync().await.unwrap();
        self.fixture.engine.store().clear_cache();
        self.fixture.mount.attributes(self.object).await.unwrap();
    }

    async fn read(&self, offset: u64, len: u64) {
        let mut into = vec![0; len as usize];
        let count = self.fixture.mount.read(self.object, offset, &mut into).await.unwrap();
        assert_eq!(count as u64, len);
        self.settle().await;
    }

    /// Waits until all started reads have ended.
    async fn settle(&self) {
        sleep(Duration::from_millis(1)).await;
        for _ in 0..1000 {
            let before = self.reads();
            for _ in 0..20 {
                sleep(Duration::from_micros(1)).await;
            }
            if self.reads() == before {
                break;
            }
        }
    }

    pub(crate) fn reads(&self) -> u64 {
        self.fixture.engine.store().stats().blocks_read
    }

    /// Runs `work` with an empty cache; returns the number of blocks read.
    async fn cold(&self, work: impl AsyncFnOnce(&Self)) -> u64 {
        self.cool().await;
        let before = self.reads();
        work(self).await;
        self.reads() - before
    }
}

#[test]
fn prefetch_reads_sequential_files_ahead_and_every_block_once() {
    simulate(1, async {
        let file = File::new(RECORD, RECORDS).await;
        let (mut most, mut early) = (0, 0);
        let reads = file.cold(async |file| {
            let before = file.reads();
            for offset in (0..RECORD * RECORDS).step_by(16 << 10) {
                file.read(offset, 16 << 10).await;
                let needed = (offset >> 12) + 4;
                let ahead = (file.reads() - before).saturating_sub(needed);
                most = most.max(ahead);
                early += u64::from(needed > 64 && needed < RECORDS - 64 && ahead < 64);
            }
        });
        assert_eq!(reads.await, RECORDS + ABOVE, "each block once, those above it too");
        let least = tunables::PREFETCH_MIN_BYTES.default / RECORD;
        let share = tunables::BLOCK_CACHE_BYTES.default / 8 / RECORD;
        assert!((least..=share + ABOVE).contains(&most), "{most} blocks ahead at most");
        assert_eq!(early, 0, "the reader is never close behind what was read");
    })
    .unwrap();
}

#[test]
fn prefetch_reads_strides_ahead_and_nothing_between() {
    simulate(2, async {
        let file = File::new(RECORD, RECORDS).await;
        for (step, is_backwards) in [(16, false), (8, true)] {
            let mut most = 0;
            let reads = file.cold(async |file| {
                let before = file.reads();
                for number in 0..RECORDS / step {
                    let position = if is_backwards { RECORDS / step - 1 - number } else { number };
                    file.read(position * step * RECORD, RECORD).await;
                    most = most.max(file.reads() - before - number);
                }
            });
            assert_eq!(reads.await, RECORDS / step + ABOVE, "every {step}");
            assert!(most > 32, "every {step}: {most} ahead");
        }
    })
    .unwrap();
}

#[test]
fn prefetch_ignores_random_reads() {
    simulate(3, async {
        let file = File::new(RECORD, RECORDS).await;
        let mut wanted = BTreeSet::new();
        let reads = file.cold(async |file| {
            let mut rng = Rng::seeded(5);
            for _ in 0..800 {
                let record = rng.below(RECORDS);
                wanted.insert(record);
                file.read(record * RECORD + 100, 1000).await;
            }
        });
        let (reads, wanted) = (reads.await - ABOVE, wanted.len() as u64);
        assert!(reads >= wanted && reads <= wanted + wanted / 50, "{reads} for {wanted}");
    })
    .unwrap();
}

/// Reads a file in a snapshot repeatedly, as a mount does: each read opens the node again.
/// again.
async fn read_snapshot(file: &File, fs: &Arc<FileSystem>, offset: u64, len: u64) {
    let node = node(fs).await;
    let bytes = node.read_at(offset, len as usize).await.unwrap();
    assert_eq!(bytes.len() as u64, len);
    file.settle().await;
}

async fn node(fs: &Arc<FileSystem>) -> Node {
    fs.walk(b"file", Follow::Yes).await.unwrap()
}

#[test]
fn prefetch_works_in_snapshots() {
    simulate(6, async {
        let file = File::new(RECORD, RECORDS).await;
        let engine = &file.fixture.engine;
        engine.snapshots().create(vec!["tank@s".into()]).await.unwrap();
        // The reader has no history, but the path to the file is in memory.
        let cold = async || {
            engine.store().clear_cache();
            let fs = FileSystem::open_snapshot(engine, "tank@s").await.unwrap();
            node(&fs).await;
            (fs, file.reads())
        };

        let ((fs, before), mut most) = (cold().await, 0);
        for offset in (0..RECORD * RECORDS).step_by(16 << 10) {
            read_snapshot(&file, &fs, offset, 16 << 10).await;
            most = most.max((file.reads() - before).saturating_sub((offset >> 12) + 4));
        }
        assert_eq!(file.reads() - before, RECORDS + ABOVE, "each block once, those above it too");
        let least = tunables::PREFETCH_MIN_BYTES.default / RECORD;
        let share = tunables::BLOCK_CACHE_BYTES.default / 8 / RECORD;
        assert!((least..=share + ABOVE).contains(&most), "{most} blocks ahead at most");

        let ((fs, before), mut most) = (cold().await, 0);
        for number in 0..RECORDS / 16 {
            read_snapshot(&file, &fs, number * 16 * RECORD, RECORD).await;
            most = most.max(file.reads() - before - number);
        }
        assert_eq!(file.reads() - before, RECORDS / 16 + ABOVE, "every 16th block, nothing else");
        assert!(most > 32, "{most} steps ahead");

        let ((fs, before), mut rng) = (cold().await, Rng::seeded(5));
        let mut wanted = BTreeSet::new();
        for _ in 0..800 {
            let record = rng.below(RECORDS);
            wanted.insert(record);
            read_snapshot(&file, &fs, record * RECORD + 100, 1000).await;
        }
        let (reads, wanted) = (file.reads() - before - ABOVE, wanted.len() as u64);
        assert!(reads >= wanted && reads <= wanted + wanted / 50, "{reads} for {wanted}");
    })
    .unwrap();
}

#[test]
fn zfs_prefetch_disable_switches_reading_ahead_off() {
    let tunables = vec![(&tunables::PREFETCH_DISABLE, 1)];
    simulate(World { tunables, ..World::new(4) }, async {
        let file = File::new(RECORD, RECORDS).await;
        let reads = file.cold(async |file| {
            for offset in (0..RECORD * RECORDS / 2).step_by(16 << 10) {
                file.read(offset, 16 << 10).await;
            }
        });
        // Two indirect blocks and the one above them.
        assert_eq!(reads.await, RECORDS / 2 + 3);
    })
    .unwrap();
}

#[test]
fn overwritten_whole_records_are_not_read() {
    const LARGE: u64 = 128 << 10;
    simulate(5, async {
        let file = File::new(LARGE, 10).await;
        let (mount, me) = (&file.fixture.mount, root());
        // (offset, bytes, records that must be read)
        for (offset, len, expected) in [
            (64 << 10, 300 << 10, 2),
            (LARGE, LARGE, 0),
            (LARGE, 3 * LARGE, 0),
            (5 * LARGE, LARGE + 1, 1),
            (7 * LARGE + 100, 200, 1),
            (10 * LARGE, 1000, 0),
            (15 * LARGE + 5, 1000, 0),
        ] {
            let (bytes, options) = (vec![3; len as usize], WriteOptions::default());
            file.cool().await;
            // The path to the records, and reads of the data set before the write.
            file.read(9 * LARGE, 1).await;
            let whole = vec![4; LARGE as usize];
            mount.write(&me, file.object, 8 * LARGE, &whole, options).await.unwrap();
            let before = file.reads();
            mount.write(&me, file.object, offset, &bytes, options).await.unwrap();
            assert_eq!(file.reads() - before, expected, "{len} bytes at {offset}");
            file.fixture.engine.sync().await.unwrap();
        }
    })
    .unwrap();
}
