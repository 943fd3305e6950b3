//! Worlds of the experiment: a scrub on a modelled disk, with other reads beside it.

use std::sync::Arc;
use std::time::Duration;

use cenote_device::model::{Op, table};
use cenote_device::pattern;
use cenote_engine::{ApplyOptions, Engine, ScrubOptions, ThrottleModel};
use cenote_ondisk::scan::ScanFunc;
use cenote_rt::tunables::{self, Tunable};
use cenote_rt::{Kind, Result, Rng, monotonic, sleep, spawn};
use cenote_vdev::create::Redundancy;
use cenote_vdev::{DATA_START, IoClass};

use crate::machine::{Machine, Recorded, new_file, world};
use crate::place::Place;

/// Bytes of the disk; those of its model, so that seeks are as long as they should be.
const DISK_BYTES: u64 = 2_000_000_000_000;
/// Bytes of a file besides twice the data.
const FILE_BYTES: u64 = 1 << 30;
const RECORD: u64 = 128 << 10;
const OTHER: u64 = 8 << 10;
const PROCESSORS: usize = 4;
/// Why a task of a load has a result.
const ENDS: &str = "tasks of a load end with their world";
/// Seconds before the measured ones: a scrub reads metadata first, and feedback takes some time.
const SETTLE_S: u64 = 10;
/// Seconds between two changes of the tunables.
pub(super) const CHANGE_S: u64 = 12;

/// A throttle with its setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    /// No scrub.
    Off,
    /// Ticks of 10 ms before each read (`zfs_scrub_delay`).
    Delay(u64),
    /// Limits of the queue, as in OpenZFS since 0.8.
    QueueLimits,
    /// A share of the disk's time that slows others down by this percentage.
    Share(u64),
}

impl Setting {
    pub(super) const ALL: [Self; 9] = [
        Self::Off,
        Self::Delay(4),
        Self::Delay(2),
        Self::Delay(1),
        Self::Delay(0),
        Self::QueueLimits,
        Self::Share(10),
        Self::Share(20),
        Self::Share(25),
    ];

    pub(super) fn name(self) -> String {
        match self {
            Self::Off => "no scrub".to_owned(),
            Self::Delay(ticks) => format!("delay {ticks}"),
            Self::QueueLimits => "openzfs-2.3".to_owned(),
            Self::Share(percent) => format!("share {percent}%"),
        }
    }

    /// Sets the tunables of the current world.
    fn set(self) {
        let (model, values): (_, &[(&Tunable, u64)]) = match self {
            Self::Off => return,
            Self::Delay(ticks) => (ThrottleModel::Delays, &[(&tunables::SCRUB_DELAY, ticks)]),
            Self::QueueLimits => (ThrottleModel::OpenZfs, &[]),
            Self::Share(percent) => {
                (ThrottleModel::Share, &[(&tunables::SCRUB_SLOWDOWN_PCT, percent)])
            }
        };
        set(&tunables::SCAN_THROTTLE, model as u64);
        for (tunable, value) in values {
            set(tunable, *value);
        }
    }
}

fn set(tunable: &Tunable, value: u64) {
    tunable.set(value).expect("in range");
}

/// Reads of other users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// No reads.
    None,
    /// Reads per second, at equal distances.
    Regular(u64),
    /// Reads per second, at random times.
    Random(u64),
}

impl Load {
    pub(super) fn name(self) -> String {
        match self {
            Self::None => "0".to_owned(),
            Self::Regular(rate) => format!("{rate} regular"),
            Self::Random(rate) => rate.to_string(),
        }
    }

    /// Returns the time until the next read.
    fn pause(self, rng: &mut Rng) -> Duration {
        match self {
            Self::None => Duration::from_millis(10),
            Self::Regular(rate) => Duration::from_secs(1) / rate as u32,
            Self::Random(rate) => {
                let uniform = (rng.below(1 << 30) + 1) as f64 / f64::from(1 << 30);
                Duration::from_secs_f64(-uniform.ln() / rate as f64)
            }
        }
    }
}

/// Figures of the measured seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    /// MB/s and reads per second of the scrub, records of 128K.
    pub scrub: f64,
    pub reads: f64,
    /// Latencies of the other reads in milliseconds: median, 99th and 99.9th percentile.
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    /// Percent of the time in which the disk worked.
    pub busy: f64,
}

/// A second of the world with changes: when it ended, and MB/s of the scrub.
pub(super) type Sample = (f64, f64);

struct Fixture {
    engine: Arc<Engine>,
    machine: Machine,
    rng: Rng,
    /// Bytes from the first block on that others read: half of a modelled disk, and what is written
    /// of a file, the rest of which needs no disk.
    others_span: u64,
}

impl Fixture {
    async fn new(place: &Place, seed: u64, records: u64) -> Result<Self> {
        let params = table::find("hdd-7200").expect("a device of the table");
        let data = records * RECORD;
        let (size, others_span) = if place.is_real() {
            (2 * data + FILE_BYTES, data)
        } else {
            (DISK_BYTES, DISK_BYTES / 2)
        };
        let machine = Machine::at(place, params, 1, (size, 9), seed)?;
        let engine = machine.create_pool(Redundancy::Single, 9).await?;
        let (head, object) = new_file(&engine, Vec::new(), RECORD).await?;
        let mut bytes = vec![0; RECORD as usize];
        for record in 0..records {
            pattern::fill(record + 1, &mut bytes);
            let options = ApplyOptions::new();
            engine.apply(&head, options, |tx| tx.write(object, record * RECORD, &bytes)).await?;
        }
        engine.sync().await?;
        Ok(Self { engine, machine, rng: Rng::seeded(seed), others_span })
    }

    async fn start_scrub(&self) -> Result<()> {
        let scans = self.engine.scans();
        if !scans.is_running(ScanFunc::Scrub) {
            self.engine.store().clear_cache();
            scans.scrub(ScrubOptions::default()).await?;
        }
        Ok(())
    }

    async fn stop_scrub(&self) -> Result<()> {
        match self.engine.scans().stop().await {
            // It has ended meanwhile.
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            stopped => stopped,
        }
    }

    /// Scrubs again and again beside a load.
    async fn measure(&mut self, load: Load, seconds: u64, has_scrub: bool) -> Result<Figures> {
        let queue = self.engine.tree().leaves().next().and_then(|(_, leaf)| leaf.queue());
        let queue = queue.expect("the disk is in service");
        let settle_s = if load == Load::None { 1 } else { SETTLE_S };
        let begun = monotonic() + Duration::from_secs(settle_s);
        let end = begun + Duration::from_secs(seconds);
        self.machine.tap.start();
        let busy = self.busy_at(begun);
        let mut others = Vec::new();
        while monotonic() < end {
            if has_scrub {
                self.start_scrub().await?;
            }
            sleep(load.pause(&mut self.rng)).await;
            if load == Load::None {
                continue;
            }
            let offset = DATA_START + self.rng.below(self.others_span / OTHER) * OTHER;
            let read = queue.read(offset, OTHER as usize, IoClass::SyncRead);
            let sent = monotonic();
            others.push(spawn(async move {
                read.await?;
                Ok::<_, cenote_rt::Error>((sent, monotonic().saturating_sub(sent)))
            }));
        }
        let took = monotonic().saturating_sub(begun);
        let before = busy.await.expect(ENDS);
        let log = self.machine.tap.stop();
        let busy_ns = match self.machine.disks.first() {
            Some(disk) => disk.stats().model.busy_ns - before,
            None => busy_ns(&log, begun),
        };
        if self.engine.scans().is_running(ScanFunc::Scrub) {
            self.stop_scrub().await?;
        }
        let mut times = Vec::new();
        for other in others {
            let (sent, time) = other.await.expect(ENDS)?;
            times.extend((sent >= begun).then_some(time.as_secs_f64() * 1e3));
        }
        Ok(figures(&log, begun, took, busy_ns, times))
    }

    /// Returns the busy time of the disk at a moment.
    fn busy_at(&self, moment: Duration) -> cenote_rt::JoinHandle<u64> {
        let disk = self.machine.disks.first().map(Arc::clone);
        spawn(async move {
            sleep(moment.saturating_sub(monotonic())).await;
            disk.map_or(0, |disk| disk.stats().model.busy_ns)
        })
    }
}

/// Nanoseconds after `begun` in which a command of the disk was under way.
fn busy_ns(log: &[Recorded], begun: Duration) -> u64 {
    let mut end_ns = begun.as_nanos() as u64;
    let mut busy = 0;
    for command in log {
        busy += command.end_ns.saturating_sub(command.begin_ns.max(end_ns));
        end_ns = end_ns.max(command.end_ns);
    }
    busy
}

fn figures(
    log: &[Recorded],
    begun: Duration,
    took: Duration,
    busy_ns: u64,
    mut times: Vec<f64>,
) -> Figures {
    // Records, alone or aggregated; metadata and the reads of others are shorter.
    let is_scrub = |read: &&Recorded| {
        read.op == Op::Read && read.len >= RECORD && u128::from(read.end_ns) >= begun.as_nanos()
    };
    let bytes: u64 = log.iter().filter(is_scrub).map(|read| read.len).sum();
    times.sort_by(f64::total_cmp);
    let part = |mille: usize| times.get(times.len() * mille / 1000).copied().unwrap_or_default();
    let seconds = took.as_secs_f64();
    Figures {
        scrub: bytes as f64 / 1e6 / seconds,
        reads: bytes as f64 / RECORD as f64 / seconds,
        p50: part(500),
        p99: part(990),
        p999: part(999),
        busy: busy_ns as f64 / 1e9 / seconds * 100.0,
    }
}

/// Returns rounds as in a long scan: between two of them a scan only records how far it is.
fn long_rounds() -> Vec<(&'static Tunable, u64)> {
    vec![(&tunables::SCAN_ROUND_BYTES, 4 << 30)]
}

/// Measures a setting beside each load. Returns the hash of the world, too.
pub(super) fn run(
    place: &Place,
    seed: u64,
    setting: Setting,
    loads: &[Load],
    records: u64,
    seconds: u64,
) -> Result<(Vec<(Load, Figures)>, u128)> {
    place.run(world(seed, PROCESSORS, long_rounds()), async move {
        let mut pool = Fixture::new(place, seed, records).await?;
        setting.set();
        let mut all = Vec::new();
        for load in loads {
            let seconds = if *load == Load::None { seconds.min(10) } else { seconds };
            let figures = pool.measure(*load, seconds, setting != Setting::Off).await?;
            all.push((*load, figures));
        }
        let hash = pool.machine.hash();
        pool.engine.export().await?;
        Ok((all, hash))
    })
}

/// The changes of tunables in the last world, by second.
pub(super) const CHANGES: [Setting; 5] =
    [Setting::Delay(4), Setting::Delay(2), Setting::Delay(1), Setting::Delay(0), Setting::Delay(4)];

/// Changes tunables while scrubs run beside 20 reads a second, and samples the rate each second.
pub(super) fn changes(place: &Place, seed: u64, records: u64) -> Result<(Vec<Sample>, u128)> {
    place.run(world(seed, PROCESSORS, long_rounds()), async move {
        let mut pool = Fixture::new(place, seed, records).await?;
        CHANGES[0].set();
        let queue = pool.engine.tree().leaves().next().and_then(|(_, leaf)| leaf.queue());
        let queue = queue.expect("the disk is in service");
        let (mut rng, span) = (Rng::seeded(seed + 1), pool.others_span);
        let others = spawn(async move {
            loop {
                sleep(Load::Random(20).pause(&mut rng)).await;
                let offset = DATA_START + rng.below(span / OTHER) * OTHER;
                // A failed read is no reason to end the load.
                let _ = queue.read(offset, OTHER as usize, IoClass::SyncRead).await;
            }
        });
        pool.start_scrub().await?;
        sleep(Duration::from_secs(SETTLE_S)).await;
        let mut samples = Vec::new();
        for second in 0..CHANGES.len() as u64 * CHANGE_S {
            if second % CHANGE_S == 0 {
                CHANGES[(second / CHANGE_S) as usize].set();
            }
            pool.machine.tap.start();
            let begun = monotonic();
            let end = begun + Duration::from_secs(1);
            while monotonic() < end {
                pool.start_scrub().await?;
                sleep(Duration::from_millis(20).min(end.saturating_sub(monotonic()))).await;
            }
            let log = pool.machine.tap.stop();
            let took = monotonic().saturating_sub(begun);
            let figures = figures(&log, begun, took, 0, Vec::new());
            samples.push(((second + 1) as f64, figures.scrub));
        }
        drop(others);
        pool.stop_scrub().await?;
        pool.rng = Rng::seeded(0);
        Ok((samples, pool.machine.hash()))
    })
}
