//! A scrub of a pool in files, to its end.

use cenote_engine::{Engine, ScrubOptions};
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Error, Kind, Result};

use crate::args::Args;
use crate::usage::{self, Clock};

/// Opens the pool "tank" of a folder, and scrubs it.
pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let found = scan(&ScanOptions { paths: vec![args.word(0)?.into()] }).await?;
    let candidate = found.find("tank").map_err(|error| Error::new(Kind::NotFound, error))?;
    let engine = Engine::open(candidate, &OpenOptions::default()).await?;
    let clock = Clock::start();
    engine.scans().scrub(ScrubOptions::default()).await?;
    engine.scans().wait(ScanFunc::Scrub).await?;
    clock.tell("scrub", "MB/s", engine.scans().pass().issued as f64 / 1e6);
    println!("memory: {} MiB at most", usage::memory_mib("VmHWM"));
    engine.export().await
}
