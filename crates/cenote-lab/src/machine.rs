//! A simulated machine: modelled disks, a pool on them, and a record of their commands. Its disks
//! may be files instead ([`Place`]).
//!
//! ```text
//!   pool ──> TappedDevice ──> CommandHash ──> ModelDisk
//!                 | kind, place, begin and end of each command while recording is on
//!                 `─> Tap
//! ```
//!
//! Each run is a world of its own ([`run_all`] runs several on the processors of the host). Guids
//! come from the seed of the run, so that two runs write equal bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use cenote_device::model::{DiskModel, LunParams, Op, Params};
use cenote_device::{CommandHash, Device, DeviceInfo, ModelDisk, pattern};
use cenote_dmu::Tx;
use cenote_dmu::live::ObjectSpec;
use cenote_engine::create::CreateSpec;
use cenote_engine::{ApplyOptions, Engine, Head, NewDataset};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::tunables::{self, Tunable};
use cenote_rt::{BoxFuture, Buf, BufMut, Costs, Result, Rng, World, monotonic};
use cenote_vdev::DATA_START;
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

use crate::place::{Failure, Place};

/// Metaslabs of [`SmallPool`]: 2 MiB each.
const SMALL_METASLAB_SHIFT: u64 = 21;
/// Bytes of a disk that are not in metaslabs; a device needs 64 MiB.
const RESERVED: u64 = 5 << 20;
/// Bytes of the labels at the end of a disk.
const LABELS_END: u64 = 512 << 10;

/// The first txg of a new pool.
const FIRST_TXG: u64 = 4;

/// A command that a device completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Number of the device.
    pub device: u64,
    /// Kind.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// When it was sent, in nanoseconds.
    pub begin_ns: u64,
    /// When it was answered.
    pub end_ns: u64,
}

#[derive(Debug, Default)]
struct TapState {
    is_on: bool,
    commands: Vec<Recorded>,
    /// Number and bytes of all writes of each device, recorded or not.
    written: BTreeMap<u64, (u64, u64)>,
}

/// Records commands of several devices, without their bytes.
#[derive(Debug)]
pub struct Tap {
    // Held for a few instructions, never across I/O.
    state: Mutex<TapState>,
}

impl Tap {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::with_default(Rank::Recorder) })
    }

    /// Begins to record, with an empty list.
    pub fn start(&self) {
        let mut state = self.state.lock();
        (state.is_on, state.commands) = (true, Vec::new());
    }

    /// Ends recording, and returns the commands in the order of their begins.
    pub fn stop(&self) -> Vec<Recorded> {
        let mut commands = {
            let mut state = self.state.lock();
            state.is_on = false;
            std::mem::take(&mut state.commands)
        };
        // Commands enter the list when they end.
        commands.sort_by_key(|command| (command.begin_ns, command.device, command.offset));
        commands
    }

    fn record(&self, command: Recorded) {
        let mut state = self.state.lock();
        if command.op == Op::Write {
            let (count, bytes) = state.written.entry(command.device).or_default();
            (*count, *bytes) = (*count + 1, *bytes + command.len);
        }
        if state.is_on {
            state.commands.push(command);
        }
    }
}

#[derive(Debug)]
struct TappedDevice {
    inner: Arc<dyn Device>,
    number: u64,
    tap: Arc<Tap>,
    /// Where an error of a file is told.
    failure: Option<Arc<Failure>>,
}

impl TappedDevice {
    async fn command<T>(
        &self,
        (op, offset, len): (Op, u64, u64),
        command: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let begin_ns = now_ns();
        let answer = command.await;
        if let (Some(failure), Err(error)) = (&self.failure, &answer) {
            failure.tell(error);
        }
        let end_ns = now_ns();
        self.tap.record(Recorded { device: self.number, op, offset, len, begin_ns, end_ns });
        answer
    }
}

impl Device for TappedDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        self.inner.current_size()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        let place = (Op::Read, offset, buf.len() as u64);
        Box::pin(self.command(place, self.inner.read(offset, buf)))
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        let place = (Op::Write, offset, parts.iter().map(|part| part.len() as u64).sum());
        Box::pin(self.command(place, self.inner.write(offset, parts)))
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.command((Op::Flush, 0, 0), self.inner.flush()))
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.command((Op::Discard, offset, len), self.inner.discard(offset, len)))
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        self.inner.settle()
    }
}

fn now_ns() -> u64 {
    monotonic().as_nanos() as u64
}

/// A disk for the metadata of commits, which takes as good as no time.
pub const COMMIT_DISK: Params = Params::Lun(LunParams {
    depth: 64,
    fixed_ns: 1_000,
    rate_mb: 100_000.0,
    gap_ns: 0,
    near_bytes: 0,
});

/// Modelled disks of one kind, and perhaps some for metadata or logs.
#[derive(Debug)]
pub struct Machine {
    /// The modelled disks; last those for metadata or logs.
    pub disks: Vec<Arc<ModelDisk>>,
    /// The disks that are files, instead.
    files: Vec<(Arc<dyn Device>, Arc<Failure>)>,
    /// Classes of the last disks.
    others: Vec<VdevClass>,
    /// Record of their commands.
    pub tap: Arc<Tap>,
    hash: Arc<CommandHash>,
    seed: u64,
}

impl Machine {
    /// Returns `count` disks of `size` bytes with sectors of `1 << ashift` bytes.
    #[must_use]
    pub fn new(params: Params, count: usize, (size, ashift): (u64, u64), seed: u64) -> Self {
        let model = |number: usize| params.build(size, seed.wrapping_add(number as u64));
        Self::of_models((0..count).map(model).collect(), (size, ashift), seed)
    }

    /// Returns disks of these models, with `size` bytes each and sectors of `1 << ashift` bytes.
    #[must_use]
    pub fn of_models(
        models: Vec<Box<dyn DiskModel>>,
        (size, ashift): (u64, u64),
        seed: u64,
    ) -> Self {
        let disk = |(number, model)| {
            ModelDisk::with_sector(format!("disk{number}"), size, model, 1 << ashift)
        };
        let disks = models.into_iter().enumerate().map(disk).collect();
        let (tap, hash) = (Tap::new(), CommandHash::new());
        Self { disks, files: Vec::new(), others: Vec::new(), tap, hash, seed }
    }

    /// Returns `count` disks in a place: of this model, or files.
    ///
    /// # Errors
    /// `Kind::Io` if a file cannot be created.
    pub fn at(
        place: &Place,
        params: Params,
        count: usize,
        (size, ashift): (u64, u64),
        seed: u64,
    ) -> Result<Self> {
        match place {
            Place::Models => Ok(Self::new(params, count, (size, ashift), seed)),
            Place::Files(folder) => {
                let mut machine = Self::of_models(Vec::new(), (size, ashift), seed);
                let files = (0..count).map(|_| Ok((folder.open_file(size)?, folder.failure())));
                machine.files = files.collect::<Result<_>>()?;
                Ok(machine)
            }
        }
    }

    /// Adds a disk that is not in the pool, and returns it as the pool opens it.
    pub fn add_disk(&mut self, params: Params, (size, ashift): (u64, u64)) -> Arc<dyn Device> {
        let number = self.disks.len();
        let model = params.build(size, self.seed.wrapping_add(number as u64));
        self.disks.push(ModelDisk::with_sector(format!("disk{number}"), size, model, 1 << ashift));
        self.tapped(number as u64, &self.disks[number])
    }

    /// Adds a disk of another kind, which is to be a special vdev.
    #[must_use]
    pub fn with_special(self, params: Params, place: (u64, u64)) -> Self {
        self.with(VdevClass::Special, params, place)
    }

    /// Adds a disk of another kind, which is to be a vdev of this class.
    #[must_use]
    pub fn with(mut self, class: VdevClass, params: Params, (size, ashift): (u64, u64)) -> Self {
        let model = params.build(size, self.seed.wrapping_add(self.disks.len() as u64));
        let name = match class {
            VdevClass::Log => "log",
            _ => "special",
        };
        self.disks.push(ModelDisk::with_sector(name.to_owned(), size, model, 1 << ashift));
        self.others.push(class);
        self
    }

    /// Creates the pool "tank" of one top-level vdev on all disks, and opens it. The name of the
    /// redundancy is one of `zpool create`; `None` for single disks without redundancy.
    ///
    /// # Errors
    /// Errors of the engine; `Kind::Invalid` if the layout does not fit the number of disks.
    pub async fn create_pool(&self, redundancy: Redundancy, ashift: u64) -> Result<Arc<Engine>> {
        let devices = self.devices();
        let mut leaves: Vec<_> = devices.iter().map(|device| LeafSpec::of(device.info())).collect();
        let others = leaves.split_off(leaves.len() - self.others.len());
        let class = VdevClass::Normal;
        let mut tops: Vec<_> = match redundancy {
            Redundancy::Single => {
                let top = |leaf| TopSpec { redundancy, class, leaves: vec![leaf] };
                leaves.into_iter().map(top).collect()
            }
            _ => vec![TopSpec { redundancy, class, leaves }],
        };
        tops.extend(self.others.iter().zip(others).map(|(class, leaf)| TopSpec {
            redundancy: Redundancy::Single,
            class: *class,
            leaves: vec![leaf],
        }));
        let spec = create::CreateSpec { tops, ashift: Some(ashift), ..Default::default() };
        let mut rng = Rng::seeded(self.seed);
        let vdevs = create::pool(&spec, FIRST_TXG, &mut Guids::new(|| Ok(rng.next_u64())))?;
        Engine::create(CreateSpec::new("tank", vdevs, devices)).await
    }

    /// Returns the disks as a pool opens them.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        let models = (0..).zip(&self.disks).map(|(number, disk)| self.tapped(number, disk));
        let files = (0..).zip(&self.files).map(|(number, (file, failure))| -> Arc<dyn Device> {
            let (inner, tap) = (Arc::clone(file), Arc::clone(&self.tap));
            Arc::new(TappedDevice { inner, number, tap, failure: Some(Arc::clone(failure)) })
        });
        models.chain(files).collect()
    }

    /// Returns number and bytes of the writes to the first `count` disks so far.
    #[must_use]
    pub fn written(&self, count: usize) -> (u64, u64) {
        let state = self.tap.state.lock();
        let writes = state.written.range(..count as u64).map(|(_, written)| *written);
        writes.fold((0, 0), |(all, sum), (count, bytes)| (all + count, sum + bytes))
    }

    fn tapped(&self, number: u64, disk: &Arc<ModelDisk>) -> Arc<dyn Device> {
        let inner = self.hash.wrap(Arc::<ModelDisk>::clone(disk));
        Arc::new(TappedDevice { inner, number, tap: Arc::clone(&self.tap), failure: None })
    }

    /// Returns the hash of all commands so far.
    #[must_use]
    pub fn hash(&self) -> u128 {
        self.hash.value()
    }
}

/// Creates the dataset "tank/a" with these properties, and an empty file with records of `record`
/// bytes in it. Returns the dataset and the file's object.
///
/// # Errors
/// Errors of the engine.
pub async fn new_file(
    engine: &Arc<Engine>,
    props: Vec<(String, Value)>,
    record: u64,
) -> Result<(Arc<Head>, u64)> {
    new_file_in(engine, ObjSetType::Other, props, record).await
}

/// Like [`new_file`], in a dataset of this type: one of type `Other` cannot be sent.
///
/// # Errors
/// Errors of the engine.
pub async fn new_file_in(
    engine: &Arc<Engine>,
    kind: ObjSetType,
    props: Vec<(String, Value)>,
    record: u64,
) -> Result<(Arc<Head>, u64)> {
    let new = NewDataset { props, ..NewDataset::new("tank/a", kind) };
    engine.datasets().create(new).await?;
    let head = engine.head("tank/a").await?;
    let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, record);
    let (object, _) = engine.apply(&head, ApplyOptions::new(), |tx| tx.allocate(&spec)).await?;
    Ok((head, object))
}

/// Writes records of a file, each time with other bytes.
#[derive(Debug, Clone)]
pub struct RecordWriter {
    engine: Arc<Engine>,
    head: Arc<Head>,
    object: u64,
    /// Decides the bytes; its user may draw numbers of records from it.
    pub rng: Rng,
    bytes: Vec<u8>,
}

impl RecordWriter {
    /// Returns a writer of records of `record` bytes of an object.
    #[must_use]
    pub fn new(
        engine: &Arc<Engine>,
        (head, object): (&Arc<Head>, u64),
        record: u64,
        seed: u64,
    ) -> Self {
        let (engine, head) = (Arc::clone(engine), Arc::clone(head));
        Self { engine, head, object, rng: Rng::seeded(seed), bytes: vec![0; record as usize] }
    }

    /// Writes a record.
    ///
    /// # Errors
    /// Errors of the engine.
    pub async fn write(&mut self, record: u64) -> Result<()> {
        pattern::fill(self.rng.next_u64() | 1, &mut self.bytes);
        let (object, bytes) = (self.object, &self.bytes);
        let offset = record * bytes.len() as u64;
        let change = |tx: &mut Tx<'_>| tx.write(object, offset, bytes);
        self.engine.apply(&self.head, ApplyOptions::new(), change).await?;
        Ok(())
    }

    /// Writes the first `records` records in order, and syncs after each `txg` of them.
    ///
    /// # Errors
    /// Errors of the engine.
    pub async fn fill(&mut self, records: u64, txg: u64) -> Result<()> {
        for record in 0..records {
            self.write(record).await?;
            if (record + 1) % txg == 0 {
                self.engine.sync().await?;
            }
        }
        self.engine.sync().await?;
        Ok(())
    }
}

/// Returns a machine whose work takes processor time, with these tunables.
#[must_use]
pub fn world(seed: u64, processors: usize, tunables: Vec<(&'static Tunable, u64)>) -> World {
    World { processors, costs: Some(Costs::frozen()), tunables, ..World::new(seed) }
}

/// A disk of a pool that is much smaller than the one it stands for, but has many metaslabs, no
/// embedded log, and little slop space. Indirect blocks of files are with their data.
pub(crate) struct SmallPool;

impl SmallPool {
    pub(crate) fn tunables() -> [(&'static Tunable, u64); 7] {
        [
            (&tunables::METASLAB_MIN_SHIFT, SMALL_METASLAB_SHIFT),
            (&tunables::METASLAB_DEFAULT_SHIFT, SMALL_METASLAB_SHIFT),
            (&tunables::METASLAB_DEFAULT_COUNT, 1 << 16),
            (&tunables::EMBEDDED_SLOG_MIN_MS, 1 << 16),
            (&tunables::SLOP_MIN, 1 << 20),
            (&tunables::SLOP_SHIFT, 31),
            (&tunables::USER_INDIRECT_IS_SPECIAL, 0),
        ]
    }

    /// Bytes of a disk with metaslabs for at least this many bytes.
    pub(crate) const fn disk_bytes(bytes: u64) -> u64 {
        bytes.next_multiple_of(1 << SMALL_METASLAB_SHIFT) + RESERVED
    }
}

/// Where blocks may be on a disk of this size: between the labels.
pub(crate) const fn block_range(disk_bytes: u64) -> Range<u64> {
    DATA_START..disk_bytes - LABELS_END
}

/// Runs a function on each item, on several threads of the host. The results are in the order of
/// the items.
///
/// # Errors
/// The error of the first item that has one.
///
/// # Panics
/// If the function panics.
pub fn run_all<I: Sync, T: Send, E: Send>(
    jobs: usize,
    items: &[I],
    run: impl Fn(&I) -> std::result::Result<T, E> + Sync,
) -> std::result::Result<Vec<T>, E> {
    let jobs = jobs.clamp(1, items.len().max(1));
    let mut results: Vec<Option<_>> = items.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let work = |first: usize| {
            let run = &run;
            move || {
                let own = items.iter().enumerate().skip(first).step_by(jobs);
                own.map(|(index, item)| (index, run(item))).collect::<Vec<_>>()
            }
        };
        let threads: Vec<_> = (0..jobs).map(|first| scope.spawn(work(first))).collect();
        for thread in threads {
            match thread.join() {
                Ok(done) => {
                    for (index, result) in done {
                        results[index] = Some(result);
                    }
                }
                Err(cause) => std::panic::resume_unwind(cause),
            }
        }
    });
    results.into_iter().map(|result| result.expect("every item was run")).collect()
}

/// Hashes of several runs as one, in their order.
#[must_use]
pub fn joined_hash(hashes: impl IntoIterator<Item = u128>) -> String {
    let mut joined: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for hash in hashes {
        joined =
            (joined.rotate_left(41) ^ hash).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("{:016x}", (joined >> 64) as u64 ^ joined as u64)
}
