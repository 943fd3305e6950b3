//! `zpool wait`.
//!
//! With `--embedded` no process keeps the pool between two commands, so background activities stand
//! still between them. This command therefore carries out the activity that it waits for, until it
//! is done.

use std::time::Duration;

use cenote_engine::{CheckpointState, Engine, ScanError};
use cenote_ondisk::config::VdevKind;
use cenote_ondisk::leaf_work::{LeafWorkKind, LeafWorkState};
use cenote_ondisk::scan::{SCAN, ScanFunc, ScanPhys};
use cenote_ondisk::zap::Value;

use super::{Repeat, block_on, scan, timestamp};
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum;
use crate::source::Source;
use crate::writer::Writer;

/// The activities that can be waited for, in OpenZFS's order.
const ACTIVITIES: [&str; 9] = [
    "discard",
    "free",
    "initialize",
    "replace",
    "remove",
    "resilver",
    "scrub",
    "trim",
    "raidz_expand",
];
/// Narrowest column.
const WIDTH_MIN: usize = 6;
/// Interval of progress checks.
const STEP: Duration = Duration::from_millis(20);
/// Longest wait for the end of a scan between two progress checks.
const SCAN_STEP: Duration = Duration::from_millis(500);
/// The activities that are scans.
const SCANS: [(&str, ScanFunc); 4] = [
    ("replace", ScanFunc::Resilver),
    ("resilver", ScanFunc::Resilver),
    ("scrub", ScanFunc::Scrub),
    ("scrub", ScanFunc::ErrorScrub),
];

/// Runs `zpool wait`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "HpT:t:", &[])?;
    let mut wanted = Vec::new();
    for word in parsed.values('t').flat_map(|list| list.split(',')) {
        let found = ACTIVITIES.iter().position(|activity| *activity == word);
        wanted.push(found.ok_or_else(|| Exit::usage(format!("invalid activity '{word}'")))?);
    }
    if wanted.is_empty() {
        wanted.extend(0..ACTIVITIES.len());
    }
    wanted.sort_unstable();
    wanted.dedup();
    let mut operands = parsed.operands.clone();
    let repeat = Repeat::take(&mut operands)?;
    let [name] = getopt::exactly(&operands, ["missing 'pool' argument"])?;
    block_on(Writer::run_on_pool(source, name, None, io, async |engine, io| {
        let is_wanted = |activity: &str| wanted.iter().any(|at| ACTIVITIES[*at] == activity);
        // Other users only wait: the daemon carries activities out by itself.
        let helps = source.is_trusted();
        if helps && (is_wanted("initialize") || is_wanted("trim")) {
            engine.leaves().resume_work().await?;
        }
        let scans = SCANS.iter().filter(|(activity, _)| is_wanted(activity));
        let scans: Vec<ScanFunc> = scans.map(|(_, kind)| *kind).collect();
        // The daemon resumes the scans of its pools itself.
        if source.session.is_none() && !scans.is_empty() {
            engine.scans().resume().await?;
        }
        if source.session.is_none() && is_wanted("remove") {
            engine.removals().resume().await;
        }
        // As for scans.
        if source.session.is_none() && is_wanted("raidz_expand") {
            engine.leaves().resume_reflow();
        }
        let mut shown: Option<Duration> = None;
        loop {
            // A suspended pool may not answer.
            let Some(left) = source.while_waited_for(left(engine, &wanted)).await else {
                return Ok(());
            };
            let left = left?;
            let now = cenote_rt::monotonic();
            if let Some(interval) = repeat.interval
                && shown.is_none_or(|shown| now.saturating_sub(shown) >= interval)
            {
                timestamp(&parsed, io)?;
                if shown.is_none() && !parsed.has('H') {
                    row(&wanted, |at| ACTIVITIES[at].to_uppercase(), false, io)?;
                }
                let is_literal = parsed.has('p');
                let number = |at: usize| {
                    if is_literal { left[at].to_string() } else { nicenum::bytes(left[at]) }
                };
                row(&wanted, number, parsed.has('H'), io)?;
                source.deliver(io)?;
                shown = Some(now);
            }
            if left.iter().all(|bytes| *bytes == 0) {
                return Ok(());
            }
            if helps && left[0] + left[1] > 0 {
                match source.while_waited_for(engine.sync()).await {
                    Some(synced) => drop(synced?),
                    None => return Ok(()),
                }
            } else if let Some(kind) = scans.iter().find(|kind| engine.scans().is_running(**kind)) {
                let step = repeat.interval.map_or(SCAN_STEP, |interval| interval.min(SCAN_STEP));
                let ended = cenote_rt::until(step, engine.scans().wait(*kind));
                match source.while_waited_for(ended).await {
                    Some(ended) => ended.transpose().map(drop)?,
                    None => return Ok(()),
                }
            } else if !source.sleep(STEP).await {
                return Ok(());
            }
        }
    }))
}

/// Waits for the end of an activity, as `-w` of another command does.
pub(super) fn for_activity(
    source: &Source,
    pool: &str,
    activity: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    run(source, &["-t", activity, pool].map(str::to_owned), io)
}

/// Returns the remaining bytes of those of these activities that go on, for a person who waits.
pub(crate) fn progress(engine: &Engine, wanted: &[&'static str]) -> Vec<(&'static str, u64)> {
    let going_on = |(at, activity): (usize, &'static str)| {
        // What cannot be told of one does not hide the others.
        let left = block_on(left(engine, &[at])).ok()?[at];
        (left > 0).then_some((activity, left))
    };
    let all = ACTIVITIES.into_iter().enumerate();
    all.filter(|(_, activity)| wanted.contains(activity)).filter_map(going_on).collect()
}

/// Returns the activities for which a command waits: `zpool wait`, or one with `-w`.
pub(crate) fn waited_for(args: &[String]) -> Option<Vec<&'static str>> {
    let [tool, verb, rest @ ..] = args else { return None };
    if tool != "zpool" {
        return None;
    }
    let of_verb: &[&'static str] = match verb.as_str() {
        "wait" => {
            let parsed = getopt::parse(rest, "HpT:t:", &[]).ok()?;
            let named: Vec<&str> = parsed.values('t').flat_map(|list| list.split(',')).collect();
            let is_meant = |activity: &&str| named.is_empty() || named.contains(activity);
            return Some(ACTIVITIES.into_iter().filter(is_meant).collect());
        }
        "scrub" => &["scrub"],
        "attach" => &["resilver", "raidz_expand"],
        "replace" => &["resilver"],
        "initialize" => &["initialize"],
        "trim" => &["trim"],
        "remove" => &["remove"],
        "checkpoint" => &["discard"],
        _ => return None,
    };
    let is_option = |word: &String| word.starts_with('-') && !word.starts_with("--");
    let waits = rest.iter().any(|word| is_option(word) && word.contains('w'));
    waits.then(|| of_verb.to_vec())
}

/// Returns the remaining bytes of each selected activity.
async fn left(engine: &Engine, wanted: &[usize]) -> Result<[u64; ACTIVITIES.len()], Exit> {
    let mut left = [0; ACTIVITIES.len()];
    for at in wanted {
        left[*at] = match ACTIVITIES[*at] {
            "discard" if engine.space().checkpoint_state() == CheckpointState::Discarding => {
                engine.space().checkpoint_bytes().max(1)
            }
            "free" if engine.space().has_background_work().await => 1,
            "free" if engine.space().has_pending_frees().await? => {
                return Err(Exit::failed("cannot wait: a destroyed dataset cannot be freed"));
            }
            "initialize" => of_leaves(engine, LeafWorkKind::Initialize).await?,
            "trim" => of_leaves(engine, LeafWorkKind::Trim).await?,
            "replace" if is_replacing(engine) => of_resilver(engine).await?,
            "resilver" => of_resilver(engine).await?,
            // OpenZFS does not wait for error scrubs.
            "scrub" => {
                let of_errors = u64::from(engine.scans().is_running(ScanFunc::ErrorScrub));
                of_scan(engine, ScanFunc::Scrub).await?.max(of_errors)
            }
            "remove" if engine.removals().removing().is_some() => of_removal(engine).await?,
            "raidz_expand" => {
                let progress = engine.leaves().reflow_progress();
                let is_ending = u64::from(engine.leaves().is_reflow_running());
                progress.map_or(is_ending, |of| of.to_copy.saturating_sub(of.copied).max(1))
            }
            // A pool that is open for writing here never has other activities.
            _ => 0,
        };
    }
    Ok(left)
}

/// Returns the bytes that a removal has not copied yet.
async fn of_removal(engine: &Engine) -> Result<u64, Exit> {
    let state = engine.removals().state().await?;
    // As long as it runs, something is left.
    Ok(state.map_or(0, |state| state.to_copy.saturating_sub(state.copied)).max(1))
}

/// Whether a device is being replaced.
fn is_replacing(engine: &Engine) -> bool {
    let root = engine.admin().vdev_config();
    root.walk().any(|vdev| vdev.kind == VdevKind::Replacing)
}

/// Returns the bytes that a resilver or rebuild has not read yet. One that is recorded but does not
/// run yet counts, for example that of a spare that was just called in, and one that devices wait
/// for.
async fn of_resilver(engine: &Engine) -> Result<u64, Exit> {
    let left = of_scan(engine, ScanFunc::Resilver).await?;
    let is_deferred = engine.admin().vdev_config().leaves().any(|leaf| leaf.leaf.resilver_defer);
    let is_to_come =
        is_deferred || engine.scans().in_progress().await? == Some(ScanError::Resilvering);
    Ok(left.max(u64::from(is_to_come)))
}

/// Returns the bytes that a running scan has not read yet.
async fn of_scan(engine: &Engine, kind: ScanFunc) -> Result<u64, Exit> {
    if !engine.scans().is_running(kind) {
        return Ok(0);
    }
    let view = engine.view().await?;
    let words = view.directory_value(SCAN).map(Value::words).unwrap_or_default();
    let left = ScanPhys::decode(&words).ok().filter(|phys| phys.func == kind).map(|phys| {
        phys.to_examine.saturating_sub(scan::issued(&phys, Some(engine.scans().pass())))
    });
    // As long as it runs, something is left.
    Ok(left.unwrap_or(0).max(1))
}

async fn of_leaves(engine: &Engine, kind: LeafWorkKind) -> Result<u64, Exit> {
    let mut left = 0;
    for leaf in engine.leaves().data_guids() {
        let work = engine.leaves().work_state(leaf, kind).await?;
        if work.state == LeafWorkState::Active
            && engine.leaves().is_work_running(leaf, kind).await?
        {
            left += engine.leaves().size_of(leaf).saturating_sub(work.offset).max(1);
        }
    }
    Ok(left)
}

fn row(
    wanted: &[usize],
    cell: impl Fn(usize) -> String,
    is_scripted: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let cells = wanted.iter().map(|at| {
        let width = ACTIVITIES[*at].len().max(WIDTH_MIN) + 2;
        if is_scripted { cell(*at) } else { format!("{:>width$}", cell(*at)) }
    });
    let cells: Vec<_> = cells.collect();
    Ok(writeln!(io.out, "{}", cells.join(if is_scripted { "\t" } else { "" }))?)
}
