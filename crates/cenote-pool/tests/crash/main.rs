//! Power cuts: after every flush boundary of a workload, and with any part of what was not flushed
//! lost or torn, the pool opens, holds exactly one of its committed states, no older than what was
//! acknowledged, and its space maps agree with what is reachable.

mod model;
mod workload;

use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice, Replay};
use cenote_pool::import::scan_devices;
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::Rng;
use workload::{Layout, Run};

/// Sampled subsets of the writes in flight at each boundary.
const SAMPLES: usize = 3;

#[test]
fn every_cut_leaves_a_committed_state() {
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("CENOTE_SEED={seed}");
    for layout in Layout::ALL {
        let start = std::time::Instant::now();
        let points = cenote_rt::block_on(2, explore(layout, seed)).unwrap();
        println!("{layout:?}: {points} points in {:.1} s", start.elapsed().as_secs_f64());
    }
}

async fn explore(layout: Layout, seed: u64) -> usize {
    let Run { log, history, .. } = workload::run(layout, seed).await;
    let mut rng = Rng::seeded(seed ^ 0x5eed);
    let mut replay = Replay::new(&log);
    let mut points = 0;
    while replay.next_boundary() {
        let Some(acknowledged) = replay.mark() else { continue };
        for sample in 0..SAMPLES {
            let salt = rng.next_u64();
            let images = replay.images(|write, sector| keep(sample, salt, write, sector));
            let place =
                format!("{layout:?} seed {seed} event {} sample {sample}", replay.position());
            let verdict = verdict(images, acknowledged, &history).await;
            assert_eq!(verdict, Ok(()), "{place}");
            points += 1;
        }
    }
    points
}

/// Which sectors of the writes in flight reach the device: none, all, or any.
fn keep(sample: usize, salt: u64, write: usize, sector: u64) -> bool {
    match sample {
        0 => false,
        1 => true,
        // Whole writes get lost more often than sectors of one.
        _ => {
            let write_coin = Rng::seeded(salt ^ write as u64).next_u64() % 3;
            let sector_coin = Rng::seeded(salt ^ (write as u64) << 32 ^ sector).next_u64() % 2;
            write_coin == 0 || (write_coin == 1 && sector_coin == 0)
        }
    }
}

async fn verdict(
    images: Vec<Image>,
    acknowledged: u64,
    history: &model::History,
) -> Result<(), String> {
    let devices = images.into_iter().enumerate().map(|(number, image)| {
        Arc::new(ImageDevice::new(format!("d{number}"), image)) as Arc<dyn Device>
    });
    let scan = scan_devices(devices.collect()).await;
    let candidate = scan.find("tank").map_err(|error| error.to_string())?;
    let pool = Pool::open(candidate, &OpenOptions::default())
        .await
        .map_err(|error| format!("{error:?}"))?;
    if pool.txg() < acknowledged {
        return Err(format!("txg {} is older than {acknowledged}", pool.txg()));
    }
    let state = history.at(pool.txg()).ok_or("no such state")?;
    model::check(&pool, state).await
}
