//! `zpool status`.

use std::fmt::Write as _;
use std::sync::Arc;

use cenote_fs::FileSystem;
use cenote_ondisk::ddt::DdtStat;
use cenote_pool::accounting::DedupStats;
use cenote_pool::status::PoolStatus;
use cenote_pool::{DamagedObject, Pool, mos};
use serde_json::Map;

use super::config_table::{self, Options};
use super::json::{self, Form};
use super::names::Names;
use super::scripts::{self, Columns, Scripts};
use super::shown::Shown;
use super::{
    Pools, Repeat, block_on, colour, in_time, no_such_pool, pools_in_memory, scan, status_json,
    status_text, timestamp,
};
use crate::getopt::{Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::leaf_scripts::Leaf;
use crate::nicenum;
use crate::source::Source;
use crate::{environment, err, out};

/// Letter of `--power`.
const POWER: char = '\u{4}';

/// The heading of the table of dedup statistics.
const DEDUP_HEAD: &str = concat!(
    "\nbucket              allocated                       referenced          \n",
    "______   ______________________________   ______________________________\n",
    "refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE\n",
    "------   ------   -----   -----   -----   ------   -----   -----   -----\n",
);

/// Prefix of the web addresses of message ids.
pub(super) const MESSAGE_URL: &str = "https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-";

/// Runs `zpool status`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let mut longs = json::POOL_LONGS.to_vec();
    longs.push(Long::flag("power", POWER));
    let options = ("jc:dDegiLpPstT:vx", &longs[..]);
    let Some(parsed) = scripts::parse((source, "status"), args, options, io)? else {
        return Ok(());
    };
    let scripts = Scripts::of(source, &parsed)?;
    let form = Form::of(&parsed)?;
    if parsed.has(POWER) {
        return Err(Exit::failed("cannot show '--power': Power control not supported"));
    }
    let mut operands = parsed.operands.clone();
    let repeat = Repeat::take(&mut operands)?;
    block_on(async {
        let mut round = 0;
        loop {
            let columns = match &scripts {
                Some(scripts) => {
                    let leaves = async |io: &mut Io<'_>| leaves(source, &operands, io).await;
                    Some(Arc::new(scripts.run(source, leaves).await?))
                }
                None => None,
            };
            let told = source
                .prepare(io, async |io| {
                    columns.as_ref().map_or(Ok(()), |columns| columns.charge(source))?;
                    timestamp(&parsed, io)?;
                    let pools = pools_in_memory(source, &operands, no_such_pool, io).await?;
                    if pools.is_empty() && operands.is_empty() && !pools.is_incomplete {
                        err!(io, "no pools available")?;
                        return Ok(None);
                    }
                    let columns = columns.as_ref();
                    if form.is_wanted {
                        print_json(source, &pools, (&parsed, columns), form, io).await?;
                    } else {
                        let chosen = (&parsed, columns);
                        print(source, &pools, chosen, operands.is_empty(), io).await?;
                    }
                    Ok(Some(pools.finish()))
                })
                .await?;
            // Delivering ends the charge of its memory.
            drop(columns);
            source.deliver(io)?;
            let Some(told) = told else { return Ok(()) };
            round += 1;
            if !repeat.next(round, source).await {
                return told;
            }
        }
    })
}

/// Returns the leaves that scripts run for.
async fn leaves(source: &Source, operands: &[String], io: &mut Io<'_>) -> Result<Vec<Leaf>, Exit> {
    let mut leaves = Vec::new();
    for pool in pools_in_memory(source, operands, no_such_pool, io).await?.shown() {
        leaves.extend(scripts::leaves(&pool.status(source).await?));
    }
    Ok(leaves)
}

async fn print(
    source: &Source,
    pools: &Pools,
    (parsed, columns): (&Parsed, Option<&Arc<Columns>>),
    is_of_all: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let mut is_first = true;
    for pool in pools.shown() {
        let status = pool.status(source).await?;
        if parsed.has('x') && status.reason.is_healthy() {
            if !is_of_all {
                out!(io, "pool '{}' is healthy", pool.name())?;
            }
            continue;
        }
        if !is_first {
            out!(io)?;
        }
        is_first = false;
        let text = one(source, pool, &status, (parsed, columns)).await?;
        let text = if environment::wants_colours() { colour::status(&text) } else { text };
        write!(io.out, "{text}")?;
    }
    if is_first && parsed.has('x') && is_of_all {
        out!(io, "all pools are healthy")?;
    }
    Ok(())
}

/// Formats one pool.
async fn one(
    source: &Source,
    pool: Shown<'_>,
    status: &PoolStatus,
    (parsed, columns): (&Parsed, Option<&Arc<Columns>>),
) -> Result<String, Exit> {
    let state = status.health_name();
    let mut text = format!("  pool: {}\n state: {state}\n", status.root.name);
    if let Some((status, action)) = status_text::texts(status.reason) {
        let break_line = |text: &str| text.replace('|', "\n\t");
        let _ = writeln!(text, "status: {}", break_line(status));
        let _ = writeln!(text, "action: {}", break_line(action));
    }
    if let Some(id) = status.reason.message_id() {
        let _ = writeln!(text, "   see: {MESSAGE_URL}{id}");
    }
    let pass = pool.scan_pass(source);
    text.push_str(&scan::lines(status, pass));
    text.push_str("config:\n\n");
    let options = Options {
        names: Names::of(parsed).within(&pool.vdevs()),
        is_import: false,
        is_literal: parsed.has('p'),
        has_slow: parsed.has('s'),
        has_direct: parsed.has('d'),
        only_bad: parsed.has('e'),
        has_initialize: parsed.has('i'),
        has_trim: parsed.has('t'),
        pass,
        columns: columns.cloned(),
    };
    text.push_str(&config_table::render(status, &options));
    text.push('\n');
    text.push_str(&errors(source, pool.pool(), status, parsed).await?);
    if parsed.has('D') && pool.pool().is_some() {
        text.push_str(&dedup(status));
    }
    Ok(text)
}

/// Formats the `errors:` line, with `-v` and the names of damaged files.
async fn errors(
    source: &Source,
    pool: Option<&Arc<Pool>>,
    status: &PoolStatus,
    parsed: &Parsed,
) -> Result<String, Exit> {
    const UNAVAILABLE: &str =
        "errors: List of errors unavailable: pool I/O is currently suspended\n";
    let is_suspended = status.suspended.is_some();
    // As in OpenZFS, nothing is said about the errors of a pool that could not be opened.
    if status.failure.is_some() {
        return Ok(String::new());
    }
    let Some(pool) = pool.filter(|_| status.is_error_log_read || !is_suspended) else {
        return Ok(UNAVAILABLE.to_owned());
    };
    match status.error_count {
        0 => return Ok(without_errors(status)),
        count if !parsed.has('v') => {
            return Ok(format!("errors: {count} data errors, use '-v' for a list\n"));
        }
        _ => {}
    }
    let Some(names) = damaged_in_time(source, pool, status).await? else {
        return Ok(UNAVAILABLE.to_owned());
    };
    // No dataset has the blocks any more that were counted.
    if names.is_empty() {
        return Ok(without_errors(status));
    }
    let mut text =
        "errors: Permanent errors have been detected in the following files:\n\n".to_owned();
    for name in names {
        let _ = writeln!(text, "        {name}");
    }
    Ok(text)
}

/// Returns the `errors:` line of a pool whose error log is empty: it names data that cannot be read
/// or has fewer copies than the layout promises.
fn without_errors(status: &PoolStatus) -> String {
    match status.stale_leaf_count() {
        _ if !status.unreadable.is_empty() => {
            let txgs = nicenum::txgs(&status.unreadable);
            format!(
                "errors: Data written in txgs {txgs} cannot be read without the missing devices\n"
            )
        }
        0 => "errors: No known data errors\n".to_owned(),
        1 => "errors: None in data that was read; 1 device needs a resilver\n".to_owned(),
        count => format!("errors: None in data that was read; {count} devices need a resilver\n"),
    }
}

/// `-D`: formats the dedup statistics.
fn dedup(status: &PoolStatus) -> String {
    let Some(space) = &status.space else { return String::new() };
    match space.dedup.total.blocks {
        0 => "\n dedup: no DDT entries\n".to_owned(),
        blocks => {
            let size = nicenum::bytes_b(space.dedup.table_bytes);
            let head = format!("\n dedup: DDT entries {blocks}, size {size} on disk, 0B in core\n");
            head + &dedup_table(&space.dedup)
        }
    }
}

/// Formats the blocks of the dedup tables by reference count.
fn dedup_table(dedup: &DedupStats) -> String {
    let mut table = DEDUP_HEAD.to_owned();
    let mut row = |count: &str, stat: &DdtStat| {
        let number = nicenum::bytes;
        let size = nicenum::bytes_b;
        let _ = writeln!(
            table,
            "{count:>6}   {:>6}   {:>5}   {:>5}   {:>5}   {:>6}   {:>5}   {:>5}   {:>5}",
            number(stat.blocks),
            size(stat.lsize),
            size(stat.psize),
            size(stat.dsize),
            number(stat.ref_blocks),
            size(stat.ref_lsize),
            size(stat.ref_psize),
            size(stat.ref_dsize)
        );
    };
    for (power, stat) in dedup.histogram.0.iter().enumerate().filter(|(_, stat)| stat.blocks > 0) {
        row(&nicenum::bytes(1 << power), stat);
    }
    row("Total", &dedup.total);
    table
}

/// Returns the names of damaged objects, or `None` if those of a suspended pool cannot be read in
/// time.
async fn damaged_in_time(
    source: &Source,
    pool: &Arc<Pool>,
    status: &PoolStatus,
) -> Result<Option<Vec<String>>, Exit> {
    let names = Box::pin(damaged(source, pool));
    if status.suspended.is_none() {
        return names.await.map(Some);
    }
    Ok(in_time(names).await.and_then(Result::ok))
}

/// Returns the names of damaged objects, each object once, in all datasets that share the block:
/// paths where the dataset is mounted.
async fn damaged(source: &Source, pool: &Arc<Pool>) -> Result<Vec<String>, Exit> {
    let mounts = source.mounts();
    let objects = pool.damaged_objects().await?;
    let mut names = Vec::with_capacity(objects.len());
    for DamagedObject { objset, object } in objects {
        if objset == 0 {
            names.push(format!("<metadata>:<0x{object:x}>"));
            continue;
        }
        let dataset = pool.dataset_by_object(objset).await;
        let Ok(dataset) = mos::unless_interrupted(dataset)? else {
            names.push(format!("<0x{objset:x}>:<0x{object:x}>"));
            continue;
        };
        let path = match FileSystem::open(&dataset).await {
            Ok(fs) => fs.path_of(object).await.ok().flatten(),
            Err(_) => None,
        };
        let name = dataset.name();
        names.push(match path {
            Some(path) => {
                let path = String::from_utf8_lossy(&path).into_owned();
                let path = path.trim_start_matches('/');
                match mounts.iter().find(|(dataset, _)| dataset == name) {
                    Some((_, at)) => format!("{}/{path}", at.display()),
                    None => format!("{name}:/{path}"),
                }
            }
            None => format!("{name}:<0x{object:x}>"),
        });
    }
    Ok(names)
}

async fn print_json(
    source: &Source,
    pools: &Pools,
    (parsed, columns): (&Parsed, Option<&Arc<Columns>>),
    form: Form,
    io: &mut Io<'_>,
) -> CommandResult {
    let mut all = Map::new();
    for pool in pools.shown() {
        let status = pool.status(source).await?;
        if parsed.has('x') && status.reason.is_healthy() {
            continue;
        }
        let names = Names::of(parsed).within(&pool.vdevs());
        let errors = match pool.pool() {
            Some(pool) if parsed.has('v') => damaged_in_time(source, pool, &status).await?,
            _ => None,
        };
        let errors = errors.unwrap_or_default();
        let work = status_json::Work {
            has_initialize: parsed.has('i'),
            has_trim: parsed.has('t'),
            pass: pool.scan_pass(source),
            columns: columns.map(|columns| &**columns),
        };
        let map = status_json::pool(pool, &status, &names, &errors, (form, work));
        all.insert(pool.key(form), map.into());
    }
    let mut document = json::document("zpool status");
    document.insert("pools".into(), all.into());
    json::print(document, io)
}
