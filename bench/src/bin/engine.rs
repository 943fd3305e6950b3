//! Speed of writing through the engine, without a kernel in between.
//!
//!     engine DIR LAYOUT MIB RECORDSIZE COMPRESSION CHECKSUM OVERWRITES [SIZE-OF-EACH-MIB]
//!
//! The same workload as `ozpool.py --time` gives OpenZFS's engine: one object is written from start
//! to end, then records of it are overwritten at random places; data compresses to about half. Time
//! counts to the end of the last sync.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cenote_device::{Device, FileDevice, OpenMode, create_file};
use cenote_dmu::Tx;
use cenote_dmu::live::ObjectSpec;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_pool::engine::create::CreateSpec;
use cenote_pool::engine::{Engine, Head, NewDataset};
use cenote_rt::{Buf, Result, Rng};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

/// Records that are written again and again: made before the clock runs.
const RING: usize = 16;

struct Options {
    dir: String,
    layout: String,
    bytes: u64,
    record: u64,
    compression: u64,
    checksum: u64,
    overwrites: u64,
    size: u64,
}

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
    let [dir, layout, _, _, compression, checksum, ..] = &words[..] else {
        eprintln!("engine DIR LAYOUT MIB RECORDSIZE COMPRESSION CHECKSUM OVERWRITES [SIZE]");
        std::process::exit(2);
    };
    let options = Options {
        dir: dir.clone(),
        layout: layout.clone(),
        bytes: number(2).unwrap_or(256) << 20,
        record: number(3).unwrap_or(128 << 10),
        compression: if compression == "off" { 2 } else { 15 },
        checksum: match &checksum[..] {
            "sha256" => 8,
            "blake3" => 14,
            _ => 1,
        },
        overwrites: number(6).unwrap_or(0),
        size: number(7).unwrap_or(1024) << 20,
    };
    match cenote_rt::block_on(0, run(&options)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) | Err(error) => {
            eprintln!("engine: {error}");
            std::process::exit(1);
        }
    }
}

async fn run(options: &Options) -> Result<()> {
    let engine = create(options).await?;
    engine.keep();
    let fill = Box::new(|_: &mut Tx<'_>| Ok(()));
    let props = vec![
        ("compression".to_owned(), Value::from(options.compression)),
        ("checksum".to_owned(), Value::from(options.checksum)),
    ];
    let new = NewDataset { name: "tank/fs".into(), kind: ObjSetType::Other, props, fill };
    let head = engine.create_dataset(new).await?;
    let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, options.record);
    let (object, _) = engine.apply(&head, |tx| tx.allocate(&spec)).await?;
    engine.sync().await?;
    let ring: Vec<Buf> = (0..RING as u64).map(|seed| record(seed, options.record)).collect();

    let records = options.bytes / options.record;
    let start = Instant::now();
    for number in 0..records {
        write(&engine, &head, object, number, &ring).await?;
    }
    engine.sync().await?;
    let wall = start.elapsed().as_secs_f64();
    println!("sequential write: {:.0} MB/s, {wall:.2} s", options.bytes as f64 / 1e6 / wall);

    if options.overwrites > 0 {
        let mut rng = Rng::seeded(1);
        let start = Instant::now();
        for _ in 0..options.overwrites {
            write(&engine, &head, object, rng.below(records), &ring).await?;
        }
        engine.sync().await?;
        let wall = start.elapsed().as_secs_f64();
        let rate = options.overwrites as f64 / wall;
        println!("random overwrite: {rate:.0} records/s, {wall:.2} s");
    }
    engine.export().await
}

async fn write(engine: &Engine, head: &Head, object: u64, number: u64, ring: &[Buf]) -> Result<()> {
    let data = &ring[number as usize % RING];
    engine.apply(head, |tx| tx.write_block(object, number, data.clone())).await?;
    Ok(())
}

/// A record of which half is noise.
fn record(seed: u64, len: u64) -> Buf {
    let mut bytes = vec![0; len as usize];
    let half = bytes.len() / 2;
    Rng::seeded(seed).fill(&mut bytes[..half]);
    Buf::from(bytes)
}

async fn create(options: &Options) -> Result<Arc<Engine>> {
    let (redundancy, count) = match options.layout.split_once(':') {
        None => (Redundancy::Single, 1),
        Some((name, count)) => {
            let redundancy = Redundancy::parse(name).ok().flatten().unwrap_or(Redundancy::Single);
            (redundancy, count.parse().unwrap_or(1))
        }
    };
    let dir = Path::new(&options.dir);
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    let mut leaves = Vec::new();
    for number in 0..count {
        let path = dir.join(format!("d{number}"));
        create_file(&path, options.size)?;
        devices.push(FileDevice::open(&path, OpenMode::Exclusive)?);
        leaves.push(LeafSpec {
            path: path.to_string_lossy().as_ref().into(),
            is_disk: false,
            is_whole_disk: false,
            size: options.size,
            logical_ashift: 9,
            physical_ashift: 9,
        });
    }
    let top = TopSpec { redundancy, class: VdevClass::Normal, leaves };
    let pool = create::CreateSpec { tops: vec![top], ashift: Some(12), ..Default::default() };
    let vdevs = create::pool(&pool, 4, &mut Guids::unguessable())?;
    let guids: Vec<_> = vdevs.root.leaves().map(|leaf| leaf.guid).collect();
    Engine::create(CreateSpec {
        name: "tank".into(),
        vdevs,
        devices: guids.into_iter().zip(devices).collect(),
        features: cenote_pool::features::identity().collect(),
        comment: None,
        compatibility: None,
        host: None,
        fill_root: Box::new(|_| Ok(())),
        probe: None,
    })
    .await
}
