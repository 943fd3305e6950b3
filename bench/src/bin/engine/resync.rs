//! New devices get their data: resilvers, rebuilds, removals and expansions of a pool in files, to
//! their end.

use std::path::Path;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenMode, create_file};
use cenote_engine::admin::NewVdevs;
use cenote_engine::create::{LeafSpec, Redundancy, TopSpec, VdevClass, plan_leaf};
use cenote_engine::{Attach, Engine};
use cenote_ondisk::scan::ScanFunc;
use cenote_rt::{Error, Kind, Result, tunables};
use cenote_vdev::create::{Guids, top};

use crate::args::Args;
use crate::usage::{self, Clock};
use crate::{pool, random};

/// Name of the file that is added. Files of the pool have other names.
const NEW: &str = "n0";

/// Opens the pool "tank" of a folder, adds a file to it, and waits until it has its data.
pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let (dir, way) = (Path::new(args.word(0)?), args.word(1)?);
    // The scrub that may follow is not measured.
    random::set(&tunables::REBUILD_SCRUB, 0)?;
    random::set(&tunables::SCRUB_AFTER_EXPAND, 0)?;
    let engine = pool::open(dir).await?;
    let (spec, device) = new_file(&engine, dir)?;
    let clock = Clock::start();
    let moved = match way {
        "attach" => attach(&engine, (spec, device), Attach::Mirror, false).await?,
        "rebuild" => attach(&engine, (spec, device), Attach::Mirror, true).await?,
        "replace" => attach(&engine, (spec, device), Attach::Replace, false).await?,
        "remove" => remove(&engine, (spec, device)).await?,
        "expand" => expand(&engine, (spec, device)).await?,
        _ => return Err(Error::new(Kind::Invalid, format!("there is no way '{way}'"))),
    };
    clock.tell(way, "MB/s", moved as f64 / 1e6);
    for (_, leaf) in engine.tree().leaves() {
        let stats = leaf.stats();
        println!(
            "{}: {} reads of {} bytes, {} writes of {} bytes, {} flushes",
            leaf.path(),
            stats.reads,
            stats.bytes,
            stats.writes,
            stats.write_bytes,
            stats.flushes
        );
    }
    println!("memory: {} MiB at most", usage::memory_mib("VmHWM"));
    engine.export().await
}

/// Creates the new file, as long as those of the pool.
fn new_file(engine: &Engine, dir: &Path) -> Result<(LeafSpec, Arc<dyn Device>)> {
    let devices = engine.tree().leaves().filter_map(|(_, leaf)| leaf.device());
    let size = devices.map(|device| device.info().size).max().unwrap_or(0);
    let path = dir.join(NEW);
    create_file(&path, size)?;
    let device = FileDevice::open(&path, OpenMode::Exclusive)?;
    Ok((LeafSpec::of(device.info()), device))
}

/// Attaches the file to the last leaf, or replaces that. Returns the bytes that it got.
async fn attach(
    engine: &Engine,
    (spec, device): (LeafSpec, Arc<dyn Device>),
    how: Attach,
    is_sequential: bool,
) -> Result<u64> {
    let mut leaf = plan_leaf(&spec, device)?;
    leaf.is_sequential = is_sequential;
    let last = engine.tree().leaves().last().map_or(0, |(_, leaf)| leaf.guid());
    let guid = leaf.config.guid;
    engine.leaves().attach(last, leaf, how).await?;
    let written = || {
        let leaf = engine.tree().leaf_of(guid).map(|id| engine.tree().leaf(id));
        leaf.map_or(0, |leaf| leaf.stats().write_bytes)
    };
    let before = written();
    engine.scans().resume().await?;
    engine.scans().wait(ScanFunc::Resilver).await?;
    Ok(written() - before)
}

/// Adds the file as a vdev, and removes the first vdev. Returns the bytes that were copied.
async fn remove(engine: &Engine, (spec, device): (LeafSpec, Arc<dyn Device>)) -> Result<u64> {
    let spec =
        TopSpec { redundancy: Redundancy::Single, class: VdevClass::Normal, leaves: vec![spec] };
    let (id, txg) = (engine.admin().next_vdev_id(), engine.open_txg());
    let new = top(&spec, id, Some(12), txg, &mut Guids::unguessable())?;
    let devices = new.leaves().map(|leaf| (leaf.guid, Arc::clone(&device))).collect();
    let tops = vec![(new, VdevClass::Normal)];
    let new = NewVdevs { tops, spares: Vec::new(), caches: Vec::new(), devices };
    engine.admin().add_vdevs(new).await?;
    let first = engine.admin().vdev_config().children.first().map_or(0, |top| top.guid);
    engine.removals().begin(first).await?;
    engine.removals().wait().await?;
    Ok(engine.removals().state().await?.map_or(0, |state| state.copied))
}

/// Expands the first vdev, a RAID-Z, by the file. Returns the bytes that were copied.
async fn expand(engine: &Engine, (spec, device): (LeafSpec, Arc<dyn Device>)) -> Result<u64> {
    let first = engine.admin().vdev_config().children.first().map_or(0, |top| top.guid);
    engine.leaves().expand_raidz(first, plan_leaf(&spec, device)?).await?;
    let to_copy = engine.leaves().reflow_progress().map_or(0, |progress| progress.to_copy);
    engine.leaves().resume_reflow();
    engine.leaves().wait_for_reflow().await;
    if engine.leaves().reflow_progress().is_some() {
        return Err(Error::new(Kind::Io, "the expansion has ended early".to_owned()));
    }
    Ok(to_copy)
}
