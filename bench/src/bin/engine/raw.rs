//! Raw writes: the upper bound for the engine on the same files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cenote_rt::{Error, Kind, Result};

use crate::args::Args;
use crate::pool::Contents;
use crate::usage::since;

/// Bytes of a write.
const STEP: usize = 1 << 20;

/// Writes so many bytes to each of some files, one thread for each, and makes them durable.
pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let dir = args.word(0)?;
    let (leaves, bytes): (u64, u64) = (args.number(1)?, args.number::<u64>(2)? << 20);
    let paths = (0..leaves).map(|number| Path::new(dir).join(format!("r{number}")));
    let paths: Vec<PathBuf> = paths.collect();
    let chunk = Contents::new().chunk(STEP as u64);
    let chunk: std::sync::Arc<[u8]> = chunk.into();
    let start = cenote_rt::monotonic();
    let threads = paths.iter().cloned().map(|path| {
        let chunk = std::sync::Arc::clone(&chunk);
        cenote_rt::spawn(cenote_rt::blocking(move || write(&path, &chunk, bytes)))
    });
    for thread in threads.collect::<Vec<_>>() {
        let done = thread.await.map_err(|error| Error::new(Kind::Io, error))?;
        done?.map_err(|error| Error::new(Kind::Io, error))?;
    }
    let wall = since(start).as_secs_f64();
    let written = (leaves * bytes) as f64 / 1e6;
    println!("raw write: {:.0} MB/s, {wall:.2} s", written / wall);
    Ok(())
}

fn write(path: &Path, chunk: &[u8], bytes: u64) -> std::io::Result<()> {
    let file = File::options().write(true).create(true).truncate(true).open(path)?;
    for offset in (0..bytes).step_by(STEP) {
        file.write_all_at(chunk, offset)?;
    }
    file.sync_data()
}
