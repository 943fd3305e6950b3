//! Damaged indirect blocks of files: changes that need them fail, and the pool goes on.

use std::sync::Arc;

use cenote_device::{Device, ImageDevice};
use cenote_dmu::Tx;
use cenote_dmu::live::ObjectSpec;
use cenote_engine::create::Redundancy;
use cenote_engine::{ApplyOptions, Engine, Notice};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{Buf, Kind, Result, block_on};
use cenote_vdev::create::VdevClass;

const BLOCK: u64 = 4096;
/// Blocks of a file, and of one of its indirect blocks.
const BLOCKS: u64 = 100;
const SPAN: u64 = 32;

/// A pool of one disk with files of [`BLOCKS`] blocks.
struct Disk {
    engine: Arc<Engine>,
    devices: Vec<Arc<ImageDevice>>,
}

impl Disk {
    /// Creates `files` files in "tank/a", and a snapshot of it.
    async fn new(files: u64) -> Self {
        let (engine, devices) = PoolBuilder::disks(1).create_in_memory().await;
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        for number in 1..=files {
            let spec = ObjectSpec {
                indirect_shift: 12,
                ..ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK).with_number(number)
            };
            engine.apply(&head, ApplyOptions::new(), |tx| tx.allocate(&spec)).await.unwrap();
        }
        let disk = Self { engine, devices };
        for number in 1..=files {
            disk.write(number, 0..BLOCKS).await.unwrap();
        }
        disk.engine.sync().await.unwrap();
        disk
    }

    async fn write(&self, object: u64, blocks: std::ops::Range<u64>) -> Result<()> {
        let head = self.engine.head("tank/a").await?;
        let all = contents(object);
        let bytes = &all[(blocks.start * BLOCK) as usize..(blocks.end * BLOCK) as usize];
        let write = |tx: &mut Tx<'_>| tx.write(object, blocks.start * BLOCK, bytes);
        self.engine.apply(&head, ApplyOptions::new(), write).await.map(drop)
    }

    async fn free(&self, object: u64, first: u64, len: Option<u64>) -> Result<()> {
        let head = self.engine.head("tank/a").await?;
        let len = len.map(|count| count * BLOCK);
        let free = |tx: &mut Tx<'_>| tx.free_range(object, first * BLOCK, len);
        self.engine.apply(&head, ApplyOptions::new(), free).await.map(drop)
    }

    async fn remove(&self, object: u64) -> Result<()> {
        let head = self.engine.head("tank/a").await?;
        self.engine.apply(&head, ApplyOptions::new(), |tx| tx.free(object)).await.map(drop)
    }

    /// Overwrites all copies of the second indirect block of a file, while the pool is closed.
    async fn damage(&mut self, object: u64) {
        let pool = pools::open_copy(&self.devices).await.unwrap();
        let set = pool.dataset("tank/a").await.unwrap().open().await.unwrap();
        let pointer = set.dnode(object).await.unwrap().block_pointer(1, 1).await.unwrap().unwrap();
        assert_eq!(pointer.level(), 1);
        let copies = pool.store().leaf_ranges(&pointer);
        assert!(copies.len() > 1, "metadata has more than one copy");
        self.engine.export().await.unwrap();
        for copy in copies {
            let rubbish = vec![Buf::from(vec![0xee; 512])];
            self.devices[0].write(copy.offset, rubbish).await.unwrap();
        }
        self.engine = pools::open(pools::as_devices(&self.devices)).await.unwrap();
    }

    /// Syncs some txgs, and returns the notices since the last call.
    async fn sync(&self) -> Vec<Notice> {
        for _ in 0..3 {
            self.engine.sync().await.unwrap();
        }
        self.engine.health().take_notices()
    }

    /// Objects in the error log.
    async fn damaged(&self) -> Vec<u64> {
        let log = self.engine.view().await.unwrap().error_log().await.unwrap();
        log.iter().map(|found| found.place.object).collect()
    }

    async fn is_whole(&self, object: u64) -> bool {
        let head = self.engine.head("tank/a").await.unwrap();
        let read = head.live().inspect(|tx| tx.read(object, 0, (BLOCKS * BLOCK) as usize));
        read.await.is_ok_and(|found| contents(object).starts_with(&found))
    }
}

/// The bytes of a file, with some more that are appended.
fn contents(object: u64) -> Vec<u8> {
    let mut bytes = vec![0; (BLOCK * 2 * BLOCKS) as usize];
    cenote_rt::Rng::seeded(object).fill(&mut bytes);
    bytes
}

fn is_checksum_error(result: Result<()>) -> bool {
    matches!(result, Err(error) if error.kind() == Kind::Checksum)
}

#[test]
fn changes_below_a_damaged_indirect_block_are_refused() {
    block_on(2, async {
        let mut disk = Disk::new(2).await;
        disk.damage(1).await;
        // Whole blocks, which are not read before.
        assert!(is_checksum_error(disk.write(1, SPAN + 3..SPAN + 4).await));
        // Another file's change in the same txg, and beside the damage.
        disk.write(2, 3..4).await.unwrap();
        disk.write(1, 3..4).await.unwrap();
        assert_eq!(disk.sync().await, []);
        assert!(is_checksum_error(disk.write(1, SPAN - 1..SPAN + 1).await));
        assert!(is_checksum_error(disk.free(1, SPAN + 8, Some(4)).await));
        assert!(is_checksum_error(disk.free(1, SPAN + 8, None).await));
        // Appending needs the last indirect block only.
        disk.write(1, BLOCKS..BLOCKS + 40).await.unwrap();
        assert_eq!(disk.sync().await, []);
        assert_eq!(disk.damaged().await, [1]);
        assert!(disk.is_whole(2).await && !disk.is_whole(1).await);
        disk.engine.export().await.unwrap();
    })
    .unwrap();
}

#[test]
fn files_with_a_damaged_indirect_block_are_truncated_and_removed() {
    block_on(2, async {
        let mut disk = Disk::new(4).await;
        for object in [1, 2, 4] {
            disk.damage(object).await;
        }
        // The blocks below the damaged one are freed with all others. It is reported once.
        disk.remove(1).await.unwrap();
        let notices = disk.sync().await;
        assert!(matches!(notices[..], [Notice::BlocksLeaked { .. }]), "{notices:?}");
        disk.free(2, 0, None).await.unwrap();
        // In the same txg and in a later one.
        disk.write(2, SPAN..BLOCKS).await.unwrap();
        let notices = disk.sync().await;
        assert!(matches!(notices[..], [Notice::BlocksLeaked { .. }]), "{notices:?}");
        disk.write(2, 0..SPAN).await.unwrap();
        disk.sync().await;
        assert!(disk.is_whole(2).await && disk.is_whole(3).await);
        // A range that ends within other indirect blocks.
        disk.free(4, SPAN - 5, Some(SPAN + 10)).await.unwrap();
        let notices = disk.sync().await;
        assert!(matches!(notices[..], [Notice::BlocksLeaked { .. }]), "{notices:?}");
        // Leaked blocks are charged to their file until it is removed.
        for object in [2, 4] {
            disk.remove(object).await.unwrap();
            let notices = disk.sync().await;
            assert!(matches!(notices[..], [Notice::BlocksLeaked { .. }]), "{notices:?}");
        }
        assert!(disk.is_whole(3).await);
        disk.engine.export().await.unwrap();
    })
    .unwrap();
}

#[test]
fn snapshots_of_a_damaged_file_are_destroyed() {
    block_on(2, async {
        let mut disk = Disk::new(2).await;
        for name in ["tank/a@1", "tank/a@2"] {
            disk.engine.snapshots().create(vec![name.into()]).await.unwrap();
            disk.write(2, 0..BLOCKS).await.unwrap();
        }
        disk.engine.sync().await.unwrap();
        disk.damage(1).await;
        disk.engine.snapshots().destroy("tank/a@1").await.unwrap();
        assert_eq!(disk.sync().await, []);
        disk.remove(1).await.unwrap();
        disk.sync().await;
        disk.engine.snapshots().destroy("tank/a@2").await.unwrap();
        disk.sync().await;
        assert!(disk.is_whole(2).await);
        // The whole dataset goes, with what it was charged for.
        disk.engine.datasets().destroy("tank/a").await.unwrap();
        assert_eq!(disk.sync().await, []);
        assert!(!disk.engine.space().has_pending_frees().await.unwrap());
        disk.engine.export().await.unwrap();
    })
    .unwrap();
}

/// Returns a pool of an ordinary and a special disk whose class cannot be read: all copies of the
/// special one's object are damaged.
async fn disks_with_an_unreadable_class() -> Vec<Arc<ImageDevice>> {
    let tops = [VdevClass::Normal, VdevClass::Special];
    let tops = tops.map(|class| (Redundancy::Single, class, 1)).to_vec();
    let (engine, devices) = PoolBuilder::new(tops).create_in_memory().await;
    let tops = engine.admin().vdev_config().children;
    // The object is larger than what a block pointer holds.
    let text = Value::text(&"long".repeat(500));
    engine.admin().set_vdev_property(tops[1].guid, "org:x", Some(text)).await.unwrap();
    engine.export().await.unwrap();
    let pool = pools::open_copy(&devices).await.unwrap();
    let object = pool.mos().dnode(tops[1].top.zap_top.unwrap()).await.unwrap();
    let pointer = object.block_pointer(0, 0).await.unwrap().unwrap();
    for copy in pool.store().leaf_ranges(&pointer) {
        let guid = pool.tree().leaf(copy.leaf).guid();
        let device = tops.iter().position(|top| top.guid == guid).unwrap();
        devices[device].write(copy.offset, vec![Buf::from(vec![0xee; 512])]).await.unwrap();
    }
    devices
}

/// Its class decides which blocks a vdev gets.
#[test]
fn pools_with_an_unreadable_class_are_not_written() {
    block_on(2, async {
        let devices = disks_with_an_unreadable_class().await;
        let refused = pools::open(pools::as_devices(&devices)).await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("its class cannot be read"), "{refused}");
        let pool = pools::open_read_only(pools::as_devices(&devices)).await.unwrap();
        let space = pool.space().await.unwrap();
        assert!(space.vdev(0).unwrap().damage.is_none());
        assert!(space.vdev(1).unwrap().damage.is_some());
    })
    .unwrap();
}
