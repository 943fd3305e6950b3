//! `zpool import`: lists and imports pools.
//!
//! A listing opens each pool that it finds for reading, to show its state. With `--embedded`,
//! importing a pool by name marks it as in use by this host until it is exported, and every command
//! may open it; no process keeps it open meanwhile. Read-only imports, and imports that leave no
//! trace, would need such a process: with `--embedded` they are checked as an import checks them,
//! then refused.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::config::PoolState;
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::features::UnknownFeature;
use cenote_pool::import::{FindError, Host, Scan};
use cenote_pool::pool::Rewind;
use cenote_pool::props::pool_property;
use cenote_pool::status::{PoolStatus, VdevAux, VdevState, examine, state_name};
use cenote_pool::{Candidate, OpenError, OpenOptions, Pool, Reason};

use super::names::Names;
use super::setting::Wanted;
use super::{block_on, cache, config_table, import_failure, import_text};
use crate::getopt::{self, Long, Parsed};
use crate::host::{AbsentPool, Taken};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{After, Writer, command_line};
use crate::zfs::{keys, value};
use crate::{err, out};

/// Letter of `--rewind-to-checkpoint`.
const CHECKPOINT: char = '\u{1}';

/// Runs `zpool import`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let longs = [Long::flag("rewind-to-checkpoint", CHECKPOINT)];
    let parsed = getopt::parse(args, ":aCc:d:DEfFlmnNo:R:stT:VX", &longs)?;
    check(&parsed)?;
    let line = command_line(Tool::Zpool, "import", args);
    let mut source = source.clone();
    if parsed.has('d') {
        source.paths = parsed.values('d').map(str::to_owned).collect();
    }
    let cached = parsed.value('c').map(|file| cache::read(&source.path(file))).transpose()?;
    if let Some(cached) = &cached {
        source.paths =
            cached.folders().into_iter().map(|path| path.to_string_lossy().into()).collect();
    }
    // A directory that does not exist holds no pools.
    let is_elsewhere = cached.is_some() || !source.paths.is_empty();
    let here = source.clone();
    source.paths.retain(|path| here.path(path).exists());
    block_on(async {
        let mut scan = if is_elsewhere && source.paths.is_empty() {
            Scan::default()
        } else {
            source.scan().await?
        };
        if let Some(session) = &source.session {
            // A pool whose devices are back is opened as it was before.
            if let [name] = &parsed.operands[..]
                && session.absent_pool(name).is_some()
            {
                session.host.look_for_absent_pools().await;
                if session.pool(name).is_ok() {
                    return Ok(());
                }
            }
            // Pools that are already open cannot be imported.
            if let Some(name) = parsed.operands.first()
                && session.pool(name).is_ok()
                && scan.find(name).is_ok_and(|found| session.has_guid(found.guid()))
            {
                return Err(name_is_taken(name));
            }
            let held: Vec<u64> = session.host.pools().iter().map(|engine| engine.guid()).collect();
            scan.candidates.retain(|found| !held.contains(&found.guid()));
        }
        if let Some(cached) = &cached {
            scan.candidates.retain(|found| cached.guids.contains(&found.facts.pool_guid));
        }
        match (&parsed.operands[..], parsed.has('a')) {
            ([], false) => list(&scan, &parsed, io).await,
            ([], true) if source.has_pools() => {
                import_every(&source, &scan, &parsed, &line, io).await
            }
            ([], true) => import_all(&scan, &parsed),
            ([name, ..], _)
                if source.session.is_some() || source.has_pools() && !is_read_only(&parsed) =>
            {
                import_writable(&source, &scan, name, &parsed, &line, io).await
            }
            ([name, ..], _) => import_one(&scan, name, &parsed, io).await,
        }
    })
}

/// Refuses options that refine a rewind without one that requests it.
pub(super) fn check_rewind(parsed: &Parsed) -> CommandResult {
    if (parsed.has('n') || parsed.has('X')) && !parsed.has('F') {
        return Err(Exit::usage("-n or -X only meaningful with -F"));
    }
    Ok(())
}

/// Refuses options that exclude each other.
fn check(parsed: &Parsed) -> CommandResult {
    check_rewind(parsed)?;
    if parsed.has('c') && parsed.has('d') {
        return Err(Exit::usage("-c is incompatible with -d"));
    }
    if parsed.has('c') && parsed.has('s') {
        return Err(Exit::usage("-c is incompatible with -s"));
    }
    if parsed.has('l') && parsed.has('N') {
        return Err(Exit::usage("-l is incompatible with -N"));
    }
    if parsed.has('l') && !parsed.has('a') && parsed.operands.is_empty() {
        return Err(Exit::usage("-l is only meaningful during an import"));
    }
    if parsed.operands.len() > if parsed.has('a') { 0 } else { 2 } {
        return Err(Exit::usage("too many arguments"));
    }
    for property in parsed.values('o') {
        if !property.contains('=') && property.split(',').any(str::is_empty) {
            return Err(Exit::usage("missing '=' for -o option"));
        }
    }
    if parsed.value('T').is_some_and(|txg| txg.parse::<u64>().is_err()) {
        return Err(Exit::usage("invalid txg value"));
    }
    Ok(())
}

async fn list(scan: &Scan, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let host = Host::current();
    let mut is_first = true;
    for candidate in &scan.candidates {
        if candidate.is_destroyed() != parsed.has('D') {
            continue;
        }
        if !is_first {
            out!(io)?;
        }
        is_first = false;
        show(candidate, &examine(candidate, &host).await, io).await?;
    }
    if is_first {
        err!(io, "no pools available to import")?;
    }
    Ok(())
}

/// Prints one pool of a listing.
async fn show(candidate: &Candidate, status: &PoolStatus, io: &mut Io<'_>) -> CommandResult {
    let facts = &status.facts;
    // With a comment there is one more title of the longest kind.
    let indent = if facts.comment.is_some() { " " } else { "" };
    let break_line = |text: &str| text.replace('|', &format!("\n\t{indent}"));
    out!(io, "{indent}  pool: {}", facts.name)?;
    out!(io, "{indent}    id: {}", facts.pool_guid)?;
    let health = state_name(status.root.state, status.root.aux);
    let is_destroyed = facts.state == PoolState::Destroyed;
    out!(io, "{indent} state: {health}{}", if is_destroyed { " (DESTROYED)" } else { "" })?;
    if let Some(text) = import_text::status(status.reason) {
        out!(io, "{indent}status: {}", break_line(&text))?;
        for feature in unsupported(candidate, status.reason).await {
            out!(io, "\t{}", feature.described())?;
        }
    }
    let host = (facts.hostname.as_deref().unwrap_or("<unknown>"), facts.hostid);
    let action = import_text::action(status.reason, status.root.state, host);
    out!(io, "{indent}action: {}", break_line(&action))?;
    if status.root.state == VdevState::CantOpen && status.root.aux == VdevAux::CorruptData {
        if is_destroyed {
            let text = "The pool was destroyed, but can be imported using the '-Df' flags.";
            out!(io, "\t{indent}{text}")?;
        } else if facts.state != PoolState::Exported {
            let text = "The pool may be active on another system, but can be imported using|\
                        the '-f' flag.";
            out!(io, "\t{indent}{}", break_line(text))?;
        }
    }
    if let Some(id) = status.reason.message_id() {
        let url = "https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-";
        out!(io, "{indent}   see: {url}{id}")?;
    }
    if let Some(comment) = &facts.comment {
        out!(io, "comment: {comment}")?;
    }
    out!(io, "{indent}config:\n")?;
    let options = config_table::Options {
        names: Names::default().within(&candidate.root),
        is_import: true,
        is_literal: false,
        has_slow: false,
        has_direct: false,
        only_bad: false,
        has_initialize: false,
        has_trim: false,
        pass: None,
        columns: None,
    };
    write!(io.out, "{}", config_table::render(status, &options))?;
    if status.reason == Reason::BadGuidSum {
        let text = "Additional devices are known to be part of this pool, though their|\
                    exact configuration cannot be determined.";
        out!(io, "\n\t{indent}{}", break_line(text))?;
    }
    Ok(())
}

/// Returns the features that a status names.
async fn unsupported(candidate: &Candidate, reason: Reason) -> Vec<UnknownFeature> {
    if !matches!(reason, Reason::UnsupportedFeatureRead | Reason::UnsupportedFeatureWrite) {
        return Vec::new();
    }
    let options = OpenOptions { destroyed_ok: true, ..OpenOptions::default() };
    match Pool::open(candidate, &options).await {
        Ok(pool) => pool.features().unwritable(),
        Err(error) => match error.cause::<OpenError>() {
            Some(
                OpenError::UnsupportedFeatures(features) | OpenError::ReadOnlyFeatures(features),
            ) => features.clone(),
            _ => Vec::new(),
        },
    }
}

/// Whether the options request a read-only import.
fn is_read_only(parsed: &Parsed) -> bool {
    parsed.values('o').any(|property| property == "readonly=on")
}

/// Returns the options for mounting: as in OpenZFS, a value of `-o` without `=`.
fn mount_options(parsed: &Parsed) -> String {
    let options: Vec<_> = parsed.values('o').filter(|text| !text.contains('=')).collect();
    options.join(",")
}

fn import_all(scan: &Scan, parsed: &Parsed) -> CommandResult {
    let mut wanted =
        scan.candidates.iter().filter(|candidate| candidate.is_destroyed() == parsed.has('D'));
    match wanted.next() {
        None => Err(Exit::failed("no pools available to import")),
        Some(candidate) => Err(refusal(candidate.name())),
    }
}

/// Imports every exported pool.
async fn import_every(
    source: &Source,
    scan: &Scan,
    parsed: &Parsed,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let is_wanted = |found: &&Candidate| {
        found.is_destroyed() == parsed.has('D')
            && (parsed.has('D') || found.facts.state == PoolState::Exported)
    };
    let wanted: Vec<_> = scan.candidates.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        return Err(Exit::failed("no pools available to import"));
    }
    let mut status = Ok(());
    for candidate in wanted {
        let Err(exit) = take(source, candidate, None, parsed, line, io).await else { continue };
        if !matches!(exit, Exit::Status(_)) {
            err!(io, "{}", exit.message())?;
        }
        status = Err(Exit::Status(1));
    }
    status
}

/// Imports one pool.
async fn import_writable(
    source: &Source,
    scan: &Scan,
    name: &str,
    parsed: &Parsed,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let candidate = find(scan, name, parsed, io)?;
    let new_name = parsed.operands.get(1).map(String::as_str);
    if let Some(new_name) = new_name {
        if super::create::check_name(new_name).is_err() {
            return Err(Exit::failed(format!("invalid pool name '{new_name}'")));
        }
        let is_taken = |found: &Candidate| found.name() == new_name && !found.is_destroyed();
        if scan.candidates.iter().any(is_taken) {
            return Err(Exit::failed(format!("cannot import '{name}': pool already exists")));
        }
    }
    if parsed.has('n') {
        return import_one(scan, name, parsed, io).await;
    }
    take(source, candidate, new_name, parsed, line, io).await
}

/// Imports the pool that a split has just made; `args` are options of `zpool import`.
pub(super) async fn import_new(
    source: &Source,
    name: &str,
    args: &[String],
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let parsed = getopt::parse(args, ":lo:R:", &[])?;
    let scan = source.scan().await?;
    let found = scan.find(name).map_err(|error| Exit::cannot("open", name, error))?;
    take(source, found, None, &parsed, line, io).await
}

fn name_is_taken(name: &str) -> Exit {
    Exit::failed(format!(
        "cannot import '{name}': a pool with that name already exists\nuse the form 'zpool import \
         <pool | id> <newpool>' to give it a new name"
    ))
}

/// Marks a pool as in use by this host, and opens it.
async fn take(
    source: &Source,
    candidate: &Candidate,
    new_name: Option<&str>,
    parsed: &Parsed,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let name = candidate.name();
    let host = Host::current();
    if let Some(session) = &source.session {
        let new_name = new_name.unwrap_or(name);
        let is_this = |pool: Arc<AbsentPool>| pool.guid() == candidate.guid();
        if session.pool(new_name).is_ok() || !session.absent_pool(new_name).is_none_or(is_this) {
            return Err(name_is_taken(name));
        }
    } else if candidate.facts.state == PoolState::Active
        && !candidate.last_use().is_foreign(&host)
        && new_name.is_none()
        && !parsed.options.iter().any(|(letter, _)| "fFTm".contains(*letter))
    {
        return Err(name_is_taken(name));
    }
    let cannot = |why: String| Exit::failed(format!("cannot import pool '{name}': {why}"));
    let mut wanted = Wanted::default();
    for (property, value) in parsed.values('o').filter_map(|text| text.split_once('=')) {
        if property != "readonly" && pool_property(property).is_some() {
            wanted.add(property, value, false).map_err(cannot)?;
        }
    }
    wanted.check_bootfs(candidate.name()).map_err(cannot)?;
    let altroot = wanted.root(parsed.value('R'));
    let altroot = altroot.map_err(|folder| cannot(format!("bad alternate root '{folder}'")))?;
    let cache_file = wanted.cache_file(parsed.has('t'));
    let file = cache_file.clone().filter(|file| !file.as_os_str().is_empty());
    let not_known =
        |error: std::io::Error| Exit::cannot("import", name, format!("cachefile: {error}"));
    if let Some(file) = &file {
        // Before the pool is changed.
        cache::check(file).map_err(not_known)?;
    }
    let options = options(parsed);
    let rewound = rewound(candidate, &options).await;
    let is_read_only = is_read_only(parsed);
    let opened = if is_read_only {
        Engine::open_read_only(candidate, &options).await
    } else {
        Engine::open(candidate, &options).await
    };
    let engine = match opened {
        Ok(engine) => engine,
        Err(error) => return Err(import_failure::of(candidate, &options, &error, io).await),
    };
    let is_temporary = is_read_only || parsed.has('t');
    if let Some(new_name) = new_name.filter(|_| is_temporary) {
        engine.admin().set_temporary_name(new_name).await;
    }
    let is_unmounted = parsed.has('N');
    let how = Taken { altroot, cache_file, is_unmounted, mount_options: mount_options(parsed) };
    let done = After::taken(source, how);
    let writer = Writer::of(source, engine, After::as_found(candidate), done).await?;
    let mut has_keys = true;
    let work = async |engine: &Arc<Engine>, io: &mut Io<'_>| {
        warn_of_missing_data(engine, io).await?;
        if !is_read_only {
            let id = (host.hostid != 0).then_some((host.hostid, host.hostname));
            engine.admin().set_host(id).await?;
        }
        if let Some(new_name) = new_name.filter(|_| !is_temporary) {
            engine.admin().rename(new_name).await?;
        }
        if !wanted.settings.is_empty() {
            engine.admin().set(wanted.settings).await?;
        }
        if !is_read_only {
            // Written with the command line.
            engine.admin().note_import();
        }
        if let Some(rewound) = rewound {
            report_rewind(name, &rewound, false, io)?;
        }
        if let Some(file) = file.filter(|_| source.session.is_none()) {
            // A cache file that does not exist yet is created with the paths at which the devices
            // were found.
            let (name, list) = engine.admin().config_list();
            cache::write(&file, &name, list).map_err(not_known)?;
        }
        if parsed.has('l') {
            has_keys = keys::load_all(source, &engine.view().await?, io).await?;
        }
        Ok(())
    };
    writer.carry_out(Some(line), io, work).await?;
    // The pool is imported all the same.
    if has_keys { Ok(()) } else { Err(Exit::Status(1)) }
}

/// Returns the options for opening a pool in an import.
fn options(parsed: &Parsed) -> OpenOptions {
    OpenOptions {
        txg: parsed.value('T').and_then(|txg| txg.parse().ok()),
        rewind: match (parsed.has('F'), parsed.has('X')) {
            // A given txg may be any distance back.
            _ if parsed.has('T') => Rewind::Extreme,
            (false, _) => Rewind::default(),
            (true, false) => Rewind::Safe,
            (true, true) => Rewind::Extreme,
        },
        missing_log_ok: parsed.has('m'),
        unneeded_log_ok: false,
        destroyed_ok: parsed.has('D'),
        host: Some(Host::current()),
        force: parsed.has('f'),
        checkpoint: parsed.has(CHECKPOINT),
        for_writing: false,
    }
}

/// The state that an import rewinds to.
pub(super) struct Rewound {
    /// Time of the state, in seconds since 1970.
    pub(super) time: u64,
    /// Seconds of changes that are lost.
    pub(super) loss: u64,
}

/// Formats seconds, in minutes if they are many.
pub(super) fn loss_text(seconds: u64) -> String {
    match seconds {
        0..=120 => format!("{seconds} seconds"),
        _ => format!("{} minutes", (seconds + 30) / 60),
    }
}

/// Returns the state that an import with these options would rewind to, if it does.
pub(super) async fn rewound(candidate: &Candidate, options: &OpenOptions) -> Option<Rewound> {
    if options.rewind == Rewind::Never && options.txg.is_none() {
        return None;
    }
    let options = OpenOptions { host: None, ..options.clone() };
    let found = *Pool::open(candidate, &options).await.ok()?.uberblock();
    let newest = candidate.uberblocks().into_iter().max_by_key(Uberblock::rank)?;
    let (time, loss) = (found.timestamp, newest.timestamp.saturating_sub(found.timestamp));
    (newest.txg != found.txg).then_some(Rewound { time, loss })
}

/// Prints what was, or would be, lost.
fn report_rewind(name: &str, rewound: &Rewound, is_trial: bool, io: &mut Io<'_>) -> CommandResult {
    let time = value::date(rewound.time, value::CTIME);
    let (back, lost) = if is_trial {
        (format!("Would be able to return {name} to its state as of {time}."), "Would discard")
    } else {
        (format!("Pool {name} returned to its state as of {time}."), "Discarded")
    };
    out!(io, "{back}")?;
    match rewound.loss {
        0 => Ok(()),
        loss => out!(io, "{lost} approximately {} of transactions.", loss_text(loss)),
    }
}

fn find<'a>(
    scan: &'a Scan,
    name: &str,
    parsed: &Parsed,
    io: &mut Io<'_>,
) -> Result<&'a Candidate, Exit> {
    let absent = || Exit::failed(format!("cannot import '{name}': no such pool available"));
    match scan.find(name) {
        Ok(candidate) if candidate.is_destroyed() && !parsed.has('D') => Err(absent()),
        Ok(candidate) => Ok(candidate),
        Err(FindError::NotFound) => Err(absent()),
        Err(FindError::Ambiguous(_)) => {
            err!(io, "cannot import '{name}': more than one matching pool")?;
            Err(Exit::failed("import by numeric ID instead"))
        }
    }
}

async fn import_one(scan: &Scan, name: &str, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let candidate = find(scan, name, parsed, io)?;
    if let Some(new_name) = parsed.operands.get(1)
        && cenote_pool::DatasetName::parse(new_name)
            .is_ok_and(|parsed| parsed.dataset.contains('/'))
    {
        return Err(Exit::failed(format!("invalid pool name '{new_name}'")));
    }
    let options = options(parsed);
    let pool = match Pool::open(candidate, &options).await {
        Ok(pool) => pool,
        Err(error) => return Err(import_failure::of(candidate, &options, &error, io).await),
    };
    let unwritable = pool.features().unwritable();
    if !is_read_only(parsed) && !unwritable.is_empty() {
        let error = OpenError::ReadOnlyFeatures(unwritable).into();
        return Err(import_failure::of(candidate, &options, &error, io).await);
    }
    if parsed.has('n') {
        if let Some(rewound) = rewound(candidate, &options).await {
            report_rewind(name, &rewound, true, io)?;
        }
        return Ok(());
    }
    Err(refusal(name))
}

/// Returns why an importable pool is not imported.
fn refusal(name: &str) -> Exit {
    Exit::failed(format!(
        "cannot import '{name}': a permanent import is not supported by this version of cenote\n\
         \tUse 'zpool --embedded -d DIR VERB' and 'zfs --embedded -d DIR VERB' to read the pool."
    ))
}

/// Attempts to read a state that is dropped meanwhile.
const READ_TRIES: u32 = 8;

/// Warns about data that is only on missing devices. The pool opens without it, but reading a file
/// that contains it fails with EIO.
async fn warn_of_missing_data(engine: &Arc<Engine>, io: &mut Io<'_>) -> CommandResult {
    let read = async || engine.view().await?.status().await;
    let mut read_status = read().await;
    for _ in 1..READ_TRIES {
        match &read_status {
            Err(error) if error.kind() == cenote_rt::Kind::Overtaken => read_status = read().await,
            _ => break,
        }
    }
    let status = match read_status {
        Ok(status) => status,
        // The pool is imported all the same: this only concerns a warning.
        Err(error) => return err!(io, "warning: the state of the data is not known: {error}"),
    };
    if status.unreadable.is_empty() {
        return Ok(());
    }
    let leaves = status.root.walk().filter(|vdev| vdev.is_absent && vdev.children.is_empty());
    let absent: Vec<_> = leaves.filter_map(|leaf| leaf.path.as_deref()).collect();
    err!(
        io,
        "warning: data that was written in txgs {} cannot be read: it is only on devices that\n\
         are not available: {}\n\
         export the pool, attach them, and import it again",
        crate::nicenum::txgs(&status.unreadable),
        absent.join(", ")
    )
}
