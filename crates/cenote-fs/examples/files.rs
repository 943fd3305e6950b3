//! A pool on files of the host: made or opened, written, read, and a snapshot taken.
//!
//! ```text
//!   cargo run --example files -p cenote-fs -- FOLDER
//! ```
//!
//! The first run makes `FOLDER/disk0.img` and `FOLDER/disk1.img` of 128 MiB, a mirror; every run
//! adds a file to the pool, reads all files, and takes a snapshot. `zpool import -d FOLDER demo`
//! of OpenZFS imports what it leaves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenMode, create_file};
use cenote_engine::Engine;
use cenote_engine::create::CreateSpec;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::format::{FsOwners, NewFileSystem};
use cenote_fs::mount::WriteOptions;
use cenote_fs::{FileSystem, Mount, Time};
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::{Kind, Result};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

const POOL: &str = "demo";

fn main() {
    let Some(folder) = std::env::args().nth(1).map(PathBuf::from) else {
        eprintln!("usage: files FOLDER");
        std::process::exit(2);
    };
    let done = cenote_rt::block_on(2, run(&folder));
    if let Err(error) = done.and_then(|done| done) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn run(folder: &Path) -> Result<()> {
    let paths: Vec<PathBuf> = (0..2).map(|n| folder.join(format!("disk{n}.img"))).collect();
    let engine = if paths.iter().all(|path| path.exists()) {
        open(&paths).await?
    } else {
        create(&paths).await?
    };
    // What is written reaches the disk every few seconds, and when it is asked for.
    engine.keep();
    // What a crash left is done first; then the file system is anybody's.
    let mount = Mount::open(&engine, POOL).await?;
    write(&mount).await?;
    read(&mount).await?;
    let snapshot = format!("{POOL}@txg{}", engine.open_txg());
    engine.snapshot(vec![snapshot.clone()]).await?;
    println!("took {snapshot}");
    drop(mount);
    // Everything is on disk, and the labels say that nobody has the pool.
    engine.export().await?;
    drop(engine);
    look(&paths, &snapshot).await
}

/// Makes a pool of one mirror, with a file system as its root.
async fn create(paths: &[PathBuf]) -> Result<Arc<Engine>> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for path in paths {
        create_file(path, 128 << 20)?;
        devices.push(FileDevice::open(path, OpenMode::Exclusive)?);
    }
    let leaves = devices.iter().map(|device| LeafSpec::of(device.info())).collect();
    let mirror = TopSpec { redundancy: Redundancy::Mirror, class: VdevClass::Normal, leaves };
    let vdevs = create::CreateSpec { tops: vec![mirror], ..create::CreateSpec::default() };
    let vdevs = create::pool(&vdevs, 4, &mut Guids::unguessable())?;
    let mut spec = CreateSpec::new(POOL, vdevs, devices);
    let now = cenote_rt::wall_clock();
    let now = Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos().into() };
    spec.fill_root = Box::new(move |tx| NewFileSystem::at(now).fill(tx));
    // What users, groups and projects have is accounted for.
    spec.probe = Some(Arc::new(FsOwners { counts_objects: true, counts_projects: true }));
    println!("made {POOL}");
    Engine::create(spec).await
}

/// Opens the pool that is on these devices.
async fn open(paths: &[PathBuf]) -> Result<Arc<Engine>> {
    let found = scan(&ScanOptions { paths: paths.to_vec() }).await?;
    let candidate =
        found.find(POOL).map_err(|error| cenote_rt::Error::not_found(error.to_string()))?;
    Engine::open(candidate, &OpenOptions::default()).await
}

/// Adds a file, and makes it durable by itself.
async fn write(mount: &Mount) -> Result<()> {
    let me = Credentials::root();
    let folder = NewNode::new(NewKind::Directory, 0o755);
    let notes = match mount.create(&me, mount.root(), b"notes", &folder).await {
        Err(error) if error.kind() == Kind::Exists => {
            mount.lookup(&me, mount.root(), b"notes").await?
        }
        made => made?,
    };
    let name = format!("note-{}", notes.size - 2);
    let file = NewNode::new(NewKind::Regular, 0o644);
    let file = mount.create(&me, notes.object, name.as_bytes(), &file).await?;
    let text = format!("This is {name}, in object {}.\n", file.object);
    mount.write(&me, file.object, 0, text.as_bytes(), WriteOptions::default()).await?;
    mount.fsync(file.object).await
}

/// Prints all files of the directory.
async fn read(mount: &Mount) -> Result<()> {
    let me = Credentials::root();
    let notes = mount.lookup(&me, mount.root(), b"notes").await?;
    let mut cookie = 0;
    loop {
        let page = mount.read_dir(&me, notes.object, cookie, 100).await?;
        for entry in page.entries {
            cookie = entry.cookie;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let mut text = vec![0; mount.attributes(entry.object).await?.size as usize];
            mount.read(entry.object, 0, &mut text).await?;
            print!("{}: {}", String::from_utf8_lossy(&entry.name), String::from_utf8_lossy(&text));
        }
        if page.is_end {
            return Ok(());
        }
    }
}

/// Counts what the snapshot has, with the reader: nothing is changed for that.
async fn look(paths: &[PathBuf], snapshot: &str) -> Result<()> {
    let found = scan(&ScanOptions { paths: paths.to_vec() }).await?;
    let candidate =
        found.find(POOL).map_err(|error| cenote_rt::Error::not_found(error.to_string()))?;
    let pool = Pool::open(candidate, &OpenOptions::default()).await?;
    let files = FileSystem::open(&pool.dataset(snapshot).await?).await?;
    let notes = files.root().await?.lookup(b"notes").await?;
    println!("{snapshot} has {} notes", notes.size() - 2);
    Ok(())
}
