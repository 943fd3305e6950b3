//! `cenote verify`: reads and checks every copy and all parity of all blocks, and writes nothing.
//!
//! Findings are printed on standard output while the pool is read, each with dataset and file,
//! device and offset on it; sums by device and by dataset follow. Progress goes to standard error
//! if that is a terminal. With `--leaks` the reachable space is compared with the space maps
//! afterwards. Status 1 if anything is wrong.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use cenote_fs::FileSystem;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET, LEVEL_ZIL};
use cenote_pool::dsl::DatasetKind;
use cenote_pool::traverse::MOS;
use cenote_pool::verify::{self, Finding, MissingBytes, Observer, Progress, Summary};
use cenote_pool::{Pool, leaks};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Semaphore};
use futures_util::future::{Either, select};

use crate::getopt::Long;
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum::bytes_b;
use crate::source;
use crate::{err, out};

/// The usage text.
const USAGE: &str = "\
usage: cenote verify [--leaks] [-v] [-d DIR|DEVICE]... [-k DATASET=KEYFILE]... POOL
  Reads every copy and all parity of every block and compares it with its checksum.
  Data missing on a device that is or was offline is reported per device.
  Without -d the pool is one of the daemon's, or of devices in /dev.
  --leaks  also compares the reachable space with the space maps
  -v       shows progress even if standard error is not a terminal
Status: 0 no errors and full redundancy, 1 otherwise, 2 wrong use.
";

pub(super) const OPTIONS: super::Options = ("v", &[Long::flag("leaks", 'L')]);

/// Unprinted findings at which reading pauses.
const WAITING_MAX: usize = 4096;
/// File systems kept open to look up names of their files.
const OPEN_MAX: usize = 16;
/// Interval at which findings are printed.
const TICK: Duration = Duration::from_millis(200);
/// Interval between lines of progress.
const PROGRESS: Duration = Duration::from_secs(1);

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some((parsed, source)) = super::parse(args, OPTIONS, USAGE, io)? else { return Ok(()) };
    let [name] = &parsed.operands[..] else {
        let is_missing = parsed.operands.is_empty();
        let message = if is_missing { "missing pool name" } else { "too many arguments" };
        return Err(super::wrong_use(message, USAGE));
    };
    let shows_progress = parsed.has('v') || std::io::stderr().is_terminal();
    source::run(async {
        let pool = source.whole_pool(name).await?;
        let mut report = Report::new(&pool, shows_progress);
        let (summary, missing) = report.verify(io).await?;
        report.sums(&summary, &missing, io)?;
        let mut is_clean = summary.is_clean() && missing.is_empty();
        if parsed.has('L') {
            is_clean &= report.leaks(io).await?;
        }
        if let Some(peak) = peak_memory() {
            out!(io, "peak memory: {}", bytes_b(peak))?;
        }
        if is_clean { Ok(()) } else { Err(Exit::Status(1)) }
    })
}

/// Returns the process's peak resident memory, where the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Findings not yet printed.
struct Queue {
    waiting: Mutex<VecDeque<Finding>>,
    room: Semaphore,
}

impl Queue {
    fn take(&self) -> VecDeque<Finding> {
        let mut waiting = self.waiting.lock();
        let taken = std::mem::take(&mut *waiting);
        self.room.add_permits(taken.len());
        taken
    }
}

impl Observer for Queue {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(permit) = self.room.acquire().await {
                permit.forget();
            }
            self.waiting.lock().push_back(finding);
        })
    }
}

/// Errors of one device or dataset.
#[derive(Debug, Default, Clone, Copy)]
struct Errors {
    parts: u64,
    lost: u64,
}

/// The output, and the names in it.
struct Report<'p> {
    pool: &'p Arc<Pool>,
    shows_progress: bool,
    names: BTreeMap<u64, Named>,
    by_device: BTreeMap<String, Errors>,
    by_dataset: BTreeMap<String, Errors>,
    started: Duration,
}

/// A dataset with reported blocks.
#[derive(Clone)]
struct Named {
    name: String,
    kind: DatasetKind,
    fs: Option<Arc<FileSystem>>,
}

impl<'p> Report<'p> {
    fn new(pool: &'p Arc<Pool>, shows_progress: bool) -> Self {
        let (names, by_device, by_dataset) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let started = cenote_rt::monotonic();
        Self { pool, shows_progress, names, by_device, by_dataset, started }
    }

    async fn verify(
        &mut self,
        io: &mut Io<'_>,
    ) -> Result<(Summary, BTreeMap<String, MissingBytes>), Exit> {
        let (waiting, room) =
            (Mutex::with_default(Rank::VerifyFindings), Semaphore::new(WAITING_MAX));
        let queue = Arc::new(Queue { waiting, room });
        let progress = Arc::new(Progress::default());
        let expected = if self.shows_progress {
            verify::expected_bytes(self.pool).await.unwrap_or(0)
        } else {
            0
        };
        let mut work = {
            let (pool, progress) = (Arc::clone(self.pool), Arc::clone(&progress));
            let observer: Arc<dyn Observer> = Arc::clone(&queue) as Arc<dyn Observer>;
            cenote_rt::spawn(async move { verify::pool(&pool, observer, progress).await })
        };
        let mut shown = cenote_rt::monotonic();
        loop {
            let tick = Box::pin(cenote_rt::sleep(TICK));
            let ended = match select(&mut work, tick).await {
                Either::Left((ended, _)) => Some(ended),
                Either::Right(((), _)) => None,
            };
            for finding in queue.take() {
                self.print(&finding, io).await?;
            }
            if let Some(ended) = ended {
                let ended = ended.map_err(|error| Exit::failed(format!("verify: {error}")))?;
                return Ok((ended?, progress.missing()));
            }
            if self.shows_progress && cenote_rt::monotonic().saturating_sub(shown) >= PROGRESS {
                shown = cenote_rt::monotonic();
                self.print_progress(&progress.summary(), expected, io)?;
            }
        }
    }

    fn print_progress(&self, now: &Summary, expected: u64, io: &mut Io<'_>) -> CommandResult {
        let seconds = self.seconds();
        let rate = (now.bytes as f64 / seconds) as u64;
        let percent = now.bytes.min(expected) * 100 / expected.max(1);
        let left = expected.saturating_sub(now.bytes).checked_div(rate).unwrap_or(0);
        err!(
            io,
            "{percent}% done, {} of {} at {}/s, {:02}:{:02}:{:02} to go, {} errors",
            bytes_b(now.bytes),
            bytes_b(expected),
            bytes_b(rate),
            left / 3600,
            left / 60 % 60,
            left % 60,
            now.parts + now.lost + now.unreachable
        )
    }

    fn seconds(&self) -> f64 {
        cenote_rt::monotonic().saturating_sub(self.started).as_secs_f64().max(0.001)
    }

    async fn print(&mut self, finding: &Finding, io: &mut Io<'_>) -> CommandResult {
        match finding {
            Finding::Part { place, bp, part } => {
                let (dataset, spot) = self.spot(place, Some(bp)).await;
                let child = &part.child;
                self.by_device.entry(child.path.clone()).or_default().parts += 1;
                self.by_dataset.entry(dataset.clone()).or_default().parts += 1;
                let header = if part.is_gang_header { " (gang header)" } else { "" };
                out!(
                    io,
                    "{dataset} {spot}: copy {}{header} on {} at {:#x}, {} bytes: {}",
                    part.dva,
                    child.path,
                    child.offset,
                    child.len,
                    child.cause
                )
            }
            Finding::Lost { place, bp, copies, cause } => {
                let (dataset, spot) = self.spot(place, Some(bp)).await;
                self.by_dataset.entry(dataset.clone()).or_default().lost += 1;
                let copies: Vec<String> = copies.iter().map(ToString::to_string).collect();
                let cause = cause.as_ref().map(ToString::to_string);
                let why: Vec<String> = cause.into_iter().chain(copies).collect();
                out!(io, "{dataset} {spot}: LOST: {}", why.join("; "))
            }
            Finding::Unreachable(damage) => {
                let (dataset, spot) = self.spot(&damage.place, damage.bp.as_ref()).await;
                self.by_dataset.entry(dataset.clone()).or_default().lost += 1;
                out!(io, "{dataset} {spot}: not looked at below: {}", damage.error)
            }
        }
    }

    /// Returns the dataset and the place in it, with the file's path where there is one.
    async fn spot(&mut self, place: &Bookmark, bp: Option<&BlockPtr>) -> (String, String) {
        let named = self.named(place.objset).await;
        let offset = bp.map_or(0, |bp| place.blkid.saturating_mul(bp.lsize()));
        let spot = match (place.level, place.object) {
            (LEVEL_OBJSET, _) => "object set".to_owned(),
            (LEVEL_ZIL, _) => format!("intent log block {}", place.blkid),
            (level, 0) => format!("dnodes, level {level} block {}", place.blkid),
            (level, object) => {
                let path = match &named.fs {
                    Some(fs) => fs.path_of(object).await.ok().flatten(),
                    None => None,
                };
                let what = match path {
                    Some(path) => printable(&path),
                    None if named.kind == DatasetKind::Volume && object == 1 => "data".to_owned(),
                    None => format!("object {object}"),
                };
                match level {
                    0 => format!("{what} offset {offset:#x}"),
                    _ => format!("{what} level {level} block {}", place.blkid),
                }
            }
        };
        (named.name, spot)
    }

    async fn named(&mut self, objset: u64) -> Named {
        if let Some(named) = self.names.get(&objset) {
            return named.clone();
        }
        let named = match self.pool.dataset_by_object(objset).await {
            _ if objset == MOS => {
                Named { name: "<metadata>".to_owned(), kind: DatasetKind::Other, fs: None }
            }
            Ok(dataset) => {
                let kind = dataset.kind().await.unwrap_or(DatasetKind::Other);
                let fs = match kind {
                    DatasetKind::Filesystem => FileSystem::open(&dataset).await.ok(),
                    _ => None,
                };
                Named { name: dataset.name().to_owned(), kind, fs }
            }
            Err(_) => {
                let name = format!("<dataset {objset}>");
                Named { name, kind: DatasetKind::Other, fs: None }
            }
        };
        if self.names.len() >= OPEN_MAX {
            self.names.pop_first();
        }
        self.names.insert(objset, named.clone());
        named
    }

    fn sums(
        &self,
        summary: &Summary,
        missing: &BTreeMap<String, MissingBytes>,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let seconds = self.seconds();
        let rate = (summary.bytes as f64 / seconds) as u64;
        let (copies, bytes) = (summary.copies, bytes_b(summary.bytes));
        let name = self.pool.name();
        out!(io, "{name}: {copies} copies, {bytes} in {seconds:.2}s ({}/s)", bytes_b(rate))?;
        for (device, errors) in &self.by_device {
            out!(io, "  {device}: {} parts of blocks wrong", errors.parts)?;
        }
        for (dataset, errors) in &self.by_dataset {
            out!(io, "  {dataset}: {} parts wrong, {} blocks lost", errors.parts, errors.lost)?;
        }
        for (device, MissingBytes { bytes, txgs, is_absent }) in missing {
            let bytes = bytes_b(*bytes);
            match is_absent {
                true => out!(io, "  {device}: not available, {bytes} of blocks belong on it")?,
                false => {
                    let txgs = crate::nicenum::txgs(txgs);
                    out!(io, "  {device}: may lack {bytes} of blocks, written in txgs {txgs}")?;
                }
            }
        }
        if summary.is_clean() && !missing.is_empty() {
            let count = missing.len();
            let what = if count == 1 { "1 device may lack" } else { "several devices may lack" };
            return out!(io, "{name}: nothing that was read is wrong, but {what} blocks");
        }
        if summary.is_clean() {
            return out!(io, "{name}: no errors");
        }
        let &Summary { parts, lost, unreachable, .. } = summary;
        out!(io, "{name}: {parts} parts wrong, {lost} blocks lost, {unreachable} trees cut off")
    }

    async fn leaks(&self, io: &mut Io<'_>) -> CommandResult<bool> {
        let report = leaks::check(self.pool).await?;
        for line in report.lines() {
            out!(io, "{line}")?;
        }
        Ok(report.is_clean())
    }
}

/// Returns a path with characters escaped that would disturb a terminal.
fn printable(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let mut path = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            path.extend(character.escape_default());
        } else {
            path.push(character);
        }
    }
    path
}
