//! Power cuts at the flushes of a receive, in virtual time.
//!
//! After each, the dataset is as before the receive or as after it, nothing is left of a receive
//! that cannot be resumed, and the rest of one that can completes it.

use std::sync::Arc;

use cenote_device::{Image, Recorder};
use cenote_engine::Engine;
use cenote_ondisk::endian::Endian;
use cenote_poolkit::audit::Auditor;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::simulate;
use cenote_stream::{Item, ReceiveOptions, Receiver};
use cenote_testkit::golden::golden;
use cenote_testkit::streams::recorded_stream;
use cenote_testkit::{Entry, compare, cuts};

use crate::fixture::{entries, into, receive_items, substreams, without_root_number};
use crate::partial::{rest_of, saved_point};

/// Records between two txgs.
const RECORDS_PER_TXG: usize = 150;
/// The receive has begun, and it has ended.
const BEGUN: u64 = 0;
const ENDED: u64 = 1;

/// The streams, and the contents of the dataset before and after the receive.
struct Story {
    full: Vec<Item>,
    increment: Vec<Item>,
    before: Vec<Entry>,
    after: Vec<Entry>,
    options: ReceiveOptions,
}

/// Receives the increment with a txg every few records.
async fn receive_slowly(engine: &Arc<Engine>, story: &Story) {
    let (items, options) = (&story.increment, story.options.clone());
    let mut receiver = Receiver::begin(engine, &items[0], Endian::Little, options).await.unwrap();
    for (number, item) in items[1..].iter().enumerate() {
        receiver.apply(item.clone()).await.unwrap();
        if number % RECORDS_PER_TXG == 0 {
            engine.sync().await.unwrap();
        }
    }
    receiver.finish().await.unwrap();
}

/// Opens the pool after a cut, and completes the receive.
async fn recover(story: &Story, images: Vec<Image>, is_ended: bool) -> Result<(), String> {
    let devices = pools::devices(images);
    let engine = pools::open(pools::as_devices(&devices)).await.map_err(|e| format!("{e:?}"))?;
    let pool = pools::open_copy(&devices).await.unwrap();
    let has_child = pool.dataset("tank/got/%recv").await.is_ok();
    let has_snapshot = pool.dataset("tank/got@3").await.is_ok();
    if has_child && (has_snapshot || !story.options.is_resumable) {
        return Err(format!("%recv is left, with the snapshot: {has_snapshot}"));
    }
    if is_ended && !has_snapshot {
        return Err("the receive ended, and the snapshot is not there".into());
    }
    let wanted = if has_snapshot { &story.after } else { &story.before };
    let found = without_root_number(entries(&pool, "tank/got").await);
    if let Some(difference) = compare::entry_differences(&found, wanted).first() {
        return Err(difference.clone());
    }
    if !has_snapshot {
        let items = if has_child {
            let (object, offset) = saved_point(&devices, "tank/got/%recv").await;
            rest_of(&story.increment, object, offset)
        } else {
            story.increment.clone()
        };
        let received = receive_items(&engine, (items, None), story.options.clone()).await;
        received.map_err(|error| format!("the rest: {error:?}"))?;
    }
    engine.export().await.unwrap();
    let pool = pools::open_copy(&devices).await.unwrap();
    let found = without_root_number(entries(&pool, "tank/got@3").await);
    if let Some(difference) = compare::entry_differences(&found, &story.after).first() {
        return Err(difference.clone());
    }
    pools::assert_no_leaks(&pool).await;
    match Auditor::new().audit(&pool).await.unwrap() {
        differences if differences.is_empty() => Ok(()),
        differences => Err(format!("{differences:?}")),
    }
}

async fn power_is_lost(story: &Story, seed: u64, step: u64) -> usize {
    let recorder = Recorder::new();
    let builder = PoolBuilder::disks(1).with_file_system().with_seed(seed);
    let devices = pools::recorded(&recorder, &builder.memory_devices());
    let engine = builder.create(devices).await.unwrap();
    receive_items(&engine, (story.full.clone(), None), into("tank/got")).await.unwrap();
    recorder.mark(BEGUN);
    receive_slowly(&engine, story).await;
    recorder.mark(ENDED);
    engine.export().await.unwrap();
    drop(engine);
    let log = recorder.log();
    cuts::at_cuts(&log, seed, step, async |images, mark| {
        recover(story, images, mark as u64 == ENDED).await
    })
    .await
}

#[test]
fn a_power_cut_at_any_flush_of_a_receive_loses_nothing() {
    let Some(golden) = golden("g-send2") else { return };
    let items = |name: &str| substreams(&recorded_stream(&golden, name).bytes).remove(0).0;
    for (seed, is_resumable) in [(1, false), (2, true)] {
        let story = Story {
            full: items("obj-full"),
            increment: items("obj-jump"),
            before: without_root_number(golden.manifest("o@1")),
            after: without_root_number(golden.manifest("received-o-jump")),
            options: ReceiveOptions { is_resumable, ..into("tank/got") },
        };
        let cuts = simulate(seed, async { power_is_lost(&story, seed, 5).await }).unwrap();
        assert!(cuts > 4, "{cuts} cuts");
        println!("{cuts} cuts");
    }
}
