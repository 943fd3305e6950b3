//! A pool on two files with a volume in it: its bytes are written and read, it is snapshotted, and
//! what it is told of holes is what a network block device would tell.
//!
//! ```text
//!   cargo run -p cenote-fs --example volume [FOLDER]
//! ```
//!
//! Without a folder the pool is made in one that is removed at the end. OpenZFS opens the pool:
//! `zdb -e -p FOLDER -dddd demo`.

use std::path::Path;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenMode, create_file};
use cenote_engine::Engine;
use cenote_engine::create::CreateSpec;
use cenote_fs::format::NewFileSystem;
use cenote_fs::{NewVolume, Time, Volume, WritableVolume, recover};
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Buf, Error, Kind, Result, block_on};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

/// Bytes of each of the two files.
const DEVICE_SIZE: u64 = 128 << 20;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let given = std::env::args().nth(1);
    let folder = match &given {
        Some(folder) => Path::new(folder).to_path_buf(),
        None => std::env::temp_dir().join(format!("cenote-volume-{}", std::process::id())),
    };
    std::fs::create_dir_all(&folder)?;
    let result = block_on(2, run(&folder));
    if given.is_none() {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(result??)
}

async fn run(folder: &Path) -> Result<()> {
    let engine = make_pool(folder).await?;
    // Syncs in the background, until the last user of the pool is gone.
    engine.keep();

    // 16 MiB in blocks of 16K, with the space for them kept.
    let volume = NewVolume::new("demo/disk", 16 << 20).create(&engine).await?;
    println!("demo/disk: {} bytes in blocks of {}", volume.size(), volume.block_size());

    // Any bytes anywhere. What is written with FUA is durable when the call returns, what came
    // before a flush is when that does.
    volume.write(0, vec![Buf::from(b"the first sector".to_vec())], false).await?;
    volume.write(1_000_001, vec![Buf::from(vec![7; 100_000])], true).await?;
    volume.flush().await?;
    println!("read: {:?}", String::from_utf8_lossy(&volume.read(4, 12).await?));

    engine.snapshot(vec!["demo/disk@before".into()]).await?;
    volume.write_zeroes(1 << 20, 32 << 10, false, false).await?;
    volume.discard(0, 1 << 20).await?;
    for extent in volume.block_status(0, 2 << 20).await? {
        let kind = if extent.is_hole { "hole" } else { "data" };
        println!("{:>8} + {:<8} {kind}", extent.offset, extent.len);
    }
    volume.resize(32 << 20).await?;

    // The snapshot is what it was.
    let before = Volume::open_snapshot(&engine, "demo/disk@before").await?;
    println!("before: {:?}", String::from_utf8_lossy(&before.read_at(4, 12).await?));
    // Devices are let go of with the last who may read them.
    drop((volume, before));
    engine.export().await?;
    drop(engine);

    // Anybody may open it again, and first makes good what a crash may have left in the logs.
    let scan = scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await?;
    let found = scan.find("demo").map_err(|error| Error::not_found(error.to_string()))?;
    let engine = Engine::open(found, &OpenOptions::default()).await?;
    recover(&engine).await?;
    let volume = WritableVolume::open(&engine, "demo/disk").await?;
    println!("again: {} bytes, the first {}", volume.size(), volume.read(0, 1).await?[0]);
    drop(volume);
    engine.export().await
}

/// A mirror of two files, with an empty file system as its root.
async fn make_pool(folder: &Path) -> Result<Arc<Engine>> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for name in ["d0.img", "d1.img"] {
        let path = folder.join(name);
        create_file(&path, DEVICE_SIZE)?;
        devices.push(FileDevice::open(&path, OpenMode::Exclusive)?);
    }
    let leaves = devices.iter().map(|device| LeafSpec::of(device.info())).collect();
    let top = TopSpec { redundancy: Redundancy::Mirror, class: VdevClass::Normal, leaves };
    let spec =
        create::CreateSpec { tops: vec![top], ashift: Some(12), ..create::CreateSpec::default() };
    let vdevs = create::pool(&spec, 4, &mut Guids::unguessable())?;
    let mut spec = CreateSpec::new("demo", vdevs, devices);
    let now = cenote_rt::wall_clock();
    let seconds = i64::try_from(now.as_secs()).map_err(|error| Error::new(Kind::Invalid, error))?;
    let now = Time { seconds, nanoseconds: now.subsec_nanos().into() };
    spec.fill_root = Box::new(move |tx| NewFileSystem::at(now).fill(tx));
    Engine::create(spec).await
}
