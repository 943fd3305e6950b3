//! Random histories on volumes with power cuts: flushed data is never lost. Every other sector has
//! its contents at some moment since the last flush, or, where requests write parts of sectors,
//! those of the first such request with bytes of later ones.
//!
//! `CENOTE_SEED` gives other histories; `CENOTE_TEST_ALL` runs many.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use cenote_device::{Image, Log, Recorder};
use cenote_fs::{NewVolume, WritableVolume};
use cenote_ondisk::zap::Value;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{Rng, block_on};
use cenote_testkit::{cuts, rng};

use crate::model::{Op, draw, read_all};

const SIZE: u64 = 1 << 20;
const SECTOR: usize = 512;
/// Requests of a history.
const OPS: usize = 40;

/// The effect of a request, in order.
#[derive(Debug, Clone)]
struct Effect {
    offset: u64,
    bytes: Vec<u8>,
}

/// The requests to a volume, and how many were durable at each mark.
#[derive(Debug, Default)]
struct History {
    effects: Vec<Effect>,
    /// By mark: durable effects, and started effects.
    marks: Vec<(usize, usize)>,
}

struct Run {
    log: Log,
    history: History,
    block_size: u64,
    place: String,
}

/// The permitted contents of each sector since the last flush.
struct Allowed {
    durable: Vec<u8>,
    later: Vec<Effect>,
}

impl Allowed {
    fn at(history: &History, (durable, begun): (usize, usize)) -> Self {
        let mut bytes = vec![0; SIZE as usize];
        for effect in &history.effects[..durable] {
            bytes[effect.offset as usize..][..effect.bytes.len()].copy_from_slice(&effect.bytes);
        }
        Self { durable: bytes, later: history.effects[durable..begun].to_vec() }
    }

    /// Returns the first sector with contents that it never had since the last flush.
    fn wrong_sector(&self, found: &[u8]) -> Option<usize> {
        // A request that covers part of a sector builds on its previous contents.
        let first = |sector: &[u8]| vec![State { bytes: sector.to_vec(), new: 0..0 }];
        let mut states: Vec<Vec<State>> = self.durable.chunks(SECTOR).map(first).collect();
        for Effect { offset, bytes } in &self.later {
            let (start, end) = (*offset as usize, *offset as usize + bytes.len());
            let (first, last) = (start / SECTOR, end.div_ceil(SECTOR));
            for (number, states) in states.iter_mut().enumerate().take(last).skip(first) {
                let at = number * SECTOR;
                let (from, to) = (start.max(at), end.min(at + SECTOR));
                let mut state =
                    State { new: from - at..to - at, ..states[states.len() - 1].clone() };
                state.bytes[state.new.clone()].copy_from_slice(&bytes[from - start..to - start]);
                states.push(state);
            }
        }
        let mut sectors = found.chunks(SECTOR).zip(&states);
        sectors.position(|(sector, states)| !was(states, sector))
    }
}

/// A sector after a request, and the part that the request wrote.
#[derive(Debug, Clone)]
struct State {
    bytes: Vec<u8>,
    new: Range<usize>,
}

/// Whether a sector has its contents at some moment, with some of the next requests' records. Those
/// contain the bytes at the time of their commit: another request may have written there by then.
fn was(states: &[State], sector: &[u8]) -> bool {
    (0..states.len()).any(|start| {
        let mut expected: Vec<Option<u8>> = states[start].bytes.iter().copied().map(Some).collect();
        (start..states.len()).any(|end| {
            if end > start {
                expected[states[end].new.clone()].fill(None);
            }
            states[end..].iter().any(|committed| {
                let mut bytes = expected.iter().zip(&committed.bytes).zip(sector);
                bytes.all(|((expected, committed), byte)| {
                    expected.as_ref().unwrap_or(committed) == byte
                })
            })
        })
    })
}

async fn run(seed: u64) -> Run {
    let mut rng = Rng::seeded(seed);
    let block_size = [4 << 10, 16 << 10, 128 << 10][rng.below(3) as usize];
    let has_slog = rng.below(2) == 0;
    let logbias = rng.below(2);
    let sync = rng.below(8) / 7;
    let ashift = 9 + 3 * rng.below(2);
    let place = format!(
        "seed {seed}: {block_size}, slog {has_slog}, ashift {ashift}, logbias {logbias}, sync {sync}"
    );
    let recorder = Recorder::new();
    let builder = PoolBuilder::file_system().with_logs(has_slog.into());
    let builder = builder.with_ashift(ashift).with_seed(seed);
    let devices = pools::recorded(&recorder, &builder.memory_devices());
    let engine = builder.create(devices).await.unwrap();
    let new = NewVolume::new("tank/v", SIZE).with_block_size(block_size).sparse();
    let new = new.with("logbias", Value::U64(logbias)).with("sync", Value::U64(sync));
    let volume = new.create(&engine).await.unwrap();
    let history = Arc::new(Mutex::new(History::default()));
    // Durable and started effects, recorded before anything is written.
    let mark = |durable: usize| {
        let mut history = history.lock().unwrap();
        let begun = history.effects.len();
        history.marks.push((durable, begun));
        recorder.mark(history.marks.len() as u64 - 1);
    };
    let mut durable = 0;
    mark(durable);
    for _ in 0..OPS {
        let op = draw(&mut rng, SIZE);
        if let Some((offset, bytes)) = op.effect(block_size) {
            history.lock().unwrap().effects.push(Effect { offset, bytes });
            mark(durable);
        }
        op.perform(&volume, &mut rng).await.unwrap();
        if matches!(op, Op::Flush | Op::Sync) || op.is_durable() || sync == 1 {
            durable = history.lock().unwrap().effects.len();
            mark(durable);
        }
        if rng.below(30) == 0 {
            let name = format!("tank/v@{}", rng.next_u64());
            engine.snapshots().create(vec![name]).await.unwrap();
            durable = history.lock().unwrap().effects.len();
            mark(durable);
        }
    }
    drop((volume, engine));
    let log = recorder.log();
    let history = std::mem::take(&mut *history.lock().unwrap());
    Run { log, history, block_size, place }
}

async fn recover(run: &Run, images: Vec<Image>, mark: (usize, usize)) -> Result<(), String> {
    let fail = |error: cenote_rt::Error| format!("{error:?}");
    let devices = pools::devices(images);
    let engine = pools::open(pools::as_devices(&devices)).await.map_err(fail)?;
    for (object, replayed) in cenote_fs::recover(&engine).await.map_err(fail)? {
        if let Some(failure) = replayed.failure {
            return Err(format!("replay of {object}: {failure:?}"));
        }
    }
    let volume = WritableVolume::open(&engine, "tank/v").await.map_err(fail)?;
    if volume.block_size() != run.block_size {
        return Err(format!("blocks of {}", volume.block_size()));
    }
    let mut rng = Rng::seeded(1);
    let found = read_all(&volume, &mut rng).await.map_err(fail)?;
    if let Some(sector) = Allowed::at(&run.history, mark).wrong_sector(&found) {
        // Does it have its contents of some other time?
        let all = |count| Allowed::at(&run.history, (count, count)).wrong_sector(&found);
        let whole = (0..=run.history.effects.len()).find(|count| all(*count).is_none());
        let (at, last) = (sector * SECTOR, run.history.effects.get(mark.0.saturating_sub(1)));
        let last = last.map(|effect| (effect.offset, effect.bytes.len()));
        let head = &found[at..at + 8];
        return Err(format!(
            "sector {sector} is as it never was since {mark:?} but {head:?}; all is as after \
             {whole:?}; the last durable request was at {last:?}"
        ));
    }
    // The volume can be used.
    let op = Op::Write { offset: 777, bytes: vec![7; 50_000], is_fua: true };
    op.perform(&volume, &mut rng).await.map_err(fail)?;
    drop((volume, engine));
    let images = devices.iter().map(|device| device.image());
    let space = pools::check_space(images.collect()).await;
    space.map_err(|error| format!("recovered: {error}"))
}

async fn explore(seed: u64, step: u64) -> usize {
    let run = run(seed).await;
    cuts::at_cuts(&run.log, seed, step, async |images, mark| {
        let recovered = recover(&run, images, run.history.marks[mark]).await;
        recovered.map_err(|problem| format!("{}: {problem}", run.place))
    })
    .await
}

#[test]
fn flush_survives_every_power_cut() {
    let step = if rng::wants_all() { 2 } else { 6 };
    cuts::histories(4, 400, |seed| block_on(2, explore(seed, step)).unwrap());
}
