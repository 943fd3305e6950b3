//! Power cuts while logs are written, and while they are recovered.

use std::sync::{Arc, Mutex};

use cenote_device::{Image, Log, Recorder, Replay};
use cenote_engine::zil::VolumeReplayer;
use cenote_ondisk::objset::ObjSetType;
use cenote_poolkit::pools;
use cenote_rt::seeded::Bug;
use cenote_rt::{Rng, block_on};
use cenote_testkit::{bugs, cuts};

use crate::layout::Layout;
use crate::model::{self, History, Volume};

/// Operations of each task of a run.
const OPS: u64 = 10;
/// Names of the volumes; two tasks write each.
const NAMES: [&str; 2] = ["tank/a", "tank/b"];

/// Seeds for finding a bug: tasks run concurrently here, and a seed does not determine their order.
const SEEDS: u64 = 6;

/// The durable operations at each mark, by volume.
type Acks = Arc<Mutex<Vec<Vec<usize>>>>;

struct Run {
    log: Log,
    histories: Vec<Arc<History>>,
    acks: Acks,
}

#[test]
fn every_power_cut_keeps_committed_records() {
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("CENOTE_SEED={seed}");
    bugs::switch_on(&Bug::OF_LOGS);
    let wanted = std::env::var("CENOTE_LAYOUT").unwrap_or_default();
    for layout in Layout::ALL {
        if !wanted.is_empty() && format!("{layout:?}") != wanted {
            continue;
        }
        let start = cenote_rt::monotonic();
        let (points, second) = block_on(2, explore(layout, seed)).unwrap();
        let seconds = cenote_rt::monotonic().saturating_sub(start).as_secs_f64();
        println!("{layout:?}: {points} points, {second} second cuts in {seconds:.1} s");
    }
}

/// Tests that the test above fails with each seeded bug, in separate processes, because bugs are
/// global to a process.
#[test]
fn every_seeded_bug_of_logs_is_found() {
    if bugs::are_missing() {
        return;
    }
    for bug in Bug::OF_LOGS {
        let why = (1..=SEEDS).find_map(|seed| said_of(bug, seed));
        println!("{bug:?}: found by {}", why.unwrap_or_else(|| panic!("{bug:?} is not found")));
    }
}

/// Returns the test's failure with a bug.
fn said_of(bug: Bug, seed: u64) -> Option<String> {
    let variables = [("CENOTE_LAYOUT", "Disk"), ("CENOTE_SEED", &seed.to_string())];
    let text = bugs::failure("cuts::every_power_cut_keeps_committed_records", bug, &variables)?;
    let why = text.lines().find(|line| line.contains(&format!("seed {seed} event")));
    Some(why.unwrap_or_else(|| panic!("{bug:?}: {text}")).to_owned())
}

/// Several tasks write and commit, while txgs are synced now and then.
async fn run(layout: Layout, seed: u64) -> Run {
    let recorder = Recorder::new();
    let builder = layout.builder(seed);
    let devices = pools::recorded(&recorder, &builder.memory_devices());
    let engine = builder.create(devices).await.unwrap();
    let mut volumes = Vec::new();
    for name in NAMES {
        let head = model::make(&engine, name, ObjSetType::Other).await.unwrap();
        volumes.push(Volume { head, history: Arc::default() });
    }
    let histories: Vec<_> = volumes.iter().map(|volume| Arc::clone(&volume.history)).collect();
    let acks = Acks::default();
    let mark = {
        let (acks, histories, recorder) = (acks.clone(), histories.clone(), recorder.clone());
        move || {
            let mut acks = acks.lock().unwrap();
            acks.push(histories.iter().map(|history| history.acknowledged()).collect());
            recorder.mark(acks.len() as u64 - 1);
        }
    };
    mark();
    let mut tasks = Vec::new();
    for task in 0..2 * NAMES.len() as u64 {
        let (engine, volume) = (Arc::clone(&engine), volumes[task as usize % 2].clone());
        let mark = mark.clone();
        tasks.push(cenote_rt::spawn(async move {
            let mut rng = Rng::seeded(seed << 8 | task);
            for _ in 0..OPS {
                let op = model::draw(&mut rng);
                // Every state must be one of the history, also when data is fetched for packing a
                // record.
                let is_later = rng.below(2) == 0;
                let place = volume.apply(&engine, op, is_later).await.unwrap();
                match rng.below(8) {
                    0 => {}
                    1 => {
                        engine.sync().await.unwrap();
                        volume.history.acknowledge(place);
                    }
                    _ => volume.commit(&engine, place).await.unwrap(),
                }
                mark();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    if seed.is_multiple_of(2) {
        engine.export().await.unwrap();
    }
    Run { log: recorder.log(), histories, acks }
}

async fn explore(layout: Layout, seed: u64) -> (usize, usize) {
    let run = run(layout, seed).await;
    let mut rng = Rng::seeded(seed ^ 0x5eed);
    let mut replay = Replay::new(&run.log);
    let (mut points, mut second) = (0, 0);
    while replay.next_boundary() {
        let Some(mark) = replay.mark() else { continue };
        let least = run.acks.lock().unwrap()[mark as usize].clone();
        let (sample, images) = cuts::leave(&replay, &mut rng);
        let place = format!("{layout:?} seed {seed} event {} sample {sample}", replay.position());
        let is_twice = rng.below(4) == 0;
        if let Err(problem) = verdict(&run, &images, &least, is_twice, &mut rng).await {
            if let Some(folder) = std::env::var_os("CENOTE_KEEP") {
                cuts::unpack(&images, std::path::Path::new(&folder));
            }
            panic!("{place}: {problem}");
        }
        if rng.below(40) == 0 {
            let what = format!("{layout:?}-{}", replay.position());
            pools::judge_devices(&pools::devices(images), &what, &["-iiii"]);
        }
        points += 1;
        second += usize::from(is_twice);
    }
    (points, second)
}

/// Checks images of a crash: their space is consistent, and after the recovery each volume has the
/// state after some operation, none before the last acknowledged.
async fn verdict(
    run: &Run,
    images: &[Image],
    least: &[usize],
    is_twice: bool,
    rng: &mut Rng,
) -> Result<(), String> {
    pools::check_space(images.to_vec()).await.map_err(|error| format!("as left: {error}"))?;
    if !is_twice {
        return recover(run, images.to_vec(), least).await;
    }
    // The recovery is cut as well, anywhere.
    let recorder = Recorder::new();
    let devices = pools::recorded(&recorder, &pools::devices(images.to_vec()));
    let engine = pools::open(devices).await.map_err(|error| format!("{error:?}"))?;
    engine.intent_logs().set_replayer(ObjSetType::Other, Arc::new(VolumeReplayer));
    engine.intent_logs().replay_all().await.map_err(|error| format!("{error:?}"))?;
    drop(engine);
    let log = recorder.log();
    for _ in 0..2 {
        let mut replay = Replay::new(&log);
        replay.advance(rng.below(recorder.len() as u64 + 1) as usize);
        let (_, images) = cuts::leave(&replay, rng);
        let space = pools::check_space(images.clone()).await;
        space.map_err(|error| format!("cut off again: {error}"))?;
        let recovered = recover(run, images, least).await;
        recovered.map_err(|error| format!("after {} again: {error}", replay.position()))?;
    }
    Ok(())
}

async fn recover(run: &Run, images: Vec<Image>, least: &[usize]) -> Result<(), String> {
    let fail = |error: cenote_rt::Error| format!("{error:?}");
    let devices = pools::devices(images);
    let engine = pools::open(pools::as_devices(&devices)).await.map_err(fail)?;
    engine.intent_logs().set_replayer(ObjSetType::Other, Arc::new(VolumeReplayer));
    for (object, replayed) in engine.intent_logs().replay_all().await.map_err(fail)? {
        if let Some(failure) = replayed.failure {
            return Err(format!("replay of {object}: {failure:?}"));
        }
    }
    let mut volumes = Vec::new();
    for ((name, history), least) in NAMES.iter().zip(&run.histories).zip(least) {
        let head = engine.head(name).await.map_err(fail)?;
        let found = model::read(&head).await.map_err(fail)?;
        if history.find(&found, *least).is_none() {
            let older = history.find(&found, 0);
            let total = history.len();
            return Err(format!("{name}: {least} of {total} were durable, found {older:?}"));
        }
        volumes.push(Volume { head, history: Arc::default() });
    }
    // The recovered pool continues.
    for volume in &volumes {
        let op = model::Op { first: 3, count: 2, salt: Some(9) };
        let place = volume.apply(&engine, op, true).await.map_err(fail)?;
        volume.commit(&engine, place).await.map_err(fail)?;
        let place = volume.apply(&engine, op, true).await.map_err(fail)?;
        volume.commit(&engine, place).await.map_err(fail)?;
    }
    let images = devices.iter().map(|device| device.image());
    let space = pools::check_space(images.collect()).await;
    space.map_err(|error| format!("recovered: {error}"))
}
