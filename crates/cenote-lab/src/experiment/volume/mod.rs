//! Report 003: the same image in volumes with blocks of 4K and of 128K.
//!
//! ```text
//!   tank/source   16 GiB (here a part of it), blocks of 128K, lz4
//!      | read, skip zeros of 4K, write                      as `qemu-img convert -S 4096` does
//!      v
//!   tank/copy     volume with a reservation, lz4, blocks of 4K ... 128K; a world for each
//! ```
//!
//! What the report explains by indirect blocks and checksums has three parts: the reservation is
//! arithmetic; data of 4K blocks cannot shrink on sectors of 4K, however well it compresses; and
//! the time is that of the bytes which the SSD writes, if the SSD is the limit. The modelled SSD is
//! not, with sequential writes: there the processors are. `ssd-worn` has the report's rate.
//!
//! Sources: spec 09 §3.4; spec 03 §16.2.

mod content;
mod tables;

use std::sync::Arc;

use cenote_device::model::table::SSD_SATA_2012;
use cenote_device::model::{FlashParams, Params};
use cenote_engine::Engine;
use cenote_fs::{NewVolume, WritableVolume};
use cenote_ondisk::zap::Value;
use cenote_rt::{Buf, Result, World, monotonic};
use cenote_vdev::create::Redundancy;

use self::content::{RECORD, data_ranges, fill};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{Machine, joined_hash, run_all, world};
use crate::place::Place;
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "volume",
    title: "one image in volumes of different block sizes: space and time",
    published: "a block size comparison on OpenZFS, 2018: 17.0G and 14.6G in 352 s (4K), 16.0G and \
                8.42G in 200 s (128K)",
    policies: &["cenote"],
    devices: &["ssd-sata-2012", "ssd-worn"],
    can_be_real: true,
    measure,
};

/// An SSD whose sequential writes cost as much garbage collection as random ones. `ssd-sata-2012`
/// in its steady state writes random blocks at 350 / 7.8 = 45 MB/s, 43 MiB/s, which is the rate of
/// both copies of the report; a file system that never overwrites in place writes sequentially.
const SSD_WORN: FlashParams = FlashParams { program_mb: 45.0, ..SSD_SATA_2012 };

/// The devices.
const DEVICES: [(&str, Params); 2] =
    [("ssd-sata-2012", Params::Flash(SSD_SATA_2012)), ("ssd-worn", Params::Flash(SSD_WORN))];

/// The device of an experiment on files; its model is not used.
const REAL: [(&str, Params); 1] = [("file", Params::Flash(SSD_SATA_2012))];

/// Bytes of the SSD: 120 GB.
const DISK_BYTES: u64 = 120_000_000_000;
const ASHIFT: u64 = 12;
/// The machine of the report: two processors of a quarter of the speed of today's.
const PROCESSORS: usize = 2;
const SPEED_PERCENT: u32 = 25;
const LZ4: u64 = 15;
/// Bytes of a read of the copying program.
const CHUNK: u64 = 2 << 20;
/// Size of the image in the report.
const PUBLISHED_SIZE: u64 = 16 << 30;

/// A copy of the image.
#[derive(Debug, Clone, Default)]
struct Copied {
    device: &'static str,
    block: u64,
    /// Charged to the volume and its reservation, and to its blocks.
    used: u64,
    referenced: u64,
    /// Bytes of the source's blocks, and those of its data that are not zero.
    source_referenced: u64,
    source_data: u64,
    /// Allocated for data blocks of the copy.
    data: u64,
    /// Bytes that the SSD was asked to write, and seconds.
    written: u64,
    seconds: f64,
    hash: u128,
}

fn measure(
    options: &Options,
    policies: &[&'static Policy],
) -> std::result::Result<Measured, LabError> {
    let (divisor, blocks): (u64, &[u64]) = match options.scale {
        Scale::Small => (256, &[4 << 10, 128 << 10]),
        Scale::Default => (32, &[4 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10]),
        Scale::Full => (1, &[4 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10]),
    };
    let size = PUBLISHED_SIZE / divisor;
    let tunables = policies.first().map(|policy| policy.with(&[])).unwrap_or_default();
    // A file is one device.
    let devices = if options.place.is_real() { &REAL[..] } else { &DEVICES };
    let items: Vec<_> = devices
        .iter()
        .flat_map(|device| blocks.iter().map(move |block| (*device, *block)))
        .collect();
    let run = |(device, block): &((&'static str, Params), u64)| {
        let world = world(options.seed, PROCESSORS, tunables.clone());
        let world = World { speed_percent: SPEED_PERCENT, ..world };
        options.place.run(world, copy(&options.place, options.seed, size, *block, *device))
    };
    let copies = run_all(options.jobs, &items, run)?;
    let hash = joined_hash(copies.iter().map(|copy| copy.hash));
    let mut measured = Measured { hash, ..Measured::default() };
    tables::add(&mut measured, size, &copies);
    Ok(measured)
}

async fn copy(
    place: &Place,
    seed: u64,
    size: u64,
    block: u64,
    (device, params): (&'static str, Params),
) -> Result<Copied> {
    let machine = Machine::at(place, params, 1, (DISK_BYTES, ASHIFT), seed)?;
    let engine = machine.create_pool(Redundancy::Single, ASHIFT).await?;
    let (source, source_data) = write_source(&engine, seed, size).await?;
    let new = NewVolume::new("tank/copy", size).with_block_size(block);
    let target = new.with("compression", Value::U64(LZ4)).create(&engine).await?;
    engine.sync().await?;
    engine.store().clear_cache();

    let ((_, before), begun) = (machine.written(1), monotonic());
    for offset in (0..size).step_by(CHUNK as usize) {
        let bytes = source.read(offset, CHUNK.min(size - offset) as usize).await?;
        for range in data_ranges(&bytes) {
            let part = Buf::from(bytes[range.clone()].to_vec());
            target.write(offset + range.start as u64, vec![part], false).await?;
        }
    }
    target.flush().await?;
    engine.sync().await?;
    let seconds = monotonic().saturating_sub(begun).as_secs_f64();
    let written = machine.written(1).1 - before;

    let source_referenced = engine.datasets().space_of(source.head()).await?.referenced;
    let referenced = engine.datasets().space_of(target.head()).await?.referenced;
    let view = engine.view().await?;
    let dataset = view.dataset("tank/copy").await?;
    let used = dataset.dir().phys.used_bytes;
    let objset = dataset.open().await?;
    let data = allocated_data(&objset, size / block).await?;
    drop((source, target));
    let hash = machine.hash();
    engine.export().await?;
    Ok(Copied {
        device,
        block,
        used,
        referenced,
        source_referenced,
        source_data,
        data,
        written,
        seconds,
        hash,
    })
}

/// Writes the image. Returns its volume, and its bytes that are not zero.
async fn write_source(
    engine: &Arc<Engine>,
    seed: u64,
    size: u64,
) -> Result<(Arc<WritableVolume>, u64)> {
    let new = NewVolume::new("tank/source", size).with_block_size(RECORD as u64).sparse();
    let source = new.with("compression", Value::U64(LZ4)).create(engine).await?;
    let mut record = vec![0; RECORD];
    let mut data = 0;
    for number in 0..size / RECORD as u64 {
        fill(seed, number, &mut record);
        for range in data_ranges(&record) {
            data += range.len() as u64;
            let part = Buf::from(record[range.clone()].to_vec());
            let offset = number * RECORD as u64 + range.start as u64;
            source.write(offset, vec![part], false).await?;
        }
    }
    engine.sync().await?;
    Ok((source, data))
}

/// Returns the bytes that are allocated for data blocks of a volume.
async fn allocated_data(objset: &cenote_dmu::ObjSet, blocks: u64) -> Result<u64> {
    let dnode = objset.dnode(1).await?;
    let mut bytes = 0;
    for number in 0..blocks {
        if let Some(pointer) = dnode.block_pointer(0, number).await? {
            bytes += pointer.dvas().map(|dva| dva.asize).sum::<u64>();
        }
    }
    Ok(bytes)
}
