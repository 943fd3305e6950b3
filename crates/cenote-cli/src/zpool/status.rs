//! `zpool status`.

use std::fmt::Write as _;
use std::sync::Arc;

use cenote_fs::FileSystem;
use cenote_ondisk::ddt::DdtStat;
use cenote_pool::accounting::DedupStats;
use cenote_pool::status::PoolStatus;
use cenote_pool::{DamagedObject, Pool};
use serde_json::Map;

use super::config_table::{self, Options};
use super::json::{self, Form};
use super::list::pool_key;
use super::names::Names;
use super::{Repeat, block_on, no_such_pool, pools, scan, status_json, status_text, timestamp};
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum;
use crate::source::Source;
use crate::{err, out};

/// Letter of `--power`.
const POWER: char = '\u{4}';

/// What stands above the table of dedup statistics.
const DEDUP_HEAD: &str = concat!(
    "\nbucket              allocated                       referenced          \n",
    "______   ______________________________   ______________________________\n",
    "refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE\n",
    "------   ------   -----   -----   -----   ------   -----   -----   -----\n",
);

/// Where message ids lead.
pub(super) const MESSAGE_URL: &str = "https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-";

/// Runs `zpool status`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let mut longs = json::POOL_LONGS.to_vec();
    longs.push(Long::flag("power", POWER));
    let parsed = getopt::parse(args, "jc::dDegiLpPstT:vx", &longs)?;
    let form = Form::of(&parsed)?;
    if parsed.has('c') {
        let message = "cannot run '-c': scripts are not supported by this version of cenote";
        return Err(Exit::failed(message));
    }
    if parsed.has(POWER) {
        return Err(Exit::failed("cannot show '--power': Power control not supported"));
    }
    let mut operands = parsed.operands.clone();
    let repeat = Repeat::take(&mut operands)?;
    block_on(async {
        let mut round = 0;
        loop {
            let told = source
                .step(io, async |io| {
                    timestamp(&parsed, io)?;
                    let pools = pools(source, &operands, no_such_pool, io).await?;
                    if pools.open.is_empty() && operands.is_empty() && !pools.is_incomplete {
                        err!(io, "no pools available")?;
                        return Ok(None);
                    }
                    if form.is_wanted {
                        print_json(source, &pools.open, &parsed, form, io).await?;
                    } else {
                        print(source, &pools.open, &parsed, operands.is_empty(), io).await?;
                    }
                    Ok(Some(pools.finish()))
                })
                .await?;
            let Some(told) = told else { return Ok(()) };
            round += 1;
            if !repeat.next(round, source).await {
                return told;
            }
        }
    })
}

async fn print(
    source: &Source,
    pools: &[Arc<Pool>],
    parsed: &Parsed,
    is_of_all: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let mut is_first = true;
    for pool in pools {
        let status = pool.status().await?;
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
        write!(io.out, "{}", one(source, pool, &status, parsed).await?)?;
    }
    if is_first && parsed.has('x') && is_of_all {
        out!(io, "all pools are healthy")?;
    }
    Ok(())
}

/// One pool.
async fn one(
    source: &Source,
    pool: &Arc<Pool>,
    status: &PoolStatus,
    parsed: &Parsed,
) -> Result<String, Exit> {
    let state = status.health_name();
    let mut text = format!("  pool: {}\n state: {state}\n", pool.name());
    if let Some((status, action)) = status_text::texts(status.reason) {
        let break_line = |text: &str| text.replace('|', "\n\t");
        let _ = writeln!(text, "status: {}", break_line(status));
        let _ = writeln!(text, "action: {}", break_line(action));
    }
    if let Some(id) = status.reason.message_id() {
        let _ = writeln!(text, "   see: {MESSAGE_URL}{id}");
    }
    text.push_str(&scan::lines(status));
    text.push_str("config:\n\n");
    let options = Options {
        names: Names::of(parsed).within(&pool.config().vdev_tree),
        is_import: false,
        is_literal: parsed.has('p'),
        has_slow: parsed.has('s'),
        has_direct: parsed.has('d'),
        only_bad: parsed.has('e'),
        has_initialize: parsed.has('i'),
        has_trim: parsed.has('t'),
    };
    text.push_str(&config_table::render(status, &options));
    text.push('\n');
    match status.error_count {
        0 => text.push_str(&without_errors(status)),
        count if !parsed.has('v') => {
            let _ = writeln!(text, "errors: {count} data errors, use '-v' for a list");
        }
        _ => {
            text.push_str(
                "errors: Permanent errors have been detected in the following files:\n\n",
            );
            for name in damaged(source, pool).await? {
                let _ = writeln!(text, "        {name}");
            }
        }
    }
    if parsed.has('D') {
        text.push_str(&dedup(status));
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
        1 => "errors: None in data that was read; 1 device lacks data\n".to_owned(),
        count => format!("errors: None in data that was read; {count} devices lack data\n"),
    }
}

/// `-D`: what deduplication holds.
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

/// Blocks of the dedup tables by how often they are referenced.
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

/// Names of what is damaged, each object once, in all datasets that share the block: paths where
/// these are mounted.
async fn damaged(source: &Source, pool: &Arc<Pool>) -> Result<Vec<String>, Exit> {
    let mounts = source.mounts();
    let objects = pool.damaged_objects().await?;
    let mut names = Vec::with_capacity(objects.len());
    for DamagedObject { objset, object } in objects {
        if objset == 0 {
            names.push(format!("<metadata>:<0x{object:x}>"));
            continue;
        }
        let Ok(dataset) = pool.dataset_by_object(objset).await else {
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
    pools: &[Arc<Pool>],
    parsed: &Parsed,
    form: Form,
    io: &mut Io<'_>,
) -> CommandResult {
    let mut all = Map::new();
    for pool in pools {
        let status = pool.status().await?;
        if parsed.has('x') && status.reason.is_healthy() {
            continue;
        }
        let names = Names::of(parsed).within(&pool.config().vdev_tree);
        let errors = if parsed.has('v') { damaged(source, pool).await? } else { Vec::new() };
        let work = status_json::Work { has_initialize: parsed.has('i'), has_trim: parsed.has('t') };
        let map = status_json::pool(pool, &status, &names, &errors, (form, work));
        all.insert(pool_key(pool, form), map.into());
    }
    let mut document = json::document("zpool status");
    document.insert("pools".into(), all.into());
    json::print(document, io)
}
