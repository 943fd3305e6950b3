//! A small pool in memory, with all checks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_device::{Device, Image, ImageDevice};
use cenote_dmu::Tx;
use cenote_dmu::live::ObjectSpec;
use cenote_engine::admin::NewVdevs;
use cenote_engine::{ApplyOptions, Engine, Head, NewDataset};
use cenote_ondisk::feature::Feature;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::audit::Auditor;
use cenote_poolkit::builder::{PoolBuilder, new_vdev};
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::{Result, Rng, tunables};
use cenote_vdev::create::{Guids, Redundancy, VdevClass};

/// Block size of test objects.
pub(crate) const BLOCK: u64 = 16 << 10;
/// Size of a device.
const SIZE: u64 = 128 << 20;

/// Limit of frees in one txg: a setting of the process, so one test at a time.
pub(crate) struct Budget(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Budget {
    /// Waits for other tests, and sets the default.
    pub(crate) fn take() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self(guard)
    }

    /// Sets the number of blocks.
    #[expect(clippy::unused_self, reason = "only who has it may")]
    pub(crate) fn set(&self, blocks: u64) {
        tunables::ASYNC_BLOCK_MAX_BLOCKS.set(blocks).unwrap();
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.set(100_000);
    }
}

/// The pool with its checks.
pub(crate) struct MemoryPool {
    pub(crate) devices: Vec<Arc<ImageDevice>>,
    guid: u64,
    pub(crate) engine: Arc<Engine>,
    pub(crate) auditor: Auditor,
}

impl MemoryPool {
    /// Creates a pool "tank".
    pub(crate) async fn new() -> Self {
        Self::of_disks(1).await
    }

    /// Creates a pool with these features.
    pub(crate) async fn with_features(features: Vec<&'static Feature>) -> Self {
        Self::on(PoolBuilder::disks(1).with_features(features)).await
    }

    /// Creates a pool of several disks without redundancy.
    pub(crate) async fn of_disks(count: usize) -> Self {
        Self::on(PoolBuilder::disks(count)).await
    }

    async fn on(builder: PoolBuilder) -> Self {
        let (engine, devices) = builder.with_size(SIZE).create_in_memory().await;
        Self { devices, guid: engine.guid(), engine, auditor: Auditor::new() }
    }

    /// Adds another disk as a top-level vdev.
    pub(crate) async fn add_disk(&mut self, class: VdevClass) {
        let (device, new) = self.new_disk(class);
        self.devices.push(device);
        self.engine.admin().add_vdevs(new).await.unwrap();
    }

    /// Returns a disk that can be added as the next top-level vdev.
    pub(crate) fn new_disk(&self, class: VdevClass) -> (Arc<ImageDevice>, NewVdevs) {
        let name = format!("d{}", self.devices.len());
        let device = Arc::new(ImageDevice::new(name, Image::zeroed(SIZE)));
        let list = [Arc::clone(&device) as Arc<dyn Device>];
        let (top, mut guids) = ((Redundancy::Single, class), Guids::unguessable());
        let new = new_vdev(&self.engine, top, 9, &list, &mut guids).unwrap();
        (device, new)
    }

    fn device_list(&self) -> Vec<Arc<dyn Device>> {
        as_devices(&self.devices)
    }

    /// Exports and imports the pool.
    pub(crate) async fn reopen(&mut self) {
        self.engine.export().await.unwrap();
        self.open_again().await;
    }

    /// Drops the engine, like a crash, and opens the pool again.
    pub(crate) async fn open_again(&mut self) {
        let devices = self.device_list();
        let options = OpenOptions::default();
        self.engine = Engine::open_devices(devices, self.guid, &options).await.unwrap();
    }

    /// Drops the engine, and rewinds the pool to its checkpoint.
    pub(crate) async fn rewind(&mut self) -> Result<()> {
        let devices = self.device_list();
        let options = OpenOptions { checkpoint: true, ..OpenOptions::default() };
        self.engine = Engine::open_devices(devices, self.guid, &options).await?;
        Ok(())
    }

    /// Opens the pool on disk.
    pub(crate) async fn reader(&self) -> Arc<Pool> {
        pools::open_read_only(self.device_list()).await.unwrap()
    }

    /// Checks everything on disk.
    pub(crate) async fn check(&mut self) {
        let pool = self.reader().await;
        let problems = self.auditor.audit(&pool).await.unwrap();
        assert!(problems.is_empty(), "txg {}:\n{}", pool.txg(), problems.join("\n"));
        pools::assert_no_leaks(&pool).await;
    }

    /// Syncs until nothing is queued to be freed.
    pub(crate) async fn settle(&self) {
        for _ in 0..200 {
            self.engine.sync().await.unwrap();
            if !self.engine.space().has_pending_frees().await.unwrap() {
                return;
            }
        }
        panic!("frees do not end");
    }

    /// Exports the pool, and checks it with OpenZFS.
    pub(crate) async fn judge(self) {
        self.engine.export().await.unwrap();
        self.judge_as_it_is();
    }

    /// Checks the last commit with OpenZFS, while the pool stays open here.
    pub(crate) fn judge_as_it_is(&self) {
        pools::judge_images(&pools::images_of(&self.devices));
    }

    /// Checks the checkpoint of the last commit with OpenZFS.
    pub(crate) fn judge_checkpoint(&self) {
        pools::judge_checkpoint(&pools::images_of(&self.devices));
    }

    /// Overwrites a range of the device.
    pub(crate) async fn spoil(&self, offset: u64, len: usize) {
        let bytes = cenote_rt::Buf::from(vec![0x5a; 512.max(len)]);
        self.devices[0].write(offset, vec![bytes]).await.unwrap();
    }

    /// Returns the number of free bytes.
    pub(crate) fn free_bytes(&self) -> u64 {
        let figures = self.engine.allocator().vdev_figures();
        figures.iter().map(|vdev| vdev.space.space - vdev.space.allocated).sum()
    }

    /// Creates an empty file system.
    pub(crate) async fn create(&self, name: &str) -> Arc<Head> {
        self.engine.datasets().create(filesystem(name)).await.unwrap()
    }

    /// Takes a snapshot.
    pub(crate) async fn snap(&self, name: &str) {
        self.engine.snapshots().create(vec![name.into()]).await.unwrap();
    }

    pub(crate) async fn write(&self, dataset: &str, object: u64, block: u64, salt: u64) {
        let head = self.engine.head(dataset).await.unwrap();
        let bytes = content(salt);
        self.engine
            .apply(&head, ApplyOptions::new(), |tx| {
                need_object(tx, object)?;
                tx.write(object, block * BLOCK, &bytes)
            })
            .await
            .unwrap();
    }

    /// Returns the salt of a written block; 0 for a hole.
    pub(crate) async fn read(&self, dataset: &str, object: u64, block: u64) -> u64 {
        let head = self.engine.head(dataset).await.unwrap();
        let read = head.live().inspect(|tx| {
            if tx.find(object)?.is_none() {
                return Ok(vec![0; 8]);
            }
            tx.read(object, block * BLOCK, 8)
        });
        u64::from_le_bytes(read.await.unwrap()[..8].try_into().unwrap())
    }

    /// Sets a number property.
    pub(crate) async fn set(&self, dataset: &str, name: &str, value: u64) -> Result<()> {
        self.engine.properties().set(dataset, name, Value::U64(value)).await
    }
}

/// Returns an empty file system.
pub(crate) fn filesystem(name: &str) -> NewDataset {
    NewDataset { kind: ObjSetType::Zfs, ..pools::dataset(name) }
}

/// Creates the object if it does not exist.
pub(crate) fn need_object(tx: &mut Tx<'_>, object: u64) -> cenote_dmu::TxResult<()> {
    if tx.find(object)?.is_none() {
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK).with_number(object);
        tx.allocate(&spec)?;
    }
    Ok(())
}

/// Returns a block that begins with its salt: some compress to nothing, some to half, some not.
pub(crate) fn content(salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    let filled = match salt % 5 {
        0 => 32,
        1 | 2 => BLOCK as usize / 2,
        _ => BLOCK as usize,
    };
    Rng::seeded(salt).fill(&mut bytes[..filled]);
    bytes[..8].copy_from_slice(&salt.to_le_bytes());
    bytes
}
