//! Power cuts: their points in a history, the unflushed writes that survive, and running histories
//! with power cuts.
//!
//!     let run = run(seed).await;                          // its log has marks of durable states
//!     let points = at_cuts(&run.log, seed, 6, async |images, mark| recover(images, mark).await)

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_device::{Image, Log, Replay};
use cenote_rt::Rng;

use crate::rng;

/// Bytes of an image that are processed at once.
const PIECE: usize = 1 << 20;

/// Which sectors of the writes in flight reach the device: none, all, or a random part.
pub fn keep(sample: usize, salt: u64, write: usize, sector: u64) -> bool {
    match sample {
        0 => false,
        1 => true,
        // Whole writes get lost more often than single sectors of one. Writes go to one device
        // each, so the losses of the devices are independent.
        _ => {
            let write_coin = Rng::seeded(salt ^ write as u64).next_u64() % 3;
            let sector_coin = Rng::seeded(salt ^ (write as u64) << 32 ^ sector).next_u64() % 2;
            write_coin == 0 || (write_coin == 1 && sector_coin == 0)
        }
    }
}

/// The contents of the devices after a cut at the place where `replay` stands, and the kind of
/// sample.
pub fn leave(replay: &Replay<'_>, rng: &mut Rng) -> (usize, Vec<Image>) {
    let (sample, salt) = (rng.below(3) as usize, rng.next_u64());
    (sample, replay.images(|write, sector| keep(sample, salt, write, sector)))
}

/// Cuts a history off at one flush boundary in `step`, and lets `recover` check the contents
/// against the last mark before that. Gives the number of cuts.
///
/// # Panics
/// With the error of `recover`.
pub async fn at_cuts(
    log: &Log,
    seed: u64,
    step: u64,
    recover: impl AsyncFn(Vec<Image>, usize) -> Result<(), String>,
) -> usize {
    try_cuts(log, seed, step, recover).await.unwrap_or_else(|problem| panic!("{problem}"))
}

/// Like [`at_cuts`], for callers that handle the failure themselves.
///
/// # Errors
/// The error of `recover`, with the place of the cut.
pub async fn try_cuts(
    log: &Log,
    seed: u64,
    step: u64,
    recover: impl AsyncFn(Vec<Image>, usize) -> Result<(), String>,
) -> Result<usize, String> {
    let mut rng = Rng::seeded(seed ^ 0x5eed);
    let mut replay = Replay::new(log);
    let mut points = 0;
    while replay.next_boundary() {
        let Some(mark) = replay.mark().filter(|_| rng.below(step) == 0) else { continue };
        let (sample, images) = leave(&replay, &mut rng);
        recover(images, mark as usize).await.map_err(|problem| {
            format!("seed {seed}, event {}, sample {sample}: {problem}", replay.position())
        })?;
        points += 1;
    }
    Ok(points)
}

/// Runs so many histories, each by its seed, that give the number of their cuts.
///
/// # Panics
/// If there was no cut at all.
pub fn histories(few: u64, all: u64, explore: impl Fn(u64) -> usize + Sync) {
    let first = rng::number("CENOTE_SEED").unwrap_or(1);
    let histories = rng::cases(few, all);
    let start = cenote_rt::monotonic();
    let points = if rng::wants_all() {
        side_by_side(first..first + histories, &explore)
    } else {
        (first..first + histories).map(explore).sum()
    };
    let seconds = cenote_rt::monotonic().saturating_sub(start).as_secs_f64();
    println!("CENOTE_SEED={first}: {histories} histories, {points} cuts in {seconds:.1} s");
    assert!(points > 0, "no cut");
}

/// Runs many histories on all processors.
fn side_by_side(seeds: Range<u64>, explore: &(impl Fn(u64) -> usize + Sync)) -> usize {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut points = 0;
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return points;
            }
            points += explore(seed);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|points| points.unwrap_or_else(|cause| resume_unwind(cause))).sum()
    })
}

/// Puts images into sparse files `d0.img`, `d1.img`, ... of a folder, where OpenZFS's tools find
/// them.
///
/// # Panics
/// If the folder cannot be written.
pub fn unpack(images: &[Image], folder: &Path) {
    std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for (number, image) in images.iter().enumerate() {
        let path = folder.join(format!("d{number}.img"));
        store(image, &path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn store(image: &Image, path: &Path) -> std::io::Result<()> {
    let file = File::create(path)?;
    file.set_len(image.size())?;
    let mut piece = vec![0; PIECE];
    for offset in (0..image.size()).step_by(PIECE) {
        image.read_at(offset, &mut piece);
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(&piece, offset)?;
        }
    }
    Ok(())
}
