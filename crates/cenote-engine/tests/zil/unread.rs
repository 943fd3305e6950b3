//! Logs that cannot be read at import, because the root block of their dataset cannot be read.

use std::ops::Range;
use std::sync::Arc;

use cenote_device::{Device, Fault, FaultyDevice, ImageDevice};
use cenote_engine::{Engine, Notice};
use cenote_poolkit::pools;
use cenote_rt::{Buf, BufMut, Kind, block_on};

use crate::layout::Layout;
use crate::model::Op;
use crate::{model, volume};

/// A pool with an unclaimed log: its devices, the dataset's number, the locations of the copies of
/// its root block, and the dataset's contents after the replay.
struct Crashed {
    devices: Vec<Arc<ImageDevice>>,
    dataset: u64,
    copies: Vec<Range<u64>>,
    contents: Vec<u8>,
}

async fn crashed() -> Crashed {
    let (engine, devices) = Layout::Disk.builder(7).create_in_memory().await;
    let volume = volume(&engine, "tank/v").await.unwrap();
    for round in 0..12 {
        let op = Op { first: round, count: 2, salt: Some(round + 5) };
        let place = volume.apply(&engine, op, false).await.unwrap();
        volume.commit(&engine, place).await.unwrap();
        if round == 2 {
            engine.sync().await.unwrap();
        }
    }
    let contents = model::read(&volume.head).await.unwrap();
    let dataset = volume.head.object();
    drop((engine, volume));
    let pool = pools::open_copy(&devices).await.unwrap();
    let root = pool.dataset("tank/v").await.unwrap().phys().bp;
    let copies = pool.store().leaf_ranges(&root);
    let copies = copies.iter().map(|range| range.offset..range.offset + range.len).collect();
    Crashed { devices, dataset, copies, contents }
}

/// Flips a byte of each copy, or flips it back.
async fn flip(crashed: &Crashed) {
    for copy in &crashed.copies {
        let device = &crashed.devices[0];
        let mut bytes = device.read(copy.start, BufMut::zeroed(512)).await.unwrap();
        bytes[7] ^= 0x55;
        let bytes: Buf = bytes.freeze();
        device.write(copy.start, vec![bytes]).await.unwrap();
    }
}

#[test]
fn import_refuses_missing_devices_with_logs() {
    block_on(2, async {
        let crashed = crashed().await;
        let before = pools::images_of(&crashed.devices);
        let mut faulty = FaultyDevice::new(Arc::clone(&crashed.devices[0]) as Arc<dyn Device>, 1);
        for copy in &crashed.copies {
            faulty = faulty.with_range(copy.clone(), Fault::Eio);
        }
        let error = pools::open(vec![Arc::new(faulty)]).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Io, "{error}");
        assert_eq!(error.at().objset, Some(crashed.dataset), "{error}");
        assert!(pools::images_of(&crashed.devices) == before, "a refused import wrote");

        // The device answers again, and nothing is lost.
        let engine = pools::open(pools::as_devices(&crashed.devices)).await.unwrap();
        let head = engine.head("tank/v").await.unwrap();
        let replayer = &cenote_engine::zil::VolumeReplayer;
        engine.intent_logs().replay(&head, replayer).await.unwrap().expect("there is a log");
        assert_eq!(model::read(&head).await.unwrap(), crashed.contents);
        engine.export().await.unwrap();
    })
    .unwrap();
}

#[test]
fn log_of_a_damaged_root_block_is_not_freed_twice() {
    block_on(2, async {
        let crashed = crashed().await;
        flip(&crashed).await;
        let engine = pools::open(pools::as_devices(&crashed.devices)).await.unwrap();
        let unread = Notice::LogsUnread { datasets: vec![crashed.dataset] };
        let notices = engine.health().take_notices();
        assert!(notices.contains(&unread), "{notices:?}");
        take_space(&engine).await;
        // The block can be read again, with a log header whose blocks are reused.
        flip(&crashed).await;
        engine.datasets().destroy("tank/v").await.unwrap();
        for _ in 0..4 {
            engine.sync().await.unwrap();
        }
        engine.export().await.unwrap();
        drop(engine);
        let left = pools::images_of(&crashed.devices);
        assert_eq!(pools::check_space(left).await, Ok(()));
        pools::judge_devices(&crashed.devices, "unread", &[]);
    })
    .unwrap();
}

/// Allocates the space that the log's blocks had.
async fn take_space(engine: &Arc<Engine>) {
    for number in 0..4 {
        let volume = volume(engine, &format!("tank/other{number}")).await.unwrap();
        for first in 0..32 {
            let op = Op { first: first * 2, count: 2, salt: Some(first + 100 * number + 1) };
            volume.apply(engine, op, false).await.unwrap();
        }
        engine.sync().await.unwrap();
    }
}
