//! Imports after a process was killed whose last writes are still in the caches of the devices.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, FaultyDevice, Image, ImageDevice};
use cenote_ondisk::label::{LABEL_COUNT, RING, label_offset};
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::seeded::Bug;
use cenote_rt::{BoxFuture, Buf, BufMut, Result, block_on, simulate, until};

use crate::scans::fails;

/// Longest time of an import.
const IMPORT_MAX: Duration = Duration::from_mins(10);

/// A device with a write cache.
#[derive(Debug)]
struct Cached {
    /// The present contents.
    now: Arc<ImageDevice>,
    /// Contents after a power cut.
    medium: Mutex<Image>,
}

impl Device for Cached {
    fn info(&self) -> &DeviceInfo {
        self.now.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        self.now.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        self.now.write(offset, parts)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        *self.medium.lock().unwrap() = self.now.image();
        self.now.flush()
    }
}

/// What an import shows stays, although the import changes nothing and no txg follows.
#[test]
fn import_flushes_what_a_killed_process_left() {
    for builder in [PoolBuilder::disks(1), PoolBuilder::of("mirror", 2), PoolBuilder::disks(2)] {
        block_on(2, async {
            let (engine, devices) = builder.create_in_memory().await;
            engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
            engine.sync().await.unwrap();
            let durable = pools::images_of(&devices);
            engine.datasets().create(pools::dataset("tank/b")).await.unwrap();
            engine.sync().await.unwrap();
            drop(engine);
            let cached = |(now, medium)| Arc::new(Cached { now, medium: Mutex::new(medium) });
            let devices: Vec<_> = devices.into_iter().zip(durable).map(cached).collect();

            let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
            engine.head("tank/b").await.unwrap();
            let medium = devices.iter().map(|device| device.medium.lock().unwrap().clone());
            let medium = pools::devices(medium.collect());
            drop(engine);
            let pool = pools::open_read_only(pools::as_devices(&medium)).await.unwrap();
            pool.dataset("tank/b").await.unwrap();
        })
        .unwrap();
    }
}

/// Devices after a power cut that left the uberblock of the last txg, which created `tank/b`, in the
/// last label of one leaf only; and that txg.
async fn with_a_single_uberblock(builder: PoolBuilder) -> (Vec<Arc<ImageDevice>>, u64) {
    let (engine, devices) = builder.create_in_memory().await;
    engine.sync().await.unwrap();
    let before = pools::devices(pools::images_of(&devices));
    engine.datasets().create(pools::dataset("tank/b")).await.unwrap();
    let txg = engine.sync().await.unwrap();
    drop(engine);
    for (number, (device, before)) in devices.iter().zip(&before).enumerate() {
        for label in 0..LABEL_COUNT {
            if (number, label) == (0, LABEL_COUNT - 1) {
                continue;
            }
            let offset = label_offset(device.info().size, label).unwrap() + RING.at;
            let ring = before.read(offset, BufMut::zeroed(RING.len as usize)).await.unwrap();
            device.write(offset, vec![ring.freeze()]).await.unwrap();
        }
    }
    (devices, txg)
}

/// Whether all labels of a device have the uberblock of this txg.
async fn has_everywhere(device: &ImageDevice, txg: u64) -> bool {
    let labels = cenote_vdev::labels::read(device).await.labels;
    let has = |label: &cenote_vdev::labels::Label| {
        label.uberblocks.iter().any(|found| found.uberblock.txg == txg)
    };
    labels.len() == LABEL_COUNT && labels.iter().all(has)
}

/// What an import shows after such a power cut does not depend on the only copy.
async fn completed_commit() {
    for builder in [PoolBuilder::disks(1), PoolBuilder::of("mirror", 2), PoolBuilder::disks(2)] {
        let (devices, txg) = with_a_single_uberblock(builder).await;
        let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
        assert_eq!(engine.uberblock().txg, txg);
        engine.head("tank/b").await.unwrap();
        drop(engine);
        for device in &devices {
            let has = has_everywhere(device, txg).await;
            assert!(has, "a label of {} lacks it", device.info().path);
        }
    }
}

/// Devices fail exactly while the commit is completed: an import shows what one device has in all
/// labels, or nothing.
#[test]
fn import_shows_a_commit_only_if_a_device_has_it_everywhere() {
    for failing in [[true, false], [false, true], [true, true]] {
        simulate(1, async {
            let (devices, txg) = with_a_single_uberblock(PoolBuilder::of("mirror", 2)).await;
            let with_faults = devices.iter().zip(failing).map(|(device, fails)| {
                let faulty = FaultyDevice::new(Arc::<ImageDevice>::clone(device), 1);
                faulty.set_failing_writes(fails.then_some(0));
                Arc::new(faulty) as Arc<dyn Device>
            });
            let open = Box::pin(pools::open(with_faults.collect()));
            let opened = until(IMPORT_MAX, open).await;
            let whole =
                [has_everywhere(&devices[0], txg).await, has_everywhere(&devices[1], txg).await];
            println!("{failing:?}: {opened:?}, {whole:?}");
            match opened {
                Some(Ok(engine)) => {
                    assert!(engine.uberblock().txg >= txg && whole != [false; 2]);
                    engine.head("tank/b").await.unwrap();
                }
                Some(Err(_)) | None => assert_eq!(failing, [true; 2]),
            }
        })
        .unwrap();
    }
}

#[test]
fn import_completes_a_commit() {
    simulate(1, completed_commit()).unwrap();
}

#[test]
fn mistakes_are_found() {
    assert!(Bug::OF_IMPORTS.into_iter().all(|bug| fails(bug, completed_commit())));
}
