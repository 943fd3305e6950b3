//! Pools for the measurements, and their data.

use std::path::Path;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenMode, create_file};
use cenote_dmu::live::ObjectSpec;
use cenote_engine::create::CreateSpec;
use cenote_engine::{ApplyOptions, Engine, Head, NewDataset};
use cenote_fs::Mount;
use cenote_fs::format::{FsOwners, NewFileSystem};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_ondisk::znode::Time;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Error, Kind, Result, Rng};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

/// Values of properties.
pub(crate) const COMPRESSION_OFF: u64 = 2;
pub(crate) const COMPRESSION_LZ4: u64 = 15;
pub(crate) const CHECKSUM_ON: u64 = 1;
const CHECKSUM_SHA256: u64 = 8;
const CHECKSUM_BLAKE3: u64 = 14;

/// Files in a folder for a layout: "d", "mirror:2", "raidz2:6".
pub(crate) fn files(
    dir: &str,
    layout: &str,
    size: u64,
) -> Result<(Redundancy, Vec<Arc<dyn Device>>)> {
    let (redundancy, count) = shape(layout);
    let devices = (0..count).map(|number| {
        let path = Path::new(dir).join(format!("d{number}"));
        create_file(&path, size)?;
        FileDevice::open(&path, OpenMode::Exclusive)
    });
    Ok((redundancy, devices.collect::<Result<_>>()?))
}

pub(crate) fn shape(layout: &str) -> (Redundancy, u64) {
    let Some((name, count)) = layout.split_once(':') else { return (Redundancy::Single, 1) };
    let redundancy = Redundancy::parse(name).ok().flatten().unwrap_or(Redundancy::Single);
    (redundancy, count.parse().unwrap_or(1))
}

/// Opens the pool "tank" of a folder, that is synced in the background.
pub(crate) async fn open(dir: &Path) -> Result<Arc<Engine>> {
    let found = scan(&ScanOptions { paths: vec![dir.into()] }).await?;
    let candidate = found.find("tank").map_err(|error| Error::new(Kind::NotFound, error))?;
    let engine = Engine::open(candidate, &OpenOptions::default()).await?;
    engine.start_sync_task();
    Ok(engine)
}

/// A pool "tank" of one top-level vdev over these devices, with sectors of 4 KiB, that is synced in
/// the background.
pub(crate) async fn create(
    redundancy: Redundancy,
    devices: Vec<Arc<dyn Device>>,
) -> Result<Arc<Engine>> {
    let engine = create_alone(redundancy, devices).await?;
    engine.start_sync_task();
    Ok(engine)
}

/// Such a pool without background syncs: it is synced only by explicit calls.
pub(crate) async fn create_alone(
    redundancy: Redundancy,
    devices: Vec<Arc<dyn Device>>,
) -> Result<Arc<Engine>> {
    Engine::create(spec(redundancy, devices)?).await
}

/// A pool of one file in `dir` whose root is a file system with that record size, mounted.
pub(crate) async fn mount(dir: &str, size: u64, record: u64) -> Result<Arc<Mount>> {
    let (redundancy, devices) = files(dir, "d", size)?;
    let mut spec = spec(redundancy, devices)?;
    spec.fill_root = Box::new(|tx| NewFileSystem::at(Time::default()).fill(tx));
    spec.probe = Some(Arc::new(FsOwners { counts_objects: true, counts_projects: true }));
    let engine = Engine::create(spec).await?;
    engine.start_sync_task();
    engine.properties().set("tank", "recordsize", record.into()).await?;
    engine.properties().set("tank", "compression", COMPRESSION_OFF.into()).await?;
    Mount::open(&engine, "tank").await
}

fn spec(redundancy: Redundancy, devices: Vec<Arc<dyn Device>>) -> Result<CreateSpec> {
    let leaves = devices.iter().map(|device| LeafSpec::of(device.info())).collect();
    let top = TopSpec { redundancy, class: VdevClass::Normal, leaves };
    let pool = create::CreateSpec { tops: vec![top], ashift: Some(12), ..Default::default() };
    let vdevs = create::pool(&pool, 4, &mut Guids::unguessable())?;
    Ok(CreateSpec::new("tank", vdevs, devices))
}

/// A dataset without a file system in it.
pub(crate) async fn dataset(
    engine: &Engine,
    name: &str,
    compression: u64,
    checksum: u64,
) -> Result<Arc<Head>> {
    let props = vec![
        ("compression".to_owned(), Value::from(compression)),
        ("checksum".to_owned(), Value::from(checksum)),
    ];
    let new = NewDataset { props, ..NewDataset::new(name, ObjSetType::Other) };
    engine.datasets().create(new).await
}

/// An object with blocks of that size.
pub(crate) async fn object(engine: &Engine, head: &Head, record: u64) -> Result<u64> {
    let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, record);
    Ok(engine.apply(head, ApplyOptions::new(), |tx| tx.allocate(&spec)).await?.0)
}

/// The number of a compression's property value.
pub(crate) fn compression(name: &str) -> u64 {
    if name == "off" { COMPRESSION_OFF } else { COMPRESSION_LZ4 }
}

/// The number of a checksum's property value.
pub(crate) fn checksum(name: &str) -> u64 {
    match name {
        "sha256" => CHECKSUM_SHA256,
        "blake3" => CHECKSUM_BLAKE3,
        _ => CHECKSUM_ON,
    }
}

/// Content that compresses to about half, generated like that of `ozpool.py`: 64-byte words, half
/// noise and half text, chosen from 4096 of them.
pub(crate) struct Contents {
    words: Vec<[u8; 64]>,
    rng: Rng,
}

impl Contents {
    pub(crate) fn new() -> Self {
        let mut rng = Rng::seeded(1);
        let words = (0..4096).map(|_| {
            let mut word = *b"00000000000000000000000000000000cenote cenote cenote cenote ####";
            rng.fill(&mut word[..32]);
            word
        });
        Self { words: words.collect(), rng }
    }

    /// Data of this length.
    pub(crate) fn chunk(&mut self, len: u64) -> Vec<u8> {
        let count = self.words.len() as u64;
        let words = (0..len / 64).flat_map(|_| self.words[self.rng.below(count) as usize]);
        words.collect()
    }
}
